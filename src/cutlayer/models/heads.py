"""Fresh heads for a job, on the model's own class."""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    PretrainedConfig,
    PreTrainedModel,
)

from cutlayer.core import UnsupportedArchitectureError
from cutlayer.models.anatomy import Kind, family_of


class Head(StrEnum):
    """What a model is loaded to compute."""

    CLASSIFICATION = "classification"
    """Logits over labels, one vector per text."""
    LANGUAGE = "language"
    """Logits over the vocabulary, one vector per position."""

    @classmethod
    def of(cls, model: PreTrainedModel) -> Head:
        """The head that a loaded model has."""
        classifier = family_of(model.config).classifier
        found = bool(classifier) and getattr(model, classifier[-1], None) is not None
        return cls.CLASSIFICATION if found else cls.LANGUAGE


def model_class(config: PretrainedConfig, head: Head) -> Any:
    """The Hugging Face auto class that puts `head` on a model of this configuration.

    Raises:
        UnsupportedArchitectureError: The family has no such head.
    """
    family = family_of(config)
    if head is Head.CLASSIFICATION:
        if not family.classifier:
            raise UnsupportedArchitectureError(
                f"Classification on a {config.model_type} model is not supported.",
                remedy="Use an encoder or a decoder family.",
            )
        return AutoModelForSequenceClassification
    if family.kind is Kind.ENCODER:
        raise UnsupportedArchitectureError(
            f"A {config.model_type} model is an encoder and predicts no next token.",
            remedy="Use a decoder family, or a classification head.",
        )
    return AutoModelForSeq2SeqLM if family.kind is Kind.ENCODER_DECODER else AutoModelForCausalLM


def seeded(seed: int, name: str) -> torch.Generator:
    """A generator that depends on nothing but a seed and a whole-model name.

    A part has fewer tensors to draw than the whole model, so one stream for all would give every
    tensor other values. Never for privacy noise.
    """
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") % 2**63)


def head_modules(model: PreTrainedModel) -> tuple[str, ...]:
    """Paths of the modules that a fresh classification head consists of.

    A pooler that came with the checkpoint belongs to the base; one that was missing is new and
    belongs to the head.
    """
    family = family_of(model.config)
    fresh: tuple[str, ...] = getattr(model, FRESH, ())
    return tuple(path for path in family.optional_classifier if path in fresh) + family.classifier


FRESH = "_cutlayer_fresh_modules"
"""Attribute of a loaded model: modules that its checkpoint did not have."""


def resize_head(model: PreTrainedModel, num_labels: int) -> None:
    """Gives the model an output for `num_labels` labels, in place; its values are still to be drawn."""
    path = family_of(model.config).classifier_output
    old = model.get_submodule(path)
    if not isinstance(old, nn.Linear):
        raise TypeError(f"{path} is a {type(old).__name__}")
    weight = old.weight
    new = nn.Linear(old.in_features, num_labels, bias=old.bias is not None, device=weight.device, dtype=weight.dtype)
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, new)
    model.config.num_labels = num_labels
    setattr(model, "num_labels", num_labels)  # noqa: B010 - torch types every attribute as a module


def frozen(model: PreTrainedModel) -> PreTrainedModel:
    """The same model in evaluation mode, its parameters without gradients."""
    model.requires_grad_(False)
    model.train(False)
    return model


def draw_head(module: nn.Module, *, seed: int, name: str, std: float) -> None:
    """Draws a head module's weights from N(0, std), biases 0, as the families themselves do."""
    with torch.no_grad():
        for local, parameter in module.named_parameters():
            if parameter.dim() == 1:
                parameter.zero_()
                continue
            drawn = torch.empty(parameter.shape).normal_(0, std, generator=seeded(seed, f"{name}.{local}"))
            parameter.copy_(drawn)
