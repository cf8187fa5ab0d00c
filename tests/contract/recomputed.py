"""What text-to-text must release, computed a second time: from the secret's bytes, AES block by block, and brute force.

Nothing of `cutlayer.privacy` is called. Who changes how draws are named or made changes this too, and knows then that
every text will be drawn, and charged, again.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

Float64 = NDArray[np.float64]


def keyed(content: bytes, key: bytes, size: int = 16) -> bytes:
    """BLAKE2b with a key."""
    return hashlib.blake2b(content, key=key, digest_size=size).digest()


def settings_key(
    secret: bytes,
    *,
    mechanism: str,
    unit: str,
    candidates: NDArray[np.bool_],
    fingerprint: bytes,
    window: int | None,
    further: tuple[bytes, ...] = (),
) -> bytes:
    """What all draws of these settings have in common."""
    parts = (
        mechanism.encode(),
        unit.encode(),
        fingerprint,
        candidates.tobytes(),
        b"",  # one draw, in whatever epoch
        b"" if window is None else window.to_bytes(8, "little"),
        *further,
    )
    joined = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    return keyed(joined, keyed(b"identity", secret, 32), 32)


def draw_names(
    ids: Sequence[int], spelled: Sequence[bytes], *, eta: float, settings: bytes, window: int | None
) -> list[bytes]:
    """The name of each token's draw in a text."""
    names = []
    for place, token in enumerate(ids):
        text, blanks, ends = b"", 0, [0]
        for before in ids[:place]:
            piece = spelled[before]
            if piece.startswith(b" ") and (text == b"" or text.endswith(b" ")):
                piece = piece[1:]
            text, blanks = text + piece, 0 if piece else blanks + 1
            ends.append(len(text))
        first = 0 if window is None else max(0, place - window)
        seen = hashlib.blake2b(text, digest_size=16).digest() if window is None else text[ends[first] :]
        stands = bytes([first == 0]) + blanks.to_bytes(8, "little") + seen
        names.append(keyed(stands + struct.pack("<qd", token, eta), settings))
    return names


def noise(name: bytes, *, secret: bytes, eta: float, width: int) -> Float64:
    """d_chi noise of one token: a radius that is a sum of exponentials, and a direction by Box and Muller."""
    aes = Cipher(algorithms.AES(keyed(b"noise", secret, 32)[:16]), modes.ECB()).encryptor()

    def uniform(first_block: int, count: int) -> list[float]:
        words: list[int] = []
        for block in range(first_block, first_block + -(-count // 2)):
            words += struct.unpack("<QQ", aes.update(name[:12] + block.to_bytes(4, "little")))
        return [1 - (word >> 12) / 2**52 for word in words[:count]]

    radius = sum(-math.log(each) for each in uniform(0, width)) / eta
    half = -(-width // 2)
    numbers = uniform(-(-width // 2), 2 * half)
    size = [math.sqrt(-2 * math.log(each)) for each in numbers[:half]]
    angles = [2 * math.pi * each for each in numbers[half:]]
    normal = [s * math.cos(a) for s, a in zip(size, angles, strict=True)]
    normal += [s * math.sin(a) for s, a in zip(size, angles, strict=True)]
    direction = np.array(normal[:width])
    return direction / np.linalg.norm(direction) * radius


def nearest(row: Float64, table: Float64, candidates: NDArray[np.bool_]) -> int:
    """The candidate whose row is nearest, by looking at every one."""
    distances = ((table - row) ** 2).sum(1)
    distances[~candidates] = np.inf
    return int(distances.argmin())


def released_ids(
    ids: Sequence[int],
    *,
    secret: bytes,
    table: Float64,
    candidates: NDArray[np.bool_],
    eta: float,
    settings: bytes,
    spelled: Sequence[bytes],
    window: int | None,
) -> list[int]:
    """What a text leaves as."""
    found = []
    for token, name in zip(ids, draw_names(ids, spelled, eta=eta, settings=settings, window=window), strict=True):
        noisy = table[token] + noise(name, secret=secret, eta=eta, width=table.shape[1])
        found.append(nearest(np.rint(noisy * 1024) / 1024, table, candidates))
    return found
