"""Which error a refusal is: only a key that is not accepted is a matter of keys."""

from __future__ import annotations

import pytest
import torch

from cutlayer.core import AuthError, VendorError
from cutlayer.wire import Frame, routes
from cutlayer.wire.problem import Problem
from cutlayer.wire.transports.answer import check_size, refusal


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


def test_an_answer_is_as_large_as_what_was_asked_for() -> None:
    """Tensors by the shapes that the request tells, and an error as any error, whatever was asked for."""
    records = {"records": torch.zeros(4, dtype=torch.uint8)}
    frame = Frame(routes.JOB_INFER, {"job": "a" * 32}, tensors=records, shapes={"output": (4, 2)})
    check_size(frame, 200, 4 * 2 * 4)
    file = Frame(routes.ARCHIVE_FILE, {"model": "m", "cut": "text", "file": "f"}, size=2**24)
    check_size(file, 200, 2**24)
    for asked, status, size in ((frame, 200, 2**20), (file, 200, 2**24 + 1), (file, 500, 2**17)):
        with pytest.raises(VendorError, match="at most"):
            check_size(asked, status, size)
