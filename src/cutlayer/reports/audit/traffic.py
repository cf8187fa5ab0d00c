"""Traffic for an audit without a vendor: the customer's own road to a vendor in this process.

The run is real: a fine-tuning over the gate, recorded as every run is, or queries for embeddings. Vendor, customer,
secret and ledger are made for it and removed with it, so nothing is charged, nothing leaves this process, and the noise
is of the same distribution as a real run's, not the same draw.
"""

from __future__ import annotations

import warnings
from contextlib import closing
from pathlib import Path

from cutlayer import vendor
from cutlayer.attacks import Exchanged
from cutlayer.core import ConfigError, CutlayerWarning, Fault, Stopped
from cutlayer.customer import Client, FinetuneSpec, Home, Objective, Progress, TrainBottom
from cutlayer.customer.attacker import AttackerSpec
from cutlayer.customer.corpora import Corpora
from cutlayer.customer.defaults import settle
from cutlayer.customer.embed import settle_embedding
from cutlayer.customer.embedding import EmbedSpec
from cutlayer.customer.evidence import Evidence
from cutlayer.customer.finetune import finetune
from cutlayer.customer.handout import local_archive
from cutlayer.customer.sent_evidence import embedded_evidence, released_evidence
from cutlayer.customer.settings import LOCAL_MODEL
from cutlayer.customer.validate import validate
from cutlayer.data import Dataset
from cutlayer.vendor import VendorSettings, create_app
from cutlayer.wire.transports import LocalTransport, RecordingTransport


def local_evidence(
    texts: Dataset, spec: FinetuneSpec, folder: Path, progress: Progress, *, attacker: AttackerSpec
) -> Evidence:
    """Fine-tunes on texts against a vendor in this process, or has it embed them, and returns what that showed.

    Texts need no labels: what leaves of them through a frozen bottom is the same whatever a classifier learns
    above it, so without labels they leave and nothing is trained.

    Args:
        texts: The customer's.
        spec: What is audited, an `EmbedSpec` for embeddings; of its model the source.
        folder: Where vendor, customer and run are kept; the caller removes it.
        progress: Where to show progress.
        attacker: What the attacker is taken to know of the texts.

    Raises:
        ConfigError: Settings that contradict each other, or need labels that the texts do not have.
        DataError: Texts that cannot be trained on.
        Stopped: The user interrupted.
    """
    embeds = isinstance(spec, EmbedSpec)
    settled = settle_embedding(spec) if embeds else settle(spec)
    validate(settled)
    model, cut = spec.model or LOCAL_MODEL, settled.cut
    here = spec.model_copy(update={"model": model, "seed": spec.seed or 0})
    try:
        if not embeds and spec.objective is Objective.CLASSIFICATION and texts.labels is None:
            _check_unlabelled(spec)
            home = Home(folder / "customer")
            return released_evidence(texts, here, home, folder / "transcript", progress, attacker=attacker)
        deepest = max(cut.bottom or 0, cut.target)
        vendor.init(folder / "vendor", models=[f"model={model}"], max_bottom=deepest, max_tail=cut.tail or 0)
        here = here.model_copy(update={"model": "model"})
        if embeds:
            return _embedded(texts, here, folder, progress, attacker)
        given = Corpora(texts, None, None)
        with closing(_client(folder)) as client:
            with warnings.catch_warnings():
                # how well a model learns that nobody is going to ask is no concern of an audit's
                warnings.simplefilter("ignore", CutlayerWarning)
                finetune(client, here, given, out=folder / "run", progress=progress)
            archive = local_archive(client.home, model, cut)
            return Evidence.of(folder / "run", given, archive, home=client.home, attacker=attacker)
    except (Stopped, KeyboardInterrupt) as error:  # of a run it names the folder, and that goes
        raise Stopped(
            "Stopped. The run that was to be attacked was not done, and nothing of it is kept.",
            remedy="Run the same command again.",
        ) from error


def _embedded(texts: Dataset, spec: FinetuneSpec, folder: Path, progress: Progress, attacker: AttackerSpec) -> Evidence:
    """Asks for embeddings, and returns what that showed."""
    recorded = folder / "transcript"
    with closing(local_transport(folder)) as transport, closing(RecordingTransport(transport, recorded)) as recorder:
        client = Client(transport=recorder, home=folder / "customer")
        return embedded_evidence(texts, spec, client, recorded, progress, attacker=attacker)


def _check_unlabelled(spec: FinetuneSpec) -> None:
    """Refuses, before anything is run, settings under which labels change what leaves of the texts."""
    faults = []
    if spec.privacy.cti is not None:
        faults.append(Fault("cti", "set", "needs labels: contributing tokens are found by them"))
    if (trained := spec.tuning.train_bottom) not in (None, TrainBottom.FROZEN):
        faults.append(Fault("train_bottom", trained, "needs labels: what leaves of it depends on them"))
    if faults:
        raise ConfigError(faults, remedy="Name the column that holds the labels: --label-column.")


def local_answers(texts: Dataset, adapter: str, folder: Path, progress: Progress) -> tuple[str, ...]:
    """What the tuned model of a local run says of texts: queries of the customer's, answered by the vendor.

    Args:
        texts: What is asked about.
        adapter: The adapter that the run made.
        folder: Where vendor, customer and run are, as `local_evidence` was given it.
        progress: Where to show progress.
    """
    with closing(_client(folder)) as client:
        return tuple(answer.label for answer in client.predict(adapter, texts, progress=progress))


def local_exchange(texts: Dataset, adapter: str, folder: Path, progress: Progress) -> Exchanged:
    """Rows that go into the vendor's blocks of a local run, and rows that come out: a customer's queries.

    Args:
        texts: What is asked about.
        adapter: The adapter that the run made, of a language model.
        folder: Where vendor, customer and run are, as `local_evidence` was given it.
        progress: Where to show progress.
    """
    with closing(_client(folder)) as client:
        return client.exchange(adapter, texts, progress=progress)


def _client(folder: Path) -> Client:
    """The local run's customer, at its vendor."""
    return Client(transport=local_transport(folder), home=folder / "customer")


def local_transport(folder: Path) -> LocalTransport:
    """A way to the local run's vendor.

    Args:
        folder: Where it is, as `local_evidence` was given it.
    """
    key = vendor.keys.create(folder / "vendor", "audit")
    return LocalTransport(create_app(VendorSettings.load(folder / "vendor")), key)


def recorded_evidence(
    given: Corpora, run: Path, model: str, home: Home, *, attacker: AttackerSpec, beside: Evidence | None = None
) -> Evidence:
    """What a run that was showed.

    Args:
        given: The files that it was run on.
        run: Its folder (`finetune --out`).
        model: The vendor's model: `starter`, a local folder or a hub id.
        home: The folder of the customer that ran it.
        attacker: What the attacker is taken to know of the texts.
        beside: What another run showed, which is read together with this one.

    Raises:
        ConfigError: The folder holds no finished run; or words were drawn in another way than those of the other run.
        DataError: The run was over other data.
    """
    archive = local_archive(home, model, Evidence.settings(run).cut)
    numbers = None if beside is None or beside.words is None else beside.words.numbers
    return Evidence.of(run, given, archive, home=home, attacker=attacker, beside=numbers)
