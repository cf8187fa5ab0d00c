"""`cutlayer calibrate`: which setting is the most accurate of those under which attacks read little enough."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from cutlayer.cli.options import (
    CUT,
    DATA,
    DATA_HELP,
    EPOCHS,
    LEARNING_RATE,
    PRIVACY,
    TRAINING,
    AsJson,
    Home,
    TextColumn,
    named_values,
    parse_depth,
)
from cutlayer.cli.output import Output
from cutlayer.core.extras import require

if TYPE_CHECKING:
    from cutlayer.reports.calibrate import Arm, Calibration, Setting

METRIC = "token_recovery"
SEARCH = "The search"
ATTACKER = "The attacker"


def calibrate(
    data: Annotated[
        str, typer.Option("--data", metavar="FILE", help=DATA_HELP, show_default=False, rich_help_panel=DATA)
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="DIR", help="Where evaluations are kept, and the report is written.", show_default=False
        ),
    ],
    at_most: Annotated[
        str,
        typer.Option(
            "--at-most",
            metavar="METRIC=SHARE",
            help="What the strongest attack may read.",
            rich_help_panel=SEARCH,
        ),
    ] = f"{METRIC}=0.10",
    text_column: TextColumn = "text",
    label_column: Annotated[
        str,
        typer.Option("--label-column", metavar="NAME", help="The column that holds the label.", rich_help_panel=DATA),
    ] = "label",
    model: Annotated[
        str,
        typer.Option(
            metavar="SOURCE", help="starter, a local folder or a hub id: the vendor's model.", rich_help_panel=CUT
        ),
    ] = "starter",
    bottom: Annotated[
        list[str] | None,
        typer.Option(
            metavar="N|text",
            help="Blocks at the customer. Repeatable. Default: 0.",
            show_default=False,
            rich_help_panel=CUT,
        ),
    ] = None,
    mechanism: Annotated[
        list[str] | None,
        typer.Option(
            metavar="text-to-text|vector|activations",
            help="Release tokens, rows of noise, or noise on the bottom's output. Repeatable. Default: text-to-text.",
            show_default=False,
            rich_help_panel=PRIVACY,
        ),
    ] = None,
    cti: Annotated[
        Literal["no", "yes", "both"],
        typer.Option(help="Less noise on tokens that tell classes apart.", rich_help_panel=PRIVACY),
    ] = "no",
    evaluations: Annotated[
        int, typer.Option(min=1, metavar="N", help="Settings that are tried at most.", rich_help_panel=SEARCH)
    ] = 12,
    known: Annotated[
        float,
        typer.Option(
            "--known",
            metavar="SHARE",
            help="Share of your records that the attacker knows in full.",
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
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of each run.", rich_help_panel=TRAINING)] = EPOCHS,
    learning_rate: Annotated[
        float, typer.Option(min=0, help="AdamW's initial rate.", rich_help_panel=TRAINING)
    ] = LEARNING_RATE,
    seed: Annotated[int, typer.Option(min=0, help="Data order, and which records are known. Never noise.")] = 0,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Find the setting with the best accuracy under which the strongest attack reads little enough.

    Each setting is a real run on your texts, against a vendor in this process: nothing leaves, nothing is charged. What
    is recommended was confirmed by every attack; the upper end of the 95 % interval must pass. Interrupt it, run it
    again, and it goes on. Exit code 12: no setting that was tried reaches the target.
    """
    target = _target(at_most)
    output = Output(as_json=as_json)
    require("audit")
    from cutlayer import customer
    from cutlayer.core import TargetError, checked
    from cutlayer.customer import TrainSpec
    from cutlayer.customer.evidence import AttackerSpec
    from cutlayer.data import read_dataset
    from cutlayer.reports import write_audit
    from cutlayer.reports.audit import HELD_OUT
    from cutlayer.reports.calibrate import CalibrationSpec, nearest
    from cutlayer.reports.calibrate import calibrate as search
    from cutlayer.reports.wording import per_cent

    arms = _arms(bottom or ["0"], mechanism or ["text-to-text"], cti)
    with checked():
        spec = CalibrationSpec(
            model=model,
            arms=arms,
            target=target,
            evaluations=evaluations,
            training=TrainSpec(epochs=epochs, learning_rate=learning_rate, dev_share=HELD_OUT),
            attacker=AttackerSpec(known=known, seed=seed),
            seed=seed,
        )
        for arm in arms:
            _setting(arm, 1.0).privacy  # noqa: B018 - refuses what has no meaning together, before anything is run
    texts = read_dataset(data, text_column=text_column, label_column=label_column)
    with output.progress() as progress:
        found = search(
            texts,
            spec,
            public=public,
            public_column=public_column,
            home=customer.Home(home),
            kept=out / "evaluations",
            repeat=(shlex.join(["cutlayer", *sys.argv[1:]]),),
            progress=progress,
        )
    _show(output, found, target)
    line = None
    if found.chosen is not None and found.report is not None:
        line = command(found.chosen.setting, data, text_column, label_column, epochs, learning_rate)
        output.show(
            f"Recommended: the strongest attack, {found.chosen.found.attack}, read "
            f"{100 * found.chosen.found.recovered:.1f} % of tokens; accuracy {per_cent(found.chosen.found.utility)} %."
        )
        output.show(line)
        if found.learns is False:
            output.warn(
                f"under it the model learns next to nothing: the most frequent label alone is right for "
                f"{per_cent(found.majority)} % of your texts. Allow more with --at-most, give more texts, or train "
                "longer with --epochs."
            )
        for file in write_audit(out / "report", found.report):
            output.show(f"- {file}")
    output.result({**_content(found), "target": {METRIC: target}, "command": line})
    if found.chosen is None:
        close = nearest(found.tried)
        error = TargetError(
            f"No setting that was tried keeps {METRIC} at or below {target:g}. The nearest, {close.setting.arm.label} "
            f"at eta {close.setting.eta:g}, reads up to {close.found.interval[1]:.3f}.",
            remedy="Allow more, try other settings (--bottom, --mechanism, --cti), or more --evaluations.",
        )
        output.say(str(error))
        raise typer.Exit(error.exit_code)


def command(setting: Setting, data: str, text_column: str, label_column: str, epochs: int, learning_rate: float) -> str:
    """The `finetune` command line of a setting; the vendor and the key are the environment's."""
    arm = setting.arm
    words = ["cutlayer", "finetune", "--train", data, "--text-column", text_column, "--label-column", label_column]
    words += ["--eta", f"{setting.eta:g}", "--bottom", "text" if arm.bottom is None else str(arm.bottom)]
    words += ["--mechanism", arm.mechanism, "--place", arm.place.value, *(["--cti"] if arm.cti else [])]
    words += ["--epochs", str(epochs), "--learning-rate", f"{learning_rate:g}"]
    return shlex.join(words)


def register(app: typer.Typer) -> None:
    """Adds the command to the main app."""
    app.command(
        epilog="Example: cutlayer calibrate --data notes.csv --label-column ward --at-most token_recovery=0.10 "
        "--cti both --out calibrated"
    )(calibrate)


def _target(given: str) -> float:
    values = named_values([given], "--at-most")
    if set(values) != {METRIC}:
        raise typer.BadParameter(f"what is searched for is {METRIC}", param_hint="--at-most")
    try:
        target = float(values[METRIC])
    except ValueError:
        target = -1.0
    if not 0 < target < 1:
        raise typer.BadParameter(f"{values[METRIC]} is no share between 0 and 1", param_hint="--at-most")
    return target


def _arms(bottoms: list[str], mechanisms: list[str], cti: str) -> tuple[Arm, ...]:
    from cutlayer.core import Place
    from cutlayer.reports.calibrate import Arm

    kinds = {
        "text-to-text": ("text-to-text", Place.TOKENS),
        "vector": ("vector", Place.TOKENS),
        "activations": ("vector", Place.ACTIVATIONS),
    }
    unknown = sorted(set(mechanisms) - set(kinds))
    if unknown:
        raise typer.BadParameter(f"{unknown[0]} is none of {', '.join(kinds)}", param_hint="--mechanism")
    steered = {"no": (False,), "yes": (True,), "both": (False, True)}[cti]
    arms = (
        Arm(mechanism=kinds[name][0], place=kinds[name][1], cti=each, bottom=parse_depth(depth))
        for name in mechanisms
        for depth in bottoms
        for each in steered
    )
    return tuple(dict.fromkeys(arms))


def _setting(arm: Arm, eta: float) -> Setting:
    from cutlayer.reports.calibrate import Setting

    return Setting(arm=arm, eta=eta)


def _show(output: Output, found: Calibration, target: float) -> None:
    from cutlayer.reports.wording import per_cent

    output.table(
        "Settings that were tried",
        ("setting", "eta", "replaced (%)", "read (%)", "95 % interval", "by", "accuracy (%)", "passes"),
        [
            (
                each.setting.arm.label,
                f"{each.setting.eta:g}",
                "–" if each.found.replaced is None else f"{100 * each.found.replaced:.1f}",
                f"{100 * each.found.recovered:.1f}",
                f"{100 * each.found.interval[0]:.1f} to {100 * each.found.interval[1]:.1f}",
                each.found.attack,
                f"{per_cent(each.found.utility)} ± {per_cent(each.found.utility_error)}",
                "yes" if each.passes(target) else "no",
            )
            for each in found.tried
        ],
    )


def _content(found: Calibration) -> dict[str, object]:
    rows = [
        {"setting": each.setting.model_dump(mode="json"), **each.found.model_dump(mode="json")} for each in found.tried
    ]
    chosen = None if found.chosen is None else rows[found.tried.index(found.chosen)]
    return {"evaluations": rows, "chosen": chosen, "majority": found.majority, "learns": found.learns}
