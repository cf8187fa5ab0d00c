"""Runs against a vendor in this process: what is checked before anything leaves, and what is left behind."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
import torch

from cutlayer import vendor
from cutlayer.core import (
    BudgetError,
    ConfigError,
    Cut,
    CutlayerWarning,
    DataError,
    ModelError,
    Place,
    Proportion,
    Stopped,
    VendorError,
)
from cutlayer.customer import Client, Gate, Lora, Silent, TrainBottom, trainer
from cutlayer.customer.advice import classifier_advice
from cutlayer.customer.corpora import Corpora, Labelled
from cutlayer.customer.derived import Privatizing, run_privatizing, split_order
from cutlayer.customer.handout import local_archive
from cutlayer.customer.prepare import LabelledTexts
from cutlayer.customer.profile import Profile
from cutlayer.customer.reading import TokenReading
from cutlayer.customer.run import Run
from cutlayer.data import Dataset
from cutlayer.models import Head, Template, fingerprint, load_model, load_tokenizer
from cutlayer.privacy import CtiSpec, CustomerSecret, NoPrivacy, TextToText, build_privatizer
from cutlayer.privacy.randomness import NoiseKeys
from cutlayer.wire import Route, routes
from tests.promises.runs import LABELS, TEST, TRAIN, TRAINING, corpus, customer, finetune
from tests.service.fixtures import (  # noqa: F401 - fixtures are used by name
    api_key,
    blank_vendor,
    change_settings,
    data_dir,
    tiny_model,
)
from tests.settings import specs
from tests.unit.models.vocabularies import make_tokenizer


class Interrupts(Silent):
    """Ctrl-C in the first epoch."""

    def update(self, stage: str, done: int, total: int, note: str = "") -> None:
        if stage.startswith("epoch"):
            raise KeyboardInterrupt


@pytest.fixture
def client(data_dir: Path, api_key: str, tmp_path: Path) -> Iterator[Client]:  # noqa: F811
    with customer(data_dir, api_key, tmp_path / "home") as opened:
        yield opened


def test_a_run_keeps_to_a_small_vendors_limit(
    data_dir: Path,  # noqa: F811
    api_key: str,  # noqa: F811
    change_settings: Callable[..., None],  # noqa: F811
    tmp_path: Path,
) -> None:
    """Evaluation frames would hold all dev texts at once; this vendor takes about one batch."""
    change_settings(data_dir, limits={"max_rows_per_step": 8 * 17})
    with customer(data_dir, api_key, tmp_path / "home") as client:
        result = finetune(client, eta=math.inf, dev=corpus(60, seed=7))
        assert len(client.predict(result.adapter_id, corpus(60, seed=8))) == 60


def test_batches_beyond_the_limit_are_refused_before_anything_leaves(
    data_dir: Path,  # noqa: F811
    api_key: str,  # noqa: F811
    change_settings: Callable[..., None],  # noqa: F811
    tmp_path: Path,
) -> None:
    change_settings(data_dir, limits={"max_rows_per_step": 60})
    with customer(data_dir, api_key, tmp_path / "home") as client:
        with pytest.raises(ConfigError, match=r"batch_size = 8: .*60 a step\. Use") as caught:
            finetune(client)
        assert re.search(r"batches of [34] texts", caught.value.remedy), "by the longest text of the part that trains"
        assert not list(client.ledger.releases())


BATCH_BYTES = 8 * 17 * 72 + 1024
"""Of a frame with eight texts' rows: 32 numbers of two bytes, and a length."""


def test_a_run_keeps_to_the_bytes_that_a_vendor_takes(
    data_dir: Path,  # noqa: F811
    api_key: str,  # noqa: F811
    change_settings: Callable[..., None],  # noqa: F811
    tmp_path: Path,
) -> None:
    """Rows leave in steps, in evaluations and in queries."""
    change_settings(data_dir, limits={"max_step_bytes": BATCH_BYTES})
    with customer(data_dir, api_key, tmp_path / "home") as client:
        result = finetune(client, eta=6, bottom=1, train_bottom=TrainBottom.RESAMPLE, dev=corpus(60, seed=7))
        assert len(client.predict(result.adapter_id, corpus(60, seed=8))) == 60
        sent = [sum(entry.payload_bytes.values()) for entry in client.ledger.frames() if entry.texts]
        assert 0.5 * BATCH_BYTES < max(sent) <= BATCH_BYTES


def test_steps_of_more_bytes_than_the_vendor_takes_are_refused_before_anything_leaves(
    data_dir: Path,  # noqa: F811
    api_key: str,  # noqa: F811
    change_settings: Callable[..., None],  # noqa: F811
    tmp_path: Path,
) -> None:
    """Where steps carry rows; steps that name records are small, however wide the model is."""
    change_settings(data_dir, limits={"max_step_bytes": 60 * 72 + 1024})
    with customer(data_dir, api_key, tmp_path / "home") as client:
        with pytest.raises(ConfigError, match=r"batch_size = 8: .*60 a step\. Use"):
            finetune(client, eta=6, bottom=1, train_bottom=TrainBottom.RESAMPLE)
        assert not list(client.ledger.releases())
        assert finetune(client, eta=6, bottom=1).steps


@pytest.mark.parametrize("train_bottom", [TrainBottom.FROZEN, TrainBottom.RESAMPLE])
def test_without_noise_every_token_is_recovered(client: Client, train_bottom: TrainBottom) -> None:
    """Unknown words too: their row is no candidate of the noise, but here it leaves as it is."""
    texts = corpus(40, seed=1)
    unknown = Dataset(tuple((f"{text} nobody knows",) for (text,) in texts.texts), texts.labels)
    result = finetune(client, eta=math.inf, train=unknown, train_bottom=train_bottom)
    assert (result.ep, result.replaced) == (0, 0)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"privacy_budget": math.nan}, "privacy_budget = nan"),
        ({"privacy_budget": -1.0}, r"privacy_budget = -1\.0"),
        ({"privacy_budget": math.inf}, "privacy_budget = inf"),
        ({"seed": -1}, "seed = -1"),
        ({"seed": 2**63}, "seed = "),
    ],
)
def test_settings_out_of_bounds_are_refused_before_anything_leaves(
    client: Client,
    settings: dict[str, Any],
    named: str,
) -> None:
    with pytest.raises(ConfigError, match=named):
        client.finetune(corpus(40, seed=1), **{"eta": 6.0, "training": TRAINING, "seed": 3} | settings)
    assert not list(client.ledger.releases())


def test_a_bad_test_label_is_found_before_anything_leaves(client: Client) -> None:
    test = Dataset((("w1",), ("w2",)), ("oncology-ward", "unheard-of"))
    with pytest.raises(DataError, match="Row 2 of test"):
        client.finetune(corpus(40, seed=1), test=test, eta=6, training=TRAINING, seed=3)
    assert not list(client.ledger.releases())
    assert not client.home.archives.exists(), "nothing was fetched for it either"


@pytest.mark.parametrize("eta", [6.0, math.inf])
def test_a_finished_run_is_shown_again_and_nothing_leaves(client: Client, tmp_path: Path, eta: float) -> None:
    first = finetune(client, eta=eta, out=tmp_path / "run")
    before = list(client.ledger.releases())
    assert finetune(client, eta=eta, out=tmp_path / "run") == first
    assert list(client.ledger.releases()) == before
    with pytest.raises(ConfigError, match="other settings: privacy"):
        finetune(client, eta=5.0, out=tmp_path / "run")
    client.delete_adapter(first.adapter_id)
    with pytest.raises(ConfigError, match=f"{first.adapter_id} was deleted"):
        finetune(client, eta=eta, out=tmp_path / "run")


@pytest.mark.parametrize(
    ("refused", "kind", "said"),
    [
        ({"bottom": 99}, ModelError, "not 99"),
        ({"r": 1024, "target_modules": "all-linear"}, VendorError, "r = 1024"),
        ({"training": TRAINING.model_copy(update={"batch_size": 40})}, ConfigError, "batch_size = 32"),
        (
            {"eta": 7.0, "train_bottom": TrainBottom.RESAMPLE, "privacy_budget": 13.0},
            ConfigError,
            r"must be 14 or more .* eta 7",
        ),
    ],
)
def test_a_run_that_was_refused_at_once_does_not_take_its_folder(
    refused: dict[str, Any],
    kind: type[Exception],
    said: str,
    data_dir: Path,  # noqa: F811
    api_key: str,  # noqa: F811
    change_settings: Callable[..., None],  # noqa: F811
    tmp_path: Path,
) -> None:
    change_settings(data_dir, limits={"max_rows_per_step": 8 * 17, "max_adapter_parameters": 100_000})
    settings = {"train": corpus(40, seed=1), "eta": 6.0, "training": TRAINING, "seed": 3, "out": tmp_path / "run"}
    with customer(data_dir, api_key, tmp_path / "home") as client:
        with pytest.raises(kind, match=said):
            client.finetune(**specs(settings | refused))
        assert not list(client.ledger.releases()), "texts left for a run that was refused"
        assert client.finetune(**settings).n_train == 32


def test_a_run_that_was_killed_before_its_job_was_taken_asks_again_before_a_text_leaves(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, sent = Gate.send, []

    def killed(gate: Gate, route: Route, *given: Any, **named: Any) -> Any:
        sent.append(route)
        if route is routes.JOB_PUT and sent.count(route) == 1:
            raise KeyboardInterrupt
        return send(gate, route, *given, **named)

    monkeypatch.setattr(Gate, "send", killed)
    with pytest.raises(KeyboardInterrupt):
        finetune(client, out=tmp_path / "run")
    del sent[:-1]
    finetune(client, out=tmp_path / "run")
    assert routes.JOB_PUT in sent[1 : sent.index(routes.RECORD_SET_PUT)]


def test_too_many_labels_are_refused_before_a_text_leaves(
    data_dir: Path,  # noqa: F811
    api_key: str,  # noqa: F811
    change_settings: Callable[..., None],  # noqa: F811
    tmp_path: Path,
) -> None:
    change_settings(data_dir, limits={"max_labels": 2})
    with customer(data_dir, api_key, tmp_path / "home") as client:
        with pytest.raises(VendorError, match=r"num_labels = 3; this vendor takes 2"):
            finetune(client)
        assert not list(client.ledger.releases())


@pytest.mark.parametrize("train_bottom", [TrainBottom.FROZEN, TrainBottom.RESAMPLE])
def test_a_step_that_the_vendor_has_no_memory_for_is_refused_before_a_text_leaves(
    data_dir: Path,  # noqa: F811
    api_key: str,  # noqa: F811
    change_settings: Callable[..., None],  # noqa: F811
    tmp_path: Path,
    train_bottom: TrainBottom,
) -> None:
    change_settings(data_dir, limits={"max_graph_bytes": 100_000})
    with customer(data_dir, api_key, tmp_path / "home") as client:
        with pytest.raises(VendorError, match=r"Training on 8 texts takes about \d+ bytes .* a step 100000") as caught:
            finetune(client, train_bottom=train_bottom)
        assert "gradient checkpointing" in caught.value.remedy
        assert not list(client.ledger.releases())


def test_a_budget_that_was_too_small_may_be_raised(client: Client, tmp_path: Path) -> None:
    with pytest.raises(BudgetError):
        finetune(client, budget=5.0, out=tmp_path / "run")
    result = finetune(client, budget=6.0, out=tmp_path / "run")
    assert result.spec.privacy_budget == 6
    assert Profile.load(client.home, result.adapter_id).spec.privacy_budget == 6


def test_two_processes_do_not_work_on_one_run(client: Client, tmp_path: Path) -> None:
    with Run.held(tmp_path / "run"), pytest.raises(ConfigError, match="Another process works on the run"):
        finetune(client, out=tmp_path / "run")
    assert finetune(client, out=tmp_path / "run").n_train


class Threads:
    """Progress that notes the number of threads in training, and may stop it."""

    def __init__(self, *, stop: bool) -> None:
        self.seen: set[int] = set()
        self._stop = stop

    def update(self, stage: str, done: int, total: int, note: str = "") -> None:
        if stage.startswith("epoch"):
            self.seen.add(torch.get_num_threads())
            if self._stop:
                raise KeyboardInterrupt


def test_a_trained_bottom_goes_on_with_the_threads_it_began_with(client: Client, tmp_path: Path) -> None:
    """The last bits of its rows depend on them, and a release of one draw must have the same bytes."""
    settings = {"train_bottom": TrainBottom.CACHED, "bottom": 1, "out": tmp_path / "run"}
    before = torch.get_num_threads()
    first, second = Threads(stop=True), Threads(stop=False)
    try:
        torch.set_num_threads(3)
        with pytest.raises(Stopped):
            finetune(client, progress=first, **settings)
        torch.set_num_threads(1)
        finetune(client, progress=second, **settings)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    assert (first.seen, second.seen) == ({3}, {3})


def test_empty_texts_are_found_before_anything_leaves_where_a_model_has_no_special_tokens() -> None:
    tokenizer = make_tokenizer("gpt2")
    archive: Any = SimpleNamespace(
        tokenizer=tokenizer,
        template=Template.from_tokenizer(tokenizer, max_length=32),
        manifest=SimpleNamespace(target_template=None),
    )
    assert archive.template.special_count(1) == 0
    texts = Dataset((("w1 w2",), ("",), ("w3",), ("w4",)), ("a", "b", "a", "b"))
    spec: Any = SimpleNamespace(training=TRAINING, tuning=Lora(), privacy=TextToText(eta=6), seed=1, label_words=())
    good = Dataset(texts.texts[2:], ("a", "b"))
    for name, given in (("train", (texts, good, None)), ("dev", (good, texts, None)), ("test", (good, good, texts))):
        prepared = LabelledTexts(
            Labelled.of(Corpora(*given), spec, CustomerSecret.unsafe(1)),
            spec,
            archive,
            reading=TokenReading(archive),
            vocab_size=len(tokenizer),
        )
        privatizer = build_privatizer(NoPrivacy(), secret=CustomerSecret.unsafe(1))
        prepared.privatizing = Privatizing(TokenReading(archive), privatizer, training=privatizer)
        with pytest.raises(DataError, match=f"1 texts of {name} are empty"):
            prepared.check()


def asked(client: Client) -> set[str]:
    """The routes on which the vendor was to keep something."""
    kept = {route.name for route in (routes.JOB_PUT, routes.RECORD_SET_PUT, routes.SHARD_PUT, routes.STEP)}
    return kept & {frame.route for frame in client.ledger.frames()}


@pytest.mark.parametrize("train_bottom", [TrainBottom.FROZEN, TrainBottom.RESAMPLE])
@pytest.mark.parametrize("cti", [False, True])
def test_a_file_of_empty_texts_is_refused_before_the_vendor_keeps_anything(
    client: Client, tmp_path: Path, train_bottom: TrainBottom, cti: bool
) -> None:
    """Special tokens fill the rows, so it would be trained to the end, and then there is nothing to measure."""
    texts = corpus(40, seed=1)
    empty = Dataset((("",),) * 40, texts.labels)
    with pytest.raises(DataError, match="None of the 32 texts of train has a token") as refused:
        finetune(client, train=empty, train_bottom=train_bottom, cti=cti, out=tmp_path / "run")
    assert "--text-column" in refused.value.remedy
    assert not asked(client)
    assert not (tmp_path / "run" / "run.json").exists()
    some = Dataset((("w1",),) * 10 + empty.texts[10:], texts.labels)
    assert finetune(client, train=some, train_bottom=train_bottom, cti=cti).ep_n, "some empty texts do no harm"


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"cti": True},
        {"mechanism": "vector"},
        {"bottom": 1, "mechanism": "vector", "place": Place.ACTIVATIONS},
        {"bottom": 1, "train_bottom": TrainBottom.CACHED},
        {"train_bottom": TrainBottom.RESAMPLE},
    ],
    ids=str,
)
def test_a_budget_refuses_before_the_vendor_keeps_anything(
    client: Client, tmp_path: Path, settings: dict[str, Any]
) -> None:
    redraw = settings.get("train_bottom") is TrainBottom.RESAMPLE
    finetune(client, **settings)
    before = list(client.ledger.frames())
    charged = [line.draws for line in client.ledger.summary().mechanisms]
    with pytest.raises(BudgetError, match=r"texts would be charged beyond the budget of 10: .* No text was sent\."):
        finetune(client, eta=5.0, budget=10.0, out=tmp_path / "run", **settings)
    after = list(client.ledger.frames())[len(before) :]
    assert {frame.route for frame in after} <= {routes.SERVICE.name, routes.MODELS.name, routes.ARCHIVE.name}
    assert not (tmp_path / "run" / "run.json").exists()
    # what left before costs nothing, so a budget that it fills, or exceeds, lets it leave again; and says so
    budget = 12.0 if redraw else 0.5
    result = finetune(client, budget=budget, out=tmp_path / "run", **settings)
    assert [line.draws for line in client.ledger.summary().mechanisms] == charged
    told = [each for each in result.guarantee.caveats if "charged more than the budget of 0.5" in each]
    assert len(told) == (0 if redraw else 1)
    assert Run.is_finished(tmp_path / "run")
    assert finetune(client, budget=budget, out=tmp_path / "run", **settings) == result


def test_a_budget_refuses_for_the_test_texts_before_training(client: Client) -> None:
    finetune(client, train=corpus(40, seed=9))
    jobs = [frame.route for frame in client.ledger.frames()].count(routes.JOB_PUT.name)
    with pytest.raises(BudgetError, match=r"^10 of 50 texts .* up to 6 spent and 5 due"):
        finetune(client, eta=5.0, budget=10.0)
    assert [frame.route for frame in client.ledger.frames()].count(routes.JOB_PUT.name) == jobs


def test_a_text_that_stands_twice_is_drawn_once_an_epoch(client: Client) -> None:
    texts = corpus(20, seed=1)
    twice = Dataset(texts.texts * 2, (texts.labels or ()) * 2)
    finetune(client, train=twice, train_bottom=TrainBottom.RESAMPLE, budget=12.0)
    assert [line.largest_spent for line in client.ledger.summary().mechanisms] == [12]


def test_no_noise_is_drawn_to_ask_for_the_budget(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    streams = NoiseKeys.streams

    def counted(keys: NoiseKeys, names: Any) -> Any:
        drawn.append(len(names))
        return streams(keys, names)

    monkeypatch.setattr(NoiseKeys, "streams", counted)
    assert finetune(client, budget=6.0).spec.privacy_budget == 6
    with_budget = sum(drawn)
    drawn.clear()
    assert not any("budget of" in caveat for caveat in finetune(client, eta=5.0).guarantee.caveats)
    assert sum(drawn) == with_budget


@pytest.mark.parametrize(
    "settings",
    [
        {"eta": 1e-8},
        {"eta": 1e-8, "bottom": 1, "mechanism": "vector", "place": Place.ACTIVATIONS},
        {"cti": CtiSpec(c0=1000.0)},
    ],
    ids=str,
)
def test_an_eta_that_the_model_cannot_use_is_refused_before_the_vendor_keeps_anything(
    client: Client, tmp_path: Path, settings: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=r"eta = .*for rows of width"):
        finetune(client, out=tmp_path / "run", **settings)
    assert not asked(client)
    assert not (tmp_path / "run" / "run.json").exists()


def test_a_deletion_that_was_cut_short_is_finished_by_another(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = finetune(client).adapter_id
    with monkeypatch.context() as patch:
        patch.setattr(Profile, "forget", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            client.delete_adapter(adapter)
    assert client.adapters() == ()
    client.delete_adapter(adapter)
    assert not client.home.adapter(adapter).exists()
    with pytest.raises(VendorError, match=adapter):
        client.delete_adapter(adapter)


def test_a_class_whose_rows_fell_into_dev_has_its_output(client: Client) -> None:
    texts = corpus(40, seed=1)
    numbered = Dataset(tuple((str(number),) for number in range(40)), texts.labels)
    _, dev = Corpora(numbered, None, None).split(
        dev_share=TRAINING.dev_share, order=split_order(cast(Any, SimpleNamespace(seed=3)), client.home.secret)
    )
    held_out = int(dev.texts[0][0])
    labels = tuple("rare-ward" if number == held_out else label for number, label in enumerate(texts.labels or ()))
    result = client.finetune(Dataset(texts.texts, labels), eta=6, training=TRAINING, seed=3)
    assert client.adapter(result.adapter_id).num_labels == 4


@pytest.mark.parametrize("train_bottom", [TrainBottom.RESAMPLE, TrainBottom.CACHED])
def test_a_text_in_two_evaluation_frames(
    client: Client,
    train_bottom: TrainBottom,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The bits of a trained bottom's rows depend on the batch, so these are two releases of one draw."""
    monkeypatch.setattr(trainer, "EVALUATION_POSITIONS", 100)
    texts = corpus(12, seed=5)
    twice = Dataset(texts.texts + texts.texts, (texts.labels or ()) * 2)
    finetune(client, dev=twice, bottom=1, train_bottom=train_bottom)
    spent = [line.largest_spent for line in client.ledger.summary().mechanisms]
    # dev is drawn once; the training texts of a fresh release each epoch, twice
    assert spent == [12 if train_bottom is TrainBottom.RESAMPLE else 6]


@pytest.mark.parametrize(("train_bottom", "looks"), [(TrainBottom.FROZEN, 1), (TrainBottom.RESAMPLE, 2)])
def test_the_guarantee_covers_every_look(
    client: Client,
    train_bottom: TrainBottom,
    looks: int,
) -> None:
    result = finetune(client, train_bottom=train_bottom)
    assert (result.looks, result.guarantee.budget) == (looks, 6.0 * looks)
    assert result.largest_distance is not None
    spent = [line.largest_spent for line in client.ledger.summary().mechanisms]
    assert spent == [result.guarantee.budget]


def test_nothing_is_left_behind(
    client: Client,
    data_dir: Path,  # noqa: F811
) -> None:
    """The vendor drops records with the run and the job with the adapter; the customer closes its files."""

    def files(where: str) -> list[Path]:
        return [path for path in (data_dir / "tenants").rglob("*") if where in path.parts and path.is_file()]

    first = finetune(client)
    assert not files("record-sets")
    assert len(files("adapters"))
    if sys.platform == "linux":
        opened = len(list(Path("/proc/self/fd").iterdir()))
    second = finetune(client, eta=7.0)
    if sys.platform == "linux":
        assert len(list(Path("/proc/self/fd").iterdir())) <= opened
    for result in (first, second):
        client.delete_adapter(result.adapter_id)
    assert not files("adapters")
    assert not files("jobs")


def test_an_unfinished_run_can_be_given_up(
    client: Client,
    data_dir: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    with pytest.raises(Stopped):
        finetune(client, out=run, progress=Interrupts())
    charged = client.ledger.summary().mechanisms
    mine = (run / "notes.csv", run / "transcript" / "letter.txt", run / "model.safetensors", run / ".profile.json.bak")
    for file in mine:
        file.write_text("the customer's own")
    client.discard(run)
    assert sorted(file for file in run.rglob("*") if file.is_file()) == sorted(mine)
    for file in mine:
        file.unlink()
    (run / "transcript").rmdir()
    assert not [path for path in (data_dir / "tenants").rglob("*") if path.is_file()]
    assert client.ledger.summary().mechanisms == charged
    with pytest.raises(ConfigError, match="holds no run"):
        client.discard(run)
    with pytest.raises(Stopped):
        finetune(client, out=run, train_bottom="resample", progress=Interrupts())
    client.discard(run)
    assert not run.exists()
    result = finetune(client, out=run)
    with pytest.raises(ConfigError, match=f"adapter delete {result.adapter_id}"):
        client.discard(run)


def test_a_bottom_that_is_here_is_not_shown_as_fetched(client: Client) -> None:
    class Stages(Silent):
        def __init__(self) -> None:
            self.seen: list[str] = []

        def update(self, stage: str, done: int, total: int, note: str = "") -> None:
            if done == total:
                self.seen.append(stage)

    first, second = Stages(), Stages()
    for stages in (first, second):
        finetune(client, progress=stages)
    assert first.seen.count("fetch bottom") == 1
    assert "fetch bottom" not in second.seen


def test_a_text_that_stands_often_has_one_draw_an_epoch(client: Client) -> None:
    """Wherever it stands, in whatever batches: so the promise is for the text."""
    (often,) = corpus(1, seed=5).texts[0]
    few = corpus(20, seed=1)
    train = Dataset(((often,),) * 20 + few.texts, (few.labels or ()) * 2)
    result = finetune(client, train=train, dev=corpus(6, seed=7), train_bottom=TrainBottom.RESAMPLE)
    (charged,) = client.ledger.summary().mechanisms
    assert result.looks == 2
    assert result.guarantee.budget == charged.largest_spent == 6.0 * result.looks


def test_a_prediction_beyond_the_budget_is_refused_before_anything_leaves(client: Client) -> None:
    """Of two texts the second has no budget left; the first would have been released for nothing."""
    result = finetune(client, budget=6.0)
    known, new = TEST.texts[0], corpus(1, seed=91).texts[0]
    finetune(client, eta=3.0, train=Dataset((new, *TRAIN.texts), (LABELS[0], *(TRAIN.labels or ()))))
    before = list(client.ledger.releases())
    with pytest.raises(BudgetError, match=r"up to 3 spent and 6 due.* No text was sent"):
        client.predict(result.adapter_id, [*corpus(3, seed=92).texts, known, new])
    assert list(client.ledger.releases()) == before
    assert len(client.predict(result.adapter_id, [known, *corpus(3, seed=92).texts])) == 4


def test_another_tenants_key_deletes_nothing_here(
    data_dir: Path,  # noqa: F811
    api_key: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    """The vendor says 404 to it, as to one who has deleted before."""

    home, run = tmp_path / "home", tmp_path / "run"
    with customer(data_dir, api_key, home) as client:
        adapter = finetune(client).adapter_id
        with pytest.raises(Stopped):
            finetune(client, eta=5.0, out=run, progress=Interrupts())
    with customer(data_dir, vendor.keys.create(data_dir, "other"), home) as other:
        with pytest.raises(VendorError, match="no job of this run, or not for this key"):
            other.discard(run)
        with pytest.raises(VendorError, match=f"no adapter {adapter}, or not for this key"):
            other.delete_adapter(adapter)
    with customer(data_dir, api_key, home) as client:
        assert Profile.load(client.home, adapter)
        assert finetune(client, eta=5.0, out=run).adapter_id != adapter
        client.delete_adapter(adapter)
        assert not client.home.adapter(adapter).exists()


def test_a_run_whose_rows_changed_their_order_goes_on_and_says_so_and_with_other_labels_is_refused(
    client: Client, tmp_path: Path
) -> None:
    folder, labels = tmp_path / "run", TRAIN.labels or ()
    with pytest.raises(Stopped):
        finetune(client, out=folder, progress=Interrupts())
    left = len(list(client.ledger.frames()))
    turned = Dataset(TRAIN.texts, (*labels[:-1], LABELS[LABELS.index(labels[-1]) - 1]))
    with pytest.raises(ConfigError, match="holds a run over the same texts with other labels"):
        finetune(client, train=turned, out=folder)
    released = [entry for entry in client.ledger.frames() if entry.entry > left and entry.texts]
    assert not released
    result = finetune(client, train=Dataset(TRAIN.texts[::-1], labels[::-1]), out=folder)
    assert any("came in another order" in caveat for caveat in result.guarantee.caveats)
    straight = finetune(client, out=tmp_path / "straight")
    assert not any("came in another order" in caveat for caveat in straight.guarantee.caveats)
    assert result.adapter_sha256 == straight.adapter_sha256
    assert client.ledger.summary().mechanisms[0].largest_spent == 6.0, "nothing was drawn again"


def test_accounts_of_a_run_are_named_by_how_its_tokens_read(client: Client, tiny_model: Path) -> None:  # noqa: F811
    """Where a run took tokens for words, another case or blank of a text would have accounts of its own."""
    archive = local_archive(client.home, str(tiny_model), Cut(bottom=0))
    result = finetune(client)
    spec = Profile.load(client.home, result.adapter_id).spec
    known = run_privatizing(archive, client.home, spec).privatizer.space.spellings
    assert archive.spellings[31:33] == (b" w0", b" w1")
    assert [known[token] for token in range(len(archive.spellings))] == list(archive.spellings)


def test_a_discard_that_was_cut_short_is_finished_by_another(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    with pytest.raises(Stopped):
        finetune(client, out=run, progress=Interrupts())
    with monkeypatch.context() as patched:
        patched.setattr(Run, "remove", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            client.discard(run)
    client.discard(run)
    assert not run.exists()


def test_a_run_that_ends_meanwhile_is_not_given_up(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    result = finetune(client, out=run)
    finished = Run.unfinished
    answers = iter([Mock(), ConfigError("is finished")])

    def unfinished(folder: Path) -> Run:
        answer = next(answers)
        if isinstance(answer, Exception):
            return finished(folder)
        return answer

    # what the folder held before it was locked; the run ended in between
    monkeypatch.setattr(Run, "unfinished", unfinished)
    with pytest.raises(ConfigError, match="finished run"):
        client.discard(run)
    assert client.adapter(result.adapter_id)
    assert (run / "result.json").exists()


def test_other_weights_above_the_table_are_no_second_look(tiny_model: Path, tmp_path: Path) -> None:  # noqa: F811
    """A vendor who trains the blocks further hands out the same table: the same draws, under the same budget."""
    changed = tmp_path / "changed"
    model = load_model(str(tiny_model), head=Head.CLASSIFICATION)
    with torch.no_grad():
        next(block for name, block in model.named_parameters() if "layer.1." in name).add_(1e-3)
    model.save_pretrained(changed)
    load_tokenizer(str(tiny_model)).save_pretrained(changed)
    local = Client(home=tmp_path / "home", device="cpu")
    shown = [local.privatize(TRAIN, eta=4.0, model=str(source)) for source in (tiny_model, changed)]
    assert fingerprint(model) != fingerprint(load_model(str(tiny_model), head=Head.CLASSIFICATION))
    assert [text.released for text in shown[0]] == [text.released for text in shown[1]]
    assert shown[0].replaced > 0.2


# ---------------------------------------------------------------- a model that learnt nothing


def test_a_result_tells_how_often_one_label_would_be_right(client: Client) -> None:
    """The one that train has most, whatever the test texts have most."""
    texts = corpus(40, seed=5).texts
    train = Dataset(texts, tuple(LABELS[0] if number % 4 else LABELS[1] for number in range(40)))
    test = Dataset(TEST.texts, (LABELS[1],) * 7 + (LABELS[0],) * 3)
    result = finetune(client, train=train, test=test)
    assert result.majority_baseline == pytest.approx(0.3)
    assert finetune(client, train=train, test=test, out=result.folder) == result, "and where it is read from the folder"


def test_without_a_test_it_is_about_devs_true_labels(client: Client) -> None:
    dev = Dataset(TEST.texts, (LABELS[1],) * 7 + (LABELS[0],) * 3)
    train = Dataset(TRAIN.texts, tuple(LABELS[0] if number % 4 else LABELS[1] for number in range(40)))
    result = client.finetune(train, dev=dev, eta=6.0, training=TRAINING, seed=3, label_epsilon=0.01)
    assert result.ua_on == "dev"
    assert result.majority_baseline == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("right", "baseline", "is_told"), [(67, 0.67, True), (75, 0.67, True), (76, 0.67, False), (100, 1.0, True)]
)
def test_accuracy_is_held_against_always_one_label(right: int, baseline: float, is_told: bool) -> None:
    """Two standard errors of 76 of 100 are 8.5 points."""
    told = classifier_advice(Proportion.of(right, 100), baseline=baseline)
    assert len(told) == is_told
    assert all("--learning-rate" in line for line in told)


def test_a_label_column_that_looks_like_none_is_refused_before_anything_leaves(client: Client) -> None:
    texts = corpus(40, seed=1).texts
    named = Dataset(texts, tuple(f"name {number}" for number in range(40)))
    with pytest.raises(DataError, match="40 different values in 40 rows") as refused:
        client.finetune(named, eta=6.0, training=TRAINING, seed=3)
    assert "many_labels=True" in refused.value.remedy
    assert not list(client.ledger.frames())


def test_a_small_dev_is_warned_of_before_the_job_is_put(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def put(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cutlayer.customer.finetune.plan", put)
    with pytest.warns(CutlayerWarning, match="8 texts of dev will choose the epoch"), pytest.raises(KeyboardInterrupt):
        finetune(client)


def test_each_epoch_tells_its_loss(client: Client) -> None:
    result = finetune(client)
    assert len(result.train_loss) == len(result.dev) == result.epochs
    assert all(0 < loss < 10 for loss in result.train_loss)
