"""A planned run, from its job's acceptance to a published adapter; resumable at every step."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import torch

from cutlayer.core import PrivacyError, Stopped, VendorError
from cutlayer.customer.corpora import Labelled, Plain
from cutlayer.customer.follow import follow
from cutlayer.customer.gate import Gate
from cutlayer.customer.home import Home
from cutlayer.customer.link import Link, Seq2SeqLink, Stored
from cutlayer.customer.plan import Plan
from cutlayer.customer.progress import Progress
from cutlayer.customer.publish import publish
from cutlayer.customer.results import Detached, RunResult
from cutlayer.customer.resume import open_job, restore_optimiser
from cutlayer.customer.run import Run
from cutlayer.customer.session import Texts
from cutlayer.customer.settings import Objective
from cutlayer.customer.threads import threads
from cutlayer.customer.trainer import Examples, Trainer, TrainingTexts
from cutlayer.customer.upload import Uploaded, upload
from cutlayer.privacy import ReportedLabels
from cutlayer.wire import routes
from cutlayer.wire.messages import JobState


@dataclass(frozen=True)
class Execution:
    """One run, carried out.

    Attributes:
        home: The customer's folder.
        gate: The door, recording into the run's folder.
        plan: What is done.
        rows: The data.
        run: The run's state and folder.
        progress: Where to show progress.
        detach: Whether to leave a job to the vendor that it trains alone.
    """

    home: Home
    gate: Gate
    plan: Plan
    rows: Labelled | Plain
    run: Run
    progress: Progress
    detach: bool = False

    def execute(self) -> RunResult | Detached:
        """Runs to the end, from wherever an earlier try stopped.

        Raises:
            Stopped: The user interrupted; the same command goes on.
        """
        started = time.monotonic()
        if not self.run.state.accepted:
            self._begin()
        try:
            with threads(self.run.state.threads if not self.plan.spec.stores else torch.get_num_threads()):
                return self._train(started)
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
        self.plan.forecast.check_budget(self.progress)
        self.run.state.asked = True
        self.run.save()
        try:
            self.gate.send(routes.JOB_PUT, {"job": self.run.identifier("job")}, control=self.plan.job_spec(self.run))
        except VendorError as error:
            # a refusal; otherwise the vendor may have taken it, and an answer was lost
            self.run.state.asked = not 400 <= error.status < 500
            raise
        self.run.state.accepted = True
        self.run.save()

    def _train(self, started: float) -> RunResult | Detached:
        plan = self.plan
        train, dev, uploaded = self._examples()
        job = open_job(plan, self.run, self.gate, self.home)
        if self.detach and not job.state.is_over:
            return Detached(job=self.run.identifier("job"), folder=self.run.folder)
        in_two = plan.spec.objective is Objective.SEQ2SEQ and not plan.spec.sends_pairs
        link = (Seq2SeqLink if in_two else Link)(self.gate, job)
        plan.session.link = link
        trainer = Trainer(
            plan.session,
            link,
            TrainingTexts(train, dev, plan.data.public, plan.order),
            self.run,
            optimiser=None if job.state is JobState.FINISHED else restore_optimiser(plan, self.run, link),
            positions=plan.offer.most_positions(None if plan.spec.stores else plan.spec.row_type),
            progress=self.progress,
        )
        best = self._follow(trainer) if plan.by_vendor else trainer.fit()
        return publish(
            self.home,
            plan,
            self.rows,
            trainer,
            uploaded,
            step=best,
            seconds=lambda: self.run.state.seconds + time.monotonic() - started,
        )

    def _follow(self, trainer: Trainer) -> int:
        """Watches until the vendor has trained; returns the step of the best adapter."""
        told = follow(self.gate, self.run.identifier("job"), self.progress)
        self.run.state.dev = list(told.dev)
        trainer.link.step = told.step
        self.run.log_epochs(told.losses, told.reconstruction_losses)
        self.run.save()
        return trainer.best_step

    def _examples(self) -> tuple[Examples, Examples, Uploaded | None]:
        """Train and dev: stored at the vendor where the bottom is frozen, else as they are."""
        train, dev = self.plan.data.train, self.plan.data.stopping
        if not self.plan.spec.stores:
            return train, dev, None
        reported = self.plan.data.reported if self.plan.by_vendor else None
        if reported is not None:
            reported.keep(self.home.vault)  # before any of them leaves
        of_train = None if reported is None else reported.select(slice(len(train)))
        of_dev = None if reported is None else reported.select(slice(len(train), None))
        train_up, dev_up = self._upload(train.texts, "train", of_train), self._upload(dev.texts, "dev", of_dev)
        return (
            replace(train, texts=train_up.stored(0)),
            replace(dev, texts=dev_up.stored(len(train_up.first_text))),
            train_up,
        )

    def _upload(self, texts: Texts | Stored, name: str, labels: ReportedLabels | None) -> Uploaded:
        if isinstance(texts, Stored):
            raise PrivacyError(f"The texts of {name} were released already.")
        return upload(
            self.plan.session,
            self.gate,
            texts,
            record_set=self.run.identifier(name),
            spec=self.plan.record_set_spec(trained=texts.trained),
            progress=self.progress,
            stage=f"privatize and release {name}",
            labels=labels,
        )
