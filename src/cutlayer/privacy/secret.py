"""The customer's secret: one key from which all noise, hashes and seals are derived."""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from pathlib import Path
from typing import Final, NoReturn

from cutlayer.core import PrivacyError, StorageError

SECRET_BYTES: Final = 32


class CustomerSecret:
    """32 random bytes that never leave the customer.

    Whoever knows them can subtract the noise from every release. They are kept in a file that only
    its owner can read, never printed, never pickled.

    Args:
        key: The 32 bytes.
        is_unsafe: Whether the bytes come from a seed instead of the operating system's generator.
        names: Keys the names of texts; these bytes where it is left out.
    """

    __slots__ = ("_key", "_names", "is_unsafe")

    def __init__(self, key: bytes, *, is_unsafe: bool = False, names: CustomerSecret | None = None) -> None:
        if len(key) != SECRET_BYTES:
            raise PrivacyError(
                f"A customer secret has {SECRET_BYTES} bytes, not {len(key)}.",
                remedy="Create one with CustomerSecret.load_or_create.",
            )
        self._key = key
        self._names = self if names is None else names
        self.is_unsafe = is_unsafe

    @classmethod
    def load_or_create(cls, path: Path) -> CustomerSecret:
        """Reads the secret in `path`, or creates it there with mode 0600.

        Two processes that create it at the same time end up with the same secret.

        Raises:
            StorageError: The file cannot be read or written, or is no secret.
            PrivacyError: Other users may read the file.
        """
        try:
            if not path.exists():
                _create(path)
        except OSError as error:
            raise _unreadable(path, error) from error
        return cls.load(path)

    @classmethod
    def load(cls, path: Path) -> CustomerSecret:
        """Reads the secret in `path`.

        Raises:
            StorageError: The file cannot be read, or is no secret.
            PrivacyError: Other users may read the file.
        """
        try:
            if os.name == "posix" and (mode := stat.S_IMODE(path.stat().st_mode)) & 0o077:
                raise PrivacyError(
                    f"The customer secret {path} has mode {mode:04o}: other users may have read it.",
                    remedy=f"If nobody has, run: chmod 600 {path}",
                )
            key = path.read_bytes()
        except OSError as error:
            raise _unreadable(path, error) from error
        if len(key) != SECRET_BYTES:
            raise StorageError(
                f"{path} is no customer secret: it has {len(key)} bytes instead of {SECRET_BYTES}.",
                remedy="Restore it from a backup. A new secret draws and charges every text again.",
            )
        return cls(key)

    @classmethod
    def unsafe(cls, seed: int, *, names: CustomerSecret | None = None) -> CustomerSecret:
        """A secret that anyone who knows `seed` knows too: for tests and demonstrations only.

        Everything made with it is marked, and carries no guarantee.

        Args:
            seed: Any number.
            names: Keys the names of texts: the customer's own secret, so that the ledger knows them again when
                they are released with real noise.
        """
        key = hashlib.blake2b(f"cutlayer unsafe {seed}".encode(), digest_size=SECRET_BYTES).digest()
        return cls(key, is_unsafe=True, names=names)

    def or_seeded(self, seed: int | None) -> CustomerSecret:
        """This one, or where a seed is given the unsafe one of that seed, under which texts have the same names."""
        return self if seed is None else CustomerSecret.unsafe(seed, names=self)

    def derive(self, purpose: str) -> bytes:
        """A 32-byte key for one purpose; keys of different purposes tell nothing about each other."""
        return hashlib.blake2b(purpose.encode(), key=self._key, digest_size=SECRET_BYTES).digest()

    def content_key(self) -> bytes:
        """The key under which texts are named in the ledger, the same for all their releases."""
        return self._names.derive("content")

    def __repr__(self) -> str:
        return "CustomerSecret(unsafe)" if self.is_unsafe else "CustomerSecret(…)"

    def __reduce__(self) -> NoReturn:
        raise PrivacyError(
            "A customer secret is not copied or sent to other processes.", remedy="Load it there from its file."
        )


def _unreadable(path: Path, error: OSError) -> StorageError:
    return StorageError(
        f"The customer secret {path} cannot be read or created: {error.strerror}.",
        remedy="Give a folder that you may write to.",
    )


def _create(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(SECRET_BYTES))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)  # unlike a rename, a link never replaces a secret that is already there
        except FileExistsError:
            return
    finally:
        draft.unlink()
