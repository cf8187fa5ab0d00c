"""The gateway's own key: what applications send. The vendor's stays with the gateway."""

from __future__ import annotations

import hmac
import json
from pathlib import Path
from typing import Any

from cutlayer.core import ConfigError, StorageError
from cutlayer.core.files import write_whole
from cutlayer.customer.home import Home
from cutlayer.wire.keys import key_digest, new_key

_FILE = "gateway.json"


def make_key(home: Home) -> str:
    """Makes the gateway's key; the one before it opens nothing from now on.

    Args:
        home: The customer's folder, in which its SHA-256 is kept.

    Returns:
        The key. It is shown this once.
    """
    identifier, key = new_key()
    content = json.dumps({"id": identifier, "digest": key_digest(key)})
    try:
        write_whole(_path(home), content.encode())
    except OSError as error:
        raise StorageError(
            f"The gateway's key cannot be kept in {home.path}: {error.strerror}.",
            remedy="Give a folder that you may write to.",
        ) from error
    return key


class KeyRing:
    """Tells whether a key is the gateway's, which may be made anew while it runs.

    Args:
        home: The customer's folder.

    Raises:
        ConfigError: No key was made.
    """

    def __init__(self, home: Home) -> None:
        self._path = _path(home)
        self._read: tuple[tuple[int, int], str] | None = None
        if self._digest() is None:
            raise ConfigError("The gateway has no key.", remedy="Make one with: cutlayer gateway key")

    def opens(self, key: str) -> bool:
        """Whether this is the key."""
        digest = self._digest()
        return digest is not None and hmac.compare_digest(digest, key_digest(key))

    def _digest(self) -> str | None:
        try:
            about = self._path.stat()
            stamp = about.st_mtime_ns, about.st_ino
            if self._read is None or self._read[0] != stamp:
                told: Any = json.loads(self._path.read_bytes())
                self._read = stamp, str(told["digest"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise StorageError(
                f"{self._path} cannot be read, or does not hold the gateway's key.",
                remedy="Make another key with: cutlayer gateway key",
            ) from error
        return self._read[1]


def _path(home: Home) -> Path:
    return home.path / _FILE
