"""The books as text and as token ids."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

SPLITS = {"train": ("train_part1", "train_part2"), "dev": ("dev",), "test": ("test",)}
END = "<|endoftext|>"
PAD = "<|padding|>"

TokenIds = npt.NDArray[np.uint16]


def read_books(folder: Path, split: str) -> list[str]:
    """One text per book: its passages in the file's order, a line end between them."""
    rows = (row for name in SPLITS[split] for row in _rows(folder / f"{name}.jsonl.gz"))
    return ["\n".join(row["text"] for row in book) for _, book in groupby(rows, key=lambda row: row["book"])]


def train_tokenizer(texts: Sequence[str], *, size: int) -> Tokenizer:
    """A byte-level BPE tokenizer like GPT-2's, with `size` entries; the end mark is token 0, padding token 1."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((line for text in texts for line in text.splitlines(keepends=True)), trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, texts: Sequence[str]) -> TokenIds:
    """All texts as one row of ids, each begun by the end mark."""
    end = tokenizer.token_to_id(END)
    parts: list[TokenIds] = []
    for text in texts:
        parts += [np.array([end], np.uint16), np.array(tokenizer.encode(text).ids, np.uint16)]
    return np.concatenate(parts)


def _rows(file: Path) -> Iterator[dict[str, str]]:
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)
