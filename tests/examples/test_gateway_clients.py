"""The examples of embeddings run as they stand, by a gateway and a vendor in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TypeAlias

import pytest

from cutlayer import vendor
from cutlayer.vendor.denoiser_settings import DenoisedReleases, DenoiserTraining
from cutlayer.vendor.denoiser_training import train_denoisers
from cutlayer.vendor.process import VendorProcess
from tests.service.gateways import Running, running_gateway

EXAMPLES = Path(__file__).parents[2] / "examples"
Start: TypeAlias = Callable[..., AbstractContextManager[Running]]
NAMED = ("--denoiser", "none", "--alias", "text-embedding-3-small=starter")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("starter_installed")]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Where a customer of a vendor finds it, as variables."""
    folder = tmp_path_factory.mktemp("gateways")
    vendor.init(folder / "vendor")
    public = [
        (f"The {noun} is {kind}.",) for noun in ("river", "house", "song", "car") for kind in ("old", "new", "far")
    ]
    releases, training = DenoisedReleases(mechanism="vector", clip=True), DenoiserTraining(steps=3, batch_size=4)
    settings = vendor.VendorSettings.load(folder / "vendor")
    train_denoisers(settings, settings.default_model, [("public", public)], releases, training)
    key = vendor.keys.create(folder / "vendor", "reader")
    with VendorProcess(folder / "vendor") as process:
        yield {"CUTLAYER_VENDOR": process.url, "CUTLAYER_API_KEY": key, "CUTLAYER_HOME": str(folder / "home")}


@pytest.fixture(scope="module")
def start(served: dict[str, str]) -> Start:
    """Starts gateways of one customer of one vendor."""
    url, key, home = served.values()
    return partial(running_gateway, Path(home), "--vendor", url, "--api-key", key, *NAMED)


@pytest.fixture(scope="module")
def gateway(start: Start) -> Iterator[Running]:
    with start("--eta", "inf") as found:
        yield found


def run(script: str, *arguments: str, gateway: Running) -> str:
    """What a script printed, which must end well."""
    return printed(
        script, *arguments, known={"OPENAI_API_KEY": gateway.key, "OPENAI_BASE_URL": gateway.known["base_url"]}
    )


def printed(script: str, *arguments: str, known: dict[str, str]) -> str:
    """The same of any script, told some variables."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / script, *arguments],
        env=os.environ | known, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_official_client(gateway: Running) -> None:
    first, *similar = run("openai_client.py", gateway=gateway).splitlines()
    assert first.startswith("3 embeddings of 384 numbers; ")
    antibiotics, invoice = (float(line.split()[0]) for line in similar)
    assert antibiotics > 0.4 > invoice


def test_langchain(gateway: Running) -> None:
    first, _ = run("langchain_embeddings.py", gateway.known["base_url"], gateway=gateway).splitlines()
    assert "invoice" in first


def test_qdrant(gateway: Running, start: Start, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.csv"
    duplicates = {
        "How do I learn to cook?": "What is a good way to learn cooking?",
        "Where is the river Danube?": "Through which countries flows the Danube?",
        "Why do cats purr?": "Why does a cat purr?",
    }
    rows = [f"{first},{second},1" for first, second in duplicates.items()]
    rows += [f"What is item {row} of {word}?,Who made number {row}?,0" for row, word in enumerate("ABCDEFGHIJ")]
    pairs.write_text("\n".join(["question1,question2,is_duplicate", *rows]))
    how = ("--eta", "80", "--mechanism", "vector")
    with (
        start("--eta", "1", key=gateway.key) as noisy,
        start(*how, "--clip", "--denoiser", "auto", key=gateway.key) as denoised,
    ):
        by_name = {"clean": gateway, "noisy": noisy, "SnD": denoised}
        asked = [part for name, each in by_name.items() for part in ("--gateway", f"{name}={each.url}/v1")]
        told = run("qdrant_search.py", str(pairs), *asked, gateway=gateway)
    first, clean, *others = told.splitlines()
    assert first == "26 questions, 3 pairs of duplicates"
    assert clean.startswith("clean        recall@10 100.0 %")
    assert [line.split()[:2] for line in others] == [["noisy", "recall@10"], ["SnD", "recall@10"]]


def test_mteb(served: dict[str, str], tmp_path: Path) -> None:
    words = {"billing": ("invoice", "payment", "refund"), "travel": ("train", "ticket", "flight")}
    rows = [
        f"Please look at the {word} of customer {number}.,{label}"
        for number in range(12) for label, some in words.items() for word in some
    ]  # fmt: skip
    notes = tmp_path / "notes.csv"
    notes.write_text("\n".join(["text,label", *rows]))
    (told,) = printed("mteb_task.py", str(notes), "--eta", "inf", known=served).splitlines()
    assert told.endswith("of 36 notes, at eta inf")
    assert float(told.split()[1]) > 0.9
