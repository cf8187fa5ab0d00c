"""Recipe `words`: what is read of releases word by word, by the papers' attack and by stronger ones.

Rows without noise by depth, clipped noisy rows, token ids, and noise in single precision. Settings, and what must
hold: `configs/words.yaml`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pydantic import Field

from cutlayer.core import Spec
from cutlayer.models import STARTER
from cutlayer.recipes.claims import above, at_least, at_most
from cutlayer.recipes.figures import Figure
from cutlayer.recipes.lab import Lab
from cutlayer.recipes.options import RecipeConfig, shipped
from cutlayer.recipes.read_releases import BITS, INFILLING, LINEAR, NEAREST, POSTERIOR, Form, ReadCell
from cutlayer.recipes.recipe import Recipe, controls_table
from cutlayer.recipes.study import Part, Results, Scenario
from cutlayer.recipes.tables import Axis, Column, Pivot, Show, count, error, eta_text, plain, points, share, trials
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
    """What earlier studies found, and what must hold here, in per cent or points.

    Attributes:
        unprotected: Least of the table's rows as they are.
        behind_blocks: Least by blocks at the customer.
        behind_blocks_study: What the study found, by blocks.
        clipped: Least of clipped rows by the most probable token.
        clipped_nearest: Most of clipped rows by the nearest row.
        clipped_study: What the study found.
        token_ids: By the share that is replaced, the least by which the most probable token reads more.
        token_ids_study: What the study found.
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

ATTACK = Axis(
    "attack",
    show={
        NEAREST: "nearest row",
        LINEAR: "linear map",
        POSTERIOR: "most probable token",
        INFILLING: "masked-LM infill",
        BITS: "float support",
    },
)
ETA = Axis("eta", show=eta_text)
FITTED = Axis("public", "fitted on")


def _first(file: TextFile, texts: int | None) -> TextFile:
    return file if texts is None else file.model_copy(update={"texts": texts})


def _blocks(count: int) -> str:
    return "the table's rows" if not count else f"behind {count} block{'' if count == 1 else 's'}"


@RECIPE.part("unprotected")
def unprotected(c: WordsConfig, lab: Lab) -> Part:
    """Rows without noise: of the table, and behind blocks."""
    scale, model = c.at(lab.options.size), lab.model(head=None).fingerprint
    mail = _first(c.mail, scale.mail)
    scenarios = Scenario.each(
        lab.options.seeds,
        ReadCell(model=model, private=mail, form=Form.TABLE, attacks=(NEAREST,)),
        bottom=0,
    ) if 0 in c.depths else []  # fmt: skip
    for bottom in filter(None, c.depths):
        for public in (c.public.mail, c.public.books):
            known = _first(public, scale.public)
            scenarios += Scenario.each(
                lab.options.seeds,
                ReadCell(
                    model=model, private=mail, bottom=bottom, attacks=(LINEAR,), public=known,
                    map_tokens=c.map_tokens,
                ),
                bottom=bottom,
                public=public.name,
            )  # fmt: skip
    least, study = c.expected.behind_blocks, c.expected.behind_blocks_study
    return Part(
        "Rows without noise, by blocks at the customer",
        scenarios,
        tables=[
            Pivot(
                "Rows without noise, by blocks at the customer",
                lines=(Axis("bottom", "blocks"), ATTACK, FITTED),
                columns=(
                    Column("fitted on, tokens", "fitted", show=count),
                    Column("read, %", "success", show=share(2)),
                    Column("of tokens never fitted on, %", "unseen"),
                    Column("n", "success", show=trials),
                    Column("seconds", "seconds", show=plain(0)),
                ),
                notes=("In brackets: 95 % over resampled texts.",),
            )
        ],
        figures=[
            Figure(
                name="behind-blocks",
                title="Tokens read behind blocks without noise, by a linear map",
                x=Axis("bottom", "blocks at the customer"),
                y="tokens read, %",
                where={"attack": LINEAR, "metric": "success"},
                colour=FITTED,
            ),
            Figure(
                name="behind-blocks-unseen",
                title="Tokens read that the map was never fitted on",
                x=Axis("bottom", "blocks at the customer"),
                y="tokens read, %",
                where={"attack": LINEAR, "metric": "unseen"},
                colour=FITTED,
            ),
        ],
        claims=[
            at_least(
                f"Nearest row reads at least {c.expected.unprotected:g} % of the table's rows without noise.",
                "success", c.expected.unprotected / 100, {"bottom": 0, "attack": NEAREST}, digits=2,
            ),
            *(
                at_least(
                    f"A linear map fitted on mail reads at least {least[bottom]:g} % {_blocks(bottom)} without noise.",
                    "success", least[bottom] / 100, {"bottom": bottom, "public": c.public.mail.name},
                    stated=f"{study[bottom]:g} %" if bottom in study else "", digits=2,
                )
                for bottom in c.depths
                if bottom and bottom in least
            ),
        ],
    )  # fmt: skip


@RECIPE.part("clipped")
def clipped(c: WordsConfig, lab: Lab) -> Part:
    """Noisy rows clipped to the table's largest norm."""
    scale, model = c.at(lab.options.size), lab.model(head=None).fingerprint
    expected, at = c.expected, f"clipped rows at eta {c.clipped:g}"
    return Part(
        "Noisy rows clipped to the table's largest norm",
        Scenario.each(
            lab.options.seeds,
            ReadCell(
                model=model, private=_first(c.mail, scale.mail), form=Form.CLIPPED, eta=c.clipped,
                attacks=(NEAREST, POSTERIOR), public=_first(c.public.mail, scale.public),
            ),
            eta=c.clipped,
        ),
        tables=[
            Pivot(
                "Noisy rows clipped to the table's largest norm",
                lines=(ETA, ATTACK),
                columns=(
                    Column("read, %", "success", show=share(2)),
                    Column("by chance, %", "chance", show=share(2)),
                    Column("n", "success", show=trials),
                ),
                notes=(
                    "The road does not clip yet: these rows were made with the attacker's own arithmetic. Clipping "
                    "hides their norm, which the likelihood takes into account and distance does not.",
                ),
            )
        ],
        claims=[
            at_most(
                f"Nearest row reads at most {expected.clipped_nearest:g} % of {at}.",
                "success", expected.clipped_nearest / 100, {"attack": NEAREST}, digits=2,
            ),
            at_least(
                f"The most probable token reads at least {expected.clipped:g} % of {at}.",
                "success", expected.clipped / 100, {"attack": POSTERIOR},
                stated=f"{expected.clipped_study:g} %", digits=2,
            ),
        ],
    )  # fmt: skip


@RECIPE.part("token-ids")
def token_ids(c: WordsConfig, lab: Lab) -> Part:
    """Text-to-text, at the etas that replace some shares of tokens."""
    scale, model = c.at(lab.options.size), lab.model(head=None)
    private, known = _first(c.reviews, scale.reviews), _first(c.public.reviews, scale.public)
    found = lab.etas(lab.tokens(private), c.replaced, about=private.model_dump_json(), model=model)
    scenarios = [
        scenario
        for point in found
        for scenario in Scenario.each(
            lab.options.seeds,
            ReadCell(
                model=model.fingerprint, private=private, eta=point.eta, attacks=(NEAREST, POSTERIOR, INFILLING),
                public=known,
            ),
            eta=point.eta,
        )
    ]  # fmt: skip

    def read(attack: str, metric: str, title: str, show: Show) -> Column:
        return Column(title, metric, {"attack": attack}, show)

    return Part(
        "Token ids (text-to-text): what is read beyond the nearest row",
        scenarios,
        tables=[
            Pivot(
                "Token ids (text-to-text): what is read beyond the nearest row",
                lines=(ETA,),
                columns=(
                    Column("replaced, %", "replaced"),
                    read(NEAREST, "success", "nearest row, %", share()),
                    read(POSTERIOR, "success", "most probable, %", share()),
                    read(POSTERIOR, "beyond", "paired difference, points", points()),
                    read(INFILLING, "success", "masked-LM infill, %", share()),
                    read(INFILLING, "beyond", "paired difference, points", points()),
                    read(POSTERIOR, "success", "n", trials),
                    read(POSTERIOR, "prior's weight", "prior's weight", plain()),
                    read(POSTERIOR, "formula's worth", "formula worth, draws", plain(0)),
                    read(POSTERIOR, "own text", "own text, %", error()),
                    read(POSTERIOR, "own text as released", "own text as released, %", error()),
                ),
                notes=(
                    _strength,
                    "Differences are to the nearest row, of the same releases, resampled by text: 95 % in brackets.",
                ),
            )
        ],
        claims=[
            above(
                f"The most probable token reads more than the nearest row where {100 * point.wanted:g} % are replaced"
                + (f", by at least {c.expected.token_ids[point.wanted]:g} points." if least else "."),
                "beyond", {"attack": POSTERIOR, "eta": point.eta}, least=least / 100,
                stated=f"+{c.expected.token_ids_study:g} points" if least else "",
            )
            for point in found
            if (least := c.expected.token_ids.get(point.wanted)) is not None
        ],
        details={"calibrated": [vars(point) for point in found]},
    )  # fmt: skip


def _strength(results: Results) -> Iterable[str]:
    """How strong the most probable token was made."""
    eta = results.levels("eta")[:1]
    draws, candidates, own = (
        results.number(metric, attack=POSTERIOR, eta=tuple(eta))
        for metric in ("channel draws", "candidates", "own text")
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
    few, model = _first(c.mail, c.at(lab.options.size).floats), lab.model(head=None).fingerprint
    return Part(
        "Noise in single precision: what exact bits tell",
        [
            scenario
            for eta in c.single_precision
            for form in (Form.SINGLE, Form.ROAD)
            for scenario in Scenario.each(
                lab.options.seeds,
                ReadCell(model=model, private=few, form=form, eta=eta, attacks=(NEAREST, BITS)),
                eta=eta,
                form=form.value,
            )
        ],
        tables=[
            Pivot(
                "Noise in single precision: what exact bits tell",
                lines=(
                    ETA,
                    Axis("form", "noise drawn and added in", {Form.ROAD.value: "this project's lattice"}),
                ),
                columns=(
                    Column("nearest row, %", "success", {"attack": NEAREST}),
                    Column("float support, %", "success", {"attack": BITS}),
                    Column("n", "success", {"attack": NEAREST}, trials),
                ),
                notes=("Multiples of one lattice rule no token out: against them the attack has no meaning.",),
            )
        ],
    )
