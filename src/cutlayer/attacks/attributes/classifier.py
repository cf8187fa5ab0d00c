"""A private attribute of a text's author, or its label, inferred by the vendor's own model: SAP's AIA.

"The privacy inference problem is then treated as a downstream task, and a classifier is trained using the text
representations of these samples and the corresponding privacy labels." The vendor's blocks above the cut are tuned by
a low-rank adapter, as they are for the customer's own task, and a linear map tells the class from their mean state.

Ref: SAP §5.1 (AIA), §5.2 and Figure 3, arXiv:2312.15603, after Song and Raghunathan 2020.
"""

from __future__ import annotations

import math
from copy import copy

import torch
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn

from cutlayer.attacks.attack import ATTACKS, Attack, Dial, Guesses, Question
from cutlayer.attacks.knowledge import UNMARKED, Inapplicable, Knowledge, Need, known_labels
from cutlayer.attacks.simulate import batches
from cutlayer.attacks.states import as_inputs, positions_of, reading_blocks
from cutlayer.attacks.view import View
from cutlayer.core import Payload, Rows, Tokens
from cutlayer.models import Template, Top, attach_lora
from cutlayer.models.perceptron import Fitting, by_length, minimise
from cutlayer.privacy.neighbours import bf16_serves

_POSITIONS = 2**13
"""Padded positions that are guessed at a time."""


class AttributeClassifier:
    """Guesses the class of each released text.

    Args:
        rank: Of the adapter.
        positions: First ones of each text that are read.
        learnt: The share of the known records that it learns from, spread over each release.
        fitting: How adapter and head are fitted. Nothing drops out.
    """

    def __init__(
        self,
        *,
        rank: int = 8,
        positions: int = 128,
        learnt: float = 1.0,
        fitting: Fitting = Fitting(passes=3, batch=16, learning_rate=1e-3),  # noqa: B008 - frozen
    ) -> None:
        self._rank = rank
        self._positions = positions
        self._learnt = learnt
        self._fitting = fitting

    def weakened(self, share: float) -> AttributeClassifier:
        """The same that learns from a share of the known records."""
        weaker = copy(self)
        weaker._learnt = share * self._learnt
        return weaker

    def __call__(self, view: View) -> Guesses:
        """Guesses every released text.

        Raises:
            Inapplicable: No label of any released text was granted, or no model to tune.
        """
        knowledge = view.knowledge
        labelled = known_labels(knowledge)
        if knowledge.template is None:
            raise Inapplicable("The attacker was not told where special tokens stand.")
        texts, labels = [], []
        for release in view.transcript.releases():
            told = labelled.of(release.source, release.number, len(release.payload))
            marked = (told != UNMARKED).nonzero()[:, 0]
            kept = math.ceil(self._learnt * len(marked))
            marked = marked[torch.arange(kept) * len(marked) // max(1, kept)]
            texts.append(_first(release.payload.select(marked), self._positions))
            labels.append(told[marked])
        if not sum(map(len, texts)):
            raise Inapplicable("The attacker knows the label of no record that was released.")
        net = self._fit(_joined(texts), torch.cat(labels), knowledge, knowledge.template, classes=labelled.classes)
        for release in view.transcript.releases():
            told = labelled.of(release.source, release.number, len(release.payload))
            scores = torch.zeros(len(told), labelled.classes)
            asked = (told == UNMARKED).nonzero()[:, 0]  # of the others the answer is known
            scores[asked] = net.log_probabilities(_first(release.payload.select(asked), self._positions))
            yield release.source, release.number, scores

    def _fit(
        self, payload: Payload, labels: Tensor, knowledge: Knowledge, template: Template, *, classes: int
    ) -> _Classifier:
        generator = self._fitting.generator()
        blocks = attach_lora(
            reading_blocks(knowledge, tuned=True),
            rank=self._rank,
            alpha=2 * self._rank,
            dropout=0.0,
            targets="all-linear",
            seed=self._fitting.seed,
        )
        if bf16_serves():
            _round_frozen(blocks)
        net = _Classifier(blocks, template, classes=classes)
        lengths = positions_of(payload, template).sum(1)
        minimise(
            [parameter for parameter in net.parameters() if parameter.requires_grad],
            lambda items: nn.functional.cross_entropy(net(payload.select(items)), labels[items]),
            count=len(labels),
            fitting=self._fitting,
            generator=generator,
            batches=lambda order: by_length(order, lengths, self._fitting.batch, generator),
        )
        return net.eval()


_attack = AttributeClassifier()
for _question, _name, _title in (
    (Question.ATTRIBUTE, "attribute-classifier", "the vendor's own model, tuned on releases with some attributes"),
    (Question.LABEL, "label-classifier", "the vendor's own model, tuned on releases with some labels"),
):
    ATTACKS.add(_name)(
        Attack(
            _attack,
            title=_title,
            question=_question,
            reference="SAP §5.1 (AIA), Figure 3",
            costly=True,
            needs=frozenset({Need.LABELLED, Need.MODEL}),
            floor=0.9,
            dial=Dial("known records that it learns from", _attack.weakened),
        )
    )


class _Classifier(nn.Module):
    """Tuned blocks, the mean of their states, and a linear map.

    Args:
        blocks: The vendor's, with an adapter.
        template: Where special tokens stand.
        classes: Outputs.
    """

    def __init__(self, blocks: Top, template: Template, *, classes: int) -> None:
        super().__init__()
        self._blocks = blocks
        self._template = template
        width = blocks.model.config.hidden_size
        # classes begin alike, so nothing is drawn
        self._weight = nn.Parameter(torch.zeros(classes, width))
        self._bias = nn.Parameter(torch.zeros(classes))

    def forward(self, payload: Payload) -> Tensor:
        """Scores `[texts, classes]`."""
        inputs, hidden = as_inputs(payload, self._template)
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16_serves()):
            states = self._blocks(inputs, hidden)
        real = inputs.attention_mask[:, :, None].float()
        mean = (states.float() * real).sum(1) / real.sum(1)
        return nn.functional.linear(mean, self._weight, self._bias)

    @torch.no_grad()
    def log_probabilities(self, payload: Payload) -> Tensor:
        """`[texts, classes]` of any number of texts."""
        found = torch.empty(len(payload), len(self._bias))
        for texts in batches(positions_of(payload, self._template).sum(1), _POSITIONS):
            found[texts] = torch.log_softmax(self(payload.select(texts)), 1)
        return found


def _round_frozen(blocks: Top) -> None:
    """Frozen weights of linear maps as products in bf16 take them: rounded once, not again at each step.

    What goes into an adapter stays in bf16, too, instead of being widened and rounded again.
    """
    for module in blocks.modules():
        if isinstance(module, LoraLayer):
            module.cast_input_dtype_enabled = False
        if isinstance(module, nn.Linear) and not module.weight.requires_grad:
            module.weight = nn.Parameter(module.weight.detach().bfloat16(), requires_grad=False)
            if module.bias is not None:
                module.bias = nn.Parameter(module.bias.detach().bfloat16(), requires_grad=False)


def _first(payload: Payload, positions: int) -> Payload:
    """The first positions of each single text; pairs are read whole."""
    if isinstance(payload, Rows):
        if payload.segment_count != 1:
            return payload
        kept = payload.packed.first(payload.packed.lengths.clamp(max=positions))
        return Rows(kept, kept.lengths[:, None])
    if len(payload.segments) != 1:
        return payload
    (side,) = payload.segments
    return Tokens((side.first(side.lengths.clamp(max=positions)),))


def _joined(parts: list[Payload]) -> Payload:
    rows = [part for part in parts if isinstance(part, Rows)]
    if rows:
        return Rows.concatenate(rows)
    return Tokens.concatenate([part for part in parts if isinstance(part, Tokens)])
