"""Promise 2 for beam search: a cut decoder's texts are those that Hugging Face finds with the whole model."""

from __future__ import annotations

import pytest
import torch

from cutlayer.core import Cut, Ragged
from cutlayer.models import BeamSearch, Continued, Head, Parts, best_texts, cut_up
from tests.equivalence.zoo import DECODERS, families_first, shared_model

TOKENS = 12


def found_by(name: str, *, beams: int, lengths: tuple[int, ...]) -> tuple[list[list[int]], list[list[int]]]:
    """The texts that a model in two parts finds, and the whole one."""
    model = shared_model(name, Head.LANGUAGE)
    rng = torch.Generator().manual_seed(5)
    ids = torch.randint(3, model.config.vocab_size, (sum(lengths),), generator=rng)
    beginnings = Ragged(ids, torch.tensor(lengths))
    end = model.config.vocab_size - 1
    parts = cut_up(model, Cut(bottom=None, tail=0))
    assert isinstance(parts, Parts)
    assert parts.tail is not None
    search = BeamSearch(
        num_beams=beams, max_new_tokens=TOKENS, length_penalty=0.8, end=end, vocabulary=model.config.vocab_size
    )
    split = best_texts(Continued(parts.top, parts.tail, texts=len(lengths) * beams), beginnings, search)
    whole = []
    for text in beginnings.split():  # one by one: without padding
        penalty = {"length_penalty": 0.8} if beams > 1 else {}
        (grown,) = model.generate(
            text[None],
            attention_mask=torch.ones_like(text)[None],
            max_new_tokens=TOKENS,
            num_beams=beams,
            do_sample=False,
            eos_token_id=end,
            pad_token_id=end,
            **penalty,
        )
        whole.append(grown[len(text) :].tolist())
    return split, whole


@pytest.mark.parametrize("beams", [1, 5])
@pytest.mark.parametrize("name", families_first(DECODERS))
def test_the_texts_are_those_of_the_whole_model(name: str, beams: int) -> None:
    split, whole = found_by(name, beams=beams, lengths=(7, 3, 5))
    assert split == whole


def test_a_cache_that_is_not_reordered_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault that is planted: beams go on with other beams' keys and values."""
    forward = Continued.__call__
    monkeypatch.setattr(Continued, "__call__", lambda self, newest, parents: forward(self, newest, None))
    split, whole = found_by("gpt2", beams=5, lengths=(7, 3, 5))
    assert split != whole
