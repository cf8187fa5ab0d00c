"""What readers see of a recipe's parts, as data: titles, tables, figures and notes, from `layouts/NAME.yaml`.

Strings may hold fields of what a part says, `{task.title}`; `$name` or `$name.item` stands for a value itself, and in a
list a value that is a list takes its place entry by entry. `{each: name, of: entry}` repeats an entry, or several, for
each item of `name`, which the entry calls `each`; `shared` holds what several parts have in common. A column is
`[title, metric, show, where]`, of which show and where may be left out; an axis a name, `{name: heading}`, or whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from cutlayer.recipes import tables
from cutlayer.recipes.figures import SHARES, Figure, Reference
from cutlayer.recipes.options import read_yaml
from cutlayer.recipes.study import Part, Scenario, Told
from cutlayer.recipes.tables import Axis, Column, Pivot, Show

SHOWS = ("share", "complement", "error", "plain", "points", "scaled")
"""Of `tables`: those that take numbers, as in `share 2`; every other name is a function of a number."""
VALUES: Mapping[str, tuple[Callable[[float], float], tuple[float, float] | None]] = {
    "number": (float, None),
    "complement": (lambda value: 100 * (1 - value), SHARES),
    "GB": (lambda value: value / 1e9, None),
}
"""What figures draw of a number, where it is not per cent, and the limits of its axis."""
AXES = ("x", "colour", "panel", "row")
"""The axes of a figure."""


class Layout:
    """The layouts of the parts of a recipe of this name."""

    def __init__(self, name: str) -> None:
        self._parts = read_yaml("layouts", name)
        self._shared: Mapping[str, Any] = self._parts.pop("shared", {})
        self._axes: dict[str, Axis] = {}
        for axis, content in self._parts.pop("axes", {}).items():
            self._axes[axis] = self._axis({"name": axis, **content})

    def axis(self, name: str) -> Axis:
        """An axis that all parts of the recipe share."""
        return self._axes[name]

    def content(self, name: str, said: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """What the file has of a part; see `part` for what is said."""
        found: dict[str, Any] = _filled(self._parts[name], {**self._shared, **(said or {})})
        return found

    def part(
        self,
        name: str,
        scenarios: Sequence[Scenario],
        said: Mapping[str, Any] | None = None,
        *,
        further: Sequence[Told] = (),
        **rest: Any,
    ) -> Part:
        """A part with its tables and figures.

        Args:
            name: Of the part.
            scenarios: What is run.
            said: What the layout's strings and `$name`s stand for.
            further: Tables behind those of the layout.
            **rest: Further fields of `Part`.
        """
        content = self.content(name, said)
        pivots = [self._pivot({"title": content["title"], **each}) for each in content.get("tables", ())]
        figures = [*map(self._figure, content.get("figures", ())), *rest.pop("figures", ())]
        return Part(content["title"], scenarios, tables=[*pivots, *further], figures=figures, **rest)

    def _pivot(self, content: Mapping[str, Any]) -> Pivot:
        made = {**content, "columns": [_column(each) for each in content["columns"]]}
        made["lines"] = [self._axis(each) for each in content.get("lines", ())]
        return Pivot(**{**made, **({"across": self._axis(content["across"])} if "across" in content else {})})

    def _figure(self, content: Mapping[str, Any]) -> Figure:
        made = {**content, **{axis: self._axis(content[axis]) for axis in AXES if axis in content}}
        made["references"] = [Reference(**each) for each in content.get("references", ())]
        if "below" in made:
            made["below"] = _column(made["below"])
        if "value" in made:
            made["value"], limits = VALUES[made["value"]]
            made.setdefault("limits", limits)
        return Figure(**made)

    def _axis(self, content: Any) -> Axis:
        if isinstance(content, Axis):
            return content
        if isinstance(content, str):
            return self._axes.get(content, Axis(content))
        if "name" not in content:
            ((name, title),) = content.items()
            return Axis(name, title)
        show = content.get("show", str)
        return Axis(**{**content, "show": getattr(tables, show) if isinstance(show, str) else show})


def _column(content: Any) -> Column:
    if isinstance(content, Column):
        return content
    title, metric, *rest = content
    named = next((each for each in rest if not isinstance(each, Mapping)), "share")
    where = next((each for each in rest if isinstance(each, Mapping)), {})
    return Column(title, metric, where, _show(named))


def _show(named: Any) -> Show:
    if callable(named):
        return cast(Show, named)
    name, *digits = named.split()
    found = getattr(tables, name)
    return cast(Show, found(*map(int, digits)) if name in SHOWS else found)


def _filled(content: Any, said: Mapping[str, Any]) -> Any:
    if isinstance(content, str):
        name, _, item = content[1:].partition(".")
        if content.startswith("$"):
            return said[name][item] if item else said[name]
        return content.format_map(said)
    if isinstance(content, list):
        found: list[Any] = []
        for entry in content:
            if isinstance(entry, dict) and "each" in entry:
                repeated, several = entry["of"], isinstance(entry["of"], list) and isinstance(entry["of"][0], list)
                filled = [_filled(repeated, {**said, "each": each}) for each in said[entry["each"]]]
                found += [one for some in filled for one in some] if several else filled
                continue
            each = _filled(entry, said)
            spliced = isinstance(entry, str) and entry.startswith("$") and isinstance(each, list | tuple)
            found += each if spliced else [each]
        return found
    return {key: _filled(each, said) for key, each in content.items()} if isinstance(content, dict) else content
