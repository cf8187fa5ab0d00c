from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cutlayer.attacks import AttributeTruth, Inapplicable, LengthClassifier, Lengths, LengthTruth, View
from cutlayer.attacks import Transcript as Seen
from cutlayer.core import DataError, Ragged, Tokens
from tests.unit.attacks import worlds
from tests.unit.attacks.worlds import JOB, KNOWLEDGE, RECORD_SET

SET = f"record-set/{RECORD_SET}"


def seen(folder, payload):
    return Seen.recorded(worlds.record(folder, [worlds.shard(0, payload)]))


def of_lengths(lengths):
    return Tokens((Ragged(torch.full((int(lengths.sum()),), 11), lengths),))


@pytest.mark.parametrize("segments", [1, 2])
@pytest.mark.parametrize("form", ["ids", "rows"])
def test_lengths_are_read_without_special_tokens(tmp_path, segments, form):
    tokens = worlds.random_tokens(30, segments=segments)
    payload = worlds.as_rows(tokens) if form == "rows" else tokens
    ((_, _, found),) = Lengths()(View(seen(tmp_path, payload), KNOWLEDGE))
    assert torch.equal(found, torch.stack([side.lengths for side in tokens.segments]).sum(0))
    if form == "rows":
        with pytest.raises(Inapplicable, match="not told where special tokens"):
            list(Lengths()(View(seen(tmp_path, payload), replace(KNOWLEDGE, template=None))))


def test_a_length_that_no_other_text_has_gives_the_text_away():
    lengths = torch.tensor([3, 3, 4, 7, 9])
    score = LengthTruth(lengths, records={RECORD_SET: torch.arange(5)}).score([(SET, 0, lengths)])
    told = {each.name: each.value for each in score.further}
    assert score.success.value == 1
    assert told == {"unique_length": pytest.approx(3 / 5), "lengths": 4}
    assert score.chance == pytest.approx((2 * 2 / 5 + 3 * 1 / 5) / 5)


def test_a_transcript_of_another_run():
    truth = LengthTruth(torch.tensor([3]), steps={(JOB, 1): torch.arange(1)})
    with pytest.raises(DataError, match="none of the texts"):
        truth.score([])


def test_classes_are_told_as_often_as_lengths_allow(tmp_path):
    """Class 1 has 6 tokens three times in four, class 0 one time in four: no more than three in four can be right."""
    rng = worlds.generator(3)
    labels = torch.randint(2, (4000,), generator=rng)
    odd = torch.rand(4000, generator=rng) < 0.25
    lengths = torch.where(odd ^ labels.bool(), 6, 3)
    truth = AttributeTruth(labels, 2, torch.arange(4000) < 2000, records={RECORD_SET: torch.arange(4000)})
    transcript = seen(tmp_path, of_lengths(lengths))
    score = truth.score(LengthClassifier()(View(transcript, truth.granted(transcript, KNOWLEDGE))))
    assert score.success.value == pytest.approx(0.75, abs=0.03)
    ((_, _, guess),) = LengthClassifier()(View(transcript, truth.granted(transcript, KNOWLEDGE)))
    assert float(guess.exp()[lengths == 6][0, 1]) == pytest.approx(0.75, abs=0.03)


def test_long_tails_are_put_together(tmp_path):
    lengths = torch.arange(1, 201)
    truth = AttributeTruth((lengths > 100).long(), 2, lengths % 2 == 0, records={RECORD_SET: torch.arange(200)})
    transcript = seen(tmp_path, of_lengths(lengths))
    view = View(transcript, truth.granted(transcript, KNOWLEDGE))
    assert truth.score(LengthClassifier(bins=4)(view)).success.value == 1
    ((_, _, guess),) = LengthClassifier(bins=4)(view)
    assert 2 < len(guess.unique(dim=0)) <= 8  # four a class


def test_rare_classes_stay_rare(tmp_path):
    labels = (torch.arange(500) % 20 == 0).long()
    truth = AttributeTruth(labels, 2, torch.arange(500) < 300, records={RECORD_SET: torch.arange(500)})
    transcript = seen(tmp_path, of_lengths(torch.full((500,), 5)))
    score = truth.score(LengthClassifier()(View(transcript, truth.granted(transcript, KNOWLEDGE))))
    assert score.success.value == pytest.approx(0.95)
    assert score.chance == pytest.approx(0.95)
