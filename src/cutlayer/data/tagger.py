"""Texts to words with a part of speech each, and back again to the letter."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from threading import Lock
from typing import Any, Final

import torch
from torch import Tensor

from cutlayer.core import DataError, ModelError
from cutlayer.core.extras import require
from cutlayer.data.dataset import check_characters

UNIVERSAL_TAGS: Final = (
    "ADJ",
    "ADP",
    "ADV",
    "AUX",
    "CCONJ",
    "DET",
    "INTJ",
    "NOUN",
    "NUM",
    "PART",
    "PRON",
    "PROPN",
    "PUNCT",
    "SCONJ",
    "SYM",
    "VERB",
    "X",
)
"""The parts of speech of Universal Dependencies, https://universaldependencies.org/u/pos."""

NO_PART_OF_SPEECH: Final = "X"
"""The tag of a word that a pipeline leaves without: "other", as in Universal Dependencies."""

BUNDLED: Final = Path(__file__).parent / "english_tagger"
"""The folder of the pipeline that comes with the package."""

_PROBE = "The cat sees 2 dogs."
_BATCH = 1 << 15
"""Characters that are tagged together, and most characters of a piece of a long text: bounds the memory, whatever the
texts; and larger batches are no faster."""
_SAME_IN_ANY_BATCH = {"attribute_ruler", "morphologizer", "tagger", "tok2vec"}
"""Components each of whose rows is computed alike, to the last bit, in a batch of any size, where BLIS multiplies."""


@dataclass(frozen=True, eq=False)
class TaggedTexts:
    """The words of n texts one after another, each with its part of speech, and the blanks between them.

    Attributes:
        words: All words. They hold no blanks but those that a pipeline's own token has inside.
        tags: The part of speech of each word, one of `UNIVERSAL_TAGS`.
        after: The blanks that follow each word, to the letter; often "" or " ".
        before: For each text the blanks before its first word; a text of blanks alone is all here.
        lengths: Words of each text, `[n]` int64.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    after: tuple[str, ...]
    before: tuple[str, ...]
    lengths: Tensor

    def __post_init__(self) -> None:
        words = int(self.lengths.sum())
        if {len(self.words), len(self.tags), len(self.after)} != {words} or len(self.before) != len(self.lengths):
            raise DataError("Each word needs one tag and what follows it, and each text what stands before it.")

    def __len__(self) -> int:
        """How many texts there are."""
        return len(self.before)

    @cached_property
    def starts(self) -> Tensor:
        """`[words]` int64: at which character of its text each word begins."""
        sizes = [len(word) + len(after) for word, after in zip(self.words, self.after, strict=True)]
        ends = torch.tensor([0, *sizes]).cumsum(0)
        first = torch.tensor([len(blanks) for blanks in self.before], dtype=torch.int64)
        first -= ends[self.lengths.cumsum(0) - self.lengths]
        return ends[:-1] + first.repeat_interleave(self.lengths)

    def texts(self, words: Sequence[str] | None = None) -> list[str]:
        """The texts, with their own words or with others in the same places.

        Args:
            words: One for each of `self.words`; by default these.

        Returns:
            One a text; with its own words exactly what was tagged.

        Raises:
            DataError: There are more or fewer words than places.
        """
        chosen = self.words if words is None else words
        if len(chosen) != len(self.words):
            raise DataError(f"{len(chosen)} words were given for {len(self.words)} places.")
        pieces = list(map(str.__add__, chosen, self.after))
        places = pairwise([0, *self.lengths.cumsum(0).tolist()])
        return [before + "".join(pieces[start:end]) for before, (start, end) in zip(self.before, places, strict=True)]


class Tagger:
    """Splits texts into words and gives each a Universal part of speech, by a spaCy pipeline.

    The tags of a text are a function of that text: the same alone and beside any others, in any order.

    Args:
        pipeline: A `spacy.language.Language` that sets `pos_`, loaded from a folder.

    Raises:
        ModelError: It sets no part of speech, or was not loaded from a folder.
    """

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline
        self._lock = Lock()  # a pipeline's vocabulary is one for all threads
        if pipeline.path is None:
            raise ModelError("A tagger's pipeline must be loaded from a folder, which says which one it is.")
        # spaCy's tag of blanks is no part of speech
        if any(token.pos_ not in UNIVERSAL_TAGS for token in pipeline(_PROBE) if not token.is_space):
            raise ModelError(
                f"The pipeline {_title(pipeline)} sets no Universal part of speech.",
                remedy="Name one with a tagger and an attribute ruler, or with a morphologizer.",
            )

    @cached_property
    def name(self) -> str:
        """Which pipeline it is: language, name, version, and a digest of all that decides its tags."""
        return f"{_title(self._pipeline)}-{_digest(Path(self._pipeline.path))[:16]}"

    def tag(self, texts: Sequence[str]) -> TaggedTexts:
        """Tags texts.

        A text of more than 32,768 characters, or more than the pipeline takes, is cut into pieces that are tagged
        on their own, at blanks where there are any; `TaggedTexts` holds it in one again.

        Args:
            texts: Any texts, empty ones and blanks, too.

        Raises:
            DataError: A text holds half of a surrogate pair.
            ModelError: The pipeline's tokenizer loses characters.
        """
        words: list[str] = []
        tags: list[str] = []
        after: list[str] = []
        before = [""] * len(texts)
        lengths = [0] * len(texts)
        with self._lock:
            for place, tokens in self._tokens(texts):
                for word, blanks, tag in tokens:
                    if word:
                        words.append(word)
                        tags.append(tag)
                        after.append(blanks)
                        lengths[place] += 1
                    elif lengths[place]:
                        after[-1] += blanks
                    else:
                        before[place] += blanks
        return TaggedTexts(
            tuple(words), tuple(tags), tuple(after), tuple(before), torch.tensor(lengths, dtype=torch.int64)
        )

    def _tokens(self, texts: Sequence[str]) -> Iterator[tuple[int, list[tuple[str, str, str]]]]:
        """For each piece its text's place, and (word, blanks behind it, tag) of its tokens; no word for blanks."""
        for batch in self._batches(texts):
            # what the vocabulary learns of a batch is forgotten with it
            with self._pipeline.memory_zone():
                documents = self._pipeline.pipe([piece for _, piece in batch], batch_size=len(batch))
                for (place, piece), document in zip(batch, documents, strict=True):
                    if document.text != piece:
                        raise ModelError(
                            f"The tokenizer of the pipeline {_title(self._pipeline)} does not keep texts as they are.",
                            remedy="Name a pipeline whose tokens join to the text again, as spaCy's own do.",
                        )
                    yield place, _tokens(document, piece)

    def _batches(self, texts: Sequence[str]) -> Iterator[list[tuple[int, str]]]:
        """Pieces of texts that are tagged together, each with its text's place."""
        limit = min(_BATCH, self._pipeline.max_length)
        batch: list[tuple[int, str]] = []
        characters = 0
        for place, text in enumerate(texts):
            check_characters(text, f"Text {place + 1}")
            for piece in _pieces(text, limit):
                if batch and (characters + len(piece) > limit or not self._same_in_any_batch):
                    yield batch
                    batch, characters = [], 0
                batch.append((place, piece))
                characters += len(piece)
        if batch:
            yield batch

    @cached_property
    def _same_in_any_batch(self) -> bool:
        """Whether texts can be computed together: networks of other kinds round otherwise in other company."""
        pipeline = self._pipeline
        nodes = [
            node for _, each in pipeline.pipeline for node in getattr(getattr(each, "model", None), "walk", list)()
        ]
        return {pipeline.get_pipe_meta(name).factory for name in pipeline.pipe_names} <= _SAME_IN_ANY_BATCH and all(
            type(node.ops).__name__ == "NumpyOps" and node.ops.use_blis and not node.shims for node in nodes
        )


def load_tagger(name: str | None = None) -> Tagger:
    """Loads a tagger; nothing is fetched.

    Args:
        name: An installed spaCy pipeline's package, such as `en_core_web_sm`, or a pipeline's folder. By default the
            English one that comes with the package.

    Raises:
        MissingExtraError: spaCy is not installed.
        ModelError: There is no such pipeline, it cannot be read, or it sets no part of speech.
    """
    require("words")
    import spacy
    from spacy.about import __version__

    called = "the bundled English pipeline" if name is None else repr(name)
    if name is not None and not spacy.util.is_package(name) and not _is_folder(name):
        raise ModelError(
            f"There is no spaCy pipeline {called}.",
            remedy="Name an installed one (`python -m spacy info` lists them), or a folder that `nlp.to_disk` wrote; "
            "or leave it out for the bundled one.",
        )
    try:
        # what a word is called or refers to decides no part of speech
        return Tagger(spacy.load(BUNDLED if name is None else name, exclude=["ner", "entity_linker", "lemmatizer"]))
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ImportError) as error:
        raise ModelError(
            f"{called} cannot be loaded as a spaCy pipeline ({type(error).__name__}).",
            remedy=f"Check that it is complete, and made for spaCy {__version__}.",
        ) from error


def _tokens(document: Any, text: str) -> list[tuple[str, str, str]]:
    """(word, blanks behind it, tag) of each token of a text; a token of blanks has no word."""
    tokens = []
    for start, length, spaced, pos in document.to_array(["IDX", "LENGTH", "SPACY", "POS"]).tolist():
        word, blank = text[start : start + length], " " * spaced
        if word.isspace():
            tokens.append(("", word + blank, ""))
        else:
            tag = document.vocab.strings[pos]
            tokens.append((word, blank, tag if tag in UNIVERSAL_TAGS else NO_PART_OF_SPEECH))
    return tokens


def _pieces(text: str, limit: int) -> Iterator[str]:
    """A text in pieces of at most `limit` characters, each but the first begun by a blank where there is one."""
    start = 0
    while len(text) - start > limit:
        blanks = (at for at in range(start + limit, start, -1) if text[at].isspace())
        end = next(blanks, start + limit)
        yield text[start:end]
        start = end
    yield text[start:]


def _is_folder(name: str) -> bool:
    try:
        return (Path(name) / "config.cfg").is_file()
    except (OSError, ValueError):  # longer than a name may be
        return False


def _title(pipeline: Any) -> str:
    meta = pipeline.meta
    return f"{meta['lang']}_{meta['name']}-{meta['version']}"


def _digest(folder: Path) -> str:
    """SHA-256 of a pipeline's files that decide its tags, and not of its card and licence."""
    decisive = [folder / "config.cfg", folder / "tokenizer", *sorted(folder.glob("*/**/*"))]
    digest = hashlib.sha256()
    for file in decisive:
        if file.is_file():
            digest.update(f"{file.relative_to(folder).as_posix()}\0{file.stat().st_size}\0".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()
