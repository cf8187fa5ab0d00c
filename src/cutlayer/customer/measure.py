"""What a finished run is measured by: how useful the adapter is, and what its traffic gave away."""

from __future__ import annotations

import functools

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
from cutlayer.core import Deviation, Guarantee, Proportion
from cutlayer.customer.prepare import Prepared
from cutlayer.customer.progress import Progress
from cutlayer.customer.results import FinetuneResult
from cutlayer.customer.run import Run
from cutlayer.customer.session import Session, Texts
from cutlayer.customer.trainer import Trainer, evaluate
from cutlayer.customer.upload import Uploaded
from cutlayer.privacy import RunBytes
from cutlayer.wire.messages import AdapterInfo


class Measures:
    """The numbers of one run.

    Args:
        data: The run's data.
        session: The road, with a link to the published adapter.
        run: The run's state and transcript.
        trainer: The loop that trained it.
        uploaded: Train's records at the vendor; `None` where each step released its own.
    """

    def __init__(self, data: Prepared, session: Session, run: Run, trainer: Trainer, uploaded: Uploaded | None) -> None:
        self._data = data
        self._session = session
        self._run = run
        self._spec = run.state.spec
        self._trainer = trainer
        self._uploaded = uploaded

    def utility(self, *, positions: int, progress: Progress) -> tuple[Proportion, str]:
        """Accuracy on test, through the published adapter; or the best epoch's on dev, already measured.

        Args:
            positions: Of one frame at most, as the vendor says.
            progress: Where to show progress.

        Returns:
            The accuracy, and `test` or `dev`.
        """
        test = self._data.test
        if test is None:
            best, rows = max(self._run.state.dev), len(self._trainer.dev)
            return Proportion.of(round(best * rows), rows), "dev"
        return evaluate(self._session, test, positions=positions, progress=progress, stage="test"), "test"

    def result(
        self,
        adapter: AdapterInfo,
        utility: tuple[Proportion, str],
        knowledge: Knowledge,
        *,
        spent: RunBytes,
        looks: int,
        deviations: tuple[Deviation, ...],
        seconds: float,
        caveats: tuple[str, ...],
    ) -> FinetuneResult:
        """All that a run tells.

        Args:
            adapter: What the vendor published.
            utility: What `utility` returned.
            knowledge: What the vendor knows.
            spent: What was sent and received.
            looks: Largest number of draws of one text that were sent.
            deviations: Where the run's settings differ from the paper.
            seconds: How long it took.
            caveats: What the run's guarantee does not cover, beside what the privatizer says.
        """
        accuracy, measured_on = utility
        inversion, labels = self._inversion(knowledge), self._label_recovery()
        measured = inversion if isinstance(inversion, Measured) else None
        privatizer = self._session.privatizer
        state, spec, rows = self._run.state, self._spec, self._data.rows
        # every draw is a look of its own, and looks at one text add up, wherever it stands in train, dev and test
        guarantee = functools.reduce(Guarantee.compose, [privatizer.guarantee] * looks)
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
            replaced=self._replaced(),
            label_recovery=labels.success.value if isinstance(labels, Measured) else None,
            n_train=len(rows.train),
            n_dev=len(rows.dev),
            n_test=len(rows.test or ()),
            uplink_bytes={**spent.uplink, "total": sum(spent.uplink.values())},
            downlink_bytes=spent.downlink,
            tokens_released=spent.tokens,
            seconds=seconds,
            steps=self._trainer.link.step,
            epochs=len(state.dev),
            best_epoch=state.best_epoch,
            dev=tuple(state.dev),
            eta=spec.privacy.eta,
            no_privacy=spec.privacy.mechanism == "none",
            unsafe_noise=spec.unsafe_noise_seed is not None,
            looks=looks,
            guarantee=guarantee.model_copy(update={"caveats": guarantee.caveats + caveats}),
            largest_distance=privatizer.largest_distance(),
            deviations=privatizer.deviations + deviations,
            spec=spec,
            folder=self._run.folder,
        )

    def _replaced(self) -> float | None:
        """Share of tokens that the (first epoch's) draws replaced; `None` for rows of noise."""
        changed = self._replaced_in_steps() if self._uploaded is None else self._uploaded.replaced
        return None if changed is None else changed / max(1, self._data.tokens.total)

    def _replaced_in_steps(self) -> int | None:
        """The first epoch's draws are made again, not charged again."""
        changed = 0
        for step, batch in enumerate(self._trainer.batches(0), start=1):
            texts, _ = self._trainer.train.batch(batch)
            if isinstance(texts, Texts):
                drawn = self._session.count_replaced(texts, look=self._trainer.look(0, step))
                if drawn is None:
                    return None
                changed += drawn
        return changed

    def _texts_of_steps(self) -> dict[tuple[str, int], Tensor]:
        """Which texts each step was about: the customer knows, an attack does not."""
        batches = [batch for epoch in range(len(self._run.state.dev)) for batch in self._trainer.batches(epoch)]
        return {(self._trainer.link.job, step): batch for step, batch in enumerate(batches, start=1)}

    def _label_recovery(self) -> Outcome:
        truth = LabelTruth(self._data.rows.labels, len(self._data.rows.names), self._texts_of_steps())
        return measure_label_recovery(self._run.transcript, truth=truth)

    def _inversion(self, knowledge: Knowledge) -> Outcome:
        """Embedding inversion of what was recorded (SAP §5.1; for a trainable bottom, Appendix A)."""
        if self._uploaded is not None:
            records = {self._run.identifier("train"): torch.tensor(self._uploaded.record_of)}
            truth = TokenTruth(self._data.tokens, records=records)
        else:
            truth = TokenTruth(self._data.tokens, steps=self._texts_of_steps())
        return measure_empirical_privacy(self._run.transcript, knowledge=knowledge, truth=truth)


def _note(outcome: Outcome) -> str:
    """What the number of an attack covers, in a sentence."""
    if isinstance(outcome, Measured):
        return (
            "Empirical privacy is 1 - share of training tokens that nearest-neighbour inversion recovered from the "
            "recorded transcript "
            f"({outcome.looks} release{'s' if outcome.looks > 1 else ''} of each text); stronger attacks exist."
        )
    return outcome.reason
