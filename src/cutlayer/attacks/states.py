"""What the vendor's own blocks make of releases: states in which each token has seen its text."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from cutlayer.attacks.knowledge import Inapplicable, Knowledge
from cutlayer.attacks.simulate import batches
from cutlayer.core import Cut, Payload, Ragged, Rows, Tokens
from cutlayer.models import Inputs, Kind, Template, Top, family_of, split
from cutlayer.models.cutting import block_list
from cutlayer.privacy.neighbours import bf16_serves

_POSITIONS = 2**13
"""Padded positions that go through blocks at a time."""


def reading_blocks(knowledge: Knowledge, *, share: float = 1.0, tuned: bool = False) -> Top:
    """The vendor's blocks above the cut, from the lowest on; a twin that shares the model's weights.

    Args:
        knowledge: The model and the cut.
        share: Of the whole model's blocks, up to which they go; one block at least.
        tuned: Whether they are to be tuned. Their attention is then the plain one where products are in bf16: the
            backward pass of the fused one takes four to six times as long there (12 heads, 16 texts of 30 tokens).

    Raises:
        Inapplicable: No model was granted, or one whose blocks do not follow one another in one stack.
    """
    model = knowledge.model
    if model is None:
        raise Inapplicable("The attacker reads with the vendor's own model, and it was granted none.")
    family = family_of(model.config)
    if family.kind is Kind.ENCODER_DECODER:
        raise Inapplicable("An encoder-decoder's blocks do not read a text by themselves.")
    depth = len(block_list(model, family.stacks[0]))
    upper = max((knowledge.cut.bottom or 0) + 1, min(depth, round(share * depth)))
    top = split(model, Cut(bottom=knowledge.cut.bottom, tail=depth - upper)).top
    if tuned and bf16_serves():
        top.model.set_attn_implementation("eager")
    return top


def as_inputs(payload: Payload, template: Template) -> tuple[Inputs, Tensor | None]:
    """A batch as blocks take it: ids, or rows `[batch, seq, width]` beside mask and positions."""
    if isinstance(payload, Tokens):
        return template.assemble(payload), None
    single = Rows(payload.packed.with_values(payload.packed.values.float()), payload.segment_lengths)
    hidden, inputs = template.from_rows(single)
    return inputs, hidden


def positions_of(payload: Payload, template: Template) -> Tensor:
    """`[n, segments]` int64: positions of each text, special tokens included."""
    return payload.segment_lengths if isinstance(payload, Rows) else template.segment_lengths(payload)


def states(payload: Payload, knowledge: Knowledge, blocks: Top) -> Rows:
    """States of all positions of released texts, special tokens included.

    Args:
        payload: The release.
        knowledge: The template.
        blocks: What `reading_blocks` returned.

    Returns:
        Rows in single precision; products are in bf16 where the processor is made for it.

    Raises:
        Inapplicable: The attacker was not told where special tokens stand.
    """
    template = knowledge.template
    if template is None:
        raise Inapplicable("The attacker was not told where special tokens stand.")
    lengths = positions_of(payload, template)
    found: list[Tensor] = [torch.empty(0)] * len(payload)
    for texts in batches(lengths.sum(1), _POSITIONS):
        for text, rows in zip(texts.tolist(), _pass(payload.select(texts), template, blocks), strict=True):
            found[text] = rows
    return Rows(Ragged(torch.cat(found), lengths.sum(1)), lengths)


@torch.no_grad()
def _pass(payload: Payload, template: Template, blocks: Top) -> Iterator[Tensor]:
    inputs, hidden = as_inputs(payload, template)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16_serves()):
        made = blocks(inputs, hidden)
    for rows, real in zip(made.float(), inputs.attention_mask.bool(), strict=True):
        yield rows[real]
