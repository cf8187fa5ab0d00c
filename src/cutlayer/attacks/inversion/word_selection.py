"""Optimisation-based inversion of deeper bottoms: word-selection vectors, relaxed, moved until the rows fit.

"For each input sample, the method iteratively optimizes the word selection vectors by minimizing the distance
between the predicted text's representations and the observed representations" (SAP §5.1). Each token is a point
of the simplex over the vocabulary, softmax(z / T); its row is that mixture of the table's rows; and z moves down

    min over z:  mean over positions ‖f(softmax(z / T) E) - h‖²,

with f the bottom as it was handed out and h the rows that were sent. What is guessed is the largest entry of z.

Ref: Song & Raghunathan, "Information Leakage in Embedding Models", CCS 2020, §3.1 (white-box inversion, relaxed);
used as EIA on bottoms with blocks in SAP §5.1, Figure 4 and Table 2.
"""

from __future__ import annotations

import torch
from pydantic import Field

from cutlayer.attacks.attack import ATTACKS, Attack, Guesses, Question
from cutlayer.attacks.inversion.black_box import candidates_of
from cutlayer.attacks.inversion.observed import ObservedRows
from cutlayer.attacks.knowledge import Knowledge, Need
from cutlayer.attacks.view import View
from cutlayer.core import Spec, Tokens
from cutlayer.core.deadline import check_time

_TEXTS_AT_ONCE = 16


class WordSelectionSpec(Spec):
    """With what strength it is run.

    Attributes:
        steps: Of Adam.
        learning_rate: Its rate.
        temperature: T: smaller ones come sooner to a single word.
    """

    steps: int = Field(default=60, ge=1)
    learning_rate: float = Field(default=0.1, gt=0)
    temperature: float = Field(default=0.1, gt=0)


class WordSelection:
    """Guesses each released text by fitting mixtures of words to its rows.

    Args:
        spec: With what strength.
    """

    def __init__(self, spec: WordSelectionSpec | None = None) -> None:
        self.spec = spec or WordSelectionSpec()

    def __call__(self, view: View) -> Guesses:
        """Guesses every released text.

        Raises:
            Inapplicable: Ids were released, or the bottom has no blocks or was not granted.
        """
        for release in view.transcript.releases():
            observed = ObservedRows.of(release.payload, view.knowledge)
            parts = torch.arange(len(observed)).split(_TEXTS_AT_ONCE)
            found = [self._read(observed.select(part), view.knowledge) for part in parts]
            yield release.source, release.number, Tokens.concatenate(found)

    def _read(self, observed: ObservedRows, knowledge: Knowledge) -> Tokens:
        """The tokens of some texts."""
        table, content = observed.table, observed.content
        allowed = candidates_of(knowledge, table)
        words = table[allowed]
        chosen = torch.zeros(content.total, len(allowed), requires_grad=True)
        optimiser = torch.optim.Adam([chosen], lr=self.spec.learning_rate)
        for _ in range(self.spec.steps):
            check_time()
            mixed = (chosen / self.spec.temperature).softmax(1) @ words
            loss = observed.distances(content.with_values(mixed)).mean()
            (chosen.grad,) = torch.autograd.grad(loss, [chosen])
            optimiser.step()
        return content.with_values(allowed[chosen.detach().argmax(1)])


ATTACKS.add("word-selection")(
    Attack(
        WordSelection(),
        title="mixtures of words, moved until the bottom makes the rows that were sent",
        question=Question.WORDS,
        reference="Song & Raghunathan 2020 §3.1, as in SAP §5.1 (EIA behind blocks)",
        costly=True,
        needs=frozenset({Need.BOTTOM}),
        floor=0.5,
        tokens=256,
    )
)
