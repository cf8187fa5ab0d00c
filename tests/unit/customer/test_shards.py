"""A corpus drawn in shards: the same as in one piece, in any number of processes, charged once, kept sealed."""

from __future__ import annotations

import base64
import dataclasses
import json
import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from cutlayer.core import BudgetError, ConfigError, Cut, PrivacyError, StorageError
from cutlayer.core.executors import Executor, InProcess, Pieces, executor
from cutlayer.customer import Client, Draw, PrivatizedText, shards
from cutlayer.customer.handout import local_archive
from cutlayer.customer.shards import Drawer, Row
from cutlayer.data import Dataset, TextFile, tokenise
from cutlayer.privacy import Spellings, TextToText, build_privatizer, table_fingerprint
from tests.service.fixtures import tiny_model  # noqa: F401 - a fixture by name
from tests.unit.core.cluster import cluster  # noqa: F401 - another

CANARY = "zanzibar"
ETA = 6.0
SHARD = 200
"""Characters: some shards, of a small corpus."""


def corpus() -> tuple[Row, ...]:
    """Texts of which some come again, begin as others do, or are one of them with a word changed in the middle."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    rows = [" ".join(letters[(start * step) % 26] for step in range(1, 14)) for start in range(30)]
    rows += [rows[3], rows[3] + " q w e", "  " + rows[5].upper(), rows[7].replace(rows[7][12], "w9"), "", CANARY]
    rows += [rows[3], "a", "a b", f"w1 w2 w3 {CANARY} w4"]
    return tuple((row,) for row in rows)


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "SHARD_CHARACTERS", SHARD)


@pytest.fixture
def draw(tiny_model: Path) -> Draw:  # noqa: F811
    return Draw(TextToText(eta=ETA), model=str(tiny_model))


@pytest.fixture
def home(own_home: Path) -> Path:
    """A customer's folder that can be copied, secret and all."""
    _ = Client(device="cpu").home.secret
    return own_home


@pytest.fixture
def client(home: Path) -> Client:
    return Client(home=home, device="cpu")


def copied(home: Path, to: Path) -> Client:
    return Client(home=Path(shutil.copytree(home, to)), device="cpu")


def charged(home: Path) -> list[tuple[object, ...]]:
    """All that a ledger holds, but for times and frames' numbers."""
    with sqlite3.connect(home / "ledger.sqlite") as connection:
        looks = connection.execute(
            "SELECT account, draw, unit, model, eta FROM looks JOIN kinds USING (kind)"
        ).fetchall()
        releases = connection.execute(
            "SELECT identity, draw, content, releases.digest, eta, tokens, bytes, charged, vendor, run, closed > 0 "
            "FROM releases JOIN frames USING (entry) ORDER BY entry, position"
        ).fetchall()
    return [*sorted(looks), *releases]


def whole(client: Client, draw: Draw, rows: tuple[Row, ...]) -> list[tuple[str, ...]]:
    """Releases of all rows, drawn at once and without shards."""
    archive = local_archive(client.home, draw.model, Cut(bottom=0))
    privatizer = build_privatizer(
        draw.privacy,
        secret=client.home.secret,
        table=archive.table,
        candidates=archive.candidates,
        table_fingerprint=table_fingerprint(archive.table),
        spellings=Spellings(archive.spellings),
    )
    dataset = Dataset(rows)
    tokens = tokenise(dataset, archive.tokenizer, max_content=archive.template.max_content(dataset.segments))
    payload = privatizer.tokens(tokens, labels=None).payload
    return [tuple(archive.tokenizer.decode(segment[row]) for segment in payload.segments) for row in range(len(rows))]


@pytest.mark.slow
def test_any_number_of_processes_draws_and_charges_what_one_does(
    client: Client, home: Path, draw: Draw, tmp_path: Path
) -> None:
    rows = corpus()
    found = []
    for jobs in (1, 3):
        customer = copied(home, tmp_path / str(jobs))
        texts = list(customer.privatize_stream(rows, draw, charge=True, executor=executor(jobs=jobs)))
        found.append((texts, charged(customer.home.path)))
    (texts, ledger), others = found
    assert others == (texts, ledger)
    assert [text.released for text in texts] == whole(client, draw, rows)
    assert sum(text.replaced for text in texts) > 20
    assert len(ledger) > len(rows)


@pytest.mark.slow
def test_a_ray_cluster_draws_the_same(client: Client, draw: Draw, cluster: str) -> None:  # noqa: F811
    rows = corpus()
    assert list(client.privatize_stream(rows, draw, executor=executor(ray=cluster))) == list(
        client.privatize_stream(rows, draw)
    )


def test_pairs_are_drawn_as_in_one_piece(client: Client, draw: Draw) -> None:
    rows = tuple((first, second) for (first,), (second,) in zip(corpus(), reversed(corpus()), strict=True))
    drawn = list(client.privatize_stream(rows, draw))
    assert [text.released for text in drawn] == whole(client, draw, rows)


def test_a_text_is_charged_once_for_one_draw(client: Client, draw: Draw) -> None:
    """Whether it stands in another shard, is drawn again later, or continues another text."""
    rows = corpus()
    list(client.privatize_stream(rows, draw, charge=True))
    before = charged(client.home.path)
    looks = [line for line in before if len(line) == 5]
    list(client.privatize_stream(rows, draw, charge=True))
    after = charged(client.home.path)
    assert [line for line in after if len(line) == 5] == looks
    assert len([line for line in after if len(line) != 5]) == 2 * len(rows)
    list(client.privatize_stream(rows, dataclasses.replace(draw, privacy=TextToText(eta=ETA + 1)), charge=True))
    assert client.ledger.summary().mechanisms[0].largest_spent == 2 * ETA + 1
    assert [each.vendor for each in client.ledger.summary().vendors] == ["a file"]


def test_nothing_is_charged_unless_asked_for(client: Client, draw: Draw) -> None:
    list(client.privatize_stream(corpus(), draw))
    assert not list(client.ledger.frames())
    with pytest.raises(ConfigError, match="bounds what is charged"):
        client.privatize_stream(corpus(), draw, privacy_budget=60.0)


class Untouched:
    """An executor that must not be asked."""

    def run(self, function: str, arguments: Iterable[str], *, in_order: bool = False) -> Pieces:
        pytest.fail("something was drawn")


def test_a_budget_refuses_before_anything_is_drawn(client: Client, draw: Draw) -> None:
    list(client.privatize_stream(corpus()[-3:], draw, charge=True, privacy_budget=ETA))
    frames = len(list(client.ledger.frames()))
    other = dataclasses.replace(draw, privacy=TextToText(eta=ETA + 1))
    for budget, rows in ((ETA - 1, corpus()), (2 * ETA, corpus())):
        with pytest.raises(BudgetError, match="beyond the budget"):
            list(client.privatize_stream(rows, other, charge=True, privacy_budget=budget, executor=Untouched()))
    assert len(list(client.ledger.frames())) == frames


def test_each_shard_is_charged_before_any_text_of_it_is_handed_out(client: Client, draw: Draw) -> None:
    stream = client.privatize_stream(corpus(), draw, charge=True)
    next(iter(stream))
    (frame,) = client.ledger.frames()
    assert frame.texts > 1
    assert frame.closed is None, "it may have left"
    stream.close()
    assert client.ledger.summary().may_have_left == 1


class Watched(InProcess):
    """In this process; keeps what crosses."""

    def __init__(self) -> None:
        super().__init__()
        self.crossed: list[str] = []

    def run(self, function: str, arguments: Iterable[str], *, in_order: bool = False) -> Pieces:
        def kept() -> Iterator[str]:
            for argument in arguments:
                self.crossed.append(argument)
                yield argument

        for done in super().run(function, kept(), in_order=in_order):
            self.crossed.append(done.result or "")
            yield done


def test_neither_texts_nor_the_secret_cross_to_a_worker(client: Client, draw: Draw) -> None:
    watched = Watched()
    list(client.privatize_stream(corpus(), draw, executor=watched))
    secret = (client.home.path / "secret").read_bytes()
    crossed = "".join(watched.crossed)
    forms = [
        secret.hex(),
        base64.b64encode(secret).decode().rstrip("="),
        base64.urlsafe_b64encode(secret).decode()[:40],
    ]
    sealed = [json.loads(each)["sealed"] for each in watched.crossed]
    assert len(sealed) > 10
    for text in (CANARY, *forms):
        assert text not in crossed
        assert not any(text.encode() in base64.urlsafe_b64decode(each) for each in sealed)
    assert not any(secret in base64.urlsafe_b64decode(each) for each in sealed)


def test_another_secret_opens_nothing(client: Client, draw: Draw, tmp_path: Path) -> None:
    watched = Watched()
    list(client.privatize_stream(corpus(), draw, executor=watched))
    told = json.loads(watched.crossed[0])
    other = Client(home=tmp_path / "other", device="cpu")
    told["drawing"]["secret"] = str(other.home.secret_file())
    with pytest.raises(PrivacyError, match="another secret"):
        shards.draw(json.dumps(told))
    told["drawing"]["secret"] = str(tmp_path / "nobody" / "secret")
    with pytest.raises(StorageError, match="cannot be read"):
        shards.draw(json.dumps(told))
    assert not (tmp_path / "nobody").exists(), "a machine that lacks the secret makes none"


class StopEarlyError(Exception):
    """After some shards."""


def interrupted(after: int) -> Executor:
    class Interrupted(InProcess):
        def run(self, function: str, arguments: Iterable[str], *, in_order: bool = False) -> Pieces:
            for number, done in enumerate(super().run(function, arguments, in_order=in_order)):
                if number == after:
                    raise StopEarlyError
                yield done

    return Interrupted()


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows of each shard were drawn."""
    counted: list[int] = []
    original = Drawer.draw

    def draw(self: Drawer, rows: tuple[Row, ...]) -> shards.Drawn:
        counted.append(len(rows))
        return original(self, rows)

    monkeypatch.setattr(Drawer, "draw", draw)
    return counted


def kept(client: Client) -> list[Path]:
    return [path for path in client.home.drawn.rglob("*") if path.is_file()]


def test_a_stopped_corpus_goes_on_where_it_was(client: Client, draw: Draw, drawn: list[int], tmp_path: Path) -> None:
    rows = corpus()
    expected = list(client.privatize_stream(rows, draw))
    assert sum(drawn) == len(rows)
    assert not kept(client), "what is finished is kept no longer"
    drawn.clear()
    with pytest.raises(StopEarlyError):
        list(client.privatize_stream(rows, draw, charge=True, executor=interrupted(after=3)))
    assert len(drawn) == len(kept(client)) == 4
    for path in kept(client):
        assert path.stat().st_mode & 0o777 == 0o600
        assert CANARY.encode() not in base64.urlsafe_b64decode(json.loads(path.read_text())["sealed"])
    assert list(client.privatize_stream(rows, draw, charge=True)) == expected
    assert sum(drawn) == len(rows), "what was drawn is not drawn again"
    assert not kept(client)
    looks = [line for line in charged(client.home.path) if len(line) == 5]
    other = copied_without_ledger(client, tmp_path / "other")
    list(other.privatize_stream(rows, draw, charge=True))
    assert [line for line in charged(other.home.path) if len(line) == 5] == looks


def copied_without_ledger(client: Client, to: Path) -> Client:
    """The same customer, who released nothing yet."""
    shutil.copytree(client.home.path, to, ignore=shutil.ignore_patterns("*.sqlite*", "secret"))
    other = Client(home=to, device="cpu")
    assert other.ledger.is_empty()
    shutil.copy(client.home.path / "secret", to / "secret")
    return other


@pytest.mark.parametrize("change", ["eta", "length", "seed", "texts"])
def test_other_settings_and_texts_begin_anew(change: str, client: Client, draw: Draw, drawn: list[int]) -> None:
    rows = corpus()
    with pytest.raises(StopEarlyError):
        list(client.privatize_stream(rows, draw, executor=interrupted(after=2)))
    drawn.clear()
    match change:
        case "eta":
            draw = dataclasses.replace(draw, privacy=TextToText(eta=ETA + 1))
        case "length":
            draw = dataclasses.replace(draw, max_length=8)
        case "seed":
            draw = dataclasses.replace(draw, unsafe_noise_seed=1)
        case "texts":
            rows = (("another one first",), *rows[1:])
    list(client.privatize_stream(rows, draw))
    assert sum(drawn) == len(rows)


def test_what_was_kept_and_changed_since_is_refused(client: Client, draw: Draw) -> None:
    rows = corpus()
    with pytest.raises(StopEarlyError):
        list(client.privatize_stream(rows, draw, executor=interrupted(after=2)))
    first, second, *_ = kept(client)
    content = first.read_text(), second.read_text()
    for wrong in (content[1], "torn"):
        first.write_text(wrong)
        second.write_text(content[0] if wrong == content[1] else content[1])
        with pytest.raises(StorageError, match="was changed since"):
            list(client.privatize_stream(rows, draw))
    shutil.rmtree(client.home.drawn)
    assert len(list(client.privatize_stream(rows, draw))) == len(rows)


def test_a_few_shards_are_read_ahead_whatever_the_size(client: Client, draw: Draw) -> None:
    class Long:
        read = 0

        def __len__(self) -> int:
            return 10**9

        def __iter__(self) -> Iterator[Row]:
            while True:
                self.read += 1
                yield (f"w{self.read % 90} a b c",)

    rows = Long()
    stream = client.privatize_stream(rows, draw)
    rows.read = 0
    for handed_out, _ in zip(range(1, 200), stream, strict=False):
        assert rows.read <= handed_out + 2 * SHARD // 16
    stream.close()


def test_a_limit_that_leaves_no_room_is_named(client: Client, draw: Draw) -> None:
    with pytest.raises(ConfigError) as refused:
        list(client.privatize_stream(corpus(), dataclasses.replace(draw, max_length=2), executor=executor(jobs=2)))
    assert [fault.path for fault in refused.value.faults] == ["max_length"]


def test_shards_are_all_rows_in_order() -> None:
    rows = (*corpus(), ("x" * 5 * SHARD,), *[("",)] * 100)
    cut = list(shards.shards(rows, SHARD))
    assert tuple(row for shard in cut for row in shard) == rows
    assert all(sum(16 + len(row[0]) for row in shard[:-1]) < SHARD for shard in cut)
    assert list(shards.shards((), SHARD)) == []


def test_a_file_is_drawn_as_its_rows_are(client: Client, draw: Draw, tmp_path: Path) -> None:
    path = tmp_path / "notes.jsonl"
    path.write_text("".join(json.dumps({"note": text}) + "\n" for (text,) in corpus()))
    found: list[PrivatizedText] = list(client.privatize_stream(TextFile(path, "note"), draw))
    assert found == list(client.privatize_stream(corpus(), draw))
    assert tuple(found) == client.privatize(path, eta=ETA, model=draw.model, text_column="note").texts
