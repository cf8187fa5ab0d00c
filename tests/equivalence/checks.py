"""What "split equals whole" means, as functions that raise: the tests call them, and so do the planted faults."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, TaskType, get_peft_model, set_peft_model_state_dict
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import DynamicCache, PreTrainedModel

from cutlayer.core import Cut
from cutlayer.core.tuning import LoraSpec, MethodSpec
from cutlayer.models import (
    Head,
    Inputs,
    Part,
    Parts,
    Seq2SeqParts,
    adapter_state,
    attach,
    load_adapter,
    save_adapter,
    split,
    split_seq2seq,
)
from tests.equivalence.zoo import PAD, SEQ2SEQ, VOCAB

FP32 = 1e-5
FP64 = 1e-6
LORA = LoraSpec(r=2, lora_alpha=4, target_modules="all-linear")

AnyParts = Parts | Seq2SeqParts
Fault = Callable[[Any], None]
"""Damages parts in place, as a wrong cut would have made them."""


@dataclass(frozen=True)
class Case:
    """One comparison: which model, where cut, on what batch."""

    name: str
    head: Head
    cut: Cut
    lengths: tuple[int, ...] = (7, 3, 5)
    padding: str = "right"
    attention: str = "sdpa"
    seed: int = 0


@dataclass(frozen=True)
class Batch:
    inputs: Inputs
    target: Inputs | None
    labels: Tensor


def make_batch(case: Case, *, target_lengths: Sequence[int] | None = None) -> Batch:
    generator = torch.Generator().manual_seed(case.seed)
    inputs = _side(case.lengths, case.padding, generator)
    if case.name.startswith("bert"):
        inputs = replace(inputs, token_type_ids=torch.randint(0, 2, inputs.position_ids.shape, generator=generator))
    if case.head is Head.CLASSIFICATION:
        return Batch(inputs, None, torch.randint(0, 3, (len(case.lengths),), generator=generator))
    target = None
    if case.name in SEQ2SEQ:
        target = _side(target_lengths or [1 + length // 2 for length in case.lengths], "right", generator)
    side = inputs if target is None else target
    assert side.input_ids is not None
    return Batch(inputs, target, torch.where(side.attention_mask.bool(), side.input_ids, -100))


def _side(lengths: Sequence[int], padding: str, generator: torch.Generator) -> Inputs:
    longest = max(lengths)
    columns = torch.arange(longest)
    counts = torch.tensor(lengths)[:, None]
    mask = ((columns < counts) if padding == "right" else (columns >= longest - counts)).to(torch.int64)
    ids = torch.randint(PAD + 1, VOCAB, (len(lengths), longest), generator=generator)
    return Inputs(
        attention_mask=mask,
        position_ids=(mask.cumsum(1) - 1).clamp(min=0),
        input_ids=torch.where(mask.bool(), ids, PAD),
    )


# ---------------------------------------------------------------- forward


def cut_up(model: PreTrainedModel, cut: Cut, name: str) -> AnyParts:
    return split_seq2seq(model, cut) if name in SEQ2SEQ else split(model, cut)


def whole_logits(model: PreTrainedModel, case: Case, batch: Batch) -> Tensor:
    """Hugging Face's own forward pass, head and pooling included."""
    inputs, extra = batch.inputs, {}
    if batch.target is not None:
        extra = {
            "decoder_input_ids": batch.target.input_ids,
            "decoder_attention_mask": batch.target.attention_mask,
        }
    else:
        extra["position_ids"] = inputs.position_ids
        if case.name == "roberta":
            del extra["position_ids"]  # it derives them from the ids and its padding id
        if inputs.token_type_ids is not None:
            extra["token_type_ids"] = inputs.token_type_ids
    logits: Tensor = model(input_ids=inputs.input_ids, attention_mask=inputs.attention_mask, **extra).logits
    return logits


def split_logits(parts: AnyParts, batch: Batch, *, cross: bool = True) -> Tensor:
    """The same through the parts; `cross` hides the ids from those who would not have them."""
    inputs = batch.inputs
    beyond = replace(inputs, input_ids=None) if cross and parts.bottom is not None else inputs
    if isinstance(parts, Seq2SeqParts):
        assert batch.target is not None
        target = batch.target
        unseen = replace(target, input_ids=None) if beyond is not inputs else target
        encoded = parts.top.encode(beyond, None if parts.bottom is None else parts.bottom.encode(inputs))
        low = None if parts.bottom is None else parts.bottom.decode(encoded, beyond, target)
        upper = parts.top.decode(encoded, beyond, unseen, low)
        return upper if parts.tail is None else parts.tail.decode(encoded, beyond, unseen, upper)
    up = None if parts.bottom is None else parts.bottom(inputs)
    logits = parts.top(beyond, up)
    return logits if parts.tail is None else parts.tail(logits, beyond)


def loss_of(logits: Tensor, labels: Tensor, case: Case) -> Tensor:
    if case.head is Head.CLASSIFICATION:
        return cross_entropy(logits, labels)
    if case.name in SEQ2SEQ:
        return cross_entropy(logits.flatten(0, 1), labels.flatten())
    return cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def compare_step(model: PreTrainedModel, case: Case, *, fault: Fault | None = None) -> dict[str, float]:
    """Largest differences of logits, loss and all gradients between the whole model and its parts."""
    batch = make_batch(case)
    reference = copy.deepcopy(model).requires_grad_(True)
    model = copy.deepcopy(model).requires_grad_(True)
    expected = whole_logits(reference, case, batch)
    expected_loss = loss_of(expected, batch.labels, case)
    expected_loss.backward()
    parts = cut_up(model, case.cut, case.name)
    if fault is not None:
        fault(parts)
    logits = split_logits(parts, batch)
    loss = loss_of(logits, batch.labels, case)
    loss.backward()
    logits, expected = logits.detach(), expected.detach()
    real = torch.ones(logits.shape[:-1], dtype=torch.bool)
    if case.head is Head.LANGUAGE:
        real = (batch.target or batch.inputs).attention_mask.bool()
    return {
        "logits": float((logits - expected)[real].abs().max()),
        "loss": abs(loss.item() - expected_loss.item()),
        "gradients": _difference(_gradients(model), _gradients(reference)),
    }


def check_step(model: PreTrainedModel, case: Case, *, limit: float = FP32, fault: Fault | None = None) -> None:
    found = compare_step(model, case, fault=fault)
    assert max(found.values()) <= limit, (case, found)


def _gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.grad for name, value in model.named_parameters() if value.grad is not None}


def _difference(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> float:
    assert left.keys() == right.keys(), left.keys() ^ right.keys()
    return max((left[name] - right[name]).detach().abs().max().item() for name in left)


# ---------------------------------------------------------------- twenty steps


def compare_training(
    model: PreTrainedModel, case: Case, *, steps: int = 20, rate: float = 3e-4, fault: Fault | None = None
) -> dict[str, float]:
    """Trains the whole model and the cut one, all parameters, and compares losses and parameters."""
    reference = copy.deepcopy(model).requires_grad_(True)
    model = copy.deepcopy(model).requires_grad_(True)
    parts = cut_up(model, case.cut, case.name)
    if fault is not None:
        fault(parts)
    held = {
        id(value): value
        for part in (parts.bottom, parts.top, parts.tail)
        if part is not None
        for value in part.parameters()
    }
    losses = _train(
        list(reference.parameters()), lambda batch: whole_logits(reference, case, batch), case, steps=steps, rate=rate
    )
    found = _train(list(held.values()), lambda batch: split_logits(parts, batch), case, steps=steps, rate=rate)
    return {
        "loss": max(abs(left - right) for left, right in zip(losses, found, strict=True)),
        "parameters": _difference(dict(model.named_parameters()), dict(reference.named_parameters())),
    }


def compare_adapters(
    model: PreTrainedModel, case: Case, spec: MethodSpec = LORA, *, steps: int = 20, rate: float = 3e-4
) -> dict[str, float]:
    """Trains an adapter on the whole model and one on each part that the method tunes, and compares adapters."""
    labels = 3 if case.head is Head.CLASSIFICATION else None
    model = copy.deepcopy(model).requires_grad_(False)
    whole = cut_up(model, Cut(bottom=None), case.name)
    whole_top = adapted(whole.top, labels, spec)
    parts = cut_up(model, case.cut, case.name)
    tuned = ("top",) if spec.at_vendor else ("bottom", "top", "tail")
    parts = replace(parts, **{name: adapted(getattr(parts, name), labels, spec) for name in tuned})
    expected = _train(
        _trainable(whole_top), lambda batch: split_logits(replace(whole, top=whole_top), batch), case, steps=steps,
        rate=rate,
    )  # fmt: skip
    mine = [part for part in (parts.bottom, parts.top, parts.tail) if part is not None]
    found = _train(
        [value for part in mine for value in _trainable(part)], lambda batch: split_logits(parts, batch), case,
        steps=steps, rate=rate,
    )  # fmt: skip
    state: dict[str, Tensor] = {}
    for part in mine:
        if _trainable(part):
            state |= adapter_state(part)
    return {
        "loss": max(abs(left - right) for left, right in zip(expected, found, strict=True)),
        "parameters": _difference(state, adapter_state(whole_top)),
    }


def adapted(part: Part | None, labels: int | None, spec: MethodSpec = LORA) -> Part | None:
    """The part with what a method trains, if it has anything to adapt."""
    if part is None or not any(True for _ in part.block_parameters()):
        return part
    return attach(part, spec, num_labels=labels if part.has_head else None, seed=7)


def _trainable(part: nn.Module) -> list[nn.Parameter]:
    return [value for value in part.parameters() if value.requires_grad]


# ---------------------------------------------------------------- PEFT itself


def compare_with_peft(
    model: PreTrainedModel, case: Case, spec: MethodSpec, folder: Path, *, element: torch.dtype = torch.float32
) -> dict[str, float]:
    """Prompt or prefix: a tuned top beside PEFT's own forward pass, and beside itself saved and loaded.

    Of a top that begins with the embeddings PEFT wraps the whole model, and reads the files that were saved. Of another
    one it wraps the top's own Hugging Face model, which takes the boundary's rows: that is what the method means there.
    """
    model = copy.deepcopy(model).requires_grad_(False).to(element)
    parts = cut_up(model, case.cut, case.name)
    top = parts.top
    tuned = adapted(top, 3 if case.head is Head.CLASSIFICATION and top.has_head else None, spec)
    assert tuned is not None
    tuned = tuned.to(element)
    batch = make_batch(case)
    upper, boundary = _through(replace(parts, top=tuned), batch)
    save_adapter(tuned, folder, {})
    again = load_adapter(top, folder).to(element)
    reloaded, _ = _through(replace(parts, top=again), batch)
    whole = not case.cut.bottom and tuned.has_head
    base = model if whole else top.model if tuned.has_head else top.runner
    wrapped = by_peft(base, tuned).to(element)
    given = boundary if case.cut.bottom else {}
    expected = _peft_output(wrapped, case, batch, given)
    if whole:
        read = PeftModel.from_pretrained(copy.deepcopy(model), str(folder)).to(element).eval()
        assert torch.equal(_peft_output(read, case, batch, given), expected)
    expected = expected[:, -upper.shape[1] :] if upper.dim() == 3 else expected
    shown = (batch.target or batch.inputs).attention_mask.bool() if upper.dim() == 3 else ...
    trained = [_trainable(module) for module in (tuned, wrapped)]
    mine, theirs = (
        torch.autograd.grad(output[shown].square().sum(), values)
        for output, values in zip((upper, expected), trained, strict=True)
    )
    return {
        "output": (upper - expected)[shown].abs().max().item(),
        "gradients": max((left - right).abs().max().item() for left, right in zip(mine, theirs, strict=True)),
        "reloaded": (upper - reloaded)[shown].abs().max().item(),
    }


def _through(parts: AnyParts, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    """What comes out of a top, and the boundaries that go in, by the names under which PEFT takes them."""
    inputs = batch.inputs
    if isinstance(parts, Seq2SeqParts):
        assert batch.target is not None
        if parts.bottom is None:
            encoded = parts.top.encode(inputs)
            return parts.top.decode(encoded, inputs, batch.target), {}
        source = parts.bottom.encode(inputs)
        encoded = parts.top.encode(inputs, source)
        target = parts.bottom.decode(encoded, inputs, batch.target)
        output = parts.top.decode(encoded, inputs, batch.target, target)
        return output, {"inputs_embeds": source, "decoder_inputs_embeds": target}
    if parts.bottom is None:
        return parts.top(inputs), {}
    rows = parts.bottom(inputs)
    return parts.top(inputs, rows), {"inputs_embeds": rows}


def by_peft(base: PreTrainedModel, tuned: Part) -> PeftModel:
    """PEFT's own class around a model, with what was tuned."""
    assert isinstance(tuned.module, PeftModel)
    config = copy.deepcopy(tuned.module.peft_config["default"])
    if not tuned.has_head:
        config.task_type = TaskType.FEATURE_EXTRACTION
    wrapped = get_peft_model(copy.deepcopy(base), config)
    set_peft_model_state_dict(wrapped, adapter_state(tuned))
    return wrapped.eval()


def _peft_output(wrapped: PeftModel, case: Case, batch: Batch, boundary: Mapping[str, Tensor]) -> Tensor:
    source: dict[str, Any] = dict(boundary) or {"input_ids": batch.inputs.input_ids}
    if batch.target is not None:
        source["decoder_attention_mask"] = batch.target.attention_mask
        if not boundary:
            source["decoder_input_ids"] = batch.target.input_ids
    elif not boundary and case.name.startswith("bert"):
        source["token_type_ids"] = batch.inputs.token_type_ids
    output = wrapped(attention_mask=batch.inputs.attention_mask, **source)
    found: Tensor = output.logits if hasattr(output, "logits") else output.last_hidden_state
    return found


def _train(
    parameters: list[nn.Parameter], forward: Callable[[Batch], Tensor], case: Case, *, steps: int, rate: float
) -> list[float]:
    optimiser = torch.optim.AdamW(parameters, lr=rate)
    losses = []
    for step in range(steps):
        batch = make_batch(replace(case, seed=case.seed + step))
        loss = loss_of(forward(batch), batch.labels, case)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        losses.append(loss.item())
    return losses


# ---------------------------------------------------------------- generation


def generate_whole(model: PreTrainedModel, case: Case, *, tokens: int) -> Tensor:
    """Hugging Face's own greedy generation with its cache; new tokens only."""
    batch = make_batch(case)
    start = batch.inputs.attention_mask.shape[1] if case.name not in SEQ2SEQ else 1
    model = copy.deepcopy(model)
    model.config.eos_token_id = None
    model.generation_config.eos_token_id = None
    with torch.no_grad():
        produced = model.generate(
            input_ids=batch.inputs.input_ids,
            attention_mask=batch.inputs.attention_mask,
            max_new_tokens=tokens,
            do_sample=False,
            pad_token_id=PAD,
        )
    return produced[:, start:]


def step_whole(model: PreTrainedModel, case: Case, *, tokens: int) -> Tensor:
    """Greedy generation through Hugging Face's own forward pass and cache, each prompt continued behind its padding.

    `generate` continues the last column, which of a prompt that is padded on the right is padding.
    """
    cache = DynamicCache(config=model.config)

    def forward(inputs: Inputs) -> Tensor:
        logits: Tensor = model(
            input_ids=inputs.input_ids,
            attention_mask=inputs.attention_mask,
            position_ids=inputs.position_ids,
            past_key_values=cache,
            use_cache=True,
        ).logits
        return logits

    with torch.no_grad():
        return _grow(forward, make_batch(case).inputs, tokens)


def generate_split(
    model: PreTrainedModel, case: Case, *, tokens: int, fault: Callable[[Any], None] | None = None
) -> Tensor:
    """Greedy generation through three parts, each with a cache of its own blocks."""
    parts = cut_up(model, case.cut, case.name)
    if fault is not None:
        fault(parts)
    return generate_parts(parts, case, tokens=tokens)


@torch.no_grad()
def generate_parts(parts: AnyParts, case: Case, *, tokens: int, forced: Tensor | None = None) -> Tensor:
    """The same of parts that are cut already; the texts go on with `forced` `[n, tokens]` where that is given."""
    batch = make_batch(case)
    if isinstance(parts, Seq2SeqParts):
        return _generate_seq2seq(parts, batch.inputs, tokens, forced)
    return _generate(parts, batch.inputs, tokens, forced)


@torch.no_grad()
def generate_again(parts: AnyParts, case: Case, grown: Tensor) -> Tensor:
    """The likeliest tokens where `grown` `[n, tokens]` stands, all at once and without a cache."""
    inputs, tokens = make_batch(case).inputs, grown.shape[1]
    if isinstance(parts, Seq2SeqParts):
        ids = torch.cat([torch.full((len(grown), 1), PAD), grown[:, :-1]], 1)
        target = Inputs(torch.ones_like(ids), torch.arange(tokens).expand_as(ids), ids)
        logits = split_logits(parts, Batch(inputs, target, ids))
        return logits.argmax(-1)
    assert inputs.input_ids is not None
    columns = inputs.input_ids.shape[1]
    mask = torch.cat([inputs.attention_mask, torch.ones_like(grown)], 1)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    whole = Inputs(mask, positions, torch.cat([inputs.input_ids, grown], 1))
    found = split_logits(parts, Batch(whole, None, grown)).argmax(-1)
    last = (inputs.attention_mask * torch.arange(columns)).argmax(1)
    return torch.cat([found[torch.arange(len(last)), last][:, None], found[:, columns:-1]], 1)


def _generate(parts: Parts, inputs: Inputs, tokens: int, forced: Tensor | None) -> Tensor:
    caches = [None if part is None else part.new_cache() for part in (parts.bottom, parts.top, parts.tail)]

    def forward(inputs: Inputs) -> Tensor:
        up = None if parts.bottom is None else parts.bottom(inputs, caches[0])
        result = parts.top(inputs, up, caches[1])
        return result if parts.tail is None else parts.tail(result, inputs, caches[2])

    return _grow(forward, inputs, tokens, forced)


def _grow(forward: Callable[[Inputs], Tensor], inputs: Inputs, tokens: int, forced: Tensor | None = None) -> Tensor:
    """The likeliest tokens behind each prompt's last real position."""
    places = torch.arange(inputs.attention_mask.shape[1])
    last = (inputs.attention_mask * places).argmax(1)
    positions = inputs.attention_mask.sum(1, keepdim=True)
    produced: list[Tensor] = []
    for step in range(tokens):
        newest = forward(inputs)[torch.arange(len(last)), last].argmax(-1, keepdim=True)
        produced.append(newest)
        newest = newest if forced is None else forced[:, step : step + 1]
        last = torch.zeros_like(last)
        inputs = Inputs(
            attention_mask=torch.cat([inputs.attention_mask, torch.ones_like(newest)], 1),
            position_ids=positions,
            input_ids=newest,
        )
        positions = positions + 1
    return torch.cat(produced, 1)


def _generate_seq2seq(parts: Seq2SeqParts, inputs: Inputs, tokens: int, forced: Tensor | None) -> Tensor:
    newest = torch.full((len(inputs.attention_mask), 1), PAD)
    caches = [None if part is None else part.new_cache() for part in (parts.bottom, parts.top, parts.tail)]
    produced: list[Tensor] = []
    encoded = parts.top.encode(inputs, None if parts.bottom is None else parts.bottom.encode(inputs))
    for step in range(tokens):
        seen = torch.ones(len(newest), step + 1, dtype=torch.int64)
        target = Inputs(attention_mask=seen, position_ids=torch.full_like(newest, step), input_ids=newest)
        low = None if parts.bottom is None else parts.bottom.decode(encoded, inputs, target, caches[0])
        result = parts.top.decode(encoded, inputs, target, low, caches[1])
        logits = result if parts.tail is None else parts.tail.decode(encoded, inputs, target, result, caches[2])
        newest = logits[:, -1].argmax(-1, keepdim=True)
        produced.append(newest)
        newest = newest if forced is None else forced[:, step : step + 1]
    return torch.cat(produced, 1)
