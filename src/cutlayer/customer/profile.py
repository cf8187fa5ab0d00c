"""How to query an adapter: what the customer must keep to ask in the way it was trained.

Label names, privacy settings, utility importance and the customer's own trained weights stay at the
customer; the vendor holds the adapter and nothing of this.
"""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, ValidationError

from cutlayer.core import ConfigError, DataError, StorageError, VendorError
from cutlayer.customer.home import Home, read_json, write_bytes, write_json
from cutlayer.customer.settings import RunSpec

if TYPE_CHECKING:
    from torch import Tensor

    from cutlayer.privacy import UtilityImportance


class Profile(BaseModel):
    """What belongs to one adapter.

    Attributes:
        adapter: The adapter's identifier.
        segments: 1 for texts, 2 for pairs.
        max_content: Content tokens per text; longer texts are cut.
        labels: Label names in the order of the head's outputs; none for a language model.
        spec: The run that made it: model, cut and privacy.
        fingerprint: Of the vendor's weights then; `None` of adapters from before it was kept, as of the next.
        vocabulary: Digest of what the file of words held then that may come out; `None` without one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    adapter: str
    segments: int
    max_content: int
    labels: tuple[str, ...]
    spec: RunSpec
    fingerprint: str | None = None
    vocabulary: str | None = None

    def save(self, home: Home, importance: UtilityImportance | None, trained: dict[str, Tensor]) -> None:
        """Writes the profile to the customer's folder; `trained` holds the customer's own weights, if any."""
        folder = home.adapter(self.adapter)
        if importance is not None:
            write_bytes(folder / "importance.safetensors", importance.to_bytes())
        if trained:
            import safetensors.torch

            write_bytes(folder / "trained.safetensors", safetensors.torch.save(trained))
        write_json(folder / "profile.json", json.loads(self.model_dump_json()))

    def check_same(self, fingerprint: str) -> None:
        """Checks, before anything leaves, that what the adapter learnt to read still is what would leave.

        Args:
            fingerprint: Of the vendor's weights now.

        Raises:
            VendorError: The vendor's model has other weights.
            DataError: The file of words that may come out holds others, or is gone.
        """
        if self.fingerprint not in (None, fingerprint):
            raise VendorError(
                f"Adapter {self.adapter} was trained on other weights than {self.spec.model or 'the model'} has now.",
                status=409,
                remedy="Train it again, or ask the vendor for the weights of before.",
            )
        if self.vocabulary not in (None, self.spec.privacy.vocabulary_digest):
            raise DataError(
                f"The vocabulary holds other words than when adapter {self.adapter} was trained.",
                remedy="Restore the file, or train again.",
            )

    def check_writes(self) -> None:
        """Checks that it writes texts.

        Raises:
            ConfigError: It gives labels.
        """
        if not self.spec.objective.generates:
            raise ConfigError(f"Adapter {self.adapter} is a classifier's: it gives no text.", remedy="Use predict.")

    def check_restores(self) -> None:
        """Checks that it may be asked with words in the places of entities, and that what it writes may have them back.

        Raises:
            ConfigError: It gives labels, or draws what leaves, these words too.
        """
        self.check_writes()
        if self.spec.privacy.mechanism != "none":
            raise ConfigError(
                f"Adapter {self.adapter} draws what leaves ({self.spec.privacy.mechanism}), and would draw the words "
                "that stand for entities once more: none would be known again.",
                remedy="Name one that was trained on protected texts with --eta inf, or give the prompts as they are.",
            )

    @classmethod
    def load(cls, home: Home, adapter: str) -> Profile:
        """Reads an adapter's profile.

        Raises:
            ConfigError: This customer's folder has no such adapter.
            StorageError: Its profile is damaged, or of another version.
        """
        file = home.adapter(adapter) / "profile.json"
        if not file.exists():
            raise ConfigError(
                f"This customer's folder has no adapter {adapter}.",
                remedy=f"Known: {', '.join(known(home)) or 'none'}. Label names and privacy settings are kept only "
                "where the adapter was trained; set CUTLAYER_HOME to that folder.",
            )
        try:
            return cls.model_validate(read_json(file))
        except (ValidationError, ConfigError):
            # both quote what they met, label names among it, hence no `from error`
            raise StorageError(
                f"{file} does not hold an adapter's profile, or one of another version of cutlayer.",
                remedy="Use the version that trained the adapter, or restore the file.",
            ) from None

    @staticmethod
    def forget(home: Home, adapter: str) -> None:
        """Removes an adapter's profile."""
        shutil.rmtree(home.adapter(adapter), ignore_errors=True)

    def importance(self, home: Home) -> UtilityImportance | None:
        """The CTI scores that the adapter was trained with.

        Raises:
            StorageError: Their file is damaged.
        """
        file = home.adapter(self.adapter) / "importance.safetensors"
        if not file.exists():
            return None
        from cutlayer.privacy import UtilityImportance

        return UtilityImportance.load(file)

    def trained(self, home: Home) -> dict[str, Tensor]:
        """The customer's own trained weights; empty where it trained none.

        Raises:
            StorageError: Their file is damaged.
        """
        file = home.adapter(self.adapter) / "trained.safetensors"
        if not file.exists():
            return {}
        import safetensors.torch

        try:
            return safetensors.torch.load(file.read_bytes())
        except (OSError, safetensors.SafetensorError) as error:
            raise StorageError(
                f"{file} cannot be read as trained weights.", remedy="Train again, or restore the file."
            ) from error


def known(home: Home) -> list[str]:
    """Adapters whose profile stands in the customer's folder."""
    return sorted(file.parent.name for file in (home.path / "adapters").glob("*/profile.json"))
