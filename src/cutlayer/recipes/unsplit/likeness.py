"""Table 5 with Figures 16 to 21, and the client's cost, as cells that are kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import cast

import torch
from pydantic import BaseModel, ConfigDict

from cutlayer.core import Spec
from cutlayer.data import tokenise
from cutlayer.models import Bottom
from cutlayer.recipes.unsplit.cost import MODELS, Cost, Setting, Tuning, cost_table, costs, draw_costs, profile
from cutlayer.recipes.unsplit.findings import Verdict
from cutlayer.recipes.unsplit.paper import PAPER, Row5
from cutlayer.recipes.unsplit.parameters import GPT2
from cutlayer.recipes.unsplit.report import PartReport
from cutlayer.recipes.unsplit.runs import Corpus, Recorder
from cutlayer.recipes.unsplit.similarity import (
    SHOWN,
    Similarity,
    draw_heat_maps,
    measure,
    similarity_table,
    text_features,
)
from cutlayer.recipes.unsplit.vision import (
    CIFAR_SIDE,
    HEARTBEATS,
    VIT_SIDE,
    ecg_features,
    heartbeats,
    load_vit,
    photographs,
    random_vit,
    unsplit_features,
    vit_features,
)
from cutlayer.reports import CellStore

_OURS: Mapping[int, tuple[str, Row5]] = {
    1: ("this model, first block", PAPER.table_5["GPT-2, first layer"]),
    2: ("this model, first two blocks", PAPER.table_5["GPT-2, first two layers"]),
    3: ("this model, first three blocks", PAPER.table_5["GPT-2, first two layers"]),
}
"""Names of our lines, and the paper's that they stand beside: Table 5 says two layers where Figure 20 says three."""
_COMPARED = 64
"""Channels of each sample that the averages are of, at most."""
_PERSONAL_BYTES = 16e9
"""The paper's own personal computer (§3.3.2, Apple Mac M1 Pro 16GB)."""


class LikenessCell(Spec):
    """Table 5, all of it.

    Attributes:
        model: Fingerprint of the decoder's weights.
        corpus: Its texts.
        length: Tokens of one.
        samples: Texts, images and heartbeats.
        vit: Folder of a trained vision transformer; without one its weights are random.
        seed: Of texts, images and random weights.
    """

    model: str
    corpus: Corpus
    length: int
    samples: int
    vit: str | None
    seed: int


class Likeness(BaseModel):
    """Its lines."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rows: tuple[Similarity, ...]


class CostCell(Spec):
    """Figure 22: of which models, at which batch and length."""

    models: tuple[str, ...]
    batch: int = 4
    length: int = 1024


class Costs(BaseModel):
    """Its lines."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rows: tuple[Cost, ...]


def likeness(cell: LikenessCell, recorder: Recorder, folder: Path) -> tuple[Similarity, ...]:
    """Table 5's lines, from the store or measured."""
    store: CellStore[LikenessCell, Likeness] = CellStore(folder / "cells", Likeness)
    found = store.get(cell)
    if found is None:
        found = Likeness(rows=_measure_likeness(cell, recorder))
        store.put(cell, found)
    return found.rows


def _measure_likeness(cell: LikenessCell, recorder: Recorder) -> tuple[Similarity, ...]:
    rng = torch.Generator().manual_seed(cell.seed)
    stream = tokenise(recorder.texts(cell.corpus), recorder.tokenizer, max_content=2**31).segments[0].values
    texts = stream[: len(stream) // cell.length * cell.length].view(-1, cell.length)
    ids = texts[torch.randperm(len(texts), generator=rng)[: cell.samples]]
    features = [
        text_features(cast(Bottom, recorder.knowledge(depth).bottom), ids, name=name, random_weights=False)
        for depth, (name, _) in _OURS.items()
        if depth < recorder.blocks
    ]
    features += unsplit_features(photographs(cell.samples, side=CIFAR_SIDE, rng=rng), rng=rng)
    vit = random_vit(rng) if cell.vit is None else load_vit(Path(cell.vit))
    images = photographs(cell.samples, side=VIT_SIDE, rng=rng)
    features += vit_features(images, vit, random_weights=cell.vit is None)
    features += ecg_features(heartbeats(cell.samples, rng=rng), rng=rng, stand_in=HEARTBEATS)
    return tuple(measure(each, shown=min(SHOWN, cell.length), compared=_COMPARED) for each in features)


def likeness_report(rows: tuple[Similarity, ...], folder: Path, *, model: str) -> PartReport:
    """Table 5 with its heat maps, and whether the decoder's block is the least alike."""
    paper = {**PAPER.table_5, **dict(_OURS.values())}
    verdict = _least_alike(rows)
    table = similarity_table(rows, paper)
    table = table.model_copy(update={"notes": (*table.notes, str(verdict))})
    picture = "table-5.png"
    draw_heat_maps(rows, folder / picture, title=f"Figures 16 to 21, the decoder being {model}")
    content = {"rows": [row.model_dump(mode="json") for row in rows], "verdicts": [verdict.model_dump()]}
    return PartReport((table,), content, (picture,))


def _least_alike(rows: tuple[Similarity, ...]) -> Verdict:
    """Takeaway of §4.3, by each measure's distance from what chance gives."""
    ours = {name for name, _ in _OURS.values()}
    over = {row.name: _over_chance(row) for row in rows if row.name in ours or row.name in PAPER.table_5}
    decoder = {name: value for name, value in over.items() if name in ours and value is not None}
    others = {name: value for name, value in over.items() if name not in ours and value is not None}
    held = max(decoder.values()) < min(others.values()) if decoder and others else None
    return Verdict(
        claim="§4.3: inputs and outputs of a decoder's first blocks are less alike than those of a CNN or a ViT.",
        held=held,
        because="distance correlation above what chance gives: "
        + ", ".join(f"{value:.3f} ({name})" for name, value in (decoder | others).items())
        + ".",
    )


def _over_chance(row: Similarity) -> float | None:
    value, chance = row.distance.corresponding, row.chance.corresponding
    return None if value is None or chance is None else value - chance


def client_costs(cell: CostCell, folder: Path) -> tuple[Cost, ...]:
    """Figure 22's lines, from the store or measured: a minute or two."""
    store: CellStore[CostCell, Costs] = CellStore(folder / "cells", Costs)
    found = store.get(cell)
    if found is None:
        found = Costs(rows=tuple(row for title in cell.models for row in _measure_costs(title, cell)))
        store.put(cell, found)
    return found.rows


def _measure_costs(title: str, cell: CostCell) -> list[Cost]:
    architecture = next(each for each in MODELS if each.title == title)
    rows: list[Cost] = []
    for tuning in Tuning:
        setting = Setting(tuning=tuning, batch=cell.batch, length=cell.length)
        measured = profile(architecture, setting, rng=torch.Generator().manual_seed(0))
        for tail in (None, 0):
            rows += costs(measured, architecture, setting, tail=tail)
    return rows


def cost_cell(*, all_models: bool) -> CostCell:
    """The paper's models, or GPT-2 alone, which is quick."""
    return CostCell(models=tuple(each.title for each in (MODELS if all_models else (GPT2,))))


def costs_report(rows: tuple[Cost, ...], folder: Path) -> PartReport:
    """Figure 22, and whether a personal computer suffices."""
    shallow = [row for row in rows if row.bottom == 1 and row.tail is not None]
    verdict = Verdict(
        claim="§5: an ordinary personal computer can be the customer.",
        held=all(row.peak_bytes < _PERSONAL_BYTES for row in shallow),
        because="one block, norm and head: "
        + ", ".join(f"{row.peak_bytes / 1e9:.1f} GB ({row.architecture}, {row.setting.tuning})" for row in shallow)
        + f"; the paper's own has {_PERSONAL_BYTES / 1e9:.0f} GB.",
    )
    table = cost_table(rows)
    table = table.model_copy(update={"notes": (*table.notes, str(verdict))})
    picture = "figure-22.png"
    draw_costs(rows, folder / picture, title="Figure 22: peak memory at the customer")
    content = {
        "rows": [
            row.model_dump(mode="json")
            | {"peak_bytes": row.peak_bytes, "share": row.share, "flops_share": row.flops_share}
            for row in rows
        ],
        "verdicts": [verdict.model_dump()],
    }
    return PartReport((table,), content, (picture,))
