"""How a language model's texts are put together: closed by the end mark, a target text behind its source text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from cutlayer.core import ConfigError, Fault, ModelError, Ragged, Tokens
from cutlayer.customer.defaults import BLOCK_LENGTH
from cutlayer.models import Template


@dataclass(frozen=True)
class Closing:
    """The mark that closes texts.

    No content has it: texts are tokenised without special tokens. So it tells where a source text ends.

    Attributes:
        end: Its id.
    """

    end: int

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> Closing:
        """A tokenizer's.

        Raises:
            ModelError: It has none.
        """
        if tokenizer.eos_token_id is None:
            raise ModelError("The model's tokenizer has no end mark to close texts with.", remedy="Use another model.")
        return cls(int(tokenizer.eos_token_id))

    def close(self, texts: Ragged) -> Ragged:
        """Each text with the mark behind it."""
        lengths = texts.lengths + 1
        values = torch.full((int(lengths.sum()),), self.end)
        kept = torch.ones(len(values), dtype=torch.bool)
        kept[lengths.cumsum(0) - 1] = False
        values[kept] = texts.values
        return Ragged(values, lengths)

    def join(self, sides: Sequence[Ragged], most: int | Tensor) -> Ragged:
        """The texts of each row one behind the other, each closed; of a row with more ids than that the first.

        Args:
            sides: Ids of `n` texts, or of `n` source texts and `n` target texts.
            most: Ids of a row; `[n]` int64 where rows may have more or fewer.
        """
        closed = [self.close(side) for side in sides]
        joined = closed[0]
        if len(closed) > 1:
            pieces = zip(*(side.split() for side in closed), strict=True)
            joined = Ragged(
                torch.cat([piece for row in pieces for piece in row]),
                torch.stack([side.lengths for side in closed]).sum(0),
            )
        return joined.first(joined.lengths.minimum(torch.as_tensor(most)))

    def part(self, joined: Ragged) -> Tokens:
        """Pairs that were joined: source texts with the mark behind them, and target texts as far as they were kept."""
        sources = torch.tensor([int((ids == self.end).nonzero()[0]) + 1 for ids in joined.split()], dtype=torch.int64)
        behind = torch.arange(len(joined.values)) - joined.offsets[:-1].repeat_interleave(joined.lengths)
        of_target = behind >= sources.repeat_interleave(joined.lengths)
        return Tokens((joined.first(sources), Ragged(joined.values[of_target], joined.lengths - sources)))


def row_length(template: Template, given: int | None) -> int:
    """Content tokens of a block of joined texts, or of a text by itself.

    Args:
        template: The model's.
        given: Tokens with special tokens, as they were asked for.

    Raises:
        ConfigError: More than the model takes were asked for.
    """
    limit = template.max_length
    if given is not None and limit is not None and given > limit:
        raise ConfigError([Fault("max_length", given, f"must be at most {limit}, the model's limit")])
    return template.max_content(1, given or min(BLOCK_LENGTH, limit or BLOCK_LENGTH))
