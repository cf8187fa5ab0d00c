"""Bytes on the wire for each token that is released, requests' lines and headers included.

Run it with `python -m benchmarks.wire`. It uploads to a real vendor process over loopback HTTP and
reads the customer's ledger, whose byte counts are taken at the socket.

Ratios:
    uplink_bytes_per_token_ids: Token ids of SST-2 phrases at eta 80.
    uplink_bytes_per_dim_bf16: Boundary rows after three blocks in bf16, per row and dimension.
    gradient_bytes_per_token_epoch: Output gradients of two labels in fp32.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.corpora import phrases
from benchmarks.results import write
from cutlayer import vendor
from cutlayer.core import Cut
from cutlayer.customer import Client, FinetuneResult, Training
from cutlayer.data import Dataset
from cutlayer.vendor.process import VendorProcess
from cutlayer.wire.recording import Direction, read_recording

ROWS_TEXTS = 2000


def run(url: str, key: str, home: Path, data: Dataset, *, bottom: int) -> FinetuneResult:
    """One epoch at eta 80."""
    client = Client(url, key, home=home)
    result = client.finetune(data, eta=80, training=Training(epochs=1), seed=1, cut=Cut(bottom=bottom))
    client.close()
    return result


def rows_and_width(result: FinetuneResult) -> tuple[int, int]:
    """How many boundary rows a run released, and how wide they are."""
    shapes = [
        tuple(frame.tensors()["rows"].shape)
        for frame in read_recording(result.folder / "transcript")
        if frame.direction is Direction.UP and "rows" in frame.tensors()
    ]
    return sum(rows for rows, _ in shapes), shapes[0][1]


def main() -> None:
    """Measures both forms and writes `benchmarks/results/wire.json`."""
    data = phrases()
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        vendor.init(at / "vendor", models=["starter"])
        key = vendor.keys.create(at / "vendor", "benchmark")
        with VendorProcess(at / "vendor") as process:
            ids = run(process.url, key, at / "ids", data, bottom=0)
            rows = run(process.url, key, at / "rows", data.select(range(min(ROWS_TEXTS, len(data)))), bottom=3)
            count, width = rows_and_width(rows)
    write(
        "wire",
        {
            "uplink_bytes_per_token_ids": ids.uplink_bytes["release"] / ids.tokens_released,
            "uplink_bytes_per_dim_bf16": rows.uplink_bytes["release"] / (count * width),
            "gradient_bytes_per_token_epoch": ids.uplink_bytes["gradient"] / ids.tokens_released / ids.epochs,
        },
    )


if __name__ == "__main__":
    main()
