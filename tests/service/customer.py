"""A customer by rote: made-up releases, the loss of a classifier, and nothing of the customer's code.

It keeps no state but what it can make again from a seed, so it resumes by asking which step is next.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cutlayer.core import Cut, PrecededTokens, Ragged, Rows, Tokens
from cutlayer.core.tuning import LoraSpec
from cutlayer.wire import Form, Frame, Reply, Transport, WireType, pack, routes, smallest_index
from cutlayer.wire.messages import (
    AdapterInfo,
    JobInfo,
    JobSpec,
    ModelInfo,
    ModelList,
    OptimiserSpec,
    ReconstructionSpec,
    RecordSetInfo,
    RecordSetSpec,
    SealRequest,
    SnapshotRequest,
)

TEXTS = 60
BATCH = 8
EPOCH = 6
"""Steps of an epoch: its last gradient travels alone."""


def draw(number: int, *, salt: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(1000 * salt + number)


def ask(transport: Transport, route: routes.Route, control: object = None, **where: str | int) -> Reply:
    return transport.send(Frame(route, where, control))  # type: ignore[arg-type]


def first_model(transport: Transport) -> ModelInfo:
    return ask(transport, routes.MODELS).expect(ModelList).models[0]


def some_tokens(count: int, *, vocab_size: int, salt: int = 1, segments: int = 1) -> Tokens:
    lengths = [torch.randint(2, 12, (count,), generator=draw(part, salt=salt)) for part in range(segments)]
    return Tokens(
        tuple(
            Ragged(torch.randint(5, vocab_size, (int(own.sum()),), generator=draw(part, salt=salt + 1)), own)
            for part, own in enumerate(lengths)
        )
    )


TASK = ReconstructionSpec(vocabulary=40, width=4, weight=0.5, words=((3, 1, 3), (0, 39, 7)))
"""Three public words before each text, of one of two sequences."""


def preceded(tokens: Tokens) -> PrecededTokens:
    """The texts' first ids as those of public words, which have one piece, none and the rest; texts take turns."""
    counts = torch.tensor([[1, 0, 1 + number % 2] for number in range(len(tokens))])
    counts[:, 2] = torch.minimum(counts[:, 2], tokens.segments[0].lengths - 1)
    return PrecededTokens(tokens.segments, counts, torch.arange(len(tokens)) % 2)


def some_rows(count: int, *, width: int, salt: int = 1) -> Rows:
    lengths = torch.randint(3, 12, (count,), generator=draw(0, salt=salt))
    values = torch.randn(int(lengths.sum()), width, generator=draw(1, salt=salt))
    return Rows(Ragged(values, lengths), lengths[:, None])


@dataclass
class Customer:
    """One job by rote.

    Attributes:
        transport: The way to the vendor.
        trainable: Whether each step carries its own rows (a trainable bottom).
        plain: Whether public words stand before stored texts, to be reconstructed.
        steps: How many steps the job has.
        job: Its identifier; the record set has the same.
    """

    transport: Transport
    trainable: bool = False
    plain: bool = False
    steps: int = 14
    job: str = "0" * 31 + "1"
    seed: int = 7
    checkpoint_every: int = 4
    dropout: float = 0.1
    boundary_gradients: dict[int, str] = field(default_factory=dict)
    outputs: dict[int, Tensor] = field(default_factory=dict)
    adapter: AdapterInfo | None = None

    @property
    def sha256(self) -> str:
        """Of the adapter that `run` published."""
        assert self.adapter is not None
        return self.adapter.sha256

    @property
    def cut(self) -> Cut:
        return Cut(bottom=1) if self.trainable else Cut(bottom=None)

    @property
    def form(self) -> Form:
        return Form.ROWS if self.trainable else Form.IDS

    def spec(self, model: ModelInfo) -> JobSpec:
        return JobSpec(
            model=model.name,
            fingerprint=model.fingerprint,
            cut=self.cut,
            form=self.form,
            wire_type=WireType.FP32,
            segments=1,
            record_sets=() if self.trainable else (self.job,),
            num_labels=3,
            trainable_bottom=self.trainable,
            tuning=LoraSpec(lora_dropout=self.dropout),
            reconstruction=TASK if self.plain else None,
            optimiser=OptimiserSpec(learning_rate=1e-2, total_steps=self.steps, warmup_steps=2),
            seed=self.seed,
            checkpoint_every=self.checkpoint_every,
        )

    # ------------------------------------------------------------ the road

    def run(self) -> AdapterInfo:
        """From upload to published adapter, whatever of it has been done already."""
        self.upload()
        info = self.start()
        self.train(info)
        ask(self.transport, routes.SNAPSHOT, SnapshotRequest(step=self.steps), job=self.job)
        reply = ask(self.transport, routes.FINISH, SnapshotRequest(step=self.steps), job=self.job)
        self.adapter = reply.expect(AdapterInfo)
        return self.adapter

    def shards(self, model: ModelInfo) -> list[dict[str, Tensor]]:
        tokens = some_tokens(TEXTS, vocab_size=model.vocab_size)
        if self.plain:
            tokens = preceded(tokens)
        return [
            pack(tokens.select(part), vocab_size=model.vocab_size, wire_type=WireType.FP32)
            for part in torch.arange(TEXTS).split(25)
        ]

    def record_set(self, model: ModelInfo) -> RecordSetSpec:
        told = {"plain_tokens": TASK.plain_tokens, "plain_sequences": len(TASK.words)} if self.plain else {}
        return RecordSetSpec(
            model=model.name, cut=self.cut, form=self.form, segments=1, wire_type=WireType.FP32, **told
        )

    def upload(self) -> None:
        if self.trainable:
            return
        model = first_model(self.transport)
        spec = self.record_set(model)
        info = ask(self.transport, routes.RECORD_SET_PUT, spec, record_set=self.job).expect(RecordSetInfo)
        shards = self.shards(model)
        for number in set(range(len(shards))) - {shard.number for shard in info.shards}:
            where: dict[str, str | int] = {"record_set": self.job, "shard": number}
            self.transport.send(Frame(routes.SHARD_PUT, where, None, shards[number]))
        ask(self.transport, routes.SEAL, SealRequest(shards=len(shards), records=TEXTS), record_set=self.job)

    def start(self) -> JobInfo:
        spec = self.spec(first_model(self.transport))
        return ask(self.transport, routes.JOB_PUT, spec, job=self.job).expect(JobInfo)

    def train(self, info: JobInfo, *, until: int | None = None) -> None:
        """Goes on after the last step that the vendor has."""
        pending = None
        step = info.step
        if step and not info.gradient_applied:
            pending = self.loss_gradient(step, ask(self.transport, routes.STEP_GET, job=self.job, step=step))
            if self.trainable or step % EPOCH == 0 or step == self.steps:
                self.send_gradient(step, pending)
                pending = None
        for following in range(step + 1, (until or self.steps) + 1):
            pending = self.take(following, pending)

    def take(self, step: int, pending: Tensor | None) -> Tensor | None:
        """One step; returns the gradient that waits for the next one."""
        gradient = self.loss_gradient(step, self.send_step(step, pending))
        if self.trainable or step % EPOCH == 0 or step == self.steps:
            self.send_gradient(step, gradient)
            return None
        return gradient

    def step_tensors(self, step: int, pending: Tensor | None) -> dict[str, Tensor]:
        if self.trainable:
            return pack(some_rows(BATCH, width=32, salt=100 + step), vocab_size=0, wire_type=WireType.FP32)
        records = torch.randint(0, TEXTS, (BATCH,), generator=draw(step, salt=9))
        tensors = {"records": records.to(smallest_index(TEXTS))}
        return tensors if pending is None else tensors | {"gradient": pending}

    def send_step(self, step: int, pending: Tensor | None) -> Reply:
        where: dict[str, str | int] = {"job": self.job, "step": step}
        reply = self.transport.send(Frame(routes.STEP, where, None, self.step_tensors(step, pending)))
        self.outputs[step] = reply.tensors["output"]
        assert ("reconstruction_loss" in reply.tensors) is self.plain
        return reply

    def send_gradient(self, step: int, gradient: Tensor) -> Reply:
        where: dict[str, str | int] = {"job": self.job, "step": step}
        reply = self.transport.send(Frame(routes.GRADIENT, where, None, {"gradient": gradient}))
        content = reply.tensors["boundary_gradient"].contiguous().view(torch.uint8).numpy().tobytes()
        self.boundary_gradients[step] = hashlib.sha256(content).hexdigest()
        return reply

    def loss_gradient(self, step: int, reply: Reply) -> Tensor:
        labels = torch.randint(0, 3, (BATCH,), generator=draw(step, salt=5))
        output = reply.tensors["output"].clone().requires_grad_()
        torch.nn.functional.cross_entropy(output, labels).backward()
        assert output.grad is not None
        return output.grad
