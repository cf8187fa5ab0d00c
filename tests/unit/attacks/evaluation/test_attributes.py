from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cutlayer.attacks import AttributeMlp, AttributeTruth, Inapplicable, SignalSource, Traffic, View, measure
from cutlayer.attacks import Transcript as Seen
from cutlayer.attacks.content import mean_rows
from cutlayer.attacks.evaluation.attributes import CONTROL_ATTACKED, CONTROL_KNOWN
from cutlayer.attacks.evaluation.places import ELSEWHERE
from cutlayer.attacks.evaluation.telling import telling_texts
from cutlayer.attacks.knowledge import UNMARKED
from cutlayer.core import DataError
from cutlayer.wire import Frame, routes
from tests.unit.attacks import worlds
from tests.unit.attacks.worlds import JOB, KNOWLEDGE, RECORD_SET

SET, STEPS = f"record-set/{RECORD_SET}", f"job/{JOB}"
LABELS = torch.tensor([0, 1, 1, 0, 1])
KNOWN = torch.tensor([True, True, False, False, False])


def graded(*probable):
    """Log-probabilities of two classes."""
    second = torch.tensor(probable, dtype=torch.float64)
    return torch.stack([1 - second, second], 1).log()


def further(score):
    return {each.name: each.value for each in score.further}


def test_only_texts_whose_label_is_not_known_are_scored():
    truth = AttributeTruth(LABELS, 2, KNOWN, records={RECORD_SET: torch.arange(5)})
    wrong_where_known = torch.tensor([1, 0, 1, 0, 0])
    score = truth.score([(SET, 1, wrong_where_known[3:]), (SET, 0, wrong_where_known[:3])])
    assert (score.success.n, score.success.value, score.looks) == (3, pytest.approx(2 / 3), 1)
    # labels alone are not graded
    assert further(score) == {"majority": pytest.approx(2 / 3)}
    # by the marginals: the attack says 1 in 1 of 3, and 2 of 3 are
    assert score.chance == pytest.approx(1 / 3 * 2 / 3 + 2 / 3 * 1 / 3)


def test_looks_at_a_text_are_added_up():
    """Each look by itself misleads about another text; together they tell."""
    truth = AttributeTruth(LABELS, 2, KNOWN, steps={(JOB, 1): torch.tensor([2, 3, 4]), (JOB, 2): torch.tensor([3, 2])})
    score = truth.score([(STEPS, 1, graded(0.9, 0.6, 0.8)), (STEPS, 2, graded(0.1, 0.3)), (STEPS, 3, graded(0.5))])
    assert (score.success.n, score.success.value, score.looks) == (3, 1, 2)
    assert further(score)["auc"] == 1


def test_the_area_under_the_curve_is_over_pairs():
    labels = torch.tensor([0, 0, 1, 1, 0, 1])
    truth = AttributeTruth(labels, 2, torch.zeros(6, dtype=torch.bool), steps={(JOB, 1): torch.arange(6)})
    score = truth.score([(STEPS, 1, graded(0.1, 0.4, 0.4, 0.8, 0.9, 0.7))])
    # of 9 pairs the negative 0.9 beats all three, and 0.4 ties once
    assert further(score)["auc"] == pytest.approx((9 - 3 - 0.5) / 9)


def test_texts_of_one_author_are_one_cluster():
    labels = torch.tensor([0, 0, 0, 1, 1, 1]).repeat_interleave(10)
    authors = torch.arange(6).repeat_interleave(10)
    none = torch.zeros(60, dtype=torch.bool)
    guess = torch.tensor([0, 0, 1, 1, 1, 0]).repeat_interleave(10)
    told = AttributeTruth(labels, 2, none, steps={(JOB, 1): torch.arange(60)}, groups=authors)
    alone = replace(told, groups=None)
    ours, theirs = (truth.score([(STEPS, 1, guess)]) for truth in (told, alone))
    assert ours.success.value == theirs.success.value == pytest.approx(2 / 3)
    assert len(ours.hits) == 6
    assert ours.success.standard_error > 2.5 * theirs.success.standard_error
    assert ours.interval[1] - ours.interval[0] > 2 * (theirs.interval[1] - theirs.interval[0])


def test_an_author_is_known_or_attacked_and_never_both():
    authors = torch.tensor([1, 2, 2, 3, 3])
    with pytest.raises(DataError, match=r"1 groups have texts whose label is known") as refused:
        AttributeTruth(LABELS, 2, KNOWN, groups=authors)
    assert refused.value.remedy == "Split by group."
    with pytest.raises(DataError, match="none left to guess"):
        AttributeTruth(LABELS, 2, torch.ones(5, dtype=torch.bool))


def test_the_attacker_is_told_what_it_knows_and_no_more(tmp_path):
    tokens = worlds.random_tokens(5)
    first, second = worlds.pieces(tokens, 3, 2)
    folder = worlds.record(tmp_path, [worlds.shard(0, first), worlds.shard(1, second), worlds.step(1, first)])
    order = torch.tensor([4, 3, 2, 1, 0])  # text 0 lies in the last record
    truth = AttributeTruth(LABELS, 2, KNOWN, records={RECORD_SET: order}, steps={(JOB, 1): torch.tensor([1, 3, 0])})
    labelled = truth.granted(Seen.recorded(folder), KNOWLEDGE).labelled
    assert labelled.of(SET, 0, 3).tolist() == [UNMARKED] * 3
    assert labelled.of(SET, 1, 2).tolist() == [1, 0]
    assert labelled.of(STEPS, 1, 3).tolist() == [1, UNMARKED, 0]
    assert labelled.of(STEPS, 2, 2).tolist() == [UNMARKED] * 2


def test_texts_may_lie_in_different_record_sets(tmp_path):
    other = "c" * 32
    first, second = worlds.pieces(worlds.random_tokens(5), 2, 3)
    frames = [
        worlds.shard(0, first),
        Frame(routes.SHARD_PUT, {"record_set": other, "shard": 0}, tensors=worlds.tensors(second)),
    ]
    transcript = Seen.recorded(worlds.record(tmp_path, frames))
    truth = AttributeTruth(
        LABELS,
        2,
        KNOWN,
        records={
            RECORD_SET: torch.tensor([0, 1, ELSEWHERE, ELSEWHERE, ELSEWHERE]),
            other: torch.tensor([ELSEWHERE, ELSEWHERE, 2, 0, 1]),
        },
    )
    labelled = truth.granted(transcript, KNOWLEDGE).labelled
    assert labelled.of(SET, 0, 2).tolist() == [0, 1]
    assert labelled.of(f"record-set/{other}", 0, 3).tolist() == [UNMARKED] * 3
    score = truth.score([(SET, 0, torch.tensor([1, 0])), (f"record-set/{other}", 0, torch.tensor([0, 1, 0]))])
    assert (score.success.n, score.success.value) == (3, pytest.approx(2 / 3))


def test_a_transcript_of_another_run():
    truth = AttributeTruth(LABELS, 2, KNOWN, records={RECORD_SET: torch.arange(5)}, steps={(JOB, 1): torch.arange(2)})
    with pytest.raises(DataError, match="none of the attacked"):
        truth.score([("job/other", 1, LABELS)])
    with pytest.raises(DataError, match="another number of texts"):
        truth.score([(STEPS, 1, LABELS)])
    with pytest.raises(DataError, match="missing"):
        truth.score([(SET, 1, LABELS)])


def test_a_controls_labels_are_shared_out_as_the_truths():
    labels = (torch.arange(700) % 10 == 0).long()
    sample = AttributeTruth(labels, 2, labels.bool()).sample()
    assert len(sample) == CONTROL_KNOWN + CONTROL_ATTACKED
    assert int(sample.known.sum()) == CONTROL_KNOWN
    assert float(sample.labels.double().mean()) == pytest.approx(0.1, abs=0.01)
    assert 0.05 < float(sample.labels[sample.known].double().mean()) < 0.15


@pytest.mark.parametrize("signal", [SignalSource.WORDS, SignalSource.LENGTHS])
def test_made_up_texts_tell_their_label_in_one_place_alone(signal):
    labels = torch.arange(600) % 3
    words = torch.arange(10, 60)
    texts = telling_texts(labels, 600, 3, signal, words, worlds.generator(1))
    silent = telling_texts(None, 600, 3, signal, words, worlds.generator(1))
    (side,), (other,) = texts.segments, silent.segments

    def told_by_length(ragged):
        return all(len(set(labels[ragged.lengths == length].tolist())) == 1 for length in ragged.lengths.unique())

    def marks(ragged):
        of = labels.repeat_interleave(ragged.lengths)
        return [
            token
            for token in words.tolist()
            if bool((ragged.values == token).any()) and len(set(of[ragged.values == token].tolist())) == 1
        ]

    assert told_by_length(side) == (signal is SignalSource.LENGTHS)
    assert len(marks(side)) == (3 if signal is SignalSource.WORDS else 0)
    assert not told_by_length(other)
    assert not marks(other)


def test_a_vocabulary_without_room_for_marks():
    with pytest.raises(Inapplicable, match="A vocabulary of 3 tokens"):
        telling_texts(LABELS, 5, 3, SignalSource.WORDS, torch.arange(3), worlds.generator(0))


@pytest.mark.parametrize("segments", [1, 2])
def test_control_traffic_has_the_form_of_what_was_sent(tmp_path, segments):
    sent = worlds.random_tokens(5, segments=segments)
    like = Seen.recorded(worlds.record(tmp_path, [worlds.shard(0, worlds.as_rows(sent))]))
    truth = AttributeTruth(LABELS, 2, KNOWN).sample()
    for kind in Traffic:
        made, known = truth.traffic(kind, like, KNOWLEDGE, looks=2, rng=worlds.generator(0))
        releases = list(made.releases())
        assert len(releases) == 2
        for release in releases:
            assert release.payload.packed.values.dtype is torch.bfloat16
            assert release.payload.segment_lengths.shape == (len(truth), segments)
            labelled = known.granted(made, KNOWLEDGE).labelled
            assert int((labelled.of(release.source, release.number, len(truth)) != UNMARKED).sum()) == CONTROL_KNOWN
    with pytest.raises(Inapplicable, match="no released text"):
        truth.traffic(Traffic.NOISE, Seen(lambda: iter(())), KNOWLEDGE, looks=1, rng=worlds.generator(0))


# ---------------------------------------------------------------- the perceptron


def test_means_are_of_rows_or_of_the_rows_of_ids():
    tokens = worlds.random_tokens(40, segments=2, longest=3)
    table = KNOWLEDGE.table
    sides = [side.values.split(side.lengths.tolist()) for side in tokens.segments]
    of_ids = [torch.cat([table[a], table[b]]) for a, b in zip(*sides, strict=True)]
    expected = torch.stack([rows.mean(0) if len(rows) else torch.zeros(table.shape[1]) for rows in of_ids])
    assert torch.allclose(mean_rows(tokens, KNOWLEDGE), expected, atol=1e-6)
    rows = worlds.as_rows(tokens)
    assert torch.allclose(mean_rows(rows, KNOWLEDGE)[7], rows.packed[7].mean(0), atol=1e-6)
    with pytest.raises(Inapplicable, match="no embedding table"):
        mean_rows(tokens, replace(KNOWLEDGE, table=None))


def test_more_labels_read_more(tmp_path):
    """Rows under noise: a dozen labels say little of them, hundreds much."""
    rng = worlds.generator(4)
    labels = torch.randint(2, (900,), generator=rng)
    texts = telling_texts(labels, 900, 2, SignalSource.WORDS, torch.arange(10, 200), rng)
    transcript = Seen.recorded(worlds.record(tmp_path, [worlds.shard(0, worlds.as_rows(texts, sigma=2))]))
    shares = []
    for count in (12, 400):
        truth = AttributeTruth(labels, 2, torch.arange(900) < count, records={RECORD_SET: torch.arange(900)})
        guesses = AttributeMlp()(View(transcript, truth.granted(transcript, KNOWLEDGE)))
        shares.append(truth.score(guesses).success.value)
    assert shares[0] + 0.05 < shares[1]


def test_without_a_known_label_there_is_nothing_to_learn_from(tmp_path):
    transcript = Seen.recorded(worlds.record(tmp_path, [worlds.shard(0, worlds.random_tokens(5))]))
    with pytest.raises(Inapplicable, match="was granted none"):
        list(AttributeMlp()(View(transcript, KNOWLEDGE)))
    truth = AttributeTruth(LABELS, 2, torch.zeros(5, dtype=torch.bool), records={RECORD_SET: torch.arange(5)})
    outcome = measure("attribute-mlp", transcript, knowledge=KNOWLEDGE, truth=truth)
    assert outcome.status == "not applicable"
    assert outcome.reason == "The attacker knows the label of no record that was released."
