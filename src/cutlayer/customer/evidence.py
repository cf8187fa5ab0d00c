"""What a run's transcript was about: who measures it holds the texts, an attack does not.

A run's folder holds the transcript and the settings. The texts are the customer's, and are given again. Which
record holds which text, and which texts each step took, follows from both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from cutlayer.attacks import Knowledge, LabelTruth, Noise, TokenTruth, Transcript
from cutlayer.core import ConfigError, DataError, Tokens
from cutlayer.customer.home import Home
from cutlayer.customer.prepare import Corpora, Labelled, Prepared, prepare, split_rows
from cutlayer.customer.results import RunResult
from cutlayer.customer.run import Run
from cutlayer.customer.settings import Objective, RunSpec, TrainBottom
from cutlayer.customer.trainer import training_order
from cutlayer.data import Dataset
from cutlayer.models import Archive
from cutlayer.wire import Form


@dataclass(frozen=True)
class Evidence:
    """A recorded run, and what it was about.

    Attributes:
        spec: The run's settings.
        transcript: What the vendor saw.
        knowledge: What the vendor knows beside it: the parts that it handed out, and how releases are privatized.
        tokens: Which tokens the texts had, and where they were released.
        labels: Which labels they had, and what each step was about; `None` for runs without labels.
        label_names: The labels in the order of their numbers.
        texts: The texts themselves.
        rows: Where each of them stands in the data that was given, counted from 0; of equal texts the first.
        archive: What the vendor handed out.
        result: What the run found.
    """

    spec: RunSpec
    transcript: Transcript
    knowledge: Knowledge
    tokens: TokenTruth
    labels: LabelTruth | None
    label_names: tuple[str, ...]
    texts: Dataset
    rows: tuple[int, ...]
    archive: Archive
    result: RunResult

    @staticmethod
    def settings(folder: Path) -> RunSpec:
        """The settings of a run, which say which archive it needs.

        Args:
            folder: The run's folder (`--out`).

        Raises:
            ConfigError: The folder holds no finished run.
        """
        return _finished(folder).state.spec

    @classmethod
    def of(cls, folder: Path, given: Corpora, archive: Archive, *, home: Home) -> Evidence:
        """The evidence of a run.

        Args:
            folder: The run's folder (`--out`).
            given: The data that it was run on.
            archive: What the vendor handed out for its cut, as it was handed out.
            home: The folder of the customer that ran it.

        Raises:
            ConfigError: The folder holds no finished run, or one of an encoder-decoder.
            DataError: The data is not the run's.
        """
        run, spec = _finished(folder), cls.settings(folder)
        if spec.objective is Objective.SEQ2SEQ:
            raise ConfigError(
                "Runs of encoder-decoders are not audited yet.",
                remedy="Their result says what the vendor read of them: cutlayer finetune shows it again.",
            )
        if given.digest(home.secret.derive("data digest")) != run.state.data_digest:
            raise DataError(
                f"The run in {folder} was over other data, or another customer's.",
                remedy="Give the same files and columns (and --home) as to `cutlayer finetune`.",
            )
        rows = split_rows(given, spec)
        data = prepare(rows, spec, archive, vocab_size=archive.manifest.vocab_size)
        steps = _steps(run, data)
        if spec.stores:
            by_class = rows.labels if isinstance(rows, Labelled) and _by_class(spec) else None
            records = {run.identifier("train"): record_numbers(data.tokens, by_class)}
            truth = TokenTruth(data.tokens, records=records)
        else:
            truth = TokenTruth(data.tokens, steps=steps)
        labels = LabelTruth(rows.labels, len(rows.names), steps) if isinstance(rows, Labelled) else None
        knowledge = granted(spec, archive)
        truth = replace(truth, search=knowledge.search)
        if spec.train_bottom is TrainBottom.REDRAW:
            links = {(f"job/{job}", step): texts for (job, step), texts in steps.items()}
            knowledge = replace(knowledge, links=links)
        return cls(
            spec=spec,
            transcript=Transcript.recorded(run.transcript),
            knowledge=knowledge,
            tokens=truth,
            labels=labels,
            label_names=data.label_names,
            texts=rows.train,
            rows=_places(rows.train, given.train),
            archive=archive,
            result=run.result(),
        )


def _finished(folder: Path) -> Run:
    if (folder / "run.json").exists() and (run := Run.read(folder)).state.adapter is not None:
        return run
    raise ConfigError(f"{folder} holds no finished run.", remedy="Name the folder of a finished `cutlayer finetune`.")


def granted(spec: RunSpec, archive: Archive) -> Knowledge:
    """What the vendor knows of a run's releases: what it handed out, and how they are privatized.

    Args:
        spec: The run's settings.
        archive: What was handed out, not as the customer trained it.
    """
    cut = spec.cut
    if spec.form is Form.IDS:
        cut = cut.model_copy(update={"bottom": None})
    return Knowledge(
        cut=cut,
        table=archive.table,
        # without noise a row of any token may have left, one for unknown words too
        candidates=None if spec.privacy.mechanism == "none" else archive.candidates,
        template=archive.template,
        bottom=archive.bottom,
        tail=archive.tail,
        noise=Noise(spec.privacy),
    )


def record_numbers(tokens: Tokens, classes: Tensor | None) -> Tensor:
    """`[n]` int64: the number of the record that holds each text: equal texts share one.

    Args:
        tokens: The texts in the order in which they are uploaded.
        classes: `[n]` int64, the class that sets each text's etas; `None` where etas do not depend on it.
    """
    numbers: dict[tuple[object, ...], int] = {}
    found = []
    for row in range(len(tokens)):
        key = (*(tuple(side[row].tolist()) for side in tokens.segments), None if classes is None else int(classes[row]))
        found.append(numbers.setdefault(key, len(numbers)))
    return torch.tensor(found)


def _places(texts: Dataset, given: Dataset) -> tuple[int, ...]:
    first = {text: row for row, text in reversed(list(enumerate(given.texts)))}
    return tuple(first[text] for text in texts.texts)


def _by_class(spec: RunSpec) -> bool:
    return spec.privacy.cti is not None and not spec.privacy.cti.class_free


def _steps(run: Run, data: Prepared) -> dict[tuple[str, int], Tensor]:
    """By job and step, the texts that it was about."""
    spec, job = run.state.spec, run.identifier("job")
    lengths = data.train.lengths
    steps: dict[tuple[str, int], Tensor] = {}
    number = spec.public_iterations
    for epoch in range(len(run.state.dev)):
        for batch in training_order(spec, lengths, epoch):
            number += 1
            steps[job, number] = batch
    return steps
