"""Promise 1: every byte that leaves is what the privatizer returned and the ledger names.

The checks decode what was recorded below the gate. Faults are planted in the gate and each must be
caught by the same checks that pass on the true one.
"""

from __future__ import annotations

import itertools
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cutlayer import vendor
from cutlayer.core import BudgetError, Payload
from cutlayer.customer import Client, FinetuneResult, Gate
from cutlayer.customer import finetune as finetuning
from cutlayer.customer.run import RunState
from cutlayer.models import read_archive
from cutlayer.privacy import Privatizer
from cutlayer.wire import WireType, pack, routes, unpack
from cutlayer.wire.frame import Frame
from tests.promises.runs import CANARIES, LABELS, Sent, corpus, customer, finetune

RELEASING = {"ids", "rows", "lengths"}
SETTINGS: dict[str, dict[str, Any]] = {
    "ids": {},
    "cti": {"cti": True},
    "noisy rows": {"mechanism": "vector"},
    "rows after a block": {"bottom": 1},
    "trained table": {"train_bottom": "redraw"},
    "trained block": {"train_bottom": "memoised", "bottom": 1},
}


class Watched:
    """What the privatizers of a run returned, by text identity."""

    def __init__(self) -> None:
        self.released: dict[bytes, Payload] = {}

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Notes what sessions hand to the gate, and strikes the canaries from the candidates."""
        build = finetuning.build_privatizer
        draw = finetuning.Session._draw

        def striking(spec: Any, **given: Any) -> Privatizer:
            if given.get("candidates") is not None:
                given["candidates"] = given["candidates"].clone()
                given["candidates"][list(canary_ids())] = False
            return build(spec, **given)

        def noting(session: Any, texts: Any, look: Any) -> Any:
            drawn = draw(session, texts, look)
            for place, identity in enumerate(drawn.release.identities):
                self.released[identity] = drawn.release.payload.select([place])
            return drawn

        monkeypatch.setattr(finetuning, "build_privatizer", striking)
        monkeypatch.setattr(finetuning.Session, "_draw", noting)


def canary_ids() -> tuple[int, ...]:
    """The tiny tokenizer numbers `w0` as 31."""
    return tuple(31 + int(word[1:]) for word in CANARIES)


def equal(left: Payload, right: Payload) -> bool:
    """Whether two single texts would leave as the same bytes."""
    packed = [pack(each, vocab_size=2**16, wire_type=WireType.BF16) for each in (left, right)]
    return packed[0].keys() == packed[1].keys() and all(
        torch.equal(packed[0][role].double(), packed[1][role].double()) for role in packed[0]
    )


def check_accounted(client: Client, result: FinetuneResult, watched: Watched) -> None:
    """Every frame of a run has its ledger entry, and holds what the privatizer returned and nothing else."""
    sent = Sent.by(result).frames
    run = _run_of(result)
    entries = [entry for entry in client.ledger.frames() if entry.run == run]
    assert len(sent) == len(entries), "a frame left without a ledger entry"
    texts = {}
    for release in client.ledger.releases():
        texts[release.entry, release.position] = release
    for frame, entry in zip(sent, entries, strict=True):
        assert (entry.route, dict(entry.where)) == (frame.route.name, dict(frame.where)), "entries are out of order"
        assert entry.digest == bytes.fromhex(frame.sha256), "the ledger names other bytes"
        assert entry.closed is not None
        assert entry.opened <= entry.closed
        tensors = frame.tensors()
        assert set(tensors) <= RELEASING | {"records", "gradient"}
        if not RELEASING & set(tensors):
            assert entry.texts == 0
            continue
        payload = unpack(tensors)
        assert entry.texts == len(payload), "the ledger names another number of texts"
        for place in range(len(payload)):
            named = texts[entry.entry, place]
            assert named.identity in watched.released, "a text left that no privatizer returned"
            assert equal(payload.select([place]), watched.released[named.identity]), "a text left with other content"


def _run_of(result: FinetuneResult) -> str:
    return RunState.model_validate_json((result.folder / "run.json").read_bytes()).run


def check_no_canary(result: FinetuneResult, table: Tensor) -> None:
    """No struck token is in any frame: not as text, not as an id, not as a row."""
    needles = [word.encode() for word in CANARIES]
    ids = canary_ids()
    for width, order in itertools.product((2, 4, 8), ("little", "big")):
        needles.append(b"".join(value.to_bytes(width, order) for value in ids))  # type: ignore[arg-type]
    for row in table[list(ids)]:
        needles += [
            row.float().numpy().tobytes(),
            row.double().numpy().tobytes(),
            row.bfloat16().view(torch.uint8).numpy().tobytes(),
        ]
    for frame in Sent.by(result).frames:
        for needle in needles:
            assert needle not in frame.body, f"a canary is in {frame.route.name}"
        released = frame.tensors().get("ids")
        if released is not None:
            assert not torch.isin(released.long(), torch.tensor(ids)).any(), "a canary's id was released"


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    seen = Watched()
    seen.watch(monkeypatch)
    return seen


@pytest.mark.parametrize("name", SETTINGS)
def test_every_byte_is_accounted_for(name: str, data_dir: Path, api_key: str, tmp_path: Path, watched: Watched) -> None:
    with customer(data_dir, api_key, tmp_path / "home") as client:
        result = finetune(client, **SETTINGS[name])
        check_accounted(client, result, watched)
        check_no_canary(result, _table(client))


def _table(client: Client) -> Tensor:
    for folder in client.home.archives.iterdir():
        table = read_archive(folder).table
        if table is not None:
            return table.detach()
    raise AssertionError("no archive with a table")


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


def test_labels_do_not_change_a_byte_before_the_first_gradient(
    blank_vendor: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secrets, "token_hex", lambda size=16: "5e" * size)
    data = corpus(40, seed=1)
    permuted = (data.labels or ())[7:] + (data.labels or ())[:7]
    sequences = []
    for number, labels in enumerate((data.labels, permuted)):
        folder = Path(shutil.copytree(blank_vendor, tmp_path / f"vendor-{number}"))
        key = vendor.keys.create(folder, "clinic")
        with customer(folder, key, tmp_path / f"home-{number}") as client:
            result = finetune(client, train=type(data)(data.texts, labels), unsafe_noise_seed=9)
            frames = Sent.by(result).frames
            sequences.append(
                tuple(
                    (frame.route.name, dict(frame.where), frame.body)
                    for frame in itertools.takewhile(lambda frame: "gradient" not in frame.tensors(), frames)
                )
            )
    assert len(sequences[0]) > 6
    assert routes.STEP.name in {frame[0] for frame in sequences[0]}
    assert sequences[0] == sequences[1]


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


@pytest.mark.parametrize("fault", [plant_raw_id, plant_label])
def test_a_changed_release_is_caught(
    fault: Callable[[Gate, dict[str, Tensor]], dict[str, Tensor]],
    data_dir: Path,
    api_key: str,
    tmp_path: Path,
    watched: Watched,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = Gate._tensors
    monkeypatch.setattr(Gate, "_tensors", lambda gate, *given: fault(gate, honest(gate, *given)))
    with customer(data_dir, api_key, tmp_path / "home") as client:
        result = finetune(client)
        with pytest.raises(AssertionError, match="other content"):
            check_accounted(client, result, watched)


def test_an_unledgered_frame_is_caught(
    data_dir: Path, api_key: str, tmp_path: Path, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Gate.send

    def talkative(gate: Gate, route: Any, *given: Any, **named: Any) -> Any:
        if route is routes.SEAL:
            gate._transport.send(Frame(routes.SERVICE))
        return honest(gate, route, *given, **named)

    monkeypatch.setattr(Gate, "send", talkative)
    with customer(data_dir, api_key, tmp_path / "home") as client:
        result = finetune(client)
        with pytest.raises(AssertionError, match="without a ledger entry"):
            check_accounted(client, result, watched)


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
