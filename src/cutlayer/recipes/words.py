"""Recipe `words`: what is read of releases word by word, by the papers' attack and by stronger ones.

Rows without noise by depth, clipped noisy rows, token ids, and noise in single precision. Settings, and what must
hold: `configs/words.yaml`; tables and figures: `layouts/words.yaml`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any

from pydantic import Field

from cutlayer.core import Spec
from cutlayer.models import STARTER
from cutlayer.recipes.claims import above, at_least, at_most
from cutlayer.recipes.lab import Lab
from cutlayer.recipes.layouts import Layout
from cutlayer.recipes.long_table import Level
from cutlayer.recipes.options import RecipeConfig, shipped
from cutlayer.recipes.read_releases import BITS, INFILLING, LINEAR, NEAREST, POSTERIOR, Form, ReadCell
from cutlayer.recipes.recipe import Recipe, controls_table
from cutlayer.recipes.study import Part, Results, Scenario
from cutlayer.recipes.tasks import TextFile


class Public(Spec):
    """What the attacker reads beforehand."""

    mail: TextFile
    books: TextFile
    reviews: TextFile


class Scale(Spec):
    """What `--size` changes: how many texts of a file; `None` takes all."""

    mail: int | None = Field(default=None, ge=1)
    reviews: int | None = Field(default=None, ge=1)
    floats: int = Field(ge=1)
    public: int | None = Field(default=None, ge=1)


class Expected(Spec):
    """What must hold here, and what earlier studies found, in per cent or points.

    Attributes:
        unprotected: Least of the table's rows as they are.
        behind_blocks: Least by blocks at the customer.
        clipped: Least of clipped rows by the most probable token; `clipped_nearest` the most by the nearest row.
        token_ids: By the share that is replaced, the least by which the most probable token reads more.
    """

    unprotected: float
    behind_blocks: Mapping[int, float]
    behind_blocks_study: Mapping[int, float]
    clipped: float
    clipped_nearest: float
    clipped_study: float
    token_ids: Mapping[float, float]
    token_ids_study: float


class WordsConfig(RecipeConfig[Scale]):
    """`configs/words.yaml`; that file says what each field is for."""

    mail: TextFile
    reviews: TextFile
    public: Public
    depths: tuple[int, ...] = Field(min_length=1)
    map_tokens: int = Field(ge=1)
    clipped: float = Field(gt=0)
    replaced: tuple[float, ...] = Field(min_length=1)
    single_precision: tuple[float, ...] = Field(min_length=1)
    expected: Expected


RECIPE = Recipe("words", shipped("words", WordsConfig), default_model=STARTER, closing=[controls_table])
LAYOUT = Layout("words")


def _first(file: TextFile, texts: int | None) -> TextFile:
    return file if texts is None else file.model_copy(update={"texts": texts})


def _each(lab: Lab, axes: Mapping[str, Level], private: TextFile, **settings: Any) -> list[Scenario]:
    cell = ReadCell(model=lab.model(head=None).fingerprint, private=private, **settings)
    return Scenario.each(lab.options.seeds, cell, **axes)


@RECIPE.part("unprotected")
def unprotected(c: WordsConfig, lab: Lab) -> Part:
    """Rows without noise: of the table, and behind blocks."""
    scale, expected = c.at(lab.options.size), c.expected
    mail, scenarios = _first(c.mail, scale.mail), []
    if 0 in c.depths:
        scenarios += _each(lab, {"bottom": 0}, mail, form=Form.TABLE, attacks=(NEAREST,))
    for bottom in filter(None, c.depths):
        for public in (c.public.mail, c.public.books):
            known = {"public": _first(public, scale.public), "map_tokens": c.map_tokens}
            place: dict[str, Level] = {"bottom": bottom, "public": public.name}
            scenarios += _each(lab, place, mail, bottom=bottom, attacks=(LINEAR,), **known)
    claims = [
        at_least(
            f"Nearest row reads at least {expected.unprotected:g} % of the table's rows without noise.",
            "success", expected.unprotected / 100, {"bottom": 0, "attack": NEAREST}, digits=2,
        )
    ]  # fmt: skip
    for bottom, least in expected.behind_blocks.items():
        if bottom and bottom in c.depths:
            study = expected.behind_blocks_study.get(bottom)
            blocks = f"{bottom} block{'' if bottom == 1 else 's'}"
            claims.append(
                at_least(
                    f"A linear map fitted on mail reads at least {least:g} % behind {blocks} without noise.",
                    "success", least / 100, {"bottom": bottom, "public": c.public.mail.name},
                    stated="" if study is None else f"{study:g} %", digits=2,
                )
            )  # fmt: skip
    return LAYOUT.part("unprotected", scenarios, claims=claims)


@RECIPE.part("clipped")
def clipped(c: WordsConfig, lab: Lab) -> Part:
    """Noisy rows clipped to the table's largest norm."""
    scale, expected, at = c.at(lab.options.size), c.expected, f"clipped rows at eta {c.clipped:g}"
    settings = {"form": Form.CLIPPED, "attacks": (NEAREST, POSTERIOR), "public": _first(c.public.mail, scale.public)}
    scenarios = _each(lab, {"eta": c.clipped}, _first(c.mail, scale.mail), eta=c.clipped, **settings)
    claims = [
        at_most(
            f"Nearest row reads at most {expected.clipped_nearest:g} % of {at}.",
            "success", expected.clipped_nearest / 100, {"attack": NEAREST}, digits=2,
        ),
        at_least(
            f"The most probable token reads at least {expected.clipped:g} % of {at}.",
            "success", expected.clipped / 100, {"attack": POSTERIOR}, stated=f"{expected.clipped_study:g} %", digits=2,
        ),
    ]  # fmt: skip
    return LAYOUT.part("clipped", scenarios, claims=claims)


@RECIPE.part("token-ids")
def token_ids(c: WordsConfig, lab: Lab) -> Part:
    """Text-to-text, at the etas that replace some shares of tokens."""
    scale, private = c.at(lab.options.size), _first(c.reviews, c.at(lab.options.size).reviews)
    known, attacks = _first(c.public.reviews, scale.public), (NEAREST, POSTERIOR, INFILLING)
    points = lab.etas(lab.tokens(private), c.replaced, about=private.model_dump_json(), model=lab.model(head=None))
    scenarios, claims = [], []
    for point in points:
        scenarios += _each(lab, {"eta": point.eta}, private, eta=point.eta, attacks=attacks, public=known)
        if (least := c.expected.token_ids.get(point.wanted)) is not None:
            said = "The most probable token reads more than the nearest row where"
            by = f", by at least {least:g} points." if least else "."
            claims.append(
                above(
                    f"{said} {100 * point.wanted:g} % are replaced{by}",
                    "beyond", {"attack": POSTERIOR, "eta": point.eta}, least=least / 100,
                    stated=f"+{c.expected.token_ids_study:g} points" if least else "",
                )
            )  # fmt: skip
    details = {"calibrated": [vars(point) for point in points]}
    return LAYOUT.part("token-ids", scenarios, {"strength": _strength}, claims=claims, details=details)


def _strength(results: Results) -> Iterable[str]:
    eta = tuple(results.levels("eta")[:1])
    draws, candidates, own = (
        results.number(metric, attack=POSTERIOR, eta=eta) for metric in ("channel draws", "candidates", "own text")
    )
    if draws.value is not None and candidates.value is not None:
        yield (
            f"The channel was fitted on {draws.value:,.0f} draws of the attacker's own; {candidates.value:g} tokens "
            f"were considered in each place. Weight of the prior and draws that the formula is worth were chosen on "
            f"{own.n or 0:,.0f} tokens of the attacker's text."
        )


@RECIPE.part("floats")
def floats(c: WordsConfig, lab: Lab) -> Part:
    """Rows with noise in single precision, and the road's own on its lattice."""
    few, scenarios = _first(c.mail, c.at(lab.options.size).floats), []
    for eta, form in product(c.single_precision, (Form.SINGLE, Form.ROAD)):
        scenarios += _each(lab, {"eta": eta, "form": form.value}, few, form=form, eta=eta, attacks=(NEAREST, BITS))
    return LAYOUT.part("floats", scenarios)
