"""Recipe `snd`: Split-and-Denoise, beside two methods without a denoiser, and a control without the vendor's answer.

Settings: `configs/snd.yaml`; the paper's numbers: `papers/snd.yaml`; tables and figures: `layouts/snd.yaml`.

Ref: Split-and-Denoise, arXiv:2310.09130.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from typing import Any, Final

from cutlayer.core.denoiser import DenoiserKind
from cutlayer.customer import Objective
from cutlayer.models import STARTER
from cutlayer.models.denoiser import PaperDenoiser
from cutlayer.recipes import inference
from cutlayer.recipes.attribute_readings import InferenceCell
from cutlayer.recipes.claims import above, at_most, both, falls, not_below
from cutlayer.recipes.denoiser_costs import CostCell
from cutlayer.recipes.embedding_cells import (
    ACCURACY,
    AUC,
    COSINE,
    Denoised,
    DenoiserCell,
    EmbeddedCell,
    FrequentCell,
    LeakCell,
    Leaks,
    Spared,
)
from cutlayer.recipes.embedding_tasks import SCORE, AskedCell
from cutlayer.recipes.lab import Cell, Lab
from cutlayer.recipes.layouts import Layout
from cutlayer.recipes.long_table import Level
from cutlayer.recipes.options import Named, read_yaml, shipped
from cutlayer.recipes.paired import Gains
from cutlayer.recipes.rapt_baseline import RAPT, RaptCell
from cutlayer.recipes.read_releases import INFILLING, NEAREST, POSTERIOR, Form, ReadCell
from cutlayer.recipes.recipe import Recipe
from cutlayer.recipes.replacement import Source
from cutlayer.recipes.server_denoiser import SERVER, ServerDenoiserCell
from cutlayer.recipes.snd_settings import Etas, Scale, SndConfig
from cutlayer.recipes.study import Claim, Part, Scenario, Stated
from cutlayer.recipes.tasks import Task, TextFile
from cutlayer.recipes.training import settled, told_of
from cutlayer.reports.downstream import CUSTOMER_ONLY, DENOISED, DEVIATIONS
from cutlayer.vendor.denoiser_settings import DenoisedReleases, DenoiserTraining

CLIPPED, TOKEMB, TEXT = "clipped rows", "TokEmbPriv", "Text2Text"
"""What leaves, and what embeddings are called that nothing was taken out of."""
SND, LIGHT, IDS, UNCLIPPED, UNPLACED = DENOISED, "SnD, light", "SnD, ids", "SnD, no clip", "SnD, no positions"
"""Embeddings of clipped rows by the paper's denoiser and by ours, of ids, of rows as they are, and of clipped ones by
the paper's denoiser as its equations are printed."""
LIGHT_ALONE, IDS_ALONE = f"{CUSTOMER_ONLY}, light", f"{CUSTOMER_ONLY}, ids"
"""The controls of our denoiser, and of that of ids."""


_SHIPPED: Final = shipped("snd", SndConfig)
RECIPE = Recipe(
    "snd",
    _SHIPPED.model_copy(update={"deviations": (*_SHIPPED.deviations, *DEVIATIONS, *PaperDenoiser.deviations)}),
    default_model=STARTER,
    encoder_decoders=True,
)
LAYOUT = Layout("snd")
PAPER = read_yaml("papers", "snd")


@dataclass(frozen=True)
class _Releases:
    """One way in which texts leave.

    Attributes:
        form: How.
        drawing: The same for those who train denoisers of it.
    """

    form: Form
    drawing: DenoisedReleases


_RELEASES: Final[Mapping[str, _Releases]] = {
    CLIPPED: _Releases(Form.CLIPPED, DenoisedReleases(mechanism="vector", clip=True)),
    TOKEMB: _Releases(Form.ROWS, DenoisedReleases(mechanism="vector")),
    TEXT: _Releases(Form.ROAD, DenoisedReleases()),
}


@dataclass(frozen=True)
class _Method:
    """A kind of denoised embeddings.

    Attributes:
        releases: What they are made of.
        kind: Of the denoiser.
        without_answer: Whether it is the control.
        positions: Whether it is told each input's place and kind.
    """

    releases: str
    kind: DenoiserKind = "paper"
    without_answer: bool = False
    positions: bool = True


_METHODS: Final[Mapping[str, _Method]] = {
    SND: _Method(CLIPPED),
    LIGHT: _Method(CLIPPED, "light"),
    CUSTOMER_ONLY: _Method(CLIPPED, without_answer=True),
    LIGHT_ALONE: _Method(CLIPPED, "light", without_answer=True),
    IDS: _Method(TEXT),
    IDS_ALONE: _Method(TEXT, without_answer=True),
    UNCLIPPED: _Method(TOKEMB),
    UNPLACED: _Method(CLIPPED, positions=False),
}
_OF_ROWS: Final = (SND, LIGHT, CUSTOMER_ONLY, LIGHT_ALONE)
_WORTH: Final = ((CUSTOMER_ONLY, SND), (LIGHT_ALONE, LIGHT))
"""Denoisers by their controls: by how much they are better is what the vendor's answer is worth."""


@dataclass(frozen=True)
class _Cells:
    """Makes cells of a configuration at a size."""

    config: SndConfig
    lab: Lab

    @property
    def scale(self) -> Scale:
        return self.config.at(self.lab.options.size)

    @property
    def model(self) -> str:
        return self.lab.model(head=None).fingerprint

    @property
    def family(self) -> str:
        """The paper's family whose etas are taken: encoders are BERT's, decoders GPT-2's, encoder-decoders T5's."""
        return self.lab.model(head=None).family.kind.value

    @property
    def etas(self) -> Etas:
        return Named("kind of model", self.config.etas)[self.family]

    def task(self, name: str) -> Task:
        return Named("task", self.config.tasks)[name]

    def title(self, task: str) -> str:
        return self.task(task).title

    def denoiser(self, name: str) -> DenoiserCell:
        """The denoiser of a method."""
        c, scale, method = self.config, self.scale, _METHODS[name]
        return DenoiserCell(
            model=self.model,
            releases=_RELEASES[method.releases].drawing.model_copy(update={"noise": c.noise}),
            training=DenoiserTraining(
                kind=method.kind,
                steps=scale.steps,
                batch_size=scale.batch_size,
                max_length=scale.public_length,
                without_answer=method.without_answer,
                positions=method.positions,
                precision=c.precision,
            ),
            public=tuple(file.model_copy(update={"texts": scale.public}) for file in c.public),
            spared=Spared(tasks=tuple(c.tasks.values()), files=c.spared),
        )

    def embedded(self, task: str, releases: str, eta: float, methods: Sequence[str]) -> EmbeddedCell:
        """A task's embeddings as they come, and by those of some methods that are for such releases."""
        return EmbeddedCell(
            task=self.task(task),
            limits=self.scale.texts,
            passes=self.scale.passes,
            **self.way(releases, eta, methods),
        )

    def way(self, releases: str, eta: float, methods: Sequence[str]) -> dict[str, Any]:
        """The same, whatever the texts are: settings of an `EmbeddingCell`."""
        return {
            "model": self.model,
            "privacy": _RELEASES[releases].form.privacy(eta, self.config.noise),
            "method": releases,
            "denoised": tuple(
                Denoised(method=name, by=self.denoiser(name)) for name in methods if _METHODS[name].releases == releases
            ),
        }

    def rapt(self, task: str, eta: float) -> RaptCell:
        """What a prompt makes of a task's words, drawn at an eta."""
        asked, lab = self.config.rapt, self.lab
        limits = self.scale.texts.model_copy(update={"dev": asked.dev})
        return RaptCell(
            model=lab.model().fingerprint, task=self.task(task), limits=limits,
            training=settled(Objective.CLASSIFICATION, asked.tuning, asked.training, lab.model().learner),
            **told_of(lab.model(), asked.tuning, {}), arm=asked.arm, eta=eta, noise=self.config.noise,
            space=Source.of(lab.options.model, lab),
        )  # fmt: skip

    def gains(
        self,
        over: Sequence[str],
        tasks: Sequence[str],
        at: str,
        levels: Sequence[float],
        metrics: Sequence[str] = (AUC,),
        worth: Sequence[tuple[str, str]] = _WORTH,
    ) -> Gains:
        """What denoisers gain over their controls and SnD over other methods, wherever on an axis (`eta`, `leak`)."""
        places = _places([self.title(task) for task in tasks], at, levels)
        return Gains([*worth, *((other, SND) for other in over)], places, "method", metrics)

    def claims(self, gains: Gains) -> list[Claim]:
        """That something is gained."""
        return [
            above(
                f"{after}'s {metric} is above {before}'s: {_told(place)}.",
                f"{metric} gained", {**place, "method": after, "over": before}, refuted_below=True,
            )
            for metric, place, (before, after) in product(gains.metrics, gains.places, gains.pairs)
        ]  # fmt: skip

    @property
    def released(self) -> TextFile:
        """Texts that leave to be read."""
        return self.config.released.model_copy(update={"texts": self.scale.released})

    @property
    def known(self) -> TextFile:
        """What attackers have."""
        return self.config.known.model_copy(update={"texts": self.scale.known})

    def part(
        self,
        part: str,
        tasks: Sequence[str],
        etas: Sequence[float],
        releases: Sequence[str],
        methods: Sequence[str],
        gains: Gains,
        *,
        more: Sequence[Scenario] = (),
    ) -> Part:
        """Tasks by eta, and what is gained there; `more` stands beside them, and is done last."""
        scenarios = list[Scenario]()
        for task, eta, left in product(tasks, etas, releases):
            cell = self.embedded(task, left, eta, methods)
            scenarios += Scenario.each(self.lab.options.seeds, cell, task=self.title(task), eta=eta)
        scenarios += more
        lines = PAPER.get(part.replace("-", "_"), {}).get(self.family, ())
        stated = Stated.lines(lines, percent=(), plain=["accuracy", "AUC", "MSE", "cosine"])
        return LAYOUT.part(part, scenarios, stated=stated, claims=self.claims(gains), derived=gains)


def _places(titles: Sequence[str], at: str, levels: Sequence[float]) -> list[dict[str, Level]]:
    return [{"task": title, at: level} for title, level in product(titles, levels)]


def _told(place: Mapping[str, Level]) -> str:
    return ", ".join(level if isinstance(level, str) else f"{axis} {level:g}" for axis, level in place.items())


@RECIPE.part("denoisers")
def denoisers(c: SndConfig, lab: Lab) -> Part:
    """What denoisers learnt, by the vendor's own measurement on public text that was kept back."""
    cells = _Cells(c, lab)
    return LAYOUT.part(
        "denoisers", [scenario for name in _METHODS for scenario in Scenario.each(1, cells.denoiser(name), method=name)]
    )


@RECIPE.part("table-1", also=("table-2", "table-3"))
def table_1(c: SndConfig, lab: Lab) -> Part:
    """Accuracy on downstream tasks, by eta, beside embeddings without noise."""
    cells = _Cells(c, lab)
    tasks, etas = c.table_1, cells.etas.accuracy
    gains = cells.gains((CLIPPED,), tasks, "eta", etas, (ACCURACY,))
    frequent = [
        Scenario(FrequentCell(task=c.tasks[task], limits=cells.scale.texts), {"task": cells.title(task)})
        for task in tasks
    ]
    return cells.part("table-1", tasks, etas, (CLIPPED,), _OF_ROWS, gains, more=frequent)


@RECIPE.part("table-4", also=("table-5", "table-6", "table-9", "table-10", "table-11"))
def table_4(c: SndConfig, lab: Lab) -> Part:
    """AUC, and how near embeddings come to clean ones, beside methods without a denoiser."""
    cells = _Cells(c, lab)
    tasks, etas = c.table_4, cells.etas.auc
    gains = cells.gains((TOKEMB, TEXT, RAPT), tasks, "eta", etas)
    more = [
        scenario
        for task, eta in product(tasks, etas)
        for scenario in Scenario.each(lab.options.seeds, cells.rapt(task, eta), task=cells.title(task), eta=eta)
    ]
    return cells.part("table-4", tasks, etas, tuple(_RELEASES), _OF_ROWS, gains, more=more)


@RECIPE.part("table-13")
def table_13(c: SndConfig, lab: Lab) -> Part:
    """Etas at which what leaves carries nothing."""
    cells = _Cells(c, lab)
    tasks, etas = c.table_13, c.low_etas
    gains = cells.gains((CLIPPED, TEXT), tasks, "eta", etas)
    return cells.part("table-13", tasks, etas, (CLIPPED, TEXT), _OF_ROWS, gains)


@RECIPE.part("figure-2")
def figure_2(c: SndConfig, lab: Lab) -> Part:
    """Tokens that are read of clipped rows by eta: by the paper's attacker, and by the strongest."""
    cells, scenarios, claims = _Cells(c, lab), list[Scenario](), []
    for eta in cells.etas.read:
        cell = ReadCell(
            model=cells.model, private=cells.released, public=cells.known, form=Form.CLIPPED, eta=eta,
            noise=c.noise, attacks=(NEAREST, POSTERIOR),
        )  # fmt: skip
        scenarios += Scenario.each(lab.options.seeds, cell, eta=eta)
        here = {"eta": eta}
        claims.append(
            falls(
                f"The strongest attack reads more of clipped rows than the paper's at eta {eta:g}.", "success",
                ("strongest", {**here, "attack": POSTERIOR}), ("nearest row", {**here, "attack": NEAREST}),
            )
        )  # fmt: skip
    return LAYOUT.part("figure-2", scenarios, claims=claims)


@RECIPE.part("figure-4")
def figure_4(c: SndConfig, lab: Lab) -> Part:
    """Attributes of authors, inferred of clipped rows by eta."""
    asked, these, size = c.figure_4, inference.RECIPE.config, lab.options.size
    scenarios, claims = list[Scenario](), []
    etas = (*_Cells(c, lab).etas.inferred, math.inf)
    for posts, attack in product(asked.posts, asked.attacks):
        where: dict[str, Level] = {"posts": posts.name, "column": asked.column}
        for eta in etas:
            cell = InferenceCell(
                model=lab.model().fingerprint, posts=posts, entities=these.entities, attack=attack, form=Form.CLIPPED,
                eta=eta, noise=c.noise, column=asked.column, labelled=max(these.at(size).labelled),
                scale=these.at(size),
            )  # fmt: skip
            scenarios += Scenario.each(lab.options.seeds, cell, eta=eta, **where)
        claims.append(
            falls(
                f"{attack} infers less of {posts.name} at eta {etas[0]:g} than without noise.", "success",
                ("no noise", {**where, "attack": attack, "eta": math.inf}),
                (f"eta {etas[0]:g}", {**where, "attack": attack, "eta": etas[0]}),
            )
        )  # fmt: skip
    return LAYOUT.part("figure-4", scenarios, claims=claims)


@RECIPE.part("figure-6")
def figure_6(c: SndConfig, lab: Lab) -> Part:
    """A denoiser where noise is not known, at the vendor."""
    cells, scenarios = _Cells(c, lab), list[Scenario]()
    etas = cells.etas.auc
    for task, eta in product(c.figure_6, etas):
        cell = ServerDenoiserCell(
            beside=cells.denoiser(SND), task=cells.task(task), limits=cells.scale.texts,
            passes=cells.scale.passes, eta=eta,
        )  # fmt: skip
        scenarios += Scenario.each(lab.options.seeds, cell, task=cells.title(task), eta=eta)
    gains = cells.gains((SERVER,), c.figure_6, "eta", etas)
    return cells.part("figure-6", c.figure_6, etas, (CLIPPED,), _OF_ROWS, gains, more=scenarios)


@RECIPE.part("figure-7")
def figure_7(c: SndConfig, lab: Lab) -> Part:
    """Rows clipped, and as they are."""
    cells, tasks = _Cells(c, lab), c.figure_7
    etas = cells.etas.auc
    gains = cells.gains((UNCLIPPED,), tasks, "eta", etas)
    return cells.part("figure-7", tasks, etas, (CLIPPED, TOKEMB), (*_OF_ROWS, UNCLIPPED), gains)


@RECIPE.part("tasks")
def tasks(c: SndConfig, lab: Lab) -> Part:
    """What embeddings are asked for elsewhere: classes, pairs, clusters, search."""
    cells, scenarios = _Cells(c, lab), list[Scenario]()
    for asked, eta, releases in product(c.asked, cells.etas.auc, _RELEASES):
        cell = AskedCell(asked=asked, limits=cells.scale.texts, **cells.way(releases, eta, _OF_ROWS))
        scenarios += Scenario.each(lab.options.seeds, cell, task=asked.task.title, kind=asked.kind, eta=eta)
    places = _places([asked.task.title for asked in c.asked], "eta", cells.etas.auc)
    gains = Gains([*_WORTH, (SND, LIGHT)], places, "method", (SCORE,))
    return LAYOUT.part("tasks", scenarios, claims=cells.claims(gains), derived=gains)


@RECIPE.part("table-12", also=("figure-5",))
def table_12(c: SndConfig, lab: Lab) -> Part:
    """What a text costs: time, memory, and bytes on the wire, by shape of model."""
    scenarios, claims = list[Scenario](), []
    for shape in c.at(lab.options.size).shapes:
        scenarios += Scenario.each(1, CostCell(shape=shape), shape=shape)
        claims.append(
            at_most(
                f"The paper's denoiser takes no more time than the whole model at home: {shape}.",
                "of the time", 1.0, {"shape": shape, "method": SND},
            )
        )  # fmt: skip
    stated = Stated.lines(PAPER["table_12"], percent=(), plain=["both, seconds", "sent"])
    return LAYOUT.part("table-12", scenarios, stated=stated, claims=claims)


@RECIPE.part("equal-leak")
def equal_leak(c: SndConfig, lab: Lab) -> Part:
    """All methods where the strongest attack reads as much of each one's own releases."""
    cells, scenarios = _Cells(c, lab), list[Scenario]()
    # what is missing is said before etas are looked for, which takes minutes
    for task in c.equal_leak:
        cells.embedded(task, CLIPPED, math.inf, (SND,)).check(lab)
    leaks = {
        releases: LeakCell(
            model=cells.model, private=cells.released, public=cells.known, form=each.form, noise=c.noise,
            attacks=(NEAREST, POSTERIOR), leaks=c.leaks, between=cells.etas.between,
            further=(INFILLING,) if each.form is Form.ROAD else (),
        )
        for releases, each in _RELEASES.items()
    }  # fmt: skip
    for releases, cell in leaks.items():
        scenarios += Scenario.each(1, cell, method=releases)
    read: Mapping[Cell, Leaks] = lab.run(leaks.values()).results  # of what failed, the run of all cells tells
    found = {
        releases: {point.wanted: point.eta for point in read[cell].points}
        for releases, cell in leaks.items() if cell in read
    }  # fmt: skip
    gains = cells.gains((TOKEMB, TEXT), c.equal_leak, "leak", c.leaks, worth=(*_WORTH, (IDS_ALONE, IDS)))
    not_worse = Gains([(SND, LIGHT), (SND, IDS)], gains.places, "method", gains.metrics)
    nearer = Gains([(TOKEMB, SND), (TEXT, SND)], gains.places, "method", (COSINE,))
    for task, leak, releases in product(c.equal_leak, c.leaks, found):
        embedded = cells.embedded(task, releases, found[releases][leak], (*_OF_ROWS, IDS, IDS_ALONE))
        scenarios += Scenario.each(lab.options.seeds, embedded, task=cells.title(task), leak=leak)
    return LAYOUT.part(
        "equal-leak", scenarios, claims=[*cells.claims(gains), *_of_equal_leak(c, gains, not_worse)],
        derived=lambda results: chain(gains(results), not_worse(results), nearer(results)),
    )  # fmt: skip


def _of_equal_leak(c: SndConfig, gains: Gains, not_worse: Gains) -> Iterator[Claim]:
    """That SnD is above the others on three tasks of four at each leak, and that ours are nowhere below it."""
    for leak, other in product(c.leaks, (TOKEMB, TEXT)):
        places = [place for place in gains.places if place["leak"] == leak]
        least = math.ceil(0.75 * len(places))
        for metric in (AUC, COSINE):
            said = f"SnD's {metric} is above {other}'s on {least} of {len(places)} tasks: leak {leak:g}."
            each = {
                str(place["task"]): above(
                    said, f"{metric} gained", {**place, "method": SND, "over": other}, refuted_below=True
                )
                for place in places
            }
            yield both(said, *each.values(), names=tuple(each), least=least)
    for place, (before, after) in product(not_worse.places, not_worse.pairs):
        said = f"{after}'s AUC is not below {before}'s: {_told(place)}."
        yield not_below(said, f"{AUC} gained", {**place, "method": after, "over": before})
