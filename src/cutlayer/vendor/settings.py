"""What a vendor is set to: one JSON file in its data folder, and the layout of that folder.

```
data/
  vendor.json                          these settings
  vendor.id                            which data folder this is; its database says the same
  vendor.sqlite                        keys, record sets, jobs, adapters (unless a database URL is set)
  tls/{cert,key}.pem                   made by `vendor init --tls-host`
  models/<name>/card.json              what the vendor knows of a model without loading it
  models/<name>/archives/<cut>/        what a customer receives for a cut
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
from cutlayer.wire.messages import MAX_CONTROL_BYTES, ModelName

MIB = 2**20
GIB = 2**30
_IDENTIFIER = re.compile(rb"[0-9a-f]{32}")


class Limits(BaseModel):
    """What one request and one tenant may take. Bytes unless the name says otherwise."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_body_bytes: int = Field(default=256 * MIB, ge=1)
    """Largest request: a shard."""
    max_records_per_shard: int = Field(default=2**20, ge=1)
    """Most texts of a shard. Customers send 65,537 at most: as many tokens, and the empty text."""
    max_step_bytes: int = Field(default=64 * MIB, ge=1)
    """Largest step, gradient or inference; these are held in memory."""
    max_control_bytes: int = Field(default=MAX_CONTROL_BYTES, ge=1024)
    """Largest JSON message; no honest one is longer than the default, which is the most there can be."""
    max_rows_per_step: int = Field(default=32768, ge=1)
    """Most positions of one forward pass: texts times the longest of them, special tokens included."""
    positions_per_piece: int = Field(default=4096, ge=1)
    """Most positions of an inference, padding included, that are computed before other tenants are served."""
    max_graph_bytes: int | None = Field(default=None, ge=1)
    """Most memory for what steps keep until their gradients come, of one step and of all jobs together; half of
    the machine's by default. A step that takes more is refused; jobs that wait leave memory for others, those of
    the tenant that takes the most first."""
    stored_bytes_per_tenant: int = Field(default=50 * GIB, ge=0)
    """Most bytes of shards, jobs and adapters that a tenant may keep. Steps are not refused for it."""
    record_sets_per_tenant: int = Field(default=10_000, ge=0)
    jobs_per_tenant: int = Field(default=100, ge=0)
    """Most unfinished jobs."""
    snapshots_per_job: int = Field(default=100, ge=1)
    """Most snapshots that a job may keep; customers keep one for each epoch that was the best so far."""
    max_labels: int = Field(default=4096, ge=2)
    """Most labels of an adapter: a forward pass answers with a number for each text and label."""
    max_adapter_parameters: int = Field(default=2**27, ge=1)
    """Largest adapter, head included, in parameters. A job in memory takes 16 bytes for each."""
    adapters_per_tenant: int = Field(default=1000, ge=0)
    requests_per_tenant: int = Field(default=16, ge=1)
    """Most requests in progress at a time; more are told to try again."""
    live_jobs: int = Field(default=32, ge=1)
    """Jobs kept in memory; others are resumed from disk when they are touched."""
    live_adapters: int = Field(default=32, ge=1)
    """Adapters kept in memory, besides those that generation sessions use."""
    max_live_bytes: int | None = Field(default=None, ge=1)
    """Most memory for what jobs and adapters hold between two requests, of one and of all together; a quarter of the
    machine's by default. One that takes more is refused; others leave memory for it, those of the tenant that takes
    the most first."""
    live_seconds: float = Field(default=600, gt=0)
    """A job or adapter that is idle for longer leaves memory; the next request brings it back."""
    max_generation_bytes: int | None = Field(default=None, ge=1)
    """Most memory for the caches of all generation sessions together; an eighth of the machine's by default. Sessions
    of a tenant beyond its share end for one of a tenant within its own."""
    generations_per_tenant: int = Field(default=16, ge=1)
    """Most generation sessions at a time."""
    generation_seconds: float = Field(default=600, gt=0)
    """A generation session that is idle for longer ends; its customer can start it again."""
    log_bytes_per_checkpoint: int = Field(default=256 * MIB, ge=1)
    """A job's log longer than this is shortened by a checkpoint out of turn."""
    reserve_bytes: int = Field(default=256 * MIB, ge=0)
    """Room on disk that uploads, snapshots and new jobs leave free, for logs and checkpoints of jobs that run."""
    body_seconds: float = Field(default=600, gt=0)
    """Longest time a request's body may take to arrive."""


class VendorSettings(BaseModel):
    """A vendor's settings.

    Attributes:
        data_dir: The data folder; not part of the file.
        models: Name → source (`starter`, `starter-decoder`, a local folder, a hub id) of the models on offer.
        default_model: The model that a customer gets who names none.
        database_url: SQLAlchemy URL, for example `postgresql://user@host/db`. Default: SQLite in
            the data folder.
        max_bottom: The deepest cut for which bottoms are handed out; default: half of the blocks.
        max_tail: The deepest tail that is handed out of decoders; default: a quarter of the blocks, at most 2.
            A customer may fetch every cut on offer, so both together must leave the vendor a block.
        threads: Compute threads; default: as many as this machine has cores. Jobs keep the number
            that they started with, because bits depend on it.
        device: Where the top is computed. Bit-identical resume is promised for `cpu`.
        keep_checkpoints: How many checkpoints a job keeps to roll back to.
        verify_shards: Whether shards are read through once per process and compared with their
            digests before they are used (about 1.3 s per GB).
        metrics_from_anywhere: Whether `/metrics` answers anybody who reaches it, without a key; it names tenants.
        limits: What one request and one tenant may take.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    data_dir: Path = Field(exclude=True)
    models: dict[ModelName, str] = Field(min_length=1)
    default_model: ModelName
    database_url: str | None = None
    max_bottom: int | None = Field(default=None, ge=0)
    max_tail: int | None = Field(default=None, ge=0)
    threads: int | None = Field(default=None, ge=1, le=1024)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    keep_checkpoints: int = Field(default=3, ge=2, le=100)
    verify_shards: bool = True
    metrics_from_anywhere: bool = False
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

    def model(self, name: str) -> Path:
        """A model's folder."""
        return self.data_dir / "models" / name

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
