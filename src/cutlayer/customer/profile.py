"""How to query an adapter: what the customer must keep to ask in the way it was trained.

Label names, privacy settings, utility importance and a trained bottom stay at the customer; the
vendor holds the adapter and nothing of this.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import safetensors
import safetensors.torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from cutlayer.core import ConfigError, StorageError
from cutlayer.customer.home import Home, read_json, write_bytes, write_json
from cutlayer.customer.settings import RunSpec
from cutlayer.privacy import UtilityImportance


class Profile(BaseModel):
    """What belongs to one adapter.

    Attributes:
        adapter: The adapter's identifier.
        segments: 1 for texts, 2 for pairs.
        max_content: Content tokens per text; longer texts are cut.
        labels: Label names in the order of the head's outputs.
        spec: The run that made it: model, cut and privacy.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    adapter: str
    segments: int
    max_content: int
    labels: tuple[str, ...]
    spec: RunSpec

    def save(self, home: Home, importance: UtilityImportance | None, bottom: dict[str, Tensor]) -> None:
        """Writes the profile to the customer's folder; `bottom` is empty where it was not trained."""
        folder = home.adapter(self.adapter)
        if importance is not None:
            folder.mkdir(parents=True, exist_ok=True)
            importance.save(folder / "importance.safetensors")
        if bottom:
            write_bytes(folder / "bottom.safetensors", safetensors.torch.save(bottom))
        write_json(folder / "profile.json", json.loads(self.model_dump_json()))

    @classmethod
    def load(cls, home: Home, adapter: str) -> Profile:
        """Reads an adapter's profile.

        Raises:
            ConfigError: This customer's folder has no such adapter.
            StorageError: Its profile is damaged.
        """
        file = home.adapter(adapter) / "profile.json"
        if not file.exists():
            raise ConfigError(
                f"This customer's folder has no adapter {adapter}.",
                remedy=f"Known: {', '.join(known(home)) or 'none'}. Label names and privacy settings are kept only "
                "where the adapter was trained; set CUTLAYER_HOME to that folder.",
            )
        return cls.model_validate(read_json(file))

    @staticmethod
    def forget(home: Home, adapter: str) -> None:
        """Removes an adapter's profile."""
        shutil.rmtree(home.adapter(adapter), ignore_errors=True)

    def importance(self, home: Home) -> UtilityImportance | None:
        """The CTI scores that the adapter was trained with."""
        file = home.adapter(self.adapter) / "importance.safetensors"
        return UtilityImportance.load(file) if file.exists() else None

    def bottom(self, home: Home) -> dict[str, Tensor]:
        """The trained bottom's tensors; empty where it was frozen."""
        file = home.adapter(self.adapter) / "bottom.safetensors"
        return safetensors.torch.load(_read(file)) if file.exists() else {}


def known(home: Home) -> list[str]:
    """Adapters whose profile stands in the customer's folder."""
    return sorted(file.parent.name for file in (home.path / "adapters").glob("*/profile.json"))


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise StorageError(f"{file} cannot be read: {error.strerror}.") from error
