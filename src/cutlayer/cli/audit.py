"""`cutlayer audit`: what a vendor could learn from a setting, measured by attacks on what it would see."""

from __future__ import annotations

import math
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cutlayer.cli.command import MISSING, Part, settings_command
from cutlayer.cli.options import (
    DATA_HELP,
    AsJson,
    Connection,
    HeldOut,
    LocalModel,
    named_values,
)
from cutlayer.cli.output import Output
from cutlayer.core.extras import require
from cutlayer.core.setting import Shown, setting
from cutlayer.customer.attacker import AttackerSpec
from cutlayer.customer.columns import TEXTS, DataSpec
from cutlayer.customer.settings import FinetuneSpec
from cutlayer.reports.audit_spec import REPORT, AuditSpec

if TYPE_CHECKING:
    from cutlayer.reports.schema import AuditReport

LABEL = "label"
"""The column of labels where none is named."""
OVER = 10
"""Exit code where more leaks than `--fail-above` allows."""
SEED = 0
LOCAL: Final = {
    "privacy": "",
    "privacy.eta": "that of --transcript; without one it must be given",
    "cut.bottom": "",
    "cut.tail": "",
    "cut.target": "",
    "training.epochs": "1; with --frontier as in `finetune`",
    "training.learning_rate": "",
    "training.max_length": "",
    "seed": f"{SEED}",
}
"""What of a run can be set, and what it is by default where that is another than a run's."""
AS_RECORDED = (("dev", "as in the run, with --transcript"), ("test", "as in the run, with --transcript"))
LABELS = (("label_column", f"{LABEL} if there is such a column; else the report is about texts without labels"),)


class Audited(HeldOut):
    """What is audited, and where the report goes."""

    data: tuple[str, ...] = setting(
        help=f"Your texts: {DATA_HELP} With several --transcript: one for all runs, or one for each in their order.",
        shown=Shown(TEXTS, common=True, metavar="FILE"),
    )
    out: Path = setting(help="Where the report is written.", shown=Shown(TEXTS, common=True, metavar="DIR"))
    transcript: tuple[Path, ...] = setting(
        (),
        help="Audit a finished run instead: the folder that `finetune --out` named. Its settings count. Several runs "
        "of yours are read together, and the first is what other attacks read.",
        shown=Shown(TEXTS, common=True, metavar="DIR"),
    )


class Report(AuditSpec):
    """What is asked, for how long, and what is made of the answers."""

    fail_above: tuple[str, ...] = setting(
        (),
        help=f"Leave with exit code {OVER} if the strongest attack reads more, or has no number.",
        shown=Shown(REPORT, common=True, metavar="METRIC=SHARE"),
    )


@settings_command
def audit(
    audited: Annotated[Audited, Part(Audited, (), AS_RECORDED)],
    columns: Annotated[
        dict[str, Any], Part(DataSpec, ("text_column", "label_column", "target_column", "facts"), LABELS)
    ],
    settings: Annotated[dict[str, Any], Part(FinetuneSpec, tuple(LOCAL), tuple(LOCAL.items()))],
    local: LocalModel,
    attacker: AttackerSpec,
    asked: Report,
    folder: Annotated[dict[str, Any], Part(Connection, ("home",))],
    as_json: AsJson = False,
) -> None:
    """Attack what the vendor sees of your texts, and write a report: an HTML page, JSON, and a summary here.

    Without --transcript a vendor is run in this process for it, on your texts and the settings given: nothing leaves,
    nothing is charged. The report holds texts, as its examples; nothing else that is written does.
    """
    began = time.monotonic()
    limits = _limits(asked.fail_above)
    if "privacy" not in settings and not audited.transcript:
        raise typer.BadParameter(MISSING["eta"], param_hint="--eta")
    output = Output(as_json=as_json)
    require("audit")
    from cutlayer.reports.audit import METRICS
    from cutlayer.reports.audit.leak_report import audit as attack

    with output.progress() as progress:
        found = attack(
            audited.data,
            transcript=audited.transcript,
            dev=audited.dev,
            test=audited.test,
            attacker=attacker,
            progress=progress,
            began=began,
            model=local.model,
            repeat=(shlex.join(["cutlayer", *sys.argv[1:]]),),
            **folder,
            **columns,
            **settings,
            **asked.model_dump(exclude={"fail_above"}),
        )
    report = found.report
    files = found.save(audited.out)
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
        "--out report --fail-above token_recovery=0.10"
    )(audit)


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
            raise typer.BadParameter(f"{metric} is none of this report's: {known}", param_hint="--fail-above")
        for each in found:
            if each.value is None:
                over.append(f"{metric} has no number, which is no pass")
            elif each.value > limit:
                over.append(f"{metric} is {each.value:.4f}, over {limit:g}")
    return over


def _limits(given: Sequence[str]) -> dict[str, float]:
    limits = {}
    for name, value in named_values(given, "--fail-above").items():
        try:
            limits[name] = float(value)
        except ValueError:
            limits[name] = math.nan
        if not 0 <= limits[name] <= 1:
            raise typer.BadParameter(f"{value} is no share between 0 and 1", param_hint="--fail-above")
    return limits
