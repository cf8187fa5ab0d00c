"""What `configs/sap.yaml` holds: which experiments are run, at which size, and what the paper reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from cutlayer.core import Deviation, Spec
from cutlayer.customer import TrainSpec
from cutlayer.recipes.recipe import Size
from cutlayer.recipes.tasks import Limits, Task

Setting = float | int | str | bool | None


class Scale(Spec):
    """What `--size` changes: rows, and settings of training, for all tasks or for one."""

    limits: Limits
    training: Mapping[str, Setting] = {}
    task_training: Mapping[str, Mapping[str, Setting]] = {}


class PaperRows(Spec):
    """A line of Table 1; accuracy in per cent."""

    train: int
    dev: int
    test: int
    accuracy: float


class PaperPoint(Spec):
    """A point of Figure 2 that the text states; in per cent. `cti` is `None` where the text does not say."""

    task: str
    eta: float
    cti: bool | None
    ep: float
    ua_loss: float


class PaperLine(Spec):
    """A line of Table 3, in per cent."""

    ep: tuple[float, ...]
    ua: tuple[float, ...]


class PaperTable3(Spec):
    """Table 3."""

    eta: tuple[float, ...]
    frozen: PaperLine
    redraw: PaperLine


class Paper(Spec):
    """What the paper reports."""

    model: str
    table_1: Mapping[str, PaperRows]
    figure_2: tuple[PaperPoint, ...]
    figure_2_claims: tuple[str, ...]
    cti_helps: Mapping[str, bool]
    table_3: PaperTable3


class SapConfig(Spec):
    """`configs/sap.yaml`; that file says what each field is for."""

    title: str
    reference: str
    tasks: tuple[Task, ...]
    replaced: tuple[float, ...] = Field(min_length=1)
    training: Mapping[str, Setting]
    task_training: Mapping[str, Mapping[str, Setting]]
    table_3: str
    memoised_bottom: int = Field(ge=1)
    sizes: Mapping[Size, Scale]
    paper: Paper
    deviations: tuple[Deviation, ...]

    def task(self, name: str) -> Task:
        """A task by name."""
        return next(task for task in self.tasks if task.name == name)

    def training_of(self, task: Task, size: Size) -> TrainSpec:
        """How a task's cells are trained."""
        scale = self.sizes[size]
        layers = (self.training, self.task_training.get(task.name), scale.training, scale.task_training.get(task.name))
        merged: dict[str, Any] = {}
        for layer in layers:
            merged |= layer or {}
        return TrainSpec.model_validate(merged)
