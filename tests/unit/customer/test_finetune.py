"""Runs against a vendor in this process: what is checked before anything leaves, and what is left behind."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from cutlayer.core import ConfigError, DataError, ModelError, Stopped, VendorError
from cutlayer.customer import Client, Silent, TrainBottom, trainer
from cutlayer.customer.prepare import Corpora
from cutlayer.customer.profile import Profile
from cutlayer.data import Dataset
from tests.promises.runs import TRAINING, corpus, customer, finetune
from tests.service.fixtures import (  # noqa: F401 - fixtures are used by name
    api_key,
    blank_vendor,
    change_settings,
    data_dir,
    tiny_model,
)


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
        assert "batches of 3 texts" in caught.value.remedy
        assert not list(client.ledger.releases())


@pytest.mark.parametrize("train_bottom", [TrainBottom.FROZEN, TrainBottom.REDRAW])
def test_without_noise_every_token_is_recovered(client: Client, train_bottom: TrainBottom) -> None:
    """Unknown words too: their row is no candidate of the noise, but here it leaves as it is."""
    texts = corpus(40, seed=1)
    unknown = Dataset(tuple((f"{text} nobody knows",) for (text,) in texts.texts), texts.labels)
    result = finetune(client, eta=math.inf, train=unknown, train_bottom=train_bottom)
    assert (result.ep, result.replaced) == (0, 0)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"budget": math.nan}, "budget = nan"),
        ({"budget": -1.0}, r"budget = -1\.0"),
        ({"budget": math.inf}, "budget = inf"),
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
        client.finetune(corpus(40, seed=1), **({"eta": 6.0, "training": TRAINING, "seed": 3} | settings))
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


def test_a_run_that_was_refused_at_once_does_not_take_its_folder(client: Client, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="99"):
        finetune(client, bottom=99, out=tmp_path / "run")
    assert finetune(client, out=tmp_path / "run").n_train


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
    _, dev = Corpora(numbered, None, None).split(dev_share=TRAINING.dev_share, seed=3)
    held_out = int(dev.texts[0][0])
    labels = tuple("rare-ward" if number == held_out else label for number, label in enumerate(texts.labels or ()))
    result = client.finetune(Dataset(texts.texts, labels), eta=6, training=TRAINING, seed=3)
    assert client.adapter(result.adapter_id).num_labels == 4


@pytest.mark.parametrize("train_bottom", [TrainBottom.REDRAW, TrainBottom.MEMOISED])
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
    assert spent == [12 if train_bottom is TrainBottom.REDRAW else 6]


@pytest.mark.parametrize(("train_bottom", "looks"), [(TrainBottom.FROZEN, 1), (TrainBottom.REDRAW, 2)])
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
    class Interrupts(Silent):
        def update(self, stage: str, done: int, total: int, note: str = "") -> None:
            if stage.startswith("epoch"):
                raise KeyboardInterrupt

    run = tmp_path / "run"
    with pytest.raises(Stopped):
        finetune(client, out=run, progress=Interrupts())
    charged = client.ledger.summary().mechanisms
    client.discard(run)
    assert not run.exists()
    assert not [path for path in (data_dir / "tenants").rglob("*") if path.is_file()]
    assert client.ledger.summary().mechanisms == charged
    with pytest.raises(ConfigError, match="holds no run"):
        client.discard(run)
    result = finetune(client, out=run)
    with pytest.raises(ConfigError, match=f"adapter delete {result.adapter_id}"):
        client.discard(run)
