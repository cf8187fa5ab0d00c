"""RAPT's comparisons by privacy and utility together: Figure 4 (CAPE, DPNR, Qu et al.) and Figure 9 (T2T).

Ref: RAPT §V-D and §VI-D, arXiv:2305.06212.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, Protocol

from pydantic import Field

from cutlayer.core import Spec
from cutlayer.customer import FullTuning, Objective, TuningSpec
from cutlayer.customer.attacker import AttackerSpec
from cutlayer.recipes.author_attacks import STRONGEST, AuthorsCell, strongest
from cutlayer.recipes.baselines import OutputNoise, RepresentationCell, spared_by_dropping, text_epsilon
from cutlayer.recipes.claims import where_read
from cutlayer.recipes.lab import Lab
from cutlayer.recipes.layouts import Layout
from cutlayer.recipes.long_table import Level, Measure
from cutlayer.recipes.options import Setting
from cutlayer.recipes.pareto import Pareto, Plane
from cutlayer.recipes.replacement import Source
from cutlayer.recipes.study import Part, Results, Scenario, Told
from cutlayer.recipes.tables import Axis
from cutlayer.recipes.tasks import Limits, Task, TextFile
from cutlayer.recipes.training import settled
from cutlayer.recipes.word_training import READ, Arm, most_read
from cutlayer.reports import Table, percent

CLEAR, VECTOR = "clear", "qu"
"""Arms: unprotected text, and noisy embeddings."""
LAYOUT = Layout("rapt")
_BESIDE_ROWS = "labels, the map that is trained with the encoder, what other texts' rows tell by way of the encoder"


class ComparisonSpec(Spec):
    """What Figure 4 compares; the settings' file says what each field is for."""

    task: str
    attacker: AttackerSpec
    ours: tuple[str, ...] = Field(min_length=1)
    replaced: tuple[float, ...] = Field(min_length=1)
    replaced_tokens: tuple[float, ...] = Field(min_length=1)
    vectors: str
    outputs: Mapping[str, OutputNoise]
    epsilons: tuple[float, ...] = Field(min_length=1)
    training: Mapping[str, Setting]
    head_rate: float = Field(gt=0)


class ComparisonScale(Spec):
    """What `--size` changes of it."""

    limits: Limits = Limits()
    training: Mapping[str, Setting] = {}
    attacks: tuple[str, ...] = ("attribute-mlp",)


class Protected(Protocol):
    """Ways to protect words, and of which tasks: what part `table-3` has of them."""

    @property
    def tasks(self) -> Mapping[str, Task]: ...
    @property
    def arms(self) -> Mapping[str, Arm]: ...
    @property
    def ordered(self) -> Mapping[str, Arm]: ...
    @property
    def methods(self) -> Mapping[str, TuningSpec]: ...
    @property
    def attacked(self) -> str: ...
    @property
    def space(self) -> str: ...
    @property
    def public(self) -> TextFile: ...


class Compared:
    """Figure 4: its cells, and where they stand.

    Args:
        asked: What is compared.
        scale: How much of it.
        words: Ways to protect words, and how these arms are tuned.
        rates: The learning rate of methods that do not take their default.
        lab: Runs cells.
    """

    def __init__(
        self, asked: ComparisonSpec, scale: ComparisonScale, words: Protected, rates: Mapping[str, float], lab: Lab
    ) -> None:
        self.asked, self.scale, self._words, self._rates, self._lab = asked, scale, words, rates, lab
        self.titles = {
            CLEAR: words.arms[CLEAR].title,
            **{name: words.arms[name].title for name in asked.ours},
            VECTOR: asked.vectors,
            **{name: noise.title for name, noise in asked.outputs.items()},
        }

    def scenarios(self) -> Iterator[Scenario]:
        """Every arm at each of its settings."""
        asked, seeds = self.asked, self._lab.options.seeds
        yield from Scenario.each(seeds, self._drawn(CLEAR, None), arm=CLEAR, setting="no noise")
        for name, share in product(asked.ours, asked.replaced):
            yield from Scenario.each(seeds, self._drawn(name, share), arm=name, setting=_replaced(share))
        for share in asked.replaced_tokens:
            arm = Arm(title=asked.vectors)
            cell = self._over_the_road(arm, share, FullTuning(), vector=True)
            yield from Scenario.each(seeds, cell, arm=VECTOR, setting=_replaced(share))
        for (name, noise), epsilon in product(asked.outputs.items(), asked.epsilons):
            setting = f"epsilon {epsilon:g}"
            yield from Scenario.each(seeds, self._output(noise, epsilon), arm=name, setting=setting)

    def _drawn(self, name: str, share: float | None) -> AuthorsCell:
        words = self._words
        return self._over_the_road(words.arms[name], share, words.methods[words.attacked])

    def _over_the_road(self, arm: Arm, share: float | None, tuning: TuningSpec, *, vector: bool = False) -> AuthorsCell:
        return AuthorsCell(
            **self._shared(tuning), attacks=self.scale.attacks, arm=arm, share=share, vector=vector,
            space=Source.of(self._words.space, self._lab), public=self._words.public,
        )  # fmt: skip

    def _output(self, noise: OutputNoise, epsilon: float) -> RepresentationCell:
        # an attack that reads with the vendor's blocks has no use for rows of an encoder's end
        return RepresentationCell(
            **self._shared(FullTuning()), attacks=self.scale.attacks[:1], noise=noise, epsilon=epsilon,
            head_rate=self.asked.head_rate,
        )  # fmt: skip

    def _shared(self, tuning: TuningSpec) -> dict[str, Any]:
        asked, scale = self.asked, self.scale
        said: dict[str, Setting] = {**asked.training, **scale.training}
        if tuning.method in self._rates:
            said["learning_rate"] = self._rates[tuning.method]
        return {
            "task": self._words.tasks[asked.task], "limits": scale.limits, "tuning": tuning,
            "model": self._lab.model().fingerprint,
            "training": settled(Objective.CLASSIFICATION, tuning, said, self._lab.model().learner),
            "attacker": asked.attacker,
        }  # fmt: skip


def _replaced(share: float) -> str:
    return f"{percent(share, 0)} % replaced"


def compare(compared: Compared, paper: Mapping[str, str]) -> Part:
    """Accuracy and what attackers infer of authors: CAPE, DPNR, Qu et al. and RAPT."""
    asked, attacks = compared.asked, compared.scale.attacks
    arms = Axis("arm", "arm", compared.titles)
    plane = Plane(arms, Axis("setting"))
    # of several attacks the paper's, and whichever infers most
    places = {
        f"{column}, {LAYOUT.axis('attack').text(attack)}": {"column": column, "attack": attack}
        for column, attack in product(asked.attacker.secret, [attacks[0], *([STRONGEST] if len(attacks) > 1 else [])])
    }
    claims = [
        where_read(
            plane.ahead(
                f"{about}: {compared.titles[own]} is more accurate than {compared.titles[other]} where as little is "
                "inferred (Figure 4).",
                [CLEAR, own], other, where, stated=paper["ahead"],
            ),
            [{"arm": CLEAR, "column": where["column"], "attack": attack} for attack in attacks],
        )
        for (about, where), own, other in product(places.items(), asked.ours, (VECTOR, *asked.outputs))
    ]  # fmt: skip
    said = {"arms": arms}
    picture = Pareto("figure-4", LAYOUT.content("figure-4", said)["title"], plane, list(compared.titles), places)
    return LAYOUT.part(
        "figure-4", list(compared.scenarios()), said, claims=claims, derived=strongest, figures=[picture],
        further=[partial(_promises, compared)],
    )  # fmt: skip


def _promises(compared: Compared, results: Results) -> Iterable[Table]:
    """What each arm promises of one release, and of what it promises nothing."""
    asked, titles = compared.asked, compared.titles
    words = "eta · distance for each word that is drawn, between texts of the same parts of speech and words in clear"
    rows = [
        (titles[CLEAR], "nothing", "all of it"),
        *((titles[name], words, "words in clear, parts of speech, lengths, labels") for name in asked.ours),
        (titles[VECTOR], "eta · distance for each token", "lengths, labels"),
    ]
    for name, noise in asked.outputs.items():
        found = [result for cell, result in results.of(RepresentationCell) if cell.noise == noise]
        if found:
            total = text_epsilon(noise.epsilon, width=found[0].width)
            spared = spared_by_dropping(total, dropped=noise.dropped)
            less = f"; {spared:.2g} less between texts that differ in one word" if noise.dropped else ""
            told = f"epsilon {total:,.4g} between any two texts, {noise.epsilon:g} for each of {found[0].width} numbers"
            rows.append((titles[name], told + less, _BESIDE_ROWS))
    yield Table(
        title="What each promises at the paper's setting",
        columns=("arm", "promise of one release", "of what nothing is promised"),
        rows=tuple(rows),
        notes=("CAPE, DPNR: noise of scale 1 / epsilon in each number; the epsilons of a row's numbers add up.",),
    )


def compare_words(
    scenarios: Sequence[Scenario],
    words: Protected,
    attacks: Sequence[str],
    paper: Mapping[str, str],
    *,
    further: Sequence[Told] = (),
) -> Part:
    """Accuracy and what attackers read of all words: T2T, RAPT and the arms between them (Figure 9).

    Args:
        scenarios: Trainings of all arms, attacked.
        words: The arms; each of `ordered` is compared with the first of it.
        attacks: What reads words.
        paper: What it says.
        further: Tables behind those of the layout.
    """
    titles = {name: arm.title for name, arm in words.arms.items()}
    arms, replaced = Axis("arm", "arm", titles), Axis("replaced", "", lambda share: f"{percent(share, 0)} %")
    plane = Plane(arms, replaced, READ, read=True)
    places = {LAYOUT.axis("attack").text(attack): {"attack": attack} for attack in (*attacks, STRONGEST)}
    first, *others = words.ordered
    claims = [
        plane.ahead(
            f"{about}: {titles[own]} is more accurate than {titles[first]} where as little is read (Figure 9).",
            [CLEAR, own], first, where, stated=paper["ahead"],
        )
        for (about, where), own in product(places.items(), others)
    ]  # fmt: skip
    said = {"arms": arms}
    picture = Pareto("figure-9", LAYOUT.content("figure-9", said)["title"], plane, list(titles), places)
    return LAYOUT.part(
        "figure-9", scenarios, said, claims=claims, derived=partial(_read, attacks), figures=[picture], further=further
    )  # fmt: skip


def _read(attacks: Sequence[str], results: Results) -> Iterator[Measure]:
    """What whichever attack reads most reads; and of unprotected words all, for which no attack is needed."""
    for arm in results.levels("arm"):
        for share in results.levels("replaced", arm=arm):
            axes: dict[str, Level] = {"arm": arm, "replaced": share}
            if arm == CLEAR:
                yield from (Measure(READ, 1.0, attack=attack, axes=axes) for attack in (*attacks, STRONGEST))
            elif (found := most_read(results, arm=arm, replaced=share)).value is not None:
                yield Measure(
                    READ, found.value, found.error, found.n, attack=STRONGEST, independent=found.independent, axes=axes
                )  # fmt: skip
