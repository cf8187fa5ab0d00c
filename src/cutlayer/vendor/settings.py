"""What a vendor is set to: one JSON file in its data folder, and the layout of that folder.

```
data/
  vendor.json                          these settings
  vendor.id                            which data folder this is; its database says the same
  vendor.sqlite                        keys, record sets, jobs, adapters (unless a database URL is set)
  tls/{cert,key}.pem                   made by `vendor init --tls-host`
  models/<name>/card.json              what the vendor knows of a model without loading it
  models/<name>/archives/<cut>/        what a customer receives for a cut
  models/<name>/denoisers/<id>/        denoisers of the model's embeddings, handed out
  tenants/<tenant>/record-sets/<id>/   shards
  tenants/<tenant>/jobs/<id>/          write-ahead log, checkpoints, snapshots
  tenants/<tenant>/adapters/<id>/      published adapters in PEFT's format
```
"""

from __future__ import annotations

import json
import os
import re
import secrets
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from cutlayer.core import ConfigError, Fault, StorageError
from cutlayer.core.files import write_whole
from cutlayer.core.setting import Shown, setting
from cutlayer.core.spec import SettingsSpec
from cutlayer.wire.messages import MAX_CONTROL_BYTES, ModelName

MIB = 2**20
GIB = 2**30
_IDENTIFIER = re.compile(rb"[0-9a-f]{32}")


SERVICE, MODELS, LIMITS, WARM_UP = "Service", "Models", "Limits", "Warm-up"
"""Topics of these settings."""


class WarmUpSpec(SettingsSpec):
    """How a model learns from public text to read releases."""

    steps: int = setting(
        500,
        help="Updates. Texts that are fewer than steps times batch size are read again.",
        shown=Shown(WARM_UP, unit="steps"),
        ge=1,
    )
    batch_size: int = setting(32, help="Public texts of an update.", shown=Shown(WARM_UP, unit="texts"), ge=1)
    learning_rate: float = setting(
        3e-4, help="The highest rate; it falls to zero.", shown=Shown(WARM_UP), gt=0, allow_inf_nan=False
    )
    seed: int = setting(0, help="Of the order of the texts.", shown=Shown(WARM_UP), ge=0, lt=2**63)
    checkpoint_steps: int = setting(
        100, help="Steps between two states that a stopped warm-up goes on from.", shown=Shown(WARM_UP), ge=1
    )


class Limits(BaseModel):
    """What one request and one tenant may take."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_body_bytes: int = setting(256 * MIB, help="Largest request: a shard.", shown=Shown(LIMITS, unit="bytes"), ge=1)
    max_records_per_shard: int = setting(
        2**20,
        help="Most texts of a shard. Customers send 65,537 at most: as many tokens, and the empty text.",
        shown=Shown(LIMITS, unit="texts"),
        ge=1,
    )
    max_step_bytes: int = setting(
        64 * MIB,
        help="Largest step, gradient or inference; these are held in memory. Customers are told, and divide what they "
        "ask: positions times the model's width times 2 bytes, or 4 of fp32 rows.",
        shown=Shown(LIMITS, unit="bytes"),
        ge=1,
    )
    max_control_bytes: int = setting(
        MAX_CONTROL_BYTES,
        help="Largest JSON message; no honest one is longer than the default, which is the most there can be.",
        shown=Shown(LIMITS, unit="bytes"),
        ge=1024,
    )
    max_rows_per_step: int = setting(
        32768,
        help="Most positions of one forward pass: texts times the longest of them, special tokens included.",
        shown=Shown(LIMITS, unit="positions"),
        ge=1,
    )
    positions_per_piece: int = setting(
        4096,
        help="Most positions of an inference, padding included, that are computed before other tenants are served.",
        shown=Shown(LIMITS, unit="positions"),
        ge=1,
    )
    max_graph_bytes: int | None = setting(
        None,
        help="Most memory for what steps keep until their gradients come, by an estimate, of one step and of all jobs "
        "together. A job whose largest step takes more is refused before any text leaves, and so is a step that does; "
        "jobs that wait leave memory for others, those of the tenant that takes the most first.",
        shown=Shown(LIMITS, unit="bytes", default="half of the machine's memory"),
        ge=1,
    )
    stored_bytes_per_tenant: int = setting(
        50 * GIB,
        help="Most bytes of shards, jobs (logs, checkpoints, snapshots) and adapters that a tenant may keep. Uploads, "
        "new jobs, snapshots and adapters beyond it are refused, steps are not.",
        shown=Shown(LIMITS, unit="bytes"),
        ge=0,
    )
    record_sets_per_tenant: int = setting(
        10_000, help="Most record sets.", shown=Shown(LIMITS, unit="record sets"), ge=0
    )
    jobs_per_tenant: int = setting(100, help="Most unfinished jobs.", shown=Shown(LIMITS, unit="jobs"), ge=0)
    snapshots_per_job: int = setting(
        100,
        help="Most snapshots that a job may keep; customers keep one for each epoch that was the best so far.",
        shown=Shown(LIMITS, unit="snapshots"),
        ge=1,
    )
    max_labels: int = setting(
        4096,
        help="Most labels of an adapter: a forward pass answers with a number for each text and label.",
        shown=Shown(LIMITS, unit="labels"),
        ge=2,
    )
    max_adapter_parameters: int = setting(
        2**27,
        help="Largest adapter, head included. A job in memory takes 16 bytes for each parameter, a checkpoint 12.",
        shown=Shown(LIMITS, unit="parameters"),
        ge=1,
    )
    adapters_per_tenant: int = setting(1000, help="Most adapters.", shown=Shown(LIMITS, unit="adapters"), ge=0)
    requests_per_tenant: int = setting(
        16,
        help="Most requests of a tenant in progress at a time; others are answered with status 429 (Retry-After).",
        shown=Shown(LIMITS, unit="requests"),
        ge=1,
    )
    live_jobs: int = setting(
        32,
        help="Jobs kept in memory; others are resumed from disk when they are touched.",
        shown=Shown(LIMITS, unit="jobs"),
        ge=1,
    )
    live_adapters: int = setting(
        32,
        help="Adapters kept in memory, besides those that generation sessions use.",
        shown=Shown(LIMITS, unit="adapters"),
        ge=1,
    )
    max_live_bytes: int | None = setting(
        None,
        help="Most memory for what jobs and adapters hold between two requests (weights, gradients, moments, last "
        "answers), of one and of all together. One that takes more is refused; others leave memory for it: of the "
        "tenant that takes the most those used the longest ago.",
        shown=Shown(LIMITS, unit="bytes", default="a quarter of the machine's memory"),
        ge=1,
    )
    live_seconds: float = setting(
        600,
        help="A job or adapter that is idle for longer leaves memory; the next request brings it back, to the same "
        "bits.",
        shown=Shown(LIMITS, unit="seconds"),
        gt=0,
    )
    max_generation_bytes: int | None = setting(
        None,
        help="Most memory for the caches of all generation sessions together. Sessions of a tenant beyond its share "
        "end for one of a tenant within its own.",
        shown=Shown(LIMITS, unit="bytes", default="an eighth of the machine's memory"),
        ge=1,
    )
    generations_per_tenant: int = setting(
        16, help="Most generation sessions at a time.", shown=Shown(LIMITS, unit="sessions"), ge=1
    )
    generation_seconds: float = setting(
        600,
        help="A generation session that is idle for longer ends; its customer starts it again by itself.",
        shown=Shown(LIMITS, unit="seconds"),
        gt=0,
    )
    log_bytes_per_checkpoint: int = setting(
        256 * MIB,
        help="A job's log longer than this is shortened by a checkpoint out of turn.",
        shown=Shown(LIMITS, unit="bytes"),
        ge=1,
    )
    reserve_bytes: int = setting(
        256 * MIB,
        help="Room on disk that uploads, snapshots and new jobs leave free, for logs and checkpoints of jobs that run.",
        shown=Shown(LIMITS, unit="bytes"),
        ge=0,
    )
    body_seconds: float = setting(
        600, help="Longest time a request's body may take to arrive.", shown=Shown(LIMITS, unit="seconds"), gt=0
    )


class VendorSettings(BaseModel):
    """A vendor's settings.

    Attributes:
        data_dir: The data folder; not part of the file.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    data_dir: Path = Field(exclude=True)
    models: dict[ModelName, str] = setting(
        help="Name → source (`starter`, `starter-decoder`, a local folder, a hub id) of the models on offer.",
        shown=Shown(MODELS),
        min_length=1,
    )
    default_model: ModelName = setting(
        help="The model that a customer gets who names none.", shown=Shown(MODELS, default="the first")
    )
    database_url: str | None = setting(
        None,
        help="SQLAlchemy URL, for example `postgresql://user@host/db`.",
        shown=Shown(SERVICE, flags=("--db-url",), metavar="URL", default="SQLite in the folder"),
    )
    max_bottom: int | None = setting(
        None,
        help="The deepest cut for which bottoms are handed out; at most the number of blocks less one.",
        shown=Shown(MODELS, unit="blocks", default="half of the blocks"),
        ge=0,
    )
    max_tail: int | None = setting(
        None,
        help="The deepest tail that is handed out of decoders. A customer may fetch every cut on offer, so both "
        "together must leave the vendor a block.",
        shown=Shown(MODELS, unit="blocks", default="a quarter of the blocks, at most 2"),
        ge=0,
    )
    quantize: Literal["nf4"] | None = setting(
        None,
        help="The type that linear maps of the vendor's blocks are kept in. NF4 takes about an eighth of the memory, "
        "and adapters, prompts and prefixes are trained over it (QLoRA). What customers receive stays as it is. It "
        "makes another model of each: jobs and adapters of before do not go on with it.",
        shown=Shown(MODELS, source="Dettmers et al. 2023", default="as in the checkpoint, fp32", none="none"),
    )
    threads: int | None = setting(
        None,
        help="Compute threads. Jobs keep the number that they started with, because bits depend on it.",
        shown=Shown(SERVICE, unit="threads", default="the machine's cores"),
        ge=1,
        le=1024,
    )
    device: Literal["auto", "cpu", "cuda"] = setting(
        "auto",
        help="Where the top is computed. Bit-identical resume is promised for `cpu`.",
        shown=Shown(SERVICE),
    )
    keep_checkpoints: int = setting(
        3, help="Checkpoints that a job keeps to roll back to.", shown=Shown(SERVICE), ge=2, le=100
    )
    verify_shards: bool = setting(
        True,
        help="Read shards through once per process and compare them with their digests before they are used (about "
        "1.3 s per GB).",
        shown=Shown(SERVICE),
    )
    metrics_from_anywhere: bool = setting(
        False,
        help="Whether `/metrics` answers anybody who reaches it, without the key of `vendor key create --metrics`; it "
        "names tenants.",
        shown=Shown(SERVICE),
    )
    limits: Limits = Limits()

    @model_validator(mode="after")
    def _default_is_offered(self) -> Self:
        if self.default_model not in self.models:
            raise ValueError(f"default_model {self.default_model!r} is none of {', '.join(sorted(self.models))}")
        return self

    @property
    def url(self) -> str:
        """The database's SQLAlchemy URL."""
        if self.database_url is None:
            return f"sqlite:///{self.data_dir / 'vendor.sqlite'}"
        scheme, _, rest = self.database_url.partition("://")
        # SQLAlchemy's default driver for PostgreSQL is one we do not ship.
        return f"postgresql+psycopg://{rest}" if scheme in ("postgres", "postgresql") else self.database_url

    @property
    def compute_threads(self) -> int:
        """Threads of the compute thread's matrix products."""
        return self.threads or len(os.sched_getaffinity(0))

    @property
    def certificate(self) -> Path:
        """The TLS certificate, to be handed to customers."""
        return self.data_dir / "tls" / "cert.pem"

    @property
    def private_key(self) -> Path:
        """The TLS certificate's key."""
        return self.data_dir / "tls" / "key.pem"

    def check_model(self, name: str) -> None:
        """Refuses what is no model on offer.

        Raises:
            ConfigError: With the names of those that are.
        """
        if name not in self.models:
            raise ConfigError([Fault("model", name, f"must be one of {', '.join(self.models)}")])

    def model(self, name: str) -> Path:
        """A model's folder."""
        return self.data_dir / "models" / name

    def denoisers(self, model: str) -> Path:
        """The folder of a model's denoisers, each in one named by its id."""
        return self.model(model) / "denoisers"

    def tenant(self, tenant: str) -> Path:
        """A tenant's folder."""
        return self.data_dir / "tenants" / tenant

    def adapter(self, tenant: str, name: str) -> Path:
        """A published adapter's folder."""
        return self.tenant(tenant) / "adapters" / name

    def identifier(self) -> str | None:
        """What tells this data folder from all others, wherever it is moved; None if it has nothing yet.

        Raises:
            ConfigError: The file says something else.
            StorageError: The file cannot be read.
        """
        path = self.data_dir / "vendor.id"
        try:
            content = path.read_bytes().strip()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {error.strerror}.", remedy="Let its owner run this.") from error
        if not _IDENTIFIER.fullmatch(content):
            raise ConfigError(f"{path} holds no identifier: 32 hexadecimal digits.", remedy="Restore it.")
        return content.decode()

    def identify(self) -> str:
        """Gives the data folder its identifier. The folder is locked.

        Raises:
            StorageError: The folder cannot be written.
        """
        identifier = secrets.token_hex(16)
        path = self.data_dir / "vendor.id"
        try:
            write_whole(path, identifier.encode() + b"\n")
        except OSError as error:
            raise StorageError(
                f"{path} cannot be written: {error.strerror}.", remedy="Free some space, or choose another folder."
            ) from error
        return identifier

    def save(self) -> None:
        """Writes the settings into the data folder; readable by the owner only (the URL may hold a password)."""
        write_whole(_file(self.data_dir), self.model_dump_json(indent=2).encode() + b"\n")

    @classmethod
    def load(cls, data_dir: Path | str) -> VendorSettings:
        """The settings in a data folder.

        Raises:
            ConfigError: The folder is no vendor's, or its settings are off.
        """
        path = _file(Path(data_dir))
        try:
            return cls(data_dir=Path(data_dir).absolute(), **json.loads(path.read_bytes()))
        except OSError as error:
            raise ConfigError(
                f"{data_dir} is no vendor's data folder: {error.strerror or error}.",
                remedy="Make one with: cutlayer vendor init --data-dir DIR.",
            ) from error
        except ValidationError as error:
            raise ConfigError(faults(error, str(path))) from error
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"{path} is no JSON object.", remedy="Correct it, or remove it and run vendor init again."
            ) from error


def faults(error: ValidationError, prefix: str) -> list[Fault]:
    """Every fault of a validation, with path and value."""
    return [
        Fault(".".join([prefix, *map(str, fault["loc"])]), fault["input"], fault["msg"]) for fault in error.errors()
    ]


def _file(data_dir: Path) -> Path:
    return data_dir / "vendor.json"
