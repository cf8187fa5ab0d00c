"""Options that several commands share, worded once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from pydantic import SecretStr

from cutlayer.cli.output import Output
from cutlayer.core.cut import CUT
from cutlayer.core.setting import Shown, setting
from cutlayer.core.spec import SettingsSpec
from cutlayer.customer.columns import TEXTS
from cutlayer.customer.settings import LOCAL_MODEL
from cutlayer.privacy.spec import D_CHI, PRIVACY

if TYPE_CHECKING:
    from cutlayer.core.executors import Executor
    from cutlayer.customer import Account, Client

PARTIES, WORK = "Parties", "Work"
"""Topics of settings of a connection, and of work that is shared."""
DATA_HELP = "CSV, TSV, JSONL or Parquet, each also .gz; or hub:OWNER/NAME:SPLIT."

AsJson = Annotated[
    bool, typer.Option("--json", help="Print the result as one JSON object, the last line of standard output.")
]
AdapterId = Annotated[
    str,
    typer.Option("--adapter", metavar="ID", help="The adapter to ask.", show_default=False),
]


class Connection(SettingsSpec):
    """The vendor that is asked, and the folder of the customer who asks."""

    vendor: str | None = setting(
        None,
        help="The vendor's address.",
        shown=Shown(PARTIES, common=True, metavar="URL", env="CUTLAYER_VENDOR"),
    )
    api_key: SecretStr | None = setting(
        None,
        help="Your key at the vendor. The variable keeps it out of the process list.",
        shown=Shown(PARTIES, metavar="KEY", env="CUTLAYER_API_KEY"),
    )
    ca_cert: Path | None = setting(
        None,
        help="The certificate to trust, for a vendor that signed its own.",
        shown=Shown(PARTIES, metavar="FILE", env="CUTLAYER_CA_CERT"),
    )
    home: Path | None = setting(
        None,
        help="Your folder: secret, ledger, runs.",
        shown=Shown(PARTIES, metavar="DIR", env="CUTLAYER_HOME", default="~/.cutlayer"),
    )

    def account(self) -> Account:
        """What is needed to list and delete adapters, for which no model is loaded."""
        from cutlayer.customer import Account

        return Account(**self._access())

    def client(self, **more: Any) -> Client:
        """The SDK's client for it.

        Args:
            **more: What a client takes beside the connection.
        """
        from cutlayer.customer import Client

        return Client(**self._access(), **more)

    def _access(self) -> dict[str, Any]:
        key = None if self.api_key is None else self.api_key.get_secret_value()
        return {"vendor": self.vendor, "api_key": key, "home": self.home, "ca_cert": self.ca_cert}


class Customer(Connection):
    """A customer who computes a part of the model."""

    device: Literal["auto", "cpu", "cuda"] = setting(
        "auto", help="Where your part is computed. auto: on CUDA where there is one.", shown=Shown(PARTIES)
    )

    def client(self, **more: Any) -> Client:
        """The SDK's client for it."""
        return super().client(device=self.device, **more)


DRAW = (
    "privacy.mechanism",
    "privacy.eta",
    "privacy.words",
    "privacy.candidates",
    "privacy.draw",
    "privacy.space",
    "privacy.tagger",
    "privacy.vocabulary",
)
"""What a draw of words follows from, of the settings of a run."""


RELEASE = (
    *DRAW,
    "privacy.noise",
    "privacy.noise_window",
    "training.max_length",
    "privacy_budget",
    "unsafe_noise_seed",
)
"""What a release follows from, and may cost, of the settings of a run."""


class HeldOut(SettingsSpec):
    """Texts beside those that are learnt from."""

    dev: str | None = setting(
        None, help="For early stopping.", shown=Shown(TEXTS, metavar="FILE", default="a share of train")
    )
    test: str | None = setting(
        None,
        help="For the accuracy that is reported.",
        shown=Shown(TEXTS, common=True, metavar="FILE", default="dev"),
    )


class TrainingFiles(HeldOut):
    """Where a run's texts come from, and where its folder is."""

    train: str = setting(help=f"The texts to learn from: {DATA_HELP}", shown=Shown(TEXTS, common=True, metavar="FILE"))
    public_first: str | None = setting(
        None,
        help="Language models: begin with public text, before any private text leaves: a file with the columns of "
        "train, or `sample`, the embedded corpus. Measured, it hides little: see docs/papers/unsplit.md.",
        shown=Shown(PRIVACY, metavar="FILE|sample", source="Yao & Li, §5"),
    )
    out: Path | None = setting(
        None,
        help="The run's folder; a stopped run in it goes on, a finished one is shown again.",
        shown=Shown(TEXTS, metavar="DIR", default="a new folder in your own one"),
    )


class TableFiles(SettingsSpec):
    """A table that is read, and one that is written beside it."""

    input: str = setting(help=f"The texts: {DATA_HELP}", shown=Shown(TEXTS, common=True, metavar="FILE"))
    output: Path = setting(
        help="The file that is written, in the order of the input: .csv, .tsv, .jsonl, each also .gz.",
        shown=Shown(TEXTS, common=True, metavar="FILE"),
    )


class LocalModel(SettingsSpec):
    """The model of a vendor in this process."""

    model: str = setting(
        LOCAL_MODEL,
        help="The vendor's model: starter, starter-decoder, a local folder or a hub id.",
        shown=Shown(CUT, metavar="SOURCE"),
    )


class Work(SettingsSpec):
    """Where work is done that several processes can share."""

    jobs: int = setting(
        1,
        help="Processes that share the work; each has its part of the cores. 1: this one alone.",
        shown=Shown(WORK),
        ge=1,
    )
    ray: str | None = setting(
        None,
        help="Do the work on a Ray cluster of your own that runs already: auto, or HOST:PORT. Its machines must see "
        "the folders that are named here under the same paths.",
        shown=Shown(WORK, metavar="ADDRESS"),
    )

    def executor(self) -> Executor:
        """What does it.

        Raises:
            ConfigError: The settings contradict each other.
            MissingExtraError: Ray is not installed.
        """
        from cutlayer.core.executors import executor

        return executor(jobs=self.jobs, ray=self.ray)


DataDir = Annotated[Path, typer.Option("--data-dir", metavar="DIR", help="The vendor's folder.", show_default=False)]


def warn_unprotected(output: Output, *, eta: float, noise: str, unsafe_noise_seed: int | None) -> None:
    """Says before any work that texts leave unprotected, or protected by what nobody has verified, where they do.

    Raises:
        ConfigError: There is no such noise.
    """
    if noise != D_CHI:
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
