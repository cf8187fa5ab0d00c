"""UnSplit on what real split runs recorded: it reads an unprotected first step, and nothing where nothing is."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from cutlayer.attacks import Inapplicable, Knowledge, TokenTruth, Transcript, UnSplit, UnSplitSpec, View
from cutlayer.core import Place
from cutlayer.customer import LanguageResult, Training
from cutlayer.customer.corpora import Corpora, split_rows
from cutlayer.customer.derived import run_order
from cutlayer.customer.prepare import prepare
from cutlayer.customer.trainer import training_order
from cutlayer.data import Dataset
from tests.promises.accounts import archive_of
from tests.promises.runs import SEED, corpus, customer
from tests.settings import specs

TRAIN = Dataset(corpus(24, seed=1).texts)
SPEC = UnSplitSpec(outer_iterations=3, inner_inputs=120, inner_weights=20)


@pytest.fixture
def data_dir(decoder_dir: Path) -> Path:
    return decoder_dir


def attacked(data_dir: Path, api_key: str, tmp_path: Path, *, attack: UnSplit, **settings: Any) -> float:
    """Share of the first step's tokens that are recovered."""
    with customer(data_dir, api_key, tmp_path / "home") as client:
        result: LanguageResult = client.finetune(
            TRAIN,
            objective="lm",
            seed=SEED,
            training=Training(epochs=1, max_length=16, dropout=False, dev_share=0.2),
            **specs({"eta": math.inf, "bottom": 1, "tail": 0, **settings}),
        )
        archive = archive_of(client)
        rows = split_rows(Corpora(TRAIN, None, None), result.spec, secret := client.home.secret)
        data = prepare(rows, result.spec, archive, client.home, vocab_size=300)
    batch = training_order(
        result.spec, run_order(result.spec.seed, result.spec.privacy, secret), data.train.lengths, 0
    )[0]
    transcript = Transcript.recorded(result.folder / "transcript")
    job = next(step.source for step in transcript.steps()).removeprefix("job/")
    truth = TokenTruth(data.tokens, steps={(job, 1): batch})
    knowledge = Knowledge(
        cut=result.spec.cut, table=archive.table, template=archive.template, bottom=archive.bottom, tail=archive.tail
    )
    return truth.score(attack(View(transcript, knowledge))).success.value


def test_it_reads_the_first_step_of_an_unprotected_run(data_dir: Path, api_key: str, tmp_path: Path) -> None:
    assert attacked(data_dir, api_key, tmp_path, attack=UnSplit(SPEC, seed=1, steps={1})) > 0.9


def test_it_reads_little_where_other_tokens_left(data_dir: Path, api_key: str, tmp_path: Path) -> None:
    found = attacked(data_dir, api_key, tmp_path, attack=UnSplit(SPEC, seed=1, steps={1}), eta=2.0)
    assert found < 0.1


def test_rows_that_were_stored_are_of_no_step(data_dir: Path, api_key: str, tmp_path: Path) -> None:
    """Rows with noise are released once, before any step."""
    with pytest.raises(Exception, match="none of the texts"):
        attacked(
            data_dir, api_key, tmp_path, attack=UnSplit(SPEC, seed=1, steps={1}), eta=2.0, mechanism="vector",
            place=Place.ACTIVATIONS,
        )  # fmt: skip


def test_ids_and_a_bottom_that_was_not_granted_are_no_case_for_it(data_dir: Path, api_key: str, tmp_path: Path) -> None:
    with pytest.raises(Inapplicable, match="Token ids were released"):
        attacked(data_dir, api_key, tmp_path, attack=UnSplit(SPEC, seed=1), bottom=0)
    empty = Transcript(list)
    with pytest.raises(Inapplicable, match="not granted the bottom"):
        next(UnSplit(SPEC, seed=1)(View(empty, Knowledge(cut=torch.empty(0)))))  # type: ignore[arg-type]
