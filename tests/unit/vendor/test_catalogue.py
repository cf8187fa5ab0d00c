"""What customers receive is what the vendor was set up with, and nothing of where it is kept."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from cutlayer import vendor
from cutlayer.core import StorageError, VendorError
from cutlayer.vendor.catalogue import read_card
from cutlayer.wire import routes
from cutlayer.wire.messages import ArchiveManifest
from cutlayer.wire.transports import LocalTransport
from tests.service.customer import ask

Fetch = Callable[[str], ArchiveManifest]


@pytest.fixture
def kept(tmp_path: Path, tiny_model: Path) -> Path:
    """Where the vendor keeps its model."""
    return Path(shutil.copytree(tiny_model, tmp_path / "secret" / "tiny"))


@pytest.fixture
def folder(tmp_path: Path, kept: Path) -> Path:
    """The vendor's data folder."""
    vendor.init(tmp_path / "data", models=[str(kept)], threads=1, max_bottom=2)
    return tmp_path / "data"


@pytest.fixture
def fetch(folder: Path) -> Fetch:
    """Asks for an archive, of a vendor that has just been started, and stops it."""
    key = vendor.keys.create(folder, "clinic")

    def start(cut: str) -> ArchiveManifest:
        app = vendor.create_app(vendor.VendorSettings.load(folder))
        with closing(LocalTransport(app, key)) as transport:
            return ask(transport, routes.ARCHIVE, model="tiny", cut=cut).expect(ArchiveManifest)

    return start


def archives(folder: Path) -> set[str]:
    return {path.name.split("-")[0] for path in folder.glob("models/tiny/archives/*") if path.is_dir()}


def refused(fetch: Fetch, cut: str, match: str) -> None:
    with pytest.raises(VendorError, match=match) as caught:
        fetch(cut)
    assert caught.value.status == 500
    assert "vendor init --model" in caught.value.remedy
    assert "secret" not in f"{caught.value}{caught.value.remedy}"


def test_a_tokenizer_that_cannot_be_loaded_does_not_say_where_it_is(
    folder: Path, kept: Path, fetch: Fetch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(f"Can't load tokenizer for '{kept}'")

    monkeypatch.setattr("cutlayer.models.load.AutoTokenizer.from_pretrained", fails)
    with caplog.at_level(logging.ERROR):
        refused(fetch, "1", "Model tiny cannot be loaded")
    assert str(kept) in caplog.text, "the vendor is told"
    assert archives(folder) == set()


@pytest.mark.parametrize("gone", [("tokenizer.json",), ("tokenizer.json", "tokenizer_config.json")])
def test_without_its_tokenizer_a_model_is_not_handed_out(
    folder: Path, kept: Path, fetch: Fetch, gone: tuple[str, ...]
) -> None:
    for name in gone:
        (kept / name).unlink()
    refused(fetch, "text", "cannot be loaded|has another tokenizer")
    assert archives(folder) == set()


def test_another_tokenizer_is_noticed_and_taken_when_the_vendor_says_so(folder: Path, kept: Path, fetch: Fetch) -> None:
    before = fetch("text")
    tokenizer = json.loads((kept / "tokenizer.json").read_text())
    words = tokenizer["model"]["vocab"]
    words["a"], words["b"] = words["b"], words["a"]
    (kept / "tokenizer.json").write_text(json.dumps(tokenizer))
    refused(fetch, "1", "has another tokenizer than that which the vendor was set up with")
    assert fetch("text") == before, "made of the tokenizer that the vendor was set up with"
    assert archives(folder) == {"text"}
    vendor.init(folder, models=[str(kept)])
    assert fetch("1").fingerprint == before.fingerprint
    assert fetch("text") != before


def test_a_card_without_a_tokenizer_is_of_another_version(folder: Path, kept: Path) -> None:
    settings = vendor.VendorSettings.load(folder)
    card = folder / "models/tiny/card.json"
    known = read_card(settings, "tiny")
    card.write_text(known.model_dump_json(exclude={"tokenizer"}))
    with pytest.raises(StorageError, match=r"card\.json cannot be read") as caught:
        vendor.create_app(settings)
    assert "vendor init again" in caught.value.remedy
    assert read_card(vendor.init(folder), "tiny") == known
