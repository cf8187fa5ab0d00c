"""Recipe `sap`: Tables 1 to 3, Figures 2 and 4 of Split-and-Privatize, at the scale of the model given.

Ref: arXiv:2312.15603. Settings and the paper's figures: `configs/sap.yaml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cutlayer.customer import Progress
from cutlayer.models import STARTER
from cutlayer.recipes.cells import Experiment
from cutlayer.recipes.recipe import RECIPES, Order, Report, at_size, chosen_parts, configured, read_config
from cutlayer.recipes.sap.config import SapConfig
from cutlayer.recipes.sap.figure import draw_figure_2, draw_figure_4
from cutlayer.recipes.sap.findings import Findings
from cutlayer.recipes.sap.grid import PARTS, Grid, tasks_of
from cutlayer.recipes.sap.report import content, tables
from cutlayer.reports import write_report

__all__ = ["Sap"]


class Sap:
    """Split-and-Privatize: Tables 1 to 3, Figures 2 and 4; Figure 3 is recipe `inference`.

    Args:
        config: Other settings than those that ship.
    """

    default_model = STARTER
    parts: tuple[str, ...] = PARTS

    def __init__(self, config: SapConfig | None = None) -> None:
        self._config = config or read_config("sap", SapConfig)
        self.title = self._config.title
        self.reference = self._config.reference

    def show(self) -> Mapping[str, Any]:
        """Settings, the paper's figures and the deviations from it."""
        return self._config.model_dump(mode="json")

    def run(self, order: Order, progress: Progress) -> Report:
        """Runs what is not finished yet and reports.

        Raises:
            ConfigError: There is no such size, or a part is asked for.
            DataError: A data set is missing.
            Stopped: The user interrupted; the same order goes on.
        """
        config = configured(self._config, order.settings)
        parts = chosen_parts(self.parts, order.only, other_names={"table-1": "figure-2"})
        limits = at_size(config.sizes, order.size).limits
        with Experiment(order.out, model=order.model, data=order.data, progress=progress) as experiment:
            # a missing file is told before hours of work
            for task in tasks_of(config, parts):
                experiment.splits(task, limits)
            if {"table-2", "figure-4"} & set(parts):
                config.depths.text.path(order.data)
            grid = Grid(config, order, experiment, parts)
            findings = Findings(grid, experiment.run(list(grid)))
        written = {
            "recipe": "sap",
            "reference": self.reference,
            "model": {"source": order.model, "fingerprint": experiment.model},
            "size": order.size.value,
            "seeds": order.seeds,
            "settings": dict(order.settings),
            **content(findings),
        }
        drawn = tables(findings)
        plots: list[Path] = []
        if "figure-2" in parts:
            plots.append(order.out / "figure-2.png")
            draw_figure_2(findings, plots[-1], model=order.model)
        if "figure-4" in parts:
            plots.append(order.out / "figure-4.png")
            draw_figure_4(findings, plots[-1], model=order.model)
        names = [plot.name for plot in plots]
        files = write_report(order.out, drawn, written, title=f"Recipe sap: {self.title}", pictures=names)
        return Report(drawn, written, (*files, *plots))


RECIPES.add("sap")(Sap())
