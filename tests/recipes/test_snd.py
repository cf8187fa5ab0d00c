"""Recipe `snd`: a run of each part, what it claims, and that denoisers learn from no text of a task."""

from __future__ import annotations

import json

import pytest
import torch

from cutlayer.attacks.evaluation import attributes
from cutlayer.core import ConfigError, DataError
from cutlayer.customer import Silent
from cutlayer.customer.reconstruction import Reconstruction
from cutlayer.data import Dataset
from cutlayer.recipes import RECIPES, attribute_readings, inference
from cutlayer.recipes.attribute_readings import PostsSpec
from cutlayer.recipes.embedding_cells import FREQUENT, DenoiserCell, EmbeddedCell, _folded, but
from cutlayer.recipes.embedding_tasks import score
from cutlayer.recipes.lab import Lab
from cutlayer.recipes.options import RecipeOptions, Size
from cutlayer.recipes.server_denoiser import ServerDenoiserCell
from cutlayer.recipes.snd import RECIPE
from cutlayer.recipes.snd_settings import Attributes, Etas, Scale
from cutlayer.recipes.tasks import Limits, TextFile
from cutlayer.reports.estimate import standard_error
from cutlayer.wire.messages import Precision
from tests.recipes import test_inference
from tests.recipes.test_inference import named, posts, write
from tests.recipes.worlds import sentences, write_split, write_tiny_t5
from tests.service.tiny import write_tiny_bert, write_tiny_gpt2

SHIPPED = RECIPE.config
ETA, T5_ETA, GPT2_ETA = 20.0, 5.0, 12.0
SND = "SnD"
OTHERS = ("TokEmbPriv", "Text2Text", "RAPT")
ALONE = ("customer-only", "customer-only, light")
PARTS = {
    *("table-1", "table-4", "table-12", "table-13", "figure-2", "figure-4", "figure-6", "figure-7"),
    *("denoisers", "tasks", "equal-leak"),
}
OF_POSTS = {"known": "train", "attacked": "test", "public": "train", "columns": {"gender": ("female", "male")}}
CONFIG = SHIPPED.model_copy(
    update={
        "tasks": {name: SHIPPED.tasks[name] for name in ("mrpc", "cola")},
        "public": (TextFile(name="ag_news", part="train"),),
        "spared": (),
        "etas": {
            kind: Etas(accuracy=(eta,), auc=(eta,), read=(eta,), inferred=(eta,), between=(20.0, 5000.0))
            for kind, eta in (("encoder", ETA), ("encoder-decoder", T5_ETA), ("decoder", GPT2_ETA))
        },
        "low_etas": (0.01,),
        "table_1": ("cola",),
        "table_4": ("mrpc",),
        "table_13": ("mrpc",),
        "rapt": SHIPPED.rapt.model_copy(
            update={
                "arm": SHIPPED.rapt.arm.model_copy(update={"reconstruction": Reconstruction(plain_tokens=3)}),
                "tuning": SHIPPED.rapt.tuning.model_copy(update={"prompt_length": 4}),
                "training": {"epochs": 1, "batch_size": 8},
            }
        ),
        "figure_4": Attributes(
            posts=(
                PostsSpec(name="blogs", group="author_id", **OF_POSTS),
                PostsSpec(name="moments", **OF_POSTS),
            ),
            column="gender",
            attacks=("attribute-mlp",),
        ),
        "figure_6": ("mrpc",),
        "figure_7": ("mrpc",),
        "asked": tuple(each for each in SHIPPED.asked if each.kind in ("pairs", "clustering")),
        "equal_leak": ("mrpc",),
        "leaks": (0.3,),
        "sizes": {
            Size.TINY: Scale(
                texts=Limits(train=24, test=12),
                released=40,
                known=120,
                public=60,
                steps=3,
                passes=2,
                shapes=("minilm",),
            )
        },
    }
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return str(write_tiny_bert(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for part in ("train", "test"):
        pairs = sentences(40, seed=len(part), pairs=True)
        write_split(folder, "mrpc", part, pairs, ("text_a", "text_b", "label"))
    for part in ("train", "dev_in_domain"):
        write_split(folder, "cola", part, sentences(40, seed=9 + len(part)), ("text", "label"))
    for part in ("train", "dev"):
        write_split(folder, "sst2", part, sentences(120, seed=len(part) + 30), ("text", "label"))
    # every second public text is one of a task's, in other letters
    ours = [(f" {first.upper()} ", 0) for first, _, _ in sentences(40, seed=5, pairs=True)]
    write_split(folder, "ag_news", "train", [*ours, *sentences(40, seed=77)], ("text", "label"))
    for place, (part, count) in enumerate((("train", 200), ("test", 90))):
        rows = posts(count, place, 1000 * place)
        write(folder, "blogs", part, rows)
        others = posts(count, place + 7, 1000 * place)
        write(folder, "moments", part, [{"text": "of whom nothing is known", "gender": None}, *others])
        write(folder, "wnut17", part, named(600, place))
    facts = [
        {"triples": [["a", "b", "c"]], "references": [text], "category": f"c{number % 3}"}
        for number, (text, _) in enumerate(sentences(40, seed=3))
    ]
    write(folder, "webnlg", "test_seen", facts)
    return folder


def options(model, data, out, **changes):
    return RecipeOptions(**{"size": Size.TINY, "seeds": 1, "model": model, "data": data, "out": out, **changes})


@pytest.fixture(scope="module")
def whole(tiny, data, tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inference, "RECIPE", inference.RECIPE.using(test_inference.CONFIG))
        patch.setattr(attributes, "CONTROL_KNOWN", 160)
        patch.setattr(attributes, "CONTROL_ATTACKED", 160)
        report = RECIPE.using(CONFIG).run(options(tiny, data, out), Silent())
    return report, json.loads((out / "report.json").read_text())


def test_the_settings_that_come_with_it_are_the_papers():
    tuning, training = SHIPPED.rapt.tuning, SHIPPED.rapt.training
    assert (tuning.method, tuning.prompt_length) == ("prompt", 150)
    assert (training["epochs"], training["batch_size"], training["learning_rate"]) == (4, 15, 6e-5)
    asked = SHIPPED.rapt.arm.reconstruction
    assert (asked.plain_tokens, asked.reconstruction_vocabulary) == (40, 7630)


def test_no_public_text_that_comes_with_it_is_of_a_tasks_data_set():
    kept_out = {task.name for task in SHIPPED.tasks.values()} | {file.name for file in SHIPPED.spared}
    assert kept_out == {"cola", "qqp", "mrpc", "rte", "blog_authorship", "happydb"}
    asked = {each.task.name for each in SHIPPED.asked} | {posts.name for posts in SHIPPED.figure_4.posts}
    public = [file.name for file in SHIPPED.public]
    assert len(set(public)) == 14
    assert not set(public) & (kept_out | asked | {SHIPPED.released.name})


def test_it_is_registered_and_shows_its_settings():
    recipe = RECIPES["snd"]
    assert set(recipe.parts) == PARTS
    assert set(SHIPPED.sizes) == set(Size)
    shown = json.loads(json.dumps(recipe.show()))
    assert shown["etas"]["encoder"]["auc"] == [50, 100, 500]
    assert shown["other_names"]["figure-5"] == "table-12"
    assert "special tokens" in {each["what"] for each in shown["deviations"]}, "the denoiser's own"


def test_every_method_stands_beside_clean_embeddings_and_the_control(whole):
    report, written = whole
    assert report.failures == {}
    drawn = {file.name for file in report.files if file.suffix == ".png"}
    figures = ("table-1", "table-4", "figure-2", "figure-4", "figure-5", "figure-6", "figure-7")
    assert {f"{name}.png" for name in (*figures, "tasks", "equal-leak")} <= drawn
    rows = [row for row in written["table"] if row["part"] == "table-4" and row["source"] == "here"]
    of = {(row["method"], row["metric"]): row for row in rows if not row.get("over")}
    methods = {method for method, _ in of}
    assert methods == {"clean", "clipped rows", "SnD", "SnD, light", *ALONE, "TokEmbPriv", "Text2Text", "RAPT"}
    assert of["clean", "MSE"]["value"] == 0
    assert of["clean", "cosine"]["value"] == pytest.approx(1)
    for method in methods - {"clean"}:
        assert method == "RAPT" or of[method, "MSE"]["value"] > 0
        assert of[method, "AUC"]["lower"] <= of[method, "AUC"]["value"] <= of[method, "AUC"]["upper"]
        assert of[method, "AUC"]["n"] == 12
    gained = {(row["method"], row["over"]): row for row in rows if row["metric"] == "AUC gained"}
    pairs = [(SND, "customer-only"), ("SnD, light", "customer-only, light"), *((SND, other) for other in OTHERS)]
    assert list(gained) == pairs
    for (method, over), row in gained.items():
        assert row["value"] == pytest.approx(of[method, "AUC"]["value"] - of[over, "AUC"]["value"], abs=1e-4)
        assert row["n"] == 12
    claims = [each["claim"] for each in written["parts"]["table-4"]["claims"]]
    assert claims == [f"{method}'s AUC is above {over}'s: MRPC, eta 20." for method, over in pairs]
    paper = [row for row in written["table"] if row["part"] == "table-4" and row["source"] == "paper"]
    assert {row["value"] for row in paper if row["method"] == "SnD" and row["metric"] == "AUC"} == {0.674, 0.675, 0.691}


def test_what_denoisers_learnt_is_told_by_method_and_range(whole):
    rows = [row for row in whole[1]["table"] if row["part"] == "denoisers"]
    of = {(row["method"], row["metric"]): row for row in rows}
    others = {"SnD, ids", "customer-only, ids", "SnD, no clip", "SnD, no positions"}
    assert {method for method, _ in of} == {SND, "SnD, light", *ALONE, *others}
    assert len({row["etas"] for row in rows if row["method"] == SND}) == 3
    assert -1 <= of[SND, "cosine, denoised"]["value"] <= 1
    assert of[SND, "MSE, mean_embedding"]["value"] > 0


def test_the_accuracy_of_single_texts_stands_beside_clean_ones(whole):
    rows = [row for row in whole[1]["table"] if row["part"] == "table-1" and row["source"] == "here"]
    assert {row["method"] for row in rows} == {"clean", "clipped rows", "SnD", "SnD, light", *ALONE, FREQUENT}


def test_accuracy_stands_beside_what_knows_no_text(whole, data):
    rows = [row for row in whole[1]["table"] if row.get("method") == FREQUENT]
    task, texts = CONFIG.tasks["cola"], CONFIG.at(Size.TINY).texts
    found, learnt = task.read_at_most(data, texts)
    ones = found.labels[:learnt].count("1") * 2 > learnt
    right = [(label == "1") == ones for label in found.labels[learnt:]]
    assert [(row["task"], row["value"], row["n"]) for row in rows] == [("CoLA", sum(right) / len(right), len(right))]


def test_methods_meet_where_as_much_is_read_of_each(whole):
    rows = [row for row in whole[1]["table"] if row["part"] == "equal-leak"]
    read = {row["method"]: row for row in rows if row["metric"] == "read"}
    assert read.keys() == {"clipped rows", "TokEmbPriv", "Text2Text"}
    for row in read.values():
        assert row["value"] == pytest.approx(0.3, abs=0.1)
    each = {(row["method"], row["metric"]): row["value"] for row in rows if row["metric"].startswith("read, ")}
    for method, row in read.items():
        papers, likeliest = (each[method, f"read, {name}"] for name in ("nearest-neighbour", "maximum-posterior"))
        assert row["value"] == max(papers, likeliest)
        assert row["note"] == ("maximum-posterior" if likeliest >= papers else "nearest-neighbour")
    assert ("Text2Text", "read, masked-infill") in each
    etas = {row["method"]: row["value"] for row in rows if row["metric"] == "eta"}
    assert all(20 < eta < 5000 for eta in etas.values())
    measured = {row["method"] for row in rows if row["metric"] == "AUC"}
    assert measured == {*read, "clean", "SnD", "SnD, light", "SnD, ids", *ALONE, "customer-only, ids"}
    assert len(whole[1]["parts"]["equal-leak"]["claims"]) == 11
    gained = [row for row in rows if row["metric"] == "AUC gained"]
    assert len(gained) == 7
    assert {row["leak"] for row in gained} == {0.3}


def test_more_is_read_by_the_strongest_attack_than_by_the_papers(whole):
    rows = [row for row in whole[1]["table"] if row["part"] == "figure-2" and row["metric"] == "success"]
    read = {row["attack"]: row["value"] for row in rows}
    assert read.keys() == {"nearest-neighbour", "maximum-posterior"}


def test_attributes_are_inferred_of_clipped_rows(whole):
    rows = [row for row in whole[1]["table"] if row["part"] == "figure-4" and row["metric"] == "success"]
    found = {(row["posts"], row["eta"]): row for row in rows}
    assert {name for name, _ in found} == {"blogs", "moments"}
    assert {row["n"] for row in rows} == {80}
    assert len(found) == 4


def test_each_corpus_is_attacked_in_its_own_releases(whole, tiny, data, tmp_path, monkeypatch):
    """Both have as many posts: nothing but what is in them tells one from the other."""
    cells = [each["cell"] for each in whole[1]["cells"] if "posts" in each["cell"] and each["cell"]["eta"] == ETA]
    made, given = [], attribute_readings.release
    patched = lambda sets, *rest, **more: made.append(sets) or given(sets, *rest, **more)  # noqa: E731
    monkeypatch.setattr(attribute_readings, "release", patched)
    monkeypatch.setattr(attributes, "CONTROL_KNOWN", 160)
    monkeypatch.setattr(attributes, "CONTROL_ATTACKED", 160)
    with Lab(options(tiny, data, tmp_path)) as lab:
        for cell in cells:
            attribute_readings.InferenceCell.model_validate(cell).run(lab)
    assert len(cells) == len(made) == 2
    name = next(iter(made[0]))
    first, second = (sets[name].segments[0].values.tolist() for sets in made)
    assert first != second


def test_what_a_text_costs_stands_beside_the_whole_model(whole):
    rows = [row for row in whole[1]["table"] if row["part"] == "table-12" and row["source"] == "here"]
    of = {(row["method"], row["metric"]): row["value"] for row in rows}
    assert of["SnD", "of the operations"] == pytest.approx(0.95, abs=0.01)
    assert of["SnD, light", "of the memory"] == pytest.approx(0.604, abs=0.001)
    up, down = 128 * 384 * 2, 384 * 4
    assert up + down < of["SnD", "sent"] < up + down + 400
    assert of["SnD", "both, seconds"] > of["whole model at home", "seconds"] > 0
    paper = [row for row in whole[1]["table"] if row["part"] == "table-12" and row["source"] == "paper"]
    quoted = {(row["method"], row["metric"]): row["value"] for row in paper if row["shape"] == "distilbert"}
    assert quoted["PCFT (quoted)", "both, seconds"] == 137.16
    assert quoted["Iron (quoted)", "both, seconds"] == 693.18


def test_other_uses_of_embeddings_are_scored_by_method(whole):
    rows = [row for row in whole[1]["table"] if row["part"] == "tasks"]
    gained = [row for row in rows if row["metric"] == "score gained"]
    assert len(gained) == 2 * 3
    of = {(row["kind"], row["method"]): row for row in rows if row["metric"] == "score"}
    (clusters,) = [row for row in gained if row["task"].startswith("WebNLG") and row["over"] == SND]
    lighter, other = of["clustering", "SnD, light"], of["clustering", SND]
    assert clusters["value"] == pytest.approx(lighter["value"] - other["value"], abs=1e-4)
    assert {kind for kind, _ in of} == {"pairs", "clustering"}
    for method in ("clean", "clipped rows", "SnD", "SnD, light", *ALONE, "TokEmbPriv", "Text2Text"):
        assert 0 <= of["pairs", method]["value"] <= 1
        assert of["clustering", method]["n"] == 12


GOOD = torch.tensor([[1.0, 0.1], [1.0, 0.2], [0.9, 0.0], [0.1, 1.0], [0.2, 1.0], [0.0, 0.9]]).repeat(4, 1)
CLASSES = ("a", "a", "a", "b", "b", "b") * 4


@pytest.mark.parametrize("kind", ["classification", "pairs", "clustering", "retrieval"])
def test_scores_are_one_for_embeddings_that_tell_and_less_for_those_that_do_not(kind):
    n, noise = len(GOOD), torch.randn(len(GOOD), 2, generator=torch.Generator().manual_seed(0))
    rows, good, bad = Dataset(tuple((f"t{place}",) for place in range(n)), CLASSES), GOOD, noise
    if kind == "pairs":
        rows = Dataset(tuple((f"t{place}", f"u{place}") for place in range(n)), CLASSES)
        good = torch.stack([GOOD, torch.tensor([[0.0, 1.0]]).expand(n, -1)], 1)  # b's belong together
        bad = torch.stack([noise, noise.flip(0)], 1)
    elif kind == "retrieval":
        rows = Dataset(tuple((f"t{place}", f"u{place}") for place in range(n)))
        turned = torch.polar(torch.ones(n), torch.arange(n) * 6.2 / n)
        apart = torch.stack([turned.real, turned.imag], 1)
        good, bad = torch.stack([apart, apart], 1), torch.stack([apart, noise], 1)
    learnt = n // 2 if kind == "classification" else 0
    assert score(kind, good, rows, learnt=learnt).numpy() == pytest.approx(1, abs=1e-6)
    of_rows = score(kind, bad, rows, learnt=learnt)
    assert len(of_rows) == n - learnt
    assert of_rows.mean() < 0.9
    assert 0 < standard_error(of_rows[None]) < 0.3


def test_a_denoiser_at_the_vendor_stands_beside_the_one_at_home(whole):
    rows = [row for row in whole[1]["table"] if row["part"] == "figure-6"]
    of = {(row["method"], row["metric"]): row for row in rows}
    assert {"SnD", "server", "clean"} <= {method for method, _ in of}
    assert of["server", "AUC"]["n"] == 12
    assert of["server", "bound's exponent"]["value"] > 0


def test_a_denoiser_of_rows_finds_them_in_little_noise_and_not_in_much(whole, tiny, data, tmp_path):
    (cell,) = [each["cell"] for each in whole[1]["cells"] if "beside" in each["cell"]]
    given = ServerDenoiserCell.model_validate(cell)
    learning = {"steps": 300, "batch_size": 16, "precision": Precision.FP32}
    training = given.beside.training.model_copy(update=learning)
    beside = given.beside.model_copy(update={"training": training})
    with Lab(options(tiny, data, tmp_path)) as lab:
        missed = {eta: given.model_copy(update={"eta": eta, "beside": beside}).run(lab).missed for eta in (0.01, 1e5)}
    assert missed[1e5] < 0.5
    assert 0.9 < missed[0.01] < 1.1


@pytest.mark.slow
def test_the_noise_of_the_released_code_is_drawn_where_it_is_asked_for(tiny, data, tmp_path):
    config = CONFIG.model_copy(update={"noise": "snd-code"})
    only = ("table-4", "table-13", "figure-2", "figure-6")
    report = RECIPE.using(config).run(options(tiny, data, tmp_path, only=only), Silent())
    assert report.failures == {}
    cells = [each["cell"] for each in json.loads((tmp_path / "report.json").read_text())["cells"]]
    assert all(cell.get("noise", "snd-code") == "snd-code" for cell in cells)
    (rapt,) = [cell for cell in cells if "arm" in cell]
    assert rapt["noise"] == "snd-code"
    of_rows = [cell for cell in cells if cell.get("denoised")]
    assert {cell["privacy"]["noise"] for cell in of_rows} == {"snd-code"}
    assert {each["by"]["releases"]["noise"] for cell in of_rows for each in cell["denoised"]} == {"snd-code"}


@pytest.mark.slow
@pytest.mark.parametrize(("write", "eta"), [(write_tiny_t5, T5_ETA), (write_tiny_gpt2, GPT2_ETA)])
def test_other_kinds_of_models_are_measured_at_etas_of_their_own(write, eta, data, tmp_path):
    model = str(write(tmp_path / "model"))
    report = RECIPE.using(CONFIG).run(options(model, data, tmp_path / "out", only=("table-4",)), Silent())
    assert report.failures == {}
    written = json.loads((tmp_path / "out" / "report.json").read_text())
    rows = [row for row in written["table"] if row["metric"] == "AUC" and row["source"] == "here"]
    assert {"clean", SND, "RAPT"} <= {row["method"] for row in rows}
    assert {row["eta"] for row in rows} == {eta}
    (rapt,) = [each["cell"] for each in written["cells"] if "arm" in each["cell"]]
    assert rapt.get("label_words") == ({} if eta == T5_ETA else None)
    assert rapt["limits"]["dev"] == SHIPPED.rapt.dev


@pytest.mark.slow
def test_where_no_eta_has_as_much_read_that_is_told_and_the_others_go_on(tiny, data, tmp_path):
    encoder = CONFIG.etas["encoder"].model_copy(update={"between": (1.0, 1.1)})
    config = CONFIG.model_copy(update={"etas": {"encoder": encoder}})
    only = ("equal-leak", "table-13")
    report = RECIPE.using(config).run(options(tiny, data, tmp_path, only=only), Silent())
    assert set(report.failures) == {f"leak-{form}-sst2-s0" for form in ("clipped-rows", "rows", "road")}
    assert all("No eta between 1 and 1.1" in why for why in report.failures.values())
    written = json.loads((tmp_path / "report.json").read_text())
    parts = {row["part"] for row in written["table"] if row.get("value") is not None}
    assert parts == {"table-13"}


def test_rows_are_denoised_clipped_and_as_they_are(whole):
    rows = [row for row in whole[1]["table"] if row["part"] == "figure-7" and row["metric"] == "AUC"]
    assert {"SnD", "SnD, no clip"} <= {row["method"] for row in rows}


def test_public_text_of_a_tasks_data_set_is_refused_by_its_name(tiny, data, tmp_path):
    config = CONFIG.model_copy(update={"public": (TextFile(name="mrpc", part="test", column="text_a"),)})
    with pytest.raises(ConfigError, match="mrpc"):
        RECIPE.using(config).run(options(tiny, data, tmp_path, only=("table-1",)), Silent())
    assert not (tmp_path / "cells").exists()


def test_the_texts_of_a_list_each_count(tmp_path):
    write(tmp_path, "talks", "train", [{"turns": ["hi", "yes"]}, {"turns": []}, {"turns": ["no", "bye"]}])
    file = TextFile(name="talks", part="train", column="turns", lists=True, texts=3)
    assert file.read(tmp_path).texts == (("hi",), ("yes",), ("no",))
    assert "lists" not in TextFile(name="talks", part="train").model_dump()


def test_denoisers_learn_from_no_text_of_a_task(whole, tiny, data, tmp_path):
    given = Dataset(((" W1  w2 ",), ("w3",)))
    assert but(given, frozenset([_folded("w1 W2")])) == [("w3",)]
    cells = [each["cell"] for each in whole[1]["cells"] if each["cell"].get("denoised")]
    with Lab(options(tiny, data, tmp_path)) as lab:
        cell = DenoiserCell.model_validate(cells[0]["denoised"][0]["by"])
        (kept,) = [but(file.read(data), cell.spared.texts(lab)) for file in cell.public]
    assert 0 < len(kept) <= 20  # of 60, forty are a task's
    assert cell.spared.tasks == tuple(CONFIG.tasks.values())


def test_what_is_finished_is_not_done_again(whole, tiny, data, monkeypatch):
    report, _ = whole
    folder = report.files[0].parent
    monkeypatch.setattr(EmbeddedCell, "run", None)
    monkeypatch.setattr(DenoiserCell, "run", None)
    again = RECIPE.using(CONFIG).run(options(tiny, data, folder), Silent())
    assert again.failures == {}


def test_what_is_missing_is_said_before_anything_is_run(tiny, data, tmp_path):
    config = CONFIG.model_copy(update={"public": (TextFile(name="gone", part="train"),)})
    with pytest.raises(DataError, match="gone"):
        RECIPE.using(config).run(options(tiny, data, tmp_path), Silent())
