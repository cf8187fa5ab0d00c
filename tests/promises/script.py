"""What a run must send, frame by frame: a function of its data, its spec and the vendor's answers.

It is written down a second time here, without gate, link, upload or trainer. Shared with the customer are the
functions that say which texts belong together: how data are split and tokenised, batched and ordered.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from cutlayer.core import Cut, Ragged, Rows, Tokens
from cutlayer.customer import RunSpec
from cutlayer.customer.finetune import form_of
from cutlayer.customer.handout import Offer
from cutlayer.customer.link import Stored
from cutlayer.customer.order import epoch_batches
from cutlayer.customer.prepare import Prepared
from cutlayer.customer.run import RunState
from cutlayer.customer.session import Texts
from cutlayer.customer.settings import Method, TrainBottom
from cutlayer.customer.trainer import EVALUATION_POSITIONS, LANGUAGE_POSITIONS, Examples, padded_batches
from cutlayer.customer.tuning import tune
from cutlayer.models import Archive, seed_dropout, set_dropout
from cutlayer.wire import Form, Message, Route, WireType, routes, smallest_index
from cutlayer.wire.messages import (
    ArchiveManifest,
    JobSpec,
    LoraSpec,
    OptimiserSpec,
    RecordSetSpec,
    SealRequest,
    SnapshotRequest,
)
from cutlayer.wire.recording import RecordedFrame

Look = tuple[int, int] | None
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


class Upper:
    """A language model's tail at the customer, as it was at each step.

    Args:
        archive: What was handed out.
        state: The run's spec.
        weights: The customer's own trained weights at each step, before its update.
        dropout: What the tail drops out by.
    """

    def __init__(
        self, archive: Archive, state: RunState, weights: Mapping[int, Mapping[str, Tensor]], *, dropout: int
    ) -> None:
        self._template = archive.template
        self._seed = dropout
        self._weights = weights
        self._scale = state.spec.train.accumulation
        self._half = state.spec.wire_type is WireType.BF16
        parts = tune(archive, state.spec)
        assert parts.tail is not None
        self._tail = parts.tail
        own = [part for part in (parts.bottom, parts.tail) if part is not None]
        self.trains = any(value.requires_grad for part in own for value in part.parameters())
        set_dropout(self._tail, state.spec.train.dropout)

    def gradient(self, step: int, output: Tensor, tokens: Tokens) -> Tensor:
        """d loss / d output of the mean cross-entropy of every token but each text's first."""
        self._tail.model.load_state_dict(dict(self._weights[step]), strict=False)
        self._tail.train()
        lengths = self._template.segment_lengths(tokens)
        output = output.float().requires_grad_()
        hidden, inputs = self._template.from_rows(Rows(Ragged(output, lengths.sum(1)), lengths))
        seed_dropout(self._seed, step, part="tail")
        logits = self._tail(hidden, inputs)
        ids = self._template.assemble(tokens).input_ids
        assert ids is not None
        real = inputs.attention_mask[:, 1:].bool()
        losses = torch.nn.functional.cross_entropy(logits[:, :-1][real], ids[:, 1:][real], reduction="none")
        (found,) = torch.autograd.grad(losses.mean() / self._scale, output)
        return found.to(torch.bfloat16) if self._half else found


@dataclass(frozen=True)
class Due:
    """What the next frame must be.

    Attributes:
        route: What kind of message.
        where: Values of the route's placeholders.
        control: The JSON body.
        texts: The texts whose releases it carries, in order.
        tensors: What it carries besides, by role.
        norm: Whether it carries the norm of the customer's gradients.
    """

    route: Route
    where: Mapping[str, str | int]
    control: Message | None = None
    texts: tuple[Key, ...] = ()
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    norm: bool = False


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
        upper: A language model's tail, as the customer had it at each step.
    """

    def __init__(
        self,
        state: RunState,
        offer: Offer,
        data: Prepared,
        draw_of: Callable[[Key], bytes],
        upper: Upper | None = None,
    ) -> None:
        self.run = state.run
        self.spec: RunSpec = state.spec
        self.model = offer.model
        self.positions = offer.positions
        self.data = data
        self.draw_of = draw_of
        self.form = form_of(state.spec)
        self.frozen = state.spec.train_bottom is TrainBottom.FROZEN
        self.cut = Cut(bottom=None if self.form is Form.IDS else state.spec.bottom, tail=state.spec.tail)
        self.upper = upper
        self.dev_values = state.dev
        self.trains = not self.frozen or (upper is not None and upper.trains)
        self.clips = state.spec.train.clip_norm is not None

    def frames(self) -> Frames:
        """All frames; a set's records fit one shard, and the customer's folder was empty."""
        yield from self._archive(kept=False)
        train, dev, test = self.data.train, self.data.dev, self.data.test
        job: Where = {"job": self._identifier("job")}
        yield Due(routes.JOB_PUT, job, self._job_spec())
        if self.frozen:
            train, records = yield from self._released("train", train, first=0)
            dev, _ = yield from self._released("dev", dev, first=records)
        yield Due(routes.JOB_PUT, job, self._job_spec())
        if self.trains:
            yield Due(routes.ROLLBACK, job, SnapshotRequest(step=0))
        best = yield from self._trained(train, dev)
        yield Due(routes.FINISH, job, SnapshotRequest(step=best))
        if test is not None:
            yield from self._evaluated(routes.ADAPTER_INFER, {"adapter": job["job"]}, test)
        yield from self._archive(kept=True)
        for name in ("train", "dev") if self.frozen else ():
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
        )
        yield Due(routes.RECORD_SET_PUT, where, spec)
        texts = keys(examples.texts.tokens, examples.texts.cti_classes, None)
        key_of = {self.draw_of(key): key for key in reversed(texts)}
        draws = list(dict.fromkeys(self.draw_of(key) for key in texts))
        yield Due(routes.SHARD_PUT, where | {"shard": 0}, texts=tuple(key_of[draw] for draw in draws))
        yield Due(routes.SEAL, where, SealRequest(shards=1, records=len(draws)))
        records = torch.tensor([draws.index(self.draw_of(key)) for key in texts]) + first
        return replace(examples, texts=Stored(records, examples.lengths[:, None])), len(draws)

    def _trained(self, train: Examples, dev: Examples) -> Generator[Due, RecordedFrame, int]:
        """Epochs until the dev value stops getting better; returns the step that was best."""
        job, settings = self._identifier("job"), self.spec.train
        step, best, values = 0, 0, list[float]()
        steps = settings.epochs * len(self._batches(train, epoch=0))
        if self.upper is not None:
            yield from self._evaluated(routes.JOB_INFER, {"job": job}, dev)
        while len(values) < settings.epochs and len(values) - best < settings.patience:
            gradient: dict[str, Tensor] = {}
            norm = False
            for batch in self._batches(train, epoch=len(values)):
                step += 1
                texts, labels = train.batch(batch)
                look = (len(values), step) if self.spec.train_bottom is TrainBottom.REDRAW else None
                where: Where = {"job": job, "step": step}
                answer = yield _carrying(Due(routes.STEP, where, tensors=gradient, norm=norm), texts, look)
                norm = False
                gradient = {"gradient": self._gradient(step, answer.tensors()["output"], labels)}
                if not self.frozen or self.clips:
                    yield Due(routes.GRADIENT, where, tensors=gradient)
                    gradient = {}
                    norm = self.clips and (step % settings.accumulation == 0 or step == steps)
            if gradient:
                yield Due(routes.GRADIENT, {"job": job, "step": step}, tensors=gradient)
            if norm:
                yield Due(routes.NORM, {"job": job, "step": step}, norm=True)
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

    def _evaluated(
        self, route: Route, where: Mapping[str, str | int], examples: Examples
    ) -> Generator[Due, RecordedFrame, float]:
        right = 0
        most = EVALUATION_POSITIONS if self.upper is None else LANGUAGE_POSITIONS
        for batch in padded_batches(examples.lengths, min(self.positions, most)):
            texts, labels = examples.batch(batch)
            answer = yield _carrying(Due(route, where), texts, None)
            if isinstance(labels, Tensor):
                right += int((answer.tensors()["output"].argmax(1) == labels).sum())
        return right / len(examples)

    def _batches(self, train: Examples, *, epoch: int) -> list[Tensor]:
        settings = self.spec.train
        return epoch_batches(
            train.lengths,
            batch_size=settings.batch_size,
            seed=self.spec.seed,
            epoch=epoch,
            group_by_length=settings.group_by_length,
        )

    def _identifier(self, purpose: str) -> str:
        return hashlib.blake2b(f"{self.run}/{purpose}".encode(), digest_size=16).hexdigest()

    def _job_spec(self) -> JobSpec:
        settings = self.spec.train
        return JobSpec(
            model=self.model.name,
            fingerprint=self.model.fingerprint,
            cut=self.cut,
            form=self.form,
            wire_type=self.spec.wire_type,
            segments=self.data.segments,
            record_sets=(self._identifier("train"), self._identifier("dev")) if self.frozen else (),
            num_labels=None if self.upper is not None else len(self.data.label_names),
            trainable_bottom=not self.frozen,
            lora=None
            if settings.method is Method.FULL
            else LoraSpec(
                rank=settings.rank, alpha=settings.alpha, dropout=settings.lora_dropout, targets=settings.targets
            ),
            optimiser=OptimiserSpec(
                learning_rate=settings.learning_rate,
                weight_decay=settings.weight_decay,
                warmup_steps=0,
                total_steps=-(-len(self.data.train) // settings.batch_size) * settings.epochs,
                accumulation=settings.accumulation,
                clip_norm=settings.clip_norm,
            ),
            dropout=settings.dropout,
            precision=settings.precision,
            seed=self.spec.seed,
            checkpoint_every=-(-settings.checkpoint_every // settings.accumulation) * settings.accumulation,
        )


def _carrying(due: Due, texts: Texts | Stored, look: Look) -> Due:
    """The frame with these texts: by number where the vendor holds their releases, else with the releases."""
    if isinstance(texts, Stored):
        records = texts.records.to(smallest_index(int(texts.records.max())))
        return replace(due, tensors={**due.tensors, "records": records})
    return replace(due, texts=tuple(keys(texts.tokens, texts.cti_classes, look)))
