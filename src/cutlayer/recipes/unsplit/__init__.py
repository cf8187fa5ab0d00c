"""Recipe `unsplit`: the split fine-tuning study and its attack, at the scale of the model given.

Settings: `configs/unsplit.yaml`; what the paper prints: `paper.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cutlayer.customer import Progress
from cutlayer.models import STARTER_DECODER
from cutlayer.recipes.recipe import RECIPES, Order, Report, at_size, chosen_parts, configured, read_config
from cutlayer.recipes.unsplit.cells import Experiment
from cutlayer.recipes.unsplit.config import UnsplitConfig
from cutlayer.recipes.unsplit.grid import Grid
from cutlayer.recipes.unsplit.paper import PAPER
from cutlayer.recipes.unsplit.parts import OTHER_NAMES, PARTS, Part, make_part
from cutlayer.recipes.unsplit.report import Results
from cutlayer.reports import Table, write_report

__all__ = ["SplitStudy"]


class SplitStudy:
    """Is split learning privacy-preserving for fine-tuning? The paper's tables and figures, and what it did not try.

    Args:
        config: Other settings than those that ship.
    """

    default_model = STARTER_DECODER
    parts: tuple[str, ...] = PARTS

    def __init__(self, config: UnsplitConfig | None = None) -> None:
        self._config = config or read_config("unsplit", UnsplitConfig)
        self.title = self._config.title
        self.reference = self._config.reference

    def show(self) -> Mapping[str, Any]:
        """Settings, parts, the paper's figures and the deviations from it."""
        return {
            "parts": list(self.parts),
            **self._config.model_dump(mode="json"),
            "paper": PAPER.model_dump(mode="json"),
        }

    def run(self, order: Order, progress: Progress) -> Report:
        """Runs what is not finished yet and reports.

        Raises:
            ConfigError: There is no such size or part.
            DataError: A data set is missing.
            ModelError: There is no such model.
            Stopped: The user interrupted; the same order goes on.
        """
        names = chosen_parts(self.parts, order.only, other_names=OTHER_NAMES)
        config = configured(self._config, order.settings)
        at_size(config.sizes, order.size)
        with Experiment(order.out, model=order.model, data=order.data, progress=progress) as experiment:
            grid = Grid(config, order, experiment.recorder)
            for corpus in (*config.corpora.values(), config.public):
                # a missing file is told before hours of work
                experiment.recorder.texts(corpus)
            parts = {name: make_part(name, grid, experiment, order.out) for name in names}
            results = self._results(list(parts.values()), experiment)
            reports = {name: part.report(results) for name, part in parts.items()}
        # Tables 2 and 3 share their parameter columns
        tables = (*dict.fromkeys(table for report in reports.values() for table in report.tables), *self._closing())
        content = {
            "recipe": "unsplit",
            "reference": self.reference,
            "model": {"source": order.model, "fingerprint": experiment.recorder.model},
            "size": order.size.value,
            "seeds": order.seeds,
            "settings": dict(order.settings),
            "parts": {name: report.content for name, report in reports.items()},
            "paper": PAPER.model_dump(mode="json"),
            "deviations": [each.model_dump() for each in self._config.deviations],
        }
        pictures = [picture for report in reports.values() for picture in report.pictures]
        files = write_report(order.out, tables, content, title=f"Recipe unsplit: {self.title}", pictures=pictures)
        return Report(tables, content, (*files, *(order.out / picture for picture in pictures)))

    @staticmethod
    def _results(parts: list[Part], experiment: Experiment) -> Results:
        return Results(
            experiment.attacks([cell for part in parts for cell in part.attacks]),
            experiment.inversions([cell for part in parts for cell in part.inversions]),
        )

    def _closing(self) -> tuple[Table, ...]:
        return (
            Table(
                title="Where this differs from the paper",
                columns=("what", "in the paper", "here", "why"),
                rows=tuple((each.what, each.value_in_paper, each.ours, each.why) for each in self._config.deviations),
            ),
            Table(
                title="Where the paper's parts disagree",
                columns=("what",),
                rows=tuple((oddity,) for oddity in PAPER.oddities),
            ),
        )


RECIPES.add("unsplit")(SplitStudy())
