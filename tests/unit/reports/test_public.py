"""What the embedded language model writes for the attacker."""

from __future__ import annotations

import pytest
import torch

from cutlayer.models import STARTER_DECODER, Head, load_model, load_tokenizer
from cutlayer.reports.audit import public


def test_text_is_drawn_from_the_models_own_probabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token at a time, with a cache whose room is there from the beginning: as if the model read the whole text."""
    monkeypatch.setattr(public, "_AT_ONCE", 8)
    model, tokenizer = load_model(STARTER_DECODER, head=Head.LANGUAGE), load_tokenizer(STARTER_DECODER)
    ids = public._sample(model, tokenizer, torch.Generator().manual_seed(5), end=float("inf"))
    assert ids.shape == (public._AT_ONCE, public._WRITTEN_TOKENS)
    some = torch.cat([torch.full((8, 1), int(tokenizer.bos_token_id or tokenizer.eos_token_id)), ids[:, :-1]], 1)
    with torch.no_grad():
        up_to = model(input_ids=some, use_cache=False).logits.double().softmax(-1).cumsum(-1)
    rng = torch.Generator().manual_seed(5)
    drawn = [torch.rand(public._AT_ONCE, 1, generator=rng, dtype=torch.float64) for _ in range(ids.shape[1])]
    wanted = torch.searchsorted(up_to, torch.stack(drawn, 1) * up_to[:, :, -1:])[:, :, 0]
    # a number that falls between two tokens, to the last digits, may be either
    assert float((ids == wanted).double().mean()) > 0.99
