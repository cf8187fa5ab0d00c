"""`cutlayer adapter`: what was trained and is kept at the vendor."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cutlayer.cli.options import ApiKey, AsJson, CaCertificate, Home, Vendor
from cutlayer.cli.output import Output

if TYPE_CHECKING:
    from cutlayer.customer import Client

app = typer.Typer(
    help="List, show and delete adapters at the vendor.",
    epilog="Example: cutlayer adapter list",
    no_args_is_help=True,
)
Identifier = Annotated[str, typer.Argument(metavar="ID", help="The adapter's identifier.", show_default=False)]


def _client(vendor: str | None, api_key: str | None, home: Path | None, ca_cert: Path | None) -> Client:
    from cutlayer.customer import Client

    return Client(vendor, api_key, home=home, ca_cert=ca_cert)


def _privacy(client: Client, adapter: str) -> str:
    """How an adapter's texts left, which only the folder knows where it was trained."""
    from cutlayer.customer.profile import Profile, known

    if adapter not in known(client.home):
        return "trained elsewhere"
    spec = Profile.load(client.home, adapter).spec.privacy
    return "none" if spec.mechanism == "none" else f"eta {spec.eta:g}, {spec.mechanism}{', CTI' if spec.cti else ''}"


@app.command("list", epilog="Example: cutlayer adapter list --vendor http://127.0.0.1:8377")
def list_adapters(
    vendor: Vendor = None,
    api_key: ApiKey = None,
    home: Home = None,
    ca_cert: CaCertificate = None,
    as_json: AsJson = False,
) -> None:
    """List your adapters."""
    output = Output(as_json=as_json)
    client = _client(vendor, api_key, home, ca_cert)
    found = client.adapters()
    output.table(
        "Adapters",
        ("id", "model", "privacy", "labels", "step", "created"),
        [
            (info.adapter, info.model, _privacy(client, info.adapter), info.num_labels, info.step, info.created)
            for info in found
        ],
    )
    output.result({"adapters": [info.model_dump(mode="json") for info in found]})


@app.command(epilog="Example: cutlayer adapter show 0f3c… --vendor http://127.0.0.1:8377")
def show(
    identifier: Identifier,
    vendor: Vendor = None,
    api_key: ApiKey = None,
    home: Home = None,
    ca_cert: CaCertificate = None,
    as_json: AsJson = False,
) -> None:
    """Show an adapter, with the sha256 of its weights."""
    output = Output(as_json=as_json)
    client = _client(vendor, api_key, home, ca_cert)
    info = client.adapter(identifier)
    content = info.model_dump(mode="json")
    facts = [(name, info.cut.slug if name == "cut" else value) for name, value in content.items() if name != "adapter"]
    output.facts(f"Adapter {info.adapter}", [*facts, ("privacy", _privacy(client, identifier))])
    output.result(content)


@app.command(epilog="Example: cutlayer adapter delete 0f3c… --vendor http://127.0.0.1:8377")
def delete(
    identifier: Identifier,
    vendor: Vendor = None,
    api_key: ApiKey = None,
    home: Home = None,
    ca_cert: CaCertificate = None,
    as_json: AsJson = False,
) -> None:
    """Delete an adapter at the vendor, for good."""
    output = Output(as_json=as_json)
    _client(vendor, api_key, home, ca_cert).delete_adapter(identifier)
    output.show(f"Deleted {identifier}.")
    output.result({"adapter": identifier, "deleted": True})
