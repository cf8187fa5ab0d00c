"""What `configs/words.yaml` holds: which texts, how they leave, and at which size."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from cutlayer.core import Spec
from cutlayer.recipes.recipe import Size
from cutlayer.recipes.tasks import TextFile


class Public(Spec):
    """What the attacker reads beforehand."""

    mail: TextFile
    books: TextFile
    reviews: TextFile


class Scale(Spec):
    """What `--size` changes: how many texts of a file; `None` takes all."""

    mail: int | None = Field(default=None, ge=1)
    reviews: int | None = Field(default=None, ge=1)
    floats: int = Field(ge=1)
    public: int | None = Field(default=None, ge=1)


class ExpectedUnprotected(Spec):
    """Of rows of the table as they are; in per cent."""

    least: float


class ExpectedBehindBlocks(Spec):
    """By blocks at the customer, in per cent."""

    study: Mapping[int, float]
    least: Mapping[int, float]


class ExpectedClipped(Spec):
    """Of shortened rows, in per cent."""

    study: float
    nearest_most: float
    least: float


class ExpectedIds(Spec):
    """Points by which the adaptive attack reads more than nearest neighbour, by the share that was replaced."""

    study: float
    least: Mapping[float, float]


class Expected(Spec):
    """What the studies found, and what must hold here."""

    unprotected: ExpectedUnprotected
    behind_blocks: ExpectedBehindBlocks
    clipped: ExpectedClipped
    token_ids: ExpectedIds


class WordsConfig(Spec):
    """`configs/words.yaml`; that file says what each field is for."""

    title: str
    reference: str
    mail: TextFile
    reviews: TextFile
    public: Public
    depths: tuple[int, ...] = Field(min_length=1)
    map_tokens: int = Field(ge=1)
    clipped: float = Field(gt=0)
    replaced: tuple[float, ...] = Field(min_length=1)
    single_precision: tuple[float, ...] = Field(min_length=1)
    sizes: Mapping[Size, Scale]
    expected: Expected
