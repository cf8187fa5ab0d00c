"""How many parameters a prompt or a prefix has: of the recipe's model, and of BERT-base, which papers count for."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from transformers import BertConfig, BertForSequenceClassification, PreTrainedModel

from cutlayer.core import Cut, Spec
from cutlayer.customer import TuningSpec
from cutlayer.models import split
from cutlayer.models.adapters.methods import trained_parameters
from cutlayer.recipes.lab import Cell, Lab
from cutlayer.recipes.long_table import Measure


class VirtualParameters(Spec):
    """Numbers that are trained, the head's left out.

    Attributes:
        own: Of the recipe's model.
        bert: Of BERT-base.
    """

    own: int
    bert: int


class VirtualParametersCell(Cell):
    """What a method of virtual positions trains where the vendor has the whole model.

    Attributes:
        model: The fingerprint of the recipe's model.
        tuning: The method.
    """

    model: str
    tuning: TuningSpec

    def run(self, lab: Lab) -> VirtualParameters:
        with torch.device("meta"):
            bert = BertForSequenceClassification(BertConfig())  # its defaults are BERT-base's; nothing is loaded
        return VirtualParameters(own=self._count(lab.model().whole), bert=self._count(bert))

    def _count(self, model: PreTrainedModel) -> int:
        return trained_parameters(split(model, Cut(bottom=None)).top, self.tuning, num_labels=None, shared=True)

    def measures(self, result: VirtualParameters) -> Iterator[Measure]:
        yield Measure("parameters", result.own)
        yield Measure("parameters, BERT", result.bert)
