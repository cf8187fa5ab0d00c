"""What an attacker is granted beside the transcript: declared, and nothing else.

What the vendor owns anyway (the parts that it handed out, as they were before any training), what it
is told (how releases are privatized), and what anybody may have (public text).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from cutlayer.core import Cut, DataError, Ragged, Tokens
from cutlayer.models import embedding_table
from cutlayer.privacy import NoPrivacy, PrivacySpec
from cutlayer.privacy.neighbours import NeighbourSearch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from cutlayer.models import Bottom, Seq2SeqBottom, Seq2SeqTail, Tail, Template

T = TypeVar("T")


class Inapplicable(Exception):  # noqa: N818 - an answer of an attack, not a fault of anybody's
    """Raised by an attack that does not apply to what was sent: a number would flatter.

    Args:
        reason: Why, and what would apply, as a sentence for a report.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Need(StrEnum):
    """What an attack may be granted."""

    TABLE = "the embedding table"
    BOTTOM = "the bottom as it was handed out"
    TAIL = "the tail as it was handed out"
    NOISE = "how releases are privatized"
    PUBLIC_TEXT = "public text"
    LINKS = "which releases are of the same text"
    CLASSES = "how many labels there are"
    SHARES = "how frequent each label is"
    RESPONSE = "how labels are drawn before losses are computed"
    ROWS = "a list of people in the file's order"
    ANNOTATED_TEXT = "public text in which entities are marked"
    LABELLED = "labels of some of the records"
    MODEL = "the vendor's own model"
    PLAIN_WORDS = "the public words before the texts"


GRANTS = {
    Need.TABLE: ("table", "candidates", "groups"),
    Need.BOTTOM: ("bottom", "table", "candidates", "groups"),
    Need.TAIL: ("tail",),
    Need.NOISE: ("noise", "noises"),
    Need.PUBLIC_TEXT: ("public",),
    Need.LINKS: ("links",),
    Need.CLASSES: ("classes",),
    Need.SHARES: ("shares",),
    Need.RESPONSE: ("label_epsilon",),
    Need.ROWS: ("listed",),
    Need.ANNOTATED_TEXT: ("annotated",),
    Need.LABELLED: ("labelled",),
    Need.MODEL: ("model", "rows"),
    Need.PLAIN_WORDS: ("plain",),
}
"""Which fields of `Knowledge` each need opens."""


@dataclass(frozen=True)
class Noise:
    """How releases are privatized: the vendor knows the mechanism and its parameter, never a draw.

    Attributes:
        privacy: Mechanism, place and eta.
        etas: `[vocab, classes]` float64, each token's eta in a text of each class, under contributing-token
            identification; one column where it does not depend on the class. `None`: the same eta for all.
    """

    privacy: PrivacySpec
    etas: Tensor | None = field(default=None, compare=False)

    @classmethod
    def nothing(cls) -> Noise:
        """No noise: releases are what they are made of."""
        return cls(NoPrivacy())

    def class_logits(self) -> Tensor:
        """ln p(token | class) that etas tell, up to a constant of each token; `[vocab, classes]` float64.

        Raises:
            ValueError: There are no etas.

        Ref: SAP §4.4, eq. (5) and (6), undone.
        """
        if self.etas is None:
            raise ValueError("no token has an eta of its own")
        importance = (self.etas.double() / (2 * self.privacy.eta)).logit(eps=1e-6)
        classes = self.etas.shape[1]
        return importance * (classes - 1) / classes

    @property
    def key(self) -> Hashable:
        """Tells it from others, for what is fitted to it."""
        return self.privacy.model_dump_json(), None if self.etas is None else _digest(self.etas)


class PublicText:
    """Text that the attacker has, in the model's tokens, and what was learnt from it.

    What an attack fits is kept here, so that its controls use the same: they check what is printed.

    Args:
        tokens: Single texts.
        source: Where it is from, for a report.
        alike: How many of the first ones are of the same kind as those under attack: what an attack chooses by trying
            it out is tried on these.
        texts: As they read, for who reads something else in them than tokens.
    """

    def __init__(self, tokens: Tokens, *, source: str, alike: int = 0, texts: tuple[str, ...] = ()) -> None:
        self.tokens = tokens
        self.texts = texts
        self.source = source
        self.alike = alike
        self._fitted: dict[Hashable, Any] = {}
        self._fitting: defaultdict[Hashable, RLock] = defaultdict(RLock)
        self._guard = Lock()

    def followed_by(self, other: PublicText) -> PublicText:
        """These texts, and another's behind them; of what was learnt from either nothing is kept."""
        ((own,), (further,)) = self.tokens.segments, other.tokens.segments
        both = Ragged(torch.cat([own.values, further.values]), torch.cat([own.lengths, further.lengths]))
        return PublicText(Tokens((both,)), source=f"{self.source}; {other.source}", alike=self.alike)

    def fitted(self, key: Hashable, fit: Callable[[], T]) -> T:
        """What `fit` returns, fitted once for each key; another thread that asks for it meanwhile waits.

        Args:
            key: What it depends on beside this text.
            fit: Fits it.
        """
        with self._guard:
            fitting = self._fitting[key]
        with fitting:
            if key not in self._fitted:
                self._fitted[key] = fit()
            found: T = self._fitted[key]
        return found


class AnnotatedText(PublicText):
    """Text that the attacker has and in which somebody marked entities.

    Args:
        tokens: Single texts.
        tags: In each token's place the number of its tag; `UNMARKED` where it has none of its own, as a word's
            pieces behind its first.
        names: What the numbers mean, in the BIO scheme: `O`, `B-person`, `I-person`, …
        source: Where it is from, for a report.

    Raises:
        DataError: Tags and tokens differ in shape.
    """

    def __init__(self, tokens: Tokens, *, tags: Tokens, names: tuple[str, ...], source: str) -> None:
        super().__init__(tokens, source=source)
        pairs = zip(tokens.segments, tags.segments, strict=False)
        if len(tokens.segments) != len(tags.segments) or not all(torch.equal(a.lengths, b.lengths) for a, b in pairs):
            raise DataError("Annotated text needs one tag for each token.", remedy="Tag the tokens as they are.")
        self.tags = tags
        self.names = names


UNMARKED = -1
"""In the place of a tag or a label that is not known, or that does not count."""


@dataclass(frozen=True, eq=False)
class Labelled:
    """Labels that the attacker knows of some of the records.

    Attributes:
        labels: By source and number of a release `[rows]` int64; `UNMARKED` where it does not know.
        classes: How many labels there are.
    """

    labels: Mapping[tuple[str, int], Tensor]
    classes: int

    def of(self, source: str, number: int, rows: int) -> Tensor:
        """What it knows of a release's rows, `[rows]` int64; `UNMARKED` where it does not know."""
        known = self.labels.get((source, number))
        return torch.full((rows,), UNMARKED, dtype=torch.int64) if known is None else known


@dataclass(frozen=True, eq=False)
class WordRows:
    """What a model reads in the places of words, which are no tokens of its own.

    Attributes:
        words: `[words, width]`, the mean of the rows of each word's pieces, by the model's own tokenizer and table.
        specials: `[vocab, width]`, that table, which has the rows of special tokens.
    """

    words: Tensor
    specials: Tensor


@dataclass(frozen=True, eq=False)
class Knowledge:
    """What the attacker is granted beside the transcript.

    Attributes:
        cut: Where the model was cut for this customer.
        template: Where special tokens stand among boundary rows.
        source_template: Where they stand in the source texts of an encoder-decoder, if the rows are of target texts.
        table: `[vocab, width]`, the embedding table before any training: as it was handed out, or the vendor's own
            where nothing is.
        candidates: `[vocab]` bool, the ids that may be guessed; `None` allows every row of the table,
            which is the paper's "nearest neighbour in the embedding space".
        groups: `[vocab]` int64, where tokens are words: of which group each is, within which words are replaced; -1 of
            those that leave as they are. `None` where there are no groups.
        bottom: The customer's lower part as it was handed out, before any training.
        tail: The customer's upper part as it was handed out.
        noise: How releases are privatized.
        noises: The same by source, of releases that are privatized in another way: those of further runs.
        public: Text of the attacker's own.
        links: By source and number of a release, `[rows]` int64: which text each row is of, where texts are released
            several times. A vendor sees their lengths, and what they have in common.
        classes: How many labels there are: a job says so.
        shares: `[classes]`, how frequent each label is. Not told, but often known: of fraud or of a disease.
        label_epsilon: Of the randomised response that labels were drawn by; `None` for labels as they are. A vendor is
            not told, and may guess it from reports that no text explains: it is granted as the worst case.
        listed: How many rows a list has that stands in the order of the customer's file, as one of admissions may.
        annotated: The same with entities marked.
        labelled: Labels of some of the records.
        model: The vendor's own model, before any training.
        rows: Where tokens are words: what the model reads in their places.
        plain: Where tokens are words: `[sequences, m]` int64, the public words before texts that are trained on, as
            they were before they were drawn. A job tells the vendor.
    """

    cut: Cut
    template: Template | None = None
    source_template: Template | None = None
    table: Tensor | None = None
    candidates: Tensor | None = None
    groups: Tensor | None = None
    bottom: Bottom | Seq2SeqBottom | None = None
    tail: Tail | Seq2SeqTail | None = None
    noise: Noise | None = None
    noises: Mapping[str, Noise] | None = None
    public: PublicText | None = None
    links: Mapping[tuple[str, int], Tensor] | None = None
    classes: int | None = None
    shares: Tensor | None = None
    label_epsilon: float | None = None
    listed: int | None = None
    annotated: AnnotatedText | None = None
    labelled: Labelled | None = None
    model: PreTrainedModel | None = None
    rows: WordRows | None = None
    plain: Tensor | None = None

    @property
    def key(self) -> Hashable:
        """Tells it from others, for what is fitted under it: cut, weights, candidates and noise."""
        modules = (self.bottom, self.model)
        return (
            self.cut.slug,
            *(None if module is None else _weights(module) for module in modules),
            self.replacing_key,
        )

    @property
    def replacing_key(self) -> Hashable:
        """The same of what replaces tokens: table, candidates and noise."""
        return (
            *(
                None if part is None else (tuple(part.shape), _digest(part))
                for part in (self.table, self.candidates, self.groups)
            ),
            None if self.noise is None else self.noise.key,
        )

    @cached_property
    def search(self) -> NeighbourSearch | None:
        """Nearest neighbours among the candidates, if there is a table."""
        if self.table is None:
            return None
        everything = torch.ones(len(self.table), dtype=torch.bool)
        allowed = everything if self.candidates is None else self.candidates
        return NeighbourSearch(self.table.detach(), allowed, groups=self.groups)

    def limited(self, needs: Collection[Need]) -> Knowledge:
        """The same without what is not needed."""
        kept = {field for need in needs for field in GRANTS[need]}
        lost: dict[str, Any] = {field: None for fields in GRANTS.values() for field in fields if field not in kept}
        limited = replace(self, **lost)
        if "table" in kept and "search" in self.__dict__:
            limited.__dict__["search"] = self.search  # costs a pass over the table
        return limited

    def with_model(self, model: PreTrainedModel | None) -> Knowledge:
        """The same to who has the vendor's model, and so its table where none is handed out; or to who has none."""
        table = embedding_table(model).detach() if self.table is None and model is not None else self.table
        return replace(self, model=model, table=table)

    def unprotected(self) -> Knowledge:
        """The same, of releases as they are."""
        return replace(self, noise=Noise.nothing(), noises=None)


def known_labels(knowledge: Knowledge) -> Labelled:
    """The labels that were granted.

    Raises:
        Inapplicable: None were.
    """
    if knowledge.labelled is None:
        raise Inapplicable("The attacker learns from records whose label it knows, and it was granted none.")
    return knowledge.labelled


def known(features: list[Tensor], labels: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Features `[m, f]` and labels `[m]` of the texts whose label is known.

    Args:
        features: Of each release, `[rows, f]`.
        labels: Of each release, `[rows]` int64.

    Raises:
        Inapplicable: No label of any released text is known.
    """
    if not labels or not bool((told := torch.cat(labels) != UNMARKED).any()):
        raise Inapplicable("The attacker knows the label of no record that was released.")
    return torch.cat(features)[told], torch.cat(labels)[told]


def _digest(tensor: Tensor) -> float:
    """A number that changes with any element, and with their order."""
    flat = tensor.detach().reshape(tensor.shape[0] if tensor.dim() else 1, -1).float()
    columns, rows = (torch.arange(1, 1 + size).sin() for size in (flat.shape[1], len(flat)))
    return float((flat @ columns.to(flat.device)) @ rows.to(flat.device))


def _weights(module: torch.nn.Module) -> float:
    return sum(_digest(parameter) for parameter in module.parameters())
