from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

from cutlayer.attacks import Inapplicable
from cutlayer.attacks.language import tail_blocks, unembedding
from cutlayer.attacks.language.norm_jacobian import ClosedJacobian
from cutlayer.attacks.language.tail import NO_TARGET, predicting, tail_logits
from cutlayer.attacks.language.tail_blocks import Solver, final_hidden, solve_blocks
from cutlayer.attacks.language.tail_gradient import Match, MeanLoss, nearest_tokens, read_next_tokens
from cutlayer.attacks.language.unembedding import Unembedding
from cutlayer.core import Cut, DataError
from cutlayer.models import Head, split
from cutlayer.models.cutting import Tail, set_dropout
from cutlayer.models.heads import model_class
from cutlayer.models.inputs import Inputs
from cutlayer.models.seq2seq import split_seq2seq
from tests.equivalence import zoo

WIDTH, VOCAB = 64, 512
WIDER = {
    "gpt2": dict(n_embd=WIDTH),
    "opt": dict(hidden_size=WIDTH, word_embed_proj_dim=WIDTH),
    "opt-projected": dict(hidden_size=WIDTH, word_embed_proj_dim=WIDTH // 2),
    "llama": dict(hidden_size=WIDTH),
    "qwen3": dict(hidden_size=WIDTH),
}


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def batch(lengths, *, left=False):
    longest = max(lengths)
    places = torch.arange(longest).expand(len(lengths), -1)
    real = places >= longest - torch.tensor(lengths)[:, None] if left else places < torch.tensor(lengths)[:, None]
    return Inputs(attention_mask=real.long(), position_ids=(real.long().cumsum(1) - 1).clamp_min(0))


def random_ids(inputs, vocab, seed=0):
    return torch.randint(4, vocab, inputs.attention_mask.shape, generator=rng(seed))


def wide_tail(name, *, noise=0.3):
    """Norm and head of a random model whose head is wide enough for half a row of drift."""
    config = zoo.configuration(name, vocab_size=VOCAB, **WIDER[name])
    model = model_class(config, Head.LANGUAGE).from_config(config).eval()
    generator = rng(1)
    with torch.no_grad():
        for parameter in model.parameters():
            drawn = torch.empty(parameter.shape).normal_(generator=generator)
            parameter.copy_(noise * drawn) if parameter.dim() > 1 else parameter.add_(0.2 * drawn)
    return split(model, Cut(bottom=1, tail=0)).tail


def drifted(tail, share):
    """A customer's tail whose head has moved by random numbers of this share of its own size."""
    other = Tail(copy.deepcopy(tail.model), head=True)
    weight = other.model.get_output_embeddings().weight
    noise = torch.empty(weight.shape).normal_(generator=rng(7))
    with torch.no_grad():
        weight.add_(share * noise * weight.norm() / noise.norm())
    return other


def customers_gradient(tail, hidden, inputs, ids, *, ahead=1, scale=1.0):
    """DL/dh of the mean cross-entropy of the tokens `ahead`, and what each position predicts."""
    entry = hidden.clone().requires_grad_()
    real = inputs.attention_mask.bool()
    targets = torch.full_like(ids, -100)
    targets[:, :-ahead] = torch.where(real[:, :-ahead] & real[:, ahead:], ids[:, ahead:], -100)
    loss = nn.functional.cross_entropy(tail(entry, inputs).flatten(0, 1), targets.flatten())
    (gradient,) = torch.autograd.grad(scale * loss, entry)
    return gradient, targets


def share_read(guesses, targets):
    return float((guesses == targets)[targets >= 0].double().mean())


def random_step(tail, lengths=(65,) * 8, *, customer=None, seed=0, **how):
    """Random hidden states, and what a customer's tail makes of random texts on them."""
    inputs = batch(lengths)
    width = Unembedding.of(tail).width
    hidden = 2 * torch.empty(*inputs.attention_mask.shape, width).normal_(generator=rng(seed))
    ids = random_ids(inputs, tail.model.config.vocab_size, seed)
    gradient, targets = customers_gradient(customer or tail, hidden, inputs, ids, **how)
    return hidden, gradient, inputs, targets


def model_step(name, tail, inputs):
    """Tail, boundary, gradient and targets of a zoo model on random texts."""
    parts = split(zoo.shared_model(name, Head.LANGUAGE), Cut(bottom=1, tail=tail))
    ids = random_ids(inputs, zoo.VOCAB)
    embedded = Inputs(inputs.attention_mask, inputs.position_ids, input_ids=ids)
    hidden = parts.top(inputs, parts.bottom(embedded)).detach()
    gradient, targets = customers_gradient(parts.tail, hidden, inputs, ids)
    return parts.tail, hidden, gradient, targets


# ---------------------------------------------------------------- norm and head alone


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("match", Match)
@pytest.mark.parametrize(
    ("name", "drift"),
    [("gpt2", 0), ("gpt2", 0.5), ("llama", 0), ("llama", 0.5), ("qwen3", 0), ("opt", 0.5), ("opt-projected", 0)],
)
def test_every_next_token_is_read_from_the_gradient_below_norm_and_head(name, drift, match, dtype):
    tail = wide_tail(name)
    hidden, gradient, inputs, targets = random_step(tail, customer=drifted(tail, drift))
    guesses = read_next_tokens(tail, hidden, gradient.to(dtype), inputs, MeanLoss(512), match=match)
    assert (targets >= 0).sum() == 512
    assert share_read(guesses, targets) == 1


def test_noise_is_read_at_chance():
    tail = wide_tail("gpt2")
    hidden, gradient, inputs, targets = random_step(tail)
    noise = torch.empty(gradient.shape).normal_(generator=rng(9)) * gradient.std()
    for match in Match:
        share = share_read(read_next_tokens(tail, hidden, noise, inputs, MeanLoss(512), match=match), targets)
        assert share < 1 / VOCAB + 5 * math.sqrt(1 / VOCAB / 512)


def test_another_step_s_gradients_are_read_at_chance():
    tail = wide_tail("llama")
    hidden, _, inputs, targets = random_step(tail)
    _, gradient, _, _ = random_step(tail, seed=1)
    assert share_read(read_next_tokens(tail, hidden, gradient, inputs, MeanLoss(512)), targets) < 0.02


def test_what_is_read_is_what_the_gradient_is_about():
    """Gradients of the token after next: these are read, and the next ones are not."""
    tail = wide_tail("llama")
    hidden, gradient, inputs, targets = random_step(tail, ahead=2)
    guesses = read_next_tokens(tail, hidden, gradient, inputs, MeanLoss(int((targets >= 0).sum())))
    assert share_read(guesses, targets) == 1
    _, _, _, following = random_step(tail)
    assert share_read(guesses, following) < 0.02


@pytest.mark.parametrize("wrong", [16, 51])
def test_distances_need_the_right_count_and_directions_need_none(wrong):
    """Too small a count puts every row near the expected one; too large a count is forgiven more often."""
    tail = wide_tail("gpt2")
    hidden, gradient, inputs, targets = random_step(tail)
    shares = {
        match: share_read(read_next_tokens(tail, hidden, gradient, inputs, MeanLoss(wrong), match=match), targets)
        for match in Match
    }
    assert shares[Match.DIRECTION] == 1
    assert shares[Match.DISTANCE] < 0.05


def test_a_scaled_loss():
    tail = wide_tail("gpt2")
    hidden, gradient, inputs, targets = random_step(tail, scale=2.0**-6)
    shares = [
        share_read(
            read_next_tokens(tail, hidden, gradient, inputs, MeanLoss(512, scale), match=Match.DISTANCE), targets
        )
        for scale in (2.0**-6, 1.0)
    ]
    assert shares[0] == 1
    assert shares[1] < 0.05


def test_a_customer_surer_of_its_tokens_than_the_vendor_is_read_by_direction():
    """What p' = p but for the own token's probability does: every row has another length."""
    tail = wide_tail("llama")
    hidden, gradient, inputs, targets = random_step(tail)
    lengths = torch.logspace(-6, 0, gradient.shape[0] * gradient.shape[1]).view(*gradient.shape[:2], 1)
    shares = [
        share_read(read_next_tokens(tail, hidden, lengths * gradient, inputs, MeanLoss(512), match=match), targets)
        for match in (Match.DIRECTION, Match.DISTANCE)
    ]
    assert shares[0] == 1
    assert shares[1] < 0.5


@pytest.mark.parametrize("match", Match)
def test_confident_predictions_leave_enough(match):
    """A head so large that p is one-hot: where it is right the gradient is 0, elsewhere a difference of two rows."""
    tail = wide_tail("llama")
    with torch.no_grad():
        tail.model.get_output_embeddings().weight.mul_(100)
    inputs = batch([65] * 8)
    hidden = 2 * torch.empty(8, 65, WIDTH).normal_(generator=rng())
    with torch.no_grad():
        sure, likeliest = tail(hidden, inputs).softmax(-1).max(-1)
    ids = random_ids(inputs, VOCAB)
    right = torch.rand(ids.shape, generator=rng(2)) < 0.7
    ids[:, 1:] = torch.where(right[:, 1:], likeliest[:, :-1], ids[:, 1:])
    gradient, targets = customers_gradient(tail, hidden, inputs, ids)
    assert (sure > 0.999).double().mean() > 0.9
    silent = gradient[:, :-1].norm(dim=-1) == 0
    assert silent.double().mean() > 0.2
    guesses = read_next_tokens(tail, hidden, gradient, inputs, MeanLoss(512), match=match)
    assert share_read(guesses, targets) == 1


def test_only_candidates_are_guessed():
    tail = wide_tail("gpt2")
    hidden, gradient, inputs, targets = random_step(tail)
    allowed = torch.arange(VOCAB) % 2 == 0
    guesses = read_next_tokens(tail, hidden, gradient, inputs, MeanLoss(512), candidates=allowed)
    here = targets >= 0
    assert allowed[guesses[here]].all()
    assert (guesses == targets)[here & (targets % 2 == 0)].all()
    silent = read_next_tokens(tail, hidden, 0 * gradient, inputs, MeanLoss(512), candidates=allowed)
    assert allowed[silent[here]].all()


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_blocks_of_rows_and_of_the_vocabulary_change_nothing(monkeypatch, name):
    tail = wide_tail(name)
    hidden, gradient, inputs, _ = random_step(tail, (9, 4, 7), customer=drifted(tail, 1.5))
    one = [read_next_tokens(tail, hidden, gradient, inputs, MeanLoss(17), match=match) for match in Match]
    monkeypatch.setattr(unembedding, "_SCORES", 37 * WIDTH)
    monkeypatch.setattr(unembedding, "_ROWS", 4)
    other = [read_next_tokens(tail, hidden, gradient, inputs, MeanLoss(17), match=match) for match in Match]
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


# ---------------------------------------------------------------- Jacobians


class RootMeanSquare(nn.Module):
    """As the families write it, with an epsilon and a gain to be told from others."""

    def __init__(self, width, eps, *, offset=0.0):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 2, width))
        self.variance_epsilon = eps
        self.offset = offset

    def forward(self, x):
        return (self.weight + self.offset) * x * (x.square().mean(-1, keepdim=True) + self.variance_epsilon).rsqrt()


class Opaque(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


def layer_norm(width, eps, *, affine=True):
    norm = nn.LayerNorm(width, eps=eps, elementwise_affine=affine)
    if affine:
        with torch.no_grad():
            norm.weight.copy_(torch.linspace(-1, 2, width))
            norm.bias.copy_(torch.linspace(3, -1, width))
    return norm


# an epsilon as large as the rows makes ‖x‖² differ from the width
NORMS = {
    "layer": layer_norm(12, 1e-5),
    "layer, large epsilon": layer_norm(12, 3.0),
    "layer, no gain": layer_norm(12, 0.5, affine=False),
    "root mean square": RootMeanSquare(12, 1e-6),
    "root mean square, large epsilon": RootMeanSquare(12, 3.0),
    "none": None,
    "another gain": RootMeanSquare(12, 0.1, offset=1.0),
    "unknown class": Opaque(layer_norm(12, 0.1)),
}
CLOSED = [name for name in NORMS if name not in ("another gain", "unknown class")]


@pytest.mark.parametrize("name", NORMS)
def test_jacobians_are_those_of_automatic_differentiation(name):
    norm = NORMS[name]
    rows, vectors = (torch.empty(2, 9, 12).normal_(generator=rng()) * 1.5 + 0.3).unbind(0)
    table = torch.empty(20, 12, dtype=torch.float64).normal_(generator=rng(1))
    ending = Unembedding(norm=norm, projection=None, weight=table, bias=None)
    exact = copy.deepcopy(norm).double() if norm else nn.Identity()
    matrices = torch.stack([torch.autograd.functional.jacobian(exact, row) for row in rows.double()])
    parts = list(ending.jacobians(rows))
    assert isinstance(parts[0][1], ClosedJacobian) == (name in CLOSED)
    for part, jacobian in parts:
        matrix, vector = matrices[part], vectors[part].double()
        expected = {
            "features": exact(rows[part].double()),
            "push": torch.einsum("nij,nj->ni", matrix, vector),
            "gram": torch.einsum("nij,nkj,nk->ni", matrix, matrix, vector),
            "squares": torch.einsum("nij,vi->nvj", matrix, table).square().sum(-1),
        }
        found = {
            "features": jacobian.features,
            "push": jacobian.push(vector),
            "gram": jacobian.gram(vector),
            "squares": jacobian.squares(table),
        }
        for key, value in expected.items():
            torch.testing.assert_close(found[key], value, rtol=1e-9, atol=1e-9, msg=f"{name}: {key}")


@pytest.mark.parametrize("name", NORMS)
def test_scores_are_those_of_one_vector_per_row_and_token(name):
    """Against the formulas as they stand, in float64, on gradients that no token explains exactly."""
    norm = NORMS[name]
    rows = torch.empty(15, 12).normal_(generator=rng(3))
    gradient = torch.empty(15, 12).normal_(generator=rng(4)) * 0.2
    table = torch.empty(40, 12).normal_(generator=rng(5))
    bias = torch.empty(40).normal_(generator=rng(6))
    exact = copy.deepcopy(norm).double() if norm else nn.Identity()
    features = exact(rows.double())
    p = (features @ table.double().T + bias.double()).softmax(1)
    matrices = torch.stack([torch.autograd.functional.jacobian(exact, row) for row in rows.double()])
    apart = torch.einsum("nij,nvi->nvj", matrices, table.double() - (p @ table.double())[:, None])
    wanted = -7.5 * gradient.double()[:, None]
    expected = {
        Match.DISTANCE: (wanted - apart).norm(dim=-1).argmin(1),
        Match.DIRECTION: ((wanted * apart).sum(-1) / apart.norm(dim=-1)).argmax(1),
    }
    ending = Unembedding(norm=norm, projection=None, weight=table, bias=bias)
    for match, ids in expected.items():
        assert torch.equal(nearest_tokens(ending, rows, gradient, MeanLoss(7.5), match=match), ids)


# ---------------------------------------------------------------- blocks in the tail


@pytest.mark.parametrize(
    ("name", "depth"), [("gpt2", 1), ("gpt2", 2), ("llama", 1), ("llama", 2), ("opt", 2), ("qwen2-mixed", 2)]
)
def test_tokens_are_read_through_blocks(name, depth):
    inputs = batch([33] * 4)
    tail, hidden, gradient, targets = model_step(name, depth, inputs)
    guesses = read_next_tokens(tail, hidden, gradient.bfloat16(), inputs, MeanLoss(128))
    assert share_read(guesses, targets) >= 0.99
    ignoring = read_next_tokens(tail, hidden, gradient, inputs, MeanLoss(128), solver=Solver(iterations=0))
    # residual connections make it less wrong than it sounds; two random blocks make it wrong all the same
    assert 0.3 < share_read(ignoring, targets) < (1 if depth == 1 else 0.9)


def test_a_step_of_random_gradients_is_at_chance_through_blocks_too():
    inputs = batch([33] * 4)
    tail, hidden, gradient, targets = model_step("gpt2", 1, inputs)
    noise = torch.empty(gradient.shape).normal_(generator=rng(9)) * gradient.std()
    share = share_read(read_next_tokens(tail, hidden, noise, inputs, MeanLoss(128)), targets)
    assert share < 1 / zoo.VOCAB + 5 * math.sqrt(1 / zoo.VOCAB / 128)


def test_the_solution_is_the_gradient_at_the_final_norm():
    inputs = batch([12, 7])
    tail, hidden, gradient, _ = model_step("gpt2", 2, inputs)
    states = []
    handle = tail.model.transformer.ln_f.register_forward_pre_hook(lambda _, given: states.append(given[0]))
    entry = hidden.clone().requires_grad_()
    tail(entry, inputs)
    handle.remove()
    (state,) = states
    found = solve_blocks(tail, hidden, gradient, inputs, solver=Solver(400, 1e-6, torch.float64))
    torch.testing.assert_close(found.hidden[inputs.attention_mask.bool()].float(), state[inputs.attention_mask.bool()])
    ids = random_ids(inputs, zoo.VOCAB)
    last = state.detach().requires_grad_()
    logits = tail.model.lm_head(tail.model.transformer.ln_f(last))
    where = predicting(inputs)
    loss = nn.functional.cross_entropy(logits[where], ids.roll(-1, 1)[where])
    (expected,) = torch.autograd.grad(loss, last)
    assert (found.gradient.float() - expected).norm() < 1e-4 * expected.norm()
    assert (found.residual <= 1e-6).all()
    assert 0 < found.iterations < 400


def test_the_residual_is_what_is_left():
    inputs = batch([12, 7, 9, 1])
    tail, hidden, gradient, _ = model_step("llama", 2, inputs)
    gradient[2] = 0  # a text without loss
    gradient[3] = 1  # and one of a single token, about which no gradient can be
    found = solve_blocks(tail, hidden, gradient, inputs, solver=Solver(5))
    assert found.iterations == 5
    entry = hidden.clone().requires_grad_()
    states = []
    handle = tail.model.model.norm.register_forward_pre_hook(lambda _, given: states.append(given[0]))
    tail(entry, inputs)
    handle.remove()
    (back,) = torch.autograd.grad(states[0], entry, found.gradient)
    left = (back - gradient).flatten(1).norm(dim=1)
    torch.testing.assert_close(found.residual[:2], (left / gradient.flatten(1).norm(dim=1))[:2], rtol=1e-3, atol=1e-5)
    assert 0.01 < found.residual[0] < 1
    assert found.residual[2:].tolist() == [0, 1]
    assert not found.gradient[2:].any()


def test_texts_solved_apart_or_together(monkeypatch):
    inputs = batch([10, 6, 8])
    tail, hidden, gradient, _ = model_step("gpt2", 1, inputs)
    together = solve_blocks(tail, hidden, gradient, inputs, solver=Solver(60))
    monkeypatch.setattr(tail_blocks, "_PAIRS", 1)
    apart = solve_blocks(tail, hidden, gradient, inputs, solver=Solver(60))
    assert (apart.gradient - together.gradient).norm() < 1e-3 * together.gradient.norm()
    torch.testing.assert_close(apart.hidden, together.hidden)


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_padding_is_not_read_and_does_not_disturb(name, depth, left):
    inputs = batch([14, 1, 9, 2], left=left)
    tail, hidden, gradient, targets = model_step(name, depth, inputs)
    gradient[~inputs.attention_mask.bool()] = torch.nan  # nothing was sent for padding
    gradient = gradient.nan_to_num(0)
    guesses = read_next_tokens(tail, hidden, gradient, inputs, MeanLoss(13 + 0 + 8 + 1), match=Match.DISTANCE)
    expected = torch.where(targets >= 0, targets, NO_TARGET)
    assert torch.equal(guesses, expected)
    assert (guesses >= 0).sum() == 22


def test_the_vendor_s_tail_stays_as_it_is():
    tail, hidden, gradient, targets = model_step("llama", 1, batch([33] * 4))
    tail = Tail(copy.deepcopy(tail.model).bfloat16(), head=True)
    tail.requires_grad_(True)
    set_dropout(tail, True)
    tail.train()
    before = {name: value.clone() for name, value in tail.named_parameters()}
    guesses = read_next_tokens(tail, hidden, gradient, batch([33] * 4), MeanLoss(128))
    # bf16 weights are half a percent off
    assert share_read(guesses, targets) > 0.9
    assert tail.training
    assert tail.model.config._attn_implementation == "sdpa"
    for name, value in tail.named_parameters():
        assert torch.equal(value, before[name])
        assert (value.dtype, value.requires_grad, value.grad) == (torch.bfloat16, True, None)


def test_dropout_of_the_customer_s_does_not_hide_and_ours_is_off():
    inputs = batch([33] * 4)
    tail, hidden, gradient, targets = model_step("gpt2", 1, inputs)
    customer = Tail(copy.deepcopy(tail.model), head=True)
    set_dropout(customer, True)
    customer.train()
    torch.manual_seed(3)
    ids = random_ids(inputs, zoo.VOCAB)
    dropped, _ = customers_gradient(customer, hidden, inputs, ids)
    assert (dropped - gradient).norm() > 0.1 * gradient.norm()
    customer.train()
    guesses = [read_next_tokens(ours, hidden, dropped, inputs, MeanLoss(128)) for ours in (tail, customer, customer)]
    assert torch.equal(guesses[0], guesses[1])
    assert torch.equal(guesses[1], guesses[2])
    assert share_read(guesses[0], targets) > 0.9


# ---------------------------------------------------------------- what does not apply


def test_tails_without_next_tokens():
    classifier = split(zoo.shared_model("gpt2", Head.CLASSIFICATION), Cut(bottom=1, tail=1)).tail
    with pytest.raises(Inapplicable, match="not that of a language model"):
        Unembedding.of(classifier)


def test_the_blocks_of_an_encoder_decoders_tail_are_not_followed():
    model = zoo.shared_model("t5", Head.LANGUAGE)
    deep, bare = (split_seq2seq(model, Cut(bottom=1, tail=depth)).tail for depth in (1, 0))
    inputs = batch([5, 3])
    hidden = torch.randn(2, 5, model.config.d_model, generator=rng(1))
    with pytest.raises(Inapplicable, match="with blocks is not read"):
        final_hidden(deep, hidden, inputs)
    assert torch.equal(final_hidden(bare, hidden, inputs), hidden)


@pytest.mark.parametrize("name", zoo.SEQ2SEQ)
def test_an_encoder_decoders_head_is_known_to_its_scale(name):
    tail = split_seq2seq(zoo.shared_model(name, Head.LANGUAGE), Cut(bottom=1, tail=0)).tail
    inputs = batch([6])
    hidden = torch.randn(1, 6, tail.model.config.d_model, generator=rng(2))
    with torch.no_grad():
        expected = tail_logits(tail, hidden, inputs).argmax(-1)
    assert torch.equal(Unembedding.of(tail).most_likely(hidden[0]), expected[0])


def test_a_head_that_computes_more_than_a_product():
    tail = wide_tail("gpt2")
    tail.model.lm_head.register_forward_hook(lambda *given: 30 * torch.tanh(given[-1] / 30))
    with pytest.raises(Inapplicable, match="computes more than"):
        Unembedding.of(tail)
    tail = wide_tail("gpt2")
    tail.model.lm_head = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, VOCAB))
    with pytest.raises(Inapplicable, match="one norm and one linear head"):
        Unembedding.of(tail)


def test_a_bias_of_the_head():
    tail = wide_tail("gpt2")
    tail.model.lm_head.bias = nn.Parameter(3 * torch.empty(VOCAB).normal_(generator=rng(8)))
    hidden, gradient, inputs, targets = random_step(tail)
    guesses = read_next_tokens(tail, hidden, gradient, inputs, MeanLoss(512), match=Match.DISTANCE)
    assert share_read(guesses, targets) == 1


def test_what_does_not_belong_together():
    tail = wide_tail("gpt2")
    hidden, gradient, inputs, _ = random_step(tail, (5, 3))
    with pytest.raises(DataError, match="not of one batch"):
        read_next_tokens(tail, hidden, gradient[:, 1:], inputs, MeanLoss(6))
    with pytest.raises(DataError, match="not of one batch"):
        read_next_tokens(tail, hidden, gradient, batch([5, 3, 2]), MeanLoss(6))
    for wrong in (dict(predicted=0), dict(predicted=6, scale=0.0), dict(predicted=6, scale=math.nan)):
        with pytest.raises(DataError, match="is no loss"):
            read_next_tokens(tail, hidden, gradient, inputs, MeanLoss(**wrong))
