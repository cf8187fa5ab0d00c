"""What of a model is handed out at a cut: weights by name, count and share."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedModel

from cutlayer.core import Cut
from cutlayer.models.anatomy import Kind, family_of
from cutlayer.models.cutting import block_list, embedding_table
from cutlayer.models.seq2seq import cut_up

TABLE, EMBEDDINGS, END = "token-embedding table", "other embeddings", "final norm and head"


@dataclass(frozen=True)
class WeightGroup:
    """Weights that are handed out together, or not at all.

    Attributes:
        name: `token-embedding table`, `other embeddings`, `block 3`, `final norm and head`.
        parameters: How many numbers the whole model has of them.
        handed_out: How many of these the customer gets.
    """

    name: str
    parameters: int
    handed_out: int


def inventory(model: PreTrainedModel, cut: Cut) -> tuple[WeightGroup, ...]:
    """A model's weights in groups, from below, with what the customer gets of each.

    Args:
        model: The whole model; its weights may be empty ones, only their shapes are looked at.
        cut: Where it is cut.
    """
    parts = cut_up(model, cut)
    held = {id(weight) for part in (parts.bottom, parts.tail) if part is not None for weight in part.parameters()}
    family = family_of(model.config)
    named: dict[int, str] = {id(embedding_table(model)): TABLE}
    for stack in family.stacks:
        side = "" if family.kind is not Kind.ENCODER_DECODER else f"{stack.path.rpartition('.')[2]} "
        for number, block in enumerate(block_list(model, stack)):
            for weight in block.parameters():
                named.setdefault(id(weight), f"{side}block {number}")
        for before in stack.before:
            for weight in model.get_submodule(f"{stack.path}.{before}").parameters():
                named.setdefault(id(weight), EMBEDDINGS)
    groups = dict.fromkeys([TABLE, EMBEDDINGS], (0, 0))
    for weight in model.parameters():
        name = named.get(id(weight), END)
        count, out = groups.get(name, (0, 0))
        groups[name] = (count + weight.numel(), out + (weight.numel() if id(weight) in held else 0))
    ends = groups.pop(END, None)
    if ends is not None:
        groups[END] = ends
    return tuple(WeightGroup(name, count, out) for name, (count, out) in groups.items() if count)


def share_handed_out(model: PreTrainedModel, cut: Cut) -> float:
    """The share of a model's weights that a customer gets for a cut.

    Args:
        model: As of `inventory`.
        cut: Where it is cut.
    """
    groups = inventory(model, cut)
    return sum(group.handed_out for group in groups) / sum(group.parameters for group in groups)
