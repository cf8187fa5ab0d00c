"""One suite over all registered attacks: promise 4, with faults planted."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from cutlayer.attacks import (
    ATTACKS,
    AnnotatedText,
    Attack,
    AttributeClassifier,
    AttributeTruth,
    Check,
    ControlFailed,
    EntityTruth,
    Fitting,
    GreedyTruth,
    HeadReading,
    HeadReadingSpec,
    Knowledge,
    LabelTruth,
    LearnedInversion,
    LearnedInversionSpec,
    LengthTruth,
    MaskedInfill,
    MaskedInfillSpec,
    MaximumPosteriorSpec,
    Measured,
    Noise,
    PublicText,
    RefinedInversion,
    RefinedInversionSpec,
    RowTruth,
    SearchedTruth,
    SignalSource,
    TokenTruth,
    Traffic,
    TrainedTruth,
    Transcript,
    View,
    content_tokens,
    examine,
    measure,
    simulate,
)
from cutlayer.attacks.evaluation.telling import telling_texts
from cutlayer.attacks.evaluation.traffic import altered, behind_plain_words
from cutlayer.attacks.knowledge import GRANTS
from cutlayer.attacks.simulate import boundary
from cutlayer.core import ConfigError, Cut, Ragged, Rows, Tokens
from cutlayer.models import Head, cut_up
from cutlayer.privacy import TextToText, Vector
from cutlayer.wire import WireType
from tests.equivalence import zoo
from tests.quick import slow_but
from tests.unit.attacks import worlds
from tests.unit.attacks.worlds import JOB, KNOWLEDGE, RECORD_SET, record

TEXTS = 400
LABELS = 3
CONTROLS = ("job/control", "adapter/control/infer", "record-set/control")
"""Where the traffic of controls was released into."""
MODEL = worlds.reading_model()
READING = Knowledge(
    cut=Cut(), template=worlds.TEMPLATE, table=cut_up(MODEL, Cut(bottom=0)).bottom.table.detach(), model=MODEL
)
"""What the vendor of a model knows that tells tokens apart."""
PUBLIC = PublicText(worlds.random_tokens(8000, seed=31), source="made up")
"""One for all: what is learnt from it is kept with it."""


@dataclasses.dataclass
class World:
    """What an attack is measured on.

    Attributes:
        transcript: What the vendor saw.
        knowledge: What else it knows.
        truth: What it was about.
        answers: Returns what the control that runs is about.
        recovered: The least share of unprotected traffic that is recovered.
    """

    transcript: Transcript
    knowledge: Knowledge
    truth: object
    answers: Callable[[], object] | None = None
    recovered: float = 1


def token_world(folder, kind, *, form, segments=1, knowledge=KNOWLEDGE, wire_type=WireType.BF16):
    """A recorded upload: `kind` is what was sent instead of the texts' own tokens."""
    tokens = worlds.random_tokens(TEXTS, segments=segments)
    sent = tokens
    if kind is Traffic.NOISE:
        sent = Tokens(
            tuple(
                side.with_values(torch.randint(10, worlds.VOCAB, side.values.shape, generator=worlds.generator(9)))
                for side in tokens.segments
            )
        )
    elif kind is Traffic.SHUFFLED:
        sent = Tokens(
            tuple(
                side.with_values(side.values[torch.randperm(len(side.values), generator=worlds.generator(9))])
                for side in tokens.segments
            )
        )
    shards = worlds.pieces(sent, 150, 150, 100)
    payloads = [worlds.as_rows(part) if form == "rows" else part for part in shards]
    record(folder, [worlds.shard(number, payload, wire_type) for number, payload in enumerate(payloads)])
    truth = TokenTruth(tokens, records={RECORD_SET: torch.arange(TEXTS)})
    return World(Transcript.recorded(folder), knowledge, truth)


def adaptive_world(folder, kind, *, form, noise, segments=1, model=None):
    """The same for an attacker who knows how releases are privatized, and has text of its own."""
    public = PublicText(worlds.random_tokens(2000, seed=1), source="made up")
    knowledge = dataclasses.replace(KNOWLEDGE, noise=noise, public=public, candidates=worlds.CANDIDATES, model=model)
    return token_world(folder, kind, form=form, segments=segments, knowledge=knowledge)


def preceded_world(folder, kind, *, knowledge=KNOWLEDGE):
    """Single texts behind public words, which left as the texts did: the attacker is told which words these were."""
    plain = torch.arange(20, 60).reshape(2, 20)
    world = token_world(folder / "texts", Traffic.UNPROTECTED, form="ids")
    world.knowledge = dataclasses.replace(
        knowledge,
        cut=Cut(bottom=None),
        candidates=worlds.CANDIDATES,
        plain=plain,
        public=PublicText(worlds.random_tokens(2000, seed=1), source="made up"),
    )
    rng = worlds.generator(9)
    tokens = behind_plain_words(world.truth.tokens, world.knowledge, rng=rng)
    sent = altered(tokens, kind, world.knowledge, rng)
    shards = worlds.pieces(sent, 150, 150, 100)
    record(folder / "sent", [worlds.shard(number, part) for number, part in enumerate(shards)])
    world.transcript = Transcript.recorded(folder / "sent")
    return world


def several_runs_world(folder, kind):
    """The same of two runs, the second over the texts' beginnings in another order."""
    noise = Noise(TextToText(eta=500))
    runs = [adaptive_world(folder / "first", kind, form="ids", noise=noise)]
    (side,) = runs[0].truth.tokens.segments
    order = torch.randperm(TEXTS, generator=worlds.generator(3))
    again = Tokens((side.first(side.lengths.clamp(max=9)).select(order),))
    shown = [release.payload for release in runs[0].transcript.releases()]
    (sent,) = (Ragged.concatenate(parts) for parts in zip(*(each.segments for each in shown), strict=True))
    payload = Tokens((sent.first(sent.lengths.clamp(max=9)).select(order),))
    record(folder / "second", [worlds.shard(0, payload, record_set="c" * 32)])
    truth = TokenTruth(again, records={"c" * 32: torch.arange(TEXTS)})
    world = runs[0]
    world.transcript = Transcript.joined([world.transcript, Transcript.recorded(folder / "second")])
    world.truth = TokenTruth.joined([world.truth, truth], torch.cat([torch.arange(TEXTS), order]))
    return world


FINITE = dataclasses.replace(KNOWLEDGE, candidates=worlds.CANDIDATES)
FAINT = Vector(eta=500)
"""Noise so faint that nothing is hidden, so that the density is what reads."""


def learnt_world(folder, kind, *, form, segments=1):
    """The same for an attacker that has text of its own and is told that nothing is privatized."""
    world = token_world(folder, kind, form=form, segments=segments)
    world.knowledge = dataclasses.replace(world.knowledge, noise=Noise.nothing(), public=PUBLIC)
    world.truth = dataclasses.replace(world.truth, search=world.knowledge.search)
    world.recovered = 0.98
    return world


INFILLED = worlds.reading_model(vocab=worlds.VOCAB)
FILLING = dataclasses.replace(
    KNOWLEDGE,
    table=cut_up(INFILLED, Cut(bottom=0)).bottom.table.detach(),
    candidates=worlds.CANDIDATES,
    model=INFILLED,
    noise=Noise(TextToText(eta=3)),
    public=PublicText(worlds.random_tokens(2000, seed=1), source="made up"),
)
"""What an attacker knows that makes a masked language model, of noise that hides half of the tokens."""


def filled_world(folder, kind, *, form, segments=1):
    """Released tokens that were not replaced, read by one who takes them for such as mostly were."""
    knowledge = dataclasses.replace(FILLING, cut=Cut(bottom=0 if form == "rows" else None))
    world = token_world(folder, kind, form="ids", segments=segments, knowledge=knowledge)
    if form == "rows":
        releases = [release.payload for release in world.transcript.releases()]
        shards = [worlds.shard(number, boundary(part, knowledge)) for number, part in enumerate(releases)]
        world.transcript = Transcript.recorded(record(folder / "rows", shards))
    world.recovered = 0.5
    return world


def headed_world(folder, kind):
    """The same behind public words, for an attacker that learns a reconstruction head."""
    world = preceded_world(folder, kind, knowledge=FILLING)
    world.recovered = 0.5
    return world


def attribute_world(folder, kind, *, form, signal=SignalSource.WORDS, model=False):
    """A recorded upload of texts that tell of their authors: `kind` is what was sent instead of what they told."""
    count = 700
    rng = worlds.generator(8)
    labels, authors = torch.randint(2, (count,), generator=rng), torch.arange(count) // 2
    told = labels[torch.randperm(count, generator=rng)] if kind is Traffic.SHUFFLED else labels
    told = None if kind is Traffic.NOISE else told
    knowledge = READING if model else KNOWLEDGE
    knowledge = dataclasses.replace(knowledge, cut=Cut(bottom=0 if form == "rows" else None))
    tokens = telling_texts(told, count, 2, signal, torch.arange(10, len(knowledge.table)), rng)
    shards = worlds.pieces(tokens, 300, 300, 100)
    payloads = [boundary(part, knowledge) if form == "rows" else part for part in shards]
    record(folder, [worlds.shard(number, payload) for number, payload in enumerate(payloads)])
    truth = AttributeTruth(
        labels, 2, authors % 2 == 0, records={RECORD_SET: torch.arange(count)}, groups=authors, signal=signal
    )
    transcript = Transcript.recorded(folder)
    return World(transcript, truth.granted(transcript, knowledge), truth, recovered=0.95)


def surviving_world(folder, kind):
    """The same where it is told by which tokens the noise keeps."""
    count, rng = 500, worlds.generator(8)
    labels = torch.randint(2, (count,), generator=rng)
    like = Transcript.recorded(record(folder / "like", [worlds.shard(0, worlds.random_tokens(3))]))
    knowledge = dataclasses.replace(KNOWLEDGE, cut=Cut(bottom=None), public=PUBLIC)
    truth = AttributeTruth(labels, 2, torch.arange(count) < 1, signal=SignalSource.SURVIVAL)
    made, known = truth.traffic(kind, like, knowledge, looks=1, rng=rng)
    (release,) = made.releases()
    record(folder / "own", [worlds.shard(0, release.payload)])
    truth = dataclasses.replace(truth, records={RECORD_SET: torch.arange(count)}, noise=known.noise)
    transcript = Transcript.recorded(folder / "own")
    return World(transcript, truth.granted(transcript, knowledge), truth, recovered=0.95)


def length_world(folder, kind, *, form, segments=1):
    """A recorded upload of which only lengths matter."""
    tokens = worlds.random_tokens(TEXTS, segments=segments)
    lengths = torch.stack([side.lengths for side in tokens.segments]).sum(0)
    rng = worlds.generator(9)
    order = {
        Traffic.UNPROTECTED: torch.arange(TEXTS),
        Traffic.SHUFFLED: torch.randperm(TEXTS, generator=rng),
        Traffic.NOISE: torch.randint(TEXTS, (TEXTS,), generator=rng),
    }[kind]
    payload = tokens.select(order)
    record(folder, [worlds.shard(0, worlds.as_rows(payload) if form == "rows" else payload)])
    truth = LengthTruth(lengths, records={RECORD_SET: torch.arange(TEXTS)})
    return World(Transcript.recorded(folder), KNOWLEDGE, truth, lambda: truth.sample().lengths)


def label_world(folder, kind, *, smoothing=0.1):
    """A recorded run of two epochs: `kind` is what the gradients were about."""
    rng = worlds.generator(5)
    labels = torch.randint(LABELS, (TEXTS,), generator=rng)
    told = labels[torch.randperm(TEXTS, generator=rng)] if kind is Traffic.SHUFFLED else labels
    frames, outputs, steps = [], {}, {}
    for order in (torch.randperm(TEXTS, generator=rng) for _ in range(2)):
        for texts in order.split(50):
            number = len(steps) + 1
            logits = torch.randn(len(texts), LABELS, generator=rng, requires_grad=True)
            torch.nn.functional.cross_entropy(logits, told[texts], label_smoothing=smoothing).backward()
            slope = torch.randn(len(texts), LABELS, generator=rng) if kind is Traffic.NOISE else logits.grad
            frames.append(worlds.step(number, records=texts.to(torch.uint16)))
            frames.append(worlds.gradient(number, slope))
            outputs[number] = logits.detach()
            steps[JOB, number] = texts
    record(folder, frames, outputs)
    return World(Transcript.recorded(folder), Knowledge(Cut()), LabelTruth(labels, LABELS, steps))


def class_world(folder, kind, *, shares=(0.4, 0.35, 0.25), width=None):
    """Recorded steps of a model that has learnt the labels, whose customer holds a head where `width` is given."""
    rng = worlds.generator(5)
    classes, texts = len(shares), 3000
    labels = torch.multinomial(torch.tensor(shares), texts, replacement=True, generator=rng)
    told = labels[torch.randperm(texts, generator=rng)] if kind is Traffic.SHUFFLED else labels
    learnt = torch.randint(classes, (texts,), generator=rng) if kind is Traffic.NOISE else told
    head, states = torch.randn(2, classes, width or classes, generator=rng)
    frames, outputs, steps = [], {}, {}
    for number, some in enumerate(torch.randperm(texts, generator=rng).split(100), start=1):
        logits = torch.tensor(shares).log() + 2 * torch.nn.functional.one_hot(learnt[some], classes)
        logits = logits + 0.1 * torch.randn(len(some), classes, generator=rng)
        slope = (logits.softmax(1) - torch.nn.functional.one_hot(told[some], classes)) / len(some)
        output = logits
        if width is not None:
            slope, output = slope @ head, states[learnt[some]] + 0.1 * torch.randn(len(some), width, generator=rng)
        if kind is Traffic.NOISE:
            slope = torch.randn(slope.shape, generator=rng)
        frames.append(worlds.step(number, records=some.to(torch.uint16)))
        frames.append(worlds.gradient(number, slope))
        outputs[number] = output
        steps[JOB, number] = some
    record(folder, frames, outputs)
    knowledge = Knowledge(Cut(), classes=classes, shares=torch.tensor(shares))
    return World(Transcript.recorded(folder), knowledge, LabelTruth(labels, classes, steps))


def training_world(folder, kind, *, template, wire_type=WireType.FP32):
    """Recorded steps of a decoder whose customer holds norm and head: `kind` is what its gradients were about."""
    knowledge = worlds.language_knowledge(template)
    tokens = worlds.language_texts(TEXTS // 5)
    told = tokens
    if kind is Traffic.SHUFFLED:
        (side,) = tokens.segments
        told = Tokens((side.with_values(side.values[torch.randperm(tokens.total, generator=worlds.generator(9))]),))
    frames, outputs, steps = [], {}, {}
    for number, texts in enumerate(torch.arange(len(tokens)).split(20), start=1):
        upper = worlds.boundary(tokens.select(texts), template, seed=number)
        hidden, inputs = template.from_rows(upper)
        labels = template.assemble(told.select(texts)).input_ids
        real = inputs.attention_mask.bool()
        entry = hidden.clone().requires_grad_()
        predicted = real[:, 1:]
        logits = knowledge.tail(entry, inputs)[:, :-1][predicted]
        torch.nn.functional.cross_entropy(logits, labels[:, 1:][predicted]).backward()
        slope = entry.grad[real]
        if kind is Traffic.NOISE:
            slope = torch.randn(slope.shape, generator=worlds.generator(number)) * slope.std()
        dtype = torch.bfloat16 if wire_type is WireType.BF16 else torch.float32
        frames.append(worlds.step(number, worlds.boundary(tokens.select(texts), template, width=4)))
        frames.append(worlds.gradient(number, slope.to(dtype)))
        outputs[number] = upper.packed.values
        steps[JOB, number] = texts
    record(folder, frames, outputs)
    truth = TrainedTruth(tokens, steps=steps, skipped=0 if template.opening else 1)
    return World(Transcript.recorded(folder), knowledge, truth)


@torch.no_grad()
def searched_world(folder, kind, *, family="gpt2"):
    """Recorded steps of a decoder whose customer holds a block: `kind` is what its rows were made of."""
    bottom = cut_up(zoo.shared_model(family, Head.LANGUAGE), Cut(bottom=1)).bottom
    ids = torch.randint(4, zoo.VOCAB, (4000,), generator=worlds.generator(2))
    public = PublicText(Tokens((Ragged(ids, torch.full((400,), 10)),)), source="made up")
    knowledge = Knowledge(
        cut=Cut(bottom=1, tail=0), table=bottom.table, template=worlds.PLAIN, bottom=bottom, public=public
    )
    rng = worlds.generator(6)
    lengths = torch.randint(2, 12, (40,), generator=rng)
    tokens = Tokens((Ragged(torch.randint(4, zoo.VOCAB, (int(lengths.sum()),), generator=rng), lengths),))
    (side,) = tokens.segments
    mixed = side.with_values(side.values[torch.randperm(tokens.total, generator=rng)])
    told = Tokens((mixed,)) if kind is Traffic.SHUFFLED else tokens
    frames, steps = [], {}
    for number, texts in enumerate(torch.arange(len(tokens)).split(10), start=1):
        sent = told.select(texts)
        rows = worlds.PLAIN.unpad(bottom(worlds.PLAIN.assemble(sent, table=bottom.table)), sent)
        if kind is Traffic.NOISE:
            noise = torch.randn(rows.packed.values.shape, generator=rng) * rows.packed.values.std()
            rows = Rows(rows.packed.with_values(noise), rows.segment_lengths)
        frames.append(worlds.step(number, rows))
        steps[JOB, number] = texts
    record(folder, frames, {})
    return World(Transcript.recorded(folder), knowledge, SearchedTruth(tokens, steps=steps))


@torch.no_grad()
def inverted_world(folder, kind, *, family):
    """Stored records of an encoder or decoder whose customer holds a block, without noise on tokens."""
    bottom = worlds.gentle_bottom(family)
    rng = worlds.generator(6)
    tokens = worlds.language_texts(100, seed=3)
    (side,) = tokens.segments
    mixed = side.with_values(side.values[torch.randperm(tokens.total, generator=rng)])
    told = Tokens((mixed,)) if kind is Traffic.SHUFFLED else tokens
    rows = worlds.PLAIN.unpad(bottom(worlds.PLAIN.assemble(told, table=bottom.table)), told)
    if kind is Traffic.NOISE:
        noise = torch.randn(rows.packed.values.shape, generator=rng) * rows.packed.values.std()
        rows = Rows(rows.packed.with_values(noise), rows.segment_lengths)
    record(folder, [worlds.shard(0, rows, WireType.FP32)], {})
    knowledge = Knowledge(
        cut=Cut(bottom=1),
        table=bottom.table,
        template=worlds.PLAIN,
        bottom=bottom,
        public=worlds.own_text(),
    )
    return World(Transcript.recorded(folder), knowledge, TokenTruth(tokens, records={RECORD_SET: torch.arange(100)}))


def refined_world(folder, kind, *, family):
    """The same for an attacker that is told that nothing is privatized."""
    world = inverted_world(folder, kind, family=family)
    world.knowledge = dataclasses.replace(world.knowledge, noise=Noise.nothing())
    return shortened(world, "refined-inversion")


def shortened(world, name):
    """The same for an attack whose controls are about fewer texts."""
    sample = world.truth.sample().limited(ATTACKS[name].tokens // 2)
    world.answers = lambda: sample.tokens
    return world


@dataclasses.dataclass(frozen=True)
class HeardLabels(LabelTruth):
    """A truth that says what each control is about: labels of its own."""

    heard: list = dataclasses.field(default_factory=list)

    def traffic(self, kind, like, knowledge, *, looks, rng):
        transcript, truth = super().traffic(kind, like, knowledge, looks=looks, rng=rng)
        self.heard.append(truth.labels)
        return transcript, truth

    def graded(self, like, knowledge, *, rng):
        made = super().graded(like, knowledge, rng=rng)
        self.heard.append(made.truth.labels)
        return made


@dataclasses.dataclass(frozen=True, eq=False)
class HeardAttributes(AttributeTruth):
    """The same of attributes."""

    heard: list = dataclasses.field(default_factory=list)

    def sample(self):
        found = super().sample()
        return HeardAttributes(found.labels, found.classes, found.known, heard=self.heard)

    def traffic(self, kind, like, knowledge, *, looks, rng):
        transcript, truth = super().traffic(kind, like, knowledge, looks=looks, rng=rng)
        self.heard.append(truth.labels)
        return transcript, truth


@dataclasses.dataclass(frozen=True, eq=False)
class HeardRows(RowTruth):
    """The same of rows of a list."""

    heard: list = dataclasses.field(default_factory=list)

    def sample(self):
        found = super().sample()
        return HeardRows(found.rows, found.listed, heard=self.heard)

    def traffic(self, kind, like, knowledge, *, looks, rng):
        transcript, truth = super().traffic(kind, like, knowledge, looks=looks, rng=rng)
        (numbers,) = truth.records.values()
        self.heard.append(truth.rows[numbers.argsort()])
        return transcript, truth


def reported_world(folder, kind, *, epsilon=1.0, classes=2, order=False, form="ids"):
    """A recorded run whose labels were drawn: its records are in their labels' order, or its texts tell them."""
    count, rng = 1000, worlds.generator(5)
    told = torch.randint(classes, (count,), generator=rng)
    told = told.sort().values if order else told
    labels = told[torch.randperm(count, generator=rng)] if kind is Traffic.SHUFFLED else told
    reports = worlds.reported(told, epsilon, classes, rng)
    # records are in the file's order, so only where words tell does it matter what they say
    tokens = telling_texts(
        None if kind is Traffic.NOISE else told, count, classes, SignalSource.WORDS, torch.arange(10, 200), rng
    )
    frames = [
        worlds.shard(number, worlds.as_rows(part) if form == "rows" else part)
        for number, part in enumerate(worlds.pieces(tokens, 600, 400))
    ]
    outputs, steps = {}, {}
    for order_of_epoch in (torch.randperm(count, generator=rng) for _ in range(2)):
        for texts in order_of_epoch.split(100):
            number = len(steps) + 1
            logits = torch.randn(len(texts), classes, generator=rng, requires_grad=True)
            torch.nn.functional.cross_entropy(logits, reports[texts]).backward()
            slope = (
                torch.randn(logits.shape, generator=worlds.generator(number)) if kind is Traffic.NOISE else logits.grad
            )
            frames.append(worlds.step(number, records=texts.to(torch.uint16)))
            frames.append(worlds.gradient(number, slope))
            outputs[number] = logits.detach()
            steps[JOB, number] = texts
    record(folder, frames, outputs)
    truth = HeardLabels(labels, classes, steps, epsilon=epsilon)
    return World(
        Transcript.recorded(folder), KNOWLEDGE, truth, lambda: truth.heard[-1], recovered=0.95 if order else 0.8
    )


def ordered_world(folder, kind, *, form):
    """A recorded upload in the order of labels, some of which are known; otherwise in none."""
    count, rng = 900, worlds.generator(5)
    labels = torch.randint(3, (count,), generator=rng)
    labels = labels.sort().values if kind is Traffic.UNPROTECTED else labels
    tokens = worlds.random_tokens(count)
    shards = [worlds.as_rows(part) if form == "rows" else part for part in worlds.pieces(tokens, 500, 400)]
    record(folder, [worlds.shard(number, payload) for number, payload in enumerate(shards)])
    known = torch.rand(count, generator=rng) < 0.2
    truth = HeardAttributes(labels, 3, known, records={RECORD_SET: torch.arange(count)}, signal=SignalSource.ORDER)
    transcript = Transcript.recorded(folder)
    return World(transcript, truth.granted(transcript, KNOWLEDGE), truth, lambda: truth.heard[-1], recovered=0.95)


def listed_world(folder, kind, *, form):
    """A recorded upload in the order of a list, of which a tenth was held out; otherwise in none."""
    count, rng = 900, worlds.generator(5)
    rows = torch.randperm(1000, generator=rng)[:count].sort().values
    numbers = torch.arange(count) if kind is Traffic.UNPROTECTED else torch.randperm(count, generator=rng)
    tokens = worlds.random_tokens(count)
    record(folder, [worlds.shard(0, worlds.as_rows(tokens) if form == "rows" else tokens)])
    truth = HeardRows(rows, 1000, records={RECORD_SET: numbers})
    return World(Transcript.recorded(folder), KNOWLEDGE, truth, lambda: truth.heard[-1], recovered=0.8)


ANNOTATED = AnnotatedText(
    *worlds.named_texts(2500, seed=32)[:1],
    tags=worlds.named_texts(2500, seed=32)[1],
    names=worlds.TAGS,
    source="made up",
)


@torch.no_grad()
def named_world(folder, kind, *, bottom):
    """A recorded upload of texts with names: `kind` is what was sent instead of the texts' own tokens."""
    lower = cut_up(MODEL, Cut(bottom=bottom or 0)).bottom
    knowledge = dataclasses.replace(
        READING, cut=Cut(bottom=bottom), bottom=lower, noise=Noise.nothing(), annotated=ANNOTATED
    )
    tokens, tags = worlds.named_texts(300)
    (side,) = tokens.segments
    told = side.values
    if kind is Traffic.SHUFFLED:
        told = told[torch.randperm(len(told), generator=worlds.generator(9))]
    elif kind is Traffic.NOISE:
        told = torch.randint(10, zoo.VOCAB, told.shape, generator=worlds.generator(9))
    sent = Tokens((side.with_values(told),))
    payload = sent if bottom is None else boundary(sent, knowledge)
    record(folder, [worlds.shard(0, payload, WireType.FP32)])
    truth = EntityTruth(tokens, records={RECORD_SET: torch.arange(len(tokens))}, tags=tags, names=worlds.TAGS)
    return World(Transcript.recorded(folder), knowledge, truth, lambda: truth.sample().tags, recovered=0.95)


@dataclasses.dataclass(frozen=True)
class Heard(GreedyTruth):
    """A truth that says what each control is about, which no sample tells: it is made with its traffic."""

    heard: list = dataclasses.field(default_factory=list)

    def sample(self):
        found = super().sample()
        return Heard(found.tokens, skipped=found.skipped, queries=found.queries, heard=self.heard)

    def traffic(self, kind, like, knowledge, *, looks, rng):
        transcript, truth = super().traffic(kind, like, knowledge, looks=looks, rng=rng)
        self.heard.append(truth.tokens)
        return transcript, truth


@torch.no_grad()
def answering_world(folder, kind, *, template, tail=0):
    """Recorded queries to a decoder: `kind` is what was sent down instead of the states that the truth is made of."""
    knowledge = worlds.language_knowledge(template, tail=tail)
    tokens = worlds.language_texts(TEXTS // 5)
    frames, outputs, queries, said = [], {}, {}, []
    for number, texts in enumerate(torch.arange(len(tokens)).split(40)):
        asked = tokens.select(texts)
        upper = worlds.boundary(asked, template, seed=number)
        hidden, inputs = template.from_rows(upper)
        chosen = knowledge.tail(hidden, inputs).argmax(-1)
        opening = len(template.opening)
        for text, length in enumerate(asked.segments[0].lengths.tolist()):
            before = torch.cat([torch.zeros(1, dtype=torch.int64), chosen[text]])
            said.append(before[opening : opening + length].tolist())
        shown = upper.packed.values
        if kind is Traffic.NOISE:
            shown = worlds.boundary(asked, template, seed=50 + number).packed.values
        elif kind is Traffic.SHUFFLED:
            shown = shown[torch.randperm(len(shown), generator=worlds.generator(number))]
        frames.append(worlds.query(worlds.boundary(asked, template, width=4)))
        outputs[f"query {number}"] = shown
        queries[f"adapter/{JOB}/infer", number] = texts
    record(folder, frames, outputs)
    truth = Heard(Tokens((Ragged.from_lists(said),)), skipped=0 if template.opening else 1, queries=queries)
    return World(Transcript.recorded(folder), knowledge, truth, lambda: truth.heard[-1])


WORLDS = {
    "nearest-neighbour": [
        lambda folder, kind: token_world(folder, kind, form="ids"),
        lambda folder, kind: token_world(folder, kind, form="rows"),
        lambda folder, kind: token_world(folder, kind, form="rows", segments=2),
    ],
    "float-support": [
        lambda folder, kind: token_world(folder, kind, form="rows", knowledge=FINITE, wire_type=WireType.FP32),
    ],
    "linear-inversion": [
        lambda folder, kind: inverted_world(folder, kind, family="bert"),
        lambda folder, kind: inverted_world(folder, kind, family="gpt2"),
    ],
    "maximum-posterior": [
        lambda folder, kind: adaptive_world(folder, kind, form="ids", noise=Noise.nothing()),
        lambda folder, kind: adaptive_world(folder, kind, form="rows", noise=Noise.nothing(), segments=2),
        lambda folder, kind: adaptive_world(folder, kind, form="rows", noise=Noise(FAINT)),
        lambda folder, kind: adaptive_world(folder, kind, form="ids", noise=Noise(TextToText(eta=500))),
    ],
    "masked-infill": [
        lambda folder, kind: filled_world(folder, kind, form="ids"),
        lambda folder, kind: filled_world(folder, kind, form="rows", segments=2),
        lambda folder, kind: adaptive_world(folder, kind, form="ids", noise=Noise.nothing(), model=INFILLED),
    ],
    "known-pairs": [preceded_world],
    "reconstruction-head": [headed_world],
    "multi-run": [
        lambda folder, kind: adaptive_world(folder, kind, form="ids", noise=Noise.nothing()),
        lambda folder, kind: adaptive_world(folder, kind, form="rows", noise=Noise.nothing(), segments=2),
        lambda folder, kind: adaptive_world(folder, kind, form="ids", noise=Noise(TextToText(eta=500))),
        several_runs_world,
    ],
    "refined-inversion": [
        lambda folder, kind: refined_world(folder, kind, family="bert"),
        lambda folder, kind: refined_world(folder, kind, family="gpt2"),
    ],
    "word-selection": [
        lambda folder, kind: shortened(inverted_world(folder, kind, family="bert"), "word-selection"),
        lambda folder, kind: shortened(inverted_world(folder, kind, family="gpt2"), "word-selection"),
    ],
    **{
        name: [
            lambda folder, kind: learnt_world(folder, kind, form="ids"),
            lambda folder, kind: learnt_world(folder, kind, form="rows"),
            lambda folder, kind: learnt_world(folder, kind, form="rows", segments=2),
        ]
        for name in ("mlp-inversion", "autoencoder-inversion", "learned-inversion")
    },
    "attribute-mlp": [
        lambda folder, kind: attribute_world(folder, kind, form="ids"),
        lambda folder, kind: attribute_world(folder, kind, form="rows"),
    ],
    "label-mlp": [lambda folder, kind: attribute_world(folder, kind, form="ids")],
    "ner": [
        lambda folder, kind: named_world(folder, kind, bottom=None),
        lambda folder, kind: named_world(folder, kind, bottom=0),
        lambda folder, kind: named_world(folder, kind, bottom=1),
    ],
    "ner-clear": [lambda folder, kind: named_world(folder, kind, bottom=None)],
    "attribute-classifier": [lambda folder, kind: attribute_world(folder, kind, form="rows", model=True)],
    "label-classifier": [lambda folder, kind: attribute_world(folder, kind, form="ids", model=True)],
    "lengths": [
        lambda folder, kind: length_world(folder, kind, form="ids"),
        lambda folder, kind: length_world(folder, kind, form="rows", segments=2),
    ],
    "attribute-lengths": [
        lambda folder, kind: attribute_world(folder, kind, form="ids", signal=SignalSource.LENGTHS),
        lambda folder, kind: attribute_world(folder, kind, form="rows", signal=SignalSource.LENGTHS),
    ],
    "label-lengths": [lambda folder, kind: attribute_world(folder, kind, form="ids", signal=SignalSource.LENGTHS)],
    "survival-pattern": [surviving_world],
    "output-gradient": [label_world, class_world],
    "gradient-sign": [lambda folder, kind: label_world(folder, kind, smoothing=0), class_world],
    "gradient-direction": [
        lambda folder, kind: class_world(folder, kind, shares=(0.5, 0.5)),
        lambda folder, kind: class_world(folder, kind, width=24),
    ],
    "gradient-norm": [
        lambda folder, kind: class_world(folder, kind, shares=(0.8, 0.2)),
        lambda folder, kind: class_world(folder, kind, shares=(0.25, 0.75), width=24),
    ],
    "activation-clusters": [
        lambda folder, kind: class_world(folder, kind, shares=(0.5, 0.5)),
        lambda folder, kind: class_world(folder, kind, width=24),
    ],
    "tail-gradient": [
        lambda folder, kind: training_world(folder, kind, template=worlds.TEMPLATE),
        lambda folder, kind: training_world(folder, kind, template=worlds.PLAIN),
        lambda folder, kind: training_world(folder, kind, template=worlds.PLAIN, wire_type=WireType.BF16),
    ],
    "forward-leak": [
        lambda folder, kind: answering_world(folder, kind, template=worlds.TEMPLATE),
        lambda folder, kind: answering_world(folder, kind, template=worlds.PLAIN, tail=1),
    ],
    "record-order": [
        lambda folder, kind: reported_world(folder, kind, order=True, epsilon=0.5),
        lambda folder, kind: reported_world(folder, kind, order=True, classes=4, form="rows"),
    ],
    "reports-and-text": [
        reported_world,
        lambda folder, kind: reported_world(folder, kind, classes=3, form="rows"),
    ],
    "label-record-order": [lambda folder, kind: ordered_world(folder, kind, form="ids")],
    "attribute-record-order": [lambda folder, kind: ordered_world(folder, kind, form="rows")],
    "record-linkage": [
        lambda folder, kind: listed_world(folder, kind, form="ids"),
        lambda folder, kind: listed_world(folder, kind, form="rows"),
    ],
    "prefix-search": [
        searched_world,
        lambda folder, kind: searched_world(folder, kind, family="llama"),
    ],
}
"""Each attack's worlds: a new attack needs a line here."""


def cases(worlds_of, quick):
    """Parameters of a test: each attack in its worlds, of which all are slow but the first of some attacks."""
    every = {f"{name}-{number}": (name, make) for name, makes in worlds_of.items() for number, make in enumerate(makes)}
    return slow_but([f"{name}-0" for name in quick], every.values(), ids=every)


CASES = cases(WORLDS, quick=WORLDS)


def test_every_attack_has_a_world():
    assert set(ATTACKS) == set(WORLDS)


TOLD = {"noise", "labelled", "classes", "shares", "label_epsilon", "listed"}
"""What controls are granted as their traffic was made."""
FEW = LearnedInversionSpec(passes=1, batch=32, hidden=32)
QUICK = {
    "learned-inversion": LearnedInversion(FEW),
    "refined-inversion": RefinedInversion(RefinedInversionSpec(start=FEW)),
    "masked-infill": MaskedInfill(MaskedInfillSpec(posterior=MaximumPosteriorSpec(pairs=2000), passes=1, tokens=4000)),
    "reconstruction-head": HeadReading(
        HeadReadingSpec(posterior=MaximumPosteriorSpec(pairs=2000), passes=1, tokens=2000, width=16)
    ),
} | {
    name: AttributeClassifier(fitting=Fitting(passes=2, batch=64, learning_rate=1e-2))
    for name in ("attribute-classifier", "label-classifier")
}
"""Attacks that take long to learn, in a strength that is enough here."""


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Runs these attacks in that strength."""
    for name, run in QUICK.items():
        monkeypatch.setitem(ATTACKS._parts, name, dataclasses.replace(ATTACKS[name], run=run))


@pytest.fixture
def planted(monkeypatch):
    """Puts another attack in the place of a registered one, with what that declares."""

    def plant(name, run):
        monkeypatch.setitem(ATTACKS._parts, name, dataclasses.replace(ATTACKS[name], run=run))

    return plant


@pytest.fixture(scope="module")
def remembered():
    """What an attack guesses in a world, call by call: it is asked once, however many faults are planted in it."""
    found = {}

    def of(name, make, real):
        guesses = found.setdefault((name, make), [])
        calls = itertools.count()

        def attack(view):
            call = next(calls)
            if call == len(guesses):
                guesses.append(list(real(view)))
            return iter(guesses[call])

        return attack

    return of


@pytest.mark.parametrize("kind", [Traffic.NOISE, pytest.param(Traffic.SHUFFLED, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("name", "make"), CASES)
def test_traffic_without_information_is_recovered_at_chance(tmp_path, name, make, kind):
    world = make(tmp_path, kind)
    # its controls are about the texts, whatever was sent of them: they are those of unprotected traffic
    outcome = examine(name, world.transcript, knowledge=world.knowledge, truth=world.truth, controls=()).outcome
    assert isinstance(outcome, Measured)
    by_chance = math.sqrt(outcome.chance * (1 - outcome.chance) / outcome.success.n)
    assert abs(outcome.success.value - outcome.chance) < 5 * max(by_chance, outcome.success.standard_error) + 1e-3


@pytest.mark.parametrize(("name", "make"), CASES)
def test_unprotected_traffic_is_recovered_from_a_view_and_nothing_else(tmp_path, planted, remembered, name, make):
    world = make(tmp_path, Traffic.UNPROTECTED)
    everything = dataclasses.replace(
        world.knowledge,
        noise=world.knowledge.noise or Noise(TextToText(eta=50)),
        public=world.knowledge.public or PublicText(worlds.random_tokens(9), source="books"),
    )
    real, calls = ATTACKS[name], []
    guessed = remembered(name, make, real.run)

    def run(*arguments, **options):
        calls.append((arguments, options))
        return guessed(*arguments, **options)

    planted(name, run)
    outcome = measure(name, world.transcript, knowledge=everything, truth=world.truth)
    assert isinstance(outcome, Measured)
    assert outcome.success.value >= world.recovered
    assert outcome.privacy.value == pytest.approx(1 - outcome.success.value)
    assert {control.check for control in outcome.controls} == worlds.ASKED
    graded = next(control for control in outcome.controls if control.check is Check.GRADED)
    assert len(calls) == 2 + len(Traffic) + (graded.reason is None)
    granted = {field for need in real.needs for field in GRANTS[need]}
    for arguments, options in calls:
        (view,) = arguments
        assert not options
        assert type(view) is View
        for field in {field for fields in GRANTS.values() for field in fields} - granted:
            assert getattr(view.knowledge, field) is None, "it was granted more than it declares"
        for field in granted - TOLD:
            assert getattr(view.knowledge, field) is getattr(everything, field)
    assert {field.name for field in dataclasses.fields(View)} == {"transcript", "knowledge"}
    assert list(inspect.signature(Attack.__call__).parameters) == ["self", "view"]


# ---------------------------------------------------------------- planted faults


def blind(real, world):
    """Finds nothing: without controls it would read as perfect privacy."""

    def attack(view):
        for source, number, guess in real(view):
            if isinstance(guess, Tokens):
                yield source, number, Tokens(tuple(side.with_values(side.values * 0) for side in guess.segments))
            else:
                yield source, number, guess * 0

    return attack


def off_by_one(real, world):
    """Compares each item with its neighbour: a bug of alignment."""

    def attack(view):
        for source, number, guess in real(view):
            if isinstance(guess, Tokens):
                # what precedes a text's first token is no guess, and below every id
                rolled = tuple(side.with_values(side.values.roll(1).clamp_min(0)) for side in guess.segments)
                yield source, number, Tokens(rolled)
            else:
                yield source, number, guess.roll(1)

    return attack


def told_the_truth(real, world):
    """Knows the answer from elsewhere, one time in four."""

    def attack(view):
        sample = world.truth.sample()
        for source, number, guess in real(view):
            if source not in CONTROLS:
                yield source, number, guess
            elif isinstance(guess, Tokens):
                known = world.answers() if world.answers else sample.tokens
                # of an attack that reads several releases together graded traffic has copies of each text
                known = known.select(torch.arange(len(guess)) % len(known))
                sides = zip(guess.segments, known.segments, strict=True)
                yield source, number, Tokens(tuple(peek(a, b) for a, b in sides))
            else:
                known = torch.arange(len(guess)) % 4 == 0
                labels = world.answers() if world.answers else sample.labels
                if guess.is_floating_point():
                    known, labels = known[:, None], torch.nn.functional.one_hot(labels).to(guess)
                yield source, number, torch.where(known, labels, guess)

    def peek(guessed, true):
        # some of them together: an entity is known if all its tokens are
        known = torch.arange(len(true.values)) // 8 % 4 == 0
        if guessed.values.is_floating_point():
            rows = world.knowledge.table[true.values]
            return guessed.with_values(torch.where(known[:, None], rows, guessed.values))
        return guessed.with_values(torch.where(known, true.values, guessed.values))

    return attack


def unsteady(real, world):
    """Draws its last guess from nowhere that can be repeated."""
    drawn = iter(range(1, 10**6))

    def attack(view):
        for source, number, guess in real(view):
            if isinstance(guess, Tokens):
                first, *others = guess.segments
                values = torch.cat([first.values[:-1], torch.full_like(first.values[-1:], next(drawn) % 100)])
                yield source, number, Tokens((first.with_values(values), *others))
            else:
                yield source, number, torch.cat([guess[:-1], torch.full_like(guess[-1:], next(drawn))])

    return attack


FAULTS = [
    (blind, {Check.UNPROTECTED}),
    (off_by_one, {Check.UNPROTECTED}),
    (told_the_truth, {Check.NOISE, Check.SHUFFLED}),
    (unsteady, {Check.REPEATED}),
]


@pytest.mark.parametrize(
    ("fault", "caught_by"), slow_but(["blind", "told_the_truth"], FAULTS, ids=[fault.__name__ for fault, _ in FAULTS])
)
@pytest.mark.parametrize(("name", "make"), CASES)
def test_a_broken_attack_has_no_number(tmp_path, planted, remembered, name, make, fault, caught_by):
    world = make(tmp_path, Traffic.UNPROTECTED)
    planted(name, fault(remembered(name, make, ATTACKS[name].run), world))
    outcome = measure(name, world.transcript, knowledge=world.knowledge, truth=world.truth)
    if fault is off_by_one and name == "record-linkage":
        assert isinstance(outcome, Measured), "the row beside is near enough"
        return
    assert isinstance(outcome, ControlFailed)
    # of traffic that hides something it reads less than the simplest attack, too
    found = {control.check for control in outcome.controls if not control.passed}
    graded = any(control.check is Check.GRADED and control.reason is None for control in outcome.controls)
    assert found - {Check.GRADED} == caught_by
    assert Check.GRADED not in found or (graded and fault in (blind, off_by_one))
    assert outcome.reason.startswith("control failed: ")
    assert "success" not in outcome.model_dump()
    assert not hasattr(outcome, "privacy")


# ---------------------------------------------------------------- graded: as much is hidden as in the run


def half_hidden(world, eta, *, candidates=worlds.CANDIDATES, kind=TextToText):
    """The same world, whose attacker is told that traffic is privatized so: graded traffic is."""
    noise = Noise(kind(eta=eta))
    world.knowledge = dataclasses.replace(world.knowledge, noise=noise, candidates=candidates)
    return world


def responding(world, epsilon=1.0):
    """The same world, whose losses are said to be of labels that were drawn: graded traffic is."""
    world.truth = dataclasses.replace(world.truth, epsilon=epsilon)
    return world


GRADED = {
    "nearest-neighbour": [
        lambda folder, kind: half_hidden(token_world(folder, kind, form="ids"), 3),
        lambda folder, kind: half_hidden(token_world(folder, kind, form="rows"), 6, kind=Vector),
        lambda folder, kind: half_hidden(token_world(folder, kind, form="rows", segments=2), 6, kind=Vector),
    ],
    "maximum-posterior": [
        lambda folder, kind: adaptive_world(folder, kind, form="ids", noise=Noise(TextToText(eta=3))),
        lambda folder, kind: adaptive_world(folder, kind, form="rows", noise=Noise(Vector(eta=6))),
    ],
    "known-pairs": [lambda folder, kind: half_hidden(preceded_world(folder, kind), 3)],
    "reconstruction-head": [headed_world],
    "multi-run": [lambda folder, kind: adaptive_world(folder, kind, form="ids", noise=Noise(TextToText(eta=3)))],
    "masked-infill": [lambda folder, kind: filled_world(folder, kind, form="ids")],
    **{
        name: [lambda folder, kind, eta=eta: half_hidden(learnt_world(folder, kind, form="ids"), eta)]
        for name, eta in (("mlp-inversion", 3), ("autoencoder-inversion", 6), ("learned-inversion", 3))
    },
    "linear-inversion": [lambda folder, kind: half_hidden(inverted_world(folder, kind, family="bert"), 150)],
    "word-selection": [
        lambda folder, kind: half_hidden(shortened(inverted_world(folder, kind, family="bert"), "word-selection"), 150)
    ],
    "refined-inversion": [lambda folder, kind: half_hidden(refined_world(folder, kind, family="bert"), 150)],
    "prefix-search": [lambda folder, kind: half_hidden(searched_world(folder, kind), 20, candidates=None)],
    **{
        name: [lambda folder, kind: half_hidden(attribute_world(folder, kind, form="ids"), 3)]
        for name in ("attribute-mlp", "label-mlp")
    },
    **{
        name: [
            lambda folder, kind: half_hidden(attribute_world(folder, kind, form="ids", model=True), 8, candidates=None)
        ]
        for name in ("attribute-classifier", "label-classifier")
    },
    **{
        name: [lambda folder, kind: half_hidden(named_world(folder, kind, bottom=None), 5, candidates=None)]
        for name in ("ner", "ner-clear")
    },
    "output-gradient": [lambda folder, kind: responding(class_world(folder, kind))],
    "gradient-sign": [lambda folder, kind: responding(class_world(folder, kind))],
    "gradient-direction": [lambda folder, kind: responding(class_world(folder, kind, shares=(0.5, 0.5)))],
    "activation-clusters": [lambda folder, kind: responding(class_world(folder, kind, shares=(0.5, 0.5)))],
    "gradient-norm": [lambda folder, kind: responding(class_world(folder, kind, shares=(0.8, 0.2)), 2.0)],
    "record-order": [lambda folder, kind: reported_world(folder, kind, order=True)],
    "reports-and-text": [reported_world],
}
"""Each attack's worlds in which its own settings hide something."""
UNGRADED = {
    "float-support": (
        lambda folder, kind: half_hidden(
            token_world(folder, kind, form="rows", knowledge=FINITE, wire_type=WireType.FP32), 6, kind=Vector
        ),
        "multiples of",
    ),
    "survival-pattern": (surviving_world, "No simpler attack"),
    "tail-gradient": (WORLDS["tail-gradient"][0], "Gradients leave as they are"),
    "forward-leak": (WORLDS["forward-leak"][0], "The vendor computes its answers itself"),
    **{name: (WORLDS[name][0], "how long texts are") for name in ("lengths", "attribute-lengths", "label-lengths")},
    **{
        name: (WORLDS[name][0], "No noise is added")
        for name in ("attribute-record-order", "label-record-order", "record-linkage")
    },
}
"""Attacks that have no graded control at any setting, and what they say."""
GRADED_CASES = cases(
    GRADED,
    # one of each kind; the others are near relatives of these
    quick=(
        *("nearest-neighbour", "maximum-posterior", "masked-infill", "mlp-inversion", "linear-inversion"),
        *("prefix-search", "attribute-mlp", "label-classifier", "ner", "output-gradient", "gradient-norm"),
        *("activation-clusters", "record-order"),
    ),
)


def test_every_attack_has_a_graded_control_or_says_why_not():
    assert set(GRADED) | set(UNGRADED) == set(ATTACKS)
    assert not set(GRADED) & set(UNGRADED)


@pytest.mark.parametrize("name", UNGRADED)
def test_a_graded_control_without_meaning_says_why(tmp_path, name):
    make, reason = UNGRADED[name]
    world = make(tmp_path, Traffic.UNPROTECTED)
    found = graded_control(measure(name, world.transcript, knowledge=world.knowledge, truth=world.truth))
    assert reason in found.reason
    assert found.recovered is found.bound is None
    assert found.passed


def graded_control(outcome):
    assert isinstance(outcome, Measured | ControlFailed), outcome
    (found,) = (control for control in outcome.controls if control.check is Check.GRADED)
    return found


def gives_up(real):
    """Works where nothing is hidden, and finds nothing where something is: all other controls pass it."""
    calls = itertools.count()

    def attack(view):
        # the traffic itself, unprotected twice, noise, shuffled; then graded
        hidden = next(calls) in (0, 5)
        for source, number, guess in real(view):
            if not hidden:
                yield source, number, guess
            elif isinstance(guess, Tokens):
                yield source, number, Tokens(tuple(side.with_values(side.values * 0) for side in guess.segments))
            else:
                yield source, number, guess * 0

    return attack


@pytest.mark.parametrize(("name", "make"), GRADED_CASES)
def test_graded_traffic_is_read_as_by_the_simplest_attack_and_who_gives_up_there_has_no_number(
    tmp_path, planted, remembered, name, make
):
    world, real = make(tmp_path, Traffic.UNPROTECTED), ATTACKS[name].run
    planted(name, remembered(name, make, real))
    found = graded_control(measure(name, world.transcript, knowledge=world.knowledge, truth=world.truth))
    assert found.passed
    assert found.reason is None
    assert 0 < found.bound < 1, "something is hidden, and something is left to read"
    planted(name, gives_up(remembered(name, make, real)))
    outcome = measure(name, world.transcript, knowledge=world.knowledge, truth=world.truth)
    assert isinstance(outcome, ControlFailed)
    assert {control.check for control in outcome.controls if not control.passed} == {Check.GRADED}


def test_a_nearest_neighbour_that_guesses_only_near_rows_has_no_number(tmp_path, planted):
    """Measured on the commit before: all four controls passed, and 0.0 % [0.0, 0.0] was printed."""
    world = half_hidden(
        token_world(tmp_path, Traffic.UNPROTECTED, form="rows", wire_type=WireType.FP32), 6, kind=Vector
    )
    tokens = world.truth.tokens
    noisy = simulate(tokens, world.knowledge, rows=torch.float32, rng=np.random.Generator(np.random.PCG64(3)))
    folder = record(tmp_path / "noisy", [worlds.shard(0, noisy, WireType.FP32)])
    world.transcript = Transcript.recorded(folder)
    readable = measure("nearest-neighbour", world.transcript, knowledge=world.knowledge, truth=world.truth)
    assert isinstance(readable, Measured)
    assert readable.success.value > 0.3
    real = ATTACKS["nearest-neighbour"].run

    def crippled(view):
        guesses = {(source, number): guess for source, number, guess in real(view)}
        for release in view.transcript.releases():
            (rows,) = content_tokens(release.payload, view.knowledge).segments
            (ids,) = guesses[release.source, release.number].segments
            near = (rows.values.float() - worlds.TABLE[ids.values]).norm(dim=1) < 0.05
            yield release.source, release.number, Tokens((ids.with_values(torch.where(near, ids.values, 0)),))

    planted("nearest-neighbour", crippled)
    outcome = measure("nearest-neighbour", world.transcript, knowledge=world.knowledge, truth=world.truth)
    assert isinstance(outcome, ControlFailed)
    (failed,) = (control for control in outcome.controls if not control.passed)
    assert failed.check is Check.GRADED
    assert failed.recovered < 0.01 < 0.3 < failed.bound


def test_candidates_bound_what_unprotected_traffic_can_give(tmp_path):
    """Rows outside the public list cannot be guessed: that lowers the ceiling, it is no failed control."""
    world = token_world(tmp_path, Traffic.UNPROTECTED, form="rows")
    most = torch.arange(worlds.VOCAB) != 11
    outcome = measure(
        "nearest-neighbour",
        world.transcript,
        knowledge=dataclasses.replace(world.knowledge, candidates=most),
        truth=world.truth,
    )
    assert isinstance(outcome, Measured)
    assert 0.5 < outcome.success.value < 1


def test_an_unknown_attack_suggests_a_known_one(tmp_path):
    world = token_world(tmp_path, Traffic.UNPROTECTED, form="ids")
    with pytest.raises(ConfigError, match="nearest-neighbour"):
        measure("nearest-neighbor", world.transcript, knowledge=world.knowledge, truth=world.truth)
