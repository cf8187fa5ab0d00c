"""A job's state on disk: adapter, optimiser and step as one safetensors file each, whole or absent."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from safetensors import safe_open
from torch import Tensor

from cutlayer.core import StorageError
from cutlayer.core.files import sync_folder, write_whole

_SUFFIX = ".safetensors"
_RECENT = "recent"


@dataclass(frozen=True)
class State:
    """A job after some number of gradients.

    Attributes:
        tensors: Adapter and optimiser, by name.
        notes: What else belongs to the state, JSON.
    """

    tensors: dict[str, Tensor]
    notes: dict[str, Any] = field(default_factory=dict)


class Checkpoints:
    """The checkpoints of one job, by step.

    Besides those that are kept to roll back to there is at most one *recent* one, made out of turn
    (before a job leaves memory, or to shorten its log).

    Args:
        folder: Their own folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def steps(self) -> list[int]:
        """Steps with a checkpoint to roll back to, ascending."""
        return sorted(int(path.stem) for path in self._folder.glob(f"[0-9]*{_SUFFIX}"))

    def save(self, step: int, state: State, *, recent: bool = False) -> None:
        """Writes a checkpoint; it is on disk on return."""
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.tensors.items()}
        notes = {"cutlayer": json.dumps(state.notes | {"step": step})}
        write_whole(self._path(_RECENT if recent else f"{step:010d}"), safetensors.torch.save(tensors, notes))

    def newest(self) -> tuple[int, State] | None:
        """The furthest checkpoint that can be read, with its step."""
        names = [f"{step:010d}" for step in reversed(self.steps())]
        regular = next((state for name in names if (state := self._read(name)) is not None), None)
        found = [(state.notes["step"], state) for state in (self._read(_RECENT), regular) if state is not None]
        return max(found, key=lambda pair: pair[0], default=None)

    def reached(self) -> tuple[int, bool] | None:
        """What `newest` holds of where the job stands, without the rest of it.

        Returns:
            How many steps' gradients were taken and whether an update waits: (0, False) without checkpoints; `None`
            where one cannot be read.
        """
        names = [f"{step:010d}" for step in self.steps()[-1:]]
        names += [_RECENT] * self._path(_RECENT).exists()
        reached = (0, False)
        for name in names:
            try:
                with safe_open(self._path(name), framework="np") as file:
                    taken, waits = file.get_tensor("taken").tolist()
            except (OSError, safetensors.SafetensorError, ValueError):
                return None
            reached = max(reached, (taken, bool(waits)), key=lambda pair: pair[0])
        return reached

    def load(self, step: int) -> State:
        """One checkpoint.

        Raises:
            StorageError: It cannot be read.
        """
        state = self._read(f"{step:010d}")
        if state is None:
            raise StorageError(f"The checkpoint of step {step} in {self._folder} cannot be read.")
        return state

    def keep_last(self, count: int) -> int:
        """Removes all but the last `count`; returns the oldest kept step, 0 if there is none."""
        steps = self.steps()
        for step in steps[:-count]:
            self._path(f"{step:010d}").unlink()
        return steps[-count:][0] if steps else 0

    def forget_after(self, step: int) -> None:
        """Removes those beyond a step, furthest first; they do not come back after a power cut."""
        self._path(_RECENT).unlink(missing_ok=True)
        for other in reversed(self.steps()):
            if other > step:
                self._path(f"{other:010d}").unlink()
        if self._folder.exists():
            sync_folder(self._folder)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}{_SUFFIX}"

    def _read(self, name: str) -> State | None:
        try:
            with safe_open(self._path(name), framework="pt") as file:
                # Cloned: a view would keep the file mapped.
                tensors = {key: file.get_tensor(key).clone() for key in file.keys()}  # noqa: SIM118 - not a mapping
                return State(tensors, json.loads((file.metadata() or {})["cutlayer"]))
        except (OSError, safetensors.SafetensorError, KeyError, ValueError):
            return None
