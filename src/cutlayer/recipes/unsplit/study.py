"""What a study is: settings that are attacked, and what their numbers say about a claim."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from cutlayer.core import Proportion
from cutlayer.customer import Method
from cutlayer.recipes.unsplit.cells import AttackCell, InverterCell
from cutlayer.recipes.unsplit.findings import Pooled, Verdict
from cutlayer.recipes.unsplit.paper import PAPER, Scores

Key = tuple[str, str]
"""Of a point: its series, and where it stands on the axis."""


@dataclass(frozen=True)
class Point:
    """A setting.

    Attributes:
        series: Which line of the plot.
        at: Where on its axis.
        attacks: UnSplit's cells, one for each seed.
        inversions: The inverter's cells on the same boundaries, where both are asked for.
        paper: What the paper prints for it, about the model that is nearest to ours.
    """

    series: str
    at: str
    attacks: tuple[AttackCell, ...] = ()
    inversions: tuple[InverterCell, ...] = ()
    paper: Scores | None = None

    @property
    def key(self) -> Key:
        """What it is known by."""
        return self.series, self.at


@dataclass(frozen=True)
class Study:
    """A part of the paper, or beside it.

    Attributes:
        name: What `--only` calls it.
        title: Of its table.
        axis: What differs along the plot.
        points: What is attacked.
        judge: What the numbers say of the paper's claim.
        judge_inverter: What the inverter's numbers, by stage, say of ours.
        notes: What a reader has to know.
    """

    name: str
    title: str
    axis: str
    points: tuple[Point, ...]
    judge: Callable[[Mapping[Key, Pooled]], Sequence[Verdict]] = field(default=lambda _: ())
    judge_inverter: Callable[[Mapping[Key, Mapping[str, Pooled]]], Sequence[Verdict]] = field(default=lambda _: ())
    notes: tuple[str, ...] = ()


GPT2 = PAPER.table_2["GPT-2"]
FIRST, SECOND = "iteration 1", "iteration 2"
AS_PRINTED, ROWS_ONLY = "Algorithm 1", "x' alone, rate 0.01"
FULL, LORA = "full fine-tuning", "LoRA, r 8"
METHODS = {Method.FULL: FULL, Method.LORA: LORA}


def blocks(depth: int) -> str:
    """A depth in words."""
    return f"{depth} block" + "s" * (depth > 1)


def case(found: Mapping[Key, Pooled], series: str, at: str) -> tuple[str, Proportion]:
    """A point's name for a sentence, and its accuracy."""
    return f"({series}, {at})", found[series, at].accuracy
