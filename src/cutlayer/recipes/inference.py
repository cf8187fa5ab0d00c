"""Recipe `inference`: what releases tell of their authors and of the entities they name, over eta and N_l.

SAP's Figure 3 (attribute inference over labelled records) and RAPT's Figure 3 (empirical privacy against five
attacks; of tokens over eta, of words by arm), on public data. Ref: arXiv:2312.15603; arXiv:2305.06212. Settings and
claims: `configs/inference.yaml`; tables and figures: `layouts/inference.yaml`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product
from typing import Any

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
from cutlayer.recipes.author_attacks import STRONGEST, strongest
from cutlayer.recipes.claims import alike, at_least, falls, where_read
from cutlayer.recipes.lab import Lab
from cutlayer.recipes.layouts import Layout
from cutlayer.recipes.long_table import Level, Where
from cutlayer.recipes.options import RecipeConfig, shipped
from cutlayer.recipes.recipe import Recipe, outcome_texts
from cutlayer.recipes.replacement import Source
from cutlayer.recipes.study import Claim, Part, Results, Scenario
from cutlayer.recipes.tables import Axis, Column, complement
from cutlayer.recipes.word_readings import WordInferenceCell
from cutlayer.recipes.word_training import READ, Arm
from cutlayer.reports import Calibrated, Table, percent

INVERSIONS = ("nearest-neighbour", "mlp-inversion", "autoencoder-inversion")
TUNED, PERCEPTRON, LENGTHS = "attribute-classifier", "attribute-mlp", "attribute-lengths"
LAYOUT = Layout("inference")
TITLES = LAYOUT.axis("attack").text
"""The attacks as tables and figures name them."""
EASY = 0.9
"""Share of tokens from which on reading them is called easy."""


class PaperFigure(Spec):
    """What a paper's figure shows, of which setting, and what the text says of it, by name."""

    source: str
    setting: str
    claims: Mapping[str, str]


class WordsSpec(Spec):
    """What part `figure-3-rapt-words` releases, and what reads it.

    Attributes:
        arms: Ways to draw words, by name, in the order in which the paper compares each with the one before it.
        replaced: Shares of all words that the etas shall replace.
        space: The model whose token embeddings give words their vectors.
        attacks: What reads words.
        plain: What reads them by means of public words before texts, where there are any.
    """

    arms: Mapping[str, Arm]
    replaced: tuple[float, ...] = Field(min_length=1)
    space: str
    attacks: tuple[str, ...]
    plain: tuple[str, ...]


class InferenceConfig(RecipeConfig[Scale]):
    """`configs/inference.yaml`; that file says what each field is for."""

    posts: PostsSpec
    entities: EntitiesSpec
    replaced: tuple[float, ...] = Field(min_length=1)
    words: WordsSpec
    paper: Mapping[str, PaperFigure]


def _attacks(results: Results) -> Iterable[Table]:
    """Every attack once, where nothing is hidden and where most is: chance, controls, seconds."""
    cells, rows = dict(results.of(InferenceCell)), {}
    least, most = min((cell.eta for cell in cells), default=math.inf), max((cell.labelled for cell in cells), default=0)
    for cell, found in cells.items():
        if cell.seed or cell.eta not in (least, math.inf) or (cell.column and cell.labelled != most):
            continue
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
    "inference", shipped("inference", InferenceConfig), default_model=STARTER, closing=[_attacks],
    paper=lambda c: {"papers": {name: figure.model_dump(mode="json") for name, figure in c.paper.items()}},
)  # fmt: skip


@dataclass(frozen=True)
class Releases:
    """What both figures have in common: the etas, with the shares of tokens that they replace, and cells at each."""

    config: InferenceConfig
    lab: Lab
    calibrated: Sequence[Calibrated]

    @classmethod
    def of(cls, c: InferenceConfig, lab: Lab) -> Releases:
        posts, scale = c.posts, c.at(lab.options.size)
        tokens = corpus_of(_cell(c, lab, attack="", eta=math.inf), lab).attacked.tokens
        about = f"{posts.name}, {scale.attacked} posts of {scale.tokens} tokens at most"
        return cls(c, lab, lab.etas(tokens, c.replaced, about=about, model=lab.model()))

    @property
    def etas(self) -> tuple[float, ...]:
        return (*sorted(point.eta for point in self.calibrated), math.inf)

    @property
    def axis(self) -> Axis:
        """eta, with the share of tokens that it replaces."""
        shares = {point.eta: point.replaced for point in self.calibrated}
        return Axis("eta", show=lambda eta: "∞" if math.isinf(eta) else f"{eta:g} ({percent(shares[eta], 0)} %)")

    @property
    def details(self) -> Mapping[str, Any]:
        return {"calibration": [vars(point) for point in self.calibrated]}

    def scenarios(self, asked: Sequence[tuple[str, str, int]]) -> list[Scenario]:
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


@RECIPE.part("figure-3-sap")
def figure_3_sap(c: InferenceConfig, lab: Lab) -> Part:
    """Attributes of posts' authors, over N_l and eta."""
    releases, scale, paper = Releases.of(c, lab), c.at(lab.options.size), c.paper["sap_figure_3"]
    few, many = min(scale.labelled), max(scale.labelled)
    asked: list[tuple[str, str, int]] = []
    claims: list[Claim] = []
    columns = []
    for number, (column, names) in enumerate(c.posts.columns.items()):
        attacks = (TUNED, PERCEPTRON) if column in scale.tuned else (PERCEPTRON,)
        asked += [(attack, column, labelled) for labelled in scale.labelled for attack in attacks]
        asked.append((LENGTHS, column, many))
        for attack in attacks:
            name, where = f"{column}, {TITLES(attack)}", {"attack": attack, "column": column}
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
        file = "figure-3-sap" if number == 0 else f"figure-3-sap-{column}"
        columns.append({"name": column, "names": " or ".join(names), "file": file, "majority": _majority(column, many)})
    said = {"columns": columns, "eta": releases.axis, "many": many, "paper": paper}
    return LAYOUT.part("figure-3-sap", releases.scenarios(asked), said, claims=claims, details=releases.details)


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
    asked += [*((PERCEPTRON, column, most) for column in (*c.posts.columns, *c.posts.bins))]
    asked += [(attack, "", 0) for attack in ENTITIES]
    lines = {
        (f"{column}: {TITLES(attack)}" if column else TITLES(attack)): {"attack": attack, "column": column}
        for attack, column, _ in asked
    }
    unprotected = [
        at_least(
            f"RAPT, Figure 3, {TITLES(attack)}: {paper.claims['unprotected']}", "success", EASY,
            {"attack": attack, "eta": math.inf},
        )
        for attack in INVERSIONS
    ]  # fmt: skip
    hidden = [
        releases.less_eta(f"RAPT, Figure 3: {paper.claims['less_eta']}", name, where, at="success")
        for name, where in lines.items()
    ]
    said = {
        "privacy": [Column(name, "success", where, complement()) for name, where in lines.items()],
        "eta": releases.axis, "most": most, "paper": paper, "column": lambda column: column or "words and entities",
    }  # fmt: skip
    scenarios, claims = releases.scenarios(asked), [*unprotected, *hidden]
    return LAYOUT.part("figure-3-rapt", scenarios, said, claims=claims, details=releases.details)


@RECIPE.part("figure-3-rapt-words")
def figure_3_rapt_words(c: InferenceConfig, lab: Lab) -> Part:
    """What attacks read of words and attributes, by arm: T2T, PCT2T, and with reconstruction."""
    asked, scale, paper = c.words, c.at(lab.options.size), c.paper["rapt_figure_3"]
    space, most = Source.of(asked.space, lab), max(scale.labelled)
    columns = (*c.posts.columns, *c.posts.bins)
    titles = {"clear": "unprotected", **{name: arm.title for name, arm in asked.arms.items()}}
    clear: dict[str, dict[str, Level]] = {}
    scenarios, claims = [], []
    for column in columns:
        place: dict[str, Level] = {"arm": "clear", "share": 0.0, "column": column}
        unprotected = _cell(c, lab, attack=PERCEPTRON, eta=math.inf, column=column, labelled=most)
        scenarios.append(Scenario(unprotected, place))
        clear[column] = {**place, "attack": PERCEPTRON}
    for (name, arm), share in product(asked.arms.items(), asked.replaced):
        further = asked.plain if arm.reconstruction.plain_tokens else ()
        of_words, of_authors = product((*asked.attacks, *further), [""]), product([PERCEPTRON], columns)
        for attack, column in (*of_words, *of_authors):
            cell = WordInferenceCell(
                model=lab.model().fingerprint, posts=c.posts, entities=c.entities, attack=attack, column=column,
                labelled=most if column else 0, scale=scale, arm=arm, share=share, space=space,
            )  # fmt: skip
            scenarios += Scenario.each(lab.options.seeds, cell, arm=name, share=share, column=column)
    for share, (first, second) in product(asked.replaced, pairwise(asked.arms)):
        said = paper.claims["reconstruction" if asked.arms[second].reconstruction.plain_tokens else "comparable"]
        for attack, column in (*product([*asked.attacks, STRONGEST], [""]), *product([PERCEPTRON], columns)):
            place = {"share": share, "attack": attack, "column": column}
            claim = alike(
                f"RAPT, Figure 3, {TITLES(attack)}{column and f' of {column}'}, {100 * share:g} % replaced: {said}",
                "success" if column else READ,
                (titles[first], {**place, "arm": first}), (titles[second], {**place, "arm": second}),
            )  # fmt: skip
            claims.append(where_read(claim, [clear[column]]) if column else claim)
    layout = {"arms": Axis("arm", "arm", titles), "most": most, "paper": paper, "read": READ}
    most_read = partial(strongest, metric=READ, axes=("arm", "share", "column"), highest=True)
    return LAYOUT.part("figure-3-rapt-words", scenarios, layout, claims=claims, derived=most_read)
