"""Looks at one original are found and read together; where there is one look, it is maximum-posterior's."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from cutlayer.attacks import (
    Check,
    ControlFailed,
    Inapplicable,
    MaximumPosterior,
    Measured,
    MultiRun,
    Noise,
    PublicText,
    TokenTruth,
    Transcript,
    View,
    measure,
)
from cutlayer.attacks.evaluation.simplest import most_said
from cutlayer.attacks.inversion.alignment import Looks
from cutlayer.attacks.inversion.channel import draw_ids
from cutlayer.attacks.inversion.multi_run import JointReader
from cutlayer.core import Ragged, Tokens
from cutlayer.privacy import TextToText, Vector
from tests.unit.attacks import worlds
from tests.unit.attacks.worlds import RECORD_SET, record

ETA, TEXTS, LONGEST = 3.5, 120, 24
OTHER_SET = "c" * 32
KNOWLEDGE = dataclasses.replace(
    worlds.KNOWLEDGE,
    candidates=worlds.CANDIDATES,
    noise=Noise(TextToText(eta=ETA)),
    public=PublicText(worlds.random_tokens(2000, seed=1), source="made up"),
)


def drawn(texts: Ragged, *, seed: int, eta: float = ETA) -> Ragged:
    """Texts as they leave, each token by a draw of its own."""
    etas = torch.full((len(texts.values),), eta, dtype=torch.float64)
    rng = np.random.Generator(np.random.PCG64(seed))
    return texts.with_values(draw_ids(texts.values, KNOWLEDGE.search, privacy=TextToText(eta=1), etas=etas, rng=rng))


def long_texts() -> Ragged:
    """Without order, and of words that are about as frequent as each other, so that passages are told apart."""
    rng = worlds.generator(5)
    lengths = torch.randint(LONGEST - 6, LONGEST + 1, (TEXTS,), generator=rng)
    return Ragged(torch.randint(10, worlds.VOCAB, (int(lengths.sum()),), generator=rng), lengths)


@pytest.fixture(scope="module")
def reader() -> JointReader:
    found = JointReader.of(MaximumPosterior().reader(KNOWLEDGE, rows=False))
    assert found is not None
    return found


def right(found: torch.Tensor, texts: Ragged) -> float:
    return float((found == texts.values).double().mean())


def test_one_look_is_read_as_maximum_posterior_reads_it(reader: JointReader) -> None:
    texts = long_texts()
    released = drawn(texts, seed=1)
    alone = torch.arange(len(texts.values))
    assert torch.equal(
        reader.read(released, Looks(alone, alone)), reader.posterior.read([released.values], released.lengths)
    )
    looks = reader.aligned(released)
    # texts that have nothing in common
    assert float((looks.original != alone).double().mean()) < 0.02


def test_runs_in_another_order_and_under_other_cuts_are_read_together(reader: JointReader) -> None:
    texts = long_texts()
    order = torch.randperm(TEXTS, generator=worlds.generator(6))
    runs = [texts, texts.select(order).first(texts.lengths[order] - 3), texts.first(texts.lengths - 5)]
    released = Ragged.concatenate([drawn(run, seed=number) for number, run in enumerate(runs)])
    every = Ragged.concatenate(runs)
    looks = reader.aligned(released)
    joined = looks.original != torch.arange(len(every.values))
    assert float(joined.double().mean()) > 0.5
    assert float((every.values[looks.original] == every.values)[joined].double().mean()) > 0.95
    single = right(reader.posterior.read([released.values], released.lengths), every)
    assert right(reader.read(released, looks), every) > single + 0.1


def test_a_passage_within_texts_is_found_at_any_place(reader: JointReader) -> None:
    texts = long_texts()
    signature = torch.randint(10, worlds.VOCAB, (16,), generator=worlds.generator(8))
    signed = Ragged.from_lists(
        [
            [*text.tolist(), *(signature.tolist() if number % 8 == 0 else [])]
            for number, text in enumerate(texts.split())
        ]
    )
    released = drawn(signed, seed=2)
    last = torch.arange(len(signed.values)) >= signed.offsets[1:].repeat_interleave(signed.lengths) - 16
    last &= (torch.arange(TEXTS) % 8 == 0).repeat_interleave(signed.lengths)
    single = reader.posterior.read([released.values], released.lengths) == signed.values
    joint = reader.read(released, reader.aligned(released)) == signed.values
    assert float(joint[last].double().mean()) > max(0.75, float(single[last].double().mean()) + 0.2)
    assert abs(float(joint[~last].double().mean()) - float(single[~last].double().mean())) < 0.03


def test_the_same_draw_again_tells_nothing_more(reader: JointReader) -> None:
    texts = long_texts()
    once = drawn(texts, seed=3)
    again = once.first(once.lengths - 2)
    released = Ragged.concatenate([once, again, again])
    looks = reader.aligned(released)
    assert looks.most <= 2
    places = len(once.values)
    tied = looks.draw[places:] != torch.arange(places, len(released.values))
    assert float(tied.double().mean()) > 0.9
    read = reader.read(released, looks)[:places]
    assert float((read == reader.posterior.read([once.values], once.lengths)).double().mean()) > 0.95


def test_two_transcripts_are_scored_as_one_customer(tmp_path, reader: JointReader) -> None:
    texts = long_texts()
    order = torch.randperm(TEXTS, generator=worlds.generator(9))
    runs = [texts, texts.select(order)]
    seen, truths = [], []
    for name, run in zip((RECORD_SET, OTHER_SET), runs, strict=True):
        sent = Tokens((drawn(run, seed=len(seen) + 20),))
        seen.append(Transcript.recorded(record(tmp_path / name, [worlds.shard(0, sent, record_set=name)])))
        truths.append(TokenTruth(Tokens((run,)), records={name: torch.arange(TEXTS)}))
    truth = TokenTruth.joined(truths, torch.cat([torch.arange(TEXTS), order]))
    scores = [
        truth.score(attack(View(Transcript.joined(seen), KNOWLEDGE))) for attack in (MaximumPosterior(), MultiRun())
    ]
    assert int((scores[0].trials > 0).sum()) == TEXTS
    assert scores[1].success.n == 2 * len(texts.values)
    assert scores[1].success.value > scores[0].success.value + 0.03


def test_runs_of_two_etas_are_read_together(tmp_path) -> None:
    """Each by its own noise: what survives the weaker noise says which text the stronger one hides."""
    texts, weaker = long_texts(), 1.3 * ETA
    runs = {RECORD_SET: ETA, OTHER_SET: weaker}
    seen, truths = [], []
    for number, (name, eta) in enumerate(runs.items()):
        sent = Tokens((drawn(texts, seed=number + 30, eta=eta),))
        seen.append(Transcript.recorded(record(tmp_path / name, [worlds.shard(0, sent, record_set=name)])))
        truths.append(TokenTruth(Tokens((texts,)), records={name: torch.arange(TEXTS)}))
    truth = TokenTruth.joined(truths, torch.arange(TEXTS).repeat(2))
    told = {f"record-set/{OTHER_SET}": Noise(TextToText(eta=weaker))}
    knows = dataclasses.replace(KNOWLEDGE, noises=told)
    both = list(MultiRun()(View(Transcript.joined(seen), knows)))
    alone = truths[0].score(MultiRun()(View(seen[0], KNOWLEDGE))).success.value
    assert truths[0].score(both).success.value > alone + 0.1
    # who is not told of the other eta takes its draws for the first one's
    untold = truth.score(MultiRun()(View(Transcript.joined(seen), KNOWLEDGE))).success.value
    assert truth.score(both).success.value > untold + 0.05


def test_noisy_rows_are_refused(tmp_path) -> None:
    payload = worlds.as_rows(worlds.random_tokens(5))
    seen = Transcript.recorded(record(tmp_path, [worlds.shard(0, payload)]))
    noise = Noise(Vector(eta=ETA))
    with pytest.raises(Inapplicable, match="aligns released tokens"):
        list(MultiRun()(View(seen, dataclasses.replace(KNOWLEDGE, noise=noise))))


def test_an_attack_that_finds_no_copies_has_no_number(tmp_path, monkeypatch) -> None:
    """Of texts that left once it reads as much as `maximum-posterior`, so that alone would tell nothing of it."""
    texts = long_texts()
    seen = Transcript.recorded(record(tmp_path, [worlds.shard(0, Tokens((drawn(texts, seed=1),)))]))
    truth = TokenTruth(Tokens((texts,)), records={RECORD_SET: torch.arange(TEXTS)}, search=KNOWLEDGE.search)
    assert isinstance(measure("multi-run", seen, knowledge=KNOWLEDGE, truth=truth), Measured)

    def alone(reader: JointReader, released: Ragged) -> Looks:
        places = torch.arange(len(released.values))
        return Looks(places, places)

    monkeypatch.setattr(JointReader, "aligned", alone)
    outcome = measure("multi-run", seen, knowledge=KNOWLEDGE, truth=truth)
    assert isinstance(outcome, ControlFailed)
    (failed,) = (control for control in outcome.controls if not control.passed)
    assert failed.check is Check.GRADED


def test_most_copies_say_what_is_read_and_a_copy_keeps_what_is_said_as_often() -> None:
    read = Tokens((Ragged.from_lists([[1, 5, 7, 9], [4, 4], [1, 6, 8], [2, 6, 7]]),))
    told = most_said(read, torch.tensor([0, 1, 0, 0]))
    assert [text.tolist() for text in told.segments[0].split()] == [[1, 6, 7, 9], [4, 4], [1, 6, 7], [1, 6, 7]]
    tied = Tokens((Ragged.from_lists([[3], [2]]),))
    assert torch.equal(most_said(tied, torch.tensor([0, 0])).segments[0].values, tied.segments[0].values)
