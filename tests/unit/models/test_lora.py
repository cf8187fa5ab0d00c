from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from torch.nn.functional import cross_entropy

from cutlayer.core import Cut, ModelError, StorageError
from cutlayer.models import (
    Head,
    adapter_state,
    attach_lora,
    load_adapter,
    load_adapter_state,
    save_adapter,
    split,
    split_seq2seq,
)
from tests.equivalence.checks import Case, make_batch, split_logits, whole_logits
from tests.equivalence.zoo import CONFIGURATIONS, DECODERS, ENCODERS, configuration, make_model, shared_model

CLASSIFIERS = (*ENCODERS, *DECODERS)
SETTINGS: dict[str, Any] = {"rank": 2, "alpha": 4, "dropout": 0.0, "seed": 5}


def shaken(part: Any) -> Any:
    """The part with other values in everything it trains."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for value in part.parameters():
            if value.requires_grad:
                value.normal_(0, 0.3, generator=generator)
    return part


@pytest.mark.parametrize("targets", ["query-value", "all-linear"])
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_saved_adapter_loads_on_the_whole_model(name: str, targets: Any, tmp_path: Path) -> None:
    """With PEFT alone, onto the right blocks, head included."""
    model = make_model(name, Head.CLASSIFICATION)
    case = Case(name, Head.CLASSIFICATION, Cut(bottom=2))
    batch = make_batch(case)
    parts = split(model, case.cut)
    top = shaken(attach_lora(parts.top, **SETTINGS, targets=targets, num_labels=5))
    assert parts.bottom is not None
    expected = top(batch.inputs, parts.bottom(batch.inputs))
    assert expected.shape[1] == 5
    save_adapter(top, tmp_path, {"cut": case.cut.model_dump()})
    assert json.loads((tmp_path / "cutlayer.json").read_text()) == {"cut": {"bottom": 2, "tail": None, "target": 0}}

    whole = make_model(name, Head.CLASSIFICATION, labels=5)
    whole.load_state_dict(
        {key: value for key, value in model.state_dict().items() if "classifier" not in key and "score" not in key},
        strict=False,
    )
    if name == "distilbert":
        whole.pre_classifier.load_state_dict(model.pre_classifier.state_dict())
    peft = PeftModel.from_pretrained(whole, str(tmp_path)).eval()
    assert torch.allclose(whole_logits(peft, case, batch), expected, atol=1e-6)

    again = load_adapter(parts.top, tmp_path)
    assert torch.equal(again(batch.inputs, parts.bottom(batch.inputs)), expected)
    assert not any(value.requires_grad for value in again.parameters())
    assert not again.training


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_part_and_the_whole_start_equal(name: str) -> None:
    model = shared_model(name, Head.CLASSIFICATION)
    whole = adapter_state(attach_lora(split(model, Cut(bottom=None)).top, **SETTINGS, num_labels=3))
    for cut in (Cut(bottom=0), Cut(bottom=1), Cut(bottom=3)):
        part = adapter_state(attach_lora(split(model, cut).top, **SETTINGS, num_labels=3))
        assert set(part) <= set(whole)
        assert all(torch.equal(part[key], whole[key]) for key in part)
    other = adapter_state(attach_lora(split(model, Cut(bottom=1)).top, **SETTINGS | {"seed": 6}, num_labels=3))
    assert any(not torch.equal(other[key], part[key]) for key in part)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_base_stays_frozen_shared_and_bare(name: str) -> None:
    head = Head.LANGUAGE if name not in ENCODERS else Head.CLASSIFICATION
    model = make_model(name, head).requires_grad_(False)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    parts = split_seq2seq(model, Cut()) if name.startswith("t5") else split(model, Cut())
    part = attach_lora(parts.top, **SETTINGS, num_labels=3 if head is Head.CLASSIFICATION else None)
    assert "lora" not in repr(parts.top)
    base = {id(value) for value in model.parameters()}
    trained = [value for value in part.parameters() if value.requires_grad]
    assert trained
    assert not any(id(value) in base for value in trained)
    shaken(part)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert not any(value.requires_grad for value in model.parameters())


def test_jobs_on_one_base_do_not_touch_each_other() -> None:
    """Graphs of two jobs kept alive at once, as the pipelined step keeps them."""
    case = Case("bert", Head.CLASSIFICATION, Cut(bottom=1))
    batch = make_batch(case)
    parts = split(shared_model("bert", Head.CLASSIFICATION), case.cut)
    assert parts.bottom is not None
    up = parts.bottom(batch.inputs).detach()

    def gradients(part: Any) -> list[torch.Tensor]:
        return [value.grad.clone() for value in part.parameters() if value.requires_grad]

    def start(seed: int) -> Any:
        return attach_lora(parts.top, rank=2, alpha=4, dropout=0.0, num_labels=3, seed=seed)

    alone = []
    for seed in (1, 2):
        part = start(seed)
        cross_entropy(part(batch.inputs, up), batch.labels).backward()
        alone.append(gradients(part))
    first, second = start(1), start(2)
    losses = [cross_entropy(part(batch.inputs, up), batch.labels) for part in (first, second)]
    losses[1].backward()
    losses[0].backward()
    for part, expected in ((first, alone[0]), (second, alone[1])):
        assert all(torch.equal(left, right) for left, right in zip(gradients(part), expected, strict=True))


def test_state_goes_back_or_is_refused_by_name() -> None:
    parts = split(shared_model("bert", Head.CLASSIFICATION), Cut(bottom=2))
    first = shaken(attach_lora(parts.top, **SETTINGS, num_labels=3))
    second = attach_lora(parts.top, **SETTINGS, num_labels=3)
    state = {key: value.clone() for key, value in adapter_state(first).items()}
    assert all(key.startswith("base_model.model.") for key in state)
    load_adapter_state(second, state)
    assert all(torch.equal(state[key], value) for key, value in adapter_state(second).items())
    deeper = attach_lora(split(shared_model("bert", Head.CLASSIFICATION), Cut(bottom=3)).top, **SETTINGS, num_labels=3)
    with pytest.raises(ModelError, match=r"bert\.encoder\.layer\.2"):
        load_adapter_state(deeper, state)
    with pytest.raises(ModelError, match="classifier"):
        load_adapter_state(attach_lora(parts.top, **SETTINGS, num_labels=4), state)


def test_adapters_of_another_cut_or_damaged_ones_are_refused(tmp_path: Path) -> None:
    model = shared_model("bert", Head.CLASSIFICATION)
    save_adapter(attach_lora(split(model, Cut(bottom=2)).top, **SETTINGS, num_labels=3), tmp_path, {})
    with pytest.raises(ModelError, match="differ"):
        load_adapter(split(model, Cut(bottom=3)).top, tmp_path)
    with pytest.raises(ModelError, match="head"):
        load_adapter(split(shared_model("llama", Head.CLASSIFICATION), Cut()).top, tmp_path)
    weights = tmp_path / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-5])
    with pytest.raises(StorageError, match="cannot be read"):
        load_adapter(split(model, Cut(bottom=2)).top, tmp_path)


def test_what_makes_no_sense_is_refused() -> None:
    encoder = split(shared_model("bert", Head.CLASSIFICATION), Cut(bottom=0, tail=0))
    assert encoder.bottom is not None
    assert encoder.tail is not None
    with pytest.raises(ModelError, match="number of labels"):
        attach_lora(split(shared_model("bert", Head.CLASSIFICATION), Cut()).top, **SETTINGS)
    with pytest.raises(ModelError, match="does not end"):
        attach_lora(encoder.top, **SETTINGS, num_labels=2)
    with pytest.raises(ModelError, match="no blocks"):
        attach_lora(encoder.bottom, **SETTINGS)
    with pytest.raises(ModelError, match="no adapter"):
        adapter_state(encoder.top)


def test_the_files_are_pefts_own_and_name_no_machine(tmp_path: Path) -> None:
    model = shared_model("bert", Head.CLASSIFICATION)
    model.config._name_or_path = "/vendor/secret/place"
    save_adapter(attach_lora(split(model, Cut(bottom=1)).top, **SETTINGS, num_labels=3), tmp_path, {"step": 3})
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "adapter_config.json", "adapter_model.safetensors", "cutlayer.json",
    ]  # fmt: skip
    assert "/vendor/secret" not in "".join(path.read_text(errors="replace") for path in tmp_path.iterdir())
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert config["peft_type"] == "LORA"
    assert config["task_type"] == "SEQ_CLS"


def test_a_missing_pooler_is_trained_and_saved_with_the_head(tmp_path: Path) -> None:
    from cutlayer.models.heads import FRESH

    case = Case("bert", Head.CLASSIFICATION, Cut(bottom=1))
    model = make_model("bert", Head.CLASSIFICATION)
    setattr(model, FRESH, ("bert.pooler", "classifier"))
    parts = split(model, case.cut)
    part = shaken(attach_lora(parts.top, **SETTINGS, num_labels=3))
    assert any("pooler" in key for key in adapter_state(part))
    save_adapter(part, tmp_path, {})
    other = make_model("bert", Head.CLASSIFICATION)
    torch.nn.init.zeros_(other.bert.pooler.dense.weight)
    setattr(other, FRESH, ("bert.pooler", "classifier"))
    loaded = load_adapter(split(other, case.cut).top, tmp_path)
    batch = make_batch(case)
    assert parts.bottom is not None
    up = parts.bottom(batch.inputs)
    assert torch.equal(loaded(batch.inputs, up), part(batch.inputs, up))


def test_scaling_of_a_language_model_adapter(tmp_path: Path) -> None:
    """An adapter on a middle part, loaded on the whole language model, changes it as it changed the split one."""
    case = Case("llama-tied", Head.LANGUAGE, Cut(bottom=1, tail=1))
    model = make_model(case.name, case.head)
    batch = make_batch(case)
    parts = split(model, case.cut)
    top = shaken(attach_lora(parts.top, **SETTINGS, targets="all-linear"))
    save_adapter(top, tmp_path, {})
    object.__setattr__(parts, "top", top)
    expected = split_logits(parts, batch)
    peft = PeftModel.from_pretrained(make_model(case.name, case.head), str(tmp_path)).eval()
    assert torch.allclose(whole_logits(peft, case, batch), expected, atol=1e-6)
    assert configuration("llama-tied").tie_word_embeddings
