from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from cutlayer.cli import main
from cutlayer.customer import Preview


@dataclass(frozen=True)
class Ran:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def result(self) -> dict[str, Any]:
        """The last line of standard output."""
        content = json.loads(self.out.splitlines()[-1])
        assert isinstance(content, dict)
        return content


Run = Callable[..., Ran]


class Streamed(Preview):
    """A preview that is all there, in the place of one that comes text by text."""

    def close(self) -> None:
        pass


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Runs a command line in this process."""
    terminates = signal.getsignal(signal.SIGTERM)

    def command(*arguments: object) -> Ran:
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Ran(int(left.value.code or 0), captured.out, captured.err)

    yield command
    signal.signal(signal.SIGTERM, terminates)  # which a command takes for Ctrl-C
