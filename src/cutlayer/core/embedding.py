"""How a model makes embeddings: declared once for models, for the wire and for denoisers."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from cutlayer.core.spec import Spec

MOST_WIDTH: Final = 2**16
"""Numbers of a row or of an embedding that a vendor may state."""


EmbeddingPooling = Literal["mean", "cls", "last", "max"]


class EmbeddingSpec(Spec):
    """How a model's hidden states become one embedding of a text.

    Attributes:
        width: Numbers of an embedding.
        pooling: `mean` over a text's real positions, special tokens among them; its first position (`cls`); its last;
            or each coordinate's maximum over positions.
        normalize: Whether embeddings are scaled to length 1. The customer does that, after denoising.
        max_length: Tokens of a text that are read, special tokens included; `None` for the model's own limit.
    """

    width: int = Field(ge=1, le=MOST_WIDTH)
    pooling: EmbeddingPooling
    normalize: bool = False
    max_length: int | None = Field(default=None, ge=1)
