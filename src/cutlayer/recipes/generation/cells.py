"""The runs of the recipe: the whole model without a vendor, and split runs at each eta."""

from __future__ import annotations

import math
import shutil
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict

from cutlayer.core import Cut, DataError, ModelError, Perplexity, Proportion, Spec
from cutlayer.customer import Progress, Sampling, TrainSpec
from cutlayer.data import Dataset, read_dataset, tokenise
from cutlayer.models import Bottom, candidate_tokens, fingerprint, load_model, load_tokenizer, split
from cutlayer.privacy.neighbours import NeighbourSearch
from cutlayer.recipes.centralised import order_without_privacy
from cutlayer.recipes.centralised_language import train_centralised_language_model
from cutlayer.recipes.experiment import Calibration, Stoppable
from cutlayer.recipes.generation.config import GenerationConfig, Scale
from cutlayer.recipes.loopback import Loopback
from cutlayer.recipes.recipe import Order
from cutlayer.recipes.tasks import data_file
from cutlayer.reports.cells import CellStore
from cutlayer.reports.replaced_share import Calibrated, etas_for_shares

_CALIBRATION_SEED = 0


class GenerationCell(Spec):
    """One tuned model.

    Attributes:
        model: Fingerprint of the model's weights.
        corpus: Name of the data set.
        train: Texts to train on, dev among them.
        test: Texts to measure on.
        training: How it is tuned.
        bottom: Blocks at the customer; `None` tunes the whole model in one process, without a vendor.
        eta: Privacy parameter per token; infinite without noise.
        prompts: Of the page of text.
        new_tokens: Tokens of each continuation.
        seed: Which texts, their order, initialisation and dropout.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=True, ser_json_inf_nan="strings")

    model: str
    corpus: str
    train: int
    test: int
    training: TrainSpec
    bottom: int | None
    eta: float
    prompts: tuple[str, ...]
    new_tokens: int
    seed: int

    @property
    def name(self) -> str:
        """The cell in a few words, for its file."""
        return f"whole-s{self.seed}" if self.bottom is None else f"eta{self.eta:g}-s{self.seed}"


class Tuned(BaseModel):
    """What a finished cell tells.

    Attributes:
        perplexity: Of test, per token; without noise on the tokens before, where there is no vendor.
        before: Dev perplexity before training.
        dev: After each epoch.
        replaced: Share of tokens that the draw replaced.
        rows: Share of training tokens read from the rows below.
        gradients: Share read from gradients above.
        answers: Share of most probable next tokens read from the vendor's own answers.
        texts: Continuations of the prompts.
        seconds: How long it took.
        uplink_bytes: What was sent, by category.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    perplexity: Perplexity
    before: float
    dev: tuple[float, ...]
    replaced: float | None = None
    rows: Proportion | None = None
    gradients: Proportion | None = None
    answers: Proportion | None = None
    texts: tuple[str, ...] = ()
    seconds: float
    uplink_bytes: dict[str, int] = {}


class CalibrationCell(Spec):
    """Which etas replace which shares of the training tokens."""

    model: str
    corpus: str
    train: int
    shares: tuple[float, ...]
    seed: int = _CALIBRATION_SEED

    @property
    def name(self) -> str:
        """The cell in a few words, for its file."""
        return f"{self.corpus}-calibration"


@dataclass(frozen=True)
class Results:
    """All cells' results.

    Attributes:
        calibrated: The etas.
        tuned: By cell.
        prompts: Of the page of text.
    """

    calibrated: tuple[Calibrated, ...]
    tuned: dict[GenerationCell, Tuned]
    prompts: tuple[str, ...]


class Experiment(Stoppable):
    """Where the cells are run.

    Args:
        config: The recipe's settings.
        scale: Its size.
        order: Model, data, seeds and folder.
        progress: Where to show progress.

    Attributes:
        model: Fingerprint of the model's weights.

    Raises:
        DataError: A data set is missing, or too short.
        ModelError: The model is no decoder.
    """

    def __init__(self, config: GenerationConfig, scale: Scale, order: Order, progress: Progress) -> None:
        self._config = config
        self._scale = scale
        self._order = order
        self.folder = order.out
        self._progress = progress
        whole = load_model(order.model, head=None)
        bottom = split(whole, Cut(bottom=0)).bottom
        if not isinstance(bottom, Bottom):
            raise ModelError(f"{order.model} has no token embeddings of its own.", remedy="Use a decoder.")
        self.model = fingerprint(whole)
        self._table = bottom.table
        self._tokenizer = load_tokenizer(order.model)
        self._train = self._read(config.train, scale.train)
        self._test = self._read(config.test, scale.test)
        self._loopback = Loopback(order.out / "vendor", order.model, max_bottom=config.bottom, max_tail=0)
        self._finished: CellStore[GenerationCell, Tuned] = CellStore(order.out / "cells", Tuned)
        self._calibrations: CellStore[CalibrationCell, Calibration] = CellStore(order.out / "cells", Calibration)

    def stop(self) -> None:
        """Ends the vendor."""
        self._loopback.stop()

    def run(self) -> Results:
        """Results of all cells, those that are finished from the store."""
        calibrated = self._calibrated()
        prompts = self._prompts()
        etas = [point.eta for point in sorted(calibrated, key=lambda point: -point.eta)]
        cells = [
            self._cell(bottom, eta, prompts, seed)
            for seed in range(self._order.seeds)
            for bottom, eta in [(None, math.inf), *((self._config.bottom, eta) for eta in (math.inf, *etas))]
        ]
        tuned: dict[GenerationCell, Tuned] = {}
        for number, cell in enumerate(cells):
            self._progress.update("cells", number, len(cells), cell.name)
            found = self._finished.get(cell)
            tuned[cell] = found or (self._whole(cell) if cell.bottom is None else self._split(cell, cell.bottom))
        self._progress.update("cells", len(cells), len(cells))
        return Results(calibrated, tuned, prompts)

    def _cell(self, bottom: int | None, eta: float, prompts: tuple[str, ...], seed: int) -> GenerationCell:
        return GenerationCell(
            model=self.model,
            corpus=self._config.name,
            train=self._scale.train,
            test=self._scale.test,
            training=self._scale.tuning,
            bottom=bottom,
            eta=eta,
            prompts=prompts,
            new_tokens=self._config.new_tokens,
            seed=seed,
        )

    def _read(self, part: str, count: int) -> Dataset:
        path = data_file(self._order.data, self._config.name, part)
        dataset = read_dataset(path, text_column=self._config.column)
        if len(dataset) < count:
            raise DataError(f"{path} has {len(dataset)} texts, not {count}.", remedy="Choose a smaller size.")
        order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0)).tolist()
        return dataset.select(sorted(order[:count]))

    def _calibrated(self) -> tuple[Calibrated, ...]:
        cell = CalibrationCell(
            model=self.model, corpus=self._config.name, train=self._scale.train, shares=self._config.shares
        )
        found = self._calibrations.get(cell)
        if found is None:
            tokens = tokenise(self._train, self._tokenizer, max_content=2**31)
            table = self._table.detach()
            search = NeighbourSearch(table, candidate_tokens(self._tokenizer, vocab_size=len(table)))
            found = Calibration(points=tuple(etas_for_shares(tokens, search, cell.shares, seed=cell.seed)))
            self._calibrations.put(cell, found)
        return found.points

    def _prompts(self) -> tuple[str, ...]:
        """Beginnings of the first test texts that are long enough to be continued."""
        (tokens,) = tokenise(self._test, self._tokenizer, max_content=2**31).segments
        long = (tokens.lengths > 2 * self._config.prompt_tokens).nonzero()[:, 0].tolist()
        chosen = long[: self._config.prompts]
        return tuple(str(self._tokenizer.decode(tokens[text][: self._config.prompt_tokens])) for text in chosen)

    def _dev_and_train(self, seed: int) -> tuple[Dataset, Dataset]:
        """Held out here, so that the whole model and the split runs stop on the same texts."""
        held = max(1, round(self._scale.tuning.dev_share * len(self._train)))
        order = torch.randperm(len(self._train), generator=torch.Generator().manual_seed(seed)).tolist()
        return self._train.select(sorted(order[:held])), self._train.select(sorted(order[held:]))

    def _customer(self, seed: int) -> Path:
        """Each seed is a customer of its own: the same secret would draw the same noise for the same text."""
        return self._order.out / "customers" / str(seed)

    def _whole(self, cell: GenerationCell) -> Tuned:
        dev, train = self._dev_and_train(cell.seed)
        run = train_centralised_language_model(
            train, dev, self._test, model=self._order.model, training=cell.training, seed=cell.seed,
            order=order_without_privacy(self._customer(cell.seed), cell.seed), progress=self._progress,
        )  # fmt: skip
        found = Tuned(perplexity=run.perplexity, before=run.before, dev=run.dev, seconds=run.seconds)
        self._finished.put(cell, found)
        return found

    def _split(self, cell: GenerationCell, bottom: int) -> Tuned:
        dev, train = self._dev_and_train(cell.seed)
        client = self._loopback.client(self._customer(cell.seed), self._progress)
        folder = self._order.out / "runs" / self._finished.path(cell).stem
        with closing(client):
            result = client.finetune_language_model(
                train,
                dev=dev,
                test=self._test,
                eta=cell.eta,
                bottom=bottom,
                tail=0,
                training=cell.training,
                seed=cell.seed,
                out=folder,
                progress=self._progress,
            )
            sampling = Sampling(max_new_tokens=cell.new_tokens, temperature=0.8, top_p=0.9, seed=cell.seed)
            told = client.generate(result.adapter_id, cell.prompts, sampling=sampling)
            if result.perplexity_standard_error is None:
                raise DataError("The test texts make no block, so there is nothing to measure.")
            found = Tuned(
                perplexity=Perplexity(
                    value=result.perplexity, n=result.perplexity_n, standard_error=result.perplexity_standard_error
                ),
                before=result.dev_before,
                dev=result.dev,
                replaced=result.replaced,
                rows=result.token_recovery_from_boundary,
                gradients=result.token_recovery_first_steps,
                answers=result.token_recovery_from_answers,
                texts=tuple(each.text for each in told),
                seconds=result.seconds,
                uplink_bytes=result.uplink_bytes,
            )
            self._finished.put(cell, found)  # before anything of it is deleted
            client.delete_adapter(result.adapter_id)
        shutil.rmtree(folder)
        return found
