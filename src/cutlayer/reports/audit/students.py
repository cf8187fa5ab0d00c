"""How well a customer could copy the tuned model: students trained on the vendor's answers.

A student is what a customer can train cheaply of what it holds: logistic regression on the words and pairs of words
of a text, and on the mean of its rows in the table that was handed out. What it learns from answers is held against
what one of the same kind learns from as many true labels: the difference is what asking the model bought.

Ref: SAP §3.2, goal 1 (the vendor's model shall not be copied); agreement as in Tramèr et al., "Stealing Machine
Learning Models via Prediction APIs", USENIX Security 2016, §3 (one less their error R_test).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, hstack
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from cutlayer.attacks.evaluation.statistics import bootstrap
from cutlayer.core import Tokens
from cutlayer.data import Dataset, tokenise
from cutlayer.reports.schema import Student

SIZES = (100, 1_000, 10_000)
"""Answered queries that students are trained on, where there are so many texts."""
UNSEEN_SHARE = 0.2
MOST_UNSEEN = 2_000
"""Of the texts, those on which student and model are compared: no student has seen them."""

_LONGEST = 512
"""Tokens of a text that a student reads."""
_STEPS = 1_000


def train_students(
    texts: Dataset,
    answers: Sequence[str],
    *,
    tokenizer: PreTrainedTokenizerBase,
    table: Tensor | None,
    seed: int,
) -> tuple[Student, ...]:
    """Trains students on the first 100, 1,000 and 10,000 answers, as far as texts reach, and on all of them.

    Args:
        texts: Texts that the vendor was asked about, with their true labels.
        answers: What its tuned model said of each.
        tokenizer: The model's, as it was handed out.
        table: `[vocabulary, width]`, the embedding table as it was handed out; `None` where none was.
        seed: Which texts no student sees, and the order of the others.

    Returns:
        None where there are fewer than 100 texts beside the unseen ones, or where all answers are the same: then
        there is nothing to be learnt.
    """
    unseen, asked = divide(len(texts), seed=seed)
    if len(asked) < SIZES[0] or texts.labels is None or len(set(answers)) < 2:
        return ()
    said, true = np.array(answers), np.array(texts.labels)
    means = None if table is None else _mean_rows(texts, tokenizer, table)
    students = []
    for size in sizes_up_to(len(asked)):
        taught = asked[:size]
        features, tested = _features(texts, taught, unseen, means)
        copied = _agreement(features, said[taught], tested, said[unseen])
        labelled = _agreement(features, true[taught], tested, said[unseen])
        students.append(
            Student(
                queries=size,
                agreement=float(copied.mean()),
                agreement_ci=_interval(copied),
                from_labels=float(labelled.mean()),
                from_labels_ci=_interval(labelled),
                n=len(unseen),
            )
        )
    return tuple(students)


def divide(count: int, *, seed: int) -> tuple[list[int], list[int]]:
    """Texts that no student sees, and the others in the order in which they are asked about."""
    order: list[int] = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    held = min(MOST_UNSEEN, round(UNSEEN_SHARE * count))
    return order[:held], order[held:]


def sizes_up_to(asked: int) -> list[int]:
    """Numbers of texts to learn from: those that there are texts for, and all where that is half as many again."""
    sizes = [size for size in SIZES if size <= asked]
    return [*sizes, asked] if asked < SIZES[-1] and 2 * asked >= 3 * sizes[-1] else sizes


def _features(
    texts: Dataset, taught: Sequence[int], unseen: Sequence[int], means: NDArray[np.float64] | None
) -> tuple[csr_matrix, csr_matrix]:
    """Weights of words and pairs of words, and mean rows: of texts to learn from, and of those to be compared on."""
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    joined = [" ".join(row) for row in texts.texts]
    try:
        parts = [words.fit_transform([joined[row] for row in taught]), words.transform([joined[row] for row in unseen])]
    except ValueError:  # no text has a word: there is a constant to be learnt
        parts = [csr_matrix(np.ones((len(rows), 1))) for rows in (taught, unseen)]
    if means is not None:
        parts = [hstack([part, means[rows]]) for part, rows in zip(parts, (taught, unseen), strict=True)]
    learnt, compared = (csr_matrix(part) for part in parts)
    return learnt, compared


def _agreement(
    features: csr_matrix, targets: NDArray[np.str_], tested: csr_matrix, answers: NDArray[np.str_]
) -> NDArray[np.bool_]:
    """Where a student says what the tuned model does, `[unseen]`."""
    if len(set(targets.tolist())) < 2:  # one label is all that it was taught
        return np.asarray(answers == targets[0])
    model = LogisticRegression(C=10.0, max_iter=_STEPS).fit(features, targets)
    return np.asarray(model.predict(tested) == answers)


def _interval(agree: NDArray[np.bool_]) -> tuple[float, float]:
    return bootstrap(torch.from_numpy(agree.astype(np.int64)), torch.ones(len(agree), dtype=torch.int64))


def _mean_rows(texts: Dataset, tokenizer: PreTrainedTokenizerBase, table: Tensor) -> NDArray[np.float64]:
    """`[texts, width]`: the mean of each text's rows, to a mean length of 1."""
    tokens: Tokens = tokenise(texts, tokenizer, max_content=_LONGEST)
    sums = torch.zeros(len(texts), table.shape[1])
    counts = torch.zeros(len(texts))
    for side in tokens.segments:
        owner = torch.arange(len(texts)).repeat_interleave(side.lengths)
        sums.index_add_(0, owner, table.detach().float()[side.values])
        counts += side.lengths
    means = sums / counts.clamp(min=1)[:, None]
    scaled: NDArray[np.float64] = (means / means.norm(dim=1).mean().clamp(min=1e-12)).double().numpy()
    return scaled
