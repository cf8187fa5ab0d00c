"""Attacks on labels where they differ: smoothing, a head at the customer, balance, and groups without names."""

from __future__ import annotations

import itertools

import pytest
import torch

from cutlayer.attacks import (
    ATTACKS,
    Inapplicable,
    Knowledge,
    LabelTruth,
    Measured,
    NotApplicable,
    Transcript,
    View,
    measure,
)
from cutlayer.attacks.evaluation.statistics import chance_of_groups, matched_groups
from cutlayer.attacks.evaluation.traffic import Traffic
from cutlayer.core import Cut
from tests.contract.test_attacks import class_world, label_world
from tests.unit.attacks import worlds


def outcome(name, world):
    return measure(name, world.transcript, knowledge=world.knowledge, truth=world.truth)


def test_the_sign_is_the_label_and_smoothing_hides_it_from_the_sign_alone(tmp_path):
    """Strong smoothing turns the true entry of a text that the model is sure of positive; the softmax takes it off."""
    world = label_world(tmp_path, Traffic.UNPROTECTED, smoothing=0.8)
    sign, softmax = (outcome(name, world) for name in ("gradient-sign", "output-gradient"))
    assert softmax.success.value == 1
    assert sign.success.value < 1


@pytest.mark.parametrize("name", ["gradient-sign", "output-gradient"])
def test_gradients_of_hidden_states_have_no_entry_for_a_label(tmp_path, name):
    told = outcome(name, class_world(tmp_path, Traffic.UNPROTECTED, width=24))
    assert isinstance(told, NotApplicable)
    assert "24 numbers a text were sent, for 3 classes" in told.reason


def test_a_head_at_the_customer_does_not_hide_which_texts_share_a_label(tmp_path):
    told = outcome("gradient-direction", class_world(tmp_path, Traffic.UNPROTECTED, width=24))
    assert isinstance(told, Measured)
    assert told.success.value == 1
    assert told.chance < 0.45


def test_lengths_tell_nothing_of_two_equally_frequent_labels(tmp_path):
    told = outcome("gradient-norm", class_world(tmp_path, Traffic.UNPROTECTED, shares=(0.5, 0.5)))
    assert isinstance(told, NotApplicable)
    assert "2 classes have shares from 0.50 to 0.50" in told.reason
    assert isinstance(outcome("gradient-norm", class_world(tmp_path / "3", Traffic.UNPROTECTED)), NotApplicable)


@pytest.mark.parametrize("name", ["gradient-direction", "activation-clusters", "gradient-norm"])
def test_what_is_not_granted_is_not_guessed(tmp_path, name):
    world = class_world(tmp_path, Traffic.UNPROTECTED, shares=(0.8, 0.2))
    with pytest.raises(Inapplicable, match="not known"):
        list(ATTACKS[name](View(world.transcript, Knowledge(Cut()))))


def test_activations_are_of_the_last_steps(tmp_path):
    """A model that learns: its first outputs say nothing, its last ones all."""
    rng = worlds.generator(3)
    labels = torch.randint(2, (800,), generator=rng)
    frames, outputs, steps = [], {}, {}
    for number, some in enumerate(torch.arange(800).split(100), start=1):
        learnt = labels[some] if number > 6 else torch.randint(2, (100,), generator=rng)
        outputs[number] = 4.0 * torch.nn.functional.one_hot(learnt, 2) + torch.randn(100, 2, generator=rng) / 10
        frames.append(worlds.step(number, records=some.to(torch.uint16)))
        frames.append(worlds.gradient(number, torch.randn(100, 2, generator=rng)))
        steps[worlds.JOB, number] = some
    worlds.record(tmp_path, frames, outputs)
    truth = LabelTruth(labels, 2, steps)
    knowledge = Knowledge(Cut(), classes=2)
    told = measure("activation-clusters", Transcript.recorded(tmp_path), knowledge=knowledge, truth=truth)
    assert isinstance(told, Measured)
    assert (told.success.value, told.success.n) == (1, 200)


# ---------------------------------------------------------------- groups without names


def test_the_match_is_the_best_of_all_namings():
    rng = worlds.generator(1)
    groups, labels = torch.randint(4, (60,), generator=rng), torch.randint(4, (60,), generator=rng)
    best = max(int((torch.tensor(naming)[groups] == labels).sum()) for naming in itertools.permutations(range(4)))
    assert int((matched_groups(groups, labels)[groups] == labels).sum()) == best


def test_a_group_too_many_has_no_label():
    found = matched_groups(torch.tensor([0, 0, 1, 2, 2, 2]), torch.tensor([1, 1, 0, 0, 0, 0]))
    assert found.tolist() == [1, -1, 0]


@pytest.mark.parametrize(("texts", "classes"), [(200, 2), (200, 5), (40, 10)])
def test_chance_of_a_match_is_that_of_matching_labels_that_were_dealt_out(texts, classes):
    """Against the mean over fresh labels; that of a naming that is fixed before would be too low."""
    rng = worlds.generator(2)
    groups = torch.randint(classes, (texts,), generator=rng)
    everything = torch.arange(texts)
    labels = torch.randint(classes, (texts,), generator=rng)
    chance = chance_of_groups(groups, labels, everything)
    found = []
    for _ in range(300):
        fresh = labels[torch.randperm(texts, generator=rng)]
        found.append(float((matched_groups(groups, fresh)[groups] == fresh).double().mean()))
    assert chance == pytest.approx(sum(found) / len(found), abs=0.01)
    assert chance > 1 / classes + 0.01


def test_rows_of_one_text_are_dealt_one_label():
    """Ten looks at each of thirty texts are thirty coincidences, not three hundred: chance is higher."""
    rng = worlds.generator(4)
    labels, groups = torch.randint(2, (30,), generator=rng), torch.randint(2, (30,), generator=rng)
    rows = torch.arange(30).repeat(10)
    often = chance_of_groups(groups[rows], labels, rows)
    assert often == pytest.approx(chance_of_groups(groups, labels, torch.arange(30)), abs=0.01)
    assert often > chance_of_groups(torch.randint(2, (300,), generator=rng), labels, rows) + 0.01


def test_false_alarms_of_groups_are_no_more_frequent_than_they_say():
    """The p-value of groups that have nothing to do with labels: below 0.05 in one of twenty cases, or fewer."""
    rng = worlds.generator(6)
    alarms = 0
    for _ in range(100):
        labels, groups = torch.randint(3, (90,), generator=rng), torch.randint(3, (90,), generator=rng)
        truth = LabelTruth(labels, 3, {("j", 1): torch.arange(90)}, named=False)
        alarms += truth.score([("job/j", 1, groups)]).p_value < 0.05
    assert alarms <= 10
    truth = LabelTruth(labels, 3, {("j", 1): torch.arange(90)}, named=False)
    assert truth.score([("job/j", 1, (labels + 1) % 3)]).p_value < 1e-6
