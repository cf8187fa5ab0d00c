"""`cutlayer conformance`: whether a mechanism does what it states."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from cutlayer.cli.command import Part, settings_command
from cutlayer.cli.options import DATA_HELP, AsJson, Connection, LocalModel
from cutlayer.cli.output import Output
from cutlayer.core.setting import Shown, setting
from cutlayer.core.spec import SettingsSpec
from cutlayer.customer.columns import TEXTS, DataSpec

if TYPE_CHECKING:
    from cutlayer.customer import Progress
    from cutlayer.reports import Conformance, TokenSample

DRAWS, TABLE = "Draws", "Tokens replaced"


class Draws(SettingsSpec):
    """What is drawn of a mechanism, and held against what it states."""

    etas: tuple[float, ...] = setting(
        (),
        help="Eta of some of the draws. Repeatable. Default: 3 and 50, which take turns.",
        shown=Shown(DRAWS, flags=("--eta",), metavar="NUMBER"),
    )
    widths: tuple[int, ...] = setting(
        (),
        help="Coordinates of a row. Repeatable. Default: 1, 2, 3, 8 and 384; small ones see most.",
        shown=Shown(DRAWS, flags=("--width",), metavar="N"),
    )
    samples: int = setting(
        4000, help="Draws at each width; a hundred times as many for the privacy loss.", shown=Shown(DRAWS)
    )
    seed: int | None = setting(
        None,
        help="Repeat a check: the number it printed. What is drawn is not released.",
        shown=Shown(DRAWS, metavar="N", default="a new one"),
        ge=0,
    )
    replacement: bool = setting(True, help="Measure over eta how many tokens are replaced.", shown=Shown(TABLE))
    data: str | None = setting(
        None, help=f"Whose tokens. {DATA_HELP}", shown=Shown(TEXTS, metavar="FILE", default="the sample texts")
    )
    out: Path | None = setting(None, help="Write the result there too, as JSON.", shown=Shown(DRAWS, metavar="FILE"))


@settings_command(config=False)
def conformance(
    name: Annotated[str, typer.Argument(metavar="NAME", help="d-chi, snd-code, or the name of an installed plug-in.")],
    drawn: Draws,
    columns: Annotated[dict[str, Any], Part(DataSpec, ("text_column",))],
    local: LocalModel,
    folder: Annotated[dict[str, Any], Part(Connection, ("home",))],
    as_json: AsJson = False,
) -> None:
    """Check whether a mechanism, your own included, does what it states.

    Radius, directions and density of its draws are compared with its stated density, that with its claim, and a lower
    bound of the privacy loss that draws show with exp(claimed eta · distance). With d-chi, --draw exponential is
    checked, too, exactly. A true mechanism fails a check with probability 1e-6 at most. Where a check fails,
    the command ends with exit code 11. Passing proves nothing: other events may show more.
    """
    output = Output(as_json=as_json)
    from cutlayer.core import ConformanceError
    from cutlayer.privacy import find_mechanism, generator
    from cutlayer.privacy.randomness import KEY_BYTES
    from cutlayer.reports import check_mechanism, write_json
    from cutlayer.reports.conformance import ETAS, WIDTHS

    mechanism = find_mechanism(name)
    seed = secrets.randbits(63) if drawn.seed is None else drawn.seed
    with output.progress() as progress:
        tokens = (
            _tokens(drawn.data, DataSpec(**columns).text_column, local.model, folder.get("home"), progress)
            if drawn.replacement
            else None
        )
        found = check_mechanism(
            mechanism,
            rng=generator(seed.to_bytes(KEY_BYTES, "little")),
            etas=drawn.etas or ETAS,
            widths=drawn.widths or WIDTHS,
            samples=drawn.samples,
            tokens=tokens,
            progress=progress,
        )
    content = {**found.model_dump(mode="json"), "failed": found.failed, "seed": seed}
    if drawn.out is not None:
        write_json(drawn.out, content)
    _show(output, found)
    output.show(f"- To repeat it: --seed {seed}")
    if drawn.out is not None:
        output.show(f"- {drawn.out}")
    output.result(content)
    try:
        found.require()
    except ConformanceError as error:  # what was found is the result, and an error would stand in its place
        output.say(str(error))
        raise typer.Exit(error.exit_code) from error


def _tokens(data: str | None, text_column: str, model: str, home: Path | None, progress: Progress) -> TokenSample:
    import torch

    from cutlayer import customer
    from cutlayer.core import Cut
    from cutlayer.customer.handout import local_archive
    from cutlayer.data import read_dataset, sample_path, tokenise
    from cutlayer.privacy import NeighbourSearch
    from cutlayer.reports import TokenSample

    stage = "read texts and table"
    progress.update(stage, 0, 1)
    texts = read_dataset(sample_path("train") if data is None else data, text_column=text_column)
    archive = local_archive(customer.Home(home), model, Cut(bottom=0))
    tokens = tokenise(texts, archive.tokenizer, max_content=archive.template.max_content(texts.segments))
    table = cast(torch.Tensor, archive.table)  # a cut with a bottom has one
    search = NeighbourSearch(table, archive.candidates)
    progress.update(stage, 1, 1)
    return TokenSample(search, torch.cat([side.values for side in tokens.segments]))


def _show(output: Output, found: Conformance) -> None:
    words = {True: "as stated", False: "NOT AS STATED", None: "not asked"}
    whose = "cutlayer" if found.origin is None else found.origin
    output.table(
        f"Mechanism {found.mechanism} of {whose}",
        ("check", "answer", "what was found"),
        [(check.name, words[check.passed], f"{check.asks} {check.found}") for check in found.checks],
        lines=True,
    )
    if found.replacement:
        output.table(
            "Tokens replaced, text-to-text",
            ("eta", "replaced", "95 % interval"),
            [
                (f"{point.eta:g}", f"{point.replaced:.1%}", f"{point.ci[0]:.1%} to {point.ci[1]:.1%}")
                for point in found.replacement
            ],
        )
    output.show(f"At eta {found.etas[0]:g} it promises: {found.guarantee}")
    if not found.failed:
        output.show("No check fails. That is no proof of the promise: events that were not looked at may show more.")


def register(app: typer.Typer) -> None:
    """Adds the command to the main app."""
    app.command(epilog="Example: cutlayer conformance d-chi --out conformance.json")(conformance)
