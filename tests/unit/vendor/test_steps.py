"""A job's steps go by the table of what is trained: a third kind of training is an implementation, and no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from cutlayer.core import Payload, VendorError
from cutlayer.vendor.log import GRADIENT, SOURCE, SOURCE_GRADIENT, STEP, FrameLog
from cutlayer.vendor.steps import STEP_ROUTES, Backward, Due, Forward
from cutlayer.vendor.trainer import Trainer
from cutlayer.wire import Frame, WireType, pack
from cutlayer.wire.transports import LocalTransport
from tests.service.customer import BATCH, Customer, draw, some_rows
from tests.service.tiny import WIDTH
from tests.unit.vendor.test_jobs import info
from tests.unit.vendor.test_language_jobs import drop, leave


class TwoPasses(Trainer):
    """A step of two releases, each with a gradient of its own, and one update. Both passes draw the same dropout."""

    frames: ClassVar[tuple[int, ...]] = SOURCE, SOURCE_GRADIENT, STEP, GRADIENT
    _first_is_over = False

    def due(self) -> Mapping[tuple[int, int], Due]:
        if self._output is not None:
            shape = tuple(self._output.shape)
            if self._first_is_over:
                return {(GRADIENT, self.step): Due(Backward(shape, self._end))}
            return {(SOURCE_GRADIENT, self.step): Due(Backward(shape, self._end_first))}
        if self._first_is_over:
            return {(STEP, self.step): Due(forward=Forward(self._template, self._second, texts=BATCH))}
        return {(SOURCE, self.step + 1): Due(forward=Forward(self._template, self.forward))}

    @property
    def unsaved(self) -> tuple[int, ...]:
        if self._output is None:
            return ()
        return (STEP,) if self._first_is_over else (SOURCE,)

    def _end_first(self, gradient: Tensor) -> Tensor | None:
        assert self._output is not None
        assert self._boundary is not None
        torch.autograd.backward(self._output, gradient)
        boundary = self._boundary
        self._output = self._boundary = None
        self._first_is_over = True
        return boundary.grad

    def _second(self, payload: Payload) -> Tensor:
        self.step -= 1
        return self.forward(payload)

    def _end(self, gradient: Tensor) -> Tensor | None:
        self._first_is_over = False
        return self.backward(gradient)

    def state(self) -> dict[str, Tensor]:
        return super().state() | {"first_is_over": torch.tensor(self._first_is_over)}

    def load(self, state: dict[str, Tensor]) -> None:
        super().load(state)
        self._first_is_over = bool(state["first_is_over"])
        self.step = self.taken + self._first_is_over


@dataclass
class TwicePerStep(Customer):
    """Its customer by rote.

    Attributes:
        seen: Bits of every answer: where two runs do the same these are the same.
    """

    trainable: bool = True
    steps: int = 5
    checkpoint_every: int = 2
    seen: dict[tuple[int, int], bytes] = field(default_factory=dict)

    def frames(self) -> Iterator[tuple[int, int]]:
        for step in range(1, self.steps + 1):
            for kind in TwoPasses.frames:
                yield kind, step

    def send(self, kind: int, step: int, *, texts: int = BATCH) -> None:
        if kind in (SOURCE, STEP):
            tensors = pack(some_rows(texts, width=WIDTH, salt=100 * kind + step), vocab_size=0, wire_type=WireType.FP32)
        else:
            tensors = {"gradient": torch.randn(BATCH, 3, generator=draw(step, salt=kind))}
        reply = self.transport.send(Frame(STEP_ROUTES[kind], {"job": self.job, "step": step}, None, tensors))
        bits = b"".join(tensor.numpy().tobytes() for _, tensor in sorted(reply.tensors.items()))
        assert self.seen.setdefault((kind, step), bits) == bits, "other bits than before"

    def train_all(self) -> str:
        for kind, step in self.frames():
            self.send(kind, step)
        return self.run().sha256

    def train(self, *_: object, **__: object) -> None:
        """Done."""


@pytest.fixture(autouse=True)
def third_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("job", "standing"):
        monkeypatch.setattr(f"cutlayer.vendor.{module}.training_of", lambda card, spec: TwoPasses)


@pytest.mark.parametrize("gone", [drop, leave])
def test_it_comes_back_between_any_two_frames(
    transport: LocalTransport, gone: Callable[[LocalTransport], None]
) -> None:
    customer = TwicePerStep(transport)
    customer.start()
    straight = customer.train_all()
    again = TwicePerStep(transport, job="f" * 32, seen=customer.seen)
    again.start()
    for kind, step in again.frames():
        before = info(again)
        gone(transport)
        assert info(again) == before
        again.send(kind, step)
        gone(transport)
        again.send(kind, step)  # its answer may have been lost
    assert again.run().sha256 == straight


def test_frames_out_of_turn_are_told_what_is_due(transport: LocalTransport) -> None:
    customer = TwicePerStep(transport)
    customer.start()
    taken: list[tuple[int, int]] = []
    for due in customer.frames():
        for kind in TwoPasses.frames:
            for step in (due[1], due[1] + 1):
                if (kind, step) in (due, *taken):
                    continue
                name = STEP_ROUTES[due[0]].name
                with pytest.raises(VendorError, match=rf"takes {name} {due[1]} next") as caught:
                    customer.send(kind, step)
                assert caught.value.status == 409
        customer.send(*due)
        taken.append(due)
    with pytest.raises(VendorError, match="schedule ends at total_steps = 5") as caught:
        customer.send(SOURCE, 6)
    assert caught.value.status == 409


def test_what_a_frame_carries_is_what_is_due(transport: LocalTransport) -> None:
    customer = TwicePerStep(transport)
    customer.start()
    customer.send(SOURCE, 1)
    customer.send(SOURCE_GRADIENT, 1)
    with pytest.raises(VendorError, match=f"holds 3 texts; {BATCH} are due") as caught:
        customer.send(STEP, 1, texts=3)
    assert caught.value.status == 422
    customer.send(STEP, 1)


def test_a_kind_of_frame_that_steps_do_not_have(transport: LocalTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cutlayer.vendor.job.training_of", lambda card, spec: Trainer)
    customer = TwicePerStep(transport)
    customer.start()
    with pytest.raises(VendorError, match=r"have no job\.source\.") as caught:
        customer.send(SOURCE, 1)
    assert caught.value.status == 422
    assert "job.step, job.gradient" in caught.value.remedy


def test_a_forgotten_frame_would_be_noticed(transport: LocalTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the second release is not logged, so its gradient has nothing to go back to."""
    append = FrameLog.append
    monkeypatch.setattr(FrameLog, "append", lambda self, entry: None if entry.kind == STEP else append(self, entry))
    customer = TwicePerStep(transport, checkpoint_every=50)
    customer.start()
    for kind in TwoPasses.frames:
        customer.send(kind, 1)
    drop(transport)
    with pytest.raises(VendorError, match="damaged"):
        customer.send(SOURCE, 2)
