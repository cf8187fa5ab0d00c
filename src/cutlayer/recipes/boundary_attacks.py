"""Attacks on recorded boundaries of real runs: UnSplit, a learned inverter, and what stands beside them."""

from __future__ import annotations

import contextlib
import copy
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, cast

import safetensors.torch
import torch
from torch import Tensor

from cutlayer.attacks import (
    InputTruth,
    Knowledge,
    OuterIteration,
    Traffic,
    UnSplitRun,
    UnSplitSpec,
    clustered,
    text_overlap,
)
from cutlayer.attacks.content import content_rows
from cutlayer.attacks.evaluation.statistics import chance_of_match
from cutlayer.attacks.inversion.inverter import Inverter, InverterSpec, fit_inverter
from cutlayer.attacks.inversion.inverter_refinement import RefineSpec, refine
from cutlayer.core import DataError, Ragged, Rows, Spec, Tokens
from cutlayer.customer import Lora
from cutlayer.customer.connection import choose_device
from cutlayer.customer.home import write_bytes
from cutlayer.models import Bottom, Inputs, Template, attach_lora, seeded, set_dropout
from cutlayer.recipes.lab import Cell, Lab
from cutlayer.recipes.long_table import Measure
from cutlayer.recipes.recordings import Recording, SplitRun, knowledge, recording
from cutlayer.recipes.study import Results
from cutlayer.recipes.tasks import TextFile

UNSPLIT, INVERTER = "unsplit", "inverter"
ROUGE = {"R-1": "rouge1", "R-2": "rouge2", "R-L": "rouge_l", "R-Lsum": "rouge_lsum"}
"""Metrics of texts, and their fields of `TextOverlap`."""

Start = Literal["pre-trained", "customer"]
"""What the guessed bottom starts from: the public weights (Algorithm 1), or the customer's own after its first
iteration, which no honest vendor has (§4.1.1, Figures 11 and 12)."""

_SAVE_SECONDS = 20.0
"""Between two states of a running attack on disk."""
_POSITIONS = 4096
"""Of a batch of public text."""


class Reading(Spec):
    """What an attack made of a batch.

    Attributes:
        right: Tokens read right, by text, of those `counted`.
        shuffled: Tokens right when all true tokens are dealt out anew: what the score gives nothing for.
        chance: The share that guesses with these frequencies hit by chance.
    """

    true: tuple[str, ...]
    guessed: tuple[str, ...]
    right: tuple[int, ...]
    counted: tuple[int, ...]
    shuffled: tuple[int, ...]
    chance: float

    def texts(self) -> Iterator[tuple[int, int, str, str]]:
        yield from zip(self.right, self.counted, self.true, self.guessed, strict=True)

    def measures(self, attack: str) -> Iterator[Measure]:
        """Tokens read, clustered by text, what chance and dealt-out texts give, and ROUGE if a text has a word."""
        counted = torch.tensor(self.counted)
        for metric, hits in (("success", self.right), ("shuffled", self.shuffled)):
            yield Measure.share(metric, clustered(torch.tensor(hits), counted), attack=attack)
        yield Measure("chance", self.chance, n=int(counted.sum()), attack=attack)
        yield Measure("texts", len(self.true), attack=attack)
        with contextlib.suppress(DataError):
            overlap = text_overlap(self.true, self.guessed)
            for metric, kind in ROUGE.items():
                yield Measure.share(metric, getattr(overlap, kind), attack=attack)


class Stage(Spec):
    """Where the attack stood after an outer iteration; see `OuterIteration`."""

    number: int
    mse_outputs: float
    mse_inputs: float
    accuracy: float


class Attacked(Spec):
    """What UnSplit read, where it stood after each outer iteration, and how long it took, over all tries."""

    reading: Reading
    history: tuple[Stage, ...]
    seconds: float


class Inverted(Spec):
    """A finished inverter.

    Attributes:
        stages: What it read: `guessed`, and after each refinement.
        public_accuracy: The share of held-out public tokens that it reads.
        seconds: Of reading, without learning, which cells share.
    """

    stages: Mapping[str, Reading]
    public_accuracy: float
    seconds: float


class BoundaryCell(Cell):
    """Something that is made of one iteration of one run.

    Attributes:
        split: Whose boundary.
        iteration: Which of its private iterations, from 1.
        traffic: The boundary as it crossed; or, as a control, noise or its rows shuffled.
    """

    split: SplitRun
    iteration: int
    traffic: Traffic = Traffic.UNPROTECTED

    def observed(self, lab: Lab) -> tuple[Recording, Knowledge]:
        """What is kept of the run, and what the attacker has beside the boundary."""
        return recording(self.split, lab), knowledge(self.split.bottom, lab)

    def boundary(self, rows: Rows, known: Knowledge) -> tuple[Tensor, Inputs]:
        """What the attack is given, `[batch, seq, width]`, and its masks.

        It is what crossed; as a control, noise with its mean and spread, or its rows dealt out anew over all texts.
        """
        hidden, inputs = _template(known).from_rows(rows)
        if self.traffic is Traffic.NOISE:
            noise = torch.randn(hidden.shape, generator=seeded(self.seed, "noise"))
            hidden = hidden.mean() + noise * hidden.std()
        if self.traffic is Traffic.SHUFFLED:
            real = inputs.attention_mask.bool()
            order = torch.randperm(int(real.sum()), generator=seeded(self.seed, "shuffled"))
            hidden = hidden.index_put((real,), hidden[real][order])
        return hidden, inputs


class UnsplitCell(BoundaryCell):
    """UnSplit on one iteration of one run; one that was stopped goes on."""

    spec: UnSplitSpec
    start: Start = "pre-trained"

    @property
    def name(self) -> str:
        return f"unsplit-{self.split.name}-iteration{self.iteration}"

    def run(self, lab: Lab) -> Attacked:
        recorded, known = self.observed(lab)
        seen, bottom = recorded.seen[self.iteration], cast(Bottom, known.bottom)
        hidden, inputs = self.boundary(seen.rows, known)
        ids = cast(Tensor, _template(known).assemble(seen.tokens).input_ids)
        guess = guessed_bottom(self, bottom, recorded.weights).to(choose_device("auto"))
        truth = InputTruth(rows=bottom.table.detach()[ids].float(), ids=ids)
        attack = UnSplitRun(guess, hidden, inputs, self.spec, generator=seeded(self.seed, self.name), truth=truth)
        state, seconds = lab.scratch(self) / "attack.safetensors", 0.0
        if state.exists():
            kept = safetensors.torch.load_file(state)
            spent = kept.pop("seconds")
            with contextlib.suppress(DataError):  # of a boundary that was recorded anew since: from the beginning
                attack.load(kept)
                seconds = float(spent)
        started = saved = time.monotonic()
        while not attack.done:
            stage = attack.step()
            share = f"{100 * (stage.accuracy or 0):.1f} % of tokens"
            lab.progress.update("attack", stage.number, self.spec.outer_iterations, share)
            if time.monotonic() - saved > _SAVE_SECONDS and not attack.done:
                saved = time.monotonic()
                so_far = torch.tensor(seconds + saved - started)
                write_bytes(state, safetensors.torch.save({**attack.state(), "seconds": so_far}))
        found = attack.reconstruction()
        return Attacked(
            reading=_read(seen.rows, seen.tokens, found.ids[found.mask], known, lab),
            history=tuple(map(_stage, found.history)),
            seconds=seconds + time.monotonic() - started,
        )

    def measures(self, result: Attacked) -> Iterator[Measure]:
        yield from result.reading.measures(UNSPLIT)
        yield Measure("seconds", result.seconds, attack=UNSPLIT)


class InverterCell(BoundaryCell):
    """The known-plaintext inverter on one iteration of one run.

    Attributes:
        public: Text that the inverter learns from, at most so many tokens of another data set than the run's.
        refine: How it holds its reading against the boundary.
    """

    public: TextFile
    public_tokens: int
    inverter: InverterSpec
    refine: RefineSpec

    @property
    def name(self) -> str:
        return f"inverter-{self.split.name}-iteration{self.iteration}"

    def run(self, lab: Lab) -> Inverted:
        recorded, known = self.observed(lab)
        seen, bottom = recorded.seen[self.iteration], self.split.bottom
        shared = ("inverter", self.public, self.public_tokens, self.inverter, bottom, self._length, self.seed)
        inverter = lab.once(shared, lambda: self._fitted(known, lab))
        hidden, inputs = self.boundary(seen.rows, known)
        started, generator = time.monotonic(), seeded(self.seed, self.name)
        found = refine(inverter, cast(Bottom, known.bottom), hidden, inputs, self.refine, generator=generator)
        mask = inputs.attention_mask.bool()
        return Inverted(
            stages={name: _read(seen.rows, seen.tokens, ids[mask], known, lab) for name, ids in found.stages.items()},
            public_accuracy=inverter.chosen.accuracy.value,
            seconds=time.monotonic() - started,
        )

    @property
    def stages(self) -> tuple[str, ...]:
        """What it reads one after another; see `Refined.stages`."""
        further = {"matched": self.refine.matching is not None, "searched": self.refine.search > 0}
        return ("guessed", *(name for name, wanted in further.items() if wanted))

    @property
    def _length(self) -> int:
        return self.split.training.max_length or 0

    def _fitted(self, known: Knowledge, lab: Lab) -> Inverter:
        lab.progress.update("learn to invert", 0, 1)
        template, stream = _template(known), lab.stream(self.public)
        content = self._length - template.special_count(1)
        blocks = stream[: min(self.public_tokens, len(stream)) // content * content].split(content)
        texts = Tokens((Ragged(torch.cat(blocks), torch.full((len(blocks),), content)),))
        batched = torch.arange(len(blocks)).split(max(1, _POSITIONS // self._length))
        batches = [template.assemble(texts.select(some)) for some in batched]
        generator = seeded(self.seed, "inverter")
        fitted = fit_inverter(cast(Bottom, known.bottom), batches, self.inverter, generator=generator)
        share = f"{100 * fitted.chosen.accuracy.value:.1f} % of public tokens"
        lab.progress.update("learn to invert", 1, 1, share)
        return fitted

    def measures(self, result: Inverted) -> Iterator[Measure]:
        """What it read at each stage, and at the last one."""
        for stage, reading in result.stages.items():
            yield from reading.measures(f"{INVERTER}, {stage}")
        yield from list(result.stages.values())[-1].measures(INVERTER)
        yield Measure("public text read", result.public_accuracy, attack=INVERTER)
        yield Measure("seconds", result.seconds, attack=INVERTER)


# ---------------------------------------------------------------- what a guess learns by processing


class Processed(Spec):
    """A bottom's parameters and buffers, and how many of them processing a batch in training mode changes (§4.1.1)."""

    tensors: int
    changed: int


class ProcessedCell(BoundaryCell):
    """What the guessed bottom becomes by processing the private batch in training mode, without a step.

    It is what UnSplit says of its Figures 11 and 12: the guess "process[es] the same private data".
    """

    @property
    def name(self) -> str:
        return f"processed-{self.split.name}-iteration{self.iteration}"

    def run(self, lab: Lab) -> Processed:
        recorded, known = self.observed(lab)
        bottom = copy.deepcopy(cast(Bottom, known.bottom))
        return process(bottom, _template(known).assemble(recorded.seen[self.iteration].tokens))

    def measures(self, result: Processed) -> Iterator[Measure]:
        yield from Measure.fields(result, {"tensors": "tensors", "tensors changed": "changed"})


def process(bottom: Bottom, inputs: Inputs) -> Processed:
    """Passes a batch through a bottom in training mode, and counts what that changed of it."""
    set_dropout(bottom, True)
    bottom.train()
    held = [*bottom.parameters(), *bottom.buffers()]
    before = [tensor.detach().clone() for tensor in held]
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        bottom(inputs)
    return Processed(tensors=len(held), changed=sum(not torch.equal(a, b) for a, b in zip(before, held, strict=True)))


# ---------------------------------------------------------------- what is made of attacks


def steps(spec: UnSplitSpec) -> str:
    """How far an attack goes."""
    inputs, weights = (spec.outer_iterations * each for each in (spec.inner_inputs, spec.inner_weights))
    return f"x' × {inputs}" + (f", θ × {weights}" if weights else "")


class Example(NamedTuple):
    """A text that was read about as well as one that a paper shows; shares in per cent."""

    wanted: float
    accuracy: float
    steps: str
    true: str
    guessed: str

    @property
    def rouge_1(self) -> float:
        """Of the whole text's words; 0 where it has none."""
        try:
            return 100 * text_overlap([self.true], [self.guessed]).rouge1.value
        except DataError:
            return 0.0


def examples(results: Results, wanted: Sequence[float]) -> list[Example]:
    """For each of some accuracies, in per cent, the text that was read about as well."""
    read = [
        (100 * right / counted, steps(cell.spec), true, guessed)
        for cell, done in results.of(UnsplitCell)
        for right, counted, true, guessed in done.reading.texts()
    ]
    nearest = {accuracy: min(read, key=lambda each: abs(each[0] - accuracy)) for accuracy in (wanted if read else ())}
    return [Example(accuracy, *found) for accuracy, found in nearest.items()]


def errors(results: Results) -> Iterator[Measure]:
    """Both errors over an attack's outer iterations, and how they go together."""
    for scenario in results.scenarios:
        if scenario.cell not in results.cells:
            continue
        stages, axes = results.cells[scenario.cell].history, scenario.axes
        both = {"outputs": [each.mse_outputs for each in stages], "inputs": [each.mse_inputs for each in stages]}
        for what, values in both.items():
            yield Measure(f"{what}, first", values[0], axes=axes)
            yield Measure(f"{what}, last", values[-1], axes=axes)
            for number, value in enumerate(values, start=1):
                yield Measure(f"MSE of {what}", value, axes={**axes, "outer iteration": number})
        yield Measure("outer iterations", len(stages), axes=axes)
        yield Measure("correlation", correlation(*both.values()), axes=axes)


def correlation(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Pearson's, of logarithms; `None` where one is constant or there are fewer than three."""
    pairs = [(math.log(a), math.log(b)) for a, b in zip(x, y, strict=True) if a > 0 and b > 0]
    if len(pairs) < 3:
        return None
    table = torch.tensor(pairs, dtype=torch.float64).T
    return None if bool((table.std(1) == 0).any()) else float(torch.corrcoef(table)[0, 1])


# ---------------------------------------------------------------- what attacks have in common


def guessed_bottom(cell: UnsplitCell, bottom: Bottom, weights: Mapping[str, Tensor]) -> Bottom:
    """The guessed client model that an attack starts from, of the public bottom, which is not changed.

    Where it starts from the customer's, the weights are what that had trained by then, by whole-model name.
    """
    tuning = cell.split.tuning
    guess = copy.deepcopy(bottom)
    if isinstance(tuning, Lora) and (cell.spec.optimised == "adapter" or cell.start == "customer"):
        # where the customer's own adapter starts: the vendor is told the run's seed
        guess = attach_lora(
            guess, rank=tuning.r, alpha=tuning.lora_alpha, dropout=tuning.lora_dropout, targets=tuning.target_modules,
            seed=cell.split.seed,
        )  # fmt: skip
    if cell.start == "customer":
        own = dict(guess.model.named_parameters())
        with torch.no_grad():
            for name in own.keys() & weights.keys():
                own[name].copy_(weights[name])
    return guess


def _read(rows: Rows, tokens: Tokens, guessed: Tensor, known: Knowledge, lab: Lab) -> Reading:
    """Scores guesses, `[total]` in the order of the boundary's rows, on content tokens."""
    values, lengths = content_rows(Rows(rows.packed.with_values(guessed), rows.segment_lengths), known)
    guess, truth = Ragged(values, lengths[:, 0].contiguous()), tokens.segments[0]
    dealt = truth.with_values(truth.values[torch.randperm(len(truth.values), generator=seeded(0, "shuffled"))])
    tokenizer = lab.model(head=None).tokenizer
    true, read = (tuple(tokenizer.batch_decode([text.tolist() for text in each.split()])) for each in (truth, guess))
    chance = chance_of_match(truth.values, guess.values, looks=torch.ones_like(truth.values))
    return Reading(
        true=true, guessed=read, right=_matches(guess, truth), counted=tuple(truth.lengths.tolist()),
        shuffled=_matches(guess, dealt), chance=chance,
    )  # fmt: skip


def _matches(guess: Ragged, truth: Ragged) -> tuple[int, ...]:
    right = (guess.values == truth.values).split(truth.lengths.tolist())
    return tuple(int(text.sum()) for text in right)


def _template(known: Knowledge) -> Template:
    return cast(Template, known.template)  # an archive has one


def _stage(entry: OuterIteration) -> Stage:
    inputs, accuracy = cast(float, entry.mse_inputs), cast(float, entry.accuracy)  # the measurer gave the truth
    return Stage(number=entry.number, mse_outputs=entry.mse_after_weights, mse_inputs=inputs, accuracy=accuracy)
