"""`cutlayer demo`: both parties and an attacker on this machine, over a real connection."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cutlayer.cli.command import Part, settings_command
from cutlayer.cli.ledger import show_summary
from cutlayer.cli.options import AsJson
from cutlayer.cli.output import Output, fields, percent
from cutlayer.core.extras import require
from cutlayer.customer.settings import FinetuneSpec, Training

if TYPE_CHECKING:
    from cutlayer.customer import Client, FinetuneResult, Home, Progress
    from cutlayer.customer.corpora import Corpora

ETA = 80.0
SHOWN = 3
SEED = 1


@settings_command(config=False)
def demo(
    settings: Annotated[dict[str, Any], Part(FinetuneSpec, ("privacy.eta",), (("privacy.eta", f"{ETA:g}"),))],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="DIR", help="Keep both parties' folders here. Default: removed.", show_default=False
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the whole road on made-up support messages: a vendor, a customer, an attack on what the vendor saw.

    Everything runs on this machine, with the embedded model, and needs no network.
    """
    eta = settings["privacy"].eta if "privacy" in settings else ETA
    if not math.isfinite(eta):
        raise typer.BadParameter("give a number: the demo compares it with no privacy anyway", param_hint="--eta")
    started = time.monotonic()
    output = Output(as_json=as_json)
    require("audit")
    from cutlayer import vendor
    from cutlayer.vendor.process import VendorProcess

    with _folder(out) as folder, _unfinished(out):
        output.say("The vendor makes its folder and a key for the customer, and starts its service.")
        vendor.init(folder / "vendor", models=["starter"])
        key = vendor.keys.create(folder / "vendor", "demo-customer")
        with VendorProcess(folder / "vendor") as process:
            output.say(f"It serves the embedded model at {process.url}.")
            content = _customer(process.url, key, folder / "customer", eta=eta, output=output)
    content["seconds"] = time.monotonic() - started
    output.show(f"Done in {content['seconds']:.0f} s." + (f" Both parties' folders are in {out}." if out else ""))
    output.result(content)


def register(app: typer.Typer) -> None:
    """Adds the command to the main app."""
    app.command(epilog="Example: cutlayer demo --eta 60")(demo)


@contextmanager
def _folder(out: Path | None) -> Iterator[Path]:
    if out is not None:
        yield out.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="cutlayer-demo-") as temporary:
        yield Path(temporary)


@contextmanager
def _unfinished(out: Path | None) -> Iterator[None]:
    """Speaks for the run within, which names its own folder and options, and the demo has neither.

    Raises:
        Stopped: The user interrupted.
    """
    from cutlayer.core import Stopped

    try:
        yield
    except Stopped as error:
        if out is None:
            kept, remedy = "nothing of it is kept", "Run it again to see it from the beginning."
        else:
            kept, remedy = f"what it made so far is in {out}", "Run it again with another --out."
        raise Stopped(f"Stopped. The demo was not finished, and {kept}.", remedy=remedy) from error


def _customer(url: str, key: str, home: Path, *, eta: float, output: Output) -> dict[str, object]:
    from cutlayer.customer import Client
    from cutlayer.customer.corpora import Corpora
    from cutlayer.data import read_dataset, sample_path

    train = read_dataset(sample_path("train"), text_column="text", label_column="label")
    train, dev = train.split_off(0.1, seed=SEED)
    given = Corpora(train, dev, read_dataset(sample_path("test"), text_column="text", label_column="label"))
    client = Client(url, key, home=home)
    results = {}
    for each in (eta, math.inf):
        output.say(f"The customer fine-tunes on {len(train)} messages at eta {each:g}.")
        with output.progress() as progress:
            results[each] = _finetune(client, given, eta=each, progress=progress)
    private, bare = results[eta], results[math.inf]

    texts = _side_by_side(client, given, private, bare, eta=eta)
    output.table(
        "What the vendor saw, and what an attacker makes of it",
        ("", "text"),
        [
            row
            for text in texts
            for row in (
                ("original", text["original"]),
                (f"left at eta {eta:g} as", text["released"]),
                ("attacker's guess", text["guess"]),
                ("guess without privacy", text["guess_without_privacy"]),
            )
        ],
        lines=True,
    )
    output.show(
        "Where the guess is what left, this attack read the released words and does not tell which were replaced. "
        "Stronger ones may."
    )
    output.table(
        "What privacy cost and bought",
        ("", f"eta {eta:g}", "no privacy"),
        [
            ("utility accuracy on test (UA)", percent(private.ua, digits=1), percent(bare.ua, digits=1)),
            ("tokens not recovered (EP)", percent(private.ep, digits=1), percent(bare.ep, digits=1)),
            ("tokens replaced", percent(private.replaced, digits=1), percent(bare.replaced, digits=1)),
            (
                "labels read from gradients",
                percent(private.label_recovery, digits=1),
                percent(bare.label_recovery, digits=1),
            ),
            ("bytes sent", private.uplink_bytes["total"], bare.uplink_bytes["total"]),
        ],
    )
    summary = client.ledger.summary()
    show_summary(output, summary)
    client.close()
    return {
        "eta": eta,
        "private": fields(private),
        "no_privacy": fields(bare),
        "texts": texts,
        "ledger": fields(summary),
    }


def _finetune(client: Client, given: Corpora, *, eta: float, progress: Progress) -> FinetuneResult:
    # A small model needs a larger rate than the paper's, and the demo few epochs.
    training = Training(epochs=3, learning_rate=2e-3)
    return client.finetune(
        given.train, eta=eta, dev=given.dev, test=given.test, training=training, seed=SEED, progress=progress
    )


def _side_by_side(
    client: Client, given: Corpora, private: FinetuneResult, bare: FinetuneResult, *, eta: float
) -> list[dict[str, str]]:
    """The first texts as they are, as they left, and as the attack reads them from each run's transcript."""
    first = given.train.select(range(SHOWN))
    shown = client.privatize(first, eta=eta)
    guesses = [_guesses(result.folder, given, client.home) for result in (private, bare)]
    return [
        {
            "original": first.texts[row][0],
            "released": shown[row].released[0],
            "guess": guesses[0][row],
            "guess_without_privacy": guesses[1][row],
        }
        for row in range(SHOWN)
    ]


def _guesses(run: Path, given: Corpora, home: Home) -> list[str]:
    """The attack's reading of the first texts; which record each of them is, the customer alone knows."""
    from cutlayer.attacks import ATTACKS, View
    from cutlayer.customer.attacker import AttackerSpec
    from cutlayer.reports.audit import recorded_evidence

    evidence = recorded_evidence(given, run, "starter", home, attacker=AttackerSpec(auxiliary_fraction=0))
    view = View(evidence.transcript, evidence.knowledge)
    read = evidence.tokens.read(ATTACKS["nearest-neighbour"](view)).read.segments[0]
    tokenizer = evidence.archive.tokenizer
    return [str(tokenizer.decode(read[evidence.rows.index(row)])) for row in range(SHOWN)]
