"""`cutlayer calibrate`: which setting is the most accurate of those under which attacks read little enough."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer
from pydantic import Field

from cutlayer.cli.command import Part, settings_command
from cutlayer.cli.options import DATA_HELP, AsJson, Connection, LocalModel, named_values
from cutlayer.cli.output import Output
from cutlayer.core.cut import Place
from cutlayer.core.errors import ConfigError, Fault
from cutlayer.core.extras import require
from cutlayer.core.setting import Shown, setting
from cutlayer.customer.attacker import AttackerSpec
from cutlayer.customer.columns import TEXTS, DataSpec
from cutlayer.customer.settings import FinetuneSpec, Training
from cutlayer.privacy.spec import WordDraw, Words
from cutlayer.reports.audit_spec import PublicText

if TYPE_CHECKING:
    from cutlayer.reports.calibrate import Arm, Calibration, Setting

METRIC = "token_recovery"
SEARCH = "The search"
SEED = 0
LOCAL: Final = {"training.epochs": "", "training.learning_rate": "", "seed": f"{SEED}"}
"""What of a run can be set, and what it is by default where that is another than a run's."""
MECHANISMS: Final[Mapping[str, Mapping[str, Any]]] = {
    "text-to-text": {"mechanism": "text-to-text"},
    "vector": {"mechanism": "vector"},
    "clipped": {"mechanism": "vector", "clip": True},
    "activations": {"mechanism": "vector", "place": Place.ACTIVATIONS},
    "words": {"mechanism": "words"},
}
"""What may be chosen, each by what an arm has of it."""


class Search(WordDraw):
    """What is searched, in which texts and among what."""

    data: str = setting(help=f"Your texts: {DATA_HELP}", shown=Shown(TEXTS, common=True, metavar="FILE"))
    out: Path = setting(
        help="Where evaluations are kept, and the report is written.",
        shown=Shown(TEXTS, common=True, metavar="DIR"),
    )
    at_most: str = setting(
        f"{METRIC}=0.10",
        help="What the strongest attack may read.",
        shown=Shown(SEARCH, common=True, metavar="METRIC=SHARE"),
    )
    bottoms: tuple[Annotated[int, Field(ge=0)] | None, ...] = setting(
        (0,),
        help="Blocks at the customer. text: none, nor the table; with mechanism words.",
        shown=Shown(SEARCH, unit="blocks", flags=("--bottom",), none="text"),
    )
    mechanisms: tuple[Literal["text-to-text", "vector", "clipped", "activations", "words"], ...] = setting(
        ("text-to-text",),
        help="Release tokens, noisy rows, noisy rows that are clipped, noise on the bottom's output, or words.",
        shown=Shown(SEARCH, flags=("--mechanism",)),
    )
    cti: Literal["no", "yes", "both"] = setting(
        "no", help="Less noise on tokens that tell classes apart.", shown=Shown(SEARCH)
    )
    evaluations: int = setting(
        12, help="Settings that are tried at most.", shown=Shown(SEARCH, unit="evaluations"), ge=1
    )


@settings_command
def calibrate(
    searched: Search,
    columns: Annotated[dict[str, Any], Part(DataSpec, ("text_column", "label_column"))],
    local: LocalModel,
    attacker: Annotated[dict[str, Any], Part(AttackerSpec, ("auxiliary_fraction",))],
    public: PublicText,
    settings: Annotated[dict[str, Any], Part(FinetuneSpec, tuple(LOCAL), tuple(LOCAL.items()))],
    folder: Annotated[dict[str, Any], Part(Connection, ("home",))],
    as_json: AsJson = False,
) -> None:
    """Find the setting with the best accuracy under which the strongest attack reads little enough.

    Each setting is a real run on your texts, against a vendor in this process: nothing leaves, nothing is charged. What
    is recommended was confirmed by every attack; the upper end of the 95 % interval must pass. Interrupt it, run it
    again, and it goes on. Exit code 12: no setting that was tried reaches the target.
    """
    target = _target(searched.at_most)
    output = Output(as_json=as_json)
    require("audit")
    from cutlayer import customer
    from cutlayer.core import TargetError, checked
    from cutlayer.data import read_dataset
    from cutlayer.reports import write_audit
    from cutlayer.reports.audit import HELD_OUT
    from cutlayer.reports.calibrate import CalibrationSpec, nearest
    from cutlayer.reports.calibrate import calibrate as search
    from cutlayer.reports.wording import per_cent

    arms = _arms(searched)
    seed = settings.get("seed", SEED)
    given = settings["training"].model_dump(exclude_unset=True) if "training" in settings else {}
    training = Training(**{"dev_share": HELD_OUT} | given)
    with checked():
        spec = CalibrationSpec(
            model=local.model,
            arms=arms,
            target=target,
            evaluations=searched.evaluations,
            training=training,
            attacker=AttackerSpec(**attacker, seed=seed),
            seed=seed,
        )
        for arm in arms:
            _setting(arm, 1.0).privacy  # noqa: B018 - refuses what has no meaning together, before anything is run
    where = DataSpec(**columns)
    texts = read_dataset(searched.data, text_column=where.text_column, label_column=where.label_column)
    with output.progress() as progress:
        found = search(
            texts,
            spec,
            public=public.public,
            public_column=public.public_column,
            home=customer.Home(folder.get("home")),
            kept=searched.out / "evaluations",
            repeat=(shlex.join(["cutlayer", *sys.argv[1:]]),),
            progress=progress,
        )
    _show(output, found, target)
    line = None
    if found.chosen is not None and found.report is not None:
        line = command(found.chosen.setting, searched.data, where, training)
        counted = "tokens" if found.chosen.setting.arm.words is None else "the words that are drawn"
        output.show(
            f"Recommended: the strongest attack, {found.chosen.found.attack}, read "
            f"{100 * found.chosen.found.recovered:.1f} % of {counted}; "
            f"accuracy {per_cent(found.chosen.found.utility)} %."
        )
        output.show(line)
        if found.learns is False:
            output.warn(
                f"under it the model learns next to nothing: the most frequent label alone is right for "
                f"{per_cent(found.majority)} % of your texts. Allow more with --at-most, give more texts, or train "
                "longer with --epochs."
            )
        for file in write_audit(searched.out / "report", found.report):
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


def command(setting: Setting, data: str, where: DataSpec, training: Training) -> str:
    """The `finetune` command line of a setting; the vendor and the key are the environment's."""
    arm = setting.arm
    line = ["cutlayer", "finetune", "--train", data]
    line += ["--text-column", where.text_column, "--label-column", where.label_column]
    line += ["--eta", f"{setting.eta:g}", "--bottom", "text" if arm.bottom is None else str(arm.bottom)]
    line += ["--mechanism", arm.mechanism]
    line += ["--place", arm.place.value] * (arm.mechanism == "vector") + ["--clip"] * arm.clip + ["--cti"] * arm.cti
    for name, value in (
        {} if arm.words is None else arm.words.model_dump(include={*WordDraw.model_fields}, exclude_unset=True)
    ).items():
        line += [f"--{name}", _typed(value)]
    line += [] if training.epochs is None else ["--epochs", str(training.epochs)]
    line += [] if training.learning_rate is None else ["--learning-rate", f"{training.learning_rate:g}"]
    return shlex.join(line)


def _typed(value: object) -> str:
    """A setting of words as it is typed."""
    return ",".join(value) if isinstance(value, tuple) else str(value)


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


def _arms(searched: Search) -> tuple[Arm, ...]:
    from cutlayer.reports.calibrate import Arm

    words = {name: getattr(searched, name) for name in WordDraw.model_fields if name in searched.model_fields_set}
    if words and "words" not in searched.mechanisms:
        without = "means nothing without mechanism words: add --mechanism words, or leave it out"
        raise ConfigError([Fault(name, _typed(value), without) for name, value in words.items()])
    if None in searched.bottoms and searched.mechanisms != ("words",):
        raise ConfigError([Fault("bottom", "text", "goes with mechanism words alone: noise on tokens needs a table")])
    drawn = Words(eta=1.0, **words) if "words" in searched.mechanisms else None

    steered = {"no": (False,), "yes": (True,), "both": (False, True)}[searched.cti]
    arms = (
        Arm(
            **MECHANISMS[name],
            cti=each,
            bottom=depth,
            words=drawn if name == "words" else None,
        )
        for name in searched.mechanisms
        for depth in searched.bottoms
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
