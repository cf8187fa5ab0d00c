"""One family of errors: what was given, what is allowed, what to do next.

Every error that a user can cause is a `CutlayerError`. The command line prints its message and
remedy without a traceback and leaves with its `exit_code`; anything else is a bug and is shown with
one. Messages never carry text, labels or keys: they name columns, rows by number, files and values
of settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import ClassVar

from cutlayer.printable import printable


class CutlayerError(Exception):
    """Base of every error a user can cause.

    Args:
        message: What was given and why it cannot be used.
        remedy: What to do next, as an imperative sentence.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, remedy: str = "") -> None:
        # some of it may be a vendor's words, or stand in a vendor's file: an error is shown on terminals
        self.message = printable(message)
        self.remedy = printable(remedy)
        super().__init__(self.message)

    def __str__(self) -> str:
        end = "" if self.message.endswith((".", "?", "!")) or not self.remedy else "."
        return f"{self.message}{end} {self.remedy}".strip()


class CutlayerWarning(UserWarning):
    """Something that a user may want to change, said before anything leaves; the call goes on."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with a configuration: where it stands, what stands there, what may stand there."""

    path: str
    given: object
    allowed: str

    def __str__(self) -> str:
        given = str(self.given) if isinstance(self.given, PurePath) else self.given
        return f"{self.path} = {given!r}: {self.allowed}"


class ConfigError(CutlayerError):
    """A setting or an argument is off. Lists every fault, not only the first."""

    exit_code = 3

    def __init__(self, faults: Sequence[Fault] | str, *, remedy: str = "") -> None:
        self.faults = () if isinstance(faults, str) else tuple(faults)
        message = faults if isinstance(faults, str) else "; ".join(str(fault) for fault in faults)
        super().__init__(message, remedy=remedy)


class DataError(CutlayerError):
    """A file of records cannot be used: missing column, empty file, one class."""

    exit_code = 4


class ModelError(CutlayerError):
    """A model cannot be loaded or cut as asked."""

    exit_code = 5


class UnsupportedArchitectureError(ModelError):
    """The model's family, or a part of its configuration, is not supported."""


class PrivacyError(CutlayerError):
    """Going on would break a privacy promise, so nothing was sent."""

    exit_code = 6


class BudgetError(PrivacyError):
    """The release would charge a text beyond the budget that the customer set."""


class VendorError(CutlayerError):
    """The vendor refused, or could not be reached.

    Args:
        message: The problem's title and detail, as the vendor sent them (RFC 9457).
        status: The HTTP status, or 0 when no answer came.
        remedy: What to do about it.

    Attributes:
        uplink_bytes: Bytes that may have left all the same, over all tries; the transport sets it.
        downlink_bytes: Bytes that came back.
    """

    exit_code = 7

    def __init__(self, message: str, *, status: int = 0, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.status = status
        self.uplink_bytes = 0
        self.downlink_bytes = 0


class AuthError(VendorError):
    """The vendor does not accept the API key."""

    exit_code = 8


class StorageError(CutlayerError):
    """A file could not be written or does not hold what its checksum says."""

    exit_code = 9


class ConformanceError(CutlayerError):
    """A mechanism does not do what it states."""

    exit_code = 11


class TargetError(CutlayerError):
    """No setting that was tried keeps what leaks within the target."""

    exit_code = 12


class MissingExtraError(CutlayerError):
    """Packages are not installed that only some of cutlayer needs.

    Args:
        extra: The extra that they come with.
        missing: Their names.
    """

    exit_code = 13

    def __init__(self, extra: str, missing: Sequence[str]) -> None:
        super().__init__(
            f"This needs {', '.join(missing)}, which {'are' if len(missing) > 1 else 'is'} not installed.",
            remedy=f"Run: pip install 'cutlayer[{extra}]'",
        )


class IncompleteError(CutlayerError):
    """Some pieces of the work failed, each named; the others are finished and kept."""

    exit_code = 15


class WorkerError(CutlayerError):
    """A process that was to compute a piece of the work ended without an answer."""

    exit_code = 14


class Stopped(CutlayerError):  # noqa: N818 - the user's wish, not a fault
    """The run was stopped on purpose and can be resumed."""

    exit_code = 130
