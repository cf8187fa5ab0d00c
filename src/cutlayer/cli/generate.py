"""`cutlayer generate`: texts that the vendor's blocks continue, token by token."""

from __future__ import annotations

from typing import Annotated

import typer

from cutlayer.cli.options import (
    DATA,
    ApiKey,
    AsJson,
    CaCertificate,
    Device,
    Home,
    Vendor,
    warn_unprotected,
)
from cutlayer.cli.output import Output, fields

SAMPLING = "Choosing tokens"
"""Panel of the command's help."""


def generate(
    adapter: Annotated[str, typer.Option("--adapter", metavar="ID", help="The adapter to ask.", show_default=False)],
    prompt: Annotated[
        list[str],
        typer.Option(
            "--prompt",
            metavar="TEXT",
            help="What to continue; may be repeated, and all are continued together.",
            show_default=False,
            rich_help_panel=DATA,
        ),
    ],
    max_new_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens at most, for each prompt.", rich_help_panel=SAMPLING)
    ] = 128,
    greedy: Annotated[
        bool, typer.Option("--greedy", help="Always the most probable token.", rich_help_panel=SAMPLING)
    ] = False,
    temperature: Annotated[
        float, typer.Option(help="Below 1 sharper, above 1 wilder.", rich_help_panel=SAMPLING)
    ] = 1.0,
    top_k: Annotated[
        int | None,
        typer.Option(
            help="Only the so many most probable tokens. Default: all.", show_default=False, rich_help_panel=SAMPLING
        ),
    ] = None,
    top_p: Annotated[
        float, typer.Option(help="Only the most probable tokens that make up this share.", rich_help_panel=SAMPLING)
    ] = 1.0,
    beams: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="N",
            help="Encoder-decoders: follow N continuations and take the most probable (beam search). The text then "
            "comes at its end.",
            rich_help_panel=SAMPLING,
        ),
    ] = 1,
    length_penalty: Annotated[
        float, typer.Option(help="Of beam search: above 1 longer texts, below 1 shorter.", rich_help_panel=SAMPLING)
    ] = 1.0,
    stop: Annotated[
        list[str] | None,
        typer.Option(
            "--stop",
            metavar="TEXT",
            help="End before this text; may be repeated.",
            show_default=False,
            rich_help_panel=SAMPLING,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Repeats the choice of tokens; never noise.", show_default=False, rich_help_panel=SAMPLING
        ),
    ] = None,
    vendor: Vendor = None,
    api_key: ApiKey = None,
    ca_cert: CaCertificate = None,
    home: Home = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Continue texts with a language model's adapter, or answer them with an encoder-decoder's.

    They are privatized in the way it was trained.

    One prompt's text appears as it comes. Behind a bottom of 1 or more no token ids are sent (bottom 0: drawn ones, at
    eta inf the true ones), but where it was measured the vendor read 97 to 100 % of the most probable next tokens from
    what its own blocks compute: see docs/explanation/sharp-edges.md.
    """
    from cutlayer import core
    from cutlayer.customer import Client, Sampling
    from cutlayer.customer.profile import Profile

    output = Output(as_json=as_json)
    with core.checked():
        sampling = Sampling(
            max_new_tokens=max_new_tokens,
            greedy=greedy,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            beams=beams,
            length_penalty=length_penalty,
            stop=tuple(stop or ()),
            seed=seed,
        )
    client = Client(vendor, api_key, home=home, ca_cert=ca_cert, device=device)
    spec = Profile.load(client.home, adapter).spec
    warn_unprotected(output, eta=spec.privacy.eta, noise=spec.privacy.noise, unsafe_noise_seed=spec.unsafe_noise_seed)
    alone = len(prompt) == 1
    written = client.generate(
        adapter,
        prompt,
        sampling=sampling,
        on_text=(lambda number, piece: output.stream(piece)) if alone and not as_json else None,
    )
    if alone:
        output.stream("" if as_json else "\n")
    else:
        for number, each in enumerate(written, start=1):
            output.show(f"--- {number}")
            output.stream(f"{each.text}\n")
    first = written[0]
    tokens = sum(each.tokens for each in written)
    output.say(f"{tokens} tokens in {first.seconds:.1f} s, {first.round_trips} round trips")
    told = fields(first) if alone else {}
    output.result(
        {
            "adapter_id": adapter,
            **told,
            "texts": [fields(each) for each in written],
            "tokens": tokens,
            "seconds": first.seconds,
            "round_trips": first.round_trips,
        }
    )


def register(app: typer.Typer) -> None:
    """Adds the command to the main app."""
    app.command(
        epilog="Example: cutlayer generate --adapter 0f3c… --prompt 'Dear Mr Smith,' --max-new-tokens 60 "
        "--vendor https://vendor.example:8377"
    )(generate)
