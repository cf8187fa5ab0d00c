"""Beam search at the customer, over a model whose blocks are elsewhere."""

from __future__ import annotations

import torch
from torch import Tensor

from cutlayer.core import Ragged
from cutlayer.customer.session import Growing, Session
from cutlayer.customer.settings import Sampling
from cutlayer.models import BeamSearch
from cutlayer.models import best_texts as search_texts


def best_texts(session: Session, texts: Growing, sampling: Sampling) -> list[list[int]]:
    """The most probable continuation that beam search finds for each source text, its end mark included.

    Args:
        session: The road, with trained weights loaded.
        texts: What grows: `beams` texts for each source text.
        sampling: Beams, length penalty and tokens at most.
    """

    def follow(newest: Ragged, parents: Tensor | None) -> Tensor:
        if not texts.decoding.mask.shape[1]:  # the start token is the session's own
            newest = Ragged(newest.values[:0], torch.zeros_like(newest.lengths))
        return session.grow(texts, newest, parents=parents)

    prompts = texts.link.spec.sequences // sampling.num_beams
    start = torch.full((prompts,), session.archive.target_template.opening[0])
    search = search_of(session, sampling)
    return search_texts(follow, Ragged(start, torch.ones(prompts, dtype=torch.int64)), search)


def search_of(session: Session, sampling: Sampling) -> BeamSearch:
    """What is searched for.

    Args:
        session: Whose tokens they are.
        sampling: How tokens are chosen.
    """
    return BeamSearch(
        num_beams=sampling.num_beams,
        max_new_tokens=sampling.max_new_tokens,
        length_penalty=sampling.length_penalty,
        end=session.archive.tokenizer.eos_token_id,
        vocabulary=len(session.archive.candidates),
    )
