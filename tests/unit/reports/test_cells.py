from __future__ import annotations

import json
import math
import os

import pytest
from pydantic import BaseModel, ConfigDict

from cutlayer.core import Spec, StorageError
from cutlayer.reports import CellStore, digest, write_json


class Cell(Spec):
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    task: str
    eta: float

    @property
    def name(self):
        return f"{self.task}-eta{self.eta:g}"


class Result(BaseModel):
    score: float


@pytest.fixture
def store(tmp_path):
    return CellStore(tmp_path / "cells", Result)


def test_what_was_put_is_got_and_nothing_else(store):
    cell = Cell(task="sst2", eta=math.inf)
    assert store.get(cell) is None
    store.put(cell, Result(score=0.25))
    assert store.get(cell) == Result(score=0.25)
    assert store.get(Cell(task="sst2", eta=80)) is None
    assert store.path(cell).name.startswith("sst2-etainf-")


def test_cells_of_one_name_are_told_apart_by_their_spec():
    assert digest(Cell(task="a", eta=80.0)) != digest(Cell(task="a", eta=80.000001))
    assert digest(Cell(task="a", eta=math.inf)) == digest(Cell(task="a", eta=math.inf))


def test_a_damaged_file_is_named(store):
    cell = Cell(task="sst2", eta=80)
    store.put(cell, Result(score=0.25))
    for content in ("", "{", "{}", '{"result": {"score": "x"}}'):
        store.path(cell).write_text(content)
        with pytest.raises(StorageError, match=store.path(cell).name):
            store.get(cell)


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "cell.json"
    write_json(path, {"score": 1})

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="No space left"):
        write_json(path, {"score": 2})
    assert json.loads(path.read_text()) == {"score": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["cell.json"]


def test_infinity_becomes_the_word_that_eta_takes(tmp_path):
    write_json(tmp_path / "x.json", {"eta": [math.inf, 1.5], "deep": {"nan": math.nan}})
    assert json.loads((tmp_path / "x.json").read_text()) == {"eta": ["inf", 1.5], "deep": {"nan": "nan"}}
