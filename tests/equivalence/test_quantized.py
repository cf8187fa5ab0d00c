"""Promise 2 for a top in 4 bits: NF4 split = NF4 whole, which is Hugging Face's model and PEFT's adapter on it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import BitsAndBytesConfig, PreTrainedModel

from cutlayer.core import Cut, ModelError
from cutlayer.core.tuning import FullSpec, LoraSpec, MethodSpec, PrefixSpec, PromptSpec
from cutlayer.models import Head, attach, fingerprint, load_adapter, own_bytes, quantized, save_adapter, twin
from cutlayer.models.adapters.methods import trained_parameters
from cutlayer.models.quantization import shape_of, stored, unpacked_bytes
from tests.equivalence.checks import Case, adapted, by_peft, cut_up, make_batch, split_logits
from tests.equivalence.zoo import make_model

bitsandbytes = pytest.importorskip(
    "bitsandbytes", reason="bitsandbytes is not installed: pip install 'cutlayer[qlora]'"
)

LORA = LoraSpec(r=2, lora_alpha=4, target_modules="all-linear")
CUTS = (Cut(bottom=None), Cut(bottom=2))


def whole_in_4_bits(model: PreTrainedModel, bottom: int, folder: Path) -> PreTrainedModel:
    """The model as transformers loads it in NF4; what is not the vendor's blocks' it is told to leave."""
    model.save_pretrained(folder)
    packed = quantized(model, "nf4")
    maps = [name for name, module in packed.named_modules() if isinstance(module, bitsandbytes.nn.Linear4bit)]
    ours = [name for name in maps if not any(f".{number}." in name for number in range(bottom))]
    others = [name for name, module in model.named_modules() if not list(module.children()) and name not in ours]
    whole: PreTrainedModel = type(model).from_pretrained(
        folder,
        quantization_config=BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            llm_int8_skip_modules=others,
        ),
        device_map={"": "cpu"},
        dtype=torch.float32,
        attn_implementation="sdpa",
    )
    found = [name for name, module in whole.named_modules() if isinstance(module, bitsandbytes.nn.Linear4bit)]
    assert sorted(found) == sorted(ours)
    for name in found:
        # Its forward pass of a model in evaluation mode is another one, in bf16, on some processors.
        whole.get_submodule(name).support_avx512bf16_for_cpu = False
        pairs = zip(stored(packed.get_submodule(name).weight), stored(whole.get_submodule(name).weight), strict=True)
        assert all(torch.equal(mine, theirs) for mine, theirs in pairs)
    return whole.requires_grad_(False).eval()


def parts_of(model: PreTrainedModel, cut: Cut, name: str) -> Any:
    """The vendor's part in NF4, the customer's as they are in the checkpoint."""
    plain, packed = cut_up(model, cut, name), cut_up(quantized(model, "nf4"), cut, name)
    return replace(plain, top=packed.top)


def logits_of(module: Any, batch: Any, name: str) -> torch.Tensor:
    inputs = batch.inputs
    types = {"token_type_ids": inputs.token_type_ids} if name == "bert" else {}
    return module(input_ids=inputs.input_ids, attention_mask=inputs.attention_mask, **types).logits


@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: cut.slug)
@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("bert", Head.CLASSIFICATION),
        ("llama", Head.CLASSIFICATION),
        ("llama", Head.LANGUAGE),
        ("gpt2", Head.LANGUAGE),
    ],
)
def test_split_is_whole(name: str, head: Head, cut: Cut, tmp_path: Path) -> None:
    model = make_model(name, head)
    # Of equal lengths where Hugging Face's head looks for a text's end.
    case = Case(name, head, cut, lengths=(5, 5, 5) if name != "bert" else (7, 3, 5))
    batch, parts = make_batch(case), parts_of(model, cut, name)
    tuned = adapted(parts.top, 3 if head is Head.CLASSIFICATION else None, LORA)
    assert tuned is not None
    drawn = torch.Generator().manual_seed(1)
    with torch.no_grad():  # its second matrices begin at 0, and the adapter would do nothing
        for value in tuned.parameters():
            if value.requires_grad:
                value.normal_(0, 0.3, generator=drawn)
    output = split_logits(replace(parts, top=tuned), batch)
    whole = by_peft(whole_in_4_bits(model, cut.bottom or 0, tmp_path / "whole"), tuned)
    expected = logits_of(whole, batch, name)
    assert torch.equal(output, expected)
    assert not torch.equal(output, split_logits(parts, batch)), "the adapter does something"
    names = [key for key, value in tuned.named_parameters() if value.requires_grad]
    mine = torch.autograd.grad(output.square().sum(), [v for v in tuned.parameters() if v.requires_grad])
    theirs = torch.autograd.grad(expected.square().sum(), [v for v in whole.parameters() if v.requires_grad])
    assert len(names) == len(theirs)
    assert all(torch.equal(left, right) for left, right in zip(mine, theirs, strict=True))
    save_adapter(tuned, tmp_path / "adapter", {})
    again = load_adapter(parts.top, tmp_path / "adapter")
    assert torch.equal(split_logits(replace(parts, top=again), batch), output)
    base = whole_in_4_bits(model, cut.bottom or 0, tmp_path / "again")
    read = PeftModel.from_pretrained(base, str(tmp_path / "adapter")).eval()
    assert torch.equal(logits_of(read, batch, name), output)


@pytest.mark.parametrize(
    "spec", [LORA, PromptSpec(prompt_length=3), PrefixSpec(prefix_length=3)], ids=lambda s: s.method
)
@pytest.mark.parametrize("name", ["bert", "llama", "gpt2"])
def test_every_method_but_whole_tuning_trains_over_4_bits(name: str, spec: MethodSpec) -> None:
    """All its tensors get a gradient, as many as are counted beforehand, and the codes stay as they are."""
    model = quantized(make_model(name, Head.CLASSIFICATION), "nf4")
    parts, before = cut_up(model, Cut(bottom=1), name), fingerprint(model)
    top = attach(parts.top, spec, num_labels=3, seed=1)
    output = split_logits(replace(parts, top=top), make_batch(Case(name, Head.CLASSIFICATION, Cut(bottom=1))))
    trained = [value for value in top.parameters() if value.requires_grad]
    assert sum(value.numel() for value in trained) == trained_parameters(parts.top, spec, num_labels=3, shared=True)
    gradients = torch.autograd.grad(output.square().sum(), trained)
    assert all(gradient.shape == value.shape for gradient, value in zip(gradients, trained, strict=True))
    assert fingerprint(model) == before


def test_weights_in_4_bits_are_not_tuned_themselves() -> None:
    parts = cut_up(quantized(make_model("bert", Head.CLASSIFICATION), "nf4"), Cut(bottom=1), "bert")
    with pytest.raises(ModelError, match="4 bits cannot be tuned"):
        attach(parts.top, FullSpec(), num_labels=3, seed=1)


def test_twins_share_codes_and_scales() -> None:
    """Of a module's own state each twin would have a copy: an eighth of the codes' bytes for each job."""
    model = quantized(make_model("llama", Head.LANGUAGE), "nf4")
    other = twin(model)
    assert own_bytes(other, model) == 0
    name = "model.layers.0.mlp.up_proj"
    mine, theirs = model.get_submodule(name), other.get_submodule(name)
    assert mine is not theirs
    assert mine.weight is theirs.weight
    assert mine.quant_state is theirs.quant_state is None
    assert shape_of(mine.weight) == (24, 16)
    assert unpacked_bytes(model) == 4 * 24 * 16


@pytest.mark.parametrize("name", ["bert", "llama", "t5", "gpt2"])
def test_only_maps_of_blocks_are_packed_and_the_checkpoint_stays(name: str) -> None:
    model = make_model(name, Head.LANGUAGE if name == "t5" else Head.CLASSIFICATION)
    before = fingerprint(model)
    packed = quantized(model, "nf4")
    assert fingerprint(model) == before != fingerprint(packed)
    assert fingerprint(quantized(model, "nf4")) == fingerprint(packed)
    kinds = {key for key, value in packed.named_parameters() if hasattr(value, "quant_state")}
    assert kinds
    assert not [key for key in kinds if not any(part.isdigit() for part in key.split("."))]
    assert not [key for key in kinds if key.endswith(".wo.weight")], "transformers keeps T5's in fp32"


def test_the_fingerprint_is_of_scales_too() -> None:
    """Two checkpoints, one twice the other, have the same codes."""
    model = make_model("bert", Head.CLASSIFICATION)
    found = fingerprint(quantized(model, "nf4"))
    with torch.no_grad():
        model.get_submodule("bert.encoder.layer.1.output.dense").weight.mul_(2)
    assert fingerprint(quantized(model, "nf4")) != found
