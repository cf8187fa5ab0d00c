"""Control messages of sessions in which texts grow token by token."""

from __future__ import annotations

from pydantic import Field

from cutlayer.wire.messages import LARGEST_COUNT, Count, Identifier, Message


class GenerationSpec(Message):
    """A batch of texts that will grow token by token."""

    adapter: Identifier
    sequences: int = Field(ge=1, le=65536)
    """Prompts, or with beam search prompts times beams."""
    positions: int = Field(ge=1, le=LARGEST_COUNT)
    """Most positions of a sequence, its prompt included."""
    source_positions: int = Field(default=0, ge=0, le=LARGEST_COUNT)
    """Most positions of a source text, for encoder-decoders; 0 for models with one stack."""


class GenerationInfo(Message):
    """A session as the vendor holds it.

    Attributes:
        step: The last frame that was taken; 0 before the first.
    """

    generation: Identifier
    spec: GenerationSpec
    step: Count
