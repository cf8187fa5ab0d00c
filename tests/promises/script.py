"""What a run must send, frame by frame: a function of its data, its spec and the vendor's answers.

It is written down a second time here, without gate, link, upload or trainer. Shared with the customer are the
functions that say which texts belong together: how data are split and tokenised, batched and ordered.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from cutlayer.core import Cut, Tokens
from cutlayer.customer import RunSpec
from cutlayer.customer.finetune import form_of
from cutlayer.customer.handout import Offer
from cutlayer.customer.link import Stored
from cutlayer.customer.order import epoch_batches
from cutlayer.customer.prepare import LabelledTexts
from cutlayer.customer.run import RunState
from cutlayer.customer.session import Texts
from cutlayer.customer.settings import TrainBottom
from cutlayer.customer.trainer import EVALUATION_POSITIONS, Examples, padded_batches
from cutlayer.wire import Form, Message, Route, routes, smallest_index
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


@dataclass(frozen=True)
class Due:
    """What the next frame must be.

    Attributes:
        route: What kind of message.
        where: Values of the route's placeholders.
        control: The JSON body.
        texts: The texts whose releases it carries, in order.
        tensors: What it carries besides, by role.
    """

    route: Route
    where: Mapping[str, str | int]
    control: Message | None = None
    texts: tuple[Key, ...] = ()
    tensors: Mapping[str, Tensor] = field(default_factory=dict)


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
    """

    def __init__(self, state: RunState, offer: Offer, data: LabelledTexts, draw_of: Callable[[Key], bytes]) -> None:
        self.run = state.run
        self.spec: RunSpec = state.spec
        self.model = offer.model
        self.positions = offer.positions
        self.data = data
        self.draw_of = draw_of
        self.form = form_of(state.spec)
        self.frozen = state.spec.train_bottom is TrainBottom.FROZEN
        self.cut = Cut(bottom=None if self.form is Form.IDS else state.spec.bottom)

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
        if not self.frozen:
            yield Due(routes.ROLLBACK, job, SnapshotRequest(step=0))
        best = yield from self._trained(train, dev)
        yield Due(routes.FINISH, job, SnapshotRequest(step=best))
        if test is not None:
            yield from self._evaluated(routes.ADAPTER_INFER, {"adapter": job["job"]}, test)
        yield from self._archive(kept=True)
        for name in ("train", "dev") if self.frozen else ():
            yield Due(routes.RECORD_SET_DELETE, {"record_set": self._identifier(name)})

    def _archive(self, *, kept: bool) -> Frames:
        where: Where = {"model": self.model.name, "cut": Cut(bottom=self.spec.bottom).slug}
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
        """Epochs until dev accuracy stops rising; returns the step that was best."""
        job, settings = self._identifier("job"), self.spec.train
        step, best, accuracies = 0, 0, list[float]()
        while len(accuracies) < settings.epochs and len(accuracies) - best < settings.patience:
            gradient: dict[str, Tensor] = {}
            for batch in self._batches(train, epoch=len(accuracies)):
                step += 1
                texts, labels = train.batch(batch)
                look = (len(accuracies), step) if self.spec.train_bottom is TrainBottom.REDRAW else None
                where: Where = {"job": job, "step": step}
                answer = yield _carrying(Due(routes.STEP, where, tensors=gradient), texts, look)
                gradient = {"gradient": loss_gradient(answer.tensors()["output"], labels)}
                if not self.frozen:
                    yield Due(routes.GRADIENT, where, tensors=gradient)
                    gradient = {}
            if self.frozen:
                yield Due(routes.GRADIENT, {"job": job, "step": step}, tensors=gradient)
            accuracy = yield from self._evaluated(routes.JOB_INFER, {"job": job}, dev)
            if accuracy > max(accuracies, default=-1):
                best = len(accuracies) + 1
                yield Due(routes.SNAPSHOT, {"job": job}, SnapshotRequest(step=step))
            accuracies.append(accuracy)
        return best * len(self._batches(train, epoch=0))

    def _evaluated(
        self, route: Route, where: Mapping[str, str | int], examples: Examples
    ) -> Generator[Due, RecordedFrame, float]:
        right = 0
        for batch in padded_batches(examples.lengths, min(self.positions, EVALUATION_POSITIONS)):
            texts, labels = examples.batch(batch)
            answer = yield _carrying(Due(route, where), texts, None)
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
            num_labels=len(self.data.rows.names),
            trainable_bottom=not self.frozen,
            lora=LoraSpec(
                rank=settings.rank, alpha=settings.alpha, dropout=settings.lora_dropout, targets=settings.targets
            ),
            optimiser=OptimiserSpec(
                learning_rate=settings.learning_rate,
                weight_decay=settings.weight_decay,
                warmup_steps=0,
                total_steps=-(-len(self.data.rows.train) // settings.batch_size) * settings.epochs,
            ),
            dropout=settings.dropout,
            precision=settings.precision,
            seed=self.spec.seed,
            checkpoint_every=settings.checkpoint_every,
        )


def _carrying(due: Due, texts: Texts | Stored, look: Look) -> Due:
    """The frame with these texts: by number where the vendor holds their releases, else with the releases."""
    if isinstance(texts, Stored):
        records = texts.records.to(smallest_index(int(texts.records.max())))
        return replace(due, tensors={**due.tensors, "records": records})
    return replace(due, texts=tuple(keys(texts.tokens, texts.cti_classes, look)))
