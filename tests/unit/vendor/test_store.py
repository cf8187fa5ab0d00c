"""The record store: what is taken, what is refused, what is read back."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from cutlayer import vendor
from cutlayer.core import Cut, Rows, Tokens, VendorError
from cutlayer.serving.refusal import Refusal
from cutlayer.vendor.catalogue import Catalogue
from cutlayer.vendor.database import Database
from cutlayer.vendor.store import HEAD_BYTES, RecordStore, Upload, _digest
from cutlayer.wire import Form, Frame, Reply, WireType, encode_tensors, pack, routes
from cutlayer.wire.messages import JobSpec, OptimiserSpec, RecordSetInfo, RecordSetSpec, SealRequest, ShardInfo
from cutlayer.wire.transports import LocalTransport
from tests.service.customer import Customer, ask, first_model, some_rows, some_tokens
from tests.service.tiny import MAX_LENGTH, VOCAB, WIDTH

NAME = "a" * 32
IDS = RecordSetSpec(model="tiny", cut=Cut(bottom=None), form=Form.IDS, segments=1)
PAIRS = IDS.model_copy(update={"segments": 2})
ROWS = RecordSetSpec(model="tiny", cut=Cut(bottom=1), form=Form.ROWS, segments=1, wire_type=WireType.BF16)


def put(transport: LocalTransport, spec: RecordSetSpec, *shards: dict[str, Tensor]) -> list[Reply]:
    ask(transport, routes.RECORD_SET_PUT, spec, record_set=NAME)
    return [
        transport.send(Frame(routes.SHARD_PUT, {"record_set": NAME, "shard": number}, None, shard))
        for number, shard in enumerate(shards)
    ]


def ids(values: list[int], lengths: list[list[int]]) -> dict[str, Tensor]:
    return {
        "ids": torch.tensor(values, dtype=torch.uint16),
        "lengths": torch.tensor(lengths, dtype=torch.uint8).reshape(len(lengths), len(lengths[0]) if lengths else 1),
    }


def rows(values: Tensor, lengths: list[list[int]]) -> dict[str, Tensor]:
    return {"rows": values, "lengths": torch.tensor(lengths, dtype=torch.uint8)}


GOOD = ids([5, 6, 7], [[1], [2]])


def test_a_set_is_filled_sealed_and_described(transport: LocalTransport) -> None:
    first, second = put(transport, IDS, GOOD, ids([9], [[1]]))
    assert first.expect(ShardInfo).records == 2
    assert second.expect(ShardInfo).records == 1
    info = ask(transport, routes.RECORD_SET_GET, record_set=NAME).expect(RecordSetInfo)
    assert (info.records, len(info.shards), info.sealed) == (3, 2, False)
    sealed = ask(transport, routes.SEAL, SealRequest(shards=2, records=3), record_set=NAME).expect(RecordSetInfo)
    assert sealed.sealed
    assert ask(transport, routes.SEAL, SealRequest(shards=2, records=3), record_set=NAME).control == sealed
    assert ask(transport, routes.RECORD_SET_PUT, IDS, record_set=NAME).control == sealed
    with pytest.raises(VendorError, match="sealed"):
        put(transport, IDS, GOOD, ids([9], [[1]]), ids([9], [[1]]))
    ask(transport, routes.RECORD_SET_DELETE, record_set=NAME)
    with pytest.raises(VendorError, match="no record set") as caught:
        ask(transport, routes.RECORD_SET_GET, record_set=NAME)
    assert caught.value.status == 404


@pytest.mark.parametrize(
    ("spec", "shard", "match"),
    [
        (IDS, ids([5, VOCAB], [[2]]), f"token id is {VOCAB}; tiny has ids 0 to {VOCAB - 1}"),
        (IDS, ids([5, 6], [[1]]), "lengths add up to 1"),
        (IDS, ids([5], [[1, 0]]), "2 columns"),
        (IDS, ids([], []), "no texts"),
        (IDS, ids([5] * MAX_LENGTH, [[MAX_LENGTH]]), f"takes {MAX_LENGTH + 2} positions"),
        (IDS, rows(torch.zeros(3, WIDTH), [[3]]), "form agreed on is ids"),
        (IDS, {**GOOD, "ids": torch.tensor([5, 2**31, 7]).to(torch.uint32)}, "token id is"),
        (ROWS, GOOD, "form agreed on is rows"),
        (ROWS, rows(torch.zeros(3, WIDTH), [[3]]), r"rows is F32\[3, 32\]; BF16\[n, 32\]"),
        (ROWS, rows(torch.zeros(3, WIDTH + 1).bfloat16(), [[3]]), r"BF16\[n, 32\] is what cut 1 takes"),
        (ROWS, rows(torch.full((3, WIDTH), torch.nan).bfloat16(), [[3]]), "not finite"),
        (ROWS, rows(torch.full((3, WIDTH), -torch.inf).bfloat16(), [[3]]), "not finite"),
        (ROWS, rows(torch.zeros(1, WIDTH).bfloat16(), [[1]]), r"fewer rows than the \[2\]"),
        (ROWS, rows(torch.zeros(MAX_LENGTH + 1, WIDTH).bfloat16(), [[MAX_LENGTH + 1]]), "positions"),
    ],
)
def test_shards_that_are_refused(
    transport: LocalTransport, data_dir: Path, spec: RecordSetSpec, shard: dict[str, Tensor], match: str
) -> None:
    with pytest.raises(VendorError, match=match) as caught:
        put(transport, spec, shard)
    assert caught.value.status == 422
    assert caught.value.remedy
    folder = data_dir / "tenants/clinic/record-sets" / NAME
    assert not folder.exists() or not list(folder.iterdir()), "nothing of it stays"


def test_empty_texts_are_taken_where_special_tokens_remain(transport: LocalTransport) -> None:
    put(transport, IDS, ids([], [[0], [0]]))


@pytest.mark.parametrize(
    ("change", "status", "match"),
    [
        ({"model": "large"}, 404, "no model large"),
        ({"cut": Cut(bottom=3)}, 422, "down to depth 2"),
        ({"cut": Cut(bottom=None, tail=0)}, 422, "tail"),
        ({"form": Form.ROWS}, 422, "form = rows at cut text"),
    ],
)
def test_sets_that_are_refused(transport: LocalTransport, change: dict[str, object], status: int, match: str) -> None:
    with pytest.raises(VendorError, match=match) as caught:
        put(transport, IDS.model_copy(update=change))
    assert caught.value.status == status


def test_the_same_again_is_the_same_and_another_is_a_conflict(transport: LocalTransport) -> None:
    [first] = put(transport, IDS, GOOD)
    [again] = put(transport, IDS, GOOD)
    assert again.control == first.control
    with pytest.raises(VendorError, match="other bytes") as caught:
        put(transport, IDS, ids([5, 6, 8], [[1], [2]]))
    assert caught.value.status == 409
    with pytest.raises(VendorError, match="another spec") as caught:
        put(transport, PAIRS)
    assert caught.value.status == 409


@pytest.mark.parametrize("request_", [SealRequest(shards=2, records=2), SealRequest(shards=1, records=3)])
def test_a_set_is_sealed_only_as_it_is(transport: LocalTransport, request_: SealRequest) -> None:
    put(transport, IDS, GOOD)
    with pytest.raises(VendorError, match="holds 1 shards with 2 records") as caught:
        ask(transport, routes.SEAL, request_, record_set=NAME)
    assert caught.value.status == 409


def test_quotas(
    open_vendor: Callable[[], LocalTransport], data_dir: Path, change_settings: Callable[..., None]
) -> None:
    change_settings(data_dir, limits={"stored_bytes_per_tenant": 300, "record_sets_per_tenant": 1})
    transport = open_vendor()
    put(transport, IDS, GOOD)
    with pytest.raises(VendorError, match="of 300 used") as caught:
        put(transport, IDS, GOOD, ids(list(range(5, 99)), [[47], [47]]))
    assert caught.value.status == 403
    assert type(caught.value) is VendorError, "the key is fine: no AuthError"
    with pytest.raises(VendorError, match="has 1 record sets already") as caught:
        ask(transport, routes.RECORD_SET_PUT, IDS, record_set="b" * 32)
    assert caught.value.status == 403
    assert type(caught.value) is VendorError


def test_a_shard_has_a_limit_of_records(
    open_vendor: Callable[[], LocalTransport],
    data_dir: Path,
    change_settings: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    change_settings(data_dir, limits={"max_records_per_shard": 3})
    transport = open_vendor()
    put(transport, IDS, ids([5, 6, 7], [[1], [1], [1]]))

    def opened(*_: object) -> None:
        raise AssertionError("the shard was opened")

    monkeypatch.setattr("cutlayer.vendor.store.MappedShard.open", opened)
    with pytest.raises(VendorError, match="holds 4 texts; this vendor takes 3 in one") as caught:
        put(transport, IDS, ids([5, 6, 7], [[1], [1], [1]]), ids([], [[0]] * 4))
    assert caught.value.status == 422
    assert "several shards" in caught.value.remedy


@pytest.mark.parametrize("form", ["ids", "pairs", "rows"])
def test_records_are_read_back_as_they_were_sent(
    open_vendor: Callable[[], LocalTransport], data_dir: Path, form: str
) -> None:
    transport = open_vendor()
    model = first_model(transport)
    spec = {"ids": IDS, "pairs": PAIRS, "rows": ROWS}[form]
    payload: Tokens | Rows
    if form == "rows":
        payload = some_rows(50, width=WIDTH)
        payload = dataclasses.replace(payload, packed=payload.packed.with_values(payload.packed.values.bfloat16()))
    else:
        payload = some_tokens(50, vocab_size=VOCAB, segments=spec.segments)
    parts = torch.arange(50).split(20)
    shards = [pack(payload.select(part), vocab_size=VOCAB, wire_type=spec.wire_type) for part in parts]
    put(transport, spec, *shards)
    ask(transport, routes.SEAL, SealRequest(shards=3, records=50), record_set=NAME)
    transport.close()
    settings = vendor.VendorSettings.load(data_dir)
    job = JobSpec(
        model="tiny",
        fingerprint=model.fingerprint,
        cut=spec.cut,
        form=spec.form,
        wire_type=spec.wire_type,
        segments=spec.segments,
        record_sets=(NAME,),
        num_labels=2,
        optimiser=OptimiserSpec(total_steps=1),
        seed=0,
    )
    database = Database(settings.url)
    catalogue = Catalogue(settings, torch.device("cpu"))
    store = RecordStore(settings, database, catalogue)
    records = store.open("clinic", (NAME, NAME), catalogue.card("tiny"), job)
    assert len(records) == 100
    numbers = np.array([0, 49, 20, 19, 50, 99, 3, 3])
    found = records.gather(numbers)
    expected = payload.select([int(number) % 50 for number in numbers])
    if isinstance(expected, Rows):
        assert isinstance(found, Rows)
        assert torch.equal(found.packed.values, expected.packed.values)
        assert torch.equal(found.segment_lengths, expected.segment_lengths)
        assert records.longest(numbers) == int(expected.packed.lengths.max())
    else:
        assert isinstance(found, Tokens)
        for mine, theirs in zip(found.segments, expected.segments, strict=True):
            assert torch.equal(mine.values, theirs.values)
            assert torch.equal(mine.lengths, theirs.lengths)
        specials = 2 if form == "ids" else 3
        assert records.longest(numbers) == specials + int(sum(part.lengths for part in expected.segments).max())
    database.close()


def test_a_set_in_use_is_not_deleted(transport: LocalTransport) -> None:
    customer = Customer(transport)
    customer.upload()
    customer.start()
    with pytest.raises(VendorError, match="uses record set") as caught:
        ask(transport, routes.RECORD_SET_DELETE, record_set=customer.job)
    assert caught.value.status == 409
    ask(transport, routes.JOB_DELETE, job=customer.job)
    ask(transport, routes.RECORD_SET_DELETE, record_set=customer.job)


def test_shards_are_read_through_once_per_process(transport: LocalTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    monkeypatch.setattr("cutlayer.vendor.store._digest", lambda path, digest=_digest: read.append(path) or digest(path))
    for number in range(2):
        customer = Customer(transport, job=f"{number:032x}")
        customer.upload()
        customer.start()
        spec = customer.spec(first_model(transport)).model_copy(update={"seed": 99})
        ask(transport, routes.JOB_PUT, spec, job=f"{9 - number:032x}")
    assert len(read) == len(set(read)) == 6


def begun(transport: LocalTransport, number: int, shard: dict[str, Tensor] = GOOD) -> tuple[Upload, bytes]:
    """An upload whose first byte has not arrived, and what will arrive."""
    body = encode_tensors(shard)
    store = transport._app.state.vendor.store  # type: ignore[attr-defined]
    upload = store.receive("clinic", NAME, number, size=len(body), sha256=hashlib.sha256(body).hexdigest())
    assert isinstance(upload, Upload)
    return upload, body


def arrive(upload: Upload, body: bytes) -> None:
    with upload:
        upload.check_head(body[:HEAD_BYTES])
        upload.write(body)
        upload.finish()


def test_a_shard_that_was_on_its_way_when_its_set_was_sealed_is_refused(transport: LocalTransport) -> None:
    put(transport, IDS, GOOD)
    late = begun(transport, 1)
    seal = SealRequest(shards=1, records=2)
    sealed = ask(transport, routes.SEAL, seal, record_set=NAME).expect(RecordSetInfo)
    with pytest.raises(Refusal, match="is sealed and has no shard 1") as caught:
        arrive(*late)
    assert caught.value.status == 409
    assert ask(transport, routes.RECORD_SET_GET, record_set=NAME).control == sealed
    assert ask(transport, routes.SEAL, seal, record_set=NAME).control == sealed


def test_no_shard_comes_in_between_the_count_and_the_seal(
    transport: LocalTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(transport, IDS, GOOD)
    late = begun(transport, 1)
    refused: list[Refusal] = []

    def try_to_come_in() -> None:
        try:
            arrive(*late)
        except Refusal as refusal:
            refused.append(refusal)

    thread = threading.Thread(target=try_to_come_in)
    counted = RecordStore.info

    def count(self: RecordStore, tenant: str, name: str) -> RecordSetInfo:
        found = counted(self, tenant, name)
        if not thread.ident:
            thread.start()
            thread.join(0.5)  # it has to wait
        return found

    monkeypatch.setattr(RecordStore, "info", count)
    sealed = ask(transport, routes.SEAL, SealRequest(shards=1, records=2), record_set=NAME).expect(RecordSetInfo)
    thread.join()
    assert [refusal.code for refusal in refused] == ["sealed"]
    assert ask(transport, routes.RECORD_SET_GET, record_set=NAME).control == sealed


def test_uploads_at_once_do_not_find_the_same_room(
    open_vendor: Callable[[], LocalTransport], data_dir: Path, change_settings: Callable[..., None]
) -> None:
    """The second is refused while the first has not begun, and taken when that is forgotten or has ended."""
    size = len(encode_tensors(GOOD))
    change_settings(data_dir, limits={"stored_bytes_per_tenant": 2 * size - 1})
    transport = open_vendor()
    put(transport, IDS)
    first = begun(transport, 0)
    for _ in range(2):
        with pytest.raises(Refusal, match="would exceed this tenant's quota") as caught:
            begun(transport, 1)
        assert caught.value.status == 403
        with first[0]:
            pass  # it breaks off
        first = begun(transport, 0)
    del first, caught  # a request that was cut short before its upload began
    arrive(*begun(transport, 0))
    with pytest.raises(Refusal, match="would exceed this tenant's quota"):
        begun(transport, 1)


def test_uploads_at_once_do_not_find_the_same_room_on_disk(
    transport: LocalTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(transport, IDS)
    usage, reserve = shutil.disk_usage, vendor.Limits().reserve_bytes
    room = reserve + 2 * len(encode_tensors(GOOD)) - 1
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(path)._replace(free=room))
    first = begun(transport, 0)
    with pytest.raises(Refusal, match="no room for") as caught:
        begun(transport, 1)
    assert caught.value.status == 507
    arrive(*first)
    begun(transport, 1)
