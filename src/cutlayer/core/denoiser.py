"""Shapes of denoisers: declared once for models, for the wire and for commands.

Ref: Split-and-Denoise, §3.4 and Table 8, arXiv:2310.09130.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from cutlayer.core.embedding import MOST_WIDTH
from cutlayer.core.spec import SpecFamily

DenoiserKind = Literal["paper", "light"]


class DenoiserSpec(SpecFamily):
    """The shape of a denoiser: one kind for each architecture.

    Attributes:
        width: Numbers of an embedding, and of a row of the token table: the paper's d_model.
    """

    tag = "kind"

    if TYPE_CHECKING:

        @property
        @abstractmethod
        def kind(self) -> DenoiserKind:
            """The name of the architecture."""

        @property
        @abstractmethod
        def widest(self) -> int:
            """Largest hidden width of a position: memory in use grows with it."""

    width: int = Field(ge=1, le=MOST_WIDTH)


class PaperDenoiserSpec(DenoiserSpec):
    """A transformer over the noisy embedding, all noisy rows and all noise.

    Attributes:
        d_ff: Width of the map in each layer.
        d_kv: Width of a head.
        n_head: Heads.
        layers: Layers.
        placed: Whether position and type embeddings are added to the rows; the paper's equations have none.

    Ref: SnD, eq. (6) to (9), Table 8.
    """

    kind: Literal["paper"] = "paper"
    d_ff: int = Field(ge=1, le=2**16)
    d_kv: int = Field(ge=1, le=2**12)
    n_head: int = Field(ge=1, le=2**6)
    layers: int = Field(ge=1, le=2**6)
    placed: bool = True

    @property
    def widest(self) -> int:
        """See `DenoiserSpec.widest`."""
        return max(self.width, self.d_ff, self.n_head * self.d_kv)


class LightDenoiserSpec(DenoiserSpec):
    """Ours: narrow layers over one position a token, which weigh the text's rows and the noisy embedding.

    Attributes:
        inner: Width of the layers.
        n_head: Heads.
        layers: Layers.
        means: Weighted means of the text's rows that an embedding is made of.
    """

    kind: Literal["light"] = "light"
    inner: int = Field(ge=2, le=2**12)
    n_head: int = Field(ge=1, le=2**6)
    layers: int = Field(ge=1, le=2**6)
    means: int = Field(ge=1, le=2**6)

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        if self.n_head > self.inner:
            raise ValueError(f"{self.n_head} heads of layers that are {self.inner} wide")
        return self

    @property
    def d_ff(self) -> int:
        """Width of the map in each layer."""
        return 4 * self.inner

    @property
    def widest(self) -> int:
        """See `DenoiserSpec.widest`."""
        return max(self.width, self.d_ff)


class _Row(NamedTuple):
    d_ff: int
    d_kv: int
    n_head: int
    layers: int


TABLE_8: Final[Mapping[tuple[str, int, int], _Row]] = {
    ("distilbert", 6, 768): _Row(768, 240, 6, 3),
    ("bert", 12, 768): _Row(1024, 240, 8, 6),
    ("bert", 24, 1024): _Row(1024, 256, 8, 6),
    ("t5", 6, 512): _Row(512, 240, 6, 6),
    ("t5", 12, 768): _Row(768, 256, 8, 6),
    ("t5", 24, 1024): _Row(1024, 256, 8, 6),
    ("gpt2", 12, 768): _Row(768, 240, 8, 6),
    ("gpt2", 24, 1024): _Row(1024, 256, 8, 6),
    ("gpt2", 36, 1280): _Row(1280, 256, 8, 6),
    ("gpt2", 48, 1600): _Row(1600, 256, 10, 6),
}
"""SnD's denoisers, by family, blocks and width of the model: d_ff, d_kv, n_head, L."""

_SHALLOW: Final = 6
_HEAD: Final = 0.3125
_MOST_OF_HEAD: Final = 256
_INNER: Final = 256
_INNER_HEAD: Final = 32
_MEANS: Final = 4


def paper_shape(family: str, *, blocks: int, width: int) -> PaperDenoiserSpec:
    """The paper's denoiser for a model, by Table 8.

    For a model that is not in it: the table's own proportions, which give MiniLM a d_ff of 384 and 3 layers with 6
    heads of 120.

    Args:
        family: `config.model_type`.
        blocks: Of the model; of an encoder-decoder, of its encoder.
        width: Of an embedding.
    """
    row = TABLE_8.get((family, blocks, width))
    if row is None:
        heads, layers = (6, 3) if blocks <= _SHALLOW else (8, 6)
        row = _Row(width, min(_MOST_OF_HEAD, max(1, round(_HEAD * width))), heads, layers)
    return PaperDenoiserSpec(width=width, **row._asdict())


def light_shape(*, width: int) -> LightDenoiserSpec:
    """The light denoiser for a model: the same whatever its depth."""
    inner = max(2, min(_INNER, width // 2))
    return LightDenoiserSpec(width=width, inner=inner, n_head=max(1, inner // _INNER_HEAD), layers=2, means=_MEANS)
