"""`cutlayer protect` and `cutlayer restore`: texts without their entities, and answers with them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cutlayer.cli.command import Part, settings_command
from cutlayer.cli.files import check_kind, check_not_input, rows_file
from cutlayer.cli.options import AsJson, Connection, TableFiles
from cutlayer.cli.output import Output, fields
from cutlayer.core.setting import Shown, setting
from cutlayer.core.spec import SettingsSpec
from cutlayer.customer.columns import JOB, TEXTS, DataSpec
from cutlayer.customer.settings import FinetuneSpec
from cutlayer.privacy.spec import Words

DRAW = ("eta", "candidates", "draw", "space", "tagger", "vocabulary", "noise")


class EntityColumns(SettingsSpec):
    """Where entities are."""

    entities_column: str | None = setting(
        None,
        help="The column with each text's entities: a list of strings (JSON lines, Parquet), or one string.",
        shown=Shown(TEXTS, metavar="COLUMN", default="names and numbers that the tagger finds"),
    )
    webnlg: bool = setting(
        False,
        help="The rows are facts with all texts that state them (triples, references, category), as WebNLG has them; "
        "entities are subjects and objects.",
        shown=Shown(TEXTS, source="RAPT §V-A1"),
    )


@settings_command
def protect(
    files: TableFiles,
    columns: Annotated[dict[str, Any], Part(DataSpec, ("text_column",))],
    entities: EntityColumns,
    draw: Annotated[dict[str, Any], Part(Words, DRAW)],
    settings: Annotated[dict[str, Any], Part(FinetuneSpec, ("privacy_budget", "unsafe_noise_seed"))],
    folder: Annotated[dict[str, Any], Part(Connection, ("home",))],
    as_json: AsJson = False,
) -> None:
    """Put drawn words in the places of entities, once for all of these texts, and keep what puts them back.

    Nothing is sent. The words of entities are charged in the ledger; all other words are written as they are.
    """
    check_kind(files.output)
    check_not_input(files.input, files.output)
    from cutlayer.customer import Client
    from cutlayer.data import read_webnlg
    from cutlayer.data.read import rows_with

    output = Output(as_json=as_json)
    column = DataSpec(**columns).text_column
    client, privacy = Client(**folder), Words(**draw, words=("all",))
    with rows_file(files.output) as write:
        if entities.webnlg:
            facts = read_webnlg(files.input)
            rows, made = client.protect(
                [(each.source, *each.references) for each in facts],
                [each.entities for each in facts],
                privacy=privacy,
                **settings,
            )
            lines = ((row[0], row[1:], each.category, made.job) for row, each in zip(rows, facts, strict=True))
            write(("source", "references", "category", JOB), lines)
        else:
            own = entities.entities_column
            given = list(rows_with(files.input, [column, *([own] if own else [])]))
            named = [_listed(row[own]) for row in given] if own else None
            texts, made = client.protect([str(row[column]) for row in given], named, privacy=privacy, **settings)
            write((column, JOB), ((text, made.job) for text in texts))
    output.show(
        f"{made.replaced} of {made.drawn} words of entities became another word at eta {privacy.eta:g}; they stand in "
        f"{made.mentions} places of {files.output}"
    )
    total = made.mentions + sum(made.clear.values())
    shares = ", ".join(f"{kind} {count / total:.1%}" for kind, count in made.clear.items())
    output.show(f"- {made.clear_share:.1%} of {total} words stand outside entities, and are as they were: {shares}")
    output.show(f"- Job {made.job}: `cutlayer restore` puts entities back into answers")
    told = {name: value for name, value in fields(made).items() if name != "words"}  # which is the map
    output.result({"output": str(files.output), "eta": privacy.eta, **told})


def _listed(entities: Any) -> list[str]:
    """A text's entities; a cell with nothing in it is none."""
    return ([entities] if entities else []) if isinstance(entities, str) else list(map(str, entities or ()))


class Answers(SettingsSpec):
    """Texts of one job."""

    job: str | None = setting(
        None,
        help="The job, as `protect` named it.",
        shown=Shown(TEXTS, metavar="JOB", default="the one in the column job"),
    )


@settings_command
def restore(
    files: TableFiles,
    columns: Annotated[dict[str, Any], Part(DataSpec, ("text_column",))],
    answers: Answers,
    folder: Annotated[dict[str, Any], Part(Connection, ("home",))],
    as_json: AsJson = False,
) -> None:
    """Put the entities back into answers to texts that `protect` wrote. Nothing is sent."""
    check_kind(files.output)
    check_not_input(files.input, files.output)
    from cutlayer.core import DataError
    from cutlayer.customer import Client
    from cutlayer.data.read import rows_with

    output = Output(as_json=as_json)
    column = DataSpec(**columns).text_column
    rows = list(rows_with(files.input, [column, *([] if answers.job else [JOB])]))
    jobs = sorted({str(row[JOB]) for row in rows if JOB in row} | ({answers.job} if answers.job else set()))
    if len(jobs) != 1:
        raise DataError(
            f"The answers in {files.input} are of {len(jobs)} jobs, and one map has one job's entities.",
            remedy="Restore the answers of each job by themselves, with its --job.",
        )
    found = Client(**folder).entity_map(jobs[0])
    with rows_file(files.output) as write:
        write((column,), ((found.restore(str(row[column])),) for row in rows))
    output.show(f"{len(rows)} answers with the entities of job {found.job}: {files.output}")
    output.result({"output": str(files.output), "answers": len(rows), "job": found.job})


def register(app: typer.Typer) -> None:
    """Adds the commands to the main app."""
    app.command(
        epilog="Example: cutlayer protect --input prompts.jsonl --entities-column names --output safe.jsonl --eta 40"
    )(protect)
    app.command(epilog="Example: cutlayer restore --input answers.jsonl --output restored.jsonl")(restore)
