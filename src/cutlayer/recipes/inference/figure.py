"""Both figures as PNG."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from cutlayer.recipes.inference.cells import INVERSIONS, Results
from cutlayer.recipes.inference.config import InferenceConfig
from cutlayer.recipes.inference.findings import TITLES, estimate, further
from cutlayer.recipes.picture import save_picture
from cutlayer.reports import Estimate, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = ("#440154", "#443983", "#31688e", "#21918c", "#35b779", "#90d743", "#fde725")
"""From dark to light, also without colour: viridis."""
_MARKS = ("o", "s", "^", "D", "v", "P", "X")


def draw_sap(results: Results, config: InferenceConfig, path: Path, *, model: str) -> None:
    """Accuracy over N_l, a line for each eta, a panel for each attack and attribute.

    Raises:
        StorageError: The file cannot be written.
    """
    from matplotlib.figure import Figure

    panels = [
        (attack, column)
        for column in config.posts.columns
        for attack in ("attribute-classifier", "attribute-mlp")
        if results.of(attack, column=column, labelled=max(results.scale.labelled))
    ]
    figure = Figure(figsize=(4.6 * len(panels), 4.6), layout="constrained")
    figure.suptitle(f"Attributes of posts' authors, inferred from releases: {model}")
    for number, (attack, column) in enumerate(panels, start=1):
        axes = figure.add_subplot(1, len(panels), number)
        for place, eta in enumerate(results.etas):
            found = {
                labelled: estimate(results.of(attack, column=column, labelled=labelled)[eta])
                for labelled in results.scale.labelled
            }
            axes.errorbar(
                *_measured(found),
                color=_COLOURS[place % len(_COLOURS)],
                marker=_MARKS[place % len(_MARKS)],
                capsize=2,
                label=_name(results, eta),
            )
        majority = further(
            results.of("attribute-mlp", column=column, labelled=max(results.scale.labelled))[math.inf], "majority"
        )
        if majority is not None:
            axes.axhline(100 * majority.value, linestyle="--", color="grey", label="most frequent answer")
        axes.set(title=f"{column}:\n{TITLES[attack]}", xlabel="N_l, labelled posts", ylabel="accuracy, %", xscale="log")
        axes.minorticks_off()
        axes.set_xticks(list(results.scale.labelled), [str(labelled) for labelled in results.scale.labelled])
        axes.grid(alpha=0.3)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    save_picture(figure, path)


def draw_rapt(results: Results, config: InferenceConfig, path: Path, *, model: str) -> None:
    """Empirical privacy over eta, a line for each attack; the autoencoder's MSE beside it.

    Raises:
        StorageError: The file cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(2, 1))
    figure.suptitle(f"Empirical privacy under attacks, text-to-text: {model}")
    most = max(results.scale.labelled)
    lines = [(attack, "", 0) for attack in (*INVERSIONS, "ner")]
    lines += [("attribute-mlp", column, most) for column in config.posts.columns]
    for place, (attack, column, labelled) in enumerate(lines):
        found = results.of(attack, column=column, labelled=labelled)
        points = [
            (at, told) for at, eta in enumerate(results.etas) for told in [estimate(found[eta])] if told is not None
        ]
        left.errorbar(
            [at for at, _ in points],
            [100 * (1 - told.value) for _, told in points],
            [100 * told.standard_error for _, told in points],
            marker=_MARKS[place % len(_MARKS)],
            capsize=2,
            label=f"{column}: {TITLES[attack]}" if column else TITLES[attack],
        )
    left.set_ylabel("empirical privacy 1 - X, %")
    left.legend(fontsize=8)
    mse = results.of("autoencoder-inversion")
    for name, label, style in (("mse", "autoencoder", "o-"), ("mse_blind", "the mean row", "--")):
        numbers = {at: further(mse[eta], name) for at, eta in enumerate(results.etas)}
        known = {at: number.value for at, number in numbers.items() if number is not None}
        right.plot(list(known), list(known.values()), style, label=label)
    right.set_ylabel("squared distance from the true row")
    right.legend(fontsize=8)
    for axes in (left, right):
        _over_eta(axes, results)
    save_picture(figure, path)


def _measured(found: Mapping[int, Estimate | None]) -> tuple[list[int], list[float], list[float]]:
    """Places that have a number, the numbers in per cent and their standard errors."""
    known = {place: told for place, told in found.items() if told is not None}
    return (
        list(known),
        [100 * told.value for told in known.values()],
        [100 * told.standard_error for told in known.values()],
    )


def _over_eta(axes: Axes, results: Results) -> None:
    axes.set_xticks(
        range(len(results.etas)), [_name(results, eta).replace(" (", "\n(") for eta in results.etas], fontsize=8
    )
    axes.set_xlabel("eta (tokens replaced)")
    axes.grid(alpha=0.3)


def _name(results: Results, eta: float) -> str:
    shares = {point.eta: point.replaced for point in results.calibrated}
    return "no noise" if math.isinf(eta) else f"eta {eta:g} ({percent(shares[eta], 0)} %)"
