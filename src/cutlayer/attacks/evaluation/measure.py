"""From a recorded transcript to a number that may be printed, or the reason why there is none."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict

from cutlayer.attacks.attack import ATTACKS, Attack
from cutlayer.attacks.evaluation.attributes import AttributeTruth
from cutlayer.attacks.evaluation.controls import Control, run_controls
from cutlayer.attacks.evaluation.labels import LabelTruth
from cutlayer.attacks.evaluation.scoring import Reading, SecondaryMetric
from cutlayer.attacks.evaluation.tokens import TokenTruth
from cutlayer.attacks.evaluation.truth import Truth
from cutlayer.attacks.knowledge import Inapplicable, Knowledge
from cutlayer.attacks.view import Transcript, View
from cutlayer.core import Cut, Proportion


class _Result(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    attack: str


class Measured(_Result):
    """An attack that passed its controls.

    Attributes:
        success: The share that it recovered (X in SAP §5.1), with n and standard error.
        interval: 95 % of that share over resampled texts.
        chance: The share that it would recover by chance.
        p_value: How probable as large a share is by chance; of this attack alone, not of all that were run.
        looks: The most releases of one text that it saw.
        further: Other numbers of the same guesses.
        controls: What it did where the answer is known.
    """

    status: Literal["measured"] = "measured"
    success: Proportion
    interval: tuple[float, float]
    chance: float
    p_value: float
    looks: int
    further: tuple[SecondaryMetric, ...] = ()
    controls: tuple[Control, ...]

    @property
    def privacy(self) -> Proportion:
        """Empirical privacy, 1 - X (SAP §5.1)."""
        return self.success.complement()


class ControlFailed(_Result):
    """An attack that failed a control: it has no number.

    Attributes:
        controls: All controls, passed and failed.
    """

    status: Literal["control failed"] = "control failed"
    controls: tuple[Control, ...]

    @property
    def reason(self) -> str:
        """Which controls failed, and by how much."""
        return "control failed: " + "; ".join(str(control) for control in self.controls if not control.passed)


class NotApplicable(_Result):
    """An attack that has no meaning for what was sent.

    Attributes:
        reason: Why.
    """

    status: Literal["not applicable"] = "not applicable"
    reason: str


Outcome: TypeAlias = Measured | ControlFailed | NotApplicable


@dataclass(frozen=True)
class Examined:
    """An attack's outcome, with what it read.

    Attributes:
        outcome: What may be printed of it.
        reading: What it read, token by token; `None` for labels and where there is no number.
    """

    outcome: Outcome
    reading: Reading | None = None


def examine(
    attack: str,
    transcript: Transcript,
    *,
    knowledge: Knowledge,
    truth: Truth,
    run: Attack | None = None,
    controls: tuple[Control, ...] | None = None,
) -> Examined:
    """Runs a registered attack on a transcript, checks it, and scores it.

    The attack is called with a view and nothing else; the truth is used to score its guesses and to
    make the traffic of its controls.

    Args:
        attack: The name of an attack.
        transcript: What the vendor saw.
        knowledge: What else the attacker is granted.
        truth: What it was about.
        run: The attack of that name in another strength; it is checked in this one.
        controls: What its controls gave for traffic of the same form, under the same knowledge: they are not run again.

    Raises:
        ConfigError: There is no such attack.
        DataError: Transcript and truth do not belong together.
    """
    run = run or ATTACKS[attack]
    if isinstance(truth, LabelTruth):
        truth = replace(truth, named=run.named)
    if run.positions is not None and isinstance(truth, TokenTruth):
        specials = 0 if knowledge.template is None else knowledge.template.special_count(1)
        transcript, truth = transcript.shortened(run.positions + specials), truth.shortened(run.positions)
    if run.tokens is not None and isinstance(truth, TokenTruth):
        transcript, truth = truth.beginning(transcript, run.tokens)
    try:
        guesses = tuple(run(View(transcript, truth.granted(transcript, knowledge))))
        score = truth.score(guesses)
        if controls is None:
            controls = run_controls(run, _sample(truth, run), transcript, knowledge, looks=score.looks)
    except Inapplicable as answer:
        return Examined(NotApplicable(attack=attack, reason=answer.reason))
    if not all(control.passed for control in controls):
        return Examined(ControlFailed(attack=attack, controls=controls))
    found = Measured(
        attack=attack,
        success=score.success,
        interval=score.interval,
        chance=score.chance,
        p_value=score.p_value,
        looks=score.looks,
        further=score.further,
        controls=controls,
    )
    return Examined(found, score.reading)


def _sample(truth: Truth, run: Attack) -> Truth:
    """What an attack's controls are about: as much as it takes, and where it looks."""
    sample = truth.sample()
    if isinstance(sample, AttributeTruth | LabelTruth):
        return replace(sample, signal=run.signal)
    if isinstance(sample, TokenTruth) and run.tokens is not None:
        return sample.limited(run.tokens // 2)
    return sample


def measure(attack: str, transcript: Transcript, *, knowledge: Knowledge, truth: Truth) -> Outcome:
    """The outcome alone; see `examine`."""
    return examine(attack, transcript, knowledge=knowledge, truth=truth).outcome


def measure_empirical_privacy(recording: Path | str, *, knowledge: Knowledge, truth: TokenTruth) -> Outcome:
    """Empirical privacy against the paper's embedding inversion: `Measured.privacy` is EP (SAP §5.1).

    Args:
        recording: Folder of the recorded transcript.
        knowledge: Cut, and for boundary rows the initial table and the template.
        truth: The texts' tokens and where they were released.
    """
    return measure("nearest-neighbour", Transcript.recorded(recording), knowledge=knowledge, truth=truth)


def measure_label_recovery(recording: Path | str, *, truth: LabelTruth) -> Outcome:
    """The share of labels that the vendor can read from the output gradients it was sent.

    Args:
        recording: Folder of the recorded transcript.
        truth: The texts' labels and the texts of each step.
    """
    # logits and their gradients look the same at every cut
    return measure("output-gradient", Transcript.recorded(recording), knowledge=Knowledge(Cut()), truth=truth)
