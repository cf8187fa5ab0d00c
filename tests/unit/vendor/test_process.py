"""A vendor process that does not start is said to be one, for its own reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from cutlayer.core import VendorError
from cutlayer.vendor import process
from cutlayer.vendor.process import VendorProcess


@pytest.fixture
def served_before(tmp_path: Path) -> Path:
    """A folder that is no vendor's, with the log of an earlier process."""
    (tmp_path / "serve.log").write_text("Finished server process [9217].\n")
    return tmp_path


def test_a_process_that_ends_says_why_and_not_what_an_earlier_one_wrote(served_before: Path) -> None:
    with pytest.raises(VendorError, match="did not start") as error:
        VendorProcess(served_before).start()
    assert "9217" not in str(error.value)
    assert "it wrote nothing" not in str(error.value)


def test_a_process_that_does_not_answer_in_time_is_stopped(
    served_before: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_START_SECONDS", 0.0)
    vendor = VendorProcess(served_before)
    with pytest.raises(VendorError, match="did not answer within 0 s"):
        vendor.start()
    assert vendor._process is None
