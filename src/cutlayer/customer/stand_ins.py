"""What stands for the words of entities, so that each is known again by itself."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence


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
