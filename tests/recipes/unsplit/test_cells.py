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
from cutlayer.core import Stopped
from cutlayer.customer import Method
from cutlayer.customer.progress import Silent
from cutlayer.models import Inputs
from cutlayer.recipes.unsplit import cells
from cutlayer.recipes.unsplit.cells import AttackCell, Experiment, InverterCell, guessed_bottom, process
from tests.recipes.unsplit.worlds import PUBLIC, run_cell, two_iterations, write_words
from tests.service.tiny import write_tiny_gpt2

SPEC = UnSplitSpec(outer_iterations=3, inner_inputs=100, inner_weights=5)


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("experiment")
    with Experiment(
        folder / "out",
        model=str(write_tiny_gpt2(folder / "tiny")),
        data=write_words(folder / "data", "test", "public"),
        progress=Silent(),
    ) as made:
        yield made


def attack(experiment, run=None, **changes):
    run = run or run_cell(experiment.recorder)
    return AttackCell(**{"run": run, "iteration": 1, "spec": SPEC, "seed": 0, **changes})


def read(experiment, cell):
    return experiment.attacks([cell])[cell]


def share(reading, name="right"):
    return sum(getattr(reading, name)) / sum(reading.counted)


def test_an_unprotected_iteration_is_read_and_its_noise_is_not(experiment):
    found = read(experiment, attack(experiment))
    assert share(found.reading) >= 0.9
    assert found.reading.counted == (8, 8)
    assert share(found.reading, "shuffled") <= 0.3
    assert [stage.number for stage in found.history] == [1, 2, 3]
    assert found.history[-1].accuracy == pytest.approx(share(found.reading))
    assert found.history[-1].mse_outputs < found.history[0].mse_outputs
    for traffic in (Traffic.NOISE, Traffic.SHUFFLED):
        assert share(read(experiment, attack(experiment, traffic=traffic)).reading) <= 0.3, traffic


def test_a_guess_that_knows_the_truth_fails_its_controls(experiment, monkeypatch):
    """Planted fault: the attack returns the texts that the measurer holds, whatever it is shown."""

    def cheat(self):
        mask = self._mask.cpu()
        return Reconstruction(self._truth.ids, mask, self._truth.rows, tuple(self.history), self.spec)

    monkeypatch.setattr(UnSplitRun, "reconstruction", cheat)
    for traffic in (Traffic.NOISE, Traffic.SHUFFLED):
        assert share(read(experiment, attack(experiment, traffic=traffic, seed=1)).reading) == 1, traffic


def test_the_guess_is_on_the_device_that_was_chosen(experiment, monkeypatch):
    """A GPU where there is one; here it is asked for by its name."""
    asked = []
    to = torch.nn.Module.to

    def watched(module, *args, **kwargs):
        asked.extend(args)
        return to(module, *args, **kwargs)

    monkeypatch.setattr(torch.nn.Module, "to", watched)
    read(experiment, attack(experiment, seed=2))
    assert experiment.recorder.device in asked


def test_texts_are_decoded_beside_their_guesses(experiment):
    reading = read(experiment, attack(experiment)).reading
    tokens = experiment.recorder.recording(run_cell(experiment.recorder)).seen[1].tokens.segments[0]
    assert reading.true == tuple(experiment.recorder.tokenizer.batch_decode([t.tolist() for t in tokens.split()]))
    same = [a == b for a, b in zip(reading.true, reading.guessed, strict=True)]
    assert same == [right == counted for right, counted in zip(reading.right, reading.counted, strict=True)]


def test_a_finished_cell_is_not_run_again(experiment, monkeypatch):
    first = read(experiment, attack(experiment))
    monkeypatch.setattr(cells, "UnSplitRun", None)
    assert read(experiment, attack(experiment)) == first
    with pytest.raises(TypeError):
        read(experiment, attack(experiment, seed=9))


def test_a_stopped_attack_goes_on_where_it_was(experiment, monkeypatch):
    cell = attack(experiment, seed=4)

    class Impatient:
        def update(self, stage, done, total, note=""):
            if stage == "attack" and done == 2:
                raise KeyboardInterrupt

    monkeypatch.setattr(cells, "_SAVE_SECONDS", -1.0)
    monkeypatch.setattr(experiment, "_progress", Impatient())
    with pytest.raises(KeyboardInterrupt):
        read(experiment, cell)
    (state,) = (experiment.folder / "cells").glob("*.safetensors")
    monkeypatch.setattr(experiment, "_progress", Silent())
    steps = []
    step = cells.UnSplitRun.step
    monkeypatch.setattr(cells.UnSplitRun, "step", lambda run: steps.append(len(run.history)) or step(run))
    found = read(experiment, cell)
    assert steps[0] == 1  # the state of the first outer iteration was kept
    assert not state.exists()
    whole = experiment._attack(cell)
    assert found.model_dump(exclude={"seconds"}) == whole.model_dump(exclude={"seconds"})


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Stopped("The state of the run is elsewhere.")])
def test_an_interrupt_is_told_as_a_stop(tmp_path, experiment, error):
    made = Experiment(tmp_path, model=experiment.recorder.source, data=tmp_path, progress=Silent())
    with pytest.raises(Stopped, match="Finished cells are in"), made:
        raise error


@pytest.mark.parametrize("method", list(Method))
def test_the_customers_weights_are_those_of_its_second_boundary(experiment, method):
    """Without dropout a guess from the customer's weights gives the very boundary that crossed."""
    run = two_iterations(experiment.recorder, method=method, learning_rate=1e-2)
    seen = experiment.recorder.recording(run).seen[2]
    known, weights = experiment.recorder.knowledge(1), experiment.recorder.recording(run).weights
    inputs = known.template.assemble(seen.tokens)
    missed = {}
    for start in ("pre-trained", "customer"):
        cell = attack(experiment, run, iteration=2, start=start)
        boundary = guessed_bottom(cell, known.bottom, weights)(inputs)
        missed[start] = float(
            (known.template.unpad(boundary, seen.tokens).packed.values - seen.rows.packed.values).abs().max()
        )
    assert missed["customer"] < 1e-4 < 1e-3 < missed["pre-trained"]


def test_the_public_bottom_stays_public(experiment):
    run = two_iterations(experiment.recorder, learning_rate=1e-2)
    known = experiment.recorder.knowledge(1)
    before = [parameter.detach().clone() for parameter in known.bottom.parameters()]
    cell = attack(experiment, run, iteration=2, start="customer")
    guessed_bottom(cell, known.bottom, experiment.recorder.recording(run).weights)
    assert all(torch.equal(a, b) for a, b in zip(before, known.bottom.parameters(), strict=True))


def test_processing_a_batch_changes_nothing_of_a_bottom_with_layer_norms(experiment):
    found = experiment.processed(run_cell(experiment.recorder), 1)
    assert found.changed == 0
    assert found.tensors > 5


def test_running_statistics_would_be_seen(experiment):
    """The planted fault: batch normalisation does keep them."""

    class Kept(type(experiment.recorder.knowledge(1).bottom)):
        def forward(self, inputs, cache=None):
            hidden = super().forward(inputs, cache)
            return self.module.norm_planted(hidden.flatten(0, 1)).view_as(hidden)

    known = experiment.recorder.knowledge(1)
    bottom = Kept(copy.deepcopy(known.bottom.module), head=False)
    bottom.module.norm_planted = nn.BatchNorm1d(32)
    ids = torch.arange(8).view(2, 4)
    inputs = Inputs(attention_mask=torch.ones_like(ids), position_ids=torch.arange(4).expand(2, 4), input_ids=ids)
    assert process(bottom, inputs).changed == 3  # running mean, running variance, batches seen


def test_the_inverter_reads_from_public_text_alone(experiment):
    cell = InverterCell(
        run=run_cell(experiment.recorder),
        iteration=1,
        public=PUBLIC,
        public_tokens=1600,
        inverter=InverterSpec(),
        refine=RefineSpec(search=4),
        seed=0,
    )
    found = experiment.inversions([cell])[cell]
    assert list(found.stages) == ["guessed", "matched", "searched"]
    assert share(found.stages["searched"]) >= 0.9
    assert share(found.stages["searched"], "shuffled") <= 0.3
    assert found.public_accuracy > 0.5


def test_a_state_of_another_boundary_is_left_and_the_attack_begins_anew(experiment):
    cell = attack(experiment, seed=7, spec=UnSplitSpec(outer_iterations=1, inner_inputs=2, inner_weights=0))
    state = experiment._attacked.path(cell).with_suffix(".safetensors")
    save_file({"seconds": torch.tensor(5.0), "attack": torch.zeros(16, dtype=torch.uint8)}, state)
    assert len(read(experiment, cell).history) == 1
    assert not state.exists()
