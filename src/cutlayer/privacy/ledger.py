"""The ledger: what left, written down before it leaves."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cutlayer.core import PrivacyError
from cutlayer.privacy.budget import Due, largest_spent, most_looks
from cutlayer.privacy.charged_rows import ChargedRows
from cutlayer.privacy.database import Database
from cutlayer.privacy.entries import (
    LABEL_UNIT,
    FrameEntry,
    LedgerSummary,
    MechanismSummary,
    NewFrame,
    ReleaseEntry,
    RunBytes,
    VendorSummary,
)

if TYPE_CHECKING:  # they hold tensors, and what left is read without any
    from cutlayer.privacy.charges import Charges
    from cutlayer.privacy.labels import ReportedLabels
    from cutlayer.privacy.release import Release

_SCHEMA: Final = """
CREATE TABLE kinds (
    kind INTEGER PRIMARY KEY, mechanism TEXT NOT NULL, unit TEXT NOT NULL, model TEXT NOT NULL,
    UNIQUE (mechanism, unit, model)
);
CREATE TABLE frames (
    entry INTEGER PRIMARY KEY AUTOINCREMENT, opened REAL NOT NULL, run TEXT NOT NULL, route TEXT NOT NULL,
    place TEXT NOT NULL, vendor TEXT NOT NULL DEFAULT '',
    payload TEXT NOT NULL, texts INTEGER NOT NULL, unsafe INTEGER NOT NULL,
    closed REAL, uplink INTEGER, downlink INTEGER, status INTEGER, digest BLOB, clear TEXT NOT NULL DEFAULT '{}'
);
CREATE TABLE releases (
    entry INTEGER NOT NULL REFERENCES frames, position INTEGER NOT NULL,
    identity BLOB NOT NULL, draw BLOB NOT NULL, content BLOB NOT NULL, digest BLOB NOT NULL,
    kind INTEGER NOT NULL REFERENCES kinds, eta REAL NOT NULL, tokens INTEGER NOT NULL, bytes INTEGER NOT NULL,
    charged INTEGER NOT NULL, part INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (entry, position)
) WITHOUT ROWID;
CREATE TABLE looks (
    account BLOB NOT NULL, draw BLOB NOT NULL, kind INTEGER NOT NULL REFERENCES kinds, eta REAL NOT NULL,
    PRIMARY KEY (account, draw)
) WITHOUT ROWID;
CREATE INDEX frames_run ON frames (run);
CREATE INDEX releases_identity ON releases (identity, digest);
CREATE TABLE owner (fingerprint BLOB NOT NULL)
"""
_UPGRADES: Final = {
    # frames that were written before do not say to whom they went
    1: "ALTER TABLE frames ADD COLUMN vendor TEXT NOT NULL DEFAULT ''; CREATE TABLE owner (fingerprint BLOB NOT NULL)",
    # texts were charged whole: what was spent on one counts for its exact tokens from now on
    2: """
CREATE TABLE kinds_3 (
    kind INTEGER PRIMARY KEY, mechanism TEXT NOT NULL, unit TEXT NOT NULL, model TEXT NOT NULL,
    UNIQUE (mechanism, unit, model)
);
INSERT INTO kinds_3 SELECT kind, mechanism, unit, '' FROM kinds;
DROP TABLE kinds;
ALTER TABLE kinds_3 RENAME TO kinds;
ALTER TABLE releases ADD COLUMN part INTEGER NOT NULL DEFAULT 0;
CREATE TABLE looks (
    account BLOB NOT NULL, draw BLOB NOT NULL, kind INTEGER NOT NULL REFERENCES kinds, eta REAL NOT NULL,
    PRIMARY KEY (account, draw)
) WITHOUT ROWID;
INSERT OR IGNORE INTO looks SELECT content, substr(draw, 1, 8), kind, CASE WHEN unsafe THEN 9e999 ELSE eta END
    FROM releases JOIN frames USING (entry) WHERE charged;
DROP INDEX releases_draw;
DROP INDEX releases_charged
""",
    # no mechanism left words as they are
    3: "ALTER TABLE frames ADD COLUMN clear TEXT NOT NULL DEFAULT '{}'",
}
_PAGE: Final = 500
_OTHER_CATEGORIES: Final = ("gradient", "control")
RELEASE_BYTES: Final = "release"
"""The category under which a frame counts its release's payload bytes (`wire.routes.Category`)."""


class Ledger:
    """A SQLite file at the customer with one row per frame and one per text in it.

    A frame is written down, and is on disk, before its bytes exist. An entry that is never closed
    therefore means: may have left. Several processes may use one file.

    **Budget.** Each draw of noise for a token is a look at it, and is charged its eta once to the text up to that
    token, as it reads, whatever the number of frames and forms in which it is sent: equal beginnings of texts share
    their accounts. The budget bounds, for every account, the sum of the etas of its draws in one unit; etas of unlike
    units are never added. A release without privacy exceeds every budget, and so does one whose noise came from a
    seed. Vendors are taken to tell each other what they got.

    **Labels** have entries of their own, with an epsilon each, and a budget of their own.

    Args:
        path: The file; made if it is missing.

    Attributes:
        witness: Is told the number of each entry once it is on disk.

    Raises:
        StorageError: The file cannot be opened or is no ledger.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.witness: Callable[[int], None] | None = None
        self._database = Database(path, kind="ledger", schema=_SCHEMA, version=4, upgrades=_UPGRADES)

    def belongs_to(self, fingerprint: bytes) -> bool:
        """Whether a secret named the texts in it. Before the first release it takes any secret for its own."""
        with self._database.write() as connection:
            found = connection.execute("SELECT fingerprint FROM owner").fetchone()
            if found is None or (found != (fingerprint,) and not _any_release(connection)):
                connection.execute("DELETE FROM owner")
                connection.execute("INSERT INTO owner VALUES (?)", (fingerprint,))
                return True
            return bool(found == (fingerprint,))

    def open_frame(
        self,
        frame: NewFrame,
        *,
        release: Release | None = None,
        budget: float | None = None,
        labels: ReportedLabels | None = None,
        label_budget: float | None = None,
    ) -> int:
        """Writes a frame down, before its bytes exist.

        Args:
            frame: What it is, and who gets it.
            release: The texts in it.
            budget: Largest sum of etas per account and unit; `None` for no limit.
            labels: Labels that gradients show from this frame on.
            label_budget: Largest sum of epsilons per label; `None` for no limit.

        Returns:
            The entry, for `close_frame`.

        Raises:
            BudgetError: A text, or a label, would be charged beyond the budget. Nothing is written.
            PrivacyError: The release still waits for its noise, or an identity left with other
                bytes before. Nothing is written.
            StorageError: The ledger cannot be written. Then nothing may be sent.
        """
        if release is not None and release.pending is not None:
            raise PrivacyError(
                f"These texts wait for noise at the {release.pending.value} and must not leave.",
                remedy="Pass them through the privatizer's activations() first.",
            )
        now = time.time()
        # hashed outside the transaction, so that other processes do not wait for it
        digests = release.digests() if release is not None else ()
        with self._database.write() as connection:
            entry = connection.execute(
                "INSERT INTO frames (opened, run, vendor, route, place, payload, texts, unsafe, clear) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    now, frame.run, frame.vendor, frame.route, json.dumps(dict(frame.where)),
                    json.dumps(dict(frame.payload_bytes)), 0 if release is None else len(release.of), frame.unsafe,
                    json.dumps({**frame.clear} if release is None else release.clear_words()),
                ),
            ).lastrowid  # fmt: skip
            if entry is None:
                raise PrivacyError("The ledger did not number a frame.")
            after = 0
            if release is not None:
                size = frame.payload_bytes.get(RELEASE_BYTES, 0)
                rows = ChargedRows.of_texts(release, digests, size, model=frame.model)
                rows.write(connection, entry, budget, unsafe=frame.unsafe, told="This release was not sent.")
                after = len(release.of)
            if labels is not None:
                rows = ChargedRows.of_labels(labels, after=after)
                rows.write(connection, entry, label_budget, unsafe=frame.unsafe, told="No gradient was sent.")
        if self.witness is not None:
            self.witness(entry)
        return entry

    def newest(self) -> int:
        """The number of the newest entry; 0 in an empty ledger."""
        with self._database.read() as connection:
            (entry,) = connection.execute("SELECT MAX(entry) FROM frames").fetchone()
        return entry or 0

    def check_budget(self, charges: Iterable[Charges], *, unit: str, budget: float, what: str = "texts") -> None:
        """Asks, before a run begins, whether its budget lets all of its releases leave. Nothing is written.

        Args:
            charges: Of all that will be released.
            unit: What etas are counted in.
            budget: Largest sum of etas per account and unit.
            what: What is released.

        Raises:
            BudgetError: An account would be charged beyond the budget, once all of them had left.
        """
        with self._database.read() as connection:
            Due(connection, charges).check(unit=unit, budget=budget, told="No text was sent.", what=what)

    def is_empty(self) -> bool:
        """Whether no text was ever released."""
        with self._database.read() as connection:
            return not _any_release(connection)

    def clear(self, run: str) -> dict[str, int]:
        """By kind, how many words of a run's texts, or of its labels, left as they are, each record counted once."""
        with self._database.read() as connection:
            rows = connection.execute(
                # a message without texts tells the same however often it is sent
                "SELECT key, SUM(value) FROM (SELECT DISTINCT CASE WHEN texts > 0 THEN entry END, route, place, clear "
                "FROM frames WHERE run = ?), json_each(clear) GROUP BY key ORDER BY key",
                (run,),
            ).fetchall()
        return dict(rows)

    def looks(self, run: str) -> int:
        """The largest number of draws of one text that a run sent, whether it was charged for them or another was."""
        with self._database.read() as connection:
            (most,) = connection.execute(
                "SELECT MAX(looks) FROM (SELECT COUNT(DISTINCT draw) AS looks FROM releases JOIN frames USING (entry) "
                "JOIN kinds USING (kind) WHERE run = ? AND unit != ? GROUP BY content)",
                (run, LABEL_UNIT),
            ).fetchone()
        return most or 0

    def spent_on(self, charges: Iterable[Charges], unit: str) -> list[float]:
        """The most that any account of each text was charged so far, in one unit or without any privacy.

        Args:
            charges: Whose accounts are looked up.
            unit: What etas are counted in.
        """
        with self._database.read() as connection:
            return Due(connection, charges).spent(unit)

    def close_frame(self, entry: int, *, uplink_bytes: int, downlink_bytes: int, status: int, digest: bytes) -> None:
        """Notes what became of a frame.

        Args:
            entry: What `open_frame` returned.
            uplink_bytes: Bytes sent, envelope included.
            downlink_bytes: Bytes received.
            status: HTTP status of the answer.
            digest: Hash of the bytes sent.

        Raises:
            PrivacyError: There is no such entry, or it is closed.
            StorageError: The ledger cannot be written; the entry then says "may have left".
        """
        # a power cut that takes this back leaves an open entry, which errs on the safe side
        with self._database.write(durable=False) as connection:
            closed = connection.execute(
                "UPDATE frames SET closed = ?, uplink = ?, downlink = ?, status = ?, digest = ? "
                "WHERE entry = ? AND closed IS NULL",
                (time.time(), uplink_bytes, downlink_bytes, status, digest, entry),
            ).rowcount
            if not closed:
                raise PrivacyError(f"The ledger has no open frame {entry}.", remedy="Close each frame once.")

    def frames(self) -> Iterator[FrameEntry]:
        """All frames, in the order in which they were opened."""
        query = (
            "SELECT entry, opened, run, vendor, route, place, payload, texts, clear, unsafe, closed, uplink, downlink, "
            "status, digest FROM frames WHERE entry > ? ORDER BY entry LIMIT ?"
        )
        last = 0
        while rows := self._page(query, (last,)):
            last = rows[-1][0]
            for entry, opened, run, vendor, route, where, payload, texts, clear, unsafe, closed, *answer in rows:
                yield FrameEntry(
                    entry, _when(opened), run, vendor, route, json.loads(where), json.loads(payload), texts,
                    json.loads(clear), bool(unsafe), None if closed is None else _when(closed), *answer,
                )  # fmt: skip

    def releases(self) -> Iterator[ReleaseEntry]:
        """All texts of all frames, in the order in which they left."""
        return self._entries(of_labels=False)

    def labels(self) -> Iterator[ReleaseEntry]:
        """All labels that gradients were computed from, by the frame from which on; `eta` is their epsilon."""
        return self._entries(of_labels=True)

    def _entries(self, *, of_labels: bool) -> Iterator[ReleaseEntry]:
        query = (
            "SELECT entry, position, opened, identity, draw, content, releases.digest, mechanism, unit, eta, tokens, "
            "bytes, charged FROM releases JOIN kinds USING (kind) JOIN frames USING (entry) "
            "WHERE (unit = ?) = ? AND (entry, position) > (?, ?) ORDER BY entry, position LIMIT ?"
        )
        last = (0, 0)
        while rows := self._page(query, (LABEL_UNIT, of_labels, *last)):
            last = rows[-1][:2]
            for (
                entry,
                position,
                opened,
                identity,
                draw,
                content,
                digest,
                mechanism,
                unit,
                eta,
                tokens,
                size,
                charged,
            ) in rows:
                yield ReleaseEntry(
                    entry, position, _when(opened), identity, draw, content, digest, mechanism, unit, eta, tokens, size,
                    bool(charged),
                )  # fmt: skip

    def summary(self) -> LedgerSummary:
        """What left altogether."""
        with self._database.read() as connection:
            frames, closed, unsafe, uplink, downlink = connection.execute(
                "SELECT COUNT(*), COUNT(closed), TOTAL(unsafe), TOTAL(uplink), TOTAL(downlink) FROM frames"
            ).fetchone()
            unanswered = dict(
                connection.execute(
                    "SELECT vendor, SUM(value) FROM frames, json_each(payload) WHERE closed IS NULL GROUP BY vendor"
                ).fetchall()
            )
            texts_by_vendor = dict(
                connection.execute(
                    "SELECT vendor, COUNT(DISTINCT content) FROM releases JOIN frames USING (entry) JOIN kinds USING "
                    "(kind) WHERE unit != ? GROUP BY vendor",
                    (LABEL_UNIT,),
                ).fetchall()
            )
            vendors = connection.execute(
                "SELECT vendor, COUNT(*), TOTAL(uplink) FROM frames GROUP BY vendor ORDER BY MIN(entry)"
            ).fetchall()
            payload = dict(
                connection.execute("SELECT key, SUM(value) FROM frames, json_each(payload) GROUP BY key").fetchall()
            )
            clear = dict(
                connection.execute(
                    "SELECT key, SUM(value) FROM frames, json_each(clear) GROUP BY key ORDER BY key"
                ).fetchall()
            )
            spent, looks = largest_spent(connection), most_looks(connection, besides=LABEL_UNIT)
            rows = connection.execute(
                "SELECT mechanism, unit, COUNT(DISTINCT content), COUNT(*), SUM(charged), SUM(tokens), SUM(bytes), "
                "MAX(eta) FROM releases JOIN kinds USING (kind) GROUP BY kind ORDER BY kind"
            ).fetchall()
        lines = [
            MechanismSummary(mechanism, unit, texts, releases, draws, tokens, size, eta, spent.get(unit, 0.0))
            for mechanism, unit, texts, releases, draws, tokens, size, eta in rows
        ]
        return LedgerSummary(
            frames=frames,
            may_have_left=frames - closed,
            unsafe=int(unsafe),
            uplink_bytes=int(uplink) + sum(unanswered.values()),
            downlink_bytes=int(downlink),
            payload_bytes=payload,
            vendors=tuple(
                VendorSummary(vendor, frames, texts_by_vendor.get(vendor, 0), int(sent) + unanswered.get(vendor, 0))
                for vendor, frames, sent in vendors
            ),
            mechanisms=tuple(line for line in lines if line.unit != LABEL_UNIT),
            labels=tuple(line for line in lines if line.unit == LABEL_UNIT),
            clear=clear,
            looks=looks,
        )

    def spent(self, run: str) -> RunBytes:
        """Bytes of one run's frames on the wire, refused ones included.

        A frame's envelope counts as release if the frame released anything, else as control. Of a frame without
        an answer the tensors count: they may have left.
        """
        uplink = dict.fromkeys((RELEASE_BYTES, *_OTHER_CATEGORIES), 0)
        downlink = 0
        with self._database.read() as connection:
            for text, answered, received in connection.execute(
                "SELECT payload, uplink, COALESCE(downlink, 0) FROM frames WHERE run = ?", (run,)
            ):
                payload = json.loads(text)
                sent = sum(payload.values()) if answered is None else answered
                envelope = RELEASE_BYTES if payload.get(RELEASE_BYTES) else "control"
                if sent < sum(payload.values()):
                    payload = {}  # broke off: what did leave is counted under one name
                for category, size in payload.items():
                    uplink[category] += size
                uplink[envelope] += sent - sum(payload.values())
                downlink += received
            (tokens,) = connection.execute(
                "SELECT TOTAL(tokens) FROM (SELECT MAX(tokens) AS tokens FROM releases JOIN frames USING (entry) "
                "WHERE run = ? GROUP BY identity, part)",
                (run,),
            ).fetchone()
        return RunBytes(uplink, downlink, int(tokens))

    def close(self) -> None:
        """Gives the file back."""
        self._database.close()

    def _page(self, query: str, after: tuple[int | str, ...]) -> list[tuple[Any, ...]]:
        # page by page, so that a reader in no hurry holds no lock
        with self._database.read() as connection:
            return connection.execute(query, (*after, _PAGE)).fetchall()


def _any_release(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT 1 FROM releases LIMIT 1").fetchone() is not None


def _when(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
