"""Recipe `labels`: combinations that are solved for, a whole run in small, and going on after a stop."""

from __future__ import annotations

import json
from unittest.mock import Mock

import pandas
import pytest
import torch

from cutlayer.attacks import LabelTruth
from cutlayer.core import Claim, ConfigError, DataError, Guarantee, Proportion, Stopped
from cutlayer.customer import Objective, Silent
from cutlayer.recipes import RECIPES
from cutlayer.recipes.label_cells import LanguageCell, LanguageScale, RunCell, report_bound
from cutlayer.recipes.labels import CLASSIFIER_CLAIMS, RECIPE, Scale
from cutlayer.recipes.measures.label_recombination import combined, recombine, solve_from_labels, solve_from_update
from cutlayer.recipes.options import RecipeOptions, Size, configured
from cutlayer.recipes.recorded_steps import SOLVED, Attacked, Option, Reading
from cutlayer.recipes.study import Results, Scenario
from cutlayer.recipes.tasks import Limits
from cutlayer.recipes.training import settled
from tests.recipes import worlds
from tests.recipes.unsplit.worlds import write_words
from tests.service.tiny import write_tiny_bert, write_tiny_gpt2

CONFIG = RECIPE.config


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return str(write_tiny_bert(tmp_path_factory.mktemp("models") / "bert"))


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    decoder = str(write_tiny_gpt2(tmp_path_factory.mktemp("models") / "gpt2"))
    return CONFIG.model_copy(
        update={
            "task": CONFIG.task.model_copy(update={"dev_share": 0.1}),
            "epsilons": (1.0,),
            "passes": (3,),
            "language": CONFIG.language.model_copy(update={"model": decoder, "epsilons": (6.0,), "passes": (3,)}),
            "sizes": {
                Size.TINY: Scale(
                    limits=Limits(train=64),
                    training={"epochs": 2, "batch_size": 16},
                    language=LanguageScale(texts=8, tokens=12, batch=4, test=4),
                )
            },
        }
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = worlds.write_data(tmp_path_factory.mktemp("data"))
    return write_words(folder, "train", "test", name="aeslc")


def options(model, data, out, **changes):
    return RecipeOptions(**{"size": Size.TINY, "seeds": 1, "model": model, "data": data, "out": out, **changes})


# ---------------------------------------------------------------- combinations


def gradients(texts, classes, *, seed=1):
    rng = torch.Generator().manual_seed(seed)
    logits = torch.randn(texts, classes, generator=rng)
    labels = torch.randint(classes, (texts,), generator=rng)
    p = logits.softmax(1)
    return p, labels, (p - torch.nn.functional.one_hot(labels, classes)) / texts


@pytest.mark.parametrize(("passes", "classes"), [(3, 2), (8, 2), (4, 5)])
def test_passes_hide_the_gradient_and_combine_to_it(passes, classes):
    _, labels, gradient = gradients(64, classes)
    rng = torch.Generator().manual_seed(2)
    sent, coefficients = recombine(gradient, passes, cover=10.0, rng=rng)
    assert sent.shape == (passes, 64, classes)
    assert torch.allclose(combined(sent, coefficients), gradient, atol=1e-6)
    assert float(sent.sum(2).abs().max()) < 1e-5, "rows that do not add up to zero give the combination away"
    for one in sent:
        # a pass by itself, and its negative, are about as good as guessing
        read = float((one.argmin(1) == labels).double().mean())
        assert abs(read - 1 / classes) < 0.25


@pytest.mark.parametrize(("passes", "classes"), [(2, 2), (8, 2), (4, 5)])
def test_labels_alone_give_the_combination_away(passes, classes):
    p, labels, gradient = gradients(32, classes)
    sent, coefficients = recombine(gradient, passes, cover=10.0, rng=torch.Generator().manual_seed(3))
    found = solve_from_labels(sent, p)
    assert torch.allclose(found, coefficients.double(), atol=1e-3)
    assert torch.equal((p - 32 * combined(sent, found)).argmax(1), labels)


def test_as_many_passes_as_texts_leave_nothing_to_check_a_choice_by():
    p, _, gradient = gradients(8, 2)
    sent, _ = recombine(gradient, 8, cover=10.0, rng=torch.Generator().manual_seed(3))
    assert solve_from_labels(sent, p) is None
    p, _, gradient = gradients(64, 3)
    sent, _ = recombine(gradient, 40, cover=10.0, rng=torch.Generator().manual_seed(3))
    assert solve_from_labels(sent, p) is None, "3^20 choices are too many"


def test_a_combination_of_other_passes_is_not_found():
    """Planted: passes that have nothing to do with the gradient."""
    p, labels, _ = gradients(64, 2)
    noise = torch.randn(2, 64, 2, generator=torch.Generator().manual_seed(4))
    found = solve_from_labels(noise - noise.mean(2, keepdim=True), p)
    read = (p - 64 * combined(noise - noise.mean(2, keepdim=True), found)).argmax(1) == labels
    assert 0.25 < float(read.double().mean()) < 0.75


def test_the_update_gives_the_combination_away():
    gradient = torch.randn(40, 24, generator=torch.Generator().manual_seed(5))
    sent, coefficients = recombine(gradient, 6, cover=100.0, rng=torch.Generator().manual_seed(6))
    found = solve_from_update(sent.sum(1), gradient.sum(0))
    assert torch.allclose(found, coefficients.double(), atol=1e-3)


def test_one_pass_hides_nothing():
    with pytest.raises(ConfigError, match="passes = 1"):
        recombine(torch.ones(2, 2), 1, cover=1.0, rng=torch.Generator())


def test_the_bound_of_reports_follows_how_frequent_labels_are():
    even, skewed = torch.tensor([0, 1, 2]), torch.tensor([0] * 98 + [1, 2])
    e = torch.e
    assert report_bound(LabelTruth(even, 3), 1.0) == pytest.approx(e / (e + 2))
    assert report_bound(LabelTruth(skewed, 3), 1.0) == pytest.approx(0.98), "whoever knows the shares needs no report"


# ---------------------------------------------------------------- the run


def test_it_is_registered_and_shows_its_settings():
    assert RECIPES["labels"].default_model == "starter"
    json.dumps(RECIPES["labels"].show())
    with pytest.raises(ConfigError, match="epsilons"):
        configured(CONFIG, {"epsilons": "[0.0]"})


def by_name(found):
    return {option["name"]: {each["attack"]: each for each in option["readings"]} | option for option in found}


@pytest.mark.slow
def test_a_run_attacks_every_option(tiny, config, data, tmp_path):
    report = RECIPE.using(config).run(options(tiny, data, tmp_path), Silent())
    written = json.loads((tmp_path / "report.json").read_text())
    cells = [each["result"]["options"] for each in written["cells"]]
    classifier = by_name([option for found in cells[:3] for option in found])
    ordinary = classifier["ordinary"]
    for attack in ("gradient-sign", "output-gradient", "gradient-direction"):
        assert ordinary[attack]["success"]["value"] == 1
    assert ordinary["guarantee"]["claim"] == "none"
    several = classifier["recombination, ordinary"]
    assert several["gradient-sign"]["success"]["value"] < 0.8
    assert several[SOLVED]["success"]["value"] == 1
    assert several["gradient_bytes"] == 3 * ordinary["gradient_bytes"]
    assert several["guarantee"]["claim"] == "none"
    assert several["deviation"] < 1e-4
    drawn = classifier["randomised response"]
    assert drawn["output-gradient"]["success"]["value"] < 0.95
    assert (drawn["guarantee"]["claim"], drawn["guarantee"]["budget"]) == ("label-dp", 1)
    head = classifier["head at the customer"]
    assert head["gradient-direction"]["success"]["value"] == 1
    assert head["gradient-sign"]["success"] is None
    assert classifier["recombination, head at the customer"][SOLVED]["success"]["value"] == 1
    language = by_name([option for found in cells[3:] for option in found])
    assert language["ordinary"]["tail-gradient"]["success"]["value"] > 0.99
    assert language["recombination, ordinary"]["tail-gradient"]["success"]["value"] < 0.2
    assert language["recombination, ordinary"][SOLVED]["success"]["value"] > 0.99
    assert language["randomised response"]["tail-gradient"]["success"]["value"] < 0.95
    claims = [each for part in written["parts"].values() for each in part["claims"]]
    assert [len(table.rows) for table in report.tables] == [5, 3, len(claims)]
    assert all(path.exists() for path in report.files)
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").iterdir())


def test_a_stopped_run_goes_on_and_a_finished_one_is_not_run_again(tiny, config, data, tmp_path, monkeypatch):
    ordered = options(tiny, data, tmp_path, only=("language",))
    attacked, done = LanguageCell.run, []

    def counted(cell, lab):
        if len(done) == 1:
            done.append("stopped")
            raise KeyboardInterrupt
        done.append(cell.name)
        return attacked(cell, lab)

    monkeypatch.setattr(LanguageCell, "run", counted)
    with pytest.raises(Stopped, match="Finished cells are in"):
        RECIPE.using(config).run(ordered, Silent())
    first = RECIPE.using(config).run(ordered, Silent())
    assert done == ["aeslc-ordinary-s0", "stopped", "aeslc-epsilon6-s0"]
    monkeypatch.setattr(LanguageCell, "run", Mock(side_effect=AssertionError))
    assert RECIPE.using(config).run(ordered, Silent()).content == first.content
    with pytest.raises(ConfigError, match="only = 'langage'"):
        RECIPE.using(config).run(options(tiny, data, tmp_path, only=("langage",)), Silent())


def test_missing_data_is_named(tiny, config, tmp_path):
    with pytest.raises(DataError, match=r"aeslc.train\.jsonl\.gz"):
        RECIPE.using(config).run(options(tiny, tmp_path, tmp_path / "out", only=("language",)), Silent())


# ---------------------------------------------------------------- findings


def option(name, *, value, epsilon=None, bound=None, attack="output-gradient", passes=1):
    success = Proportion(value=value, n=1000, standard_error=0.01)
    return Option(
        name=name,
        epsilon=epsilon,
        passes=passes,
        readings=(Reading(attack=attack, success=success, interval=(value - 0.02, value + 0.02)),),
        rounds=1,
        gradient_bytes=1,
        output_bytes=1,
        guarantee=Guarantee.nothing("made up")
        if epsilon is None
        else Guarantee(claim=Claim.LABEL, budget=epsilon, unit="epsilon", per="label"),
        bound=bound,
        draws=1000,
    )


def verdicts(*options):
    cell = RunCell(
        model="m",
        task=CONFIG.task,
        limits=Limits(),
        training=settled(Objective.CLASSIFICATION, CONFIG.tuning, {}),
        cover=1.0,
        seed=0,
        epsilon=None,
    )
    results = Results(pandas.DataFrame(), {cell: Attacked(options=options)}, [Scenario(cell)])
    return {each.claim.split(":")[0]: each.held for judge in CLASSIFIER_CLAIMS for each in judge(results)}


def test_findings_can_fail():
    shown, hidden = option("ordinary", value=1.0), option("ordinary", value=0.9)
    assert verdicts(shown)["An ordinary run shows its labels"] is True
    assert verdicts(hidden)["An ordinary run shows its labels"] is False
    name = "Randomised response of labels"
    assert verdicts(shown, option("randomised response", value=0.74, epsilon=1, bound=0.73))[name] is True
    assert verdicts(shown, option("randomised response", value=0.83, epsilon=1, bound=0.73))[name] is False
    groups = option("randomised response", value=0.8, epsilon=1, bound=0.73, attack="activation-clusters")
    assert verdicts(shown, groups)["Nor does the attack on activations, in which gradients have no part."] is False
    solved = option("recombination, ordinary", value=1.0, attack=SOLVED, passes=2)
    (claim,) = [held for said, held in verdicts(shown, solved).items() if said.startswith("Recombined")]
    assert claim is False
