"""How far trained models' representations of words are from those of a model that was trained without privacy.

Ref: RAPT §VI-C, Figure 8.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, cast

import torch
from torch import Tensor

from cutlayer.attacks.evaluation.statistics import resampled
from cutlayer.core import ConfigError, Cut, Ragged, Tokens
from cutlayer.customer.reading import WordReading
from cutlayer.data import UNCUT, Dataset
from cutlayer.models import Kind, Top, load_adapter, principal_components, split
from cutlayer.models.batches import padded_batches
from cutlayer.models.cutting import block_list
from cutlayer.recipes.lab import Cell, Lab, Rows
from cutlayer.recipes.long_table import Level, Measure
from cutlayer.recipes.model import Model
from cutlayer.recipes.training import splits
from cutlayer.recipes.word_training import WordsTrained, WordTrainingCell

OWN, UNPROTECTED = "own", "unprotected"
"""Whose weights read an arm's texts: those of its own run, or those of the unprotected run."""
PLANE, WHOLE = "two components", "whole width"
"""Where distances are measured."""
CLOSER, BEFORE = "closer at the last block than at the first", "closer at the last block than the arm before it"
_COMPONENTS: Final = 2
_POSITIONS = 2**12
_ERRORS = 2 * 1.96
"""Standard errors that a 95 % interval is wide."""


@dataclass(frozen=True)
class Spelled:
    """Texts, and where their words stand.

    Attributes:
        texts: `n` texts.
        starts: `[words]` int64: at which character of its text each word begins; `ends` behind which it ends.
        of_text: `[words]` int64: the text of each.
    """

    texts: list[str]
    starts: Tensor
    ends: Tensor
    of_text: Tensor

    def words_at(self, ends: Ragged) -> Tensor:
        """The word that each piece is of, `[pieces]` int64; -1 for one that is of none.

        Args:
            ends: Of each text, behind which character each piece ends.
        """
        room = 1 + max(map(len, self.texts), default=0)  # texts side by side, with room between them
        last = ends.values - 1 + room * torch.arange(len(ends)).repeat_interleave(ends.lengths)
        found = torch.searchsorted(self.ends + room * self.of_text, last, right=True)
        begins = torch.cat([self.starts + room * self.of_text, torch.tensor([torch.iinfo(torch.int64).max])])
        return torch.where(begins[found] <= last, found, -1)


class GeometryCell(Cell):
    """Words of test texts as trained models represent them, beside the representations of the unprotected run.

    Each arm's own weights read the texts as that arm's customer would ask them. Beside it the unprotected run's
    weights read the same texts: what these tell apart is the privatization alone, and no training.

    Attributes:
        arms: Trainings that keep what was trained, by name, whose texts are the same; the first is unprotected, and the
            others follow one another as a paper orders them.
        texts: How many test texts.
    """

    arms: Mapping[str, WordTrainingCell]
    texts: int

    @property
    def trained(self) -> Mapping[str, WordTrainingCell]:
        """Trainings by arm, with this cell's seed."""
        return {name: cell.model_copy(update={"seed": self.seed}) for name, cell in self.arms.items()}

    @property
    def needs(self) -> tuple[Cell, ...]:
        return tuple(self.trained.values())

    def check(self, lab: Lab) -> None:
        if lab.model().family.kind is Kind.ENCODER_DECODER:
            raise ConfigError(
                f"Figure 8 follows words through one stack of blocks, and {lab.options.model} has two.",
                remedy="Name another model, or leave the part out.",
            )
        for cell in self.arms.values():
            cell.check(lab)

    def run(self, lab: Lab) -> Rows[Measure]:
        cells = self.trained
        trained: dict[str, WordsTrained] = {name: lab.result(cell) for name, cell in cells.items()}
        (unprotected, first), *protected = cells.items()
        test = splits(lab, first.task, first.limits).test
        asked = test.select(range(min(self.texts, len(test))))
        reading = protected[0][1].replacement.reading(lab)
        texts = {unprotected: _as_they_are(asked, reading)}
        for name, cell in protected:
            texts[name] = _drawn(asked, cell, trained[name].eta or 0.0, lab, seed=self.seed)
        found: dict[tuple[str, str], Tensor] = {}
        spoken = torch.ones(len(texts[unprotected].of_text), dtype=torch.bool)
        for name, weights in [(unprotected, OWN), *((n, w) for n, _ in protected for w in (OWN, UNPROTECTED))]:
            lab.progress.update("representations", len(found), 2 * len(cells) - 1, name)
            reads = cells[name if weights == OWN else unprotected]
            model = lab.model(reads.source)
            top = load_adapter(split(model.whole, Cut(bottom=None)).top, lab.adapter(reads))
            states, pieces = word_states(top, texts[name], model, max_length=reads.training.max_length)
            found[name, weights] = states
            spoken &= pieces > 0  # a word that was cut off in one arm is compared in none
        of_text = texts[unprotected].of_text[spoken]
        places = {place: states[:, spoken] for place, states in found.items()}
        return Rows(rows=tuple(_distances(places, of_text, unprotected)))


def _as_they_are(dataset: Dataset, reading: WordReading) -> Spelled:
    texts = [text for (text,) in dataset.texts]
    tagged = reading.tagger.tag(texts)
    ends = tagged.starts + torch.tensor([len(word) for word in tagged.words])
    return Spelled(texts, tagged.starts, ends, torch.arange(len(texts)).repeat_interleave(tagged.lengths))


def _drawn(dataset: Dataset, cell: WordTrainingCell, eta: float, lab: Lab, *, seed: int) -> Spelled:
    tokens = cell.replacement.reading(lab).read(dataset, max_content=UNCUT)
    drawn = cell.replacement.privatizer(lab, eta, seed=seed).drawn(tokens)
    return Spelled(drawn.texts, drawn.spans[:, 0], drawn.spans[:, 1], drawn.of_text)


@torch.no_grad()
def word_states(top: Top, texts: Spelled, model: Model, *, max_length: int | None) -> tuple[Tensor, Tensor]:
    """What each block makes of words: the mean over a word's pieces.

    Args:
        top: All blocks, in evaluation mode, with what was trained on them.
        texts: What they read.
        model: Whose tokenizer and positions they have.
        max_length: Tokens of a text, special tokens included; longer ones lose their end.

    Returns:
        `[1 + blocks, words, width]` float32, first what enters the blocks; and `[words]` int64, pieces of each word, of
        which one that was cut off has none.
    """
    encoded = model.tokenizer(
        texts.texts, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True, verbose=False
    )
    template = model.template.behind(0 if top.virtual is None else top.virtual.length)
    most, opening = template.max_content(1, max_length), len(template.opening)
    ids = Ragged.from_lists([each[:most] for each in encoded["input_ids"]])
    ends = Ragged.from_lists([[end for _, end in spans[:most]] for spans in encoded["offset_mapping"]])
    word = texts.words_at(ends)
    blocks = list(block_list(top.model, top.stack))
    kept: list[Tensor] = []
    hooks = [
        blocks[0].register_forward_pre_hook(
            lambda _, given, named: kept.append(given[0] if given else named["hidden_states"]), with_kwargs=True
        ),
        *(block.register_forward_hook(lambda _, __, made: kept.append(made)) for block in blocks),
    ]
    total, counts = None, torch.zeros(len(texts.of_text), dtype=torch.int64)
    offsets = ids.lengths.cumsum(0) - ids.lengths
    try:
        for some in padded_batches(ids.lengths + template.special_count(1), _POSITIONS):
            inputs = template.assemble(Tokens((ids.select(some),)))
            kept.clear()
            top(inputs)
            seq = inputs.position_ids.shape[1]
            content = torch.arange(seq) - opening
            real = (content >= 0) & (content < ids.lengths[some][:, None])
            of = word[(offsets[some][:, None] + content)[real]]
            # virtual positions stand before the text's
            rows = torch.stack([states[:, states.shape[1] - seq :][real] for states in kept]).float()
            if total is None:
                total = torch.zeros(len(kept), len(counts), rows.shape[2])
            total.index_add_(1, of[of >= 0], rows[:, of >= 0])
            counts.index_add_(0, of[of >= 0], torch.ones_like(of[of >= 0]))
    finally:
        for hook in hooks:
            hook.remove()
    states = cast(Tensor, total)
    return states / counts.clamp(min=1)[:, None], counts


def _distances(found: Mapping[tuple[str, str], Tensor], of_text: Tensor, unprotected: str) -> Iterator[Measure]:
    """Mean distances of words from those of the unprotected run, by arm, weights, layer and space.

    Scales differ by layer, so that distances are given as shares of how far the unprotected run's words lie from their
    mean. In the plane of two components they are given as they are, too, as the paper has them.

    Args:
        found: `[layers, words, width]` by arm and weights.
        of_text: `[words]` int64.
        unprotected: The first arm.
    """
    texts = int(of_text.max()) + 1
    counts = torch.bincount(of_text, minlength=texts)

    def measured(metric: str, values: Tensor, axes: Mapping[str, Level]) -> Measure:
        sums = torch.zeros(texts, dtype=torch.float64).index_add(0, of_text, values.double())
        low, high = resampled(sums, counts)
        return Measure(
            metric, float(values.double().mean()), (high - low) / _ERRORS, len(values), low, high,
            independent=int((counts > 0).sum()), axes=axes,
        )  # fmt: skip

    layers = len(next(iter(found.values())))
    away: dict[tuple[str, str, str, int], Tensor] = {}
    for layer in range(layers):
        whole = {place: states[layer] for place, states in found.items()}
        together = torch.cat([*whole.values()])
        plane = dict(zip(whole, principal_components(together, _COMPONENTS).chunk(len(whole)), strict=True))
        kept = float(torch.cat([*plane.values()]).var(0).sum() / together.var(0).sum())
        yield Measure("variance in the plane", kept, axes={"layer": layer})
        for space, rows in ((PLANE, plane), (WHOLE, whole)):
            clear = rows[unprotected, OWN]
            spread = (clear - clear.mean(0)).norm(dim=1).mean()
            for (arm, weights), own in rows.items():
                if arm == unprotected:
                    continue
                axes: dict[str, Level] = {"arm": arm, "weights": weights, "space": space, "layer": layer}
                apart = (own - clear).norm(dim=1)
                away[arm, weights, space, layer] = apart / spread
                yield measured("distance", apart / spread, axes)
                if space == PLANE:
                    yield measured("distance, unscaled", apart, axes)
    arms = [arm for arm, weights in found if weights == OWN and arm != unprotected]
    for space in (PLANE, WHOLE):
        last = {arm: away[arm, OWN, space, layers - 1] for arm in arms}
        for arm in arms:
            fell = away[arm, OWN, space, 1] - last[arm]
            yield measured(CLOSER, fell, {"arm": arm, "weights": OWN, "space": space})
        for first, second in pairwise(arms):
            yield measured(BEFORE, last[first] - last[second], {"arm": second, "weights": OWN, "space": space})
