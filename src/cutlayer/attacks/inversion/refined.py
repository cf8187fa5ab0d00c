"""Learned inversion, refined: words are exchanged, led by the gradient, until the bottom makes the rows that were sent.

A learned reader (`learned`) says in one pass what rows behind blocks are likely of. It never runs its guess
through the bottom; this attack does. It looks for the words w of a text that minimise

    ‖f(w) - h‖² + 2 σ² λ Σ_places -ln q(w_place),

with f the bottom as it was handed out, h the rows that were sent, q the reader's odds, σ² the variance of the noise in
one number of a row, and λ chosen on text of the attacker's own: without noise the distance decides alone. Noise of many
dimensions is normal in the few in which two texts differ, so half the squared distance over σ² is its -ln likelihood.

The search starts from the reader's guess. In each round the gradient of the distance with respect to the rows of the
table says which exchanges of one word for another likely one promise most for the step that they are; the most
promising are tried through the bottom, and what is nearer is kept. So a guess never gets worse by what the attacker can
check, and a text that makes its rows up to their rounding is known to be right.

Where tokens were replaced before the blocks (text-to-text), this finds the tokens that were released. What they were
before, `maximum_posterior` reads from them.

Ref: SMA, from a learned start, in BiSR (Chen et al., "Unveiling the Vulnerability of Private Fine-Tuning in Split-Based
Frameworks for Large Language Models", CCS 2024, arXiv:2409.00960), which moves embeddings. Exchanging words by the
gradient is from HotFlip (Ebrahimi et al., ACL 2018, arXiv:1712.06751, §3) and GCG (arXiv:2307.15043, algorithm 1).
Behind five blocks of the embedded model it left none of 25 words wrong where moving rows, in forty steps, left ten.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from cutlayer.attacks.attack import ATTACKS, Attack, Dial, Guesses, Question
from cutlayer.attacks.inversion.black_box import granted
from cutlayer.attacks.inversion.learned import LearnedInversion, LearnedInversionSpec, rows_of
from cutlayer.attacks.inversion.maximum_posterior import MaximumPosterior, read_texts
from cutlayer.attacks.inversion.observed import ObservedRows
from cutlayer.attacks.knowledge import Inapplicable, Knowledge, Need, PublicText
from cutlayer.attacks.simulate import batches, released_as, simulate
from cutlayer.attacks.view import View
from cutlayer.core import Cut, Payload, Place, Spec, Tokens
from cutlayer.core.deadline import check_time

_POSITIONS = 2**10
"""Padded positions that go through the bottom at a time."""
_ROUNDING = 2.0**-7
"""How far a row may be from the one that was sent, in its norm, to be the same: twice what bf16 rounds off."""


class RefinedInversionSpec(Spec):
    """With what strength it is run.

    Attributes:
        start: The reader that it starts from.
        candidates: Tokens that are considered in each place: the reader's likeliest.
        rounds: Of exchanges, at most.
        trials: Exchanges that are tried in each text in each round.
        weights: λ to choose from, under noise on rows.
        tuning_tokens: Tokens of the attacker's own text that it is chosen on.
        seed: Of the noise on them.
    """

    start: LearnedInversionSpec = LearnedInversionSpec()
    candidates: int = Field(default=64, ge=2)
    rounds: int = Field(default=16, ge=1)
    trials: int = Field(default=8, ge=1)
    weights: tuple[float, ...] = Field(default=(0.01, 0.03, 0.1), min_length=1)
    tuning_tokens: int = Field(default=256, ge=1)
    seed: int = 0


class RefinedInversion:
    """Guesses each released text by exchanging words of what a learned reader made of it.

    Args:
        spec: With what strength.
    """

    def __init__(self, spec: RefinedInversionSpec | None = None) -> None:
        self.spec = spec or RefinedInversionSpec()
        self._start = LearnedInversion(self.spec.start)

    def weakened(self, share: float) -> RefinedInversion:
        """The same from a reader that learns from a share of the tokens."""
        start = self._start.weakened(share).spec
        return RefinedInversion(self.spec.model_copy(update={"start": start}))

    def __call__(self, view: View) -> Guesses:
        """Guesses every released text.

        Raises:
            Inapplicable: Ids were released, the bottom has no blocks or was not granted, public text, the table or how
                releases are privatized was not granted, or noise was added to rows before the blocks.
        """
        knowledge, rows = view.knowledge, released_as(view.transcript)
        if knowledge.noise is None:
            raise Inapplicable("The attacker was not told how releases are privatized.")
        mechanism, place = knowledge.noise.privacy.mechanism, knowledge.noise.privacy.place
        if mechanism == "vector" and place is Place.TOKENS:
            raise Inapplicable("Noise was added to rows before the blocks: no words make the rows that were sent.")
        replaced = mechanism == "text-to-text"
        # words that were drawn make their rows exactly
        behind = knowledge.unprotected() if replaced else knowledge
        pull = self._pull(knowledge, rows) if mechanism == "vector" else 0.0
        words = ((release, self._read(release.payload, behind, rows, pull)) for release in view.transcript.releases())
        if replaced:
            yield from read_texts(list(words), replace(knowledge, cut=Cut(bottom=None)), MaximumPosterior().reader)
            return
        for release, tokens in words:
            yield release.source, release.number, tokens

    def _read(self, payload: Payload, knowledge: Knowledge, rows: torch.dtype | None, pull: float | None) -> Tokens:
        """The words of a release: the reader's, and what is better."""
        observed = ObservedRows.of(payload, knowledge)
        return observed.content.with_values(self._refined(observed, knowledge, rows, pull))

    def _refined(
        self, observed: ObservedRows, knowledge: Knowledge, rows: torch.dtype | None, pull: float | None
    ) -> Tensor:
        """Ids `[places]`; those of the reader where there is no `pull`."""
        reader = self._start.reader(knowledge, rows)
        seen = rows_of(observed.rows, knowledge)
        if pull is None:
            return reader.read(seen)
        ids, logs = reader.likeliest(seen, self.spec.candidates)
        return refine(observed, ids, -pull * logs, rounds=self.spec.rounds, trials=self.spec.trials)

    def _pull(self, knowledge: Knowledge, rows: torch.dtype | None) -> float | None:
        """2 σ² λ; `None` where the reader by itself reads as much of the attacker's own text."""
        public, _ = granted(knowledge)
        key = ("refined-inversion", self.spec, rows, knowledge.key)
        return public.fitted(key, lambda: self._tuned(public, knowledge, rows))

    def _tuned(self, public: PublicText, knowledge: Knowledge, rows: torch.dtype | None) -> float | None:
        own = _last(public, self.spec.tuning_tokens)
        rng = np.random.Generator(np.random.PCG64(self.spec.seed))
        observed = ObservedRows.of(simulate(own, knowledge, rows=rows, rng=rng), knowledge)
        with torch.no_grad():
            variance = float(observed.distances(own).mean()) / observed.table.shape[1]
        best: float | None = None
        most = 0.0
        for pull in (None, *(2 * variance * weight for weight in self.spec.weights)):
            read = self._refined(observed, knowledge, rows, pull)
            share = float((read == own.values).double().mean())
            if share > most:
                best, most = pull, share
        return best


_attack = RefinedInversion()
ATTACKS.add("refined-inversion")(
    Attack(
        _attack,
        title="a learned reader's guess, whose words are exchanged until the bottom makes the rows that were sent",
        question=Question.WORDS,
        reference="this project (adaptive); after BiSR, CCS 2024, and GCG, arXiv:2307.15043",
        costly=True,
        needs=frozenset({Need.NOISE, Need.PUBLIC_TEXT, Need.TABLE, Need.BOTTOM, Need.LINKS}),
        floor=0.5,
        tokens=1024,
        dial=Dial("public text that its reader learns from", _attack.weakened),
    )
)


# ---------------------------------------------------------------- exchanging words


def refine(observed: ObservedRows, ids: Tensor, costs: Tensor, *, rounds: int, trials: int) -> Tensor:
    """Exchanges words of texts as long as their rows, and what their words cost, come down together.

    Args:
        observed: The rows that were sent.
        ids: `[places, k]` int64, what may stand in each place; the first is where it starts.
        costs: `[places, k]`, what each costs, in squared distances.
        rounds: Of exchanges, at most.
        trials: Exchanges that are tried in each text in each round.

    Returns:
        `[places]` int64. No text's squared distance and costs together are more than they were at its start.
    """
    numbered = observed.content.with_values(torch.arange(len(ids)))
    found = ids[:, 0].clone()
    for texts in batches(observed.rows.packed.lengths, _POSITIONS):
        places = numbered.select(texts).values
        if len(places):
            search = _Search(observed.select(texts), ids[places], costs[places])
            for _ in range(rounds):
                check_time()
                if not search.round(trials):
                    break
            found[places] = search.words
    return found


class _Search:
    """Some texts, with the words that stand in them at the moment.

    Args:
        observed: The rows that were sent.
        ids: `[places, k]` int64, what may stand in each place; the first does.
        costs: `[places, k]`, what each costs.
    """

    def __init__(self, observed: ObservedRows, ids: Tensor, costs: Tensor) -> None:
        self._observed, self._ids, self._costs = observed, ids, costs
        self._rows = observed.table[ids]
        self._numbered = observed.content.with_values(torch.arange(len(ids)))
        self._chosen = torch.zeros(len(ids), dtype=torch.int64)
        self._tried = torch.zeros(ids.shape, dtype=torch.bool)
        self._totals, self._explained = self._judge(torch.arange(len(observed)), self._chosen)

    @property
    def words(self) -> Tensor:
        """Ids `[places]` of the words that stand there."""
        return self._ids[torch.arange(len(self._ids)), self._chosen]

    def round(self, trials: int) -> bool:
        """Tries the most promising exchanges in each text and keeps what is better; whether there were any to try."""
        untried = ~self._tried & ~self._explained[self._numbered.owners, None]
        untried[torch.arange(len(untried)), self._chosen] = False
        if not untried.any():
            return False
        texts, places, others = self._promising(untried, trials)
        self._tried[places, others] = True
        totals, explained = self._judge(texts, self._exchanged(texts, places, others))
        better = (totals < self._totals[texts]).nonzero()[:, 0]
        better = better[totals[better].argsort(stable=True)]
        # in each place the best exchange, all of a text together; or a text's best one, where that is better
        together = better[_first_of_each(places[better])]
        joint = self._chosen.index_copy(0, places[together], others[together])
        several, counts = texts[together].unique(return_counts=True)
        several = several[counts > 1]
        single = better[_first_of_each(texts[better])]
        alone = self._chosen.index_copy(0, places[single], others[single])
        self._keep(texts[single], alone, totals[single], explained[single])
        totals, explained = self._judge(several, joint[self._numbered.select(several).values])
        worth = totals < self._totals[several]
        self._keep(several[worth], joint, totals[worth], explained[worth])
        return True

    def _promising(self, untried: Tensor, trials: int) -> tuple[Tensor, Tensor, Tensor]:
        """Text, place and candidate of the exchanges that promise most for the step that they are.

        An exchange moves a place's row by d; the distance falls by about -g · d, with g its gradient there.
        """
        texts = self._numbered.owners[untried.any(1)].unique()
        observed, shape = self._observed.select(texts), self._numbered.select(texts)
        places = shape.values
        chosen = self._chosen[places]
        rows = self._rows[places, chosen].requires_grad_()
        (slope,) = torch.autograd.grad(observed.distances(shape.with_values(rows)).sum(), [rows])
        steps = self._rows[places] - rows.detach()[:, None]
        costs = self._costs[places] - self._costs[places, chosen][:, None]
        promise = -(steps @ slope[:, :, None])[:, :, 0] - costs
        promise = (promise / steps.norm(dim=2).clamp(min=1e-6)).masked_fill(~untried[places], -torch.inf)
        found: list[Tensor] = []
        for number, text in enumerate(texts):
            at = (shape.owners == number).nonzero()[:, 0]
            best = promise[at].flatten().topk(min(trials, int(untried[places[at]].sum()))).indices
            place, other = places[at[best // promise.shape[1]]], best % promise.shape[1]
            found.append(torch.stack([text.expand(len(best)), place, other]))
        texts, places, others = torch.cat(found, 1)
        return texts, places, others

    def _exchanged(self, texts: Tensor, places: Tensor, others: Tensor) -> Tensor:
        """What is chosen in copies of texts `[m]`, each with another candidate in one place."""
        shape = self._numbered.select(texts)
        changed = shape.values == places[shape.owners]
        return torch.where(changed, others[shape.owners], self._chosen[shape.values])

    @torch.no_grad()
    def _judge(self, texts: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """How far from what was sent, with costs, such words are, and whether they make the same rows.

        Args:
            texts: `[m]` int64, one may be there several times.
            chosen: What is chosen in their places.

        Returns:
            `[m]`, and `[m]` bool.
        """
        shape = self._numbered.select(texts)
        picked = shape.with_values(chosen)
        totals, explained = torch.zeros(len(texts)), torch.zeros(len(texts), dtype=torch.bool)
        for part in batches(self._observed.rows.packed.lengths[texts], _POSITIONS):
            observed, some = self._observed.select(texts[part]), picked.select(part)
            at = shape.select(part).values
            apart = observed.distances(some.with_values(self._ids[at, some.values]))
            sent = observed.rows.packed
            text = torch.arange(len(part)).repeat_interleave(sent.lengths)
            none = torch.zeros(len(part))
            totals[part] = none.index_add(0, text, apart).index_add(0, some.owners, self._costs[at, some.values])
            far = apart > _ROUNDING**2 * sent.values.square().sum(1)
            explained[part] = none.index_add(0, text, far.float()) == 0
        return totals, explained

    def _keep(self, texts: Tensor, chosen: Tensor, totals: Tensor, explained: Tensor) -> None:
        """Takes over what is chosen in some texts, each of them once."""
        places = self._numbered.select(texts).values
        self._chosen[places] = chosen[places]
        # what was no better beside other words may be so now
        self._tried[places] = False
        self._totals[texts], self._explained[texts] = totals, explained


def _first_of_each(values: Tensor) -> Tensor:
    """Where in `values` `[n]` each of them stands first."""
    kinds, kind = values.unique(return_inverse=True)
    return torch.full((len(kinds),), len(values)).scatter_reduce(0, kind, torch.arange(len(values)), "amin")


def _last(public: PublicText, tokens: int) -> Tokens:
    """Texts from the end, of so many tokens at most, one at least: a reader is fitted on those from the beginning."""
    (text, *_) = public.tokens.segments
    text = text.select(text.lengths.nonzero()[:, 0])
    behind = text.lengths.flip(0).cumsum(0).flip(0)
    return Tokens((text.select((behind <= max(tokens, int(text.lengths[-1]))).nonzero()[:, 0]),))
