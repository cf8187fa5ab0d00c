"""The form of an API key, which a service makes and its customers keep out of files."""

from __future__ import annotations

import hashlib
import re
import secrets

API_KEY = re.compile(r"cl_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
"""Its public part, by which it is revoked, and its secret one."""


def new_key() -> tuple[str, str]:
    """Makes a key; returns its public part, and the key."""
    identifier = secrets.token_hex(6)
    return identifier, f"cl_{identifier}_{secrets.token_urlsafe(32)}"


def key_digest(key: str) -> str:
    """What is kept of a key."""
    # A key has 256 random bits, so a plain digest cannot be searched; a slow one would cost every request.
    return hashlib.sha256(key.encode()).hexdigest()
