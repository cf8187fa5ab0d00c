"""Real split runs on loopback, and what the vendor saw of them: boundaries of some iterations, labels above the cut."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import cast

import safetensors.torch
import torch
from filelock import FileLock
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from cutlayer.attacks import Knowledge
from cutlayer.core import Cut, DataError, Ragged, Rows, Spec, Tokens
from cutlayer.customer import TrainSpec, TuningSpec
from cutlayer.customer.corpora import Corpora
from cutlayer.customer.evidence import Evidence
from cutlayer.customer.home import write_bytes
from cutlayer.customer.run import OPTIMISER
from cutlayer.data import Dataset, tokenise
from cutlayer.models import Template
from cutlayer.recipes.lab import Cell, Lab
from cutlayer.recipes.lab import Rows as LabRows
from cutlayer.recipes.long_table import Measure
from cutlayer.recipes.tasks import TextFile
from cutlayer.reports.cells import digest
from cutlayer.wire import WireType

_WEIGHTS = "weights/"


class SplitRun(Spec):
    """A customer's fine-tuning run of a decoder, unprotected, and which of its iterations are kept.

    Attributes:
        bottom: Blocks at the customer; a tail of norm and head is there, too.
        training: How it is trained; `max_length` is the length of a block of packed text.
        iterations: Iterations on private text.
        kept: Those whose boundary is kept, counted from 1.
        public: Text to begin with (UnSplit §5).
        public_iterations: Iterations on it, before the first on private text.
        keeps_weights: Whether the customer's weights after the first iteration are kept. Then there may be two
            iterations at most: a run keeps its newest checkpoints alone.
        seed: Which texts, their order, initialisation and, with the customer's secret, dropout.
    """

    model: str
    corpus: TextFile
    bottom: int
    training: TrainSpec
    tuning: TuningSpec
    iterations: int
    kept: tuple[int, ...]
    public: TextFile | None = None
    public_iterations: int = 0
    keeps_weights: bool = False
    seed: int

    @property
    def name(self) -> str:
        public = f"-public{self.public_iterations}" if self.public_iterations else ""
        length = self.training.max_length
        return f"{self.corpus.name}-{self.tuning.method}-bottom{self.bottom}-{length}{public}-s{self.seed}"


@dataclass(frozen=True)
class Seen:
    """An iteration's batch: the boundary as it crossed, and what the texts were, which the attacker does not know."""

    rows: Rows
    tokens: Tokens


@dataclass(frozen=True)
class Recording:
    """What is kept of a run: batches by iteration on private text, and weights by whole-model name.

    Weights are what the customer trained, after its first iteration; none unless kept.
    """

    seen: Mapping[int, Seen]
    weights: Mapping[str, Tensor]

    def save(self) -> bytes:
        tensors = {_WEIGHTS + name: tensor.contiguous() for name, tensor in self.weights.items()}
        for iteration, seen in self.seen.items():
            (tokens,) = seen.tokens.segments
            tensors |= {
                f"{iteration}/rows": seen.rows.packed.values.contiguous(),
                f"{iteration}/row_lengths": seen.rows.segment_lengths,
                f"{iteration}/ids": tokens.values,
                f"{iteration}/id_lengths": tokens.lengths,
            }
        return safetensors.torch.save(tensors)

    @classmethod
    def load(cls, content: bytes) -> Recording:
        tensors = safetensors.torch.load(content)
        names = [name for name in tensors if name.startswith(_WEIGHTS)]
        weights = {name.removeprefix(_WEIGHTS): tensors.pop(name) for name in names}
        seen = {}
        for iteration in sorted({int(name.split("/")[0]) for name in tensors}):
            lengths = tensors[f"{iteration}/row_lengths"]
            seen[iteration] = Seen(
                Rows(Ragged(tensors[f"{iteration}/rows"], lengths.sum(1)), lengths),
                Tokens((Ragged(tensors[f"{iteration}/ids"], tensors[f"{iteration}/id_lengths"]),)),
            )
        return cls(seen, weights)


def knowledge(bottom: int, lab: Lab) -> Knowledge:
    """What an attacker on boundaries behind some blocks has beside them: the public model."""
    cut = Cut(bottom=bottom, tail=0)
    archive = lab.archive(cut)
    return Knowledge(cut=cut, table=archive.table, template=archive.template, bottom=archive.bottom)


def recording(run: SplitRun, lab: Lab) -> Recording:
    """What is kept of a run, from its file, or run now: cells that attack one run share it."""
    path = lab.options.out / "recordings" / f"{run.name}-{digest(run)}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):  # two workers may attack the same run
        if not path.exists():
            write_bytes(path, _record(run, lab).save())
    return Recording.load(path.read_bytes())


def _record(run: SplitRun, lab: Lab) -> Recording:
    train, dev = _private_texts(run, lab)
    public = None if run.public is None else run.public.read(lab.options.data)
    folder = lab.options.out / "runs" / f"{run.name}-{digest(run)}"
    # one customer for a seed: runs that differ in one setting then have the same dropout;
    # every depth is handed out but the last, which would leave the vendor no block
    with closing(lab.client(str(run.seed), max_bottom=lab.model(head=None).blocks - 1, max_tail=0)) as client:
        result = client.finetune(
            train, objective="lm", eta=float("inf"), dev=dev, cut=Cut(bottom=run.bottom, tail=0), tuning=run.tuning,
            training=run.training, wire_type=WireType.FP32, public_first=public,
            public_iterations=run.public_iterations, seed=run.seed, out=folder, progress=lab.progress,
        )  # fmt: skip
        given, archive = Corpora(train, dev, None, public), lab.archive(result.spec.cut)
        evidence = Evidence.of(folder, given, archive, home=client.home)
        weights: dict[str, Tensor] = {}
        if run.keeps_weights:
            kept = safetensors.torch.load_file(folder / "trained-1.safetensors")
            weights = {name: tensor for name, tensor in kept.items() if not name.startswith(OPTIMISER)}
        found = Recording(_seen(run, evidence), weights)
        client.delete_adapter(result.adapter_id)
    shutil.rmtree(folder)
    return found


def _private_texts(run: SplitRun, lab: Lab) -> tuple[Dataset, Dataset]:
    """Texts in random order that fill the iterations, and further ones that fill one batch of dev.

    Raises:
        DataError: The data set is too short.
    """
    dataset, tokenizer = run.corpus.read(lab.options.data), lab.model(head=None).tokenizer
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(run.seed)).tolist()
    special = cast(Template, knowledge(run.bottom, lab).template).special_count(1)
    batch = run.training.batch_size * ((run.training.max_length or 0) - special)
    try:
        train = filling(dataset, tokenizer, order, batch * run.iterations)
        dev = filling(dataset, tokenizer, order[len(train) :], batch)
    except IndexError:
        raise DataError(
            f"{run.corpus.name}/{run.corpus.part} has too few tokens for {run.iterations} iterations of {batch} and "
            "one batch of dev.",
            remedy="Choose a smaller size.",
        ) from None
    return train, dev


def filling(dataset: Dataset, tokenizer: PreTrainedTokenizerBase, order: Sequence[int], tokens: int) -> Dataset:
    """The first texts of an order, of which the last is cut so that with their end marks they have so many tokens.

    Raises:
        IndexError: There are too few.
    """
    texts: list[str] = []
    left = tokens
    while left > 1:
        (text,) = dataset.texts[order[len(texts)]]
        texts.append(_first_tokens(text, tokenizer, left - 1))
        left -= _count(texts[-1], tokenizer) + 1
    return Dataset(tuple((text,) for text in texts))


def _first_tokens(text: str, tokenizer: PreTrainedTokenizerBase, most: int) -> str:
    """A text cut where it has so many tokens at most: what is cut in a word can have more, in other pieces."""
    ends: list[tuple[int, int]] = tokenizer(
        text, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True, verbose=False
    )["offset_mapping"]
    kept = min(most, len(ends))
    while kept < len(ends) and kept and _count(text[: ends[kept - 1][1]], tokenizer) > most:
        kept -= 1
    return text if kept == len(ends) else text[: ends[kept - 1][1] if kept else 0]


def _count(text: str, tokenizer: PreTrainedTokenizerBase) -> int:
    return tokenise(Dataset(((text,),)), tokenizer, max_content=2**31).total


def _seen(run: SplitRun, evidence: Evidence) -> dict[int, Seen]:
    """The boundaries of the kept iterations, and the texts that each was of."""
    steps = {run.public_iterations + iteration: iteration for iteration in run.kept}
    truth, found = evidence.tokens, {}
    for release in evidence.transcript.releases():
        of, *also = release.source.split("/")[1:]
        if release.number in steps and not also and (of, release.number) in truth.steps:
            rows = cast(Rows, release.payload)  # a trained bottom releases rows
            found[steps[release.number]] = Seen(rows, truth.tokens.select(truth.steps[of, release.number]))
    return {iteration: found[iteration] for iteration in run.kept}


# ---------------------------------------------------------------- labels above the cut


class TailCell(Cell):
    """A language model's run, and what the vendor reads of its labels by the depth of the customer's tail.

    UnSplit keeps the last layers at the customer because the labels are the text (§2.2), and does not ask what the
    vendor reads above the cut all the same: from the gradient that goes up, from its own answers, and from rows.

    Attributes:
        tail: Blocks at the customer below norm and head.
    """

    model: str
    corpus: TextFile
    texts: int
    tail: int
    training: TrainSpec
    tuning: TuningSpec

    @property
    def name(self) -> str:
        return f"tail{self.tail}-{self.corpus.name}-{self.tuning.method}-s{self.seed}"

    def run(self, lab: Lab) -> LabRows[Measure]:
        """Trains; the run itself measures what its traffic tells."""
        texts = self.corpus.read(lab.options.data)
        chosen = Dataset(texts.sample(min(self.texts, len(texts)), seed=self.seed).texts)
        # a vendor that hands out tails, and one block below them
        with closing(lab.client("tail", max_bottom=1, max_tail=lab.model(head=None).blocks - 2)) as client:
            result = client.finetune(
                chosen, objective="lm", eta=float("inf"), cut=Cut(bottom=1, tail=self.tail), tuning=self.tuning,
                training=self.training, seed=self.seed, out=lab.scratch(self), progress=lab.progress,
            )  # fmt: skip
            client.delete_adapter(result.adapter_id)
        names = {
            "first_steps": "token_recovery_first_steps", "last_steps": "token_recovery_last_steps",
            "answers": "token_recovery_from_answers", "rows": "token_recovery_from_boundary",
            "perplexity before": "dev_before", "perplexity": "perplexity",
        }  # fmt: skip
        return LabRows[Measure](rows=tuple(Measure.fields(result, names)))
