from __future__ import annotations

from pathlib import Path

import pytest

from cutlayer.customer import EntityMap
from cutlayer.customer.home import Home
from cutlayer.reports.audit.protected import protected_entities
from cutlayer.reports.audit.words import strongest, verdict
from cutlayer.reports.schema import Finding, ProtectedEntities
from tests.unit.reports.audits import failed, finding, inapplicable, settings

LATE = inapplicable("nearest-neighbour", status="not run", reason="The time budget was used up before it was its turn.")
OTHER = inapplicable("linear-inversion", reason="Token ids were released: there is no boundary to invert.")


@pytest.mark.parametrize(
    ("findings", "why"),
    [
        ([failed(), inapplicable()], "Controls of inverter failed."),
        # one that had no turn might have read: that is not to have no meaning
        ([inapplicable(), LATE, OTHER], "The time budget was used up before nearest-neighbour had a turn."),
        ([inapplicable(), OTHER], "No attack applies to what was sent."),
        ([OTHER], OTHER.reason),
    ],
)
def test_a_question_without_a_number_says_why(findings: list[Finding], why: str) -> None:
    (answer,) = strongest(findings)
    assert answer.value is None
    assert answer.sentence == f"There is no number. {why} That is no protection."


def test_one_number_is_enough() -> None:
    (answer,) = strongest([failed(), LATE, finding(value=0.371)])
    assert answer.value == 0.371


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"labels_sent": 1.0}, "The vendor has the labels: those of all training texts were sent to it as they are."),
        (
            {"labels_sent": 0.731, "labels_drawn": True},
            "The vendor has a label of each training text, which was drawn at random before it was sent: 73 of 100 are "
            "the true ones.",
        ),
    ],
)
def test_page_one_says_what_the_vendor_was_told_of_labels(changes: dict[str, object], said: str) -> None:
    assert said in verdict((), settings(**changes), stand_out=(), tried=0)
    assert not any("label" in each for each in verdict((), settings(labels_drawn=True), stand_out=(), tried=0))


def test_page_one_says_what_stands_outside_entities() -> None:
    protected = ProtectedEntities(drawn=30, replaced=28, mentions=250, clear={"number": 50, "verb": 700})
    (said,) = verdict((), settings(protected=protected), stand_out=(), tried=0)
    assert said == (
        "Entities were replaced before: drawn words stand for 25.0 % of 1,000 words, and 28 of 30 that were drawn "
        "became another word. 75.0 % stand outside entities and left as they were: 70.0 % verb, 5.0 % number."
    )


def test_texts_name_the_jobs_by_which_entities_were_replaced(tmp_path: Path) -> None:
    """A column of the same name may be about people's work: it is no job's then."""
    home, jobs = Home(tmp_path), ("a" * 32, "b" * 32)
    for number, job in enumerate(jobs, start=1):
        EntityMap(job, {"x": "Ada"}, drawn=number, replaced=1, numbered=0, mentions=4, clear={"verb": number}).save(
            home
        )
    rows = [{"text": "x", "job": job} for job in (*jobs, jobs[0])]
    assert protected_entities([rows], home) == ProtectedEntities(drawn=3, replaced=2, mentions=8, clear={"verb": 3})
    assert protected_entities([[{"text": "x", "job": "nurse"}], [{"text": "x"}]], home) is None
