"""Recipe `snd`: Split-and-Denoise, beside two methods without a denoiser, and a control without the vendor's answer.

Settings: `configs/snd.yaml`; the paper's numbers: `papers/snd.yaml`; tables and figures: `layouts/snd.yaml`.

Ref: Split-and-Denoise, arXiv:2310.09130.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Annotated, Final

from pydantic import Field

from cutlayer.core import Spec
from cutlayer.core.denoiser import DenoiserKind
from cutlayer.models import STARTER
from cutlayer.privacy import PrivacySpec, TextToText, Vector
from cutlayer.recipes.claims import above, falls
from cutlayer.recipes.embedding_cells import DenoiserCell, EmbeddedCell, LeakCell, Spared
from cutlayer.recipes.lab import Lab
from cutlayer.recipes.layouts import Layout
from cutlayer.recipes.options import Named, RecipeConfig, named, read_yaml, shipped
from cutlayer.recipes.read_releases import NEAREST, POSTERIOR, Form
from cutlayer.recipes.recipe import Recipe
from cutlayer.recipes.study import Part, Scenario, Stated
from cutlayer.recipes.tasks import Limits, Task, TextFile
from cutlayer.vendor.settings import DenoisedReleases, DenoiserTraining

SND, TOKEMB, TEXT = "SnD", "TokEmbPriv", "Text2Text"
_ROWS: Final = "clipped rows"
"""What SnD's embeddings are called as they come."""


class Scale(Spec):
    """What `--size` changes.

    Attributes:
        texts: Of each split of a task, at most.
        released: Texts that attacks read, where an eta is looked for.
        known: Texts of the attackers' own.
        public: Texts of each public file; `None` takes all.
        steps: Of each denoiser; `batch_size` public texts of an update, each cut to `public_length` tokens.
        passes: Of networks over a task.
    """

    texts: Limits
    released: int | None = Field(default=None, ge=1)
    known: int | None = Field(default=None, ge=1)
    public: int | None = Field(default=None, ge=1)
    steps: int = Field(ge=1)
    batch_size: int = Field(default=32, ge=1)
    public_length: int | None = Field(default=None, ge=1)
    passes: int = Field(ge=1)


class SndConfig(RecipeConfig[Scale]):
    """`configs/snd.yaml`; that file says what each field is for."""

    tasks: Annotated[Mapping[str, Task], named("task")]
    public: tuple[TextFile, ...] = Field(min_length=1)
    spared: tuple[TextFile, ...] = ()
    denoiser: DenoiserKind
    etas: tuple[float, ...] = Field(min_length=1)
    low_etas: tuple[float, ...] = Field(min_length=1)
    table_1: tuple[str, ...]
    table_4: tuple[str, ...]
    table_13: tuple[str, ...]
    equal_leak: tuple[str, ...]
    leaks: tuple[float, ...] = Field(min_length=1)
    between: tuple[float, float]
    released: TextFile
    known: TextFile


RECIPE = Recipe("snd", shipped("snd", SndConfig), default_model=STARTER)
LAYOUT = Layout("snd")
PAPER = read_yaml("papers", "snd")


def _denoiser(c: SndConfig, lab: Lab, *, without_answer: bool = False) -> DenoiserCell:
    scale = c.at(lab.options.size)
    public = tuple(file.model_copy(update={"texts": scale.public}) for file in c.public)
    return DenoiserCell(
        model=lab.model(head=None).fingerprint,
        releases=DenoisedReleases(mechanism="vector", clip=True),
        training=DenoiserTraining(
            kind=c.denoiser,
            steps=scale.steps,
            batch_size=scale.batch_size,
            max_length=scale.public_length,
            without_answer=without_answer,
        ),
        public=public,
        spared=Spared(tasks=tuple(c.tasks.values()), files=c.spared),
    )


def _embedded(c: SndConfig, lab: Lab, task: str, method: str, eta: float) -> EmbeddedCell:
    """A task's embeddings by a method."""
    scale = c.at(lab.options.size)
    privacy: dict[str, PrivacySpec] = {
        SND: Vector(eta=eta, clip=True), TOKEMB: Vector(eta=eta), TEXT: TextToText(eta=eta)
    }  # fmt: skip
    return EmbeddedCell(
        model=lab.model(head=None).fingerprint,
        task=Named("task", c.tasks)[task],
        limits=scale.texts,
        passes=scale.passes,
        privacy=privacy[method],
        method=_ROWS if method == SND else method,
        denoiser=_denoiser(c, lab) if method == SND else None,
        control=_denoiser(c, lab, without_answer=True) if method == SND else None,
    )


_READ: Final = {SND: Form.CLIPPED, TOKEMB: Form.ROWS, TEXT: Form.ROAD}
"""How a method's texts leave, for those who read them."""


def _part(
    c: SndConfig, lab: Lab, part: str, tasks: tuple[str, ...], etas: tuple[float, ...], methods: tuple[str, ...]
) -> Part:
    known, scenarios = Named("task", c.tasks), []
    for task, eta, method in product(tasks, etas, methods):
        cell = _embedded(c, lab, task, method, eta)
        scenarios += Scenario.each(lab.options.seeds, cell, task=known[task].title, eta=eta)
    claims = [
        above(
            f"SnD's AUC exceeds customer-only's: {known[task].title}, eta {eta:g}.",
            "worth, AUC", {"task": known[task].title, "eta": eta, "method": SND}, refuted_below=True,
        )
        for task in tasks for eta in etas
    ]  # fmt: skip
    stated = Stated.lines(PAPER[part.replace("-", "_")], percent=(), plain=["accuracy", "AUC", "MSE", "cosine"])
    return LAYOUT.part(part, scenarios, stated=stated, claims=claims)


@RECIPE.part("table-1", also=("table-2", "table-3"))
def table_1(c: SndConfig, lab: Lab) -> Part:
    """Accuracy on downstream tasks, by eta, beside embeddings without noise."""
    return _part(c, lab, "table-1", c.table_1, c.etas, (SND,))


@RECIPE.part("table-4", also=("table-5", "table-6", "table-9", "table-10", "table-11"))
def table_4(c: SndConfig, lab: Lab) -> Part:
    """AUC, and how near embeddings come to clean ones, beside methods without a denoiser."""
    return _part(c, lab, "table-4", c.table_4, c.etas, (SND, TOKEMB, TEXT))


@RECIPE.part("table-13")
def table_13(c: SndConfig, lab: Lab) -> Part:
    """Etas at which what leaves carries nothing."""
    return _part(c, lab, "table-13", c.table_13, c.low_etas, (SND, TEXT))


@RECIPE.part("equal-leak")
def equal_leak(c: SndConfig, lab: Lab) -> Part:
    """All methods where the strongest attack reads as much of each one's own releases."""
    scale, known = c.at(lab.options.size), Named("task", c.tasks)
    released = c.released.model_copy(update={"texts": scale.released})
    own = c.known.model_copy(update={"texts": scale.known})
    scenarios: list[Scenario] = []
    found: dict[str, dict[float, float]] = {}
    _denoiser(c, lab).check(lab)  # what is missing is said before etas are looked for, which takes minutes
    for method, form in _READ.items():
        cell = LeakCell(
            model=lab.model(head=None).fingerprint, private=released, form=form, attacks=(NEAREST, POSTERIOR),
            public=own, leaks=c.leaks, between=c.between,
        )  # fmt: skip
        found[method] = {point.wanted: point.eta for point in lab.result(cell).points}
        scenarios += Scenario.each(1, cell, method=method)
    claims = []
    for task in c.equal_leak:
        title = known[task].title
        for leak in c.leaks:
            for method in _READ:
                embedded = _embedded(c, lab, task, method, found[method][leak])
                scenarios += Scenario.each(lab.options.seeds, embedded, task=title, leak=leak)
            here = {"task": title, "leak": leak}
            for metric, other in product(("AUC", "cosine"), (TOKEMB, TEXT)):
                claims.append(
                    falls(
                        f"SnD's {metric} is above {other}'s where {100 * leak:g} % of tokens are read ({title}).",
                        metric,
                        (SND, {**here, "method": SND}), (other, {**here, "method": other}),
                    )
                )  # fmt: skip
    return LAYOUT.part("equal-leak", scenarios, claims=claims)
