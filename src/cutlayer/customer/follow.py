"""Watching a job that the vendor trains alone."""

from __future__ import annotations

import time
from typing import Final

from cutlayer.core import VendorError
from cutlayer.customer.gate import Gate
from cutlayer.customer.progress import Progress
from cutlayer.wire import routes
from cutlayer.wire.messages import JobProgress, JobState

_PAUSE_SECONDS: Final = 0.5
"""Between two looks: each is a frame, and a line of the ledger."""


def _dev(value: float) -> str:
    """A share of right labels, or a perplexity, which is above 1."""
    return f"dev {100 * value:.1f} %" if value <= 1 else f"dev perplexity {value:.4g}"


def follow(gate: Gate, job: str, progress: Progress) -> JobProgress:
    """Waits until a job is finished; whoever stops waiting may wait again.

    Args:
        gate: The door.
        job: The job.
        progress: Where to show how far it is.

    Raises:
        VendorError: It failed, or was cancelled; or there is no such job.
    """
    after = 0
    while True:
        told = gate.send(routes.JOB_EVENTS, {"job": job, "after": after}).expect(JobProgress)
        note = _dev(told.dev[-1]) if told.dev else told.state
        if told.problem is not None:
            note = f"waits: {told.problem.replace('-', ' ')}"
        progress.update("trained by the vendor", told.step, told.total_steps, note)
        if told.state is JobState.FINISHED:
            return told
        if told.state.is_over:
            why = "" if told.problem is None else f": {told.problem.replace('-', ' ')}"
            raise VendorError(
                f"Job {job} is {told.state}{why}.",
                remedy="Give the run up with `cutlayer discard`, and begin again"
                + (" with other settings." if told.state is JobState.FAILED else "."),
            )
        after = told.event
        time.sleep(_PAUSE_SECONDS)
