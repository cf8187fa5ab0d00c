"""Settings of embeddings, beside those that they share with runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cutlayer.core.errors import ConfigError, Fault
from cutlayer.core.setting import Shown, setting
from cutlayer.core.spec import SettingsSpec
from cutlayer.customer.settings import FinetuneSpec, Training

EMBEDDING: Final = "Embedding"
"""The topic of these settings."""
AUTO, NONE = "auto", "none"
"""What stands for the denoiser that comes nearest, and for none; a vendor's others go by their ids."""


class EmbeddingSettings(SettingsSpec):
    """What becomes of the vendor's answers."""

    denoiser: str = setting(
        AUTO,
        help="auto: remove the noise at home with the vendor's denoiser for this mechanism and eta; of several, the "
        "one with the highest cosine on public text; refused where there is none. ID: this denoiser of the vendor's. "
        "none: embeddings as the vendor returns them.",
        shown=Shown(EMBEDDING, source="SnD §3.4", metavar="auto|none|ID"),
        pattern=rf"^({AUTO}|{NONE}|[0-9a-f]{{32}})$",
    )


class EmbedSpec(FinetuneSpec):
    """What a user says of embeddings: of a run's settings those that a query has; nothing is trained."""


_OF_TRAINING: Final[Mapping[str, str]] = {
    "tuning": "nothing is tuned",
    "target_column": "there are no target texts",
    "facts": "there are no target texts",
    "transcript": "is of a run that trained: what is attacked is asked for anew",
    "dev": "nothing is trained that would be measured on it",
    "test": "nothing is trained that would be measured on it",
}


def check_embedding(given: Mapping[str, object]) -> None:
    """Refuses settings of trainings where embeddings are asked for.

    Args:
        given: What was given, by name.

    Raises:
        ConfigError: With all faults.
    """
    faults = [
        Fault(name, value, f"means nothing with objective embed: {_OF_TRAINING[name]}")
        for name, value in given.items()
        if name in _OF_TRAINING and value is not None
    ]
    training = given.get("training")
    said = training.model_dump(exclude_unset=True) if isinstance(training, Training) else {}
    faults += [
        Fault(f"training.{name}", value, "means nothing with objective embed: nothing is trained")
        for name, value in said.items()
        if name != "max_length"
    ]
    if faults:
        raise ConfigError(faults, remedy="Leave it out, or audit a training: objective classification, lm or seq2seq.")
