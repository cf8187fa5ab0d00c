"""What stands for the words of entities, so that each is known again by itself, and what puts them back."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from cutlayer.data.mentions import Mention, codes_pattern, joins, pieces_between, written


def stand_ins(
    readings: Mapping[str, Sequence[str]], drawn: Sequence[str], clear: set[str], key: bytes
) -> dict[tuple[str, str], str]:
    """What stands for each reading of each word.

    That is what was drawn, with an s for each further reading. Where two words were drawn alike, or a text has such a
    word anyway, it gets a number: so what was drawn, and what leaves in clear, decide alone which of them have one.
    The order of numbers follows from the secret.
    """
    plain = ["".join(filter(str.isalnum, word.casefold())) or "x" for word in drawn]
    most = [max(2, len(own)) for own in readings.values()]
    taken = Counter(f"{word}{'s' * more}" for word, count in zip(plain, most, strict=True) for more in range(count))
    taken.update(clear)
    numbers: Counter[str] = Counter()
    codes: dict[tuple[str, str], str] = {}
    for word, count, (family, own) in sorted(
        zip(plain, most, readings.items(), strict=True),
        key=lambda each: hashlib.blake2b(each[2][0].encode(), key=key, digest_size=16).digest(),
    ):
        base = word
        if any(taken[f"{word}{'s' * more}"] > 1 for more in range(count)):
            while base == word or any(f"{base}{'s' * more}" in clear for more in range(count)):
                numbers[word] += 1
                base = f"{word}_{numbers[word]}"
        codes |= {(family, reading): f"{base}{'s' * more}" for more, reading in enumerate(own)}
    return codes


def words_behind(families: Mapping[str, Mapping[str, str]], codes: Mapping[tuple[str, str], str]) -> dict[str, str]:
    """The word that each code stands for; of a word that was met in one number alone an s makes the other."""
    found = {code: families[key][reading] for (key, reading), code in codes.items()}
    for (key, reading), code in codes.items():
        if len(families[key]) == 1 and reading.isalpha():
            found.setdefault(f"{code}s", f"{families[key][reading]}s")
    return found


class Spellings:
    """How words are written that codes stand for.

    Args:
        words: By what stands for them, in lower case: one code, or several with what stands between them, as of a name
            that other rows write otherwise word by word.
    """

    def __init__(self, words: Mapping[str, str]) -> None:
        self.words = words
        self._longer: dict[str, list[str]] = {}
        for told in words:
            first = _first_code(told)
            if first != told:
                self._longer.setdefault(first, []).append(told)
        for own in self._longer.values():
            own.sort(key=len, reverse=True)

    def longest(self, text: str, start: int, code: str, stops: set[int]) -> str | None:
        """Of several codes the most that stand at a place of a text, which ends where one of its codes does."""
        return next(
            (
                told
                for told in self._longer.get(code, ())
                if start + len(told) in stops and text[start : start + len(told)].casefold() == told
            ),
            None,
        )


def put_back(text: str, *spellings: Spellings) -> str:
    """A text with words in the places of what stands for them; other words stay.

    Args:
        text: Any text.
        spellings: How they are written; the first that knows a code counts, and of several codes the most.
    """
    codes = list(codes_pattern().finditer(text))
    stops = {each.end() for each in codes}
    found, done = [], 0
    for each in codes:
        if each.start() < done:
            continue
        code = each[0].casefold()
        told = [own.longest(text, each.start(), code, stops) for own in spellings]
        longest = max((one for one in told if one is not None), key=len, default=code)
        word = next((own.words[longest] for own in spellings if longest in own.words), None)
        if word is not None:
            word = f"{word[:1].upper()}{word[1:]}" if each[0][:1].isupper() else word
            found += [text[done : each.start()], word]
            done = each.start() + len(longest)
    return "".join([*found, text[done:]])


def spelled(
    words: Mapping[str, str], codes: Mapping[tuple[str, str], str], rows: Sequence[Sequence[tuple[str, list[Mention]]]]
) -> tuple[dict[str, str], list[dict[str, str]]]:
    """How entities are written: one row has "Müller" and "18L", another one "Muller" and "18 L", which leave alike.

    Args:
        words: The word that each code stands for, in whatever row.
        codes: What stands for a reading of a word.
        rows: Of each its entities: a name, and the words of it that leave, if they are in a text.

    Returns:
        Words, and names that are written otherwise than word by word; and the same of each row, as far as it writes
        them otherwise than the rows before it.
    """
    found = [
        sorted(filter(None, (_phrase(*entity, codes) for entity in row)), key=lambda each: len(each[0])) for row in rows
    ]
    alone = Spellings(words)
    every = dict(words)
    for told, name in (each for row in found for each in row):
        if put_back(told, alone) != name:
            every.setdefault(told, name)
    together = Spellings(every)
    own: list[dict[str, str]] = []
    for row, phrases in zip(rows, found, strict=True):
        words_here = [(codes.get((each.key, each.reading)), each.form) for _, mentions in row for each in mentions]
        first: dict[str, str] = {}
        for code, form in [*phrases, *words_here]:  # a name of one word before the same word of a longer name
            if code is not None:
                first.setdefault(code, form)
        here = {code: form for code, form in first.items() if code in words and form != every[code]}
        for told, name in phrases:
            if told not in words and first[told] == name != put_back(told, Spellings(here), together):
                here[told] = name
        own.append(here)
    return every, own


def _phrase(name: str, mentions: Sequence[Mention], codes: Mapping[tuple[str, str], str]) -> tuple[str, str] | None:
    """What stands for a name, and it, from its first word that leaves to its last; `None` where it is in no text."""
    if not mentions or any((each.key, each.reading) not in codes for each in mentions):
        return None
    start, stop = mentions[0].start, mentions[-1].stop
    while start > 0 and joins(name[start - 1]):  # letters that a blank parts from a word now, as of "A894"
        start -= 1
    while stop < len(name) and joins(name[stop]):
        stop += 1
    here = [each._replace(start=each.start - start, stop=each.stop - start) for each in mentions]
    told = written(pieces_between(name[start:stop], here), [codes[each.key, each.reading] for each in mentions])
    return told.casefold(), name[start:stop].replace("_", " ")


def _first_code(told: str) -> str:
    found = re.match(codes_pattern(), told)
    return found[0] if found else told
