"""A vendor that changes its table or tokenizer gets no second look at a text: the first ones are remembered."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from cutlayer import vendor
from cutlayer.core import Cut, PrivacyError, StorageError
from cutlayer.customer import Client
from cutlayer.customer.handout import choose_model, fetch_archive
from cutlayer.customer.progress import Silent
from cutlayer.privacy import TextToText, Vector
from tests.promises.runs import TEST, customer, finetune
from tests.service.tiny import write_tiny_bert
from tests.unit.gateway.asked import gateway_of

Change = Callable[[Path], None]


def scale_table(model: Path) -> None:
    """The same eta hides a hundred times less."""
    tensors = load_file(model / "model.safetensors")
    (name,) = [name for name in tensors if name.endswith("word_embeddings.weight")]
    save_file({**tensors, name: tensors[name] * 100}, model / "model.safetensors", metadata={"format": "pt"})


def turn_a_bit(model: Path) -> None:
    """Another unit, and with it another budget."""
    tensors = load_file(model / "model.safetensors")
    (name,) = [name for name in tensors if name.endswith("word_embeddings.weight")]
    tensors[name].view(torch.int32)[7, 3] ^= 1
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})


def say_a_word_between(model: Path) -> None:
    """Each token stands behind other words, so that all noise is fresh and every account new."""
    told = json.loads((model / "tokenizer.json").read_text())
    between = {"type": "Replace", "pattern": {"String": " "}, "content": " w9 "}
    told["normalizer"] = {"type": "Sequence", "normalizers": [between, {"type": "Prepend", "prepend": "w9 "}]}
    (model / "tokenizer.json").write_text(json.dumps(told))


CHANGES: dict[str, tuple[Change, str]] = {
    "another tokenizer": (say_a_word_between, "another tokenizer than"),
    "a table that hides less": (scale_table, "another token table than"),
    "a table of another unit": (turn_a_bit, "another token table than"),
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny_bert(tmp_path / "first" / "tiny")


def offered(folder: Path, model: Path) -> tuple[Path, str]:
    """A vendor of a model, and a key to it."""
    vendor.init(folder, models=[str(model)], threads=1, max_bottom=2)
    return folder, vendor.keys.create(folder, "clinic")


def changed(model: Path, change: Change) -> Path:
    """The same model, by the same name, but for a change."""
    other = model.parent.parent / "second" / model.name
    shutil.copytree(model, other)
    change(other)
    return other


def texts_left(client: Client) -> int:
    return sum(entry.texts for entry in client.ledger.frames())


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_vendor_changed_is_refused_before_a_text_leaves(name: str, model: Path, tmp_path: Path) -> None:
    change, said = CHANGES[name]
    home, privacy = tmp_path / "home", Vector(eta=6)
    with customer(*offered(tmp_path / "vendor", model), home) as client:
        client.embed(TEST, privacy=privacy, denoiser="none", progress=None)
        before = texts_left(client)
    with customer(*offered(tmp_path / "later", changed(model, change)), home) as client:
        with pytest.raises(PrivacyError, match=said) as caught:
            client.embed(TEST, privacy=privacy, denoiser="none", progress=None)
        assert "known_models.jsonl" in caught.value.remedy
        with pytest.raises(PrivacyError, match=said):
            finetune(client, out=tmp_path / "run")
        with gateway_of(client, privacy) as asking:
            answer = asking.embed("w1 w2")
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "privacy_refused")
            assert answer.headers["x-should-retry"] == "false"
            assert str(home) not in answer.text
        assert texts_left(client) == before
        # who asked the vendor, and accepts it, deletes the line
        kept = home / "known_models.jsonl"
        kept.write_text("".join(line for line in kept.read_text().splitlines(True) if '"tiny"' not in line))
        assert client.embed(TEST, privacy=privacy, denoiser="none", progress=None).sent


def test_the_same_model_stays_known_and_others_are_others(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = write_tiny_bert(tmp_path / "other", seed=12)
    home = tmp_path / "home"
    for folder, offer in (("a", model), ("b", model), ("c", other)):
        with customer(*offered(tmp_path / folder, offer), home) as client:
            client.embed(TEST, privacy=TextToText(eta=6), denoiser="none", progress=None)
    lines = [json.loads(line) for line in (home / "known_models.jsonl").read_text().splitlines()]
    assert [(line["vendor"], line["model"]) for line in lines] == [("this process", "tiny"), ("this process", "other")]
    assert stat.S_IMODE((home / "known_models.jsonl").stat().st_mode) == 0o600
    with customer(*offered(tmp_path / "d", changed(model, scale_table)), home) as client:
        monkeypatch.setattr(type(client.transport), "peer", "https://another.example")
        assert client.embed(TEST, privacy=TextToText(eta=6), denoiser="none", progress=None).sent


def test_a_table_is_remembered_when_the_first_one_comes(model: Path, tmp_path: Path) -> None:
    """Texts that leave as ids take no table: it is not known from them."""
    home = tmp_path / "home"
    with customer(*offered(tmp_path / "a", model), home) as client:
        offer = choose_model(client.gate(), None)
        for bottom in (None, 0):
            fetch_archive(client.gate(), client.home, offer.model, Cut(bottom=bottom), Silent())
    (line,) = [json.loads(line) for line in (home / "known_models.jsonl").read_text().splitlines()]
    assert set(line) == {"vendor", "model", "since", "tokenizer", "table"}
    with customer(*offered(tmp_path / "b", changed(model, scale_table)), home) as client:
        offer = choose_model(client.gate(), None)
        fetch_archive(client.gate(), client.home, offer.model, Cut(bottom=None), Silent())
        with pytest.raises(PrivacyError, match="token table"):
            fetch_archive(client.gate(), client.home, offer.model, Cut(bottom=1), Silent())


def test_a_damaged_file_is_said(model: Path, tmp_path: Path) -> None:
    with customer(*offered(tmp_path / "a", model), tmp_path / "home") as client:
        for content in ("{", "[]\n", "\xff"):
            (tmp_path / "home" / "known_models.jsonl").write_bytes(content.encode("latin-1"))
            with pytest.raises(StorageError, match="damaged") as caught:
                client.embed(TEST, privacy=TextToText(eta=6), denoiser="none", progress=None)
            assert "backup" in caught.value.remedy
        assert not texts_left(client)
