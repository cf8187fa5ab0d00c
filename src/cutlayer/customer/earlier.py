"""What earlier versions wrote of a run, read under today's names. One table for settings, one for results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_SETTINGS: Final = {
    "budget": "privacy_budget",
    "bottom": "cut.bottom",
    "tail": "cut.tail",
    "target": "cut.target",
    "train_bottom": "tuning.train_bottom",
    "train.method": "tuning.method",
    "train.rank": "tuning.r",
    "train.alpha": "tuning.lora_alpha",
    "train.lora_dropout": "tuning.lora_dropout",
    "train.targets": "tuning.target_modules",
    "train.accumulation": "training.gradient_accumulation_steps",
    "train.clip_norm": "training.max_grad_norm",
    "train.checkpoint_every": "training.save_steps",
}
"""Path of a setting until version 0.1, and today's. Others of `train` kept their names in `training`."""
_VALUES: Final = {"tuning.train_bottom": {"redraw": "resample", "memoised": "cached"}}
_OF_LORA: Final = ("r", "lora_alpha", "lora_dropout", "target_modules")
_OF_NOISE: Final = {"none": ("eta", "place", "cti", "noise", "noise_window"), "text-to-text": ("place",)}
"""Settings of privacy that were written of each mechanism, and mean nothing with these."""

RESULTS: Final = {
    "read_in_training": "token_recovery_first_steps",
    "read_at_end": "token_recovery_last_steps",
    "read_from_answers": "token_recovery_from_answers",
    "read_from_rows": "token_recovery_from_boundary",
    "read_without_blocks": "token_recovery_without_blocks",
}
"""Names of a language model's results until version 0.1, and today's; each but the last had a note beside it."""


def settings(data: Any) -> Any:
    """A run's settings under today's names.

    Args:
        data: As they were read; what no earlier version wrote is left as it is.
    """
    if not isinstance(data, Mapping) or "train" not in data:
        return data
    written = {name: value for name, value in data.items() if name != "train"}
    written |= {f"train.{name}": value for name, value in data["train"].items()}
    found: dict[str, Any] = {}
    for before, value in written.items():
        path = _SETTINGS.get(before, before.replace("train.", "training."))
        section, _, name = path.rpartition(".")
        place = found.setdefault(section, {}) if section else found
        place[name] = _VALUES.get(path, {}).get(value, value) if path in _VALUES else value
    privacy = dict(found["privacy"])
    for name in _OF_NOISE.get(privacy.get("mechanism", ""), ()):
        privacy.pop(name, None)
    if found["tuning"].get("method") == "full":
        for name in _OF_LORA:
            found["tuning"].pop(name, None)
    return found | {"privacy": privacy}


def result(data: Any) -> Any:
    """A run's result under today's names.

    Args:
        data: As it was read.
    """
    if not isinstance(data, Mapping):
        return data
    names = RESULTS | {f"{before}_note": f"{now}_note" for before, now in RESULTS.items()}
    return {names.get(name, name): value for name, value in data.items()}
