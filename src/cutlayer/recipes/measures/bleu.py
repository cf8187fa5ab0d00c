"""BLEU of texts with several references each, with intervals over resampled texts.

Ref: Papineni et al., "BLEU: a method for automatic evaluation of machine translation", ACL 2002; Post, "A call for
clarity in reporting BLEU scores", WMT 2018 (sacreBLEU).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from sacrebleu.metrics.bleu import BLEU

from cutlayer.attacks.evaluation.statistics import bootstrap_of

Counts: TypeAlias = tuple[int, ...]
"""Of a text: n-grams of 1 to 4 words that a reference has, all its n-grams, its words, and those of the reference
nearest in length. BLEU of a corpus is one of sums of these."""
_ORDERS = 4


def bleu_counts(texts: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[Counts, ...]:
    """What BLEU adds up, text by text: in lower case, words as of mteval-v13a.

    Args:
        texts: What was written.
        references: Of each what people wrote, one text at least.
    """
    scorer = BLEU(lowercase=True, effective_order=True)
    found = []
    for text, own in zip(texts, references, strict=True):
        score = scorer.sentence_score(text, list(own))
        found.append((*score.counts, *score.totals, score.sys_len, score.ref_len))
    return tuple(found)


def bleu(counts: NDArray[np.float64]) -> float:
    """BLEU of a corpus as a share, of the sums `[10]` of its texts' counts; smoothed as sacreBLEU does by default."""
    matched, there, lengths = np.split(counts.round().astype(int), (_ORDERS, 2 * _ORDERS))
    written, nearest = lengths.tolist()
    score = BLEU.compute_bleu(matched.tolist(), there.tolist(), written, nearest, smooth_method="exp")
    return float(score.score) / 100


def corpus_bleu(counts: Sequence[Counts]) -> tuple[float, float, float]:
    """BLEU of a corpus as a share, and its 95 % interval over resampled texts."""
    whole = np.array(counts, dtype=np.float64)
    return _resampled(lambda drawn: bleu(drawn @ whole), len(whole))


def bleu_gain(first: Sequence[Counts], second: Sequence[Counts]) -> tuple[float, float, float]:
    """By how much BLEU of the second texts is above that of the first, and its 95 % interval: paired bootstrap.

    Ref: Koehn, "Statistical significance tests for machine translation evaluation", EMNLP 2004.

    Args:
        first: Of texts about some facts.
        second: Of others about the same facts, in the same order.
    """
    one, other = (np.array(counts, dtype=np.float64) for counts in (first, second))
    if np.array_equal(one, other):
        return 0.0, 0.0, 0.0
    return _resampled(lambda drawn: bleu(drawn @ other) - bleu(drawn @ one), len(one))


def _resampled(of: Callable[[NDArray[np.float64]], float], texts: int) -> tuple[float, float, float]:
    def each(drawn: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.array([of(times) for times in drawn])

    return (float(of(np.ones(texts))), *bootstrap_of(each, torch.arange(texts), trials=texts))
