"""Attacks as cells: what they read, what they must not read, and going on after a stop."""

from __future__ import annotations

import copy

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from cutlayer.attacks import Reconstruction, Traffic, UnSplitRun, UnSplitSpec
from cutlayer.attacks.inversion.inverter import InverterSpec
from cutlayer.attacks.inversion.inverter_refinement import RefineSpec
from cutlayer.customer import FullTuning, Lora
from cutlayer.customer.connection import choose_device
from cutlayer.customer.progress import Silent
from cutlayer.models import Inputs
from cutlayer.recipes import boundary_attacks
from cutlayer.recipes.boundary_attacks import (
    InverterCell,
    ProcessedCell,
    UnsplitCell,
    correlation,
    guessed_bottom,
    process,
)
from cutlayer.recipes.recordings import knowledge, recording
from tests.recipes.unsplit.worlds import PUBLIC, open_lab, split_run, two_iterations, write_words
from tests.service.tiny import write_tiny_gpt2

SPEC = UnSplitSpec(outer_iterations=3, inner_inputs=100, inner_weights=5)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    folder = tmp_path_factory.mktemp("attacks")
    data = write_words(folder / "data", "test", "public")
    with open_lab(write_tiny_gpt2(folder / "tiny"), data, folder / "out") as made:
        yield made


def attack(lab, run=None, **changes):
    run = run or split_run(lab)
    return UnsplitCell(**{"split": run, "iteration": 1, "spec": SPEC, "seed": 0, **changes})


def share(reading, name="right"):
    return sum(getattr(reading, name)) / sum(reading.counted)


@pytest.mark.slow
def test_an_unprotected_iteration_is_read_and_its_noise_is_not(lab):
    found = lab.result(attack(lab))
    assert share(found.reading) >= 0.9
    assert found.reading.counted == (8, 8)
    assert share(found.reading, "shuffled") <= 0.3
    assert [stage.number for stage in found.history] == [1, 2, 3]
    assert found.history[-1].accuracy == pytest.approx(share(found.reading))
    assert found.history[-1].mse_outputs < found.history[0].mse_outputs
    for traffic in (Traffic.NOISE, Traffic.SHUFFLED):
        assert share(lab.result(attack(lab, traffic=traffic)).reading) <= 0.3, traffic


@pytest.mark.slow
def test_a_guess_that_knows_the_truth_fails_its_controls(lab, monkeypatch):
    """Planted fault: the attack returns the texts that the measurer holds, whatever it is shown."""

    def cheat(self):
        mask = self._mask.cpu()
        return Reconstruction(self._truth.ids, mask, self._truth.rows, tuple(self.history), self.spec)

    monkeypatch.setattr(UnSplitRun, "reconstruction", cheat)
    for traffic in (Traffic.NOISE, Traffic.SHUFFLED):
        assert share(lab.result(attack(lab, traffic=traffic, seed=1)).reading) == 1, traffic


def test_the_guess_is_on_the_device_that_was_chosen(lab, monkeypatch):
    """A GPU where there is one; here it is asked for by its name."""
    asked = []
    to = torch.nn.Module.to

    def watched(module, *args, **kwargs):
        asked.extend(args)
        return to(module, *args, **kwargs)

    monkeypatch.setattr(torch.nn.Module, "to", watched)
    lab.result(attack(lab, seed=2))
    assert choose_device("auto") in asked


def test_texts_are_decoded_beside_their_guesses(lab):
    reading = lab.result(attack(lab)).reading
    tokens = recording(split_run(lab), lab).seen[1].tokens.segments[0]
    assert reading.true == tuple(lab.model(head=None).tokenizer.batch_decode([t.tolist() for t in tokens.split()]))
    same = [a == b for a, b in zip(reading.true, reading.guessed, strict=True)]
    assert same == [right == counted for right, counted in zip(reading.right, reading.counted, strict=True)]


def test_a_finished_cell_is_not_run_again(lab, monkeypatch):
    first = lab.result(attack(lab))
    monkeypatch.setattr(boundary_attacks, "UnSplitRun", None)
    assert lab.result(attack(lab)) == first
    with pytest.raises(TypeError):
        lab.result(attack(lab, seed=9))


def test_a_stopped_attack_goes_on_where_it_was(lab, monkeypatch):
    cell = attack(lab, seed=4)

    class Impatient:
        def update(self, stage, done, total, note=""):
            if stage == "attack" and done == 2:
                raise KeyboardInterrupt

    monkeypatch.setattr(boundary_attacks, "_SAVE_SECONDS", -1.0)
    monkeypatch.setattr(lab, "progress", Impatient())
    with pytest.raises(KeyboardInterrupt):
        lab.result(cell)
    (state,) = (lab.options.out / "runs").glob("*/attack.safetensors")
    monkeypatch.setattr(lab, "progress", Silent())
    steps = []
    step = boundary_attacks.UnSplitRun.step
    monkeypatch.setattr(boundary_attacks.UnSplitRun, "step", lambda run: steps.append(len(run.history)) or step(run))
    found = lab.result(cell)
    assert steps[0] == 1  # the state of the first outer iteration was kept
    assert not state.exists()
    whole = cell.run(lab)
    assert found.model_dump(exclude={"seconds"}) == whole.model_dump(exclude={"seconds"})


@pytest.mark.parametrize("tuning", [Lora(), FullTuning()], ids=["lora", "full"])
def test_the_customers_weights_are_those_of_its_second_boundary(lab, tuning):
    """Without dropout a guess from the customer's weights gives the very boundary that crossed."""
    run = two_iterations(lab, tuning=tuning, learning_rate=1e-2)
    seen = recording(run, lab).seen[2]
    known, weights = knowledge(1, lab), recording(run, lab).weights
    inputs = known.template.assemble(seen.tokens)
    missed = {}
    for start in ("pre-trained", "customer"):
        cell = attack(lab, run, iteration=2, start=start)
        boundary = guessed_bottom(cell, known.bottom, weights)(inputs)
        missed[start] = float(
            (known.template.unpad(boundary, seen.tokens).packed.values - seen.rows.packed.values).abs().max()
        )
    assert missed["customer"] < 1e-4 < 1e-3 < missed["pre-trained"]


def test_the_public_bottom_stays_public(lab):
    run = two_iterations(lab, learning_rate=1e-2)
    known = knowledge(1, lab)
    before = [parameter.detach().clone() for parameter in known.bottom.parameters()]
    cell = attack(lab, run, iteration=2, start="customer")
    guessed_bottom(cell, known.bottom, recording(run, lab).weights)
    assert all(torch.equal(a, b) for a, b in zip(before, known.bottom.parameters(), strict=True))


def test_processing_a_batch_changes_nothing_of_a_bottom_with_layer_norms(lab):
    found = lab.result(ProcessedCell(split=split_run(lab), iteration=1))
    assert found.changed == 0
    assert found.tensors > 5


def test_running_statistics_would_be_seen(lab):
    """The planted fault: batch normalisation does keep them."""

    class Kept(type(knowledge(1, lab).bottom)):
        def forward(self, inputs, cache=None):
            hidden = super().forward(inputs, cache)
            return self.module.norm_planted(hidden.flatten(0, 1)).view_as(hidden)

    known = knowledge(1, lab)
    bottom = Kept(copy.deepcopy(known.bottom.module), head=False)
    bottom.module.norm_planted = nn.BatchNorm1d(32)
    ids = torch.arange(8).view(2, 4)
    inputs = Inputs(attention_mask=torch.ones_like(ids), position_ids=torch.arange(4).expand(2, 4), input_ids=ids)
    assert process(bottom, inputs).changed == 3  # running mean, running variance, batches seen


def test_the_inverter_reads_from_public_text_alone(lab):
    cell = InverterCell(
        split=split_run(lab),
        iteration=1,
        public=PUBLIC,
        public_tokens=1600,
        inverter=InverterSpec(),
        refine=RefineSpec(search=4),
        seed=0,
    )
    found = lab.result(cell)
    assert list(found.stages) == ["guessed", "matched", "searched"]
    assert share(found.stages["searched"]) >= 0.9
    assert share(found.stages["searched"], "shuffled") <= 0.3
    assert found.public_accuracy > 0.5


def test_a_state_of_another_boundary_is_left_and_the_attack_begins_anew(lab):
    cell = attack(lab, seed=7, spec=UnSplitSpec(outer_iterations=1, inner_inputs=2, inner_weights=0))
    state = lab.scratch(cell) / "attack.safetensors"
    state.parent.mkdir(parents=True)
    save_file({"seconds": torch.tensor(5.0), "attack": torch.zeros(16, dtype=torch.uint8)}, state)
    assert len(lab.result(cell).history) == 1
    assert not state.exists()


def test_correlation_of_logarithms():
    assert correlation([1, 10, 100], [2, 4, 8]) == pytest.approx(1)
    assert correlation([1, 10, 100], [8, 4, 2]) == pytest.approx(-1)
    assert correlation([1, 1, 1], [1, 2, 3]) is None
    assert correlation([1, 2], [1, 2]) is None
