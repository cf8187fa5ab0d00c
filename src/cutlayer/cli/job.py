"""`cutlayer job`: jobs at the vendor."""

from __future__ import annotations

from typing import Annotated

import typer

from cutlayer.cli.command import settings_command
from cutlayer.cli.options import AsJson, Connection
from cutlayer.cli.output import Output

app = typer.Typer(
    help="List, watch and cancel jobs at the vendor.", epilog="Example: cutlayer job list", no_args_is_help=True
)
Identifier = Annotated[str, typer.Argument(metavar="ID", help="The job's identifier.", show_default=False)]


@app.command("list", epilog="Example: cutlayer job list --vendor http://127.0.0.1:8377")
@settings_command(config=False)
def list_jobs(connection: Connection, as_json: AsJson = False) -> None:
    """List your jobs."""
    output = Output(as_json=as_json)
    found = [job.model_dump(mode="json") for job in connection.account().jobs()]
    names = ("job", "model", "state", "step", "total_steps", "by_vendor")
    output.table("Jobs", names, [tuple(each[name] for name in names) for each in found])
    output.result({"jobs": found})


@app.command(epilog="Example: cutlayer job watch 0f3c… --vendor http://127.0.0.1:8377")
@settings_command(config=False)
def watch(identifier: Identifier, connection: Connection, as_json: AsJson = False) -> None:
    """Show how far a job is that the vendor trains alone, until it is finished.

    Interrupt it, and run it again. The run that began the job fetches its result: repeat that `cutlayer finetune`.
    """
    output = Output(as_json=as_json)
    with output.progress() as progress:
        told = connection.account().watch_job(identifier, progress)
    output.show(f"Job {identifier} is {told.state}, after {told.step} steps.")
    output.result(told.model_dump(mode="json"))


@app.command(epilog="Example: cutlayer job cancel 0f3c… --vendor http://127.0.0.1:8377")
@settings_command(config=False)
def cancel(identifier: Identifier, connection: Connection, as_json: AsJson = False) -> None:
    """Cancel a job; what was released stays in the ledger."""
    output = Output(as_json=as_json)
    info = connection.account().cancel_job(identifier)
    output.show(f"Job {identifier} is {info.state}.")
    output.result({"job": identifier, "state": info.state})
