"""Where noise comes from: AES in counter mode, one key per release, and no state between releases.

torch's CPU generator keeps 32 bits of its seed and numpy's default is not cryptographic: from one
known token of a release the rest of the noise could be predicted and subtracted. Here the
generator of a release is keyed with PRF(customer secret, identity of the release), is used for that
release alone and dropped. So a fork, a thread or a second process cannot repeat a stream for
another text, and the same release always gets the same noise without anything being stored.
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Final

import numpy as np
from randomgen import AESCounter

from cutlayer.core import PrivacyError
from cutlayer.privacy.secret import CustomerSecret

KEY_BYTES: Final = 16


def generator(key: bytes) -> np.random.Generator:
    """A generator over AES-128 in counter mode, from the counter's start.

    Do not keep it: a generator that is carried over a fork repeats its stream in both processes.

    Args:
        key: 16 bytes, used as the AES key as they are.

    Raises:
        PrivacyError: The key does not have 128 bits.
    """
    if len(key) != KEY_BYTES:
        raise PrivacyError(f"A noise key has {KEY_BYTES} bytes, not {len(key)}.", remedy="Derive it with NoiseKeys.")
    return np.random.Generator(AESCounter(key=int.from_bytes(key, "little")))


class NoiseKeys:
    """Noise keys of releases: PRF(secret, identity), with keyed BLAKE2b as the PRF."""

    def __init__(self, secret: CustomerSecret) -> None:
        self._key = secret.derive("noise")

    def __call__(self, identity: bytes) -> bytes:
        """The 16-byte key of the release named `identity`."""
        return hashlib.blake2b(identity, key=self._key, digest_size=KEY_BYTES).digest()


@cache
def stream_fingerprint() -> bytes:
    """16 bytes that change when the installed libraries turn a key into other noise.

    numpy may change its samplers between versions. The fingerprint is part of every identity, so
    that releases redrawn after such a change count as what they are: new draws. Rounding makes it
    blind to the last bits, in which processors differ.
    """
    rng = generator(bytes(KEY_BYTES))
    sample = np.concatenate([rng.standard_normal(4096), rng.standard_gamma(384.0, 256), rng.standard_gamma(1.0, 256)])
    return hashlib.blake2b(np.rint(sample * 1024).astype("<i8").tobytes(), digest_size=16).digest()
