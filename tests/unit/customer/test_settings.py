"""Settings of a run, and what they say of the paper."""

from __future__ import annotations

import pytest

from cutlayer.customer import Method, Objective, TrainSpec
from cutlayer.models import FAMILIES


def test_a_language_model_is_compared_with_its_own_paper() -> None:
    """Its rates, batches and blocks are Yao & Li's, so they are no deviations; a classifier's are SAP's."""
    family = FAMILIES["gpt2"]
    for method in Method:
        found = {each.what: each for each in TrainSpec.language(method=method).deviations(family, Objective.LM)}
        assert not {"learning rate", "batch size", "LoRA rank"} & set(found)
        assert "dev perplexity" in found["epochs"].ours
        assert ("LoRA alpha" in found) is (method is Method.LORA)
    other = {each.what: each for each in TrainSpec.language(learning_rate=1e-3).deviations(family, Objective.LM)}
    assert (other["learning rate"].value_in_paper, other["learning rate"].ours) == ("2e-4", "0.001")
    classifier = {each.what: each for each in TrainSpec(learning_rate=1e-3).deviations(family)}
    assert classifier["learning rate"].value_in_paper == "3e-4 (RoBERTa-large)"
    assert "dev accuracy" in classifier["epochs"].ours


@pytest.mark.parametrize(("max_length", "told"), [(None, []), (64, ["64 at most, special tokens included"])])
def test_a_cut_of_texts_is_a_deviation(max_length: int | None, told: list[str]) -> None:
    """The paper does not say how long a text may be."""
    deviations = TrainSpec(max_length=max_length).deviations(FAMILIES["bert"])
    found = [each for each in deviations if each.what == "tokens per text"]
    assert [each.ours.partition(";")[0] for each in found] == told
    assert all(each.value_in_paper == "not stated" for each in found)
