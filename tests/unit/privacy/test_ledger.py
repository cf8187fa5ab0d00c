"""The ledger is written first, charges every look once, refuses what breaks a promise, and survives."""

from __future__ import annotations

import hashlib
import math
import multiprocessing
import os
import signal
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from cutlayer.core import BudgetError, Place, PrivacyError, Ragged, StorageError, Tokens
from cutlayer.privacy import (
    Charges,
    CustomerSecret,
    Ledger,
    NewFrame,
    NoPrivacy,
    Release,
    TextToText,
    VendorSummary,
    build_privatizer,
)
from cutlayer.privacy.ledger import _UPGRADES

TABLE = torch.arange(40, dtype=torch.float32).view(20, 2).sin()
SECRET = CustomerSecret.unsafe(1)
TEXTS = Tokens((Ragged.from_lists([[1, 2, 3], [4], [1, 2, 3], []]),))  # the first and the third are the same


def draw(eta: float = 80, *, look: int | None = None, tokens: Tokens = TEXTS, fingerprint: str = "t") -> Release:
    spec = NoPrivacy() if math.isinf(eta) else TextToText(eta=eta)
    privatizer = build_privatizer(
        spec, secret=SECRET, table=TABLE, candidates=torch.ones(20, dtype=torch.bool), table_fingerprint=fingerprint
    )
    return privatizer.tokens(tokens, labels=None, look=look)


def send(
    ledger: Ledger,
    release: Release | None,
    *,
    budget: float | None = None,
    size: int = 100,
    vendor: str = "https://a.example",
    unsafe: bool = False,
    model: str = "",
) -> int:
    entry = ledger.open_frame(
        NewFrame(
            run="run 1",
            vendor=vendor,
            route="shard.put",
            where={"record_set": "ab", "shard": 3},
            payload_bytes={"release": size, "control": 7},
            unsafe=unsafe,
            model=model,
        ),
        release=release,
        budget=budget,
    )
    ledger.close_frame(entry, uplink_bytes=150, downlink_bytes=20, status=200, digest=b"sha")
    return entry


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.db")


# ---------------------------------------------------------------- what is written


def test_a_frame_and_its_texts(ledger: Ledger) -> None:
    release = draw()
    entry = send(ledger, release)
    (frame,) = ledger.frames()
    assert (frame.entry, frame.run, frame.route, frame.texts) == (entry, "run 1", "shard.put", 4)
    assert frame.where == {"record_set": "ab", "shard": 3}
    assert frame.payload_bytes == {"release": 100, "control": 7}
    assert (frame.uplink_bytes, frame.downlink_bytes, frame.status, frame.digest) == (150, 20, 200, b"sha")
    texts = list(ledger.releases())
    assert [text.identity for text in texts] == list(release.identities)
    assert [text.tokens for text in texts] == [3, 1, 3, 0]
    assert [text.eta for text in texts] == [80, 80, 80, 0]
    assert [text.charged for text in texts] == [True, True, False, True]  # the same text is the same draw
    assert [text.payload_bytes for text in texts] == [42, 15, 43, 0]  # shares of 100 by 3:1:3:0
    assert {text.mechanism for text in texts} == {"text-to-text"}
    assert {text.unit for text in texts} == {"1/distance in table t"}
    assert all(frame.opened == text.time for text in texts)


def test_no_ids_are_written(ledger: Ledger, tmp_path: Path) -> None:
    canary = [11, 17, 13, 19] * 8
    send(ledger, draw(math.inf, tokens=Tokens((Ragged.from_lists([canary]),))))
    ledger.close()
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    for dtype in (torch.uint8, torch.int16, torch.int32, torch.int64):
        assert torch.tensor(canary, dtype=dtype).numpy().tobytes() not in stored
    assert (tmp_path / "ledger.db").stat().st_mode & 0o077 == 0


def test_summary(ledger: Ledger) -> None:
    send(ledger, draw())
    send(ledger, draw(look=1))
    send(ledger, draw(math.inf))
    ledger.open_frame(
        NewFrame(
            run="", vendor="https://b.example", route="service", where={}, payload_bytes={"control": 9}, unsafe=True
        )
    )
    summary = ledger.summary()
    assert (summary.frames, summary.may_have_left, summary.unsafe) == (4, 1, 1)
    assert (summary.uplink_bytes, summary.downlink_bytes) == (459, 60)
    assert summary.payload_bytes == {"release": 300, "control": 30}
    assert summary.vendors == (
        VendorSummary("https://a.example", frames=3, texts=3, uplink_bytes=450),
        VendorSummary("https://b.example", frames=1, texts=0, uplink_bytes=9),
    )
    noised, clear = summary.mechanisms
    assert (noised.texts, noised.releases, noised.draws, noised.tokens) == (3, 8, 6, 14)
    assert (noised.largest_eta, noised.largest_spent, noised.payload_bytes) == (80, 160, 200)
    assert (clear.mechanism, clear.unit, clear.largest_eta, clear.largest_spent) == ("none", "none", math.inf, math.inf)
    assert ledger.spent("run 1").uplink["release"] == 300 + 3 * (150 - 107)


def test_bytes_of_frames_that_broke_off(ledger: Ledger) -> None:
    """Refused whole: counted by what it was. Cut short: counted under one name, and never below zero."""
    for sent, status in ((150, 409), (60, 0), (0, 0)):
        entry = ledger.open_frame(
            NewFrame(run="broken", vendor="v", route="step", where={}, payload_bytes={"gradient": 100}, unsafe=False)
        )
        ledger.close_frame(entry, uplink_bytes=sent, downlink_bytes=0, status=status, digest=b"")
    assert ledger.spent("broken").uplink == {"release": 0, "gradient": 100, "control": 50 + 60}


def test_an_empty_ledger(ledger: Ledger) -> None:
    assert list(ledger.frames()) == list(ledger.releases()) == []
    assert ledger.summary().mechanisms == ()


def test_many_frames_are_read_page_by_page(ledger: Ledger) -> None:
    tokens = Tokens((Ragged(torch.arange(1100) % 20, torch.ones(1100, dtype=torch.int64)),))
    send(ledger, draw(tokens=tokens))
    for _ in range(3):
        send(ledger, draw(tokens=tokens.select([0])))
    texts = list(ledger.releases())
    assert [(text.entry, text.position) for text in texts] == [*((1, i) for i in range(1100)), (2, 0), (3, 0), (4, 0)]
    assert sum(text.charged for text in texts) == 20


# ---------------------------------------------------------------- what is charged


def test_a_release_is_charged_once_and_a_second_draw_again(ledger: Ledger) -> None:
    release = draw()
    send(ledger, release, budget=80)
    send(ledger, release, budget=80)  # the same identity: the same bytes, no further look
    send(ledger, release.carried_as(release.payload, b"another form"), budget=80)
    assert sum(text.charged for text in ledger.releases()) == 3
    with pytest.raises(BudgetError, match=r"3 of 4 texts .*budget of 150: up to 80 spent and 80 due") as caught:
        send(ledger, draw(look=1), budget=150)
    assert "This release was not sent" in str(caught.value)
    send(ledger, draw(look=1), budget=160)
    assert sum(text.charged for text in ledger.releases()) == 6


def test_a_budget_can_be_asked_before_anything_leaves(ledger: Ledger) -> None:
    def ask(*releases: Release, budget: float) -> None:
        ledger.check_budget((each.charges for each in releases), unit=releases[0].unit, budget=budget)

    first, second = draw(), draw(look=1)
    ask(first, first, budget=80)
    with pytest.raises(BudgetError, match=r"up to 0 spent and 160 due.* No text was sent\."):
        ask(first, second, budget=150)
    assert not list(ledger.frames())
    assert ledger.spent_on([first.charges], first.unit) == [0, 0, 0, 0]
    send(ledger, first)
    ask(first, budget=1)
    with pytest.raises(BudgetError, match="up to 80 spent and 80 due"):
        ask(second, budget=150)
    ask(first, second, budget=160)
    assert ledger.spent_on([first.charges], first.unit) == [80, 80, 80, 0]
    assert ledger.spent_on([first.charges], "another unit") == [0, 0, 0, 0]


def test_a_refused_frame_leaves_no_trace(ledger: Ledger) -> None:
    with pytest.raises(BudgetError):
        send(ledger, draw(), budget=79)
    assert ledger.summary().frames == 0
    send(ledger, draw(), budget=80)


def test_one_frame_can_exceed_the_budget_by_itself(ledger: Ledger) -> None:
    one = Tokens((Ragged.from_lists([[1, 2]]),))
    first, second = draw(tokens=one), draw(tokens=one, look=1)
    both = replace(
        first,
        payload=Tokens((Ragged.concatenate([first.payload.segments[0], second.payload.segments[0]]),)),
        identities=first.identities + second.identities,
        of=torch.arange(2),
        draws=first.draws + second.draws,
        contents=first.contents * 2,
        etas=torch.cat([first.etas, second.etas]),
        tokens=torch.cat([first.tokens, second.tokens]),
        charges=Charges(Ragged.concatenate([first.charges.records, second.charges.records])),
    )
    with pytest.raises(BudgetError):
        send(ledger, both, budget=100)


def test_unlike_units_are_never_added(ledger: Ledger) -> None:
    send(ledger, draw(), budget=100)
    send(ledger, draw(fingerprint="another table"), budget=100)
    with pytest.raises(BudgetError):
        send(ledger, draw(eta=40), budget=100)


def test_a_budget_that_is_no_number_refuses_everything(ledger: Ledger) -> None:
    with pytest.raises(BudgetError):
        send(ledger, draw(), budget=math.nan)
    assert not list(ledger.frames())


def test_no_privacy_exceeds_every_budget(ledger: Ledger) -> None:
    with pytest.raises(BudgetError, match="inf due, in none"):
        send(ledger, draw(math.inf), budget=1e9)
    send(ledger, draw(math.inf))


def test_frames_without_texts_are_not_charged(ledger: Ledger) -> None:
    send(ledger, None, budget=0.001)
    assert next(ledger.frames()).texts == 0


# ---------------------------------------------------------------- what is refused


def test_texts_without_their_noise_must_not_leave(ledger: Ledger) -> None:
    with pytest.raises(PrivacyError, match="wait for noise at the activations"):
        send(ledger, replace(draw(), pending=Place.ACTIVATIONS))
    assert ledger.summary().frames == 0


def test_other_bytes_under_a_known_identity_are_refused(ledger: Ledger) -> None:
    release = draw()
    send(ledger, release)
    changed = replace(release, payload=TEXTS.select([1, 0, 1, 3]), identities=release.identities)
    with pytest.raises(PrivacyError, match="3 of 4 texts were released before with other bytes"):
        send(ledger, changed)
    twice = replace(release.carried_as(changed.payload, b"x"), identities=(b"same" * 4,) * 4)
    with pytest.raises(PrivacyError, match="other bytes"):  # within one frame, too
        send(ledger, twice)
    clear = draw(math.inf)
    send(ledger, clear)
    send(ledger, replace(clear, payload=changed.payload))  # without noise there is no second look


def test_a_frame_is_closed_once(ledger: Ledger) -> None:
    entry = send(ledger, None)
    for number in (entry, 99):
        with pytest.raises(PrivacyError, match=f"no open frame {number}"):
            ledger.close_frame(number, uplink_bytes=0, downlink_bytes=0, status=0, digest=b"")


# ---------------------------------------------------------------- crashes, crowds and bad files


def _die_after_opening(path: Path) -> None:
    torch.set_num_threads(1)  # the threads of a forked process's parent are gone, and waiting for them hangs
    Ledger(path).open_frame(
        NewFrame(run="", vendor="v", route="job.step", where={}, payload_bytes={}, unsafe=False), release=draw()
    )
    os.kill(os.getpid(), signal.SIGKILL)


def test_an_entry_outlives_the_process_that_wrote_it(ledger: Ledger, tmp_path: Path) -> None:
    process = multiprocessing.get_context("fork").Process(target=_die_after_opening, args=(tmp_path / "ledger.db",))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    (frame,) = ledger.frames()
    assert frame.closed is None
    assert ledger.summary().may_have_left == 1
    with pytest.raises(BudgetError):  # charged: it may have left
        send(ledger, draw(look=1), budget=100)
    send(ledger, draw(), budget=100)


def _write_in_child(ledger: Ledger, path: Path, number: int) -> None:
    torch.set_num_threads(1)
    _write(ledger, path, number)


def _write(ledger: Ledger, path: Path, number: int) -> None:
    for i in range(10):
        send(ledger, draw(look=1000 * number + i))
        send(Ledger(path), None)


def test_many_processes_write_one_ledger(ledger: Ledger, tmp_path: Path) -> None:
    send(ledger, draw())  # a connection is open when the forks are made
    path = tmp_path / "ledger.db"
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=_write_in_child, args=(ledger, path, number)) for number in range(4)]
    for process in processes:
        process.start()
    _write(ledger, path, 9)
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    frames = list(ledger.frames())
    assert len(frames) == 101
    assert all(frame.closed for frame in frames)
    assert sum(text.charged for text in ledger.releases()) == 51 * 3


def test_many_threads_open_and_write_one_ledger(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: send(Ledger(tmp_path / "ledger.db"), draw(look=i)), range(24)))
    shared = Ledger(tmp_path / "ledger.db")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: send(shared, None), range(24)))
    assert shared.summary().frames == 48


def test_a_new_file_that_another_writes_is_waited_for(tmp_path: Path) -> None:
    """SQLite itself gives up at once where it would change the journal of a file that another writes."""
    path = tmp_path / "ledger.db"
    other = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    other.execute("CREATE TABLE begun (at)")
    other.execute("BEGIN IMMEDIATE")
    threading.Timer(0.3, other.rollback).start()
    Ledger(path)
    other.close()


def test_a_budget_holds_between_processes(ledger: Ledger, tmp_path: Path) -> None:
    def attempt(i: int) -> bool:
        try:
            send(Ledger(tmp_path / "ledger.db"), draw(look=i), budget=240)
        except BudgetError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, range(12))) == 3
    assert ledger.summary().mechanisms[0].largest_spent == 240


def test_a_full_disk(ledger: Ledger) -> None:
    send(ledger, draw())
    connection = ledger._database._connection
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count={pages}")
    tokens = Tokens((Ragged(torch.arange(2000) % 20, torch.ones(2000, dtype=torch.int64)),))
    with pytest.raises(StorageError, match="full") as caught:
        send(ledger, draw(tokens=tokens))
    assert "Free disk space" in caught.value.remedy
    assert ledger.summary().frames == 1
    connection.execute("PRAGMA max_page_count=1000000")
    send(ledger, draw(tokens=tokens))


def test_a_file_that_cannot_be_written(ledger: Ledger) -> None:
    ledger._database._connection.execute("PRAGMA query_only=1")  # as root, file modes forbid nothing
    with pytest.raises(StorageError, match="readonly") as caught:
        send(ledger, None)
    assert "writable" in caught.value.remedy


def _noise(path: Path) -> None:
    path.write_bytes(b"no database, " * 1000)


def _folder(path: Path) -> None:
    path.mkdir()


def _newer(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version=7")


@pytest.mark.parametrize(
    ("make", "expected"), [(_noise, "not a database"), (_folder, "unable to open"), (_newer, "has version 7")]
)
def test_files_that_are_no_ledger(tmp_path: Path, make: Callable[[Path], None], expected: str) -> None:
    make(tmp_path / "ledger.db")
    with pytest.raises(StorageError, match=expected) as caught:
        Ledger(tmp_path / "ledger.db")
    assert caught.value.remedy


_VERSION_2 = """
CREATE TABLE kinds (kind INTEGER PRIMARY KEY, mechanism TEXT NOT NULL, unit TEXT NOT NULL, UNIQUE (mechanism, unit));
CREATE TABLE frames (
    entry INTEGER PRIMARY KEY AUTOINCREMENT, opened REAL NOT NULL, run TEXT NOT NULL, route TEXT NOT NULL,
    place TEXT NOT NULL, vendor TEXT NOT NULL DEFAULT '',
    payload TEXT NOT NULL, texts INTEGER NOT NULL, unsafe INTEGER NOT NULL,
    closed REAL, uplink INTEGER, downlink INTEGER, status INTEGER, digest BLOB
);
CREATE TABLE releases (
    entry INTEGER NOT NULL REFERENCES frames, position INTEGER NOT NULL,
    identity BLOB NOT NULL, draw BLOB NOT NULL, content BLOB NOT NULL, digest BLOB NOT NULL,
    kind INTEGER NOT NULL REFERENCES kinds, eta REAL NOT NULL, tokens INTEGER NOT NULL, bytes INTEGER NOT NULL,
    charged INTEGER NOT NULL, PRIMARY KEY (entry, position)
) WITHOUT ROWID;
CREATE INDEX frames_run ON frames (run);
CREATE INDEX releases_identity ON releases (identity, digest);
CREATE INDEX releases_draw ON releases (draw) WHERE charged;
CREATE INDEX releases_charged ON releases (content, kind, eta) WHERE charged;
CREATE TABLE owner (fingerprint BLOB NOT NULL);
INSERT INTO kinds VALUES (1, 'text-to-text', '1/distance in table t');
INSERT INTO frames VALUES (1, 1.0, 'run 0', 'shard.put', '{}', '', '{"release": 10}', 2, 0, 2.0, 12, 3, 200, x'00');
"""


def _make_former(path: Path, version: int, *, unsafe: bool = False) -> None:
    """As earlier versions wrote it, after `TEXTS` had left at eta 80: what was spent on them must not be forgotten."""
    with sqlite3.connect(path) as connection:
        connection.executescript(_VERSION_2)
        for place, ids in enumerate(([1, 2, 3], [4], [1, 2, 3])):
            shape = np.array([len(ids)], dtype="<i8").tobytes()
            named = hashlib.blake2b(
                shape + np.array(ids, dtype="<i8").tobytes(), key=SECRET.content_key(), digest_size=16
            ).digest()
            row = (1, place, named, named, named, b"bytes", 1, 80.0, len(ids), 5, place < 2)
            connection.execute("INSERT INTO releases VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        connection.execute("UPDATE frames SET unsafe = ?", (unsafe,))
        if version == 1:
            connection.execute("ALTER TABLE frames DROP COLUMN vendor")
            connection.execute("DROP TABLE owner")
        connection.execute(f"PRAGMA user_version={version}")


@pytest.mark.parametrize("version", [1, 2])
def test_a_ledger_of_a_former_version_is_taken_over(tmp_path: Path, version: int) -> None:
    _make_former(tmp_path / "ledger.db", version)
    ledger = Ledger(tmp_path / "ledger.db")
    assert [text.charged for text in ledger.releases()] == [True, True, False]
    assert ledger.spent_on([draw().charges], draw().unit) == [80, 80, 80, 0]
    with pytest.raises(BudgetError, match=r"3 of 4 texts .* up to 80 spent and 80 due"):
        send(ledger, draw(), budget=80)  # draws have other names now, so this is another look
    send(ledger, draw(), budget=160)
    assert [frame.vendor for frame in ledger.frames()] == ["", "https://a.example"]
    assert ledger.summary().mechanisms[0].largest_spent == 160
    # another text that begins with these tokens was not charged
    send(ledger, draw(tokens=Tokens((Ragged.from_lists([[4, 5]]),))), budget=80)
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (4,)


def test_a_ledger_that_knew_of_no_words_in_clear_is_taken_over(ledger: Ledger, tmp_path: Path) -> None:
    send(ledger, draw(), budget=80)
    ledger.close()
    with sqlite3.connect(tmp_path / "ledger.db") as connection:
        connection.execute("ALTER TABLE frames DROP COLUMN clear")
        connection.execute("PRAGMA user_version=3")
    later = Ledger(tmp_path / "ledger.db")
    assert [dict(frame.clear) for frame in later.frames()] == [{}]
    assert later.summary().clear == {}
    send(later, replace(draw(), clear={"number": torch.tensor([1, 0, 2, 0])}), budget=80)
    assert later.summary().clear == {"number": 3}
    assert later.summary().mechanisms[0].largest_spent == 80, "what was spent before counts"


@pytest.mark.parametrize("version", [1, 2])
def test_an_upgraded_ledger_has_the_columns_of_a_new_one(tmp_path: Path, version: int) -> None:
    _make_former(tmp_path / "former.db", version)
    columns = []
    for name in ("former.db", "new.db"):
        Ledger(tmp_path / name).close()
        with sqlite3.connect(tmp_path / name) as connection:
            columns.append(
                {
                    table: {column[1:4] for column in connection.execute(f"PRAGMA table_info({table})")}
                    for table in ("kinds", "frames", "releases", "looks", "owner")
                }
            )
    assert columns[0] == columns[1]


def test_what_left_with_noise_from_a_seed_before_is_not_forgotten(tmp_path: Path) -> None:
    _make_former(tmp_path / "ledger.db", 2, unsafe=True)
    with pytest.raises(BudgetError, match="up to inf spent"):
        send(Ledger(tmp_path / "ledger.db"), draw(), budget=1e9)


@pytest.mark.parametrize("step", [1, 2, 3])
def test_an_upgrade_that_fails_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    _make_former(tmp_path / "ledger.db", 1)
    with monkeypatch.context() as broken:
        broken.setitem(_UPGRADES, step, _UPGRADES[step] + "; INSERT INTO nowhere VALUES (1)")
        with pytest.raises(StorageError, match="no such table: nowhere"):
            Ledger(tmp_path / "ledger.db")
    assert Ledger(tmp_path / "ledger.db").summary().frames == 1


def test_it_belongs_to_one_secret_from_the_first_release_on(ledger: Ledger, tmp_path: Path) -> None:
    assert ledger.belongs_to(b"a")
    assert ledger.belongs_to(b"b"), "no text has a name yet"
    send(ledger, draw())
    assert not Ledger(tmp_path / "ledger.db").belongs_to(b"a")
    assert ledger.belongs_to(b"b")


def test_a_damaged_file(ledger: Ledger, tmp_path: Path) -> None:
    tokens = Tokens((Ragged(torch.arange(2000) % 20, torch.ones(2000, dtype=torch.int64)),))
    send(ledger, draw(tokens=tokens))
    ledger.close()
    with open(tmp_path / "ledger.db", "r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (os.path.getsize(tmp_path / "ledger.db") - 4096))
    with pytest.raises(StorageError) as caught:
        list(Ledger(tmp_path / "ledger.db").releases())
    assert "backup" in caught.value.remedy


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be created"):
        Ledger(tmp_path / "missing" / "ledger.db")


# ---------------------------------------------------------------- what a careless sum would miss


def test_noise_from_a_seed_exceeds_every_later_budget(ledger: Ledger) -> None:
    """Whoever knows the seed reads the text; and the seed's own keys must not give the text another name."""
    privatizer = build_privatizer(
        TextToText(eta=80),
        secret=CustomerSecret.unsafe(7, names=SECRET),
        table=TABLE,
        candidates=torch.ones(20, dtype=torch.bool),
        table_fingerprint="t",
    )
    real = draw()
    seeded = privatizer.tokens(TEXTS.select([0]), labels=None)
    assert seeded.draws != real.draws[:1]
    send(ledger, seeded, unsafe=True)
    # the text that left, the other one that begins otherwise, and the one without tokens
    assert ledger.spent_on([real.charges], real.unit) == [math.inf, 0, math.inf, 0]
    assert ledger.spent_on([real.charges], "another unit") == [math.inf, 0, math.inf, 0]
    assert {line.largest_spent for line in ledger.summary().mechanisms} == {math.inf}
    with pytest.raises(BudgetError, match="2 of 4 texts"):
        send(ledger, real, budget=1000)
    send(ledger, draw(tokens=TEXTS.select([1, 3])), budget=80)


def test_what_left_without_privacy_exceeds_every_later_budget(ledger: Ledger) -> None:
    """Its unit is another, but there is nothing left of the text to protect."""
    send(ledger, draw(math.inf))
    first = draw()
    assert set(ledger.spent_on([first.charges], first.unit)) == {math.inf}
    with pytest.raises(BudgetError, match="up to inf spent and 80 due"):
        send(ledger, first, budget=1e9)


def test_a_frame_without_an_answer_counts_with_its_tensors(ledger: Ledger) -> None:
    send(ledger, draw())
    before, ledger_before = ledger.spent("run 1"), ledger.summary().uplink_bytes
    ledger.open_frame(
        NewFrame(
            run="run 1",
            vendor="v",
            route="shard.put",
            where={},
            payload_bytes={"release": 1000, "control": 30},
            unsafe=False,
        ),
        release=draw(look=1),
    )
    after = ledger.spent("run 1")
    assert after.uplink["release"] - before.uplink["release"] == 1000
    assert after.uplink["control"] - before.uplink["control"] == 30
    assert after.downlink == before.downlink
    assert ledger.summary().uplink_bytes - ledger_before == 1030


def test_looks_of_a_run_are_the_draws_of_its_most_drawn_text(ledger: Ledger) -> None:
    assert ledger.looks("run 1") == 0
    for look in (None, None, 1, 2):
        send(ledger, draw(look=look))
    assert ledger.looks("run 1") == 3
    assert ledger.looks("another") == 0


def test_looks_at_a_text_add_up_over_all_tables_of_a_model(ledger: Ledger) -> None:
    """A vendor that changes a bit of its table begins another unit of eta, and the text is looked at again."""
    for table in ("t", "u", "v", "w", "x"):
        send(ledger, draw(fingerprint=table), model="large")
    send(ledger, draw(60, fingerprint="t"), model="large")
    send(ledger, draw(fingerprint="y"), model="small")
    summary = ledger.summary()
    assert {line.largest_spent for line in summary.mechanisms} == {80, 140}
    assert summary.looks == {"large": 6, "small": 1}
