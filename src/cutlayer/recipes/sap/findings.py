"""Finished cells as the points of the paper's tables and figure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from pydantic import ConfigDict

from cutlayer.core import Deviation, Place, Spec
from cutlayer.recipes.cells import CellResult, CentralisedCell, Steering
from cutlayer.recipes.sap.depth import DepthPoint
from cutlayer.recipes.sap.grid import Grid
from cutlayer.reports import Estimate, Gain


class Point(Spec):
    """Runs of one setting, over seeds.

    Attributes:
        eta: Privacy parameter (eta0 under CTI).
        ua: Utility accuracy on test.
        ep: Empirical privacy; `None` where the attack does not apply.
        ep_note: What it covers, or why there is none.
        replaced: Share of tokens replaced.
        label_recovery: Share of labels that the vendor read from gradients.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=True, ser_json_inf_nan="strings")

    eta: float
    ua: Estimate
    ep: Estimate | None
    ep_note: str
    replaced: float | None
    label_recovery: float | None

    @classmethod
    def of(cls, eta: float, results: list[CellResult]) -> Point:
        """The mean of a setting's runs."""
        attacked = [result.ep for result in results if result.ep is not None]
        return cls(
            eta=eta,
            ua=Estimate.of([result.ua for result in results]),
            # one run without a number leaves the setting without one
            ep=Estimate.of(attacked) if len(attacked) == len(results) else None,
            ep_note=results[0].ep_note,
            replaced=_mean(result.replaced for result in results),
            label_recovery=_mean(result.label_recovery for result in results),
        )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def _deviations(results: Mapping[CentralisedCell, CellResult], grid: Grid) -> Mapping[Deviation, tuple[str, ...]]:
    """Where cells differ from the paper, and the data sets whose cells do; those on one matter side by side."""
    found: dict[str, dict[Deviation, dict[str, None]]] = {}
    for cell, result in results.items():
        # of the settings as they are told now: a cell may have been finished by an older version
        settings = cell.training.deviations(grid.family)
        told = {each.what for each in settings}
        for each in (*settings, *(each for each in result.deviations if each.what not in told)):
            found.setdefault(each.what, {}).setdefault(each, {})[cell.task.title] = None
    return {each: tuple(titles) for same in found.values() for each, titles in same.items()}


class Findings:
    """Finished cells, as the points and lines of the paper's tables."""

    def __init__(self, grid: Grid, results: Mapping[CentralisedCell, CellResult]) -> None:
        self.config = grid.config
        self.seeds = grid.seeds
        self.limits = grid.limits
        self.parts = grid.parts
        tasks = grid.tasks
        self.tasks = tasks
        self.training = {task.name: grid.training(task) for task in tasks}
        self.rows = {task.name: results[grid.centralised(task)[0]].rows for task in tasks}
        self.centralised = {
            task.name: Estimate.of([results[cell].ua for cell in grid.centralised(task)]) for task in tasks
        }
        self.curves = {
            (task.name, steering): [
                Point.of(eta, [results[cell] for cell in cells]) for eta, cells in grid.figure_2(task, steering)
            ]
            for task in tasks
            for steering in Steering
            if "figure-2" in grid.parts
        }
        self.gains: Mapping[tuple[str, Steering], Gain | None] = {
            (task.name, steering): Gain.of(self._measured(task.name, steering), self._measured(task.name))
            for task in tasks
            for steering in Steering
            if steering is not Steering.NONE and "figure-2" in grid.parts
        }
        self.table_3 = {
            how: [Point.of(eta, [results[cell] for cell in cells]) for eta, cells in line]
            for how, line in (grid.table_3() if "table-3" in grid.parts else {}).items()
        }
        self.by_depth = {
            bottom: DepthPoint.of(bottom, Place.TOKENS, math.inf, [results[cell] for cell in cells])
            for bottom, cells in grid.figure_4()
        }
        self.table_2 = [
            DepthPoint.of(bottom, place, eta, [results[cell] for cell in cells])
            for bottom, place, eta, cells in (grid.table_2() if "table-2" in grid.parts else ())
        ]
        self.handed_out = grid.handed_out
        self.deviations = _deviations(results, grid)

    def _measured(self, task: str, steering: Steering = Steering.NONE) -> list[tuple[Estimate, Estimate]]:
        """A curve's points for comparison; without noise there is nothing that CTI could change."""
        points = self.curves[task, steering]
        if steering is not Steering.NONE:
            points = [point for point in points if math.isfinite(point.eta)]
        return [(point.ua, point.ep) for point in points if point.ep is not None]
