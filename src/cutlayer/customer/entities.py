"""Private generation: entities leave as words that were drawn for them, and what comes back has them again.

Every word of an entity is drawn once, whatever the number of texts it stands in, so that a table and the sentences
about it stay about the same things. Which word stands for which is kept here, sealed, and is shown to nobody.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, NamedTuple, Self, cast

import torch

from cutlayer.core import ConfigError, Cut, CutlayerWarning, DataError, Fault, Ragged, Tokens
from cutlayer.customer.entity_map import EntityMap
from cutlayer.customer.handout import local_archive
from cutlayer.customer.home import Home
from cutlayer.customer.reading import WordReading, reading_of
from cutlayer.customer.shards import A_FILE
from cutlayer.customer.stand_ins import spelled, stand_ins, words_behind
from cutlayer.data import TaggedTexts
from cutlayer.data.dataset import check_characters
from cutlayer.data.mentions import (
    Mention,
    codes_pattern,
    entity_words,
    find_mentions,
    pieces_between,
    written,
)
from cutlayer.privacy import (
    CustomerSecret,
    NewFrame,
    PrivacySpec,
    Release,
    Word,
    Words,
    build_privatizer,
)
from cutlayer.privacy.ledger import RELEASE_BYTES
from cutlayer.privacy.privatizers.words import WordsPrivatizer
from cutlayer.privacy.release import IDENTITY_BYTES
from cutlayer.privacy.words import IDENTIFYING, clear_kind

FOUND: Final = frozenset(("PROPN", "NUM"))
"""Parts of speech of entities that nobody named."""
NAME: Final = "proper noun"
"""What names in clear are counted under, apart from other nouns."""
_OPEN: Final = frozenset(("NOUN", "PROPN", "VERB", "ADJ", "ADV", "NUM"))

Span = tuple[int, int]
"""Where an entity begins in a text, and behind which character it ends."""
Row = tuple[str, ...]
"""Texts about the same entities: a table and the sentences that say it, or one text alone."""
Entities = Sequence[str] | Sequence[Sequence[str | Span]]
"""Entities of all rows; or of each row its own, of which a span is one of the row's first text."""


@dataclass(frozen=True)
class Protection:
    """How entities are protected.

    Attributes:
        privacy: How their words are drawn; `words` of it must be all.
        privacy_budget: Largest sum of eta that a word may be charged over all its draws; `None` for no limit.
        unsafe_noise_seed: Draws the noise from this seed, which then protects nothing.
    """

    privacy: Words
    privacy_budget: float | None = None
    unsafe_noise_seed: int | None = None

    @classmethod
    def of(cls, eta: float | None, privacy: PrivacySpec | None, budget: float | None, seed: int | None) -> Self:
        """As it was said.

        Raises:
            ConfigError: It is no way to draw words, or would leave some of an entity in clear.
        """
        if (eta is None) == (privacy is None):
            raise ConfigError([Fault("eta", eta, "must be given, and has no default; or else privacy=Words(…)")])
        chosen = Words(eta=eta, words=("all",)) if eta is not None else privacy
        if not isinstance(chosen, Words):
            kind = None if chosen is None else chosen.mechanism
            raise ConfigError([Fault("privacy", kind, "must be Words: what takes an entity's place is words")])
        if chosen.words != ("all",):
            raise ConfigError(
                [Fault("words", ",".join(chosen.words), "must be all: an entity may be of any part of speech")]
            )
        return cls(chosen, budget, seed)


class Protected(NamedTuple):
    """Texts whose entities left, and what they were.

    Attributes:
        texts: As they were given: texts, or rows of texts.
        map: What puts entities back.
    """

    texts: list[str] | list[Row]
    map: EntityMap


@dataclass(frozen=True)
class _Found:
    """Entities of a row.

    Attributes:
        names: How they are written.
        entities: Of each its words.
        cuts: Where spans begin and end in its first text.
    """

    names: list[str] = field(repr=False)
    entities: list[list[Mention]] = field(repr=False)
    cuts: tuple[int, ...] = ()

    @property
    def keys(self) -> set[str]:
        """Of all their words."""
        return {word.key for entity in self.entities for word in entity}


def protect(
    home: Home, texts: Sequence[str] | Sequence[Sequence[str]], entities: Entities | None, protection: Protection
) -> Protected:
    """Texts with drawn words in the places of their entities', charged in the ledger before they are handed out.

    Args:
        home: The customer's folder.
        texts: One a row, or several about the same entities.
        entities: Which they are; names and numbers that the tagger finds where they are left out.
        protection: How they are protected.

    Raises:
        DataError: There is no text, or an entity is empty or in no text of its row.
        BudgetError: A word would be charged beyond the budget. Nothing is written.
    """
    rows = _rows(texts)
    flat = [text for row in rows for text in row]
    if entities is not None:  # what is refused is refused before a model is read
        found = _named(rows, entities)
        mentions = _mentions(rows, found)
        _check_found(rows, found, mentions, everywhere=_for_all(entities))
    privacy = protection.privacy
    archive = local_archive(home, privacy.source[0], Cut(bottom=0))
    reading = reading_of(privacy, archive, home, max_length=None)
    if not isinstance(reading, WordReading):
        raise TypeError("words are read as words")
    secret = home.secret.or_seeded(protection.unsafe_noise_seed)
    privatizer = build_privatizer(privacy, secret=secret, spellings=reading.dictionary)
    if not isinstance(privatizer, WordsPrivatizer):
        raise TypeError("words are drawn by their privatizer")
    tagged = reading.tagger.tag(flat)
    if entities is None:
        found = _tagged(flat, rows, tagged)
        mentions = _mentions(rows, found)
    tags, clear = _places(tagged, mentions)
    families = _families(found, mentions)
    lexicon = reading.dictionary.lexicon
    names = lexicon.names(Word("", min(family, key=_shortest), _tag(tags[key])) for key, family in families.items())
    tokens = Tokens((Ragged.from_lists([[name] for name in names]),))
    reading.check_vocabulary(tokens)
    drawn = privatizer.drawn(tokens)
    pieces = [pieces_between(text, own) for text, own in zip(flat, mentions, strict=True)]
    codes = stand_ins(
        {key: sorted(family, key=_shortest) for key, family in families.items()},
        [str(word) for word in drawn.pieces[:, 1]],
        {run.casefold() for each in pieces for piece in each for run in codes_pattern().findall(piece)},
        secret.derive("entity numbers"),
    )
    released = [
        written(between, [codes[each.key, each.reading] for each in own])
        for between, own in zip(pieces, mentions, strict=True)
    ]
    # an empty text stands for what is charged of a text without entities: nothing
    named = privatizer.named(Tokens((Ragged.from_lists([*([name] for name in names), []]),)), labels=None)
    number_of = {key: number for number, key in enumerate(families)}
    numbers = [Counter(number_of[each.key] for each in own) or {len(names): 0} for own in mentions]
    release = _release(named, released, numbers, clear, secret)
    words, own = spelled(words_behind(families, codes), codes, [_spellings(each) for each in found])
    made = EntityMap(
        job=_job(home.secret, released, codes),
        words=words,
        drawn=len(families),
        replaced=int(drawn.changed.sum()),
        numbered=len({key for (key, _), code in codes.items() if "_" in code}),
        mentions=sum(map(len, mentions)),
        clear=dict(sorted(sum(clear, Counter[str]()).items())),
        own=own,
        privacy=_wherever(privacy).model_dump(mode="json"),
        vocabulary=privacy.vocabulary_digest,
    )
    _warn(made)
    frame = NewFrame(
        run=f"protect/{made.job}",
        vendor=A_FILE,
        route="protect",
        where={},
        payload_bytes={RELEASE_BYTES: sum(len(text.encode()) for text in released)},
        unsafe=privatizer.is_unsafe,
    )
    entry = home.ledger.open_frame(frame, release=release, budget=protection.privacy_budget)
    made.save(home)
    size = frame.payload_bytes[RELEASE_BYTES]
    home.ledger.close_frame(entry, uplink_bytes=size, downlink_bytes=0, status=200, digest=b"")
    left = iter(released)
    by_row = [tuple(next(left) for _ in row) for row in rows]
    return Protected([row[0] for row in by_row] if isinstance(texts[0], str) else by_row, made)


def _wherever(privacy: Words) -> Words:
    """The same, whichever folder is the present one."""
    file = privacy.vocabulary
    return privacy if file is None else privacy.model_copy(update={"vocabulary": file.resolve()})


def _rows(texts: Sequence[str] | Sequence[Sequence[str]]) -> list[Row]:
    """The texts, as rows.

    Raises:
        DataError: There is none, or what is there is neither a list of texts nor one of rows of texts.
    """
    if isinstance(texts, str):
        raise DataError("One text was given, where a list of texts is needed.", remedy="Put it into a list.")
    rows = [(row,) if isinstance(row, str) else row for row in texts]
    if not rows:
        raise DataError("There are no texts.", remedy="Give one at least.")
    for number, (given, row) in enumerate(zip(texts, rows, strict=True), start=1):
        wrong = not isinstance(row, list | tuple) or not row or not all(isinstance(text, str) for text in row)
        if wrong or isinstance(given, str) != isinstance(texts[0], str):
            raise DataError(
                f"Text {number} is of type {type(given).__name__}, or holds something else than texts.",
                remedy="Give texts alone, or rows of texts alone.",
            )
        for text in row:
            check_characters(text, f"Text {number}")
    return [tuple(row) for row in rows]


def _for_all(entities: Entities) -> bool:
    """Whether entities are those of all texts.

    Raises:
        DataError: They are neither strings nor lists of strings and spans.
    """
    if isinstance(entities, str):
        raise DataError("One entity was given, where a list is needed.", remedy="Put it into a list.")
    if all(isinstance(each, str) for each in entities):
        return True
    for number, own in enumerate(entities, start=1):
        if not isinstance(own, list | tuple) or not all(isinstance(each, str) or _is_span(each) for each in own):
            raise DataError(
                f"Entities of text {number} are of type {type(own).__name__}, or hold something else than strings and "
                "spans.",
                remedy="Give for each text a list of strings and pairs (begin, end); or one list of strings for all.",
            )
    return False


def _is_span(given: object) -> bool:
    return isinstance(given, list | tuple) and len(given) == 2 and all(type(place) is int for place in given)


def _spellings(found: _Found) -> list[tuple[str, list[Mention]]]:
    """Of each entity of a row how it is written, and where in it words stand that leave as others."""
    keys = found.keys
    return [(name, find_mentions(name, keys)) for name in found.names]


def _mentions(rows: Sequence[Row], found: Sequence[_Found]) -> list[list[Mention]]:
    """Of each text the words in it that a row's entities have; spans are of its first text."""
    return [
        find_mentions(text, keys, own.cuts if first else ())
        for row, own in zip(rows, found, strict=True)
        for keys in [own.keys]
        for first, text in zip([True] + [False] * len(row), row, strict=False)
    ]


def _named(rows: Sequence[Row], entities: Entities) -> list[_Found]:
    """The entities that were given.

    Raises:
        DataError: One is empty, is no span of its text, or there are others than rows.
    """
    given = cast("Sequence[Sequence[str | Span]]", [entities] * len(rows) if _for_all(entities) else entities)
    if not entities or len(given) != len(rows):
        raise DataError(
            f"There are {len(rows)} texts, and entities of {len(entities)}.",
            remedy="Give a list of entities for each text, or one of strings for all of them.",
        )
    found = []
    for number, (row, own) in enumerate(zip(rows, given, strict=True), start=1):
        names: list[str] = []
        listed: list[list[Mention]] = []
        cuts: list[int] = []
        for place, each in enumerate(own, start=1):
            if isinstance(each, str):
                entity = each
            else:
                start, stop = each
                if not 0 <= start < stop <= len(row[0]):
                    raise DataError(
                        f"Entity {place} of text {number} is from {start} to {stop}, and the text has {len(row[0])} "
                        "characters.",
                        remedy="Give where it begins, and behind which character it ends.",
                    )
                cuts += [start, stop]
                entity = row[0][start:stop]
            check_characters(entity, f"Entity {place} of text {number}")
            words = entity_words(entity)
            if not words:
                raise DataError(
                    f"Entity {place} of text {number} is empty: it has no letter and no digit.",
                    remedy="Leave it out, or give the entity's name.",
                )
            names.append(entity)
            listed.append(words)
        found.append(_Found(names, listed, tuple(cuts)))
    return found


def _tagged(flat: Sequence[str], rows: Sequence[Row], tagged: TaggedTexts) -> list[_Found]:
    """Names and numbers, as they were tagged."""
    spans = iter(zip(tagged.words, tagged.tags, strict=True))
    lengths = iter(tagged.lengths.tolist())
    own = [
        [word for row_text in row for word, tag in (next(spans) for _ in range(next(lengths))) if tag in FOUND]
        for row in rows
    ]
    words = [{word: of for word in each if (of := entity_words(word))} for each in own]
    return [_Found([*each], [*each.values()]) for each in words]


def _check_found(
    rows: Sequence[Row], found: Sequence[_Found], mentions: Sequence[Sequence[Mention]], *, everywhere: bool
) -> None:
    """Refuses an entity that is in no text: whoever gave it takes it for protected.

    Raises:
        DataError: One is in none.
    """
    left = iter(mentions)
    keys = [{each.key for _ in row for each in next(left)} for row in rows]
    together = set().union(*keys)
    for number, (own, here) in enumerate(zip(found, keys, strict=True), start=1):
        for place, words in enumerate(own.entities, start=1):
            if not (together if everywhere else here) & {word.key for word in words}:
                raise DataError(
                    f"Entity {place} is in no text."
                    if everywhere
                    else f"Entity {place} of text {number} is not in it.",
                    remedy="Leave it out; or give it as it is written there, or its span where the text has no blanks.",
                )


def _families(found: Sequence[_Found], mentions: Sequence[Sequence[Mention]]) -> dict[str, dict[str, str]]:
    """Of each word that stands in a text, how its singular and plural are written."""
    written_as: dict[str, dict[str, str]] = {}
    met = {each.key for own in mentions for each in own}
    named = (word for own in found for entity in own.entities for word in entity)
    for each in chain(named, *mentions):
        if each.key in met:
            written_as.setdefault(each.key, {}).setdefault(each.reading, each.form)
    return dict(sorted(written_as.items()))


def _shortest(reading: str) -> tuple[int, str]:
    return len(reading), reading


def _tag(tags: Counter[str]) -> str:
    """The part of speech that a word has most often, of those that entities have."""
    own = {tag: count for tag, count in tags.items() if tag in _OPEN}
    return min(own, key=lambda tag: (-own[tag], tag), default="PROPN")


def _places(
    tagged: TaggedTexts, mentions: Sequence[Sequence[Mention]]
) -> tuple[dict[str, Counter[str]], list[Counter[str]]]:
    """Of each word of an entity its parts of speech, and of each text the words outside entities, by kind."""
    tags: dict[str, Counter[str]] = {}
    clear = []
    ends = tagged.lengths.cumsum(0).tolist()
    starts = tagged.starts.tolist()
    for first, end, own in zip([0, *ends], ends, mentions, strict=False):
        covered: set[int] = set()
        for each in own:
            here = range(
                max(first, bisect_right(starts, each.start, first, end) - 1), bisect_left(starts, each.stop, first, end)
            )
            covered.update(here)
            tags.setdefault(each.key, Counter()).update(tagged.tags[word] for word in here)
        clear.append(
            Counter(
                NAME if tagged.tags[word] == "PROPN" else clear_kind(Word("", tagged.words[word], tagged.tags[word]))
                for word in range(first, end)
                if word not in covered
            )
        )
    return tags, clear


def _release(
    named: Release, texts: Sequence[str], words: Sequence[Mapping[int, int]], clear: Sequence[Counter[str]],
    secret: CustomerSecret,
) -> Release:  # fmt: skip
    """Texts as they leave, each with the words of entities in it, which are charged; of a text its ids are its bytes.

    Args:
        named: One item for each word.
        texts: What leaves.
        words: Of each text the numbers of words in it, and how often they are.
        clear: Of each text the words in clear.
        secret: Names the texts.
    """
    chosen = [number for own in words for number in own]
    key = secret.derive("protected texts")
    kinds = sorted({kind for own in clear for kind in own})
    return Release(
        payload=Tokens((Ragged.from_lists([list(text.encode()) for text in texts]),)),
        identities=tuple(
            hashlib.blake2b(text.encode(), key=key, digest_size=IDENTITY_BYTES).digest() for text in texts
        ),
        of=torch.arange(len(texts)).repeat_interleave(torch.tensor([len(own) for own in words])),
        contents=tuple(named.contents[number] for number in chosen),
        draws=tuple(named.draws[number] for number in chosen),
        etas=named.etas[chosen],
        tokens=torch.tensor([count for own in words for count in own.values()]),
        charges=named.charges.select(chosen),
        mechanism=f"{named.mechanism}, entities",
        unit=named.unit,
        clear={kind: torch.tensor([own[kind] for own in clear]) for kind in kinds},
    )


def _job(secret: CustomerSecret, texts: Sequence[str], codes: Mapping[tuple[str, str], str]) -> str:
    told = json.dumps([list(texts), [[*key, code] for key, code in codes.items()]]).encode()
    return hashlib.blake2b(told, key=secret.derive("entity jobs"), digest_size=16).hexdigest()


def _warn(made: EntityMap) -> None:
    """Tells of names, numbers and the like that stand outside entities, before anything is handed out."""
    total = made.mentions + sum(made.clear.values())
    shares = {kind: made.clear[kind] / total for kind in (NAME, *IDENTIFYING) if made.clear.get(kind)}
    told = [f"{share:.1%} are of the kind {kind}" for kind, share in shares.items()]
    if told:
        warnings.warn(
            f"{made.clear_share:.1%} of {total} words stand outside entities and leave as they are; {', '.join(told)}.",
            CutlayerWarning,
            stacklevel=3,
        )
