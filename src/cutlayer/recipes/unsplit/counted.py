"""Parts of the study that count parameters and attack nothing: Figure 5 and §4.1.2."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cutlayer.recipes.picture import save_picture
from cutlayer.recipes.unsplit.findings import Verdict
from cutlayer.recipes.unsplit.parameters import OPT, Held, Scale, figure_5, model_scale, rounded
from cutlayer.recipes.unsplit.report import PartReport
from cutlayer.reports import Table

_MANY = 10
"""Times that "much fewer" and "much smaller" must mean for a verdict; the paper says no number."""
_UNITS = {"": 1, "K": 1e3, "M": 1e6}
_SIMILAR = 2
"""Times that "similar" may mean."""


def figure_5_report(folder: Path) -> PartReport:
    """OPT's parameters and trainable parameters by blocks at the customer.

    Args:
        folder: Where the plot is written.

    Raises:
        StorageError: It cannot be written.
    """
    rows = figure_5()
    shares = [row.parameters / (row.adapter or 1) for row in rows]
    verdict = Verdict(
        claim="§3.3.4: with LoRA OPT's trainable parameters are much fewer than all, wherever it is cut.",
        held=min(shares) > _MANY,
        because=f"{min(shares):,.0f} to {max(shares):,.0f} times fewer, for {rows[0].bottom} to {rows[-1].bottom} "
        f"blocks; the bar is {_MANY}.",
    )
    _draw_figure_5(rows, folder / "figure-5.png")
    content = {"rows": [row.model_dump() for row in rows], "verdicts": [verdict.model_dump()]}
    return PartReport((_figure_5_table(rows, verdict),), content, ("figure-5.png",))


def _figure_5_table(rows: Sequence[Held], verdict: Verdict) -> Table:
    """Figure 5 for readers; the paper prints none of its numbers."""
    return Table(
        title=f"Figure 5: parameters of {OPT.source} at the customer, by blocks",
        columns=("blocks", "parameters (M)", "trainable with LoRA (K)", "trainable share (%)"),
        rows=tuple(
            (
                str(row.bottom),
                rounded(row.parameters, 6),
                rounded(row.adapter or 0, 3),
                f"{100 * (row.adapter or 0) / row.parameters:.3f}",
            )
            for row in rows
        ),
        notes=("The paper draws this and prints no number of it.", str(verdict)),
    )


def _draw_figure_5(rows: Sequence[Held], path: Path) -> None:
    """Draws Figure 5: both counts over blocks, on a logarithmic axis.

    Raises:
        StorageError: The file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    blocks = [row.bottom for row in rows]
    axes.plot(blocks, [row.parameters for row in rows], "o-", color="#1f77b4", label="parameters", markersize=4)
    axes.plot(blocks, [row.adapter or 0 for row in rows], "s--", color="#d95f02", label="trained, LoRA", markersize=4)
    axes.set_yscale("log")
    axes.set(title=f"Figure 5: {OPT.source} at the customer", xlabel="blocks at the customer", ylabel="parameters")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    save_picture(figure, path)


def model_scale_report(folder: Path) -> PartReport:
    """§4.1.2's counts.

    Args:
        folder: Where the plot is written.

    Raises:
        StorageError: It cannot be written.
    """
    rows = model_scale()
    verdicts = _judged(rows)
    _draw_model_scale(rows, folder / "model-scale.png")
    content = {"rows": [row.model_dump() for row in rows], "verdicts": [verdict.model_dump() for verdict in verdicts]}
    return PartReport((_model_scale_table(rows, verdicts),), content, ("model-scale.png",))


def _judged(rows: Sequence[Scale]) -> tuple[Verdict, ...]:
    ours = {row.what: row.ours for row in rows}
    resnet, block = ours["ResNet-152"], ours["GPT-2, one block"]
    layers = {name: block / ours[name] for name in ("UnSplit's CNN, one layer", "ResNet-152, one layer")}
    return (
        Verdict(
            claim="§4.1.2: ResNet-152 has about as many parameters as one block of GPT-2.",
            held=max(resnet / block, block / resnet) <= _SIMILAR,
            because=f"it has {resnet / block:.1f} times as many; similar is up to {_SIMILAR}.",
        ),
        Verdict(
            claim="§4.1.2: a layer of a CNN has much fewer parameters than one of a language model.",
            held=min(layers.values()) > _MANY,
            because="GPT-2's block has "
            + " and ".join(f"{times:,.0f} times as many as {name}" for name, times in layers.items())
            + f"; the bar is {_MANY}.",
        ),
    )


def _model_scale_table(rows: Sequence[Scale], verdicts: Sequence[Verdict]) -> Table:
    """§4.1.2's counts for readers."""
    return Table(
        title="§4.1.2: parameters of convolutional networks",
        columns=("what", "the paper", "here", "which"),
        rows=tuple((row.what, str(row.paper), f"{row.ours:,}", row.note) for row in rows),
        notes=tuple(map(str, verdicts)),
    )


def _draw_model_scale(rows: Sequence[Scale], path: Path) -> None:
    """Draws the counts on a logarithmic axis, the paper's as stars.

    Raises:
        StorageError: The file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.barh([row.what for row in rows], [row.ours for row in rows], color="#1f77b4", label="here")
    stars = [(row.paper.value * _UNITS[row.paper.unit], row.what) for row in rows if row.paper.value is not None]
    axes.plot([value for value, _ in stars], [what for _, what in stars], "*", color="#d95f02", label="the paper")
    axes.set_xscale("log")
    axes.invert_yaxis()
    axes.set(title="§4.1.2: model scale", xlabel="parameters")
    axes.grid(alpha=0.3, axis="x")
    axes.legend(fontsize=8)
    save_picture(figure, path)
