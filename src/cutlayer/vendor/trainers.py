"""Which kind of training a job is: the one place that chooses."""

from __future__ import annotations

from cutlayer.vendor.catalogue import ModelCard
from cutlayer.vendor.pairs import PairTrainer
from cutlayer.vendor.passes import writes
from cutlayer.vendor.seq2seq import Seq2SeqTrainer
from cutlayer.vendor.steps import Training
from cutlayer.vendor.trainer import Trainer
from cutlayer.wire.messages import JobSpec


def training_of(card: ModelCard, spec: JobSpec) -> type[Training]:
    """The training of a job on a model. A classifier takes one release a step, of whatever kind its model is."""
    if card.target_template is None or spec.num_labels is not None:
        return Trainer
    return PairTrainer if writes(spec) else Seq2SeqTrainer
