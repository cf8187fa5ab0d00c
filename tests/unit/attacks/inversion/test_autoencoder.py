from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cutlayer.attacks import AutoencoderInversion, Fitting, Noise, PublicText, TokenTruth, View, simulate
from cutlayer.attacks import Transcript as Seen
from cutlayer.core import DataError, Ragged, Tokens
from cutlayer.privacy import Vector
from tests.unit.attacks import worlds
from tests.unit.attacks.test_simulate import seeded
from tests.unit.attacks.worlds import JOB, KNOWLEDGE, RECORD_SET, TABLE, VOCAB

SET, STEPS = f"record-set/{RECORD_SET}", f"job/{JOB}"
QUICK = AutoencoderInversion(fitting=Fitting(passes=6, batch=64, learning_rate=3e-3))


def further(score):
    return {each.name: each.value for each in score.further}


def rows_of(tokens, error=0.0):
    (side,) = tokens.segments
    return Tokens((side.with_values(TABLE[side.values] + error),))


def test_guessed_rows_count_as_the_nearest_token_and_by_their_distance():
    tokens = Tokens((Ragged.from_lists([[11, 12], [13]]),))
    truth = TokenTruth(tokens, records={RECORD_SET: torch.arange(2)}, search=KNOWLEDGE.search)
    exact = truth.score([(SET, 0, rows_of(tokens))])
    assert exact.success.value == 1
    assert further(exact)["mse"] == pytest.approx(0, abs=1e-9)
    assert further(exact)["cosine"] == pytest.approx(1)
    own = TABLE[tokens.segments[0].values]
    assert further(exact)["mse_blind"] == pytest.approx(float((own - own.mean(0)).square().sum(1).mean()))
    # 12 elements, each off by 0.1
    near = truth.score([(SET, 0, rows_of(tokens, error=0.1))])
    assert near.success.value == 1
    assert further(near)["mse"] == pytest.approx(12 * 0.01)
    other = rows_of(Tokens((Ragged.from_lists([[11, 14], [13]]),)))
    wrong = truth.score([(SET, 0, other)])
    assert wrong.success.value == pytest.approx(2 / 3)
    assert further(wrong)["mse"] == pytest.approx(float((TABLE[14] - TABLE[12]).square().sum()) / 3)
    assert wrong.further[0].interval[0] < further(wrong)["mse"] < wrong.further[0].interval[1]


def test_of_several_looks_each_rows_distance_counts_and_any_hit():
    tokens = Tokens((Ragged.from_lists([[11], [12]]),))
    truth = TokenTruth(tokens, steps={(JOB, 1): torch.arange(2), (JOB, 2): torch.tensor([1])}, search=KNOWLEDGE.search)
    one = rows_of(Tokens((Ragged.from_lists([[11], [13]]),)))
    score = truth.score([(STEPS, 1, one), (STEPS, 2, rows_of(tokens.select([1])))])
    assert (score.success.value, score.looks) == (1, 2)
    assert further(score)["mse"] == pytest.approx(float((TABLE[13] - TABLE[12]).square().sum()) / 3)


def test_rows_need_a_table_to_be_compared_with():
    tokens = Tokens((Ragged.from_lists([[11, 12]]),))
    with pytest.raises(DataError, match="no table"):
        TokenTruth(tokens, records={RECORD_SET: torch.arange(1)}).score([(SET, 0, rows_of(tokens))])


def test_it_takes_noise_off(tmp_path):
    """Rows that it guesses are nearer to the true ones than those released, and than the mean row."""
    public = PublicText(worlds.random_tokens(2000, seed=1), source="made up")
    noise = Noise(Vector(eta=6))
    knowledge = replace(KNOWLEDGE, candidates=torch.arange(VOCAB) >= 10, noise=noise, public=public)
    tokens = worlds.random_tokens(200, seed=2)
    released = simulate(tokens, knowledge, rows=torch.float32, rng=seeded(5))
    transcript = Seen.recorded(worlds.record(tmp_path, [worlds.shard(0, released)]))
    truth = TokenTruth(tokens, records={RECORD_SET: torch.arange(200)}, search=knowledge.search)
    found = further(truth.score(QUICK(View(transcript, knowledge))))
    assert found["mse"] < 0.8 * 12 * 13 / 36  # E of the squared radius is width (width + 1) / eta²
    assert found["mse"] < 0.6 * found["mse_blind"]
    assert found["cosine"] > 0.8
