"""`cutlayer vendor`: make a vendor's folder, run the service, hand out keys."""

from __future__ import annotations

import threading
from typing import Annotated, Any

import typer

from cutlayer.cli import denoiser, warm_up
from cutlayer.cli.command import Part, settings_command
from cutlayer.cli.options import AsJson, DataDir
from cutlayer.cli.output import Output, fields
from cutlayer.cli.processes import end_with_stdin
from cutlayer.serving.address import Address
from cutlayer.vendor.settings import VendorSettings

app = typer.Typer(
    help="Run the side that owns the model.",
    epilog="Example: cutlayer vendor init --data-dir /srv/cutlayer --model starter",
    no_args_is_help=True,
)
keys = typer.Typer(
    help="API keys: one for each customer.",
    epilog="Example: cutlayer vendor key create hospital --data-dir /srv/cutlayer",
    no_args_is_help=True,
)
app.add_typer(keys, name="key")
denoiser.register(app)
warm_up.register(app)


@app.command(epilog="Example: cutlayer vendor init --data-dir /srv/cutlayer --model starter")
@settings_command(config=False)
def init(
    data_dir: DataDir,
    settings: Annotated[
        dict[str, Any], Part(VendorSettings, ("database_url", "max_bottom", "max_tail", "quantize", "threads"))
    ],
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            metavar="[NAME=]SOURCE",
            help="starter, starter-decoder, a local folder or a hub id; may be repeated. Default: starter. "
            "In a folder that is set up already: added, or in place of the model of that name.",
            show_default=False,
        ),
    ] = None,
    tls_host: Annotated[
        str | None,
        typer.Option(
            "--tls-host",
            metavar="NAME",
            help="Generate a certificate for this host name or address.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make the vendor's folder: settings, tables, a card for each model, and a certificate if asked for.

    Run it again to change settings: those that are not given stay as they are, and so do customers, keys and jobs.
    """
    from cutlayer import vendor

    output = Output(as_json=as_json)
    done = "Updated" if (data_dir / "vendor.json").exists() else "Made"
    made = vendor.init(data_dir, models=model, tls_host=tls_host, **settings)
    if tls_host is not None:
        output.show(f"Customers reach it as {tls_host} and pass --ca-cert with this file: {made.certificate}")
    output.show(f"{done} {data_dir}. Next: cutlayer vendor key create NAME --data-dir {data_dir}")
    # a database's address may hold its password
    output.result({"data_dir": str(data_dir), "settings": made.model_dump(mode="json", exclude={"database_url"})})


@app.command(epilog="Example: cutlayer vendor serve --data-dir /srv/cutlayer --port 8377")
@settings_command(config=False)
def serve(
    data_dir: DataDir,
    settings: Annotated[dict[str, Any], Part(VendorSettings, ("threads",), (("threads", "as set"),))],
    address: Annotated[
        dict[str, Any],
        Part(Address, (), (("port", "8377"), ("tls_cert", "the folder's own"), ("tls_key", "the folder's own"))),
    ],
    until_stdin_closes: Annotated[
        bool, typer.Option("--until-stdin-closes", hidden=True, help="End with the process that started this one.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run the service until it is interrupted. Health is at /healthz, metrics at /metrics, the API at /openapi.json.

    With --json its address is printed at once, and requests to it wait until it is ready.
    """
    from cutlayer import vendor

    output = Output(as_json=as_json)
    if until_stdin_closes:
        threading.Thread(target=end_with_stdin, daemon=True).start()
    vendor.serve(
        data_dir,
        **address,
        threads=settings.get("threads"),
        on_listening=lambda url: output.result({"url": url, "data_dir": str(data_dir)}),
    )


@keys.command("create", epilog="Example: cutlayer vendor key create hospital --data-dir /srv/cutlayer")
def create_key(
    data_dir: DataDir,
    name: Annotated[
        str | None, typer.Argument(help="The customer's name: lower-case letters, digits, hyphens.", show_default=False)
    ] = None,
    metrics: Annotated[
        bool, typer.Option("--metrics", help="Instead of a customer's: a key that reads /metrics and nothing else.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make a key for a customer and print it. Only its digest is stored: it cannot be shown again.

    A second key for the same name opens the same customer's things.
    """
    from cutlayer.core import ConfigError, Fault
    from cutlayer.vendor import keys as store

    output = Output(as_json=as_json)
    if (name is None) != metrics:
        raise ConfigError([Fault("name", name, "must be a customer's name, or left out with --metrics")])
    name = store.METRICS if name is None else name
    key = store.create(data_dir, name)
    if not as_json:
        whom = "whatever reads /metrics" if metrics else "the customer"
        output.say(f"Hand this key to {whom}; it cannot be shown again:")
        output.show(key)
    output.result({"name": name, "key": key})


@keys.command("list", epilog="Example: cutlayer vendor key list --data-dir /srv/cutlayer")
def list_keys(data_dir: DataDir, as_json: AsJson = False) -> None:
    """List keys by their public part. The keys themselves are not stored."""
    from cutlayer.vendor import keys as store

    output = Output(as_json=as_json)
    found = store.list(data_dir)
    output.table(
        "Keys",
        ("id", "name", "created", "revoked"),
        [(key.id, key.tenant, key.created, key.revoked or "") for key in found],
    )
    output.result({"keys": [fields(key) for key in found]})


@keys.command("revoke", epilog="Example: cutlayer vendor key revoke hospital --data-dir /srv/cutlayer")
def revoke_key(
    name: Annotated[
        str, typer.Argument(help="A key's id, or a customer's name for all of the customer's keys.", show_default=False)
    ],
    data_dir: DataDir,
    as_json: AsJson = False,
) -> None:
    """End keys. A running service stops accepting them within seconds; what the customer stored stays."""
    from cutlayer.vendor import keys as store

    output = Output(as_json=as_json)
    revoked = store.revoke(data_dir, name)
    output.show(f"Revoked: {', '.join(key.id for key in revoked)}")
    output.result({"revoked": [fields(key) for key in revoked]})
