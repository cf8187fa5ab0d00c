"""UnSplit on the embedded decoder: a real model's boundary, recorded from a real split run, is read."""

from __future__ import annotations

import gzip
import json

import pytest

from cutlayer.attacks import Traffic, UnSplitSpec
from cutlayer.data import read_dataset, sample_path
from cutlayer.models import STARTER_DECODER
from cutlayer.recipes.boundary_attacks import UnsplitCell
from cutlayer.recipes.recordings import SplitRun
from cutlayer.recipes.tasks import TextFile
from tests.recipes.unsplit.worlds import open_lab, trained

ROWS_ALONE = UnSplitSpec(outer_iterations=1, inner_weights=0, learning_rate_inputs=0.01)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    folder = tmp_path_factory.mktemp("starter")
    (folder / "data" / "sample").mkdir(parents=True)
    texts = read_dataset(sample_path("train"), text_column="text").texts
    lines = "".join(json.dumps({"text": text}) + "\n" for (text,) in texts)
    (folder / "data" / "sample" / "train.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    with open_lab(STARTER_DECODER, folder / "data", folder / "out") as made:
        yield made


def share(lab, spec, traffic=Traffic.UNPROTECTED):
    """Of 4 texts of 64 tokens, dropout on, all weights trained, at the first iteration."""
    run = SplitRun(
        model=lab.model(head=None).fingerprint,
        corpus=TextFile(name="sample", part="train"),
        bottom=1,
        **trained(max_length=64, batch_size=4, dropout=True, group_by_length=False),
        iterations=1,
        kept=(1,),
        seed=0,
    )
    cell = UnsplitCell(split=run, iteration=1, spec=spec, traffic=traffic, seed=0)
    reading = lab.result(cell).reading
    assert sum(reading.counted) == 256
    return sum(reading.right) / 256


@pytest.mark.slow
def test_x_alone_reads_the_first_iteration_and_neither_control(lab):
    assert share(lab, ROWS_ALONE) >= 0.6
    assert share(lab, ROWS_ALONE, Traffic.NOISE) <= 0.05
    assert share(lab, ROWS_ALONE, Traffic.SHUFFLED) <= 0.1


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_algorithm_1_with_the_papers_settings_reads_the_first_iteration(lab):
    assert share(lab, UnSplitSpec()) >= 0.6
