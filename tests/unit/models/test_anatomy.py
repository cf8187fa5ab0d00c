from __future__ import annotations

import pytest
import torch

from cutlayer.core import ModelError, UnsupportedArchitectureError
from cutlayer.models import FAMILIES, Head, family_of
from tests.equivalence.zoo import CONFIGURATIONS, configuration, shared_model


def test_the_table_has_the_promised_families() -> None:
    assert set(FAMILIES) == {
        "bert", "roberta", "distilbert", "gpt2", "opt", "llama", "mistral", "qwen2", "qwen3", "t5", "glm",
    }  # fmt: skip
    assert {configuration(name).model_type for name in CONFIGURATIONS} == set(FAMILIES)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_rows_name_modules_that_exist(name: str) -> None:
    family = family_of(configuration(name))
    model = shared_model(name, Head.CLASSIFICATION if family.classifier else Head.LANGUAGE)
    for path in (*family.classifier, *family.optional_classifier, *family.aliases):
        assert model.get_submodule(path) is not None
    for stack in family.stacks:
        runner = model.get_submodule(stack.path)
        assert isinstance(runner.get_submodule(stack.table), torch.nn.Embedding)
        block = next(runner.get_submodule(stack.blocks).children())
        names = [f".{name}" for name, _ in block.named_modules()]
        assert any(name.endswith(f".{wanted}") for name in names for wanted in family.query_value)
        for path in (*stack.before, *stack.after):
            assert hasattr(runner, path.split(".", maxsplit=1)[0])


def test_an_unknown_family_is_refused_with_the_known_ones() -> None:
    class Config:
        model_type = "bart"

    with pytest.raises(UnsupportedArchitectureError) as caught:
        family_of(Config())  # type: ignore[arg-type]
    assert "'bart'" in str(caught.value)
    assert "'bert'" in str(caught.value)
    assert "qwen3" in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "more"),
    [("dynamic", {"factor": 2.0}), ("longrope", {"short_factor": [1.0, 1.0], "long_factor": [2.0, 2.0]})],
)
def test_rotary_tables_with_a_memory_are_refused_by_name(kind: str, more: dict[str, object]) -> None:
    rope = {"rope_type": kind, "rope_theta": 10000.0, "original_max_position_embeddings": 16, **more}
    with pytest.raises(UnsupportedArchitectureError, match=kind):
        family_of(configuration("llama", rope_parameters=rope))


@pytest.mark.parametrize(
    ("name", "changes"),
    [("gpt2", {"add_cross_attention": True}), ("bert", {"is_decoder": True})],
)
def test_forms_that_were_not_checked_are_refused(name: str, changes: dict[str, object]) -> None:
    with pytest.raises(ModelError, match=next(iter(changes))):
        family_of(configuration(name, **changes))
