"""The cells of Table 1, Figure 2 and Table 3."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from cutlayer.customer import TrainBottom, TrainSpec
from cutlayer.recipes.cells import CentralisedCell, Experiment, SplitCell, Steering
from cutlayer.recipes.recipe import Order
from cutlayer.recipes.sap.config import SapConfig
from cutlayer.recipes.tasks import Task


class Grid:
    """Every cell of the paper's experiments for one order, by where it stands in the report."""

    def __init__(self, config: SapConfig, order: Order, experiment: Experiment) -> None:
        self.config = config
        self._order = order
        self._model = experiment.model
        self.seeds = order.seeds
        self.family = experiment.family
        self.limits = config.sizes[order.size].limits
        self.etas = {
            task.name: [
                point.eta
                for point in experiment.calibrated(
                    task, self.limits, config.replaced, max_tokens=self.training(task).max_length
                )
            ]
            for task in config.tasks
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

    def __iter__(self) -> Iterator[CentralisedCell]:
        for task in self.config.tasks:
            yield from self.centralised(task)
            for steering in Steering:
                for _, cells in self.figure_2(task, steering):
                    yield from cells
        for line in self.table_3().values():
            for _, cells in line:
                yield from cells
