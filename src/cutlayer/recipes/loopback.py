"""A vendor of the recipe's own: another process on this machine, with nothing in between but HTTP."""

from __future__ import annotations

from pathlib import Path

import torch

from cutlayer import vendor
from cutlayer.customer import Client, Progress
from cutlayer.vendor.process import VendorProcess

_TENANT = "recipe"


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
        if self._process is not None:
            self._process.stop()
            self._process = None
