"""What of a text or a release is content: without special tokens, segment by segment."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from cutlayer.attacks.knowledge import Inapplicable, Knowledge
from cutlayer.core import Payload, Ragged, Rows, Tokens


def content_tokens(payload: Payload, knowledge: Knowledge) -> Tokens:
    """What was released in the place of each content token: ids, or rows `[width]`.

    Raises:
        Inapplicable: Rows were sent, and the attacker was not told where special tokens stand.
    """
    if isinstance(payload, Tokens):
        return payload
    values, lengths = content_rows(payload, knowledge)
    # a pair's segments lie one behind the other, text by text
    owner = torch.arange(lengths.shape[1]).repeat(len(lengths)).repeat_interleave(lengths.flatten())
    sides = range(lengths.shape[1])
    return Tokens(tuple(Ragged(values[owner == side], lengths[:, side].contiguous()) for side in sides))


def content_rows(rows: Rows, knowledge: Knowledge) -> tuple[Tensor, Tensor]:
    """Rows of content tokens: special tokens stand at places that the vendor's own template tells.

    Returns:
        `[total, width]`, text by text, and their number `[n, segments]`.
    """
    if knowledge.template is None:
        raise Inapplicable("Boundary rows were sent, and the attacker was not told where special tokens stand.")
    layout = knowledge.template.layout(rows.segment_count)
    closing = torch.tensor([layout.closing(side) for side in range(layout.segments)])
    lengths = rows.segment_lengths - closing
    # a text assembled from ids that no tokenizer has shows where content stands
    marked = Tokens(
        tuple(
            Ragged(torch.full((int(side.sum()),), -1, dtype=torch.int64), side.contiguous())
            for side in lengths.unbind(1)
        )
    )
    ids = cast(Tensor, knowledge.template.assemble(marked).input_ids)
    content = knowledge.template.unpad(ids, marked).packed.values < 0
    return rows.packed.values[content], lengths


def single_texts(tokens: Tokens) -> Ragged:
    """Every segment as a text of its own, those of pairs one behind the other; empty ones left out."""
    joined = Ragged.concatenate(tokens.segments)
    return joined.select(joined.lengths.nonzero()[:, 0])


def mean_rows(payload: Payload, knowledge: Knowledge) -> Tensor:
    """The mean `[texts, width]` of each text's rows, special tokens' among them, or of its ids' rows; 0 of none.

    Raises:
        Inapplicable: Ids were sent, and no table was granted.
    """
    if isinstance(payload, Rows):
        return _means(payload.packed.values, [payload.packed])
    if knowledge.table is None:
        raise Inapplicable("Token ids were sent, and the attacker was granted no embedding table.")
    table = knowledge.table.detach()
    return _means(torch.cat([table[side.values] for side in payload.segments]), list(payload.segments))


def _means(rows: Tensor, sides: list[Ragged]) -> Tensor:
    owner = torch.cat([torch.arange(len(side)).repeat_interleave(side.lengths) for side in sides])
    counts = torch.stack([side.lengths for side in sides]).sum(0)
    sums = torch.zeros(len(counts), rows.shape[1]).index_add(0, owner, rows.float())
    return sums / counts.clamp(min=1)[:, None]
