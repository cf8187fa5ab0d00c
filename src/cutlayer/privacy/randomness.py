"""Where noise comes from: AES in counter mode, keyed from the customer's secret, and no state between releases.

torch's CPU generator keeps 32 bits of its seed and numpy's default is not cryptographic: from one known token of a
release the rest of the noise could be predicted and subtracted. Here every token's noise is a stream of its own: AES
blocks under one key, at counters that begin with the name of the token's draw. So a fork, a thread or a second process
cannot repeat a stream for another token, a token's noise does not depend on what stands beside it in a batch, and the
same draw always gives the same noise without anything being stored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from typing import Final

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray
from randomgen import AESCounter

from cutlayer.core import PrivacyError
from cutlayer.privacy.secret import CustomerSecret

KEY_BYTES: Final = 16
STREAM_BYTES: Final = 12
"""Bytes of a name that a stream's counters begin with; the other four count its blocks."""
_ROWS: Final = 128
"""Rows whose words are held at a time: as much as a processor's cache."""
_WORDS: Final = 2
"""64-bit words in an AES block."""
_ONE: Final = np.uint64(0x3FF0000000000000)
"""The bits of 1.0: sign and exponent of all numbers from 1 to 2."""

Float64 = NDArray[np.float64]


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
    """Keys of single draws: PRF(secret, name), with keyed BLAKE2b as the PRF."""

    def __init__(self, secret: CustomerSecret) -> None:
        self._key = secret.derive("noise")

    def __call__(self, name: bytes) -> bytes:
        """The 16-byte key of the draw of that name."""
        return hashlib.blake2b(name, key=self._key, digest_size=KEY_BYTES).digest()

    def streams(self, names: NDArray[np.uint8]) -> Streams:
        """A stream for each of these names `[n, at least STREAM_BYTES]`."""
        return Streams(self._key[:KEY_BYTES], names)


class Streams:
    """Random numbers row by row, each row from a stream of its own.

    Word `i` of a row is half of the AES block at the counter `name · block number`. Drawing goes through the words in
    order, so what a row gets depends on its name and on what was drawn before, never on its neighbours.

    Args:
        key: 16 bytes, the AES key.
        names: `[n, at least STREAM_BYTES]` uint8; of each row the first `STREAM_BYTES` count.
    """

    def __init__(self, key: bytes, names: NDArray[np.uint8]) -> None:
        self._key = key
        self._names = names
        self._block = 0

    def __len__(self) -> int:
        return len(self._names)

    def generator(self, row: int) -> np.random.Generator:
        """A generator for one row alone, for mechanisms that draw in ways of their own."""
        return generator(hashlib.blake2b(self._names[row].tobytes(), key=self._key, digest_size=KEY_BYTES).digest())

    def standard_gamma(self, shape: int, size: int) -> Float64:
        """`[n]`: Gamma(`shape`, scale 1) draws, as sums of `shape` exponential ones; as numpy's, for whole shapes."""
        self._check(size)
        sums = np.empty(size)
        for rows, uniform in self._uniform(shape):
            sums[rows] = -np.log(uniform).sum(1)
        return sums

    def standard_normal(self, size: tuple[int, int]) -> Float64:
        """`[n, width]`: independent standard normal draws, by Box and Muller's transform; as numpy's."""
        rows, width = size
        self._check(rows)
        half = -(-width // 2)
        drawn = np.empty(size)
        for part, uniform in self._uniform(2 * half):
            radius = np.log(uniform[:, :half])
            radius *= -2
            np.sqrt(radius, out=radius)
            angle = torch.from_numpy(uniform[:, half:] * (2 * np.pi))  # torch's sine is four times as fast
            np.multiply(radius, angle.cos().numpy(), out=drawn[part, :half])
            np.multiply(radius[:, : width - half], angle.sin().numpy()[:, : width - half], out=drawn[part, half:])
        return drawn

    def random(self, size: int) -> Float64:
        """`[n]` in (0, 1], uniform."""
        self._check(size)
        found = np.empty(size)
        for rows, uniform in self._uniform(1):
            found[rows] = uniform[:, 0]
        return found

    def _check(self, rows: int) -> None:
        if rows != len(self):
            raise ValueError(f"{len(self)} streams draw {len(self)} rows, not {rows}")

    def _uniform(self, count: int) -> Iterator[tuple[slice, Float64]]:
        """Yields slices of rows with their next `count` numbers `[rows, count]` in (0, 1], float64.

        The numbers are overwritten when the next ones are asked for.
        """
        blocks = -(-count // _WORDS)
        counters = np.empty((min(_ROWS, len(self)), blocks, 4), dtype="<u4")
        counters[:, :, 3] = np.arange(self._block, self._block + blocks, dtype="<u4")
        self._block += blocks
        buffer = np.empty(counters.nbytes + KEY_BYTES, dtype=np.uint8)  # as much more as `update_into` asks for
        for start in range(0, len(self), _ROWS):
            names = np.ascontiguousarray(self._names[start : start + _ROWS, :STREAM_BYTES]).view("<u4")
            counters[: len(names), :, :3] = names[:, None]
            encryptor = Cipher(algorithms.AES(self._key), modes.ECB()).encryptor()  # noqa: S305 - counter mode, by hand
            written = encryptor.update_into(counters[: len(names)].reshape(-1).view(np.uint8).data, buffer.data)
            words = buffer[:written].view("<u8")
            # 52 bits as the fraction of a number in [1, 2), in place; never 0, of which there is no logarithm
            np.right_shift(words, np.uint64(12), out=words)
            np.bitwise_or(words, _ONE, out=words)
            uniform: Float64 = words.view("<f8")
            np.subtract(2.0, uniform, out=uniform)
            yield slice(start, start + len(names)), uniform.reshape(len(names), -1)[:, :count]


@cache
def stream_fingerprint() -> bytes:
    """16 bytes that change when the installed libraries turn a key into other noise.

    numpy may change its samplers between versions, and functions their results. The fingerprint is part of every
    draw's name, so that releases redrawn after such a change count as what they are: new draws. Rounding makes it
    blind to the last bits, in which processors differ.
    """
    rng = generator(bytes(KEY_BYTES))
    streams = Streams(bytes(KEY_BYTES), np.arange(16 * STREAM_BYTES, dtype=np.uint8).reshape(16, STREAM_BYTES))
    sample = np.concatenate(
        [
            rng.standard_normal(4096),
            rng.standard_gamma(384.0, 256),
            streams.standard_gamma(384, size=16),
            streams.standard_normal((16, 256)).flatten(),
        ]
    )
    return hashlib.blake2b(np.rint(sample * 1024).astype("<i8").tobytes(), digest_size=16).digest()
