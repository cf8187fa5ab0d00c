"""Settings beside one another: what attacks read under each, and how useful the tuned model is.

Each setting is a run of its own, with fresh noise, on the same texts. Usefulness is measured on texts that are held out
from training, the same ones under every setting.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict

from cutlayer.attacks import ATTACKS, PublicText, Question
from cutlayer.core.proportion import interval
from cutlayer.customer import FinetuneResult, FinetuneSpec, LanguageResult, Objective, Progress
from cutlayer.customer.attacker import AttackerSpec
from cutlayer.customer.evidence import Evidence
from cutlayer.customer.settings import LOCAL_MODEL
from cutlayer.data import Dataset
from cutlayer.reports.audit.report import Attacked, audit
from cutlayer.reports.audit.time_limit import TimeLimit
from cutlayer.reports.audit.traffic import local_evidence
from cutlayer.reports.schema import AuditReport, Finding, Frontier, FrontierPoint, Interval
from cutlayer.reports.wording import per_cent, plain

HELD_OUT: Final = 0.2
"""Share of the texts that usefulness is measured on."""
_Z: Final = 1.96


class Evaluation(BaseModel):
    """What a setting was measured to give.

    Attributes:
        recovered: What the strongest attack read.
        interval: 95 % of it.
        attack: That attack.
        attacks: All that have a number, of which it is the largest.
        utility: Accuracy on texts that were held out from training, or perplexity of them; `None` where texts have no
            labels.
        utility_error: Its standard error; `None` where it has none.
        utility_n: How many texts, or predicted tokens.
        replaced: The share of tokens that noise replaced; `None` for rows.
        seconds: How long run and attacks took; `None` where that was not looked at.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    recovered: float
    interval: Interval
    attack: str
    attacks: tuple[str, ...]
    utility: float | None
    utility_error: float | None
    utility_n: int
    replaced: float | None
    seconds: float | None = None

    @classmethod
    def of(
        cls, report: AuditReport, evidence: Evidence, *, attacks: Collection[str] | None = None
    ) -> Evaluation | None:
        """What a report and the run that it is about say of the run's setting.

        Args:
            report: The report.
            evidence: The run.
            attacks: Those that count; `None` for all.

        Returns:
            `None` where no attack on words has a number.
        """
        found = [each for each in _on_words(report) if attacks is None or each.name in attacks]
        best = max(found, key=_value, default=None)
        if best is None or best.ci is None:
            return None
        utility, error, n = _utility(evidence)
        return cls(
            recovered=_value(best),
            interval=best.ci,
            attack=best.name,
            attacks=tuple(sorted(each.name for each in found)),
            utility=utility,
            utility_error=error,
            utility_n=n,
            replaced=evidence.result.replaced,
        )


@dataclass(frozen=True)
class Compared:
    """A setting beside others.

    Attributes:
        label: The setting in a few words.
        eta: Its eta.
        found: What it was measured to give; `None` where no attack has a number, so that it has no place among them.
        audited: Whether it is the setting that the report is about.
        late: Whether there was no time to run it.
        weaker: Whether its attacks were run more weakly, for a time limit.
    """

    label: str
    eta: float
    found: Evaluation | None
    audited: bool = False
    late: bool = False
    weaker: bool = False


def quick_attacks() -> tuple[str, ...]:
    """Attacks on words that take seconds."""
    return tuple(
        sorted(name for name in ATTACKS if ATTACKS[name].question is Question.WORDS and not ATTACKS[name].costly)
    )


def evaluate(
    texts: Dataset,
    spec: FinetuneSpec,
    *,
    attacker: AttackerSpec,
    public: PublicText | None,
    attacks: Collection[str] | None,
    shown: int = 0,
    repeat: tuple[str, ...] = (),
    progress: Progress,
) -> tuple[Evaluation | None, AuditReport]:
    """Runs a setting, and attacks it.

    Args:
        texts: The customer's.
        spec: The setting. Usefulness is measured on its `training.dev_share` of the texts.
        attacker: What the attacker is taken to know of the texts.
        public: The attacker's own text.
        attacks: Names of the attacks to run; `None` for all.
        shown: Examples in the report.
        repeat: Command lines that make the report again.
        progress: Where to show progress.

    Returns:
        What was found, `None` where no attack on words has a number; and the report.

    Raises:
        ConfigError: Settings that contradict each other.
        DataError: Texts that cannot be trained on.
    """
    return _evaluate(
        texts,
        spec,
        attacker,
        progress,
        TimeLimit(None, time.monotonic()),
        partial(audit, public=public, only=attacks, shown=shown, repeat=repeat),
    )


def _evaluate(
    texts: Dataset,
    spec: FinetuneSpec,
    attacker: AttackerSpec,
    progress: Progress,
    limit: TimeLimit,
    attack: Callable[..., AuditReport],
) -> tuple[Evaluation | None, AuditReport]:
    """The same within a time limit."""
    with tempfile.TemporaryDirectory(prefix="cutlayer-setting-") as folder:
        evidence = local_evidence(texts, spec, Path(folder), progress, attacker=attacker)
        attacked = Attacked(evidence, spec.model or LOCAL_MODEL, began=limit.began)
        report = attack(attacked, budget=limit.seconds, seed=spec.seed or 0, progress=progress)
        found = Evaluation.of(report, evidence)
    if found is not None:
        found = found.model_copy(update={"seconds": time.monotonic() - limit.began})
    return found, report


def evaluate_beside(
    texts: Dataset,
    specs: Sequence[FinetuneSpec],
    *,
    attacker: AttackerSpec,
    public: PublicText | None,
    attacks: Collection[str],
    progress: Progress,
    limit: TimeLimit | None = None,
    foretold: float = 0.0,
) -> tuple[Compared, ...]:
    """Runs and attacks settings that differ in eta alone, to be drawn beside the audited one.

    Args:
        texts: The customer's.
        specs: The settings.
        attacker: What the attacker is taken to know of the texts.
        public: The attacker's own text.
        attacks: Names of the attacks to run; those of the audited setting's that are compared.
        progress: Where to show progress.
        limit: On the time of all; these settings and the audited one share what is left alike.
        foretold: Seconds that a setting's run is expected to take; where its share is less, it is not run.

    Raises:
        ConfigError: Settings that contradict each other.
        DataError: Texts that cannot be trained on.
    """
    compared = []
    attack = partial(audit, public=public, only=attacks, shown=0, repeat=())
    for number, spec in enumerate(specs):
        own = TimeLimit(None, time.monotonic())
        if limit is not None and limit.seconds is not None:
            own = TimeLimit(limit.share(len(specs) - number + 1), own.began)
        label = setting_label(spec)
        progress.update(_STAGE, number, len(specs), label)
        if foretold > own.left:
            compared.append(Compared(label, spec.privacy.eta, None, late=True))
        else:
            found, report = _evaluate(texts, spec, attacker, progress, own, attack)
            compared.append(Compared(label, spec.privacy.eta, found, weaker=bool(report.traded)))
        progress.update(_STAGE, number + 1, len(specs))
    return tuple(compared)


def setting_label(spec: FinetuneSpec) -> str:
    """A setting, by what differs between those of one frontier."""
    privacy = spec.privacy
    return "no noise" if privacy.mechanism == "none" else f"{privacy.mechanism}, eta {plain(privacy.eta)}"


def beside(
    report: AuditReport,
    evidence: Evidence,
    spec: FinetuneSpec,
    others: Sequence[Compared],
    *,
    attacks: Collection[str],
) -> Frontier:
    """The audited setting among others, all by the same attacks.

    Args:
        report: Of the audited setting.
        evidence: Its run.
        spec: The setting.
        others: What `evaluate_beside` returned.
        attacks: Those that the others were attacked by.
    """
    found = Evaluation.of(report, evidence, attacks=attacks)
    own = Compared(setting_label(spec), spec.privacy.eta, found, audited=True)
    strongest = max(_on_words(report), key=_value, default=None)
    note = ""
    if strongest is not None and (found is None or _value(strongest) > found.recovered):
        note = (
            f"The strongest of all attacks, {strongest.name}, was tried on the setting of this report alone: it read "
            f"{per_cent(strongest.value)} %."
        )
    return frontier([*others, own], objective=evidence.spec.objective, epochs=spec.training.epochs, note=note)


def frontier(settings: Sequence[Compared], *, objective: Objective, epochs: int | None, note: str = "") -> Frontier:
    """Privacy over usefulness.

    Args:
        settings: The settings, in any order.
        objective: What was learnt.
        epochs: For how long, at most; `None` where that follows from the texts.
        note: What else is to be said of how they were measured.
    """
    drawn = sorted(((each, each.found) for each in settings if each.found is not None), key=lambda pair: pair[0].eta)
    points = tuple(
        FrontierPoint(
            label=each.label,
            eta=each.eta,
            replaced=found.replaced,
            recovered=found.recovered,
            recovered_ci=found.interval,
            attack=found.attack,
            attacks=found.attacks,
            utility=found.utility,
            utility_ci=_utility_interval(found, objective),
            audited=each.audited,
        )
        for each, found in drawn
    )
    lost = [each.label for each in settings if each.found is None and not each.late]
    late = [each.label for each in settings if each.late]
    weaker = [each.label for each in settings if each.weaker]
    told = [*_measured_by(points), *_held_out(points, objective, epochs)]
    if lost:
        told.append(f"No place among them, for no attack on words has a number there: {'; '.join(lost)}.")
    if late:
        told.append(f"Not run, for there was no time within the time limit: {'; '.join(late)}.")
    if weaker:
        told.append(f"Attacks were run more weakly, for the time limit: {'; '.join(weaker)}.")
    return Frontier(
        utility_name=_utility_name(points, [found.utility_n for _, found in drawn], objective),
        lower_is_better=objective.generates,
        attack="the strongest of the attacks that were run",
        points=points,
        note=" ".join([*told, *([note] if note else [])]),
    )


_STAGE = "settings beside this one"


def _on_words(report: AuditReport) -> list[Finding]:
    return [each for each in report.attacks if each.question == Question.WORDS and each.value is not None]


def _value(finding: Finding) -> float:
    return finding.value or 0.0


def _utility(evidence: Evidence) -> tuple[float | None, float | None, int]:
    """How useful a run's model is, the standard error of that, and of how many texts or tokens."""
    result = evidence.result
    if isinstance(result, LanguageResult):
        return result.perplexity, result.perplexity_standard_error, result.perplexity_n
    if not isinstance(result, FinetuneResult):
        return None, None, 0
    return result.ua, result.ua_standard_error, result.ua_n


def _utility_interval(found: Evaluation, objective: Objective) -> Interval | None:
    if found.utility is None or found.utility_error is None:
        return None
    if not objective.generates:
        return interval(found.utility, found.utility_error, max(1, found.utility_n))
    return found.utility - _Z * found.utility_error, found.utility + _Z * found.utility_error


def _utility_name(points: Sequence[FrontierPoint], counts: Sequence[int], objective: Objective) -> str:
    name, what = ("perplexity", "tokens") if objective.generates else ("accuracy", "texts")
    if all(point.utility is None for point in points):
        return name
    return f"{name} on {counts[0]:,} {what} that were held out"


def _measured_by(points: Sequence[FrontierPoint]) -> list[str]:
    """Which attacks stand behind which settings."""
    if not points:
        return []
    by_attacks: dict[tuple[str, ...], list[str]] = {}
    for point in points:
        by_attacks.setdefault(point.attacks, []).append(point.label)
    own = "Each setting had a run of its own, with fresh noise."
    if len(by_attacks) == 1:
        (attacks,) = by_attacks
        return [
            own,
            f"Words read are the most that one of these attacks read, under each setting: {', '.join(attacks)}.",
        ]
    most = max(by_attacks, key=lambda attacks: len(by_attacks[attacks]))
    told = [
        f"{', '.join(attacks)} ({'the others' if attacks == most and len(labels) > 1 else '; '.join(labels)})"
        for attacks, labels in sorted(by_attacks.items(), key=lambda pair: pair[0] == most)
    ]
    return [own, f"Words read are the most that one of these attacks read: {'; '.join(told)}."]


def _held_out(points: Sequence[FrontierPoint], objective: Objective, epochs: int | None) -> list[str]:
    if all(point.utility is None for point in points):
        return []
    best = "epoch" if epochs is None else f"of up to {epochs} epochs"
    chose = "" if epochs == 1 else f", and which chose the best {best}"
    name = "Perplexity" if objective.generates else "Accuracy"
    return [f"{name} is of texts that were not trained on{chose}, the same under all settings."]
