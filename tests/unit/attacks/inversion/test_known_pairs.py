"""known-pairs learns what became of words from public ones alone, and from nothing else."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from cutlayer.attacks import Inapplicable, KnownPairs, KnownPairsSpec, Noise, View
from cutlayer.attacks.inversion.channel import Channel, Pairs, draw_ids
from cutlayer.attacks.inversion.known_pairs import known_pairs
from cutlayer.core import Cut, PrecededTokens, Ragged
from cutlayer.privacy import TextToText
from tests.unit.attacks.inversion.test_maximum_posterior import (
    ETA,
    PUBLIC,
    SEARCH,
    SPEC,
    TEXTS,
    constant,
    recovered,
    rng,
    transcript,
)
from tests.unit.attacks.inversion.test_maximum_posterior import knowledge as told_mechanism
from tests.unit.attacks.worlds import CANDIDATES, KNOWLEDGE

PLAIN = torch.arange(20, 100).reshape(2, 40)
KNOWN = dataclasses.replace(KNOWLEDGE, cut=Cut(bottom=None), candidates=CANDIDATES, public=PUBLIC, plain=PLAIN)
SEQUENCES = torch.arange(len(TEXTS)) % 2
WHOLE = PrecededTokens.of(Ragged(PLAIN[SEQUENCES].flatten(), torch.full((len(TEXTS),), 40)), TEXTS, sequences=SEQUENCES)
ATTACK = KnownPairs(KnownPairsSpec(posterior=SPEC))


@pytest.fixture(scope="module")
def released():
    """Texts behind public words, drawn alike."""
    ids = draw_ids(WHOLE.values, SEARCH, privacy=TextToText(eta=1), etas=constant(ETA)(WHOLE.values), rng=rng(3))
    return WHOLE.with_values(ids)


def share(released, known=KNOWN):
    shown, truth = transcript(released)
    return truth.score(ATTACK(View(shown, known))).success.value


def test_pairs_are_what_the_public_words_became(released):
    shown, _ = transcript(released)
    pairs = known_pairs(shown, KNOWN)
    words, _ = released.parted()
    expected = torch.stack([PLAIN[SEQUENCES].flatten(), words.values], 1)
    found = torch.stack([pairs.true, pairs.released], 1)
    kinds = [each.unique(dim=0, return_counts=True) for each in (found, expected)]
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*kinds, strict=True))


def test_it_reads_as_one_who_is_told_the_mechanism(released):
    shown, truth = transcript(released)
    own = released.parted()[1]
    as_released = float((own.values == TEXTS.values).double().mean())
    told = recovered(None, (shown, truth), told_mechanism(Noise(TextToText(eta=ETA))))
    learnt = share(released)
    assert as_released + 0.1 < learnt
    assert learnt > told - 0.04


def test_pairs_that_are_no_pairs_tell_nothing(released):
    """The planted fault: each word beside what another one became."""
    crossed = dataclasses.replace(KNOWN, plain=PLAIN.roll(7, 1))
    assert share(released, crossed) < share(released) - 0.1


def test_the_fit_ends_where_it_would_from_the_right_eta(released):
    shown, _ = transcript(released)
    pairs = known_pairs(shown, KNOWN)
    from_nothing, from_eta = (Channel(SEARCH, pairs, eta=eta) for eta in (0.0, ETA))
    assert from_nothing.weights == pytest.approx(from_eta.weights, rel=0.02, abs=0.02)


def test_draws_are_the_formulas(released):
    shown, _ = transcript(released)
    channel = Channel(SEARCH, known_pairs(shown, KNOWN), eta=0.0)
    true = torch.tensor([42, 150]).repeat_interleave(20_000)
    drawn = channel.draw(true, rng(5))
    assert bool(CANDIDATES[drawn].all())
    for word in (42, 150):
        shares = torch.bincount(drawn[true == word], minlength=len(CANDIDATES)).double() / 20_000
        told = channel.log_probability(torch.arange(len(CANDIDATES)), torch.full((len(CANDIDATES), 1), word))
        expected = told[:, 0].double().exp() * CANDIDATES
        assert float((shares - expected).abs().sum()) < 0.06


def test_counts_count_where_they_foretell_pairs_better(released):
    """Of a word that was drawn often they do, if the formula is off; of words drawn a few times they do not."""
    shown, _ = transcript(released)
    channel = Channel(SEARCH, known_pairs(shown, KNOWN), eta=0.0)
    some = KnownPairs(KnownPairsSpec(posterior=SPEC, shrinkages=(3.0, float("inf"))))
    assert some._shrinkage(channel, Pairs(torch.full((500,), 42), torch.full((500,), 150))) == 3.0
    # in random order, as of an attack: else the words that are kept back would be those that no other pair has
    few = torch.arange(10, 200).repeat(6)[torch.randperm(6 * 190, generator=torch.Generator().manual_seed(1))]
    assert some._shrinkage(channel, Pairs(few, channel.draw(few, rng(5)))) == float("inf")


def test_without_public_words_it_says_so(released):
    alone, _ = transcript(released.parted()[1])
    for shown, known in ((alone, KNOWN), (transcript(released)[0], dataclasses.replace(KNOWN, plain=None))):
        with pytest.raises(Inapplicable, match="No public words stood before the texts"):
            list(ATTACK(View(shown, known)))
    with pytest.raises(Inapplicable, match="no text of its own"):
        list(ATTACK(View(transcript(released)[0], dataclasses.replace(KNOWN, public=None))))
