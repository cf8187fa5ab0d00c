"""Algorithm 1 against a literal transcription of it, its controls, and what a continuation must repeat."""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass, replace

import pytest
import safetensors.torch
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from cutlayer.attacks import Inapplicable
from cutlayer.attacks.inversion.unsplit_run import UnSplitRun, reconstruct
from cutlayer.attacks.inversion.unsplit_spec import InputTruth, UnSplitSpec
from cutlayer.core import ConfigError, Cut, DataError, checked
from cutlayer.models import Bottom, Head, Inputs, attach_lora, cutting, split
from tests.equivalence import zoo
from tests.unit.attacks.worlds import generator

VOCAB, WIDTH, BATCH, SEQ = 60, 24, 4, 12
SHORT = UnSplitSpec(outer_iterations=2, inner_inputs=5, inner_weights=4)
FULL = UnSplitSpec(outer_iterations=3, inner_inputs=35, inner_weights=10)


def make_bottom(depth=1, seed=0):
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
                parameter.copy_(0.12 * noise)
            else:
                parameter.add_(0.1 * noise)
    return split(model, Cut(bottom=depth)).bottom


@functools.cache
def known():
    return make_bottom()


@dataclass
class World:
    """A batch and its boundary, as a bottom gave it in evaluation mode."""

    ids: torch.Tensor
    inputs: Inputs
    hidden: torch.Tensor


def observe(bottom, ids, mask=None):
    mask = torch.ones_like(ids) if mask is None else mask
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    inputs = Inputs(attention_mask=mask, position_ids=positions)
    with torch.no_grad():
        return World(ids, inputs, bottom(replace(inputs, input_ids=ids)))


@functools.cache
def world():
    return observe(known(), torch.randint(VOCAB, (BATCH, SEQ), generator=generator(1)))


def padded_world():
    """Texts of 12, 7, 3 and 9 tokens, the last one padded on the left."""
    places = torch.arange(SEQ)
    mask = (places < torch.tensor([12, 7, 3, 12])[:, None]) & (places >= torch.tensor([0, 0, 0, 3])[:, None])
    return observe(known(), world().ids, mask.long())


def trained_elsewhere(bottom, scale=0.03, seed=3):
    """The bottom after some training that the attacker has not seen."""
    other, rng = copy.deepcopy(bottom), generator(seed)
    with torch.no_grad():
        for name, parameter in other.named_parameters():
            if "wte" not in name:
                parameter.add_(scale * torch.empty(parameter.shape).normal_(0, 1, generator=rng))
    return other


def start(spec=SHORT, *, bottom=None, seen=None, seed=2, **options):
    seen = seen or world()
    return UnSplitRun(bottom or known(), seen.hidden, seen.inputs, spec, generator=generator(seed), **options)


def finish(run):
    while not run.done:
        run.step()
    return run.reconstruction()


def attack(spec=SHORT, **options):
    return finish(start(spec, **options))


def accuracy(found, ids):
    return float((found.ids == ids)[found.mask].double().mean())


def assert_same(one, other):
    assert torch.equal(one.ids, other.ids)
    assert torch.equal(one.rows, other.rows)
    assert one.history == other.history


@functools.cache
def recovered():
    """A run on an unprotected boundary, to its end."""
    run = start(FULL, truth=InputTruth(rows=known().table[world().ids], ids=world().ids))
    finish(run)
    return run


# ---------------------------------------------------------------- it is the paper's algorithm


def algorithm_1(rows, spec, *, seen, fault=None):
    """Algorithm 1 as printed, with no thought of speed."""
    guess, rows = copy.deepcopy(known()).requires_grad_(True), rows.clone().requires_grad_(True)

    def optimisers():
        return {
            "inputs": (torch.optim.Adam([rows], lr=spec.learning_rate_inputs), spec.inner_inputs),
            "weights": (torch.optim.AdamW(guess.parameters(), lr=spec.learning_rate_weights), spec.inner_weights),
        }

    phases, kept = ["inputs", "weights"], optimisers()
    if fault == "phases swapped":
        phases.reverse()
    for _ in range(spec.outer_iterations):
        if fault == "optimisers begun anew":
            kept = optimisers()
        for phase in phases:
            optimiser, steps = kept[phase]
            for _ in range(steps + (fault == "one step more")):
                rows.grad = None
                guess.zero_grad()
                real = seen.inputs.attention_mask.bool()
                wrong = guess(replace(seen.inputs, inputs_embeds=rows)) - seen.hidden
                (wrong if fault == "padding counted" else wrong[real]).square().mean().backward()
                optimiser.step()
                if fault == "both at once":
                    kept["weights"][0].step()
    return rows.detach(), guess


@pytest.mark.parametrize("make", [world, padded_world])
def test_it_takes_the_steps_of_algorithm_1(make):
    seen = make()
    run = start(seen=seen)
    rows = run.reconstruction().rows
    found = finish(run)
    expected, guess = algorithm_1(rows, SHORT, seen=seen)
    torch.testing.assert_close(found.rows, expected, atol=2e-4, rtol=0)
    with torch.no_grad():
        wrong = (guess(replace(seen.inputs, inputs_embeds=expected)) - seen.hidden)[found.mask]
    assert found.history[-1].mse_after_weights == pytest.approx(float(wrong.square().mean()), rel=1e-3)
    distances = torch.cdist(found.rows.double(), known().table.double())
    assert torch.equal(found.ids[found.mask], distances.argmin(-1)[found.mask])


@pytest.mark.parametrize(
    "fault", ["phases swapped", "optimisers begun anew", "one step more", "padding counted", "both at once"]
)
def test_a_planted_fault_takes_other_steps(fault):
    seen = padded_world()
    run = start(seen=seen)
    rows = run.reconstruction().rows
    expected, _ = algorithm_1(rows, SHORT, seen=seen, fault=fault)
    found = finish(run).rows
    assert float((found - expected)[seen.inputs.attention_mask.bool()].abs().max()) > 2e-3


def test_amsgrad_and_bf16_are_other_steps_towards_the_same():
    plain = attack(replace_spec(SHORT, outer_iterations=4))
    for change in ({"amsgrad": True}, {"precision": "bf16"}):
        other = attack(replace_spec(SHORT, outer_iterations=4, **change))
        assert not torch.equal(plain.rows, other.rows)
        assert other.history[-1].mse_after_weights == pytest.approx(plain.history[-1].mse_after_weights, rel=0.3)


def replace_spec(spec, **changes):
    return UnSplitSpec(**{**spec.model_dump(), **changes})


# ---------------------------------------------------------------- controls


def test_unprotected_boundaries_are_recovered():
    found = recovered().reconstruction()
    assert accuracy(found, world().ids) >= 0.9
    assert [entry.number for entry in found.history] == [1, 2, 3]
    assert found.history[-1].accuracy == accuracy(found, world().ids)
    expected = (found.rows - known().table[world().ids]).square().mean()
    assert found.history[-1].mse_inputs == pytest.approx(float(expected), rel=1e-5)
    assert found.history[-1].mse_inputs < 0.1
    assert found.spec == FULL


def test_a_boundary_of_noise_gives_chance():
    noise = world().hidden.std() * torch.randn(world().hidden.shape, generator=generator(8))
    found = attack(FULL, seen=replace(world(), hidden=noise))
    assert accuracy(found, world().ids) <= 1 / VOCAB + 5 * (1 / VOCAB / (BATCH * SEQ)) ** 0.5


def test_shuffled_texts_give_the_shuffled_texts_and_nothing_else():
    order = torch.randperm(BATCH * SEQ, generator=generator(9))
    told = world().ids.flatten()[order].view(BATCH, SEQ)
    found = attack(FULL, seen=observe(known(), told))
    assert accuracy(found, told) >= 0.9
    by_chance = float((told == world().ids).double().mean())
    assert accuracy(found, world().ids) <= by_chance + 0.1


@pytest.mark.parametrize("fault", ["the row below", "another position", "the start"])
def test_a_broken_attack_recovers_nothing(monkeypatch, fault):
    real = UnSplitRun.ids

    def broken(run):
        if fault == "the start":
            return real(start(FULL))
        return (real(run) + 1) % VOCAB if fault == "the row below" else real(run).roll(1, 1)

    run = recovered()
    monkeypatch.setattr(UnSplitRun, "ids", broken)
    assert accuracy(run.reconstruction(), world().ids) < 0.3


def test_the_truth_changes_nothing_but_the_history():
    told = attack(truth=InputTruth(rows=known().table[world().ids], ids=world().ids))
    blind = attack()
    assert torch.equal(told.rows, blind.rows)
    assert torch.equal(told.ids, blind.ids)
    assert blind.history == tuple(replace(entry, mse_inputs=None, accuracy=None) for entry in told.history)
    assert None not in (told.history[0].mse_inputs, told.history[0].accuracy)


# ---------------------------------------------------------------- weights


def test_the_second_phase_moves_the_weights_towards_the_trained_ones_output():
    seen = observe(trained_elsewhere(known()), world().ids)
    both = attack(replace_spec(FULL, outer_iterations=2), seen=seen)
    assert both.history[0].mse_after_weights < 0.8 * both.history[0].mse_after_inputs
    fixed = attack(replace_spec(FULL, outer_iterations=2, inner_weights=0), seen=seen)
    assert all(entry.mse_after_weights == entry.mse_after_inputs for entry in fixed.history)
    assert fixed.history[0].mse_after_inputs == both.history[0].mse_after_inputs
    assert not torch.equal(fixed.rows, both.rows)


def weights_of(state):
    return {
        name.removeprefix("weights/module.").removesuffix("/value"): value
        for name, value in state.items()
        if name.startswith("weights/") and name.endswith("/value")
    }


def test_each_phase_optimises_its_own_and_the_given_bottom_stays_as_it_is():
    bottom = make_bottom().train().requires_grad_(True)
    bottom.get_submodule("module.transformer.wpe").weight.requires_grad_(False)
    before = copy.deepcopy(bottom.state_dict())
    wanted = [parameter.requires_grad for parameter in bottom.parameters()]
    run = start(bottom=bottom)
    assert weights_of(run.state()).keys() == {name for name, _ in bottom.module.named_parameters() if "wte" not in name}
    run.step()
    for name, value in weights_of(run.state()).items():
        assert not torch.equal(value, before[f"module.{name}"]), name
    assert bottom.state_dict().keys() == before.keys()
    for name, value in bottom.state_dict().items():
        assert torch.equal(value, before[name])
    assert [parameter.requires_grad for parameter in bottom.parameters()] == wanted
    assert all(parameter.grad is None for parameter in bottom.parameters())
    assert all(part.training for part in bottom.modules())


def test_a_table_beside_the_path_is_not_optimised_and_both_choices_are_one():
    own, before = (attack(replace_spec(SHORT, nearest_in=choice)) for choice in ("optimised", "pre-trained"))
    assert torch.equal(own.rows, before.rows)
    assert torch.equal(own.ids, before.ids)
    run = start(replace_spec(SHORT, learning_rate_weights=1.0, weight_decay=0.5))
    finish(run)
    assert torch.equal(run._guess.table, known().table)


class Leaning(Bottom):
    """A bottom whose boundary depends on the table in yet another way."""

    def forward(self, inputs, cache=None):
        return super().forward(inputs, cache) + self.table[0]


def test_a_table_on_the_path_is_optimised_in_a_copy():
    bottom = Leaning(copy.deepcopy(known().module), head=False)
    table = bottom.table.detach().clone()
    seen = observe(bottom, world().ids)
    spec = replace_spec(SHORT, outer_iterations=6, learning_rate_weights=0.5)
    found = {}
    for choice in ("optimised", "pre-trained"):
        run = start(replace_spec(spec, nearest_in=choice), bottom=bottom, seen=seen)
        first = run.ids()
        rest = finish(run)
        own = weights_of(run.state())["transformer.wte.weight"]
        searched = own if choice == "optimised" else table
        assert torch.equal(rest.ids, torch.cdist(rest.rows.double(), searched.double()).argmin(-1))
        assert not torch.equal(first, rest.ids)
        found[choice] = rest
    assert torch.equal(found["optimised"].rows, found["pre-trained"].rows)
    assert not torch.equal(found["optimised"].ids, found["pre-trained"].ids)
    assert not torch.equal(own[0], table[0])
    assert torch.equal(bottom.table, table)


def adapted(seed=5, dropout=0.0):
    return attach_lora(known(), rank=2, alpha=4, dropout=dropout, seed=seed)


def test_in_the_lora_case_only_the_adapter_is_optimised():
    victim = adapted()
    with torch.no_grad():
        for name, parameter in victim.named_parameters():
            if "lora_" in name:
                parameter.add_(0.2 * torch.empty(parameter.shape).normal_(0, 1, generator=generator(6)))
    seen = observe(victim, world().ids)
    run = start(replace_spec(SHORT, optimised="adapter", learning_rate_weights=0.01), bottom=adapted(), seen=seen)
    base = {name: value.clone() for name, value in run._guess.state_dict().items()}
    assert len(weights_of(run.state())) == 2
    found = finish(run)
    moved = {name for name, value in run._guess.state_dict().items() if not torch.equal(value, base[name])}
    assert len(moved) == 2
    assert all("lora_" in name for name in moved)
    assert all(entry.mse_after_weights < entry.mse_after_inputs for entry in found.history)


def test_all_weights_of_an_adapted_bottom_are_more_than_the_adapter():
    names = weights_of(start(bottom=adapted()).state()).keys()
    assert sum("lora_" in name for name in names) == 2
    assert len(names) == 2 + len(weights_of(start().state()))


# ---------------------------------------------------------------- padding


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_values_at_padding_do_not_matter(mode):
    seen = padded_world()
    padding = ~seen.inputs.attention_mask.bool()
    spec = replace_spec(SHORT, guess_mode=mode)
    plain = attack(spec, seen=seen)
    for value in (0.0, 1e6, float("nan")):
        other = seen.hidden.clone()
        other[padding] = value
        assert_same(plain, attack(spec, seen=replace(seen, hidden=other)))
    assert (plain.ids[padding] == -1).all()
    assert (plain.ids[plain.mask] >= 0).all()
    assert (plain.rows[padding] == 0).all()
    assert torch.equal(plain.mask, ~padding)


def test_padded_texts_are_recovered():
    seen = padded_world()
    assert accuracy(attack(FULL, seen=seen), seen.ids) >= 0.9


# ---------------------------------------------------------------- stopping and going on


def through_a_file(state):
    return safetensors.torch.load(safetensors.torch.save(state))


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("optimised", ["all", "adapter"])
def test_a_continued_run_repeats_the_uninterrupted_one_bit_by_bit(mode, optimised):
    spec = UnSplitSpec(
        outer_iterations=3,
        inner_inputs=3,
        inner_weights=2,
        guess_mode=mode,
        optimised=optimised,
        amsgrad=optimised == "all",
    )
    bottom = adapted(dropout=0.1)
    seen = observe(trained_elsewhere(bottom), world().ids)
    truth = InputTruth(ids=world().ids)
    whole = attack(spec, bottom=bottom, seen=seen, truth=truth)
    torch.manual_seed(1)
    for stops in (0, 1, 2):
        first = start(spec, bottom=bottom, seen=seen, truth=truth)
        for _ in range(stops):
            first.step()
        state = through_a_file(first.state())
        first.step()  # what was saved is a copy
        torch.randn(7)
        second = start(spec, bottom=bottom, seen=seen, truth=truth, seed=77)
        second.load(state)
        assert len(second.history) == stops
        torch.randn(3)
        assert_same(finish(second), whole)
    finished = through_a_file(second.state())
    assert torch.equal(finished["history"][:, 0], torch.arange(1.0, 4.0, dtype=torch.float64))


def test_a_run_may_be_made_longer():
    run = start()
    finish(run)
    longer = start(replace_spec(SHORT, outer_iterations=3), seed=4)
    longer.load(run.state())
    assert_same(finish(longer), attack(replace_spec(SHORT, outer_iterations=3)))


@pytest.mark.parametrize("other", ["spec", "boundary", "mask", "bottom", "adapter", "no state"])
def test_the_state_of_another_attack_is_refused(other):
    run = start()
    run.step()
    state = run.state()
    wrong = start(replace_spec(SHORT, learning_rate_inputs=0.2))
    if other == "boundary":
        wrong = start(seen=replace(world(), hidden=world().hidden + 1e-6))
    elif other == "mask":
        wrong = start(seen=padded_world())
    elif other == "bottom":
        wrong = start(bottom=trained_elsewhere(known(), scale=1e-6))
    elif other == "adapter":
        wrong = start(bottom=adapted())
    elif other == "no state":
        wrong, state = start(), {}
    before = wrong.reconstruction()
    with pytest.raises(DataError, match="another attack"):
        wrong.load(state)
    assert_same(wrong.reconstruction(), before)


def test_dropout_acts_in_training_mode_alone_and_leaves_no_trace():
    modes = {mode: replace_spec(SHORT, guess_mode=mode, initial_std=0) for mode in ("eval", "train")}
    before = torch.random.get_rng_state()
    results = {(mode, seed): attack(spec, seed=seed) for mode, spec in modes.items() for seed in (1, 2)}
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(results["eval", 1].rows, results["eval", 2].rows)
    assert not torch.equal(results["train", 1].rows, results["train", 2].rows)
    assert not torch.equal(results["train", 1].rows, results["eval", 1].rows)


def test_each_phase_of_each_outer_loop_draws_its_own_dropout(monkeypatch):
    seeded = []
    monkeypatch.setattr(cutting, "seed_dropout", lambda seed, step: seeded.append((seed, step)))
    attack(replace_spec(SHORT, guess_mode="train"))
    ((seed, _), *_) = seeded
    assert seeded == [(seed, step) for step in range(1, 2 * SHORT.outer_iterations + 1)]


def test_dropout_acts_though_the_customers_own_is_switched_off():
    bottom = make_bottom()
    bottom.own_dropout = False
    spec = replace_spec(SHORT, guess_mode="train")
    assert_same(attack(spec, bottom=bottom), attack(spec))
    assert bottom.own_dropout is False


def test_the_start_is_the_generators():
    one, same, other = (start(seed=seed).reconstruction().rows for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert float(one.std()) == pytest.approx(float(known().table.std()), rel=0.1)
    assert float(start(replace_spec(SHORT, initial_std=7.0)).reconstruction().rows.std()) == pytest.approx(7, rel=0.1)


def test_it_reports_and_stops():
    seen = []
    run = start(replace_spec(SHORT, outer_iterations=50))
    found = reconstruct(run, on_progress=seen.append, stop=lambda: len(seen) == 2)
    assert tuple(seen) == found.history
    assert len(seen) == 2
    assert_same(found, attack(SHORT))


# ---------------------------------------------------------------- what it takes


def test_a_search_that_cannot_be_made_is_refused_before_the_work():
    for candidates in (torch.ones(VOCAB - 1, dtype=torch.bool), torch.zeros(VOCAB, dtype=torch.bool)):
        with pytest.raises(ConfigError, match="candidate"):
            start(candidates=candidates)


def test_candidates_alone_are_guessed():
    allowed = torch.arange(VOCAB) % 2 == 0
    found = attack(FULL, candidates=allowed)
    assert allowed[found.ids].all()
    possible = allowed[world().ids]
    assert float((found.ids == world().ids)[possible].double().mean()) >= 0.9


def test_boundaries_of_the_wire_type_are_taken():
    sent = world().hidden.bfloat16()
    found = attack(seen=replace(world(), hidden=sent))
    assert found.rows.dtype == torch.float32
    assert_same(found, attack(seen=replace(world(), hidden=sent.float())))


def test_a_half_precision_bottom_is_attacked_in_single_precision():
    half = copy.deepcopy(known()).bfloat16()
    found = attack(bottom=half)
    single = copy.deepcopy(half).float()
    assert_same(found, attack(bottom=single))
    assert {parameter.dtype for parameter in half.parameters()} == {torch.bfloat16}


@torch.no_grad()
def test_the_callers_modes_do_not_matter():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = attack()
    with torch.enable_grad():
        assert_same(found, attack())


@pytest.mark.parametrize("family", zoo.DECODERS + zoo.ENCODERS)
def test_every_family(family):
    head = Head.CLASSIFICATION if family in zoo.ENCODERS else Head.LANGUAGE
    bottom = split(zoo.shared_model(family, head), Cut(bottom=2)).bottom
    ids = torch.randint(4, zoo.VOCAB, (3, 7), generator=generator(1))
    mask = (torch.arange(7) < torch.tensor([7, 5, 2])[:, None]).long()
    types = torch.zeros_like(ids)
    with torch.no_grad():
        inputs = Inputs(attention_mask=mask, position_ids=torch.arange(7).expand(3, 7), token_type_ids=types)
        hidden = bottom(replace(inputs, input_ids=ids))
    spec = replace_spec(SHORT, learning_rate_inputs=0.05)
    found = reconstruct(UnSplitRun(bottom, hidden, inputs, spec, generator=generator(2)))
    assert found.rows.shape == (3, 7, bottom.table.shape[1])
    first, second = found.history
    assert first.mse_after_inputs > first.mse_after_weights
    assert first.mse_after_weights > second.mse_after_inputs > second.mse_after_weights
    assert torch.equal(found.ids == -1, mask == 0)


def test_a_bottom_without_blocks_is_for_another_attack():
    rows = make_bottom(depth=0)
    seen = observe(rows, world().ids)
    with pytest.raises(Inapplicable, match="nearest-neighbour"):
        start(bottom=rows, seen=seen)


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
        (lambda: faulty(hidden=world().hidden[:, :, :-1]), DataError, "23 wide, that of the guessed bottom 24"),
        (spoilt, DataError, "not finite"),
    ],
)
def test_what_does_not_fit_is_refused(make, error, match):
    with pytest.raises(error, match=match):
        start(seen=make())


@pytest.mark.parametrize("truth", [InputTruth(rows=torch.zeros(BATCH, SEQ, 3)), InputTruth(ids=torch.zeros(BATCH, 3))])
def test_a_truth_of_another_batch_is_refused(truth):
    with pytest.raises(DataError, match="belongs to a batch of"):
        start(truth=truth)


def test_an_adapter_must_be_there_to_be_optimised():
    with pytest.raises(ConfigError, match="adapter"):
        start(replace_spec(SHORT, optimised="adapter"))


def test_divergence_is_an_error_not_privacy():
    run = start(replace_spec(SHORT, learning_rate_inputs=1e38))
    with pytest.raises(ConfigError, match="diverged in outer iteration 1"):
        finish(run)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("outer_iterations", 0),
        ("inner_inputs", 0),
        ("inner_weights", -1),
        ("learning_rate_inputs", 0),
        ("learning_rate_inputs", float("inf")),
        ("learning_rate_weights", -1e-3),
        ("learning_rate_weights", float("nan")),
        ("weight_decay", -0.1),
        ("initial_std", -1),
        ("initial_std", float("inf")),
        ("initial_std", "random"),
        ("nearest_in", "optimized"),
        ("guess_mode", "test"),
        ("optimised", "lora"),
        ("precision", "fp16"),
        ("seed", 0),
    ],
)
def test_a_spec_refuses_what_it_does_not_know(field, value):
    with pytest.raises(ConfigError, match=field), checked():
        UnSplitSpec(**{field: value})


def test_the_papers_settings_are_the_default():
    spec = UnSplitSpec()
    assert (spec.outer_iterations, spec.inner_inputs, spec.inner_weights) == (100, 100, 100)
    assert (spec.learning_rate_inputs, spec.learning_rate_weights) == (0.1, 0.001)
    assert UnSplitSpec.model_validate_json(spec.model_dump_json()) == spec
