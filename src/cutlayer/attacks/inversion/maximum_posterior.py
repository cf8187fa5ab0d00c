"""The token with the largest posterior: what was released, how releases are privatized, and what texts look like.

Nearest neighbour asks which token lies nearest to what was released. An attacker who knows the mechanism asks
which token was most probably there: P(token | released) ∝ P(released | token) P(token | the tokens around it).
For released ids the first factor is a channel fitted on draws of its own (`channel`), for noisy rows the
density of the noise, clipped or not (`emission`); the second is a bigram model of its own text (`prior`); and
what releases of one text show together is multiplied. How much the prior counts is chosen on text of the
attacker's own that it privatizes itself, and so is whether anything beats taking each release as it is.

Ref: this project; for text-to-text see also Meisenbacher et al. and "On the Vulnerability of Text Sanitization",
NAACL 2025; for vectors BeamClean, arXiv:2505.13758.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from cutlayer.attacks.attack import ATTACKS, Attack, Guesses, Question
from cutlayer.attacks.content import content_tokens, single_texts
from cutlayer.attacks.inversion.channel import Channel, ExponentialChannel, Pairs, draw_ids
from cutlayer.attacks.inversion.decoding import decode
from cutlayer.attacks.inversion.emission import Candidates, Emission, NoisyRows, Released, Stated, Unchanged
from cutlayer.attacks.inversion.prior import Bigram
from cutlayer.attacks.knowledge import Inapplicable, Knowledge, Need, Noise, PublicText
from cutlayer.attacks.view import SeenRelease, View
from cutlayer.core import Place, Ragged, Spec, Tokens
from cutlayer.privacy.mechanisms import DChi, Mechanism, find_mechanism
from cutlayer.privacy.neighbours import NeighbourSearch
from cutlayer.privacy.replacement import largest_norm, noisy_rows

_SPREAD = 0.3
"""σ of ln eta under CTI, where the attacker knows no label to estimate it by: 0.25 to 0.38 on four data sets."""


class MaximumPosteriorSpec(Spec):
    """With what strength it is run.

    Attributes:
        pairs: Draws of the attacker's own that the channel of a text-to-text release is fitted on.
        shrinkages: What the fitted channel may be worth, in draws of a token, against the counted pairs;
            infinite leaves counts out. The best on the attacker's own text is taken.
        candidates: Tokens that are considered in each place.
        weights: Exponents of the prior to choose from.
        tuning_tokens: Tokens of the attacker's own text that these are chosen on, and that the prior is not
            fitted on meanwhile.
        seed: Of the attacker's draws.
    """

    pairs: int = Field(default=12_000, ge=1)
    shrinkages: tuple[float, ...] = Field(default=(1000.0, math.inf), min_length=1)
    candidates: int = Field(default=32, ge=2)
    weights: tuple[float, ...] = Field(default=(0.6, 0.75, 0.9), min_length=1)
    tuning_tokens: int = Field(default=4000, ge=1)
    seed: int = 0


@dataclass(frozen=True)
class Tuned:
    """What was chosen on the attacker's own text.

    Attributes:
        weight: The prior's exponent; `None`: each release is taken as it is, which read more.
        shrinkage: What the channel's formula is worth in draws; infinite where counts are left out, and
            where there is no channel.
        read: The share of its own tokens that it then read.
        as_released: The share that it read by taking releases as they are, or the nearest row.
        tokens: Of how many.
    """

    weight: float | None
    shrinkage: float
    read: float
    as_released: float
    tokens: int

    @classmethod
    def untried(cls) -> Tuned:
        """Of releases that hide nothing."""
        return cls(None, math.inf, 1.0, 1.0, 0)


class Reader(Protocol):
    """Reads tokens from what was observed in their places."""

    def read(self, looks: Sequence[Tensor], lengths: Tensor) -> Tensor:
        """Reads the tokens of texts, none of which is empty.

        Args:
            looks: One or several, each `[places, ...]`: ids or rows.
            lengths: `[texts]` int64, places of each text.

        Returns:
            `[places]` int64.
        """
        ...


@dataclass(frozen=True)
class PosteriorReader:
    """Reads each token as the most probable one.

    Attributes:
        emission: What is seen of a place, given each token.
        prior: What texts look like.
        tuned: What was chosen on the attacker's own text.
        k: Candidates in each place.
        rounded: Where rows are those of released tokens, what finds which.
        own: What it was chosen on; `None` of releases that hide nothing.
    """

    emission: Emission
    prior: Bigram
    tuned: Tuned
    k: int
    rounded: NeighbourSearch | None
    own: OwnText | None = None

    def read(self, looks: Sequence[Tensor], lengths: Tensor) -> Tensor:
        """See `Reader.read`."""
        candidates = self.candidates(looks)
        if self.tuned.weight is None:
            return candidates.ids.gather(1, candidates.scores.argmax(1, keepdim=True))[:, 0]
        return decode(candidates, lengths, self.prior, weight=self.tuned.weight)

    def candidates(self, looks: Sequence[Tensor]) -> Candidates:
        """What may have been in each place, by all looks `[places, ...]` at it and without its neighbours."""
        if self.rounded is not None:
            looks = [self.rounded.nearest(look.double()) for look in looks]
        candidates = self.emission.candidates(looks[0], self.k)
        return self._joint(looks, candidates) if len(looks) > 1 else candidates

    def _joint(self, looks: Sequence[Tensor], first: Candidates) -> Candidates:
        """What all looks show together, for the tokens that any of them makes likely."""
        tried = [first.ids, *(self.emission.candidates(look, self.k).ids for look in looks[1:])]
        ids = torch.cat(tried, 1).sort(1).values
        repeated = torch.zeros_like(ids, dtype=torch.bool)
        repeated[:, 1:] = ids[:, 1:] == ids[:, :-1]
        scores = torch.stack([self.emission.scores(look, ids) for look in looks]).sum(0)
        scores = scores.masked_fill(repeated, -torch.inf)
        _, best = (scores + self.prior.unigram[ids]).topk(min(self.k, ids.shape[1]), dim=1)
        return Candidates(ids.gather(1, best), scores.gather(1, best))


class MaximumPosterior:
    """Guesses each token as the most probable one, given all releases of its text.

    Args:
        spec: With what strength.
    """

    def __init__(self, spec: MaximumPosteriorSpec | None = None) -> None:
        self.spec = spec or MaximumPosteriorSpec()

    def __call__(self, view: View) -> Guesses:
        """Guesses every released text.

        Raises:
            Inapplicable: It was not told how releases are privatized, has no text of its own, or rows behind
                blocks were sent.
        """
        yield from readings(view, self.reader)

    def reader(self, knowledge: Knowledge, *, rows: bool) -> PosteriorReader:
        """What it reads by: fitted once for each way of privatizing.

        Args:
            knowledge: What it is granted.
            rows: Whether rows were released, not ids.

        Raises:
            Inapplicable: See `__call__`.
        """
        noise, public = knowledge.noise, knowledge.public
        if noise is None:
            raise Inapplicable("The attacker was not told how releases are privatized.")
        if public is None:
            raise Inapplicable("The attacker has no text of its own, which the prior is fitted on.")
        if knowledge.cut.bottom:
            raise Inapplicable("Rows behind blocks were sent: refined-inversion reads them first.")
        if rows and knowledge.search is None:
            raise Inapplicable("Boundary rows were sent, and the attacker was given no embedding table.")
        key = ("maximum-posterior", self.spec, noise.key, rows)
        return public.fitted(key, lambda: _fit(knowledge, noise, public, self.spec, rows=rows))


ATTACKS.add("maximum-posterior")(
    Attack(
        MaximumPosterior(),
        title="the most probable token, by the mechanism and a language model",
        question=Question.WORDS,
        reference="this project (adaptive); likelihood of the release times a bigram prior",
        needs=frozenset({Need.TABLE, Need.NOISE, Need.PUBLIC_TEXT, Need.LINKS}),
    )
)


def readings(view: View, reader: Callable[..., Reader]) -> Guesses:
    """What a reader makes of all releases: those of linked texts are read together.

    Args:
        view: The attacker's.
        reader: Gives the reader of a view's `knowledge`; told by `rows` whether rows were released, not ids.

    Raises:
        Inapplicable: Of the reader.
    """
    seen = [(release, content_tokens(release.payload, view.knowledge)) for release in view.transcript.releases()]
    yield from read_texts(seen, view.knowledge, reader)


def read_texts(
    seen: Sequence[tuple[SeenRelease, Tokens]], knowledge: Knowledge, reader: Callable[..., Reader]
) -> Guesses:
    """The same of what was seen in the place of each content token.

    Args:
        seen: Releases, and of each what stands there: ids, or rows `[width]`.
        knowledge: What the attacker is granted.
        reader: As for `readings`.

    Raises:
        Inapplicable: Of the reader.
    """
    if not seen:
        return
    found = reader(knowledge, rows=seen[0][1].values.is_floating_point())
    for group in _linked(seen, knowledge.links):
        yield from _read_group(found, group)


# ---------------------------------------------------------------- fitting, on the attacker's own text


@dataclass(frozen=True)
class Drawn:
    """The attacker's own text as the mechanism releases it, or as what was learnt of it does.

    Attributes:
        observed: Ids or rows, of the held-out tokens.
        as_released: `[tokens]` int64: the ids themselves, or the rows' nearest neighbours.
        emissions: By shrinkage, how a released token is explained by each true one, given a prior.
    """

    observed: Tensor
    as_released: Tensor
    emissions: Mapping[float, Callable[[Bigram], Emission]]


@dataclass(frozen=True)
class OwnText:
    """The attacker's own text: what it learns from, and what it chooses by.

    Attributes:
        learnt: `[n]` int64, which texts are to learn from, of all single ones.
        held: Texts to choose by.
        observed: `[tokens, ...]`, what was drawn of the tokens of `held`: ids or rows.
        prior: Fitted on `learnt` alone.
        explained: How releases are explained, under a prior.
    """

    learnt: Tensor
    held: Ragged
    observed: Tensor
    prior: Bigram
    explained: Callable[[Bigram], Emission]


def _fit(
    knowledge: Knowledge, noise: Noise, public: PublicText, spec: MaximumPosteriorSpec, *, rows: bool
) -> PosteriorReader:
    texts, search = single_texts(public.tokens), knowledge.search
    mechanism = noise.privacy.mechanism
    rounded = search if rows and mechanism != "vector" else None
    if mechanism == "none" or search is None:
        known = torch.zeros(1 + int(texts.values.max()), dtype=torch.bool)
        return PosteriorReader(Unchanged(), Bigram(texts, allowed=known), Tuned.untried(), spec.candidates, rounded)
    if noise.privacy.place is Place.ACTIVATIONS:
        raise Inapplicable("Noise was added behind the bottom, where no row is a token's.")
    if mechanism == "vector" and noise.privacy.noise != DChi.name and noise.privacy.cti is not None:
        raise Inapplicable(
            f"Where eta depends on the token it knows the density of d_chi noise alone, not of {noise.privacy.noise}."
        )
    draw = _draw_rows if mechanism == "vector" else _draw_released
    drawing = partial(draw, search=search, noise=noise, spec=spec)
    return chosen_reader(public, search, spec, drawing, rounded=rounded, replaces=noise.privacy.replaces)


def chosen_reader(
    public: PublicText,
    search: NeighbourSearch,
    spec: MaximumPosteriorSpec,
    draw: Callable[..., Drawn],
    *,
    rounded: NeighbourSearch | None = None,
    replaces: bool = True,
) -> PosteriorReader:
    """What reads most of the attacker's own text, of which some is held out to choose by.

    Args:
        public: That text.
        search: Of the table.
        spec: What there is to choose from.
        draw: Releases tokens `[n]` under a `prior` that is fitted on the rest, and explains them by `sources`, tokens
            that a text may have.
        rounded: See `PosteriorReader`.
        replaces: Whether tokens were replaced, so that each may be taken as it is.
    """
    texts = single_texts(public.tokens)
    allowed = torch.zeros(len(search.table), dtype=torch.bool)
    allowed[search.candidates] = True
    if search.groups is not None:
        allowed[:] = True  # a text may have words that never come out, and words in clear tell of their neighbours
    held = _held_out(texts, spec.tuning_tokens, alike=_kept_texts(public))
    own, learnt = texts.select(held), _others(len(texts), held)
    fitted = Bigram(texts.select(learnt), allowed=allowed)
    seen = texts.values.unique()
    drawn = draw(own.values, prior=fitted, sources=seen[allowed[seen]])
    plain = float((drawn.as_released == own.values).double().mean())
    best = Tuned(None, max(drawn.emissions), plain, plain, len(own.values))
    for shrinkage, explained in drawn.emissions.items():
        tried = explained(fitted).candidates(drawn.observed, spec.candidates)
        for weight in spec.weights:
            read = float((decode(tried, own.lengths, fitted, weight=weight) == own.values).double().mean())
            if read > best.read:
                best = Tuned(weight, shrinkage, read, plain, len(own.values))
    # what was held out to choose by is text as good as any other
    prior = Bigram(texts, allowed=allowed)
    taken = best.weight is None and replaces
    emission = Unchanged() if taken else drawn.emissions[best.shrinkage](prior)
    tried_on = OwnText(learnt, own, drawn.observed, fitted, drawn.emissions[best.shrinkage])
    return PosteriorReader(emission, prior, best, spec.candidates, rounded, tried_on)


def _draw_released(
    ids: Tensor, *, prior: Bigram, sources: Tensor, search: NeighbourSearch, noise: Noise, spec: MaximumPosteriorSpec
) -> Drawn:
    rng = np.random.Generator(np.random.PCG64(spec.seed))
    privacy = noise.privacy
    etas = partial(_etas, noise=noise, rng=rng)
    channel: Channel | ExponentialChannel
    if privacy.exponential:
        channel = ExponentialChannel(search, eta=privacy.eta)
    else:
        pairs = Pairs.drawn(spec.pairs, search, prior.unigram, privacy=privacy, etas=etas, rng=rng)
        channel = Channel(search, pairs, eta=privacy.eta)
    observed = draw_ids(ids, search, privacy=privacy, etas=etas(ids), rng=rng)

    def emission(shrinkage: float, prior: Bigram) -> Emission:
        return Released(channel.shrunk(shrinkage), prior.unigram, sources)

    return Drawn(observed, observed, {each: partial(emission, each) for each in spec.shrinkages})


def _draw_rows(
    ids: Tensor, *, prior: Bigram, sources: Tensor, search: NeighbourSearch, noise: Noise, spec: MaximumPosteriorSpec
) -> Drawn:
    rng = np.random.Generator(np.random.PCG64(spec.seed))
    table, eta = search.table, noise.privacy.eta
    etas = _etas(ids, noise=noise, rng=rng).numpy()
    mechanism = find_mechanism(noise.privacy.noise)
    drawn = mechanism.noise(etas=etas, width=table.shape[1], rng=rng)
    clip = largest_norm(table, search.candidates) if noise.privacy.clipped else None
    rows = noisy_rows(table[ids], drawn, on_lattice=False, longest=clip)
    stated = None
    if not isinstance(mechanism, DChi):
        stated = Stated(partial(_log_density, mechanism, eta), length=float(np.linalg.norm(drawn, axis=1).mean()))
    spread = 0.0 if noise.privacy.cti is None else _SPREAD if noise.etas is None else float(np.log(etas).std())

    def emission(prior: Bigram) -> Emission:
        return NoisyRows(
            table, eta=eta, stated=stated, clip=clip, unigram=prior.unigram, sources=sources, spread=spread
        )

    return Drawn(rows.float(), search.nearest(rows), {math.inf: emission})


def _log_density(mechanism: Mechanism, eta: float, noise: Tensor) -> Tensor:
    """`[...]` float64: what a mechanism states of rows of noise `[..., width]`."""
    rows = noise.reshape(-1, noise.shape[-1]).numpy()
    found = mechanism.log_density(rows, etas=np.full(len(rows), eta))
    return torch.from_numpy(found).reshape(noise.shape[:-1])


def _etas(ids: Tensor, *, noise: Noise, rng: np.random.Generator) -> Tensor:
    """`[n]` float64: what each token is drawn at; where that depends on the text's class, in one that has the token."""
    if noise.etas is None:
        return torch.full((len(ids),), noise.privacy.eta, dtype=torch.float64)
    ends = noise.class_logits()[ids].softmax(1).cumsum(1)
    drawn = torch.from_numpy(rng.random(len(ids)))[:, None]
    classes = torch.searchsorted(ends, drawn)[:, 0].clamp(max=ends.shape[1] - 1)
    return noise.etas[ids, classes].double()


def _held_out(texts: Ragged, tokens: int, *, alike: int) -> Tensor:
    """Texts of about so many tokens: a tenth of all at most, or half of the first ones that are alike."""
    if alike:
        some = texts.select(torch.arange(alike))
        return torch.arange(0, alike, max(2, len(some.values) // tokens))
    return torch.arange(0, len(texts), max(10, len(texts.values) // tokens))


def _kept_texts(public: PublicText) -> int:
    """How many of the texts that are alike have tokens: empty ones are left out."""
    (side, *_) = public.tokens.segments
    return int((side.lengths[: public.alike] > 0).sum())


def _others(count: int, chosen: Tensor) -> Tensor:
    kept = torch.ones(count, dtype=torch.bool)
    kept[chosen] = False
    others: Tensor = kept.nonzero()[:, 0]
    return others


# ---------------------------------------------------------------- looks


@dataclass(frozen=True)
class _Look:
    """A text's segment in a release.

    Attributes:
        release: The release's number in the transcript.
        at: The segment's number in it, counted through the first segments of all texts, then the second ones.
    """

    release: int
    at: int


@dataclass(frozen=True)
class _Group:
    """Releases that are read together, and which of their texts are the same."""

    releases: tuple[tuple[SeenRelease, Tokens], ...]
    looks: tuple[tuple[_Look, ...], ...]


def _linked(
    seen: Sequence[tuple[SeenRelease, Tokens]], links: Mapping[tuple[str, int], Tensor] | None
) -> Iterator[_Group]:
    """Releases of linked texts together, others each by itself."""
    together = [pair for pair in seen if links and (pair[0].source, pair[0].number) in links]
    alone = [pair for pair in seen if not links or (pair[0].source, pair[0].number) not in links]
    for pair in alone:
        count = sum(len(segment) for segment in pair[1].segments)
        yield _Group((pair,), tuple((_Look(0, at),) for at in range(count)))
    if together and links:
        looks: dict[tuple[int, int], list[_Look]] = {}
        for number, (release, tokens) in enumerate(together):
            texts = links[release.source, release.number].tolist()
            for side in range(len(tokens.segments)):
                for row, text in enumerate(texts):
                    looks.setdefault((text, side), []).append(_Look(number, side * len(texts) + row))
        yield _Group(tuple(together), tuple(tuple(found) for found in looks.values()))


def _read_group(reader: Reader, group: _Group) -> Guesses:
    joined = [Ragged.concatenate(tokens.segments) for _, tokens in group.releases]
    read = [torch.full((len(each.values),), -1) for each in joined]
    by_count: dict[int, list[tuple[_Look, ...]]] = {}
    for looks in group.looks:
        by_count.setdefault(len(looks), []).append(looks)
    for count, texts in by_count.items():
        kept = [looks for looks in texts if int(joined[looks[0].release].lengths[looks[0].at])]
        if not kept:
            continue
        places = [[_places(joined, looks[look]) for looks in kept] for look in range(count)]
        stacked = [_gathered(joined, [looks[look] for looks in kept], where) for look, where in enumerate(places)]
        lengths = torch.tensor([len(where) for where in places[0]])
        guess = reader.read(stacked, lengths).split(lengths.tolist())
        for look in range(count):
            for looks, where, found in zip(kept, places[look], guess, strict=True):
                read[looks[look].release][where] = found
    for (release, tokens), values in zip(group.releases, read, strict=True):
        parts = values.split([len(segment.values) for segment in tokens.segments])
        segments = zip(tokens.segments, parts, strict=True)
        yield release.source, release.number, Tokens(tuple(segment.with_values(part) for segment, part in segments))


def _places(joined: Sequence[Ragged], look: _Look) -> Tensor:
    offsets = joined[look.release].offsets
    return torch.arange(int(offsets[look.at]), int(offsets[look.at + 1]))


def _gathered(joined: Sequence[Ragged], looks: Sequence[_Look], places: Sequence[Tensor]) -> Tensor:
    return torch.cat([joined[look.release].values[where] for look, where in zip(looks, places, strict=True)])
