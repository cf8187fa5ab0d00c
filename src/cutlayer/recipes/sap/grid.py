"""The cells of Table 1, Figures 2 and 4, Table 2 and Table 3."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from cutlayer.core import ConfigError, Fault, Place
from cutlayer.customer import TrainBottom, TrainSpec
from cutlayer.recipes.cells import AttackedCell, CentralisedCell, Experiment, SplitCell, Steering
from cutlayer.recipes.recipe import Order
from cutlayer.recipes.sap.config import SapConfig
from cutlayer.recipes.tasks import Task

PARTS = ("figure-2", "table-2", "table-3", "figure-4")
"""What can be run by itself. Table 1 goes with Figure 2."""


def tasks_of(config: SapConfig, parts: Sequence[str]) -> tuple[Task, ...]:
    """The data sets of some parts."""
    if "figure-2" in parts:
        return config.tasks
    of_part = {"table-2": config.depths.task, "table-3": config.table_3, "figure-4": config.depths.task}
    wanted = {of_part[part] for part in parts}
    return tuple(task for task in config.tasks if task.name in wanted)


class Grid:
    """Every cell of the paper's experiments for one order, by where it stands in the report.

    Args:
        config: The recipe's settings.
        order: What is to be run.
        experiment: Where it is run.
        parts: Which of `PARTS`.

    Attributes:
        handed_out: By blocks at the customer, the share of the model's weights that it gets; of Figure 4 and Table 2.

    Raises:
        ConfigError: The model has too few blocks.
    """

    def __init__(self, config: SapConfig, order: Order, experiment: Experiment, parts: Sequence[str] = PARTS) -> None:
        self.config = config
        self.parts = parts
        self.tasks = tasks_of(config, parts)
        self._order = order
        self._model = experiment.model
        self.seeds = order.seeds
        self.family = experiment.family
        self.limits = config.sizes[order.size].limits
        deepest = [
            Fault(f"depths.{name}", bottom, f"must be below the model's {experiment.blocks} blocks")
            for name, bottoms in self._bottoms().items()
            for bottom in bottoms
            if bottom >= experiment.blocks
        ]
        if deepest:
            raise ConfigError(deepest, remedy="Choose others with --set depths.figure_4=[0,1] or table_2=[1].")
        depths = {bottom for bottoms in self._bottoms().values() for bottom in bottoms}
        self.handed_out = {bottom: experiment.handed_out(bottom) for bottom in sorted(depths)}
        self.etas = {
            task.name: [
                point.eta
                for point in experiment.calibrated(
                    task, self.limits, config.replaced, max_tokens=self.training(task).max_length
                )
            ]
            for task in self.tasks
            if set(parts) != {"figure-4"}
        }

    def training(self, task: Task) -> TrainSpec:
        """How a task's cells are trained, at the size ordered."""
        return self.config.training_of(task, self._order.size)

    def _base(self, task: Task, seed: int) -> dict[str, Any]:
        return {
            "task": task,
            "limits": self.limits,
            "model": self._model,
            "training": self.training(task),
            "seed": seed,
        }

    def centralised(self, task: Task) -> list[CentralisedCell]:
        """Table 1's accuracy, a cell for each seed."""
        return [CentralisedCell(**self._base(task, seed)) for seed in range(self._order.seeds)]

    def split(self, task: Task, eta: float, **settings: Any) -> list[CentralisedCell]:
        """A point of Figure 2 or Table 3, a cell for each seed."""
        return [SplitCell(**self._base(task, seed), eta=eta, **settings) for seed in range(self._order.seeds)]

    def figure_2(self, task: Task, steering: Steering) -> list[tuple[float, list[CentralisedCell]]]:
        """A task's curve: the calibrated eta0, then no privacy, which is the same with and without CTI."""
        curve = [(eta, self.split(task, eta, steering=steering)) for eta in self.etas[task.name]]
        return [*curve, (math.inf, self.split(task, math.inf))]

    def table_3(self) -> dict[TrainBottom, list[tuple[float, list[CentralisedCell]]]]:
        """Table 3's lines, and the third: trainable blocks above one memoised release."""
        task = self.config.task(self.config.table_3)
        bottoms = {TrainBottom.FROZEN: 0, TrainBottom.REDRAW: 0, TrainBottom.MEMOISED: self.config.memoised_bottom}
        return {
            how: [(eta, self.split(task, eta, bottom=bottom, train_bottom=how)) for eta in self.etas[task.name]]
            for how, bottom in bottoms.items()
        }

    def _bottoms(self) -> dict[str, tuple[int, ...]]:
        """Blocks at the customer in Figure 4 and Table 2, of those of them that are run."""
        depths = self.config.depths
        of_part = {"figure-4": ("figure_4", depths.figure_4), "table-2": ("table_2", depths.table_2)}
        return dict(of_part[part] for part in self.parts if part in of_part)

    def _attacked(self, bottom: int, place: Place, eta: float) -> list[CentralisedCell]:
        """A point of Figure 4 or Table 2, a cell for each seed: CTI where noise acts on tokens."""
        depths = self.config.depths
        task = self.config.task(depths.task)
        scale = self.config.sizes[self._order.size]
        plain = math.isinf(eta)
        return [
            AttackedCell(
                **self._base(task, seed),
                eta=eta,
                steering=Steering.NONE if plain or place is Place.ACTIVATIONS else Steering.BY_CLASS,
                bottom=bottom,
                place=place,
                attacks=depths.without_noise if plain else depths.with_noise,
                attacked_tokens=scale.attacked_tokens,
                public=depths.text.model_copy(update={"texts": scale.public_texts or depths.text.texts}),
            )
            for seed in range(self._order.seeds)
        ]

    def figure_4(self) -> list[tuple[int, list[CentralisedCell]]]:
        """Without noise, by depth."""
        return [(bottom, self._attacked(bottom, Place.TOKENS, math.inf)) for bottom in self.handed_out]

    def table_2(self) -> list[tuple[int, Place, float, list[CentralisedCell]]]:
        """With noise, by depth, place and eta0; without noise Figure 4's."""
        depths = self.config.depths
        return [
            (bottom, place, eta, self._attacked(bottom, place, eta))
            for bottom in depths.table_2
            for place in (Place.TOKENS, Place.ACTIVATIONS)
            for eta in self.etas[depths.task]
        ]

    def __iter__(self) -> Iterator[CentralisedCell]:
        for task in self.tasks:
            yield from self.centralised(task)
            if "figure-2" in self.parts:
                for steering in Steering:
                    for _, cells in self.figure_2(task, steering):
                        yield from cells
        if "table-3" in self.parts:
            for line in self.table_3().values():
                for _, cells in line:
                    yield from cells
        for _, cells in self.figure_4():
            yield from cells
        if "table-2" in self.parts:
            for *_, cells in self.table_2():
                yield from cells
