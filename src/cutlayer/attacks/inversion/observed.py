"""Rows that were sent from behind blocks, beside those that the public bottom makes of a guess.

A vendor that owns the bottom can check what it guesses: the text that was sent makes the rows that were sent. Attacks
that search differ in how they come to guesses; all of them compare here.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from cutlayer.attacks.content import content_tokens
from cutlayer.attacks.knowledge import Inapplicable, Knowledge
from cutlayer.core import ConfigError, DataError, Payload, Rows, Tokens
from cutlayer.models import Bottom, Inputs, Template


@dataclass(frozen=True)
class ObservedRows:
    """Rows of some texts, and the bottom that made them, as it was handed out.

    Attributes:
        rows: In single precision.
        content: What stands in the place of each content token, segment by segment: rows `[width]`.
        bottom: As it was handed out.
        template: Where special tokens stand.
    """

    rows: Rows
    content: Tokens
    bottom: Bottom
    template: Template

    @classmethod
    def of(cls, payload: Payload, knowledge: Knowledge) -> ObservedRows:
        """What was released, to an attacker that knows so much.

        Raises:
            Inapplicable: Ids were released, or the bottom has no blocks or was not granted.
        """
        if not isinstance(payload, Rows):
            raise Inapplicable("Token ids were released: there is no boundary to invert.")
        if not knowledge.cut.bottom:
            raise Inapplicable("The bottom has no blocks: nearest-neighbour search reads its rows.")
        if not isinstance(knowledge.bottom, Bottom) or knowledge.template is None:
            raise Inapplicable("The attacker was not granted the bottom as it was handed out.")
        rows = Rows(payload.packed.with_values(payload.packed.values.float()), payload.segment_lengths)
        return cls(rows, content_tokens(rows, knowledge), knowledge.bottom, knowledge.template)

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, texts: Tensor) -> ObservedRows:
        """The texts at `texts` `[m]` int64, in that order; one may be there several times."""
        return ObservedRows(self.rows.select(texts), self.content.select(texts), self.bottom, self.template)

    @property
    def table(self) -> Tensor:
        """The table `[vocab, width]` in single precision."""
        return self.bottom.table.detach().float()

    def distances(self, guess: Tokens) -> Tensor:
        """Squared distance between what was sent and what the bottom makes of a guess.

        Args:
            guess: In the shape of `content`: ids, or rows of the table or near it, through which gradients flow.

        Returns:
            `[positions]`, text by text, those of special tokens included.
        """
        # special tokens stand where the template says, with their own rows
        made = self.bottom(self.template.assemble(guess, table=self.table))
        sent, inputs = self.template.from_rows(self.rows)
        apart: Tensor = (made - sent)[inputs.attention_mask.bool()].square().sum(1)
        return apart


def check_depth(bottom: Bottom) -> None:
    """Refuses a bottom of embeddings.

    Raises:
        Inapplicable: The bottom has no blocks.
    """
    if next(bottom.block_parameters(), None) is None:
        raise Inapplicable(
            "The boundary of a bottom without blocks is rows of the embedding table, so there is nothing to invert: "
            "nearest-neighbour is the attack that applies."
        )


def check_observed(hidden: Tensor, inputs: Inputs) -> None:
    """Refuses what is no boundary, and what holds the answer.

    Args:
        hidden: The observed boundary, `[batch, seq, width]` of any float type.
        inputs: Its mask and positions, `[batch, seq]`.

    Raises:
        ConfigError: The attack was handed the ids or rows that it is to find.
        DataError: Boundary and mask do not fit together, or there is no real position.
    """
    if inputs.input_ids is not None or inputs.inputs_embeds is not None:
        raise ConfigError("The attack was given the ids or rows that it is to find.", remedy="Leave them out.")
    shapes = [tuple(tensor.shape) for tensor in (hidden, inputs.attention_mask, inputs.position_ids)]
    if hidden.dim() != 3 or {shape[:2] for shape in shapes} != {shapes[0][:2]} or not hidden.is_floating_point():
        raise DataError(
            "A boundary is floating [batch, seq, width] with mask and positions [batch, seq], not "
            f"{hidden.dtype}{shapes[0]} with {shapes[1]} and {shapes[2]}."
        )
    if not bool(inputs.attention_mask.any()):
        raise DataError("The boundary has no real position, so there is nothing to find.")
