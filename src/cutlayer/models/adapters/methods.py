"""The registry of tuning methods: each is one row, which attaches, counts and refuses."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Final, Generic, TypeVar

from torch import nn

from cutlayer.core import ModelError, Registry
from cutlayer.core.tuning import MethodSpec
from cutlayer.models.anatomy import FAMILIES
from cutlayer.models.cutting import Part
from cutlayer.models.heads import Head, draw_head, head_modules, resize_head
from cutlayer.models.label_words import Words
from cutlayer.models.seq2seq import Seq2SeqTop
from cutlayer.models.virtual import ADAPTER

S = TypeVar("S", bound=MethodSpec)
P = TypeVar("P", bound=Part)


class Method(ABC, Generic[S]):
    """A way to tune a part, without state of its own."""

    @abstractmethod
    def attach(self, part: P, spec: S, *, num_labels: int | None, shared: bool, seed: int) -> P:
        """A twin of `part`, or a copy, with what the method trains, ready to train.

        Each new tensor is drawn from the seed and its whole-model name alone, so that what is trained of a cut model
        starts equal to what is trained of the whole one.

        Args:
            part: What to tune.
            spec: What the method is told.
            num_labels: Size of the fresh head; required for a part that ends in a classification head.
            shared: Whether what all blocks of a stack use is trained, where the part's own weights are.
            seed: Seed of the initialisation.
        """

    @abstractmethod
    def parameters(self, part: Part, spec: S, *, shared: bool) -> int:
        """How many parameters it trains on a part, the head left out, counted before any is made."""

    def untrained_bytes(self, part: Part, *, shared: bool) -> int:
        """Bytes that it copies of a part and does not train."""
        return 0

    def ignored_by(self, family: str) -> str:
        """Why its tensors would get no gradient on a family's blocks; empty where they get one."""
        return ""


METHODS: Final = Registry[Method[Any]]("tuning method", package="cutlayer.models.adapters")


def attach(
    part: P,
    spec: MethodSpec,
    *,
    num_labels: int | None = None,
    label_words: Words | None = None,
    shared: bool = True,
    seed: int,
) -> P:
    """A twin of `part`, or a copy, with what a method trains; see `Method.attach`.

    Args:
        part: What to tune.
        spec: What the method is told.
        num_labels: Size of the fresh head.
        label_words: Of an encoder-decoder's classifier, what it writes for each label (`Seq2SeqTop.tell`).
        shared: Whether what all blocks of a stack use is trained, where the part's own weights are.
        seed: Seed of the initialisation.

    Raises:
        ModelError: The family ignores the method, or `num_labels` or `label_words` and the part's head do not go
            together.
    """
    check_method(spec, part.model.config.model_type)
    attached: P = METHODS[spec.method].attach(part, spec, num_labels=num_labels, shared=shared, seed=seed)
    if attached.has_head:
        attached.pooling = spec.pooling
    if label_words is not None:
        if not isinstance(attached, Seq2SeqTop):
            raise ModelError("Only encoder-decoders classify by label words.", remedy="Leave label_words out.")
        attached.tell(label_words)
    return attached


def check_method(spec: MethodSpec, family: str) -> None:
    """Refuses a method whose tensors would get no gradient on a family.

    Args:
        spec: What the method is told.
        family: The model's `model_type`.

    Raises:
        ModelError: It trains nothing there.
    """
    if family in FAMILIES and (why := METHODS[spec.method].ignored_by(family)):
        others = ", ".join(name for name in METHODS if not METHODS[name].ignored_by(family))
        raise ModelError(
            f"Method {spec.method} trains nothing on a {family} model: {why}.",
            remedy=f"Use another method ({others}), or a model of another family.",
        )


def trained_parameters(part: Part, spec: MethodSpec, *, num_labels: int | None, shared: bool) -> int:
    """How many parameters a method trains on a part, a fresh head included, counted before any is made."""
    count = METHODS[spec.method].parameters(part, spec, shared=shared)
    return count + (0 if num_labels is None else head_parameters(part, num_labels))


def head_parameters(part: Part, num_labels: int) -> int:
    """Parameters of a part's fresh classification head, made for so many labels."""
    model = part.model
    output = count(model.get_submodule(part.family.classifier_output))
    return (
        sum(count(model.get_submodule(path)) for path in head_modules(model))
        - output
        + output_parameters(part, num_labels)
    )


def output_parameters(part: Part, num_labels: int) -> int:
    """Parameters of the head's last linear map, made for so many labels."""
    output = part.model.get_submodule(part.family.classifier_output)
    return num_labels * (count(output) // int(output.get_parameter("weight").shape[0]))


def count(module: nn.Module) -> int:
    """Parameters of a module."""
    return sum(parameter.numel() for parameter in module.parameters())


def fresh_head(part: Part, num_labels: int | None) -> tuple[str, ...]:
    """Gives a twin's head an output for its labels, in place; values are still to be drawn.

    Returns:
        Paths of the head's modules; none for a part that ends in no classification head.

    Raises:
        ModelError: The number of labels is missing, or is one too much.
    """
    if part.has_head and Head.of(part.model) is Head.CLASSIFICATION:
        if num_labels is None:
            raise ModelError("A classification head needs the number of labels.", remedy="Pass num_labels.")
        resize_head(part.model, num_labels)
        return head_modules(part.model)
    if num_labels is not None:
        raise ModelError("This part does not end in a classification head.", remedy="Leave num_labels out.")
    return ()


def draw_heads(part: Part, heads: tuple[str, ...], *, seed: int) -> None:
    """Draws the modules of a fresh head; of an adapter's the copies that it trains."""
    model = part.model
    std = getattr(model.config, "initializer_range", 0.02)
    for path in heads:
        module: Any = model.get_submodule(path)
        copies = getattr(module, "modules_to_save", None)
        draw_head(module if copies is None else copies[ADAPTER], seed=seed, name=path, std=std)
