"""Promise 1: every byte that leaves is what the privatizer returned and the ledger names.

The checks decode what was recorded below the gate and hold it against what the privatizer returned:
token ids as they are, rows as the customer's bottom makes them of the drawn tokens, computed again.
Faults are planted in the road and in the gate, and each must be caught by the checks that pass on the
true one.
"""

from __future__ import annotations

import itertools
import secrets
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cutlayer import vendor
from cutlayer.core import BudgetError, Payload, Place, Ragged, Rows, Stopped, Tokens
from cutlayer.customer import Client, FinetuneResult, Gate
from cutlayer.customer import finetune as finetuning
from cutlayer.customer.run import RunState
from cutlayer.customer.session import Session, Texts
from cutlayer.data import Dataset
from cutlayer.models import Archive, Bottom, read_archive, seed_dropout, set_dropout
from cutlayer.privacy import Privatizer, Release, UtilityImportance
from cutlayer.wire import WireType, routes, unpack
from cutlayer.wire.frame import Frame
from cutlayer.wire.recording import Direction, read_recording
from tests.promises.runs import CANARIES, LABELS, Sent, corpus, customer, finetune

RELEASING = {"ids", "rows", "lengths"}
SETTINGS: dict[str, dict[str, Any]] = {
    "ids": {},
    "cti": {"cti": True},
    "noisy rows": {"mechanism": "vector"},
    "rows after a block": {"bottom": 1},
    "noisy rows after a block": {"bottom": 1, "mechanism": "vector", "place": Place.ACTIVATIONS},
    "rows in fp32": {"bottom": 1, "wire_type": WireType.FP32},
    "trained table": {"train_bottom": "redraw"},
    "trained block": {"train_bottom": "memoised", "bottom": 1},
}


ROUNDING = {torch.float32: (1e-5, 1e-6), torch.bfloat16: (2**-8, 1e-6)}
"""Relative and absolute: last bits, which depend on the batch, and with bf16 one place of its mantissa."""


@dataclass(frozen=True)
class Moment:
    """The bottom as it was when a release left: trained weights, and whether its dropout was on."""

    trained: dict[str, Tensor]
    training: bool


class Watched:
    """What the privatizers of a run returned, by draw, and when it left.

    It looks at the privatizer and not at what the session makes of it, so that a session that goes
    round the privatizer shows.
    """

    def __init__(self) -> None:
        self.drawn: dict[bytes, Payload] = {}
        self.noised: dict[bytes, Payload] = {}
        self.moments: list[Moment] = []
        self._session: Session | None = None

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Notes what privatizers return, and strikes the canaries from the candidates."""
        build, build_session, send = finetuning.build_privatizer, finetuning.build_session, Gate.send

        def building(spec: Any, **given: Any) -> Privatizer:
            if given.get("candidates") is not None:
                given["candidates"] = given["candidates"].clone()
                given["candidates"][list(canary_ids())] = False
            return self._noting(build(spec, **given))

        def building_session(*given: Any) -> Session:
            self._session = build_session(*given)
            return self._session

        def sending(gate: Gate, *given: Any, **named: Any) -> Any:
            if named.get("release") is not None:
                assert self._session is not None
                trained = {name: value.detach().clone() for name, value in self._session.trained().items()}
                self.moments.append(Moment(trained, self._session.training))
            return send(gate, *given, **named)

        monkeypatch.setattr(finetuning, "build_privatizer", building)
        monkeypatch.setattr(finetuning, "build_session", building_session)
        monkeypatch.setattr(Gate, "send", sending)

    def _noting(self, privatizer: Privatizer) -> Privatizer:
        tokens, activations = privatizer.tokens, privatizer.activations

        def noting_tokens(*given: Any, **named: Any) -> Release:
            release = tokens(*given, **named)
            if release.pending is None:  # else it is the text itself, which no frame may hold
                self.drawn |= {draw: release.payload.select([place]) for place, draw in enumerate(release.draws)}
            return release

        def noting_rows(release: Release, rows: Rows) -> Release:
            noised = activations(release, rows)
            if release.pending is Place.ACTIVATIONS:
                self.noised |= {draw: noised.payload.select([place]) for place, draw in enumerate(release.draws)}
            return noised

        privatizer.tokens, privatizer.activations = noting_tokens, noting_rows  # type: ignore[method-assign]
        return privatizer

    def expected(self, draws: Sequence[bytes], bottom: Callable[[Tokens], Rows] | None) -> list[Payload]:
        """What may leave for these draws: as returned, or what the bottom makes of it."""
        if all(draw in self.noised for draw in draws):
            return [self.noised[draw] for draw in draws]
        if bottom is None:
            return [self.drawn[draw] for draw in draws]
        distinct = list(dict.fromkeys(draws))  # as the road does, for the sake of dropout
        tokens = [self.drawn[draw] for draw in distinct]
        rows = bottom(Tokens((Ragged.concatenate([each.segments[0] for each in tokens if isinstance(each, Tokens)]),)))
        return [rows.select([distinct.index(draw)]) for draw in draws]


def canary_ids() -> tuple[int, ...]:
    """The tiny tokenizer numbers `w0` as 31."""
    return tuple(31 + int(word[1:]) for word in CANARIES)


def same(sent: Payload, expected: Payload) -> bool:
    """Whether a single text holds what it should: ids exactly, rows up to rounding."""
    if isinstance(sent, Tokens) or isinstance(expected, Tokens):
        return (
            isinstance(sent, Tokens)
            and isinstance(expected, Tokens)
            and torch.equal(sent.segments[0].values, expected.segments[0].values)
        )
    rows, wanted = sent.packed.values, expected.packed.values
    if rows.shape != wanted.shape or not torch.equal(sent.segment_lengths, expected.segment_lengths):
        return False
    relative, absolute = ROUNDING[rows.dtype]
    return torch.allclose(rows.float(), wanted.float(), rtol=relative, atol=absolute)


def bottom_at(archive: Archive, moment: Moment, *, seed: int, step: int | None) -> Callable[[Tokens], Rows]:
    """The bottom that was handed out, with the weights of that moment."""
    bottom, template = archive.bottom, archive.template
    assert isinstance(bottom, Bottom)

    @torch.no_grad()
    def compute(tokens: Tokens) -> Rows:
        bottom.model.load_state_dict(moment.trained, strict=False)
        set_dropout(bottom, True)
        bottom.train(moment.training and bool(moment.trained))  # a frozen bottom never drops out
        if step is not None:
            seed_dropout(seed, step)
        return template.unpad(bottom(template.assemble(tokens, table=bottom.table)), tokens)

    return compute


def check_accounted(client: Client, result: FinetuneResult, watched: Watched) -> None:
    """Every frame of a run has its ledger entry, and holds what the privatizer returned and nothing else."""
    sent = Sent.by(result).frames
    run = _run_of(result)
    entries = [entry for entry in client.ledger.frames() if entry.run == run]
    assert len(sent) == len(entries), "a frame left without a ledger entry"
    texts = {}
    for release in client.ledger.releases():
        texts[release.entry, release.position] = release
    archive = _archive(client)
    moments = iter(watched.moments)
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
        draws = [texts[entry.entry, place].draw for place in range(len(payload))]
        assert set(draws) <= watched.drawn.keys() | watched.noised.keys(), "a text left that no privatizer returned"
        moment, step = next(moments), frame.where.get("step")
        bottom = bottom_at(archive, moment, seed=result.spec.seed, step=None if step is None else int(step))
        expected = watched.expected(draws, bottom if isinstance(payload, Rows) else None)
        for place, wanted in enumerate(expected):
            assert same(payload.select([place]), wanted), "a text left with other content"
    assert next(moments, None) is None, "a release is in no frame"


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
        table = _archive(client).table
        assert table is not None
        check_no_canary(result, table.detach())


def _archive(client: Client) -> Archive:
    """What the vendor handed out, read again from the customer's folder."""
    (folder,) = client.home.archives.iterdir()
    archive = read_archive(folder)
    assert isinstance(archive, Archive)
    return archive


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


def plant_true_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws as it should, and feeds the bottom the texts all the same."""
    draw, true = Session._draw, dict[bytes, Payload]()

    def remembering(session: Session, texts: Texts, look: Any) -> Any:
        names = session.privatizer.tokens(texts.tokens, labels=texts.cti_classes, look=look).draws
        true.update({name: texts.tokens.select([place]) for place, name in enumerate(names)})
        return draw(session, texts, look)

    def betraying(honest: Callable[[Session, Release], Any]) -> Callable[[Session, Release], Any]:
        def betray(session: Session, drawn: Release) -> Any:
            packs = [each.segments[0] for each in map(true.__getitem__, drawn.draws) if isinstance(each, Tokens)]
            return honest(session, replace(drawn, payload=Tokens((Ragged.concatenate(packs),))))

        return betray

    monkeypatch.setattr(Session, "_draw", remembering)
    monkeypatch.setattr(Session, "_kept", betraying(Session._kept))
    monkeypatch.setattr(Session, "_bottom_once", betraying(Session._bottom_once))


@pytest.mark.parametrize("name", ["rows after a block", "trained block"])
def test_true_tokens_below_a_block_are_caught(
    name: str, data_dir: Path, api_key: str, tmp_path: Path, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant_true_tokens(monkeypatch)
    with customer(data_dir, api_key, tmp_path / "home") as client:
        result = finetune(client, **SETTINGS[name])
        with pytest.raises(AssertionError, match="other content"):
            check_accounted(client, result, watched)


def plant_clean_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Releases the bottom's rows without the noise that they wait for."""
    monkeypatch.setattr(
        Session, "_kept", lambda session, drawn: drawn.recalled(session._bottom(drawn.payload), b"clean")
    )


def test_rows_without_their_noise_are_caught(
    data_dir: Path, api_key: str, tmp_path: Path, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant_clean_rows(monkeypatch)
    with customer(data_dir, api_key, tmp_path / "home") as client:
        result = finetune(client, **SETTINGS["noisy rows after a block"])
        with pytest.raises(AssertionError, match="no privatizer returned"):
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
