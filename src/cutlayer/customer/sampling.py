"""How the next token is chosen: the settings, what they may mean together, and the draw."""

from __future__ import annotations

import secrets
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from cutlayer.core import ConfigError, Fault, Spec


class Sampling(Spec):
    """How tokens are chosen.

    Attributes:
        max_new_tokens: Tokens of a text at most, its prompt left out.
        greedy: Always the most probable token; the others are then not looked at.
        temperature: Logits are divided by it.
        top_k: Only the so many most probable tokens; `None` for all.
        top_p: Only the most probable tokens that make up this share; 1 for all.
        beams: Encoder-decoders: how many continuations are followed at once, of which the most probable is taken
            (beam search); 1 for none. Tokens are then not drawn.
        length_penalty: Of beam search: a text's log-probability is divided by its length to this power.
        stop: A text ends before the first of these that appears in it.
        seed: Of the draws; `None` draws it. Never noise.
    """

    max_new_tokens: int = Field(default=128, ge=1)
    greedy: bool = False
    temperature: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    top_k: int | None = Field(default=None, ge=1)
    top_p: float = Field(default=1.0, gt=0, le=1)
    beams: int = Field(default=1, ge=1)
    length_penalty: float = Field(default=1.0, allow_inf_nan=False)
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    seed: int | None = Field(default=None, ge=0, lt=2**63)


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


def check_sampling(sampling: Sampling, *, seq2seq: bool, vocabulary: int) -> None:
    """Refuses choices that mean nothing together, before anything is sent.

    Args:
        sampling: The choices.
        seq2seq: Whether they are for an encoder-decoder.
        vocabulary: How many tokens it knows.

    Raises:
        ConfigError: They do not.
    """
    if sampling.beams == 1:
        return
    if not seq2seq:
        raise ConfigError([Fault("beams", sampling.beams, "must be 1: beam search is for encoder-decoders")])
    faults = []
    if 2 * sampling.beams > vocabulary:
        faults.append(Fault("beams", sampling.beams, f"must be at most {vocabulary // 2}, half the vocabulary"))
    if sampling.stop:
        faults.append(Fault("stop", list(sampling.stop), "must be left out with beams, which end by their mark"))
    usual = Sampling()
    drawn = {name: getattr(sampling, name) for name in ("temperature", "top_k", "top_p", "seed")}
    faults += [
        Fault(name, value, "must be left out with beams, which draw no token")
        for name, value in drawn.items()
        if value != getattr(usual, name)
    ]
    if faults:
        raise ConfigError(faults)
