"""Recipe `words`: what is read of releases word by word, by the papers' attack and by stronger ones.

Rows without noise by depth, shortened noisy rows, token ids, and noise in single precision. Settings, and what must
hold: `configs/words.yaml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cutlayer.customer import Progress
from cutlayer.models import STARTER
from cutlayer.recipes.recipe import RECIPES, Order, Report, at_size, chosen_parts, configured, read_config
from cutlayer.recipes.words.cells import PARTS, Experiment
from cutlayer.recipes.words.config import WordsConfig
from cutlayer.recipes.words.figure import draw_depth
from cutlayer.recipes.words.report import Results, content, tables
from cutlayer.reports import write_report

__all__ = ["ReadWords"]


class ReadWords:
    """Token recovery by nearest neighbour, and by what reads more.

    Args:
        config: Other settings than those that ship.
    """

    default_model = STARTER
    parts: tuple[str, ...] = PARTS

    def __init__(self, config: WordsConfig | None = None) -> None:
        self._config = config or read_config("words", WordsConfig)
        self.title = self._config.title
        self.reference = self._config.reference

    def show(self) -> Mapping[str, Any]:
        """Settings, and what must hold."""
        return self._config.model_dump(mode="json")

    def run(self, order: Order, progress: Progress) -> Report:
        """Runs what is not finished yet and reports.

        Raises:
            ConfigError: There is no such size or part, or the model has too few blocks.
            DataError: A data set is missing.
            Stopped: The user interrupted; the same order goes on.
        """
        config = configured(self._config, order.settings)
        parts = chosen_parts(self.parts, order.only, other_names={})
        with Experiment(config, at_size(config.sizes, order.size), order, parts, progress) as experiment:
            results = Results(experiment, experiment.run(), order.seeds)
        drawn = tables(results)
        written = {
            "recipe": "words",
            "reference": self.reference,
            "model": {"source": order.model, "fingerprint": experiment.model},
            "size": order.size.value,
            "seeds": order.seeds,
            "settings": dict(order.settings),
            **content(results),
        }
        pictures: list[Path] = []
        if "unprotected" in parts:
            pictures.append(order.out / "behind-blocks.png")
            draw_depth(results, pictures[-1], model=order.model)
        names = [picture.name for picture in pictures]
        files = write_report(order.out, drawn, written, title=f"Recipe words: {self.title}", pictures=names)
        return Report(drawn, written, (*files, *pictures))


RECIPES.add("words")(ReadWords())
