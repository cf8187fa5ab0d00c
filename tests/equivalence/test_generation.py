"""Promise 2 for decoding: three parts with a cache each give Hugging Face's own greedy tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cutlayer.core import Cut
from cutlayer.models import Head
from tests.equivalence.checks import Case, generate_split, generate_whole, step_whole
from tests.equivalence.zoo import DECODERS, SEQ2SEQ, families_first, shared_model

TOKENS = 64


def check_generation(
    name: str, cut: Cut, *, attention: str = "sdpa", lengths: tuple[int, ...] = (7, 3, 5), tokens: int = TOKENS
) -> None:
    model = shared_model(name, Head.LANGUAGE, attention)
    left = Case(name, Head.LANGUAGE, cut, lengths=lengths, padding="left", attention=attention)
    expected = generate_whole(model, left, tokens=tokens)
    assert torch.equal(generate_split(model, left, tokens=tokens), expected), left
    right = replace(left, padding="right")
    found = generate_split(model, right, tokens=tokens)
    if name in SEQ2SEQ:
        assert torch.equal(found, generate_whole(model, right, tokens=tokens)), right
        return
    # Hugging Face's `generate` goes on behind the padding
    assert torch.equal(found, step_whole(model, right, tokens=tokens)), right


@pytest.mark.parametrize("name", families_first([*DECODERS, *SEQ2SEQ]))
@pytest.mark.parametrize("cut", [Cut(bottom=1, tail=1), Cut(bottom=0, tail=0)], ids=lambda cut: cut.slug)
def test_cached_generation_token_for_token(name: str, cut: Cut) -> None:
    check_generation(name, cut)


@pytest.mark.parametrize("name", SEQ2SEQ)
@pytest.mark.parametrize("tail", [0, 1])
def test_cached_generation_with_a_decoder_block_below(name: str, tail: int) -> None:
    check_generation(name, Cut(bottom=1, target=1, tail=tail))


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", [*DECODERS, *SEQ2SEQ])
def test_cached_generation_for_every_cut(name: str, attention: str) -> None:
    for bottom in (None, 0, 1, 2):
        for tail in (None, 0, 1):
            for lengths in ((4,), (7, 3, 5), (2, 9)):
                check_generation(name, Cut(bottom=bottom, tail=tail), attention=attention, lengths=lengths, tokens=8)
