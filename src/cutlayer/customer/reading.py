"""How texts become what is privatized: tokens of the vendor's model, or words."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from cutlayer.core import ConfigError, Cut, Fault, PrivacyError, Ragged, Tokens
from cutlayer.customer.closing import Closing, row_length
from cutlayer.customer.handout import local_archive
from cutlayer.customer.home import Home
from cutlayer.customer.settings import RunSpec
from cutlayer.data import Dataset, Tagger, load_tagger, load_word_counts, tokenise
from cutlayer.data.tokenise import UNCUT, kept_lengths, shortened
from cutlayer.models import Archive, Template, principal_components, word_vectors
from cutlayer.privacy import Dictionary, Grouping, Lexicon, PrivacySpec, Word, Words, WordSpace, table_fingerprint
from cutlayer.privacy.words import folded

_FEW_TEXTS = 2
_TELLING = 20
"""Rare words from which on a share of them tells something."""
_MOST = 0.8
_MADE_OF_TEXTS = 0.1
"""Share of a vocabulary's own uncommon words. Public lists of 100,000 words have four fifths of a corpus's rare ones,
too, but these are a few hundredths of the list."""
_ALL = 0.99
_TELLING_OF_ALL = 200
"""Rare words of which no public list has all."""


class Reading(ABC):
    """Reads texts for a privatizer.

    Attributes:
        dictionary: What words are drawn with; `None` where tokens are drawn.
        own_vocabulary: Whether their vocabulary is a file of the customer's.
    """

    dictionary: Dictionary | None = None
    own_vocabulary: bool = False

    def check_vocabulary(self, tokens: Tokens) -> None:  # noqa: B027 - tokens are drawn among the vendor's
        """Refuses a vocabulary of the customer's that was made from the texts: what comes out would show their words.

        Args:
            tokens: The texts, or some of them.

        Raises:
            PrivacyError: It has almost all of the words that few of the texts have and no common list has, and either
                consists of them in good part, or has all of very many.
        """

    @abstractmethod
    def read(self, dataset: Dataset, *, max_content: int) -> Tokens:
        """What stands in texts, by number.

        Args:
            dataset: Texts or pairs.
            max_content: Most tokens, or words, that a row may have; longer ones lose their end, as of `tokenise`.
        """

    @abstractmethod
    def text(self, ids: Tensor) -> str:
        """The text that numbers `[n]` int64 stand for."""


class TokenReading(Reading):
    """Reads tokens of the vendor's model."""

    def __init__(self, archive: Archive) -> None:
        self._tokenizer = archive.tokenizer

    def read(self, dataset: Dataset, *, max_content: int) -> Tokens:
        """See `Reading.read`."""
        return tokenise(dataset, self._tokenizer, max_content=max_content)

    def text(self, ids: Tensor) -> str:
        """See `Reading.text`."""
        return str(self._tokenizer.decode(ids))


class WordReading(Reading):
    """Reads words and their parts of speech, before anything is tokenised.

    Args:
        tagger: Tells parts of speech.
        dictionary: Whose lexicon numbers words.
        own_vocabulary: Whether its vocabulary is a file of the customer's.
        closing: What closes the texts that drawn words make, where these are a language model's.
    """

    def __init__(
        self, tagger: Tagger, dictionary: Dictionary, *, own_vocabulary: bool = False, closing: Closing | None = None
    ) -> None:
        self.tagger = tagger
        self.own_vocabulary = own_vocabulary
        self.dictionary: Dictionary = dictionary
        self._closing = closing

    def sides(self, written: Tokens, count: int) -> tuple[Ragged, ...]:
        """Ids of each text of rows as they leave, which may be joined; marks that close texts are among them.

        Args:
            written: What the privatizer made of them.
            count: Texts of a row.
        """
        if self._closing is None or count == 1:
            return written.segments
        return self._closing.part(written.segments[0]).segments

    def read(self, dataset: Dataset, *, max_content: int) -> Tokens:
        """See `Reading.read`. Each word becomes a token at least, so no more words than tokens are kept."""
        sides = [self._names([row[side] for row in dataset.texts]) for side in range(dataset.segments)]
        kept = kept_lengths(torch.stack([side.lengths for side in sides], dim=1), max_content)
        return Tokens(tuple(side.first(kept[:, number]) for number, side in enumerate(sides)))

    def _names(self, texts: Sequence[str]) -> Ragged:
        tagged = self.tagger.tag(texts)
        before = ["", *map(_blank, tagged.after)]
        for start in (tagged.lengths.cumsum(0) - tagged.lengths).tolist():
            before[start] = ""  # a text's first word is the same whatever stands before it in the file
        names = self.dictionary.lexicon.names(map(Word, before, tagged.words, tagged.tags))
        return Ragged(torch.tensor(names, dtype=torch.int64), tagged.lengths)

    def check_vocabulary(self, tokens: Tokens) -> None:
        """See `Reading.check_vocabulary`."""
        if not self.own_vocabulary:
            return
        common = {folded(word) for word in load_word_counts().words}
        given = set(self.dictionary.vocabulary.words.tolist())
        texts = torch.cat([torch.arange(len(side)).repeat_interleave(side.lengths) for side in tokens.segments])
        seen: dict[str, set[int]] = {}
        for name, text in zip(tokens.values.tolist(), texts.tolist(), strict=True):
            seen.setdefault(folded(self.dictionary.lexicon.word(name).form), set()).add(text)
        rare = {word for word, of in seen.items() if len(of) <= _FEW_TEXTS and word.isalpha()} - common
        held = len(rare & given)
        most = held > _MOST * len(rare) and held > _MADE_OF_TEXTS * len(given - common)
        if (len(rare) >= _TELLING and most) or (len(rare) >= _TELLING_OF_ALL and held > _ALL * len(rare)):
            raise PrivacyError(
                f"The vocabulary has {held} of the {len(rare)} words that few of these texts and no common list have: "
                "it seems to be made from them, and would show their words.",
                remedy="Give a --vocabulary from public text, or leave it out.",
            )

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Where each word of a text begins and ends, by character."""
        tagged = self.tagger.tag([text])
        starts = tagged.starts.tolist()
        return [(start, start + len(word)) for start, word in zip(starts, tagged.words, strict=True)]

    def text(self, ids: Tensor) -> str:
        """See `Reading.text`: with blanks as they are released."""
        words = [self.dictionary.lexicon.word(name) for name in ids.tolist()]
        return "".join(word.before + word.form for word in words).strip()


def _blank(after: str) -> str:
    """Blanks as they leave: how many there are, and of which kind, is nobody's business."""
    return after and ("\n" if "\n" in after else " ")


def pair_lengths(archive: Archive, spec: RunSpec) -> tuple[int, int]:
    """Tokens of a source text and of a target text at most, special tokens left out.

    Where the vendor has both, they are one record, and take the model's positions together.

    Args:
        archive: What the vendor handed out.
        spec: The run's settings.

    Raises:
        ConfigError: Too many were asked for.
    """
    training = spec.training
    source, target = (each.behind(spec.tuning.positions) for each in (archive.template, archive.target_template))
    longest = source.max_content(1, training.max_length)
    written = target.max_content(1, training.max_target_length or training.max_length)
    if not spec.sends_pairs:
        return longest, written
    together = source.max_content(2)
    if training.max_target_length is None:
        written = min(written, together // 2)
    if written >= together:
        raise ConfigError(
            [Fault("max_target_length", training.max_target_length, f"leaves no room for source texts: {together}")]
        )
    return min(longest, together - written), written


def reading_of(
    privacy: PrivacySpec,
    archive: Archive,
    home: Home,
    *,
    max_length: int | None,
    positions: int = 0,
    closed: bool = False,
    sides: tuple[int, int] | None = None,
) -> Reading:
    """How texts are read for these settings.

    Args:
        privacy: How they are privatized.
        archive: What the vendor handed out.
        home: The customer's folder, where the archives of models on this machine are.
        max_length: Tokens of a text as it leaves, special tokens included; `None` for the model's limit.
        positions: Of the model's, those that stand before each text.
        closed: Whether they are a language model's: closed, and of pairs one behind the other.
        sides: Of an encoder-decoder's pairs, tokens of a source text and of a target text; `None` of others.

    Raises:
        ConfigError: There is no such tagger, or no such vocabulary, or it lacks a category.
        ModelError: The model whose embeddings are words' vectors is not there.
    """
    if not isinstance(privacy, Words):
        return TokenReading(archive)
    template = archive.template.behind(positions)
    closing = Closing.of(archive.tokenizer) if closed else None

    def pieces(columns: tuple[list[str], ...], *, preceding: Tensor | None = None) -> tuple[Ragged, ...]:
        before = torch.tensor(0) if preceding is None else preceding
        texts = tokenise(Dataset(tuple(zip(*columns, strict=True))), archive.tokenizer, max_content=UNCUT)
        if closing is not None:
            pairs = len(columns) > 1
            own = own_tokens(row_length(template, max_length), template, before, least=1 + pairs)
            content = own - 1 if pairs else own
            return (closing.join(shortened(texts, content, preceding=preceding).segments, own + before),)
        if sides is None:
            own = own_tokens(template.max_content(len(columns), max_length), template, before, segments=len(columns))
            return shortened(texts, own, preceding=preceding).segments
        source, *target = (Tokens((side,)) for side in texts.segments)
        written = [side for each in target for side in shortened(each, sides[1]).segments]
        others = written[0].lengths if written else sides[1]
        own = own_tokens(sides[0], template, before + others, segments=2)
        return (*shortened(source, own, preceding=preceding).segments, *written)

    def piece_ends(texts: list[str]) -> Ragged:
        encoded = archive.tokenizer(
            texts, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True, verbose=False
        )
        return Ragged.from_lists([[end for _, end in spans] for spans in encoded["offset_mapping"]])

    tagger = load_tagger(privacy.tagger)
    vocabulary = _vocabulary(  # whatever eta is
        home.path, privacy.source, privacy.vocabulary, privacy.vocabulary_digest, privacy.chosen,
        constrained=privacy.candidates == "category", tagger=tagger.name,
    )  # fmt: skip
    written_as = f"{archive.tokenizing} {max_length} {positions}{' closed' if closed else ''}{sides or ''}"
    return WordReading(
        tagger,
        Dictionary(vocabulary, Lexicon(), pieces, piece_ends, written_as),
        own_vocabulary=privacy.vocabulary is not None,
        closing=closing,
    )


def own_tokens(most: int, template: Template, others: Tensor, *, segments: int = 1, least: int = 1) -> Tensor:
    """Tokens that each text may have of its own, `[n]` or `[]` int64: fewer than `most` where the model has no more.

    Args:
        most: Of a text by itself.
        template: The model's.
        others: `[n]` or `[]` int64, tokens of its row that are not its own.
        segments: Texts of a row.
        least: Tokens below which nothing of a text would leave.

    Raises:
        ConfigError: A text would have fewer.
    """
    if template.max_length is None:
        return torch.full_like(others, most)
    limit = template.max_content(segments)
    room = (limit - others).clamp(max=most)
    if (room < least).any():
        raise ConfigError(
            f"Plain words leave no room for a text: of {limit} tokens that fit the model up to {int(others.max())} are "
            "theirs, or a target text's.",
            remedy="Use fewer plain tokens, or a model with more positions.",
        )
    return room


@lru_cache(maxsize=2)
def _vocabulary(
    home: Path,
    space: tuple[str, int | None],
    file: Path | None,
    digest: str | None,
    chosen: tuple[str, ...],
    *,
    constrained: bool,
    tagger: str,
) -> WordSpace:
    """Words and their vectors, which take seconds to make and are the same for all runs of some settings.

    The digest is of what the file holds: one that was written anew is read anew.
    """
    source, components = space
    archive = local_archive(Home(home), source, Cut(bottom=0))
    grouping = Grouping.of(chosen, constrained=constrained)
    counts = load_word_counts(file)
    members = [Counter[str]() for _ in (grouping.names if grouping.constrained else ("all",))]
    for word, tag, count in zip(counts.words, counts.tags, counts.counts.tolist(), strict=True):
        group = grouping.of_tag.get(tag) if grouping.constrained else 0
        if group is not None:
            members[group][folded(word)] += count
    if archive.table is None:
        raise TypeError("an archive with bottom 0 has a table")
    table = archive.table.detach()
    rows = table if components is None else principal_components(table, components)
    return WordSpace(
        # of words with one vector, as `.` and `...` have, the most frequent one comes out
        [sorted(own, key=lambda word: (-own[word], word)) for own in members],
        grouping,
        embed=lambda words: word_vectors(words, rows, archive.tokenizer),
        unit=table_fingerprint(rows),
        fingerprint=f"{tagger} {grouping}",
    )
