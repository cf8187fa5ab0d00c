"""Words: each chosen word becomes the word of the vocabulary that is nearest to its noisy vector."""

from __future__ import annotations

import copy
import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cutlayer.core import ConfigError, Deviation, Fault, Guarantee, PrecededTokens, Ragged, Tokens
from cutlayer.privacy.context import NAME_BYTES, Excerpts
from cutlayer.privacy.drawn_words import DrawnWords, Kept, Written
from cutlayer.privacy.layout import TextMajor
from cutlayer.privacy.mechanisms.dchi import ROUNDED
from cutlayer.privacy.privatizers.naming import Named
from cutlayer.privacy.privatizers.privatizer import PRIVATIZERS, Privatizer
from cutlayer.privacy.privatizers.space import Space
from cutlayer.privacy.release import IDENTITY_BYTES, Release
from cutlayer.privacy.replacement import CLEAR, Exponential, Replaceable, noisy_rows
from cutlayer.privacy.spec import PrivacySpec, Words
from cutlayer.privacy.words import Dictionary, PlainWords, Word, clear_kind, folded, joins

_BLOCK_WORDS = 2**16
_COMPUTED = "Holds up to the precision of fp64, in which the probabilities of words are computed."
_BLANKS = ("", " ", "\n")
_MOST_PIECES = 2**8 - 1
"""Of a plain word: what is told of it is a byte."""


_OF_NOISE = (
    Deviation(
        what="ŵ_t of eq. (4)",
        value_in_paper="nearest to w_t, without its hat",
        ours="nearest to w_t with the noise of eq. (2)",
        why="Without noise each word would become itself; eq. (3) has the hat.",
    ),
    Deviation(
        what="direction of the noise, eq. (2)",
        value_in_paper="uniform from the unit ball",
        ours="uniform from the unit sphere",
        why="The density exp(-eta ‖z‖) that is stated has a radius of Gamma(d, 1/eta) times a direction of length 1.",
    ),
)
_OF_PROBABILITIES = (
    Deviation(
        what="draw, eq. (2) and (4)",
        value_in_paper="the word that is nearest to the noisy vector",
        ours="each word with a probability proportional to exp(-eta · distance / 2) (--draw exponential)",
        why="The same promise, with probabilities that are known exactly.",
    ),
)


@dataclass(frozen=True)
class _Distinct:
    """The distinct words of some texts.

    Attributes:
        words: Each once.
        place: `[total]`, which of them stands where.
        group: `[distinct]` int64, the group of each; `CLEAR` for one that leaves as it is.
    """

    words: list[Word] = field(repr=False)
    place: NDArray[np.int64] = field(repr=False)
    group: Tensor

    @cached_property
    def forms(self) -> list[str]:
        """`[distinct]`, as vocabularies have them."""
        return [folded(word.form) for word in self.words]

    @cached_property
    def drawn(self) -> Tensor:
        """`[total]` bool: which words are drawn."""
        return (self.group != CLEAR)[torch.from_numpy(self.place)]


@dataclass(frozen=True)
class _Listed:
    """Words that are to be drawn, item by item.

    Attributes:
        values: `[total]` int64, their names.
        etas: `[total]` float64.
        names: `[total, NAME_BYTES]` uint8: of their draws.
        lengths: `[texts]` int64, words of each text.
        own: `[total]` bool: which are the texts' own.
    """

    values: Tensor
    etas: Tensor
    names: NDArray[np.uint8]
    lengths: Tensor
    own: Tensor


@PRIVATIZERS.add("words")
class WordsPrivatizer(Privatizer):
    """RAPT's privatization: noise on a chosen word's vector, then the nearest word of its part of speech.

        w_t = mean of the rows of its pieces;  ŵ_t = argmin over words k of its category of ‖E(k) - (w_t + z)‖

    What is tagged, noised and replaced are words. The text that they make is then tokenised for the vendor's model,
    whichever that is: token ids leave, and there may be more or fewer of them than the text had. Words that are not
    chosen leave as they are, and so do tags and blanks.

    Ref: RAPT §III-A, eq. (2) to (4).

    Attributes:
        plain: Public words before each text; see `preceded_by`.
        told: Whether a release says where they stand in it.
    """

    plain: PlainWords | None = None
    told: bool = False

    def preceded_by(self, plain: PlainWords | None, *, told: bool) -> WordsPrivatizer:
        """The same for texts behind public words, which are drawn with them.

        A text's own words become what they become without: their draws, and what these are charged, depend on the
        text alone. Of the public words each text has draws of its own, as if each text were drawn by itself; they are
        charged to nobody, and count neither as replaced nor as left in clear.

        Args:
            plain: The words; `None` for the texts by themselves.
            told: Whether a release says where they stand in it.
        """
        other = copy.copy(self)
        other.plain, other.told = plain, told
        vars(other).pop("_kept", None)  # its texts say where words stand, or not
        return other

    @classmethod
    def faults(cls, spec: PrivacySpec, space: Space) -> Iterator[Fault]:
        """It needs a vocabulary with vectors, and somebody who tokenises what it writes."""
        if space.dictionary is None:
            yield Fault("dictionary", None, "must be the words that may come out, and their vectors")

    @cached_property
    def _dictionary(self) -> Dictionary:
        if self.space.dictionary is None:
            raise TypeError("a privatizer without what it needs is not made")
        return self.space.dictionary

    @cached_property
    def _kept(self) -> Kept:
        return Kept()

    @cached_property
    def _names_of_draws(self) -> dict[int, int]:
        return {}

    @property
    def deviations(self) -> tuple[Deviation, ...]:
        """See `Privatizer.deviations`."""
        words = self._dictionary.vocabulary
        own: tuple[Deviation, ...] = (
            *(_OF_PROBABILITIES if self.spec.exponential else _OF_NOISE),
            Deviation(
                what="words of a category",
                value_in_paper="not stated",
                ours=f"{len(words.table)} words of a public list, in lower case",
                why="A list made from private texts would show their words. Capitals would tell which words are names.",
            ),
        )
        if isinstance(self.spec, Words) and (components := self.spec.source[1]) is not None:
            own += (
                Deviation(
                    what="word vectors, section III-A2",
                    value_in_paper="the embedding model's own",
                    ours=f"the first {components} principal components of the model's table (--space)",
                    why="At equal shares that attacks read, what is learnt was more accurate (docs/papers/rapt.md).",
                ),
            )
        return own + self._common_deviations

    def _noise_guarantee(self) -> Guarantee:
        unit = f"words of table {self._dictionary.vocabulary.unit}"
        stated = self.mechanism.guarantee(eta=self.spec.eta, space=unit, per="word")
        if not self.spec.exponential:
            return stated
        caveats = (_COMPUTED if each == ROUNDED else each for each in stated.caveats)
        return stated.model_copy(update={"caveats": tuple(caveats)})

    def _caveats(self) -> tuple[str, ...]:
        grouping = self._dictionary.vocabulary.grouping
        kept = "all words" if grouping.all_tags else f"words of the categories {', '.join(grouping.names)}"
        return (
            f"It is about {kept}, each of which becomes a word of {'its' if grouping.constrained else 'any'} category. "
            "It holds between texts with the same parts of speech and the same words in clear, which are not hidden. "
            "A tagger reads a word's context, too.",
            "Words that the vocabulary does not have may lie farther away than any two that it has.",
            *(
                ()
                if self.spec.exponential
                else ("The search for the nearest word is post-processing and costs no budget.",)
            ),
        )

    @property
    def measured(self) -> Tensor:
        """Vectors of the vocabulary, `[words, width]`."""
        return self._dictionary.vocabulary.table

    def _etas(self, tokens: Tokens, texts: TextMajor, labels: Tensor | None) -> Tensor:
        """Words in clear are charged nothing: no budget is about them."""
        eta = torch.tensor(self.spec.eta, dtype=torch.float64)
        return torch.where(self._distinct(texts.values).drawn, eta, 0.0)

    def _name(self, tokens: Tokens, labels: Tensor | None, look: int | None, excerpts: Excerpts | None) -> Named:
        """See `Privatizer._name`: of words that are drawn alike, what leaves beside the draw has a part in its name."""
        named = super()._name(tokens, labels, look, excerpts)
        names, place = np.unique(named.texts.values.numpy(), return_inverse=True)
        beside = np.array([self._beside(name) for name in names.tolist()], dtype="<i8")[place]
        ends = named.texts.per_text.cumsum(0).tolist()
        identities = tuple(
            hashlib.blake2b(beside[start:stop].tobytes(), key=identity, digest_size=IDENTITY_BYTES).digest()
            for identity, start, stop in zip(named.release.identities, [0, *ends], ends, strict=False)
        )
        release = replace(named.release, identities=identities)
        if self.plain is not None:
            # they are drawn even where no word of the text is, whose name knows no eta
            context = self.plain.context + struct.pack("<d", self.spec.eta)
            release = release.carried_as(release.payload, context)
        return replace(named, release=release)

    def _beside(self, name: int) -> int:
        """All of a word that leaves in clear; of one that is drawn that is the blank before it."""
        word = self._dictionary.lexicon.word(name)
        chosen = word.tag in self._dictionary.vocabulary.grouping.of_tag
        return _BLANKS.index(word.before) if chosen else name

    def _look(self, before: bytes, draw: bytes) -> bytes:
        """Texts that read alike may have words of other groups: where any word was drawn anew, that is another look."""
        return hashlib.blake2b(before + draw, digest_size=NAME_BYTES).digest()

    def _drawn_as(self, token: int) -> int:
        if token not in self._names_of_draws:
            self._names_of_draws[token] = self._dictionary.drawn_as(token)
        return self._names_of_draws[token]

    def clear(self, tokens: Tokens) -> dict[str, int]:
        """See `Privatizer.clear`."""
        return {kind: int(counts.sum()) for kind, counts in self._clear(TextMajor.of(tokens)).items()}

    def shape(self, tokens: Tokens) -> Tokens:
        """See `Privatizer.shape`: of what they are drawn as; where a release says so, with what plain words became."""
        lengths = torch.stack([segment.lengths for segment in tokens.segments]).sum(0)
        block = (lengths.cumsum(0) - lengths) // _BLOCK_WORDS
        drawn = []
        for number in block.unique().tolist():
            named = self._name(tokens.select((block == number).nonzero()[:, 0]), None, None, None)
            drawn.append(self._kept.found(named) or self._kept.written(named, self._written(named)))
        return PrecededTokens.concatenate([each.payload for each in drawn]) if drawn else tokens

    def tokens(
        self,
        tokens: Tokens,
        *,
        labels: Tensor | None,
        look: int | None = None,
        excerpts: Excerpts | None = None,
    ) -> Release:
        """See `Privatizer.tokens`: token ids of the text that drawn words make, for names of words."""
        named = self._name(tokens, labels, look, excerpts)
        written = self._kept.found(named) or self._written(named)
        # the same draws are other ids by another tokenizer, or where more of a text is kept
        kept = self._dictionary.written_as + ("" if self.plain is None else " beside plain words")
        carried = named.release.carried_as(written.payload, kept.encode())
        return replace(carried, replaced=written.replaced, clear=self._clear(named.texts), pending=None)

    def named(
        self,
        tokens: Tokens,
        *,
        labels: Tensor | None,
        look: int | None = None,
        excerpts: Excerpts | None = None,
    ) -> Release:
        """See `Privatizer.named`; which words leave as they are is known before any is drawn, too."""
        named = self._name(tokens, labels, look, excerpts)
        return replace(named.release, clear=self._clear(named.texts))

    def _distinct(self, ids: Tensor) -> _Distinct:
        names, place = np.unique(ids.numpy(), return_inverse=True)
        words = [self._dictionary.lexicon.word(name) for name in names.tolist()]
        group = self._dictionary.vocabulary.grouping.group
        return _Distinct(words, place, torch.tensor([group(word.tag) for word in words], dtype=torch.int64))

    def _written(self, named: Named) -> Written:
        """The texts that drawn words make, as token ids."""
        texts, drawn = named.texts, self._drawn(named)
        segments = texts.lengths.shape[1]
        columns = tuple(drawn.texts[side::segments] for side in range(segments))
        replaced = texts.sums(drawn.changed[drawn.own].long())
        if self.plain is None:
            return Written(Tokens(self._dictionary.pieces(columns)), replaced)
        preceding = self._preceding(self.plain, drawn, columns[0])
        ids = self._dictionary.pieces(columns, preceding=preceding.sum(1))
        payload = PrecededTokens(ids, preceding, self._sequences(self.plain, named)) if self.told else Tokens(ids)
        return Written(payload, replaced)

    @property
    def plain_context(self) -> bytes:
        """Tells what plain words become, before texts that this does not draw, from what others do."""
        dictionary = self._dictionary
        parts = (self.spec.identity, self.unit, dictionary.vocabulary.fingerprint, dictionary.written_as)
        return " ".join(parts).encode() + (b"" if self.plain is None else self.plain.context)

    def plain_before(self, release: Release) -> PrecededTokens:
        """Plain words alone, drawn to stand before texts that this does not draw.

        Args:
            release: Of `n` texts, by whose names each has draws of its own.

        Returns:
            Token ids of the words before each text.
        """
        if self.plain is None:
            raise TypeError("there are no plain words")
        none = Tokens((Ragged.from_lists([[]] * len(release)),))
        etas, names = torch.empty(0, dtype=torch.float64), np.empty((0, NAME_BYTES), dtype=np.uint8)
        named = Named(release, TextMajor.of(none), etas, names)
        drawn = self._drawn(named)
        preceding = self._preceding(self.plain, drawn, drawn.texts)
        ids = self._dictionary.pieces((drawn.texts,), preceding=preceding.sum(1))
        return PrecededTokens(ids, preceding, self._sequences(self.plain, named))

    def _sequences(self, plain: PlainWords, named: Named) -> Tensor:
        """`[n]` int64: the plain words before each item, chosen by the customer's secret."""
        key = self._secret.derive("plain sequences")
        digests = (hashlib.blake2b(identity, key=key, digest_size=8) for identity in named.release.identities)
        return torch.tensor([int.from_bytes(each.digest(), "little") % len(plain.names) for each in digests])

    def _preceding(self, plain: PlainWords, drawn: DrawnWords, texts: list[str]) -> Tensor:
        """`[n, m]` int64: of how many ids each plain word before a text is.

        Args:
            plain: The words.
            drawn: What became of them, and of the texts' own words.
            texts: The items' first texts.
        """
        ends = self._dictionary.piece_ends(texts)
        # texts side by side, with room between them, so that one search serves all
        room = 1 + max(map(len, texts))
        words = drawn.spans[:, 1][~drawn.own].reshape(-1, plain.count) + room * torch.arange(len(texts))[:, None]
        owner = torch.arange(len(texts)).repeat_interleave(ends.lengths)
        word = torch.searchsorted(words.flatten(), ends.values - 1 + room * owner, right=True)
        of_plain = word < (owner + 1) * plain.count
        preceding = torch.bincount(word[of_plain], minlength=words.numel()).reshape(words.shape)
        if int(preceding.max()) > _MOST_PIECES:
            raise ConfigError(
                [Fault("plain_tokens", plain.count, f"became a word of more than {_MOST_PIECES} pieces")],
                remedy="Leave such words out of the vocabulary.",
            )
        return preceding

    def is_drawn(self, names: Tensor) -> Tensor:
        """`[n]` bool: which of these words `[n]` are drawn; the others leave as they are."""
        return self._distinct(names).drawn

    def replaceable(self, ids: Tensor) -> Replaceable:
        """See `Privatizer.replaceable`: of the words that are drawn."""
        return self._replaceable(self._distinct(ids))

    def _replaceable(self, words: _Distinct) -> Replaceable:
        vocabulary, chosen = self._dictionary.vocabulary, words.group != CLEAR
        groups = words.group[chosen]
        forms = [form for form, one in zip(words.forms, chosen.tolist(), strict=True) if one]
        own = [vocabulary.number(form, group) for form, group in zip(forms, groups.tolist(), strict=True)]
        of = (chosen.cumsum(0) - 1)[torch.from_numpy(words.place)[words.drawn]]
        return Replaceable(vocabulary.search, vocabulary.vectors(forms), torch.tensor(own).long(), groups, of)

    def drawn(self, tokens: Tokens) -> DrawnWords:
        """What became of each word, item by item; an audit compares it with what attacks read.

        Args:
            tokens: `n` texts as names of words.
        """
        return self._drawn(self._name(tokens, None, None, None))

    def written_lengths(self, tokens: Tokens) -> Tensor:
        """`[n]` int64: token ids of the texts that drawn words make, none of which is cut.

        Args:
            tokens: `n` texts as names of words.
        """
        pieces = self._dictionary.piece_ends(self.drawn(tokens).texts).lengths
        return pieces.reshape(len(tokens), len(tokens.segments)).sum(1)

    def _listed(self, named: Named) -> _Listed:
        """The items' words, with plain words before them."""
        texts, plain = named.texts, self.plain
        if plain is None:
            own = torch.ones(len(texts.values), dtype=torch.bool)
            return _Listed(texts.values, named.etas, named.names, texts.lengths.flatten(), own)
        key, words = self._secret.derive("plain words"), plain.names[self._sequences(plain, named)]
        drawn = b"".join(
            hashlib.blake2b(identity + struct.pack("<q", place), key=key, digest_size=NAME_BYTES).digest()
            for identity in named.release.identities
            for place in range(plain.count)
        )
        total = texts.per_text + plain.count
        own = torch.ones(int(total.sum()), dtype=torch.bool)
        own[((total.cumsum(0) - total)[:, None] + torch.arange(plain.count)).flatten()] = False
        values = torch.empty(len(own), dtype=torch.int64)
        values[own], values[~own] = texts.values, words.flatten()
        etas = torch.full((len(own),), self.spec.eta, dtype=torch.float64)
        etas[own] = named.etas
        names = np.empty((len(own), NAME_BYTES), dtype=np.uint8)
        names[own.numpy()] = named.names
        names[~own.numpy()] = np.frombuffer(drawn, dtype=np.uint8).reshape(-1, NAME_BYTES)
        lengths = texts.lengths.clone()
        lengths[:, 0] += plain.count
        return _Listed(values, etas, names, lengths.flatten(), own)

    def _drawn(self, named: Named) -> DrawnWords:
        listed, vocabulary = self._listed(named), self._dictionary.vocabulary
        distinct = self._distinct(listed.values)
        drawn, place = distinct.drawn, distinct.place
        asked = self._replaceable(distinct)
        names = listed.names[drawn.numpy()]
        found = (
            self._exponential.draw(
                asked.rows, asked.groups, asked.of, self._noise_keys.streams(names).random(len(asked.of))
            )
            if self.spec.exponential
            else self._nearest(asked, etas=listed.etas[drawn], names=names)
        )
        mask = drawn.numpy()
        pieces = np.array([(word.before, word.form) for word in distinct.words], dtype=object).reshape(-1, 2)[place]
        pieces[mask, 1] = vocabulary.words[found.numpy()]
        met = joins([word.form for word in distinct.words])[place]
        met[mask] = vocabulary.joins[found.numpy()]
        beside = mask.copy()
        beside[1:] |= mask[:-1]
        # a word that was drawn does not run into its neighbour, as `n't` does into `do`
        apart = np.append(False, met[:-1, 1] & met[1:, 0])[: len(mask)] & beside & (pieces[:, 0] == "")
        pieces[apart, 0] = " "
        lengths, own = listed.lengths, listed.own.numpy()
        # the first own word of a text has no blank before it, and would run into the last plain one
        pieces[1:][own[1:] & ~own[:-1], 0] = " "
        pieces[(lengths.cumsum(0) - lengths)[lengths > 0].numpy(), 0] = ""
        changed, places = torch.zeros(len(mask), dtype=torch.bool), torch.full((len(mask),), CLEAR)
        changed[drawn] = found != asked.own[asked.of]
        places[drawn] = found
        return DrawnWords(places, changed, pieces, lengths, listed.own)

    def _nearest(self, asked: Replaceable, *, etas: Tensor, names: NDArray[np.uint8]) -> Tensor:
        """The nearest word to each noisy vector, `[n]` int64.

        Args:
            asked: The words.
            etas: `[n]` float64.
            names: `[n, NAME_BYTES]` uint8, of each draw.
        """
        found = torch.empty_like(asked.of)
        for part, noise in self._noise(width=asked.rows.shape[1], etas=etas, names=names):
            of = asked.of[part]
            found[part] = asked.search.nearest(noisy_rows(asked.rows[of], noise), asked.groups[of])
        return found

    @property
    def name(self) -> str:
        """See `Privatizer.name`."""
        return f"{super().name}, exponential" if self.spec.exponential else super().name

    @cached_property
    def _exponential(self) -> Exponential:
        return Exponential(self._dictionary.vocabulary.search, eta=self.spec.eta)

    def _clear(self, texts: TextMajor) -> dict[str, Tensor]:
        """Of each item how many words leave as they are, by what they are."""
        distinct = self._distinct(texts.values)
        kinds = [
            clear_kind(word) if group == CLEAR else ""
            for word, group in zip(distinct.words, distinct.group.tolist(), strict=True)
        ]
        names = sorted({kind for kind in kinds if kind})
        of = torch.tensor([names.index(kind) if kind else CLEAR for kind in kinds]).long()[
            torch.from_numpy(distinct.place)
        ]
        return {name: texts.sums((of == number).long()) for number, name in enumerate(names)}
