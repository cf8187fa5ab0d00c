"""Parts of recipe `unsplit` that attack no boundary: parameters, likeness, cost, labels above the cut."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from cutlayer.customer import FullTuning, Lora
from cutlayer.recipes.measures.client_cost import LENGTHS, CostCell
from cutlayer.recipes.measures.feature_similarity import SHOWN, HeatMaps, SimilarityCell
from cutlayer.recipes.measures.parameters import (
    GPT2,
    GPT2_XL,
    LLAMA_2,
    LORA_RANK,
    OPT,
    TABLE_2,
    CountCell,
    Held,
    NetworkSizeCell,
    rounded,
)
from cutlayer.recipes.recordings import TailCell
from cutlayer.recipes.study import Part, Results, Scenario, Stated, Verdict
from cutlayer.recipes.tables import DASH, Axis
from cutlayer.recipes.unsplit_cases import LAYOUT, PAPER, Grid
from cutlayer.reports import Table

MANY, SIMILAR = 10, 2
"""Times that "much fewer" must mean for a verdict, and that "similar" may mean; the paper says no number."""
READ_AT = 0.5
"""A share of labels above which nobody would say that they stay home."""
PERSONAL_BYTES = 16e9
"""The paper's own personal computer (§3.3.2, Apple Mac M1 Pro 16GB)."""
FIRST_BLOCKS = (
    ("this model, first block", "GPT-2, first layer"),
    ("this model, first two blocks", "GPT-2, first two layers"),
    ("this model, first three blocks", "GPT-2, first two layers"),
)
"""Our lines of Table 5, and the paper's that they stand beside: it says two layers where Figure 20 says three."""
ABOVE = {0: "norm and head", 1: "one block, norm and head"}


# ---------------------------------------------------------------- parameters


def with_parameters(part: Part) -> Part:
    """Tables 2 and 3 with their parameter columns: what a customer with one block holds and trains."""
    counted = Scenario(CountCell(architectures=TABLE_2, bottoms=(1,)))
    return replace(part, scenarios=[*part.scenarios, counted], tables=[*part.tables, _columns])


def _columns(results: Results) -> Iterable[Table]:
    """The columns, the paper's beside ours, and what of ours each is the count of."""
    rows = [row for _, found in results.of(CountCell) for row in found.rows]
    fits = [row.adapter_fits(PAPER["table_3"].get(row.architecture, {}).get("parameters")) for row in rows]
    yield Table(
        title="Tables 2 and 3: parameters at a customer with one block",
        columns=(
            "model", "configuration", "full, the paper (M)", "full, here (M)", "difference (M)",
            "with the adapter, here (M)", "the paper's is", "LoRA, the paper (K)", "LoRA, here (K)",
        ),
        rows=tuple(_column(row, source) for row, source in zip(rows, TABLE_2, strict=False)),
        notes=(
            "Counted on the meta device, without weights: token table, position embeddings and one block; the tail, "
            "which the paper places at the customer too, is in none of its numbers.",
            f"LoRA: rank {LORA_RANK}, on GPT-2's fused query-key-value map, on query and value of OPT and Llama, on "
            "all seven linear maps of Qwen's block.",
            "No one reading gives Table 2's whole column: the rows of OPT, Llama 2 and Llama 3 include the adapter "
            "that Table 3 trains, those of OpenChat and Qwen do not, and for GPT-2 both round to the same.",
            f"LoRA's column is the adapter's to its printed digit for {fits.count(True)} of the "
            f"{len(fits) - fits.count(None)} models that have one.",
        ),
    )  # fmt: skip


def _column(held: Held, source: str) -> tuple[str, ...]:
    full, lora = (PAPER[table].get(held.architecture, {}).get("parameters") for table in ("table_2", "table_3"))
    adapted = None if held.adapter is None else held.parameters + held.adapter
    return (
        held.architecture,
        source,
        f"{full:.1f}",
        rounded(held.parameters, 6, digits=3),
        f"{held.parameters / 1e6 - full:+.3f}",
        DASH if adapted is None else rounded(adapted, 6, digits=3),
        " or ".join(held.fits(full)) or "neither",
        DASH if lora is None else f"{lora:.1f}",
        DASH if held.adapter is None else rounded(held.adapter, 3, digits=3),
    )


def parameters_by_depth(grid: Grid) -> Part:
    """OPT's parameters and trainable parameters by blocks at the customer (Figure 5)."""
    cell = CountCell(architectures=(OPT.source,), bottoms=tuple(range(1, OPT.blocks)))
    return LAYOUT.part("figure-5", [Scenario(cell)], {"model": OPT.source}, claims=[_much_fewer])


def _much_fewer(results: Results) -> Iterable[Verdict]:
    shares = {row.bottom: row.parameters / row.adapter for _, found in results.of(CountCell) for row in found.rows}
    yield Verdict(
        claim="§3.3.4: with LoRA OPT's trainable parameters are much fewer than all, wherever it is cut.",
        held=min(shares.values()) > MANY,
        here=f"{min(shares.values()):,.0f} to {max(shares.values()):,.0f} times fewer, for {min(shares)} to "
        f"{max(shares)} blocks; the bar is {MANY}",
    )


def model_scale(grid: Grid) -> Part:
    """The counts of §4.1.2, as the paper states them and as the networks have them."""
    units = {"": 1, "K": 1e3, "M": 1e6}
    stated = [
        Stated("parameters", each["value"] * units[each.get("unit", "")], {"what": name})
        for name, each in PAPER["model_scale"].items()
    ]
    return LAYOUT.part("model-scale", [Scenario(NetworkSizeCell())], stated=stated, claims=[_scale])


def _scale(results: Results) -> Iterable[Verdict]:
    ours = {what: results.number("parameters", what=what).value or 0.0 for what in results.levels("what")}
    resnet, block = ours["ResNet-152"], ours["GPT-2, one block"]
    layers = {name: block / ours[name] for name in ("UnSplit's CNN, one layer", "ResNet-152, one layer")}
    yield Verdict(
        claim="§4.1.2: ResNet-152 has about as many parameters as one block of GPT-2.",
        held=max(resnet / block, block / resnet) <= SIMILAR,
        here=f"it has {resnet / block:.1f} times as many; similar is up to {SIMILAR}",
    )
    times = " and ".join(f"{times:,.0f} times as many as {name}" for name, times in layers.items())
    yield Verdict(
        claim="§4.1.2: a layer of a CNN has much fewer parameters than one of a language model.",
        held=min(layers.values()) > MANY,
        here=f"GPT-2's block has {times}; the bar is {MANY}",
    )


# ---------------------------------------------------------------- Table 5 with Figures 16-21


def similarity(grid: Grid) -> Part:
    """How alike the input and the output of a part are."""
    vit, ours = grid.config.vit, FIRST_BLOCKS[: grid.blocks - 1]
    beside = dict(ours) | {name: name for name in PAPER["table_5"]}
    cell = SimilarityCell(
        model=grid.fingerprint, texts=grid.config.corpora["wikitext"].file, length=grid.scale.length,
        samples=grid.scale.samples, blocks=tuple(name for name, _ in ours),
        vit=None if vit is None else str(vit.expanduser().resolve()),
    )  # fmt: skip
    stated = [
        Stated(metric, PAPER["table_5"][paper][field], {"compared": name})
        for name, paper in beside.items()
        for metric, field in (("dCor", "distance_correlation"), ("cosine", "cosine"))
    ]
    maps = HeatMaps("table-5", "Figures 16 to 21: likeness of channels, the decoder being the model")
    said = {"shown": SHOWN}
    return LAYOUT.part("table-5", [Scenario(cell)], said, stated=stated, figures=[maps], claims=[_least_alike])


def _least_alike(results: Results) -> Iterable[Verdict]:
    """Takeaway of §4.3, by each measure's distance from what chance gives."""
    ours, over = dict(FIRST_BLOCKS), {}
    for name in results.levels("compared"):
        value, chance = (results.number(metric, compared=name).value for metric in ("dCor", "dCor by chance"))
        if (name in ours or name in PAPER["table_5"]) and value is not None and chance is not None:
            over[name] = value - chance
    decoder, others = ([value for name, value in over.items() if (name in ours) is which] for which in (True, False))
    yield Verdict(
        claim="§4.3: inputs and outputs of a decoder's first blocks are less alike than those of a CNN or a ViT.",
        held=max(decoder) < min(others) if decoder and others else None,
        here="distance correlation above what chance gives: "
        + ", ".join(f"{value:.3f} ({name})" for name, value in over.items()),
    )


# ---------------------------------------------------------------- Figure 22


def client_cost(grid: Grid) -> Part:
    """What a customer's part costs in memory and arithmetic."""
    models = (GPT2, GPT2_XL, OPT, LLAMA_2) if grid.scale.costs else (GPT2,)
    cell = CostCell(architectures=tuple(each.source for each in models))
    said = {"batch": cell.batch, "length": cell.length, "lengths": ", ".join(map(str, LENGTHS))}
    said["models"] = ", ".join(each.title for each in models)
    return LAYOUT.part("figure-22", [Scenario(cell)], said, claims=[_personal_computer])


def _personal_computer(results: Results) -> Iterable[Verdict]:
    shallow = [
        row for _, found in results.of(CostCell) for row in found.rows if row.bottom == 1 and row.tail is not None
    ]
    told = ", ".join(f"{row.peak_bytes / 1e9:.1f} GB ({row.architecture}, {row.setting.tuning})" for row in shallow)
    yield Verdict(
        claim="§5: an ordinary personal computer can be the customer.",
        held=all(row.peak_bytes < PERSONAL_BYTES for row in shallow),
        here=f"one block, norm and head: {told}; the paper's own has {PERSONAL_BYTES / 1e9:.0f} GB",
    )


# ---------------------------------------------------------------- labels above the cut


def labels_above(grid: Grid) -> Part:
    """What the vendor reads of labels, by depth of the customer's tail."""
    scale, scenarios = grid.scale, []
    settings = {"max_length": scale.tail_length, "dev_share": grid.config.tail_dev_share}
    for tail in scale.tails:
        for tuning in (Lora(target_modules=grid.targets), FullTuning()):
            if tail <= grid.blocks - 2:  # one block below the cut, and one at the vendor
                cell = TailCell(
                    model=grid.fingerprint, corpus=grid.config.corpora["enron"].file, texts=scale.tail_texts,
                    tail=tail, training=grid.training(tuning, **settings), tuning=tuning,
                )  # fmt: skip
                scenarios.append(Scenario(cell, {"tail": tail, "method": tuning.method}))
    said = {
        "above": lambda tail: ABOVE.get(tail, f"{tail} blocks, norm and head"),
        "tuned": Axis("method", "tuned", {"lora": "adapters", "full": "all weights"}),
    }
    return LAYOUT.part("tail", scenarios, said, claims=[_labels_stay])


def _labels_stay(results: Results) -> Iterable[Verdict]:
    found = results.rows(metric=("first_steps", "last_steps", "answers"))["value"].dropna()
    yield Verdict(
        claim="§2.2: with the last layers at the client, the labels stay there.",
        held=None if found.empty else bool(found.max() < READ_AT),
        here="no attack applied"
        if found.empty
        else f"the vendor read {100 * found.min():.1f} to {100 * found.max():.1f} % of tokens",
    )
