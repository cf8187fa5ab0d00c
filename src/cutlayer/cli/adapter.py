"""`cutlayer adapter`: what was trained and is kept at the vendor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cutlayer.cli.command import settings_command
from cutlayer.cli.options import AsJson, Connection
from cutlayer.cli.output import Output
from cutlayer.privacy.spec import D_CHI, WordDraw, Words

if TYPE_CHECKING:
    from cutlayer.customer import Account
    from cutlayer.wire.messages import AdapterInfo

app = typer.Typer(
    help="List, show and delete adapters at the vendor.",
    epilog="Example: cutlayer adapter list",
    no_args_is_help=True,
)
Identifier = Annotated[str, typer.Argument(metavar="ID", help="The adapter's identifier.", show_default=False)]


def _content(account: Account, info: AdapterInfo) -> dict[str, Any]:
    """What the vendor says of an adapter, and how its texts left, which only the folder knows where it was trained."""
    from cutlayer.customer import TrainBottom
    from cutlayer.customer.profile import Profile, known

    privacy = None
    if info.adapter in known(account.home):
        run = Profile.load(account.home, info.adapter).spec
        privacy = {
            "mechanism": run.privacy.mechanism,
            "eta": run.privacy.eta,
            "noise": run.privacy.noise,
            "cti": run.privacy.cti is not None,
            "cti_class_free": run.privacy.cti is not None and run.privacy.cti.class_free,
            "resampled": run.train_bottom is TrainBottom.RESAMPLE,
        }
        if isinstance(run.privacy, Words):
            privacy |= run.privacy.model_dump(mode="json", include=set(WordDraw.model_fields))
    return {**info.model_dump(mode="json"), "privacy": privacy}


def _in_words(privacy: Mapping[str, Any] | None) -> str:
    if privacy is None:
        return "trained elsewhere"
    if privacy["mechanism"] == "none":
        return "none"
    words = [f"eta {privacy['eta']:g}", privacy["mechanism"]]
    if "words" in privacy:
        becomes = "words of their category" if privacy["candidates"] == "category" else "any words"
        words += [f"{'+'.join(privacy['words'])} by {becomes}", f"space {privacy['space']}"]
        if privacy["draw"] != "noise":
            words.append(f"{privacy['draw']} draw")
    if privacy["noise"] != D_CHI:
        words.append(f"noise {privacy['noise']}")
    if privacy["cti"]:
        words.append("CTI class-free" if privacy["cti_class_free"] else "CTI")
    if privacy["resampled"]:
        words.append("resampled each epoch")
    return ", ".join(words)


@app.command("list", epilog="Example: cutlayer adapter list --vendor http://127.0.0.1:8377")
@settings_command(config=False)
def list_adapters(
    connection: Connection,
    as_json: AsJson = False,
) -> None:
    """List your adapters."""
    output = Output(as_json=as_json)
    account = connection.account()
    found = [_content(account, info) for info in account.adapters()]
    output.table(
        "Adapters",
        ("id", "model", "privacy", "labels", "step", "created"),
        [
            (
                *(each[name] for name in ("adapter", "model")),
                _in_words(each["privacy"]),
                *(each[name] for name in ("num_labels", "step", "created")),
            )
            for each in found
        ],
    )
    output.result({"adapters": found})


@app.command(epilog="Example: cutlayer adapter show 0f3c… --vendor http://127.0.0.1:8377")
@settings_command(config=False)
def show(
    identifier: Identifier,
    connection: Connection,
    as_json: AsJson = False,
) -> None:
    """Show an adapter, with the sha256 of its weights."""
    output = Output(as_json=as_json)
    account = connection.account()
    info = account.adapter(identifier)
    content = _content(account, info)
    # ids make every cut a text cut: the vendor looks them up in its own table
    takes = "token ids" if info.cut.is_text else f"rows of the cut {info.cut.slug}"
    shown = {**content, "cut": f"the vendor takes {takes}", "privacy": _in_words(content["privacy"])}
    output.facts(f"Adapter {info.adapter}", [fact for fact in shown.items() if fact[0] != "adapter"])
    output.result(content)


@app.command(epilog="Example: cutlayer adapter delete 0f3c… --vendor http://127.0.0.1:8377")
@settings_command(config=False)
def delete(
    identifier: Identifier,
    connection: Connection,
    as_json: AsJson = False,
) -> None:
    """Delete an adapter at the vendor, for good."""
    output = Output(as_json=as_json)
    connection.account().delete_adapter(identifier)
    output.show(f"Deleted {identifier}.")
    output.result({"adapter": identifier, "deleted": True})
