"""RAPT, as SnD compares itself with it: a prompt that is tuned on drawn words, and plain words to reconstruct.

Ref: Split-and-Denoise, A.6.5, arXiv:2310.09130; RAPT, arXiv:2305.06212.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch
from pydantic import BaseModel

from cutlayer.attacks.evaluation.statistics import area_by_item
from cutlayer.core import Cut
from cutlayer.recipes.embedding_cells import ACCURACY, AUC, Scored
from cutlayer.recipes.lab import Lab
from cutlayer.recipes.long_table import Measure
from cutlayer.recipes.read_releases import of_mechanism
from cutlayer.recipes.replacement import Source
from cutlayer.recipes.training import RoadCell, split_run
from cutlayer.recipes.word_training import Arm
from cutlayer.reports.downstream import numbered

RAPT: Final = "RAPT"


class Classified(Scored):
    """How a tuned classifier does on unseen texts of two labels.

    Attributes:
        replaced: Share of the training texts' words that were replaced.
    """

    replaced: float | None


class RaptCell(RoadCell):
    """A classifier of two labels that the vendor tunes on words drawn at an eta.

    Attributes:
        arm: Which words are drawn, and how many plain ones stand before them.
        eta: Privacy parameter per word.
        space: Gives words their vectors.
        noise: Whose noise is drawn, by the mechanism's name.
    """

    arm: Arm
    eta: float
    space: Source
    noise: str = of_mechanism()

    @property
    def name(self) -> str:
        return f"{self.task.name}-rapt-eta{self.eta:g}-{self.tuning.method}-s{self.seed}"

    @classmethod
    def result_type(cls) -> type[BaseModel]:
        return Classified

    def run(self, lab: Lab) -> Classified:
        drawn = self.arm.replacement(self.space).model_copy(update={"noise": self.noise})
        privacy = drawn.privacy(self.eta, lab)
        road: dict[str, Any] = {"cut": Cut(bottom=None), "privacy": privacy, "reconstruction": self.arm.reconstruction}
        with split_run(self, lab, str(self.seed), **road) as run:
            test = run.data.test
            told = run.client.predict(run.result.adapter_id, test, progress=False)
            labels = sorted(set(test.labels or ()))
            truth = numbered(test.labels or ()) == 1
            scores = torch.tensor([
                each.probability if each.label == labels[1] else 1 - each.probability for each in told
            ])  # fmt: skip
            found = {ACCURACY: ((scores > 0.5) == truth).double()[None], AUC: area_by_item(scores, truth)[None]}
            return Classified.of({RAPT: found}, replaced=run.result.replaced)

    def measures(self, result: Any) -> Iterator[Measure]:
        yield from result.measures()
        yield Measure("replaced", result.replaced, axes={"method": RAPT})
