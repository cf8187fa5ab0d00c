"""`cutlayer generate`: texts that the vendor's blocks continue, token by token."""

from __future__ import annotations

from typing import Annotated

import typer

from cutlayer.cli.command import settings_command
from cutlayer.cli.options import AdapterId, AsJson, Customer, warn_unprotected
from cutlayer.cli.output import Output, fields
from cutlayer.customer.columns import TEXTS
from cutlayer.customer.settings import Sampling


@settings_command
def generate(
    adapter: AdapterId,
    prompt: Annotated[
        list[str],
        typer.Option(
            "--prompt",
            metavar="TEXT",
            help="What to continue; may be repeated, and all are continued together.",
            show_default=False,
            rich_help_panel=TEXTS,
        ),
    ],
    sampling: Sampling,
    customer: Customer,
    entities: Annotated[
        list[str] | None,
        typer.Option(
            "--entities",
            metavar="TEXT",
            help="A name whose words leave as drawn ones, and are put back into the text; may be repeated. For "
            "adapters that draw nothing themselves.",
            show_default=False,
            rich_help_panel=TEXTS,
        ),
    ] = None,
    entities_eta: Annotated[
        float | None,
        typer.Option(
            "--entities-eta",
            metavar="ETA",
            min=0,
            help="As --eta of protect: how they are drawn, in 1/distance. Smaller ones hide more.",
            show_default=False,
            rich_help_panel=TEXTS,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Continue texts with a language model's adapter, or answer them with an encoder-decoder's.

    They are privatized in the way it was trained.

    One prompt's text appears as it comes. Behind a bottom of 1 or more no token ids are sent (bottom 0: drawn ones, at
    eta inf the true ones), but where it was measured the vendor read 97 to 100 % of the most probable next tokens from
    what its own blocks compute: see docs/explanation/sharp-edges.md.
    """
    from cutlayer.customer.profile import Profile

    if bool(entities) != (entities_eta is not None):
        raise typer.BadParameter("go together", param_hint="--entities, --entities-eta")
    output = Output(as_json=as_json)
    client = customer.client()
    profile = Profile.load(client.home, adapter)
    if entities:
        profile.check_restores()  # before their words are charged
    spec = profile.spec
    warn_unprotected(output, eta=spec.privacy.eta, noise=spec.privacy.noise, unsafe_noise_seed=spec.unsafe_noise_seed)
    alone = len(prompt) == 1
    written = client.generate(
        adapter,
        client.protect(prompt, entities, eta=entities_eta) if entities else prompt,
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
