"""Where a model is cut, and what the three parts are called."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field


class Place(StrEnum):
    """Where on the road a privatizer acts."""

    TOKENS = "tokens"
    ACTIVATIONS = "activations"


class Cut(BaseModel):
    """Where a model is cut in two or three.

    Attributes:
        bottom: Number of blocks below the cut, at the customer. 0 is the token-embedding table
            alone: the boundary is its rows, and positions, token types and normalisation stay in
            the top. `None` is the *text cut*: the customer holds no weights and sends token ids.
        tail: Number of blocks above the upper cut, at the customer. 0 is the final norm and the
            head alone. `None`: there is no tail, the head stays in the top. In an encoder-decoder these are blocks
            of the decoder.
        target: Encoder-decoders alone: number of decoder blocks below the cut, at the customer. 0 is the
            decoder's embeddings alone.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    bottom: int | None = Field(default=0, ge=0)
    tail: int | None = Field(default=None, ge=0)
    target: int = Field(default=0, ge=0)

    @property
    def is_text(self) -> bool:
        """Whether nothing but token ids crosses the lower cut."""
        return self.bottom is None

    @property
    def slug(self) -> str:
        """The cut in one URL-safe word, for example `0`, `3`, `1-t0`, `1-d1-t0`, `text`."""
        lower = "text" if self.bottom is None else str(self.bottom)
        target = f"-d{self.target}" if self.target else ""
        return f"{lower}{target}" if self.tail is None else f"{lower}{target}-t{self.tail}"
