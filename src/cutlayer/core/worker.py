"""One piece of work: a function by name, a text in, a text out; and the process that computes such pieces.

`python -m cutlayer.core.worker PACKAGE…` reads requests from its standard input and writes answers to its standard
output, a line of JSON each; see `cutlayer.core.executors`. Nothing is ever unpickled. When its input ends, it ends at
once, whatever it is computing: so no worker outlives the process that started it.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import re
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from cutlayer.core import errors

Function = Callable[[str], str]

OWN: Final = ("cutlayer",)
"""Packages whose functions may be called."""
_NAME: Final = re.compile(r"(?P<package>\w+)(?P<module>(\.\w+)*):(?P<name>\w+)", re.ASCII)


@dataclass(frozen=True)
class Failure:
    """Why a piece of work has no result.

    Attributes:
        kind: Name of the exception's class.
        message: Of an error of cutlayer's, its own. Of any other, where it was raised: its words may quote a record.
        remedy: What to do next.
        trace: Of any other, the calls that led there, as a traceback shows them: files, lines and code, no values.
    """

    kind: str
    message: str
    remedy: str = ""
    trace: str = ""

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """What may be said of an error outside the process in which it was raised."""
        if isinstance(error, errors.CutlayerError):
            return cls(type(error).__name__, error.message, error.remedy)
        calls = traceback.extract_tb(error.__traceback__)
        place = f"{Path(calls[-1].filename).name}, line {calls[-1].lineno}" if calls else "an unknown place"
        message = f"{type(error).__name__} in {place}; its words are left out, for they may quote a record."
        return cls(type(error).__name__, message, trace="".join(traceback.format_list(calls)))

    def error(self) -> Exception:
        """The same as an exception: one of cutlayer's again, with its exit code, or a bug."""
        kind = getattr(errors, self.kind, None)
        if isinstance(kind, type) and issubclass(kind, errors.CutlayerError):
            try:
                return kind(self.message, remedy=self.remedy)
            except TypeError:  # one that puts its words together itself
                error = kind.__new__(kind)
                errors.CutlayerError.__init__(error, self.message, remedy=self.remedy)
                return error
        return RuntimeError(f"{self.message}\n{self.trace}".strip())


def check_name(function: str, packages: Sequence[str]) -> None:
    """Refuses functions that may not be called.

    Args:
        function: `package.module:name`.
        packages: Those whose functions may be.

    Raises:
        ConfigError: It is none of theirs, or no such name.
    """
    match = _NAME.fullmatch(function)
    if match is None or match["package"] not in packages:
        raise errors.ConfigError(
            [errors.Fault("function", function, f"must be MODULE:NAME of a function in {', '.join(packages)}")]
        )


def find(function: str, packages: Sequence[str]) -> Function:
    """The function of that name; see `check_name`."""
    check_name(function, packages)
    module, _, name = function.partition(":")
    found: Function = getattr(importlib.import_module(module), name)
    return found


def attempt(call: Callable[[], str]) -> str | Failure:
    """A piece's result, or why it has none.

    Raises:
        Stopped: The user's wish ends all pieces, not this one.
    """
    try:
        return call()
    except errors.Stopped:
        raise
    except Exception as error:  # of a piece, whatever it is: the others go on
        return Failure.of(error)


def answer(function: str, argument: str, packages: Sequence[str]) -> str:
    """Computes a piece.

    Returns:
        A JSON object with `result`, or with `failure`, a `Failure`'s fields.
    """
    try:
        outcome = attempt(lambda: find(function, packages)(argument))
    except errors.Stopped as error:
        outcome = Failure.of(error)
    return json.dumps({"failure": asdict(outcome)} if isinstance(outcome, Failure) else {"result": outcome})


def read_answer(text: str) -> str | Failure:
    """What `answer` returned: a result, or why there is none.

    Raises:
        Stopped: The piece was stopped by the user's wish, which ends all of them.
    """
    content = json.loads(text)
    if "result" in content:
        result: str = content["result"]
        return result
    failure = Failure(**content["failure"])
    if failure.kind == errors.Stopped.__name__:
        raise failure.error()
    return failure


def main() -> None:
    """Answers requests until the input ends. The first thread computes: OpenMP is faster there than elsewhere."""
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # whatever a piece prints is no answer
    requests: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(requests,), daemon=True).start()
    while True:
        request = json.loads(requests.get())
        answers.write(answer(request["function"], request["argument"], sys.argv[1:]) + "\n")
        answers.flush()


def _read(requests: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        requests.put(line)
    os._exit(0)


if __name__ == "__main__":
    main()
