"""A fine-tuning job from files to a published adapter, resumable at every step."""

from __future__ import annotations

import functools
import hashlib
import math
import time
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cutlayer.attacks import (
    Knowledge,
    LabelTruth,
    Measured,
    Outcome,
    TokenTruth,
    measure_empirical_privacy,
    measure_label_recovery,
)
from cutlayer.core import Claim, ConfigError, Cut, Fault, Guarantee, PrivacyError, Proportion, Stopped
from cutlayer.customer.gate import Gate
from cutlayer.customer.handout import Offer, fetch_archive
from cutlayer.customer.home import Home
from cutlayer.customer.link import AdapterLink, Link, Stored
from cutlayer.customer.profile import Profile
from cutlayer.customer.progress import Progress
from cutlayer.customer.results import FinetuneResult
from cutlayer.customer.run import OPTIMISER, Run
from cutlayer.customer.session import Session, Texts
from cutlayer.customer.settings import RunSpec, TrainBottom
from cutlayer.customer.trainer import Examples, Trainer, evaluate
from cutlayer.customer.upload import Uploaded, upload
from cutlayer.data import Dataset, LabelNames, tokenise
from cutlayer.models import FAMILIES, Archive
from cutlayer.models.optimiser import Optimiser
from cutlayer.privacy import CustomerSecret, UtilityImportance, build_privatizer, largest_distance
from cutlayer.wire import Form, routes
from cutlayer.wire.messages import (
    AdapterInfo,
    JobInfo,
    JobSpec,
    LoraSpec,
    OptimiserSpec,
    RecordSetSpec,
    SnapshotRequest,
)


@dataclass(frozen=True)
class Corpora:
    """The customer's data: what to train on, to stop on, and to measure on."""

    train: Dataset
    dev: Dataset | None
    test: Dataset | None

    def split(self, *, dev_share: float, seed: int) -> tuple[Dataset, Dataset]:
        """Train and dev; a share of train is held out where no dev was given.

        The share is drawn without looking at labels: a stratified one would make which texts are
        trained on, and so what the vendor sees, a function of the labels.
        """
        if self.dev is not None:
            return self.train, self.dev
        rows = len(self.train)
        held = math.ceil(round(dev_share * rows, 6))
        if not 0 < held < rows:
            raise ConfigError(
                [Fault("dev_share", dev_share, f"leaves one side of {rows} rows empty")],
                remedy="Give more rows, or a dev file.",
            )
        order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed)).tolist()
        return self.train.select(sorted(order[held:])), self.train.select(sorted(order[:held]))

    def digest(self, key: bytes) -> str:
        """A keyed digest of all texts and labels, by which a resumed run knows its data."""
        state = hashlib.blake2b(key=key, digest_size=16)
        for dataset in (self.train, self.dev, self.test):
            for row, label in zip(dataset.texts, dataset.labels or (), strict=False) if dataset else ():
                state.update("\x1f".join((*row, label)).encode() + b"\x1e")
            state.update(b"\x1d")
        return state.hexdigest()


def form_of(spec: RunSpec) -> Form:
    """Ids where everything below the cut is a frozen lookup of drawn tokens, else rows."""
    ids = not spec.bottom and spec.train_bottom is TrainBottom.FROZEN and spec.privacy.mechanism != "vector"
    return Form.IDS if ids else Form.ROWS


def check_spec(spec: RunSpec) -> None:
    """Refuses combinations that have no meaning, with all faults at once."""
    faults = []
    if spec.bottom is None and spec.privacy.mechanism != "none":
        faults.append(Fault("bottom", "text", "has no embedding table, which noise needs: use 0, or eta inf"))
    if spec.bottom is None and spec.train_bottom is not TrainBottom.FROZEN:
        faults.append(Fault("train_bottom", spec.train_bottom, "needs weights at the customer: use bottom 0 or more"))
    if spec.train_bottom is not TrainBottom.FROZEN and spec.privacy.mechanism == "vector":
        faults.append(Fault("mechanism", "vector", "works with a frozen bottom only: use text-to-text"))
    if spec.train_bottom is TrainBottom.MEMOISED and not spec.bottom:
        faults.append(Fault("train_bottom", "memoised", "trains blocks: use bottom 1 or more"))
    if faults:
        raise ConfigError(faults)


def noise_secret(home: Home, unsafe_noise_seed: int | None) -> CustomerSecret:
    """What noise derives from: the customer's secret, or a seed that protects nothing."""
    return home.secret if unsafe_noise_seed is None else CustomerSecret.unsafe(unsafe_noise_seed)


def build_session(
    archive: Archive,
    home: Home,
    spec: RunSpec,
    importance: UtilityImportance | None,
    link: Link | AdapterLink | None,
    device: torch.device,
) -> Session:
    """The road for these settings."""
    privatizer = build_privatizer(
        spec.privacy,
        secret=noise_secret(home, spec.unsafe_noise_seed),
        table=None if archive.table is None else archive.table.detach().cpu().clone(),
        candidates=archive.candidates,
        table_fingerprint=archive.fingerprint,
        boundary=f"{archive.fingerprint}/{archive.manifest.cut.slug}",
        importance=importance,
    )
    return Session(
        archive=archive,
        privatizer=privatizer,
        link=link,
        form=form_of(spec),
        wire_type=spec.wire_type,
        vault=home.vault,
        train_bottom=spec.train_bottom is not TrainBottom.FROZEN,
        dropout=spec.train.dropout,
        seed=spec.seed,
        device=device,
    )


class Finetuning:
    """One run, from data to result.

    Args:
        home: The customer's folder.
        gate: The door, recording into the run's folder.
        offer: The vendor's model and limits.
        corpora: The data.
        run: The run's state and folder.
        progress: Where to show progress.
        device: Where the bottom is computed.
    """

    def __init__(
        self,
        home: Home,
        gate: Gate,
        offer: Offer,
        corpora: Corpora,
        run: Run,
        progress: Progress,
        device: torch.device,
    ) -> None:
        self.home = home
        self.gate = gate
        self.model = offer.model
        self.positions = offer.positions
        self.train, self.dev = corpora.split(dev_share=run.state.spec.train.dev_share, seed=run.state.spec.seed)
        self.test = corpora.test
        self.run = run
        self.spec = run.state.spec
        self.progress = progress
        self.form = form_of(self.spec)
        # of all rows that were given, so that a class whose few rows fell into dev has its output too
        self.names = LabelNames.of(corpora.train.labels or ())
        self.archive = fetch_archive(gate, home, self.model, Cut(bottom=self.spec.bottom), progress)
        if self.spec.train_bottom is not TrainBottom.FROZEN and not self.spec.bottom:
            self.archive.check_trainable()  # the table is trained; deeper bottoms train their blocks alone
        self.max_content = self._max_content(self.train.segments)
        self.labels = self.names.encode(self.train.labels or (), source="train")
        # before anything leaves: a bad label found after training would cost the run
        self.dev_labels = self.names.encode(self.dev.labels or (), source="dev")
        self.test_labels = None if self.test is None else self.names.encode(self.test.labels or (), source="test")
        self.tokens = tokenise(self.train, self.archive.tokenizer, max_content=self.max_content)
        self.importance = self._importance()
        self.session = build_session(self.archive, home, self.spec, self.importance, None, device)

    def _max_content(self, segments: int) -> int:
        template, longest = self.archive.template, self.spec.train.max_length
        fits = template.max_content(segments)
        if longest is None:
            return fits
        if longest <= template.special_count(segments):
            raise ConfigError(
                [
                    Fault(
                        "max_length",
                        longest,
                        f"leaves no room beside {template.special_count(segments)} special tokens",
                    )
                ]
            )
        return min(fits, longest - template.special_count(segments))

    def _importance(self) -> UtilityImportance | None:
        if self.spec.privacy.cti is None:
            return None
        return UtilityImportance.fit(
            self.tokens,
            self.labels,
            vocab_size=self.model.vocab_size,
            num_labels=len(self.names),
            spec=self.spec.privacy.cti,
        )

    def execute(self) -> FinetuneResult:
        """Runs to the end, from wherever an earlier try stopped.

        Raises:
            Stopped: The user interrupted; the same command goes on.
        """
        started = time.monotonic()
        try:
            return self._execute(started)
        except KeyboardInterrupt as error:
            raise Stopped(
                f"Stopped. The state of the run is in {self.run.folder}.",
                remedy="Run the same command with the same --out to go on.",
            ) from error
        finally:
            self.run.state.seconds += time.monotonic() - started
            self.run.save()

    def _execute(self, started: float) -> FinetuneResult:
        spec = self._job_spec()
        train, dev, uploaded = self._examples()
        job = self._job(spec)
        link = Link(self.gate, job)
        self.session.link = link
        trainer = Trainer(
            self.session,
            link,
            train,
            dev,
            self.run,
            optimiser=self._optimiser(link),
            positions=self.positions,
            progress=self.progress,
        )
        best = trainer.fit()
        adapter = self.gate.send(routes.FINISH, {"job": link.job}, control=SnapshotRequest(step=best)).expect(
            AdapterInfo
        )
        bottom = self._best_bottom(best)
        profile = Profile(
            adapter=adapter.adapter,
            segments=self.train.segments,
            max_content=self.max_content,
            labels=self.names.names,
            spec=self.spec,
        )
        profile.save(self.home, self.importance, bottom)
        self.session.load_trained(bottom)
        self.session.link = AdapterLink(self.gate, adapter.adapter)
        accuracy, measured_on = self._accuracy(trainer)
        seconds = self.run.state.seconds + time.monotonic() - started
        result = self._result(trainer, adapter, accuracy, measured_on, uploaded, seconds)
        self._delete_records(job.spec)
        self.run.state.adapter = adapter.adapter
        return result

    def _delete_records(self, spec: JobSpec) -> None:
        """Has the vendor delete what it needs no more; whether it does is its word."""
        for record_set in spec.record_sets:
            self.gate.send(routes.RECORD_SET_DELETE, {"record_set": record_set})

    # ------------------------------------------------------------ data

    def _texts(self, dataset: Dataset, labels: Tensor) -> Examples:
        """A dataset as it is queried: without labels in the noise."""
        tokens = tokenise(dataset, self.archive.tokenizer, max_content=self.max_content)
        return self._labelled(Texts(tokens), labels)

    def _labelled(self, texts: Texts, labels: Tensor) -> Examples:
        return Examples(texts, labels, self.archive.template.segment_lengths(texts.tokens).sum(1))

    def _examples(self) -> tuple[Examples, Examples, Uploaded | None]:
        """Train and dev: stored at the vendor where the bottom is frozen, else as they are."""
        cti = self.spec.privacy.cti
        classes = self.labels if cti is not None and not cti.class_free else None
        train, dev = self._labelled(Texts(self.tokens, classes), self.labels), self._texts(self.dev, self.dev_labels)
        self._check_batches(train.lengths)
        if self.spec.train_bottom is not TrainBottom.FROZEN:
            return train, dev, None
        train_up, dev_up = self._upload(train.texts, "train"), self._upload(dev.texts, "dev")
        return (
            replace(train, texts=train_up.stored(0)),
            replace(dev, texts=dev_up.stored(len(train_up.first_text))),
            train_up,
        )

    def _check_batches(self, lengths: Tensor) -> None:
        """Refuses, before anything leaves, batches that the vendor would refuse in the middle of an epoch."""
        size, longest = min(self.spec.train.batch_size, len(lengths)), int(lengths.max())
        if size * longest > self.positions:
            fits = self.positions // longest
            raise ConfigError(
                [
                    Fault(
                        "batch_size",
                        size,
                        f"makes {size * longest} positions with texts of {longest} tokens; "
                        f"the vendor takes {self.positions} a step",
                    )
                ],
                remedy=f"Use batches of {fits} texts, or a smaller max_length."
                if fits
                else f"Use a max_length of {self.positions} or less.",
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
                segments=self.train.segments,
                wire_type=self.spec.wire_type,
            ),
            width=self.model.width,
            progress=self.progress,
            stage=f"privatize and release {name}",
        )

    # ------------------------------------------------------------ job

    @property
    def job_cut(self) -> Cut:
        """The cut as the vendor sees it: ids make every cut a text cut."""
        return Cut(bottom=None if self.form is Form.IDS else self.spec.bottom)

    @property
    def _total_steps(self) -> int:
        settings = self.spec.train
        return -(-len(self.train) // settings.batch_size) * settings.epochs

    def _job_spec(self) -> JobSpec:
        """What the vendor is told; made before anything leaves, so that what it refuses is known by then."""
        settings = self.spec.train
        frozen = self.spec.train_bottom is TrainBottom.FROZEN
        return JobSpec(
            model=self.model.name,
            fingerprint=self.model.fingerprint,
            cut=self.job_cut,
            form=self.form,
            wire_type=self.spec.wire_type,
            segments=self.train.segments,
            record_sets=tuple(self.run.identifier(name) for name in ("train", "dev")) if frozen else (),
            num_labels=len(self.names),
            trainable_bottom=not frozen,
            lora=LoraSpec(
                rank=settings.rank, alpha=settings.alpha, dropout=settings.lora_dropout, targets=settings.targets
            ),
            optimiser=OptimiserSpec(
                learning_rate=settings.learning_rate,
                weight_decay=settings.weight_decay,
                total_steps=self._total_steps,
            ),
            dropout=settings.dropout,
            precision=settings.precision,
            seed=self.spec.seed,
            checkpoint_every=settings.checkpoint_every,
        )

    def _job(self, spec: JobSpec) -> JobInfo:
        """The job, started or found, at a step from which both parties can go on."""
        job = self.run.identifier("job")
        info = self.gate.send(routes.JOB_PUT, {"job": job}, control=spec).expect(JobInfo)
        if spec.trainable_bottom:
            common = max(set(info.checkpoints) & set(self.run.checkpoints()))
            info = self.gate.send(routes.ROLLBACK, {"job": job}, control=SnapshotRequest(step=common)).expect(JobInfo)
        return info

    def _optimiser(self, link: Link) -> Optimiser | None:
        """The customer's own optimiser and bottom, as they were at the link's step."""
        if self.spec.train_bottom is TrainBottom.FROZEN:
            return None
        settings = self.spec.train
        optimiser = Optimiser(
            self.session.trained(),
            learning_rate=settings.learning_rate,
            weight_decay=settings.weight_decay,
            warmup_steps=0,
            total_steps=self._total_steps,
        )
        if link.step:
            kept = self.run.read_checkpoint(link.step)
            self.session.load_trained({name: kept[name] for name in kept if not name.startswith(OPTIMISER)})
            optimiser.load({name.removeprefix(OPTIMISER): kept[name] for name in kept if name.startswith(OPTIMISER)})
        return optimiser

    def _best_bottom(self, step: int) -> dict[str, Tensor]:
        if self.spec.train_bottom is TrainBottom.FROZEN:
            return {}
        kept = self.run.read_checkpoint(step)
        return {name: tensor for name, tensor in kept.items() if not name.startswith(OPTIMISER)}

    # ------------------------------------------------------------ result

    def _accuracy(self, trainer: Trainer) -> tuple[Proportion, str]:
        """Accuracy on test, through the published adapter; or the best epoch's on dev, already measured."""
        if self.test is None or self.test_labels is None:
            best = max(self.run.state.dev)
            return Proportion.of(round(best * len(trainer.dev)), len(trainer.dev)), "dev"
        test = self._texts(self.test, self.test_labels)
        accuracy = evaluate(self.session, test, positions=self.positions, progress=self.progress, stage="test")
        return accuracy, "test"

    def _result(
        self,
        trainer: Trainer,
        adapter: AdapterInfo,
        accuracy: Proportion,
        measured_on: str,
        uploaded: Uploaded | None,
        seconds: float,
    ) -> FinetuneResult:
        inversion = self._inversion(trainer, uploaded)
        labels = measure_label_recovery(
            self.run.transcript, truth=LabelTruth(self.labels, len(self.names), self._texts_of_steps(trainer))
        )
        measured = inversion if isinstance(inversion, Measured) else None
        replaced = self._replaced(trainer) if uploaded is None else uploaded.replaced
        spent = self.gate.spent()
        privatizer = self.session.privatizer
        looks = len(self.run.state.dev) if self.spec.train_bottom is TrainBottom.REDRAW else 1
        return FinetuneResult(
            adapter_id=adapter.adapter,
            adapter_sha256=adapter.sha256,
            ua=accuracy.value,
            ua_on=measured_on,
            ua_n=accuracy.n,
            ua_standard_error=accuracy.standard_error,
            ep=measured.privacy.value if measured else None,
            ep_n=measured.privacy.n if measured else 0,
            ep_standard_error=measured.privacy.standard_error if measured else None,
            ep_note=_note(inversion),
            replaced=None if replaced is None else replaced / max(1, self.tokens.total),
            label_recovery=labels.success.value if isinstance(labels, Measured) else None,
            n_train=len(self.train),
            n_dev=len(self.dev),
            n_test=len(self.test or ()),
            uplink_bytes={**spent.uplink, "total": sum(spent.uplink.values())},
            downlink_bytes=spent.downlink,
            tokens_released=spent.tokens,
            seconds=seconds,
            steps=trainer.link.step,
            epochs=len(self.run.state.dev),
            best_epoch=self.run.state.best_epoch,
            dev=tuple(self.run.state.dev),
            eta=self.spec.privacy.eta,
            no_privacy=self.spec.privacy.mechanism == "none",
            unsafe_noise=self.spec.unsafe_noise_seed is not None,
            looks=looks,
            # each epoch's fresh release is a look of its own, and looks add up
            guarantee=functools.reduce(Guarantee.compose, [privatizer.guarantee] * looks),
            largest_distance=self._largest_distance(),
            deviations=privatizer.deviations + self.spec.deviations(FAMILIES[self.model.family]),
            spec=self.spec,
            folder=self.run.folder,
        )

    def _largest_distance(self) -> float | None:
        table = self.session.privatizer.space.table
        noisy = self.session.privatizer.guarantee.claim is not Claim.NONE
        return largest_distance(table) if noisy and table is not None else None

    def _replaced(self, trainer: Trainer) -> int | None:
        """Tokens that the first epoch's draws replaced; they are made again, not charged again."""
        changed = 0
        for step, batch in enumerate(trainer.batches(0), start=1):
            texts, _ = trainer.train.batch(batch)
            if isinstance(texts, Texts):
                drawn = self.session.count_replaced(texts, look=trainer.look(0, step))
                if drawn is None:
                    return None
                changed += drawn
        return changed

    def _texts_of_steps(self, trainer: Trainer) -> dict[tuple[str, int], Tensor]:
        """Which texts each step was about: the customer knows, an attack does not."""
        batches = [batch for epoch in range(len(self.run.state.dev)) for batch in trainer.batches(epoch)]
        return {(trainer.link.job, step): batch for step, batch in enumerate(batches, start=1)}

    def _inversion(self, trainer: Trainer, uploaded: Uploaded | None) -> Outcome:
        """Embedding inversion of what was recorded (SAP §5.1; for a trainable bottom, Appendix A)."""
        if uploaded is not None:
            records = {self.run.identifier("train"): torch.tensor(uploaded.record_of)}
            truth = TokenTruth(self.tokens, records=records)
        else:
            truth = TokenTruth(self.tokens, steps=self._texts_of_steps(trainer))
        initial = fetch_archive(self.gate, self.home, self.model, Cut(bottom=self.spec.bottom), self.progress)
        # without noise a row of any token may have left, one for unknown words too
        guessed = None if self.spec.privacy.mechanism == "none" else initial.candidates
        return measure_empirical_privacy(
            self.run.transcript,
            knowledge=Knowledge(cut=self.job_cut, table=initial.table, candidates=guessed, template=initial.template),
            truth=truth,
        )


def _note(outcome: Outcome) -> str:
    """What the number of an attack covers, in a sentence."""
    if isinstance(outcome, Measured):
        return (
            "1 - share of training tokens that nearest-neighbour inversion recovered from the recorded transcript "
            f"({outcome.looks} release{'s' if outcome.looks > 1 else ''} of each text); stronger attacks exist."
        )
    return outcome.reason
