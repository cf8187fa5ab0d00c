"""Settings of a run, and what they say of the paper."""

from __future__ import annotations

from typing import Any

import pytest

from cutlayer.core import Deviation
from cutlayer.customer import Lora, Objective, TrainBottom, Training
from cutlayer.customer.defaults import Learner, settle_training
from cutlayer.customer.deviations import deviations
from cutlayer.models import FAMILIES
from tests.settings import run_spec


def found(model: str, **settings: Any) -> dict[str, Deviation]:
    return {each.what: each for each in deviations(run_spec(eta=80, **settings), FAMILIES[model])}


def test_a_language_model_is_compared_with_its_own_paper() -> None:
    """Its rates, batches and blocks are Yao & Li's, so they are no deviations; a classifier's are SAP's."""
    for method in ("lora", "full"):
        own = found("gpt2", objective="lm", method=method)
        assert not {"learning rate", "batch size", "LoRA rank"} & set(own)
        assert "dev perplexity" in own["epochs"].ours
        assert ("LoRA alpha" in own) is (method == "lora")
    other = found("gpt2", objective="lm", learning_rate=1e-3)
    assert (other["learning rate"].value_in_paper, other["learning rate"].ours) == ("2e-4", "0.001")
    classifier = found("gpt2", learning_rate=1e-3)
    assert classifier["learning rate"].value_in_paper == "3e-4 (RoBERTa-large)"
    assert "dev accuracy" in classifier["epochs"].ours


@pytest.mark.parametrize(("max_length", "told"), [(None, []), (64, ["64 at most, special tokens included"])])
def test_a_cut_of_texts_is_a_deviation(max_length: int | None, told: list[str]) -> None:
    """The paper does not say how long a text may be."""
    cuts = [each for name, each in found("bert", max_length=max_length).items() if name == "tokens per text"]
    assert [each.ours.partition(";")[0] for each in cuts] == told
    assert all(each.value_in_paper == "not stated" for each in cuts)


def test_no_default_multiplies_the_looks_at_a_text() -> None:
    few = Learner(texts=400, width=384)
    frozen, drawn_anew = (
        settle_training(Training(), Objective.CLASSIFICATION, Lora(train_bottom=how), few)
        for how in (None, TrainBottom.RESAMPLE)
    )
    assert (frozen.epochs, frozen.patience, frozen.learning_rate) == (40, 24, 8e-4)
    assert (drawn_anew.epochs, drawn_anew.patience) == (5, 2)
