from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch

from cutlayer.core import ConfigError, Payload, Ragged, Rows, StorageError, Tokens, VendorError
from cutlayer.core.embedding import EmbeddingSpec
from cutlayer.customer import Client, profile
from cutlayer.customer.account import Account
from cutlayer.customer.connection import choose_device
from cutlayer.customer.gate import Gate
from cutlayer.customer.handout import choose_model, safe_path
from cutlayer.wire import Message, Reply, Route, WireType, pack, routes
from cutlayer.wire.messages import PROTOCOL, ModelInfo, ModelList, ServiceInfo
from cutlayer.wire.tensors import encode_tensors
from cutlayer.wire.transports import HttpTransport

ADAPTER = "f" * 32


def test_no_vendor_and_no_key_are_told_apart(own_home: Path) -> None:
    with pytest.raises(ConfigError, match="No vendor") as error:
        Client().adapters()
    assert "CUTLAYER_VENDOR" in error.value.remedy
    with pytest.raises(ConfigError, match="No API key") as error:
        Client("http://127.0.0.1:9").adapters()
    assert "CUTLAYER_API_KEY" in error.value.remedy


def test_an_unknown_adapter_names_those_that_are_known(own_home: Path) -> None:
    with pytest.raises(ConfigError, match=f"no adapter {ADAPTER}") as error:
        Client("http://127.0.0.1:9", "key").predict(ADAPTER, ["text"])
    assert "none" in error.value.remedy


class Nowhere:
    """A gate to a vendor who has nothing of what is asked for."""

    def send(self, route: Route, where: dict[str, str]) -> Reply:
        raise VendorError("There is none.", status=404)


@pytest.mark.parametrize("name", ["..", ".", "", "../..", "/", f"{'f' * 32}/..", "f" * 31, f"{'f' * 32}\n", "F" * 32])
def test_what_is_no_identifier_names_no_folder(name: str, own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`..` would be the customer's whole folder, its secret and ledger among it."""
    removed: list[Path] = []
    # so that this test, should it fail, removes nothing: `/` is among the names
    monkeypatch.setattr(profile.shutil, "rmtree", lambda path, **_: removed.append(path))
    monkeypatch.setattr(Account, "gate", lambda connection: Nowhere())
    client = Client("http://127.0.0.1:9", "key", home=own_home)
    kept = client.home.adapter(ADAPTER) / "profile.json"
    kept.parent.mkdir(parents=True)
    kept.write_text("{}")
    for ask in (client.delete_adapter, client.adapter, lambda adapter: client.predict(adapter, ["text"])):
        with pytest.raises(ConfigError, match="32 characters") as error:
            ask(name)
        assert "adapter list" in error.value.remedy
    assert not removed
    # this vendor has no such adapter: it may be another vendor, or another tenant's key
    with pytest.raises(VendorError, match="Nothing was deleted") as refused:
        client.delete_adapter(ADAPTER)
    assert str(kept.parent) in refused.value.remedy
    assert not removed
    (kept.parent / "deletion-begun").touch()
    client.delete_adapter(ADAPTER)
    assert removed == [kept.parent]


def test_an_unknown_device_is_refused() -> None:
    assert choose_device("cpu").type == "cpu"
    with pytest.raises(ConfigError, match="tpu"):
        choose_device("tpu")


class Answers:
    """A gate to a vendor who speaks a version of the protocol."""

    def __init__(self, protocol: int) -> None:
        model = ModelInfo(
            name="m", family="bert", fingerprint="0" * 64, blocks=2, width=4, vocab_size=8, max_length=16, max_bottom=1,
            embedding=EmbeddingSpec(width=4, pooling="mean"), max_tail=None, parameters=100,
        )  # fmt: skip
        self.replies: dict[Route, Message] = {
            routes.SERVICE: ServiceInfo(
                version="9.1",
                protocol=protocol,
                default_model="m",
                max_body_bytes=1,
                max_rows_per_step=5,
                max_step_bytes=2**26,
                threads=1,
            ),
            routes.MODELS: ModelList(models=(model,)),
        }

    def send(self, route: Route) -> Reply:
        return Reply(control=self.replies[route])


def test_a_vendor_of_another_protocol_is_refused() -> None:
    assert choose_model(cast(Gate, Answers(PROTOCOL)), None).positions == 5
    with pytest.raises(VendorError, match=rf"version {PROTOCOL + 1} .* this customer version {PROTOCOL}\.") as refused:
        choose_model(cast(Gate, Answers(PROTOCOL + 1)), None)
    assert "same version of cutlayer on both sides; the vendor's is 9.1" in refused.value.remedy


@pytest.mark.parametrize("tokens", [1, 128])
@pytest.mark.parametrize("segments", [1, 2])
@pytest.mark.parametrize("row_type", [*WireType, None])
def test_a_frame_of_as_many_positions_as_there_may_be_is_taken(
    row_type: WireType | None, segments: int, tokens: int
) -> None:
    """Of one token each, too, where lengths are most of it; and few more positions would not be taken."""
    offer = choose_model(cast(Gate, Answers(PROTOCOL)), None)
    offer = replace(offer, model=offer.model.model_copy(update={"width": 64}), positions=10**6, frame_bytes=2**19)
    most = offer.most_positions(row_type)
    lengths = torch.full((most // tokens,), tokens)
    of_all = [lengths, *[torch.zeros_like(lengths)] * (segments - 1)]
    payload: Payload
    if row_type is None:
        payload = Tokens(tuple(Ragged(torch.zeros(int(each.sum()), dtype=torch.int64), each) for each in of_all))
    else:
        payload = Rows(Ragged(torch.zeros(int(lengths.sum()), 64), lengths), torch.stack(of_all, 1))
    packed = pack(payload, vocab_size=2**17, wire_type=row_type or WireType.BF16)
    assert len(encode_tensors(packed)) <= offer.frame_bytes
    if row_type is not None:
        assert most * 64 * (2 if row_type is WireType.BF16 else 4) > 0.9 * offer.frame_bytes
    assert replace(offer, frame_bytes=10).most_positions(row_type) == 0
    assert replace(offer, positions=5).most_positions(row_type) == 5


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/b", "", ".", ".."])
def test_an_archive_cannot_write_elsewhere(name: str, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="outside"):
        safe_path(tmp_path, name)


def test_local_privatization_shows_what_would_leave(own_home: Path, starter_installed: None) -> None:
    client = Client(device="cpu")
    texts = ["the patient slept well", "the patient slept well", "no complaints"]
    shown = client.privatize(texts, eta=60)
    assert shown[0] == shown[1], "the same text is drawn once"
    assert [text.tokens for text in shown] == [4, 4, 2]
    assert any(text.replaced for text in shown)
    bare = client.privatize(texts, eta=float("inf"))
    assert [text.original for text in bare] == [text.released for text in bare]
    assert client.privatize(texts, eta=60) == shown, "and again in another call"
    assert not list(client.ledger.frames()), "nothing was sent"
    assert shown.largest_distance is not None
    assert bare.largest_distance is None, "nothing is promised"
    assert client.privatize(texts, eta=60, unsafe_noise_seed=1).largest_distance is None


def test_a_text_that_is_cut_is_another_text(own_home: Path, starter_installed: None) -> None:
    client = Client(device="cpu")
    (whole,) = client.privatize(["the patient slept well"], eta=60)
    (cut,) = client.privatize(["the patient slept well"], eta=60, max_length=4)
    (short,) = client.privatize(["the patient"], eta=60)
    assert (whole.tokens, cut.tokens) == (4, 2)
    assert cut == short


def test_pairs_are_privatized_segment_by_segment(own_home: Path, starter_installed: None) -> None:
    (shown,) = Client(device="cpu").privatize([("first text here", "second one")], eta=60)
    assert len(shown.original) == len(shown.released) == 2


def test_texts_that_are_cut_are_counted(own_home: Path, starter_installed: None) -> None:
    def cut_texts(*texts: str | tuple[str, str]) -> int:
        return Client(device="cpu").privatize(list(texts), eta=60, max_length=5).cut_texts  # type: ignore[arg-type]

    assert cut_texts("one two three four", "one two three", "one", "", "one two three four five six") == 2
    assert cut_texts("one two three", "one") == 0, "one that just fits is not cut"
    # a pair has one more special token
    assert cut_texts(("one", "two"), ("one two", "three"), ("", "one two three four"), ("", "")) == 2


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("http://127.0.0.1:8377", "http://127.0.0.1:8377/", True),
        ("https://Vendor.Example:8377/a/", "https://vendor.example:8377/a", True),
        ("https://vendor.example:8377", "https://vendor.example:8378", False),
        ("https://vendor.example/a", "https://vendor.example/A", False),
    ],
)
def test_one_address_in_two_spellings_is_one_vendor(first: str, second: str, same: bool) -> None:
    """An interrupted call goes on in the folder that the address names; in another it would draw anew."""
    assert (HttpTransport(first, "key").peer == HttpTransport(second, "key").peer) is same
