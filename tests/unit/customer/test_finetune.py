"""Runs against a vendor in this process: its limits are kept to, and what left in clear is found again."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from cutlayer.core import ConfigError
from cutlayer.customer import TrainBottom
from cutlayer.data import Dataset
from tests.promises.runs import corpus, customer, finetune
from tests.service.fixtures import (  # noqa: F401 - fixtures are used by name
    api_key,
    blank_vendor,
    change_settings,
    data_dir,
    tiny_model,
)


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
def test_without_noise_every_token_is_recovered(
    train_bottom: TrainBottom,
    data_dir: Path,  # noqa: F811
    api_key: str,  # noqa: F811
    tmp_path: Path,
) -> None:
    """Unknown words too: their row is no candidate of the noise, but here it leaves as it is."""
    texts = corpus(40, seed=1)
    unknown = Dataset(tuple((f"{text} nobody knows",) for (text,) in texts.texts), texts.labels)
    with customer(data_dir, api_key, tmp_path / "home") as client:
        result = finetune(client, eta=math.inf, train=unknown, train_bottom=train_bottom)
        assert (result.ep, result.replaced) == (0, 0)
