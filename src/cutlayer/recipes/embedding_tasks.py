"""What embeddings are asked for elsewhere: classes, pairs, clusters and search, on public data.

The four kinds and their scores are those of the massive text embedding benchmark (MTEB, arXiv:2210.07316), on data sets
that are at hand: numbers are not those of its leaderboard.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cutlayer.core import Spec
from cutlayer.data import Dataset, read_dataset
from cutlayer.data.webnlg import read_webnlg
from cutlayer.recipes.embedding_cells import EmbeddingCell, Scored
from cutlayer.recipes.lab import Lab
from cutlayer.recipes.tasks import Limits, Task, at_most, data_file
from cutlayer.reports.downstream import numbered

SCORE: Final = "score"
_TOP: Final = 10
"""Documents that are looked at of each search."""

Numbers = NDArray[np.float64]


class Asked(Spec):
    """Texts, and what is asked of their embeddings.

    Attributes:
        kind: classification: labels by logistic regression (accuracy). pairs: which belong together, by cosine (average
            precision). clustering: as many clusters as labels, by k-means (v-measure). retrieval: the second text of a
            row, by the first one (nDCG@10).
        task: Where texts and labels are. Of `classification` both of its files count, of others the one to test on.
    """

    kind: Literal["classification", "pairs", "clustering", "retrieval"]
    task: Task

    def read(self, folder: Path, limits: Limits) -> tuple[Dataset, int]:
        """Its rows, and how many of them, at the beginning, are learnt from."""
        if self.kind == "classification":
            return self.task.read_at_most(folder, limits)
        path = data_file(folder, self.task.name, self.task.test)
        first, *second = self.task.text_columns
        if self.task.name == "webnlg":
            facts = read_webnlg(path)
            found = Dataset(tuple((each.references[0],) for each in facts), tuple(each.category for each in facts))
        else:
            label = None if self.kind == "retrieval" else self.task.label_column
            found = read_dataset(
                path, text_column=first, text_pair_column=second[0] if second else None, label_column=label
            )
        return at_most(found, limits.test), 0


class AskedCell(EmbeddingCell):
    """What is asked of a data set's embeddings, which are made in one way.

    Attributes:
        asked: What.
        limits: Rows of each file.
    """

    asked: Asked
    limits: Limits

    @property
    def name(self) -> str:
        return f"{self.asked.kind}-{self.asked.task.name}-{self.how}"

    def check(self, lab: Lab) -> None:
        super().check(lab)
        task = self.asked.task
        for part in (task.train, task.test) if self.asked.kind == "classification" else (task.test,):
            data_file(lab.options.data, task.name, part)

    def run(self, lab: Lab) -> Scored:
        rows, learnt = self.asked.read(lab.options.data, self.limits)
        told = self.told(self.arms(rows, lab))
        return Scored.of({
            name: {SCORE: score(self.asked.kind, values, rows, learnt=learnt)[None]} for name, values in told.items()
        })  # fmt: skip


def score(kind: str, embeddings: Tensor, rows: Dataset, *, learnt: int) -> Tensor:
    """What embeddings score, row by row: `[tested rows]` float64, whose mean it is.

    Args:
        kind: As of `Asked`.
        embeddings: `[n, width]`, or `[n, 2, width]` of pairs.
        rows: The texts, with labels but of `retrieval`.
        learnt: How many, at the beginning, are learnt from.
    """
    return torch.from_numpy(_SCORES[kind](embeddings, rows, learnt))


def _classes(embeddings: Tensor, rows: Dataset, learnt: int) -> Numbers:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    labels = np.array(rows.labels)
    found = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(embeddings[:learnt], labels[:learnt])
    return np.asarray(found.predict(embeddings[learnt:]) == labels[learnt:], dtype=np.float64)


def _pairs(embeddings: Tensor, rows: Dataset, learnt: int) -> Numbers:
    from sklearn.metrics import average_precision_score

    alike = nn.functional.cosine_similarity(embeddings[:, 0], embeddings[:, 1]).numpy()
    truth = numbered(rows.labels or ()).numpy()
    return _by_row(len(rows), lambda some: float(average_precision_score(truth[some], alike[some])))


def _clusters(embeddings: Tensor, rows: Dataset, learnt: int) -> Numbers:
    from sklearn.cluster import KMeans
    from sklearn.metrics import v_measure_score

    truth = numbered(rows.labels or ()).numpy()
    found = KMeans(int(truth.max()) + 1, n_init=10, random_state=0).fit_predict(_directions(embeddings).numpy())
    return _by_row(len(rows), lambda some: float(v_measure_score(truth[some], found[some])))


def _retrieved(embeddings: Tensor, rows: Dataset, learnt: int) -> Numbers:
    from sklearn.metrics import ndcg_score

    queries, documents = _directions(embeddings[:, 0]), _directions(embeddings[:, 1])
    asked = np.array([first for first, *_ in rows.texts])
    relevant = asked[:, None] == asked[None, :]  # who asks the same looks for all of these
    alike = (queries @ documents.T).numpy()
    return np.array([
        ndcg_score(relevant[query : query + 1], alike[query : query + 1], k=_TOP) for query in range(len(rows))
    ])  # fmt: skip


_SCORES: Final[Mapping[str, Callable[[Tensor, Dataset, int], Numbers]]] = {
    "classification": _classes,
    "pairs": _pairs,
    "clustering": _clusters,
    "retrieval": _retrieved,
}


def _directions(embeddings: Tensor) -> Tensor:
    return nn.functional.normalize(embeddings.double(), dim=-1)


def _by_row(n: int, of: Callable[[NDArray[np.int64]], float]) -> Numbers:
    """A score of all rows as a mean over rows: by how much it changes where one of them is left out (the jackknife)."""
    rows = np.arange(n)
    without = np.array([of(np.delete(rows, row)) for row in rows])
    return np.asarray(of(rows) + (n - 1) * (without.mean() - without))
