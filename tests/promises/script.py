"""What a run must send, frame by frame: a function of its data, its spec and the vendor's answers.

It is written down a second time here, without gate, link, upload or trainer. Shared with the customer are the
functions that say which texts belong together: how data are split and tokenised, batched and ordered.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto

import numpy as np
import torch
from randomgen import AESCounter
from torch import Tensor

from cutlayer.core import Cut, Ragged, Rows, Tokens
from cutlayer.customer import Objective, RunSpec
from cutlayer.customer.handout import Offer
from cutlayer.customer.link import Stored
from cutlayer.customer.prepare import Prepared
from cutlayer.customer.run import RunState
from cutlayer.customer.session import Texts
from cutlayer.customer.settings import FullTuning, LabelsAt, TrainBottom
from cutlayer.customer.trainer import LANGUAGE_POSITIONS, Examples
from cutlayer.customer.tuning import tune
from cutlayer.models import Archive, Inputs, Part, Seq2SeqBottom, Seq2SeqTail, Tail, seed_dropout
from cutlayer.models.batches import EVALUATION_POSITIONS, epoch_batches, padded_batches
from cutlayer.wire import Form, Message, Route, WireType, routes, smallest_index
from cutlayer.wire.messages import (
    ArchiveManifest,
    JobProgress,
    JobSpec,
    LoopSpec,
    OptimiserSpec,
    ReconstructionSpec,
    RecordSetSpec,
    SealRequest,
    SnapshotRequest,
    StepSize,
)
from cutlayer.wire.recording import RecordedFrame

Look = int | None
Key = tuple[tuple[tuple[int, ...], ...], int | None, Look]
"""What a draw depends on: a text's token ids, under CTI the class that its noise may depend on, and the look."""


def keys(tokens: Tokens, classes: Tensor | None, look: Look) -> list[Key]:
    """The key of each text."""
    chosen = [None] * len(tokens) if classes is None else classes.tolist()
    return [
        (tuple(tuple(segment[place].tolist()) for segment in tokens.segments), number, look)
        for place, number in enumerate(chosen)
    ]


def loss_gradient(output: Tensor, labels: Tensor) -> Tensor:
    """(softmax(output) - one-hot) / texts, rounded as PyTorch rounds it, to the last bit."""
    output = output.detach().requires_grad_()
    return torch.autograd.grad(torch.nn.functional.cross_entropy(output, labels), output)[0]


def labels_of(records: Tensor, labels: Tensor | Tokens) -> dict[str, Tensor]:
    """What a frame of labels holds: texts' records, and labels, those of one record sorted, whoever had which."""
    assert isinstance(labels, Tensor)
    told = labels.clone()
    for record in records.unique():
        told[records == record] = labels[records == record].sort().values
    return {
        role: numbers.to(smallest_index(int(numbers.max())))
        for role, numbers in (("records", records), ("labels", told))
    }


class Side(Enum):
    """What of each pair of source and target text a frame of an encoder-decoder carries."""

    SOURCE = auto()
    TARGET = auto()
    PAIR = auto()


Padded = tuple[Tensor, Inputs]
"""Hidden states `[n, positions, width]`, and which of them are real."""


class PairedLower:
    """An encoder-decoder's blocks below the cuts, at the customer.

    Args:
        archive: What was handed out: templates.
        bottom: The blocks.
        seed: What they drop out by.
    """

    def __init__(self, archive: Archive, bottom: Seq2SeqBottom, *, seed: int) -> None:
        self._bottom = bottom
        self._templates = (archive.template, archive.target_template)
        self._seed = seed

    def rows(self, pairs: Tokens, side: Side, encoded: Tensor | None, *, step: int | None) -> Rows:
        """What a frame carries of drawn pairs.

        Args:
            pairs: What the privatizer returned.
            side: Of which texts.
            encoded: The vendor's answer to the source texts, `[rows, width]`; target texts meet it.
            step: In which the parts drop out; `None` where they do not.
        """
        if side is Side.SOURCE:
            return self.source(pairs, step)
        assert encoded is not None
        target, _ = self.target(pairs, self.padded(pairs, encoded.float()), step)
        return target if side is Side.TARGET else Rows.joined(self.source(pairs, step), target)

    def source(self, pairs: Tokens, step: int | None) -> Rows:
        """The boundary of source texts."""
        if step is not None:
            seed_dropout(self._seed, step)
        return self._templates[0].unpad(self._bottom.encode(self._embedded(pairs, 0)), _side(pairs, 0))

    def padded(self, pairs: Tokens, encoded: Tensor) -> Padded:
        """The vendor's answer to source texts as decoder blocks take it."""
        lengths = self._templates[0].segment_lengths(_side(pairs, 0))
        return self._templates[0].from_rows(Rows(Ragged(encoded, lengths.sum(1)), lengths))

    def target(self, pairs: Tokens, source: Padded, step: int | None) -> tuple[Rows, Inputs]:
        """The boundary of target texts, and their mask."""
        if step is not None:
            seed_dropout(self._seed, step, part="target")
        inputs = self._embedded(pairs, 1)
        return self._templates[1].unpad(self._bottom.decode(*source, inputs), _side(pairs, 1)), inputs

    def _embedded(self, pairs: Tokens, number: int) -> Inputs:
        return self._templates[number].assemble(_side(pairs, number), table=self._bottom.table)


def _side(pairs: Tokens, number: int) -> Tokens:
    return Tokens((pairs.segments[number],))


def as_sent(gradient: Tensor, *, half: bool) -> Tensor:
    """A gradient in the element type of rows on the wire."""
    return gradient.to(torch.bfloat16) if half else gradient


@dataclass(frozen=True)
class PairedStep:
    """A step of an encoder-decoder's customer, from its loss back to the boundaries.

    Each backward pass begins at the loss and goes through all that it reaches in the order of the road's own, from the
    tail down to the source texts: sums of floats depend on it.

    Attributes:
        loss: What is learnt from.
        output: Rows of the upper boundary, as the vendor sent them.
        encoded: The encoder's output, as the vendor sent it.
        source: The source texts' boundary.
        target: The target texts' boundary.
        half: Whether gradients travel as bf16.
    """

    loss: Tensor
    output: Tensor
    encoded: Tensor
    source: Tensor
    target: Tensor
    half: bool

    def output_gradient(self) -> Tensor:
        """d loss / d output."""
        (found,) = torch.autograd.grad(self.loss, self.output, retain_graph=True)
        return as_sent(found, half=self.half)

    def encoded_gradient(self, target: Tensor) -> Tensor:
        """What the customer adds to d loss / d encoder's output, where d loss / d target's boundary came back."""
        roots, given = self._roots(target)
        (found,) = torch.autograd.grad(roots, self.encoded, given, retain_graph=True, materialize_grads=True)
        return as_sent(found + 0.0, half=self.half)  # the road adds zeros too, which makes of -0 a 0

    def end(self, target: Tensor, source: Tensor) -> None:
        """Leaves the gradients of all that is trained where PyTorch keeps them, adding to those of steps before."""
        torch.autograd.backward(*self._roots(target, source))

    def _roots(self, *gradients: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Where a backward pass begins, and with what: boundaries below which something is trained are among them."""
        boundaries = zip((self.target, self.source), gradients, strict=False)
        reached = [(boundary, given.float()) for boundary, given in boundaries if boundary.requires_grad]
        return [self.loss, *(root for root, _ in reached)], [torch.ones(()), *(given for _, given in reached)]


class Upper:
    """What a language model's customer computes above the upper boundary, as it was at each step.

    Args:
        archive: What was handed out.
        state: The run's spec.
        weights: The customer's own trained weights at each step, before its update.
        seed: What the customer's parts drop out by.
    """

    def __init__(
        self, archive: Archive, state: RunState, weights: Mapping[int, Mapping[str, Tensor]], *, seed: int
    ) -> None:
        self._archive = archive
        self._seed = seed
        self._weights = weights
        self._scale = state.spec.training.gradient_accumulation_steps
        self._half = state.spec.wire_type is WireType.BF16
        self._parts = tune(archive, state.spec)
        self.trains = any(value.requires_grad for part in self._own for value in part.parameters())

    @property
    def _own(self) -> list[Part]:
        return [part for part in (self._parts.bottom, self._parts.tail) if part is not None]

    def gradient(self, step: int, output: Tensor, tokens: Tokens) -> Tensor:
        """d loss / d output of the mean cross-entropy of every token but each text's first."""
        self._restore(step)
        tail, template = self._parts.tail, self._archive.template
        assert isinstance(tail, Tail)
        lengths = template.segment_lengths(tokens)
        output = output.float().requires_grad_()
        hidden, inputs = template.from_rows(Rows(Ragged(output, lengths.sum(1)), lengths))
        seed_dropout(self._seed, step, part="tail")
        logits = tail(hidden, inputs)
        ids = template.assemble(tokens).input_ids
        assert ids is not None
        real = inputs.attention_mask[:, 1:].bool()
        (found,) = torch.autograd.grad(self._loss(logits[:, :-1][real], ids[:, 1:][real]), output)
        return as_sent(found, half=self._half)

    def _restore(self, step: int) -> None:
        """Puts the parts into the state in which they computed that step."""
        for part in self._own:
            part.model.load_state_dict(dict(self._weights[step]), strict=False)
            part.train(part is self._parts.tail or self._parts.trains_bottom)

    def _loss(self, logits: Tensor, ids: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(logits, ids, reduction="none").mean() / self._scale


class PairedUpper(Upper):
    """What an encoder-decoder's customer computes between the vendor's answers and the loss.

    Args:
        archive: What was handed out.
        state: The run's spec.
        weights: The customer's own trained weights at each step, before its update.
        seed: What the customer's parts drop out by.
        drawn: What the privatizer returned for draws.
    """

    def __init__(
        self,
        archive: Archive,
        state: RunState,
        weights: Mapping[int, Mapping[str, Tensor]],
        *,
        seed: int,
        drawn: Callable[[Sequence[bytes]], Tokens],
    ) -> None:
        super().__init__(archive, state, weights, seed=seed)
        self._drawn = drawn

    def step(
        self, step: int, encoded: Tensor, output: Tensor, draws: Sequence[bytes], places: Tensor, pairs: Tokens
    ) -> PairedStep:
        """A step up to its loss: the mean over every token of each true target text and the mark behind it.

        Args:
            step: Its number.
            encoded: The encoder's output `[rows, width]`, the vendor's first answer.
            output: Rows of the upper boundary, its second.
            draws: Of the pairs that crossed.
            places: `[n]`, where each pair of the batch stands among them.
            pairs: The batch's true tokens.
        """
        self._restore(step)
        bottom, tail, drawn = self._parts.bottom, self._parts.tail, self._drawn(draws)
        assert isinstance(bottom, Seq2SeqBottom)
        assert isinstance(tail, Seq2SeqTail)
        lower = PairedLower(self._archive, bottom, seed=self._seed)
        encoded, output = encoded.float().requires_grad_(), output.float().requires_grad_()
        source = lower.source(drawn, step)
        answered = lower.padded(drawn, encoded)
        target, inputs = lower.target(drawn, answered, step)
        seed_dropout(self._seed, step, part="tail")
        hidden, _ = self._archive.target_template.from_rows(
            Rows(target.packed.with_values(output), target.segment_lengths)
        )
        logits = tail.decode(*answered, inputs, hidden)[places]
        end = torch.tensor([self._archive.tokenizer.eos_token_id])
        ids = [torch.cat([text, end]) for text in pairs.segments[1].split()]
        real = torch.zeros(logits.shape[:2], dtype=torch.bool)
        for number, text in enumerate(ids):
            real[number, : len(text)] = True
        loss = self._loss(logits[real], torch.cat(ids))
        return PairedStep(loss, output, encoded, source.packed.values, target.packed.values, half=self._half)

    def told(self, *, clips: bool) -> dict[str, Tensor]:
        """What an update takes of the gradients since it was asked for last, by role.

        The squared norm of those that are the customer's alone, where they are clipped; and those of the position
        biases that the vendor has copies of, decoder before encoder.
        """
        trained = {id(value): value for part in self._own for value in part.parameters() if value.requires_grad}
        biases = {
            name.partition(".")[0]: value
            for part in self._own
            for name, value in part.model.named_parameters()
            if "relative_attention_bias" in name and value.requires_grad
        }
        copies = [value for _, value in sorted(biases.items())]
        alone = [value for key, value in trained.items() if key not in {id(value) for value in copies}]
        squares = [value.grad.double().square().sum() for value in alone if value.grad is not None]
        told: dict[str, Tensor] = {}
        if clips:
            told["norm"] = torch.stack([torch.zeros((), dtype=torch.float64), *squares]).sum().float().reshape(1)
        if copies:
            found = [torch.zeros_like(value) if value.grad is None else value.grad for value in copies]
            told["shared_gradient"] = torch.cat([gradient.flatten() for gradient in found])
        for value in trained.values():
            value.grad = None
        return told


@dataclass(frozen=True)
class Due:
    """What the next frame must be.

    Attributes:
        route: What kind of message.
        where: Values of the route's placeholders.
        control: The JSON body.
        texts: The texts whose releases it carries, in order.
        tensors: What it carries besides, by role.
        norm: Whether it carries the norm of the customer's gradients, which `tensors` has where it is made again.
        side: What of each pair it carries; `None` where texts are no source and target.
        encoded: The vendor's answer to the source texts, `[rows, width]`, of which target texts' rows are made.
    """

    route: Route
    where: Mapping[str, str | int]
    control: Message | None = None
    texts: tuple[Key, ...] = ()
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    norm: bool = False
    side: Side | None = None
    encoded: Tensor | None = None


Where = dict[str, str | int]
Frames = Generator[Due, RecordedFrame, None]
"""Is sent the vendor's answer to each frame."""


class Script:
    """A run from its first frame to its last, none of which was refused or repeated.

    Args:
        state: The run's name and spec.
        offer: The vendor's model and limits.
        data: The run's data, as tokens and numbers.
        draw_of: The draw under which a text leaves.
        upper: What a language model's customer computes above, as it was at each step.
        order: The key that the order of batches follows from.
    """

    def __init__(
        self,
        state: RunState,
        offer: Offer,
        data: Prepared,
        draw_of: Callable[[Key], bytes],
        upper: Upper | None = None,
        *,
        order: bytes,
    ) -> None:
        self.run = state.run
        self.spec: RunSpec = state.spec
        self.model = offer.model
        self.positions = offer.positions
        self.data = data
        self.draw_of = draw_of
        self.form = state.spec.form
        self.pairs = state.spec.objective is Objective.SEQ2SEQ
        # target texts meet what the vendor makes of their source, which changes, so that pairs are sent in each step
        self.stores = state.spec.train_bottom is TrainBottom.FROZEN and not self.pairs
        self.cut = Cut(
            bottom=None if self.form is Form.IDS else state.spec.cut.bottom,
            target=state.spec.cut.target,
            tail=state.spec.cut.tail,
        )
        self.upper = upper
        self.order = order
        self.dev_values = state.dev
        self.alone = state.spec.labels_at is LabelsAt.VENDOR
        self.trains = not self.stores if upper is None else upper.trains
        self.clips = state.spec.training.max_grad_norm is not None

    def frames(self) -> Frames:
        """All frames; a set's records fit one shard, and the customer's folder was empty."""
        yield from self._archive(kept=False)
        train, dev, test = self.data.train, self.data.stopping, self.data.test
        job: Where = {"job": self._identifier("job")}
        yield Due(routes.JOB_PUT, job, self._job_spec())
        if self.stores:
            train, records = yield from self._released("train", train, first=0)
            dev, _ = yield from self._released("dev", dev, first=records)
        yield Due(routes.JOB_PUT, job, self._job_spec())
        if self.trains:
            yield Due(routes.ROLLBACK, job, SnapshotRequest(step=0))
        best = yield from self._watched(train) if self.alone else self._trained(train, dev)
        yield Due(routes.FINISH, job, SnapshotRequest(step=best))
        if test is not None:
            yield from self._evaluated(routes.ADAPTER_INFER, {"adapter": job["job"]}, test)
        if self.trains:  # what was handed out is read again; what nobody trained is still that
            yield from self._archive(kept=True)
        for name in ("train", "dev") if self.stores else ():
            yield Due(routes.RECORD_SET_DELETE, {"record_set": self._identifier(name)})

    def _archive(self, *, kept: bool) -> Frames:
        where: Where = {"model": self.model.name, "cut": self.spec.cut.slug}
        manifest = (yield Due(routes.ARCHIVE, where)).control()
        assert isinstance(manifest, ArchiveManifest)
        for file in () if kept else manifest.files:
            yield Due(routes.ARCHIVE_FILE, where | {"file": file.name})

    def _released(
        self, name: str, examples: Examples, *, first: int
    ) -> Generator[Due, RecordedFrame, tuple[Examples, int]]:
        """A record for each draw, in the order of the texts; returns the texts by record, and how many records."""
        assert isinstance(examples.texts, Texts)
        where: Where = {"record_set": self._identifier(name)}
        spec = RecordSetSpec(
            model=self.model.name,
            cut=self.cut,
            form=self.form,
            segments=self.data.segments,
            wire_type=self.spec.wire_type,
            num_labels=len(self.data.label_names) if self.alone else None,
            **self._plain_words(name),
        )
        yield Due(routes.RECORD_SET_PUT, where, spec)
        texts = keys(examples.texts.tokens, examples.texts.cti_classes, None)
        key_of = {self.draw_of(key): key for key in reversed(texts)}
        draws = list(dict.fromkeys(self.draw_of(key) for key in texts))
        yield Due(routes.SHARD_PUT, where | {"shard": 0}, texts=tuple(key_of[draw] for draw in draws))
        records = torch.tensor([draws.index(self.draw_of(key)) for key in texts])
        if self.alone:
            yield Due(routes.LABELS_PUT, where, tensors=labels_of(records, examples.labels))
        yield Due(routes.SEAL, where, SealRequest(shards=1, records=len(draws)))
        return replace(examples, texts=Stored(records + first, examples.lengths[:, None])), len(draws)

    def _watched(self, train: Examples) -> Generator[Due, RecordedFrame, int]:
        """Questions that hold nothing but how far the last answer was; returns the step that was best."""
        after = 0
        while True:
            told = (yield Due(routes.JOB_EVENTS, {"job": self._identifier("job"), "after": after})).control()
            assert isinstance(told, JobProgress)
            if told.state.is_over:
                return (1 + told.dev.index(max(told.dev))) * len(self._batches(train, epoch=0))
            after = told.event

    def _trained(self, train: Examples, dev: Examples) -> Generator[Due, RecordedFrame, int]:
        """Epochs until the dev value stops getting better; returns the step that was best."""
        job, settings = self._identifier("job"), self.spec.training
        step, best, values = 0, 0, list[float]()
        steps = settings.epochs * len(self._batches(train, epoch=0))
        if self.upper is not None:
            yield from self._evaluated(routes.JOB_INFER, {"job": job}, dev)
        while len(values) < settings.epochs and len(values) - best < settings.patience:
            gradient: dict[str, Tensor] = {}
            norm, known = False, dict[str, Tensor]()
            for batch in self._batches(train, epoch=len(values)):
                step += 1
                texts, labels = train.batch(batch)
                look = len(values) if self.spec.train_bottom is TrainBottom.RESAMPLE else None
                where: Where = {"job": job, "step": step}
                if self.pairs:
                    if known:
                        yield Due(routes.UPDATE, {"job": job, "step": step - 1}, tensors=known, norm=norm)
                    yield from self._pairs_trained(step, where, texts, labels, look)
                else:
                    answer = yield _carrying(Due(routes.STEP, where, tensors=gradient, norm=norm), texts, look)
                    gradient = {"gradient": self._gradient(step, answer.tensors()["output"], labels)}
                    if not self.stores or self.clips:
                        yield Due(routes.GRADIENT, where, tensors=gradient)
                        gradient = {}
                updates = step % settings.gradient_accumulation_steps == 0 or step == steps
                norm = self.clips and updates
                if updates and isinstance(self.upper, PairedUpper):
                    known = self.upper.told(clips=self.clips)
                elif isinstance(self.upper, PairedUpper):
                    known = {}
            if gradient:
                yield Due(routes.GRADIENT, {"job": job, "step": step}, tensors=gradient)
            if norm or known:
                yield Due(routes.UPDATE, {"job": job, "step": step}, tensors=known, norm=norm)
            value = yield from self._evaluated(routes.JOB_INFER, {"job": job}, dev)
            if self.upper is not None:
                value = -self.dev_values[len(values)]  # what the road's own tail made of these answers
            if value > max(values, default=-math.inf):
                best = len(values) + 1
                yield Due(routes.SNAPSHOT, {"job": job}, SnapshotRequest(step=step))
            values.append(value)
        return best * len(self._batches(train, epoch=0))

    def _gradient(self, step: int, output: Tensor, labels: Tensor | Tokens) -> Tensor:
        if isinstance(labels, Tensor):
            return loss_gradient(output, labels)
        assert self.upper is not None
        return self.upper.gradient(step, output, labels)

    def _pairs_trained(
        self, step: int, where: Where, texts: Texts | Stored, labels: Tensor | Tokens, look: Look
    ) -> Generator[Due, RecordedFrame, None]:
        """A step of pairs: source texts, target texts, and the gradients the other way round."""
        assert isinstance(self.upper, PairedUpper)
        assert isinstance(labels, Tokens)
        crossing, places = self._once(texts, look)
        encoded = (yield Due(routes.SOURCE, where, texts=crossing, side=Side.SOURCE)).tensors()["output"]
        answer = yield Due(routes.STEP, where, texts=crossing, side=Side.TARGET, encoded=encoded)
        draws = [self.draw_of(text) for text in crossing]
        own = self.upper.step(step, encoded, answer.tensors()["output"], draws, places, labels)
        answer = yield Due(routes.GRADIENT, where, tensors={"gradient": own.output_gradient()})
        target = answer.tensors()["boundary_gradient"]
        answer = yield Due(routes.SOURCE_GRADIENT, where, tensors={"gradient": own.encoded_gradient(target)})
        own.end(target, answer.tensors()["boundary_gradient"])

    def _once(self, texts: Texts | Stored, look: Look) -> tuple[tuple[Key, ...], Tensor]:
        """The pairs of a batch, one for each draw, and where each of the batch stands among them."""
        assert isinstance(texts, Texts)
        found = keys(texts.tokens, texts.cti_classes, look)
        draws = [self.draw_of(text) for text in found]
        distinct = list(dict.fromkeys(draws))
        crossing = tuple(found[draws.index(draw)] for draw in distinct)
        return crossing, torch.tensor([distinct.index(draw) for draw in draws])

    def _evaluated(
        self, route: Route, where: Mapping[str, str | int], examples: Examples
    ) -> Generator[Due, RecordedFrame, float]:
        right = 0
        most = EVALUATION_POSITIONS if self.upper is None else LANGUAGE_POSITIONS
        for batch in padded_batches(examples.lengths, min(self.positions, most)):
            texts, labels = examples.batch(batch)
            if self.pairs:
                crossing, _ = self._once(texts, None)
                answer = yield Due(route, where, texts=crossing, side=Side.SOURCE)
                encoded = answer.tensors()["output"]
                yield Due(route, where, texts=crossing, side=Side.PAIR, encoded=encoded)
                continue
            answer = yield _carrying(Due(route, where), texts, None)
            if isinstance(labels, Tensor):
                right += int((answer.tensors()["output"].argmax(1) == labels).sum())
        return right / len(examples)

    def _batches(self, train: Examples, *, epoch: int) -> list[Tensor]:
        settings = self.spec.training
        return epoch_batches(
            train.lengths,
            batch_size=settings.batch_size,
            rng=np.random.Generator(AESCounter(key=int.from_bytes(self._key(epoch), "little"))),
            group_by_length=settings.group_by_length,
        )

    def _key(self, epoch: int) -> bytes:
        return hashlib.blake2b(f"{epoch}".encode(), key=self.order, digest_size=16).digest()

    def _loop(self) -> LoopSpec | None:
        settings = self.spec.training
        if not self.alone:
            return None
        return LoopSpec(
            orders=tuple(self._key(epoch).hex() for epoch in range(settings.epochs)),
            batch_size=settings.batch_size,
            group_by_length=settings.group_by_length,
            patience=settings.patience,
        )

    def _largest_step(self) -> StepSize:
        train = self.data.train
        texts = min(self.spec.training.batch_size, len(train))
        if not self.pairs:
            return StepSize(texts=texts, positions=int(train.lengths.max()))
        assert isinstance(train.texts, Texts)
        # a source text is closed by an end mark, and a target text opened by a start token
        source, target = (1 + int(segment.lengths.max()) for segment in train.texts.tokens.segments)
        return StepSize(texts=texts, positions=source, target_positions=target)

    def _plain_words(self, name: str) -> dict[str, int]:
        """What is told of the words before texts that are trained on."""
        told = self.spec.reconstruction
        return {
            key: getattr(told, key)
            for key in ("plain_tokens", "plain_sequences")
            if told.plain_tokens and name == "train"
        }

    def _reconstruction(self) -> ReconstructionSpec | None:
        """The numbers of public words: each its place in their alphabet, and nothing of a text."""
        told, plain = self.spec.reconstruction, self.data.privatizing.plain
        if plain is None:
            return None
        dictionary = self.data.privatizing.reading.dictionary
        assert dictionary is not None
        forms = [[dictionary.lexicon.word(name).form for name in row] for row in plain.names.tolist()]
        numbers = {form: number for number, form in enumerate(sorted({form for row in forms for form in row}))}
        return ReconstructionSpec(
            vocabulary=len(numbers),
            width=told.reconstruction_width,
            weight=told.weight,
            words=tuple(tuple(numbers[form] for form in row) for row in forms),
        )

    def _identifier(self, purpose: str) -> str:
        return hashlib.blake2b(f"{self.run}/{purpose}".encode(), digest_size=16).hexdigest()

    def _job_spec(self) -> JobSpec:
        settings, tuning = self.spec.training, self.spec.tuning
        accumulated = settings.gradient_accumulation_steps
        total = -(-len(self.data.train) // settings.batch_size) * settings.epochs
        return JobSpec(
            model=self.model.name,
            fingerprint=self.model.fingerprint,
            cut=self.cut,
            form=self.form,
            wire_type=self.spec.wire_type,
            segments=1 if self.pairs else self.data.segments,
            record_sets=(self._identifier("train"), self._identifier("dev")) if self.stores else (),
            loop=self._loop(),
            num_labels=None if self.upper is not None else len(self.data.label_names),
            trainable_bottom=not self.stores,
            shared_weights=self.pairs
            and isinstance(tuning, FullTuning)
            and self.spec.train_bottom is not TrainBottom.FROZEN,
            tuning=tuning.told,
            reconstruction=self._reconstruction(),
            optimiser=OptimiserSpec(
                learning_rate=settings.learning_rate,
                weight_decay=settings.weight_decay,
                warmup_steps=math.ceil(settings.warmup_steps * -(-total // accumulated)),
                total_steps=total,
                accumulation=accumulated,
                clip_norm=settings.max_grad_norm,
            ),
            dropout=settings.dropout,
            gradient_checkpointing=settings.gradient_checkpointing,
            precision=settings.precision,
            seed=self.spec.seed,
            checkpoint_every=-(-settings.save_steps // accumulated) * accumulated,
            largest_steps=(self._largest_step(),),
        )


def _carrying(due: Due, texts: Texts | Stored, look: Look) -> Due:
    """The frame with these texts: by number where the vendor holds their releases, else with the releases."""
    if isinstance(texts, Stored):
        records = texts.records.to(smallest_index(int(texts.records.max())))
        return replace(due, tensors={**due.tensors, "records": records})
    return replace(due, texts=tuple(keys(texts.tokens, texts.cti_classes, look)))
