"""What a frame is charged for: rows of the ledger, one for each text or label in it."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cutlayer.core import PrivacyError
from cutlayer.privacy.budget import Due
from cutlayer.privacy.database import select_by_key
from cutlayer.privacy.entries import LABEL_UNIT

if TYPE_CHECKING:  # they hold tensors, and what left is read without any
    from cutlayer.privacy.charges import Charges
    from cutlayer.privacy.labels import ReportedLabels
    from cutlayer.privacy.release import Release


@dataclass(frozen=True)
class ChargedRows:
    """What a frame is charged for: a row for each text, or for each label.

    Attributes:
        what: What they are, for messages.
        mechanism: How they were privatized.
        unit: What etas are counted in.
        model: What the vendor calls the model; empty for labels, which are no model's.
        charges: What each costs.
        start: The first row's position.
        identities: Names of their bytes.
        draws: Names of the noise in them.
        contents: Names of the texts.
        digests: Hashes of what leaves.
        etas: The largest eta of each.
        tokens: How many tokens each has.
        sizes: Each one's share of the frame's release bytes.
        parts: Which of its item's texts each is.
    """

    what: str
    mechanism: str
    unit: str
    model: str
    charges: Charges
    start: int
    identities: Sequence[bytes]
    draws: Sequence[bytes]
    contents: Sequence[bytes]
    digests: Sequence[bytes]
    etas: Sequence[float]
    tokens: Sequence[int]
    sizes: Sequence[int]
    parts: Sequence[int]

    @classmethod
    def of_texts(cls, release: Release, digests: Sequence[bytes], release_bytes: int, *, model: str) -> ChargedRows:
        """Those of a release."""
        items, rows = release.of.tolist(), release.items_of_texts()
        ends = (rows.cumsum(0) * release_bytes // max(int(rows.sum()), 1)).tolist()
        first = {item: text for text, item in reversed(list(enumerate(items)))}
        return cls(
            what="texts",
            mechanism=release.mechanism,
            unit=release.unit,
            model=model,
            charges=release.charges,
            start=0,
            identities=[release.identities[item] for item in items],
            draws=release.draws,
            contents=release.contents,
            digests=[digests[item] for item in items],
            etas=release.etas.tolist(),
            tokens=release.tokens.tolist(),
            sizes=[end - start for start, end in zip([0, *ends], ends, strict=False)],
            parts=[text - first[item] for text, item in enumerate(items)],
        )

    @classmethod
    def of_labels(cls, labels: ReportedLabels, *, after: int) -> ChargedRows:
        """Those of labels, behind so many texts."""
        none = [0] * len(labels.identities)
        return cls(
            what="labels",
            mechanism=labels.mechanism,
            unit=LABEL_UNIT,
            model="",
            charges=labels.charges,
            start=after,
            identities=labels.identities,
            draws=labels.identities,
            contents=labels.contents,
            digests=labels.digests,
            etas=[labels.epsilon] * len(none),
            tokens=none,
            sizes=none,
            parts=none,
        )

    def write(
        self, connection: sqlite3.Connection, entry: int, budget: float | None, *, unsafe: bool, told: str
    ) -> None:
        """Writes them into a frame's entry, and charges them.

        Args:
            connection: Of the ledger, in a transaction.
            entry: The frame's.
            budget: Largest sum of etas per account and unit; `None` for no limit.
            unsafe: Whether noise comes from a seed.
            told: What a refusal says was not sent.

        Raises:
            BudgetError: An account would be charged beyond the budget.
            PrivacyError: Bytes under a known name are others than before.
        """
        kinds = (self.mechanism, self.unit, self.model)
        connection.execute("INSERT OR IGNORE INTO kinds (mechanism, unit, model) VALUES (?, ?, ?)", kinds)
        (kind,) = connection.execute(
            "SELECT kind FROM kinds WHERE mechanism = ? AND unit = ? AND model = ?", kinds
        ).fetchone()
        self._check_bytes(connection)
        due = Due(connection, [self.charges], unsafe=unsafe)
        if budget is not None:
            due.check(unit=self.unit, budget=budget, told=told, what=self.what)
        new = due.new_texts()
        due.charge(kind)
        count = len(self.identities)
        connection.executemany(
            "INSERT INTO releases VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            zip(
                [entry] * count, range(self.start, self.start + count), self.identities, self.draws,
                self.contents, self.digests, [kind] * count, self.etas, self.tokens, self.sizes,
                [text in new for text in range(count)], self.parts, strict=True,
            ),
        )  # fmt: skip

    def _check_bytes(self, connection: sqlite3.Connection) -> None:
        query = "SELECT identity, digest FROM releases WHERE identity"
        known = dict(select_by_key(connection, query, list(dict.fromkeys(self.identities))))
        differing = 0
        for identity, digest, eta in zip(self.identities, self.digests, self.etas, strict=True):
            # without noise there is no second look: a text's rows may differ in their last bits
            differing += math.isfinite(eta) and known.setdefault(identity, digest) != digest
        if differing:
            raise PrivacyError(
                f"{differing} of {len(self.identities)} {self.what} were released before with other bytes: this would "
                "be a second look.",
                remedy="Send what was sent before (the vault keeps it), or give the release a step of its own.",
            )
