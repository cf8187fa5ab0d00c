"""Which kind of training a job is: the one place that chooses."""

from __future__ import annotations

from cutlayer.vendor.catalogue import ModelCard
from cutlayer.vendor.seq2seq import Seq2SeqTrainer
from cutlayer.vendor.steps import Training
from cutlayer.vendor.trainer import Trainer


def training_of(card: ModelCard) -> type[Training]:
    """The training of a job on a model."""
    return Trainer if card.target_template is None else Seq2SeqTrainer
