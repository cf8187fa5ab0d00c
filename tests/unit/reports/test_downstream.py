"""What embeddings are good for: the network, its numbers against references, and what a denoiser is worth."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from cutlayer.attacks.evaluation.statistics import area_by_item, area_under_curve
from cutlayer.core import DataError
from cutlayer.reports import downstream
from cutlayer.reports.downstream import (
    CLEAN,
    CUSTOMER_ONLY,
    DENOISED,
    Arm,
    Downstream,
    DownstreamSpec,
    Mean,
    _in_words,
    distances,
    held_out,
    joined,
    measure_downstream,
    numbered,
)
from cutlayer.reports.estimate import standard_error

SPEC = DownstreamSpec(seeds=(0, 1, 2), passes=15)
WIDTH, TEXTS = 12, 400


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def told(labels: Tensor, *, how: float, seed: int) -> Tensor:
    """Embeddings of unit noise, one coordinate of which tells the label."""
    values = torch.randn(len(labels), WIDTH, generator=seeded(seed))
    values[:, 0] += how * (2.0 * labels - 1)
    return values


@pytest.fixture(scope="module")
def labels() -> Tensor:
    return torch.randint(2, (TEXTS,), generator=seeded(7))


def arms(found: Downstream) -> dict[str, Arm]:
    return {each.name: each for each in found.arms}


# ---------------------------------------------------------------- numbers


def test_distances_are_those_by_hand() -> None:
    clean, found = torch.tensor([[3.0, 4.0], [1.0, 0.0]]), torch.tensor([[3.0, 2.0], [0.0, 1.0]])
    mse, cosine = distances(found, clean)
    assert mse.tolist() == [2.0, 1.0], "per coordinate: 4 / 2 and (1 + 1) / 2"
    assert cosine.tolist() == pytest.approx([17 / (5 * math.sqrt(13)), 0])
    same, one = distances(clean, clean)
    assert same.tolist() == [0, 0]
    assert one.tolist() == pytest.approx([1, 1])


def test_of_pairs_each_text_counts_and_embeddings_stand_behind_one_another() -> None:
    pairs = torch.arange(12.0).reshape(2, 2, 3)
    assert joined(pairs).tolist() == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]
    mse, cosine = distances(torch.stack([pairs[:, 0], pairs[:, 1] + 2], 1), pairs)
    assert mse.tolist() == [2, 2], "the mean of 0 and 4"
    assert bool((cosine < 1).all())


@pytest.mark.parametrize("ties", [False, True])
def test_items_add_up_to_the_area_and_to_its_error(ties: bool) -> None:
    """Against scikit-learn, and against how areas of fresh samples vary; a wrong scale of the error fails."""
    rng, areas, errors = np.random.default_rng(3), [], []
    for _ in range(300):
        positive = torch.from_numpy(rng.random(150) < 0.3)
        scores = torch.from_numpy(rng.normal(size=150)) + 0.8 * positive
        scores = scores.round() if ties else scores
        items = area_by_item(scores, positive)
        assert float(items.mean()) == pytest.approx(roc_auc_score(positive, scores), abs=1e-12)
        assert float(items.mean()) == pytest.approx(float(area_under_curve(scores, positive)), abs=1e-12)
        areas.append(float(items.mean()))
        errors.append(standard_error(items[None]))
    assert np.std(areas) == pytest.approx(np.mean(errors), rel=0.15)


def test_an_area_of_one_kind_is_no_number() -> None:
    assert bool(area_by_item(torch.rand(5), torch.ones(5, dtype=torch.bool)).isnan().all())


def test_intervals_hold_the_mean_as_often_as_they_say() -> None:
    rng = np.random.default_rng(5)
    held = [
        low <= 0.3 <= high
        for low, high in (Mean.of(torch.from_numpy(0.3 + rng.normal(size=(1, 80)))).ci for _ in range(600))
    ]
    assert 0.92 <= np.mean(held) <= 0.98


# ---------------------------------------------------------------- the network


def test_the_network_has_two_layers_as_wide_as_its_input(labels: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    fit = downstream.fit_classifier
    monkeypatch.setattr(downstream, "fit_classifier", lambda *a, **k: made.append(fit(*a, **k)) or made[-1])
    pairs = torch.stack([told(labels, how=1, seed=1), told(labels, how=1, seed=2)], 1)
    spec = DownstreamSpec(seeds=(4,), passes=1)
    measure_downstream({CLEAN: pairs}, pairs, labels, held_out(TEXTS, share=0.25, seed=0), spec=spec)
    (net,) = made
    shapes = [tuple(value.shape) for name, value in net.named_parameters() if name.endswith("weight")]
    assert shapes == [(2 * WIDTH, 2 * WIDTH), (2 * WIDTH, 2 * WIDTH), (2, 2 * WIDTH)]
    passed: list[Tensor] = []
    rectify = torch.relu
    monkeypatch.setattr("torch.relu", lambda values: passed.append(values) or rectify(values))
    net(torch.randn(3, 2 * WIDTH))
    assert len(passed) == 2


def test_it_learns_what_a_line_cannot() -> None:
    """Whether two signs are the same: a network without its hidden layers is at chance."""
    values = torch.randn(4 * TEXTS, 2, generator=seeded(1))
    same = (values[:, 0] * values[:, 1] > 0).long()
    wide = torch.cat([values, torch.zeros(4 * TEXTS, WIDTH)], 1)
    spec = DownstreamSpec(seeds=(0,), passes=30, learning_rate=3e-3)
    found = measure_downstream({CLEAN: wide}, wide, same, held_out(4 * TEXTS, share=0.25, seed=0), spec=spec)
    (arm,) = found.arms
    assert arm.accuracy is not None
    assert arm.accuracy.value > 0.9


def test_seeds_decide_and_repeat(labels: Tensor) -> None:
    values, learnt = told(labels, how=0.5, seed=1), held_out(TEXTS, share=0.25, seed=0)
    first, again = (measure_downstream({CLEAN: values}, values, labels, learnt, spec=SPEC) for _ in range(2))
    other = measure_downstream({CLEAN: values}, values, labels, learnt, spec=SPEC.model_copy(update={"seeds": (9,)}))
    assert first == again != other
    assert (first.learnt_from, first.tested_on, first.seeds) == (300, 100, (0, 1, 2))


def test_labels_are_not_learnt_by_heart(labels: Tensor) -> None:
    """Random embeddings: texts that are learnt from are no part of what is tested."""
    values = torch.randn(TEXTS, WIDTH, generator=seeded(3))
    found = measure_downstream({CLEAN: values}, values, labels, held_out(TEXTS, share=0.5, seed=0), spec=SPEC)
    (arm,) = found.arms
    assert arm.accuracy is not None
    assert arm.auc is not None
    assert 0.4 < arm.accuracy.value < 0.6
    assert arm.auc.ci[0] < 0.5 < arm.auc.ci[1]


def test_three_labels_have_no_area(labels: Tensor) -> None:
    three = labels + (torch.arange(TEXTS) % 5 == 0)
    values = told(three, how=2, seed=1)
    found = measure_downstream(
        {DENOISED: values, CUSTOMER_ONLY: values}, values, three, held_out(TEXTS, share=0.25, seed=0), spec=SPEC
    )
    assert all(arm.auc is None and arm.accuracy is not None for arm in found.arms)
    assert found.worth_auc is None
    assert "AUC" not in found.worth


# ---------------------------------------------------------------- what the vendor's model was worth


def test_what_the_answer_adds_is_told(labels: Tensor) -> None:
    clean = told(labels, how=2, seed=1)
    both, alone = told(labels, how=1.5, seed=2), told(labels, how=0.3, seed=3)
    found = measure_downstream(
        {CLEAN: clean, DENOISED: both, CUSTOMER_ONLY: alone},
        clean,
        labels,
        held_out(TEXTS, share=0.5, seed=0),
        spec=SPEC,
    )
    by_name = arms(found)
    assert by_name[CLEAN].mse.value == 0
    assert found.worth_auc is not None
    assert found.worth_accuracy is not None
    assert found.worth_auc.above_zero
    assert found.worth_accuracy.above_zero
    snd, control = by_name[DENOISED], by_name[CUSTOMER_ONLY]
    assert snd.auc is not None
    assert control.auc is not None
    assert found.worth_auc.value == pytest.approx(snd.auc.value - control.auc.value)
    assert "zero" not in found.worth
    assert f"{100 * found.worth_auc.value:+.1f} points of AUC" in found.worth


def test_what_is_the_customers_own_is_not_the_vendors(labels: Tensor) -> None:
    """At Table 13's etas SnD scores what customer-only does: equally good embeddings are worth nothing."""
    clean = told(labels, how=2, seed=1)
    found = measure_downstream(
        {DENOISED: told(labels, how=1, seed=2), CUSTOMER_ONLY: told(labels, how=1, seed=3)},
        clean,
        labels,
        held_out(TEXTS, share=0.5, seed=0),
        spec=SPEC,
    )
    snd = arms(found)[DENOISED].auc
    assert snd is not None
    assert snd.value > 0.7, "by itself it looks like a success"
    assert found.worth_auc is not None
    assert not found.worth_auc.above_zero
    assert (
        "Neither is above zero: what these embeddings score may all be owed to the customer's own text" in found.worth
    )


def test_a_gain_of_one_number_is_not_denied_by_the_other() -> None:
    """More scores in the right order, and no more labels right."""
    gained, none = Mean(value=0.05, ci=(0.01, 0.09), n=500), Mean(value=0.01, ci=(-0.02, 0.04), n=500)
    told = _in_words(none, gained)
    assert told.endswith("SnD exceeds customer-only. Of accuracy no gain can be seen.")
    assert "owed" not in told


def test_without_a_control_nothing_is_said_of_worth(labels: Tensor) -> None:
    values = told(labels, how=1, seed=1)
    found = measure_downstream({DENOISED: values}, values, labels, held_out(TEXTS, share=0.5, seed=0), spec=SPEC)
    assert (found.worth, found.worth_auc, found.worth_accuracy) == ("", None, None)


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_nothing_to_learn_or_to_test_is_refused(share: float) -> None:
    values = torch.randn(10, WIDTH)
    same = torch.zeros(10, dtype=torch.int64)
    with pytest.raises(DataError, match="two labels to learn from"):
        measure_downstream({CLEAN: values}, values, same, held_out(10, share=share, seed=0), spec=SPEC)


def test_labels_become_numbers_in_one_order() -> None:
    assert numbered(["yes", "no", "yes"]).tolist() == [1, 0, 1]
