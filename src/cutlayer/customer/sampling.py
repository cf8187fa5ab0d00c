"""How the next token is chosen: what settings may mean together, and the draw."""

from __future__ import annotations

import secrets

import torch
from torch import Tensor
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from cutlayer.core import ConfigError, Fault
from cutlayer.customer.settings import Sampling


class Chooser:
    """Chooses the next token of each text."""

    def __init__(self, sampling: Sampling) -> None:
        self._greedy = sampling.greedy
        self._warpers = [
            *([TemperatureLogitsWarper(sampling.temperature)] if sampling.temperature != 1 else []),
            *([TopKLogitsWarper(sampling.top_k)] if sampling.top_k is not None else []),
            *([TopPLogitsWarper(sampling.top_p)] if sampling.top_p < 1 else []),
        ]
        seed = secrets.randbelow(2**63) if sampling.seed is None else sampling.seed
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, logits: Tensor) -> Tensor:
        """One id `[n]` int64 for each text, from logits `[n, vocabulary]`."""
        if self._greedy:
            return logits.argmax(-1)
        for warp in self._warpers:
            logits = warp(torch.empty(0, dtype=torch.int64), logits)
        return torch.multinomial(logits.softmax(-1), 1, generator=self._generator)[:, 0]


def check_sampling(sampling: Sampling, *, beams: bool, vocabulary: int) -> None:
    """Refuses choices that mean nothing together, before anything is sent.

    Args:
        sampling: The choices.
        beams: Whether beams can be followed: of an encoder-decoder, and of a decoder where the vendor does.
        vocabulary: How many tokens it knows.

    Raises:
        ConfigError: They do not.
    """
    if sampling.num_beams == 1:
        return
    if not beams:
        why = "must be 1 where you hold trained weights, or rows leave: beam search is for encoder-decoders, and for "
        why += "decoders whose token ids leave (bottom text or 0, tail 0, and no full tuning)"
        raise ConfigError([Fault("num_beams", sampling.num_beams, why)])
    faults = []
    if 2 * sampling.num_beams > vocabulary:
        faults.append(Fault("num_beams", sampling.num_beams, f"must be at most {vocabulary // 2}, half the vocabulary"))
    if sampling.stop_strings:
        faults.append(
            Fault(
                "stop_strings",
                list(sampling.stop_strings),
                "must be left out with `num_beams`, which end by their mark",
            )
        )
    usual = Sampling()
    drawn = {name: getattr(sampling, name) for name in ("temperature", "top_k", "top_p", "seed")}
    faults += [
        Fault(name, value, "must be left out with `num_beams`, which draw no token")
        for name, value in drawn.items()
        if value != getattr(usual, name)
    ]
    if faults:
        raise ConfigError(faults)
