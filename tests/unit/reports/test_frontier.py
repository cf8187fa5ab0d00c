"""Settings beside one another: what is drawn of each, and what is said of how it was measured."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from cutlayer.attacks import ATTACKS, Question
from cutlayer.customer import FinetuneResult, FinetuneSpec, LanguageResult, Objective, Training
from cutlayer.customer.results import ReleaseResult
from cutlayer.privacy import TextToText
from cutlayer.reports.audit import Compared, Evaluation, beside, frontier, quick_attacks
from tests.unit.reports.audits import NEAREST, PRIOR, failed, full

QUICK = ("maximum-posterior", "nearest-neighbour")


def evaluation(recovered: float = 0.4, **changes: Any) -> Evaluation:
    values: dict[str, Any] = {
        "recovered": recovered,
        "interval": (recovered - 0.02, recovered + 0.02),
        "attack": QUICK[0],
        "attacks": QUICK,
        "utility": 0.75,
        "utility_error": 0.02,
        "utility_n": 120,
        "replaced": 0.5,
    }
    return Evaluation(**(values | changes))


def compared(eta: float, found: Evaluation | None, **changes: Any) -> Compared:
    return Compared(f"eta {eta:g}", eta, found, **changes)


def drawn(*settings: Compared, epochs: int = 1, objective: Objective = Objective.CLASSIFICATION, note: str = ""):
    return frontier(settings, objective=objective, epochs=epochs, note=note)


def evidence(*, unlabelled: bool = False, objective: Objective = Objective.CLASSIFICATION) -> Any:
    """A run of which all is left out but what it found."""
    result: Any
    if objective.generates:
        result = LanguageResult.model_construct(
            perplexity=31.5, perplexity_standard_error=None, perplexity_n=900, replaced=0.2
        )
    elif unlabelled:
        result = ReleaseResult.model_construct(replaced=0.2)
    else:
        result = FinetuneResult.model_construct(ua=0.8, ua_standard_error=0.05, ua_n=64, replaced=0.2)
    return SimpleNamespace(result=result, spec=SimpleNamespace(objective=objective))


# ---------------------------------------------------------------- one setting


def test_quick_attacks_read_words_and_take_seconds():
    assert "nearest-neighbour" in quick_attacks()
    for name in quick_attacks():
        assert ATTACKS[name].question is Question.WORDS
        assert not ATTACKS[name].costly


def test_what_is_read_is_the_most_that_a_counted_attack_read():
    report = full(attacks=(NEAREST, PRIOR, failed("learned-inversion")))
    every = Evaluation.of(report, evidence())
    assert every is not None
    assert (every.attack, every.recovered, every.interval) == (PRIOR.name, PRIOR.value, PRIOR.ci)
    assert every.attacks == (PRIOR.name, NEAREST.name)
    one = Evaluation.of(report, evidence(), attacks=[NEAREST.name, "learned-inversion"])
    assert one is not None
    assert (one.attack, one.recovered, one.attacks) == (NEAREST.name, NEAREST.value, (NEAREST.name,))
    assert Evaluation.of(report, evidence(), attacks=["learned-inversion"]) is None


def test_usefulness_is_accuracy_or_perplexity_or_none():
    accuracy = Evaluation.of(full(), evidence())
    perplexity = Evaluation.of(full(), evidence(objective=Objective.LM))
    nothing = Evaluation.of(full(), evidence(unlabelled=True))
    assert accuracy is not None and perplexity is not None and nothing is not None  # noqa: PT018
    assert (accuracy.utility, accuracy.utility_error, accuracy.utility_n) == (0.8, 0.05, 64)
    assert (perplexity.utility, perplexity.utility_error, perplexity.utility_n) == (31.5, None, 900)
    assert (nothing.utility, nothing.utility_error) == (None, None)


# ---------------------------------------------------------------- all of them


def test_settings_stand_by_eta_with_their_intervals():
    made = drawn(
        compared(math.inf, evaluation(1.0, utility=0.99)),
        compared(40, evaluation(0.1, utility=0.3)),
        compared(80, evaluation(0.6), audited=True),
    )
    assert [point.eta for point in made.points] == [40, 80, math.inf]
    assert [point.audited for point in made.points] == [False, True, False]
    assert made.points[1].utility_ci == pytest.approx((0.75 - 1.96 * 0.02, 0.75 + 1.96 * 0.02), rel=1e-5)
    assert made.points[2].utility_ci == pytest.approx((0.99 - 1.96 * 0.02, 1.0))
    assert made.utility_name == "accuracy on 120 texts that were held out"
    assert not made.lower_is_better


def test_it_says_which_attacks_stand_behind_each_setting():
    alike = drawn(compared(40, evaluation()), compared(80, evaluation(), audited=True))
    assert "under each setting: maximum-posterior, nearest-neighbour." in alike.note
    mixed = drawn(
        compared(40, evaluation()),
        compared(60, evaluation()),
        compared(80, evaluation(attacks=("linear-inversion",)), audited=True),
    )
    assert "linear-inversion (eta 80); maximum-posterior, nearest-neighbour (the others)." in mixed.note
    assert [point.attacks for point in mixed.points] == [QUICK, QUICK, ("linear-inversion",)]


def test_texts_that_chose_the_epoch_are_said_to_have():
    assert "chose" not in drawn(compared(40, evaluation())).note
    assert "chose the best of up to 3 epochs" in drawn(compared(40, evaluation()), epochs=3).note


def test_a_setting_without_a_number_is_named_not_drawn():
    made = drawn(compared(40, None), compared(80, evaluation(), audited=True))
    assert [point.eta for point in made.points] == [80]
    assert "no attack on words has a number there: eta 40." in made.note


def test_without_labels_nothing_is_said_of_accuracy():
    made = drawn(compared(40, evaluation(utility=None, utility_error=None, utility_n=0)), epochs=3)
    assert made.utility_name == "accuracy"
    assert made.points[0].utility_ci is None
    assert "not trained on" not in made.note


def test_of_a_language_model_less_is_better():
    perplexity = evaluation(utility=90.0, utility_error=None, utility_n=3000)
    made = drawn(compared(40, perplexity), objective=Objective.LM)
    assert made.lower_is_better
    assert made.utility_name == "perplexity on 3,000 tokens that were held out"
    assert made.points[0].utility_ci is None


def test_the_audited_setting_is_compared_by_the_same_attacks():
    """The report's strongest attack was tried on it alone: its number would not be comparable."""
    spec = FinetuneSpec(model="starter", privacy=TextToText(eta=70), training=Training(epochs=3))
    report = full(attacks=(NEAREST, PRIOR))
    made = beside(report, evidence(), spec, [compared(40, evaluation())], attacks=[NEAREST.name])
    (own,) = [point for point in made.points if point.audited]
    assert (own.label, own.recovered, own.attack) == ("text-to-text, eta 70", NEAREST.value, NEAREST.name)
    assert f"The strongest of all attacks, {PRIOR.name}, was tried on the setting of this report alone" in made.note
    assert "46.2 %" in made.note
    same = beside(report, evidence(), spec, [], attacks=[NEAREST.name, PRIOR.name])
    assert "alone" not in same.note
