"""Students of the vendor's blocks: a linear map in closed form, and a perceptron for what it leaves over.

One learns from rows in and rows out (`regress`), others see no row out and learn to say tokens through the customer's
tail (`imitate`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from cutlayer.attacks.extraction.exchanged import NO_TOKEN, Exchanged
from cutlayer.attacks.extraction.explained import explained_by
from cutlayer.attacks.extraction.windows import WINDOWS_AT_ONCE, Windows, slices, spread_of
from cutlayer.core import Rows, Spec
from cutlayer.models.perceptron import Fitting, Perceptron, minimise

_BATCH = 256
"""Rows of a step."""
_HELD = 0.1
"""Share of the taught texts that a student is chosen on."""


class DistillationSpec(Spec):
    """How strong students are.

    Attributes:
        hidden: Units of the perceptron's hidden layer.
        passes: Over what is taught, at most.
        work: Multiplications and additions of a student's forward passes while it is fitted: where there is more to
            learn from there are fewer passes, but one at least. So time is bounded alike on an idle machine and on a
            busy one.
        learning_rate: Of AdamW, falling to zero.
        dropout: Of hidden units.
        ridges: Penalties lambda to choose from, per mean square of a standardised feature.
    """

    hidden: int = Field(default=512, ge=1)
    passes: int = Field(default=6, ge=1)
    work: float = Field(default=1e11, gt=0)
    learning_rate: float = Field(default=3e-3, gt=0, allow_inf_nan=False)
    dropout: float = Field(default=0.2, ge=0, lt=1)
    ridges: tuple[Annotated[float, Field(ge=1e-9, allow_inf_nan=False)], ...] = Field(
        default=(1e-6, 1e-4, 1e-2, 1e-1), min_length=1
    )


class Student(nn.Module):
    """rows out = mean + spread (W z + b + f(z)), of standardised windows z.

    Args:
        taught: What it may look at for means and spreads.
        spec: How strong it is.
        generator: Draws weights and dropout.
    """

    def __init__(self, taught: Exchanged, spec: DistillationSpec, generator: torch.Generator) -> None:
        super().__init__()
        windows, returned = Windows(taught.sent), taught.returned.packed.values.float()
        some = windows.of(slice(0, WINDOWS_AT_ONCE))
        self._means, self._scales = some.mean(0), spread_of(some)
        self._centre, self._spread = returned.mean(0), spread_of(returned)
        width, features = returned.shape[1], some.shape[1]
        self.linear = nn.Linear(features, width, device="meta").to_empty(device="cpu")
        with torch.no_grad():
            self.linear.weight.zero_()
            self.linear.bias.zero_()
            if taught.sent.packed.values.shape[1] == width:  # the way past the vendor's blocks: rows out are rows in
                self.linear.weight[:, :width] = torch.diag(self._scales[:width] / self._spread)
                self.linear.bias.copy_((self._means[:width] - self._centre) / self._spread)
        self.perceptron = Perceptron(
            (some - self._means) / self._scales,
            hidden=spec.hidden,
            outputs=width,
            dropout=spec.dropout,
            generator=generator,
        )
        outer = list(self.perceptron.parameters())[-2:]
        with torch.no_grad():
            for parameter in outer:
                parameter.zero_()
        self.nonlinear = True

    @property
    def cost(self) -> int:
        """Multiplications and additions of a row."""
        return sum(parameter.numel() for parameter in self.parameters())

    def standardised(self, windows: Tensor) -> Tensor:
        """z `[rows, features]` of windows `[rows, features]`."""
        return (windows - self._means) / self._scales

    def targets(self, returned: Tensor) -> Tensor:
        """Rows out `[rows, width]` by their own means and spreads, `[rows, width]` float32."""
        return (returned.float() - self._centre) / self._spread

    def forward(self, windows: Tensor) -> Tensor:
        """Rows out `[rows, width]` for windows `[rows, features]`."""
        z = self.standardised(windows)
        scaled = self.linear(z) + self.perceptron(z) if self.nonlinear else self.linear(z)
        rows: Tensor = self._centre + self._spread * scaled
        return rows

    @torch.no_grad()
    def rows(self, sent: Rows) -> Tensor:
        """Rows out `[rows, width]` for all rows in."""
        self.eval()
        windows = Windows(sent)
        return torch.cat([self(windows.of(part)) for part in slices(sent.total)])


def regress(learnt: Exchanged, spec: DistillationSpec, generator: torch.Generator) -> tuple[Student, str]:
    """The best student of rows out, by texts that it is not fitted on.

    Args:
        learnt: Texts; the last tenth chooses the penalty, and whether the perceptron helps.
        spec: How strong it is.
        generator: Draws weights, order and dropout.

    Returns:
        The student, and what it is: `linear`, or `linear and perceptron`.
    """
    held = max(1, round(_HELD * len(learnt)))
    fitted = learnt.select(range(len(learnt) - held))
    choosing = learnt.select(range(len(learnt) - held, len(learnt)))
    student = Student(fitted, spec, generator)
    windows, values = Windows(fitted.sent), fitted.returned.packed.values

    def right() -> float:
        return explained_by(student.rows(choosing.sent), choosing, fitted).value

    student.nonlinear = False
    best, tried = -math.inf, {}
    for ridge, weights in _ridge(student, windows, values, spec.ridges):
        tried[ridge] = weights
        _put(student.linear, weights)
        if (share := right()) > best:
            best, kept = share, ridge
    _put(student.linear, tried[kept])
    student.nonlinear = True
    passes = _passes(len(values), student.cost, spec)

    def loss(items: Tensor) -> Tensor:
        seen = windows.of(items)
        with torch.no_grad():
            z = student.standardised(seen)
            left = student.targets(values[items]) - student.linear(z)
        off: Tensor = student.perceptron(z) - left
        return off.square().mean()

    student.train()
    minimise(
        student.perceptron.parameters(),
        loss,
        count=len(values),
        fitting=Fitting(passes=passes, batch=_BATCH, learning_rate=spec.learning_rate),
        generator=generator,
    )
    student.nonlinear = right() > best
    return student, "linear and perceptron" if student.nonlinear else "linear"


def _ridge(
    student: Student, windows: Windows, values: Tensor, ridges: Sequence[float]
) -> Iterator[tuple[float, Tensor]]:
    """Weights `[features + 1, width]` by penalty, in closed form; the offset is not penalised."""
    gram = product = torch.zeros(())
    for part in slices(len(values)):
        z = student.standardised(windows.of(part))
        z = torch.cat([z, z.new_ones(len(z), 1)], 1)
        gram = gram + (z.T @ z).double()
        product = product + (z.T @ student.targets(values[part])).double()
    penalty = torch.ones(len(gram), dtype=torch.float64)
    penalty[-1] = 0
    for ridge in ridges:
        # a feature that never varies has a row of zeros
        damped = gram + torch.diag(len(values) * ridge * penalty + 1e-9)
        yield ridge, torch.linalg.solve(damped, product).float()


@torch.no_grad()
def _put(linear: nn.Linear, weights: Tensor) -> None:
    linear.weight.copy_(weights[:-1].T)
    linear.bias.copy_(weights[-1])


def imitate(
    learnt: Exchanged,
    targets: Tensor,
    spec: DistillationSpec,
    generator: torch.Generator,
) -> Student:
    """A student that is fitted to say tokens through the customer's tail, and sees no rows out.

    Args:
        learnt: Texts; of their rows out only the answers to them are known to it.
        targets: `[rows]` int64, the tokens; -1 for none.
        spec: How strong it is.
        generator: Draws weights, order and dropout.
    """
    sent, width = learnt.sent.packed.values.float(), learnt.returned.packed.values.shape[1]
    known = sent if sent.shape[1] == width else sent.new_zeros(len(sent), width)
    student = Student(learnt.with_returned(known), spec, generator)
    windows, starts = Windows(learnt.sent), learnt.sent.packed.offsets
    lengths = learnt.sent.packed.lengths
    cost = student.cost + sum(parameter.numel() for parameter in learnt.tail.parameters())
    passes = _passes(learnt.sent.total, cost, spec)

    def loss(items: Tensor) -> Tensor:
        at = torch.cat([torch.arange(int(starts[item]), int(starts[item + 1])) for item in items.tolist()])
        logits = learnt.select(items).logits(student(windows.of(at)))
        wanted = targets[at]
        if not bool((wanted != NO_TOKEN).any()):  # texts of one token
            return logits.sum() * 0
        return F.cross_entropy(logits, wanted, ignore_index=NO_TOKEN)

    def batches(order: Tensor) -> Iterator[Tensor]:
        size = max(1, round(_BATCH / max(1.0, float(lengths.float().mean()))))
        return iter(order.split(size))

    student.train()
    minimise(
        student.parameters(),
        loss,
        count=len(learnt),
        fitting=Fitting(passes=passes, batch=_BATCH, learning_rate=spec.learning_rate),
        generator=generator,
        batches=batches,
    )
    return student


def _passes(rows: int, cost: int, spec: DistillationSpec) -> int:
    return max(1, min(spec.passes, int(spec.work / (rows * cost))))
