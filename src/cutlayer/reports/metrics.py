"""What a reading is worth: shares of tokens and texts, by kind of token, and how close texts are as texts.

Each number has its n and a 95 % interval over resampled texts. Empirical privacy is 1 less the share.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cutlayer.attacks import Reading
from cutlayer.attacks.evaluation.scoring import UNREAD
from cutlayer.attacks.evaluation.statistics import bootstrap
from cutlayer.core import Tokens
from cutlayer.core.extras import require
from cutlayer.reports.markup import CLASSES, NAMES, WORD, Markup
from cutlayer.reports.schema import Interval, Metric, TokenClass

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from cutlayer.customer.recorded_words import WordNumbers

WHOLE_NAMES = "whole names"
"""A row beside kinds of tokens: names as they are written, each of one token or more."""
MOST_TEXTS = 1_000
"""Texts whose likeness is measured: it takes milliseconds each."""


def share(name: str, title: str, successes: Tensor, trials: Tensor) -> Metric:
    """A share of trials that come in texts.

    Args:
        name: For machines.
        title: For readers.
        successes: `[texts]`, of each text.
        trials: `[texts]`, in each text; there must be one at least.
    """
    total = int(trials.sum())
    value = float(successes.double().sum()) / total
    return Metric(name=name, title=title, value=value, ci=bootstrap(successes, trials), n=total)


def exact_texts(reading: Reading) -> Metric:
    """The share of texts of which every token was read; a pair is one text."""
    return share("exact_text", "whole texts read without a mistake", *_read_whole(reading, reading.owners))


def exact_sentences(reading: Reading, markup: Markup) -> Metric:
    """The share of sentences of which every token was read; of a sentence that was cut, every token that is left.

    Args:
        reading: What was read.
        markup: Of its tokens.
    """
    successes, trials = _read_whole(reading, markup.sentences)
    return share("exact_sentence", "whole sentences read without a mistake", successes, trials)


def _read_whole(reading: Reading, parts: Tensor) -> tuple[Tensor, Tensor]:
    """`[texts]` int64 twice: of how many parts of a text every token was read, and how many parts were looked at.

    Args:
        reading: What was read.
        parts: `[items]` int64, the part of each token, each of one text; below 0 for tokens that are of none.
    """
    counted = reading.seen & (parts >= 0)
    numbers, part = parts[counted].unique(return_inverse=True)
    missed = torch.zeros(len(numbers), dtype=torch.int64).index_add(0, part, (~reading.right[counted]).long())
    owner = torch.zeros(len(numbers), dtype=torch.int64).scatter(0, part, reading.owners[counted])
    none = torch.zeros(len(reading.tokens), dtype=torch.int64)
    return none.index_add(0, owner, (missed == 0).long()), none.index_add(0, owner, torch.ones_like(owner))


def likeness(reading: Reading, tokenizer: PreTrainedTokenizerBase | WordNumbers) -> tuple[Metric, ...]:
    """How close read texts are to the true ones as texts, whatever stands at which place: ROUGE-L and BLEU.

    Means over texts, of the first `MOST_TEXTS` of which anything was looked at; tokens that were not read are left out.
    Words are runs of letters and digits after folding case.

    Ref: Lin 2004 (ROUGE-L, F1); Papineni et al. 2002 (BLEU-4 of each text, smoothed as Chen and Cherry's method 1; of
    texts of fewer words up to as many).
    """
    require("audit")
    from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu
    from rouge_score.rouge_scorer import RougeScorer

    shown = (reading.per_text(reading.seen) > 0).nonzero()[:MOST_TEXTS, 0].tolist()
    scorer = RougeScorer(["rougeL"])
    smooth = SmoothingFunction().method1
    rouge, bleu = [], []
    for row in shown:
        true, read = (_words(tokens, row, tokenizer) for tokens in (reading.tokens, reading.read))
        if not true:
            continue
        rouge.append(scorer.score(" ".join(true), " ".join(read))["rougeL"].fmeasure)
        orders = min(4, len(true))
        weights = (1 / orders,) * orders
        bleu.append(sentence_bleu([true], read, weights, smoothing_function=smooth) if read else 0.0)
    if not rouge:
        return ()
    ones = torch.ones(len(rouge), dtype=torch.int64)
    return tuple(
        Metric(
            name=name,
            title=title,
            value=sum(values) / len(values),
            ci=bootstrap(torch.tensor(values, dtype=torch.float64), ones),
            n=len(values),
        )
        for name, title, values in (
            ("rouge_l", "likeness of whole texts, ROUGE-L (F1)", rouge),
            ("bleu", "likeness of whole texts, BLEU-4", bleu),
        )
    )


def _words(tokens: Tokens, row: int, tokenizer: PreTrainedTokenizerBase | WordNumbers) -> list[str]:
    ids = torch.cat([side[row] for side in tokens.segments])
    text = str(tokenizer.decode(ids[ids != UNREAD].tolist(), clean_up_tokenization_spaces=False))
    return [word.lower() for word in WORD.findall(text)]


def by_class(reading: Reading, markup: Markup) -> tuple[TokenClass, ...]:
    """What was read of each kind of token, and how far guesses of each kind can be believed; and of whole names.

    Recall is of the tokens of a kind the share that was read, precision of the guesses of a kind the share that is
    right: the token itself, not its kind alone. Of several looks at a token the one counts that read it, if any did. Of
    a name every token must be read. Nobody can see which guesses make a name, so whole names have no precision.

    Args:
        reading: What was read.
        markup: Of its tokens; `mark_up` says what makes a guess one of a kind.
    """
    found: list[TokenClass] = []
    for number, kind in enumerate(CLASSES):
        there, guessed = (reading.seen & (kinds == number) for kinds in (markup.kinds, markup.guessed))
        recovered, ci, n = _ratio(reading.per_text(reading.right & there), reading.per_text(there))
        precision, precision_ci, guesses = _ratio(reading.per_text(reading.right & guessed), reading.per_text(guessed))
        found.append(
            TokenClass(
                name=kind,
                recovered=recovered,
                ci=ci,
                n=n,
                precision=precision,
                precision_ci=precision_ci,
                guessed=guesses,
            )
        )
        if kind == NAMES:
            recovered, ci, n = _ratio(*_read_whole(reading, markup.names))
            found.append(TokenClass(name=WHOLE_NAMES, recovered=recovered, ci=ci, n=n))
    return tuple(found)


def _ratio(successes: Tensor, trials: Tensor) -> tuple[float | None, Interval | None, int]:
    """A share of trials that come in texts, its interval and its n; no share where there is no trial."""
    n = int(trials.sum())
    return (float(successes.sum()) / n, bootstrap(successes, trials), n) if n else (None, None, 0)


def holm(p_values: Mapping[str, float], *, alpha: float) -> dict[str, bool]:
    """Which of several attacks are above chance, so that a report of nothing raises an alarm with probability alpha.

    The smallest p-value is compared with alpha / m, the next with alpha / (m - 1), and so on until one fails.

    Args:
        p_values: Of each attack by itself.
        alpha: The probability of one false alarm or more.

    Ref: Holm 1979.
    """
    above: dict[str, bool] = {}
    failed = False
    for rank, name in enumerate(sorted(p_values, key=lambda each: p_values[each])):
        failed = failed or p_values[name] > alpha / (len(p_values) - rank)
        above[name] = not failed
    return above
