"""Recipe `inference`: what releases tell of their authors and of the entities they name, over eta and N_l.

SAP's Figure 3 (attribute inference over labelled records) and RAPT's Figure 3 (empirical privacy against five
attacks), on public data. Ref: arXiv:2312.15603; arXiv:2305.06212. Settings and claims: `configs/inference.yaml`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import Field

from cutlayer.core import Spec
from cutlayer.models import STARTER
from cutlayer.recipes.attribute_readings import (
    ATTACKED,
    ENTITIES,
    EntitiesSpec,
    InferenceCell,
    PostsSpec,
    Scale,
    corpus_of,
)
from cutlayer.recipes.claims import at_least, falls
from cutlayer.recipes.figures import Figure, Reference
from cutlayer.recipes.lab import Lab
from cutlayer.recipes.long_table import Where
from cutlayer.recipes.options import RecipeConfig, shipped
from cutlayer.recipes.recipe import Recipe, outcome_texts
from cutlayer.recipes.study import Claim, Part, Results, Scenario
from cutlayer.recipes.tables import Axis, Column, Pivot, complement, plain
from cutlayer.reports import Calibrated, Table, percent

INVERSIONS = ("nearest-neighbour", "mlp-inversion", "autoencoder-inversion")
TUNED, PERCEPTRON, LENGTHS = "attribute-classifier", "attribute-mlp", "attribute-lengths"
TITLES = {
    "nearest-neighbour": "white-box: nearest row",
    "mlp-inversion": "black-box: perceptron",
    "autoencoder-inversion": "black-box: autoencoder",
    TUNED: "tuned model (SAP)",
    PERCEPTRON: "perceptron on mean rows (RAPT, SnD)",
    LENGTHS: "lengths alone",
    ENTITIES: "entities: tagger",
}
"""The attacks as tables and figures name them."""
EASY = 0.9
"""Share of tokens from which on reading them is called easy."""


class PaperFigure(Spec):
    """What a paper's figure shows.

    Attributes:
        source: What can be read off it.
        setting: What was attacked there.
        claims: What the text says of it, by name.
    """

    source: str
    setting: str
    claims: Mapping[str, str]


class InferenceConfig(RecipeConfig[Scale]):
    """`configs/inference.yaml`; that file says what each field is for."""

    posts: PostsSpec
    entities: EntitiesSpec
    replaced: tuple[float, ...] = Field(min_length=1)
    paper: Mapping[str, PaperFigure]


def _papers(c: InferenceConfig) -> Mapping[str, object]:
    return {"papers": {name: figure.model_dump(mode="json") for name, figure in c.paper.items()}}


def _attacks(results: Results) -> Iterable[Table]:
    """Every attack once, where nothing is hidden and where most is: chance, controls, seconds."""
    etas, rows = sorted(results.levels("eta")), {}
    most = max(results.levels("labelled"))
    for scenario in results.scenarios:
        cell = scenario.cell
        if not isinstance(cell, InferenceCell) or cell.seed or cell not in results.cells:
            continue
        if cell.eta not in (etas[0], math.inf) or (cell.column and cell.labelled != most):
            continue
        found = results.cells[cell]
        eta = "∞" if math.isinf(cell.eta) else f"{cell.eta:g}"
        rows[cell] = (cell.attack, cell.column, eta, *outcome_texts(found.outcome), f"{found.seconds:.0f}")
    yield Table(
        title="The attacks: chance and controls",
        columns=("attack", "of", "eta", "success, %", "chance, %", "p", "n", "controls", "seconds"),
        rows=tuple(rows.values()),
        notes=(
            "Chance is what the same guesses would give if they were dealt out at random. Controls: what the attack "
            "recovers of unprotected, pure noise, shuffled traffic, and whether it does so twice; without all of them "
            "there is no number. Those of attacks on attributes are on made-up texts that tell the answer, and are run "
            "once for all eta and N_l.",
        ),
    )


RECIPE = Recipe(
    "inference", shipped("inference", InferenceConfig), default_model=STARTER, paper=_papers, closing=[_attacks]
)


@dataclass(frozen=True)
class Releases:
    """What both figures have in common: the etas, and cells at each.

    Attributes:
        config: The recipe's settings.
        lab: Where cells are run.
        calibrated: The etas, from the most noise, with the shares of tokens that they replace.
    """

    config: InferenceConfig
    lab: Lab
    calibrated: Sequence[Calibrated]

    @classmethod
    def of(cls, c: InferenceConfig, lab: Lab) -> Releases:
        """Calibrated on the attacked posts."""
        posts, scale = c.posts, c.at(lab.options.size)
        tokens = corpus_of(_cell(c, lab, attack="", eta=math.inf), lab).attacked.tokens
        about = f"{posts.name}, {scale.attacked} posts of {scale.tokens} tokens at most"
        return cls(c, lab, lab.etas(tokens, c.replaced, about=about, model=lab.model()))

    @property
    def etas(self) -> tuple[float, ...]:
        """From the most noise to none."""
        return (*sorted(point.eta for point in self.calibrated), math.inf)

    @property
    def axis(self) -> Axis:
        """eta, with the share of tokens that it replaces."""
        shares = {point.eta: point.replaced for point in self.calibrated}
        return Axis("eta", show=lambda eta: "∞" if math.isinf(eta) else f"{eta:g} ({percent(shares[eta], 0)} %)")

    def scenarios(self, asked: Sequence[tuple[str, str, int]]) -> list[Scenario]:
        """Attack, attribute and N_l, over eta and seeds; cells of one release follow one another."""
        return [
            Scenario(
                _cell(self.config, self.lab, attack=attack, eta=eta, column=column, labelled=labelled, seed=seed),
                {"eta": eta, "column": column, "labelled": labelled},
            )
            for seed in range(self.lab.options.seeds)
            for eta in self.etas
            for attack, column, labelled in asked
        ]

    def less_eta(self, claim: str, name: str, where: Where, *, at: str) -> Claim:
        """Whether success falls from no noise to the most."""
        noisiest = self.etas[0]
        return falls(
            claim, "success",
            (f"{name}, {at}, no noise", {**where, "eta": math.inf}),
            (f"eta {noisiest:g}", {**where, "eta": noisiest}),
        )  # fmt: skip


def _cell(
    c: InferenceConfig, lab: Lab, *, attack: str, eta: float, column: str = "", labelled: int = 0, seed: int = 0
) -> InferenceCell:
    return InferenceCell(
        model=lab.model().fingerprint, posts=c.posts, entities=c.entities, attack=attack, eta=eta, column=column,
        labelled=labelled, scale=c.at(lab.options.size), seed=seed,
    )  # fmt: skip


ATTACK = Axis("attack", show=TITLES)


@RECIPE.part("figure-3-sap")
def figure_3_sap(c: InferenceConfig, lab: Lab) -> Part:
    """Attributes of posts' authors, over N_l and eta."""
    releases, scale, paper = Releases.of(c, lab), c.at(lab.options.size), c.paper["sap_figure_3"]
    few, many = min(scale.labelled), max(scale.labelled)
    asked = []
    for column in c.posts.columns:
        for labelled in scale.labelled:
            asked += [(TUNED, column, labelled)] if column in scale.tuned else []
            asked.append((PERCEPTRON, column, labelled))
        asked.append((LENGTHS, column, many))
    claims: list[Claim] = []
    for column in c.posts.columns:
        for attack in (TUNED, PERCEPTRON) if column in scale.tuned else (PERCEPTRON,):
            name, where = f"{column}, {TITLES[attack]}", {"attack": attack, "column": column}
            claims += [
                falls(
                    f"SAP, Figure 3: {paper.claims['more_labels']}", "success",
                    (f"{name}, no noise, N_l {many}", {**where, "labelled": many, "eta": math.inf}),
                    (f"N_l {few}", {**where, "labelled": few, "eta": math.inf}),
                ),
                releases.less_eta(
                    f"SAP, Figure 3: {paper.claims['less_eta']}", name, {**where, "labelled": many}, at=f"N_l {many}"
                ),
            ]  # fmt: skip
    return Part(
        "SAP, Figure 3: attributes of posts' authors, inferred from releases",
        releases.scenarios(asked),
        tables=[
            Pivot(
                f"SAP, Figure 3: {column} ({' or '.join(names)}) of posts' authors",
                lines=(ATTACK, Axis("labelled", "N_l")),
                columns=(Column("accuracy, %", "success"), Column("AUC", "auc", show=plain())),
                across=releases.axis,
                where={"column": column},
                notes=(
                    _majority(column, many),
                    "In brackets after eta: the share of tokens that it replaces. In brackets after a number: 95 % "
                    "over resampled authors (over seeds: one standard error).",
                    f"The paper's figure is {paper.source}: {paper.setting}.",
                ),
            )
            for column, names in c.posts.columns.items()
        ],
        figures=[
            Figure(
                name="figure-3-sap" if number == 0 else f"figure-3-sap-{column}",
                title=f"{column} of posts' authors, inferred from releases",
                x=Axis("labelled", "N_l, labelled posts"),
                y="accuracy, %",
                where={"column": column, "metric": "success", "attack": (TUNED, PERCEPTRON)},
                colour=releases.axis,
                panel=ATTACK,
                logarithmic=True,
                limits=None,
                references=[
                    Reference(
                        "most frequent answer", "majority",
                        {"attack": PERCEPTRON, "column": column, "labelled": many, "eta": math.inf},
                    )
                ],
            )
            for number, column in enumerate(c.posts.columns)
        ],
        claims=claims,
        details={"calibration": [vars(point) for point in releases.calibrated]},
    )  # fmt: skip


def _majority(column: str, labelled: int) -> Callable[[Results], Iterable[str]]:
    def note(results: Results) -> Iterable[str]:
        found = results.number("majority", attack=PERCEPTRON, column=column, labelled=labelled, eta=math.inf)
        known = "not measured" if found.value is None else f"{percent(found.value)} % of {found.n:.0f} {ATTACKED}"
        yield f"The most frequent answer needs no attack: it is right for {known}. Of their authors no post is known."

    return note


@RECIPE.part("figure-3-rapt")
def figure_3_rapt(c: InferenceConfig, lab: Lab) -> Part:
    """Empirical privacy of words, attributes and entities, over eta."""
    releases, paper = Releases.of(c, lab), c.paper["rapt_figure_3"]
    most = max(c.at(lab.options.size).labelled)
    asked = [(attack, "", 0) for attack in INVERSIONS]
    asked += [*((PERCEPTRON, column, most) for column in c.posts.columns), (ENTITIES, "", 0)]
    lines = {
        (f"{column}: {TITLES[attack]}" if column else TITLES[attack]): {"attack": attack, "column": column}
        for attack, column, _ in asked
    }

    privacy = [
        *(Column(name, "success", where, complement()) for name, where in lines.items()),
        Column("autoencoder: its MSE (the paper's metric)", "mse", {"attack": INVERSIONS[2]}, plain(3)),
        Column("MSE of the mean row", "mse_blind", {"attack": INVERSIONS[2]}, plain(3)),
    ]
    entities = [
        Column("F1, %", "success"), Column("precision", "precision", show=plain()),
        Column("recall", "recall", show=plain()), Column("F1 by chance, %", "chance"),
        Column("tokens replaced, %", "replaced"),
    ]  # fmt: skip
    return Part(
        "RAPT, Figure 3: empirical privacy under attacks, text-to-text",
        releases.scenarios(asked),
        tables=[
            Pivot(
                "RAPT, Figure 3: empirical privacy 1 - success (%) under attacks, text-to-text (T2T)",
                lines=(),
                columns=privacy,
                across=releases.axis,
                notes=(
                    f"Attributes: N_l = {most}. A random guess has an empirical privacy, too: the last table has "
                    "chance.",
                    f"The paper's figure is {paper.source}: {paper.setting}. Its eta are of another table and do not "
                    "compare.",
                ),
            ),
            Pivot(
                "Entities of WNUT17 found in releases",
                lines=(),
                columns=entities,
                across=releases.axis,
                where={"attack": ENTITIES},
                notes=(
                    "An entity is found if its kind, its first and its last word are. By chance: the same guesses "
                    "beside other words. The tagger learnt from annotated public text under the same noise.",
                ),
            ),
        ],
        figures=[
            Figure(
                name="figure-3-rapt",
                title="Empirical privacy under attacks, text-to-text",
                x=releases.axis,
                y="empirical privacy 1 - success, %",
                where={"metric": "success", "attack": (*INVERSIONS, ENTITIES, PERCEPTRON)},
                colour=ATTACK,
                panel=Axis("column", show=lambda column: column or "words and entities"),
                value=lambda value: 100 * (1 - value),
            ),
            Figure(
                name="figure-3-rapt-mse",
                title="The autoencoder's squared distance from the true row",
                x=releases.axis,
                y="mean squared error",
                where={"metric": ("mse", "mse_blind"), "attack": INVERSIONS[2]},
                colour=Axis("metric", show={"mse": "autoencoder", "mse_blind": "the mean row"}),
                value=float,
                limits=None,
            ),
        ],
        claims=[
            *(
                at_least(
                    f"RAPT, Figure 3, {TITLES[attack]}: {paper.claims['unprotected']}", "success", EASY,
                    {"attack": attack, "eta": math.inf},
                )
                for attack in INVERSIONS
            ),
            *(
                releases.less_eta(f"RAPT, Figure 3: {paper.claims['less_eta']}", name, where, at="success")
                for name, where in lines.items()
            ),
        ],
        details={"calibration": [vars(point) for point in releases.calibrated]},
    )  # fmt: skip
