"""What a run's traffic gave away, and what its result says of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from cutlayer.attacks import (
    MEASURED_TOKENS,
    Inapplicable,
    Knowledge,
    Measured,
    NotApplicable,
    Outcome,
    SearchedTruth,
    TokenTruth,
    Traffic,
    measure,
)
from cutlayer.core import Cut, Guarantee, Proportion, Tokens
from cutlayer.customer.advice import classifier_advice, language_advice
from cutlayer.customer.prepare import LabelledTexts
from cutlayer.customer.recorded import RecordedRun, Steps
from cutlayer.customer.results import FinetuneResult, LanguageResult, RunResult
from cutlayer.customer.settings import LabelsAt, Objective
from cutlayer.customer.trainer import Score
from cutlayer.privacy import LABELS_SHOWN, keep_probability

_SEARCHED_TOKENS = 1024
"""Tokens on which the search from the left is measured, which runs the bottom for each token that it tries."""

_GRADIENTS_NAME = (
    "Covers tokens that go up. Gradients name the true ones without any noise: see what is read from gradients."
)


@dataclass(frozen=True)
class Facts:
    """What there is to tell of a run beside what its traffic gave away.

    Attributes:
        guarantee: What is promised for all looks together.
        caveats: What it does not cover, beside what the privatizer says.
        label_guarantee: What is promised of labels, if there are any.
        values: Other fields of the result, by name.
    """

    guarantee: Guarantee
    caveats: tuple[str, ...]
    label_guarantee: Guarantee | None
    values: Mapping[str, Any]


Told = Callable[[int, int, str], None]
"""Called with how many attacks were run, of how many, and the next one's name."""


def summarise(recorded: RecordedRun, utility: Score | None, facts: Facts, *, told: Told) -> RunResult:
    """All that a run tells.

    Args:
        recorded: The run's traffic.
        utility: What the adapter reaches on test; `None` where that is what it reached on dev.
        facts: What else there is to tell.
        told: Says which attack is run.
    """
    told(0, _ATTACKS[recorded.spec.objective], "nearest neighbours")
    stream = recorded.in_words
    inversion = measure("nearest-neighbour", stream.transcript, knowledge=stream.knowledge, truth=recorded.words)
    privacy = inversion.privacy if isinstance(inversion, Measured) else None
    uncovered = (_GRADIENTS_NAME,) if recorded.spec.objective.generates and not recorded.predicts_released else ()
    caveats = (*facts.guarantee.caveats, *uncovered, *facts.caveats)
    common = dict(facts.values) | {
        "guarantee": facts.guarantee.model_copy(update={"caveats": caveats}),
        "ep": None if privacy is None else privacy.value,
        "ep_n": 0 if privacy is None else privacy.n,
        "ep_standard_error": None if privacy is None else privacy.standard_error,
        "ep_note": _note(inversion),
    }
    result: RunResult
    if recorded.spec.objective.generates:
        result = _language(recorded, utility, common, told)
    else:
        result = _classifier(recorded, utility, common, told, facts.label_guarantee)
    told(_ATTACKS[recorded.spec.objective], _ATTACKS[recorded.spec.objective], "")
    return result


_ATTACKS = {Objective.CLASSIFICATION: 2, Objective.LM: 5, Objective.SEQ2SEQ: 5}
"""How many attacks are run of each objective's run."""


# ---------------------------------------------------------------- classifiers


def _classifier(
    recorded: RecordedRun, utility: Score | None, common: dict[str, Any], told: Told, promised: Guarantee | None
) -> FinetuneResult:
    data, state, epsilon = recorded.data, recorded.run.state, recorded.spec.label_epsilon
    if not isinstance(data, LabelledTexts) or recorded.labels is None:
        raise TypeError("a classifier's texts have labels")
    accuracy = utility or Proportion.of(round(max(state.dev) * len(data.dev)), len(data.dev))
    if not isinstance(accuracy, Proportion):
        raise TypeError("a classifier's utility is an accuracy")
    told(1, 2, "labels")
    recovery: float | None
    if recorded.spec.labels_at is LabelsAt.VENDOR:
        recovery = _sent_labels(data)
    else:
        # logits and their gradients look the same at every cut
        read = measure("output-gradient", recorded.crossed, knowledge=Knowledge(Cut()), truth=recorded.labels)
        recovery = read.success.value if isinstance(read, Measured) else None
    baseline = _majority_baseline(data)
    return FinetuneResult(
        ua=accuracy.value,
        ua_on="dev" if data.test is None else "test",
        ua_n=accuracy.n,
        ua_standard_error=accuracy.standard_error,
        majority_baseline=baseline,
        advice=classifier_advice(accuracy, baseline=baseline),
        label_recovery=recovery,
        label_guarantee=promised or Guarantee.nothing(LABELS_SHOWN),
        label_keep=None if epsilon is None else keep_probability(epsilon, len(data.label_names)),
        **common,
    )


def _sent_labels(data: LabelledTexts) -> float:
    """Share of training labels that were sent as they are: no attack is needed to read these."""
    if not isinstance(data.train.labels, Tensor):
        raise TypeError("a classifier's texts have labels")
    return float((data.train.labels == data.rows.labels).double().mean())


def _majority_baseline(data: LabelledTexts) -> float:
    """Of the texts that accuracy is measured on, the share that has train's most frequent label."""
    measured = data.dev if data.test is None else data.test
    if not isinstance(measured.labels, Tensor):
        raise TypeError("a classifier's texts have labels")
    return float((measured.labels == data.rows.labels.bincount().argmax()).double().mean())


# ---------------------------------------------------------------- language models and encoder-decoders


def _language(recorded: RecordedRun, utility: Score | None, common: dict[str, Any], told: Told) -> LanguageResult:
    state = recorded.run.state
    told(1, 5, "gradients")
    steps = list(recorded.predicted.steps.items())
    trained = _tokens_trained_on(recorded, _some_steps(recorded, steps, MEASURED_TOKENS))
    told(2, 5, "gradients of the last steps")
    at_end = _tokens_trained_on(recorded, _some_steps(recorded, steps[::-1], MEASURED_TOKENS))
    told(3, 5, "answers")
    said = _tokens_said(recorded)
    told(4, 5, "rows, from left to right")
    rows = _tokens_in_rows(recorded)
    return LanguageResult(
        perplexity=min(state.dev) if utility is None else utility.value,
        perplexity_on="dev" if utility is None else "test",
        perplexity_n=_predicted(recorded) if utility is None else utility.n,
        perplexity_standard_error=None if utility is None else utility.standard_error,
        dev_before=state.untrained,
        token_recovery_first_steps=_share(trained),
        token_recovery_first_steps_note=_reason(trained),
        token_recovery_last_steps=_share(at_end),
        token_recovery_last_steps_note=_reason(at_end),
        token_recovery_from_answers=_share(said),
        token_recovery_from_answers_note=_reason(said),
        token_recovery_from_boundary=_share(rows),
        token_recovery_from_boundary_note=_reason(rows),
        token_recovery_without_blocks=_tokens_without_blocks(recorded),
        advice=language_advice(
            trained=_share(trained),
            said=_share(said),
            rows=_share(rows),
            eta=recorded.spec.privacy.eta,
            vocabulary=len(recorded.archive.candidates),
        ),
        **common,
    )


_SENT = "The vendor was sent target texts as they left, and took the steps itself."


def _predicted(recorded: RecordedRun) -> int:
    """How many tokens of dev are predicted."""
    dev = recorded.data.dev
    if not isinstance(dev.labels, Tokens):
        raise TypeError("a language model's labels are tokens")
    if recorded.spec.objective is Objective.SEQ2SEQ:
        return int((dev.labels.segments[1].lengths + 1).sum())
    if len(dev.labels.segments) == 1:
        return int((dev.lengths - 1).sum())
    closing = len(recorded.archive.template.single.specials[-1])
    return int((dev.labels.segments[1].lengths + closing).sum())


@dataclass(frozen=True)
class _Steps:
    """Some steps that follow one another.

    Attributes:
        texts: The texts that they are about, each once.
        places: By job and step, each row's place among these texts.
        first: The first step.
        last: The last.
    """

    texts: Tensor
    places: Steps
    first: int
    last: int


def _some_steps(recorded: RecordedRun, steps: Iterable[tuple[tuple[str, int], Tensor]], most: int) -> _Steps:
    """The first of these steps, of about so many tokens."""
    chosen: Steps = {}
    tokens = 0
    for key, batch in steps:
        if tokens >= most:
            break
        chosen[key] = batch
        tokens += int(recorded.lengths[batch].sum())
    texts = torch.cat(list(chosen.values())).unique()
    numbers = {int(text): place for place, text in enumerate(texts)}
    places = {key: torch.tensor([numbers[int(text)] for text in batch]) for key, batch in chosen.items()}
    numbered = [step for _, step in chosen]
    return _Steps(texts, places, min(numbered), max(numbered))


def _tokens_trained_on(recorded: RecordedRun, some: _Steps) -> Outcome:
    """Share of these steps' tokens that the vendor reads from gradients, by the tail as it was handed out."""
    if recorded.spec.sends_pairs:
        return NotApplicable(attack="tail-gradient", reason=_SENT)
    if recorded.predicts_released:
        reason = "What is predicted are the tokens that left: gradients name no others."
        return NotApplicable(attack="tail-gradient", reason=reason)
    stream = recorded.predicted
    truth = replace(recorded.trained.of(some.texts), steps=some.places)
    shown = stream.transcript.first_steps(some.last, after=some.first - 1)
    return measure("tail-gradient", shown, knowledge=stream.knowledge, truth=truth)


def _tokens_said(recorded: RecordedRun) -> Outcome:
    """Share of the customer's most probable tokens that the vendor reads from what it sent down itself.

    Measured on the published adapter's answers about test, or dev, where the true tokens stand before each.
    """
    if recorded.spec.sends_pairs:
        return NotApplicable(attack="forward-leak", reason=_SENT)
    stream = recorded.predicted
    try:
        truth = recorded.said
    except Inapplicable as refused:
        return NotApplicable(attack="forward-leak", reason=refused.reason)
    return measure("forward-leak", stream.transcript, knowledge=stream.knowledge, truth=truth)


def _tokens_in_rows(recorded: RecordedRun) -> Outcome:
    """Share of the first texts' tokens that the vendor reads from the rows that came up."""
    stream, bottom = recorded.predicted, recorded.predicted.knowledge.cut.bottom
    if not recorded.spec.stores:
        some = _some_steps(recorded, stream.steps.items(), _SEARCHED_TOKENS)
        # the search meets an encoder-decoder's source texts, too
        transcript = recorded.crossed if bottom else stream.transcript
        shown = transcript.first_steps(some.last, after=some.first - 1)
        searched = SearchedTruth(stream.tokens.select(some.texts), steps=some.places)
    elif not bottom:
        reason = "Each text was released once, without blocks below: empirical privacy says what that shows."
        return NotApplicable(attack="prefix-search", reason=reason)
    else:
        (record_set,), texts = recorded.records, _first_records(recorded, _SEARCHED_TOKENS)
        shown = stream.transcript.first_records(record_set, len(texts))
        searched = SearchedTruth(stream.tokens.select(texts), records={record_set: torch.arange(len(texts))})
    if not bottom:
        rows = TokenTruth(searched.tokens, steps=searched.steps)
        return measure("nearest-neighbour", shown, knowledge=stream.knowledge, truth=rows)
    return measure("prefix-search", shown, knowledge=stream.knowledge, truth=searched)


def _tokens_without_blocks(recorded: RecordedRun) -> Proportion | None:
    """What a table lookup reads of the same texts where no block stands below the cut: why one does by default."""
    stream = recorded.predicted
    if not stream.knowledge.cut.bottom or recorded.spec.privacy.mechanism != "none":
        return None
    if recorded.spec.stores:
        texts = _first_records(recorded, _SEARCHED_TOKENS)
    else:
        texts = _some_steps(recorded, stream.steps.items(), _SEARCHED_TOKENS).texts
    bare = replace(stream.knowledge, cut=stream.knowledge.cut.model_copy(update={"bottom": 0}))
    looked_up = TokenTruth(stream.tokens.select(texts))
    rng = torch.Generator()
    shown, truth = looked_up.traffic(Traffic.UNPROTECTED, stream.transcript, bare, looks=1, rng=rng)
    return _share(measure("nearest-neighbour", shown, knowledge=bare, truth=truth))


def _first_records(recorded: RecordedRun, most: int) -> Tensor:
    """The texts of the first stored records, about so many tokens."""
    texts = recorded.first_records()
    before = recorded.lengths[texts].cumsum(0) - recorded.lengths[texts]
    return texts[before < most]


def _share(outcome: Outcome) -> Proportion | None:
    return outcome.success if isinstance(outcome, Measured) else None


def _reason(outcome: Outcome) -> str:
    return "" if isinstance(outcome, Measured) else outcome.reason


def _note(outcome: Outcome) -> str:
    """What the number of an attack covers, in a sentence."""
    if isinstance(outcome, Measured):
        return (
            "Empirical privacy is 1 - share of training tokens that nearest-neighbour inversion recovered from the "
            "recorded transcript "
            f"({outcome.looks} release{'s' if outcome.looks > 1 else ''} of each text); stronger attacks exist."
        )
    return outcome.reason
