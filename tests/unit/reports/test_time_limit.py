"""A time limit counts all of an audit: the run, copies of the model, other settings, public text, and attacks."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import cutlayer
from cutlayer.core.deadline import OutOfTime, check_time, within
from cutlayer.customer import Silent
from cutlayer.models import STARTER, load_tokenizer
from cutlayer.reports.audit import LeakReport, leak_report, public_text
from cutlayer.reports.audit.time_limit import TimeLimit
from cutlayer.reports.page.render import render
from tests.promises.runs import corpus
from tests.service.fixtures import tiny_model  # noqa: F401 - fixtures are used by name
from tests.unit.reports.test_leak_report import public

pytestmark = pytest.mark.usefixtures("known_secret")


def audited(model: Path, folder: Path, *, began: float, limit: float | None, **settings: object) -> LeakReport:
    return cutlayer.audit(
        corpus(140, seed=5),
        eta=60,
        model=str(model),
        public=public(folder),
        home=folder / "home",
        progress=None,
        time_limit=limit,
        began=began,
        **settings,  # type: ignore[arg-type]
    )


def test_work_stops_where_its_time_is_up() -> None:
    check_time()
    with within(1000.0):
        check_time()
        with within(-1.0), pytest.raises(OutOfTime):
            check_time()
        check_time()
        with within(-1.0), within(1000.0), pytest.raises(OutOfTime):
            check_time()


def test_a_limit_is_shared_by_what_is_left() -> None:
    now = time.monotonic()
    assert TimeLimit(None, now).share(3) == float("inf")
    assert TimeLimit(30.0, now - 12.0).share(3) == pytest.approx(6.0, abs=0.5)
    assert TimeLimit(30.0, now - 40.0).share(3) == 0


@pytest.mark.slow
def test_a_run_that_takes_all_of_it_is_said_to(tiny_model: Path, tmp_path: Path) -> None:  # noqa: F811
    """Begun long ago: whatever follows the run is left out, by name."""
    found = audited(tiny_model, tmp_path, began=time.monotonic() - 60, limit=60, frontier=(30.0,)).report
    assert found.traded[0] in render(found)
    assert {each.status for each in found.attacks} == {"not run"}
    assert found.traded[0].startswith("The run that is attacked, which cannot be cut short, took ")
    assert found.traded[0].endswith("with it the time limit of 60 s was over.")
    assert "not run: the time budget of 60 s was used up." in found.traded[-1]
    assert found.vendor.students == ()
    assert found.vendor.note.endswith("there was no time for it within the time limit.")
    assert found.frontier is not None
    assert "Not run, for there was no time within the time limit: text-to-text, eta 30." in found.frontier.note


@pytest.mark.slow
def test_what_does_not_fit_is_left_out_and_the_rest_is_run(
    monkeypatch: pytest.MonkeyPatch,
    tiny_model: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    """A run that takes a third of the time: copies and another setting, which would take as long each, do not fit."""
    run = leak_report.local_evidence
    limit = 60.0

    def slow(*given: object, **settings: object) -> object:
        clock.ahead += limit / 3
        return run(*given, **settings)  # type: ignore[arg-type]

    class Clock:
        ahead = 0.0

        def monotonic(self) -> float:
            return time.monotonic() + self.ahead

    clock = Clock()
    monkeypatch.setattr(leak_report, "time", clock)
    monkeypatch.setattr(leak_report, "local_evidence", slow)
    began = time.monotonic() - limit / 3  # as the clock of the limit has it when the run is done
    only = ("nearest-neighbour", "output-gradient")
    found = audited(tiny_model, tmp_path, began=began, limit=limit, only=only, frontier=(30.0,)).report
    assert found.traded == ("Copies of the tuned model were not tried, for the time limit of 60 s.",)
    assert [each.status for each in found.attacks] == ["measured", "measured"]
    assert found.frontier is not None
    assert "Not run, for there was no time" in found.frontier.note
    assert [point.audited for point in found.frontier.points] == [True]


@pytest.mark.usefixtures("starter_installed")
def test_text_is_written_for_as_long_as_there_is_time_and_not_kept(tmp_path: Path) -> None:
    kept = tmp_path / "public-text"
    own = public_text(None, load_tokenizer(STARTER), kept=kept, max_content=60, progress=Silent(), seconds=0.2)
    assert own.source.endswith(f"{own.tokens.total} tokens until a share of the time limit was over")
    assert 0 < own.tokens.total < 1024 * 48
    assert not kept.exists()


def test_it_ends_within_its_limit(tiny_model: Path, tmp_path: Path) -> None:  # noqa: F811
    limit = 8.0
    began = time.monotonic()
    found = audited(tiny_model, tmp_path, began=began, limit=limit).report
    assert time.monotonic() - began < 2 * limit
    assert found.traded
    assert found.settings.budget_seconds == limit
