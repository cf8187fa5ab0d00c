"""Training on pairs that the vendor holds whole: a source text, and the target text that is to be written for it."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from cutlayer.core import Payload, PrecededTokens, Rows, Tokens
from cutlayer.models import Seq2SeqTop, Template, Top
from cutlayer.vendor.catalogue import ModelCard
from cutlayer.vendor.passes import write
from cutlayer.vendor.trainer import Trainer, graph_bytes, score_bytes
from cutlayer.wire.messages import JobSpec


class PairTrainer(Trainer):
    """A whole encoder-decoder, adapted or a copy of it, with its optimiser; its steps are those of other stored texts.

    Args:
        top: The shared model.
        template: Where special tokens stand in source texts.
        target_template: Where they stand in target texts.
        spec: The job.
        device: Where to compute.
    """

    def __init__(
        self, top: Top | Seq2SeqTop, template: Template, target_template: Template, spec: JobSpec, device: torch.device
    ) -> None:
        super().__init__(top, template, spec, device)
        self._templates = template, target_template

    @classmethod
    def of(cls, top: Top | Seq2SeqTop, card: ModelCard, spec: JobSpec, device: torch.device) -> Self:
        """The training of a job on stored pairs; see `Training.of`."""
        return cls(top, card.template, card.targets, spec, device)

    def _compute(self, payload: Payload) -> Tensor:
        if not isinstance(self.part, Seq2SeqTop):
            raise TypeError("this top writes no target texts")
        return write(self.part, self._templates, payload, self._device)

    def _read(self, payload: PrecededTokens) -> PrecededTokens:
        return PrecededTokens(payload.segments[:1], payload.preceding, payload.sequences)

    def estimate(self, payload: Payload) -> int:
        """Bytes that the graph of a forward pass takes at most, of both stacks and of the vocabulary's scores."""
        if isinstance(payload, Rows):
            raise TypeError("pairs are learnt from as ids")
        source, target = (
            int(template.segment_lengths(Tokens((side,))).max())
            for template, side in zip(self._templates, payload.segments, strict=True)
        )
        encoder, decoder = self.part.family.stacks
        texts = len(payload)
        return (
            graph_bytes(self.part, self._spec, encoder, texts=texts, longest=source, seen=source)
            + graph_bytes(self.part, self._spec, decoder, texts=texts, longest=target, seen=target + source)
            + score_bytes(self.part, texts * target)
        )
