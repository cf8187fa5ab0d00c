"""Pareto plots and claims of the long table: utility over empirical privacy, by arm."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from cutlayer.recipes.claims import ERRORS
from cutlayer.recipes.figures import save_picture, written
from cutlayer.recipes.long_table import Level, Where
from cutlayer.recipes.study import Claim, Results, Verdict
from cutlayer.recipes.tables import Axis
from cutlayer.reports.pareto import Lead, Point, draw_pareto, leads

CSV = ("panel", "arm", "setting", "privacy", "privacy_error", "utility", "utility_error")


@dataclass(frozen=True)
class Plane:
    """Where settings stand: how much they hide, and how useful they are.

    Attributes:
        arm: The axis of ways.
        setting: The axis of their settings.
        privacy: The metric of what is hidden.
        read: Whether that metric is of what is read: privacy is what is left.
        utility: The metric of use.
    """

    arm: Axis
    setting: Axis
    privacy: str = "EP"
    read: bool = False
    utility: str = "UA"

    def points(self, results: Results, arms: Iterable[Level], where: Where) -> dict[Level, list[Point]]:
        """Settings of each arm that have both numbers; arms without any are left out.

        Args:
            results: Of the part.
            arms: Which.
            where: Of privacy: which attack, on what.
        """
        found: dict[Level, list[Point]] = {}
        for arm in arms:
            for setting in results.levels(self.setting.name, **{self.arm.name: arm}):
                here = {self.arm.name: arm, self.setting.name: setting}
                hidden = results.number(self.privacy, **here, **where)
                useful = results.number(self.utility, **here)
                if hidden.value is not None and useful.value is not None:
                    privacy = 1 - hidden.value if self.read else hidden.value
                    point = Point(self.setting.text(setting), privacy, useful.value, hidden.error, useful.error)
                    found.setdefault(arm, []).append(point)
        return found

    def ahead(self, claim: str, ours: Sequence[Level], theirs: Level, where: Where, *, stated: str = "") -> Claim:
        """Whether one arm is more useful than each setting of another where as much is hidden.

        It holds if it is so, by two standard errors, at every setting that it reaches, and fails if it is less useful
        by as much at one of them.

        Args:
            claim: What is claimed.
            ours: Arms whose settings are one frontier: the arm, and what it is without any noise.
            theirs: The other arm.
            where: Of privacy: which attack, on what.
            stated: What a paper says of it.
        """

        def judge(results: Results) -> Iterable[Verdict]:
            found = self.points(results, [*ours, theirs], where)
            own = [point for arm in ours for point in found.get(arm, [])]
            compared = leads(own, found.get(theirs, [])) if own else []
            yield Verdict(claim=claim, here=_told(compared), held=_held(compared), stated=stated)

        return judge


def _held(compared: Sequence[Lead]) -> bool | None:
    known = [(lead.value, ERRORS * lead.error) for lead in compared if lead.value is not None]
    if any(value < -error for value, error in known):
        return False
    return True if known and len(known) == len(compared) and all(value > error for value, error in known) else None


def _told(compared: Sequence[Lead]) -> str:
    told = [
        f"{lead.over.name}: "
        + ("it hides more" if lead.value is None else f"{100 * lead.value:+.1f} ± {100 * lead.error:.1f} points")
        for lead in compared
    ]
    return "; ".join(told) or "not measured"


@dataclass(frozen=True)
class Pareto:
    """Utility over privacy, a line for each arm, as PNG and as CSV beside it.

    Attributes:
        name: Of its files, without ending.
        title: Above it.
        plane: Where settings stand.
        arms: Which arms, in their order.
        panels: By title, which privacy.
        hidden: What privacy is, for the axis along.
        useful: What utility is.
    """

    name: str
    title: str
    plane: Plane
    arms: Sequence[Level]
    panels: Mapping[str, Where] = field(default_factory=dict)
    hidden: str = "empirical privacy, %"
    useful: str = "accuracy, %"

    def draw(self, results: Results, folder: Path, *, model: str) -> list[Path]:
        found = {title: self.plane.points(results, self.arms, where) for title, where in self.panels.items()}
        text = self.plane.arm.text
        panels = {title: {text(arm): points for arm, points in ways.items()} for title, ways in found.items() if ways}
        if not panels:
            return []
        pictures = [folder / f"{self.name}.png", folder / f"{self.name}.csv"]
        drawn = draw_pareto(panels, title=f"{self.title}\non {model}", hidden=self.hidden, useful=self.useful)
        save_picture(drawn, pictures[0])
        rows: list[tuple[Any, ...]] = [
            (title, arm, each.name, each.privacy, each.privacy_error, each.utility, each.utility_error)
            for title, ways in panels.items()
            for arm, points in ways.items()
            for each in points
        ]
        with written(pictures[1]):
            pd.DataFrame(rows, columns=list(CSV)).to_csv(pictures[1], index=False)
        return pictures
