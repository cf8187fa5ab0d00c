"""Which words there are of each part of speech, and how often they are used."""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from cutlayer.core import ConfigError, DataError, Fault
from cutlayer.data.read import read_lines
from cutlayer.data.tagger import UNIVERSAL_TAGS

BUNDLED: Final = Path(__file__).parent / "english_words.tsv.gz"
"""Words of public-domain books in lower case, by the tagger that comes with the package."""

_MOST = 2**53
"""Counts stay exact as doubles."""


@dataclass(frozen=True, eq=False)
class WordCounts:
    """Words by Universal part of speech; a word stands once for each that it can have.

    As a file: UTF-8, a line each, `word<TAB>tag<TAB>count`, packed by gzip where the name ends in `.gz`.

    Attributes:
        words: Not empty, without blanks.
        tags: Of each, one of `UNIVERSAL_TAGS`.
        counts: How often each was seen with its tag, 1 at least, `[n]` int64.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    counts: Tensor

    def __post_init__(self) -> None:
        if not len(self.words) == len(self.tags) == len(self.counts):
            raise DataError("Each word needs one tag and one count.")

    def __len__(self) -> int:
        """How many pairs of a word and a tag there are."""
        return len(self.words)

    @classmethod
    def read(cls, path: str | Path) -> WordCounts:
        """Reads a file.

        Args:
            path: As described above; ending in `.tsv` or `.tsv.gz` by custom.

        Raises:
            ConfigError: It is empty.
            DataError: There is no such file, it is damaged, or a line is none of this form, or repeats the word and tag
                of one before; the line is named, and not what it holds.
        """
        file = Path(path)
        if not file.is_file():
            raise DataError(f"There is no file {str(path)!r}.", remedy="Check the path.")
        lines: dict[tuple[str, str], int] = {}
        for number, line in enumerate(read_lines(file), start=1):
            word, tag, count = _parsed(line, f"{path}: line {number}")
            if (word, tag) in lines:
                raise DataError(
                    f"{path}: line {number} repeats the word and tag of a line before.", remedy="Add up their counts."
                )
            lines[word, tag] = count
        if not lines:
            raise ConfigError(
                [Fault("vocabulary", str(path), "holds no words: write `word<TAB>tag<TAB>count`, one a line")]
            )
        return cls(
            tuple(word for word, _ in lines),
            tuple(tag for _, tag in lines),
            torch.tensor(list(lines.values()), dtype=torch.int64),
        )

    def write(self, path: str | Path) -> None:
        """Writes a file: the same words give the same bytes.

        Args:
            path: It is packed where this ends in `.gz`.
        """
        lines = zip(self.words, self.tags, self.counts.tolist(), strict=True)
        content = "".join(f"{word}\t{tag}\t{count}\n" for word, tag, count in lines).encode()
        file = Path(path)
        file.write_bytes(gzip.compress(content, mtime=0) if file.suffix == ".gz" else content)


def load_word_counts(path: str | Path | None = None) -> WordCounts:
    """Reads words by part of speech.

    Args:
        path: A file as `WordCounts` describes it; by default the bundled one.

    Raises:
        DataError: As of `WordCounts.read`.
    """
    return WordCounts.read(BUNDLED if path is None else path)


def _parsed(line: str, place: str) -> tuple[str, str, int]:
    fields = line.rstrip("\r\n").split("\t")
    if len(fields) != 3:
        raise DataError(
            f"{place} has {len(fields)} field{'' if len(fields) == 1 else 's'}, where three are needed.",
            remedy="Write `word<TAB>tag<TAB>count`, one a line, without a header.",
        )
    word, tag, count = fields
    if not word or any(map(str.isspace, word)):
        raise DataError(f"{place} has no word, or one with blanks in it.", remedy="Write one word a line.")
    if tag not in UNIVERSAL_TAGS:
        raise DataError(
            f"{place} has no Universal part of speech in its second field.",
            remedy=f"Write one of {', '.join(UNIVERSAL_TAGS)}.",
        )
    if not (count.isascii() and count.isdigit() and len(count) <= len(str(_MOST)) and 1 <= int(count) <= _MOST):
        raise DataError(
            f"{place} has no count in its third field.", remedy="Write a whole number from 1 on, without separators."
        )
    return word, tag, int(count)
