"""How much of the vendor's blocks a customer can copy from rows in and rows out.

Here the attacker is the customer. Where it holds the tail, each query shows it what went into the vendor's blocks and
what came out, for every token. With a window z_t = (h_t, h_{t-1}, h_{t-2}, mean of h_1 … h_t) of rows in, each feature
standardised, a student learns rows out y_t, each coordinate by its own mean and spread:

    min over W, b:  mean ‖W z_t + b - y_t‖² + lambda ‖W‖²,    then    min over f:  mean ‖f(z_t) - (y_t - W z_t - b)‖²,

in closed form, and a perceptron f by steps for what that leaves over. The penalty, and whether f helps, are chosen on
texts that neither is fitted on nor reported. Behind its rows the customer's own tail says the next token.

A student of the same kind may learn from the answers instead, or from the customer's own text: W starts as the way past
the vendor's blocks (rows out are rows in), and all of it is fitted to say those tokens through the tail. What rows buy
is what a student gains by them over these two.

Students are small, for a report may not take hours: blocks of the vendor's own kind learn more from the same rows, with
many times the work. So a number is the least that a customer can do.

Ref: SAP §3.2, goal 1; a student that regresses hidden states as in Romero et al., "FitNets", ICLR 2015, §2.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from cutlayer.attacks.evaluation.controls import Check, Control
from cutlayer.attacks.evaluation.statistics import bootstrap, resampled
from cutlayer.attacks.perceptron import Fitting, Perceptron, minimise
from cutlayer.core import Ragged, Rows, Spec
from cutlayer.models import Tail, Template

NAME = "middle-distillation"
TITLE = "A student of the vendor's blocks, from rows in and rows out"
REFERENCE = "this project; regression of hidden states: Romero et al., ICLR 2015 (FitNets)"

_BATCH = 256
"""Rows of a step."""
_FEATURES = 8_192
"""Rows whose windows are made at a time."""
_BACK = 2
"""Rows before its own that a window has."""
_NO_TOKEN = -1
"""In the place of the token that follows a text's last row."""
_HELD = 0.1
"""Share of the taught texts that a student is chosen on."""
_FLOOR = 0.95
"""Of a linear map, the least that a sound student explains."""
_BENDS = 4
"""Directions along which the nonlinear control bends."""
_BENT_FLOOR = 0.25
"""Of a nonlinear map, the least that a sound perceptron explains of what its linear part leaves over."""
_BENT_PASSES = 30
"""Of few texts, so that the perceptron has steps enough; the control's work bounds them as others."""
_STANDARD_ERRORS = 5.0


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


@dataclass(frozen=True)
class Exchanged:
    """Texts as they went through the vendor's blocks.

    Attributes:
        sent: Rows in.
        returned: Rows out, of the same texts.
        tokens: `[rows]` int64, the true token at each row, special tokens included.
        tail: The customer's own, as training left it, in evaluation mode.
        template: Where special tokens stand.
    """

    sent: Rows
    returned: Rows
    tokens: Ragged
    tail: Tail
    template: Template

    def __len__(self) -> int:
        return len(self.sent)

    def select(self, indices: Tensor | Sequence[int]) -> Exchanged:
        """The texts at `indices`, in that order."""
        return replace(
            self,
            sent=self.sent.select(indices),
            returned=self.returned.select(indices),
            tokens=self.tokens.select(indices),
        )

    @property
    def followers(self) -> Tensor:
        """`[rows]` int64: the token that follows each row in its text; -1 behind the last."""
        after = torch.cat([self.tokens.values[1:], torch.tensor([_NO_TOKEN])])
        after[self.tokens.offsets[1:] - 1] = _NO_TOKEN
        return after

    def with_returned(self, values: Tensor) -> Exchanged:
        """The same with other rows out, `[rows, width]`."""
        return replace(self, returned=replace(self.returned, packed=self.returned.packed.with_values(values)))

    def logits(self, rows: Tensor) -> Tensor:
        """The tail's logits `[rows, vocabulary]` for rows `[rows, width]` in the place of rows out."""
        like = self.sent
        hidden, inputs = self.template.from_rows(replace(like, packed=like.packed.with_values(rows)))
        model = self.tail.model
        logits: Tensor = self.tail(hidden.to(model.device, model.dtype), inputs.to(model.device))
        return logits[inputs.attention_mask.bool().to(model.device)].float().cpu()

    @torch.no_grad()
    def said(self, rows: Tensor) -> Tensor:
        """`[rows]` int64: the tail's most probable token behind each of these rows `[rows, width]`."""
        size = max(1, _BATCH * len(self) // max(1, self.sent.total))
        parts = [self.with_returned(rows).select(some) for some in torch.arange(len(self)).split(size)]
        return torch.cat([part.logits(part.returned.packed.values).argmax(1) for part in parts])

    def per_text(self, items: Tensor) -> Tensor:
        """Sums over each text's rows of items `[rows]`: `[texts]`, of their type."""
        owners = torch.arange(len(self)).repeat_interleave(self.sent.packed.lengths)
        return items.new_zeros(len(self)).index_add_(0, owners, items)


@dataclass(frozen=True)
class Copied:
    """How near a student comes to the vendor's blocks, on texts that it has not seen.

    Attributes:
        texts: That it was taught on.
        rows: How many these have.
        kind: What it is: `linear`, or `linear and perceptron`.
        explained: The share of variance of rows out that its rows explain, each coordinate in units of its own spread;
            negative where its rows are farther off than the mean row.
        explained_interval: 95 % over texts.
        agreement: The share of rows at which the customer's tail says of its rows what it says of the vendor's.
        agreement_interval: 95 % over texts.
        from_answers: Agreement of a student that learnt from what the tuned model says.
        from_answers_interval: 95 % over texts.
        from_text: Agreement of one that learnt from the texts' own tokens.
        from_text_interval: 95 % over texts.
        unseen: Texts behind these numbers.
        n: Their rows.
    """

    texts: int
    rows: int
    kind: str
    explained: float
    explained_interval: tuple[float, float]
    agreement: float
    agreement_interval: tuple[float, float]
    from_answers: float
    from_answers_interval: tuple[float, float]
    from_text: float
    from_text_interval: tuple[float, float]
    unseen: int
    n: int


class _Student(nn.Module):
    """rows out = mean + spread (W z + b + f(z)), of standardised windows z.

    Args:
        taught: What it may look at for means and spreads.
        spec: How strong it is.
        generator: Draws weights and dropout.
    """

    def __init__(self, taught: Exchanged, spec: DistillationSpec, generator: torch.Generator) -> None:
        super().__init__()
        windows, returned = _Windows(taught.sent), taught.returned.packed.values.float()
        some = windows.of(slice(0, _FEATURES))
        self._means, self._scales = some.mean(0), _spread(some)
        self._centre, self._spread = returned.mean(0), _spread(returned)
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
        """z, `[rows, features]`."""
        return (windows - self._means) / self._scales

    def targets(self, returned: Tensor) -> Tensor:
        """Rows out by their own means and spreads."""
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
        windows = _Windows(sent)
        return torch.cat([self(windows.of(part)) for part in _slices(sent.total)])


class _Windows:
    """What a student looks at for each row: it, the rows before it, and the mean of the text so far.

    Args:
        sent: Rows in.
    """

    def __init__(self, sent: Rows) -> None:
        self._values = sent.packed.values.float()
        starts = sent.packed.offsets[:-1].repeat_interleave(sent.packed.lengths)
        self._within = torch.arange(sent.total) - starts
        summed = self._values.double().cumsum(0)
        before = torch.cat([summed.new_zeros(1, summed.shape[1]), summed])[starts]
        self._so_far = ((summed - before) / (1 + self._within[:, None])).float()

    def of(self, items: Tensor | slice) -> Tensor:
        """`[items, features]`; the first `width` features are the row itself."""
        within = self._within[items]
        at = torch.arange(len(self._values))[items]
        parts = [self._values[at]]
        for back in range(1, _BACK + 1):
            earlier = self._values[(at - back).clamp(min=0)]
            parts.append(torch.where((within >= back)[:, None], earlier, 0))
        return torch.cat([*parts, self._so_far[at], (within == 0)[:, None].float()], 1)


def distil(
    exchanged: Exchanged,
    taught: Sequence[int],
    unseen: Sequence[int],
    *,
    spec: DistillationSpec,
    generator: torch.Generator,
) -> Copied:
    """Trains a student of the vendor's blocks, and two of the same kind that see no rows out.

    Args:
        exchanged: What the customer sent and got back.
        taught: Texts that are learnt from; a tenth of them, at the end, chooses between students.
        unseen: Texts that they are scored on.
        spec: How strong students are.
        generator: Draws weights, order and dropout.
    """
    learnt, compared = exchanged.select(taught), exchanged.select(unseen)
    student, kind = _regress(learnt, spec, generator)
    explained = _explained(student.rows(compared.sent), compared, learnt)
    students = (
        student,
        _imitate(learnt, learnt.said(learnt.returned.packed.values), spec, generator),
        _imitate(learnt, learnt.followers, spec, generator),
    )
    said = compared.said(compared.returned.packed.values)
    agreed = [_agreement(each, compared, said) for each in students]
    return Copied(
        texts=len(learnt),
        rows=learnt.sent.total,
        kind=kind,
        explained=explained.value,
        explained_interval=explained.interval,
        agreement=agreed[0][0],
        agreement_interval=agreed[0][1],
        from_answers=agreed[1][0],
        from_answers_interval=agreed[1][1],
        from_text=agreed[2][0],
        from_text_interval=agreed[2][1],
        unseen=len(compared),
        n=compared.sent.total,
    )


def control_students(
    exchanged: Exchanged,
    taught: Sequence[int],
    unseen: Sequence[int],
    *,
    spec: DistillationSpec,
    generator: torch.Generator,
) -> tuple[Control, ...]:
    """Whether students of these rows learn what is there, and nothing where nothing is.

    Two maps take the place of the vendor's blocks. A linear one: each row out is a random mixture of the row and the
    one before it; a student must explain nearly all of it. And a nonlinear one: each row out is a random mixture of
    absolute values along the main axes of the windows; the perceptron must explain a quarter of what the student's
    linear part leaves over. Then rows out of the run are dealt out anew among all rows of all texts: of those a student
    must explain no more than nothing, but for five standard errors.

    Args:
        exchanged: As of `distil`, with the two that follow.
        taught: Texts that are learnt from.
        unseen: Texts that numbers are of.
        spec: How strong students are; a control takes an eighth of the work.
        generator: Draws the maps, the deal, and what students draw.
    """
    weaker = spec.model_copy(update={"work": spec.work / 8})
    longer = weaker.model_copy(update={"passes": max(spec.passes, _BENT_PASSES)})
    chosen = exchanged.select([*taught, *unseen])
    returned = chosen.returned.packed.values

    def learn(rows: Tensor, strength: DistillationSpec = weaker) -> tuple[_Student, Callable[[], _Explained]]:
        made = chosen.with_returned(rows)
        learnt, compared = made.select(range(len(taught))), made.select(range(len(taught), len(made)))
        student, _ = _regress(learnt, strength, generator)
        return student, lambda: _explained(student.rows(compared.sent), compared, learnt)

    _, explained = learn(_mixed(chosen, generator))
    linear = explained()
    student, explained = learn(_bent(chosen, generator), longer)
    nonlinear = explained()
    student.nonlinear = False
    without = explained().value
    _, explained = learn(returned[torch.randperm(len(returned), generator=generator)])
    dealt = explained()
    bounds = (
        (Check.UNPROTECTED, linear, _FLOOR),
        (Check.NONLINEAR, nonlinear, without + _BENT_FLOOR * (1 - without)),
        (Check.SHUFFLED, dealt, _STANDARD_ERRORS * dealt.standard_error),
    )
    n = int(chosen.sent.packed.lengths[len(taught) :].sum())
    return tuple(
        Control(
            check=check,
            recovered=found.value,
            bound=bound,
            n=n,
            passed=found.value <= bound if check is Check.SHUFFLED else found.value >= bound,
        )
        for check, found, bound in bounds
    )


def _mixed(chosen: Exchanged, generator: torch.Generator) -> Tensor:
    """Rows out `[rows, width]` by a random linear map of the row in and of the one before it."""
    windows, seen = _Windows(chosen.sent), 2 * chosen.sent.packed.values.shape[1]
    drawn = torch.randn(seen, chosen.returned.packed.values.shape[1], generator=generator) / math.sqrt(seen)
    return torch.cat([windows.of(part)[:, :seen] @ drawn for part in _slices(chosen.sent.total)])


def _bent(chosen: Exchanged, generator: torch.Generator) -> Tensor:
    """Rows out `[rows, width]` by absolute values along the directions in which windows vary most.

    Along others a perceptron would need more rows than a short file has to find where the map bends.
    """
    windows = _Windows(chosen.sent)
    some = windows.of(slice(0, _FEATURES))
    means, scales = some.mean(0), _spread(some)
    z = (some - means) / scales
    directions = torch.randn(z.shape[1], _BENDS, generator=generator)
    for _ in range(_BENDS):  # subspace iteration: the main axes need not be exact
        directions, _ = torch.linalg.qr(z.T @ (z @ directions))
    along = torch.cat([(windows.of(part) - means) / scales @ directions for part in _slices(chosen.sent.total)])
    centred = (along - along.median(0).values) / _spread(along)
    drawn = torch.randn(_BENDS, chosen.returned.packed.values.shape[1], generator=generator)
    return centred.abs() @ drawn


@dataclass(frozen=True)
class _Explained:
    """1 - errors / spreads, of texts' sums."""

    errors: Tensor
    spreads: Tensor

    @property
    def value(self) -> float:
        return 1 - float(self.errors.sum() / self.spreads.sum())

    @property
    def interval(self) -> tuple[float, float]:
        low, high = resampled(self.errors, self.spreads)
        return 1 - high, 1 - low

    @property
    def standard_error(self) -> float:
        """The ratio estimator's, over texts; see `scoring.clustered`."""
        m, total = len(self.errors), float(self.spreads.sum())
        if m < 2:
            return math.inf
        off = self.errors - (1 - self.value) * self.spreads
        return math.sqrt(m / (m - 1) * float(off.square().sum())) / total


def _explained(rows: Tensor, compared: Exchanged, learnt: Exchanged) -> _Explained:
    """How much of the compared rows' variance is explained, in units of spreads that were learnt."""
    known = learnt.returned.packed.values.float()
    centre, spread = known.mean(0), _spread(known)
    true = compared.returned.packed.values
    errors, spreads = (
        compared.per_text((off.float() / spread).double().square().sum(1)) for off in (rows - true, true - centre)
    )
    return _Explained(errors, spreads)


def _regress(learnt: Exchanged, spec: DistillationSpec, generator: torch.Generator) -> tuple[_Student, str]:
    """The best student of rows out, by texts that it is not fitted on."""
    held = max(1, round(_HELD * len(learnt)))
    fitted = learnt.select(range(len(learnt) - held))
    choosing = learnt.select(range(len(learnt) - held, len(learnt)))
    student = _Student(fitted, spec, generator)
    windows, values = _Windows(fitted.sent), fitted.returned.packed.values

    def right() -> float:
        return _explained(student.rows(choosing.sent), choosing, fitted).value

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
    student: _Student, windows: _Windows, values: Tensor, ridges: Sequence[float]
) -> Iterator[tuple[float, Tensor]]:
    """Weights `[features + 1, width]` by penalty, in closed form; the offset is not penalised."""
    gram = product = torch.zeros(())
    for part in _slices(len(values)):
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


def _imitate(
    learnt: Exchanged,
    targets: Tensor,
    spec: DistillationSpec,
    generator: torch.Generator,
) -> _Student:
    """A student that is fitted to say tokens through the customer's tail, and sees no rows out.

    Args:
        learnt: Texts; of their rows out only the answers to them are known to it.
        targets: `[rows]` int64, the tokens; -1 for none.
        spec: How strong it is.
        generator: Draws weights, order and dropout.
    """
    sent, width = learnt.sent.packed.values.float(), learnt.returned.packed.values.shape[1]
    known = sent if sent.shape[1] == width else sent.new_zeros(len(sent), width)
    student = _Student(learnt.with_returned(known), spec, generator)
    windows, starts = _Windows(learnt.sent), learnt.sent.packed.offsets
    lengths = learnt.sent.packed.lengths
    cost = student.cost + sum(parameter.numel() for parameter in learnt.tail.parameters())
    passes = _passes(learnt.sent.total, cost, spec)

    def loss(items: Tensor) -> Tensor:
        at = torch.cat([torch.arange(int(starts[item]), int(starts[item + 1])) for item in items.tolist()])
        logits = learnt.select(items).logits(student(windows.of(at)))
        wanted = targets[at]
        if not bool((wanted != _NO_TOKEN).any()):  # texts of one token
            return logits.sum() * 0
        return F.cross_entropy(logits, wanted, ignore_index=_NO_TOKEN)

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


def _agreement(student: _Student, compared: Exchanged, said: Tensor) -> tuple[float, tuple[float, float]]:
    """How often the tail says of a student's rows what it says of the vendor's, with its interval over texts."""
    agreed = (compared.said(student.rows(compared.sent)) == said).long()
    hits, rows = compared.per_text(agreed), compared.sent.packed.lengths
    return float(hits.sum()) / float(rows.sum()), bootstrap(hits, rows)


def _passes(rows: int, cost: int, spec: DistillationSpec) -> int:
    return max(1, min(spec.passes, int(spec.work / (rows * cost))))


def _spread(rows: Tensor) -> Tensor:
    """Of each coordinate; 1 where it does not vary."""
    spread = rows.std(0, correction=0)
    return torch.where(spread > 1e-6 * spread.max().clamp(min=1e-30), spread, 1.0)


def _slices(count: int) -> Iterator[slice]:
    return (slice(start, min(count, start + _FEATURES)) for start in range(0, count, _FEATURES))
