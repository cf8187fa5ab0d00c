"""A setting, declared once: its name, type, default and bounds, and what is said of it wherever it appears.

Command-line options, `--help`, the settings page, the JSON schema and config files are made from these declarations.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import BaseModel, Field
from pydantic.fields import FieldInfo

_KEY = "cutlayer"


@dataclass(frozen=True)
class Shown:
    """How a setting is presented.

    Attributes:
        topic: The group of related settings it is listed with, such as "Privacy" or "Training".
        unit: The unit of its value; empty for a plain number, a name or a switch.
        source: Where the setting or its default comes from, such as "SAP §4.4, eq. (6)"; empty for our own choice.
        common: Whether most people need it first; the others are listed by topic.
        flags: Command-line names, the first one preferred; by default `--` and the field's name with dashes.
        metavar: What stands for the value in help, such as "ETA|inf"; by default made from the type.
        default: What a default of `None` comes to, such as "the model's limit".
        none: The word for `None` on the command line and in config files, where it can be asked for.
        env: The environment variable that gives it where the command line does not.
    """

    topic: str
    unit: str = ""
    source: str = ""
    common: bool = False
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    default: str = ""
    none: str = ""
    env: str = ""

    @classmethod
    def of(cls, field: FieldInfo) -> Shown | None:
        """What was declared of a field; `None` for a field that is no setting."""
        extra = field.json_schema_extra
        told: Any = extra.get(_KEY) if isinstance(extra, Mapping) else None
        return cls(**{**told, "flags": tuple(told["flags"])}) if isinstance(told, dict) else None


def as_in(spec: type[BaseModel], name: str) -> Any:
    """A setting as another spec declares it, for a spec that has it, too.

    Args:
        spec: Where it is declared.
        name: The field.
    """
    return copy.copy(spec.model_fields[name])


def setting(default: Any = ..., *, help: str, shown: Shown, **field: Any) -> Any:  # noqa: A002 -- the reader's word
    """Declares a setting of a spec.

    Args:
        default: Its value where nothing is said; leave it out for a setting that must be given.
        help: One or two plain sentences for `--help` and the settings page.
        shown: How it is presented.
        **field: Bounds and the like, as of `pydantic.Field`.
    """
    return Field(default, description=help, json_schema_extra={_KEY: asdict(shown)}, **field)
