"""Labels read from what survives: under contributing-token identification a text's class decides which tokens do.

CTI adds less noise to tokens that tell the text's own class from others (SAP eq. 6). Whoever knows each token's eta in
texts of each class can ask, of every token that was released, how probable it is in a text of each: one that is
important to a class is released more often by texts of that class. No label is needed, and no model: the evidence is
in the noise. How words are spread over classes is left out; public text is released once as if all of it were of each
class, with the same draws.

Ref: this project; SAP §4.4, eq. 5 f.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from cutlayer.attacks.attack import ATTACKS, Attack, Guesses, Question, SignalSource
from cutlayer.attacks.knowledge import Inapplicable, Knowledge, Need, Noise, PublicText
from cutlayer.attacks.simulate import simulate
from cutlayer.attacks.view import View
from cutlayer.core import Payload, Tokens


class SurvivalPattern:
    """Guesses the class of each released text from the ids that were released.

    Args:
        tokens: Of public text, so many are released at most, over all classes.
        caution: So many releases of a token, by each class alike, are taken to have been seen before any was: a token
            that is seen seldom says little.
        seed: Draws the noise.
    """

    def __init__(self, *, tokens: int = 100_000, caution: float = 5.0, seed: int = 0) -> None:
        self._tokens = tokens
        self._caution = caution
        self._seed = seed

    def __call__(self, view: View) -> Guesses:
        """Guesses every released text.

        Raises:
            Inapplicable: Noise does not depend on the class, or was not granted; or rows were released.
        """
        knowledge = view.knowledge
        noise, public = knowledge.noise, knowledge.public
        if noise is None or public is None:
            raise Inapplicable("The attacker compares classes by releases of its own, and lacks text or mechanism.")
        etas = _by_class(noise)
        key = (*vars(self).values(), type(self), knowledge.key)
        for release in view.transcript.releases():
            if not isinstance(release.payload, Tokens):
                raise Inapplicable("Rows were released: which tokens survived has to be read from them first.")
            logs = public.fitted(key, lambda: self._fit(public, knowledge, classes=etas.shape[1]))
            yield release.source, release.number, torch.log_softmax(_sums(logs, release.payload), 1)

    def _fit(self, public: PublicText, knowledge: Knowledge, *, classes: int) -> Tensor:
        """ln p(id | class) up to what is common to all classes, `[vocab, classes]`."""
        (text, *_) = public.tokens.segments
        most = max(self._tokens // classes, int(text.lengths[0]))
        own = Tokens((text.select((text.lengths.cumsum(0) <= most).nonzero()[:, 0]),))
        size = len(_by_class(knowledge.noise))
        counts = []
        for number in range(classes):
            rng = np.random.Generator(np.random.PCG64(self._seed))  # the same draws, of which only the scale differs
            of_class = torch.full((len(own),), number)
            released = simulate(own, knowledge, rows=None, rng=rng, classes=of_class)
            ids = torch.cat([side.values for side in released.segments]) if isinstance(released, Tokens) else None
            if ids is None:
                raise TypeError("ids were asked for")
            counts.append(torch.bincount(ids, minlength=size).double())
        table = torch.stack(counts, 1)
        return ((table + self._caution) / (table.mean(1, keepdim=True) + self._caution)).log()


ATTACKS.add("survival-pattern")(
    Attack(
        SurvivalPattern(),
        title="labels, from which tokens the noise left as they were",
        question=Question.LABEL,
        reference="this project; SAP §4.4 (CTI)",
        needs=frozenset({Need.NOISE, Need.PUBLIC_TEXT, Need.TABLE}),
        floor=0.9,
        signal=SignalSource.SURVIVAL,
    )
)


def _by_class(noise: Noise | None) -> Tensor:
    etas = None if noise is None else noise.etas
    if etas is None or etas.shape[1] == 1:
        raise Inapplicable("No token's noise depends on the text's class, so which tokens survive does not tell it.")
    return etas


def _sums(logs: Tensor, payload: Payload) -> Tensor:
    """Log-likelihoods `[texts, classes]` of released ids."""
    if not isinstance(payload, Tokens):
        raise TypeError("ids are released")
    sums = torch.zeros(len(payload), logs.shape[1], dtype=torch.float64)
    for side in payload.segments:
        sums.index_add_(0, torch.arange(len(side)).repeat_interleave(side.lengths), logs[side.values])
    return sums
