"""Parts of recipe `unsplit` that attack no boundary: parameters, likeness, cost, labels above the cut."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from cutlayer.customer import FullTuning, Lora
from cutlayer.recipes.figures import Figure
from cutlayer.recipes.long_table import Number
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
    NetworkCountCell,
    rounded,
)
from cutlayer.recipes.recordings import TailCell
from cutlayer.recipes.study import Part, Results, Scenario, Stated, Verdict
from cutlayer.recipes.tables import DASH, Axis, Column, Pivot, count, error, note, plain, scaled, share
from cutlayer.recipes.unsplit_cases import PAPER, Grid
from cutlayer.reports import Table

MANY, SIMILAR = 10, 2
"""Times that "much fewer" must mean for a verdict, and that "similar" may mean; the paper says no number."""
READ_AT = 0.5
"""A share of labels above which nobody would say that they stay home."""
PERSONAL_BYTES = 16e9
"""The paper's own personal computer (§3.3.2, Apple Mac M1 Pro 16GB)."""
UNITS = {"": 1, "K": 1e3, "M": 1e6}
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
    title = f"Figure 5: parameters of {OPT.source} at the customer, by blocks"
    return Part(
        title,
        [Scenario(CountCell(architectures=(OPT.source,), bottoms=tuple(range(1, OPT.blocks))))],
        tables=[
            Pivot(
                title,
                lines=(Axis("bottom", "blocks"),),
                columns=(
                    Column("parameters (M)", "parameters", show=scaled(6)),
                    Column("trainable with LoRA (K)", "trained with LoRA", show=scaled(3)),
                    Column("trainable share (%)", "trained share", show=share(3)),
                ),
                notes=("The paper draws this and prints no number of it.",),
            )
        ],
        figures=[
            Figure(
                name="figure-5",
                title="Figure 5: parameters at the customer",
                x=Axis("bottom", "blocks at the customer"),
                y="parameters",
                where={"metric": ("parameters", "trained with LoRA")},
                colour=Axis("metric"),
                value=float,
                scale="log",
                about=OPT.source,
            )
        ],
        claims=[_much_fewer],
    )


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
    what, title = Axis("what"), "§4.1.2: parameters of convolutional networks"
    return Part(
        title,
        [Scenario(NetworkCountCell())],
        [
            Stated("parameters", each["value"] * UNITS[each.get("unit", "")], {"what": name})
            for name, each in PAPER["model_scale"].items()
        ],
        tables=[
            Pivot(
                title,
                lines=(what,),
                columns=(
                    Column("the paper", "parameters", {"source": "paper"}, count),
                    Column("here", "parameters", show=count),
                    Column("which", "parameters", show=note),
                ),
            )
        ],
        figures=[
            Figure(
                name="model-scale",
                title="§4.1.2: model scale",
                x=what,
                y="parameters",
                where={"metric": "parameters"},
                colour=what,
                value=float,
                scale="log",
                about="convolutional networks and GPT-2",
            )
        ],
        claims=[_scale],
    )


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
    vit = grid.config.vit
    ours = FIRST_BLOCKS[: grid.blocks - 1]
    beside = dict(ours) | {name: name for name in PAPER["table_5"]}
    return Part(
        "Table 5: how alike the input and the output of a part are",
        [
            Scenario(
                SimilarityCell(
                    model=grid.fingerprint,
                    texts=grid.config.corpora["wikitext"].file,
                    length=grid.scale.length,
                    samples=grid.scale.samples,
                    blocks=tuple(name for name, _ in ours),
                    vit=None if vit is None else str(vit.expanduser().resolve()),
                )
            )
        ],
        [
            Stated(metric, PAPER["table_5"][paper][field], {"compared": name})
            for name, paper in beside.items()
            for metric, field in (("dCor", "distance_correlation"), ("cosine", "cosine"))
        ],
        tables=[
            Pivot(
                "Table 5: how alike the input and the output of a part are",
                lines=(Axis("compared", "part"),),
                columns=(
                    Column("dCor, the paper", "dCor", {"source": "paper"}, _as_printed),
                    Column("dCor, here", "dCor", show=plain(3)),
                    Column("dCor by chance", "dCor by chance", show=scaled(0, 3)),
                    Column("cosine, the paper", "cosine", {"source": "paper"}, _as_printed),
                    Column("cosine, here", "cosine", show=plain(3)),
                    Column("|cosine|, here", "|cosine|", show=plain(3)),
                    Column("dCor, heat map", "dCor, heat map", show=plain(3)),
                    Column("channels × features", "channels × features", show=note),
                    Column("samples", "samples", show=count),
                    Column("what it is", "samples", show=note),
                ),
                notes=(
                    "Mean over samples and corresponding channels (position i with position i of a text), ± one "
                    "standard error over samples alone: another draw of random weights can move it by more. A constant "
                    "channel, as a ReLU can leave it, counts as 0. The heat map's mean is over the first "
                    f"{SHOWN} channels, each with each.",
                    "dCor is the V-statistic of Székely, Rizzo and Bakirov (2007) over the features of a channel. By "
                    "chance: what the same numbers give on average when they are paired at random, which is never less "
                    "than 1/√(n - 1) for n features. The paper prints no such level, and its 0.008 for OPT lies below "
                    "the least possible one, 0.022 for 2,048 features: it computed something else there, which it does "
                    "not define.",
                ),
            )
        ],
        figures=[HeatMaps("table-5", "Figures 16 to 21: likeness of channels, the decoder being the model")],
        claims=[_least_alike],
    )


def _as_printed(number: Number) -> str:
    return DASH if number.value is None else f"{number.value:g}"


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
    title = "Figure 22: what a customer's part costs, by blocks held"
    return Part(
        title,
        [Scenario(cell)],
        tables=[
            Pivot(
                title,
                lines=(Axis("model"), Axis("trained"), Axis("bottom"), Axis("tail")),
                where={"tail": ("at the vendor", "0")},
                columns=(
                    Column("parameters (M)", "parameters", show=scaled(6)),
                    Column("weights, gradients, AdamW (GB)", "weights and optimiser", show=scaled(9, 2)),
                    Column("activations (GB)", "activations", show=scaled(9, 2)),
                    Column("peak (GB)", "peak", show=scaled(9, 2)),
                    Column("of the whole (%)", "share of memory"),
                    Column("MFLOP a token", "operations", show=scaled(6)),
                    Column("of the whole (%)", "share of operations"),
                ),
                notes=(
                    f"fp32 throughout; {cell.batch} × {cell.length} tokens, dropout on. GB are 10⁹ bytes.",
                    "Parameters and floating-point operations are counted on the meta device, at this batch and "
                    "length. Activations are measured, with random weights: stem, first block, a further block and "
                    f"tail, at two and three texts of {', '.join(map(str, LENGTHS))} tokens with the CPU's attention "
                    "kernel; length, batch and further blocks are multiplied. What lives for one operation only, as "
                    "the gradient of the logits, is left out.",
                    "Gradients and AdamW's moments take 12 bytes for each trained number, weights 4 for each.",
                    "The paper draws its Figure 22 and prints no number of it.",
                ),
            )
        ],
        figures=[
            Figure(
                name="figure-22",
                title="Figure 22: peak memory at the customer",
                x=Axis("bottom", "blocks below"),
                y="peak memory (GB)",
                where={"metric": "peak"},
                colour=Axis("held"),
                panel=Axis("trained"),
                value=lambda value: value / 1e9,
                scale="log",
                about=", ".join(each.title for each in models),
            )
        ],
        claims=[_personal_computer],
    )


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
    scale = grid.scale
    metrics = {
        "first_steps": "gradients, first steps",
        "last_steps": "gradients, last steps",
        "answers": "answers, tuned",
        "rows": "rows behind one block",
    }
    tuned = Axis("method", "tuned", {"lora": "adapters", "full": "all weights"})
    title = "What the vendor reads of labels, by depth of the tail (not in the paper)"
    return Part(
        title,
        [
            Scenario(
                TailCell(
                    model=grid.fingerprint,
                    corpus=grid.config.corpora["enron"].file,
                    texts=scale.tail_texts,
                    tail=tail,
                    training=grid.training(tuning, max_length=scale.tail_length, dev_share=grid.config.tail_dev_share),
                    tuning=tuning,
                ),
                {"tail": tail, "method": tuning.method},
            )
            for tail in scale.tails
            if tail <= grid.blocks - 2  # one block below the cut, and one at the vendor
            for tuning in (Lora(target_modules=grid.targets), FullTuning())
        ],
        tables=[
            Pivot(
                title,
                lines=(
                    Axis("tail", "at the customer above", lambda n: ABOVE.get(n, f"{n} blocks, norm and head")),
                    tuned,
                ),
                columns=(
                    Column("perplexity before", "perplexity before", show=plain(1)),
                    Column("perplexity after", "perplexity", show=plain(1)),
                    *(Column(f"{name} (%)", metric, show=error()) for metric, name in metrics.items()),
                ),
                notes=(
                    "Before training, the vendor's tail and the customer's are one: answers are read whole at any "
                    "depth.",
                ),
            )
        ],
        figures=[
            Figure(
                name="tail",
                title="What the vendor reads of labels, by depth of the tail",
                x=Axis("tail", "blocks in the tail"),
                y="tokens read, %",
                where={"metric": tuple(metrics)[:3]},
                colour=Axis("metric", show=metrics),
                panel=tuned,
            )
        ],
        claims=[_labels_stay],
    )


def _labels_stay(results: Results) -> Iterable[Verdict]:
    found = results.rows(metric=("first_steps", "last_steps", "answers"))["value"].dropna()
    yield Verdict(
        claim="§2.2: with the last layers at the client, the labels stay there.",
        held=None if found.empty else bool(found.max() < READ_AT),
        here="no attack applied"
        if found.empty
        else f"the vendor read {100 * found.min():.1f} to {100 * found.max():.1f} % of tokens",
    )
