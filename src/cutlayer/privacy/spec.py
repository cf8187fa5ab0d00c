"""What a reviewer reads: how a release is privatized. How often a text is released is the run's."""

from __future__ import annotations

import difflib
import hashlib
import math
import re
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from pydantic import ConfigDict, Field, field_serializer, field_validator, model_validator

from cutlayer.core.cut import Place
from cutlayer.core.errors import DataError
from cutlayer.core.setting import Shown, setting
from cutlayer.core.spec import SettingsSpec, Spec, SpecFamily

D_CHI: Final = "d-chi"
"""The name of the papers' noise among the mechanisms."""
NOISE_WINDOW: Final = 4
"""So many tokens: edited copies, or a signature under many texts, then show hardly more than one of them (measured)."""
LARGEST_EPSILON: Final = 20.0
"""Of labels. Beyond it one is changed less than once in 10^8 draws: rounding would show, and nothing is hidden."""
NO_PRIVACY_REMEDY: Final = "for a release without privacy say so: NoPrivacy() or eta=math.inf, --eta inf"

PRIVACY: Final = "Privacy"
"""The topic of these settings."""

ALL_WORDS: Final = "all"
CATEGORIES: Final[Mapping[str, tuple[str, ...]]] = {
    "noun": ("NOUN", "PROPN"),
    "verb": ("VERB", "AUX"),
    "pronoun": ("PRON",),
    "preposition": ("ADP",),
    "adjective": ("ADJ",),
    "adverb": ("ADV",),
    "determiner": ("DET",),
    "conjunction": ("CCONJ", "SCONJ"),
    "numeral": ("NUM",),
    "particle": ("PART",),
    "interjection": ("INTJ",),
    "symbol": ("SYM", "PUNCT"),
    "other": ("X",),
}
"""Categories of words, and the tags of Universal Dependencies that each of them has.

RAPT §IV names Noun, Verb, Pronoun, Preposition, Adjective, Symbol, Determiner and Conjunction, and not their tags.
Names of people and places are nouns here: else every one of them would leave in clear.
"""


class CtiSpec(SettingsSpec):
    """Contributing-token identification: less noise on tokens that tell classes apart.

    Its fields are the choices that the paper's eq. (5) and (6) leave open. With it no finite guarantee is claimed.

    Ref: SAP §4.4, arXiv:2312.15603.
    """

    frequency: Literal["tokens", "texts"] = setting(
        "tokens",
        help="What p(t | c) counts: the token's share of the class's tokens, or the share of the class's texts that "
        "hold it.",
        shown=Shown(PRIVACY, source="SAP §4.4, eq. (5), leaves it open", flags=("--cti-frequency",)),
    )
    smoothing: float = setting(
        1.0,
        help="Added to each count, so that logarithms are finite.",
        shown=Shown(PRIVACY, unit="count", source="SAP §4.4 leaves it open", flags=("--cti-smoothing",)),
        gt=0,
        allow_inf_nan=False,
    )
    c0: float | None = setting(
        None,
        help="The constant of eq. (6).",
        shown=Shown(
            PRIVACY,
            default="(max + min) / 2 of the scores of all tokens and classes",
            source="SAP §4.4, eq. (6), leaves it open",
            flags=("--cti-c0",),
        ),
        allow_inf_nan=False,
    )
    pair: Literal["both", "first", "second"] = setting(
        "both",
        help="Which texts of a pair are counted.",
        shown=Shown(PRIVACY, source="SAP §4.4 leaves it open", flags=("--cti-pair",)),
    )
    unlabelled: Literal["max", "mean"] = setting(
        "max",
        help="The score of a token in a text without a label: the maximum or the mean over classes.",
        shown=Shown(PRIVACY, source="SAP §4.4 leaves it open", flags=("--cti-unlabelled",)),
    )
    class_free: bool = setting(
        False,
        help="Use the score of texts without a label in training too, so that a text's noise does not depend on its "
        "own label. The scores are still fitted on all labels.",
        shown=Shown(PRIVACY, flags=("--cti-class-free",)),
    )


class PrivacySpec(SpecFamily):
    """How texts are privatized before they leave: one kind for each mechanism.

    A kind is built by the privatizer that is registered for its mechanism. What generic code asks of all kinds is
    listed here; a kind has it as a setting where there is a choice, else as a property.
    """

    tag = "mechanism"

    if TYPE_CHECKING:

        @property
        @abstractmethod
        def mechanism(self) -> str:
            """The name of the kind."""

        @property
        @abstractmethod
        def eta(self) -> float:
            """Privacy parameter per token, in 1/distance of the embedding table; infinite without noise."""

        @property
        @abstractmethod
        def place(self) -> Place:
            """Where noise is added."""

        @property
        @abstractmethod
        def cti(self) -> CtiSpec | None:
            """What makes eta depend on the token."""

        @property
        @abstractmethod
        def noise(self) -> str:
            """Whose noise is drawn, by its name among the mechanisms."""

        @property
        @abstractmethod
        def noise_window(self) -> int | None:
            """How many tokens a token's noise follows from; `None`: from all tokens up to it."""

    @property
    def exponential(self) -> bool:
        """Whether what replaces a word is drawn by the exponential mechanism, and not by noise."""
        return False

    @property
    def clipped(self) -> bool:
        """Whether noisy rows are shortened to the table's largest norm before they leave."""
        return False

    @property
    def replaces(self) -> bool:
        """Whether tokens, or words, are replaced by others, and no row with noise leaves."""
        return self.mechanism in ("text-to-text", "words")

    @property
    def identity(self) -> str:
        """Tells runs with different settings apart; the order in which texts leave is derived from it."""
        return self.model_dump_json()

    @property
    def vocabulary_digest(self) -> str | None:
        """Of what a file of the customer's holds now from which words are drawn; `None` where there is none.

        Raises:
            DataError: There is no such file.
        """
        return None


class _FirstForm(Spec):
    """The kinds of before there were kinds, as they were written then: orders are derived from this text."""

    model_config = ConfigDict(ser_json_inf_nan="strings")

    mechanism: str
    eta: float
    place: Place
    cti: CtiSpec | None
    noise: str = Field(exclude_if=lambda noise: bool(noise == D_CHI))
    noise_window: int | None = Field(exclude_if=lambda window: bool(window == NOISE_WINDOW))
    clip: bool = Field(exclude_if=lambda clip: not clip)

    @classmethod
    def of(cls, spec: PrivacySpec) -> str:
        told = {name: getattr(spec, name) for name in cls.model_fields if name != "clip"}
        return cls(**told, clip=spec.clipped).model_dump_json()


class NoPrivacy(PrivacySpec):
    """The explicit decision to release texts as they are."""

    mechanism: Literal["none"] = "none"

    @property
    def eta(self) -> float:
        """Infinite: nothing is hidden."""
        return math.inf

    @property
    def place(self) -> Place:
        """Where noise would be."""
        return Place.TOKENS

    @property
    def cti(self) -> None:
        """There is no noise to steer."""

    @property
    def noise(self) -> str:
        """What is not drawn."""
        return D_CHI

    @property
    def noise_window(self) -> int:
        """What nothing follows from."""
        return NOISE_WINDOW

    @property
    def identity(self) -> str:
        """As it was first written."""
        return _FirstForm.of(self)


class _Noise(PrivacySpec):
    """What mechanisms that add noise to embeddings have in common."""

    eta: float = setting(
        help="Noise per token (or word), in 1/distance of the embedding table: smaller hides more. It has no default; "
        "inf means no privacy.",
        shown=Shown(PRIVACY, unit="1/distance", source="SAP §4.3, eq. (3)", common=True, metavar="NUMBER|inf"),
        gt=0,
        allow_inf_nan=False,
    )
    noise: str = setting(
        D_CHI,
        help="Whose noise is drawn: d-chi; snd-code, that of SnD's released code, whose promise is in L1 distances; or "
        "that of an installed plug-in, whose promise cutlayer has not verified. `cutlayer conformance NAME` tests it.",
        shown=Shown(PRIVACY, metavar="NAME"),
    )
    noise_window: int | None = setting(
        NOISE_WINDOW,
        help="How many tokens before a token decide its noise, with the token itself. Passages that are repeated then "
        "keep their noise: an edited copy shows little new. prefix: all tokens before it.",
        shown=Shown(PRIVACY, unit="tokens", none="prefix"),
        ge=1,
    )

    @field_validator("eta", mode="before")
    @classmethod
    def _name_no_privacy(cls, eta: Any) -> Any:
        if eta in (math.inf, "inf", "Infinity"):
            raise ValueError(f"must be a finite number above 0; {NO_PRIVACY_REMEDY}")
        return eta


class _TokenNoise(_Noise):
    """The same for mechanisms that add it to tokens."""

    cti: CtiSpec | None = setting(
        None,
        help="Less noise on tokens that tell classes apart, by contributing-token identification. No finite guarantee "
        "is then claimed.",
        shown=Shown(PRIVACY, source="SAP §4.4"),
    )

    @property
    def identity(self) -> str:
        """As it was first written."""
        return _FirstForm.of(self)


class TextToText(_TokenNoise):
    """Noise on each token's embedding, then the token of the nearest row: token ids leave.

    d_χ privacy of each token with respect to the Euclidean distance of embeddings, eta per token.

    Ref: SAP §4.3, eq. (3) and (4), arXiv:2312.15603.
    """

    mechanism: Literal["text-to-text"] = "text-to-text"

    @property
    def place(self) -> Place:
        """At the tokens: rows above a block are no tokens' rows."""
        return Place.TOKENS


class Vector(_TokenNoise):
    """The noisy embeddings themselves leave, or the bottom's output with noise on it.

    Ref: SAP §4.3, eq. (3), arXiv:2312.15603.
    """

    mechanism: Literal["vector"] = "vector"
    place: Place = setting(
        Place.TOKENS,
        help="Where noise is added: at the tokens' embeddings, or at the bottom's output (activations).",
        shown=Shown(PRIVACY),
    )
    clip: bool = setting(
        False,
        help="Shorten noisy rows to the largest norm of the embedding table. The promise is the same; adaptive attacks "
        "hardly read less.",
        shown=Shown(PRIVACY, source="SnD §3.3, eq. (2)"),
        exclude_if=lambda clip: not clip,
    )

    @property
    def clipped(self) -> bool:
        """See `PrivacySpec.clipped`."""
        return self.clip

    @model_validator(mode="after")
    def _check_cti(self) -> Self:
        if self.cti is not None and self.place is Place.ACTIVATIONS:
            raise ValueError(
                'cti must be left out at place "activations": above a block each row depends on every token'
            )
        if self.clip and self.place is Place.ACTIVATIONS:
            raise ValueError('clip must be left out at place "activations": the bound is of rows of the table')
        if self.clip and self.cti is not None:
            raise ValueError("clip must be left out with cti: no attack here reads both, so nothing could be measured")
        return self


class WordDraw(SettingsSpec):
    """Which words are replaced, by which others, and how."""

    words: tuple[str, ...] = setting(
        ("noun", "verb", "pronoun", "preposition"),
        help="Which words are replaced: categories, or tags of Universal Dependencies, with commas between them; or "
        "all. Other words leave as they are.",
        shown=Shown(PRIVACY, source="RAPT §IV", metavar="CATEGORY,…|all", default="noun,verb,pronoun,preposition"),
    )
    candidates: Literal["category", "all"] = setting(
        "category",
        help="What a word is replaced by: a word of its category, or any word.",
        shown=Shown(PRIVACY, source="RAPT §III-A2, eq. (4)"),
    )
    draw: Literal["noise", "exponential"] = setting(
        "noise",
        help="How a word is drawn: the nearest one to its noisy vector, or each with probability ∝ exp(-eta · "
        "distance / 2), the exponential mechanism. The promise is the same; at one eta they replace other shares.",
        shown=Shown(PRIVACY, source="RAPT §III-A1; McSherry & Talwar 2007"),
    )
    space: str = setting(
        "starter:16",
        help="The model on this machine whose token embeddings give words their vectors: `starter`, a folder or a hub "
        "id. It need not be the vendor's. With `:K` at its end distances are measured between the first K principal "
        "components of its table; without, as in the paper, in its whole width.",
        shown=Shown(PRIVACY, source="RAPT §V-E1; :K is ours", metavar="SOURCE[:K]"),
    )
    tagger: str | None = setting(
        None,
        help="An installed spaCy pipeline, or its folder, that tells words' parts of speech.",
        shown=Shown(PRIVACY, metavar="NAME", default="the one that comes with cutlayer"),
    )
    vocabulary: Path | None = setting(
        None,
        help="A public file of words that may come out: a word, a tag of Universal Dependencies and a count a line, "
        "with tabs between them.",
        shown=Shown(PRIVACY, metavar="FILE", default="the one that comes with cutlayer, made from old books"),
    )

    @field_serializer("vocabulary", when_used="unless-none")
    def _write_vocabulary(self, vocabulary: Path) -> str:
        """As text, which results and reports can hold."""
        return str(vocabulary)

    @field_validator("words", mode="before")
    @classmethod
    def _split(cls, words: Any) -> Any:
        given = (words,) if isinstance(words, str) else words
        return tuple(name.strip().lower() for each in given for name in str(each).split(",") if name.strip())

    @model_validator(mode="after")
    def _check_words(self) -> Self:
        known = {*CATEGORIES, *(tag.lower() for tags in CATEGORIES.values() for tag in tags)}
        if not self.words:
            raise ValueError(f"words must name one category at least: {', '.join(CATEGORIES)}, or all")
        if ALL_WORDS in self.words and len(self.words) > 1:
            raise ValueError("words must be all, or categories, not both")
        for name in self.words:
            if name not in known and name != ALL_WORDS:
                close = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {close[0]}?" if close else f"choose from {', '.join(CATEGORIES)}, or all"
                raise ValueError(f"words: there is no category {name!r}: {hint}")
        tags = [tag for name in self.chosen for tag in CATEGORIES.get(name, (name.upper(),))]
        if twice := {tag for tag in tags if tags.count(tag) > 1}:
            raise ValueError(f"words name {', '.join(sorted(twice))} twice, by itself or in a category")
        return self

    @property
    def source(self) -> tuple[str, int | None]:
        """The model of `space`, and of how many principal components of its table; `None` for the table itself."""
        found = re.fullmatch(r"(.+):([0-9]{1,6})", self.space)
        return (self.space, None) if found is None else (found[1], int(found[2]))

    @property
    def chosen(self) -> tuple[str, ...]:
        """Categories, or tags, of the words that are replaced."""
        return tuple(CATEGORIES) if self.words == (ALL_WORDS,) else self.words


class Words(WordDraw, _Noise):
    """Noise on words, each replaced by the nearest word of its part of speech: text leaves, for any vendor's model.

    d_χ privacy of each chosen word with respect to the Euclidean distance of word vectors, eta per word, between texts
    with the same parts of speech and the same words in clear. Other words leave as they are.

    Ref: RAPT §III-A2, eq. (2) and (4).
    """

    mechanism: Literal["words"] = "words"

    @property
    def place(self) -> Place:
        """At the words, before they are tokens."""
        return Place.TOKENS

    @property
    def cti(self) -> None:
        """All words of a text are drawn with one eta."""
        return None

    @property
    def exponential(self) -> bool:
        """See `PrivacySpec.exponential`."""
        return self.draw == "exponential"

    @property
    def identity(self) -> str:
        """See `PrivacySpec.identity`: of a vocabulary counts what it holds, and not where it lies.

        Raises:
            DataError: There is no such file.
        """
        told = self.vocabulary_digest
        return (self if told is None else self.model_copy(update={"vocabulary": Path(told)})).model_dump_json()

    @property
    def vocabulary_digest(self) -> str | None:
        """See `PrivacySpec.vocabulary_digest`."""
        if self.vocabulary is None:
            return None
        try:
            return hashlib.sha256(self.vocabulary.read_bytes()).hexdigest()
        except OSError:
            raise DataError(f"There is no file {str(self.vocabulary)!r}.", remedy="Check the path.") from None

    @model_validator(mode="after")
    def _check_noise(self) -> Self:
        if self.draw == "exponential" and self.noise != D_CHI:
            raise ValueError("noise must be left out with draw exponential: no noise is drawn")
        return self
