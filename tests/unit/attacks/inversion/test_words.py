"""Attacks where words are drawn within their group, and others leave as they are."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from cutlayer.attacks import (
    MaximumPosterior,
    Measured,
    MultiRun,
    MultiRunSpec,
    Noise,
    NotApplicable,
    TokenTruth,
    Transcript,
    View,
    measure,
)
from cutlayer.attacks.evaluation.traffic import packed, sent
from cutlayer.attacks.inversion.channel import Channel, Pairs, draw_ids
from cutlayer.attacks.simulate import simulate
from cutlayer.core import Cut, Ragged, Tokens
from cutlayer.privacy import Words
from cutlayer.privacy.neighbours import NeighbourSearch
from cutlayer.privacy.replacement import CLEAR
from cutlayer.wire.recording import Direction
from tests.unit.attacks.inversion.test_maximum_posterior import PUBLIC, SPEC, TEXTS, constant, rng, transcript
from tests.unit.attacks.worlds import ASKED, KNOWLEDGE, TABLE, VOCAB

ETA = 1.5
NUMBERS = torch.arange(VOCAB)
GROUPS = torch.where(NUMBERS >= 180, CLEAR, (NUMBERS >= 100).long())
"""Two groups of words that are drawn, and words that leave as they are."""
COME_OUT = (NUMBERS >= 10) & (GROUPS != CLEAR) & (NUMBERS % 10 != 3)
"""One in ten is not in the vocabulary: it is drawn, and never comes out."""
SEARCH = NeighbourSearch(TABLE, COME_OUT, groups=GROUPS)
(SIDE,) = TEXTS.segments
CLEAR_ONES = GROUPS[SIDE.values] == CLEAR


def drawn(seed, *, search=SEARCH, eta=ETA):
    ids = draw_ids(SIDE.values, search, privacy=Words(eta=1), etas=constant(eta)(SIDE.values), rng=rng(seed))
    return Tokens((SIDE.with_values(ids),))


def world(released, *, groups=GROUPS, eta=ETA):
    shown, truth = transcript(released)
    known = dataclasses.replace(
        KNOWLEDGE, cut=Cut(bottom=None), template=None, candidates=COME_OUT, groups=groups,
        noise=Noise(Words(eta=eta)), public=PUBLIC,
    )  # fmt: skip
    return shown, dataclasses.replace(truth, uncounted=GROUPS == CLEAR), known


def test_an_attackers_own_draws_are_those_of_the_mechanism():
    released = drawn(3).segments[0].values
    assert torch.equal(released[CLEAR_ONES], SIDE.values[CLEAR_ONES])
    assert torch.equal(GROUPS[released], GROUPS[SIDE.values])
    assert bool(COME_OUT[released[~CLEAR_ONES]].all())
    _, _, known = world(drawn(3))
    own = simulate(TEXTS, known, rows=None, rng=rng(4)).segments[0].values
    assert torch.equal(own[CLEAR_ONES], SIDE.values[CLEAR_ONES])
    assert torch.equal(GROUPS[own], GROUPS[SIDE.values])
    everywhere = NeighbourSearch(TABLE, COME_OUT)
    assert not torch.equal(GROUPS[drawn(3, search=everywhere).segments[0].values], GROUPS[SIDE.values])


def test_the_channel_knows_groups_and_words_in_clear():
    chosen = GROUPS[NUMBERS] != CLEAR
    unigram = torch.where(chosen & (NUMBERS >= 10), -5.0, -torch.inf).double()
    pairs = Pairs.drawn(4000, SEARCH, unigram, privacy=Words(eta=1), etas=constant(ETA), rng=rng())
    assert not bool((GROUPS[pairs.true] == CLEAR).any())
    channel = Channel(SEARCH, pairs, eta=ETA)
    told = channel.log_probability(NUMBERS, torch.tensor([20, 120, 185]).expand(VOCAB, 3)).double().exp()
    come = told * COME_OUT[:, None]
    assert come.sum(0).tolist()[:2] == pytest.approx([1, 1], abs=1e-3)
    for column, group in ((0, 0), (1, 1)):
        assert float(told[group != GROUPS, column].max()) == 0
    assert told[:, 2].argmax() == 185
    assert float(told[185, 2]) == 1
    assert float(told[NUMBERS != 185, 2].max()) == 0


def test_no_guess_is_outside_of_the_group_and_bigrams_help():
    shown, truth, known = world(drawn(3))
    released = drawn(3).segments[0].values
    guesses = list(MaximumPosterior(SPEC)(View(shown, known)))
    ((_, _, guess),) = guesses
    found = guess.segments[0].values
    assert torch.equal(GROUPS[found], GROUPS[released])
    assert torch.equal(found[CLEAR_ONES], SIDE.values[CLEAR_ONES])
    score = truth.score(guesses).success
    assert score.n == int((~CLEAR_ONES).sum()), "words that leave as they are are no success"
    plain = float((released == SIDE.values)[~CLEAR_ONES].double().mean())
    assert 0.1 < plain < 0.6, "noise that hides some"
    assert score.value > plain + 0.1


def test_words_that_leave_as_they_are_would_be_a_success():
    """So the test above can fail."""
    shown, truth, known = world(drawn(3))
    nearest = measure("nearest-neighbour", shown, knowledge=known, truth=truth)
    counted = measure("nearest-neighbour", shown, knowledge=known, truth=dataclasses.replace(truth, uncounted=None))
    assert isinstance(nearest, Measured)
    assert isinstance(counted, Measured)
    assert counted.success.n == TEXTS.total > nearest.success.n
    assert counted.success.value > nearest.success.value


def test_where_no_word_was_drawn_there_is_nothing_to_read():
    shown, truth, known = world(drawn(3))
    none = dataclasses.replace(truth, uncounted=torch.ones(VOCAB, dtype=torch.bool))
    found = measure("nearest-neighbour", shown, knowledge=known, truth=none)
    assert isinstance(found, NotApplicable)
    assert "No word of these texts was drawn" in found.reason


def test_draws_of_several_runs_are_read_together():
    """Whoever is not told which texts are copies finds them: words in clear are certain, others of one group."""
    runs = [drawn(seed, eta=2.5).segments[0].values for seed in (3, 4, 5)]
    lengths = torch.stack([some.sum() for some in SIDE.lengths.split(5)])
    sides = [Tokens((Ragged(values, lengths),)) for values in runs]
    steps = [sent(Direction.UP, step, packed(side, side)) for step, side in enumerate(sides, start=1)]
    _, _, known = world(sides[0], eta=2.5)

    def share(attack):
        ((_, _, guess), *_) = attack(View(Transcript(lambda: steps), known))
        found = guess.segments[0].values
        assert torch.equal(found[CLEAR_ONES], SIDE.values[CLEAR_ONES])
        return float((found == SIDE.values)[~CLEAR_ONES].double().mean())

    assert share(MultiRun(MultiRunSpec(posterior=SPEC))) > share(MaximumPosterior(SPEC)) + 0.15


@pytest.mark.parametrize("attack", ["nearest-neighbour", "maximum-posterior"])
def test_controls_pass(attack):
    shown, truth, known = world(drawn(3))
    outcome = measure(attack, shown, knowledge=known, truth=truth)
    assert isinstance(outcome, Measured), outcome
    assert {control.check for control in outcome.controls} >= ASKED
    assert all(control.passed is not False for control in outcome.controls), [str(each) for each in outcome.controls]
    assert isinstance(truth, TokenTruth)
