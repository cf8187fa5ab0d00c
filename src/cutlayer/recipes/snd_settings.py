"""What recipe `snd` can be told: `configs/snd.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from cutlayer.core import Spec
from cutlayer.customer import TuningSpec
from cutlayer.recipes.attribute_readings import PostsSpec
from cutlayer.recipes.embedding_tasks import Asked
from cutlayer.recipes.options import RecipeConfig, Setting, named
from cutlayer.recipes.tasks import Limits, Task, TextFile
from cutlayer.recipes.word_training import Arm
from cutlayer.wire.messages import Precision


class Scale(Spec):
    """What `--size` changes.

    Attributes:
        texts: Of each split of a task, at most.
        released: Texts that attacks read.
        known: Texts of the attackers' own.
        public: Texts of each public file; `None` takes all.
        steps: Of each denoiser; `batch_size` public texts of an update, each cut to `public_length` tokens.
        passes: Of networks over a task.
        shapes: Of models whose cost is measured.
    """

    texts: Limits
    released: int | None = Field(default=None, ge=1)
    known: int | None = Field(default=None, ge=1)
    public: int | None = Field(default=None, ge=1)
    steps: int = Field(ge=1)
    batch_size: int = Field(default=32, ge=1)
    public_length: int | None = Field(default=None, ge=1)
    passes: int = Field(ge=1)
    shapes: tuple[str, ...] = Field(min_length=1)


class Etas(Spec):
    """Where a family of models is measured: the paper's etas of its tables 1 to 6, and those of its figures.

    Attributes:
        accuracy: Tables 1 to 3.
        auc: Tables 4 to 6.
        read: Figure 2.
        inferred: Figure 4.
        between: Where `equal-leak` looks for its own.
    """

    accuracy: tuple[float, ...] = Field(min_length=1)
    auc: tuple[float, ...] = Field(min_length=1)
    read: tuple[float, ...] = Field(min_length=1)
    inferred: tuple[float, ...] = Field(min_length=1)
    between: tuple[float, float]


class Attributes(Spec):
    """What `figure-4` infers, of which posts; sizes, and texts with entities, are those of recipe `inference`.

    Attributes:
        posts: Whose, and which attributes are known.
        column: The attribute.
        attacks: What infers it.
    """

    posts: tuple[PostsSpec, ...]
    column: str
    attacks: tuple[str, ...]


class RaptSpec(Spec):
    """RAPT beside the others: how words are drawn, how the vendor tunes, and by how many rows the epoch is chosen."""

    dev: int = Field(ge=1)
    arm: Arm
    tuning: TuningSpec
    training: Mapping[str, Setting]


class SndConfig(RecipeConfig[Scale]):
    """`configs/snd.yaml`; that file says what each field is for."""

    tasks: Annotated[Mapping[str, Task], named("task")]
    public: tuple[TextFile, ...] = Field(min_length=1)
    spared: tuple[TextFile, ...] = ()
    precision: Precision
    noise: str
    etas: Annotated[Mapping[str, Etas], named("kind of model")]
    low_etas: tuple[float, ...] = Field(min_length=1)
    table_1: tuple[str, ...]
    table_4: tuple[str, ...]
    table_13: tuple[str, ...]
    rapt: RaptSpec
    figure_4: Attributes
    figure_6: tuple[str, ...]
    figure_7: tuple[str, ...]
    asked: tuple[Asked, ...]
    equal_leak: tuple[str, ...]
    leaks: tuple[float, ...] = Field(min_length=1)
    released: TextFile
    known: TextFile
