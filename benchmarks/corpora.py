"""Texts to measure on: public data where it is at hand, the embedded sample elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

from cutlayer.data import Dataset, read_dataset, sample_path


def sentences(n: int) -> Dataset:
    """`n` sentences of SST-2 with labels 0 and 1, or sample messages repeated up to `n`."""
    folder = os.environ.get("CUTLAYER_DATA")
    if folder:
        file = Path(folder) / "sst2" / "train_sentences.jsonl.gz"
        data = read_dataset(file, text_column="text", label_column="label")
        return data.select(range(min(n, len(data))))
    data = read_dataset(sample_path("train"), text_column="text", label_column="label")
    print("CUTLAYER_DATA is not set: measuring on the embedded sample.")
    first = (data.labels or ("",))[0]
    binary = Dataset(data.texts, tuple(str(int(label == first)) for label in data.labels or ()))
    return binary.select([i % len(binary) for i in range(n)])


def phrases() -> Dataset:
    """Every fourth training phrase of SST-2, or the sample messages."""
    folder = os.environ.get("CUTLAYER_DATA")
    if folder:
        data = read_dataset(Path(folder) / "sst2" / "train.jsonl.gz", text_column="text", label_column="label")
        return data.select(range(0, len(data), 4))
    print("CUTLAYER_DATA is not set: measuring on the embedded sample.")
    return read_dataset(sample_path("train"), text_column="text", label_column="label")
