"""What embeddings are good for: how near they come to clean ones, and what a small network learns from them.

A denoiser has the customer's own text in its input (x = x̃ - z), so what its embeddings score may be owed to nobody but
the customer. Beside it stands a control that the paper lacks, *customer-only*: a denoiser of the same shape, trained in
the same way, whose input lacks the vendor's answer e_n. What remains of the difference is what the vendor's model is
worth.

Ref: Split-and-Denoise, A.5 and A.6.4, arXiv:2310.09130.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any, Final, Self

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from cutlayer.attacks.evaluation.statistics import area_by_item
from cutlayer.core import DataError, Deviation
from cutlayer.core.proportion import LEVEL, interval
from cutlayer.core.spec import Spec
from cutlayer.models.perceptron import Fitting, fit_classifier
from cutlayer.reports.estimate import standard_error

CLEAN, NOISY, DENOISED, CUSTOMER_ONLY = "clean", "noisy", "SnD", "customer-only"
"""Arms: e_c; e_n as the vendor answers; denoised with the answer; and without it."""
_Z: Final = NormalDist().inv_cdf((1 + LEVEL) / 2)

DEVIATIONS: Final = (
    Deviation(
        what="output of the downstream network, A.6.4",
        value_in_paper="two fully connected layers and two rectifiers",
        ours="a linear map to class scores behind the second rectifier",
        why="Scores that are rectified themselves stop learning where all of them are 0.",
    ),
    Deviation(
        what="training of the downstream network, A.6.4",
        value_in_paper="not stated",
        ours="AdamW, cross-entropy, and inputs from their mean and in one scale",
        why="Embeddings of some models are hundreds of times as large as those of others.",
    ),
)


class DownstreamSpec(Spec):
    """How the network is trained.

    Attributes:
        seeds: One training for each: of weights and order.
        passes: Over the texts that are learnt from.
        batch: Texts, or pairs, of a step.
        learning_rate: Of AdamW, at the beginning.
        weight_decay: Decoupled.
    """

    seeds: tuple[int, ...] = Field(min_length=1)
    passes: int = Field(default=20, ge=1)
    batch: int = Field(default=32, ge=1)
    learning_rate: float = Field(default=1e-3, gt=0)
    weight_decay: float = Field(default=0.01, ge=0)

    def fitting(self, seed: int) -> Fitting:
        """The same for one seed."""
        return Fitting(
            passes=self.passes,
            batch=self.batch,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            seed=seed,
        )


class Mean(BaseModel):
    """A mean over texts, of all seeds.

    Attributes:
        value: The mean.
        ci: 95 % of it, over texts and seeds.
        n: Texts.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    value: float
    ci: tuple[float, float]
    n: int

    @classmethod
    def of(cls, values: Tensor) -> Self:
        """The mean of `[seeds, texts]`."""
        value, error = float(values.mean()), standard_error(values)
        return cls(value=value, ci=(value - _Z * error, value + _Z * error), n=values.shape[1])

    @classmethod
    def of_shares(cls, values: Tensor) -> Self:
        """The same of shares `[seeds, texts]`, between 0 and 1: all or none of the texts is no certainty."""
        value, error = float(values.mean()), standard_error(values)
        return cls(value=value, ci=interval(value, error, values.shape[1]), n=values.shape[1])

    @property
    def above_zero(self) -> bool:
        """Whether all of the interval is."""
        return self.ci[0] > 0


class Arm(BaseModel):
    """Embeddings of one kind.

    Attributes:
        name: Which.
        mse: Squared difference from clean embeddings, the mean over coordinates.
        cosine: Between them and clean ones.
        accuracy: Share of unseen texts whose label the network tells; as are the next, `None` without labels.
        auc: Area under the ROC curve; of two labels.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    mse: Mean
    cosine: Mean
    accuracy: Mean | None = None
    auc: Mean | None = None


class Downstream(BaseModel):
    """Kinds of embeddings beside one another.

    Attributes:
        arms: All of them.
        learnt_from: Texts, or pairs, that networks learnt from.
        tested_on: Those that they were tested on.
        seeds: Of networks.
        worth_accuracy: By how much SnD exceeds customer-only, text by text; `None` where one of them is missing.
        worth_auc: The same of the area under the curve.
        worth: What that means, in words.
        deviations: Where this differs from the paper.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    arms: tuple[Arm, ...]
    learnt_from: int
    tested_on: int
    seeds: tuple[int, ...]
    worth_accuracy: Mean | None = None
    worth_auc: Mean | None = None
    worth: str = ""
    deviations: tuple[Deviation, ...] = DEVIATIONS

    @property
    def notes(self) -> tuple[str, ...]:
        """How it was measured, and what it means, a sentence or two each."""
        how = (
            f"A network of two hidden layers, as wide as its input, learnt the labels of {self.learnt_from:,} texts, "
            f"and was tested on {self.tested_on:,} others; means of {len(self.seeds)} trainings."
        )
        return tuple(filter(None, (how, self.worth)))


class Tested:
    """What networks of all seeds make of unseen texts, as means over texts: of one kind of embeddings.

    Args:
        features: `[n, inputs]`.
        labels: `[n]` int64, from 0.
        learnt: `[n]` bool: which are learnt from; the others are tested on.
        spec: How networks are trained.

    Attributes:
        right: `[seeds, texts]` float64: 1 where the label is told.
        area: `[seeds, texts]` float64, whose mean is the area under the ROC curve; `None` of more than two labels.
    """

    def __init__(self, features: Tensor, labels: Tensor, learnt: Tensor, spec: DownstreamSpec) -> None:
        width, classes = features.shape[1], int(labels.max()) + 1
        truth = labels[~learnt]
        right, areas = [], []
        for seed in spec.seeds:
            net = fit_classifier(
                features[learnt],
                labels[learnt],
                classes=classes,
                hidden=(width, width),
                fitting=spec.fitting(seed),
            )
            scores = net(features[~learnt])
            right.append((scores.argmax(1) == truth).double())
            if classes == 2:
                areas.append(area_by_item(scores[:, 1] - scores[:, 0], truth == 1))
        self.right = torch.stack(right)
        self.area = torch.stack(areas) if areas else None


def joined(embeddings: Tensor) -> Tensor:
    """A pair's embeddings one behind the other, `[n, 2 · width]`, of `[n, 2, width]`; of texts as they are."""
    return embeddings.flatten(1)


def distances(found: Tensor, clean: Tensor) -> tuple[Tensor, Tensor]:
    """How near embeddings come to clean ones, text by text; of a pair, the mean of its two.

    Args:
        found: `[n, width]`, or `[n, 2, width]` of pairs.
        clean: The same, e_c.

    Returns:
        Squared difference, the mean over coordinates, and cosine: `[n]` float64 each.
    """
    found, clean = (each.double().reshape(len(each), -1, each.shape[-1]) for each in (found, clean))
    cosines = nn.functional.cosine_similarity(found, clean, dim=2)
    return (found - clean).square().mean((1, 2)), cosines.mean(1)


def tested_networks(
    arms: Mapping[str, Tensor], labels: Tensor, learnt: Tensor, *, spec: DownstreamSpec
) -> dict[str, Tested]:
    """Trains the same network on each kind of embeddings, and tests it on unseen ones.

    Args:
        arms: By name, `[n, width]`, or `[n, 2, width]` of pairs; of the same `n` texts or pairs.
        labels: `[n]` int64, from 0.
        learnt: `[n]` bool: which are learnt from; the others are tested on.
        spec: How.

    Raises:
        DataError: There is nothing to be learnt, or to be tested on.
    """
    if len(labels[learnt].unique()) < 2 or not bool((~learnt).any()):
        raise DataError(
            "Embeddings' usefulness takes texts of two labels to learn from, and others to test on.",
            remedy="Give more texts.",
        )
    return {name: Tested(joined(values).float(), labels, learnt, spec) for name, values in arms.items()}


def measure_downstream(
    arms: Mapping[str, Tensor], clean: Tensor, labels: Tensor, learnt: Tensor, *, spec: DownstreamSpec
) -> Downstream:
    """What networks learn from each kind of embeddings, and how near these come to clean ones.

    Args:
        arms: By name (`CLEAN`, `NOISY`, `DENOISED`, `CUSTOMER_ONLY` or another), `[n, width]`, or `[n, 2, width]` of
            pairs; of the same `n` texts or pairs.
        clean: e_c, in the same shape.
        labels: `[n]` int64, from 0.
        learnt: `[n]` bool: which are learnt from; the others are tested on.
        spec: How.

    Raises:
        DataError: There is nothing to be learnt, or to be tested on.
    """
    tested = tested_networks(arms, labels, learnt, spec=spec)
    told = []
    for name, values in arms.items():
        mse, cosine = (Mean.of(each[None]) for each in distances(values, clean))
        area = tested[name].area
        told.append(
            Arm(
                name=name,
                mse=mse,
                cosine=cosine,
                accuracy=Mean.of_shares(tested[name].right),
                auc=None if area is None else Mean.of_shares(area),
            )
        )
    return Downstream(
        arms=tuple(told),
        learnt_from=int(learnt.sum()),
        tested_on=int((~learnt).sum()),
        seeds=spec.seeds,
        **_worth(tested),
    )


def _worth(tested: Mapping[str, Tested]) -> dict[str, Any]:
    if not {DENOISED, CUSTOMER_ONLY} <= tested.keys():
        return {}
    both, alone = tested[DENOISED], tested[CUSTOMER_ONLY]
    accuracy = Mean.of(both.right - alone.right)
    auc = None if both.area is None or alone.area is None else Mean.of(both.area - alone.area)
    return {"worth_accuracy": accuracy, "worth_auc": auc, "worth": _in_words(accuracy, auc)}


def _in_words(accuracy: Mean, auc: Mean | None) -> str:
    """What the vendor's model was worth."""
    found = {"accuracy": accuracy, "AUC": auc}
    told = {name: each for name, each in found.items() if each is not None}
    numbers = ", ".join(
        f"{100 * each.value:+.1f} points of {name} ({100 * each.ci[0]:+.1f} to {100 * each.ci[1]:+.1f})"
        for name, each in told.items()
    )
    gained = [name for name, each in told.items() if each.above_zero]
    start = f"The vendor's model was worth {numbers}: that is by how much SnD exceeds customer-only."
    if len(gained) == len(told):
        return start
    if gained:
        return f"{start} Of {' and '.join(told.keys() - gained)} no gain can be seen."
    which = "Neither is" if len(told) > 1 else "That is not"
    return (
        f"{start} {which} above zero: what these embeddings score may all be owed to the customer's own text, which "
        "the denoiser is given, and not to the vendor's answer."
    )


def held_out(count: int, *, share: float, seed: int) -> Tensor:
    """`[count]` bool: texts to learn from; the others, a share of all and one at least, are tested on.

    Args:
        count: Texts.
        share: Of those that are tested on.
        seed: Which.
    """
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    learnt = torch.ones(count, dtype=torch.bool)
    learnt[order[: max(1, math.floor(share * count))]] = False
    return learnt


def numbered(labels: Sequence[str]) -> Tensor:
    """Labels as numbers, `[n]` int64."""
    number = {label: place for place, label in enumerate(sorted(set(labels)))}
    return torch.tensor([number[label] for label in labels], dtype=torch.int64)
