from __future__ import annotations

import copy

import pytest
import torch

from cutlayer.attacks import Inapplicable
from cutlayer.attacks.language import tail_blocks, unembedding
from cutlayer.attacks.language.forward_leak import read_greedy_tokens
from cutlayer.attacks.language.tail import NO_TARGET
from cutlayer.core import Cut, DataError
from cutlayer.models import Head, split
from cutlayer.models.cutting import Tail
from cutlayer.models.inputs import Inputs
from tests.equivalence import zoo

FAMILIES = ("gpt2", "opt", "opt-projected", "llama", "qwen2-mixed", "glm")


def batch(lengths, *, left=False, seed=0):
    """Random texts."""
    longest = max(lengths)
    places = torch.arange(longest).expand(len(lengths), -1)
    real = places >= longest - torch.tensor(lengths)[:, None] if left else places < torch.tensor(lengths)[:, None]
    ids = torch.randint(4, zoo.VOCAB, real.shape, generator=torch.Generator().manual_seed(seed))
    return Inputs(real.long(), (real.long().cumsum(1) - 1).clamp_min(0), input_ids=ids)


def boundary(name, depth, inputs):
    parts = split(zoo.shared_model(name, Head.LANGUAGE), Cut(bottom=1, tail=depth))
    with torch.no_grad():
        return parts.tail, parts.top(inputs, parts.bottom(inputs))


def drifted(tail, share):
    other = Tail(copy.deepcopy(tail.model), head=True)
    weight = other.model.get_output_embeddings().weight
    noise = torch.empty(weight.shape).normal_(generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        weight.copy_((1 - share) * weight + share * noise * weight.norm() / noise.norm())
    return other


def choices(tail, hidden, inputs):
    with torch.no_grad():
        chosen = tail(hidden, inputs).argmax(-1)
    return torch.where(inputs.attention_mask.bool(), chosen, NO_TARGET)


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("name", FAMILIES)
def test_an_untrained_tail_s_choices_are_all_read(name, depth, left):
    inputs = batch([20, 7, 13, 1], left=left)
    tail, hidden = boundary(name, depth, inputs)
    guesses = read_greedy_tokens(tail, hidden, inputs)
    assert torch.equal(guesses, choices(tail, hidden, inputs))
    assert (guesses >= 0).sum() == 41


@pytest.mark.parametrize(("name", "depth"), [("gpt2", 0), ("llama", 2)])
def test_generated_text_is_read_from_the_boundaries_of_its_steps(name, depth):
    parts = split(zoo.shared_model(name, Head.LANGUAGE), Cut(bottom=1, tail=depth))
    prompt = batch([6, 6, 6])
    caches = [part.new_cache() for part in (parts.bottom, parts.top, parts.tail)]
    crossed, written, step = [], [], prompt
    with torch.no_grad():
        for _ in range(20):
            hidden = parts.top(step, parts.bottom(step, caches[0]), caches[1])
            crossed.append(hidden)
            written.append(parts.tail(hidden, step, caches[2])[:, -1:].argmax(-1))
            step = Inputs(
                torch.cat([step.attention_mask, torch.ones(3, 1, dtype=torch.int64)], 1),
                step.position_ids[:, -1:] + 1,
                input_ids=written[-1],
            )
    whole = torch.cat(crossed, 1)
    guesses = read_greedy_tokens(parts.tail, whole, batch([25, 25, 25]))
    assert torch.equal(guesses[:, 5:], torch.cat(written, 1))


def test_training_moves_the_customer_s_choices_away_from_the_vendor_s():
    inputs = batch([64] * 8)
    tail, hidden = boundary("gpt2", 1, inputs)
    guesses = read_greedy_tokens(tail, hidden, inputs)
    shares = [
        float((guesses == choices(drifted(tail, share), hidden, inputs)).double().mean()) for share in (0.01, 0.3, 1)
    ]
    assert shares[0] > 0.9 > shares[1] > 0.3
    # nothing of the vendor's head is left in the last one
    assert shares[2] < 0.06


def test_rows_and_vocabulary_in_blocks(monkeypatch):
    inputs = batch([9, 4])
    tail, hidden = boundary("llama", 1, inputs)
    one = read_greedy_tokens(tail, hidden, inputs)
    for module, name, value in ((unembedding, "_SCORES", 50), (unembedding, "_ROWS", 4), (tail_blocks, "_PAIRS", 1)):
        monkeypatch.setattr(module, name, value)
    assert torch.equal(read_greedy_tokens(tail, hidden, inputs), one)


def test_a_tail_in_training_mode_and_bf16_is_read_without_dropout():
    inputs = batch([30] * 6)
    tail, hidden = boundary("gpt2", 1, inputs)
    other = Tail(copy.deepcopy(tail.model).bfloat16(), head=True)
    other.train()
    guesses = [read_greedy_tokens(other, hidden, inputs) for _ in range(2)]
    assert torch.equal(*guesses)
    assert (guesses[0] == choices(tail, hidden, inputs)).double().mean() > 0.9
    assert other.training


def test_what_does_not_apply_or_belong_together():
    inputs = batch([5, 3])
    _, hidden = boundary("gpt2", 1, inputs)
    classifier = split(zoo.shared_model("gpt2", Head.CLASSIFICATION), Cut(bottom=1, tail=1)).tail
    with pytest.raises(Inapplicable, match="not that of a language model"):
        read_greedy_tokens(classifier, hidden, inputs)
    tail, _ = boundary("gpt2", 1, inputs)
    with pytest.raises(DataError, match="not of one batch"):
        read_greedy_tokens(tail, hidden, batch([5, 3, 2]))
