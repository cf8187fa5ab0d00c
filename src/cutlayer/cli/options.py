"""Options that several commands share, worded once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from cutlayer.cli.output import Output

DATA, PARTIES, PRIVACY, CUT, TRAINING, WORK = "Texts", "Parties", "Privacy", "Model and cut", "Training", "Work"
"""Panels of a command's help."""
OWN_NOISE = "d-chi"
OWN_WINDOW = "4"
"""`DChi.name`, known before torch is imported."""
EPOCHS, LEARNING_RATE = 3, 1e-3
"""Of local runs whose accuracies are compared: short, and of some hundred texts."""
DATA_HELP = "CSV, TSV, JSONL or Parquet, each also .gz; or hub:OWNER/NAME:SPLIT."

AsJson = Annotated[
    bool, typer.Option("--json", help="Print the result as one JSON object, the last line of standard output.")
]
Vendor = Annotated[
    str | None,
    typer.Option(
        "--vendor",
        envvar="CUTLAYER_VENDOR",
        metavar="URL",
        help="The vendor's address.",
        show_default=False,
        rich_help_panel=PARTIES,
    ),
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        "--api-key",
        envvar="CUTLAYER_API_KEY",
        metavar="KEY",
        help="Your key at the vendor. The variable keeps it out of the process list.",
        show_default=False,
        rich_help_panel=PARTIES,
    ),
]
CaCertificate = Annotated[
    Path | None,
    typer.Option(
        "--ca-cert",
        envvar="CUTLAYER_CA_CERT",
        metavar="FILE",
        help="The certificate to trust, for a vendor that signed its own.",
        show_default=False,
        rich_help_panel=PARTIES,
    ),
]
Home = Annotated[
    Path | None,
    typer.Option(
        "--home",
        envvar="CUTLAYER_HOME",
        metavar="DIR",
        help="Your folder: secret, ledger, runs. Default: ~/.cutlayer",
        show_default=False,
        rich_help_panel=PARTIES,
    ),
]
TextColumn = Annotated[
    str,
    typer.Option("--text-column", metavar="NAME", help="The column that holds the text.", rich_help_panel=DATA),
]
TextPairColumn = Annotated[
    str | None,
    typer.Option(
        "--text-pair-column",
        metavar="NAME",
        help="The column of the second text, for pairs.",
        show_default=False,
        rich_help_panel=DATA,
    ),
]


def parse_eta(given: str) -> float:
    """A number, or the word that gives up privacy: a number too large to be one does not mean it."""
    if given.strip().lower() == "inf":
        return math.inf
    try:
        eta = float(given)
    except ValueError:
        eta = math.nan
    # what is zero only because it is too small to be told from it is as little an amount of noise
    if not 0 < eta < math.inf:
        raise typer.BadParameter(
            f"{given} is no number above 0. Smaller numbers hide more, for example `--eta 60`; "
            "`--eta inf`, as a word, means no privacy"
        )
    return eta


Eta = Annotated[
    float | None,
    typer.Option(
        "--eta",
        parser=parse_eta,
        metavar="NUMBER|inf",
        help="Noise per token in 1/embedding distance: smaller hides more. inf: no privacy. Must be given.",
        show_default=False,
        rich_help_panel=PRIVACY,
    ),
]
Noise = Annotated[
    str,
    typer.Option(
        "--noise",
        metavar="NAME",
        help="Whose noise is drawn: d-chi, or an installed plug-in's, whose promise cutlayer has not verified. "
        "`cutlayer conformance NAME` looks into it.",
        rich_help_panel=PRIVACY,
    ),
]
PREFIX = "prefix"
"""As a window: all of the text before a token."""


def parse_window(text: str) -> int | None:
    """A noise window: a number of tokens, or all of them.

    Raises:
        typer.BadParameter: Neither.
    """
    if text == PREFIX:
        return None
    if not text.isascii() or not text.isdecimal() or not int(text):
        raise typer.BadParameter(f"{text!r} is no whole number above 0, and not {PREFIX!r}.")
    return int(text)


NoiseWindow = Annotated[
    str,
    typer.Option(
        "--noise-window",
        metavar="N|prefix",
        help="How many tokens before a token decide its noise, with the token itself. Passages that are repeated then "
        "keep their noise: an edited copy shows little new. prefix: all tokens before it.",
        rich_help_panel=PRIVACY,
    ),
]
UnsafeNoiseSeed = Annotated[
    int | None,
    typer.Option(
        "--unsafe-noise-seed",
        metavar="N",
        help="UNSAFE: draw privacy noise from this number, so that whoever knows it can undo it. Marks every output.",
        show_default=False,
        rich_help_panel=PRIVACY,
    ),
]
Device = Annotated[
    Literal["auto", "cpu", "cuda"],
    typer.Option("--device", help="Where the bottom is computed. auto: on CUDA where there is one."),
]
Jobs = Annotated[
    int,
    typer.Option(
        "--jobs",
        metavar="N",
        help="Processes that share the work; each has its part of the cores. 1: this one alone.",
        rich_help_panel=WORK,
    ),
]
Ray = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help="Do the work on a Ray cluster of your own that runs already: auto, or HOST:PORT. Its machines must see "
        "your --home under the same path.",
        show_default=False,
        rich_help_panel=WORK,
    ),
]
DataDir = Annotated[Path, typer.Option("--data-dir", metavar="DIR", help="The vendor's folder.", show_default=False)]


def require_eta(eta: float | None) -> float:
    """The eta given; how much leaves is never decided by a default.

    Raises:
        typer.BadParameter: None was given.
    """
    if eta is None:
        raise typer.BadParameter(
            "it has no default. Give a number (smaller hides more; `cutlayer privatize` shows what would leave),"
            " or `--eta inf` for no privacy",
            param_hint="--eta",
        )
    return eta


def parse_depth(bottom: str) -> int | None:
    """Blocks at the customer; `None` for the text cut.

    Raises:
        typer.BadParameter: It is neither.
    """
    if bottom == "text":
        return None
    if not bottom.isdecimal():
        raise typer.BadParameter(f"{bottom} is neither a number of blocks nor `text`", param_hint="--bottom")
    return int(bottom)


def warn_unprotected(output: Output, *, eta: float, noise: str, unsafe_noise_seed: int | None) -> None:
    """Says before any work that texts leave unprotected, or protected by what nobody has verified, where they do.

    Raises:
        ConfigError: There is no such noise.
    """
    if noise != OWN_NOISE:
        from cutlayer.privacy import PluggedIn, find_mechanism

        mechanism = find_mechanism(noise)
        if isinstance(mechanism, PluggedIn):
            output.warn(f"the noise {noise} is of {mechanism.origin}: cutlayer has not verified what it promises.")
    if math.isinf(eta):
        output.warn("eta is inf: no privacy. Every token leaves as it is.")
    elif unsafe_noise_seed is not None:
        output.warn("the noise comes from a seed that was given: whoever knows it can undo it.")


def named_values(options: Sequence[str], option: str) -> dict[str, str]:
    """What `NAME=VALUE` options say, by name, as it was typed.

    Raises:
        typer.BadParameter: One is no such pair, or a name is given twice.
    """
    found: dict[str, str] = {}
    for given in options:
        name, separator, value = given.partition("=")
        if not separator:
            raise typer.BadParameter(f"{given} is not NAME=VALUE", param_hint=option)
        if name in found:
            raise typer.BadParameter(f"{name} is given twice", param_hint=option)
        found[name] = value
    return found
