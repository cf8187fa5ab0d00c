"""Readings made by hand: what was read is chosen, and so what its numbers must be."""

from __future__ import annotations

import torch

from cutlayer.attacks import Reading, TokenTruth
from cutlayer.core import Tokens

JOB = "b" * 32


def reading(tokens: Tokens, *guesses: Tokens) -> Reading:
    """What one look or more at texts made of them."""
    steps = {(JOB, number): torch.arange(len(tokens)) for number in range(1, len(guesses) + 1)}
    looks = enumerate(guesses, start=1)
    return TokenTruth(tokens, steps=steps).read((f"job/{JOB}", number, guess) for number, guess in looks)
