"""Attacks on kept boundaries: each a cell that goes on where it was stopped, and is run once."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal, cast

import safetensors.torch
import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from cutlayer.attacks import InputTruth, Knowledge, OuterIteration, Traffic, UnSplitRun, UnSplitSpec
from cutlayer.attacks.content import content_rows
from cutlayer.attacks.evaluation.statistics import chance_of_match
from cutlayer.attacks.inversion.inverter import Inverter, InverterSpec, fit_inverter
from cutlayer.attacks.inversion.inverter_refinement import RefineSpec, refine
from cutlayer.core import DataError, Ragged, Rows, Spec, Tokens
from cutlayer.customer import Method, Progress
from cutlayer.customer.home import write_bytes
from cutlayer.data import tokenise
from cutlayer.models import Bottom, Inputs, Template, attach_lora, seeded, set_dropout
from cutlayer.recipes.experiment import Stoppable, finish
from cutlayer.recipes.unsplit.runs import Corpus, Recorder, Recording, RunCell
from cutlayer.reports import CellStore

Start = Literal["pre-trained", "customer"]
"""What the guessed bottom starts from: the public weights (Algorithm 1), or the customer's own after its first
iteration, which no honest vendor has (§4.1.1, Figures 11 and 12)."""

_SAVE_SECONDS = 20.0
"""Between two states of a running attack on disk."""
_INVERTERS = 16
"""Fitted ones in memory: one for each depth, length and seed."""
_POSITIONS = 4096
"""Of a batch of public text."""


class AttackCell(Spec):
    """UnSplit on one iteration of one run.

    Attributes:
        run: Whose boundary.
        iteration: Which of its private iterations, from 1.
        spec: How the attack is run.
        start: What the guess starts from.
        traffic: The boundary as it crossed; or, as a control, noise or its rows shuffled.
        seed: Of the start of x' and the guess's dropout.
    """

    run: RunCell
    iteration: int
    spec: UnSplitSpec
    start: Start = "pre-trained"
    traffic: Traffic = Traffic.UNPROTECTED
    seed: int

    @property
    def name(self) -> str:
        """The cell in a few words, for its file."""
        return f"unsplit-{self.run.name}-iteration{self.iteration}"


class InverterCell(Spec):
    """The known-plaintext inverter on one iteration of one run.

    Attributes:
        run: Whose boundary.
        iteration: Which.
        traffic: As for UnSplit's.
        public: Text that the inverter learns from; another data set than the run's.
        public_tokens: At most so many tokens of it.
        inverter: How it learns.
        refine: How it holds its reading against the boundary.
        seed: Of what is drawn in learning.
    """

    run: RunCell
    iteration: int
    traffic: Traffic = Traffic.UNPROTECTED
    public: Corpus
    public_tokens: int
    inverter: InverterSpec
    refine: RefineSpec
    seed: int

    @property
    def name(self) -> str:
        """The cell in a few words, for its file."""
        return f"inverter-{self.run.name}-iteration{self.iteration}"


class Reading(BaseModel):
    """What an attack made of a batch.

    Attributes:
        true: The texts.
        guessed: What was read.
        right: Tokens read right, by text.
        counted: Tokens, by text.
        shuffled: Tokens right when all true tokens are dealt out anew: what the score gives nothing for.
        chance: The share that guesses with these frequencies hit by chance.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    true: tuple[str, ...]
    guessed: tuple[str, ...]
    right: tuple[int, ...]
    counted: tuple[int, ...]
    shuffled: tuple[int, ...]
    chance: float


class Stage(BaseModel):
    """Where the attack stood after an outer iteration; see `OuterIteration`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: int
    mse_outputs: float
    mse_inputs: float
    accuracy: float


class Attacked(BaseModel):
    """A finished attack.

    Attributes:
        reading: What it read.
        history: One entry for each outer iteration.
        seconds: How long it took, over all tries.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    reading: Reading
    history: tuple[Stage, ...]
    seconds: float


class Inverted(BaseModel):
    """A finished inverter.

    Attributes:
        stages: What it read: `guessed`, and after each refinement.
        public_accuracy: The share of held-out public tokens that it reads.
        seconds: How long reading took, without learning, which cells share.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    stages: Mapping[str, Reading]
    public_accuracy: float
    seconds: float


class Unchanged(BaseModel):
    """What processing a batch in training mode changes of a bottom (§4.1.1).

    Attributes:
        tensors: Its parameters and buffers.
        changed: How many of them differ afterwards.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    tensors: int
    changed: int


class Experiment(Stoppable):
    """Where cells are run and kept.

    Args:
        folder: Everything is kept here; the same folder goes on with an unfinished experiment.
        model: A decoder: an embedded model's name, a local folder or a hub id.
        data: The folder of public data sets.
        progress: Where to show progress.
    """

    def __init__(self, folder: Path, *, model: str, data: Path, progress: Progress) -> None:
        self.folder = folder
        self.recorder = Recorder(folder, model=model, data=data, progress=progress)
        self._progress = progress
        self._attacked: CellStore[AttackCell, Attacked] = CellStore(folder / "cells", Attacked)
        self._inverted: CellStore[InverterCell, Inverted] = CellStore(folder / "cells", Inverted)
        self._inverter = lru_cache(maxsize=_INVERTERS)(self._fit)

    def stop(self) -> None:
        """Ends the vendor."""
        self.recorder.stop()

    def attacks(self, cells: Sequence[AttackCell]) -> dict[AttackCell, Attacked]:
        """Results of UnSplit's cells."""
        return finish(cells, self._attacked, self._attack, self._progress)

    def inversions(self, cells: Sequence[InverterCell]) -> dict[InverterCell, Inverted]:
        """Results of the inverter's cells."""
        return finish(cells, self._inverted, self._invert, self._progress)

    # ------------------------------------------------------------ UnSplit

    def _attack(self, cell: AttackCell) -> Attacked:
        recording, knowledge = self._observed(cell.run)
        seen = recording.seen[cell.iteration]
        hidden, inputs = _boundary(cell, seen.rows, knowledge)
        ids = cast(Tensor, _template(knowledge).assemble(seen.tokens).input_ids)
        bottom = cast(Bottom, knowledge.bottom)
        table = bottom.table.detach()
        attack = UnSplitRun(
            guessed_bottom(cell, bottom, recording.weights).to(self.recorder.device),
            hidden,
            inputs,
            cell.spec,
            generator=seeded(cell.seed, cell.name),
            truth=InputTruth(rows=table[ids].float(), ids=ids),
        )
        state = self._attacked.path(cell).with_suffix(".safetensors")  # of an attack that was stopped
        seconds = 0.0
        if state.exists():
            kept = safetensors.torch.load_file(state)
            spent = kept.pop("seconds")
            with contextlib.suppress(DataError):  # of a boundary that was recorded anew since: from the beginning
                attack.load(kept)
                seconds = float(spent)
        started = saved = time.monotonic()
        while not attack.done:
            stage = attack.step()
            self._progress.update(
                "attack", stage.number, cell.spec.outer_iterations, f"{100 * (stage.accuracy or 0):.1f} % of tokens"
            )
            if time.monotonic() - saved > _SAVE_SECONDS and not attack.done:
                saved = time.monotonic()
                so_far = torch.tensor(seconds + saved - started)
                write_bytes(state, safetensors.torch.save({**attack.state(), "seconds": so_far}))
        found = attack.reconstruction()
        result = Attacked(
            reading=self._read(seen.rows, seen.tokens, found.ids[found.mask], knowledge),
            history=tuple(map(_stage, found.history)),
            seconds=seconds + time.monotonic() - started,
        )
        state.unlink(missing_ok=True)
        return result

    def _observed(self, run: RunCell) -> tuple[Recording, Knowledge]:
        return self.recorder.recording(run), self.recorder.knowledge(run.bottom)

    def processed(self, run: RunCell, iteration: int) -> Unchanged:
        """What the guessed bottom becomes by processing the private batch in training mode, without a step.

        It is what the paper says of its Figures 11 and 12: the guess "process[es] the same private data".
        """
        recording, knowledge = self._observed(run)
        bottom = copy.deepcopy(cast(Bottom, knowledge.bottom))
        return process(bottom, _template(knowledge).assemble(recording.seen[iteration].tokens))

    # ------------------------------------------------------------ the inverter

    def _invert(self, cell: InverterCell) -> Inverted:
        recording, knowledge = self._observed(cell.run)
        seen = recording.seen[cell.iteration]
        inverter = self._inverter(cell.public, cell.public_tokens, cell.inverter, cell.run.bottom,
                                  cell.run.training.max_length or 0, cell.seed)  # fmt: skip
        hidden, inputs = _boundary(cell, seen.rows, knowledge)
        started = time.monotonic()
        found = refine(
            inverter,
            cast(Bottom, knowledge.bottom),
            hidden,
            inputs,
            cell.refine,
            generator=seeded(cell.seed, cell.name),
        )
        mask = inputs.attention_mask.bool()
        stages = {name: self._read(seen.rows, seen.tokens, ids[mask], knowledge) for name, ids in found.stages.items()}
        return Inverted(
            stages=stages,
            public_accuracy=inverter.chosen.accuracy.value,
            seconds=time.monotonic() - started,
        )

    def _fit(self, public: Corpus, tokens: int, spec: InverterSpec, bottom: int, length: int, seed: int) -> Inverter:
        """An inverter for a depth, from public text in blocks as long as the attacked ones."""
        self._progress.update("learn to invert", 0, 1)
        knowledge = self.recorder.knowledge(bottom)
        template = _template(knowledge)
        content = length - template.special_count(1)
        stream = tokenise(self.recorder.texts(public), self.recorder.tokenizer, max_content=2**31).segments[0].values
        blocks = stream[: min(tokens, len(stream)) // content * content].split(content)
        batches = [
            template.assemble(Tokens((Ragged(torch.cat(list(some)), torch.tensor([len(each) for each in some])),)))
            for some in _batched(blocks, max(1, _POSITIONS // length))
        ]
        fitted = fit_inverter(cast(Bottom, knowledge.bottom), batches, spec, generator=seeded(seed, "inverter"))
        self._progress.update("learn to invert", 1, 1, f"{100 * fitted.chosen.accuracy.value:.1f} % of public tokens")
        return fitted

    # ------------------------------------------------------------ scoring

    def _read(self, rows: Rows, tokens: Tokens, guessed: Tensor, knowledge: Knowledge) -> Reading:
        """Scores guesses, `[total]` in the order of the boundary's rows, on content tokens."""
        values, lengths = content_rows(Rows(rows.packed.with_values(guessed), rows.segment_lengths), knowledge)
        guess, truth = Ragged(values, lengths[:, 0].contiguous()), tokens.segments[0]
        dealt = truth.with_values(truth.values[torch.randperm(len(truth.values), generator=seeded(0, "shuffled"))])
        return Reading(
            true=self._text(truth),
            guessed=self._text(guess),
            right=_matches(guess, truth),
            counted=tuple(truth.lengths.tolist()),
            shuffled=_matches(guess, dealt),
            chance=chance_of_match(truth.values, guess.values, looks=torch.ones_like(truth.values)),
        )

    def _text(self, tokens: Ragged) -> tuple[str, ...]:
        return tuple(self.recorder.tokenizer.batch_decode([text.tolist() for text in tokens.split()]))


def guessed_bottom(cell: AttackCell, bottom: Bottom, weights: Mapping[str, Tensor]) -> Bottom:
    """The guessed client model that an attack starts from.

    Args:
        cell: The attack.
        bottom: The public one. Not changed.
        weights: What the customer had trained by then, by whole-model name; used for `start="customer"` alone.
    """
    training = cell.run.training
    guess = copy.deepcopy(bottom)
    if training.method is Method.LORA and (cell.spec.optimised == "adapter" or cell.start == "customer"):
        # where the customer's own adapter starts: the vendor is told the run's seed
        guess = attach_lora(
            guess,
            rank=training.rank,
            alpha=training.alpha,
            dropout=training.lora_dropout,
            targets=training.targets,
            seed=cell.run.seed,
        )
    if cell.start == "customer":
        own = dict(guess.model.named_parameters())
        with torch.no_grad():
            for name in own.keys() & weights.keys():
                own[name].copy_(weights[name])
    return guess


def process(bottom: Bottom, inputs: Inputs) -> Unchanged:
    """Passes a batch through a bottom in training mode, and counts what that changed of it."""
    set_dropout(bottom, True)
    bottom.train()
    held = [*bottom.parameters(), *bottom.buffers()]
    before = [tensor.detach().clone() for tensor in held]
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        bottom(inputs)
    return Unchanged(tensors=len(held), changed=sum(not torch.equal(a, b) for a, b in zip(before, held, strict=True)))


def _boundary(cell: AttackCell | InverterCell, rows: Rows, knowledge: Knowledge) -> tuple[Tensor, Inputs]:
    """What the attack is given, `[batch, seq, width]`.

    It is what crossed; as a control, noise with its mean and spread, or its rows dealt out anew over all texts.
    """
    hidden, inputs = _template(knowledge).from_rows(rows)
    if cell.traffic is Traffic.NOISE:
        noise = torch.randn(hidden.shape, generator=seeded(cell.seed, "noise"))
        hidden = hidden.mean() + noise * hidden.std()
    if cell.traffic is Traffic.SHUFFLED:
        real = inputs.attention_mask.bool()
        order = torch.randperm(int(real.sum()), generator=seeded(cell.seed, "shuffled"))
        hidden = hidden.index_put((real,), hidden[real][order])
    return hidden, inputs


def _template(knowledge: Knowledge) -> Template:
    if knowledge.template is None:
        raise TypeError("an archive has a template")
    return knowledge.template


def _stage(entry: OuterIteration) -> Stage:
    if entry.mse_inputs is None or entry.accuracy is None:
        raise TypeError("the measurer gave the truth")
    return Stage(
        number=entry.number,
        mse_outputs=entry.mse_after_weights,
        mse_inputs=entry.mse_inputs,
        accuracy=entry.accuracy,
    )


def _matches(guess: Ragged, truth: Ragged) -> tuple[int, ...]:
    right = (guess.values == truth.values).split(truth.lengths.tolist())
    return tuple(int(text.sum()) for text in right)


def _batched(items: Sequence[Tensor], size: int) -> Iterator[Sequence[Tensor]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
