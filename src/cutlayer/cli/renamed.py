"""Options that had another name before."""

from __future__ import annotations

RENAMED = {
    "--accumulation": "--gradient-accumulation-steps",
    "--alpha": "--lora-alpha",
    "--beams": "--num-beams",
    "--budget": "--privacy-budget",
    "--clip-norm": "--max-grad-norm",
    "--cti-option": "--cti-NAME",
    "--fail-over": "--fail-above",
    "--known": "--auxiliary-fraction",
    "--rank": "--lora-r",
    "--targets": "--target-modules",
}
"""Today's name of each; of `audit`'s `--budget` see `today`."""


def today(option: str, command: str) -> str | None:
    """What an option of a command is called today; `None` if it never was one."""
    name = option.partition("=")[0]
    return "--time-limit" if (name, command) == ("--budget", "cutlayer audit") else RENAMED.get(name)
