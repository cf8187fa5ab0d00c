"""Recipe `generation`: what noise on tokens does to a language model's text, which SAP leaves open.

"The impact of text privatization on the usability of generated content remains to be further researched."
Ref: arXiv:2312.15603, Limitations. Settings: `configs/generation.yaml`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from itertools import pairwise
from typing import Any

import torch
from pydantic import Field

from cutlayer.core import Cut, DataError, ModelError, Perplexity, Proportion, Spec
from cutlayer.customer import Client, Objective, Sampling, TrainSpec, TuningSpec
from cutlayer.data import Dataset, tokenise
from cutlayer.models import STARTER_DECODER, Kind
from cutlayer.recipes.lab import Cell, Lab
from cutlayer.recipes.layouts import Layout
from cutlayer.recipes.long_table import Measure, Number
from cutlayer.recipes.options import RecipeConfig, shipped
from cutlayer.recipes.recipe import Recipe
from cutlayer.recipes.reference.fit import ReferenceRun, order_without_privacy
from cutlayer.recipes.reference.language import train_centralised_language_model
from cutlayer.recipes.study import Part, Results, Scenario, Verdict
from cutlayer.recipes.tables import DASH, eta_text, share
from cutlayer.recipes.tasks import TextFile
from cutlayer.recipes.training import discard, settled
from cutlayer.reports import Table, percent


class Scale(Spec):
    """What `--size` changes: texts to train on (dev among them), texts to measure on, settings of training."""

    train: int = Field(ge=2)
    test: int = Field(ge=1)
    training: Mapping[str, Any]


class GenerationConfig(RecipeConfig[Scale]):
    """`configs/generation.yaml`; that file says what each field is for."""

    name: str
    train: str
    test: str
    column: str
    tuning: TuningSpec
    shares: tuple[float, ...] = Field(min_length=1)
    bottom: int = Field(ge=1)
    prompts: int = Field(ge=1)
    prompt_tokens: int = Field(ge=1)
    new_tokens: int = Field(ge=1)


# ---------------------------------------------------------------- the cell


class Tuned(Spec):
    """A finished cell.

    Attributes:
        perplexity: Of test, per token; where there is no vendor, without noise on the tokens before.
        before: Dev perplexity before training; `dev` after each epoch.
        replaced: Share of tokens that the draw replaced.
        rows: Share of training tokens read from the rows below; `gradients` from those above.
        answers: Share of most probable next tokens read from the vendor's own answers.
        uplink_bytes: What was sent, by category.
    """

    perplexity: Perplexity
    before: float | None
    dev: tuple[float, ...]
    replaced: float | None = None
    rows: Proportion | None = None
    gradients: Proportion | None = None
    answers: Proportion | None = None
    texts: tuple[str, ...] = ()
    seconds: float
    uplink_bytes: Mapping[str, int] = {}


class GenerationCell(Cell):
    """One tuned language model, and what it writes.

    Attributes:
        train: Texts to train on, dev among them; so many, drawn at random.
        test: Texts to measure on, likewise.
        bottom: Blocks at the customer; `None` tunes the whole model in one process, without a vendor.
        eta: Privacy parameter per token; infinite without noise.
        new_tokens: Tokens of each continuation of a prompt.
    """

    model: str
    train: TextFile
    test: TextFile
    training: TrainSpec
    tuning: TuningSpec
    bottom: int | None = None
    eta: float = math.inf
    prompts: tuple[str, ...]
    new_tokens: int

    @property
    def name(self) -> str:
        return f"whole-s{self.seed}" if self.bottom is None else f"eta{self.eta:g}-s{self.seed}"

    def run(self, lab: Lab) -> Tuned:
        # dev is held out here, so that the whole model and the split runs stop on the same texts
        texts, test = drawn(lab, self.train), drawn(lab, self.test)
        if self.training.dev_share is None:
            raise TypeError("the recipe says how many texts are held out")
        held = max(1, round(self.training.dev_share * len(texts)))
        order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(self.seed)).tolist()
        dev, train = texts.select(sorted(order[:held])), texts.select(sorted(order[held:]))
        return self._whole(lab, train, dev, test) if self.bottom is None else self._split(lab, train, dev, test)

    def _whole(self, lab: Lab, train: Dataset, dev: Dataset, test: Dataset) -> Tuned:
        order = order_without_privacy(lab.home(str(self.seed)).path, self.seed)
        whole = ReferenceRun(train, dev, test, lab.options.model, self.training, self.tuning, self.seed, order)
        run = train_centralised_language_model(whole, progress=lab.progress)
        return Tuned(perplexity=run.perplexity, before=run.before, dev=run.dev, seconds=run.seconds)

    def _split(self, lab: Lab, train: Dataset, dev: Dataset, test: Dataset) -> Tuned:
        with closing(self._client(lab)) as client:
            result = client.finetune(
                train, objective="lm", dev=dev, test=test, eta=self.eta, cut=Cut(bottom=self.bottom, tail=0),
                tuning=self.tuning, training=self.training, seed=self.seed, out=lab.scratch(self),
                progress=lab.progress,
            )  # fmt: skip
            sampling = Sampling(max_new_tokens=self.new_tokens, temperature=0.8, top_p=0.9, seed=self.seed)
            told = client.generate(result.adapter_id, self.prompts, sampling=sampling, progress=lab.progress)
        error = result.perplexity_standard_error
        if error is None:
            raise DataError("The test texts make no block, so there is nothing to measure.")
        return Tuned(
            perplexity=Perplexity(value=result.perplexity, n=result.perplexity_n, standard_error=error),
            before=result.dev_before, dev=result.dev, replaced=result.replaced,
            rows=result.token_recovery_from_boundary, gradients=result.token_recovery_first_steps,
            answers=result.token_recovery_from_answers, texts=tuple(each.text for each in told),
            seconds=result.seconds, uplink_bytes=result.uplink_bytes,
        )  # fmt: skip

    def _client(self, lab: Lab) -> Client:
        """Each seed is a customer of its own: the same secret would draw the same noise for the same text."""
        return lab.client(str(self.seed), max_bottom=self.bottom, max_tail=0)

    def clear(self, lab: Lab) -> None:
        if self.bottom is not None:
            discard(self, self._client(lab), lab)

    def measures(self, result: Tuned) -> Iterator[Measure]:
        names = {"perplexity": "perplexity", "perplexity before": "before", "replaced": "replaced"}
        read = {f"read from {name}": name for name in ("rows", "gradients", "answers")}
        yield from Measure.fields(result, {**names, **read, "seconds": "seconds"})


def drawn(lab: Lab, file: TextFile) -> Dataset:
    """So many of a file's texts, drawn at random; all runs have the same.

    Raises:
        DataError: The file is missing, or has too few.
    """
    whole = file.model_copy(update={"texts": None}).read(lab.options.data)
    if file.texts is None or len(whole) < file.texts:
        path = file.path(lab.options.data)
        raise DataError(f"{path} has {len(whole)} texts, not {file.texts}.", remedy="Choose a smaller size.")
    order = torch.randperm(len(whole), generator=torch.Generator().manual_seed(0)).tolist()
    return whole.select(sorted(order[: file.texts]))


# ---------------------------------------------------------------- the study

RECIPE = Recipe("generation", shipped("generation", GenerationConfig), default_model=STARTER_DECODER)

LAYOUT = Layout("generation")
_WHOLE_LENGTH = 2**31
"""Tokens of a text, at most: none is cut."""


@RECIPE.part("over-eta")
def over_eta(c: GenerationConfig, lab: Lab) -> Part:
    """Perplexity, a page of text and token recovery over eta."""
    model, scale = lab.model(head=None), c.at(lab.options.size)
    if model.family.kind is not Kind.DECODER:
        raise ModelError(f"{lab.options.model} is no decoder, so it continues no text.", remedy="Use a decoder.")
    train, test = (
        TextFile(name=c.name, part=part, column=c.column, texts=texts)
        for part, texts in ((c.train, scale.train), (c.test, scale.test))
    )
    private = tokenise(drawn(lab, train), model.tokenizer, max_content=_WHOLE_LENGTH)
    calibrated = lab.etas(private, c.shares, about=train.model_dump_json(), model=model)
    prompts = _prompts(c, lab, test)
    whole = GenerationCell(
        model=model.fingerprint, train=train, test=test, training=settled(Objective.LM, c.tuning, scale.training),
        tuning=c.tuning, prompts=prompts, new_tokens=c.new_tokens,
    )  # fmt: skip
    scenarios = Scenario.each(lab.options.seeds, whole, trained="whole")
    for eta in (math.inf, *sorted((point.eta for point in calibrated), reverse=True)):
        split = whole.model_copy(update={"bottom": c.bottom, "eta": eta})
        scenarios += Scenario.each(lab.options.seeds, split, trained="split", eta=eta)
    said = {"predicted": lambda number: f"{number.n:g}", "with_n": _with_n, "seed": lambda seed: f"seed {seed}"}
    details = {"calibration": [vars(point) for point in calibrated], "prompts": list(prompts)}
    return LAYOUT.part("over-eta", scenarios, said, further=[_page], claims=[_rises], details=details)


def _prompts(c: GenerationConfig, lab: Lab, test: TextFile) -> tuple[str, ...]:
    tokenizer = lab.model(head=None).tokenizer
    (tokens,) = tokenise(drawn(lab, test), tokenizer, max_content=_WHOLE_LENGTH).segments
    long = (tokens.lengths > 2 * c.prompt_tokens).nonzero()[:, 0].tolist()
    return tuple(str(tokenizer.decode(tokens[text][: c.prompt_tokens])) for text in long[: c.prompts])


def _with_n(number: Number) -> str:
    return DASH if number.value is None else f"{share()(number)} (n = {number.n:g})"


def _page(results: Results) -> Iterable[Table]:
    cells = [
        (cell, told.texts)
        for cell, told in results.cells.items()
        if isinstance(cell, GenerationCell) and cell.seed == 0 and cell.bottom is not None
    ]
    rows = [
        (" ".join(prompt.split()), eta_text(cell.eta), " ".join(texts[number].split()))
        for number, prompt in enumerate(cells[0][0].prompts if cells else ())
        for cell, texts in cells
    ]
    yield Table(title="A page of text", columns=("prompt", "eta", "what the tuned model writes"), rows=tuple(rows))


def _rises(results: Results) -> Iterable[Verdict]:
    found = [(eta, results.number("perplexity", trained="split", eta=eta, seed=0)) for eta in results.levels("eta")]
    known = [(eta, number.value) for eta, number in found if number.value is not None]
    if len(known) < 2:
        return
    (_, clear), (eta, noisiest) = known[0], known[-1]
    replaced = results.number("replaced", trained="split", eta=eta, seed=0).value
    yield Verdict(
        claim="Perplexity rises with every step of noise.",
        here=f"from {clear:.1f} without noise to {noisiest:.1f} at eta {eta:g}, where {percent(replaced)} % of tokens "
        "were replaced",
        held=all(earlier <= later for (_, earlier), (_, later) in pairwise(known)),
    )
