"""What a run was about follows from its folder and the data alone: attacks then read what the run's result says."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from cutlayer.attacks import ATTACKS, Measured, measure
from cutlayer.core import ConfigError, Cut, DataError, Place
from cutlayer.customer import Client, TrainBottom
from cutlayer.customer.attacker import AttackerSpec
from cutlayer.customer.corpora import Corpora
from cutlayer.customer.evidence import Evidence
from cutlayer.customer.handout import local_archive
from cutlayer.data import Dataset
from tests.promises.runs import TEST, TRAIN, customer, finetune
from tests.service.fixtures import (  # noqa: F401 - fixtures are used by name
    api_key,
    blank_vendor,
    data_dir,
    tiny_model,
)

TWICE = Dataset(TRAIN.texts + TRAIN.texts[:9], (TRAIN.labels or ()) + tuple(reversed((TRAIN.labels or ())[:9])))
"""Texts of which some stand twice, with other labels."""


@pytest.fixture
def client(data_dir: Path, api_key: str, tmp_path: Path) -> Iterator[Client]:  # noqa: F811
    with customer(data_dir, api_key, tmp_path / "home") as opened:
        yield opened


def evidence_of(client: Client, folder: Path, model: Path, train: Dataset, *, known: float = 0) -> Evidence:
    bottom = Evidence.settings(folder).cut.bottom
    archive = local_archive(client.home, str(model), Cut(bottom=bottom))
    attacker = AttackerSpec(auxiliary_fraction=known)
    return Evidence.of(folder, Corpora(train, None, TEST), archive, home=client.home, attacker=attacker)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"eta": math.inf},
        {"cti": True},
        {"cti_class_free": True},
        {"mechanism": "vector", "eta": 60.0},
        {"train_bottom": TrainBottom.RESAMPLE},
    ],
    ids=str,
)
def test_attacks_read_what_the_result_says(
    client: Client,
    tiny_model: Path,  # noqa: F811
    settings: dict[str, object],
) -> None:
    result = finetune(client, train=TWICE, **settings)  # type: ignore[arg-type]
    found = evidence_of(client, result.folder, tiny_model, TWICE)
    words = measure("nearest-neighbour", found.transcript, knowledge=found.knowledge, truth=found.tokens)
    assert isinstance(words, Measured)
    assert (words.privacy.value, words.success.n) == (pytest.approx(result.ep), result.ep_n)
    assert words.looks == (2 if "train_bottom" in settings else 1)
    assert (found.knowledge.links is not None) == ("train_bottom" in settings)
    assert found.labels is not None
    labels = measure("output-gradient", found.transcript, knowledge=found.knowledge, truth=found.labels)
    assert isinstance(labels, Measured)
    assert labels.success.value == result.label_recovery == 1
    assert found.result == result
    assert [TWICE.texts[row] for row in found.rows] == list(found.texts.texts)
    assert found.listed is not None
    assert (tuple(found.listed.rows.tolist()), found.listed.listed) == (found.rows, len(TWICE))


def test_drawn_labels_are_said_to_be(client: Client, tiny_model: Path) -> None:  # noqa: F811
    """An attacker is told how they were drawn, and a score says what reports alone would tell."""
    result = finetune(client, label_epsilon=1.0)
    found = evidence_of(client, result.folder, tiny_model, TRAIN)
    assert found.labels is not None
    assert found.labels.granted(found.transcript, found.knowledge).label_epsilon == 1.0
    asked = {name: dict(found.truths(ATTACKS[name])) for name in ("record-order", "reports-and-text")}
    assert all(truths == {"": found.labels} for truths in asked.values())
    outcome = measure("record-order", found.transcript, knowledge=found.knowledge, truth=found.labels)
    assert isinstance(outcome, Measured)
    assert [each.value for each in outcome.further] == [pytest.approx(result.label_keep)]


@pytest.mark.parametrize(("settings", "columns"), [({"cti": True}, 3), ({"cti_class_free": True}, 1)], ids=str)
def test_etas_of_tokens_are_estimated_from_the_records_that_the_attacker_knows(
    client: Client,
    tiny_model: Path,  # noqa: F811
    settings: dict[str, bool],
    columns: int,
) -> None:
    """Whatever the customer computed stays with it: who knows more records comes closer, who knows none has none."""
    result = finetune(client, **settings)  # type: ignore[arg-type]
    noises = [
        evidence_of(client, result.folder, tiny_model, TRAIN, known=known).knowledge.noise for known in (0.6, 0.9)
    ]
    few, many = (noise.etas for noise in noises if noise is not None)
    assert few is not None
    assert many is not None
    assert few.shape == many.shape == (len(few), columns)
    assert not few.equal(many)
    blind = evidence_of(client, result.folder, tiny_model, TRAIN).knowledge.noise
    assert blind is not None
    assert blind.etas is None


def test_rows_behind_blocks_belong_to_their_texts(
    client: Client,
    tiny_model: Path,  # noqa: F811
) -> None:
    result = finetune(client, train=TWICE, bottom=1, mechanism="vector", place=Place.ACTIVATIONS, eta=1e4)
    found = evidence_of(client, result.folder, tiny_model, TWICE)
    lengths = [release.payload.segment_lengths.sum() for release in found.transcript.releases()]
    assert lengths
    assert found.tokens.records
    assert found.knowledge.cut == Cut(bottom=1)
    assert found.knowledge.noise is not None
    assert found.knowledge.noise.privacy == result.spec.privacy


def test_other_data_is_refused(
    client: Client,
    tiny_model: Path,  # noqa: F811
) -> None:
    folder = finetune(client).folder
    for other in (TWICE, Dataset(TRAIN.texts, tuple(reversed(TRAIN.labels or ())))):
        with pytest.raises(DataError, match="over other data"):
            evidence_of(client, folder, tiny_model, other)


def test_a_folder_without_a_finished_run_is_refused(
    client: Client,
    tiny_model: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError, match="holds no finished run"):
        Evidence.settings(tmp_path)


def test_the_evidence_is_not_what_an_attack_gets(
    client: Client,
    tiny_model: Path,  # noqa: F811
) -> None:
    found = evidence_of(client, finetune(client).folder, tiny_model, TRAIN)
    granted = {field.name for field in dataclasses.fields(found.knowledge)}
    assert not granted & {"tokens", "labels", "texts", "secret"}
