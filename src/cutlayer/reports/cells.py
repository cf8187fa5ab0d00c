"""A run of many parts that can be stopped: each part's result is a file of its own, written whole."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from cutlayer.core import Spec, StorageError
from cutlayer.core.files import write_whole

C = TypeVar("C", bound=Spec)
R = TypeVar("R", bound=BaseModel)


class CellStore(Generic[C, R]):
    """Finished cells of an experiment, by what they are.

    A cell is known by its whole spec, not by its name: results of other settings are never taken
    for those of these.

    Args:
        folder: Where the files lie; made on first use.
        kind: The class of the results.
    """

    def __init__(self, folder: Path, kind: type[R]) -> None:
        self.folder = folder
        self._kind = kind

    def path(self, cell: C) -> Path:
        """The cell's file: named for readers, and by the digest of its spec."""
        name = getattr(cell, "name", "") or type(cell).__name__.lower()
        return self.folder / f"{name}-{digest(cell)}.json"

    def get(self, cell: C) -> R | None:
        """The result of a cell that was finished, or `None`.

        Raises:
            StorageError: The file is damaged.
        """
        path = self.path(cell)
        if not path.exists():
            return None
        try:
            return self._kind.model_validate(json.loads(path.read_bytes())["result"])
        except (OSError, ValueError, KeyError) as error:
            raise StorageError(f"{path} cannot be read.", remedy="Remove it: its cell will be run again.") from error

    def put(self, cell: C, result: R) -> None:
        """Writes a finished cell, all of it or nothing."""
        content = {"cell": json.loads(cell.model_dump_json()), "result": json.loads(result.model_dump_json())}
        write_json(self.path(cell), content)


def digest(spec: Spec) -> str:
    """Twelve hex digits that change with any field of a spec."""
    canonical = json.dumps(json.loads(spec.model_dump_json()), sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Replaces a JSON file whole: after a crash it holds the old content or the new.

    JSON has no infinity: it is written as the word that `--eta` takes.

    Raises:
        StorageError: It cannot be written; an old file is untouched.
    """
    text = json.dumps(_plain(content), indent=1, allow_nan=False) + "\n"
    try:
        write_whole(path, text.encode(), mode=None)
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written: {error.strerror}.", remedy="Free some space or choose another folder."
        ) from error


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
