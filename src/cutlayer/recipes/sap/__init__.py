"""Recipe `sap`: Table 1, Figure 2 and Table 3 of Split-and-Privatize, at the scale of the model given.

Ref: arXiv:2312.15603. Settings and the paper's figures: `configs/sap.yaml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cutlayer.customer import Progress
from cutlayer.models import STARTER
from cutlayer.recipes.cells import Experiment
from cutlayer.recipes.recipe import RECIPES, Order, Report, at_size, chosen_parts, configured, read_config
from cutlayer.recipes.sap.config import SapConfig
from cutlayer.recipes.sap.figure import draw_figure_2
from cutlayer.recipes.sap.findings import Findings
from cutlayer.recipes.sap.grid import Grid
from cutlayer.recipes.sap.report import content, tables
from cutlayer.reports import write_report

__all__ = ["Sap"]


class Sap:
    """Split-and-Privatize: Table 1, Figure 2, Table 3.

    Args:
        config: Other settings than those that ship.
    """

    default_model = STARTER
    parts: tuple[str, ...] = ()

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
        chosen_parts(self.parts, order.only, other_names={})
        limits = at_size(config.sizes, order.size).limits
        with Experiment(order.out, model=order.model, data=order.data, progress=progress) as experiment:
            for task in config.tasks:
                # a missing file is told before hours of work
                experiment.splits(task, limits)
            grid = Grid(config, order, experiment)
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
        plot = order.out / "figure-2.png"
        draw_figure_2(findings, plot, model=order.model)
        files = write_report(order.out, drawn, written, title=f"Recipe sap: {self.title}", pictures=[plot.name])
        return Report(drawn, written, (*files, plot))


RECIPES.add("sap")(Sap())
