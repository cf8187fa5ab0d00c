"""Checkpoints: whole or absent, and the furthest readable one counts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cutlayer.core import StorageError
from cutlayer.vendor.checkpoints import Checkpoints, State


def state(value: float) -> State:
    return State({"adapter/x": torch.full((3,), value)}, {"threads": 2})


def test_the_furthest_readable_one_counts(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.newest() is None
    for step in (4, 8, 12):
        checkpoints.save(step, state(step))
    checkpoints.save(10, state(10), recent=True)
    assert checkpoints.steps() == [4, 8, 12]
    step, found = checkpoints.newest() or (0, state(0))
    assert step == 12
    assert found.tensors["adapter/x"].tolist() == [12.0] * 3
    assert found.notes == {"threads": 2, "step": 12}
    torn = tmp_path / "0000000012.safetensors"
    torn.write_bytes(torn.read_bytes()[:-4])
    assert (checkpoints.newest() or (0,))[0] == 10
    (tmp_path / "recent.safetensors").unlink()
    assert (checkpoints.newest() or (0,))[0] == 8
    with pytest.raises(StorageError, match="step 12"):
        checkpoints.load(12)


def test_old_ones_go_and_the_oldest_kept_is_told(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.keep_last(2) == 0
    for step in (4, 8, 12):
        checkpoints.save(step, state(step))
    assert checkpoints.keep_last(2) == 8
    assert checkpoints.steps() == [8, 12]


def test_forgetting_after_a_step_takes_the_recent_one_too(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for step in (4, 8):
        checkpoints.save(step, state(step))
    checkpoints.save(9, state(9), recent=True)
    checkpoints.forget_after(4)
    assert (checkpoints.newest() or (0,))[0] == 4


def test_what_is_forgotten_does_not_come_back_after_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(tmp_path)
    for step in (4, 8):
        checkpoints.save(step, state(step))
    synced: list[list[int]] = []
    monkeypatch.setattr("cutlayer.vendor.checkpoints.sync_folder", lambda _: synced.append(checkpoints.steps()))
    checkpoints.forget_after(4)
    assert synced == [[4]]
    Checkpoints(tmp_path / "none").forget_after(0)
