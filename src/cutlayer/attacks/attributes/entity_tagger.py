"""Entities named in texts, found in what was released of them: RAPT's NER attack.

The attacker has text in which somebody marked entities. It privatizes that text as the customer does, lets the
vendor's own blocks read the result, and learns from the state at each word whether it is part of an entity, and of
which kind. So it learns from the same noise that it meets. Where a word was replaced, its neighbours may still tell
what it was.

RAPT's own attacker (`ner-clear`) knows of no noise: its tagger learnt from the annotated text as it is, as any tool for
named entities did, and is applied to what left.

Ref: RAPT §IV-A3, arXiv:2305.06212, with a BERT fine-tuned for tags; here the blocks stay as they are, and a perceptron
on their states is fitted, which takes a minute instead of an hour. Under noise the most probable tag is mostly "none",
so how readily another one is told is set on held-out texts, by F1: that is what counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cutlayer.attacks.attack import ATTACKS, Attack, Guesses, Question
from cutlayer.attacks.content import content_rows
from cutlayer.attacks.evaluation.entities import EntityCounts
from cutlayer.attacks.knowledge import UNMARKED, AnnotatedText, Inapplicable, Knowledge, Need
from cutlayer.attacks.simulate import released_as, simulate
from cutlayer.attacks.states import reading_blocks, states
from cutlayer.attacks.view import View
from cutlayer.core import Payload, Ragged, Tokens
from cutlayer.models import Top
from cutlayer.models.perceptron import Fitting, Perceptron, fit_classifier

_HELD_OUT = 10
"""Every so manieth text is held out."""
_LESS = tuple(number / 2 for number in range(-2, 13))
"""By how much the score of "none" may be lowered."""


class EntityTagger:
    """Guesses the tag of each token of every release.

    Args:
        share: Of the model's blocks, how many read before tags are told: middle ones know words and their neighbours,
            the last ones what the model was trained to say.
        hidden: Units of the perceptron's hidden layer.
        texts: Annotated texts that are learnt from, at most.
        clear: Whether it learns from annotated text as it is, whatever was done to what it reads.
        fitting: How it is fitted.
    """

    def __init__(
        self,
        *,
        share: float = 0.5,
        hidden: int = 256,
        texts: int = 2**20,
        clear: bool = False,
        fitting: Fitting = Fitting(passes=6, batch=256, learning_rate=1e-3, dropout=0.3),  # noqa: B008 - frozen
    ) -> None:
        self._share = share
        self._hidden = hidden
        self._texts = texts
        self._clear = clear
        self._fitting = fitting

    def __call__(self, view: View) -> Guesses:
        """Guesses every released text.

        Raises:
            Inapplicable: Annotated text or model was not granted, or the mechanism to one that learns from releases.
        """
        knowledge = view.knowledge.unprotected() if self._clear else view.knowledge
        annotated = knowledge.annotated
        if annotated is None:
            raise Inapplicable("The attacker learns entities from annotated text, and it was granted none.")
        blocks = reading_blocks(knowledge, share=self._share)
        rows = released_as(view.transcript)
        key = (*vars(self).values(), type(self), rows, knowledge.key)
        tagger = annotated.fitted(key, lambda: self._fit(annotated, knowledge, blocks, rows))
        for release in view.transcript.releases():
            yield release.source, release.number, _tagged(release.payload, knowledge, blocks, tagger)

    def _fit(self, annotated: AnnotatedText, knowledge: Knowledge, blocks: Top, rows: torch.dtype | None) -> _Tagger:
        some = torch.arange(min(self._texts, len(annotated.tokens)))
        rng = np.random.Generator(np.random.PCG64(self._fitting.seed))
        released = simulate(annotated.tokens.select(some), knowledge, rows=rows, rng=rng)
        features, _ = content_rows(states(released, knowledge, blocks), knowledge)
        (tags,) = annotated.tags.select(some).segments
        marked = tags.values != UNMARKED
        text = torch.arange(len(tags)).repeat_interleave(tags.lengths)[marked]
        held = text % _HELD_OUT == _HELD_OUT - 1
        features, truth = features[marked], tags.values[marked]
        net = fit_classifier(
            features[~held], truth[~held], classes=len(annotated.names), hidden=self._hidden, fitting=self._fitting
        )
        none = annotated.names.index("O")
        if not bool(held.any()):
            return _Tagger(net, none, 0.0)
        taggers = [_Tagger(net, none, less) for less in _LESS]
        scores = [
            EntityCounts.of(annotated.names, truth[held], tagger(features[held]), text[held], rows=len(tags)).f1
            for tagger in taggers
        ]
        return taggers[max(range(len(scores)), key=scores.__getitem__)]


@dataclass(frozen=True)
class _Tagger:
    """Tells the tag `[n]` of states `[n, width]`: the most probable, "none" being so much less."""

    net: Perceptron
    none: int
    less: float

    def __call__(self, features: Tensor) -> Tensor:
        scores: Tensor = self.net(features)
        scores[:, self.none] -= self.less
        return scores.argmax(1)


ATTACKS.add("ner")(
    Attack(
        EntityTagger(),
        title="a tagger that learnt entities from releases of annotated public text",
        question=Question.ENTITIES,
        reference="this project (adaptive), after RAPT §IV-A3",
        costly=True,
        needs=frozenset({Need.NOISE, Need.ANNOTATED_TEXT, Need.MODEL, Need.BOTTOM}),
        floor=0.15,
    )
)
ATTACKS.add("ner-clear")(
    Attack(
        EntityTagger(clear=True),
        title="a tagger that learnt entities from annotated public text as it is",
        question=Question.ENTITIES,
        reference="RAPT §IV-A3 (NER attack)",
        costly=True,
        needs=frozenset({Need.ANNOTATED_TEXT, Need.MODEL, Need.BOTTOM}),
        floor=0.15,
        par=0.5,  # RAPT's: it knows nothing of the noise, and may read less than the tag that each token mostly has
    )
)


def _tagged(payload: Payload, knowledge: Knowledge, blocks: Top, tagger: _Tagger) -> Tokens:
    features, lengths = content_rows(states(payload, knowledge, blocks), knowledge)
    if lengths.shape[1] != 1:
        raise Inapplicable("Pairs of texts were sent, and the attacker learnt to tag single ones.")
    return Tokens((Ragged(tagger(features), lengths[:, 0].contiguous()),))
