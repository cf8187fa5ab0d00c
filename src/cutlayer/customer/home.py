"""The customer's own folder: what must survive, and where it lies.

```
home/
  secret              32 random bytes, mode 0600: every identity and every noise key derives from it
  ledger.sqlite       what left, written before it left
  vault.sqlite        sealed copies of released rows, and of embeddings as they came
  archives/<sha256>/  bottoms, by the digest of their manifest
  known_models.jsonl  the token table and tokenizer that each vendor handed out first
  denoisers/<id>/     what takes the noise out of embeddings, as vendors handed it out
  adapters/<id>/      how to query an adapter: label names, privacy settings, CTI scores, own bottom
  runs/<id>/          state of fine-tuning runs
  entities/<id>       sealed maps of jobs whose entities were protected: without one no answer is restored
  drawn/<digest>/     sealed shards of a corpus that `privatize` has not finished; may be deleted at any time
```
Losing `secret` means that every text released before would be drawn again: a second look.
"""

from __future__ import annotations

import json
import os
import re
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cutlayer.core import ConfigError, Fault, StorageError
from cutlayer.core.files import write_whole
from cutlayer.customer.known_models import KnownModels
from cutlayer.privacy import CustomerSecret, Ledger, Vault
from cutlayer.wire import routes

_LEDGER = "ledger.sqlite"
_VAULT = "vault.sqlite"
_JOB = re.compile("[0-9a-f]{32}")


def default_home() -> Path:
    """`CUTLAYER_HOME`, or `.cutlayer` in the user's home folder."""
    return Path(os.environ.get("CUTLAYER_HOME") or "~/.cutlayer")


def existing_ledger(path: Path | None = None) -> Ledger:
    """The ledger in a customer's folder, to be read; nothing is made.

    Args:
        path: The folder; the default one where it is left out.

    Raises:
        ConfigError: There is none: an empty one would say that nothing left, of a folder that was misspelt.
    """
    file = (default_home() if path is None else path).expanduser() / _LEDGER
    if not file.exists():
        raise ConfigError(
            [Fault("home", str(file.parent), "must be a customer's folder; there is no ledger in it")],
            remedy="Name the folder with --home or CUTLAYER_HOME. The first release makes its ledger.",
        )
    return Ledger(file)


class Home:
    """A customer's folder; made on first use.

    Args:
        path: The folder.
    """

    def __init__(self, path: Path | None = None) -> None:
        # settings and service files are read by no shell that would know `~`
        self.path = (default_home() if path is None else Path(path)).expanduser()
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise StorageError(
                f"The customer's folder {self.path} cannot be made: {error.strerror}.",
                remedy="Set CUTLAYER_HOME to a folder that can be written.",
            ) from error

    @cached_property
    def secret(self) -> CustomerSecret:
        """The key that identities and noise derive from.

        Raises:
            StorageError: It is gone, or is another one: with that, every text would be drawn again, under a name of
                its own.
        """
        path = self._secret_path
        # the ledger is made first, so that a secret without one means that it was lost
        if not self.ledger.is_empty() and not path.exists():
            raise StorageError(
                f"The secret {path} is missing, and {self.ledger.path} tells of texts that were released with it.",
                remedy="Restore it from a backup. Another folder (CUTLAYER_HOME) begins anew: it draws every text "
                "again, and knows of no budget that was spent.",
            )
        secret = CustomerSecret.load_or_create(path)
        if not self.ledger.belongs_to(secret.derive("ledger")):
            raise StorageError(
                f"The secret {path} is not the one with which the texts in {self.ledger.path} were released.",
                remedy="Restore the secret and the ledger of one folder together. With another secret every text would "
                "be drawn again, and no budget that was spent would count.",
            )
        self._check_ledger_is_newest(secret)
        return secret

    def _check_ledger_is_newest(self, secret: CustomerSecret) -> None:
        """Refuses a ledger that ends before what the vault remembers of it, and has the vault remember from now on."""
        vault = Vault(self.path / _VAULT, secret)
        ends, known = self.ledger.newest(), vault.noted()
        if ends < known:
            raise StorageError(
                f"The ledger {self.ledger.path} ends at frame {ends}, and {self.path / _VAULT} knows of frame {known}: "
                "this is an older copy, which has forgotten what was released and spent since.",
                remedy="Restore the newest copy of the ledger. If it is lost, begin another folder (CUTLAYER_HOME), "
                "which draws every text again, and count what was spent here as spent.",
            )
        self.ledger.witness = vault.note

    @property
    def _secret_path(self) -> Path:
        return self.path / "secret"

    def secret_file(self) -> Path:
        """Where the secret lies, made and compared with the ledger as by `secret`: for another process to read."""
        _ = self.secret
        return self._secret_path

    @cached_property
    def ledger(self) -> Ledger:
        """The record of what left.

        Raises:
            StorageError: It is gone: what was spent on texts is not known any more.
        """
        path = self.path / _LEDGER
        if not path.exists() and self._secret_path.exists():
            raise StorageError(
                f"The ledger {path} is missing, though the secret beside it was used.",
                remedy="Restore it from a backup: it knows what left and what was spent. If no text was ever released "
                "from this folder, remove its secret.",
            )
        return Ledger(path)

    @cached_property
    def vault(self) -> Vault:
        """Sealed copies of released rows, and how far the ledger has come."""
        return Vault(self.path / _VAULT, self.secret)

    @property
    def drawn(self) -> Path:
        """Sealed shards of corpora that were not finished."""
        return self.path / "drawn"

    @property
    def archives(self) -> Path:
        """Bottoms that vendors handed out."""
        return self.path / "archives"

    @property
    def known_models(self) -> KnownModels:
        """What vendors handed out first."""
        return KnownModels(self.path / "known_models.jsonl")

    @property
    def denoisers(self) -> Path:
        """Denoisers that vendors handed out."""
        return self.path / "denoisers"

    def adapter(self, identifier: str) -> Path:
        """What is needed to query an adapter.

        Raises:
            ConfigError: This is no adapter's identifier.
        """
        return self.path / "adapters" / adapter_identifier(identifier)

    def entities(self, job: str) -> Path:
        """The map of a job whose entities were protected.

        Raises:
            ConfigError: This is no job's name.
        """
        if not _JOB.fullmatch(job):
            raise ConfigError([Fault("job", job, "must be 32 characters of 0-9a-f")])
        return self.path / "entities" / job

    def has_entities(self, name: str) -> bool:
        """Whether a name, which may be anything, is that of a job whose entities were protected here."""
        return _JOB.fullmatch(name) is not None and self.entities(name).exists()

    def run(self, identifier: str) -> Path:
        """The state of a run."""
        return self.path / "runs" / identifier


def adapter_identifier(text: str) -> str:
    """The text, if it has the form of an adapter's identifier: one like `..` would name another folder.

    Raises:
        ConfigError: It has not.
    """
    return _identifier("adapter", text)


def job_identifier(text: str) -> str:
    """The text, if it has the form of a job's identifier.

    Raises:
        ConfigError: It has not.
    """
    return _identifier("job", text)


def _identifier(kind: str, text: str) -> str:
    try:
        routes.PLACEHOLDERS[kind].validate_python(text, strict=True)
    except ValidationError:
        raise ConfigError(
            [Fault(kind, text, "must be 32 characters of 0-9a-f")],
            remedy=f"`cutlayer {kind} list` shows the identifiers of your {kind}s.",
        ) from None
    return text


def write_json(path: Path, content: Any) -> None:
    """Replaces a file whole: after a crash it holds the old content or the new, never half.

    Raises:
        StorageError: The file could not be written (a full disk, say); the old one is untouched.
    """
    # settings may name files
    write_bytes(path, json.dumps(content, indent=1, sort_keys=True, default=os.fspath).encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Replaces a file whole, and waits until it is on disk; only its owner can read it.

    Raises:
        StorageError: The file could not be written; the old one is untouched.
    """
    try:
        write_whole(path, content)
    except OSError as error:
        raise StorageError(
            f"{path} could not be written: {error.strerror}.", remedy="Free some space or choose another folder."
        ) from error


def read_json(path: Path) -> Any:
    """The content of a file that `write_json` wrote.

    Raises:
        StorageError: The file is not readable JSON.
    """
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise StorageError(
            f"{path} cannot be read: {type(error).__name__}.", remedy="Restore it from a copy, or remove it."
        ) from error
