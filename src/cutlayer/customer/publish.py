"""The end of a run: the best adapter is published, how to query it is kept, and what the run showed is measured."""

from __future__ import annotations

import functools
from collections.abc import Callable
from http import HTTPStatus

import torch
from torch import Tensor

from cutlayer.attacks import MEASURED_TOKENS
from cutlayer.core import Guarantee, VendorError
from cutlayer.customer.corpora import Labelled, Plain
from cutlayer.customer.deviations import deviations
from cutlayer.customer.gate import Gate
from cutlayer.customer.handout import fetch_archive
from cutlayer.customer.home import Home
from cutlayer.customer.link import PAIR_OUTPUT, QueryLink
from cutlayer.customer.measure import Facts, summarise
from cutlayer.customer.plan import Plan
from cutlayer.customer.profile import Profile
from cutlayer.customer.progress import Progress
from cutlayer.customer.recorded import RecordedRun
from cutlayer.customer.results import RunResult
from cutlayer.customer.run import Run
from cutlayer.customer.session import Texts
from cutlayer.customer.trainer import Examples, Score, Trainer, evaluate
from cutlayer.customer.upload import Uploaded
from cutlayer.wire import routes
from cutlayer.wire.messages import AdapterInfo, SnapshotRequest

_REORDERED = (
    "The rows of its files came in another order when this run was continued. Order and draws follow from what texts "
    "say, so nothing was drawn again.",
)


def publish(
    home: Home,
    plan: Plan,
    rows: Labelled | Plain,
    trainer: Trainer,
    uploaded: Uploaded | None,
    *,
    step: int,
    seconds: Callable[[], float],
) -> RunResult:
    """Publishes the adapter of a step, and tells what the run found.

    Args:
        home: The customer's folder.
        plan: The run.
        rows: Its data.
        trainer: The loop that trained it.
        uploaded: Train's records at the vendor; `None` where each step released its own.
        step: Of the best adapter.
        seconds: What the run took so far, over all its tries.
    """
    run, gate, progress = trainer.run, trainer.link.gate, trainer.progress
    info = gate.send(routes.FINISH, {"job": trainer.link.job}, control=SnapshotRequest(step=step)).expect(AdapterInfo)
    trained: dict[str, Tensor] = run.read_trained(step) if plan.trains else {}
    Profile(
        adapter=info.adapter,
        segments=plan.data.segments,
        max_content=plan.data.max_content,
        labels=plan.data.label_names,
        spec=plan.spec,
        fingerprint=plan.offer.model.fingerprint,
        vocabulary=run.state.vocabulary,
    ).save(home, plan.data.importance, trained)
    plan.session.load_trained(trained)
    answers = PAIR_OUTPUT if plan.spec.sends_pairs else len(plan.data.label_names) or None
    plan.session.link = QueryLink.to_adapter(gate, info.adapter, labels=answers)
    utility = _utility(plan, progress)
    took = seconds()
    archive, data, state, privatizer = plan.archive, plan.data, run.state, plan.session.privatizer
    if plan.trains or plan.session.device.type != "cpu":  # these parts were trained, or moved
        archive = fetch_archive(gate, home, plan.offer.model, plan.spec.cut, progress)
    looks, spent = gate.looks(), gate.spent()
    recorded = RecordedRun(run, rows, data, archive, home, tail=plan.session.tail)
    facts = Facts(
        # every draw is a look of its own, and looks at one text add up, wherever it stands in train, dev and test
        guarantee=functools.reduce(Guarantee.compose, [privatizer.guarantee] * looks),
        caveats=plan.forecast.overspent() + (_REORDERED if run.reordered else ()),
        label_guarantee=plan.forecast.label_guarantee(),
        values={
            "adapter_id": info.adapter,
            "adapter_sha256": info.sha256,
            "replaced": _replaced(plan, trainer, uploaded),
            "clear_words": gate.clear(),
            "n_train": len(data.train),
            "n_dev": len(data.dev),
            "n_test": 0 if data.test is None else len(data.test),
            "uplink_bytes": {**spent.uplink, "total": sum(spent.uplink.values())},
            "downlink_bytes": spent.downlink,
            "tokens_released": spent.tokens,
            "seconds": took,
            "steps": trainer.link.step,
            "epochs": len(state.dev),
            "best_epoch": state.best_epoch,
            "dev": tuple(state.dev),
            "train_loss": _mean_losses(plan, trainer, "loss"),
            "reconstruction_loss": _mean_losses(plan, trainer, "reconstruction_loss"),
            "eta": plan.spec.privacy.eta,
            "no_privacy": plan.spec.privacy.mechanism == "none",
            "unsafe_noise": plan.spec.unsafe_noise_seed is not None,
            "looks": looks,
            "largest_distance": privatizer.largest_distance(),
            "deviations": privatizer.deviations + deviations(plan.spec),
            "spec": plan.spec,
            "folder": run.folder,
        },
    )
    result = summarise(
        recorded,
        utility,
        facts,
        told=lambda done, of, attack: progress.update("what the vendor could read", done, of, attack),
    )
    run.state.undeleted = list(plan.job_spec(run).record_sets)
    run.finish(result)
    run.save()  # before anything of it is deleted
    delete_records(run, gate)
    return result


def _utility(plan: Plan, progress: Progress) -> Score | None:
    """What the published adapter reaches on test; `None` where there is none, as dev was measured already.

    Where reported labels chose the epoch, its accuracy on dev's true ones. Without test the adapter of a language
    model answers some of dev, so that there are answers of its own to read.
    """
    data, positions = plan.data, plan.offer.most_positions(plan.spec.row_type)
    if data.test is not None:
        return evaluate(plan.session, data.test, positions=positions, progress=progress, stage="test")
    if plan.spec.label_epsilon is not None:
        return evaluate(plan.session, data.dev, positions=positions, progress=progress, stage="dev")
    if plan.spec.objective.generates:
        dev = data.dev  # its texts: an adapter holds no records
        some = torch.arange(len(dev))[dev.lengths.cumsum(0) - dev.lengths < MEASURED_TOKENS]
        texts, labels = dev.batch(some)
        shown = Examples(texts, labels, dev.lengths[some])
        evaluate(plan.session, shown, positions=positions, progress=progress, stage="dev, by the adapter")
    return None


def _replaced(plan: Plan, trainer: Trainer, uploaded: Uploaded | None) -> float | None:
    """Share of tokens that the (first epoch's) draws replaced; `None` for rows of noise."""
    changed = _replaced_in_steps(plan, trainer) if uploaded is None else uploaded.replaced
    return None if changed is None else changed / max(1, plan.data.tokens.total)


def _replaced_in_steps(plan: Plan, trainer: Trainer) -> int | None:
    """The first epoch's draws are made again, not charged again."""
    changed = 0
    for _, batch in trainer.numbered_batches(0):
        texts, _ = trainer.train.batch(batch)
        if isinstance(texts, Texts):
            drawn = plan.session.count_replaced(texts, look=trainer.look(0))
            if drawn is None:
                return None
            changed += drawn
    return changed


def _mean_losses(plan: Plan, trainer: Trainer, kind: str) -> tuple[float, ...]:
    """The mean loss of each epoch's steps, of a kind that was logged; empty where none was."""
    losses, first = trainer.run.losses(kind), plan.spec.public_iterations
    if not losses:
        return ()
    size = 1 if plan.by_vendor else trainer.steps_per_epoch  # of the vendor's own steps each epoch's mean is known
    epochs = (losses[first + epoch * size :][:size] for epoch in range(len(trainer.run.state.dev)))
    return tuple(sum(epoch) / len(epoch) for epoch in epochs)


def delete_records(run: Run, gate: Gate) -> None:
    """Has the vendor delete what a finished run needs no more; whether it does is its word.

    What it cannot be asked for now is asked for when the run is shown again: a result is not lost for it.

    Args:
        run: The run, which knows what was not deleted yet.
        gate: A door.
    """
    for record_set in list(run.state.undeleted):
        try:
            gate.send(routes.RECORD_SET_DELETE, {"record_set": record_set})
        except VendorError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                return
        run.state.undeleted.remove(record_set)
        run.save()
