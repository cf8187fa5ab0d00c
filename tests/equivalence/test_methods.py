"""Promise 2 for what is tuned: a prompt or a prefix on a cut model is PEFT's own, to the last bit."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DynamicCache, EncoderDecoderCache

from cutlayer.core import Cut, ModelError
from cutlayer.core.tuning import FullSpec, LoraSpec, MethodSpec, PrefixSpec, PromptSpec
from cutlayer.models import (
    METHODS,
    Head,
    Inputs,
    adapter_state,
    attach,
    load_adapter,
    save_adapter,
    set_checkpointing,
    split,
    split_seq2seq,
)
from tests.equivalence.checks import (
    FP32,
    FP64,
    Case,
    compare_adapters,
    compare_with_peft,
    cut_up,
    generate_again,
    generate_parts,
    make_batch,
    split_logits,
)
from tests.equivalence.test_step import heads
from tests.equivalence.zoo import CONFIGURATIONS, ENCODERS, PAD, SEQ2SEQ, VARIANTS, VOCAB, make_model, shared_model
from tests.quick import slow_but

VIRTUAL = (PromptSpec(prompt_length=4, pooling="sequence"), PrefixSpec(prefix_length=3))
CUTS = (Cut(bottom=None), Cut(bottom=0), Cut(bottom=2), Cut(bottom=1, tail=1))
IGNORED = {("distilbert", "prefix")}
"""What is refused; `test_every_tensor_gets_a_gradient_or_the_method_is_refused`."""
WHOLE = ("bert", "gpt2")
"""The families that `make test` takes through every cut; of the others it takes one, of each method and head."""


def cases() -> list[Any]:
    """Each family, method, head and cut; most cuts and all further configurations of a family are slow."""
    every = [
        (name, spec, head, cut)
        for name, spec in itertools.product(CONFIGURATIONS, VIRTUAL)
        for head, cut in itertools.product(heads(name), CUTS)
        if (name, spec.method) not in IGNORED and (cut.tail is None or head is Head.LANGUAGE)
    ]
    quick = [case for case in every if case[0] in WHOLE or (case[0] not in VARIANTS and case[-1] == Cut(bottom=2))]
    return slow_but(quick, every, ids=[f"{name}-{spec.method}-{head}-{cut.slug}" for name, spec, head, cut in every])


def case_of(name: str, head: Head, cut: Cut) -> Case:
    """Of equal lengths where Hugging Face's head finds a text's end by its ids alone, and PEFT gives it rows."""
    alike = head is Head.CLASSIFICATION and name not in ENCODERS
    return Case(name, head, cut, lengths=(5, 5, 5) if alike else (7, 3, 5))


@pytest.mark.parametrize(("name", "spec", "head", "cut"), cases())
def test_it_is_peft(name: str, spec: MethodSpec, head: Head, cut: Cut, tmp_path: Path) -> None:
    if name in SEQ2SEQ and (cut.tail is not None or spec.method == "prefix"):
        pytest.skip("PEFT has no class for half a decoder, and gives a T5 prefix to other blocks: see below")
    model = make_model(name, head)
    found = compare_with_peft(model, case_of(name, head, cut), spec, tmp_path)
    assert found["output"] == found["reloaded"] == 0, found
    assert found["gradients"] <= FP32, found
    exact = compare_with_peft(model, case_of(name, head, cut), spec, tmp_path, element=torch.float64)
    assert max(exact.values()) <= FP64, exact


@pytest.mark.parametrize("name", SEQ2SEQ)
def test_a_decoders_prefix_is_keys_and_values_of_its_own_blocks(name: str) -> None:
    """PEFT 0.21.2 doubles the list for the cross-attention and then takes every second pair of it.

    So block i would attend to the pair of block 2i, and half of twelve blocks' pairs would never train. Here each block
    has its own; the reference is Hugging Face's model with them in its cache.
    """
    model = make_model(name, Head.LANGUAGE)
    batch = make_batch(Case(name, Head.LANGUAGE, Cut()))
    assert batch.target is not None
    spec = PrefixSpec(prefix_length=3)
    found = []
    for cut in (Cut(bottom=None), Cut(bottom=0), Cut(bottom=2)):
        parts = split_seq2seq(model, cut)
        top = attach(parts.top, spec, seed=1)
        found.append(split_logits(replace(parts, top=top), batch))
    numbers = adapter_state(top)["prompt_embeddings"].view(3, -1, 2, 4, 4).permute(1, 2, 3, 0, 4)
    pairs = [(keys.expand(3, -1, -1, -1), values.expand(3, -1, -1, -1)) for keys, values in numbers]
    expected = model(
        input_ids=batch.inputs.input_ids,
        attention_mask=batch.inputs.attention_mask,
        decoder_input_ids=batch.target.input_ids,
        decoder_attention_mask=torch.cat([torch.ones(3, 3, dtype=torch.int64), batch.target.attention_mask], 1),
        past_key_values=EncoderDecoderCache(DynamicCache(pairs), DynamicCache()),
    ).logits
    real = batch.target.attention_mask.bool()
    assert all(torch.equal(logits[real], expected[real]) for logits in found)


@pytest.mark.parametrize("spec", VIRTUAL, ids=lambda spec: spec.method)
@pytest.mark.parametrize("name", ["bert", "llama", "t5"])
def test_twenty_steps_end_at_equal_weights(name: str, spec: MethodSpec) -> None:
    """Of a cut whose top begins with the embeddings, and the whole model."""
    head = heads(name)[-1]
    found = compare_adapters(make_model(name, head), Case(name, head, Cut(bottom=0)), spec)
    assert max(found.values()) <= FP32, found


@pytest.mark.parametrize("padding", ["right", "left"])
@pytest.mark.parametrize("spec", VIRTUAL, ids=lambda spec: spec.method)
@pytest.mark.parametrize("name", ["gpt2", "opt", "llama", "mistral", "qwen3-mixed", "t5"])
def test_growing_texts_see_virtual_positions_once(name: str, spec: MethodSpec, padding: str) -> None:
    """Token by token with a cache, and all at once without: the same tokens."""
    case = Case(name, Head.LANGUAGE, Cut(bottom=1, tail=0), padding=padding)
    parts = cut_up(shared_model(name, Head.LANGUAGE), case.cut, name)
    parts = replace(parts, top=attach(parts.top, spec, seed=1))
    forced = torch.randint(PAD + 1, VOCAB, (len(case.lengths), 6), generator=torch.Generator().manual_seed(2))
    grown = generate_parts(parts, case, tokens=6, forced=forced)
    assert torch.equal(grown, generate_again(parts, case, forced))
    assert len(grown.unique()) > 3, "one token again and again would show little"


@pytest.mark.parametrize("spec", VIRTUAL, ids=lambda spec: spec.method)
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "mistral"])
def test_blocks_computed_again_see_the_same_positions(name: str, spec: MethodSpec) -> None:
    """A cache that a block had filled once would be attended to twice."""
    parts = cut_up(shared_model(name, Head.CLASSIFICATION), Cut(bottom=1), name)
    batch = make_batch(case_of(name, Head.CLASSIFICATION, Cut(bottom=1)))
    found = []
    for again in (False, True):
        top = attach(parts.top, spec, num_labels=3, seed=1)
        set_checkpointing(top, again)
        output = split_logits(replace(parts, top=top), batch)
        trained = [value for value in top.parameters() if value.requires_grad]
        found.append((output, *torch.autograd.grad(output.square().sum(), trained)))
    assert all(torch.equal(left, right) for left, right in zip(*found, strict=True))


@pytest.mark.parametrize("name", [name for name in CONFIGURATIONS if name not in VARIANTS])
@pytest.mark.parametrize("spec", [LoraSpec(), FullSpec(), *VIRTUAL], ids=lambda spec: spec.method)
def test_every_tensor_gets_a_gradient_or_the_method_is_refused(name: str, spec: MethodSpec) -> None:
    """A row of the table that says a family looks at a prefix, and one that says it does not, are both put to proof."""
    assert set(METHODS) == {"lora", "full", "prompt", "prefix"}
    head = heads(name)[0]
    labels = 3 if head is Head.CLASSIFICATION else None
    parts = cut_up(shared_model(name, head), Cut(bottom=1), name)
    if (name, spec.method) in IGNORED:
        with pytest.raises(ModelError, match=f"Method {spec.method} trains nothing on a {name} model") as error:
            attach(parts.top, spec, num_labels=labels, seed=1)
        assert "lora" in error.value.remedy
        # and it is true: attached in spite of that, its blocks have no place for it
        part = METHODS[spec.method].attach(parts.top, spec, num_labels=labels, shared=True, seed=1)
        with pytest.raises(RuntimeError, match="must match the size"):
            not_trained(part, parts, name, head)
        return
    assert not not_trained(attach(parts.top, spec, num_labels=labels, seed=1), parts, name, head)


def not_trained(part: Any, parts: Any, name: str, head: Head) -> list[str]:
    """Tensors of a method that a backward pass leaves without a gradient."""
    batch = make_batch(case_of(name, head, Cut(bottom=1)))
    split_logits(replace(parts, top=part), batch).square().sum().backward()
    return [key for key, value in part.named_parameters() if value.requires_grad and value.grad is None]


@pytest.mark.parametrize("spec", [*VIRTUAL, LoraSpec(r=2), FullSpec()], ids=lambda spec: spec.method)
@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert", "gpt2", "llama"])
def test_what_a_head_reads(name: str, spec: MethodSpec, tmp_path: Path) -> None:
    """[CLS] or a decoder's last token is found behind a prompt, and the mean is that of the text alone (RAPT eq. 9)."""
    if (name, spec.method) in IGNORED:
        pytest.skip("refused: its blocks do not look at a prefix")
    model = make_model(name, Head.CLASSIFICATION).requires_grad_(False)
    case = Case(name, Head.CLASSIFICATION, Cut(bottom=1))
    batch, parts = make_batch(case), split(model, case.cut)
    assert parts.bottom is not None
    up = parts.bottom(batch.inputs)
    outputs = {}
    for pooling in ("sequence", "text", "mean"):
        top = attach(parts.top, spec.model_copy(update={"pooling": pooling}), num_labels=3, seed=1)
        outputs[pooling] = top(batch.inputs, up)
        assert not [hook for module in top.modules() for hook in module._forward_hooks]
        save_adapter(top, tmp_path, {})
        assert torch.allclose(load_adapter(parts.top, tmp_path)(batch.inputs, up), outputs[pooling], atol=1e-6)
    moved = name in ENCODERS and spec.method == "prompt"
    assert torch.equal(outputs["sequence"], outputs["text"]) is not moved
    assert not torch.allclose(outputs["mean"], outputs["text"], atol=1e-5)
    # a text of one position is its own mean
    case = replace(case, lengths=(1, 1))
    batch = make_batch(case)
    up = parts.bottom(batch.inputs)
    text, mean = (
        attach(parts.top, spec.model_copy(update={"pooling": pooling}), num_labels=3, seed=1)(batch.inputs, up)
        for pooling in ("text", "mean")
    )
    assert torch.allclose(text, mean, atol=1e-6)
    # padding is no part of a mean: a text beside a longer one, and alone
    beside = make_batch(replace(case, lengths=(3, 7)))
    top = attach(parts.top, spec.model_copy(update={"pooling": "mean"}), num_labels=3, seed=1)
    both = top(beside.inputs, parts.bottom(beside.inputs))
    alone = cut_to(beside.inputs, 3)
    assert torch.allclose(top(alone, parts.bottom(alone)), both[:1], atol=1e-5)


def cut_to(inputs: Inputs, length: int) -> Inputs:
    """The first text of a batch, without its padding."""
    present = {name: value[:1, :length] for name, value in vars(inputs).items() if value is not None}
    return replace(inputs, **present)
