"""A fine-tuning job from files to a published adapter, resumable at every step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http import HTTPStatus

import torch
from torch import Tensor

from cutlayer.attacks import Knowledge
from cutlayer.core import ConfigError, Cut, Fault, ModelError, Place, PrivacyError, Stopped, VendorError
from cutlayer.customer.derived import dropout_seed, label_response, noise_secret, run_order, run_privatizer
from cutlayer.customer.evidence import granted
from cutlayer.customer.forecast import Forecast
from cutlayer.customer.gate import Gate
from cutlayer.customer.handout import Offer, fetch_archive
from cutlayer.customer.home import Home
from cutlayer.customer.link import AdapterLink, Link, Seq2SeqLink, Stored
from cutlayer.customer.measure import MEASURES
from cutlayer.customer.prepare import Labelled, Plain, check_batches, largest_step, prepare
from cutlayer.customer.profile import Profile
from cutlayer.customer.progress import Progress
from cutlayer.customer.results import RunResult
from cutlayer.customer.run import OPTIMISER, Run
from cutlayer.customer.seq2seq import Seq2SeqSession
from cutlayer.customer.session import Session, Texts
from cutlayer.customer.settings import Method, Objective, RunSpec, TrainBottom
from cutlayer.customer.trainer import Examples, Trainer
from cutlayer.customer.tuning import trains_shared, tune
from cutlayer.customer.upload import Uploaded, upload
from cutlayer.models import FAMILIES, Archive
from cutlayer.models.optimiser import Optimiser, updates_in
from cutlayer.privacy import PrivacySpec, Spellings, UtilityImportance, build_privatizer
from cutlayer.wire import Form, routes
from cutlayer.wire.messages import (
    AdapterInfo,
    JobInfo,
    JobSpec,
    JobState,
    LoraSpec,
    ModelInfo,
    OptimiserSpec,
    RecordSetSpec,
    SnapshotRequest,
)


def check_spec(spec: RunSpec) -> None:
    """Refuses combinations that have no meaning, with all faults at once."""
    faults = []
    if spec.bottom is None and spec.privacy.mechanism != "none":
        faults.append(Fault("bottom", "text", "has no embedding table, which noise needs: use 0, or eta inf"))
    if spec.bottom is None and spec.train_bottom is not TrainBottom.FROZEN:
        faults.append(Fault("train_bottom", spec.train_bottom, "needs weights at the customer: use bottom 0 or more"))
    if spec.train_bottom is not TrainBottom.FROZEN and spec.privacy.mechanism == "vector":
        faults.append(Fault("mechanism", "vector", "works with a frozen bottom only: use text-to-text"))
    if spec.budget is not None and spec.unsafe_noise_seed is not None:
        faults.append(Fault("budget", spec.budget, "cannot limit noise from a seed, which protects nothing"))
    looks = spec.train.epochs * spec.privacy.eta
    if spec.train_bottom is TrainBottom.REDRAW and not spec.privacy.cti and spec.budget and looks > spec.budget:
        faults.append(
            Fault(
                "budget",
                spec.budget,
                f"must be {looks:g} or more for {spec.train.epochs} epochs, each a look at eta {spec.privacy.eta:g}",
            )
        )
    faults += _label_faults(spec)
    if spec.train_bottom is TrainBottom.MEMOISED and not spec.bottom and not spec.target:
        faults.append(Fault("train_bottom", "memoised", "trains blocks: use bottom 1 or more"))
    faults += _objective_faults(spec)
    if faults:
        raise ConfigError(faults)


def _label_faults(spec: RunSpec) -> Iterator[Fault]:
    """Settings that do not go with labels drawn by randomised response."""
    epsilon, budget = spec.label_epsilon, spec.label_budget
    if epsilon is None:
        if budget is not None:
            yield Fault("label_budget", budget, "needs label_epsilon: labels as they are exceed every budget")
        return
    if spec.objective.generates:
        yield Fault("label_epsilon", epsilon, "must be left out: these labels are the text, and leave as eta says")
    if spec.privacy.cti is not None:
        yield Fault("cti", "set", "must be left out with label_epsilon: its noise is made of the true labels")
    if budget is not None and spec.unsafe_noise_seed is not None:
        yield Fault("label_budget", budget, "cannot limit labels drawn from a seed, which protects nothing")
    elif budget is not None and epsilon > budget:
        yield Fault("label_budget", budget, f"must be {epsilon:g} or more, which is label_epsilon")


def _objective_faults(spec: RunSpec) -> Iterator[Fault]:
    """Settings that do not go with what is learnt."""
    if spec.objective is Objective.CLASSIFICATION:
        if spec.tail is not None:
            yield Fault("tail", spec.tail, "must be left out: a classifier's head is the vendor's")
        if spec.train.method is Method.FULL:
            yield Fault("method", "full", 'must be "lora": a classifier is tuned with adapters and a head')
        if spec.train.packing:
            yield Fault("packing", True, "must be off: each text has a label of its own")
        if spec.public_iterations:
            yield Fault("public_iterations", spec.public_iterations, "must be 0: a classifier needs labels to train on")
        return
    if spec.objective is Objective.SEQ2SEQ:
        yield from _seq2seq_faults(spec)
    elif spec.target:
        yield Fault("target", spec.target, "must be 0: a language model has one stack of blocks")
    if spec.tail is None:
        yield Fault("tail", None, "must be 0 or more: a language model's labels are its text, so its head stays here")
    if spec.privacy.cti is not None:
        yield Fault("cti", "set", "must be left out: contributing tokens are found by class labels, and there are none")
    if spec.public_iterations and spec.train_bottom is TrainBottom.FROZEN:
        yield Fault(
            "public_iterations", spec.public_iterations, "must be 0 with a frozen bottom, which they cannot change"
        )
    if spec.public_iterations % spec.train.accumulation:
        yield Fault(
            "public_iterations",
            spec.public_iterations,
            f"must be a multiple of accumulation = {spec.train.accumulation}, so that their update is taken before a "
            "private text leaves",
        )
    redraws = spec.train_bottom is TrainBottom.REDRAW
    if redraws and spec.train.method is Method.LORA and not spec.bottom and not spec.target:
        yield Fault("train_bottom", "redraw", 'trains the table: use method "full", or leave the bottom frozen')


def check_head(archive: Archive) -> None:
    """Refuses a whole tuning above released ids of a model whose head is its embedding table.

    The vendor looks ids up in a table of its own and trains it; the head, the same weights, would stay behind here.

    Raises:
        ConfigError: The head is tied to the table.
    """
    if archive.tail is not None and any(weight is archive.table for weight in archive.tail.parameters()):
        raise ConfigError(
            [Fault("method", "full", "must be lora: ids are released, and this model's head is its embedding table")],
            remedy="Use --bottom 1, or adapters.",
        )


def check_model(spec: RunSpec, model: ModelInfo) -> None:
    """Refuses a model that cannot learn what is to be learnt.

    Raises:
        ModelError: It is an encoder-decoder and the objective is for others, or the other way round.
    """
    pairs, seq2seq = model.target_blocks is not None, spec.objective is Objective.SEQ2SEQ
    if pairs and not seq2seq:
        raise ModelError(
            f"{model.name} is an encoder-decoder ({model.family}): it writes a target text for each source text.",
            remedy="Use --objective seq2seq (in Python finetune_seq2seq), or another model.",
        )
    if seq2seq and not pairs:
        raise ModelError(f"{model.name} ({model.family}) is no encoder-decoder.", remedy="Choose one, T5 for example.")


def _seq2seq_faults(spec: RunSpec) -> Iterator[Fault]:
    """Settings that an encoder-decoder does not allow."""
    if spec.bottom is None:
        yield Fault("bottom", "text", "must be 0 or more: the ids of target texts are their labels")
    if spec.privacy.place is Place.ACTIVATIONS:
        yield Fault(
            "place",
            "activations",
            "must be tokens: the rows of a target text change with each step, so noise on them would be a new look "
            "each time",
        )
    if spec.train.packing:
        yield Fault("packing", True, "must be off: each source text has a target text of its own")
    if spec.train.dropout:
        yield Fault("dropout", True, "must be off: a cut encoder-decoder cannot drop out as the whole one does")


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Sets the number of threads of matrix products meanwhile."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def build_session(
    archive: Archive,
    home: Home,
    spec: RunSpec,
    importance: UtilityImportance | None,
    link: Link | AdapterLink | None,
    device: torch.device,
) -> Session:
    """The road for these settings."""
    secret = noise_secret(home, spec.unsafe_noise_seed)
    kind = Seq2SeqSession if spec.objective is Objective.SEQ2SEQ else Session
    return kind(
        archive=archive,
        parts=tune(archive, spec),
        privatizer=run_privatizer(archive, spec, secret, importance),
        public=build_privatizer(PrivacySpec.no_privacy(), secret=secret, spellings=Spellings(archive.spellings)),
        link=link,
        form=spec.form,
        wire_type=spec.wire_type,
        vault=home.vault,
        seed=dropout_seed(secret, spec.seed),
        precision=spec.train.precision,
        device=device,
    )


def delete_records(run: Run, gate: Gate) -> None:
    """Has the vendor delete what a finished run needs no more; whether it does is its word.

    What it cannot be asked for now is asked for when the run is shown again: a result is not lost for it.
    """
    for record_set in list(run.state.undeleted):
        try:
            gate.send(routes.RECORD_SET_DELETE, {"record_set": record_set})
        except VendorError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                return
        run.state.undeleted.remove(record_set)
        run.save()


_REORDERED = (
    "The rows of its files came in another order when this run was continued. Order and draws follow from what texts "
    "say, so nothing was drawn again.",
)


class Finetuning:
    """One run, from data to result.

    Args:
        home: The customer's folder.
        gate: The door, recording into the run's folder.
        offer: The vendor's model and limits.
        rows: The data.
        run: The run's state and folder.
        progress: Where to show progress.
        device: Where the bottom is computed.
    """

    def __init__(
        self,
        home: Home,
        gate: Gate,
        offer: Offer,
        rows: Labelled | Plain,
        run: Run,
        progress: Progress,
        device: torch.device,
    ) -> None:
        self.home = home
        self.gate = gate
        self.model = offer.model
        self.positions = offer.positions
        self.run = run
        self.spec = run.state.spec
        self.progress = progress
        self.form = self.spec.form
        check_model(self.spec, self.model)
        self.archive = fetch_archive(gate, home, self.model, self.spec.cut, progress)
        if (self._trains_bottom and not self.spec.bottom) or self.spec.train.method is Method.FULL:
            self.archive.check_trainable()  # the table is trained; deeper bottoms may train their blocks alone
        if self.form is Form.IDS and self.spec.train.method is Method.FULL:
            check_head(self.archive)
        secret = noise_secret(home, self.spec.unsafe_noise_seed)
        self.data = prepare(
            rows,
            self.spec,
            self.archive,
            vocab_size=self.model.vocab_size,
            reported=rows.report(label_response(self.spec, secret), self.archive.tokenizer, vault=home.vault)
            if isinstance(rows, Labelled)
            else None,
        )
        self.order = run_order(self.spec.seed, self.spec.privacy, secret)
        self.session = build_session(self.archive, home, self.spec, self.data.importance, None, device)
        self.data.check()
        self._forecast = Forecast(
            home,
            self.spec,
            self.data,
            self.session,
            width=self.model.width,
        )
        self._forecast.check_noise(self.archive)
        for examples in (self.data.train, self.data.public):
            if examples is not None:
                check_batches(examples.lengths, batch_size=self.spec.train.batch_size, positions=self.positions)

    @property
    def _trains_bottom(self) -> bool:
        return self.spec.train_bottom is not TrainBottom.FROZEN

    @property
    def _trains(self) -> bool:
        """Whether the customer has weights of its own to train, and to keep in step with the vendor's."""
        return bool(self.session.trained())

    def execute(self) -> RunResult:
        """Runs to the end, from wherever an earlier try stopped.

        Raises:
            Stopped: The user interrupted; the same command goes on.
        """
        started = time.monotonic()
        if not self.run.state.accepted:
            self._begin()
        try:
            with _threads(self.run.state.threads if not self.spec.stores else torch.get_num_threads()):
                return self._execute(started)
        except KeyboardInterrupt as error:
            raise Stopped(
                f"Stopped. The state of the run is in {self.run.folder}.",
                remedy="Run the same command with the same --out to go on.",
            ) from error
        finally:
            self.run.state.seconds += time.monotonic() - started
            self.run.save()

    def _begin(self) -> None:
        """Has the vendor take the job before any text leaves; if it refuses, the folder is free for another run."""
        self._forecast.check_budget(self.progress)
        self.run.state.asked = True
        self.run.save()
        try:
            self.gate.send(routes.JOB_PUT, {"job": self.run.identifier("job")}, control=self._job_spec())
        except VendorError as error:
            # a refusal; otherwise the vendor may have taken it, and an answer was lost
            self.run.state.asked = not 400 <= error.status < 500
            raise
        self.run.state.accepted = True
        self.run.save()

    def _execute(self, started: float) -> RunResult:
        spec = self._job_spec()
        train, dev, uploaded = self._examples()
        job = self._job(spec)
        link = (Seq2SeqLink if self.spec.objective is Objective.SEQ2SEQ else Link)(self.gate, job)
        self.session.link = link
        trainer = Trainer(
            self.session,
            link,
            train,
            dev,
            self.run,
            order=self.order,
            public=self.data.public,
            optimiser=None if job.state is JobState.FINISHED else self._optimiser(link),
            positions=self.positions,
            progress=self.progress,
        )
        best = trainer.fit()
        adapter = self.gate.send(routes.FINISH, {"job": link.job}, control=SnapshotRequest(step=best)).expect(
            AdapterInfo
        )
        trained = self._best_trained(best)
        profile = Profile(
            adapter=adapter.adapter,
            segments=self.data.segments,
            max_content=self.data.max_content,
            labels=self.data.label_names,
            spec=self.spec,
        )
        profile.save(self.home, self.data.importance, trained)
        self.session.load_trained(trained)
        self.session.link = AdapterLink(self.gate, adapter.adapter, labels=spec.num_labels)
        measures = MEASURES[self.spec.objective](self.data, self.session, self.run, trainer, uploaded)
        utility = measures.utility(positions=self.positions, progress=self.progress)
        seconds = self.run.state.seconds + time.monotonic() - started
        result: RunResult = measures.result(
            adapter,
            utility,
            self._knowledge(),
            spent=self.gate.spent(),
            looks=self.gate.looks(),
            deviations=self.spec.deviations(FAMILIES[self.model.family]),
            seconds=seconds,
            caveats=self._forecast.overspent() + (_REORDERED if self.run.reordered else ()),
            labels=self._forecast.label_guarantee(),
        )
        self.run.state.undeleted = list(job.spec.record_sets)
        self.run.finish(result)
        self.run.save()  # before anything of it is deleted
        delete_records(self.run, self.gate)
        return result

    # ------------------------------------------------------------ data

    def _examples(self) -> tuple[Examples, Examples, Uploaded | None]:
        """Train and dev: stored at the vendor where the bottom is frozen, else as they are."""
        train, dev = self.data.train, self.data.stopping
        if not self.spec.stores:
            return train, dev, None
        train_up, dev_up = self._upload(train.texts, "train"), self._upload(dev.texts, "dev")
        return (
            replace(train, texts=train_up.stored(0)),
            replace(dev, texts=dev_up.stored(len(train_up.first_text))),
            train_up,
        )

    def _upload(self, texts: Texts | Stored, name: str) -> Uploaded:
        if isinstance(texts, Stored):
            raise PrivacyError(f"The texts of {name} were released already.")
        return upload(
            self.session,
            self.gate,
            texts,
            record_set=self.run.identifier(name),
            spec=RecordSetSpec(
                model=self.model.name,
                cut=self.job_cut,
                form=self.form,
                segments=self.data.segments,
                wire_type=self.spec.wire_type,
            ),
            width=self.model.width,
            progress=self.progress,
            stage=f"privatize and release {name}",
        )

    # ------------------------------------------------------------ job

    @property
    def job_cut(self) -> Cut:
        """The cut as the vendor sees it: ids make every bottom a text cut's."""
        cut = self.spec.cut
        return cut.model_copy(update={"bottom": None}) if self.form is Form.IDS else cut

    @property
    def _total_steps(self) -> int:
        settings = self.spec.train
        return self.spec.public_iterations + -(-len(self.data.train) // settings.batch_size) * settings.epochs

    def _job_spec(self) -> JobSpec:
        """What the vendor is told."""
        settings = self.spec.train
        stores = self.spec.stores
        return JobSpec(
            model=self.model.name,
            fingerprint=self.model.fingerprint,
            cut=self.job_cut,
            form=self.form,
            wire_type=self.spec.wire_type,
            segments=1 if self.spec.objective is Objective.SEQ2SEQ else self.data.segments,
            record_sets=tuple(self.run.identifier(name) for name in ("train", "dev")) if stores else (),
            num_labels=len(self.data.label_names) or None,
            trainable_bottom=not stores,
            lora=None
            if settings.method is Method.FULL
            else LoraSpec(
                rank=settings.rank, alpha=settings.alpha, dropout=settings.lora_dropout, targets=settings.targets
            ),
            shared_weights=trains_shared(self.spec, FAMILIES[self.model.family]),
            optimiser=OptimiserSpec(
                learning_rate=settings.learning_rate,
                weight_decay=settings.weight_decay,
                total_steps=self._total_steps,
                accumulation=settings.accumulation,
                clip_norm=settings.clip_norm,
            ),
            dropout=settings.dropout,
            gradient_checkpointing=settings.gradient_checkpointing,
            precision=settings.precision,
            seed=self.spec.seed,
            checkpoint_every=settings.checkpoint_steps,
            largest_steps=tuple(
                largest_step(examples, self.archive, batch_size=settings.batch_size)
                for examples in (self.data.train, self.data.public)
                if examples is not None
            ),
        )

    def _job(self, spec: JobSpec) -> JobInfo:
        """The job, started or found, at a step from which both parties can go on."""
        job, labels = self.run.identifier("job"), self.data.reported
        if labels is not None:
            labels.keep(self.home.vault)
        # its gradients show the labels, so they are written down before the first of them
        info = self.gate.send(routes.JOB_PUT, {"job": job}, control=spec, labels=labels).expect(JobInfo)
        if self._trains and info.state is not JobState.FINISHED:
            common = max(set(info.checkpoints) & set(self.run.checkpoints()), default=None)
            if common is None:
                raise VendorError(
                    "The vendor names no checkpoint of this job that is kept here too, not even its beginning.",
                    remedy="Give the run up with `cutlayer discard`, and begin again.",
                )
            info = self.gate.send(routes.ROLLBACK, {"job": job}, control=SnapshotRequest(step=common)).expect(JobInfo)
        return info

    def _optimiser(self, link: Link) -> Optimiser | None:
        """The customer's own optimiser and weights, as they were at the link's step."""
        if not self._trains:
            return None
        settings = self.spec.train
        optimiser = Optimiser(
            self.session.trained(),
            learning_rate=settings.learning_rate,
            weight_decay=settings.weight_decay,
            warmup_steps=0,
            total_steps=updates_in(self._total_steps, settings.accumulation),
        )
        if link.step:
            kept = self.run.read_checkpoint(link.step)
            self.session.load_trained({name: kept[name] for name in kept if not name.startswith(OPTIMISER)})
            optimiser.load({name.removeprefix(OPTIMISER): kept[name] for name in kept if name.startswith(OPTIMISER)})
        return optimiser

    def _best_trained(self, step: int) -> dict[str, Tensor]:
        return self.run.read_trained(step) if self._trains else {}

    def _knowledge(self) -> Knowledge:
        """What the vendor knows: the parts as they were handed out, not as the customer trained or moved them."""
        archive = self.archive
        if self._trains or self.session.device.type != "cpu":
            archive = fetch_archive(self.gate, self.home, self.model, self.spec.cut, self.progress)
        return granted(self.spec, archive)
