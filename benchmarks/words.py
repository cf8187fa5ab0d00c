"""How fast texts are privatized word by word: what mechanism words costs, its tagger included.

Run it with `python -m benchmarks.words`. Sentences of SST-2 go through `Client.privatize` at eta 100 with its defaults:
they are tagged, words of four categories are drawn, and the texts that they make are tokenised. Vocabulary and vectors
are made once, before the rounds.

Ratios:
    words_against_5000: Words per second, those in clear and punctuation among them, against 5,000.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.corpora import sentences
from benchmarks.results import write
from cutlayer.core.timing import interleaved
from cutlayer.customer import Client
from cutlayer.data import load_tagger
from cutlayer.privacy import Words

ROUNDS = 3
TEXTS = 4000
WANTED = 5_000


def main() -> None:
    """Measures and writes `benchmarks/results/words.json`."""
    texts = [text for (text,) in sentences(TEXTS).texts]
    tagger = load_tagger()
    words = len(tagger.tag(texts).words)
    with tempfile.TemporaryDirectory() as home:
        client = Client("http://localhost", home=Path(home))  # which is never asked
        seconds = interleaved(
            {
                "privatize": lambda: client.privatize(texts, privacy=Words(eta=100), progress=False),
                "tagging alone": lambda: tagger.tag(texts),
            },
            rounds=ROUNDS,
        )
    print(f"{words} words of {len(texts)} sentences a round, {ROUNDS} rounds")
    for name, median in seconds.items():
        print(f"{name:32} {words / median:,.0f} words/s")
    write("words", {"words_against_5000": words / seconds["privatize"] / WANTED})


if __name__ == "__main__":
    main()
