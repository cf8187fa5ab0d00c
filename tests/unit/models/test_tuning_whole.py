"""Training a part's own weights, the files they go into, clipping across a cut, and two heads on one base."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from cutlayer.core import Cut, ModelError, StorageError
from cutlayer.models import (
    Head,
    Inputs,
    Part,
    Parts,
    adapter_state,
    attach_lora,
    family_of,
    load_adapter,
    load_adapter_state,
    save_adapter,
    share_base,
    split,
    tune_whole,
    weights_file,
)
from cutlayer.models.adapters.store import ADAPTER_WEIGHTS, WHOLE_WEIGHTS
from cutlayer.models.optimiser import is_update, updates_in
from tests.equivalence import zoo

NAMES = ("gpt2", "llama", "llama-tied", "opt-projected")


def parts_of(name: str, cut: Cut) -> Parts:
    return split(copy.deepcopy(zoo.shared_model(name, Head.LANGUAGE)), cut)


def batch() -> Inputs:
    ids = torch.randint(4, zoo.VOCAB, (2, 7), generator=torch.Generator().manual_seed(3))
    return Inputs(torch.ones_like(ids), torch.arange(7).expand(2, -1), input_ids=ids)


def bits(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in module.named_parameters()}


def equal(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(value, right[name]) for name, value in left.items())


def trained(part: Part, *, seed: int = 5) -> Part:
    """A tuned part after some training."""
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in part.parameters():
            if value.requires_grad:
                value.add_(0.1 * torch.randn(value.shape, generator=rng))
    return part


# ---------------------------------------------------------------- tuning


@pytest.mark.parametrize("name", NAMES)
def test_weights_of_its_own(name: str) -> None:
    top = parts_of(name, Cut(bottom=1, tail=1)).top
    top.requires_grad_(False)
    before = bits(top)
    tuned = tune_whole(top)
    assert type(tuned) is type(top)
    assert equal(bits(tuned), before), "it starts as what it was made from"
    assert all(value.requires_grad for value in tuned.parameters())
    assert not any(value.requires_grad for value in top.parameters())
    places = {value.data_ptr() for value in top.parameters()}
    assert not places & {value.data_ptr() for value in tuned.parameters()}
    trained(tuned)
    assert equal(bits(top), before), "the base has moved"
    assert not equal(bits(tuned), before)
    hidden = torch.randn(2, 7, zoo.WIDTH)
    with torch.no_grad():
        assert not torch.allclose(tuned(batch(), hidden), top(batch(), hidden))


def test_ties_within_a_part_stay() -> None:
    """A text cut without a tail: table and head are the vendor's, and one tensor."""
    top = parts_of("llama-tied", Cut(bottom=None)).top
    tuned = tune_whole(top)
    assert tuned.model.get_input_embeddings().weight is tuned.model.get_output_embeddings().weight
    assert tuned.model.get_input_embeddings().weight is not top.model.get_input_embeddings().weight
    assert len(list(tuned.parameters())) == len(list(top.parameters()))
    trained(tuned)
    assert torch.equal(tuned.model.get_input_embeddings().weight, tuned.model.get_output_embeddings().weight)


# ---------------------------------------------------------------- state and files


@pytest.mark.parametrize("name", NAMES)
def test_the_state_comes_back(name: str, tmp_path: Path) -> None:
    top = parts_of(name, Cut(bottom=1, tail=1)).top
    tuned = trained(tune_whole(top))
    state = {key: value.detach().clone() for key, value in adapter_state(tuned).items()}
    assert state.keys() <= dict(zoo.shared_model(name, Head.LANGUAGE).named_parameters()).keys(), "whole-model names"
    assert equal(state, bits(tuned.model))
    fresh = tune_whole(top)
    load_adapter_state(fresh, state)
    assert equal(bits(fresh), bits(tuned))
    before = bits(top)
    save_adapter(tuned, tmp_path / "a", {"cut": "1-t1"})
    assert weights_file(tmp_path / "a").name == WHOLE_WEIGHTS
    assert {path.name for path in (tmp_path / "a").iterdir()} == {WHOLE_WEIGHTS, "cutlayer.json"}
    assert json.loads((tmp_path / "a" / "cutlayer.json").read_text()) == {"cut": "1-t1"}
    loaded = load_adapter(top, tmp_path / "a")
    assert equal(bits(loaded), bits(tuned))
    assert equal(bits(top), before)
    assert not loaded.training
    assert not any(value.requires_grad for value in loaded.parameters())
    assert not loaded.own_dropout or not any(module.training for module in loaded.modules())


def test_whole_weights_replace_those_of_the_whole_model(tmp_path: Path) -> None:
    """Names in the file are names in the whole model: what is published can be put back."""
    model = copy.deepcopy(zoo.shared_model("gpt2", Head.LANGUAGE))
    parts = split(model, Cut(bottom=1, tail=1))
    tuned = trained(tune_whole(parts.top))
    save_adapter(tuned, tmp_path, {})
    inputs = batch()
    assert parts.bottom is not None
    assert parts.tail is not None
    tuned.eval()
    with torch.no_grad():
        expected = parts.tail(tuned(inputs, parts.bottom(inputs)), inputs)
        missing, unexpected = model.load_state_dict(load_file(weights_file(tmp_path)), strict=False)
        assert not unexpected
        assert missing
        torch.testing.assert_close(model(inputs.input_ids).logits, expected)


def test_a_tied_part_is_saved_once_and_comes_back_tied(tmp_path: Path) -> None:
    top = parts_of("llama-tied", Cut(bottom=None)).top
    tuned = trained(tune_whole(top))
    save_adapter(tuned, tmp_path, {})
    loaded = load_adapter(top, tmp_path)
    assert equal(bits(loaded), bits(tuned))
    assert loaded.model.get_input_embeddings().weight is loaded.model.get_output_embeddings().weight


def test_an_adapter_s_file_is_another(tmp_path: Path) -> None:
    top = parts_of("gpt2", Cut(bottom=1, tail=1)).top
    save_adapter(attach_lora(top, rank=2, alpha=4, dropout=0, seed=1), tmp_path, {})
    assert weights_file(tmp_path).name == ADAPTER_WEIGHTS


def test_what_is_refused(tmp_path: Path) -> None:
    top = parts_of("gpt2", Cut(bottom=1, tail=1)).top.requires_grad_(False)
    with pytest.raises(ModelError, match="has no adapter"):
        adapter_state(top)
    tuned = tune_whole(top)
    state = {name: value.detach().clone() for name, value in adapter_state(tuned).items()}
    first = next(iter(state))
    before = bits(tuned)
    for wrong in (
        {name: value for name, value in state.items() if name != first},
        state | {"transformer.h.0.ln_1.weight": torch.zeros(zoo.WIDTH)},
        state | {first: torch.zeros(3)},
        {},
    ):
        with pytest.raises(ModelError, match="does not fit this part"):
            load_adapter_state(tuned, wrong)
    assert equal(bits(tuned), before), "a refused state was put in by half"
    save_adapter(tuned, tmp_path / "a", {})
    other = parts_of("gpt2", Cut(bottom=2, tail=1)).top
    with pytest.raises(ModelError, match="does not fit this part"):
        load_adapter(other, tmp_path / "a")
    with pytest.raises(ModelError, match="does not fit this part"):
        load_adapter_state(attach_lora(top, rank=2, alpha=4, dropout=0, seed=1), state)
    (tmp_path / "a" / WHOLE_WEIGHTS).write_bytes(b"torn")
    with pytest.raises(StorageError, match="cannot be read"):
        load_adapter(top, tmp_path / "a")
    with pytest.raises(StorageError, match="cannot be read"):
        load_adapter(top, tmp_path / "nothing")


def test_a_file_of_another_model_s_shapes(tmp_path: Path) -> None:
    top = parts_of("gpt2", Cut(bottom=1, tail=1)).top
    save_file({"transformer.h.1.ln_1.weight": torch.zeros(3)}, tmp_path / WHOLE_WEIGHTS)
    with pytest.raises(ModelError, match="does not fit"):
        load_adapter(top, tmp_path)


# ---------------------------------------------------------------- updates and clipping


@pytest.mark.parametrize("accumulation", [1, 2, 3, 7, 10, 11])
def test_updates_are_as_many_as_are_taken(accumulation: int) -> None:
    total = 10
    taken = [step for step in range(1, total + 1) if is_update(step, accumulation, total)]
    assert len(taken) == updates_in(total, accumulation)
    assert taken[-1] == total, "the last one takes what there is"
    assert taken[:-1] == [step for step in range(1, total) if step % accumulation == 0]


# ---------------------------------------------------------------- two heads on one base


def base_tensors(model: PreTrainedModel) -> dict[str, Tensor]:
    """Parameters of the stacks, by whole-model name."""
    paths = tuple(f"{stack.path}." for stack in family_of(model.config).stacks)
    named = model.named_parameters(remove_duplicate=False)
    return {name: value for name, value in named if name.startswith(paths)}


@torch.no_grad()
@pytest.mark.parametrize("name", ["gpt2", "opt", "opt-projected", "llama", "llama-tied", "qwen3", "mistral"])
def test_two_heads_share_every_tensor_of_the_base(name: str) -> None:
    classifier = zoo.make_model(name, Head.CLASSIFICATION)
    language = zoo.make_model(name, Head.LANGUAGE, seed=1)
    theirs = base_tensors(classifier)
    for key, value in base_tensors(language).items():  # one checkpoint, loaded twice
        value.copy_(theirs[key])
    ids = torch.randint(4, zoo.VOCAB, (2, 7), generator=torch.Generator().manual_seed(3))
    before = language(ids).logits, classifier(ids).logits
    tied = language.get_output_embeddings().weight is language.get_input_embeddings().weight
    share_base(language, classifier)
    mine = base_tensors(language)
    assert mine.keys() == theirs.keys()
    assert mine
    assert all(value is theirs[key] for key, value in mine.items())
    assert torch.equal(language(ids).logits, before[0])
    assert torch.equal(classifier(ids).logits, before[1])
    assert (language.get_output_embeddings().weight is language.get_input_embeddings().weight) == tied
    if tied:
        assert language.get_output_embeddings().weight is classifier.get_input_embeddings().weight


@torch.no_grad()
def test_the_other_way_round_ties_stay_too() -> None:
    language, classifier = zoo.make_model("gpt2", Head.LANGUAGE), zoo.make_model("gpt2", Head.CLASSIFICATION, seed=1)
    share_base(classifier, language)
    assert classifier.get_input_embeddings().weight is language.lm_head.weight
    assert base_tensors(classifier).keys() == base_tensors(language).keys()
