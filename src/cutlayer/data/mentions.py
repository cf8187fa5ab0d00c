"""Where the words of entities stand in texts, however these write them.

An entity is named in many ways: "Aarhus_Airport" in a table is "the airport at Aarhus", "Aarhus's airports" or
"Aarhus-Airport" in a sentence. So its words are looked for, each by itself: in any case, with and without accents and
dots, in singular and plural, and numbers whatever their separators.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from cutlayer.data.vocabulary import load_word_counts

_JOINING: Final = frozenset(("ADP", "CCONJ", "DET", "PART", "SCONJ"))
_STANDING_FOR: Final = frozenset(("AUX", "PRON"))
_MONTHS: Final = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
_NUMERALS: Final = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
)  # fmt: skip
_DATE: Final = re.compile(r"(?<!\d)\d{4}-(0[1-9]|1[0-2])-\d\d(?!\d)")
_THOUSANDS: Final = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_ENDINGS: Final = frozenset(("s", "t", "d", "m", "ll", "re", "ve"))
"""What stands behind an apostrophe and is no word: Aarhus's, don't, they're."""
_LETTERS: Final = str.maketrans({"ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th", "æ": "ae", "œ": "oe", "ı": "i"})
"""Letters that have no accent by Unicode's rules, and are written without theirs all the same."""


class Mention(NamedTuple):
    """A word of an entity, as it stands in a text.

    Attributes:
        start: Its first character.
        stop: The one behind its last.
        key: Names the word, the same in singular and plural, in any case, with and without accents.
        reading: Tells singular from plural: the word as it is read, in lower case.
        form: The word as it is written.
    """

    start: int
    stop: int
    key: str
    reading: str
    form: str


@lru_cache(maxsize=1)
def _marks() -> str:
    """What belongs to the letter before it, as accents and vowels of Indian scripts do, for a set in a pattern."""
    codes = range(sys.maxunicode + 1)
    return re.escape("".join(chr(code) for code in codes if unicodedata.category(chr(code)).startswith("M")))


@lru_cache(maxsize=1)
def _words() -> re.Pattern[str]:
    """Initials with their dots, a number with its separators, or letters that stand together."""
    letter = rf"[^\W\d_][{_marks()}]*"
    initials = rf"(?<![^\W_{_marks()}]){letter}\.(?:[ _]?{letter}\.)*(?:[ _]?{letter}\.|{letter}(?![^\W_]))"
    number = r"\d{1,3}(?:,\d{3})+(?!,?\d)(?:\.\d+)?|\d+(?:\.\d+)?"
    return re.compile(rf"{initials}|{number}|(?:{letter})+")


@lru_cache(maxsize=1)
def codes_pattern() -> re.Pattern[str]:
    """What stands for a word: letters and digits that stand together, perhaps with a number."""
    return re.compile(rf"(?:[^\W_][{_marks()}]*)+(?:_\d+s*(?![^\W_]))?")


@lru_cache(maxsize=1)
def _closed_classes() -> dict[str, str]:
    """Words of closed classes, each with the class it mostly belongs to, by a public list."""
    seen: dict[str, Counter[str]] = {}
    counts = load_word_counts()
    for word, tag, count in zip(counts.words, counts.tags, counts.counts.tolist(), strict=True):
        seen.setdefault(word.casefold(), Counter())[tag] += count
    found = {word: tags.most_common(1)[0][0] for word, tags in seen.items()}
    return {word: tag for word, tag in found.items() if tag in _JOINING | _STANDING_FOR}


def _plain(form: str) -> str:
    """A word without accents, dots between initials, and what numbers are grouped and filled up with."""
    if form[:1].isdigit():
        number = form.replace(",", "") if _THOUSANDS.fullmatch(form) else form
        number = number.rstrip("0").rstrip(".") if "." in number and "," not in number else number
        return number.lstrip("0") or "0"
    letters = unicodedata.normalize("NFKD", form.replace(".", "").replace(" ", "").replace("_", ""))
    bare = "".join(letter for letter in letters if not unicodedata.category(letter).startswith("M"))
    return unicodedata.normalize("NFC", bare) or form


def _reading(plain: str) -> str:
    folded = plain.casefold().translate(_LETTERS)
    return str(_NUMERALS.index(folded)) if folded in _NUMERALS else folded


def _singular(reading: str) -> str:
    """The same for a word and its regular plural; no word, for "box" and "boxes" are alike, as "axe" and "axes" are."""
    if len(reading) < 4 or not reading.isalpha():
        return reading
    stem = reading[:-1] if reading.endswith("s") and not reading.endswith(("ss", "us")) else reading
    if stem.endswith("ie"):
        return f"{stem[:-2]}y"
    return stem[:-1] if stem.endswith(("se", "xe", "ze", "che", "she", "oe")) else stem


def _tokens(text: str, cuts: Iterable[int] = ()) -> list[re.Match[str]]:
    """Words of a text; one that goes on behind a cut ends there."""
    found: list[re.Match[str]] = []
    start = 0
    for stop in [*sorted(cuts), len(text)]:
        found += _words().finditer(text, start, stop)
        start = stop
    return [each for each in found if not (each[0] in _ENDINGS and text[each.start() - 1 : each.start()] in ("'", "’"))]


def _exactly(plain: str) -> str:
    """The key of a word that is looked for as it is written: "Will" is a name, and "will" is none."""
    return f"={plain}"


def entity_words(entity: str) -> list[Mention]:
    """The words of an entity that may not stay: all but those of closed classes, such as "of" and "the".

    Pronouns and auxiliary verbs that are written with a capital count, and are looked for as they are written. Of an
    entity that has no other words all count. A date, as 1999-01-31, has the name of its month besides.

    Args:
        entity: A name, number or date; underscores are blanks.

    Returns:
        One for each, and for each part of initials and of numbers; none where the entity has no letter and no digit.
        The month's name has no place: -1.
    """
    open_class: list[Mention] = []
    standing: list[Mention] = []
    joining: list[Mention] = []
    words = _tokens(entity)
    for each in words + [part for whole in words for part in _parts(whole)]:
        plain = _plain(each[0])
        reading = _reading(plain)
        kind = _closed_classes().get(reading)
        exact = Mention(each.start(), each.end(), _exactly(plain), plain, each[0])
        capital = plain[:1].isupper() if kind in _STANDING_FOR else plain.isupper() and len(plain) > 1
        if kind is None or capital:
            key = _singular(reading)
            open_class.append(exact if kind else exact._replace(key=key, reading=reading))
        else:
            (standing if kind in _STANDING_FOR else joining).append(exact)
    found = open_class or standing or joining
    for date in _DATE.finditer(entity):
        month = _MONTHS[int(date[1]) - 1]
        found.append(Mention(-1, -1, _singular(month.casefold()), month.casefold(), month))
    return found


def find_mentions(text: str, keys: Iterable[str], cuts: Iterable[int] = ()) -> list[Mention]:
    """Where words of entities stand in a text.

    Args:
        text: Any text.
        keys: Of the words, as of `entity_words`.
        cuts: Where words begin or end though letters go on, as in languages that are written without blanks.
    """
    wanted = frozenset(keys)
    found: list[Mention] = []
    for each in _tokens(text, cuts):
        whole = _mention(each, wanted)
        found += [whole] if whole else filter(None, (_mention(part, wanted) for part in _parts(each)))
    return found


def _mention(found: re.Match[str], wanted: frozenset[str]) -> Mention | None:
    plain = _plain(found[0])
    for key, reading in ((_exactly(plain), plain), (_singular(_reading(plain)), _reading(plain))):
        if key in wanted:
            return Mention(found.start(), found.end(), key, reading, found[0])
    return None


def _parts(found: re.Match[str]) -> list[re.Match[str]]:
    """Letters of initials, or digits between a number's separators, which others write apart or with other ones."""
    parted = not found[0].isalnum() and ("." in found[0] or "," in found[0])
    return [*_part().finditer(found.string, found.start(), found.end())] if parted else []


@lru_cache(maxsize=1)
def _part() -> re.Pattern[str]:
    return re.compile(rf"\d+|[^\W\d_][{_marks()}]*")


def pieces_between(text: str, mentions: Sequence[Mention]) -> list[str]:
    """What stands around words of entities, as it is written once other words stand in their places.

    An underscore beside one becomes a blank, and a blank stands where a word would run into its neighbour.

    Args:
        text: Any text.
        mentions: `m` words of it, in order.

    Returns:
        `m + 1` pieces, with no word between two of which there is nothing at all.
    """
    starts, stops = [0, *(each.stop for each in mentions)], [*(each.start for each in mentions), len(text)]
    found = []
    for number, (start, stop) in enumerate(zip(starts, stops, strict=True)):
        piece = text[start:stop]
        if number > 0:
            rest = piece.lstrip("_")
            piece = " " * (len(piece) - len(rest)) + rest
            piece = f" {piece}" if joins(piece[:1]) or (not piece and number < len(mentions)) else piece
        if number < len(mentions):
            rest = piece.rstrip("_")
            piece = rest + " " * (len(piece) - len(rest))
            piece = f"{piece} " if joins(piece[-1:]) else piece
        found.append(piece)
    return found


def joins(character: str) -> bool:
    """Whether a word that stands beside this character would run into it."""
    return character.isalnum() or unicodedata.category(character or " ").startswith("M")


def written(pieces: Sequence[str], words: Sequence[str]) -> str:
    """The text that `m + 1` pieces and `m` words between them make."""
    return "".join(map(str.__add__, pieces, [*words, ""]))
