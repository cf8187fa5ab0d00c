"""Students of the vendor's blocks: what can be learnt of rows is learnt, and what is not there is not."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from cutlayer.attacks import Check, DistillationSpec, Exchanged, control_students, distil
from cutlayer.attacks.extraction import controls, student
from cutlayer.attacks.extraction.windows import Windows
from cutlayer.core import Cut, Ragged, Rows, Tokens
from cutlayer.models import Head, Layout, Template, split
from tests.equivalence.zoo import VOCAB, shared_model

SPEC = DistillationSpec(passes=2)
TAUGHT, UNSEEN = range(160), range(160, 220)
NOTHING = Layout(specials=((), ()), special_types=((), ()), segment_types=(0,))
PAIRS = Layout(specials=((), (), ()), special_types=((), (), ()), segment_types=(0, 0))
TEMPLATE = Template(single=NOTHING, pair=PAIRS, typed=False)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def exchanged(name="gpt2", *, bottom=1, tail=1, texts=220, seed=3):
    """What a customer of a tiny model sees."""
    rng = generator(seed)
    parts = split(shared_model(name, Head.LANGUAGE), Cut(bottom=bottom, tail=tail))
    lengths = torch.randint(1, 12, (texts,), generator=rng)
    ids = Ragged(torch.randint(10, VOCAB, (int(lengths.sum()),), generator=rng), lengths)
    inputs = TEMPLATE.assemble(Tokens((ids,)))
    with torch.no_grad():
        hidden = parts.bottom(inputs)
        rows = [TEMPLATE.unpad(each, Tokens((ids,))) for each in (hidden, parts.top(inputs, hidden))]
    return Exchanged(*rows, ids, parts.tail, TEMPLATE)


@pytest.fixture(scope="module")
def seen():
    return exchanged()


def learn(made, *, spec=SPEC, seed=1):
    return distil(made, TAUGHT, UNSEEN, spec=spec, generator=generator(seed))


def check(made, spec=SPEC):
    found = control_students(made, TAUGHT, UNSEEN, spec=spec, generator=generator())
    return {control.check: control for control in found}


def test_rows_teach_more_than_answers_and_text(seen):
    found = learn(seen)
    assert (found.texts, found.unseen, found.n) == (160, 60, int(seen.tokens.lengths[160:].sum()))
    assert found.explained_interval[0] <= found.explained <= found.explained_interval[1]
    assert found.explained > 0.3
    assert found.agreement > found.from_answers > found.from_text
    assert found.agreement_interval[0] > found.from_text_interval[1]


def test_the_same_seed_gives_the_same_students(seen):
    before = torch.random.get_rng_state()
    assert learn(seen) == learn(seen)
    assert torch.equal(before, torch.random.get_rng_state())


def test_an_identity_is_copied_whole_and_its_interval_is_exact(seen):
    found = learn(seen.with_returned(seen.sent.packed.values))
    assert found.explained > 0.9999
    assert found.agreement == 1
    low, high = found.agreement_interval
    assert 0.8 < low < 1 == high


def test_of_rows_that_were_dealt_out_anew_nothing_is_learnt(seen):
    values = seen.returned.packed.values
    found = learn(seen.with_returned(values[torch.randperm(len(values), generator=generator())]))
    assert found.explained < 0.02


def test_a_perceptron_is_taken_only_where_it_helps_on_texts_kept_back(seen):
    bent = seen.with_returned(seen.sent.packed.values.abs())
    assert learn(bent, spec=SPEC.model_copy(update={"passes": 8})).kind == "linear and perceptron"


def test_windows_never_look_into_another_text_or_ahead(seen):
    two = seen.select([0, 1])
    windows = Windows(two.sent).of(slice(None))
    alone = [Windows(two.sent.select([number])).of(slice(None)) for number in (0, 1)]
    assert torch.allclose(windows, torch.cat(alone), atol=1e-6)
    longer = seen.sent.select([int(seen.sent.packed.lengths.argmax())])
    cut = Rows(longer.packed.first(longer.packed.lengths - 2), longer.segment_lengths - 2)
    ahead = Windows(longer).of(slice(0, cut.total))
    assert torch.allclose(ahead, Windows(cut).of(slice(None)), atol=1e-6)


def test_what_follows_a_row_is_of_its_own_text():
    ids = Ragged(torch.tensor([5, 6, 7, 8]), torch.tensor([3, 1]))
    rows = Rows(Ragged(torch.zeros(4, 2), ids.lengths), ids.lengths[:, None])
    made = Exchanged(rows, rows, ids, None, TEMPLATE)
    assert made.followers.tolist() == [6, 7, -1, -1]


def test_texts_of_one_token_teach_no_next_token_and_are_no_error(seen):
    short = seen.sent.packed.first(torch.ones(220, dtype=torch.int64))
    rows = Rows(short, short.lengths[:, None])
    returned = Rows(seen.returned.packed.first(short.lengths), rows.segment_lengths)
    tokens = seen.tokens.first(short.lengths)
    assert learn(dataclasses.replace(seen, sent=rows, returned=returned, tokens=tokens)).n == 60


# ---------------------------------------------------------------- controls, and faults that they notice


def test_sound_students_pass(seen):
    found = check(seen)
    assert set(found) == {Check.UNPROTECTED, Check.NONLINEAR, Check.SHUFFLED}
    assert all(control.passed for control in found.values())
    assert found[Check.UNPROTECTED].recovered > 0.99
    assert found[Check.NONLINEAR].bound < 0.6 < found[Check.NONLINEAR].recovered
    assert found[Check.SHUFFLED].recovered <= found[Check.SHUFFLED].bound < 0.1


def test_a_student_that_cannot_learn_is_noticed(seen, monkeypatch):
    def nothing(student, windows, values, ridges):
        yield 1.0, torch.zeros(student.linear.in_features + 1, values.shape[1])

    monkeypatch.setattr(student, "_ridge", nothing)
    assert not check(seen)[Check.UNPROTECTED].passed


def test_a_student_that_sees_no_row_but_its_own_is_noticed(seen, monkeypatch):
    of = Windows.of

    def blind(self, items):
        windows = of(self, items).clone()
        windows[:, seen.sent.packed.values.shape[1] :] = 0
        return windows

    taken = student._ridge

    def ridge(student, windows, values, ridges):
        monkeypatch.setattr(Windows, "of", blind)
        yield from taken(student, windows, values, ridges)

    monkeypatch.setattr(student, "_ridge", ridge)
    assert not check(seen)[Check.UNPROTECTED].passed


@pytest.mark.parametrize("fault", ["no step is taken", "steps go up", "it has no part in the sum"])
def test_a_perceptron_that_learns_nothing_is_noticed(seen, monkeypatch, fault):
    """The linear part passes the other controls by itself."""
    fit, forward = student.minimise, student.Perceptron.forward
    if fault == "no step is taken":
        monkeypatch.setattr(student, "minimise", lambda *_, **__: None)
    elif fault == "steps go up":
        monkeypatch.setattr(student, "minimise", lambda fitted, loss, **how: fit(fitted, lambda at: -loss(at), **how))
    else:
        monkeypatch.setattr(student.Perceptron, "forward", lambda self, features: 0 * forward(self, features))
    found = check(seen)
    assert found[Check.UNPROTECTED].passed
    assert not found[Check.NONLINEAR].passed


def test_a_score_that_looks_at_the_truth_is_noticed(seen, monkeypatch):
    honest = controls.explained_by

    def cheating(rows, compared, learnt):
        return honest((rows + compared.returned.packed.values) / 2, compared, learnt)

    for module in (controls, student):
        monkeypatch.setattr(module, "explained_by", cheating)
    found = check(seen)
    assert not found[Check.SHUFFLED].passed
