"""Going on after a crash: from a step of which both parties have their weights."""

from __future__ import annotations

from cutlayer.core import VendorError
from cutlayer.customer.gate import Gate
from cutlayer.customer.home import Home
from cutlayer.customer.link import Link
from cutlayer.customer.plan import Plan
from cutlayer.customer.run import OPTIMISER, Run
from cutlayer.models.optimiser import Optimiser, updates_in
from cutlayer.wire import routes
from cutlayer.wire.messages import JobInfo, JobState, SnapshotRequest


def open_job(plan: Plan, run: Run, gate: Gate, home: Home) -> JobInfo:
    """The job, started or found, at a step from which both parties can go on.

    Args:
        plan: The run.
        run: Its state and folder.
        gate: The door.
        home: The customer's folder, where labels that were drawn are kept.

    Raises:
        VendorError: The vendor names no checkpoint that is kept here too.
    """
    job, labels = run.identifier("job"), plan.data.reported
    if labels is not None:
        labels.keep(home.vault)
    # its gradients show the labels, so they are written down before the first of them
    told = None if plan.by_vendor else labels  # where they are sent, they were written down with the frame
    info = gate.send(routes.JOB_PUT, {"job": job}, control=plan.job_spec(run), labels=told).expect(JobInfo)
    if plan.trains and info.state is not JobState.FINISHED:
        common = max(set(info.checkpoints) & set(run.checkpoints()), default=None)
        if common is None:
            raise VendorError(
                "The vendor names no checkpoint of this job that is kept here too, not even its beginning.",
                remedy="Give the run up with `cutlayer discard`, and begin again.",
            )
        info = gate.send(routes.ROLLBACK, {"job": job}, control=SnapshotRequest(step=common)).expect(JobInfo)
    return info


def restore_optimiser(plan: Plan, run: Run, link: Link) -> Optimiser | None:
    """The customer's own optimiser and weights, as they were at the link's step; `None` where it trains nothing.

    Args:
        plan: The run.
        run: Its folder, which holds the checkpoints.
        link: The job's steps.
    """
    if not plan.trains:
        return None
    training = plan.spec.training
    optimiser = Optimiser(
        plan.session.trained(),
        kind=training.optim,
        schedule=training.lr_scheduler_type,
        learning_rate=training.learning_rate,
        weight_decay=training.weight_decay,
        warmup_steps=plan.warmup_steps,
        total_steps=updates_in(plan.total_steps, training.gradient_accumulation_steps),
    )
    if link.step:
        kept = run.read_checkpoint(link.step)
        plan.session.load_trained({name: kept[name] for name in kept if not name.startswith(OPTIMISER)})
        optimiser.load({name.removeprefix(OPTIMISER): kept[name] for name in kept if name.startswith(OPTIMISER)})
    return optimiser
