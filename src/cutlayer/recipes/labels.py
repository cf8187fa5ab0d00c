"""Recipe `labels`: what protects labels from a vendor that trains, attacked, with what it costs.

Randomised response, recombined backward passes and a head at the customer, for a classifier; the first two for next
tokens. Settings: `configs/labels.yaml`; tables and figures: `layouts/labels.yaml`.
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
from cutlayer.recipes.lab import Lab
from cutlayer.recipes.label_cells import CorpusSpec, HeadCell, LanguageCell, LanguageScale, RunCell
from cutlayer.recipes.layouts import Layout
from cutlayer.recipes.options import RecipeConfig, Setting, shipped
from cutlayer.recipes.recipe import Recipe
from cutlayer.recipes.recorded_steps import ON_TOKENS, SOLVED, Option, OptionCell
from cutlayer.recipes.study import Claim, Part, Results, Scenario, Verdict
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
    """The language model's part; the settings' file says what each field is for."""

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
LAYOUT = Layout("labels")


@RECIPE.part("classifier")
def classifier(c: LabelsConfig, lab: Lab) -> Part:
    """Each option for a classifier's labels."""
    scale = c.at(lab.options.size)
    training = settled(Objective.CLASSIFICATION, c.tuning, {**c.training, **scale.training})
    common: dict[str, Any] = {"model": lab.model().fingerprint, "task": c.task, "limits": scale.limits}
    common |= {"training": training, "tuning": c.tuning, "cover": c.cover}
    scenarios: list[Scenario] = []
    for seed in range(lab.options.seeds):
        scenarios.append(Scenario(RunCell(**common, epsilon=None, passes=c.passes, seed=seed)))
        scenarios += [Scenario(RunCell(**common, epsilon=epsilon, seed=seed)) for epsilon in c.epsilons]
        scenarios.append(Scenario(HeadCell(**common, passes=c.passes, seed=seed)))
    return LAYOUT.part("classifier", scenarios, {"task": c.task, "epsilons": c.epsilons}, claims=CLASSIFIER_CLAIMS)


@RECIPE.part("language")
def language(c: LabelsConfig, lab: Lab) -> Part:
    """Each option for the next tokens of a language model."""
    of, scale = c.language, c.at(lab.options.size).language
    model = lab.model(of.model, Head.LANGUAGE).fingerprint
    common: dict[str, Any] = {"model": model, "source": of.model, "corpus": of.corpus, "scale": scale}
    common |= {"learning_rate": of.learning_rate, "cover": c.cover}
    scenarios = [
        Scenario(LanguageCell(**common, epsilon=epsilon, passes=() if epsilon else of.passes, seed=seed))
        for seed in range(lab.options.seeds)
        for epsilon in (None, *of.epsilons)
    ]
    return LAYOUT.part("language", scenarios, dict(of), claims=LANGUAGE_CLAIMS)


# ---------------------------------------------------------------- what the numbers say


def _options(results: Results) -> list[Option]:
    return [option for _, found in results.of(OptionCell) for option in found.options]


def _values(options: Iterable[Option], *attacks: str) -> list[float]:
    found = [option.reading(name) for option in options for name in attacks]
    return [each.success.value for each in found if each is not None and each.success is not None]


def _range(values: Sequence[float]) -> str:
    low, high = percent(min(values)), percent(max(values))
    return f"{low} %" if low == high else f"{low} to {high} %"


def _ordinary(what: str) -> Claim:
    """Whether an unprotected run shows its labels."""

    def judge(results: Results) -> Iterable[Verdict]:
        values = _values((o for o in _options(results) if o.name == "ordinary"), "output-gradient", ON_TOKENS)
        yield Verdict(
            claim=f"An ordinary run shows its {what}: 99 % or more are read from gradients.",
            held=min(values) >= ALL if values else None,
            here=f"{_range(values)} were read." if values else "no attack has a number.",
        )

    return judge


def _bounded(results: Results, *attacks: str) -> list[tuple[float, float, int]]:
    """Of each reading of a randomised response: what was read, the reports' bound, and how many labels were drawn."""
    return [
        (value, option.bound, option.draws)
        for option in _options(results)
        for value in _values([option], *attacks)
        if option.epsilon is not None and option.bound is not None
    ]


def _response(what: str) -> Claim:
    """Whether any attack on gradients beats the bound of reports by more than a draw may."""

    def judge(results: Results) -> Iterable[Verdict]:
        if all(option.epsilon is None for option in _options(results)):
            return
        found = _bounded(results, *GRADIENTS, ON_TOKENS)
        beyond = [(value - bound) / math.sqrt(bound * (1 - bound) / draws) for value, bound, draws in found]
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
    if found := _bounded(results, "activation-clusters"):
        yield Verdict(
            claim="Nor does the attack on activations, in which gradients have no part.",
            held=all(value <= bound for value, bound, _ in found),
            here="; ".join(f"{percent(value)} % at a bound of {percent(bound)} %" for value, bound, _ in found)
            + ". What lies above is told by the texts.",
        )


def _hides(claim: str, told: str, attack: str, chosen: Callable[[Option], bool]) -> Claim:
    """Whether a protection keeps an attack from reading nearly all; nothing where the attack has no number."""

    def judge(results: Results) -> Iterable[Verdict]:
        if values := _values(filter(chosen, _options(results)), attack):
            yield Verdict(claim=claim, held=max(values) < ALL, here=told.format(_range(values)))

    return judge


def _solved(what: str) -> Claim:
    """Whether recombined passes hide anything from a vendor that solves for the combination."""
    claim = f"Recombined passes hide {what} from a vendor that holds the adapter."
    return _hides(claim, "{} were read of what was solved for.", SOLVED, lambda option: option.passes > 1)


_head = _hides(
    "A head at the customer hides which texts share a label.",
    "directions of gradients put {} of gradients into the right cluster.",
    "gradient-direction", lambda option: option.name == "head at the customer",
)  # fmt: skip
CLASSIFIER_CLAIMS = (_ordinary("labels"), _response("labels"), _activations, _solved("labels"), _head)
LANGUAGE_CLAIMS = (_ordinary("next tokens"), _response("next tokens"), _solved("next tokens"))
