"""What the vendor reads of a language model's labels by the depth of the customer's tail, as cells that are kept.

The study keeps the last layers at the customer because the labels are the text (§2.2), and does not ask what the vendor
reads above the cut all the same: from the gradient that goes up, from its own answers, and from rows behind blocks.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from cutlayer.core import Proportion, Spec
from cutlayer.customer import Method, TrainSpec
from cutlayer.data import Dataset
from cutlayer.recipes.loopback import Loopback
from cutlayer.recipes.picture import save_picture
from cutlayer.recipes.unsplit.findings import Verdict
from cutlayer.recipes.unsplit.report import PartReport
from cutlayer.recipes.unsplit.runs import Corpus, Recorder
from cutlayer.reports import CellStore, Table

if TYPE_CHECKING:
    from cutlayer.customer import LanguageResult

METHODS = {Method.LORA: "adapters", Method.FULL: "all weights"}
_READ_AT = 0.5
"""A share of tokens above which nobody would say that labels stay home."""


class TailCell(Spec):
    """A run whose traffic is read.

    Attributes:
        model: Fingerprint of the model's weights.
        corpus: The private texts.
        texts: How many of them.
        tail: Blocks at the customer below norm and head.
        training: How it is trained.
        seed: Which texts, initialisation and order.
    """

    model: str
    corpus: Corpus
    texts: int
    tail: int
    training: TrainSpec
    seed: int

    @property
    def name(self) -> str:
        """The cell in a few words, for its file."""
        return f"tail{self.tail}-{self.corpus.name}-{self.training.method}-s{self.seed}"


class TailReading(BaseModel):
    """What the vendor reads of one run, as its result tells it.

    Attributes:
        first_steps: Of tokens that are trained on, from gradients of the first steps.
        last_steps: The same of the last steps.
        answers: Of the customer's most probable tokens after training.
        rows: Of tokens that are trained on, from rows behind one block.
        before: Dev perplexity before training.
        after: After it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    first_steps: Proportion | None
    last_steps: Proportion | None
    answers: Proportion | None
    rows: Proportion | None
    before: float
    after: float

    @classmethod
    def of(cls, result: LanguageResult) -> TailReading:
        """What a finished run says."""
        return cls(
            first_steps=result.token_recovery_first_steps,
            last_steps=result.token_recovery_last_steps,
            answers=result.token_recovery_from_answers,
            rows=result.token_recovery_from_boundary,
            before=result.dev_before,
            after=result.perplexity,
        )


def tail_readings(cells: Sequence[TailCell], recorder: Recorder, folder: Path) -> dict[TailCell, TailReading]:
    """Each cell's, from the store or run now."""
    store: CellStore[TailCell, TailReading] = CellStore(folder / "cells", TailReading)
    # a vendor that hands out tails, and one block below them
    deepest = max(cell.tail for cell in cells)
    loopback = Loopback(folder / "tail" / "vendor", recorder.source, max_bottom=1, max_tail=deepest)
    found = {}
    try:
        for cell in cells:
            reading = store.get(cell)
            if reading is None:
                reading = _run(cell, recorder, loopback, folder / "tail")
                store.put(cell, reading)
            found[cell] = reading
    finally:
        loopback.stop()
    return found


def _run(cell: TailCell, recorder: Recorder, loopback: Loopback, folder: Path) -> TailReading:
    texts = recorder.texts(cell.corpus)
    chosen = Dataset(texts.sample(min(cell.texts, len(texts)), seed=cell.seed).texts)
    client, run = loopback.client(folder / "customer", recorder.progress), folder / "runs" / cell.name
    with closing(client):
        result = client.finetune_language_model(
            chosen,
            eta=float("inf"),
            bottom=1,
            tail=cell.tail,
            training=cell.training,
            seed=cell.seed,
            out=run,
            progress=recorder.progress,
        )
        client.delete_adapter(result.adapter_id)
    shutil.rmtree(run)
    return TailReading.of(result)


def tails_report(readings: dict[TailCell, TailReading], folder: Path, *, model: str) -> PartReport:
    """Table, plot and JSON by depth of the tail."""
    verdict = _verdict(readings)
    table = Table(
        title=f"What the vendor reads of labels, by depth of the tail, on {model} (not in the paper)",
        columns=(
            "at the customer above",
            "tuned",
            "perplexity",
            "gradients, first steps (%)",
            "gradients, last steps (%)",
            "answers, tuned (%)",
            "rows behind one block (%)",
        ),
        rows=tuple(
            (
                _above(cell.tail),
                METHODS[cell.training.method],
                f"{reading.before:.1f} → {reading.after:.1f}",
                *map(_percent, (reading.first_steps, reading.last_steps, reading.answers, reading.rows)),
            )
            for cell, reading in readings.items()
        ),
        notes=(
            "Before training, the vendor's tail and the customer's are one: answers are read whole at any depth.",
            str(verdict),
        ),
    )
    picture = "tail.png"
    _draw(readings, folder / picture, model=model)
    content = {
        "rows": [
            {"tail": cell.tail, "method": cell.training.method.value, **reading.model_dump(mode="json")}
            for cell, reading in readings.items()
        ],
        "verdicts": [verdict.model_dump()],
    }
    return PartReport((table,), content, (picture,))


def _verdict(readings: dict[TailCell, TailReading]) -> Verdict:
    shares = [
        share.value
        for reading in readings.values()
        for share in (reading.first_steps, reading.last_steps, reading.answers)
        if share is not None
    ]
    return Verdict(
        claim="§2.2: with the last layers at the client, the labels stay there.",
        held=max(shares) < _READ_AT if shares else None,
        because=f"the vendor read {100 * min(shares):.1f} to {100 * max(shares):.1f} % of tokens."
        if shares
        else "no attack applied.",
    )


def _above(tail: int) -> str:
    blocks = {0: "", 1: "one block, "}.get(tail, f"{tail} blocks, ")
    return f"{blocks}norm and head"


def _percent(share: Proportion | None) -> str:
    return "–" if share is None else share.percent()


def _draw(readings: dict[TailCell, TailReading], path: Path, *, model: str) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(f"What the vendor reads of labels, by depth of the tail, on {model}")
    for place, (method, name) in enumerate(METHODS.items(), start=1):
        axes = figure.add_subplot(1, 2, place)
        some = {cell.tail: reading for cell, reading in readings.items() if cell.training.method is method}
        for label, field, style in (
            ("gradients, first steps", "first_steps", "o-"),
            ("gradients, last steps", "last_steps", "s--"),
            ("answers, tuned", "answers", "^:"),
        ):
            at = [tail for tail, reading in some.items() if getattr(reading, field) is not None]
            axes.plot(at, [100 * getattr(some[tail], field).value for tail in at], style, label=label)
        axes.set(title=name, xlabel="blocks in the tail", ylabel="tokens read (%)", ylim=(0, 105), xticks=list(some))
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    save_picture(figure, path)
