"""Axes of a report's plots, as plotly takes them: rows with long labels, sizes, titles."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Sequence
from typing import Any

from cutlayer.reports.wording import visible

WRAP = 46
"""Characters of a label on a line: what fits a narrow phone."""
LINE = 17
"""Pixels of a line of a label."""
ROOM = 26
"""Pixels of a row of marks below its label."""
LEGEND = {"orientation": "h", "x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom", "itemclick": False}


class Rows:
    """Rows of marks, each below its label, which so can be long on a narrow page; places are pixels from the bottom.

    Args:
        labels: From the top.
        room: Pixels for a row's marks.
    """

    def __init__(self, labels: Sequence[str], *, room: int = ROOM) -> None:
        self._labels = [wrapped(label) for label in labels]
        self._room = room
        heights = [LINE * (1 + label.count("<br>")) + room + 8 for label in self._labels]
        self._height = sum(heights)
        self._bottoms = [self._height - sum(heights[: number + 1]) + 6 for number in range(len(heights))]

    def at(self, number: int, shift: float = 0) -> float:
        """Where a row's marks stand."""
        return self._bottoms[number] + self._room / 2 - shift

    def layout(self, title: str, *, legend: int = 0) -> dict[str, Any]:
        """Axes, with a label above each row; `legend` lines above them all."""
        top = 8 + 18 * legend
        layout = layout_of(self._height + top + 52)
        layout["xaxis"] |= {"title": axis_title(title), "range": [0, 102], "tickvals": [0, 25, 50, 75, 100]}
        layout["yaxis"] |= {"range": [0, self._height], "visible": False}
        layout["margin"] |= {"l": 8, "t": top}
        layout["annotations"] = [
            {
                "text": label,
                "x": 0,
                "xref": "paper",
                "xanchor": "left",
                "y": bottom + self._room,
                "yanchor": "bottom",
                "align": "left",
                "showarrow": False,
                "borderpad": 0,
            }
            for label, bottom in zip(self._labels, self._bottoms, strict=True)
        ]
        if legend:
            layout |= {"showlegend": True, "legend": LEGEND}
        return layout


def layout_of(height: int) -> dict[str, Any]:
    """A plot of so many pixels, with axes that nobody can drag."""
    axis = {"fixedrange": True, "zeroline": False, "automargin": True, "ticks": ""}
    return {
        "height": height,
        "margin": {"l": 48, "r": 20, "t": 12, "b": 44},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": "system-ui, sans-serif", "size": 13},
        "showlegend": False,
        "hovermode": "closest",
        "hoverlabel": {"bgcolor": "#20252b", "bordercolor": "#20252b", "font": {"color": "#ffffff"}},
        "dragmode": False,
        "bargap": 0,
        "xaxis": dict(axis),
        "yaxis": dict(axis),
    }


def axis_title(text: str) -> dict[str, Any]:
    """The title of an axis."""
    return {"text": text, "font": {"size": 13}, "standoff": 10}


def wrapped(text: str, width: int = WRAP) -> str:
    """A label in plotly's markup, broken into lines; a title may come from a plug-in or a column's name."""
    lines = textwrap.wrap(visible(text), width, max_lines=3, placeholder=" …") or [""]
    return "<br>".join(html.escape(line, quote=False) for line in lines)


# ---------------------------------------------------------------- in words
