"""Which error a refusal is: only a key that is not accepted is a matter of keys."""

from __future__ import annotations

import pytest

from cutlayer.core import AuthError, VendorError
from cutlayer.wire.messages import Problem
from cutlayer.wire.transports.answer import refusal


@pytest.mark.parametrize(
    ("status", "kind", "exit_code"),
    [(401, AuthError, 8), (403, VendorError, 7), (404, VendorError, 7), (503, VendorError, 7)],
)
def test_a_refusal_is_the_error_that_its_status_says(status: int, kind: type[VendorError], exit_code: int) -> None:
    problem = Problem(title="Quota", status=status, detail="1 of 1 used.", remedy="Delete some.")
    error = refusal(status, problem.model_dump_json().encode())
    assert type(error) is kind
    assert (error.status, error.exit_code) == (status, exit_code)
    assert str(error).startswith("Quota: 1 of 1 used. ")
    # the vendor's remedy speaks of an HTTP header, which users of the command line do not see
    assert ("CUTLAYER_API_KEY" in error.remedy) == (status == 401)
    assert (error.remedy == "Delete some.") == (status != 401)
