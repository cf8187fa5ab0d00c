"""Tokens read from rows behind blocks by a linear map: the cheapest strong attack on boundaries without noise.

The vendor runs text of its own through the bottom that it handed out, and fits a ridge regression from the
boundary's rows back to the embedding table (`inverter`). It takes seconds, and no private text. What noise on
tokens did stays done: the tokens that were drawn are read, not the true ones.

Ref: this project; the closed form of the known-plaintext inverters in `inverter`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from pydantic import Field
from torch import Tensor

from cutlayer.attacks.attack import ATTACKS, Attack, Guesses, Question
from cutlayer.attacks.content import content_tokens
from cutlayer.attacks.inversion.inverter import Inverter, InverterSpec, fit_inverter
from cutlayer.attacks.knowledge import Inapplicable, Knowledge, Need, PublicText
from cutlayer.attacks.view import View
from cutlayer.core import Ragged, Rows, Spec, Tokens
from cutlayer.models import Bottom, Inputs, Template

_TEXTS_AT_ONCE = 32
_ROWS_AT_ONCE = 4096


class LinearInversionSpec(Spec):
    """With what strength it is run.

    Attributes:
        tokens: Of the attacker's own text that the map is fitted on, at most.
        ridges: Penalties to choose from, per mean square of a standardised feature.
        seed: Of the fit, which draws nothing today.
    """

    tokens: int = Field(default=58_000, ge=1)
    ridges: tuple[float, ...] = Field(default=(1e-6, 1e-4, 1e-2), min_length=1)
    seed: int = 0


class LinearInversion:
    """Guesses each token as the row of the table that is nearest to what the map makes of its boundary row.

    Args:
        spec: With what strength.
    """

    def __init__(self, spec: LinearInversionSpec | None = None) -> None:
        self.spec = spec or LinearInversionSpec()

    def __call__(self, view: View) -> Guesses:
        """Guesses every released text.

        Raises:
            Inapplicable: Ids were released, the bottom has no blocks or was not granted, or there is no public text.
        """
        inverter: Inverter | None = None
        for release in view.transcript.releases():
            if not isinstance(release.payload, Rows):
                raise Inapplicable("Token ids were released: there is no boundary to invert.")
            inverter = inverter or self.inverter(view.knowledge)
            content = content_tokens(release.payload, view.knowledge)
            sides = (side.with_values(read_rows(inverter, side.values)) for side in content.segments)
            yield release.source, release.number, Tokens(tuple(sides))

    def inverter(self, knowledge: Knowledge) -> Inverter:
        """The map, fitted once for each bottom.

        Raises:
            Inapplicable: See `__call__`.
        """
        bottom, public = knowledge.bottom, knowledge.public
        if not knowledge.cut.bottom:
            raise Inapplicable("The bottom has no blocks: nearest-neighbour search reads its rows.")
        if not isinstance(bottom, Bottom) or knowledge.template is None:
            raise Inapplicable("The attacker was not granted the bottom as it was handed out.")
        if public is None:
            raise Inapplicable("The attacker has no text of its own, which the map is fitted on.")
        key = ("linear-inversion", self.spec, bottom, knowledge.candidates is None)
        texts = PublicInputs(public, knowledge.template, tokens=self.spec.tokens)
        return public.fitted(
            key,
            lambda: fit_inverter(
                bottom,
                texts,
                InverterSpec(ridges=self.spec.ridges),
                generator=torch.Generator().manual_seed(self.spec.seed),
                candidates=knowledge.candidates,
            ),
        )


ATTACKS.add("linear-inversion")(
    Attack(
        LinearInversion(),
        title="a linear map from the boundary back to the embedding table",
        question=Question.WORDS,
        reference="this project (adaptive); ridge regression on public text",
        needs=frozenset({Need.BOTTOM, Need.PUBLIC_TEXT}),
        floor=0.5,
    )
)


def read_rows(inverter: Inverter, rows: Tensor) -> Tensor:
    """The token of each row `[n, width]` by itself, `[n]` int64."""
    read = []
    for part in rows.split(_ROWS_AT_ONCE):
        one = torch.ones(len(part), 1, dtype=torch.int64)
        read.append(inverter.guess(part[:, None].float(), Inputs(one, torch.zeros_like(one)))[:, 0])
    return torch.cat(read) if read else torch.empty(0, dtype=torch.int64)


class PublicInputs:
    """Public text in batches of about one length, as often as it is asked for.

    Args:
        public: The text.
        template: Where special tokens stand.
        tokens: At most so many, from texts spread over all.
    """

    def __init__(self, public: PublicText, template: Template, *, tokens: int) -> None:
        texts = Ragged.concatenate(public.tokens.segments)
        most = 2**31 if template.max_length is None else template.max_content(1)
        texts = texts.first(texts.lengths.clamp(max=most))
        total = max(1, len(texts.values))
        stride = max(1, total // tokens)
        kept = torch.arange(0, len(texts), stride)
        within = texts.lengths[kept].cumsum(0) <= max(tokens, int(texts.lengths[kept[:1]].sum()))
        kept = kept[within & (texts.lengths[kept] > 0)]
        self._texts = texts.select(kept[texts.lengths[kept].argsort(stable=True)])
        self._template = template

    @property
    def tokens(self) -> int:
        """How many tokens its texts have."""
        return len(self._texts.values)

    @property
    def ids(self) -> Tensor:
        """`[k]` int64, which tokens they are, each once."""
        found: Tensor = self._texts.values.unique()
        return found

    def __iter__(self) -> Iterator[Inputs]:
        for part in torch.arange(len(self._texts)).split(_TEXTS_AT_ONCE):
            yield self._template.assemble(Tokens((self._texts.select(part),)))
