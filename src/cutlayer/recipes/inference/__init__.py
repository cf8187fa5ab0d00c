"""Recipe `inference`: what releases tell of their authors and of the entities they name, over eta and N_l.

SAP's Figure 3 (attribute inference over labelled records) and RAPT's Figure 3 (empirical privacy against five
attacks), on public data. Ref: arXiv:2312.15603; arXiv:2305.06212. Settings and claims: `configs/inference.yaml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cutlayer.customer import Progress
from cutlayer.models import STARTER
from cutlayer.recipes.inference.cells import PARTS, Experiment
from cutlayer.recipes.inference.config import InferenceConfig
from cutlayer.recipes.inference.figure import draw_rapt, draw_sap
from cutlayer.recipes.inference.report import content, tables
from cutlayer.recipes.recipe import RECIPES, Order, Report, at_size, chosen_parts, configured, read_config
from cutlayer.reports import write_report

__all__ = ["Inference"]


class Inference:
    """Attribute inference and entity recognition on releases.

    Args:
        config: Other settings than those that ship.
    """

    default_model = STARTER
    parts: tuple[str, ...] = PARTS

    def __init__(self, config: InferenceConfig | None = None) -> None:
        self._config = config or read_config("inference", InferenceConfig)
        self.title = self._config.title
        self.reference = self._config.reference

    def show(self) -> Mapping[str, Any]:
        """Settings, what the papers say and the deviations from them."""
        return self._config.model_dump(mode="json")

    def run(self, order: Order, progress: Progress) -> Report:
        """Runs what is not finished yet and reports.

        Raises:
            ConfigError: There is no such size or part.
            DataError: A data set is missing, or too small.
            Stopped: The user interrupted; the same order goes on.
        """
        config = configured(self._config, order.settings)
        scale = at_size(config.sizes, order.size)
        parts = chosen_parts(self.parts, order.only, other_names={})
        with Experiment(config, scale, order, parts, progress) as experiment:
            results = experiment.run()
        drawn = tables(results, config, parts)
        written = {
            "recipe": "inference",
            "reference": self.reference,
            "model": {"source": order.model, "fingerprint": experiment.model},
            "size": order.size.value,
            "seeds": order.seeds,
            "settings": dict(order.settings),
            **content(results, config, parts),
        }
        plots = []
        for part, draw in zip(PARTS, (draw_sap, draw_rapt), strict=True):
            if part in parts:
                plots.append(order.out / f"{part}.png")
                draw(results, config, plots[-1], model=order.model)
        files = write_report(
            order.out,
            drawn,
            written,
            title=f"Recipe inference: {self.title}",
            pictures=[plot.name for plot in plots],
        )
        return Report(drawn, written, (*files, *plots))


RECIPES.add("inference")(Inference())
