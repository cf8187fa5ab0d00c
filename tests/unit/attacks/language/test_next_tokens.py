"""Truths of what passes an upper boundary: which queries they are about, and what they say of them."""

from __future__ import annotations

import copy

import pytest
import torch

from cutlayer.attacks import ATTACKS, GreedyTruth, Inapplicable, SeenFrame, Transcript, View, measure
from cutlayer.attacks.language import next_tokens
from cutlayer.core import Ragged, Rows
from cutlayer.wire import routes
from cutlayer.wire.recording import Direction
from tests.unit.attacks import worlds

KNOWLEDGE = worlds.language_knowledge(worlds.PLAIN)
SOURCE = f"adapter/{worlds.JOB}/infer"


def asked(*queries, lengths=True):
    """A transcript of queries about texts, each answered by the states of random rows."""
    frames = []
    for number, texts in enumerate(queries):
        rows = worlds.boundary(texts, worlds.PLAIN, seed=number)
        up = {"lengths": rows.segment_lengths} if lengths else {"records": torch.arange(len(texts))}
        where = {"adapter": worlds.JOB}
        frames.append(SeenFrame(Direction.UP, routes.ADAPTER_INFER, where, lambda up=up: up))
        down = {"output": rows.packed.values}
        frames.append(SeenFrame(Direction.DOWN, routes.ADAPTER_INFER, where, lambda down=down: down))
    return Transcript(lambda: frames)


def truth_of(transcript, *, tail=KNOWLEDGE.tail):
    return GreedyTruth.of(tail, transcript.answers(), KNOWLEDGE, skipped=1)


def spoken(texts, tail, *, seed):
    """What a tail finds most probable behind each token of texts."""
    rows = worlds.boundary(texts, worlds.PLAIN, seed=seed)
    hidden, inputs = worlds.PLAIN.from_rows(Rows(Ragged(rows.packed.values, rows.packed.lengths), rows.segment_lengths))
    with torch.no_grad():
        return tail(hidden, inputs).argmax(-1)


FIRST, SECOND = worlds.language_texts(9), worlds.language_texts(5, seed=1)


def test_the_truth_is_what_the_customer_s_own_tail_says():
    own = copy.deepcopy(KNOWLEDGE.tail)
    with torch.no_grad():
        own.model.get_output_embeddings().weight.mul_(-1)
    found = truth_of(asked(FIRST, SECOND), tail=own)
    (said,) = found.tokens.segments
    assert said.lengths.tolist() == [*FIRST.segments[0].lengths.tolist(), *SECOND.segments[0].lengths.tolist()]
    ((one, of_one), (other, of_other)) = found.queries.items()
    assert (one, other) == ((SOURCE, 0), (SOURCE, 1))
    assert (of_one.tolist(), of_other.tolist()) == (list(range(9)), list(range(9, 14)))
    for rows, texts, seed in ((of_one, FIRST, 0), (of_other, SECOND, 1)):
        chosen = spoken(texts, own, seed=seed)
        for number, row in enumerate(rows.tolist()):
            assert said[row][1:].tolist() == chosen[number, : said.lengths[row] - 1].tolist()
    outcome = measure("forward-leak", asked(FIRST, SECOND), knowledge=KNOWLEDGE, truth=found)
    assert outcome.success.n == found.tokens.total - len(found.tokens), "nothing precedes a text's first token"
    assert outcome.success.value < 0.1
    assert measure("forward-leak", asked(FIRST), knowledge=KNOWLEDGE, truth=truth_of(asked(FIRST))).success.value == 1


def test_the_first_answers_are_enough(monkeypatch):
    monkeypatch.setattr(next_tokens, "MEASURED_TOKENS", FIRST.total)
    assert list(truth_of(asked(FIRST, SECOND)).queries) == [(SOURCE, 0)]
    monkeypatch.setattr(next_tokens, "MEASURED_TOKENS", FIRST.total + 1)
    assert list(truth_of(asked(FIRST, SECOND)).queries) == [(SOURCE, 0), (SOURCE, 1)]


@pytest.mark.parametrize(("tokens", "kept"), [(1, 1), (FIRST.total, 1), (FIRST.total + 1, 2)])
def test_the_beginning_shows_its_own_queries_and_no_others(tokens, kept):
    transcript = asked(FIRST, SECOND)
    shown, truth = truth_of(transcript).beginning(transcript, tokens)
    expected = [(SOURCE, number) for number in range(kept)]
    assert [(answer.source, answer.number) for answer in shown.answers()] == list(truth.queries) == expected
    guesses = list(ATTACKS["forward-leak"](View(shown, KNOWLEDGE)))
    assert [number for _, number, _ in guesses] == list(range(kept))
    texts = FIRST.total - len(FIRST) + (kept > 1) * (SECOND.total - len(SECOND))
    assert int(truth.read(guesses).seen.sum()) == texts


def test_where_nobody_asked_there_is_nothing_to_read():
    silent = asked()
    found = truth_of(silent)
    assert (len(found.tokens), found.queries) == (0, {})
    with pytest.raises(Inapplicable, match="holds no query"):
        list(ATTACKS["forward-leak"](View(silent, KNOWLEDGE)))
    assert measure("forward-leak", silent, knowledge=KNOWLEDGE, truth=found).reason == "The transcript holds no query."


def test_answers_about_records_that_nobody_saw_stored():
    with pytest.raises(Inapplicable, match="how long the texts of a query are"):
        truth_of(asked(FIRST, lengths=False))
