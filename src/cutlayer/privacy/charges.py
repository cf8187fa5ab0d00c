"""What looks at a text cost, and whether its budget allows another: the ledger's arithmetic.

A look is a draw of noise. It is charged its eta once, whatever the number of frames and forms in
which it is sent; etas of unlike units are never added. Everything here reads the ledger's tables
inside a transaction of the caller.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

from cutlayer.core import BudgetError
from cutlayer.privacy.database import select_by_key

_ROUNDING: Final = 1e-9
# noise from a seed can be subtracted by whoever knows it; and sums of infinities differ between versions of SQLite
_SUM: Final = "CASE WHEN MAX(eta) = 9e999 OR MAX(unsafe) THEN 9e999 ELSE SUM(eta) END"
_CHARGED: Final = "FROM releases JOIN kinds USING (kind) JOIN frames USING (entry) WHERE charged"


def within_budget(spent: float, budget: float) -> bool:
    """Whether a sum of etas keeps to a budget, but for rounding; a budget that is no number lets nothing pass."""
    return spent <= budget * (1 + _ROUNDING)


def new_draws(connection: sqlite3.Connection, draws: Sequence[bytes]) -> list[bool]:
    """Whether each draw is seen for the first time, and so a look that is charged."""
    rows = select_by_key(connection, "SELECT draw FROM releases WHERE charged AND draw", draws)
    seen = {draw for (draw,) in rows}
    new = []
    for draw in draws:
        new.append(draw not in seen)
        seen.add(draw)
    return new


def spent_on(connection: sqlite3.Connection, contents: Sequence[bytes], unit: str) -> dict[bytes, float]:
    """The sum of etas charged for each text in one unit; texts that were charged nothing are left out.

    What left without privacy, or with noise from a seed, left in every unit.
    """
    query = f"SELECT content, {_SUM} {_CHARGED} AND (unit = ? OR eta = 9e999 OR unsafe) AND content"
    return dict(select_by_key(connection, query, contents, unit, suffix="GROUP BY content"))


def largest_spent(connection: sqlite3.Connection) -> dict[str, float]:
    """The largest sum that any text was charged, by unit."""
    by_text = f"SELECT unit, {_SUM} AS spent {_CHARGED} GROUP BY unit, content"
    return dict(connection.execute(f"SELECT unit, MAX(spent) FROM ({by_text}) GROUP BY unit").fetchall())  # noqa: S608 - constants


def check_budget(
    connection: sqlite3.Connection,
    *,
    contents: Sequence[bytes],
    etas: Sequence[float],
    new: Sequence[bool],
    unit: str,
    budget: float,
    told: str,
    what: str = "texts",
) -> None:
    """Refuses releases that a budget does not allow.

    Args:
        connection: The ledger's.
        contents: The text of each release.
        etas: What each costs if its draw is new.
        new: Whether it is.
        unit: What etas are counted in.
        budget: Largest sum of etas per text and unit.
        told: What the message says of the consequence.
        what: What is released.

    Raises:
        BudgetError: A text would be charged beyond the budget, once all of them had left.
    """
    due: dict[bytes, float] = {}
    for content, eta, is_new in zip(contents, etas, new, strict=True):
        if is_new:
            due[content] = due.get(content, 0.0) + eta
    spent = spent_on(connection, list(due), unit)
    over = [
        (spent.get(content, 0.0), eta)
        for content, eta in due.items()
        if not within_budget(spent.get(content, 0.0) + eta, budget)
    ]
    if over:
        before, eta = max(over, key=sum)
        raise BudgetError(
            f"{len(over)} of {len(set(contents))} {what} would be charged beyond the budget of {budget:g}: "
            f"up to {before:g} spent and {eta:g} due, in {unit}. {told}",
            remedy=f"Use what was released before at the same settings, leave these {what} out, or raise the budget.",
        )
