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
from cutlayer.customer.columns import JOB, ROW, TEXTS, DataSpec
from cutlayer.customer.settings import FinetuneSpec
from cutlayer.privacy.spec import Words

DRAW = ("eta", "candidates", "draw", "space", "tagger", "vocabulary", "noise")


class EntityColumns(SettingsSpec):
    """Where entities are."""

    entities_column: str | None = setting(
        None,
        help="The column with each text's entities: a list of strings (JSON lines, Parquet), or one string. An empty "
        "cell means that a text has none.",
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
    columns: Annotated[
        dict[str, Any], Part(DataSpec, ("text_column", "text_pair_column", "target_column", "label_column"))
    ],
    entities: EntityColumns,
    draw: Annotated[dict[str, Any], Part(Words, DRAW)],
    settings: Annotated[dict[str, Any], Part(FinetuneSpec, ("privacy_budget", "unsafe_noise_seed"))],
    folder: Annotated[dict[str, Any], Part(Connection, ("home",))],
    as_json: AsJson = False,
) -> None:
    """Put drawn words in the places of entities, once for all of these texts, and keep what puts them back.

    Nothing is sent. The words of entities are charged in the ledger; all other words are written as they are. Second
    and target texts, and labels, are written where their columns are named; no other column is.
    """
    check_kind(files.output)
    check_not_input(files.input, files.output)
    from cutlayer.customer import Client
    from cutlayer.data import read_webnlg
    from cutlayer.data.read import rows_with, text_in

    output = Output(as_json=as_json)
    texts, label = _kept(columns)
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
            stated = enumerate(zip(rows, facts, strict=True))
            lines = ((row[0], row[1:], each.category, made.job, place) for place, (row, each) in stated)
            write(("source", "references", "category", JOB, ROW), lines)
        else:
            own = entities.entities_column
            given = list(rows_with(files.input, [*texts, *label, *([own] if own else [])]))
            source, numbered = str(files.input), list(enumerate(given, start=1))
            named = [_listed(row[own], f"{source}: row {number}") for number, row in numbered] if own else None
            asked = [tuple(text_in(source, row, each, number) for each in texts) for number, row in numbered]
            rows, made = client.protect(asked, named, privacy=privacy, **settings)
            kept = ([row[each] for each in label] for row in given)
            together = enumerate(zip(rows, kept, strict=True))
            lines = ((*row, *labels, made.job, place) for place, (row, labels) in together)
            write((*texts, *label, JOB, ROW), lines)
    output.show(
        f"{made.replaced} of {made.drawn} words of entities became another word at eta {privacy.eta:g}; they stand in "
        f"{made.mentions} places of {files.output}"
    )
    total = made.mentions + sum(made.clear.values())
    shares = ", ".join(f"{kind} {count / total:.1%}" for kind, count in made.clear.items())
    output.show(f"- {made.clear_share:.1%} of {total} words stand outside entities, and are as they were: {shares}")
    output.show(f"- Job {made.job}: `cutlayer restore` puts entities back into answers")
    of_the_map = ("words", "own", "privacy", "vocabulary")
    told = {name: value for name, value in fields(made).items() if name not in of_the_map}
    output.result({"output": str(files.output), "eta": privacy.eta, **told})


def _kept(columns: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Columns of texts, and of labels, that are written: those that were named, and the text's."""
    second = [columns[name] for name in ("text_pair_column", "target_column") if columns.get(name)]
    texts, label = [DataSpec(**columns).text_column, *second], [*filter(None, [columns.get("label_column")])]
    names = [*texts, *label, JOB, ROW]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise typer.BadParameter(f"{', '.join(twice)} would be written twice", param_hint="--text-column")
    return texts, label


def _listed(entities: Any, row: str) -> list[str]:
    """A text's entities; a cell with nothing in it is none."""
    from cutlayer.core import DataError

    if entities is None or entities == "":
        return []
    if isinstance(entities, str):
        return [entities]
    if not isinstance(entities, list | tuple) or not all(isinstance(each, str) for each in entities):
        raise DataError(
            f"{row} has something else than texts in the column of entities.",
            remedy="Put a list of strings there, or one string; numbers between quotes.",
        )
    return list(entities)


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
    """Put the entities back into answers to texts that `protect` wrote. Nothing is sent.

    With column `row` beside the answers, as `protect` writes it, entities are written as in the text that is answered;
    without it, as in the first text that has them.
    """
    check_kind(files.output)
    check_not_input(files.input, files.output)
    from cutlayer.core import DataError
    from cutlayer.customer import Client
    from cutlayer.data.read import rows_with, text_in

    output = Output(as_json=as_json)
    column = DataSpec(**columns).text_column
    rows = list(rows_with(files.input, [column, *([] if answers.job else [JOB])]))
    numbers = [_number(row.get(ROW), files.input) for row in rows]
    told = [text_in(str(files.input), row, column, number) for number, row in enumerate(rows, start=1)]
    jobs = sorted({str(row[JOB]) for row in rows if JOB in row} | ({answers.job} if answers.job else set()))
    if len(jobs) != 1:
        raise DataError(
            f"The answers in {files.input} are of {len(jobs)} jobs, and one map has one job's entities.",
            remedy="Restore the answers of each job by themselves, with its --job.",
        )
    found = Client(**folder).entity_map(jobs[0])
    with rows_file(files.output) as write:
        write((column,), ((found.restore(text, row=row),) for text, row in zip(told, numbers, strict=True)))
    output.show(f"{len(rows)} answers with the entities of job {found.job}: {files.output}")
    output.result({"output": str(files.output), "answers": len(rows), "job": found.job})


def _number(row: Any, source: object) -> int | None:
    """Which of the job's texts is answered, by what stands in its column; `None` where that is missing or empty."""
    from cutlayer.core import DataError

    if row is None or row == "":
        return None
    if not str(row).isdecimal():
        raise DataError(
            f"Column {ROW!r} of {source} holds something else than numbers from 0 on.",
            remedy="Keep that column as `protect` wrote it, or leave it out.",
        )
    return int(row)


def register(app: typer.Typer) -> None:
    """Adds the commands to the main app."""
    app.command(
        epilog="Example: cutlayer protect --input prompts.jsonl --entities-column names --output safe.jsonl --eta 40"
    )(protect)
    app.command(epilog="Example: cutlayer restore --input answers.jsonl --output restored.jsonl")(restore)
