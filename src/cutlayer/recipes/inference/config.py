"""What `configs/inference.yaml` holds: whose posts, which attributes, how much noise, and at which size."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from cutlayer.core import Deviation, Spec
from cutlayer.recipes.recipe import Size


class Posts(Spec):
    """Posts by authors of known attributes; the file says what each field is for."""

    name: str
    known: str
    attacked: str
    public: str
    group: str
    columns: Mapping[str, tuple[str, ...]]


class Entities(Spec):
    """Texts with entities marked."""

    name: str
    annotated: str
    attacked: str


class Scale(Spec):
    """What `--size` changes."""

    labelled: tuple[int, ...] = Field(min_length=1)
    attacked: int = Field(ge=1)
    tuned: tuple[str, ...]
    passes: int = Field(ge=1)
    tokens: int = Field(ge=1)
    inverted: int = Field(ge=1)
    public: int = Field(ge=1)
    named: int = Field(ge=1)
    annotated: int = Field(ge=1)
    pairs: int = Field(ge=1)
    queries: int = Field(ge=0)


class PaperFigure(Spec):
    """What a paper's figure shows.

    Attributes:
        source: What can be read off it.
        setting: What was attacked there.
        claims: What the text says of it, by name.
    """

    source: str
    setting: str
    claims: Mapping[str, str]


class Papers(Spec):
    """Both papers' figures."""

    sap_figure_3: PaperFigure
    rapt_figure_3: PaperFigure


class InferenceConfig(Spec):
    """`configs/inference.yaml`; that file says what each field is for."""

    title: str
    reference: str
    posts: Posts
    entities: Entities
    replaced: tuple[float, ...] = Field(min_length=1)
    sizes: Mapping[Size, Scale]
    paper: Papers
    deviations: tuple[Deviation, ...]
