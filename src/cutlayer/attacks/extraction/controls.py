"""Whether students of the vendor's blocks can learn at all: maps whose copies are known take the blocks' place."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from cutlayer.attacks.evaluation.controls import Check, Control
from cutlayer.attacks.extraction.exchanged import Exchanged
from cutlayer.attacks.extraction.explained import Explained, explained_by
from cutlayer.attacks.extraction.student import DistillationSpec, Student, regress
from cutlayer.attacks.extraction.windows import WINDOWS_AT_ONCE, Windows, slices, spread_of

_FLOOR = 0.95
"""Of a linear map, the least that a sound student explains."""
_BENDS = 4
"""Directions along which the nonlinear control bends."""
_BENT_FLOOR = 0.25
"""Of a nonlinear map, the least that a sound perceptron explains of what its linear part leaves over."""
_BENT_PASSES = 30
"""Of few texts, so that the perceptron has steps enough; the control's work bounds them as others."""
_STANDARD_ERRORS = 5.0


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

    def learn(rows: Tensor, strength: DistillationSpec = weaker) -> tuple[Student, Callable[[], Explained]]:
        made = chosen.with_returned(rows)
        learnt, compared = made.select(range(len(taught))), made.select(range(len(taught), len(made)))
        student, _ = regress(learnt, strength, generator)
        return student, lambda: explained_by(student.rows(compared.sent), compared, learnt)

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
    windows, seen = Windows(chosen.sent), 2 * chosen.sent.packed.values.shape[1]
    drawn = torch.randn(seen, chosen.returned.packed.values.shape[1], generator=generator) / math.sqrt(seen)
    return torch.cat([windows.of(part)[:, :seen] @ drawn for part in slices(chosen.sent.total)])


def _bent(chosen: Exchanged, generator: torch.Generator) -> Tensor:
    """Rows out `[rows, width]` by absolute values along the directions in which windows vary most.

    Along others a perceptron would need more rows than a short file has to find where the map bends.
    """
    windows = Windows(chosen.sent)
    some = windows.of(slice(0, WINDOWS_AT_ONCE))
    means, scales = some.mean(0), spread_of(some)
    z = (some - means) / scales
    directions = torch.randn(z.shape[1], _BENDS, generator=generator)
    for _ in range(_BENDS):  # subspace iteration: the main axes need not be exact
        directions, _ = torch.linalg.qr(z.T @ (z @ directions))
    along = torch.cat([(windows.of(part) - means) / scales @ directions for part in slices(chosen.sent.total)])
    centred = (along - along.median(0).values) / spread_of(along)
    drawn = torch.randn(_BENDS, chosen.returned.packed.values.shape[1], generator=generator)
    return centred.abs() @ drawn
