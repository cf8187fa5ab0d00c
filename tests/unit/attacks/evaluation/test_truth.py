from __future__ import annotations

import pytest
import torch

from cutlayer.attacks import LabelTruth, TokenTruth
from cutlayer.attacks.evaluation.traffic import CONTROL_ITEMS
from cutlayer.core import DataError, Ragged, Tokens
from tests.unit.attacks import worlds
from tests.unit.attacks.worlds import JOB, RECORD_SET

SET = f"record-set/{RECORD_SET}"
STEPS = f"job/{JOB}"


def altered(tokens, *places):
    """The same texts with other tokens at some flat places of the first segment."""
    first, *rest = tokens.segments
    values = first.values.clone()
    values[list(places)] += 1
    return Tokens((first.with_values(values), *rest))


@pytest.mark.parametrize("segments", [1, 2])
def test_shards_are_counted_through_in_order_whatever_order_they_came_in(segments):
    tokens = worlds.random_tokens(9, segments=segments)
    truth = TokenTruth(tokens, records={RECORD_SET: torch.arange(9)})
    a, b, c = worlds.pieces(tokens, 4, 3, 2)
    score = truth.score([(SET, 2, c), (SET, 0, a), (SET, 1, altered(b, 0, 2))])
    assert score.success.n == tokens.total
    assert score.success.value == pytest.approx(1 - 2 / tokens.total)
    assert score.looks == 1


def test_texts_that_share_a_record_count_each():
    records = Tokens((Ragged.from_lists([[11, 12], [13]]),))
    texts = records.select([0, 1, 0, 0])
    truth = TokenTruth(texts, records={RECORD_SET: torch.tensor([0, 1, 0, 0])})
    score = truth.score([(SET, 0, altered(records, 0))])
    assert (score.success.n, score.success.value) == (7, pytest.approx(4 / 7))


def test_a_token_is_recovered_if_any_look_recovers_it():
    tokens = Tokens((Ragged.from_lists([[11, 12], [13], [14, 15]]),))
    truth = TokenTruth(
        tokens, steps={(JOB, 1): torch.tensor([2, 0]), (JOB, 2): torch.tensor([1]), (JOB, 3): torch.tensor([0])}
    )
    wrong = Tokens((Ragged.from_lists([[14, 0], [11, 0]]),))
    looks = [
        (STEPS, 1, wrong),
        (STEPS, 2, Tokens((Ragged.from_lists([[0]]),))),
        (STEPS, 3, Tokens((Ragged.from_lists([[0, 12]]),))),
    ]
    score = truth.score(looks)
    assert (score.success.n, score.success.value, score.looks) == (5, pytest.approx(3 / 5), 2)


def test_only_texts_that_were_shown_are_counted():
    tokens = worlds.random_tokens(5, seed=4)
    chosen = torch.tensor([3, 1])
    truth = TokenTruth(tokens, steps={(JOB, 1): chosen})
    score = truth.score([(STEPS, 1, tokens.select(chosen)), (STEPS, 2, tokens), ("adapter/x/infer", 0, tokens)])
    assert score.success.n == tokens.select(chosen).total
    assert score.success.value == 1


def test_a_transcript_of_another_run():
    tokens = worlds.random_tokens(6)
    truth = TokenTruth(tokens, records={RECORD_SET: torch.arange(6)})
    with pytest.raises(DataError, match="none of the texts"):
        truth.score([("record-set/" + "f" * 32, 0, tokens)])
    with pytest.raises(DataError, match="not as long"):
        truth.score([(SET, 0, tokens.select([1, 0, 2, 3, 4, 5]))])
    with pytest.raises(DataError, match="not as long"):
        truth.score([(SET, 0, Tokens((tokens.segments[0], tokens.segments[0])))])


def test_a_shard_that_the_transcript_lacks():
    tokens = worlds.random_tokens(6)
    a, b, c = worlds.pieces(tokens, 2, 2, 2)
    truth = TokenTruth(tokens, records={RECORD_SET: torch.arange(6)})
    for found in ([(0, a), (2, c)], [(0, a), (1, b)]):
        with pytest.raises(DataError, match="missing"):
            truth.score([(SET, number, guess) for number, guess in found])


def test_samples_are_spread_and_bounded():
    large = TokenTruth(worlds.random_tokens(4000))
    sample = large.sample()
    assert CONTROL_ITEMS / 2 < sample.tokens.total < 1.2 * CONTROL_ITEMS
    small = TokenTruth(worlds.random_tokens(10))
    assert small.sample().tokens.total == small.tokens.total


def test_labels_are_scored_row_by_row_of_each_step():
    truth = LabelTruth(torch.tensor([0, 1, 2]), 3, {(JOB, 1): torch.tensor([2, 0]), (JOB, 2): torch.tensor([1, 2])})
    score = truth.score(
        [(STEPS, 1, torch.tensor([2, 1])), (STEPS, 2, torch.tensor([1, 2])), (STEPS, 9, torch.tensor([0]))]
    )
    assert (score.success.n, score.success.value, score.looks) == (4, 0.75, 2)
    with pytest.raises(DataError, match="another number of texts"):
        truth.score([(STEPS, 1, torch.tensor([2]))])
    with pytest.raises(DataError, match="none of the steps"):
        truth.score([])
