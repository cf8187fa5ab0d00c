"""The paper's tables and figures that are attacks: Tables 2-4, Figures 3, 4, 6-12 and 15."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from cutlayer.customer import Method
from cutlayer.recipes.unsplit.findings import Pooled, Verdict, alike, both, fails, falls
from cutlayer.recipes.unsplit.grid import Grid, Setup
from cutlayer.recipes.unsplit.paper import PAPER
from cutlayer.recipes.unsplit.study import (
    AS_PRINTED,
    FIRST,
    FULL,
    GPT2,
    LORA,
    METHODS,
    ROWS_ONLY,
    SECOND,
    Key,
    Point,
    Study,
    blocks,
    case,
)


def table_2(grid: Grid) -> Study:
    """The first and the second iteration, full fine-tuning, one block."""
    points = [
        Point(AS_PRINTED, at, grid.attack(Setup(), iteration), paper=paper)
        for at, iteration, paper in ((FIRST, 1, GPT2.first), (SECOND, 2, GPT2.second))
    ]
    points += [
        Point(ROWS_ONLY, at, grid.attack(Setup(), iteration, grid.rows)) for at, iteration in ((FIRST, 1), (SECOND, 2))
    ]

    def judge(found: Mapping[Key, Pooled]) -> Sequence[Verdict]:
        return [
            fails(
                "Takeaway 3.3: after iteration 1 the attack fails even against one block.",
                [case(found, series, SECOND) for series in (AS_PRINTED, ROWS_ONLY)],
            ),
            falls(
                "Table 2: the second iteration is read less than the first (GPT-2 in the paper: 0.415, 82.57 %).",
                case(found, AS_PRINTED, FIRST),
                case(found, AS_PRINTED, SECOND),
            ),
        ]

    return Study(
        name="table-2",
        title="Table 2: the first and the second iteration",
        axis="iteration",
        points=tuple(points),
        judge=judge,
        notes=("The paper's figures beside ours are GPT-2's.",),
    )


def table_3(grid: Grid) -> Study:
    """The second iteration with LoRA."""
    lora = Setup(method=Method.LORA)
    points = (
        Point(LORA, SECOND, grid.attack(lora, 2), paper=PAPER.table_3["GPT-2"].second),
        Point(FULL, SECOND, grid.attack(Setup(), 2), paper=GPT2.second),
    )

    def judge(found: Mapping[Key, Pooled]) -> Sequence[Verdict]:
        full, adapted = case(found, FULL, SECOND), case(found, LORA, SECOND)
        return [
            fails("§3.3.4: with LoRA the attack fails, too.", [adapted]),
            falls("Takeaway 3.2: more trainable parameters make it weaker.", adapted, full),
        ]

    return Study(
        name="table-3",
        title="Table 3: the second iteration with LoRA",
        axis="iteration",
        points=points,
        judge=judge,
        notes=("The attack on LoRA optimises an adapter like the customer's.",),
    )


def table_4(grid: Grid) -> Study:
    """The second iteration on other texts."""
    papers = {"textgenerator": PAPER.table_4["GPT-2"].textgenerator, "enron": PAPER.table_4["GPT-2"].enron}
    points = tuple(
        Point(
            f"{grid.config.corpora[name].title} (for {grid.config.corpora[name].stands_for})",
            SECOND,
            grid.attack(Setup(corpus=name), 2),
            paper=paper,
        )
        for name, paper in papers.items()
    )

    def judge(found: Mapping[Key, Pooled]) -> Sequence[Verdict]:
        return [
            fails(
                "§3.3.4: on simpler texts the second iteration is not read either.",
                [(f"({series})", pooled.accuracy) for (series, _), pooled in found.items()],
            )
        ]

    return Study("table-4", "Table 4: the second iteration on other data sets", "iteration", points, judge)


def figure_3(grid: Grid) -> Study:
    """The first iteration over depth."""
    points = tuple(
        Point(AS_PRINTED, blocks(depth), grid.attack(Setup(bottom=depth), 1), paper=GPT2.first if depth == 1 else None)
        for depth in grid.figure_3_depths
    )

    def judge(found: Mapping[Key, Pooled]) -> Sequence[Verdict]:
        ends = [case(found, AS_PRINTED, blocks(depth)) for depth in (1, grid.figure_3_depths[-1])]
        return [
            falls("Takeaway 3.1: at iteration 1 the attack gets weaker with the customer's blocks.", *ends),
            fails("§3.3.3: with four blocks of GPT-2 it no longer works.", ends[1:]),
        ]

    return Study(
        name="figure-3",
        title="Figure 3: the first iteration over blocks at the customer",
        axis="blocks at the customer",
        points=points,
        judge=judge,
        notes=("Of OPT the paper prints 43.55, 17.29 and 3.83 % for its three points.",),
    )


def figure_4(grid: Grid) -> Study:
    """Iterations and depths."""
    kept = [each for each in grid.config.kept if each <= grid.scale.iterations]
    points = tuple(
        Point(blocks(depth), f"iteration {iteration}", grid.attack(Setup(bottom=depth), iteration))
        for depth in grid.depths
        for iteration in kept
    )

    def judge(found: Mapping[Key, Pooled]) -> Sequence[Verdict]:
        later = [
            case(found, blocks(depth), f"iteration {iteration}")
            for depth in grid.depths
            for iteration in kept
            if iteration > 1
        ]
        return [fails("§3.3.4: from the second iteration on the attack is not effective.", later)]

    return Study("figure-4", "Figure 4: iterations and blocks at the customer", "iteration", points, judge)


def figure_6(grid: Grid) -> Study:
    """The second iteration at other rates."""
    points = tuple(
        Point(
            f"rate of θ {weights:g}",
            f"rate of x' {inputs:g}",
            grid.attack(
                Setup(),
                2,
                grid.paper.model_copy(update={"learning_rate_inputs": inputs, "learning_rate_weights": weights}),
            ),
        )
        for weights in (1e-3, 1e-4)
        for inputs in (0.1, 0.01)
    )

    def judge(found: Mapping[Key, Pooled]) -> Sequence[Verdict]:
        return [
            fails(
                "§3.3.5: at the second iteration the attack stays low at all rates.",
                [case(found, *point.key) for point in points],
            )
        ]

    return Study("figure-6", "Figure 6: the second iteration at other learning rates", "rate of x'", points, judge)


def figure_7(grid: Grid) -> Study:
    """Dropout off, first and second iteration (Figures 7 and 8)."""
    states = {"dropout on": True, "dropout off": False}
    points = tuple(
        Point(f"iteration {iteration}, {name}", blocks(depth), grid.attack(Setup(bottom=depth, dropout=on), iteration))
        for iteration in (1, 2)
        for name, on in states.items()
        for depth in grid.depths
    )

    def judge(found: Mapping[Key, Pooled]) -> Sequence[Verdict]:
        (on, off), (later_on, later_off) = (
            [case(found, f"iteration {iteration}, {name}", blocks(1)) for name in states] for iteration in (1, 2)
        )
        return [
            both(
                "§4.1.1: dropout is what makes the second iteration fail, and without it more is read.",
                fails("", [later_on]),
                falls("", later_off, later_on),
            ),
            alike("§4.1.1: at the first iteration dropout makes little difference.", off, on),
        ]

    return Study(
        name="figure-7",
        title="Figures 7 and 8: without dropout, first and second iteration",
        axis="blocks at the customer",
        points=points,
        judge=judge,
        notes=("The paper prints over 80 % for GPT-2 and over 50 % for OPT at iteration 2 without dropout.",),
    )


def figure_9(grid: Grid) -> Study:
    """LoRA's dropout and the model's own (Figures 9 and 10)."""
    states = {
        "both on": Setup(method=Method.LORA),
        "LoRA's off": Setup(method=Method.LORA, lora_dropout=False),
        "the others off": Setup(method=Method.LORA, dropout=False),
    }
    points = tuple(
        Point(name, blocks(depth), grid.attack(setup.model_copy(update={"bottom": depth}), 2))
        for name, setup in states.items()
        for depth in grid.depths
    )

    def judge(found: Mapping[Key, Pooled]) -> Sequence[Verdict]:
        on, no_lora, no_other = (case(found, name, blocks(1)) for name in states)
        return [
            falls("§4.1.1: without LoRA's dropout more is read.", no_lora, on),
            falls("§4.1.1: without the model's own dropout more is read.", no_other, on),
        ]

    return Study(
        "figure-9", "Figures 9 and 10: dropout with LoRA, second iteration", "blocks at the customer", points, judge
    )


def figure_11(grid: Grid) -> Study:
    """What knowing more of the customer's bottom brings (Figures 11 and 12, on normalisation)."""
    points = []
    for method, name in METHODS.items():
        for depth in grid.depths:
            setup = Setup(method=method, bottom=depth, two_iterations=True)
            points += [
                Point(f"{name}, guess from the public weights", blocks(depth), grid.attack(setup, 2, grid.rows)),
                Point(
                    f"{name}, guess from the customer's weights",
                    blocks(depth),
                    grid.attack(setup, 2, grid.rows, start="customer"),
                ),
            ]

    def judge(found: Mapping[Key, Pooled]) -> Sequence[Verdict]:
        verdicts = []
        for name in METHODS.values():
            without = case(found, f"{name}, guess from the public weights", blocks(1))
            verdicts.append(
                both(
                    f"§4.1.1, {name}: with the customer's normalisation statistics the second iteration is read, "
                    "without them it is not.",
                    fails("", [without]),
                    falls("", case(found, f"{name}, guess from the customer's weights", blocks(1)), without),
                )
            )
        return verdicts

    return Study(
        name="figure-11",
        title="Figures 11 and 12: what the normalisation layers hide",
        axis="blocks at the customer",
        points=tuple(points),
        judge=judge,
        notes=(
            "The paper has the guess process the private batch first, so that it knows the layers' mean and variance. "
            "LayerNorm and RMSNorm compute both anew for each row and keep nothing, so that the weights alone can "
            "tell the customer's bottom from the public one. Here the guess is given those weights as they are after "
            "the first iteration, which is more than the paper's server learns.",
            "x' alone is optimised: the weights are what is compared.",
        ),
    )


def figure_15(grid: Grid) -> Study:
    """The second iteration over the length of a text."""
    points = [Point(ROWS_ONLY, str(length), grid.attack(Setup(length=length), 2, grid.rows)) for length in grid.lengths]
    points += [
        Point(AS_PRINTED, str(length), grid.attack(Setup(length=length), 2))
        for length in grid.lengths
        if length <= grid.scale.length
    ]

    def judge(found: Mapping[Key, Pooled]) -> Sequence[Verdict]:
        short, long = (str(chosen(grid.lengths)) for chosen in (min, max))
        verdicts = [
            falls(
                "Figure 15: longer texts are read less (in the paper over 80 % at 128 tokens, under 1 % at 256).",
                case(found, ROWS_ONLY, short),
                case(found, ROWS_ONLY, long),
            )
        ]
        long_ones = [length for length in grid.lengths if length >= 256]
        if long_ones:
            verdicts.append(
                fails(
                    "Figure 15: from 256 tokens on nothing is read.",
                    [case(found, ROWS_ONLY, str(each)) for each in long_ones],
                )
            )
        return verdicts

    return Study(
        name="figure-15",
        title="Figure 15: the second iteration over the length of a text",
        axis="tokens of a text",
        points=tuple(points),
        judge=judge,
        notes=("Beyond the size's own length x' alone is optimised.",),
    )


PAPERS: Mapping[str, Callable[[Grid], Study]] = {
    "table-2": table_2,
    "table-3": table_3,
    "table-4": table_4,
    "figure-3": figure_3,
    "figure-4": figure_4,
    "figure-6": figure_6,
    "figure-7": figure_7,
    "figure-9": figure_9,
    "figure-11": figure_11,
    "figure-15": figure_15,
}
"""By the names that `--only` takes."""
