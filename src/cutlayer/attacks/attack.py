"""What an attack is: which question it answers, with what it is granted, and how it guesses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from torch import Tensor

from cutlayer.attacks.knowledge import Need
from cutlayer.attacks.view import View
from cutlayer.core import Registry, Tokens

Guess: TypeAlias = tuple[str, int, Tokens | Tensor]
"""Where (source and number of a release or a step), and what.

Tokens in the shape of the texts: ids, rows `[width]` in the place of ids, or numbers of tags. Or a tensor: `[texts]`
int64 labels, lengths or rows of a list, or `[texts, classes]` log-probabilities of labels.
"""

Guesses: TypeAlias = Iterator[Guess]
"""Made one release at a time, so that an attack on a long transcript need not hold it."""


class Question(StrEnum):
    """What an attack finds out. Attacks on one question compare, and the strongest of them is what counts."""

    WORDS = "words"
    """Which tokens did the texts have?"""
    ANSWERS = "answers"
    """Which tokens did the tuned model say?"""
    LABEL = "label"
    """Which label did each text have?"""
    ATTRIBUTE = "attribute"
    """Of what kind is each text's author?"""
    ENTITIES = "entities"
    """Where do texts name somebody or something, and of what kind is it?"""
    LENGTH = "length"
    """How long is each text?"""
    ROW = "row"
    """Which row of a list is each text?"""

    @property
    def asked(self) -> str:
        """As a report asks it."""
        return {
            Question.WORDS: "Which words did the texts have?",
            Question.ANSWERS: "What did the tuned model answer?",
            Question.LABEL: "Which label did each text have?",
            Question.ATTRIBUTE: "Which private attribute does each text's author have?",
            Question.ENTITIES: "Where do the texts name people, places and other entities?",
            Question.LENGTH: "How long is each text?",
            Question.ROW: "Which row of a list in the file's order is each text?",
        }[self]


class SignalSource(StrEnum):
    """Where an attack looks for the answer: there its controls plant one."""

    WORDS = "words"
    """In what was released in the place of words."""
    LENGTHS = "lengths"
    """In how long texts are."""
    SURVIVAL = "survival"
    """In which tokens the noise left as they were."""
    GRADIENTS = "gradients"
    """In what training shows, step by step: what comes down, and the gradient that goes up."""
    ORDER = "order"
    """In the numbers of records."""
    NEIGHBOURS = "neighbours"
    """In labels as gradients show them, and in the same of records with neighbouring numbers."""
    REPORTS = "reports"
    """In labels as gradients show them, and in words beside them."""


@dataclass(frozen=True)
class Dial:
    """What an attack does less of where it has less time.

    Attributes:
        what: What there is less of, as a report says it: "public text that it learns from".
        turned: The same way to guess with a share of it, above 0 and at most 1.
    """

    what: str
    turned: Callable[[float], Callable[[View], Guesses]]


@dataclass(frozen=True)
class Attack:
    """A way to guess, and its threat model: called with a view of no more than what it declares.

    Attributes:
        run: Guesses. Raises `Inapplicable` where it has no meaning for what was sent.
        title: What it does, in a few words for a report.
        question: What it answers.
        reference: Where it is from: paper and section.
        needs: What it may be granted beside the transcript, the cut and where special tokens stand.
        floor: The least share of what can be guessed at all that it recovers of unprotected traffic, or it is
            broken. Less than all where even a sound attack misses some: behind many blocks.
        par: The least share of what the simplest attack reads that it reads of traffic at the run's own settings, or
            it is too weak. Less than all for what a paper has, and is told as that paper's, though simpler ways read
            more.
        tokens: Tokens of a transcript that it is measured on at most, from its beginning; `None` for all. What takes
            seconds a text says as much of some texts as of all of them.
        positions: Content tokens of each text that it is measured on at most, from its beginning; `None` for all. For
            an attack whose work grows with the square of a text's length, on rows that know nothing of what follows.
        named: Whether guessed labels are labels. Otherwise they number groups of texts, and which group is which
            label is left open: the score matches them at their best, and chance is that of such a match.
        costly: Whether it takes minutes where others take seconds: it comes last, and begins more weakly where
            time is limited.
        joint: Whether it reads several runs of a customer together; others read the first.
        signal: Where it looks.
        dial: What it does less of where it has less time; `None` where there is nothing: then it is measured on fewer
            tokens.
    """

    run: Callable[[View], Guesses]
    title: str
    question: Question
    reference: str
    needs: frozenset[Need] = frozenset()
    floor: float = 0.99
    par: float = 1.0
    tokens: int | None = None
    positions: int | None = None
    named: bool = True
    costly: bool = False
    joint: bool = False
    signal: SignalSource = SignalSource.WORDS
    dial: Dial | None = None

    def __call__(self, view: View) -> Guesses:
        """Guesses, with what it declares and nothing else."""
        return self.run(View(view.transcript, view.knowledge.limited(self.needs)))


ATTACKS: Registry[Attack] = Registry("attack", package="cutlayer.attacks", plugins="cutlayer.attacks", of=Attack)
"""Open: an installed package names further attacks under the entry points `cutlayer.attacks`."""
