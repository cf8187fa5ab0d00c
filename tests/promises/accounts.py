"""The checks of promise 1: what a run sent, held against its script, its ledger and its privatizer.

Releases are held against what the privatizer returned: token ids as they are, rows as the customer's bottom
makes them of the drawn tokens, computed again, and in the bits that the gate was given. All else, which is
routes, identifiers, control messages, record and step numbers, the order of texts and gradients, is held bit
by bit against the script of the run. Requests are looked at as the vendor gets them, heads included.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from cutlayer.core import Cut, Payload, Place, Ragged, Rows, Tokens
from cutlayer.customer import Client, FinetuneResult, Gate, Objective, RunResult, Training, derived
from cutlayer.customer import plan as planning
from cutlayer.customer.corpora import Corpora, Labelled, split_rows
from cutlayer.customer.defaults import Learner, settle_training
from cutlayer.customer.derived import label_response
from cutlayer.customer.handout import Offer, choose_model
from cutlayer.customer.prepare import prepare
from cutlayer.customer.run import RunState
from cutlayer.customer.session import Session
from cutlayer.customer.settings import LabelsAt
from cutlayer.customer.tuning import Tuned, tune
from cutlayer.data import Dataset, tokenise
from cutlayer.models import Archive, Seq2SeqBottom, read_archive, seed_dropout
from cutlayer.privacy import CustomerSecret, FrameEntry, PlainWords, Privatizer, Release
from cutlayer.privacy.privatizers.words import WordsPrivatizer
from cutlayer.wire import Route, encode_tensors, pack, routes, unpack
from cutlayer.wire.recording import Direction, RecordedFrame, read_recording
from cutlayer.wire.transports import HttpTransport, local
from tests.promises.runs import CANARIES, SEED, TEST, TRAIN, TRAINING, Sent
from tests.promises.script import Due, Key, PairedLower, PairedUpper, Script, Upper, keys

RELEASING = {"ids", "rows", "lengths", "preceding", "sequences"}

ROUNDING = {torch.float32: (1e-5, 1e-6), torch.bfloat16: (2**-8, 1e-6)}
"""Relative and absolute: last bits, which depend on the batch, and with bf16 one place of its mantissa."""


@dataclass(frozen=True)
class Moment:
    """What the gate was given, and the bottom as it was: trained weights, and whether its dropout was on."""

    given: Payload
    trained: dict[str, Tensor]
    training: bool


@dataclass(frozen=True)
class Request:
    """What the vendor got.

    Attributes:
        line: Method and target, the target's query included.
        headers: Names in lower case, and values, sorted.
        body: All that is no head.
    """

    line: str
    headers: list[tuple[str, str]]
    body: bytes


class Watched:
    """What the privatizers of a run returned, by draw, when it left, and the requests that arrived.

    It looks at the privatizer and not at what the session makes of it, so that a session that goes
    round the privatizer shows.
    """

    def __init__(self) -> None:
        self.drawn: dict[bytes, Payload] = {}
        self.noised: dict[bytes, Payload] = {}
        self.listed: dict[bytes, list[tuple[bytes, bytes, int]]] = {}
        self.moments: list[Moment] = []
        self.requests: list[Request] = []
        self.weights: dict[int, dict[str, Tensor]] = {}
        self._draws: dict[Key, bytes] = {}
        self._row_draws: dict[bytes, bytes] = {}
        self._session: Session | None = None

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Notes what privatizers return, and strikes the canaries from the candidates."""
        build, build_session, send = derived.build_privatizer, planning.build_session, Gate.send
        exchange = local._exchange

        def building(spec: Any, **given: Any) -> Privatizer:
            if given.get("candidates") is not None:
                given["candidates"] = given["candidates"].clone()
                given["candidates"][list(canary_ids())] = False
            made = build(spec, **given)
            return self._noting(made)

        def building_session(*given: Any) -> Session:
            self._session = build_session(*given)
            return self._session

        def sending(gate: Gate, route: Route, where: Any = None, **named: Any) -> Any:
            release = named.get("release")
            if release is not None or route is routes.STEP:
                session = self._session  # none where nothing is trained
                own = {} if session is None else session.trained()
                trained = {name: value.detach().clone() for name, value in own.items()}
                if release is not None:
                    training = session is not None and session.training
                    self.moments.append(Moment(release.payload, trained, training))
                if route is routes.STEP:  # the weights that this step's loss is computed with
                    self.weights[where["step"]] = trained
            return send(gate, route, where, **named)

        def exchanging(app: Any, scope: Any, body: bytes) -> Any:
            target = scope["path"] + "?" * bool(scope["query_string"]) + scope["query_string"].decode()
            headers = [(name.decode().lower(), value.decode()) for name, value in scope["headers"]]
            self.requests.append(Request(f"{scope['method']} {target}", sorted(headers), body))
            return exchange(app, scope, body)

        monkeypatch.setattr(local, "_exchange", exchanging)
        # of what is drawn for public texts nothing is noted: it may not cover private ones
        monkeypatch.setattr(derived, "build_privatizer", building)
        monkeypatch.setattr(planning, "build_session", building_session)
        monkeypatch.setattr(Gate, "send", sending)

    def _noting(self, privatizer: Privatizer) -> Privatizer:
        tokens, activations = privatizer.tokens, privatizer.activations

        def noting_tokens(
            texts: Tokens, *, labels: Tensor | None, look: int | None = None, excerpts: Any = None
        ) -> Release:
            release = tokens(texts, labels=labels, look=look, excerpts=excerpts)
            self._draws |= zip(keys(texts, labels, look), release.identities, strict=True)
            self._note_listed(release, release.identities)
            if release.pending is None:  # else it is the text itself, which no frame may hold
                self.drawn |= {draw: release.payload.select([place]) for place, draw in enumerate(release.identities)}
            return release

        def noting_rows(release: Release, rows: Rows) -> Release:
            noised = activations(release, rows)
            if release.pending is Place.ACTIVATIONS:
                draws = noised.item_draws
                self._note_listed(noised, draws)
                self.noised |= {draw: noised.payload.select([place]) for place, draw in enumerate(draws)}
                for draw, of_rows in zip(release.identities, draws, strict=True):
                    self._row_draws.setdefault(draw, of_rows)  # rows are kept as they were first made
            return noised

        privatizer.tokens, privatizer.activations = noting_tokens, noting_rows  # type: ignore[assignment, method-assign]
        if isinstance(privatizer, WordsPrivatizer):
            precede = privatizer.preceded_by

            def noting_plain_words(plain: PlainWords, *, told: bool) -> Privatizer:
                other = precede(plain, told=told)
                for name in ("tokens", "activations", "preceded_by"):  # copied, and of texts without these words
                    vars(other).pop(name, None)
                return self._noting(other)

            privatizer.preceded_by = noting_plain_words  # type: ignore[assignment, method-assign]
        return privatizer

    def _note_listed(self, release: Release, draws: Sequence[bytes]) -> None:
        """Under which draws and contents the ledger must list what stands in each text or block."""
        listed: dict[bytes, list[tuple[bytes, bytes, int]]] = {draw: [] for draw in draws}
        each = zip(release.of.tolist(), release.draws, release.contents, release.tokens.tolist(), strict=True)
        for item, draw, content, tokens in each:
            if len(listed[draws[item]]) < int((release.of == item).sum()):  # a text may stand twice
                listed[draws[item]].append((draw, content, tokens))
        self.listed |= listed

    def draw_of(self, text: Key) -> bytes:
        """The draw under which a text or block may leave."""
        assert text in self._draws, "a text is due that no privatizer was given"
        draw = self._draws[text]
        return self._row_draws.get(draw, draw)

    def expected(self, draws: Sequence[bytes], bottom: Callable[[Tokens], Rows] | None) -> list[Payload]:
        """What may leave for these draws: as returned, or what the bottom makes of it."""
        if all(draw in self.noised for draw in draws):
            return [self.noised[draw] for draw in draws]
        if bottom is None:
            return [self.drawn[draw] for draw in draws]
        distinct = list(dict.fromkeys(draws))  # as the road does, for the sake of dropout
        rows = bottom(self.tokens_of(distinct))
        return [rows.select([distinct.index(draw)]) for draw in draws]

    def tokens_of(self, draws: Sequence[bytes]) -> Tokens:
        """What was drawn, one behind the other."""
        tokens = [self.drawn[draw] for draw in draws]
        segments = zip(*(each.segments for each in tokens if isinstance(each, Tokens)), strict=True)
        return Tokens(tuple(Ragged.concatenate(list(parts)) for parts in segments))


def canary_ids() -> tuple[int, ...]:
    """The tiny tokenizer numbers `w0` as 31."""
    return tuple(31 + int(word[1:]) for word in CANARIES)


def same(sent: Payload, expected: Payload, *, exact: bool) -> bool:
    """Whether a single text holds what it should: ids exactly; rows too, or where they are computed up to rounding."""
    if isinstance(sent, Tokens) or isinstance(expected, Tokens):
        return (
            isinstance(sent, Tokens)
            and isinstance(expected, Tokens)
            and len(sent.segments) == len(expected.segments)
            and same_bits(getattr(sent, "preceding", None), getattr(expected, "preceding", None))
            and same_bits(getattr(sent, "sequences", None), getattr(expected, "sequences", None))
            and all(
                torch.equal(one.values, other.values)
                for one, other in zip(sent.segments, expected.segments, strict=True)
            )
        )
    rows, wanted = sent.packed.values, expected.packed.values
    if rows.shape != wanted.shape or not torch.equal(sent.segment_lengths, expected.segment_lengths):
        return False
    if exact:
        return torch.equal(rows, wanted.to(rows.dtype))
    relative, absolute = ROUNDING[rows.dtype]
    return torch.allclose(rows.float(), wanted.float(), rtol=relative, atol=absolute)


def bottom_at(
    archive: Archive, parts: Tuned, moment: Moment, due: Due, *, seed: int, step: int | None
) -> Callable[[Tokens], Rows]:
    """The bottom that was handed out, with the weights of that moment, on what a frame carries."""
    bottom, template = parts.bottom, archive.template

    @torch.no_grad()
    def compute(tokens: Tokens) -> Rows:
        assert bottom is not None
        bottom.model.load_state_dict(moment.trained, strict=False)
        bottom.train(moment.training and parts.trains_bottom)  # a frozen bottom never drops out
        if isinstance(bottom, Seq2SeqBottom):
            assert due.side is not None
            return PairedLower(archive, bottom, seed=seed).rows(tokens, due.side, due.encoded, step=step)
        if step is not None:
            seed_dropout(seed, step)
        return template.unpad(bottom(template.assemble(tokens, table=bottom.table)), tokens)

    return compute


def same_bits(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether two tensors, or their absence, would be the same bytes on the wire."""
    if one is None or other is None:
        return one is other
    return encode_tensors({"": one}) == encode_tensors({"": other})


def check_accounted(
    client: Client,
    result: RunResult,
    watched: Watched,
    *,
    train: Dataset = TRAIN,
    dev: Dataset | None = None,
    test: Dataset = TEST,
    training: Training = TRAINING,
) -> None:
    """Every frame of a run is due, has its ledger entry, and holds what is due and nothing else."""
    check_requests(client, watched.requests)
    state = _state(result)
    archive, offer = archive_of(client), choose_model(client.gate(), state.spec.model)
    learner = Learner(texts=len(train), width=offer.model.width)
    settled = settle_training(training, state.spec.objective, state.spec.tuning, learner)
    assert (state.spec.seed, state.spec.training) == (SEED, settled), "the run has another spec than it was given"
    sent = Sent.by(result)
    entries = [entry for entry in client.ledger.frames() if entry.run == state.run]
    assert len(sent.frames) == len(entries), "a frame left without a ledger entry"
    secret = CustomerSecret(_secret(client, state))
    rows = split_rows(Corpora(train, dev, test), state.spec, secret)
    for dataset in (rows.train, rows.dev, rows.test):
        ranks = [] if dataset is None else [order_rank(client, state, text) for text in dataset.texts]
        assert ranks == sorted(ranks), "texts stand in another order than the customer's secret gives them"
    reported = None
    if isinstance(rows, Labelled) and state.spec.labels_at is LabelsAt.VENDOR:
        reported = rows.report(label_response(state.spec, secret), archive.tokenizer, vault=client.home.vault)
    data = prepare(rows, state.spec, archive, client.home, vocab_size=offer.model.vocab_size, reported=reported)
    releases = Releases(client, watched, archive, offer, state)
    script = Script(
        state, offer, data, watched.draw_of, upper_of(client, watched, archive, state), order=order_key(client, state)
    ).frames()
    due: Due | None = next(script)
    for frame, answer, entry in zip(sent.frames, sent.answers, entries, strict=True):
        check_ledger(frame, entry)
        assert due is not None, "a frame left that is not due"
        check_due(frame, due)
        releases.check(frame, due, entry)
        try:
            due = script.send(answer)
        except StopIteration:
            due = None
    assert due is None, "a frame that was due never left"
    for entry in client.ledger.frames():
        assert entry.run or is_question(entry), "a frame left outside the run"
    assert releases.done, "a release is in no frame"


def upper_of(client: Client, watched: Watched, archive: Archive, state: RunState) -> Upper | None:
    """What the customer computes above the vendor's blocks; `None` for a classifier."""
    seed = private_seed(client, state)
    if state.spec.objective is Objective.LM:
        return Upper(archive, state, watched.weights, seed=seed)
    if state.spec.objective is Objective.SEQ2SEQ:
        return PairedUpper(archive, state, watched.weights, seed=seed, drawn=watched.tokens_of)
    return None


def check_prediction_accounted(
    client: Client, result: FinetuneResult, watched: Watched, texts: Dataset, recording: Path, *, moments: int
) -> None:
    """Every frame of a prediction is due, has its ledger entry, and holds releases of these texts and nothing else.

    Args:
        client: The customer.
        result: The run that published the adapter.
        watched: What the privatizers returned.
        texts: What was asked about.
        recording: What crossed.
        moments: How many releases the gate had been given before.
    """
    state, asked = _state(result), f"predict/{result.adapter_id}"
    due = Due(routes.ADAPTER_INFER, {"adapter": result.adapter_id})
    check_queries_accounted(client, state, watched, texts, recording, run=asked, due=due, moments=moments)


def check_queries_accounted(
    client: Client,
    state: RunState,
    watched: Watched,
    texts: Dataset,
    recording: Path,
    *,
    run: str,
    due: Due,
    moments: int = 0,
    by_length: bool = False,
) -> None:
    """Every frame of some queries is due, has its ledger entry, and holds releases of these texts and nothing else.

    Args:
        client: The customer.
        state: By which settings texts leave.
        watched: What the privatizers returned.
        texts: What was asked about.
        recording: What crossed.
        run: Under which the ledger has it.
        due: What frames are, but for the texts in them.
        moments: How many releases the gate had been given before.
        by_length: Whether short texts leave first, as embeddings do; those of one length in an order of the secret's
            for these settings, as else all.
    """
    check_requests(client, watched.requests)
    entries = [entry for entry in client.ledger.frames() if entry.run == run]
    up = [frame for frame in read_recording(recording) if frame.direction is Direction.UP]
    questions = [frame for frame in up if frame.route in (routes.SERVICE, routes.MODELS)]
    assert not any(frame.body or frame.where for frame in questions), "a question holds something"
    frames = [frame for frame in up if frame not in questions]
    assert len(frames) == len(entries), "a frame left without a ledger entry"
    archive, offer = archive_of(client), choose_model(client.gate(), state.spec.model)
    releases = Releases(client, watched, archive, offer, state, since=moments)
    tokens = tokenise(texts, archive.tokenizer, max_content=archive.template.max_content(texts.segments))
    # asked in an order of the secret's, whatever the file's
    settings = f"/{state.spec.privacy.identity}" if by_length else ""  # an adapter has one settings' queries alone
    key = _derived(client, state, f"order/{run}{settings}")
    ranks = [_rank(text, key) for text in texts.texts]
    lengths = tokens.segments[0].lengths.tolist() if by_length else [0] * len(texts)
    order = sorted(range(len(texts)), key=lambda place: (lengths[place], ranks[place]))
    waiting = keys(tokens.select(torch.tensor(order)), None, None)
    for frame, entry in zip(frames, entries, strict=True):
        check_ledger(frame, entry)
        if frame.route in (routes.ARCHIVE, routes.ARCHIVE_FILE):
            where: dict[str, str | int] = {"model": offer.model.name, "cut": Cut(bottom=state.spec.cut.bottom).slug}
            file = {} if frame.route is routes.ARCHIVE else {"file": frame.where["file"]}
            check_due(frame, Due(frame.route, where | file))
            continue
        asked, waiting = waiting[: entry.texts], waiting[entry.texts :]
        own = replace(due, texts=tuple(asked))
        check_due(frame, own)
        releases.check(frame, own, entry)
    assert not waiting, "a text was not asked about"
    assert releases.done, "a release is in no frame"


def requests_in(stream: bytes) -> list[Request]:
    """The requests in what arrived on sockets, one after the other, to the last byte."""
    found = []
    while stream:
        head, blank, stream = stream.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        line, _, version = first.rpartition(" ")
        headers = sorted((name.lower(), value) for name, _, value in (each.partition(": ") for each in lines))
        size = int(dict(headers).get("content-length", 0))
        assert (bool(blank), version, size <= len(stream)) == (True, "HTTP/1.1", True), "this is no request"
        found.append(Request(line, headers, stream[:size]))
        stream = stream[size:]
    return found


def check_requests(client: Client, requests: Sequence[Request]) -> None:
    """Every request of a customer so far is its ledger's, and nothing stands in its head but what is due there.

    The recorder sits above the transport, so that no transcript has heads: what hid in one is seen here alone.
    """
    entries = list(client.ledger.frames())
    assert len(requests) == len(entries), "a request arrived without a ledger entry"
    for request, entry in zip(requests, entries, strict=True):
        route = routes.ROUTES[entry.route]
        assert request.line == f"{route.method} {route.path.format(**entry.where)}", "a request line holds more"
        assert hashlib.sha256(request.body).digest() == entry.digest, "the ledger names other bytes than arrived"
        assert request.headers == sorted(due_headers(client, route, request.body).items()), "a head is not as due"


def due_headers(client: Client, route: Route, body: bytes) -> dict[str, str]:
    """What stands in a request's head: all of it follows from the vendor's address, the key, the route and the body."""
    transport: Any = client.transport
    headers = {"host": "vendor.local", "authorization": f"Bearer {transport._api_key}", "user-agent": "cutlayer"}
    if isinstance(transport, HttpTransport):
        headers |= {"host": urlsplit(transport.url).netloc, "accept-encoding": "identity"}
    if body:
        headers["content-length"] = str(len(body))
        headers["content-type"] = "application/octet-stream" if route.tensors else "application/json"
    if route is routes.SHARD_PUT:
        headers["x-content-sha256"] = hashlib.sha256(body).hexdigest()
    return headers


def check_ledger(frame: RecordedFrame, entry: FrameEntry) -> None:
    """The ledger names this frame, these bytes and these many texts."""
    assert (entry.route, dict(entry.where)) == (frame.route.name, dict(frame.where)), "entries are out of order"
    assert entry.digest == bytes.fromhex(frame.sha256), "the ledger names other bytes"
    assert entry.closed is not None
    assert entry.opened <= entry.closed
    assert bool(entry.texts) == bool(RELEASING & set(frame.tensors())), "the ledger names texts that are not there"


def is_question(entry: FrameEntry) -> bool:
    """Whether a frame asked what the vendor offers, and held nothing: runs ask so before they are recorded."""
    empty = hashlib.sha256(b"").digest()
    return entry.route in (routes.SERVICE.name, routes.MODELS.name) and (dict(entry.where), entry.digest) == ({}, empty)


def check_due(frame: RecordedFrame, due: Due) -> None:
    """All of a frame but its release is what the script says, bit by bit."""
    assert frame.route.name == due.route.name, "another frame was due"
    assert dict(frame.where) == dict(due.where), "a path holds another identifier or number"
    tensors = frame.tensors()
    if not tensors:
        body = b"" if due.control is None else due.control.model_dump_json().encode()
        assert frame.body == body, "a control message left with other content"
    assert set(tensors) <= RELEASING | {"records", "labels", "gradient", "norm", "shared_gradient"}
    assert ("norm" in tensors) == due.norm, "a norm left that is not due, or the other way round"
    assert not due.norm or len(tensors["norm"]) == 1, "a norm is more than a number"
    assert bool(RELEASING & set(tensors)) == bool(due.texts), "a release left that is not due, or the other way round"
    for role in ("records", "labels", "gradient", "shared_gradient", *({"norm"} & set(due.tensors))):
        assert same_bits(tensors.get(role), due.tensors.get(role)), f"{role}: another value than is due"
    assert not tensors or frame.body == encode_tensors(tensors), "a body is padded, or in another order"


class Releases:
    """The releases of a run, held one by one against what the privatizer returned.

    Args:
        client: The customer, whose ledger names each text.
        watched: What the privatizer returned.
        archive: The bottom that was handed out.
        offer: The model.
        state: The run's spec.
        since: How many releases to pass over.
    """

    def __init__(
        self, client: Client, watched: Watched, archive: Archive, offer: Offer, state: RunState, *, since: int = 0
    ) -> None:
        self._texts = {(release.entry, release.position): release for release in client.ledger.releases()}
        self._watched = watched
        self._archive = archive
        self._vocab_size = offer.model.vocab_size
        self._spec = state.spec
        self._parts = tune(archive, state.spec)
        self._dropout = private_seed(client, state)
        self._moments = iter(watched.moments[since:])

    @property
    def done(self) -> bool:
        """Whether each release that the gate was given has been seen in a frame."""
        return next(self._moments, None) is None

    def check(self, frame: RecordedFrame, due: Due, entry: FrameEntry) -> None:
        """A frame holds the releases of the texts that are due, as the privatizer returned them."""
        if not due.texts:
            return
        payload, moment = unpack(frame.tensors()), next(self._moments)
        draws = [self._watched.draw_of(text) for text in due.texts]
        assert set(draws) <= self._watched.drawn.keys() | self._watched.noised.keys(), (
            "a text left that no privatizer returned"
        )
        assert len(draws) == len(payload), "another number of texts left"
        listed = [self._texts[entry.entry, place] for place in range(entry.texts)]
        assert [(each.draw, each.content, each.tokens) for each in listed] == [
            each for draw in draws for each in self._watched.listed[draw]
        ], "other texts left, or in another order"
        noised = set(draws) <= self._watched.noised.keys()
        for place, wanted in enumerate(self._watched.expected(draws, self._bottom(frame, due, moment, payload))):
            assert same(payload.select([place]), wanted, exact=noised), "a text left with other content"
        packed = pack(moment.given, vocab_size=self._vocab_size, wire_type=self._spec.wire_type)
        released = {role: tensor for role, tensor in frame.tensors().items() if role in RELEASING}
        assert encode_tensors(released) == encode_tensors(packed), "the gate sent other bits than it was given"

    def _bottom(
        self, frame: RecordedFrame, due: Due, moment: Moment, payload: Payload
    ) -> Callable[[Tokens], Rows] | None:
        step = frame.where.get("step")
        bottom = bottom_at(
            self._archive, self._parts, moment, due, seed=self._dropout, step=None if step is None else int(step)
        )
        return bottom if isinstance(payload, Rows) else None


def check_kept_home(client: Client, result: RunResult, texts: Sequence[str], *, sent: bytes, vendor: Path) -> None:
    """No token and no weight of the customer's own is in any frame, nor in any file that the vendor keeps.

    What is searched for: eight true ids in a row in any width, and the first sixteen of each of its trained weights.
    Of position biases, which both train, the vendor keeps copies by design, made of gradients that it was told; they
    are searched for in frames alone.

    Args:
        client: The customer.
        result: A run that trained weights of the customer's.
        texts: What it was about.
        sent: All that the vendor got.
        vendor: The vendor's folder.
    """
    kept = b"\n".join(file.read_bytes() for file in sorted(vendor.rglob("*")) if file.is_file())
    tokenizer, folder = archive_of(client).tokenizer, client.home.adapter(result.adapter_id)
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    rows = [torch.tensor(row[start : start + 8]) for row in ids for start in range(len(row) - 7)]
    assert len(rows) > 50
    trained = load_file(folder / "trained.safetensors")
    weights = [value.flatten()[:16] for name, value in trained.items() if "relative_attention_bias" not in name]
    assert weights
    biases = [value.flatten()[:16].numpy().tobytes() for name, value in trained.items() if name.endswith("bias.weight")]
    assert not leaked(biases, sent)
    needles = [row.to(kind).numpy().tobytes() for row in rows for kind in (torch.uint16, torch.int32, torch.int64)]
    needles += [value.numpy().tobytes() for value in weights]
    needles += [value.bfloat16().view(torch.int16).numpy().tobytes() for value in weights]
    needles = list(dict.fromkeys(needles))  # texts may stand twice
    assert not leaked(needles, sent, kept)
    for needle in (needles[0], needles[-1]):  # the search itself, planted at either place
        assert leaked(needles, sent + needle, kept) == leaked(needles, sent, kept + needle) == [needle]


def leaked(needles: list[bytes], *places: bytes) -> list[bytes]:
    """What of these stands anywhere."""
    return [needle for needle in needles if any(needle in place for place in places)]


def private_seed(client: Client, state: RunState) -> int:
    """What the customer's parts drop out by, derived here from the secret: never from what the vendor is told alone."""
    return int.from_bytes(_derived(client, state, f"dropout/{state.spec.seed}")[:8], "little") % 2**63


def order_key(client: Client, state: RunState) -> bytes:
    """What the order of texts and batches follows from, derived here from the secret."""
    return _derived(client, state, f"order/run/{state.spec.seed}/{state.spec.privacy.identity}")


def order_rank(client: Client, state: RunState, text: Sequence[str]) -> bytes:
    """By which a text stands where it stands."""
    return _rank(text, order_key(client, state))


def _rank(text: Sequence[str], key: bytes) -> bytes:
    said = b"".join(len(part.encode()).to_bytes(8) + part.encode() for part in text)
    return hashlib.blake2b(said, key=key, digest_size=16).digest()


def _derived(client: Client, state: RunState, purpose: str) -> bytes:
    return hashlib.blake2b(purpose.encode(), key=_secret(client, state), digest_size=32).digest()


def _secret(client: Client, state: RunState) -> bytes:
    """The customer's secret as it lies in its folder, or what a noise seed makes of itself."""
    seed = state.spec.unsafe_noise_seed
    if seed is None:
        return (client.home.path / "secret").read_bytes()
    return hashlib.blake2b(f"cutlayer unsafe {seed}".encode(), digest_size=32).digest()


def _state(result: RunResult) -> RunState:
    return RunState.model_validate_json((result.folder / "run.json").read_bytes())


def archive_of(client: Client) -> Archive:
    """What the vendor handed out, read again from the customer's folder."""
    # a local one is of the model whose table gives words their vectors
    (folder,) = (each for each in client.home.archives.iterdir() if not each.name.startswith("local-"))
    archive = read_archive(folder)
    assert isinstance(archive, Archive)
    return archive
