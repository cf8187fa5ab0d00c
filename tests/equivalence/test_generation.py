"""Promise 2 for decoding: three parts with a cache each give Hugging Face's own greedy tokens."""

from __future__ import annotations

import pytest
import torch

from cutlayer.core import Cut
from cutlayer.models import Head
from tests.equivalence.checks import Case, generate_split, generate_whole
from tests.equivalence.zoo import DECODERS, SEQ2SEQ, shared_model

TOKENS = 16


def check_generation(name: str, cut: Cut, *, attention: str = "sdpa", lengths: tuple[int, ...] = (7, 3, 5)) -> None:
    model = shared_model(name, Head.LANGUAGE, attention)
    # Hugging Face's own tokens are wrong for prompts padded on the right
    case = Case(name, Head.LANGUAGE, cut, lengths=lengths, padding="left", attention=attention)
    assert torch.equal(generate_split(model, case, tokens=TOKENS), generate_whole(model, case, tokens=TOKENS)), case


@pytest.mark.parametrize("name", [*DECODERS, *SEQ2SEQ])
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
                check_generation(name, Cut(bottom=bottom, tail=tail), attention=attention, lengths=lengths)
