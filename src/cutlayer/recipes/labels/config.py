"""What `configs/labels.yaml` holds: which options are run, and at which size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from cutlayer.core import Spec
from cutlayer.customer import TrainSpec
from cutlayer.privacy import LARGEST_EPSILON
from cutlayer.recipes.recipe import Size
from cutlayer.recipes.tasks import Limits, Task

Setting = float | int | str | bool | None
Epsilon = Annotated[float, Field(gt=0, le=LARGEST_EPSILON)]
Passes = Annotated[int, Field(ge=2)]


class LanguageScale(Spec):
    """How much text a language model is trained on.

    Attributes:
        texts: Private texts, each trained on once.
        tokens: Of each, at most.
        batch: Texts a step.
        test: Texts that perplexity is measured on.
    """

    texts: int = Field(ge=1)
    tokens: int = Field(ge=4)
    batch: int = Field(ge=1)
    test: int = Field(ge=1)


class Scale(Spec):
    """What `--size` changes."""

    limits: Limits
    training: Mapping[str, Setting]
    language: LanguageScale


class CorpusSpec(Spec):
    """A folder of texts, and its files."""

    name: str
    train: str
    test: str


class LanguageSpec(Spec):
    """The language model's part.

    Attributes:
        model: An embedded model's name, a local folder or a hub id.
        corpus: Private texts.
        epsilons: Of randomised response over the vocabulary.
        passes: Backward passes in the place of one.
        learning_rate: AdamW's, of all weights.
    """

    model: str
    corpus: CorpusSpec
    epsilons: tuple[Epsilon, ...]
    passes: tuple[Passes, ...]
    learning_rate: float = Field(gt=0)


class LabelsConfig(Spec):
    """`configs/labels.yaml`; that file says what each field is for."""

    title: str
    reference: str
    task: Task
    training: Mapping[str, Setting]
    epsilons: tuple[Epsilon, ...] = Field(min_length=1)
    passes: tuple[Passes, ...] = Field(min_length=1)
    cover: float = Field(gt=0)
    language: LanguageSpec
    sizes: Mapping[Size, Scale]

    def training_at(self, scale: Scale) -> TrainSpec:
        """How classifiers are trained."""
        merged: dict[str, Any] = {**self.training, **scale.training}
        return TrainSpec.model_validate(merged)
