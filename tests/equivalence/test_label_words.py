"""Promise 2 for labels that are words: scores and gradients of a cut encoder-decoder are Hugging Face's own."""

from __future__ import annotations

import copy
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cutlayer.core import Cut, ModelError
from cutlayer.core.tuning import FullSpec, LoraSpec, MethodSpec, PrefixSpec, PromptSpec
from cutlayer.models import Head, Seq2SeqParts, attach, load_adapter, save_adapter, split, split_seq2seq
from cutlayer.models.label_words import LabelWords, mean_loss
from tests.equivalence.checks import FP32, FP64, Batch, Case, make_batch
from tests.equivalence.zoo import PAD, SEQ2SEQ, VARIANTS, make_model, shared_model
from tests.quick import slow_but

ONE_TOKEN, SEVERAL = ((9,), (4,), (40,)), ((9, 2), (9, 5, 2), (6, 7, 8, 2))
LABELS = torch.tensor([1, 0, 2])
CUTS = (Cut(bottom=None), Cut(bottom=0), Cut(bottom=2))
METHODS = (LoraSpec(r=2, target_modules="all-linear"), FullSpec(), PromptSpec(prompt_length=4), PrefixSpec())


def batch_of(name: str) -> Batch:
    return make_batch(Case(name, Head.LANGUAGE, Cut()))


def through(parts: Seq2SeqParts, batch: Batch) -> Tensor:
    """Scores `[texts, labels]`; the vendor does not see the ids of what crosses as rows."""
    if parts.bottom is None:
        return parts.top(batch.inputs)
    return parts.top(replace(batch.inputs, input_ids=None), parts.bottom(batch.inputs))


def whole_scores(model: Any, batch: Batch, words: tuple[tuple[int, ...], ...]) -> Tensor:
    """By Hugging Face's forward pass alone, label by label; one token's at one position for all."""
    found = []
    known: dict[tuple[int, ...], Tensor] = {}
    for ids in words:
        start = (PAD, *ids[:-1])
        if start not in known:
            known[start] = model(
                input_ids=batch.inputs.input_ids,
                attention_mask=batch.inputs.attention_mask,
                decoder_input_ids=torch.tensor([start] * len(LABELS)),
            ).logits.log_softmax(-1)
        found.append(torch.stack([known[start][:, place, word] for place, word in enumerate(ids)]).sum(0))
    return torch.stack(found, 1)


CASES = {f"{name}-{cut.slug}": (name, cut) for name, cut in itertools.product(SEQ2SEQ, CUTS)}
QUICK = [name for name, case in CASES.items() if case[0] not in VARIANTS]


@pytest.mark.parametrize("words", [ONE_TOKEN, SEVERAL], ids=["one token", "several"])
@pytest.mark.parametrize(("name", "cut"), slow_but(QUICK, CASES.values(), ids=CASES))
def test_scores_and_gradients_are_the_whole_models(name: str, cut: Cut, words: Any) -> None:
    for element, limit in ((torch.float32, 0.0 if words is ONE_TOKEN else FP32), (torch.float64, FP64)):
        model = make_model(name, Head.LANGUAGE).to(element).requires_grad_(True)
        reference, batch = copy.deepcopy(model), batch_of(name)
        parts = split_seq2seq(model, cut)
        parts.top.tell(words)
        found, expected = through(parts, batch), whole_scores(reference, batch, words)
        assert float((found - expected).abs().max()) <= limit
        for scores in (found, expected):
            mean_loss(scores, LABELS, written=True).backward()
        gradients = [dict(each.named_parameters()) for each in (model, reference)]
        assert {key for key, value in gradients[0].items() if value.grad is None} == {
            key for key, value in gradients[1].items() if value.grad is None
        }
        worst = max(
            float((value.grad - gradients[1][key].grad).abs().max())
            for key, value in gradients[0].items()
            if value.grad is not None
        )
        assert worst <= (FP32 if element is torch.float32 else FP64)


@pytest.mark.parametrize("words", [ONE_TOKEN, SEVERAL], ids=["one token", "several"])
@pytest.mark.parametrize("spec", METHODS, ids=lambda spec: spec.method)
@pytest.mark.parametrize("name", [name for name in SEQ2SEQ if name not in VARIANTS])
def test_each_method_of_each_cut_is_that_of_the_whole_model_and_comes_back(
    name: str, spec: MethodSpec, words: Any, tmp_path: Path
) -> None:
    """Of a text cut the vendor holds the whole model, which the other cuts are compared with, to the last bit."""
    model, batch = make_model(name, Head.LANGUAGE).requires_grad_(False), batch_of(name)
    outputs, gradients = [], []
    for cut in CUTS[:2]:
        parts = split_seq2seq(model, cut)
        top = attach(parts.top, spec, label_words=words, seed=1)
        output = through(replace(parts, top=top), batch)
        trained = {key: value for key, value in top.model.named_parameters() if value.requires_grad}
        if spec.method in ("prompt", "prefix"):
            trained = {key: value for key, value in top.named_parameters() if value.requires_grad}
        loss = mean_loss(output, LABELS, written=True)
        gradients.append(dict(zip(trained, torch.autograd.grad(loss, list(trained.values())), strict=True)))
        outputs.append(output)
        save_adapter(top, tmp_path / cut.slug, {})
        again = load_adapter(parts.top, tmp_path / cut.slug)
        with torch.no_grad():
            assert torch.equal(through(replace(parts, top=again), batch), through(replace(parts, top=top), batch))
    assert torch.equal(*outputs)
    both = gradients[0].keys() & gradients[1].keys()
    assert both
    for key in both - {"shared.weight", "encoder.embed_tokens.weight"}:  # of which each cut's vendor has another part
        assert torch.equal(gradients[0][key], gradients[1][key]), key


def test_one_position_is_enough_where_each_label_has_a_token() -> None:
    assert LabelWords.of_ids(ONE_TOKEN, start=PAD).entering.shape == (1, 1)
    several = LabelWords.of_ids(SEVERAL, start=PAD)
    assert several.entering.tolist() == [[PAD, 9, PAD, PAD], [PAD, 9, 5, PAD], [PAD, 6, 7, 8]]
    assert several.ids == SEVERAL


def test_scores_are_those_of_writing_the_words() -> None:
    """Planted: a word that is scored without what stands before it, or one that is left out, would be seen."""
    model, batch = shared_model("t5", Head.LANGUAGE), batch_of("t5")
    parts = split_seq2seq(model, Cut(bottom=None))
    top = attach(parts.top, LoraSpec(), label_words=SEVERAL, seed=1)
    found = through(replace(parts, top=top), batch)
    for wrong in (((9,), (9, 5), (6, 7, 8)), ((9, 2), (5, 9, 2), (6, 7, 8, 2))):
        assert not torch.allclose(whole_scores(model, batch, wrong), found)


def test_parts_that_cannot_write_are_refused() -> None:
    parts = split_seq2seq(shared_model("t5", Head.LANGUAGE), Cut(bottom=1, target=1, tail=0))
    with pytest.raises(ModelError, match="a part of this one"):
        attach(parts.top, LoraSpec(), label_words=ONE_TOKEN, seed=1)
    bert = split(shared_model("bert", Head.CLASSIFICATION), Cut(bottom=0))
    with pytest.raises(ModelError, match="Only encoder-decoders classify by label words"):
        attach(bert.top, LoraSpec(), num_labels=3, label_words=ONE_TOKEN, seed=1)
