"""Makes the bundled list of English words by part of speech: `python -m training.words --books FOLDER --out FILE`.

The bundled tagger reads public-domain books; every word is counted in lower case under the tag that it had. It takes
some five minutes on one CPU core.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch
from spacy.util import minibatch

from cutlayer.data.tagger import Tagger, load_tagger
from cutlayer.data.vocabulary import WordCounts
from training.books import read_books

OPEN = ("ADJ", "ADV", "NOUN", "PROPN", "VERB")
"""Parts of speech that take new words."""
CLOSED = ("ADP", "AUX", "CCONJ", "DET", "PART", "PRON", "SCONJ")
"""Parts of speech of few and frequent words: a rare one among them is likely an error of the tagger."""
LEAST_SHARE = 0.02
"""Of a word's uses that have a tag: below, it is more likely an error than a reading of the word."""
CLEAR_SHARE = 0.25
"""The same of a tag that is not open, where the word has it less than `MANY` times."""
MANY = 200
_LETTERS = re.compile(r"[^\W\d_]+(?:['-][^\W\d_]+)*")
_NUMBER = re.compile(r"\d+(?:[.,:/]\d+)*")
_SYMBOLS = re.compile(r"[^\w\s]+")

Uses = Mapping[tuple[str, str], int]
"""How often each (word, tag) was seen."""


def count(texts: Iterable[str], tagger: Tagger) -> Counter[tuple[str, str]]:
    """Uses of each (word, tag), words in lower case."""
    uses: Counter[tuple[str, str]] = Counter()
    for number, batch in enumerate(minibatch(texts, 2000)):
        tagged = tagger.tag(batch)
        uses.update(zip(map(str.lower, tagged.words), tagged.tags, strict=True))
        if number % 10 == 0:
            print(f"{uses.total():,} words", flush=True)
    return uses


def select(uses: Uses, *, least_open: int, least_closed: int, least_other: int) -> WordCounts:
    """Words that are written as words of their tag are, seen often enough with it; by tag, the most frequent first."""
    totals: Counter[str] = Counter()
    for (word, _), number in uses.items():
        totals[word] += number

    def often(word: str, tag: str, number: int) -> bool:
        least = least_open if tag in OPEN else least_closed if tag in CLOSED else least_other
        share = LEAST_SHARE if tag in OPEN or number >= MANY else CLEAR_SHARE
        return number >= max(least, share * totals[word])

    kept = [(tag, -number, word) for (word, tag), number in uses.items() if often(word, tag, number)]
    kept = sorted(each for each in kept if _fits(each[2], each[0]))
    return WordCounts(
        tuple(word for _, _, word in kept),
        tuple(tag for tag, _, _ in kept),
        torch.tensor([-negative for _, negative, _ in kept], dtype=torch.int64),
    )


def _fits(word: str, tag: str) -> bool:
    if tag in {"PUNCT", "SYM"}:
        return _SYMBOLS.fullmatch(word) is not None
    return _LETTERS.fullmatch(word) is not None or (tag == "NUM" and _NUMBER.fullmatch(word) is not None)


def _paragraphs(books: Iterable[str]) -> Iterator[str]:
    for book in books:
        yield from filter(None, book.splitlines())


def main() -> None:
    """Counts, selects and writes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--books", type=Path, required=True, help="folder of train_part1 and train_part2 as .jsonl.gz")
    parser.add_argument("--out", type=Path, required=True, help="a file .tsv or .tsv.gz")
    parser.add_argument("--least-open", type=int, default=8, help=f"uses that a word of {', '.join(OPEN)} needs")
    parser.add_argument("--least-closed", type=int, default=20, help=f"the same of {', '.join(CLOSED)}")
    parser.add_argument("--least-other", type=int, default=5, help="the same of other parts of speech")
    options = parser.parse_args()
    uses = count(_paragraphs(read_books(options.books, "train")), load_tagger())
    chosen = select(
        uses,
        least_open=options.least_open,
        least_closed=options.least_closed,
        least_other=options.least_other,
    )
    chosen.write(options.out)
    card = _card(chosen, uses=sum(uses.values()), seen=len(uses), tagger=load_tagger().name, options=options)
    options.out.with_name(f"{options.out.name.partition('.')[0]}.md").write_text(card, encoding="utf-8")
    print(card)


def _card(chosen: WordCounts, *, uses: int, seen: int, tagger: str, options: argparse.Namespace) -> str:
    kept = Counter(chosen.tags)
    covered = Counter(dict.fromkeys(kept, 0))
    for tag, number in zip(chosen.tags, chosen.counts.tolist(), strict=True):
        covered[tag] += number
    rows = "\n".join(f"| {tag} | {kept[tag]:,} | {covered[tag]:,} |" for tag in sorted(kept))
    return f"""# {options.out.name}

{len(chosen):,} pairs of an English word and its Universal part of speech, with how often it has it, in lower case: the
words that mechanisms which replace words by others of their part of speech choose from where no other list is named.
Public, and made from public text alone.

- **Text**: the 102 public-domain books of before 1930 that `starter-decoder` is trained on (children's, adventure and
  domestic prose), {uses:,} words and marks, {seen:,} pairs. Their vocabulary is that of their time.
- **Tags**: by the tagger in `english_tagger`, with its errors ({tagger}). So that these do not
  fill the small parts of speech, a word stands under a tag only if it has it in {LEAST_SHARE:.0%} of its uses, and
  {options.least_open} times for open parts of speech ({", ".join(OPEN)}), {options.least_closed} times for closed ones
  ({", ".join(CLOSED)}) and {options.least_other} times for others. Under a tag that is not
  open it needs {CLEAR_SHARE:.0%} of its uses, or {MANY} of them.
- **Form**: only words of letters, with hyphens and apostrophes inside; numbers also in digits; for PUNCT and SYM marks
  alone. Contractions are split as in the treebank (`do`, `n't`), and parts that begin with an apostrophe are left out.

| tag | words | uses |
|---|---|---|
{rows}

Made again from the repository with: `python -m training.words --books FOLDER --out FILE`.
"""


if __name__ == "__main__":
    main()
