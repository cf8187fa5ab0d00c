"""How alike a part's input and output are, channel by channel (UnSplit's Table 5 and Figures 16-21).

Two measures of two vectors of n numbers each. Cosine similarity, with its sign. And distance correlation (Székely,
Rizzo and Bakirov 2007, Annals of Statistics 35(6), definitions 3-5), which takes the n pairs of numbers as n
observations of two real variables: for vectors x and y let

    a_kl = |x_k - x_l|,   A_kl = a_kl - ā_k. - ā_.l + ā..,   B_kl likewise of y,
    dCov²(x, y) = Σ_kl A_kl B_kl / n²,   dCor(x, y) = √( dCov²(x, y) / √(dCov²(x, x) dCov²(y, y)) ),

and 0 where a vector is constant. This is the V-statistic, the one that the paper's reference defines: 1 for a linear
relation, and above 0 even where there is none, because the diagonal of A and B takes part. How far above is exact:
over all n! ways of pairing the same numbers, dCov² is ā.. b̄.. / (n - 1) on average. A value means something
only against that level, so it stands beside each, as `chance`.

A channel is a feature map of a convolution, or a position of a text: then channel i of the input is row i of the token
table's rows and channel j of the output is row j of the boundary. The paper does not say what its
observations are. The 8 samples cannot be: in so many more dimensions than there are samples all are about as far from
each other, and dCor is near 1 whatever the relation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, cast

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from cutlayer.core import Cut, ModelError, Spec
from cutlayer.models import Bottom, Inputs
from cutlayer.recipes.figures import save_picture, written
from cutlayer.recipes.lab import Cell, Lab, Rows
from cutlayer.recipes.long_table import Measure
from cutlayer.recipes.measures.networks import (
    CIFAR_SIDE,
    HEARTBEATS,
    VIT_SIDE,
    Features,
    ecg_features,
    heartbeats,
    load_vit,
    photographs,
    random_vit,
    unsplit_features,
    vit_features,
)
from cutlayer.recipes.study import Results
from cutlayer.recipes.tasks import TextFile

SHOWN = 16
"""Channels of a heat map (§4.3)."""
_COMPARED = 64
"""Channels of each sample that the averages are of, at most."""

MEASURES = {"distance": "dCor", "chance": "dCor by chance", "cosine": "cosine", "magnitude": "|cosine|"}
"""Fields of a `Similarity`, and their names in the long table."""
_MOST_CHANNELS = 64
_BLOCK_BYTES = 2**19
"""Distances are made a few rows at a time, so that they stay in the processor's cache: 15 times faster."""


# ---------------------------------------------------------------- measures


class Relation(NamedTuple):
    """Distance correlations, and what the same numbers give when paired at random.

    Attributes:
        value: dCor.
        chance: √(mean of dCor² over all pairings).
    """

    value: Tensor
    chance: Tensor


def distance_correlation(x: Tensor, y: Tensor) -> Relation:
    """dCor `[…]` of corresponding vectors `[…, n]`, n ≥ 2, as the V-statistic, in float64."""
    shape, n = x.shape[:-1], x.shape[-1]
    chunks = zip(x.reshape(-1, n).split(_MOST_CHANNELS), y.reshape(-1, n).split(_MOST_CHANNELS), strict=True)
    parts = [_relate(_Distances.of(left), _Distances.of(right)) for left, right in chunks]
    return Relation(*(torch.cat(values).reshape(shape) for values in zip(*parts, strict=True)))


def distance_correlations(x: Tensor, y: Tensor) -> Relation:
    """dCor `[a, b]` of every vector of `x` `[a, n]` with every one of `y` `[b, n]`, else as `distance_correlation`."""
    right = _Distances.of(y)
    parts = [_relate(_Distances.of(left), right, crossed=True) for left in x.split(_MOST_CHANNELS)]
    return Relation(*(torch.cat(values) for values in zip(*parts, strict=True)))


def cosine_similarity(x: Tensor, y: Tensor) -> Tensor:
    """Cosine of corresponding vectors `[…, n]`; 0 where one is zero."""
    return (_unit(x) * _unit(y)).sum(-1)


def cosine_similarities(x: Tensor, y: Tensor) -> Tensor:
    """Cosine of every vector of `x` `[a, n]` with every vector of `y` `[b, n]`; 0 where one is zero."""
    return _unit(x) @ _unit(y).T


def _unit(x: Tensor) -> Tensor:
    return F.normalize(x.to(torch.float64), dim=-1)


class _Distances(NamedTuple):
    """What is known of vectors' distances without their matrices.

    Attributes:
        x: The vectors `[c, n]`, float64, moved so that the first number is 0: a constant one is exactly 0.
        rows: Means of the matrices' rows, `[c, n]`.
        mean: Mean of a whole matrix, `[c]`.
        variance: dCov² of a vector with itself, `[c]`.
    """

    x: Tensor
    rows: Tensor
    mean: Tensor
    variance: Tensor

    @classmethod
    def of(cls, x: Tensor) -> _Distances:
        x = x.to(torch.float64)
        x, n = x - x[:, :1], x.shape[1]
        ordered, order = x.sort(dim=1)
        below = ordered.cumsum(1) - ordered
        # Σ_l |x_k - x_l| of the number with k smaller ones
        sums = ordered * (2 * torch.arange(n, device=x.device) - n) + ordered.sum(1, keepdim=True) - 2 * below
        rows = torch.empty_like(x).scatter_(1, order, sums / n)
        mean = rows.mean(1)
        squares = 2 * (x.square().mean(1) - x.mean(1).square())
        return cls(x, rows, mean, squares + mean.square() - 2 * rows.square().mean(1))


def _relate(x: _Distances, y: _Distances, *, crossed: bool = False) -> Relation:
    """Corresponding vectors `[c]`, or each with each `[a, b]`.

    The centred products are Σ a b / n² + ā.. b̄.. - 2 Σ_k ā_k. b̄_k. / n: no matrix is centred, or kept.
    """
    n = x.x.shape[1]
    if crossed:
        rows = x.rows @ y.rows.T / n
        means, variances = x.mean[:, None] * y.mean, x.variance[:, None] * y.variance
    else:
        rows = (x.rows * y.rows).mean(1)
        means, variances = x.mean * y.mean, x.variance * y.variance
    products = torch.zeros_like(means)
    step = max(1, _BLOCK_BYTES // (8 * n * max(len(x.x), len(y.x))))
    for start in range(0, n, step):
        left, right = ((each[:, start : start + step, None] - each[:, None]).abs_().flatten(1) for each in (x.x, y.x))
        products += left @ right.T if crossed else (left * right).sum(1)
    # rounding can make what is 0 slightly negative
    covariance = (products / n**2 + means - 2 * rows).clamp(min=0)
    scale = variances.clamp(min=0).sqrt()
    value, chance = (torch.where(scale > 0, each / scale, 0.0).sqrt() for each in (covariance, means / (n - 1)))
    return Relation(value.clamp(max=1), chance)


# ---------------------------------------------------------------- a part's input and output


class Likeness(Spec):
    """One measure of a part.

    Attributes:
        corresponding: Mean over samples and all channels, each with the output's channel of the same number; `None`
            where the output has another number of channels.
        standard_error: Of that mean, over samples; `None` of one sample.
        overall: Mean of the heat map.
        heat: `[input's channels, output's channels]`, mean over samples.
    """

    corresponding: float | None
    standard_error: float | None
    overall: float
    heat: tuple[tuple[float, ...], ...]


class Similarity(Spec):
    """How alike a part's input and output are, with heat maps.

    Attributes:
        channels: Of input and output.
        features: Numbers in a channel.
        distance: Distance correlation.
        chance: What the same numbers give when paired at random; see `Relation`.
        cosine: Cosine similarity, signed.
        magnitude: The same without sign: the paper says that its cosine ranges from 0 to 1.
        random_weights: As of the `Features`, and so `stand_in` and `reading`.
    """

    name: str
    samples: int
    channels: tuple[int, int]
    features: int
    distance: Likeness
    chance: Likeness
    cosine: Likeness
    magnitude: Likeness
    random_weights: bool
    stand_in: str
    reading: str

    @property
    def marks(self) -> list[str]:
        """What a reader must not overlook."""
        return [*(["random weights"] if self.random_weights else []), *([self.stand_in] if self.stand_in else [])]


@torch.no_grad()
def measure(features: Features, *, shown: int = SHOWN, compared: int | None = None) -> Similarity:
    """Compares a part's input and output, which may differ in their channels.

    Heat maps are of the first `shown` channels; at most so many corresponding ones are `compared`, evenly spread.
    """
    inputs, outputs = features.inputs.detach(), features.outputs.detach()
    maps: list[tuple[Tensor, ...]] = []
    diagonals: list[tuple[Tensor, ...]] = []
    for given, made in zip(inputs, outputs, strict=True):
        cosines = cosine_similarities(given[:shown], made[:shown])
        maps.append((*distance_correlations(given[:shown], made[:shown]), cosines, cosines.abs()))
        if len(given) == len(made):
            chosen = _spread(len(given), compared)
            cosines = cosine_similarity(given[chosen], made[chosen])
            diagonals.append((*distance_correlation(given[chosen], made[chosen]), cosines, cosines.abs()))
    heats = [torch.stack(values).mean(0) for values in zip(*maps, strict=True)]
    means: list[Tensor | None] = [torch.stack(values).mean(1) for values in zip(*diagonals, strict=True)]
    found = map(_summary, heats, means or [None] * len(heats))
    return Similarity(
        name=features.name, samples=len(inputs), channels=(inputs.shape[1], outputs.shape[1]),
        features=inputs.shape[2], **dict(zip(MEASURES, found, strict=True)),
        random_weights=features.random_weights, stand_in=features.stand_in, reading=features.reading,
    )  # fmt: skip


@torch.no_grad()
def text_features(bottom: Bottom, input_ids: Tensor, *, name: str, random_weights: bool) -> Features:
    """The rows of the token table that a bottom starts from, and the boundary that it sends.

    Position embeddings and all else before the first block belong to the part. Dropout is off.

    Args:
        bottom: With at least one block.
        input_ids: `[samples, seq]`, without padding.
        name: As of `Features`.
        random_weights: As of `Features`.

    Raises:
        ModelError: The model's rows are not as wide as its hidden states, so there are no pairs to compare.
    """
    rows = bottom.table[input_ids]
    positions = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
    batch = Inputs(attention_mask=torch.ones_like(input_ids), position_ids=positions, input_ids=input_ids)
    trained = bottom.training
    bottom.train(False)
    try:
        boundary = bottom(batch)
    finally:
        bottom.train(trained)
    if rows.shape != boundary.shape:
        raise ModelError(
            f"The token table has rows of {rows.shape[-1]} numbers and the boundary of {boundary.shape[-1]}.",
            remedy="Use a model without a projection behind its token table.",
        )
    reading = "rows of the token table, and the boundary at the same and at other positions"
    return Features(name, rows, boundary, random_weights, reading=reading)


def _spread(channels: int, most: int | None) -> Tensor:
    if most is None or most >= channels:
        return torch.arange(channels)
    return torch.linspace(0, channels - 1, most).round().long()


def _summary(heat: Tensor, means: Tensor | None) -> Likeness:
    error = None if means is None or len(means) < 2 else float(means.std() / math.sqrt(len(means)))
    return Likeness(
        corresponding=None if means is None else float(means.mean()),
        standard_error=error,
        overall=float(heat.mean()),
        heat=tuple(tuple(row) for row in heat.tolist()),
    )


# ---------------------------------------------------------------- Table 5


Similarities = Rows[Similarity]


class SimilarityCell(Cell):
    """A decoder's first blocks, and the other networks of Table 5.

    Attributes:
        samples: Texts, of `length` tokens, images and heartbeats.
        blocks: What the decoder's first block is called, its first two, and so on.
        vit: Folder of a trained vision transformer; without one its weights are random.
    """

    model: str
    texts: TextFile
    length: int
    samples: int
    blocks: tuple[str, ...]
    vit: str | None

    def run(self, lab: Lab) -> Similarities:
        rng = torch.Generator().manual_seed(self.seed)
        stream = lab.stream(self.texts)
        texts = stream[: len(stream) // self.length * self.length].view(-1, self.length)
        ids = texts[torch.randperm(len(texts), generator=rng)[: self.samples]]
        features = [
            text_features(
                cast(Bottom, lab.archive(Cut(bottom=bottom, tail=0)).bottom), ids, name=name, random_weights=False
            )
            for bottom, name in enumerate(self.blocks, start=1)
        ]
        features += unsplit_features(photographs(self.samples, side=CIFAR_SIDE, rng=rng), rng=rng)
        vit = random_vit(rng) if self.vit is None else load_vit(Path(self.vit))
        images = photographs(self.samples, side=VIT_SIDE, rng=rng)
        features += vit_features(images, vit, random_weights=self.vit is None)
        features += ecg_features(heartbeats(self.samples, rng=rng), rng=rng, stand_in=HEARTBEATS)
        shown = min(SHOWN, self.length)
        return Similarities(rows=tuple(measure(each, shown=shown, compared=_COMPARED) for each in features))

    def measures(self, result: Similarities) -> Iterator[Measure]:
        for row in result.rows:
            axes = {"compared": row.name}
            for field, name in MEASURES.items():
                each = getattr(row, field)
                yield Measure(name, each.corresponding, each.standard_error, row.samples, axes=axes)
            yield Measure("dCor, heat map", row.distance.overall, n=row.samples, axes=axes)
            shape = f"{' → '.join(map(str, dict.fromkeys(row.channels)))} × {row.features}"
            yield Measure("channels × features", row.features, note=shape, axes=axes)
            yield Measure("samples", row.samples, note="; ".join(filter(None, (*row.marks, row.reading))), axes=axes)


class HeatMaps:
    """Distance correlation and cosine similarity of channels, two maps for each part (Figures 16-21).

    Args:
        name: Of the files, without ending.
        title: Above.
    """

    _MAPS = (("distance correlation", "distance", 0, "viridis"), ("cosine similarity", "cosine", -1, "RdBu_r"))

    def __init__(self, name: str, title: str) -> None:
        self._name = name
        self._title = title

    def draw(self, results: Results, folder: Path, *, model: str) -> list[Path]:
        """Of the first finished `SimilarityCell`; see `Picture`."""
        from matplotlib.figure import Figure

        rows = next((found.rows for _, found in results.of(SimilarityCell)), ())
        if not rows:
            return []
        figure = Figure(figsize=(10, 4.2 * len(rows) + 0.6), layout="constrained")
        figure.suptitle(f"{self._title}\non {model}")
        for number, row in enumerate(rows):
            marks = ", ".join(row.marks)
            for place, (name, field, least, colours) in enumerate(self._MAPS, start=1):
                each: Likeness = getattr(row, field)
                axes = figure.add_subplot(len(rows), 2, 2 * number + place)
                drawn = axes.imshow(each.heat, vmin=least, vmax=1, cmap=colours, interpolation="nearest")
                figure.colorbar(drawn, ax=axes, shrink=0.8)
                axes.tick_params(labelsize=7)
                axes.set_xlabel("channel of the output", fontsize=8)
                axes.set_ylabel("channel of the input", fontsize=8)
                mean = "" if each.corresponding is None else f"; corresponding channels {each.corresponding:.3f}"
                axes.set_title(f"{row.name}{f' ({marks})' if marks else ''}\n{name}{mean}", fontsize=9)
        files = [folder / f"{self._name}.png", folder / f"{self._name}.csv"]
        save_picture(figure, files[0])
        with written(files[1]):
            _long(rows).to_csv(files[1], index=False)
        return files


def _long(rows: tuple[Similarity, ...]) -> pd.DataFrame:
    found = [
        (row.name, measure_, given, made, value)
        for row in rows
        for measure_ in MEASURES
        for given, line in enumerate(getattr(row, measure_).heat)
        for made, value in enumerate(line)
    ]
    return pd.DataFrame(found, columns=["compared", "measure", "input channel", "output channel", "value"])
