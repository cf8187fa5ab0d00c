"""A fine-tuning run of these settings on these texts: begun, continued, or shown again."""

from __future__ import annotations

import hashlib
import math
import secrets
import warnings
from contextlib import closing
from pathlib import Path

from cutlayer.core import ConfigError, CutlayerWarning
from cutlayer.customer.connection import Connection
from cutlayer.customer.corpora import MANY, Corpora, Labelled, split_rows
from cutlayer.customer.defaults import Learner, settle
from cutlayer.customer.derived import noise_secret
from cutlayer.customer.execute import Execution
from cutlayer.customer.handout import Offer, choose_model
from cutlayer.customer.plan import plan
from cutlayer.customer.progress import Progress
from cutlayer.customer.publish import delete_records
from cutlayer.customer.results import Detached, RunResult
from cutlayer.customer.run import DataDigests, Run
from cutlayer.customer.settings import BUDGETS, FinetuneSpec, RunSpec
from cutlayer.wire.transports import RecordingTransport


def finetune(
    connection: Connection,
    given: FinetuneSpec,
    corpora: Corpora,
    *,
    out: Path | None,
    progress: Progress,
    detach: bool = False,
) -> RunResult | Detached:
    """The run of these settings on these texts, begun, continued, or shown again.

    Args:
        connection: The way to the vendor.
        given: What was said of the run, valid.
        corpora: Its texts.
        out: Its folder; by default one that the same call finds again.
        progress: Where to show progress.
        detach: Whether to leave a job to the vendor that it trains alone.
    """
    offer = choose_model(connection.gate(), given.model)
    learner = Learner(len(corpora.train), offer.model.width, drops_out=offer.model.target_blocks is None)
    spec = settle(given, public=corpora.public is not None, learner=learner)
    spec = spec.model_copy(update={"model": offer.model.name})
    digests = corpora.digests(connection.home.secret.derive("data digest"))
    folder = default_folder(connection, spec, given.seed, digests.rows) if out is None else out.expanduser()
    with Run.held(folder):
        if given.seed is None:
            found = Run.seed_in(folder)
            spec = spec.model_copy(update={"seed": secrets.randbelow(2**31) if found is None else found})
        return _run(connection, folder, spec, corpora, offer, digests=digests, progress=progress, detach=detach)


def default_folder(connection: Connection, spec: RunSpec, seed: int | None, data: str) -> Path:
    """A folder by vendor, settings and data, so that the same call finds what it left unfinished.

    Args:
        connection: The way to the vendor.
        spec: The run's settings.
        seed: As it was given.
        data: Digest of the rows.
    """
    # the address in one spelling: another one would make another run of the same call
    parts = (connection.transport.peer, spec.model_dump_json(exclude=set(BUDGETS)), seed, data)
    call = "\n".join(map(str, (*parts, *filter(None, [spec.privacy.vocabulary_digest]))))
    name = hashlib.blake2b(call.encode(), digest_size=8).hexdigest()
    number = 0
    while Run.is_finished(folder := connection.home.run(f"{name}-{number}")):
        number += 1
    return folder


def _run(
    connection: Connection,
    folder: Path,
    spec: RunSpec,
    corpora: Corpora,
    offer: Offer,
    *,
    digests: DataDigests,
    progress: Progress,
    detach: bool,
) -> RunResult | Detached:
    """The run in a folder that is held."""
    home = connection.home
    # what is wrong with the data is told before anything is begun
    rows = split_rows(corpora, spec, noise_secret(home, spec.unsafe_noise_seed))
    run = Run.open(folder, run=secrets.token_hex(16), data=digests, spec=spec)
    if run.state.adapter is not None:
        if not home.adapter(run.state.adapter).exists():
            raise ConfigError(
                f"{folder} holds this run, finished, and its adapter {run.state.adapter} was deleted.",
                remedy="Choose another folder with --out.",
            )
        if run.state.undeleted:
            delete_records(run, connection.gate())
        return run.result()
    if isinstance(rows, Labelled) and len(rows.dev) < MANY:
        warnings.warn(
            f"{len(rows.dev)} texts of dev will choose the epoch, which is close to chance: their accuracy has a "
            f"standard error of up to {50 / math.sqrt(len(rows.dev)):.0f} points. Give dev, or a larger dev_share.",
            CutlayerWarning,
            stacklevel=2,
        )
    run.save()
    try:
        with closing(RecordingTransport(connection.transport, run.transcript)) as recorder:
            gate = connection.gate_of(run.state.run, spec, offer, transport=recorder, labels=True)
            planned = plan(home, gate, offer, rows, spec, progress, connection.device)
            return Execution(home, gate, planned, rows, run, progress, detach).execute()
    finally:
        if not run.state.asked:
            run.forget()
