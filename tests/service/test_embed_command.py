"""`cutlayer embed` against a vendor in a process of its own: what it writes, tells and refuses."""

from __future__ import annotations

import stat
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cutlayer.customer import Client
from tests.promises.runs import corpus
from tests.service.process import VendorProcess
from tests.unit.cli.conftest import Run


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    path = tmp_path / "notes.csv"
    path.write_text("\n".join(["note", *(text for (text,) in corpus(30, seed=5, canaries=False).texts)]))
    return path


@pytest.mark.usefixtures("at_vendor")
@pytest.mark.parametrize("how", [(), ("--mechanism", "vector", "--clip")])
def test_an_array_is_written_and_nothing_is_sent_twice(
    how: tuple[str, ...], notes: Path, tmp_path: Path, run: Run
) -> None:
    command: tuple[object, ...] = (
        "embed",
        "--denoiser",
        "none",
        "--input",
        notes,
        "--text-column",
        "note",
        "--output",
        tmp_path / "notes.npy",
        "--eta",
        6,
        *how,
    )
    first, again = run(*command, "--json"), run(*command, "--json")
    assert (first.code, again.code) == (0, 0), first.err
    told = first.result
    assert (told["n"], told["width"], told["model"], told["eta"]) == (30, 32, "tiny", 6)
    assert told["sent"] == 30
    assert told["uplink_bytes"] > 30
    assert told["guarantee"]["claim"] == "metric-dp"
    assert (again.result["sent"], again.result["uplink_bytes"]) == (0, 0)
    assert (told["replaced"] is None) == bool(how)
    assert again.result["replaced"] == told["replaced"] != 0
    written = np.load(tmp_path / "notes.npy", allow_pickle=False)
    assert (written.shape, written.dtype) == ((30, 32), np.float32)
    assert stat.S_IMODE((tmp_path / "notes.npy").stat().st_mode) == 0o600
    with closing(Client()) as client:
        settings: dict[str, Any] = {"privacy": _spec(how), "text_column": "note", "denoiser": "none"}
        assert np.array_equal(client.embed(notes, progress=None, **settings).values, written)
    for ran in (first, again, run(*command)):
        assert "w3 " not in ran.out + ran.err


@pytest.mark.usefixtures("at_vendor")
def test_a_denoiser_is_trained_listed_and_used(data_dir: Path, notes: Path, tmp_path: Path, run: Run) -> None:
    public, offer = tmp_path / "public.csv", ("--data-dir", data_dir, "--model", "tiny")
    public.write_text("\n".join(["text", *(text for (text,) in corpus(120, seed=9, canaries=False).texts)]))
    how = ("--mechanism", "vector", "--clip")
    trained = run(
        "vendor", "denoiser", "train", *offer, "--public", public, *how, "--steps", 10, "--batch-size", 4, "--json"
    )
    assert trained.code == 0, trained.err
    listed = run("vendor", "denoiser", "list", *offer)
    assert f"{trained.result['denoiser']} of tiny: light, for vector with clip in bf16" in listed.out
    assert "MSE: as answered" in " ".join(listed.out.split())
    (group,) = [each for each in trained.result["groups"] if each["lowest"] <= 20 <= each["highest"]]
    asked = ("embed", "--input", notes, "--text-column", "note", "--output", tmp_path / "notes.npy", "--eta", 20, *how)
    told, shown = run(*asked, "--json"), run(*asked)
    assert (told.code, shown.code) == (0, 0), told.err
    assert told.result["denoised_for"] == [group["lowest"], group["highest"]]
    assert "the bound of clipped norms, SnD eq. (2)" in {each["what"] for each in told.result["deviations"]}
    assert "- Guarantee: metric-dp, eta 20 per token" in shown.out
    assert f"- Denoiser: {trained.result['denoiser']}, for eta {group['lowest']:g} to" in shown.out
    assert (told.result["denoiser"], told.result["replaced"]) == (trained.result["denoiser"], None)
    assert run("vendor", "denoiser", "remove", *offer, "--id", trained.result["denoiser"]).code == 0
    assert run(*asked).code == 3


def _spec(how: tuple[str, ...]) -> Any:
    from cutlayer.privacy import TextToText, Vector

    return Vector(eta=6, clip=True) if how else TextToText(eta=6)


def test_what_cannot_be_embedded_is_refused(at_vendor: VendorProcess, notes: Path, tmp_path: Path, run: Run) -> None:
    out = tmp_path / "notes.npy"
    empty = tmp_path / "empty.jsonl"
    empty.write_text('{"note": "w1"}\n{"note": " "}\n')

    def code(*more: object, file: Path = notes, output: Path = out) -> int:
        ran = run("embed", "--input", file, "--text-column", "note", "--output", output, *more, "--json")
        assert "w3 " not in ran.err
        return ran.code

    assert code("--eta", 6, output=tmp_path / "notes.txt") == 2
    assert code("--eta", 6, "--clip") == 3
    assert code() == 2  # eta has no default
    assert code("--eta", 6, "--mechanism", "vector", "--clip", "--place", "activations") == 2  # there is no --place
    assert code("--eta", 6, "--denoiser", "best") == 3
    assert code("--eta", 6, "--denoiser", "none", file=empty) == 4
    assert code("--eta", 6) == 3  # the vendor has no denoiser
    assert code("--eta", 6, "--model", "other") == 5
    assert code("--eta", 6, "--privacy-budget", 5, "--denoiser", "none") == 6
    at_vendor.kill()
    assert code("--eta", 7) == 7
    assert not out.exists()


def test_a_model_that_is_not_on_offer_is_named(data_dir: Path, run: Run) -> None:
    for command in (("list",), ("remove", "--id", "0" * 32)):
        ran = run("vendor", "denoiser", *command, "--data-dir", data_dir, "--model", "tyni", "--json")
        assert ran.code == 3
        assert "--model = 'tyni': must be one of tiny" in ran.err


def test_list_names_a_denoiser_that_cannot_be_read(data_dir: Path, run: Run) -> None:
    broken = data_dir / "models" / "tiny" / "denoisers" / ("0" * 32)
    broken.mkdir(parents=True)
    (broken / "denoiser.json").write_text("{")
    command = ("vendor", "denoiser", "list", "--data-dir", data_dir, "--model", "tiny")
    told, shown = run(*command, "--json"), run(*command)
    assert (told.code, shown.code) == (0, 0)
    assert (told.result["denoisers"], told.result["unreadable"]) == ([], [broken.name])
    assert f"Unreadable: {broken.name}. Customers are not offered it. `remove` it" in shown.out + shown.err
    assert run("vendor", "denoiser", "remove", "--id", broken.name, *command[3:]).code == 0
    assert run(*command, "--json").result["unreadable"] == []
