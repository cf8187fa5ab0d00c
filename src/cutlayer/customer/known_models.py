"""What vendors handed out before. With another token table or tokenizer, every text would be drawn again.

A draw is named by the table's unit, and by how a text reads in the vendor's tokenizer. A vendor that changes one of
them, and names the model as before, gets another look at each text that it is asked about again: charged in another
unit, or to other accounts. So the first table and tokenizer of each model are remembered, and others are refused, as
SSH does with the keys of hosts.
"""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from filelock import FileLock

from cutlayer.core import PrivacyError, StorageError
from cutlayer.core.files import write_whole

if TYPE_CHECKING:  # commands that only read the customer's folder start without torch
    from cutlayer.models import Archive

_NAMES: Final = {"tokenizer": "tokenizer", "table": "token table"}


class KnownModels:
    """The file in which they are remembered: a line of JSON for each vendor and model, which may be deleted.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def check(self, vendor: str, model: str, archive: Archive) -> None:
        """Compares what was handed out with what was before, and remembers it where it is the first.

        Args:
            vendor: Its address.
            model: What the vendor calls the model.
            archive: What it handed out; of a text cut without a table, which is remembered when one comes.

        Raises:
            PrivacyError: It is another table or tokenizer.
            StorageError: The file cannot be read or written.
        """
        from cutlayer.privacy import table_fingerprint

        told = {"tokenizer": hashlib.sha256(archive.tokenizing.encode()).hexdigest()}
        if archive.table is not None:
            told["table"] = table_fingerprint(archive.table)
        named = {"vendor": vendor, "model": model}
        try:
            with FileLock(self.path.with_name(f".{self.path.name}.lock"), mode=0o600):
                lines = self._lines()
                found = next((line for line in lines if named.items() <= line.items()), None)
                if found is None:
                    found = {**named, "since": f"{datetime.now(UTC):%Y-%m-%d}"}
                    lines.append(found)
                if changed := [name for name in told if found.get(name, told[name]) != told[name]]:
                    raise self._changed(found, changed)
                if not told.items() <= found.items():
                    found.update(told)
                    write_whole(self.path, "".join(f"{json.dumps(line)}\n" for line in lines).encode())
        except OSError as error:
            raise StorageError(
                f"{self.path} cannot be used: {error.strerror}.", remedy="Make sure that you may read and write it."
            ) from error

    def _lines(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        try:
            lines = [json.loads(line) for line in self.path.read_text().splitlines() if line.strip()]
        except ValueError:
            lines = [None]
        if not all(isinstance(line, dict) for line in lines):
            raise StorageError(
                f"{self.path} is damaged.",
                remedy="Restore it from a backup. Without it nobody notices that a vendor changed a model.",
            )
        return lines

    def _changed(self, found: dict[str, Any], changed: list[str]) -> PrivacyError:
        what = " and another ".join(_NAMES[name] for name in changed)
        return PrivacyError(
            f"For model {found['model']}, {found['vendor']} hands out another {what} than on {found['since']}. Texts "
            "that left before would be drawn again, which is another look at each, and the same eta may hide less.",
            remedy=f"Ask the vendor what was changed. If you accept it, delete this model's line in {self.path.name}, "
            "in your folder (CUTLAYER_HOME).",
        )
