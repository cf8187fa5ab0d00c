"""What experiments of cells have in common: each cell is finished once and kept, and a stop loses none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from pydantic import BaseModel, ConfigDict

from cutlayer.core import Spec, Stopped
from cutlayer.customer import Progress
from cutlayer.reports import Calibrated, CellStore

C = TypeVar("C", bound=Spec)
R = TypeVar("R", bound=BaseModel)


class Calibration(BaseModel):
    """A finished calibration: one eta for each share."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    points: tuple[Calibrated, ...]


class Stoppable:
    """An experiment of cells that can be stopped and gone on with: a context manager.

    Attributes:
        folder: Everything is kept here; the same folder goes on with an unfinished experiment.
    """

    folder: Path

    def stop(self) -> None:
        """Ends what the experiment started: a vendor. By default there is none."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends what was started.

        Raises:
            Stopped: The user interrupted; what is finished is kept, and a cell that was begun goes on.
        """
        self.stop()
        if isinstance(error, KeyboardInterrupt | Stopped):  # or a run within was, and names its own folder
            raise Stopped(
                f"Stopped. Finished cells are in {self.folder}.", remedy="Run the same command again to go on."
            ) from error


def finish(
    cells: Sequence[C],
    store: CellStore[C, R],
    run: Callable[[C], R],
    progress: Progress,
    *,
    kept: Callable[[C], None] | None = None,
) -> dict[C, R]:
    """Results of cells: those in the store are taken from it, the others are run in order and kept.

    Args:
        cells: Which; equal ones are one.
        store: Of what is finished.
        run: Runs one.
        progress: Where to show progress.
        kept: Called for a cell once its result is in the store: what it left behind may be removed then.
    """
    wanted = list(dict.fromkeys(cells))
    results: dict[C, R] = {}
    for number, cell in enumerate(wanted):
        name = getattr(cell, "name", "")
        progress.update("cells", number, len(wanted), name)
        found = store.get(cell)
        if found is None:
            found = run(cell)
            store.put(cell, found)
            if kept is not None:
                kept(cell)
        results[cell] = found
        progress.update("cells", number + 1, len(wanted), name)
    return results
