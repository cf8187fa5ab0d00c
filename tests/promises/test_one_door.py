"""Promise 1: every byte that leaves is what the privatizer returned and the ledger names.

The checks (`accounts`) decode what was recorded below the gate and hold it against what the privatizer
returned and against the script of the run. Faults are planted in the road, in the gate and below it, and
each must be caught by the checks that pass on the true one.
"""

from __future__ import annotations

import itertools
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import uvicorn
from torch import Tensor

from cutlayer import vendor
from cutlayer.core import BudgetError, DataError, Payload, Place, Ragged, Stopped, Tokens
from cutlayer.customer import Client, FinetuneResult, Gate
from cutlayer.customer.session import Session, Texts
from cutlayer.customer.trainer import Trainer
from cutlayer.data import Dataset
from cutlayer.privacy import Release, UtilityImportance
from cutlayer.serving.listening import Connection, listen
from cutlayer.vendor import VendorSettings, create_app
from cutlayer.wire import Message, Route, WireType, routes
from cutlayer.wire.frame import Frame
from cutlayer.wire.messages import JobSpec
from cutlayer.wire.recording import Direction, RecordedFrame, read_recording
from cutlayer.wire.transports import HttpTransport, RecordingTransport, http, local
from tests.promises.accounts import (
    Watched,
    archive_of,
    canary_ids,
    check_accounted,
    check_prediction_accounted,
    check_requests,
    requests_in,
)
from tests.promises.runs import CANARIES, LABELS, TEST, TRAIN, Sent, corpus, customer, finetune
from tests.promises.script import loss_gradient
from tests.quick import slow_but

SETTINGS: dict[str, dict[str, Any]] = {
    "ids": {},
    "cti": {"cti": True},
    "noisy rows": {"mechanism": "vector"},
    "rows after a block": {"bottom": 1},
    "noisy rows after a block": {"bottom": 1, "mechanism": "vector", "place": Place.ACTIVATIONS},
    "rows in fp32": {"bottom": 1, "wire_type": WireType.FP32},
    "trained table": {"train_bottom": "resample"},
    "trained block": {"train_bottom": "cached", "bottom": 1},
}
REPEATED = Dataset(TRAIN.texts + TRAIN.texts[:8], (TRAIN.labels or ()) + (TRAIN.labels or ())[1:9])
"""Some texts stand twice, most of them with two labels: one record each, but where noise depends on the label."""


NEAR = 2**-7
"""Relative: more than bf16 rounds by, whichever way."""


def check_no_canary(frames: Iterable[RecordedFrame], client: Client) -> None:
    """No struck token is in any frame: not as text, not as an id, not as a row."""
    table, ids = archive_of(client).table, list(canary_ids())
    assert table is not None
    rows = table.detach()[ids]
    # All ids together are searched for at every offset. One alone is two bytes, which honest frames hold by chance,
    # across two ids or within a row's elements: it is looked for where a frame's ids are. A row is long enough to be
    # searched for at every offset, and one that was rounded in another way is looked for where a frame's rows are.
    needles = [word.encode() for word in CANARIES]
    for width, order in itertools.product((2, 4, 8), ("little", "big")):
        needles.append(b"".join(value.to_bytes(width, order) for value in ids))  # type: ignore[arg-type]
    for row in rows:
        needles += [
            row.float().numpy().tobytes(),
            row.double().numpy().tobytes(),
            row.bfloat16().view(torch.uint8).numpy().tobytes(),
        ]
    for frame in frames:
        everything = frame.body + frame.route.path.format(**frame.where).encode()
        for needle in needles:
            assert needle not in everything, f"a canary is in {frame.route.name}"
        tensors = frame.tensors()
        if "ids" in tensors:
            assert not torch.isin(tensors["ids"].long(), torch.tensor(ids)).any(), "a canary's id was released"
        if "rows" in tensors:
            near = torch.isclose(tensors["rows"].float()[:, None], rows.float(), rtol=NEAR, atol=0)
            assert not near.all(2).any(), "a canary's row was released"


Caught = Callable[..., None]


@pytest.fixture
def caught(data_dir: Path, api_key: str, tmp_path: Path, watched: Watched) -> Caught:
    """Takes a run with whatever fault was planted, and has the checks say what is wrong with it."""

    def run(said: str, **settings: Any) -> None:
        with customer(data_dir, api_key, tmp_path / "home") as client:
            try:
                folder = finetune(client, **settings).folder
            except DataError:  # some faults keep the run from reading its own transcript
                (folder,) = (client.home.path / "runs").iterdir()
            with pytest.raises(AssertionError, match=said):
                check_accounted(client, FinetuneResult.model_construct(folder=folder), watched)

    return run


@pytest.mark.parametrize("name", SETTINGS)
def test_every_byte_is_accounted_for(name: str, data_dir: Path, api_key: str, tmp_path: Path, watched: Watched) -> None:
    with customer(data_dir, api_key, tmp_path / "home") as client:
        result = finetune(client, train=REPEATED, **SETTINGS[name])
        check_accounted(client, result, watched, train=REPEATED)
        check_no_canary(Sent.by(result).frames, client)


def paired(data: Dataset) -> Dataset:
    """Each text with the one before it."""
    before = data.texts[-1:] + data.texts[:-1]
    return Dataset(tuple((one, two) for (one,), (two,) in zip(data.texts, before, strict=True)), data.labels)


@pytest.mark.parametrize("name", slow_but(("ids", "rows after a block"), SETTINGS))
def test_every_byte_of_pairs_is_accounted_for(
    name: str, data_dir: Path, api_key: str, tmp_path: Path, watched: Watched
) -> None:
    train, test = paired(TRAIN), paired(TEST)
    with customer(data_dir, api_key, tmp_path / "home") as client:
        result = finetune(client, train=train, test=test, **SETTINGS[name])
        check_accounted(client, result, watched, train=train, test=test)
        check_no_canary(Sent.by(result).frames, client)


@pytest.mark.parametrize("name", slow_but(("ids", "noisy rows after a block", "trained table"), SETTINGS))
def test_every_byte_of_a_prediction_is_accounted_for(
    name: str, data_dir: Path, api_key: str, tmp_path: Path, watched: Watched
) -> None:
    """A file's other columns, labels and record keys, go no further than the file."""
    asked = Dataset(TEST.texts + TRAIN.texts[:4], attributes={"record_key": ("k7f3e",) * 14})
    with customer(data_dir, api_key, tmp_path / "home") as client:
        result = finetune(client, **SETTINGS[name])
        before = len(watched.moments)
        with closing(RecordingTransport(client.transport, tmp_path / "asked")) as recorder:
            asking = Client(transport=recorder, home=tmp_path / "home", device="cpu")
            assert len(asking.predict(result.adapter_id, asked)) == 14
        check_prediction_accounted(client, result, watched, asked, tmp_path / "asked", moments=before)
        sent = [frame for frame in read_recording(tmp_path / "asked") if frame.direction is Direction.UP]
        check_no_canary(sent, client)


@contextmanager
def customer_over_http(data_dir: Path, api_key: str, home: Path) -> Iterator[tuple[Client, bytearray]]:
    """A customer of a vendor behind a socket, and what arrives on it, byte by byte."""
    arrived = bytearray()

    class Tapped(Connection):
        def data_received(self, data: bytes) -> None:
            arrived.extend(data)
            super().data_received(data)

    app = create_app(VendorSettings.load(data_dir))
    server = uvicorn.Server(uvicorn.Config(app, http=Tapped, loop="asyncio", ws="none", log_config=None))
    with listen("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.01)
            transport = HttpTransport(f"http://127.0.0.1:{listener.getsockname()[1]}", api_key)
            with closing(Client(transport=transport, home=home, device="cpu")) as client:
                yield client, arrived
        finally:
            server.should_exit = True
            thread.join()


def test_every_byte_on_the_socket_is_accounted_for(
    data_dir: Path, api_key: str, tmp_path: Path, watched: Watched
) -> None:
    with customer_over_http(data_dir, api_key, tmp_path / "home") as (client, arrived):
        result = finetune(client)
        watched.requests = requests_in(bytes(arrived))
        assert len(arrived) == client.ledger.summary().uplink_bytes
        check_accounted(client, result, watched)


def test_texts_labels_and_names_never_leave(data_dir: Path, api_key: str, tmp_path: Path, watched: Watched) -> None:
    file = tmp_path / "patients-of-doctor-x.csv"
    data = corpus(40, seed=1)
    pairs = zip(data.texts, data.labels or (), strict=True)
    rows = ["anamnesis_text,diagnosis_column", *(f"{text},{label}" for (text,), label in pairs)]
    file.write_text("\n".join(rows))
    with customer(data_dir, api_key, tmp_path / "home") as client:
        result = finetune(client, train=file, text_column="anamnesis_text", label_column="diagnosis_column")  # type: ignore[arg-type]
        words = [label.encode() for label in LABELS]
        words += [b"anamnesis_text", b"diagnosis_column", b"patients-of-doctor-x", str(tmp_path).encode()]
        words += [text[0].encode() for text in data.texts]
        for frame in Sent.by(result).frames:
            everything = frame.body + frame.route.path.format(**frame.where).encode()
            for word in words:
                assert word not in everything


class OneStep:
    """Progress that stops a run after its first step."""

    def update(self, stage: str, done: int, total: int, note: str = "") -> None:
        if stage.startswith("epoch"):
            raise KeyboardInterrupt


Beginning = Callable[..., list[tuple[object, ...]]]


@pytest.fixture
def beginning(blank_vendor: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Beginning:
    """What a new customer with fixed seeds sends to a new vendor before its first gradient.

    Its argument says by how many texts the labels are moved on.
    """
    monkeypatch.setattr(secrets, "token_hex", lambda size=16: "5e" * size)
    data = corpus(40, seed=1)
    numbers = itertools.count()

    def send(moved: int, **settings: Any) -> list[tuple[object, ...]]:
        number = next(numbers)
        train = Dataset(data.texts, (data.labels or ())[moved:] + (data.labels or ())[:moved])
        folder, out = Path(shutil.copytree(blank_vendor, tmp_path / f"vendor-{number}")), tmp_path / f"run-{number}"
        key = vendor.keys.create(folder, "clinic")
        with customer(folder, key, tmp_path / f"home-{number}") as client, pytest.raises(Stopped):
            finetune(client, train=train, unsafe_noise_seed=9, out=out, progress=OneStep(), **settings)
        sent = [frame for frame in read_recording(out / "transcript") if frame.direction is Direction.UP]
        frames = itertools.takewhile(lambda frame: "gradient" not in frame.tensors(), sent)
        return [(frame.route.name, dict(frame.where), frame.body) for frame in frames]

    return send


# Class-free CTI is not among them. Its noise does not depend on a text's own label, but importance is fitted to the
# labels of all texts, so that moving them changes etas and draws; the next test tells the two apart.
@pytest.mark.parametrize("name", ["ids", "noisy rows", "rows after a block", "trained table"])
def test_labels_do_not_change_a_byte_before_the_first_gradient(name: str, beginning: Beginning) -> None:
    sent, moved = (beginning(by, **SETTINGS[name]) for by in (0, 7))
    assert routes.STEP.name in {frame[0] for frame in sent}, "no step was compared"
    assert sent == moved


@pytest.mark.parametrize("class_free", [True, False])
def test_labels_change_what_cti_releases(
    class_free: bool, beginning: Beginning, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the comparison above can fail; given its statistics, class-free CTI reads no label."""
    settings = {"cti": True, "cti_class_free": class_free}
    moved = beginning(7, **settings)
    fitted: list[UtilityImportance] = []
    fit = UtilityImportance.fit

    def fit_once(*given: Any, **named: Any) -> UtilityImportance:
        fitted.append(fit(*given, **named))
        return fitted[0]

    monkeypatch.setattr(UtilityImportance, "fit", fit_once)
    sent, moved_in_old_statistics = (beginning(by, **settings) for by in (0, 7))
    assert len(fitted) == 2
    assert sent != moved
    assert (sent == moved_in_old_statistics) == class_free


# ---------------------------------------------------------------- planted faults


def plant_raw_id(gate: Gate, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Puts one true token in place of a drawn one."""
    if "ids" in tensors:
        tensors["ids"] = tensors["ids"].clone()
        tensors["ids"][0] = canary_ids()[0]
    return tensors


def plant_label(gate: Gate, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Puts a label in place of the last token."""
    if "ids" in tensors:
        tensors["ids"] = tensors["ids"].clone()
        tensors["ids"][-1] = 2
    return tensors


def plant_text_in_rows(gate: Gate, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Puts a letter into the last bits of a row, where rounding hides it from a comparison."""
    if "rows" in tensors:
        tensors["rows"] = with_byte(tensors["rows"], ord("w") & 7)
    return tensors


def plant_text_in_gradient(gate: Gate, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Puts a letter into the last bits of a gradient's element."""
    if "gradient" in tensors:
        tensors["gradient"] = with_byte(tensors["gradient"], ord("w"))
    return tensors


def with_byte(tensor: Tensor, byte: int) -> Tensor:
    """The tensor with a byte added, bit by bit, to the low end of its first element."""
    changed = tensor.detach().clone().contiguous()
    changed.view(torch.uint8)[0, 0] ^= byte  # every machine that runs this is little-endian
    return changed


def plant_swapped_records(gate: Gate, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Names the first two records of a frame the other way round."""
    if "records" in tensors:
        tensors["records"] = tensors["records"].clone()
        tensors["records"][:2] = tensors["records"][:2].flip(0)
    return tensors


FAULTS = [
    (plant_raw_id, "ids", "a text left with other content"),
    (plant_label, "ids", "a text left with other content"),
    (plant_text_in_rows, "rows in fp32", "other bits than it was given"),
    (plant_text_in_gradient, "ids", "gradient: another value"),
    (plant_text_in_gradient, "trained table", "gradient: another value"),
    (plant_swapped_records, "ids", "records: another value"),
]
"""A gate's fault, a setting that has what it changes, and what the checks say of it."""


@pytest.mark.parametrize(("fault", "name", "said"), FAULTS)
def test_a_changed_tensor_is_caught(
    fault: Callable[[Gate, dict[str, Tensor]], dict[str, Tensor]],
    name: str,
    said: str,
    caught: Caught,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = Gate._tensors
    monkeypatch.setattr(Gate, "_tensors", lambda gate, *given: fault(gate, honest(gate, *given)))
    caught(said, **SETTINGS[name])


def test_a_raw_id_in_a_prediction_is_caught(
    data_dir: Path, api_key: str, tmp_path: Path, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    with customer(data_dir, api_key, tmp_path / "home") as client:
        result = finetune(client)
        before, honest = len(watched.moments), Gate._tensors
        monkeypatch.setattr(Gate, "_tensors", lambda gate, *given: plant_raw_id(gate, honest(gate, *given)))
        with closing(RecordingTransport(client.transport, tmp_path / "asked")) as recorder:
            Client(transport=recorder, home=tmp_path / "home", device="cpu").predict(result.adapter_id, TEST)
        with pytest.raises(AssertionError, match="a text left with other content"):
            check_prediction_accounted(client, result, watched, TEST, tmp_path / "asked", moments=before)


def plant_canary_id(client: Client, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Puts one canary's id in place of a drawn one."""
    if "ids" in tensors:
        tensors["ids"] = tensors["ids"].clone()
        tensors["ids"][-1] = canary_ids()[1]
    return tensors


def plant_canary_row(client: Client, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Puts one canary's row in place of another one, in the elements that travel."""
    if "rows" in tensors:
        table = archive_of(client).table
        assert table is not None
        tensors["rows"] = tensors["rows"].detach().clone()
        tensors["rows"][-1] = table.detach()[canary_ids()[1]]
    return tensors


def plant_rounded_row(client: Client, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Puts one canary's row there with half of its mantissas' bits: as bytes, it is no row of the table."""
    tensors = plant_canary_row(client, tensors)
    if "rows" in tensors:
        tensors["rows"].view(torch.int32)[-1] &= -(2**12)
    return tensors


Searched = Callable[..., None]


@pytest.fixture
def searched(
    data_dir: Path, api_key: str, tmp_path: Path, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> Searched:
    """Has the search for canaries, and no other check, say what it finds in a run up to its first step."""

    def run(said: str, fault: Callable[[Client, dict[str, Tensor]], dict[str, Tensor]], **settings: Any) -> None:
        honest, out = Gate._tensors, tmp_path / "run"
        with customer(data_dir, api_key, tmp_path / "home") as client:
            monkeypatch.setattr(Gate, "_tensors", lambda gate, *given: fault(client, honest(gate, *given)))
            with pytest.raises(Stopped):
                finetune(client, out=out, progress=OneStep(), **settings)
            sent = [frame for frame in read_recording(out / "transcript") if frame.direction is Direction.UP]
            with pytest.raises(AssertionError, match=said):
                check_no_canary(sent, client)

    return run


@pytest.mark.parametrize(
    ("fault", "name", "said"),
    [
        (plant_canary_id, "ids", "a canary's id"),
        (plant_canary_row, "rows after a block", "a canary is in shard.put"),
        (plant_canary_row, "rows in fp32", "a canary is in shard.put"),
        (plant_rounded_row, "rows in fp32", "a canary's row"),
    ],
)
def test_a_canary_in_a_tensor_is_found(
    fault: Callable[[Client, dict[str, Tensor]], dict[str, Tensor]], name: str, said: str, searched: Searched
) -> None:
    searched(said, fault, **SETTINGS[name])


def test_a_canary_in_a_message_is_found(searched: Searched, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that stands twice: readers take the last."""
    honest, word = Frame.encode, f'{{"model":"{CANARIES[0]}",'.encode()

    def encode(frame: Frame) -> bytes:
        body = honest(frame)
        return word + body[1:] if frame.route is routes.JOB_PUT else body

    monkeypatch.setattr(Frame, "encode", encode)
    searched("a canary is in job.put", lambda client, tensors: tensors)


def rewrite_headers(monkeypatch: pytest.MonkeyPatch, added: dict[str, str]) -> None:
    for transport in (local, http):
        honest = transport.request_headers
        monkeypatch.setattr(transport, "request_headers", lambda *given, honest=honest: honest(*given) | added)


def label_in_a_header(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adds a header."""
    rewrite_headers(monkeypatch, {"X-Note": LABELS[0]})


def label_in_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adds to the name of the customer's program."""
    rewrite_headers(monkeypatch, {"User-Agent": f"cutlayer/{LABELS[0]}"})


def label_in_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adds a query, which the vendor does not look at."""
    exchange, urlopen, query = local._exchange, http._Pool.urlopen, f"note={LABELS[0]}"

    def exchanging(app: Any, scope: Any, body: bytes) -> Any:
        return exchange(app, {**scope, "query_string": query.encode()}, body)

    def opening(pool: Any, method: str, url: str, **named: Any) -> Any:
        return urlopen(pool, method, f"{url}?{query}", **named)

    monkeypatch.setattr(local, "_exchange", exchanging)
    monkeypatch.setattr(http._Pool, "urlopen", opening)


HEAD_FAULTS = [
    (label_in_a_header, "a head is not as due"),
    (label_in_the_agent, "a head is not as due"),
    (label_in_the_query, "a request line holds more"),
]


@pytest.mark.parametrize(("fault", "said"), HEAD_FAULTS)
def test_a_label_in_a_head_is_caught(
    fault: Callable[[pytest.MonkeyPatch], None], said: str, caught: Caught, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    caught(said)


@pytest.mark.parametrize(("fault", "said"), HEAD_FAULTS)
def test_a_label_in_a_head_on_the_socket_is_caught(
    fault: Callable[[pytest.MonkeyPatch], None],
    said: str,
    data_dir: Path,
    api_key: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One request shows it; those of a whole run are looked at above."""
    with customer_over_http(data_dir, api_key, tmp_path / "home") as (client, arrived):
        client.adapters()
        check_requests(client, requests_in(bytes(arrived)))
        fault(monkeypatch)
        client.adapters()
        with pytest.raises(AssertionError, match=said):
            check_requests(client, requests_in(bytes(arrived)))


def test_the_gradient_is_softmax_minus_one_hot() -> None:
    """The script's gradient, which frames must hold to the bit, is the formula's up to fp32's rounding."""
    rng = torch.Generator().manual_seed(5)
    output, labels = 4 * torch.randn(32, 5, generator=rng), torch.randint(5, (32,), generator=rng)
    formula = (output.double().softmax(1) - torch.nn.functional.one_hot(labels, 5)) / len(labels)
    assert torch.allclose(loss_gradient(output, labels).double(), formula, rtol=2**-20, atol=2**-22 / len(labels))


Where = dict[str, str | int]
Rewriting = Callable[[Where, Message | None], tuple[Where, Message | None]]
LABEL_BYTES = LABELS[0].encode().ljust(16)[:16]


def label_in_a_number() -> Rewriting:
    """Adds the number of a label to the job's seed."""

    def rewrite(where: Where, control: Message | None) -> tuple[Where, Message | None]:
        if isinstance(control, JobSpec):
            control = control.model_copy(update={"seed": control.seed + 2})
        return where, control

    return rewrite


def label_in_a_fraction() -> Rewriting:
    """Puts the first letter of a label into the last bits of the learning rate."""

    def rewrite(where: Where, control: Message | None) -> tuple[Where, Message | None]:
        if isinstance(control, JobSpec):
            rate = control.optimiser.learning_rate * (1 + LABEL_BYTES[0] * 2**-52)
            control = control.model_copy(
                update={"optimiser": control.optimiser.model_copy(update={"learning_rate": rate})}
            )
        return where, control

    return rewrite


def label_in_an_identifier() -> Rewriting:
    """Calls the job by the name of a label, from its first frame on."""

    def rewrite(where: Where, control: Message | None) -> tuple[Where, Message | None]:
        return (where | {"job": LABEL_BYTES.hex()} if "job" in where else where), control

    return rewrite


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (label_in_a_number, "a control message"),
        (label_in_a_fraction, "a control message"),
        (label_in_an_identifier, "a path"),
    ],
)
def test_a_changed_message_is_caught(
    fault: Callable[[], Rewriting],
    said: str,
    caught: Caught,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest, rewrite = Gate.send, fault()

    def rewriting(gate: Gate, route: Any, where: Any = None, *, control: Message | None = None, **named: Any) -> Any:
        where, control = rewrite(dict(where or {}), control)
        return honest(gate, route, where, control=control, **named)

    monkeypatch.setattr(Gate, "send", rewriting)
    caught(said)


def padded(body: bytes) -> bytes:
    """A safetensors block with blanks behind its header, which readers skip; or a control message with one."""
    if body.startswith(b"{"):
        return body + b" "
    size = int.from_bytes(body[:8], "little")
    return (size + 8).to_bytes(8, "little") + body[8 : 8 + size] + b" " * 8 + body[8 + size :]


@pytest.mark.parametrize(
    ("route", "said"),
    [(routes.JOB_PUT, "a control message"), (routes.STEP, "padded"), (routes.SHARD_PUT, "padded")],
    ids=lambda given: given.name if isinstance(given, Route) else given,
)
def test_a_padded_body_is_caught(
    route: Route,
    said: str,
    caught: Caught,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = Frame.encode
    monkeypatch.setattr(Frame, "encode", lambda frame: padded(honest(frame)) if frame.route is route else honest(frame))
    caught(said)


@pytest.mark.parametrize(("name", "said"), [("ids", "records: another value"), ("trained table", "in another order")])
def test_batches_in_the_order_of_their_labels_are_caught(
    name: str,
    said: str,
    caught: Caught,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = Trainer.batches

    def telling(trainer: Trainer, epoch: int) -> list[Tensor]:
        return [batch[trainer.train.labels[batch].argsort(stable=True)] for batch in honest(trainer, epoch)]

    monkeypatch.setattr(Trainer, "batches", telling)
    caught(said, **SETTINGS[name])


def plant_true_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws as it should, and feeds the bottom the texts all the same."""
    draw, true = Session._draw, dict[bytes, Payload]()

    def remembering(session: Session, texts: Texts, look: Any) -> Any:
        names = session.privatizer.tokens(texts.tokens, labels=texts.cti_classes, look=look).identities
        true.update({name: texts.tokens.select([place]) for place, name in enumerate(names)})
        return draw(session, texts, look)

    def betraying(honest: Callable[[Session, Release], Any]) -> Callable[[Session, Release], Any]:
        def betray(session: Session, drawn: Release) -> Any:
            packs = [each.segments[0] for each in map(true.__getitem__, drawn.identities) if isinstance(each, Tokens)]
            return honest(session, replace(drawn, payload=Tokens((Ragged.concatenate(packs),))))

        return betray

    monkeypatch.setattr(Session, "_draw", remembering)
    monkeypatch.setattr(Session, "_kept", betraying(Session._kept))
    monkeypatch.setattr(Session, "_bottom_once", betraying(Session._bottom_once))


@pytest.mark.parametrize("name", ["rows after a block", "trained block"])
def test_true_tokens_below_a_block_are_caught(name: str, caught: Caught, monkeypatch: pytest.MonkeyPatch) -> None:
    plant_true_tokens(monkeypatch)
    caught("other content", **SETTINGS[name])


def plant_clean_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Releases the bottom's rows without the noise that they wait for."""
    monkeypatch.setattr(
        Session,
        "_kept",
        lambda session, drawn: drawn.recalled(session._bottom(drawn.payload), b"clean", draws=drawn.item_draws),
    )


def test_rows_without_their_noise_are_caught(caught: Caught, monkeypatch: pytest.MonkeyPatch) -> None:
    plant_clean_rows(monkeypatch)
    caught("no privatizer returned", **SETTINGS["noisy rows after a block"])


def test_an_unledgered_frame_is_caught(caught: Caught, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Gate.send

    def talkative(gate: Gate, route: Any, *given: Any, **named: Any) -> Any:
        if route is routes.SEAL:
            gate._transport.send(Frame(routes.SERVICE))
        return honest(gate, route, *given, **named)

    monkeypatch.setattr(Gate, "send", talkative)
    caught("without a ledger entry")


def test_the_ledger_is_written_before_the_bytes_exist(
    data_dir: Path, api_key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = Frame.encode
    with customer(data_dir, api_key, tmp_path / "home") as client:

        def encoding(frame: Frame) -> bytes:
            last = list(client.ledger.frames())[-1]
            assert (last.route, last.closed) == (frame.route.name, None)
            return encode(frame)

        monkeypatch.setattr(Frame, "encode", encoding)
        finetune(client)


def test_a_budget_refuses_before_a_byte_leaves(data_dir: Path, api_key: str, tmp_path: Path) -> None:
    with customer(data_dir, api_key, tmp_path / "home") as client:
        with pytest.raises(BudgetError):
            finetune(client, budget=5.0)
        assert not [frame for frame in client.ledger.frames() if frame.texts]
        finetune(client, budget=6.0)
