"""The known-plaintext inverter against closed forms and brute force, its controls, and its refinements."""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from cutlayer.attacks import Inapplicable
from cutlayer.attacks.inversion import inverter_refinement, public_rows, row_reader
from cutlayer.attacks.inversion.inverter import Inverter, InverterSpec, fit_inverter
from cutlayer.attacks.inversion.inverter_refinement import RefineSpec, refine
from cutlayer.attacks.inversion.unsplit_spec import InputTruth, UnSplitSpec
from cutlayer.core import ConfigError, Cut, DataError, checked
from cutlayer.models import Head, Inputs, attach_lora, split
from tests.equivalence import zoo
from tests.unit.attacks.worlds import generator

VOCAB, WIDTH, BATCH, SEQ, PUBLIC = 60, 24, 4, 12, 120
SEARCH = RefineSpec(matching=None, search=8)


def make_bottom(depth=1, seed=0, attention=1.0):
    """The first blocks of a random GPT-2 whose rows lie far apart and whose block changes them."""
    config = GPT2Config(
        vocab_size=VOCAB, n_embd=WIDTH, n_layer=3, n_head=4, n_positions=16, bos_token_id=0, eos_token_id=0
    )
    model = GPT2LMHeadModel(config).eval()
    rng = generator(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.empty(parameter.shape).normal_(0, 1, generator=rng)
            if "wte" in name:
                parameter.copy_(noise)
            elif parameter.dim() > 1:
                parameter.copy_(0.12 * (attention if ".attn." in name else 1) * noise)
            else:
                parameter.add_(0.1 * noise)
    return split(model, Cut(bottom=depth)).bottom


@functools.cache
def known():
    return make_bottom()


def batch(ids, mask=None):
    mask = torch.ones_like(ids) if mask is None else mask
    return Inputs(attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0), input_ids=ids)


def draw(texts, seed, vocab=VOCAB):
    return torch.randint(vocab, (texts, SEQ), generator=generator(seed))


def public(size=20, seed=1):
    return [batch(ids) for ids in draw(PUBLIC, seed).split(size)]


@dataclass
class World:
    """A private batch and its boundary, as a bottom gave it in evaluation mode."""

    ids: torch.Tensor
    inputs: Inputs
    hidden: torch.Tensor


def observe(bottom, ids, mask=None):
    inputs = batch(ids, mask)
    with torch.no_grad():
        return World(ids, replace(inputs, input_ids=None), bottom(inputs))


@functools.cache
def world():
    return observe(known(), draw(BATCH, 7))


def padded_world():
    """Texts of 12, 7, 3 and 9 tokens, the last one padded on the left."""
    places = torch.arange(SEQ)
    mask = (places < torch.tensor([12, 7, 3, 12])[:, None]) & (places >= torch.tensor([0, 0, 0, 3])[:, None])
    return observe(known(), world().ids, mask.long())


def fit(spec=None, *, bottom=None, texts=None, seed=2, **options):
    spec = spec or InverterSpec()
    return fit_inverter(bottom or known(), texts or public(), spec, generator=generator(seed), **options)


@functools.cache
def fitted():
    return fit()


def accuracy(found, seen):
    real = seen.inputs.attention_mask.bool()
    return float((found == seen.ids)[real].double().mean())


def refined(seen=None, spec=SEARCH, *, by=None, bottom=None, **options):
    seen = seen or world()
    return refine(by or fitted(), bottom or known(), seen.hidden, seen.inputs, spec, generator=generator(3), **options)


CHANCE = 1 / VOCAB + 5 * (1 / VOCAB / (BATCH * SEQ)) ** 0.5


# ---------------------------------------------------------------- the closed form


def held_out(number):
    return number % 10 == 9


def by_numpy(ridge, context=0):
    """The ridge regression as an augmented least-squares problem, with no normal equations."""
    ids = torch.cat([inputs.input_ids for inputs in public()])
    hidden = observe(known(), ids).hidden.double().numpy()
    rows = [np.pad(hidden, ((0, 0), (back, 0), (0, 0)))[:, :SEQ] for back in range(context + 1)]
    kept = [text for text in range(PUBLIC) if not held_out(text)]
    features = np.concatenate(rows, 2)[kept].reshape(len(kept) * SEQ, -1)
    targets = known().table[ids[kept]].detach().double().numpy().reshape(len(features), -1)
    mean, std, centre = features.mean(0), features.std(0), targets.mean(0)
    n, width = features.shape
    left = np.concatenate([(features - mean) / std, np.sqrt(n * ridge) * np.eye(width)])
    right = np.concatenate([targets - centre, np.zeros((width, targets.shape[1]))])
    return np.linalg.lstsq(left, right, rcond=None)[0], mean, std, centre


@pytest.mark.parametrize(("ridge", "context"), [(1e-6, 0), (1e-2, 0), (1.0, 1)])
def test_ridge_is_the_closed_form(ridge, context):
    reader = fit(InverterSpec(ridges=(ridge,), context=context))._reader
    weight, mean, std, centre = by_numpy(ridge, context)
    for found, expected in zip(
        (reader.weight, reader.mean, reader.scale, reader.offset), (weight, mean, std, centre), strict=True
    ):
        np.testing.assert_allclose(found.numpy(), expected, atol=2e-5, rtol=1e-4)
    other, *_ = by_numpy(1.05 * ridge if ridge == 1 else 100 * ridge, context)
    assert np.abs(reader.weight.numpy() - other).max() > 1e-4


def test_pieces_equal_one_piece(monkeypatch):
    whole = fit(texts=public(PUBLIC))
    monkeypatch.setattr(row_reader, "_ROWS", 7)
    monkeypatch.setattr(row_reader, "_SCORES", 5 * VOCAB)
    pieces = fit(texts=public(11))
    torch.testing.assert_close(pieces._reader.weight, whole._reader.weight, atol=1e-5, rtol=1e-4)
    assert pieces.trials == whole.trials
    seen = world()
    assert torch.equal(pieces.ranked(seen.hidden, seen.inputs, 5), whole.ranked(seen.hidden, seen.inputs, 5))


def test_scores_are_those_of_brute_force():
    seen = world()
    for trial, reader in zip(fitted().trials, readers(), strict=True):
        rows = reader.rows(seen.hidden.flatten(0, 1)).double()
        table = known().table.detach().double()
        if trial.distance == "euclid":
            expected = torch.cdist(rows, table).argsort(1)
        else:
            expected = torch.nn.functional.cosine_similarity(rows[:, None], table[None], dim=2).argsort(
                dim=1, descending=True
            )
        barrier = torch.zeros(VOCAB)
        found = row_reader.best_tokens(reader, seen.hidden.flatten(0, 1), table.float(), barrier, 3)
        assert torch.equal(found, expected[:, :3])


def readers():
    """The closed form's readers in the order of the trials."""
    moments = row_reader.Moments(known().table.detach())
    for rows in public_rows.PublicBoundary(known(), public(), context=0, dropout_copies=0, seed=0):
        kept = ~(rows.texts % 10 == 9)
        with torch.no_grad():
            moments.add(rows.features[kept], known().table.detach()[rows.ids[kept]])
    return [one for ridge in InverterSpec().ridges for one in moments.solve(ridge, known().table.detach()).values()]


def test_the_choice_is_the_best_on_held_out_public_text():
    found = fit(InverterSpec(ridges=(1e3, 1e-6)))
    assert [(trial.ridge, trial.distance) for trial in found.trials] == [
        (1e3, "euclid"),
        (1e3, "cosine"),
        (1e-6, "euclid"),
        (1e-6, "cosine"),
    ]
    # shrunk to the mean, every row is nearest to the same few
    assert [trial.accuracy.value > 0.5 for trial in found.trials] == [False, False, True, True]
    assert found.chosen in found.trials[2:]
    assert found.chosen.accuracy.value == max(trial.accuracy.value for trial in found.trials)
    assert found.chosen.accuracy.n == PUBLIC // 10 * SEQ


def test_held_out_text_is_not_fitted_on():
    honest, texts = fit(), torch.cat([inputs.input_ids for inputs in public()])
    texts[9::10] = draw(PUBLIC // 10, 50)
    other = fit(texts=[batch(texts)])
    torch.testing.assert_close(honest._reader.weight, other._reader.weight, atol=1e-5, rtol=1e-4)
    texts[8::10] = draw(PUBLIC // 10, 51)
    assert float((fit(texts=[batch(texts)])._reader.weight - honest._reader.weight).abs().max()) > 1e-3


def test_held_out_rows_are_bounded(monkeypatch):
    monkeypatch.setattr(public_rows, "_HELD_OUT_ROWS", 30)
    found = fit(texts=public(10))
    assert found.chosen.accuracy.n == 36  # one text of 12 a batch, until there are 30


# ---------------------------------------------------------------- controls


# from a bad start: where the closed form reads everything, there is next to no gradient
_COMMON = {"ridges": (10.0,), "batch_rows": 128, "learning_rate": 0.01}
LEARNED = {
    "linear": InverterSpec(reading="linear", **_COMMON),
    "context": InverterSpec(reading="linear", context=2, **_COMMON),
    "dropout": InverterSpec(reading="linear", dropout_copies=1, **_COMMON),
}


@functools.cache
def learned(name):
    return fit(LEARNED[name])


@pytest.mark.parametrize("by", [fitted, *(functools.partial(learned, name) for name in LEARNED)])
def test_unprotected_boundaries_are_recovered(by):
    seen = world()
    assert accuracy(by().guess(seen.hidden, seen.inputs), seen) >= 0.95
    assert by().chosen.accuracy.value >= 0.9


@pytest.mark.parametrize("by", [fitted, functools.partial(learned, "linear")])
def test_a_boundary_of_noise_gives_chance(by):
    noise = world().hidden.std() * torch.randn(world().hidden.shape, generator=generator(8))
    found = refined(replace(world(), hidden=noise), RefineSpec(matching=short_matching(), search=8), by=by())
    for ids in found.stages.values():
        assert accuracy(ids, world()) <= CHANCE


def test_shuffled_texts_give_the_shuffled_texts_and_nothing_else():
    order = torch.randperm(BATCH * SEQ, generator=generator(9))
    told = observe(known(), world().ids.flatten()[order].view(BATCH, SEQ))
    found = refined(told).ids
    assert accuracy(found, told) >= 0.95
    assert accuracy(found, world()) <= float((told.ids == world().ids).double().mean()) + 0.1


def test_an_inverter_of_another_bottom_reads_less():
    other = fit(bottom=make_bottom(seed=4))
    assert accuracy(other.guess(world().hidden, world().inputs), world()) <= 0.3


@pytest.mark.parametrize("fault", ["tokens of the next position", "another table"])
def test_an_inverter_fitted_wrongly_recovers_nothing(monkeypatch, fault):
    if fault == "another table":
        real = row_reader.Moments.add
        wrong = torch.randn(PUBLIC * SEQ, WIDTH, generator=generator(5))
        monkeypatch.setattr(
            row_reader.Moments, "add", lambda moments, features, rows: real(moments, features, wrong[: len(rows)])
        )
        found = fit()
    else:
        real = public_rows.windows
        monkeypatch.setattr(public_rows, "windows", lambda hidden, *rest: real(hidden, *rest).roll(1, 1))
        found = fit()
        monkeypatch.undo()
    assert accuracy(found.guess(world().hidden, world().inputs), world()) <= 0.3


# ---------------------------------------------------------------- learning


def test_learning_starts_from_the_closed_form_and_improves_on_it():
    spec = InverterSpec(reading="linear", ridges=(1e2,), batch_rows=64, passes=4)
    still = fit(InverterSpec(**{**spec.model_dump(), "learning_rate": 1e-12}))
    ridge = fit(InverterSpec(ridges=spec.ridges))
    assert torch.equal(still.ranked(world().hidden, world().inputs, 5), ridge.ranked(world().hidden, world().inputs, 5))
    assert still.chosen.accuracy == ridge.chosen.accuracy
    found = fit(InverterSpec(**{**spec.model_dump(), "learning_rate": 0.01}))
    assert [trial.reading for trial in found.trials] == ["ridge", "ridge", "linear"]
    assert found.chosen == found.trials[-1]
    assert found.chosen.accuracy.value >= ridge.chosen.accuracy.value
    assert cross_entropy(found) < 0.7 * cross_entropy(still)


def cross_entropy(found):
    scores = found._reader.scores(world().hidden.flatten(0, 1), found._table)
    return float(torch.nn.functional.cross_entropy(scores, world().ids.flatten()))


def test_dropout_is_seen_in_copies_and_leaves_no_trace():
    before = torch.random.get_rng_state()
    plain = rows_of(InverterSpec())
    copies = rows_of(InverterSpec(dropout_copies=2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert len(copies) == 3 * len(plain)
    for first, clean, *dropped in zip(plain, copies[::3], copies[1::3], copies[2::3], strict=True):
        assert torch.equal(first.features, clean.features)
        for other in dropped:
            assert torch.equal(other.ids, clean.ids)
            assert torch.equal(other.texts, clean.texts)
            assert 0.05 < float((other.features - clean.features).norm() / clean.features.norm()) < 2
        assert not torch.equal(*(other.features for other in dropped))
    assert all(not module.training for module in known().modules())


def rows_of(spec):
    with torch.no_grad():
        return list(
            public_rows.PublicBoundary(
                known(), public(), context=spec.context, dropout_copies=spec.dropout_copies, seed=1
            )
        )


def test_copies_with_dropout_help_against_dropout():
    bottom = make_bottom()
    bottom.own_dropout = True
    bottom.train()
    torch.manual_seed(4)
    seen = observe(bottom, draw(60, 21))
    texts = public(20) + public(20, seed=31) + public(20, seed=32)
    plain, drilled = (fit(InverterSpec(dropout_copies=copies), texts=texts) for copies in (0, 4))
    losses = [
        float((one._reader.rows(seen.hidden) - known().table.detach()[seen.ids]).square().mean())
        for one in (plain, drilled)
    ]
    assert losses[1] < 0.95 * losses[0]


@pytest.mark.parametrize("name", ["linear", "dropout"])
def test_it_is_the_generators(name):
    one, same, other = fit(LEARNED[name], seed=1), fit(LEARNED[name], seed=1), fit(LEARNED[name], seed=2)
    assert torch.equal(one._reader.weight, same._reader.weight)
    assert not torch.equal(one._reader.weight, other._reader.weight)


def test_divergence_is_an_error_not_privacy():
    with pytest.raises(ConfigError, match="diverged"):
        fit(InverterSpec(reading="linear", learning_rate=1e38, batch_rows=64))


def test_the_bottom_stays_as_it_is():
    bottom = make_bottom().train().requires_grad_(True)
    bottom.own_dropout = False
    before = copy.deepcopy(bottom.state_dict())
    by = fit(LEARNED["dropout"], bottom=bottom)
    refined(by=by, bottom=bottom, spec=RefineSpec(matching=short_matching(), search=2))
    assert all(torch.equal(value, before[name]) for name, value in bottom.state_dict().items())
    assert all(parameter.grad is None and parameter.requires_grad for parameter in bottom.parameters())
    assert all(part.training for part in bottom.modules())
    assert bottom.own_dropout is False


# ---------------------------------------------------------------- candidates, padding, types


@pytest.mark.parametrize("spec", [InverterSpec(), LEARNED["linear"]])
def test_candidates_alone_are_guessed(spec):
    allowed = torch.arange(VOCAB) % 2 == 0
    by = fit(spec, candidates=allowed)
    assert torch.equal(by.candidates, allowed)
    assert allowed[by.ranked(world().hidden, world().inputs, VOCAB)].all()
    assert by.ranked(world().hidden, world().inputs, VOCAB).shape[2] == VOCAB // 2
    found = refined(by=by, spec=RefineSpec(matching=short_matching(), search=4))
    assert all(allowed[ids].all() for ids in found.stages.values())
    possible = allowed[world().ids]
    assert float((found.guessed == world().ids)[possible].double().mean()) >= 0.9


def test_the_ranked_begin_with_the_guess_and_hold_every_candidate_once():
    by = fitted()
    ranked = by.ranked(world().hidden, world().inputs, VOCAB)
    assert torch.equal(ranked[:, :, 0], by.guess(world().hidden, world().inputs))
    assert torch.equal(ranked.sort(2).values, torch.arange(VOCAB).expand_as(ranked))
    assert torch.equal(by.ranked(world().hidden, world().inputs, 3), ranked[:, :, :3])


@pytest.mark.parametrize("value", [0.0, 1e6, float("nan")])
def test_values_at_padding_do_not_matter(value):
    seen = padded_world()
    padding = ~seen.inputs.attention_mask.bool()
    by, spec = learned("context"), RefineSpec(matching=short_matching(), search=4)
    plain = refined(seen, spec, by=by)
    other = seen.hidden.clone()
    other[padding] = value
    again = refined(replace(seen, hidden=other), spec, by=by)
    for name, ids in plain.stages.items():
        assert torch.equal(ids, again.stages[name])
        assert torch.equal(ids == -1, padding)


def test_padded_texts_are_recovered():
    seen = padded_world()
    found = refined(seen)
    assert accuracy(found.guessed, seen) >= 0.9
    assert accuracy(found.searched, seen) == 1


def test_padding_of_public_text_is_not_learned():
    texts = torch.cat([inputs.input_ids for inputs in public()])
    lengths = 1 + torch.arange(PUBLIC) % SEQ
    mask = (torch.arange(SEQ) < lengths[:, None]).long()
    one, other = (
        fit(texts=[batch(texts.masked_fill(mask == 0, fill), mask)], spec=LEARNED["linear"]) for fill in (0, -100)
    )
    assert torch.equal(one._reader.weight, other._reader.weight)
    assert one.chosen.accuracy.n == int(lengths[9::10].sum())


def test_boundaries_of_the_wire_type_are_taken():
    sent = world().hidden.bfloat16()
    found = refined(replace(world(), hidden=sent))
    assert accuracy(found.ids, world()) == 1
    assert torch.equal(found.ids, refined(replace(world(), hidden=sent.float())).ids)


def test_a_half_precision_bottom_is_attacked_in_single_precision():
    half = copy.deepcopy(known()).bfloat16()
    seen = observe(copy.deepcopy(half).float(), world().ids)
    found = refined(seen, by=fit(bottom=half), bottom=half)
    assert accuracy(found.ids, seen) == 1
    assert {parameter.dtype for parameter in half.parameters()} == {torch.bfloat16}


def test_the_callers_modes_do_not_matter():
    plain = refined(by=fit(LEARNED["linear"]))
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        found = refined(by=fit(LEARNED["linear"]))
    with torch.inference_mode(False), torch.enable_grad():
        again = refined(by=fit(LEARNED["linear"]))
    for name, ids in plain.stages.items():
        assert torch.equal(ids, found.stages[name])
        assert torch.equal(ids, again.stages[name])


# ---------------------------------------------------------------- refinement


def short_matching(**changes):
    return UnSplitSpec(**{"outer_iterations": 2, "inner_inputs": 5, "inner_weights": 0, **changes})


class Planted(Inverter):
    """An inverter whose best token is wrong in every third place, and the true one its third best."""

    def __init__(self, ids):
        self.ids = ids

    @property
    def candidates(self):
        return torch.ones(VOCAB, dtype=torch.bool)

    def ranked(self, hidden, inputs, k):
        wrong = (self.ids + 1 + torch.arange(SEQ) % 7) % VOCAB
        planted = torch.where(torch.arange(SEQ) % 3 == 1, wrong, self.ids)
        every = torch.stack([planted, (self.ids + 9) % VOCAB, self.ids], 2)
        return every.masked_fill(~inputs.attention_mask.bool()[:, :, None], -1)[:, :, :k]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("make", ["full", "padded"])
def test_the_search_repairs_planted_errors(depth, make):
    bottom = make_bottom(depth)
    seen = observe(bottom, world().ids, None if make == "full" else padded_world().inputs.attention_mask)
    found = refined(seen, by=Planted(world().ids), bottom=bottom)
    assert accuracy(found.guessed, seen) < 0.75
    assert accuracy(found.searched, seen) == 1
    one = refined(seen, RefineSpec(matching=None, search=2), by=Planted(world().ids), bottom=bottom)
    assert accuracy(one.searched, seen) < 0.75


@functools.cache
def tangled():
    """A bottom in which the tokens before weigh as much as a row's own, its inverter, and a boundary of no text."""
    bottom = make_bottom(2, attention=5.0)
    seen = observe(bottom, world().ids, padded_world().inputs.attention_mask)
    noise = torch.randn(seen.hidden.shape, generator=generator(6))
    return bottom, fit(bottom=bottom), replace(seen, hidden=seen.hidden + noise)


def test_the_search_is_brute_force_without_a_cache():
    bottom, by, seen = tangled()
    found = refined(seen, by=by, bottom=bottom)
    options = by.ranked(seen.hidden, seen.inputs, SEARCH.search)
    assert float((found.searched != found.guessed).double().mean()) > 0.1
    for text, mask in enumerate(seen.inputs.attention_mask.bool()):
        prefix = torch.empty(0, dtype=torch.int64)
        for place in mask.nonzero().flatten():
            tried = [torch.cat([prefix, option[None]]) for option in options[text, place]]
            with torch.no_grad():
                rows = bottom(batch(torch.stack(tried)))[:, -1]
            prefix = tried[int((rows - seen.hidden[text, place]).norm(dim=1).argmin())]
        assert torch.equal(found.searched[text][mask], prefix)


def test_the_search_in_pieces_is_the_search(monkeypatch):
    bottom, by, seen = tangled()
    whole = refined(seen, by=by, bottom=bottom).searched
    monkeypatch.setattr(inverter_refinement, "_CACHE_BYTES", 1)
    assert torch.equal(refined(seen, by=by, bottom=bottom).searched, whole)


@pytest.mark.parametrize("family", zoo.DECODERS)
def test_every_causal_family(family):
    bottom = split(zoo.shared_model(family, Head.LANGUAGE), Cut(bottom=2)).bottom
    texts = torch.randint(4, zoo.VOCAB, (64, 9), generator=generator(1))
    mask = (torch.arange(9) < torch.tensor([9, 5, 2])[:, None]).long()
    seen = observe(bottom, texts[:3], mask)
    by = fit(bottom=bottom, texts=[batch(texts)])
    found = refined(seen, RefineSpec(matching=None, search=zoo.VOCAB), by=by, bottom=bottom)
    assert accuracy(found.searched, seen) == 1


@pytest.mark.parametrize("family", zoo.ENCODERS)
def test_encoders_are_read_but_not_searched(family):
    bottom = split(zoo.shared_model(family, Head.CLASSIFICATION), Cut(bottom=1)).bottom
    texts = torch.randint(4, zoo.VOCAB, (64, 9), generator=generator(1))
    typed = replace(batch(texts), token_type_ids=torch.zeros_like(texts))
    by = fit(bottom=bottom, texts=[typed])
    with torch.no_grad():
        hidden = bottom(typed)
    seen = World(texts, replace(typed, input_ids=None), hidden)
    assert accuracy(by.guess(hidden, seen.inputs), seen) >= 0.5
    with pytest.raises(Inapplicable, match="search to 0"):
        refined(seen, by=by, bottom=bottom)
    found = refined(seen, RefineSpec(matching=short_matching(), search=0), by=by, bottom=bottom)
    assert found.stages.keys() == {"guessed", "matched"}


def test_matching_starts_from_the_guess_and_repairs_it():
    by = Planted(world().ids)
    rows = known().table.detach()[world().ids]
    still = short_matching(inner_inputs=1, outer_iterations=1, learning_rate_inputs=1e-9)
    found = refined(spec=RefineSpec(matching=still, search=0), by=by)
    assert torch.equal(found.matched.ids, found.guessed)
    torch.testing.assert_close(found.matched.rows, known().table.detach()[found.guessed])
    seen = []
    spec = RefineSpec(matching=short_matching(inner_inputs=100, learning_rate_inputs=0.05), search=0)
    better = refined(spec=spec, by=by, truth=InputTruth(rows=rows, ids=world().ids), on_progress=seen.append)
    assert accuracy(better.ids, world()) >= 0.95
    assert tuple(seen) == better.matched.history
    assert better.matched.history[-1].accuracy == accuracy(better.ids, world())


def test_stages_are_told_apart_and_the_last_is_the_answer():
    both = refined(spec=RefineSpec(matching=short_matching(), search=4))
    assert list(both.stages) == ["guessed", "matched", "searched"]
    assert both.ids is both.searched
    neither = refined(spec=RefineSpec(matching=None, search=0))
    assert list(neither.stages) == ["guessed"]
    assert torch.equal(neither.ids, fitted().guess(world().hidden, world().inputs))


def test_an_adapted_bottom_is_read():
    victim = attach_lora(known(), rank=2, alpha=4, dropout=0.0, seed=5)
    with torch.no_grad():
        for name, parameter in victim.named_parameters():
            if "lora_" in name:
                parameter.add_(0.05 * torch.empty(parameter.shape).normal_(0, 1, generator=generator(6)))
    seen = observe(victim, world().ids)
    assert float((seen.hidden - world().hidden).norm() / world().hidden.norm()) > 0.005
    assert accuracy(refined(seen).ids, seen) >= 0.95


# ---------------------------------------------------------------- what it takes


def test_a_bottom_without_blocks_is_for_another_attack():
    rows = make_bottom(depth=0)
    with pytest.raises(Inapplicable, match="nearest-neighbour"):
        fit(bottom=rows)
    with pytest.raises(Inapplicable, match="nearest-neighbour"):
        refined(bottom=rows)


def faulty(**changes):
    inputs = {name: changes.pop(name) for name in list(changes) if name != "hidden"}
    return replace(world(), inputs=replace(world().inputs, **inputs), **changes)


def spoilt():
    hidden = world().hidden.clone()
    hidden[1, 2, 3] = float("inf")
    return faulty(hidden=hidden)


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: faulty(input_ids=world().ids), ConfigError, "given the ids"),
        (lambda: faulty(inputs_embeds=known().table[world().ids]), ConfigError, "given the ids"),
        (lambda: faulty(hidden=world().hidden[0]), DataError, "floating"),
        (lambda: faulty(hidden=world().hidden.long()), DataError, "int64"),
        (lambda: faulty(attention_mask=torch.ones(BATCH, SEQ + 1)), DataError, r"\(4, 13\)"),
        (lambda: faulty(attention_mask=torch.zeros(BATCH, SEQ)), DataError, "no real position"),
        (lambda: faulty(hidden=world().hidden[:, :, :-1]), DataError, "23 wide, that of the inverter's bottom 24"),
        (spoilt, DataError, "not finite"),
    ],
)
def test_what_does_not_fit_is_refused(make, error, match):
    seen = make()
    with pytest.raises(error, match=match):
        fitted().guess(seen.hidden, seen.inputs)
    with pytest.raises(error, match=match):
        refined(seen)


def test_a_bottom_of_another_width_is_refused_by_the_search():
    wide = replace(world(), hidden=world().hidden[:, :, :-1])
    with pytest.raises(DataError, match="23 wide, that of the guessed bottom 24"):
        refined(wide, by=Planted(world().ids))


@pytest.mark.parametrize("k", [0, -1])
def test_a_number_of_guesses_is_positive(k):
    with pytest.raises(ConfigError, match="k = "):
        fitted().ranked(world().hidden, world().inputs, k)


@pytest.mark.parametrize(
    ("texts", "match"),
    [
        ([], "'s 0 texts"),
        ([batch(draw(9, 1))], "9 texts.*at least 11"),
        ([batch(draw(20, 1), torch.zeros(20, SEQ, dtype=torch.int64))], "20 texts"),
        ([batch(draw(20, 1) + VOCAB)], "outside"),
        ([batch(draw(20, 1) - VOCAB)], "outside"),
        ([replace(batch(draw(20, 1)), input_ids=None)], "needs ids"),
        ([replace(batch(draw(20, 1)), input_ids=draw(20, 1).float())], "needs ids"),
        ([replace(batch(draw(20, 1)), input_ids=draw(20, 1)[:, :-1])], "needs ids"),
    ],
)
def test_public_text_that_does_not_serve_is_refused(texts, match):
    with pytest.raises(DataError, match=match):
        fit_inverter(known(), texts, InverterSpec(), generator=generator(1))


def test_what_can_be_gone_through_once_serves_the_closed_form_alone():
    once = fit(texts=iter(public()))
    assert torch.equal(once._reader.weight, fitted()._reader.weight)
    with pytest.raises(ConfigError, match="once"):
        fit(LEARNED["linear"], texts=iter(public()))


def test_a_bottom_that_is_not_finite_is_refused():
    broken = make_bottom()
    with torch.no_grad():
        next(broken.block_parameters()).fill_(float("nan"))
    with pytest.raises(DataError, match="not finite"):
        fit(bottom=broken)


@pytest.mark.parametrize(
    "candidates", [torch.ones(VOCAB - 1, dtype=torch.bool), torch.zeros(VOCAB, dtype=torch.bool), torch.ones(VOCAB)]
)
def test_candidates_that_do_not_fit_are_refused(candidates):
    with pytest.raises(ConfigError, match="candidates"):
        fit(candidates=candidates)


@pytest.mark.parametrize(
    ("spec", "field", "value"),
    [
        (InverterSpec, "reading", "gru"),
        (InverterSpec, "context", -1),
        (InverterSpec, "context", 17),
        (InverterSpec, "ridges", ()),
        (InverterSpec, "ridges", (0.0,)),
        (InverterSpec, "ridges", (float("inf"),)),
        (InverterSpec, "passes", 0),
        (InverterSpec, "batch_rows", 0),
        (InverterSpec, "learning_rate", 0),
        (InverterSpec, "learning_rate", float("nan")),
        (InverterSpec, "weight_decay", -0.1),
        (InverterSpec, "dropout_copies", -1),
        (InverterSpec, "held_out", 0),
        (InverterSpec, "held_out", 0.6),
        (InverterSpec, "seed", 0),
        (RefineSpec, "search", -1),
        (RefineSpec, "search", 5000),
        (RefineSpec, "matching", {"outer_iterations": 0}),
        (RefineSpec, "seed", 0),
    ],
)
def test_a_spec_refuses_what_it_does_not_know(spec, field, value):
    with pytest.raises(ConfigError, match=field), checked():
        spec(**{field: value})


@pytest.mark.parametrize("spec", [InverterSpec(), RefineSpec(), RefineSpec(matching=None, search=0)])
def test_a_spec_survives_json(spec):
    assert type(spec).model_validate_json(spec.model_dump_json()) == spec
