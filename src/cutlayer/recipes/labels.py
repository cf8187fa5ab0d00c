"""Recipe `labels`: what protects labels from a vendor that trains, attacked, with what it costs.

Randomised response, recombined backward passes and a head at the customer, for a classifier; the first two for next
tokens. Settings: `configs/labels.yaml`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field

from cutlayer.core import Spec
from cutlayer.customer import Lora, Objective
from cutlayer.models import STARTER, Head
from cutlayer.privacy import LARGEST_EPSILON
from cutlayer.recipes.figures import Figure, Reference
from cutlayer.recipes.lab import Lab
from cutlayer.recipes.label_cells import HeadCell, RunCell
from cutlayer.recipes.label_training import CorpusSpec, LanguageCell, LanguageScale
from cutlayer.recipes.long_table import Number
from cutlayer.recipes.options import RecipeConfig, Setting, shipped
from cutlayer.recipes.recipe import Recipe
from cutlayer.recipes.recorded_steps import ON_LABELS, ON_TOKENS, SOLVED, Option, OptionCell
from cutlayer.recipes.study import Part, Results, Scenario, Verdict
from cutlayer.recipes.tables import Axis, Column, Pivot, count, error, note, plain
from cutlayer.recipes.tasks import Limits, Task
from cutlayer.recipes.training import settled
from cutlayer.reports import percent

Epsilon = Annotated[float, Field(gt=0, le=LARGEST_EPSILON)]
Passes = Annotated[int, Field(ge=2)]
ERRORS = 4.0
"""Standard errors beyond the bound that a draw hardly ever takes, all options and attacks together."""
ALL = 0.99
"""Share of labels from which on they are called readable."""
GRADIENTS = ("gradient-sign", "output-gradient", "gradient-direction")


class Scale(Spec):
    """What `--size` changes."""

    limits: Limits
    training: Mapping[str, Setting]
    language: LanguageScale


class LanguageSpec(Spec):
    """The language model's part.

    Attributes:
        model: An embedded model's name, a local folder or a hub id.
        corpus: Private texts.
        epsilons: Of randomised response over the vocabulary.
        passes: Backward passes in the place of one.
        learning_rate: AdamW's, of all weights.
    """

    model: str
    corpus: CorpusSpec
    epsilons: tuple[Epsilon, ...]
    passes: tuple[Passes, ...]
    learning_rate: float = Field(gt=0)


class LabelsConfig(RecipeConfig[Scale]):
    """`configs/labels.yaml`; that file says what each field is for."""

    task: Task
    tuning: Lora
    training: Mapping[str, Setting]
    epsilons: tuple[Epsilon, ...] = Field(min_length=1)
    passes: tuple[Passes, ...] = Field(min_length=1)
    cover: float = Field(gt=0)
    language: LanguageSpec


RECIPE = Recipe("labels", shipped("labels", LabelsConfig), default_model=STARTER)

OPTION, SEED = Axis("option"), Axis("seed")
ATTACK = Axis(
    "attack",
    show={
        "gradient-sign": "sign",
        "output-gradient": "argmax(p − B·g)",
        "gradient-direction": "gradient directions, clustered",
        "activation-clusters": "activations, clustered",
        ON_TOKENS: "tail gradient",
        SOLVED: "combination solved",
    },
)


def kilobytes(number: Number) -> str:
    """Bytes in thousands."""
    return count(Number(None if number.value is None else number.value / 1000))


def _read(*attacks: str) -> tuple[Column, ...]:
    return tuple(Column(ATTACK.text(name), "success", {"attack": name}) for name in attacks)


COSTS = (
    Column("backward passes", "backward passes", show=count),
    Column("round trips", "round trips", show=count),
    Column("gradients up (kB)", "gradient bytes", show=kilobytes),
    Column("outputs down (kB)", "output bytes", show=kilobytes),
)
GUARANTEE = Column("guarantee", "guarantee", show=note)


@RECIPE.part("classifier")
def classifier(c: LabelsConfig, lab: Lab) -> Part:
    """Each option for a classifier's labels."""
    scale = c.at(lab.options.size)
    common: dict[str, Any] = {
        "model": lab.model().fingerprint,
        "task": c.task,
        "limits": scale.limits,
        "training": settled(Objective.CLASSIFICATION, c.tuning, {**c.training, **scale.training}),
        "tuning": c.tuning,
        "cover": c.cover,
    }
    scenarios: list[Scenario] = []
    for seed in range(lab.options.seeds):
        scenarios.append(Scenario(RunCell(**common, epsilon=None, passes=c.passes, seed=seed)))
        scenarios += [Scenario(RunCell(**common, epsilon=epsilon, seed=seed)) for epsilon in c.epsilons]
        scenarios.append(Scenario(HeadCell(**common, passes=c.passes, seed=seed)))
    return Part(
        f"Labels of {c.task.title} that the vendor reads, and what each option costs",
        scenarios,
        tables=[
            Pivot(
                f"Labels of {c.task.title} that the vendor reads, in per cent, and what each option costs",
                lines=(OPTION, SEED),
                columns=(
                    *_read(*ON_LABELS, SOLVED), Column("bound", "bound"), *COSTS,
                    Column("accuracy", "accuracy", show=error()), GUARANTEE,
                ),
                notes=(
                    "In brackets: 95 % over resampled texts. Every gradient of every epoch counts; of activations "
                    "those of the last quarter of the steps. Clusters are matched with labels at their best. A dash: "
                    "the attack does not apply.",
                    "Bound: of the best guess from reports alone, with labels as frequent as they are. Activations "
                    "may lie above it: a model that has learnt from reports tells true labels by the texts, which no "
                    "draw of labels hides.",
                    "Recombined passes are attacked on the first pass of each step; \"combination solved\" is the "
                    "attack on what was solved for: for logits from passes and the vendor's own softmax, for hidden "
                    "states from the update of the bias in front.",
                    "The head at the customer is no option of a run; it is trained in one process, and its gradients "
                    "are of the head's input. Bytes are of steps alone, without releases.",
                ),
            )
        ],
        figures=[
            Figure(
                name="randomised-response",
                title=f"Labels of {c.task.title} under randomised response",
                x=Axis("epsilon", "ε of each label"),
                y="labels read, %",
                where={"metric": "success", "attack": ON_LABELS, "epsilon": c.epsilons},
                colour=ATTACK,
                limits=(40, 102),
                references=[Reference("accuracy without protection", "accuracy", {"option": "ordinary"})],
            )
        ],
        claims=CLASSIFIER_CLAIMS,
    )  # fmt: skip


@RECIPE.part("language")
def language(c: LabelsConfig, lab: Lab) -> Part:
    """Each option for the next tokens of a language model."""
    of, scale = c.language, c.at(lab.options.size).language
    model = lab.model(of.model, Head.LANGUAGE).fingerprint
    return Part(
        f"Next tokens of {of.corpus.name} that the vendor reads above the cut",
        [
            Scenario(
                LanguageCell(
                    model=model, source=of.model, corpus=of.corpus, scale=scale, learning_rate=of.learning_rate,
                    epsilon=epsilon, passes=of.passes if epsilon is None else (), cover=c.cover, seed=seed,
                )
            )
            for seed in range(lab.options.seeds)
            for epsilon in (None, *of.epsilons)
        ],
        tables=[
            Pivot(
                f"Next tokens of {of.corpus.name} that the vendor reads above the cut, in per cent",
                lines=(OPTION, SEED),
                columns=(
                    *_read(ON_TOKENS, SOLVED), Column("bound", "bound"), *COSTS,
                    Column("perplexity", "perplexity", show=plain(1)), GUARANTEE,
                ),
                notes=(
                    f"{of.model}, final norm and head at the customer, all weights trained on each text once.",
                    "A token is a label with as many classes as the vocabulary has entries, so ε has to be near its "
                    "logarithm before any token is kept. The same token also goes up from below the cut, as eta says: "
                    "a draw of labels protects one of two copies, and is no option of a run.",
                    "Signs and argmax(p − B·g) have no meaning for gradients of hidden states; there it is the tail "
                    "gradient. Clusters have none either: there are as many as tokens of the vocabulary, most of them "
                    "empty. The head is at the customer in every language model's run: that is the ordinary line.",
                    "Combinations are solved from the update of the last bias in front of the boundary, which the "
                    "vendor applies.",
                ),
            )
        ],
        claims=LANGUAGE_CLAIMS,
    )  # fmt: skip


# ---------------------------------------------------------------- what the numbers say


def _options(results: Results) -> list[Option]:
    cells = [scenario.cell for scenario in results.scenarios if isinstance(scenario.cell, OptionCell)]
    return [option for cell in cells if cell in results.cells for option in results.cells[cell].options]


def _values(options: Iterable[Option], attacks: Sequence[str]) -> list[float]:
    found = [option.reading(name) for option in options for name in attacks]
    return [each.success.value for each in found if each is not None and each.success is not None]


def _range(values: Sequence[float]) -> str:
    low, high = percent(min(values)), percent(max(values))
    return f"{low} %" if low == high else f"{low} to {high} %"


def _ordinary(what: str) -> Callable[[Results], Iterable[Verdict]]:
    """Whether an unprotected run shows its labels."""

    def judge(results: Results) -> Iterable[Verdict]:
        options = [option for option in _options(results) if option.name == "ordinary"]
        values = _values(options, ("output-gradient", ON_TOKENS))
        yield Verdict(
            claim=f"An ordinary run shows its {what}: 99 % or more are read from gradients.",
            held=min(values) >= ALL if values else None,
            here=f"{_range(values)} were read." if values else "no attack has a number.",
        )

    return judge


def _response(what: str) -> Callable[[Results], Iterable[Verdict]]:
    """Whether any attack on gradients beats the bound of reports by more than a draw may."""

    def judge(results: Results) -> Iterable[Verdict]:
        drawn = [option for option in _options(results) if option.epsilon is not None]
        if not drawn:
            return
        beyond = [
            (each.success.value - option.bound) / math.sqrt(option.bound * (1 - option.bound) / option.draws)
            for option in drawn
            for name in (*GRADIENTS, ON_TOKENS)
            if (each := option.reading(name)) is not None and each.success is not None and option.bound is not None
        ]
        yield Verdict(
            claim=f"Randomised response of {what}: no attack on gradients reads more than the reports' bound.",
            held=max(beyond) <= ERRORS if beyond else None,
            here=f"of {len(beyond)} readings the highest lies {round(max(beyond), 1) + 0.0:+.1f} standard errors of "
            f"the draw from it (yes up to {ERRORS:g})."
            if beyond
            else "no attack has a number.",
        )

    return judge


def _activations(results: Results) -> Iterable[Verdict]:
    """Whether activations, in which gradients have no part, show more than the bound."""
    groups = [
        (each.success.value, option.bound)
        for option in _options(results)
        if option.epsilon is not None
        and option.bound is not None
        and (each := option.reading("activation-clusters")) is not None
        and each.success is not None
    ]
    if groups:
        yield Verdict(
            claim="Nor does the attack on activations, in which gradients have no part.",
            held=all(value <= bound for value, bound in groups),
            here="; ".join(f"{percent(value)} % at a bound of {percent(bound)} %" for value, bound in groups)
            + ". What lies above is told by the texts.",
        )


def _solved(what: str) -> Callable[[Results], Iterable[Verdict]]:
    """Whether recombined passes hide anything from a vendor that solves for the combination."""

    def judge(results: Results) -> Iterable[Verdict]:
        values = _values((option for option in _options(results) if option.passes > 1), (SOLVED,))
        if values:
            yield Verdict(
                claim=f"Recombined passes hide {what} from a vendor that holds the adapter.",
                held=max(values) < ALL,
                here=f"{_range(values)} were read of what was solved for.",
            )

    return judge


def _head(results: Results) -> Iterable[Verdict]:
    """Whether a head at the customer hides which texts share a label."""
    options = [option for option in _options(results) if option.name == "head at the customer"]
    if values := _values(options, ("gradient-direction",)):
        yield Verdict(
            claim="A head at the customer hides which texts share a label.",
            held=max(values) < ALL,
            here=f"directions of gradients put {_range(values)} of gradients into the right cluster.",
        )


CLASSIFIER_CLAIMS = (_ordinary("labels"), _response("labels"), _activations, _solved("labels"), _head)
LANGUAGE_CLAIMS = (_ordinary("next tokens"), _response("next tokens"), _solved("next tokens"))
