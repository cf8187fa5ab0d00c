"""What a run must remember to be resumed: little, because the vendor keeps the steps.

Where the customer trains nothing itself, its state is the epoch and the best dev value so far. Where it
trains a bottom or a tail, it also keeps the last checkpoints of what it trains, at the steps at which the
vendor keeps its own.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from filelock import FileLock, Timeout
from pydantic import BaseModel, Field, ValidationError
from torch import Tensor

from cutlayer.core import ConfigError, StorageError
from cutlayer.core.files import TEMPORARY
from cutlayer.customer.home import read_json, write_bytes, write_json
from cutlayer.customer.results import RESULTS, RunResult
from cutlayer.customer.settings import BUDGETS, RunSpec
from cutlayer.wire.recording import BODY_FILE, INDEX_FILE

KEPT_CHECKPOINTS = 2
_LABELS = ("label_words",)
"""Settings that hold labels, which no message tells."""
VERSION = 2
"""Of what a run's order and draws follow from."""
OPTIMISER = "optimiser/"
"""Prefix of the optimiser's tensors in a checkpoint; the others are the trained weights."""
_HALF_WRITTEN = tuple(f"{TEMPORARY}{name}.*" for name in ("trained-[0-9]*.safetensors", "result.json", "run.json"))
"""What a process leaves that is killed while it writes. The run's own alone: others may work in folders below."""
_OWN_FILES = (
    *(f"transcript/{name}" for name in (INDEX_FILE, BODY_FILE)),
    *("trained-[0-9]*.safetensors", "losses.jsonl", "result.json"),
    *_HALF_WRITTEN,
    # by it the run is found, hence behind the others
    *("run.json", ".lock"),
)


@dataclass(frozen=True)
class DataDigests:
    """What a run knows its data by.

    Attributes:
        rows: Texts and labels in the order of the files.
        content: Texts and labels in any order: draws and order of a run follow from these.
        texts: Texts alone, in any order.
    """

    rows: str
    content: str
    texts: str


class RunState(BaseModel):
    """Where a run stands; written whole after each change that matters.

    Attributes:
        run: The run's random name, from which the identifiers of its job and sets derive.
        version: What a run's order and draws follow from; 1 released texts in the order of their file.
        data_digest: Digest of the texts and labels, keyed with the customer's secret.
        content_digest: The same in no order.
        texts_digest: Of the texts alone, in no order.
        spec: What the run is.
        vocabulary: Of the file of the customer's from which words are drawn: what it held when the run began.
        threads: Of matrix products when it began: a trained bottom gives other last bits with others.
        asked: Whether the vendor may know of the job; before that the folder is free for another run.
        accepted: Whether the vendor has taken the job; before that no text leaves.
        given_up: Whether the vendor was asked to delete the job.
        untrained: A language model's dev perplexity before the first step.
        dev: Dev accuracy or perplexity after each epoch that was trained and evaluated.
        seconds: Time spent so far.
        adapter: The published adapter, once there is one.
        undeleted: Record sets of a finished run that the vendor was not yet heard to delete.
    """

    run: str
    version: int = 1
    data_digest: str
    content_digest: str = ""
    texts_digest: str = ""
    spec: RunSpec
    vocabulary: str | None = None
    threads: int = Field(default_factory=torch.get_num_threads)
    asked: bool = False
    accepted: bool = False
    given_up: bool = False
    untrained: float | None = None
    dev: list[float] = []
    seconds: float = 0
    adapter: str | None = None
    undeleted: list[str] = []

    @property
    def best_epoch(self) -> int:
        """The epoch with the best dev value, the first of equals; 0 before the first."""
        return 1 + self.dev.index(self.spec.objective.best(self.dev)) if self.dev else 0


def _own_files(folder: Path) -> Iterator[Path]:
    """What a run writes, as far as it is there."""
    for pattern in _OWN_FILES:
        yield from folder.glob(pattern)


def _read_state(file: Path) -> RunState:
    try:
        return RunState.model_validate(read_json(file))
    except (ValidationError, ConfigError):
        # its values have no place in a message or a traceback
        raise StorageError(
            f"{file} does not hold the state of a run.", remedy="Choose another folder with --out."
        ) from None


def check_version(state: RunState, folder: Path) -> None:
    """Refuses to go on with, or to measure, what an earlier version began: its order and draws were others.

    Raises:
        ConfigError: It did.
    """
    if state.version == VERSION:
        return
    remedy = (
        "Give it up with `cutlayer discard`, and begin again: its texts are drawn, and charged, once more."
        if state.adapter is None
        else f"Its adapter {state.adapter} and result.json can still be used, and the version that made it can audit "
        "it. Begin anew in another folder."
    )
    raise ConfigError(
        f"{folder} holds a run of an earlier version of cutlayer, which released texts in the order of their file.",
        remedy=remedy,
    )


def _shown(value: object) -> str:
    return "nothing" if value is None else json.dumps(value)


def _by_path(settings: Mapping[str, Any], within: str = "") -> dict[str, Any]:
    """Settings by their paths, such as `training.epochs`."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= _by_path(value, f"{within}{name}.") if isinstance(value, Mapping) else {f"{within}{name}": value}
    return found


class Run:
    """A run's folder.

    Args:
        folder: The folder; made if it is not there.
        state: The state that stands in it.
        reordered: Whether the rows came in another order this time.
    """

    def __init__(self, folder: Path, state: RunState, *, reordered: bool = False) -> None:
        self.folder = folder
        self.state = state
        self.reordered = reordered

    @staticmethod
    @contextmanager
    def held(folder: Path) -> Iterator[None]:
        """Keeps other processes off a run's folder: two would write one transcript.

        Raises:
            ConfigError: Another one holds it.
            StorageError: It cannot be made or written to.
        """
        lock = FileLock(folder / ".lock", timeout=0, mode=0o600)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except Timeout as error:
            raise ConfigError(
                f"Another process works on the run in {folder}.",
                remedy="Wait until it ends, or choose another folder with --out.",
            ) from error
        except OSError as error:
            raise StorageError(
                f"{folder} cannot hold a run: {error.strerror}.", remedy="Choose another folder with --out."
            ) from error
        try:
            for pattern in _HALF_WRITTEN:
                for path in folder.glob(pattern):
                    path.unlink(missing_ok=True)
            yield
        finally:
            lock.release()

    @classmethod
    def open(cls, folder: Path, *, run: str, data: DataDigests, spec: RunSpec) -> Run:
        """The run in a folder, finished or not, or a new one, which its first `save` puts there.

        Raises:
            ConfigError: The folder holds a run of other settings or other data, or files that a run would replace.
        """
        file = folder / "run.json"
        if file.exists() and not (state := _read_state(file)).asked:
            cls(folder, state).forget()
        if not file.exists():
            taken = sorted(str(each.relative_to(folder)) for each in _own_files(folder) if each.name != ".lock")
            if taken:
                raise ConfigError(
                    f"{folder} holds no run, but files that one would replace: {', '.join(taken)}.",
                    remedy="Choose another folder with --out.",
                )
            state = RunState(
                run=run,
                version=VERSION,
                data_digest=data.rows,
                content_digest=data.content,
                texts_digest=data.texts,
                spec=spec,
                vocabulary=spec.privacy.vocabulary_digest,
            )
            return cls(folder, state)
        state = _read_state(file)
        check_version(state, folder)
        if state.content_digest != data.content:
            what = "the same texts with other labels" if state.texts_digest == data.texts else "other data"
            raise ConfigError(f"{folder} holds a run over {what}.", remedy="Choose another folder with --out.")
        # a budget says how far a run may go, not which run it is: it may be raised
        before, now = (_by_path(each.model_dump(mode="json", exclude=set(BUDGETS))) for each in (state.spec, spec))
        differing = sorted(key for key in before | now if now.get(key) != before.get(key))
        if differing:
            # what was left open came out otherwise then, where an earlier version had another default
            told = (
                key if key in _LABELS else f"{key} (there {_shown(before.get(key))}, here {_shown(now.get(key))})"
                for key in differing
            )  # fmt: skip
            raise ConfigError(
                f"{folder} holds a run with other settings: {', '.join(told)}.",
                remedy="Give these settings as they are there, and it goes on; or choose another folder with --out.",
            )
        if state.vocabulary not in (None, spec.privacy.vocabulary_digest):
            raise ConfigError(
                f"{folder} holds a run that draws among other words than the vocabulary holds now.",
                remedy="Restore the file, and it goes on; or choose another folder with --out.",
            )
        state.spec = spec
        return cls(folder, state, reordered=state.data_digest != data.rows)

    @classmethod
    def unfinished(cls, folder: Path) -> Run:
        """The run in a folder, to be given up.

        Raises:
            ConfigError: There is none, or it published its adapter.
        """
        file = folder / "run.json"
        if not file.exists():
            raise ConfigError(f"{folder} holds no run.", remedy="Name the folder that --out named.")
        state = _read_state(file)
        if state.adapter is not None:
            raise ConfigError(
                f"{folder} holds a finished run.",
                remedy=f"Delete its adapter: cutlayer adapter delete {state.adapter}.",
            )
        return cls(folder, state)

    @classmethod
    def read(cls, folder: Path) -> Run:
        """The run in a folder, to be looked at.

        Raises:
            StorageError: Its state is damaged.
        """
        return cls(folder, _read_state(folder / "run.json"))

    @property
    def transcript(self) -> Path:
        """Where the run's messages are recorded."""
        return self.folder / "transcript"

    @staticmethod
    def seed_in(folder: Path) -> int | None:
        """The seed of the run in a folder, or `None` where there is no run."""
        file = folder / "run.json"
        return _read_state(file).spec.seed if file.exists() else None

    @staticmethod
    def is_finished(folder: Path) -> bool:
        """Whether the folder holds a run that published its adapter."""
        file = folder / "run.json"
        return file.exists() and _read_state(file).adapter is not None

    def forget(self) -> None:
        """Takes the run out of its folder, which stays: no text of it left this machine."""
        for file in _own_files(self.folder):
            if file.name != ".lock":
                file.unlink(missing_ok=True)

    def remove(self) -> None:
        """Removes what the run wrote, and its folder if nothing else is in it: `--out` may have named any folder.

        Raises:
            StorageError: A file could not be removed; the same call goes on.
        """
        try:
            for file in _own_files(self.folder):
                file.unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(
                f"The run in {self.folder} could not be removed: {error.strerror}.",
                remedy="Make the folder writable and run the same command again.",
            ) from error
        for folder in (self.transcript, self.folder):
            with suppress(OSError):  # not there, or not empty
                folder.rmdir()

    def finish(self, result: RunResult) -> None:
        """Keeps what the run found. From then on it is finished."""
        write_json(self._result, result.model_dump() | {"folder": str(self.folder)})
        self.state.adapter = result.adapter_id

    def result(self) -> RunResult:
        """What a finished run found.

        Raises:
            StorageError: It is damaged.
        """
        try:
            kind = RESULTS[self.state.spec.objective]
            return kind.model_validate(read_json(self._result) | {"folder": self.folder})
        except (ValidationError, ConfigError, TypeError):
            raise StorageError(
                f"{self._result} does not hold the result of a run.",
                remedy=f"Use its adapter, {self.state.adapter}, or choose another folder with --out.",
            ) from None

    @property
    def _result(self) -> Path:
        return self.folder / "result.json"

    def save(self) -> None:
        """Writes the state whole."""
        write_json(self.folder / "run.json", json.loads(self.state.model_dump_json()))

    def log_loss(self, step: int, loss: float, *, reconstruction: float | None = None) -> None:
        """Appends a step's training loss, and that of the vendor's own task."""
        entry = {"step": step, "loss": loss} | (
            {} if reconstruction is None else {"reconstruction_loss": reconstruction}
        )
        try:
            # losses are made of labels: nobody else reads them
            with open(self.folder / "losses.jsonl", "ab+", opener=partial(os.open, mode=0o600)) as file:
                if file.tell():
                    file.seek(-1, os.SEEK_END)
                    torn = file.read(1) != b"\n"  # by a crash: this step gets a line of its own
                    file.write(b"\n" * torn)
                file.write(json.dumps(entry).encode() + b"\n")
        except OSError as error:
            raise StorageError(
                f"The losses in {self.folder} cannot be written: {error.strerror}.",
                remedy="Free some space and run the same command again: it goes on where it stopped.",
            ) from error

    def log_epochs(self, losses: Sequence[float], reconstruction: Sequence[float]) -> None:
        """Notes the mean losses of epochs whose steps the vendor took alone, as if each were one step's."""
        for epoch, loss in enumerate(losses):
            own = reconstruction[epoch] if epoch < len(reconstruction) else None
            self.log_loss(epoch + 1, loss, reconstruction=own)

    def losses(self, kind: str = "loss") -> list[float]:
        """The training losses by step, or those of another kind that were logged; a repeated step counts once."""
        file = self.folder / "losses.jsonl"
        if not file.exists():
            return []
        entries = {}
        for line in file.read_text().splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # the line that a crash tore
            if kind in entry:
                entries[entry["step"]] = entry[kind]
        return [entries[step] for step in sorted(entries)]

    def identifier(self, purpose: str) -> str:
        """The identifier of one of the run's things at the vendor: the same at every try."""
        return hashlib.blake2b(f"{self.state.run}/{purpose}".encode(), digest_size=16).hexdigest()

    # ------------------------------------------------------------ the customer's own trained tensors

    def checkpoints(self) -> list[int]:
        """Steps whose weights are kept, ascending; 0 is what was handed out."""
        found = [int(file.stem.split("-")[1]) for file in self.folder.glob("trained-*.safetensors")]
        return sorted({0, *found})

    def write_checkpoint(self, step: int, tensors: dict[str, Tensor], *, keep: int) -> None:
        """Writes the weights after `step`; of the others only `keep` and the newest that both parties have stay.

        The vendor can go back to steps at regular distances alone: those of an epoch's end must not displace them.
        """
        write_bytes(self._checkpoint(step), safetensors.torch.save(tensors))
        every = self.state.spec.training.checkpoint_steps
        regular = [at for at in self.checkpoints() if at % every == 0]
        for old in self.checkpoints():
            if old and old not in (*regular[-KEPT_CHECKPOINTS:], keep, step):
                self._checkpoint(old).unlink()

    def read_checkpoint(self, step: int) -> dict[str, Tensor]:
        """The weights after `step`."""
        try:
            return safetensors.torch.load(self._checkpoint(step).read_bytes())
        except (OSError, safetensors.SafetensorError) as error:
            raise StorageError(
                f"The checkpoint of step {step} cannot be read.", remedy="Start the run again in another folder."
            ) from error

    def read_trained(self, step: int) -> dict[str, Tensor]:
        """The weights after `step`, without what the optimiser knew of them."""
        return {name: kept for name, kept in self.read_checkpoint(step).items() if not name.startswith(OPTIMISER)}

    def _checkpoint(self, step: int) -> Path:
        return self.folder / f"trained-{step}.safetensors"
