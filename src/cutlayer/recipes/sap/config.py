"""What `configs/sap.yaml` holds: which experiments are run, at which size, and what the paper reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from cutlayer.core import Deviation, Spec
from cutlayer.customer import TrainSpec
from cutlayer.recipes.recipe import Size
from cutlayer.recipes.tasks import Limits, Task, TextFile

Setting = float | int | str | bool | None


class Scale(Spec):
    """What `--size` changes: rows, training (of all tasks, of one), and of attacks what they read and are measured on.

    Attributes:
        limits: Rows.
        training: Of all tasks.
        task_training: Of one.
        attacked_tokens: Tokens that slow attacks are measured on.
        public_texts: Of the text that the attacker reads beforehand, so many; as in `depths` where it is left out.
    """

    limits: Limits
    training: Mapping[str, Setting] = {}
    task_training: Mapping[str, Mapping[str, Setting]] = {}
    attacked_tokens: int = Field(ge=1)
    public_texts: int | None = Field(default=None, ge=1)


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


class PaperTable2(Spec):
    """Table 2; the last EP and UA of a bottom are without privatization."""

    eta: tuple[float, ...]
    bottoms: Mapping[int, PaperLine]


class PaperConclusion(Spec):
    """What section 6 says of a deeper bottom; in per cent, UA against centralised accuracy."""

    blocks: int
    ep: float
    ua_loss: float


class Depths(Spec):
    """Figure 4 and Table 2.

    Attributes:
        task: The data set.
        figure_4: Blocks at the customer, without noise.
        table_2: Blocks at the customer, with and without noise.
        without_noise: Attacks on what leaves without noise.
        with_noise: Attacks on what leaves with noise.
        text: What the attacker reads beforehand.
    """

    task: str
    figure_4: tuple[int, ...] = Field(min_length=1)
    table_2: tuple[int, ...] = Field(min_length=1)
    without_noise: tuple[str, ...] = Field(min_length=1)
    with_noise: tuple[str, ...] = Field(min_length=1)
    text: TextFile


class Paper(Spec):
    """What the paper reports; `architecture` is its model's, for counting weights."""

    model: str
    table_1: Mapping[str, PaperRows]
    figure_2: tuple[PaperPoint, ...]
    figure_2_claims: tuple[str, ...]
    cti_helps: Mapping[str, bool]
    table_2: PaperTable2
    table_3: PaperTable3
    figure_4_claims: tuple[str, ...]
    conclusion: PaperConclusion
    architecture: Mapping[str, int]


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
    depths: Depths
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
