"""In which order a run's texts leave: a secret of the customer's.

A file may be sorted, by label or by date, and others may hold a list in its order: the number of a record, or which
texts share a batch, would then tell what noise hides. So split, order and batches follow from the customer's secret and
from what the texts say, never from where they stand in a file, from their labels, or from anything that the vendor is
told.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from cutlayer.privacy import CustomerSecret, generator


class Order:
    """An order of texts that repeats with the secret and a purpose, and tells nothing without the secret.

    Args:
        secret: The customer's, or the seed's of a run whose noise comes from one.
        purpose: What is ordered; each has an order of its own.
    """

    def __init__(self, secret: CustomerSecret, purpose: str) -> None:
        self._key = secret.derive(f"order/{purpose}")

    def of(self, texts: Sequence[tuple[str, ...]]) -> list[int]:
        """Places of texts, or of pairs of them, in the order in which they leave.

        Equal texts stay together, in the order in which they came: what tells them apart is shuffled by `batches`.
        """
        return sorted(range(len(texts)), key=lambda place: self._rank(texts[place]))

    def generator(self, number: int) -> np.random.Generator:
        """A secure generator for the order's `number`-th use."""
        return generator(self.key(number))

    def key(self, number: int) -> bytes:
        """16 bytes that `generator(number)` follows from, and nothing else of the order does."""
        return hashlib.blake2b(f"{number}".encode(), key=self._key, digest_size=16).digest()

    def _rank(self, text: tuple[str, ...]) -> bytes:
        rank = hashlib.blake2b(key=self._key, digest_size=16)
        for part in text:
            content = part.encode()
            rank.update(len(content).to_bytes(8) + content)
        return rank.digest()
