from __future__ import annotations

import pytest

from cutlayer.reports.audit.words import strongest
from cutlayer.reports.schema import Finding
from tests.unit.reports.audits import failed, finding, inapplicable

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
