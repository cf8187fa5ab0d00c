"""Texts that are drawn shard by shard, wherever an executor puts the work; what is drawn is the same everywhere.

The noise of a text follows from the customer's secret and the text, so a shard can be drawn by any process that may
read the secret. What crosses to one is sealed: no text stands in a pipe, nor in a cluster's memory or on its disks. The
secret itself crosses nowhere, each process reads it where it lies. Only this process writes the ledger.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Final, Protocol

import torch
from pydantic import BaseModel, ConfigDict, ValidationError

from cutlayer.core import ConfigError, PrivacyError, Ragged, Rows, Spec, StorageError, Tokens
from cutlayer.core.executors import Executor
from cutlayer.customer.home import Home, write_bytes
from cutlayer.customer.progress import Progress
from cutlayer.customer.reading import reading_of
from cutlayer.customer.results import PrivatizedText
from cutlayer.customer.upload import BLOCK_TOKENS, blocks
from cutlayer.data import Dataset, tokenise
from cutlayer.models import read_archive
from cutlayer.privacy import (
    BrokenSeal,
    CustomerSecret,
    Ledger,
    NewFrame,
    PrivacySpec,
    Release,
    Seal,
    Spellings,
    build_privatizer,
    table_fingerprint,
)
from cutlayer.privacy.ledger import RELEASE_BYTES
from cutlayer.privacy.privatizers.words import WordsPrivatizer

SHARD_CHARACTERS: Final = 2**16
"""Characters of a shard: some ten thousand tokens, whose search fills its blocks, and little to wait for."""
_ROW_CHARACTERS: Final = 16
"""What a row counts besides its texts, so that a shard of empty ones ends, too."""
A_FILE: Final = "a file"
"""To whom a ledger says that texts went that were charged without being sent."""
_DRAW: Final = f"{__name__}:draw"
_TEXTS, _DRAWN = "texts ", "drawn "

Row = tuple[str, ...]
Ids = tuple[tuple[tuple[int, ...], ...], ...]
"""Of each segment the token ids of each text."""


class TextRows(Protocol):
    """Texts, or pairs of texts, that can be read more than once: a `data.TextFile`, or a tuple of rows."""

    def __iter__(self) -> Iterator[Row]: ...

    def __len__(self) -> int: ...


class Drawing(Spec):
    """All that a draw follows from, besides the text.

    Attributes:
        privacy: How texts are privatized.
        archive: The folder of a bottom's archive, for its table and tokenizer.
        secret: The file of the customer's secret.
        max_length: Tokens of a text, special tokens included; `None` for the model's limit.
        unsafe_noise_seed: Draws the noise from this seed instead, which then protects nothing.
    """

    privacy: PrivacySpec
    archive: Path
    secret: Path
    max_length: int | None = None
    unsafe_noise_seed: int | None = None


@dataclass(frozen=True)
class ShardAccount:
    """Where texts are charged that are drawn.

    Attributes:
        ledger: The customer's.
        model: What to call the model there.
        budget: Largest sum of etas of any account, or `None` for no limit.
    """

    ledger: Ledger
    model: str
    budget: float | None = None


@dataclass(frozen=True)
class Work:
    """How the work is gone about; what is drawn does not depend on it.

    Attributes:
        executor: Where it is done.
        progress: Where to show progress.
        kept: A folder in which shards are kept, sealed, until all of them were handed out; `None` keeps none.
    """

    executor: Executor
    progress: Progress
    kept: Path | None = None


class Drawn(BaseModel):
    """A shard that was drawn.

    Attributes:
        texts: One for each text, in order.
        cut_texts: How many of them were longer than allowed; a pair counts once.
        ids: What was drawn.
        clear: By kind, how many words left as they are by the mechanism's own rule.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    texts: tuple[PrivatizedText, ...]
    cut_texts: int
    ids: Ids
    clear: dict[str, int] = {}


class _Shard(BaseModel):
    """What a worker is told; the name is of the texts, and of what is drawn of them."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_bytes="base64", val_json_bytes="base64")

    drawing: Drawing
    kept: Path | None
    name: str
    sealed: bytes


class _Sealed(BaseModel):
    """What it answers."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_bytes="base64", val_json_bytes="base64")

    sealed: bytes


# ---------------------------------------------------------------- where a shard is drawn


class Drawer:
    """Draws shards.

    Args:
        drawing: What to draw.
    """

    def __init__(self, drawing: Drawing) -> None:
        self._drawing = drawing
        own = CustomerSecret.load(drawing.secret)
        self.seal = Seal(own.derive("shards"))
        self._names = own.derive("shard names")
        self.archive = read_archive(drawing.archive)
        if self.archive.table is None:
            raise ConfigError("A text cut's archive has no table, and nothing can be drawn with it.")
        home = Home(drawing.secret.parent)
        self.reading = reading_of(drawing.privacy, self.archive, home, max_length=drawing.max_length)
        self.privatizer = build_privatizer(
            drawing.privacy,
            secret=own.or_seeded(drawing.unsafe_noise_seed),
            table=self.archive.table,
            candidates=self.archive.candidates,
            table_fingerprint=table_fingerprint(self.archive.table),
            spellings=self.reading.dictionary or Spellings(self.archive.spellings),
        )

    @cached_property
    def largest_distance(self) -> float | None:
        """No two rows of the table are farther apart; `None` where nothing is promised."""
        return self.privatizer.largest_distance()

    def max_content(self, segments: int) -> int:
        """Content tokens of a row of so many texts.

        Raises:
            ConfigError: The limit that was given leaves no room.
        """
        return self.archive.template.max_content(segments, self._drawing.max_length)

    def name(self, *parts: bytes) -> str:
        """A file's name for what is drawn of some texts; to nobody else does it tell anything of them."""
        digest = hashlib.blake2b(key=self._names, digest_size=16)
        for part in parts:
            digest.update(len(part).to_bytes(8) + part)
        return digest.hexdigest()

    def corpus_name(self, rows: TextRows) -> str:
        """The name of all that is drawn of a corpus; another one where the same texts would be drawn otherwise."""
        first = next(shards(rows, SHARD_CHARACTERS), ())
        identities = self.privatizer.named(self.tokens(first), labels=None).identities if first else ()
        return self.name(self._drawing.model_dump_json().encode(), len(rows).to_bytes(8), *identities)

    def tokens(self, rows: Sequence[Row]) -> Tokens:
        """The rows' tokens, or words, cut where they are too long."""
        dataset = Dataset(tuple(rows))
        return self.reading.read(dataset, max_content=self.max_content(dataset.segments))

    def draw(self, rows: Sequence[Row]) -> Drawn:
        """What would leave for each row.

        Raises:
            PrivacyError: The vocabulary was made from these texts.
        """
        tokens = self.tokens(rows)
        self.reading.check_vocabulary(tokens)
        drawn: list[Tokens] = []
        replaced: list[int] = []
        for indices in blocks(tokens, BLOCK_TOKENS):
            release = self.privatizer.tokens(tokens.select(indices), labels=None)
            if isinstance(release.payload, Rows) or release.replaced is None:
                raise ConfigError("Only releases of tokens can be read as text.")
            drawn.append(release.payload)
            replaced += release.replaced.tolist()
        released = Tokens.concatenate(drawn)
        return Drawn(
            texts=tuple(
                self._side_by_side(tokens, released, row, replaced=count) for row, count in enumerate(replaced)
            ),
            cut_texts=self._cut_texts(rows, tokens, released),
            ids=tuple(tuple(tuple(ids.tolist()) for ids in segment.split()) for segment in released.segments),
            clear=dict(self.privatizer.clear(tokens)),
        )

    def _side_by_side(self, original: Tokens, released: Tokens, row: int, *, replaced: int) -> PrivatizedText:
        return PrivatizedText(
            original=tuple(self.reading.text(side[row]) for side in original.segments),
            released=tuple(str(self.archive.tokenizer.decode(side[row])) for side in released.segments),
            replaced=replaced,
            tokens=sum(len(side[row]) for side in original.segments),
        )

    def _cut_texts(self, rows: Sequence[Row], tokens: Tokens, released: Tokens) -> int:
        """How many rows have more tokens than were kept of them."""
        segments = len(tokens.segments)
        most = self.max_content(segments)
        # a row that is cut keeps all that is allowed, so only those that do are tokenised again
        filled = (_lengths(tokens) == most) | (_lengths(released) == most)
        full = Dataset(tuple(rows[place] for place in filled.nonzero().flatten().tolist()))
        whole = self.reading.read(full, max_content=most + 1)
        if isinstance(self.privatizer, WordsPrivatizer):
            texts = self.privatizer.drawn(whole).texts
            sides = (texts[side::segments] for side in range(segments))
            whole = tokenise(Dataset(tuple(zip(*sides, strict=True))), self.archive.tokenizer, max_content=most + 1)
        return int((_lengths(whole) > most).sum())


def _lengths(tokens: Tokens) -> torch.Tensor:
    return torch.stack([segment.lengths for segment in tokens.segments]).sum(0)


drawer_of = lru_cache(maxsize=1)(Drawer)
"""The drawer of a drawing: what drew the last shard draws the next one, and reads no table anew."""


def draw(argument: str) -> str:
    """Draws a shard, in whatever process: the function that executors are given.

    Args:
        argument: A sealed shard.

    Returns:
        What was drawn, sealed.

    Raises:
        PrivacyError: It was sealed with another secret than the one that lies here.
        StorageError: The secret, or the archive, does not lie here.
    """
    shard = _Shard.model_validate_json(argument)
    drawer = drawer_of(shard.drawing)
    try:
        texts = drawer.seal.open(shard.sealed, name=(_TEXTS + shard.name).encode())
    except BrokenSeal:
        raise PrivacyError(
            f"Texts were sealed with another secret than {shard.drawing.secret}, as it is on this machine.",
            remedy="Let each machine of the cluster read the one home folder, under the same path.",
        ) from None
    kept = None if shard.kept is None else shard.kept / shard.name
    if kept is not None and kept.exists():
        return kept.read_text()
    drawn = drawer.draw([tuple(row) for row in json.loads(texts)])
    sealed = drawer.seal.close(drawn.model_dump_json().encode(), name=(_DRAWN + shard.name).encode())
    answer = _Sealed(sealed=sealed).model_dump_json()
    if kept is not None:
        write_bytes(kept, answer.encode())
    return answer


# ---------------------------------------------------------------- where the whole is put together


def shards(rows: Iterable[Row], size: int) -> Iterator[tuple[Row, ...]]:
    """Consecutive rows, of about so many characters together; one row at least."""
    some: list[Row] = []
    characters = 0
    for row in rows:
        some.append(row)
        characters += _ROW_CHARACTERS + sum(map(len, row))
        if characters >= size:
            yield tuple(some)
            some, characters = [], 0
    if some:
        yield tuple(some)


def in_shards(
    rows: TextRows, drawing: Drawing, work: Work, *, account: ShardAccount | None = None
) -> Generator[Drawn, None, None]:
    """What would leave for each row, in order; a few shards are in memory, whatever the number of rows.

    Args:
        rows: The texts.
        drawing: What to draw.
        work: How.
        account: Where to charge it, before it is handed out. A shard that was handed out and not followed by the next
            one may have left, says the ledger.

    Raises:
        BudgetError: A text would be charged beyond the budget. It is found before anything is drawn.
    """
    drawer = drawer_of(drawing)
    try:
        if account is not None and account.budget is not None:
            _check_budget(rows, drawer, account, account.budget, work.progress)
        kept = None if work.kept is None else work.kept / drawer.corpus_name(rows)
        waiting: deque[tuple[str, tuple[Row, ...]]] = deque()
        done = 0

        def sealed() -> Iterator[str]:
            for shard in shards(rows, SHARD_CHARACTERS):
                drawer.max_content(len(shard[0]))  # a limit without a meaning is this process's to name
                texts = json.dumps(shard).encode()
                name = drawer.name(texts)
                waiting.append((name, shard))
                body = drawer.seal.close(texts, name=(_TEXTS + name).encode())
                yield _Shard(drawing=drawing, kept=kept, name=name, sealed=body).model_dump_json()

        with contextlib.closing(work.executor.run(_DRAW, sealed(), in_order=True)) as pieces:
            for piece in pieces:
                name, shard = waiting.popleft()
                drawn = _opened(piece.expect(), name, drawer, kept)
                with contextlib.nullcontext() if account is None else _charged(shard, drawn, drawer, account):
                    yield drawn
                done += len(shard)
                work.progress.update("privatize", done, len(rows))
        if kept is not None:
            shutil.rmtree(kept, ignore_errors=True)
    finally:
        drawer_of.cache_clear()


def _opened(answer: str, name: str, drawer: Drawer, kept: Path | None) -> Drawn:
    try:
        sealed = _Sealed.model_validate_json(answer).sealed
        return Drawn.model_validate_json(drawer.seal.open(sealed, name=(_DRAWN + name).encode()))
    except (BrokenSeal, ValidationError):
        raise StorageError(
            f"What was drawn of these texts was changed since, in {kept}.", remedy="Remove the folder, and draw anew."
        ) from None


def _check_budget(rows: TextRows, drawer: Drawer, account: ShardAccount, budget: float, progress: Progress) -> None:
    """Asks for the whole corpus at once, and without drawing: what a release costs follows from its name."""

    def named() -> Iterator[Release]:
        done = 0
        for shard in shards(rows, SHARD_CHARACTERS):
            yield drawer.privatizer.named(drawer.tokens(shard), labels=None)
            done += len(shard)
            progress.update("check the budget", done, len(rows))

    charges = (release.charges for release in named())
    account.ledger.check_budget(charges, unit=drawer.privatizer.unit, budget=budget)


@contextlib.contextmanager
def _charged(shard: Sequence[Row], drawn: Drawn, drawer: Drawer, account: ShardAccount) -> Iterator[None]:
    """Charges a shard before a block in which it is used; where the block fails, it may have left."""
    named = drawer.privatizer.named(drawer.tokens(shard), labels=None)
    payload = Tokens(tuple(Ragged.from_lists(segment) for segment in drawn.ids))
    size = sum(len(text.encode()) for each in drawn.texts for text in each.released)
    frame = NewFrame(
        run="privatize",
        vendor=A_FILE,
        route="privatize",
        where={},
        payload_bytes={RELEASE_BYTES: size},
        unsafe=drawer.privatizer.is_unsafe,
        model=account.model,
    )
    release = replace(named, payload=payload, pending=None)
    entry = account.ledger.open_frame(frame, release=release, budget=account.budget)
    yield
    account.ledger.close_frame(entry, uplink_bytes=size, downlink_bytes=0, status=200, digest=b"")
