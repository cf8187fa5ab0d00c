"""What a linear map reads without noise, over blocks."""

from __future__ import annotations

from pathlib import Path

from cutlayer.recipes.picture import save_picture
from cutlayer.recipes.words.cells import LINEAR
from cutlayer.recipes.words.report import Results, read_share

_LINES = (("o-", "#31688e"), ("s-", "#d95f02"))
"""Told apart in grey, too."""


def draw_depth(results: Results, path: Path, *, model: str) -> None:
    """Recovery over blocks, a line for each text that the map was fitted on; tokens never fitted on are dashed.

    Raises:
        StorageError: The file cannot be written.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.6), layout="constrained")
    figure.suptitle(f"Tokens read behind blocks without noise, by a linear map: {model}")
    axes = figure.add_subplot()
    sources = dict.fromkeys(cell.public.name for cell, _ in results.unprotected if cell.public is not None)
    for (style, colour), source in zip(_LINES, sources, strict=False):
        found = [each for each in results.unprotected if each[0].public is not None and each[0].public.name == source]
        known = [(cell.bottom, told) for cell, runs in found if (told := read_share(runs, LINEAR)) is not None]
        axes.errorbar(
            [at for at, _ in known],
            [100 * told.value for _, told in known],
            yerr=[100 * told.standard_error for _, told in known],
            fmt=style,
            color=colour,
            label=f"fitted on {source}",
            capsize=2,
        )
        new = [(cell.bottom, unseen) for cell, runs in found if (unseen := runs[0].reads[LINEAR].unseen) is not None]
        axes.plot(
            [at for at, _ in new],
            [100 * unseen.value for _, unseen in new],
            style[0] + "--",
            color=colour,
            alpha=0.7,
            label=f"{source}: tokens never fitted on",
        )
    axes.set(xlabel="blocks at the customer", ylabel="tokens read, %", ylim=(0, 102))
    axes.set_xticks([cell.bottom for cell, _ in results.unprotected])
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    save_picture(figure, path)
