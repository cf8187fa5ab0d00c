"""Token embeddings that public text alone makes: positive pointwise mutual information, and its leading directions.

Words that stand among the same words lie close. Beside a model's own table they are another public space in which
words can be drawn (RAPT, Table VI).

Ref: Levy, Goldberg, Dagan: Improving Distributional Similarity with Lessons Learned from Word Embeddings, TACL 2015.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from filelock import FileLock
from pydantic import Field
from scipy.sparse import coo_matrix, csr_matrix
from scipy.sparse.linalg import svds

from cutlayer.core import Spec
from cutlayer.core.files import whole_folder
from cutlayer.recipes.lab import Lab
from cutlayer.recipes.replacement import made_here
from cutlayer.recipes.tasks import TextFile
from cutlayer.reports.cells import digest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_TEXTS_AT_ONCE = 5_000


class Cooccurrence(Spec):
    """What makes the space.

    Attributes:
        texts: Public ones.
        tokenizer: The model whose tokens have rows.
        width: Directions that are kept.
        window: Tokens to either side that count, a neighbour at distance d as 1/d.
        smoothing: Exponent of how frequent a neighbour is: below 1, rare ones tell less.
        exponent: Of the singular values, by which directions are scaled.
    """

    texts: tuple[TextFile, ...] = Field(min_length=1)
    tokenizer: str
    width: int = Field(ge=1)
    window: int = Field(default=4, ge=1)
    smoothing: float = Field(default=0.75, gt=0, le=1)
    exponent: float = Field(default=0.5, ge=0)


def make_space(name: str, asked: Cooccurrence, lab: Lab) -> str:
    """Makes the space, once for a folder of results, as a model whose token embeddings it is.

    Returns:
        What to call it in `Source.of`: its name, and of which settings it is.
    """
    named = f"{name}-{digest(asked)[:12]}"
    folder = made_here(named, lab)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):
        if folder.is_dir():
            return named
        tokenizer = lab.model(asked.tokenizer, head=None).tokenizer
        texts = [text for file in asked.texts for (text,) in file.read(lab.options.data).texts]
        counts = counted(_encoded(texts, tokenizer, lab), size=len(tokenizer), window=asked.window)
        table = leading_directions(
            positive_information(counts, smoothing=asked.smoothing), width=asked.width, exponent=asked.exponent
        )
        with whole_folder(folder) as begun:
            _write(begun, table, tokenizer)
    return named


def counted(texts: Iterable[Sequence[Sequence[int]]], *, size: int, window: int) -> csr_matrix:
    """How often tokens stand near each other.

    Args:
        texts: Batches of texts as token ids.
        size: Of the vocabulary.
        window: As of `Cooccurrence`.

    Returns:
        `[size, size]` float64, symmetric.
    """
    total = csr_matrix((size, size))
    for batch in texts:
        lengths = np.fromiter(map(len, batch), dtype=np.int64, count=len(batch))
        ids = np.concatenate([np.asarray(text, dtype=np.int64) for text in batch])
        owner = np.repeat(np.arange(len(batch)), lengths)
        for distance in range(1, window + 1):
            left, right = ids[:-distance], ids[distance:]
            same = owner[:-distance] == owner[distance:]
            weights = np.full(int(same.sum()), 1 / distance)
            total = total + coo_matrix((weights, (left[same], right[same])), shape=(size, size)).tocsr()
    return csr_matrix(total + total.T)


def positive_information(counts: csr_matrix, *, smoothing: float) -> csr_matrix:
    """max(0, log p(i, j) / (p(i) p'(j))), where p' is the smoothed distribution of neighbours; as `counts`."""
    pairs = counts.tocoo()
    own = np.asarray(counts.sum(axis=1)).ravel()
    neighbours = own**smoothing
    neighbours /= neighbours.sum()
    information = np.log(pairs.data / own[pairs.row] / neighbours[pairs.col])
    kept = information > 0
    return csr_matrix((information[kept], (pairs.row[kept], pairs.col[kept])), shape=counts.shape)


def leading_directions(matrix: csr_matrix, *, width: int, exponent: float) -> np.ndarray:
    """U S^exponent `[size, width]` of the largest singular values, which come first."""
    left, values, _ = svds(matrix, k=width, random_state=np.random.default_rng(0))
    order = np.argsort(-values)
    left = left[:, order]
    # of a direction and its opposite one is taken, whatever the library returns
    signs = np.sign(np.take_along_axis(left, np.abs(left).argmax(axis=0)[None], axis=0))
    return np.asarray(left * signs * values[order] ** exponent)


def _encoded(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, lab: Lab) -> Iterator[list[list[int]]]:
    for start in range(0, len(texts), _TEXTS_AT_ONCE):
        lab.progress.update("words near each other", start, len(texts), "texts")
        batch = list(texts[start : start + _TEXTS_AT_ONCE])
        yield tokenizer(batch, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]
    lab.progress.update("words near each other", len(texts), len(texts), "texts")


def _write(folder: Path, table: np.ndarray, tokenizer: PreTrainedTokenizerBase) -> None:
    """A model of which nothing but the token embeddings is ever read."""
    from transformers import BertConfig, BertModel

    size, width = table.shape
    config = BertConfig(
        vocab_size=size, hidden_size=width, num_hidden_layers=1, num_attention_heads=1, intermediate_size=1
    )
    model = BertModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()  # the same file again
        model.embeddings.word_embeddings.weight.copy_(torch.from_numpy(table))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
