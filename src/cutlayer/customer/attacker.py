"""What the attacker is taken to know of the customer's records, and what it asks of them."""

from __future__ import annotations

from typing import Final, Self

from pydantic import model_validator

from cutlayer.core.setting import Shown, setting
from cutlayer.core.spec import SettingsSpec

ATTACKER: Final = "The attacker"
"""The topic of these settings."""


class AttackerSpec(SettingsSpec):
    """What the attacker is taken to know of the customer's records, and what it asks of them."""

    auxiliary_fraction: float = setting(
        0.2,
        help="Share of your records that the attacker knows in full: text, label and private attributes. It learns "
        "from them, and is scored on the others.",
        shown=Shown(ATTACKER, unit="share"),
        ge=0,
        lt=1,
    )
    group: str | None = setting(
        None,
        help="The column of who wrote a text: the attacker knows all texts of one person, or none.",
        shown=Shown(ATTACKER, flags=("--group-column",), metavar="NAME"),
    )
    secret: tuple[str, ...] = setting(
        (),
        help="A column with a private attribute that the attacker tries to infer, for example the author's gender.",
        shown=Shown(ATTACKER, flags=("--secret-column",), metavar="NAME"),
    )
    bins: int | None = setting(
        None,
        help="Put the numbers of a private attribute, for example the author's age, into so many bins of about equally "
        "many texts, which the attacker tells apart. Attributes that are words stay as they are.",
        shown=Shown(ATTACKER, metavar="N", default="each value is a class"),
        ge=2,
    )
    seed: int = 0
    """Which records it knows."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.bins is not None and not self.secret:
            raise ValueError("bins need a column with a private attribute (--secret-column)")
        return self
