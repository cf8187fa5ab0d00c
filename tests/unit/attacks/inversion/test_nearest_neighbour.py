from __future__ import annotations

import dataclasses

import pytest
import torch

from cutlayer.attacks import (
    Inapplicable,
    Knowledge,
    Measured,
    NotApplicable,
    TokenTruth,
    Transcript,
    View,
    measure_empirical_privacy,
)
from cutlayer.attacks.content import content_rows
from cutlayer.attacks.inversion.nearest_neighbour import NearestNeighbour
from cutlayer.core import Cut
from cutlayer.wire import WireType
from tests.unit.attacks import worlds
from tests.unit.attacks.worlds import JOB, KNOWLEDGE, RECORD_SET, TABLE, record


def guesses(folder, knowledge=KNOWLEDGE):
    return list(NearestNeighbour()(View(Transcript.recorded(folder), knowledge)))


@pytest.mark.parametrize("segments", [1, 2])
@pytest.mark.parametrize("wire_type", WireType)
def test_rows_without_noise_give_the_texts_without_their_special_tokens(tmp_path, segments, wire_type):
    tokens = worlds.random_tokens(20, segments=segments)
    record(tmp_path, [worlds.shard(0, worlds.as_rows(tokens), wire_type)])
    ((_, _, guess),) = guesses(tmp_path)
    for expected, found in zip(tokens.segments, guess.segments, strict=True):
        assert torch.equal(expected.values, found.values)
        assert torch.equal(expected.lengths, found.lengths)


def test_the_guess_is_the_nearest_row_of_the_initial_table(tmp_path):
    tokens = worlds.random_tokens(50)
    noisy = worlds.as_rows(tokens, sigma=0.8)
    record(tmp_path, [worlds.shard(0, noisy, WireType.FP32)])
    ((_, _, guess),) = guesses(tmp_path)
    content, _ = content_rows(noisy, KNOWLEDGE)
    assert torch.equal(guess.segments[0].values, torch.cdist(content.double(), TABLE.double()).argmin(1))
    assert 0.3 < (guess.segments[0].values == tokens.segments[0].values).double().mean() < 0.95


def test_only_candidates_are_guessed(tmp_path):
    allowed = torch.arange(worlds.VOCAB) % 2 == 0
    record(tmp_path, [worlds.shard(0, worlds.as_rows(worlds.random_tokens(30)))])
    ((_, _, guess),) = guesses(tmp_path, dataclasses.replace(KNOWLEDGE, candidates=allowed))
    assert allowed[guess.segments[0].values].all()


def test_ids_are_their_own_nearest_neighbours_and_need_no_table(tmp_path):
    tokens = worlds.random_tokens(10)
    record(tmp_path, [worlds.shard(0, tokens)])
    ((_, _, guess),) = guesses(tmp_path, Knowledge(cut=Cut(bottom=None)))
    assert torch.equal(guess.segments[0].values, tokens.segments[0].values)


@pytest.mark.parametrize("bottom", [1, 6])
def test_hidden_states_are_not_applicable_rather_than_private(tmp_path, bottom):
    tokens = worlds.random_tokens(30)
    record(tmp_path, [worlds.shard(0, worlds.as_rows(tokens))])
    truth = TokenTruth(tokens, records={RECORD_SET: torch.arange(30)})
    knowledge = dataclasses.replace(KNOWLEDGE, cut=Cut(bottom=bottom))
    outcome = measure_empirical_privacy(tmp_path, knowledge=knowledge, truth=truth)
    assert isinstance(outcome, NotApplicable)
    assert f"after {bottom} block" in outcome.reason
    assert "success" not in outcome.model_dump()


@pytest.mark.parametrize(
    ("knowledge", "reason"),
    [
        (Knowledge(cut=Cut(bottom=0)), "given no embedding table"),
        (Knowledge(cut=Cut(bottom=0), table=TABLE), "not told where special tokens stand"),
        (dataclasses.replace(KNOWLEDGE, table=torch.randn(50, 5)), "12 wide, rows of the embedding table 5"),
    ],
)
def test_rows_that_the_attacker_cannot_place(tmp_path, knowledge, reason):
    record(tmp_path, [worlds.shard(0, worlds.as_rows(worlds.random_tokens(5)))])
    with pytest.raises(Inapplicable, match=reason):
        guesses(tmp_path, knowledge)


def test_every_look_adds_to_the_union(tmp_path):
    """Appendix A: with a fresh release each epoch, recovery grows with the epochs."""
    tokens = worlds.random_tokens(300, seed=5)
    batches = torch.arange(300).split(100)
    recovered = []
    for epochs in (1, 4):
        frames, steps = [], {}
        for epoch in range(epochs):
            for number, texts in enumerate(batches, start=1 + epoch * len(batches)):
                rows = worlds.as_rows(tokens.select(texts), sigma=0.9, seed=number)
                frames.append(worlds.step(number, rows))
                steps[JOB, number] = texts
        folder = record(tmp_path / str(epochs), frames)
        outcome = measure_empirical_privacy(folder, knowledge=KNOWLEDGE, truth=TokenTruth(tokens, steps=steps))
        assert isinstance(outcome, Measured)
        assert outcome.looks == epochs
        recovered.append(outcome.success.value)
    once, four_times = recovered
    # looks are independent, so the union misses what all four miss
    assert four_times > once + 0.1
    assert four_times <= 1 - (1 - once) ** 4 + 0.05
