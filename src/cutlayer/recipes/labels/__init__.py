"""Recipe `labels`: what hides labels from a vendor that trains, attacked, with what it costs.

Randomised response, recombined backward passes and a head at the customer, for a classifier; the first two for next
tokens. Settings: `configs/labels.yaml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cutlayer.customer import Progress
from cutlayer.models import STARTER
from cutlayer.recipes.labels.cells import Experiment
from cutlayer.recipes.labels.config import LabelsConfig
from cutlayer.recipes.labels.figure import draw_response
from cutlayer.recipes.labels.report import Results, content, tables
from cutlayer.recipes.recipe import RECIPES, Order, Report, at_size, chosen_parts, configured, read_config
from cutlayer.reports import write_report

__all__ = ["HiddenLabels"]


class HiddenLabels:
    """Options that protect labels, each attacked.

    Args:
        config: Other settings than those that ship.
    """

    default_model = STARTER
    parts: tuple[str, ...] = ("classifier", "language")

    def __init__(self, config: LabelsConfig | None = None) -> None:
        self._config = config or read_config("labels", LabelsConfig)
        self.title = self._config.title
        self.reference = self._config.reference

    def show(self) -> Mapping[str, Any]:
        """Settings."""
        return self._config.model_dump(mode="json")

    def run(self, order: Order, progress: Progress) -> Report:
        """Runs what is not finished yet and reports.

        Raises:
            ConfigError: There is no such size or part.
            DataError: A data set is missing, or too small.
            Stopped: The user interrupted; the same order goes on.
        """
        config = configured(self._config, order.settings)
        parts = chosen_parts(self.parts, order.only, other_names={})
        with Experiment(config, at_size(config.sizes, order.size), order, parts, progress) as experiment:
            results = Results(experiment.run())
        drawn = tables(results, config)
        written = {
            "recipe": "labels",
            "reference": self.reference,
            "model": {"source": order.model, "fingerprint": experiment.model},
            "size": order.size.value,
            "seeds": order.seeds,
            "settings": dict(order.settings),
            **content(results),
        }
        pictures: list[Path] = []
        if "classifier" in parts:
            pictures.append(order.out / "randomised-response.png")
            draw_response(results, config, pictures[-1], model=order.model)
        names = [picture.name for picture in pictures]
        files = write_report(order.out, drawn, written, title=f"Recipe labels: {self.title}", pictures=names)
        return Report(drawn, written, (*files, *pictures))


RECIPES.add("labels")(HiddenLabels())
