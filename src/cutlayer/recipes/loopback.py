"""A vendor of the recipe's own: another process on this machine, with nothing in between but HTTP."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from cutlayer import vendor
from cutlayer.core import Stopped
from cutlayer.customer import Client, Progress
from cutlayer.vendor.process import VendorProcess

_TENANT = "recipe"


class Stoppable(ABC):
    """An experiment of cells that ends its vendor when it is left, and can be gone on with.

    Attributes:
        folder: Everything is kept here; the same folder goes on with an unfinished experiment.
    """

    folder: Path

    @abstractmethod
    def stop(self) -> None:
        """Ends the vendor."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the vendor.

        Raises:
            Stopped: The user interrupted; what is finished is kept, and a cell that was begun goes on.
        """
        self.stop()
        if isinstance(error, KeyboardInterrupt | Stopped):  # or a run within was, and names its own folder
            raise Stopped(
                f"Stopped. Finished cells are in {self.folder}.", remedy="Run the same command again to go on."
            ) from error


class Loopback:
    """Starts its vendor when the first client is asked for; cells that are all finished need none.

    Args:
        folder: The vendor's data folder; made on first use.
        model: An embedded model's name, a local folder or a hub id.
        max_bottom: The deepest cut for which it hands out bottoms; half of the blocks by default.
        max_tail: The deepest tail that it hands out; see `vendor.init`.
    """

    def __init__(self, folder: Path, model: str, *, max_bottom: int | None = None, max_tail: int | None = None) -> None:
        self._folder = folder
        self._model = model
        self._max_bottom = max_bottom
        self._max_tail = max_tail
        self._process: VendorProcess | None = None
        self._key = ""

    def client(self, home: Path, progress: Progress) -> Client:
        """A customer with a folder of its own."""
        if self._process is None:
            progress.update("start vendor", 0, 1)
            # as many threads as here: a baseline in this process and a split run then round alike
            vendor.init(
                self._folder,
                models=[f"model={self._model}"],
                max_bottom=self._max_bottom,
                max_tail=self._max_tail,
                threads=torch.get_num_threads(),
            )
            # a new key for the same tenant opens the same namespace, so none has to be kept
            self._key = vendor.keys.create(self._folder, _TENANT)
            self._process = VendorProcess(self._folder)
            self._process.start()
            progress.update("start vendor", 1, 1)
        return Client(self._process.url, self._key, home=home)

    def stop(self) -> None:
        """Ends the vendor's process."""
        if self._process is not None:
            self._process.stop()
            self._process = None
