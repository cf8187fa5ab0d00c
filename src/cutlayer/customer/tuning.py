"""Which of the customer's own weights are trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar, cast

import torch
from torch import Tensor, nn

from cutlayer.customer.settings import FullTuning, Objective, RunSpec, TrainBottom, TuningSpec
from cutlayer.models import (
    FAMILIES,
    Archive,
    Bottom,
    Family,
    Part,
    Seq2SeqBottom,
    Seq2SeqTail,
    Tail,
    attach,
    set_checkpointing,
    set_dropout,
)
from cutlayer.wire import Form

P = TypeVar("P", bound=Part)
AnyBottom = Bottom | Seq2SeqBottom
AnyTail = Tail | Seq2SeqTail


@dataclass(frozen=True)
class Tuned:
    """The customer's parts, those of their parameters that are trained requiring gradients.

    Attributes:
        bottom: The lower part; `None` for a text cut.
        tail: The upper part, if there is one.
        trains_bottom: Whether the bottom changes, and with it the rows of a text.
    """

    bottom: AnyBottom | None
    tail: AnyTail | None
    trains_bottom: bool


def trained_parameters(*parts: AnyBottom | AnyTail | None) -> dict[str, nn.Parameter]:
    """Parameters of parts that training changes, by whole-model name; tied ones once."""
    found: dict[str, nn.Parameter] = {}
    seen: set[int] = set()
    for part in parts:
        for name, value in () if part is None else part.model.named_parameters():
            if value.requires_grad and id(value) not in seen:
                seen.add(id(value))
                found[name] = value
    return found


@torch.no_grad()
def put_back(parameters: Mapping[str, nn.Parameter], kept: Mapping[str, Tensor]) -> None:
    """Gives parameters the values that they had when they were kept.

    Args:
        parameters: What `trained_parameters` found.
        kept: By name, the values of some of them.
    """
    for name, tensor in kept.items():
        parameters[name].copy_(tensor)


def tune(archive: Archive, spec: RunSpec) -> Tuned:
    """Makes the parts of an archive ready for a run.

    A language model's parts get adapters, or are trained whole, unless all that the method trains is the vendor's. The
    token table is trained only
    where texts leave without noise: distances of a table that private texts have trained would be no
    public metric. A head that is tied to the table is trained when the table is. What all blocks of a stack use
    is trained at both parties or at none (`trains_shared`).

    Args:
        archive: What the vendor handed out.
        spec: The run's settings.
    """
    trains_bottom = spec.train_bottom is not TrainBottom.FROZEN
    bottom, tail = archive.bottom, archive.tail
    if spec.objective.generates and not isinstance(spec.tuning, FullTuning):
        if trains_bottom:
            bottom = cast("AnyBottom | None", _adapted(bottom, spec.tuning, seed=spec.seed))
        tail = cast("AnyTail | None", _adapted(tail, spec.tuning, seed=spec.seed))
    else:
        for parameter in _own(archive, spec):
            parameter.requires_grad_(True)
    for part in (bottom, tail):
        if part is not None:
            set_dropout(part, spec.training.dropout)
            set_checkpointing(part, spec.training.gradient_checkpointing)
    return Tuned(bottom, tail, trains_bottom)


def trains_shared(spec: RunSpec, family: Family) -> bool:
    """Whether a run trains what all blocks of a stack use, at both parties.

    In the whole model it stands in a stack's first block, so it is frozen with the bottom, if there is one.
    """
    kept = spec.train_bottom is TrainBottom.FROZEN and spec.form is not Form.IDS
    return family.shares and isinstance(spec.tuning, FullTuning) and not kept


def _adapted(part: P | None, tuning: TuningSpec, *, seed: int) -> P | None:
    if part is None or tuning.at_vendor or not any(True for _ in part.block_parameters()):
        return part
    return attach(part, tuning, seed=seed)


def _own(archive: Archive, spec: RunSpec) -> Iterator[nn.Parameter]:
    """The parts' own weights that are trained."""
    bottom, table = archive.bottom, archive.table
    trains_bottom = bottom is not None and spec.train_bottom is not TrainBottom.FROZEN
    noisy = spec.privacy.mechanism != "none"
    embeds = not spec.cut.bottom and spec.objective is not Objective.SEQ2SEQ
    trains_table = trains_bottom and (embeds or (spec.objective.generates and not noisy))
    kept: set[int] = set()
    if not trains_shared(spec, FAMILIES[archive.family]):
        held = [part for part in (bottom, archive.tail) if part is not None]
        kept = {id(value) for part in held for value in part.shared_parameters().values()}
    if bottom is not None and trains_bottom:
        blocks = {id(value) for value in bottom.block_parameters()}
        for value in bottom.parameters():
            if value is not table and id(value) not in kept and (spec.objective.generates or id(value) in blocks):
                yield value
    if trains_table and isinstance(table, nn.Parameter):
        yield table
    if archive.tail is not None:
        yield from (value for value in archive.tail.parameters() if id(value) not in kept | {id(table)})
