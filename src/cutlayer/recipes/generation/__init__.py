"""Recipe `generation`: what noise on tokens does to a language model's text, which SAP leaves open.

"The impact of text privatization on the usability of generated content remains to be further researched."
Ref: arXiv:2312.15603, Limitations. Settings: `configs/generation.yaml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cutlayer.customer import Progress
from cutlayer.models import STARTER_DECODER
from cutlayer.recipes.generation.cells import Experiment
from cutlayer.recipes.generation.config import GenerationConfig
from cutlayer.recipes.generation.report import content, draw, tables
from cutlayer.recipes.recipe import RECIPES, Order, Report, at_size, chosen_parts, configured, read_config
from cutlayer.reports import write_report

__all__ = ["NoisyGeneration"]


class NoisyGeneration:
    """Perplexity, a page of text and token recovery over eta.

    Args:
        config: Other settings than those that ship.
    """

    default_model = STARTER_DECODER
    parts: tuple[str, ...] = ()

    def __init__(self, config: GenerationConfig | None = None) -> None:
        self._config = config or read_config("generation", GenerationConfig)
        self.title = self._config.title
        self.reference = self._config.reference

    def show(self) -> Mapping[str, Any]:
        """Settings."""
        return self._config.model_dump(mode="json")

    def run(self, order: Order, progress: Progress) -> Report:
        """Runs what is not finished yet and reports.

        Raises:
            ConfigError: There is no such size, or a part is asked for.
            DataError: A data set is missing.
            ModelError: There is no such model, or it is no decoder.
            Stopped: The user interrupted; the same order goes on.
        """
        config = configured(self._config, order.settings)
        chosen_parts(self.parts, order.only, other_names={})
        scale = at_size(config.sizes, order.size)
        with Experiment(config, scale, order, progress) as experiment:
            results = experiment.run()
        drawn = tables(results, seeds=order.seeds)
        written = {
            "recipe": "generation",
            "reference": self.reference,
            "model": {"source": order.model, "fingerprint": experiment.model},
            "size": order.size.value,
            "seeds": order.seeds,
            "settings": dict(order.settings),
            **content(results),
        }
        plot = order.out / "perplexity-and-recovery.png"
        draw(results, plot, model=order.model)
        files = write_report(order.out, drawn, written, title=f"Recipe generation: {self.title}", pictures=[plot.name])
        return Report(drawn, written, (*files, plot))


RECIPES.add("generation")(NoisyGeneration())
