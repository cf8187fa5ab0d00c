"""`cutlayer gateway`: embeddings for applications that speak OpenAI's API."""

from __future__ import annotations

import threading
from typing import Annotated, Any

import typer

from cutlayer.cli.command import Part, settings_command
from cutlayer.cli.options import RELEASE, AsJson, Connection, Customer, warn_unprotected
from cutlayer.cli.output import Output
from cutlayer.cli.processes import end_with_stdin
from cutlayer.customer.embedding import EmbeddingSettings
from cutlayer.customer.settings import FinetuneSpec
from cutlayer.gateway.settings import GatewaySettings
from cutlayer.serving.address import Address

app = typer.Typer(
    epilog="Example: cutlayer gateway --vendor https://vendor.example:8377 --eta 80 "
    "--denoiser none --alias text-embedding-3-small=starter",
    invoke_without_command=True,
)


@app.callback()
@settings_command
def gateway(
    settings: Annotated[dict[str, Any], Part(FinetuneSpec, (*RELEASE, "privacy.clip", "wire_type"))],
    own: EmbeddingSettings,
    asked: GatewaySettings,
    customer: Customer,
    address: Annotated[Address, Part(Address, (), (("port", "8378"),))],
    until_stdin_closes: Annotated[
        bool, typer.Option("--until-stdin-closes", hidden=True, help="End with the process that started this one.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Embed texts for applications that speak OpenAI's API: POST /v1/embeddings, privatized on the way to the vendor.

    Applications send the gateway's own key (`cutlayer gateway key`); the vendor's stays here. Other routes are
    /v1/models, /ledger and /healthz. It runs until it is interrupted.
    """
    from cutlayer import gateway as room

    output = Output(as_json=as_json)
    privacy, seed = settings["privacy"], settings.get("unsafe_noise_seed")
    warn_unprotected(output, eta=privacy.eta, noise=privacy.noise, unsafe_noise_seed=seed)
    if until_stdin_closes:
        threading.Thread(target=end_with_stdin, daemon=True).start()
    room.serve(
        customer.client(),
        FinetuneSpec(**settings),
        asked,
        address,
        denoiser=own.denoiser,
        on_listening=lambda url: output.result({"url": url, "base_url": f"{url}/v1"}),
    )


@app.command(epilog="Example: cutlayer gateway key")
@settings_command(config=False)
def key(folder: Annotated[dict[str, Any], Part(Connection, ("home",))], as_json: AsJson = False) -> None:
    """Make the key that applications send to the gateway, and print it. The previous key stops working."""
    from cutlayer.customer import Home
    from cutlayer.gateway import make_key

    output = Output(as_json=as_json)
    made = make_key(Home(folder.get("home")))
    if not as_json:
        output.say("Give this key to the application; it cannot be shown again:")
        output.show(made)
    output.result({"key": made})
