"""How much alike texts are: the cosine between the means of an encoder's rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cutlayer.core import Cut
from cutlayer.data import Dataset, tokenise
from cutlayer.models import split
from cutlayer.recipes.model import Model

_BATCH = 32


@torch.no_grad()
def sentence_embeddings(texts: Sequence[str], encoder: Model) -> Tensor:
    """The mean of the last block's rows over all positions of each text, special tokens among them.

    Args:
        texts: `n` texts; what the encoder has no positions for is cut off.
        encoder: Computes the rows.

    Returns:
        `[n, width]` float32.

    Ref: Reimers and Gurevych, "Sentence-BERT", arXiv:1908.10084, §3 (MEAN).
    """
    template = encoder.template
    rows = Dataset(tuple((text,) for text in texts))
    tokens = tokenise(rows, encoder.tokenizer, max_content=template.max_content(1))
    top = split(encoder.whole, Cut(bottom=None, tail=0)).top
    embeddings = torch.empty(len(texts), encoder.whole.config.hidden_size)
    # of like lengths, so that little is padded
    for some in tokens.segments[0].lengths.argsort(stable=True).split(_BATCH):
        inputs = template.assemble(tokens.select(some))
        real = inputs.attention_mask[..., None]
        embeddings[some] = (top(inputs) * real).sum(1) / real.sum(1)
    return embeddings


def similarities(first: Sequence[str], second: Sequence[str], encoder: Model) -> Tensor:
    """`[n]` float32: the cosine between the embeddings of each text and of the other in its place."""
    return torch.cosine_similarity(sentence_embeddings(first, encoder), sentence_embeddings(second, encoder), dim=1)
