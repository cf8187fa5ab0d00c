"""`cutlayer embed`: embeddings of texts by a vendor's frozen model."""

from __future__ import annotations

import math
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from cutlayer.cli.command import Part, settings_command
from cutlayer.cli.files import check_not_input, whole_file
from cutlayer.cli.options import DATA_HELP, RELEASE, AsJson, Customer, warn_unprotected
from cutlayer.cli.output import Output, fields
from cutlayer.core.setting import Shown, setting
from cutlayer.core.spec import SettingsSpec
from cutlayer.customer.columns import TEXTS, DataSpec
from cutlayer.customer.embedding import EmbeddingSettings
from cutlayer.customer.settings import FinetuneSpec, Training


class EmbeddingFiles(SettingsSpec):
    """A table that is read, and an array that is written beside it."""

    input: str = setting(help=f"The texts: {DATA_HELP}", shown=Shown(TEXTS, common=True, metavar="FILE"))
    output: Path = setting(
        help="The array that is written: .npy, float32, one row for each text, in the order of the input.",
        shown=Shown(TEXTS, common=True, metavar="FILE"),
    )


@settings_command
def embed(
    files: EmbeddingFiles,
    columns: Annotated[dict[str, Any], Part(DataSpec, ("text_column",))],
    settings: Annotated[dict[str, Any], Part(FinetuneSpec, (*RELEASE, "privacy.clip", "model", "wire_type"))],
    own: EmbeddingSettings,
    customer: Customer,
    as_json: AsJson = False,
) -> None:
    """Embed texts with the vendor's frozen model: privatized token ids or rows leave, and nothing is trained.

    A text that was embedded before under the same settings is not sent again.
    """
    if files.output.suffix != ".npy":
        raise typer.BadParameter(f"{files.output} must end in .npy", param_hint="--output")
    check_not_input(files.input, files.output)
    import numpy as np

    from cutlayer.data import read_dataset

    output = Output(as_json=as_json)
    privacy, seed = settings["privacy"], settings.get("unsafe_noise_seed")
    warn_unprotected(output, eta=privacy.eta, noise=privacy.noise, unsafe_noise_seed=seed)
    texts = read_dataset(files.input, text_column=DataSpec(**columns).text_column)
    longest = settings.pop("training", Training()).max_length
    with whole_file(files.output) as finish:
        with output.progress() as progress:
            found = customer.client().embed(
                texts, max_length=longest, progress=progress, **own.model_dump(), **settings
            )

        def fill(file: IO[bytes]) -> None:
            np.save(file, found.values, allow_pickle=False)

        finish(fill)
    output.show(f"Embedded {len(found.values)} texts, {found.values.shape[1]} numbers each: {files.output}")
    removed = (
        "none" if found.denoised_for is None else "{}, for eta {:g} to {:g}".format(found.denoiser, *found.denoised_for)
    )
    output.show(f"- Guarantee: {found.guarantee}")
    output.show(f"- Denoiser: {removed}")
    if found.replaced is not None:
        of_words = privacy.mechanism == "words"
        output.show(f"- {'Words' if of_words else 'Tokens'} replaced: {found.replaced}")
    output.show(f"- Sent: {found.sent} texts, {found.uplink_bytes} bytes; received: {found.downlink_bytes} bytes")
    output.show(
        f"- Texts cut, because the model or --max-length takes no more: {found.cut_texts} of {len(found.values)}"
    )
    output.result(
        {
            "output": str(files.output),
            "n": len(found.values),
            "width": found.values.shape[1],
            "model": found.model,
            "eta": found.eta,
            "tokens": found.tokens,
            "sent": found.sent,
            "cut_texts": found.cut_texts,
            "uplink_bytes": found.uplink_bytes,
            "downlink_bytes": found.downlink_bytes,
            "replaced": found.replaced,
            "denoiser": found.denoiser,
            "denoised_for": found.denoised_for,
            "guarantee": found.guarantee.model_dump(mode="json"),
            "deviations": [fields(each) for each in found.deviations],
            "no_privacy": math.isinf(found.eta),
            "unsafe_noise": seed is not None,
        }
    )


def register(app: typer.Typer) -> None:
    """Adds the command to the main app."""
    app.command(
        epilog="Example: cutlayer embed --input notes.csv --output notes.npy --eta 80 "
        "--denoiser none --vendor https://vendor.example:8377"
    )(embed)
