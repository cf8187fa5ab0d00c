"""Texts that grow at the vendor: what a session answers, what it takes, and when it ends."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cutlayer import vendor
from cutlayer.core import Cut, Ragged, Tokens, VendorError
from cutlayer.models import Head, Inputs, Top, cache_bytes, load_model, own_bytes, split
from cutlayer.vendor.generations import Generations
from cutlayer.wire import Form, Frame, WireType, pack, routes
from cutlayer.wire.generation import GenerationInfo, GenerationSpec
from cutlayer.wire.messages import RecordSetSpec, SealRequest, SnapshotRequest
from cutlayer.wire.transports import LocalTransport
from cutlayer.wire.transports.local import _exchange
from tests.service.customer import ask, first_model, some_tokens
from tests.service.tiny import MAX_LENGTH, VOCAB, WIDTH, write_tiny_gpt2
from tests.unit.vendor.test_jobs import vendor_of
from tests.unit.vendor.test_language_jobs import Author

HEAD, BLOCK, IDS, CLASSIFIER = ("1" * 32, "2" * 32, "3" * 32, "4" * 32)
"""Adapters: a tail of the head alone, of a block too, below which ids travel, and one of the vendor's own head."""
ADAPTERS: dict[str, dict[str, Any]] = {
    HEAD: {"cut": Cut(bottom=1, tail=0)},
    BLOCK: {"cut": Cut(bottom=1, tail=1)},
    IDS: {"cut": Cut(bottom=None, tail=0), "form": Form.IDS, "trainable_bottom": False, "record_sets": ("a" * 32,)},
    CLASSIFIER: {"cut": Cut(bottom=1), "num_labels": 3},
}
ONE = "9" * 32
"""A session."""


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gpt2(tmp_path_factory.mktemp("decoder") / "tiny")


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory, decoder: Path) -> tuple[Path, str]:
    """A vendor's data folder with one adapter of each kind, untrained, and its tenant's key."""
    folder = tmp_path_factory.mktemp("vendor") / "data"
    vendor.init(folder, models=[str(decoder)], threads=1, max_bottom=2, max_tail=1)
    key = vendor.keys.create(folder, "clinic")
    app = vendor.create_app(vendor.VendorSettings.load(folder))
    with closing(LocalTransport(app, key)) as transport:
        store_ids(transport)
        for name, changes in ADAPTERS.items():
            Author(transport, changes, job=name).start()
            ask(transport, routes.FINISH, SnapshotRequest(step=0), job=name)
    return folder, key


def store_ids(transport: LocalTransport) -> None:
    model = first_model(transport).name
    spec = RecordSetSpec(model=model, cut=Cut(bottom=None, tail=0), form=Form.IDS, segments=1, wire_type=WireType.FP32)
    ask(transport, routes.RECORD_SET_PUT, spec, record_set="a" * 32)
    shard = pack(some_tokens(3, vocab_size=VOCAB), vocab_size=VOCAB, wire_type=WireType.FP32)
    transport.send(Frame(routes.SHARD_PUT, {"record_set": "a" * 32, "shard": 0}, None, shard))
    ask(transport, routes.SEAL, SealRequest(shards=1, records=3), record_set="a" * 32)


@pytest.fixture
def data_dir(published: tuple[Path, str], tmp_path: Path) -> Path:
    return Path(shutil.copytree(published[0], tmp_path / "data"))


@pytest.fixture
def api_key(published: tuple[Path, str], data_dir: Path) -> str:
    return published[1]


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(transport: LocalTransport, monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(generations(transport), "_clock", clock)
    return clock


def generations(transport: LocalTransport) -> Generations:
    found = vendor_of(transport).generations
    assert isinstance(found, Generations)
    return found


def gauge(transport: LocalTransport, name: str) -> float:
    """What an operator sees."""
    lines = vendor_of(transport).metrics.render().decode().splitlines()
    (value,) = (line.split()[1] for line in lines if line.startswith(f"cutlayer_{name} "))
    return float(value)


def put(
    transport: LocalTransport, *, adapter: str = HEAD, sequences: int = 2, positions: int = 20, session: str = ONE
) -> GenerationInfo:
    spec = GenerationSpec(adapter=adapter, sequences=sequences, positions=positions)
    return ask(transport, routes.GENERATION_PUT, spec, generation=session).expect(GenerationInfo)


def grown(lengths: list[int], *, salt: int = 0, ids: bool = False, width: int = WIDTH) -> dict[str, Tensor]:
    """New positions of each text, made up."""
    draw = torch.Generator().manual_seed(salt)
    total = sum(lengths)
    if ids:
        values = torch.randint(5, VOCAB, (total,), generator=draw)
        return pack(Tokens((Ragged(values, torch.tensor(lengths)),)), vocab_size=VOCAB, wire_type=WireType.FP32)
    rows = torch.randn(total, width, generator=draw)
    return {"rows": rows, "lengths": torch.tensor(lengths, dtype=torch.uint8)[:, None]}


def step(transport: LocalTransport, number: int, tensors: dict[str, Tensor], *, session: str = ONE) -> Tensor:
    frame = Frame(routes.GENERATION_STEP, {"generation": session, "step": number}, None, tensors)
    return transport.send(frame).tensors["output"]


def end(transport: LocalTransport, session: str = ONE) -> None:
    ask(transport, routes.GENERATION_DELETE, generation=session)


def refused(status: int, match: str) -> Any:
    return pytest.raises(VendorError, match=match, check=lambda error: error.status == status and bool(error.remedy))


def top(decoder: Path, cut: Cut) -> Top:
    return split(load_model(str(decoder), head=Head.LANGUAGE), cut).top


# ---------------------------------------------------------------- what is answered


@torch.no_grad()
@pytest.mark.parametrize("adapter", [HEAD, BLOCK, IDS])
def test_what_grows_in_steps_is_what_is_computed_at_once(
    transport: LocalTransport, decoder: Path, adapter: str
) -> None:
    """The rows of texts of unequal length, some of which end before others, against one pass without a cache."""
    cut: Cut = ADAPTERS[adapter]["cut"]
    ids = adapter == IDS
    lengths = [[3, 7, 1], [1, 1, 1], [1, 0, 1], [0, 0, 1], [2, 0, 3]]
    put(transport, adapter=adapter, sequences=3)
    frames = [grown(new, salt=number, ids=ids) for number, new in enumerate(lengths)]
    outputs = [step(transport, number, frame) for number, frame in enumerate(frames, start=1)]
    part = top(decoder, cut)
    for text in range(3):
        pieces = [frame["ids" if ids else "rows"].split(new) for frame, new in zip(frames, lengths, strict=True)]
        whole = torch.cat([piece[text] for piece in pieces])
        inputs = Inputs(torch.ones(1, len(whole), dtype=torch.int64), torch.arange(len(whole))[None])
        expected = part(inputs.with_ids(whole.long()[None]))[0] if ids else part(inputs, whole[None])[0]
        at = 0
        for output, new in zip(outputs, lengths, strict=True):
            at += new[text]
            if not new[text]:
                continue
            if cut.tail:
                found = output.split(new)[text]
                wanted = expected[at - new[text] : at]
            else:
                found = output[sum(length > 0 for length in new[:text])][None]
                wanted = expected[at - 1 : at]
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    rows = [sum(new) if cut.tail else sum(length > 0 for length in new) for new in lengths]
    assert [len(output) for output in outputs] == rows


def test_texts_go_on_from_others(transport: LocalTransport) -> None:
    """Beam search: a sequence that goes on from another is answered as that one is."""
    put(transport, sequences=3)
    step(transport, 1, grown([4, 4, 4]))
    same = {"rows": grown([1])["rows"].expand(3, -1).contiguous(), "lengths": torch.ones(3, 1, dtype=torch.uint8)}
    plain = step(transport, 2, same | {"parents": torch.tensor([0, 1, 2], dtype=torch.uint8)})
    put(transport, sequences=3, session="8" * 32)
    step(transport, 1, grown([4, 4, 4]), session="8" * 32)
    beams = step(transport, 2, same | {"parents": torch.tensor([2, 2, 0], dtype=torch.uint8)}, session="8" * 32)
    torch.testing.assert_close(beams, plain[[2, 2, 0]])
    assert not torch.allclose(plain[0], plain[2])


def test_a_session_is_put_and_deleted_as_often_as_one_likes(transport: LocalTransport) -> None:
    first = put(transport)
    assert put(transport) == first
    assert first.step == 0
    step(transport, 1, grown([2, 3]))
    assert put(transport).step == 1, "what is there is found, and not begun anew"
    for changes in ({"positions": 21}, {"sequences": 1}, {"adapter": BLOCK}):
        with refused(409, "there with another spec"):
            put(transport, **changes)  # type: ignore[arg-type]
    end(transport)
    with refused(404, f"no session {ONE}"):
        end(transport)
    with refused(404, f"no session {ONE}"):
        step(transport, 2, grown([1, 1]))
    assert put(transport, positions=21).step == 0


def test_a_repeated_frame_is_answered_with_the_same_bytes_and_taken_once(transport: LocalTransport) -> None:
    put(transport)
    session = generations(transport)._sessions["clinic", ONE]
    prompt, next_ones = grown([2, 3]), grown([1, 1], salt=1)
    for number, tensors in ((1, prompt), (2, next_ones)):
        first = step(transport, number, tensors)
        positions = session.decoding.positions.tolist()
        for _ in range(2):
            assert torch.equal(step(transport, number, tensors), first)
        assert session.decoding.positions.tolist() == positions
    assert session.decoding.positions.tolist() == [3, 4]
    with refused(409, "Frame 2 was sent; the session stands at 2, which had other bytes"):
        step(transport, 2, grown([1, 1], salt=2))
    for wrong in (1, 4):
        with refused(409, f"Frame {wrong} was sent; the session stands at 2"):
            step(transport, wrong, prompt)
    assert len(step(transport, 3, next_ones)) == 2


def test_a_session_that_is_told_again_gives_the_same_bits(transport: LocalTransport) -> None:
    frames = [grown([3, 5])] + [grown([1, 1], salt=salt) for salt in range(1, 6)]
    answers = []
    for session in ("5" * 32, "6" * 32):
        put(transport, adapter=BLOCK, session=session)
        answers.append([step(transport, at, frame, session=session) for at, frame in enumerate(frames, start=1)])
    assert all(torch.equal(left, right) for left, right in zip(*answers, strict=True))


def test_other_tenants_find_no_session(transport: LocalTransport, data_dir: Path) -> None:
    put(transport)
    step(transport, 1, grown([2, 3]))
    rival = vendor.keys.create(data_dir, "rival")
    own, transport._api_key = transport._api_key, rival
    with refused(404, "no session"):
        step(transport, 2, grown([1, 1]))
    with refused(404, "no session"):
        end(transport)
    with refused(404, f"no adapter {HEAD}"):
        put(transport)
    transport._api_key = own
    step(transport, 2, grown([1, 1]))


# ---------------------------------------------------------------- what is refused


def test_sessions_that_are_refused(transport: LocalTransport) -> None:
    with refused(422, f"Adapter {CLASSIFIER} gives labels, not tokens"):
        put(transport, adapter=CLASSIFIER)
    with refused(404, "no adapter"):
        put(transport, adapter="0" * 32)
    with refused(422, f"positions = {MAX_LENGTH + 1}; tiny has {MAX_LENGTH}"):
        put(transport, positions=MAX_LENGTH + 1)
    with refused(422, "sequences = 32769, prompts times beams; this vendor takes 32768"):
        put(transport, sequences=32769, positions=1)
    assert generations(transport).live == 0
    put(transport, positions=MAX_LENGTH)


def bad_frames(first: bool) -> dict[str, tuple[dict[str, Tensor], str]]:
    """What is no growth of two texts, and what is said of it."""
    start = [2, 3] if first else [1, 1]
    found = {
        "too few texts": (grown([2]), r"lengths is \[1, 1\]"),
        "too many texts": (grown([1, 1, 1]), r"lengths is \[3, 1\]"),
        "more rows than lengths": (grown(start) | {"rows": torch.zeros(9, WIDTH)}, "there are 9 rows"),
        "fewer rows than lengths": (grown(start) | {"rows": torch.zeros(1, WIDTH)}, "there are 1 rows"),
        "nothing": (grown([0, 0]), "adds up to 0"),
        "two segments": (
            grown(start) | {"lengths": torch.ones(2, 2, dtype=torch.uint8)},
            "2 columns; 1 segments a text were agreed on",
        ),
        "ids": (grown(start, ids=True), "the form agreed on is rows"),
        "another width": (grown(start, width=WIDTH + 1), rf"rows is F32\[\d, {WIDTH + 1}\]"),
        "another type": ({**grown(start), "rows": torch.zeros(sum(start), WIDTH).bfloat16()}, "rows is BF16"),
        "not finite": ({**grown(start), "rows": torch.full((sum(start), WIDTH), torch.nan)}, "not finite"),
        "too many positions": (grown([2, 21]), "would grow to 2[0-9] positions; the session was asked for 20"),
        "too large a pass": (grown([200, 200]), "2 texts of up to 200 positions make 400; one pass takes 300"),
        "a parent out of range": (
            grown(start) | {"parents": torch.tensor([0, 2], dtype=torch.uint8)},
            "parents must name",
        ),
        "too few parents": (grown(start) | {"parents": torch.tensor([0], dtype=torch.uint8)}, "parents must name"),
    }
    if first:
        found["a prompt of nothing"] = grown([2, 0]), "A prompt has no position"
        found["parents of prompts"] = (
            grown(start) | {"parents": torch.tensor([0, 1], dtype=torch.uint8)},
            "parents must name, after the first frame",
        )
    return found


@pytest.mark.parametrize("first", [True, False])
def test_a_refused_frame_leaves_the_session_as_it_was(
    open_vendor: Callable[[], LocalTransport],
    data_dir: Path,
    change_settings: Callable[..., None],
    first: bool,
) -> None:
    change_settings(data_dir, limits={"max_rows_per_step": 300})
    transport = open_vendor()
    other = "7" * 32
    for session in (ONE, other):
        put(transport, session=session)
        if not first:
            step(transport, 1, grown([2, 3]), session=session)
    at = 1 if first else 2
    for name, (tensors, said) in bad_frames(first).items():
        with refused(422, said):
            step(transport, at, tensors)
        assert put(transport).step == at - 1, f"{name}: the session is gone"
    frame = grown([2, 3], salt=3) if first else grown([1, 1], salt=3)
    assert torch.equal(step(transport, at, frame), step(transport, at, frame, session=other)), "it was disturbed"


def test_ids_are_of_the_vocabulary(transport: LocalTransport) -> None:
    put(transport, adapter=IDS)
    wrong = grown([1, 1], ids=True)
    wrong["ids"] = torch.tensor([5, VOCAB], dtype=torch.int32).to(wrong["ids"].dtype)
    with refused(422, f"A token id is {VOCAB}; tiny has ids 0 to {VOCAB - 1}"):
        step(transport, 1, wrong)
    assert step(transport, 1, grown([1, 1], ids=True)).shape == (2, WIDTH)


def test_a_session_whose_computing_failed_is_gone(transport: LocalTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cache may hold half of a frame: the customer has to tell it again, and is told so."""
    put(transport)
    step(transport, 1, grown([2, 3]))
    with monkeypatch.context() as patch:
        patch.setattr(Generations, "_compute", lambda *_: (_ for _ in ()).throw(RuntimeError("out of memory")))
        with pytest.raises((VendorError, RuntimeError)):
            step(transport, 2, grown([1, 1]))
    with refused(404, "no session"):
        step(transport, 2, grown([1, 1]))
    assert gauge(transport, "generation_bytes") == 0
    put(transport)
    step(transport, 1, grown([2, 3]))


@pytest.mark.parametrize("positions", [1, 3])
def test_a_small_pass_computes_in_one_thread_and_others_in_all(
    open_vendor: Callable[[], LocalTransport],
    data_dir: Path,
    change_settings: Callable[..., None],
    positions: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    change_settings(data_dir, threads=2)
    transport = open_vendor()
    put(transport, sequences=1)
    (session,) = generations(transport)._sessions.values()
    monkeypatch.setattr("cutlayer.models.decoding._SMALL_PASS", 2 * session.weights)
    seen: list[int] = []
    honest = Top.forward

    def noting(self: Top, *given: Any, **named: Any) -> Tensor:
        seen.append(torch.get_num_threads())
        return honest(self, *given, **named)

    monkeypatch.setattr(Top, "forward", noting)
    step(transport, 1, grown([positions]))
    assert seen == [1 if positions == 1 else 2]
    step(transport, 2, grown([2]))
    step(transport, 3, grown([3]))
    assert seen[1:] == [1, 2]


# ---------------------------------------------------------------- what it takes


def test_each_tenant_has_so_many(
    open_vendor: Callable[[], LocalTransport], data_dir: Path, change_settings: Callable[..., None]
) -> None:
    change_settings(data_dir, limits={"generations_per_tenant": 2})
    transport = open_vendor()
    put(transport, session="5" * 32)
    put(transport, session="6" * 32)
    with refused(403, "This tenant has 2 sessions already"):
        put(transport)
    assert put(transport, session="6" * 32).step == 0, "what is there is found all the same"
    end(transport, "5" * 32)
    put(transport)


def test_memory_is_bounded_and_seen(
    open_vendor: Callable[[], LocalTransport], data_dir: Path, decoder: Path, change_settings: Callable[..., None]
) -> None:
    one = cache_bytes(top(decoder, Cut(bottom=1, tail=0)), sequences=2, positions=20)
    change_settings(data_dir, limits={"max_generation_bytes": 2 * one})
    transport = open_vendor()
    with refused(422, f"4 sequences of 21 positions take up to {2 * one * 21 // 20} bytes; .* sessions {2 * one}"):
        put(transport, sequences=4, positions=21)
    put(transport, session="5" * 32)
    assert (gauge(transport, "generations"), gauge(transport, "generation_bytes")) == (1, one)
    put(transport, session="6" * 32)
    with refused(503, "Other sessions take this vendor's memory"):
        put(transport, sequences=1, positions=1)
    assert retry_after(transport) == "1"
    assert (gauge(transport, "generations"), gauge(transport, "generation_bytes")) == (2, 2 * one)
    end(transport, "5" * 32)
    put(transport)
    for session in (ONE, "6" * 32):
        end(transport, session)
    assert (gauge(transport, "generations"), gauge(transport, "generation_bytes")) == (0, 0)


def retry_after(transport: LocalTransport) -> str:
    """The header of the answer to one session more."""
    body = GenerationSpec(adapter=HEAD, sequences=1, positions=1).model_dump_json().encode()
    fields = {"authorization": f"Bearer {transport._api_key}", "content-type": "application/json"}
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "method": "PUT",
        "path": f"/v1/generations/{ONE}", "raw_path": f"/v1/generations/{ONE}".encode(), "query_string": b"",
        "root_path": "", "client": ("127.0.0.1", 0), "server": ("vendor", 80),
        "headers": [(name.encode(), value.encode()) for name, value in fields.items()]
        + [(b"content-length", str(len(body)).encode())],
    }  # fmt: skip
    status, headers, _ = transport._run(_exchange(transport._app, scope, body))
    assert status == 503
    return dict(headers)[b"retry-after"].decode()


def test_what_is_set_aside_is_what_is_taken(transport: LocalTransport) -> None:
    """A session that grew to all that it asked for holds as many bytes as were counted for it."""
    for adapter in (HEAD, BLOCK):
        put(transport, adapter=adapter, sequences=2, positions=9, session=adapter)
        step(transport, 1, grown([4, 4]), session=adapter)
        for number in range(2, 7):
            step(transport, number, grown([1, 1]), session=adapter)
        session = generations(transport)._sessions["clinic", adapter]
        held = sum(layer.keys.nbytes + layer.values.nbytes for layer in session.cache.layers)  # type: ignore[union-attr]
        assert held == session.size


def test_texts_that_grow_in_turn_take_no_more_than_was_set_aside(transport: LocalTransport) -> None:
    """A text that stands still is padded: what pads it takes memory, too, and no honest customer needs so much."""
    put(transport, sequences=2, positions=20)
    step(transport, 1, grown([1, 1]))
    session = generations(transport)._sessions["clinic", ONE]
    for number in range(2, 40):
        with contextlib.suppress(VendorError):
            step(transport, number, grown([number % 2, 1 - number % 2]))
        held = sum(layer.keys.nbytes + layer.values.nbytes for layer in session.cache.layers)  # type: ignore[union-attr]
        assert held <= session.size, f"frame {number}: {held} bytes are held where {session.size} were set aside"


# ---------------------------------------------------------------- when it ends


def test_an_idle_session_ends_and_gives_its_memory_back(transport: LocalTransport, clock: Clock) -> None:
    put(transport)
    put(transport, session="5" * 32)
    seconds = vendor_of(transport).settings.limits.generation_seconds
    clock.now += seconds
    step(transport, 1, grown([2, 3]))
    assert generations(transport).live == 2, "it is not over before its time"
    clock.now += 1
    step(transport, 2, grown([1, 1]))
    assert (gauge(transport, "generations"), generations(transport).live) == (1, 1)
    with refused(404, "no session"):
        step(transport, 1, grown([2, 3]), session="5" * 32)
    clock.now += seconds + 1
    with refused(404, "no session"):
        step(transport, 3, grown([1, 1]))
    assert (gauge(transport, "generations"), gauge(transport, "generation_bytes")) == (0, 0)


def test_what_is_idle_makes_room_for_others(
    open_vendor: Callable[[], LocalTransport],
    data_dir: Path,
    change_settings: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    change_settings(data_dir, limits={"generations_per_tenant": 1})
    transport = open_vendor()
    clock = Clock()
    monkeypatch.setattr(generations(transport), "_clock", clock)
    put(transport)
    with refused(403, "1 sessions already"):
        put(transport, session="5" * 32)
    clock.now += 601
    put(transport, session="5" * 32)


def test_sessions_end_where_nobody_asks_for_anything(
    open_vendor: Callable[[], LocalTransport], data_dir: Path, change_settings: Callable[..., None]
) -> None:
    change_settings(data_dir, limits={"generation_seconds": 0.2})
    transport = open_vendor()
    put(transport)
    assert gauge(transport, "generations") == 1
    deadline = time.monotonic() + 20
    while gauge(transport, "generation_bytes"):  # which asks the vendor for nothing
        assert time.monotonic() < deadline, "the session is still there"
        time.sleep(0.05)
    assert generations(transport).live == 0


# ---------------------------------------------------------------- what sessions keep in memory


def own(transport: LocalTransport, adapter: str) -> int:
    """Bytes of an adapter that is in memory."""
    live = vendor_of(transport).adapters._live["clinic", adapter]
    assert live.held_bytes == own_bytes(live.part, vendor_of(transport).catalogue.top(live.info.model, live.info.cut))
    return int(live.held_bytes)


def test_an_adapter_that_sessions_use_counts_once_and_stays(
    open_vendor: Callable[[], LocalTransport], data_dir: Path, change_settings: Callable[..., None]
) -> None:
    change_settings(data_dir, limits={"live_adapters": 1})
    transport = open_vendor()
    put(transport)
    one = own(transport, HEAD)
    assert one > 0
    put(transport, session="5" * 32)
    put(transport, session="6" * 32)
    assert (gauge(transport, "live_adapters"), gauge(transport, "live_adapter_bytes")) == (1, one)
    put(transport, adapter=BLOCK, session="7" * 32)
    both = one + own(transport, BLOCK)
    assert (gauge(transport, "live_adapters"), gauge(transport, "live_adapter_bytes")) == (2, both)
    for session in (ONE, "5" * 32, "6" * 32, "7" * 32):
        end(transport, session)
    put(transport, adapter=IDS)
    assert (gauge(transport, "live_adapters"), gauge(transport, "live_adapter_bytes")) == (1, own(transport, IDS))


def test_what_sessions_use_makes_no_room(
    open_vendor: Callable[[], LocalTransport], data_dir: Path, change_settings: Callable[..., None]
) -> None:
    """Others are told to try again, and find room once the sessions have ended."""
    transport = open_vendor()
    put(transport)
    put(transport, adapter=BLOCK, session="5" * 32)
    one, both = own(transport, HEAD), gauge(transport, "live_adapter_bytes")
    transport.close()
    change_settings(data_dir, limits={"max_live_bytes": int(both) - 1})
    transport = open_vendor()
    put(transport)
    with refused(503, "Memory full: Adapters that generation sessions use"):
        put(transport, adapter=BLOCK, session="5" * 32)
    put(transport, session="5" * 32)
    assert gauge(transport, "live_adapter_bytes") == one
    for session in (ONE, "5" * 32):
        end(transport, session)
    put(transport, adapter=BLOCK, session="5" * 32)
    assert (gauge(transport, "live_adapters"), gauge(transport, "live_adapter_bytes")) == (1, own(transport, BLOCK))


def test_an_adapter_that_would_not_fit_alone_is_refused(
    open_vendor: Callable[[], LocalTransport], data_dir: Path, change_settings: Callable[..., None]
) -> None:
    change_settings(data_dir, limits={"max_live_bytes": 1000})
    transport = open_vendor()
    with refused(422, r"Adapter too large: This adapter takes \d+ bytes .* all jobs and adapters 1000"):
        put(transport)
    assert gauge(transport, "live_adapters") == 0


def test_an_idle_adapter_leaves_after_its_sessions(transport: LocalTransport, clock: Clock) -> None:
    residents = vendor_of(transport).residents
    residents._clock = clock
    put(transport)
    for number in (1, 2):
        clock.now += 600
        list(residents.expire())
        step(transport, number, grown([1, 1]))
    assert gauge(transport, "live_adapters") == 1, "a session uses it"
    clock.now += 601
    generations(transport).expire()
    list(residents.expire())
    assert (gauge(transport, "live_adapters"), gauge(transport, "live_adapter_bytes")) == (0, 0)


def test_sessions_end_with_their_adapter(transport: LocalTransport) -> None:
    put(transport)
    put(transport, adapter=BLOCK, session="5" * 32)
    step(transport, 1, grown([2, 3]))
    ask(transport, routes.ADAPTER_DELETE, adapter=HEAD)
    with refused(404, "no session"):
        step(transport, 2, grown([1, 1]))
    with refused(404, f"no adapter {HEAD}"):
        put(transport)
    assert generations(transport).live == 1
    step(transport, 1, grown([2, 3]), session="5" * 32)


def test_nothing_of_a_session_is_on_disk(transport: LocalTransport, data_dir: Path) -> None:
    before = {path for path in data_dir.rglob("*") if path.is_file()}
    put(transport)
    rows = grown([2, 3])
    output = step(transport, 1, rows)
    after = {path for path in data_dir.rglob("*") if path.is_file()}
    assert {path.name for path in after - before} <= {"vendor.sqlite-wal", "vendor.sqlite-shm", "vendor.sqlite-journal"}
    content = b"".join(path.read_bytes() for path in sorted(after))
    for tensor in (rows["rows"], output):
        assert tensor.flatten()[:8].numpy().tobytes() not in content
