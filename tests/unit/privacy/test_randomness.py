"""The generator is AES in counter mode with the key as given."""

from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB

from cutlayer.core import PrivacyError
from cutlayer.privacy import CustomerSecret, generator
from cutlayer.privacy.randomness import NoiseKeys, stream_fingerprint

KEY = bytes(range(16))


def test_stream_is_aes_in_counter_mode() -> None:
    raw = generator(KEY).bit_generator.random_raw(64).astype("<u8").tobytes()
    counters = b"".join(i.to_bytes(16, "little") for i in range(32))
    expected = Cipher(AES(KEY), ECB()).encryptor().update(counters)
    assert raw == expected


def test_same_key_same_stream_other_key_other_stream() -> None:
    first, again = (generator(KEY).standard_normal(100) for _ in range(2))
    assert np.array_equal(first, again)
    flipped = bytes([KEY[0] ^ 1, *KEY[1:]])
    assert not np.isin(first, generator(flipped).standard_normal(100)).any()


@pytest.mark.parametrize("size", [0, 4, 15, 17, 32])
def test_keys_have_128_bits(size: int) -> None:
    with pytest.raises(PrivacyError, match=f"not {size}"):
        generator(bytes(size))


def test_keys_of_releases() -> None:
    keys = NoiseKeys(CustomerSecret.unsafe(1))
    assert keys(b"a") == NoiseKeys(CustomerSecret.unsafe(1))(b"a")
    assert len({keys(b"a"), keys(b"b"), NoiseKeys(CustomerSecret.unsafe(2))(b"a")}) == 3


def test_fingerprint_of_the_samplers(monkeypatch: pytest.MonkeyPatch) -> None:
    known = stream_fingerprint()
    assert len(known) == 16
    stream_fingerprint.cache_clear()
    assert stream_fingerprint() == known
    stream_fingerprint.cache_clear()
    monkeypatch.setattr("cutlayer.privacy.randomness.generator", lambda _: np.random.Generator(np.random.PCG64(1)))
    assert stream_fingerprint() != known
    stream_fingerprint.cache_clear()
