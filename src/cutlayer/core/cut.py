"""Where a model is cut, and what the three parts are called."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from cutlayer.core.setting import Shown, setting

CUT = "Model and cut"
"""The topic of these settings."""


class Place(StrEnum):
    """Where on the road a privatizer acts."""

    TOKENS = "tokens"
    ACTIVATIONS = "activations"


class Cut(BaseModel):
    """Where a model is cut in two or three.

    At `bottom` 0 the boundary is the rows of the token-embedding table, and positions, token types and normalisation
    stay in the top. At the *text cut*, `bottom=None`, the customer holds no weights and sends token ids. At `tail` 0
    it holds the final norm and the head alone; without a tail the head stays in the top.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    bottom: int | None = setting(
        0,
        help="Blocks on your side, below the cut. 0: the embedding table alone; text (in Python None): no weights at "
        "all; without noise, or with drawn words.",
        shown=Shown(
            CUT,
            unit="blocks",
            none="text",
            default="0; of language models and encoder-decoders 1, but text where a language model's words are drawn",
        ),
        ge=0,
    )
    tail: int | None = setting(
        None,
        help="Language models and encoder-decoders: blocks on your side above the upper cut, below the head; of an "
        "encoder-decoder those of the decoder. 0: the final norm and the head alone.",
        shown=Shown(CUT, unit="blocks", source="Yao & Li, §3.2", default="0 where the head is yours"),
        ge=0,
    )
    target: int = setting(
        0,
        help="Encoder-decoders: the decoder's first blocks on your side; with 0 a table lookup reads every target "
        "token.",
        shown=Shown(CUT, unit="blocks", flags=("--target-bottom",), default="1"),
        ge=0,
    )

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
