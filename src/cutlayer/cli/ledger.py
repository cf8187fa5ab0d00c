"""`cutlayer ledger`: what left this machine."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cutlayer.cli.command import Part, settings_command
from cutlayer.cli.options import AsJson, Connection
from cutlayer.cli.output import Output, fields

if TYPE_CHECKING:
    from cutlayer.privacy import LedgerSummary

app = typer.Typer(epilog="Example: cutlayer ledger show", no_args_is_help=True)


@app.callback()
def ledger() -> None:
    """The record of what left, written before it left."""


@app.command(epilog="Example: cutlayer ledger show --releases --limit 20")
@settings_command(config=False)
def show(
    folder: Annotated[dict[str, Any], Part(Connection, ("home",))],
    frames: Annotated[bool, typer.Option("--frames", help="Every frame.")] = False,
    releases: Annotated[bool, typer.Option("--releases", help="Every text that was released, and how.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="The newest rows of --frames and --releases.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Show what left: texts, tokens, eta, bytes. Texts are named by keyed hashes; no text is stored.

    In --json, digest is a plain hash of the bytes that left, to be compared with a transcript. Of a text that left
    without noise it confirms a guess.
    """
    from cutlayer.customer.home import existing_ledger

    output = Output(as_json=as_json)
    book = existing_ledger(folder.get("home"))
    summary = book.summary()
    content: dict[str, object] = {"summary": fields(summary)}
    show_summary(output, summary)
    if frames:
        newest = deque(book.frames(), maxlen=limit)
        output.table(
            "Frames",
            ("entry", "opened", "vendor", "route", "texts", "payload", "sent", "received", "status"),
            [
                (
                    frame.entry,
                    f"{frame.opened:%Y-%m-%d %H:%M:%S}",
                    frame.vendor,
                    frame.route,
                    frame.texts,
                    sum(frame.payload_bytes.values()),
                    frame.uplink_bytes,
                    frame.downlink_bytes,
                    "may have left" if frame.closed is None else frame.status,
                )
                for frame in newest
            ],
        )
        content["frames"] = [fields(frame) for frame in newest]
    if releases:
        texts = deque(book.releases(), maxlen=limit)
        output.table(
            "Releases",
            ("frame", "text", "release", "mechanism", "eta", "tokens", "bytes", "charged"),
            [
                (
                    text.entry,
                    text.content.hex()[:8],
                    text.identity.hex()[:8],
                    text.mechanism,
                    f"{text.eta:g}",
                    text.tokens,
                    text.payload_bytes,
                    "yes" if text.charged else "no",
                )
                for text in texts
            ],
        )
        content["releases"] = [fields(text) for text in texts]
    output.result(content)


def show_summary(output: Output, summary: LedgerSummary) -> None:
    """Shows what left altogether."""
    output.facts(
        "What left",
        [
            ("frames", summary.frames),
            ("frames that may have left", summary.may_have_left),
            ("frames with noise from a seed", summary.unsafe),
            ("bytes sent", summary.uplink_bytes),
            ("bytes received", summary.downlink_bytes),
            *((f"payload bytes: {category}", size) for category, size in summary.payload_bytes.items()),
        ],
    )
    output.show("Payload is tensors alone; bytes sent also count how they are framed, JSON and HTTP.")
    if summary.vendors:
        output.table(
            "To whom",
            ("vendor", "frames", "texts", "bytes sent"),
            [
                (each.vendor or "not written down", each.frames, each.texts, each.uplink_bytes)
                for each in summary.vendors
            ],
        )
    lines = summary.mechanisms
    if lines:
        output.table(
            "How texts were released",
            ("", *(line.mechanism for line in lines)),
            [
                ("texts", *(line.texts for line in lines)),
                ("looks that were charged", *(line.draws for line in lines)),
                ("tokens", *(line.tokens for line in lines)),
                ("payload bytes", *(line.payload_bytes for line in lines)),
                ("largest eta of a look", *(f"{line.largest_eta:g}" for line in lines)),
                ("most eta spent on a text", *(f"{line.largest_spent:g}" for line in lines)),
                ("unit of eta", *(line.unit for line in lines)),
            ],
        )
    if summary.clear:
        output.table("Words that left as they are", ("kind", "words"), list(summary.clear.items()))
        output.show("By the mechanism's own rule: no noise was added to these, and nothing is promised of them.")
    if summary.looks:
        output.table(
            "Draws of one text, at most",
            ("model", "draws"),
            [(model or "not written down", looks) for model, looks in summary.looks.items()],
        )
        output.show("By model name, over all of its tables: a vendor that changes a table by a bit begins a unit.")
    if summary.labels:
        output.table(
            "How labels were shown",
            ("", *(line.mechanism for line in summary.labels)),
            [
                ("labels", *(line.texts for line in summary.labels)),
                ("draws that were charged", *(line.draws for line in summary.labels)),
                ("largest epsilon of a draw", *(f"{line.largest_eta:g}" for line in summary.labels)),
                ("most epsilon spent on a label", *(f"{line.largest_spent:g}" for line in summary.labels)),
            ],
        )
        output.show("Gradients show labels: each run's stand here, with their draws, from before its first gradient.")
