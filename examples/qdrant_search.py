"""Semantic search in Qdrant: how many duplicates of questions are among the first ten, by settings of noise.

Each gateway embeds the same questions by other settings (clean, denoised, noisy); Qdrant runs in this process. Take
public questions: the first gateway shows them to the vendor as they are.

    cutlayer gateway key
    cutlayer gateway --port 8401 --eta inf
    cutlayer gateway --port 8402 --eta 80 --mechanism vector --clip
    cutlayer gateway --port 8403 --eta 80 --mechanism vector --denoiser none

The second needs a denoiser that the vendor trained with `--mechanism vector --clip`.

    OPENAI_API_KEY=KEY python examples/qdrant_search.py pairs.csv --model starter \
        --gateway clean=http://127.0.0.1:8401/v1 --gateway SnD=http://127.0.0.1:8402/v1 \
        --gateway TokEmbPriv=http://127.0.0.1:8403/v1

The file has columns question1, question2 and is_duplicate, as Quora's question pairs do. The second question of each
pair of duplicates is looked for by the first one, among all questions of the file.
"""

import argparse
import csv

import numpy as np
from numpy.typing import NDArray
from openai import OpenAI
from qdrant_client import QdrantClient
from qdrant_client.models import Distance, PointStruct, VectorParams

AT_ONCE = 512


def read(path: str, most: int) -> tuple[list[str], list[tuple[int, int]]]:
    """Questions, each once, and pairs of duplicates by their places."""
    places: dict[str, int] = {}
    pairs: list[tuple[int, int]] = []
    with open(path, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if len(pairs) == most:
                break
            first, second = (places.setdefault(row[name].strip(), len(places)) for name in ("question1", "question2"))
            if row["is_duplicate"] == "1" and first != second:
                pairs.append((first, second))
    return list(places), pairs


def embed(client: OpenAI, model: str, texts: list[str]) -> NDArray[np.float32]:
    """Embeddings by a gateway, `[n, width]`."""
    found = []
    for start in range(0, len(texts), AT_ONCE):
        answer = client.embeddings.create(model=model, input=texts[start : start + AT_ONCE])
        found += [each.embedding for each in answer.data]
    return np.array(found, dtype=np.float32)


def recall(vectors: NDArray[np.float32], pairs: list[tuple[int, int]], *, first: int) -> float:
    """The share of pairs whose second question is among the `first` that Qdrant finds for the first one."""
    store = QdrantClient(":memory:")
    store.create_collection("questions", VectorParams(size=vectors.shape[1], distance=Distance.COSINE))
    store.upsert("questions", [PointStruct(id=place, vector=row.tolist()) for place, row in enumerate(vectors)])
    hits = 0
    for asked, wanted in pairs:
        # one more: the question itself comes first
        found = store.query_points("questions", query=vectors[asked].tolist(), limit=first + 1).points
        hits += wanted in [point.id for point in found if point.id != asked][:first]
    return hits / len(pairs)


parser = argparse.ArgumentParser(description="Recall of duplicates among the first ten that Qdrant finds.")
parser.add_argument("pairs", help="a CSV file")
parser.add_argument("--model", default="starter")
parser.add_argument("--most", type=int, default=200, help="pairs of duplicates that are read at most")
parser.add_argument("--gateway", action="append", required=True, metavar="NAME=BASE_URL")
given = parser.parse_args()

questions, duplicates = read(given.pairs, given.most)
print(f"{len(questions)} questions, {len(duplicates)} pairs of duplicates")
for gateway in given.gateway:
    name, _, url = gateway.partition("=")
    share = recall(embed(OpenAI(base_url=url), given.model, questions), duplicates, first=10)
    error = (share * (1 - share) / len(duplicates)) ** 0.5
    print(f"{name:12} recall@10 {100 * share:5.1f} % ± {100 * error:.1f} (standard error)")
