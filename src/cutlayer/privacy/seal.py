"""Bytes that only the customer can read, and that nobody can change unseen."""

from __future__ import annotations

import secrets
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NONCE_BYTES: Final = 12


class BrokenSeal(ValueError):  # noqa: N818 - a state, of which callers make their errors
    """What was to be opened was changed, or sealed with another key or under another name."""


class Seal:
    """AES-256-GCM with a fresh nonce each time.

    Args:
        key: 32 bytes, for one purpose.
    """

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)

    def close(self, body: bytes, *, name: bytes) -> bytes:
        """Seals bytes under a name, without which they are not opened."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, body, name)

    def open(self, sealed: bytes, *, name: bytes) -> bytes:
        """The bytes that were sealed under this name.

        Raises:
            BrokenSeal: These were not.
        """
        try:
            return self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], name)
        except InvalidTag:
            raise BrokenSeal from None
