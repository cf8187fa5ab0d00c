"""What `configs/generation.yaml` holds: which texts, how much noise, and at which size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from cutlayer.core import Spec
from cutlayer.customer import TrainSpec
from cutlayer.recipes.recipe import Size


class Scale(Spec):
    """What `--size` changes.

    Attributes:
        train: Texts to train on, dev among them.
        test: Texts to measure on.
        training: Settings beside those of a language model.
    """

    train: int = Field(ge=2)
    test: int = Field(ge=1)
    training: Mapping[str, Any]

    @property
    def tuning(self) -> TrainSpec:
        """How the model is tuned."""
        return TrainSpec.language(**self.training)


class GenerationConfig(Spec):
    """`configs/generation.yaml`; that file says what each field is for."""

    title: str
    reference: str
    name: str
    train: str
    test: str
    column: str
    shares: tuple[float, ...] = Field(min_length=1)
    bottom: int = Field(ge=1)
    prompts: int = Field(ge=1)
    prompt_tokens: int = Field(ge=1)
    new_tokens: int = Field(ge=1)
    sizes: Mapping[Size, Scale]
