"""Trains the bundled part-of-speech tagger: `python -m training.tagger --treebank FOLDER --out FOLDER`.

A spaCy pipeline of English's tokenizer and a small convolutional network over hashed features of words, on the training
split of the Universal Dependencies English Web Treebank; the weights, averaged over all updates, of the epoch that tags
the development split best are kept. It takes about five minutes on one CPU core. The same seed gives the same weights.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import spacy
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example
from spacy.util import minibatch
from thinc.api import Adam, fix_random_seed

from training.tagger_card import TaggerCard

VERSION = "1.0.0"
COMPONENT = "morphologizer"  # spaCy's name for what sets `pos_`; of the morphology it learns nothing else here
WIDTH = 96
ROWS = {"NORM": 8000, "PREFIX": 1000, "SUFFIX": 3500, "SHAPE": 1500}
BATCH = 96
RATE = 2e-3
WARMUP = 3000
"""Sentences over which the rate rises."""


@dataclass(frozen=True)
class Sentence:
    """A sentence of the treebank.

    Attributes:
        words: Its syntactic words.
        tags: Their Universal parts of speech.
        spaces: Whether a blank follows each.
    """

    words: list[str]
    tags: list[str]
    spaces: list[bool]

    @property
    def text(self) -> str:
        """The sentence as it is written."""
        return "".join(word + " " * space for word, space in zip(self.words, self.spaces, strict=True)).strip()

    def lowered(self) -> Sentence:
        """The sentence without capitals."""
        return Sentence([word.lower() for word in self.words], self.tags, self.spaces)

    def document(self, pipeline: Language, *, tagged: bool) -> Doc:
        """As spaCy holds it, with the treebank's words."""
        return Doc(pipeline.vocab, words=self.words, spaces=self.spaces, pos=self.tags if tagged else None)


def read_treebank(folder: Path, split: str) -> list[Sentence]:
    """Sentences of `<split>.jsonl.gz`, whose rows hold `tokens`, `upos` and `space_after`."""
    with gzip.open(folder / f"{split}.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return [Sentence(row["tokens"], row["upos"], row["space_after"]) for row in rows]


def untrained(seed: int) -> Language:
    """The pipeline before it is initialised."""
    fix_random_seed(seed)
    pipeline = spacy.blank("en", meta={"name": "cutlayer_tagger", "version": VERSION})
    embed = {
        "@architectures": "spacy.MultiHashEmbed.v2",
        "width": WIDTH,
        "attrs": list(ROWS),
        "rows": list(ROWS.values()),
        "include_static_vectors": False,
    }
    encode = {
        "@architectures": "spacy.MaxoutWindowEncoder.v2",
        "width": WIDTH,
        "depth": 4,
        "window_size": 1,
        "maxout_pieces": 3,
    }
    vectors = {"@architectures": "spacy.Tok2Vec.v2", "embed": embed, "encode": encode}
    pipeline.add_pipe(COMPONENT, config={"model": {"@architectures": "spacy.Tagger.v2", "tok2vec": vectors}})
    return pipeline


def train(folder: Path, *, epochs: int, seed: int, dropout: float, lowered: float) -> tuple[Language, int]:
    """Trains a pipeline.

    Args:
        folder: The treebank's.
        epochs: Passes over the training split.
        seed: Initialisation, order and dropout.
        dropout: Share of a layer's outputs that an update leaves out.
        lowered: Share of sentences that an update sees without capitals.

    Returns:
        The pipeline with the weights of its best epoch, and which one that was.
    """
    pipeline = untrained(seed)
    sentences, dev = read_treebank(folder, "train"), read_treebank(folder, "dev")

    def example(sentence: Sentence) -> Example:
        return Example(sentence.document(pipeline, tagged=False), sentence.document(pipeline, tagged=True))

    pipeline.initialize(lambda: map(example, sentences))
    component: Any = pipeline.get_pipe(COMPONENT)
    optimiser = Adam(RATE, L2=0.01, L2_is_weight_decay=True, grad_clip=1.0, use_averages=True)
    rng = random.Random(seed)  # noqa: S311 - an order of sentences
    best, chosen, weights, seen = 0.0, 0, b"", 0
    for epoch in range(1, epochs + 1):
        began = time.monotonic()
        order = rng.sample(sentences, len(sentences))
        for batch in minibatch(order, min(BATCH, 16 * epoch)):
            optimiser.learn_rate = RATE * min(1, (seen + 1) / WARMUP) * (1 - seen / (epochs * len(sentences)))
            drawn = [sentence.lowered() if rng.random() < lowered else sentence for sentence in batch]
            pipeline.update(list(map(example, drawn)), drop=dropout, sgd=optimiser)
            seen += len(batch)
        with pipeline.use_params(optimiser.averages):
            written, small = accuracy(pipeline, dev), accuracy(pipeline, [each.lowered() for each in dev])
            if written + small > best:
                best, chosen, weights = written + small, epoch, component.model.to_bytes()
        print(f"epoch {epoch} dev {written:.4f} lower case {small:.4f} {time.monotonic() - began:.0f} s", flush=True)
    component.model.from_bytes(weights)
    return pipeline, chosen


def accuracy(pipeline: Language, sentences: Sequence[Sentence]) -> float:
    """Share of the treebank's words that get its part of speech."""
    documents = pipeline.pipe((each.document(pipeline, tagged=False) for each in sentences), batch_size=256)
    right = [
        token.pos_ == tag
        for sentence, document in zip(sentences, documents, strict=True)
        for token, tag in zip(document, sentence.tags, strict=True)
    ]
    return sum(right) / len(right)


def accuracy_from_text(pipeline: Language, sentences: Sequence[Sentence]) -> tuple[float, float]:
    """With the pipeline's own words: F1 of words, and of words with their part of speech, by place (CoNLL 2018)."""
    counts = {"words": 0, "tagged": 0}
    total = 0
    for sentence, document in zip(sentences, pipeline.pipe(each.text for each in sentences), strict=True):
        gold: dict[tuple[int, int], str] = {}
        start = 0
        for word, tag, space in zip(sentence.words, sentence.tags, sentence.spaces, strict=True):
            gold[start, start + len(word)] = tag
            start += len(word) + space
        found: dict[tuple[int, int], str] = {
            (token.idx, token.idx + len(token)): token.pos_ for token in document if not token.is_space
        }
        total += len(gold) + len(found)
        counts["words"] += len(gold.keys() & found.keys())
        counts["tagged"] += len(gold.items() & found.items())
    return 2 * counts["words"] / total, 2 * counts["tagged"] / total


def words_per_second(pipeline: Language, texts: Sequence[str]) -> float:
    """Tokenised and tagged from text, the fastest of three passes in one thread."""
    times = []
    words = 0
    for _ in range(3):
        began = time.perf_counter()
        words = sum(len(document) for document in pipeline.pipe(texts, batch_size=256))
        times.append(time.perf_counter() - began)
    return words / min(times)


def save(pipeline: Language, folder: Path) -> None:
    """Writes what tagging needs, and no list of the words that were seen.

    `meta.json` names spaCy's oldest version that reads it, and no measure: the card has those.
    """
    pipeline.meta["performance"] = {}
    pipeline.to_disk(folder, exclude=["vocab"])
    shutil.rmtree(folder / "vocab", ignore_errors=True)
    meta: dict[str, Any] = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    meta |= {
        "spacy_version": ">=3.8,<4",
        "license": "CC BY-SA 4.0",
        "description": "Universal parts of speech of English words",
        "url": "https://universaldependencies.org/treebanks/en_ewt",
    }
    (folder / "meta.json").write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Trains, measures and saves."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--treebank", type=Path, required=True, help="folder of train, dev and test as .jsonl.gz")
    parser.add_argument("--out", type=Path, required=True, help="the pipeline's folder")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--lowered", type=float, default=0.2, help="share of sentences that are seen without capitals")
    options = parser.parse_args()
    pipeline, epoch = train(
        options.treebank,
        epochs=options.epochs,
        seed=options.seed,
        dropout=options.dropout,
        lowered=options.lowered,
    )
    save(pipeline, options.out)
    read = spacy.load(options.out)
    test = read_treebank(options.treebank, "test")
    spaced = [Sentence(each.words, each.tags, [True] * len(each.words)).lowered() for each in test]
    by_text, words_found = accuracy_from_text(read, test)[1], accuracy_from_text(read, test)[0]
    card = TaggerCard(
        sentences=len(test),
        words=sum(len(each.words) for each in test),
        accuracy=accuracy(read, test),
        lower_case=accuracy(read, [each.lowered() for each in test]),
        spaced=accuracy_from_text(read, spaced)[1],
        words_found=words_found,
        from_text=by_text,
        dev=accuracy(read, read_treebank(options.treebank, "dev")),
        speed=words_per_second(read, [each.text for each in test]),
        megabytes=sum(file.stat().st_size for file in options.out.rglob("*") if file.is_file()) / 1e6,
        epochs=options.epochs,
        epoch=epoch,
        seed=options.seed,
    )
    (options.out / "README.md").write_text(card.render(), encoding="utf-8")
    print(card.render())


if __name__ == "__main__":
    main()
