"""Real split runs on loopback, and what the vendor saw of their texts at the iterations that are attacked."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from cutlayer.attacks import Knowledge, Transcript
from cutlayer.core import Cut, DataError, ModelError, Ragged, Rows, Spec, Tokens
from cutlayer.customer import Progress, TrainSpec
from cutlayer.customer.client import choose_device
from cutlayer.customer.derived import run_order
from cutlayer.customer.handout import local_archive
from cutlayer.customer.home import Home, write_bytes
from cutlayer.customer.prepare import Corpora, prepare, split_rows
from cutlayer.customer.results import LanguageResult
from cutlayer.customer.run import OPTIMISER
from cutlayer.customer.trainer import training_order
from cutlayer.data import Dataset, read_dataset, tokenise
from cutlayer.models import block_list, fingerprint, load_model, load_tokenizer, max_length
from cutlayer.models.anatomy import Kind, family_of
from cutlayer.privacy import CustomerSecret
from cutlayer.recipes.loopback import Loopback
from cutlayer.recipes.tasks import data_file
from cutlayer.reports.cells import digest
from cutlayer.wire import WireType

_WEIGHTS = "weights/"


class Corpus(Spec):
    """A file of the folder of public data sets.

    Attributes:
        title: What it is called here.
        stands_for: The paper's data set; empty where it has none like it.
        name: Its folder.
        split: Its file.
        column: Its column of texts.
    """

    title: str
    stands_for: str = ""
    name: str
    split: str
    column: str = "text"


class RunCell(Spec):
    """A customer's fine-tuning run over the road, unprotected, and which of its iterations are kept.

    Attributes:
        model: Fingerprint of the model's weights.
        corpus: The private texts.
        bottom: Blocks at the customer; a tail of norm and head is there, too.
        training: How it is trained; `max_length` is the length of a block of packed text.
        iterations: Iterations on private text.
        kept: Those whose boundary is kept, counted from 1.
        public: Text to begin with (§5).
        public_iterations: Iterations on it, before the first on private text.
        keeps_weights: Whether the customer's weights after the first iteration are kept. Then there may be two
            iterations at most: a run keeps its newest checkpoints alone.
        seed: Which texts, their order, initialisation and, with the customer's secret, dropout.
    """

    model: str
    corpus: Corpus
    bottom: int
    training: TrainSpec
    iterations: int
    kept: tuple[int, ...]
    public: Corpus | None = None
    public_iterations: int = 0
    keeps_weights: bool = False
    seed: int

    @property
    def name(self) -> str:
        """The run in a few words, for its file."""
        public = f"-public{self.public_iterations}" if self.public_iterations else ""
        length = self.training.max_length
        return f"{self.corpus.name}-{self.training.method}-bottom{self.bottom}-{length}{public}-s{self.seed}"


@dataclass(frozen=True)
class Seen:
    """An iteration's batch.

    Attributes:
        rows: The boundary as it crossed.
        tokens: What the texts were; the measurer's, not the attacker's.
    """

    rows: Rows
    tokens: Tokens


@dataclass(frozen=True)
class Recording:
    """What is kept of a run.

    Attributes:
        seen: By iteration on private text.
        weights: What the customer trained, after its first iteration, by whole-model name; empty unless kept.
    """

    seen: Mapping[int, Seen]
    weights: Mapping[str, Tensor]

    def save(self) -> bytes:
        """As one safetensors file."""
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
        """What `save` wrote."""
        tensors = safetensors.torch.load(content)
        weights = {
            name.removeprefix(_WEIGHTS): tensors.pop(name) for name in list(tensors) if name.startswith(_WEIGHTS)
        }
        seen = {}
        for iteration in sorted({int(name.split("/")[0]) for name in tensors}):
            lengths = tensors[f"{iteration}/row_lengths"]
            seen[iteration] = Seen(
                Rows(Ragged(tensors[f"{iteration}/rows"], lengths.sum(1)), lengths),
                Tokens((Ragged(tensors[f"{iteration}/ids"], tensors[f"{iteration}/id_lengths"]),)),
            )
        return cls(seen, weights)


class Recorder:
    """Runs customers on a vendor of its own, each run once.

    Args:
        folder: Vendor, customers and recordings are kept here.
        model: An embedded model's name, a local folder or a hub id; a decoder.
        data: The folder of public data sets.
        progress: Where to show progress.

    Attributes:
        source: The model's name.
        model: Fingerprint of its weights.
        model_type: As in its configuration.
        device: Where attacks are computed: a GPU if there is one.
        progress: Where to show progress.

    Raises:
        ModelError: There is no such model, or it is no decoder.
    """

    def __init__(self, folder: Path, *, model: str, data: Path, progress: Progress) -> None:
        self.source = model
        whole = load_model(model, head=None)
        family = family_of(whole.config)
        if family.kind is not Kind.DECODER:
            raise ModelError(f"The study is of decoders, and {model} is none.", remedy="Choose a decoder with --model.")
        self.model = fingerprint(whole)
        self.model_type = str(whole.config.model_type)
        self.device = choose_device("auto")
        self.limit = max_length(whole.config)
        self.blocks = len(block_list(whole, family.stacks[0]))
        self.tokenizer = load_tokenizer(model)
        self._folder = folder
        self._data = data
        self.progress = progress
        # every depth but the last, which would leave the vendor no block
        self._loopback = Loopback(folder / "vendor", model, max_bottom=self.blocks - 1, max_tail=0)
        self.texts = cache(self._texts)
        self.knowledge = cache(self._knowledge)

    def stop(self) -> None:
        """Ends the vendor."""
        self._loopback.stop()

    def _knowledge(self, bottom: int) -> Knowledge:
        """What the attacker has beside the boundary: the public model."""
        cut = Cut(bottom=bottom, tail=0)
        archive = local_archive(Home(self._folder / "attacker"), self.source, cut)
        return Knowledge(cut=cut, table=archive.table, template=archive.template, bottom=archive.bottom)

    def _texts(self, corpus: Corpus) -> Dataset:
        """A data set's texts.

        Raises:
            DataError: Its file is missing.
        """
        return read_dataset(data_file(self._data, corpus.name, corpus.split), text_column=corpus.column)

    def recording(self, cell: RunCell) -> Recording:
        """What is kept of a run, from the store or run now."""
        path = self._folder / "recordings" / f"{cell.name}-{digest(cell)}.safetensors"
        if not path.exists():
            write_bytes(path, self._run(cell).save())
        return Recording.load(path.read_bytes())

    def _run(self, cell: RunCell) -> Recording:
        train, dev = self._split(cell)
        public = None if cell.public is None else self.texts(cell.public)
        # one customer for a seed: runs that differ in one setting then have the same dropout
        client = self._loopback.client(self._folder / "customers" / str(cell.seed), self.progress)
        folder = self._folder / "runs" / digest(cell)
        with closing(client):
            result = client.finetune_language_model(
                train,
                eta=float("inf"),
                dev=dev,
                bottom=cell.bottom,
                tail=0,
                training=cell.training,
                wire_type=WireType.FP32,
                public_first=public,
                public_iterations=cell.public_iterations,
                seed=cell.seed,
                out=folder,
                progress=self.progress,
            )
            tokens = self._batches(cell, result, Corpora(train, dev, None, public), secret=client.home.secret)
            recording = Recording(_seen(cell, folder, tokens), _first_weights(folder) if cell.keeps_weights else {})
            client.delete_adapter(result.adapter_id)
        shutil.rmtree(folder)
        return recording

    def _batches(
        self, cell: RunCell, result: LanguageResult, corpora: Corpora, *, secret: CustomerSecret
    ) -> Mapping[int, Tokens]:
        """The true tokens of each kept iteration: prepared and ordered again, as the customer did."""
        archive = local_archive(Home(self._folder / "attacker"), self.source, result.spec.cut)
        rows = split_rows(corpora, result.spec, secret)
        data = prepare(rows, result.spec, archive, vocab_size=len(self.tokenizer))
        order = training_order(
            result.spec, run_order(result.spec.seed, result.spec.privacy, secret), data.train.lengths, 0
        )
        return {iteration: data.tokens.select(order[iteration - 1]) for iteration in cell.kept}

    def _split(self, cell: RunCell) -> tuple[Dataset, Dataset]:
        """Texts in random order that fill the iterations, and further ones that fill one batch of dev.

        Raises:
            DataError: The data set is too short.
        """
        dataset = self.texts(cell.corpus)
        order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(cell.seed)).tolist()
        template = self.knowledge(cell.bottom).template
        if template is None or cell.training.max_length is None:
            raise TypeError("an archive has a template, and a run of the study a length")
        batch = cell.training.batch_size * (cell.training.max_length - template.special_count(1))
        try:
            train = _filling(dataset, self.tokenizer, order, batch * cell.iterations)
            dev = _filling(dataset, self.tokenizer, order[len(train) :], batch)
        except IndexError:
            raise DataError(
                f"{cell.corpus.name}/{cell.corpus.split} has too few tokens for {cell.iterations} iterations of "
                f"{batch} and one batch of dev.",
                remedy="Choose a smaller size.",
            ) from None
        return train, dev


def _filling(dataset: Dataset, tokenizer: PreTrainedTokenizerBase, order: Sequence[int], tokens: int) -> Dataset:
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


def _seen(cell: RunCell, folder: Path, tokens: Mapping[int, Tokens]) -> dict[int, Seen]:
    """The boundaries of the kept iterations, out of the transcript."""
    steps = {cell.public_iterations + iteration: iteration for iteration in cell.kept}
    found: dict[int, Seen] = {}
    for release in Transcript.recorded(folder / "transcript").releases():
        iteration = steps.get(release.number)
        if iteration is None or release.source.count("/") != 1 or not release.source.startswith("job/"):
            continue
        if not isinstance(release.payload, Rows):
            raise TypeError("a trained bottom releases rows")
        found[iteration] = Seen(release.payload, tokens[iteration])
    return {iteration: found[iteration] for iteration in cell.kept}


def _first_weights(folder: Path) -> dict[str, Tensor]:
    kept = safetensors.torch.load_file(folder / "trained-1.safetensors")
    return {name: tensor for name, tensor in kept.items() if not name.startswith(OPTIMISER)}
