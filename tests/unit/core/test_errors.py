from __future__ import annotations

import inspect
from pathlib import Path

from cutlayer.core import BudgetError, ConfigError, CutlayerError, Fault, PrivacyError, errors


def families() -> list[type[CutlayerError]]:
    return [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, CutlayerError)]


def test_exit_codes_tell_families_apart() -> None:
    """0 and 2 belong to the shell and the command line; a subclass may share its family's code."""
    codes: dict[int, type[CutlayerError]] = {}
    for kind in sorted(families(), key=lambda kind: len(kind.__mro__)):
        assert kind.exit_code not in (0, 2)
        other = codes.setdefault(kind.exit_code, kind)
        assert issubclass(kind, other)


def test_a_config_error_lists_every_fault_with_path_and_value() -> None:
    error = ConfigError([Fault("eta", -1.0, "must be above 0"), Fault("rank", 0, "must be at least 1")], remedy="Fix.")
    assert str(error) == "eta = -1.0: must be above 0; rank = 0: must be at least 1. Fix."
    assert [fault.path for fault in error.faults] == ["eta", "rank"]


def test_a_file_is_named_by_its_path_alone() -> None:
    assert str(ConfigError([Fault("vocabulary", Path("a/b.tsv"), "lacks a category")])) == (
        "vocabulary = 'a/b.tsv': lacks a category"
    )


def test_budget_refusals_are_privacy_errors() -> None:
    assert issubclass(BudgetError, PrivacyError)


def test_words_of_others_in_an_error_command_no_terminal() -> None:
    """Also in a program of one's own, where no command writes them out."""
    error = CutlayerError("No \x1b[2J\x9b\u202e.", remedy="Type \r\ud800.")
    assert str(error) == r"No \x1b[2J\x9b\u202e. Type \x0d\ud800."
