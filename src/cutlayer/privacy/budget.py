"""Whether a budget allows another look: the ledger's arithmetic.

Etas of unlike units are never added. Everything here reads the ledger's tables inside a transaction of the caller.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from cutlayer.core import BudgetError

if TYPE_CHECKING:
    from cutlayer.privacy.charges import Charges

_ROUNDING: Final = 1e-9
# sums of infinities differ between versions of SQLite
_SUM: Final = "CASE WHEN MAX(eta) = 9e999 THEN 9e999 ELSE SUM(eta) END"
# what left without privacy, or with noise from a seed, left in every unit
_SPENT: Final = (
    f"SELECT account, {_SUM} AS spent FROM looks JOIN kinds USING (kind) "  # noqa: S608 - constants
    "WHERE account IN (SELECT account FROM due) AND (unit = :unit OR eta = 9e999) GROUP BY account"
)
_NEW: Final = (
    "SELECT account, draw, MIN(eta) AS eta, MIN(text) AS text FROM due WHERE NOT EXISTS "
    "(SELECT 1 FROM looks WHERE looks.account = due.account AND looks.draw = due.draw) GROUP BY account, draw"
)


def within_budget(spent: float, budget: float) -> bool:
    """Whether a sum of etas keeps to a budget, but for rounding; a budget that is no number lets nothing pass."""
    return spent <= budget * (1 + _ROUNDING)


class Due:
    """Charges that are looked at before they are made.

    Args:
        connection: The ledger's, inside a transaction.
        charges: All that leaves together.
        unsafe: Whether noise comes from a seed: whoever knows that can subtract it, so it costs everything.
    """

    def __init__(self, connection: sqlite3.Connection, charges: Iterable[Charges], *, unsafe: bool = False) -> None:
        self._connection = connection
        self.texts = 0
        connection.execute(
            "CREATE TEMP TABLE IF NOT EXISTS due (account BLOB NOT NULL, draw BLOB NOT NULL, eta REAL, text INTEGER)"
        )
        connection.execute("DELETE FROM due")
        for some in charges:
            connection.executemany("INSERT INTO due VALUES (?, ?, ?, ?)", some.rows(first=self.texts))
            self.texts += len(some)
        if unsafe:
            connection.execute("UPDATE due SET eta = 9e999")

    def new_texts(self) -> set[int]:
        """Numbers of the texts that are charged for a draw which was not charged before."""
        return {text for (text,) in self._connection.execute(f"SELECT DISTINCT text FROM ({_NEW})")}  # noqa: S608 - a constant

    def check(self, *, unit: str, budget: float, told: str, what: str) -> None:
        """Refuses releases that a budget does not allow.

        Args:
            unit: What etas are counted in.
            budget: Largest sum of etas per account and unit.
            told: What the message says of the consequence.
            what: What is released.

        Raises:
            BudgetError: An account would be charged beyond the budget, once all of them had left.
        """
        rows = self._connection.execute(
            f"SELECT account, COALESCE(spent, 0), {_SUM} FROM ({_NEW}) LEFT JOIN ({_SPENT}) USING (account) "  # noqa: S608 - constants
            "GROUP BY account",
            {"unit": unit},
        )
        over = {account: (spent, eta) for account, spent, eta in rows if not within_budget(spent + eta, budget)}
        if not over:
            return
        texts = {text for account, text in self._connection.execute("SELECT account, text FROM due") if account in over}
        before, eta = max(over.values(), key=sum)
        raise BudgetError(
            f"{len(texts)} of {self.texts} {what} would be charged beyond the budget of {budget:g}: "
            f"up to {before:g} spent and {eta:g} due, in {unit}. {told}",
            remedy=f"Use what was released before at the same settings, leave these {what} out, or "
            "fine-tune with a larger budget.",
        )

    def spent(self, unit: str) -> list[float]:
        """The most that any account of each text was charged before, in one unit or in all."""
        largest = [0.0] * self.texts
        rows = self._connection.execute(
            f"SELECT text, MAX(spent) FROM due JOIN ({_SPENT}) USING (account) GROUP BY text",  # noqa: S608 - constants
            {"unit": unit},
        )
        for text, spent in rows:
            largest[text] = spent
        return largest

    def charge(self, kind: int) -> None:
        """Writes down what is new."""
        self._connection.execute(
            f"INSERT INTO looks (account, draw, kind, eta) SELECT account, draw, ?, eta FROM ({_NEW}) "  # noqa: S608 - a constant
            "ORDER BY account",
            (kind,),
        )


def largest_spent(connection: sqlite3.Connection) -> dict[str, float]:
    """The largest sum that any account was charged, by unit."""
    by_account = f"SELECT unit, {_SUM} AS spent FROM looks JOIN kinds USING (kind) GROUP BY account, unit"  # noqa: S608 - constants
    return dict(connection.execute(f"SELECT unit, MAX(spent) FROM ({by_account}) GROUP BY unit").fetchall())  # noqa: S608 - constants


def most_looks(connection: sqlite3.Connection, *, besides: str) -> dict[str, int]:
    """The largest number of draws that were charged to one account, by model, whatever their units but for one.

    Args:
        connection: In a transaction.
        besides: A unit that does not count: that of labels, which are no model's.
    """
    by_account = (
        "SELECT model, COUNT(*) AS looks FROM looks JOIN kinds USING (kind) WHERE unit != :besides "
        "GROUP BY account, model"
    )
    rows = connection.execute(f"SELECT model, MAX(looks) FROM ({by_account}) GROUP BY model", {"besides": besides})  # noqa: S608 - constants
    return dict(rows.fetchall())
