"""Several runs of one customer, which a vendor can read together: what must agree, and what they were about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from cutlayer.attacks import TokenTruth, Transcript
from cutlayer.core import ConfigError, DataError
from cutlayer.customer.evidence import Evidence, Joined


@dataclass(frozen=True)
class SeveralRuns:
    """Runs that are audited together.

    Attributes:
        evidence: Of the first one, with what all of them show together.
        told: What a report says of them, a sentence each.
    """

    evidence: Evidence
    told: tuple[str, ...]


def check_runs(folders: Sequence[Path]) -> None:
    """Refuses runs that cannot be read together, by their settings alone.

    Args:
        folders: Of finished runs (`finetune --out`).

    Raises:
        ConfigError: One is no finished run, or named twice; or they are of other models, or what left is of two kinds.
    """
    first, *others = folders
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise ConfigError("A run is named twice.", remedy="Name each folder with --transcript once.")
    spec = Evidence.settings(first)
    for folder in others:
        other = Evidence.settings(folder)
        if other.model != spec.model:
            raise ConfigError(
                f"The runs in {first} and {folder} are of two models, {spec.model} and {other.model}: their tokens are "
                "not the same.",
                remedy="Audit them one by one.",
            )
        if other.cut != spec.cut or other.objective != spec.objective:
            raise ConfigError(
                f"The runs in {first} and {folder} differ in cut or objective: what left is not of one kind.",
                remedy="Audit them one by one, or runs of one cut and objective together.",
            )
        alike = spec.privacy.replaces and spec.privacy.mechanism == other.privacy.mechanism
        if other.privacy != spec.privacy and not alike:
            raise ConfigError(
                f"The runs in {first} and {folder} were privatized in two ways, and not both text-to-text, or words: "
                "released tokens, or words, of several etas are read together, rows and tokens without noise are not.",
                remedy="Audit them one by one.",
            )


def several_runs(folders: Sequence[Path], runs: Sequence[Evidence]) -> SeveralRuns:
    """What several runs show together, and the first of them by itself.

    A text is the same in two runs if it is so letter by letter, wherever it stands in the files. Of what the attacker
    knows of the first run's texts it is asked in none. Blocks of language models are texts of their own.

    Args:
        folders: Their folders, for messages.
        runs: Of each what it showed; of all but the first as if the attacker knew nothing.

    Raises:
        DataError: A text has one label in one run and another in another.
    """
    first = runs[0]
    if len(runs) == 1:
        return SeveralRuns(first, ())
    told = [f"{len(runs)} runs were read together by attacks that can; others read the run in {folders[0]}."]
    for folder, run in zip(folders[1:], runs[1:], strict=True):
        _check_labels(folders[0], first, folder, run)
        if _reordered(first, run):
            told.append(
                f"The rows of the run in {folder} stand in another order than those of {folders[0]}. What they have in "
                "common is found by what left, not by where it stood."
            )
    known = _known(first)
    truths, texts = [], []
    for number, run in enumerate(runs):
        here = _texts(run, number)
        kept = torch.arange(len(here)) if run.tokens.texts is None else run.tokens.texts
        asked = torch.tensor([here[row] not in known for row in kept.tolist()])
        truths.append(run.tokens.only(asked))
        texts += [here[row] for row in kept[asked].tolist()]
    truth = TokenTruth.joined(truths, _numbered(texts))
    seen = [run.transcript if run.words is None else run.words.transcript for run in runs]
    noises = {
        release.source: run.knowledge.noise
        for run, shown in zip(runs, seen, strict=True)
        if run.knowledge.noise is not None and run.spec.privacy != first.spec.privacy
        for release in shown.releases()
    }
    return SeveralRuns(replace(first, joined=Joined(Transcript.joined(seen), truth, noises)), tuple(told))


def _texts(run: Evidence, number: int) -> list[object]:
    """What tells a run's texts apart from those of all runs."""
    if run.texts is None:
        return [(number, row) for row in range(len(run.lengths.lengths))]
    return list(run.texts.texts)


def _known(run: Evidence) -> set[object]:
    if run.tokens.texts is None:
        return set()
    texts = _texts(run, 0)
    hidden = {texts[row] for row in run.tokens.texts.tolist()}
    return set(texts) - hidden


def _numbered(texts: Sequence[object]) -> Tensor:
    numbers: dict[object, int] = {}
    return torch.tensor([numbers.setdefault(text, len(numbers)) for text in texts], dtype=torch.int64)


def _check_labels(folder: Path, first: Evidence, other_folder: Path, other: Evidence) -> None:
    told = [_labels(run) for run in (first, other)]
    for text in told[0].keys() & told[1].keys():
        (row, labels), (other_row, others) = told[0][text], told[1][text]
        if labels != others:
            raise DataError(
                f"Row {row + 1} of the run in {folder} has another label in the run in {other_folder}, row "
                f"{other_row + 1}.",
                remedy="Audit the runs one by one, or give both the same labels.",
            )


def _labels(run: Evidence) -> dict[object, tuple[int, set[str]]]:
    """By text its first row and the names of its labels: a text may stand in a file several times."""
    found: dict[object, tuple[int, set[str]]] = {}
    if run.labels is not None and run.texts is not None:
        for text, row, label in zip(run.texts.texts, run.rows, run.labels.labels.tolist(), strict=True):
            found.setdefault(text, (row, set()))[1].add(run.label_names[label])
    return found


def _reordered(first: Evidence, other: Evidence) -> bool:
    """Whether texts that both have stand in another order."""
    if first.texts is None or other.texts is None:
        return False
    rows = dict(zip(first.texts.texts, first.rows, strict=True))
    pairs = zip(other.texts.texts, other.rows, strict=True)
    common = [rows[text] for text, _ in sorted(pairs, key=lambda pair: pair[1]) if text in rows]
    return common != sorted(common)
