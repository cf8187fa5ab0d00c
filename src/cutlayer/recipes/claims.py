"""What is claimed of numbers, by a paper or by an earlier study, and whether it holds here.

A comparison needs two standard errors of the difference; what lies nearer decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from cutlayer.core.proportion import in_percent
from cutlayer.recipes.long_table import Number, Where
from cutlayer.recipes.study import Claim, Results, Verdict
from cutlayer.reports import Table, percent

ERRORS = 2.0
"""Standard errors of a difference that a verdict needs."""


def shown(number: Number, *, digits: int = 1) -> str:
    """A share in per cent with its standard error; why there is none."""
    if number.value is None:
        return number.note or "no number"
    return in_percent(number.value, number.error, number.trials, digits=digits, unit=" %")


def at_least(claim: str, metric: str, least: float, where: Where, *, stated: str = "", digits: int = 1) -> Claim:
    """A share must be at least `least`."""
    return _bounded(claim, metric, where, lambda value: value >= least, stated, digits)


def at_most(claim: str, metric: str, most: float, where: Where, *, stated: str = "", digits: int = 1) -> Claim:
    """A share must be at most `most`."""
    return _bounded(claim, metric, where, lambda value: value <= most, stated, digits)


def _bounded(claim: str, metric: str, where: Where, holds: Callable[[float], bool], stated: str, digits: int) -> Claim:
    def judge(results: Results) -> Iterable[Verdict]:
        number = results.number(metric, **where)
        held = None if number.value is None else holds(number.value)
        yield Verdict(claim=claim, here=shown(number, digits=digits), held=held, stated=stated)

    return judge


def above(
    claim: str, metric: str, where: Where, *, least: float = 0.0, stated: str = "", refuted_below: bool = False
) -> Claim:
    """The interval of a difference must lie above 0, and the difference be at least `least`.

    With `refuted_below`, for what somebody found elsewhere, an interval around 0 decides nothing: one below it refutes.
    """

    def judge(results: Results) -> Iterable[Verdict]:
        number = results.number(metric, **where)
        if (found := _within(number)) is None:
            yield Verdict(claim=claim, here=number.note or "no number", held=None, stated=stated)
            return
        low, value, high = found
        held: bool | None = low > 0 and value >= least
        if refuted_below and not held and high >= 0:
            held = None
        yield Verdict(claim=claim, here=_in_points(low, value, high), held=held, stated=stated)

    return judge


def not_below(claim: str, metric: str, where: Where, *, stated: str = "") -> Claim:
    """The interval of a difference must not lie below 0."""

    def judge(results: Results) -> Iterable[Verdict]:
        number = results.number(metric, **where)
        found = _within(number)
        held = None if found is None else found[2] >= 0
        here = (number.note or "no number") if found is None else _in_points(*found)
        yield Verdict(claim=claim, here=here, held=held, stated=stated)

    return judge


def _within(number: Number) -> tuple[float, float, float] | None:
    """The lower end of a number's interval, itself, and the upper end; `None` without a number or an interval."""
    low, value, high = number.lower, number.value, number.upper
    if low is None and value is not None and number.se is not None:
        low, high = value - ERRORS * number.se, value + ERRORS * number.se
    return None if value is None or low is None or high is None else (low, value, high)


def _in_points(low: float, value: float, high: float) -> str:
    return f"{100 * value:+.2f} [{100 * low:+.2f}, {100 * high:+.2f}] points"


Decide: TypeAlias = Callable[[float, float], tuple[bool | None, str]]
"""Judges by how much a number is lower than another, given the standard error of that; with the words for it."""


def named(results: Results, metric: str, places: Mapping[str, Where]) -> dict[str, Number]:
    """The numbers of some places that have one, by the names of the places."""
    found = {name: results.number(metric, **where) for name, where in places.items()}
    return {name: number for name, number in found.items() if number.value is not None}


def _listed(cases: Mapping[str, Number]) -> str:
    return ", ".join(f"{shown(number)} ({name})" for name, number in cases.items())


def falls(claim: str, metric: str, before: tuple[str, Where], after: tuple[str, Where], *, stated: str = "") -> Claim:
    """A share is lower at the second place than at the first."""

    def judge(fall: float, error: float) -> tuple[bool | None, str]:
        held = True if fall > ERRORS * error else False if fall < -ERRORS * error else None
        way = "rise" if fall < 0 else "fall"
        return held, f"a {way} of {100 * abs(fall):.1f} ± {100 * error:.1f} points"

    return _differ(claim, metric, dict((before, after)), stated, judge)


def alike(claim: str, metric: str, first: tuple[str, Where], second: tuple[str, Where], *, stated: str = "") -> Claim:
    """Two shares differ by less than two standard errors."""

    def judge(fall: float, error: float) -> tuple[bool | None, str]:
        return abs(fall) <= ERRORS * error, f"they differ by {100 * abs(fall):.1f} ± {100 * error:.1f} points"

    return _differ(claim, metric, dict((first, second)), stated, judge)


def _differ(claim: str, metric: str, places: Mapping[str, Where], stated: str, decide: Decide) -> Claim:
    def judge(results: Results) -> Iterable[Verdict]:
        cases = named(results, metric, places)
        held, here = None, "not measured"
        if len(cases) == 2:
            first, second = cases.values()
            fall = (first.value or 0.0) - (second.value or 0.0)
            held, told = decide(fall, math.hypot(first.error, second.error))
            here = f"{_listed(cases)}; {told}"
        yield Verdict(claim=claim, here=here, held=held, stated=stated)

    return judge


def all_below(claim: str, metric: str, bar: float, places: Mapping[str, Where], *, stated: str = "") -> Claim:
    """The highest of some shares is below a bar, or above it, by two standard errors."""

    def judge(results: Results) -> Iterable[Verdict]:
        cases = named(results, metric, places)
        held, here = None, "not measured"
        if cases:
            highest = max(cases.values(), key=lambda number: number.value or 0.0)
            distance = (highest.value or 0.0) - bar
            held = None if abs(distance) <= ERRORS * highest.error else distance < 0
            here = f"{_listed(cases)}; the bar is {percent(bar, 0)} %"
        yield Verdict(claim=claim, here=here, held=held, stated=stated)

    return judge


def both(claim: str, *claims: Claim, names: Sequence[str] = (), least: int | None = None, stated: str = "") -> Claim:
    """A claim of several, each of one verdict that `names` may name: it holds if so many of them do, or all of them."""

    def judge(results: Results) -> Iterable[Verdict]:
        verdicts = [verdict for each in claims for verdict in each(results)]
        states = [verdict.held for verdict in verdicts]
        needed = max(1, len(states) if least is None else least)
        possible = sum(held is not False for held in states)
        held = True if states.count(True) >= needed else None if possible >= needed or not states else False
        told = [f"{name}: {each.here}" for name, each in zip(names, verdicts, strict=True)] if names else None
        here = "; ".join(told or (each.here for each in verdicts))
        yield Verdict(claim=claim, here=here, held=held, stated=stated)

    return judge


def where_read(claim: Claim, without: Sequence[Where], *, metric: str = "success", chance: str = "majority") -> Claim:
    """A claim of what attacks infer, of which nothing follows unless one of them infers anything of unprotected text.

    Args:
        claim: What is claimed.
        without: Places of the same attacks without protection.
        metric: What they infer.
        chance: How often the most frequent answer is right, which one of them must exceed by two standard errors.
    """

    def judge(results: Results) -> Iterable[Verdict]:
        found = [(results.number(metric, **where), results.number(chance, **where)) for where in without]
        read = any((each.value or 0.0) - (most.value or 1.0) > ERRORS * each.error for each, most in found)
        told = "; ".join(f"{shown(each)}, the most frequent answer {shown(most)}" for each, most in found)
        for verdict in claim(results):
            if read:
                yield verdict
            else:
                here = f"{verdict.here}; without protection {told}: not read there either, so that nothing follows"
                yield verdict.model_copy(update={"held": None, "here": here})

    return judge


def claims_table(verdicts: Sequence[Verdict]) -> Table:
    """All verdicts for readers."""
    return Table(
        title="What is claimed, and what was found here",
        columns=("claim", "stated", "here", "held"),
        rows=tuple((each.claim, each.stated or "–", each.here, each.word) for each in verdicts),
        notes=(f"A comparison needs {ERRORS:g} standard errors of the difference.",),
    )
