"""`cutlayer audit`: what a vendor could learn from a setting, measured by attacks on what it would see."""

from __future__ import annotations

import math
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from cutlayer.cli.options import (
    CUT,
    DATA,
    DATA_HELP,
    EPOCHS,
    LEARNING_RATE,
    OWN_NOISE,
    OWN_WINDOW,
    PRIVACY,
    TRAINING,
    AsJson,
    Eta,
    Home,
    Noise,
    NoiseWindow,
    TextColumn,
    named_values,
    parse_depth,
    parse_eta,
    parse_window,
    require_eta,
)
from cutlayer.cli.output import Output
from cutlayer.core.extras import require

if TYPE_CHECKING:
    from cutlayer.reports.audit import LocalSpec
    from cutlayer.reports.schema import AuditReport, Student

ATTACKER = "The attacker"
LABEL = "label"
"""The column of labels where none is named."""
OVER = 10
"""Exit code where more leaks than `--fail-over` allows."""
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h)?")
_SECONDS = {None: 1, "s": 1, "m": 60, "h": 3600}


def _parse_budget(given: str) -> float:
    found = _TIME.fullmatch(given.strip())
    if found is None or not float(found[1]):
        raise typer.BadParameter(f"{given} is no time. Give seconds, minutes or hours: 90s, 5m, 1h")
    return float(found[1]) * _SECONDS[found[2]]


def audit(
    data: Annotated[
        list[str],
        typer.Option(
            "--data",
            metavar="FILE",
            help=f"{DATA_HELP} With several --transcript: one for all runs, or one for each in their order.",
            show_default=False,
            rich_help_panel=DATA,
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the report is written.", show_default=False)],
    dev: Annotated[
        str | None,
        typer.Option(
            "--dev",
            metavar="FILE",
            help="With --transcript: as in `finetune`.",
            show_default=False,
            rich_help_panel=DATA,
        ),
    ] = None,
    test: Annotated[
        str | None,
        typer.Option(
            "--test",
            metavar="FILE",
            help="With --transcript: as in `finetune`.",
            show_default=False,
            rich_help_panel=DATA,
        ),
    ] = None,
    eta: Eta = None,
    text_column: TextColumn = "text",
    label_column: Annotated[
        str | None,
        typer.Option(
            "--label-column",
            metavar="NAME",
            help=f"The column that holds the label; not for a language model. Default: {LABEL} if there is such a "
            "column, else the report is about texts without labels.",
            show_default=False,
            rich_help_panel=DATA,
        ),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            metavar="SOURCE",
            help="starter, a local folder or a hub id: the vendor's model.",
            rich_help_panel=CUT,
        ),
    ] = "starter",
    objective: Annotated[
        Literal["classification", "lm"],
        typer.Option(help="What is learnt: a label per text, or to continue texts.", rich_help_panel=TRAINING),
    ] = "classification",
    bottom: Annotated[
        str | None,
        typer.Option(
            metavar="N|text",
            help="Blocks at the customer. Default: 0; 1 of a language model.",
            show_default=False,
            rich_help_panel=CUT,
        ),
    ] = None,
    tail: Annotated[
        int,
        typer.Option(
            min=0,
            help="Of a language model: blocks above the upper cut at the customer, below the head.",
            rich_help_panel=CUT,
        ),
    ] = 0,
    mechanism: Annotated[
        Literal["text-to-text", "vector"] | None,
        typer.Option(
            help="Release tokens, or rows of noise. Default: text-to-text.", show_default=False, rich_help_panel=PRIVACY
        ),
    ] = None,
    noise: Noise = OWN_NOISE,
    noise_window: NoiseWindow = OWN_WINDOW,
    place: Annotated[
        Literal["tokens", "activations"],
        typer.Option(help="Noise on tokens, or (vector) on the bottom's output.", rich_help_panel=PRIVACY),
    ] = "tokens",
    cti: Annotated[
        bool, typer.Option("--cti", help="Less noise on tokens that tell classes apart.", rich_help_panel=PRIVACY)
    ] = False,
    transcript: Annotated[
        list[Path] | None,
        typer.Option(
            "--transcript",
            metavar="DIR",
            help="Audit a finished run instead: the folder that `finetune --out` named. Its settings count. "
            "Repeatable: several runs of yours are read together, and the first is what other attacks read.",
            show_default=False,
            rich_help_panel=DATA,
        ),
    ] = None,
    secret_column: Annotated[
        list[str] | None,
        typer.Option(
            "--secret-column",
            metavar="NAME",
            help="A column of what nobody may find out, for example the author's gender. Repeatable.",
            show_default=False,
            rich_help_panel=DATA,
        ),
    ] = None,
    group_column: Annotated[
        str | None,
        typer.Option(
            "--group-column",
            metavar="NAME",
            help="The column of who wrote a text: the attacker knows all texts of one person, or none.",
            show_default=False,
            rich_help_panel=DATA,
        ),
    ] = None,
    known: Annotated[
        float,
        typer.Option(
            "--known",
            metavar="SHARE",
            help="Share of your records that the attacker knows in full, labels too. It is scored on the others.",
            rich_help_panel=ATTACKER,
        ),
    ] = 0.2,
    public: Annotated[
        str | None,
        typer.Option(
            "--public",
            metavar="FILE",
            help="Text that the attacker may have. Default: what the embedded language model writes.",
            show_default=False,
            rich_help_panel=ATTACKER,
        ),
    ] = None,
    public_column: Annotated[
        str, typer.Option("--public-column", metavar="NAME", help="Its column of the text.", rich_help_panel=ATTACKER)
    ] = "text",
    budget: Annotated[
        float | None,
        typer.Option(
            parser=_parse_budget,
            metavar="TIME",
            help="Time that attacks may take, for example 5m. They are run more weakly for it, as the report says.",
            show_default=False,
            rich_help_panel=ATTACKER,
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--attack",
            metavar="NAME",
            help="Run this attack alone. Repeatable. Default: all that apply.",
            show_default=False,
            rich_help_panel=ATTACKER,
        ),
    ] = None,
    frontier: Annotated[
        list[float] | None,
        typer.Option(
            "--frontier",
            parser=parse_eta,
            metavar="NUMBER|inf",
            help="Another eta to compare with: how useful the model is under it, on a fifth of the texts that is held "
            "out, and what quick attacks read. Repeatable.",
            show_default=False,
        ),
    ] = None,
    shown: Annotated[int, typer.Option("--examples", min=0, help="Texts on page one; 0 for none.")] = 8,
    fail_over: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-over",
            metavar="METRIC=SHARE",
            help=f"Leave with exit code {OVER} if the strongest attack reads more, or has no number. Repeatable.",
            show_default=False,
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"Epochs that are trained for it. Default: 1; {EPOCHS} with --frontier.",
            show_default=False,
            rich_help_panel=TRAINING,
        ),
    ] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(
            min=0,
            help=f"AdamW's initial rate. Default: as in `finetune`; {LEARNING_RATE:g} of a classifier with --frontier.",
            show_default=False,
            rich_help_panel=TRAINING,
        ),
    ] = None,
    max_length: Annotated[
        int | None,
        typer.Option(
            "--max-length",
            min=1,
            help="Tokens of a text, or of a language model's blocks, at most. Default: the model's limit.",
            show_default=False,
            rich_help_panel=TRAINING,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Data order, and which examples are shown. Never noise.")] = 0,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Attack what the vendor sees of your texts, and write a report: an HTML page, JSON, and a summary here.

    Without --transcript a vendor is run in this process for it, on your texts and the settings given: nothing leaves,
    nothing is charged. The report holds texts, as its examples; nothing else that is written does.
    """
    limits = _limits(fail_over or [])
    folders = transcript or []
    if frontier and folders:
        raise typer.BadParameter(
            "a recorded run is of one eta, and others would take a vendor. Leave --transcript out to have one in this "
            "process",
            param_hint="--frontier",
        )
    if len(data) not in (1, len(folders)):
        raise typer.BadParameter(
            f"{len(data)} files were given for {len(folders)} runs. Give one for all runs, or one for each",
            param_hint="--data",
        )
    output = Output(as_json=as_json)
    require("audit")
    from cutlayer import customer
    from cutlayer.attacks import ATTACKS
    from cutlayer.core import checked
    from cutlayer.customer.evidence import AttackerSpec
    from cutlayer.customer.prepare import Corpora
    from cutlayer.data import has_column, read_dataset
    from cutlayer.reports import write_audit
    from cutlayer.reports.audit import (
        METRICS,
        beside,
        check_runs,
        copy_blocks,
        evaluate_beside,
        local_answers,
        local_evidence,
        public_text,
        quick_attacks,
        recorded_evidence,
        several_runs,
        train_students,
        unasked,
    )
    from cutlayer.reports.audit import audit as attack

    for name in only or ():
        ATTACKS[name]  # names those that there are, before anything is run
    compared = tuple(name for name in quick_attacks() if only is None or name in only)
    if frontier and not compared:
        raise typer.BadParameter(
            f"settings are compared by attacks that take seconds, and --attack names none of them: "
            f"{', '.join(quick_attacks())}",
            param_hint="--frontier",
        )
    secret = tuple(dict.fromkeys(secret_column or []))
    with checked():
        attacker = AttackerSpec(known=known, group=group_column, secret=secret, seed=seed)
    columns = [*secret, *([group_column] if group_column and group_column not in secret else [])]
    labels = None if objective == "lm" else LABEL if label_column is None else label_column
    # what a recorded run was over includes its labels
    if labels is not None and label_column is None and not folders and not has_column(data[0], labels):
        labels = None
        output.warn(
            f"the texts have no labels: there is no column {LABEL!r}. What the vendor could learn of labels is not "
            "asked. Name their column with --label-column to ask it."
        )
    read = partial(read_dataset, text_column=text_column, label_column=labels, attribute_columns=columns)
    corpora = [read(file) for file in data]
    texts = corpora[0]
    folder = customer.Home(home)
    students: tuple[Student, ...] = ()
    specs: list[LocalSpec] = []
    if not folders:
        setting = partial(
            _local,
            model=model,
            objective=objective,
            bottom=bottom or ("1" if objective == "lm" else "0"),
            tail=tail,
            mechanism=mechanism,
            noise_window=parse_window(noise_window),
            place=place,
            compared=bool(frontier),
            epochs=epochs,
            learning_rate=learning_rate,
            max_length=max_length,
            seed=seed,
        )
        specs.append(setting(eta=require_eta(eta), noise=noise, cti=cti))
        specs += [
            # without noise there is none to choose or to steer
            setting(eta=each, noise=OWN_NOISE if math.isinf(each) else noise, cti=cti and math.isfinite(each))
            for each in dict.fromkeys(frontier or ())
            if each != eta
        ]
    with output.progress() as progress, tempfile.TemporaryDirectory(prefix="cutlayer-audit-") as temporary:
        told: tuple[str, ...] = ()
        if folders:
            check_runs(folders)
            held = [None if file is None else read(file) for file in (dev, test)]
            given = [Corpora(each, *held) for each in corpora] * (len(folders) if len(corpora) == 1 else 1)
            shown_by = [
                # of further runs it is asked what it does not know of the first
                recorded_evidence(each, run, model, folder, attacker=attacker if not number else AttackerSpec(known=0))
                for number, (each, run) in enumerate(zip(given, folders, strict=True))
            ]
            several = several_runs(folders, shown_by)
            evidence, told = several.evidence, several.told
            blocks = unasked(evidence.spec)
        else:
            evidence = local_evidence(texts, specs[0], Path(temporary), progress, attacker=attacker)
            if texts.labels is not None:
                answers = local_answers(texts, evidence.result.adapter_id, Path(temporary), progress)
                students = train_students(
                    texts, answers, tokenizer=evidence.archive.tokenizer, table=evidence.archive.table, seed=seed
                )
            blocks = copy_blocks(texts, evidence, Path(temporary), progress, seed=seed)
        archive = evidence.archive
        own = public_text(
            public,
            archive.tokenizer,
            kept=folder.path / "public-text",
            max_content=archive.template.max_content(1),
            progress=progress,
            column=public_column,
        )
        found = evaluate_beside(texts, specs[1:], attacker=attacker, public=own, attacks=compared, progress=progress)
        report = attack(
            evidence,
            model,
            public=own,
            recorded=bool(folders),
            budget=budget,
            only=only,
            students=students,
            runs=told,
            blocks=blocks,
            shown=shown,
            seed=seed,
            repeat=(shlex.join(["cutlayer", *sys.argv[1:]]),),
            progress=progress,
        )
    if frontier:
        report = report.model_copy(update={"frontier": beside(report, evidence, specs[0], found, attacks=compared)})
    files = write_audit(out, report)
    _show(output, report)
    for file in files:
        output.show(f"- {file}")
    over = _over(report, limits, METRICS)
    output.result({"report": [str(file) for file in files], "over": over, **_summary(report)})
    if over:
        output.say("; ".join(over))
        raise typer.Exit(OVER)


def register(app: typer.Typer) -> None:
    """Adds the command to the main app."""
    app.command(
        epilog="Example: cutlayer audit --data notes.csv --label-column ward --eta 80 --frontier 60 --frontier inf "
        "--out report --fail-over token_recovery=0.10"
    )(audit)


def _local(
    *,
    model: str,
    objective: Literal["classification", "lm"],
    bottom: str,
    tail: int,
    eta: float,
    mechanism: Literal["text-to-text", "vector"] | None,
    noise: str,
    noise_window: int | None,
    place: str,
    cti: bool,
    compared: bool,
    epochs: int | None,
    learning_rate: float | None,
    max_length: int | None,
    seed: int,
) -> LocalSpec:
    from cutlayer.core import Place, checked
    from cutlayer.customer import Objective, TrainSpec
    from cutlayer.privacy import CtiSpec, PrivacySpec
    from cutlayer.reports.audit import HELD_OUT, LocalSpec

    settings: Callable[..., TrainSpec] = TrainSpec.language if objective == "lm" else TrainSpec
    given: dict[str, Any] = {"epochs": epochs or 1, "learning_rate": learning_rate, "max_length": max_length}
    if compared:
        # after one epoch at the usual rate a classifier has learnt next to nothing, under any eta
        given |= {"epochs": epochs or EPOCHS, "dev_share": HELD_OUT}
        if objective == "classification":
            given["learning_rate"] = learning_rate or LEARNING_RATE
    with checked():
        return LocalSpec(
            model=model,
            objective=Objective.LM if objective == "lm" else Objective.CLASSIFICATION,
            privacy=PrivacySpec(
                mechanism="none" if math.isinf(eta) else mechanism or "text-to-text",
                noise=noise,
                noise_window=noise_window,
                eta=eta,
                place=Place(place),
                cti=CtiSpec() if cti else None,
            ),
            bottom=parse_depth(bottom),
            tail=tail,
            training=settings(**{name: value for name, value in given.items() if value is not None}),
            seed=seed,
        )


def _show(output: Output, report: AuditReport) -> None:
    from cutlayer.reports import summary

    for table in summary(report):
        output.table(table.title, table.columns, table.rows)
        for note in table.notes:
            output.show(note)


def _summary(report: AuditReport) -> dict[str, object]:
    """The report without texts."""
    return report.model_dump(mode="json", exclude={"examples"})


def _over(report: AuditReport, limits: Mapping[str, float], metrics: Mapping[str, str]) -> list[str]:
    """Which limits are exceeded; a question without a number exceeds each.

    Raises:
        typer.BadParameter: No question of the report has this metric.
    """
    over = []
    for metric, limit in limits.items():
        found = [each for each in report.strongest if metrics.get(each.question) == metric]
        if not found:
            known = ", ".join(sorted({metrics[each.question] for each in report.strongest if each.question in metrics}))
            raise typer.BadParameter(f"{metric} is none of this report's: {known}", param_hint="--fail-over")
        for each in found:
            if each.value is None:
                over.append(f"{metric} has no number, which is no pass")
            elif each.value > limit:
                over.append(f"{metric} is {each.value:.4f}, over {limit:g}")
    return over


def _limits(given: Sequence[str]) -> dict[str, float]:
    limits = {}
    for name, value in named_values(given, "--fail-over").items():
        try:
            limits[name] = float(value)
        except ValueError:
            limits[name] = math.nan
        if not 0 <= limits[name] <= 1:
            raise typer.BadParameter(f"{value} is no share between 0 and 1", param_hint="--fail-over")
    return limits
