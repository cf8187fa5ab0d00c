"""What a reading is worth: shares of tokens and texts, by kind of token, and how close texts are as texts.

Each number has its n and a 95 % interval over resampled texts. Empirical privacy is 1 less the share.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cutlayer.attacks import Reading
from cutlayer.attacks.scoring import bootstrap
from cutlayer.attacks.truth import UNREAD
from cutlayer.core import Tokens
from cutlayer.data import Dataset
from cutlayer.reports.schema import Metric, TokenClass

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NAMES, NUMBERS, RARE, OTHER, MARKS = "names", "numbers", "rare words", "other words", "punctuation"
CLASSES = (NAMES, NUMBERS, RARE, OTHER, MARKS)
"""Kinds of tokens, in the order in which a report lists them."""
RARE_SHARE = 1e-5
"""A token is rare if it makes less than this share of the attacker's own text."""
MOST_TEXTS = 1_000
"""Texts whose likeness is measured: it takes milliseconds each."""
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
_SENTENCE_END = re.compile(r"[.!?:;…]['\"”’)]*\s*$|^\s*$")


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
    """The share of texts of which every token was read."""
    seen, right = reading.per_text(reading.seen), reading.per_text(reading.right)
    shown = (seen > 0).long()
    return share("exact_text", "whole texts read without a mistake", ((right == seen) & (seen > 0)).long(), shown)


def likeness(reading: Reading, tokenizer: PreTrainedTokenizerBase) -> tuple[Metric, ...]:
    """How close read texts are to the true ones as texts, whatever stands at which place: ROUGE-L and BLEU.

    Means over texts, of the first `MOST_TEXTS` of which anything was looked at; tokens that were not read are left out.
    Words are runs of letters and digits after folding case.

    Ref: Lin 2004 (ROUGE-L, F1); Papineni et al. 2002 (BLEU-4 of each text, smoothed as Chen and Cherry's method 1; of
    texts of fewer words up to as many).
    """
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


def _words(tokens: Tokens, row: int, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    ids = torch.cat([side[row] for side in tokens.segments])
    text = str(tokenizer.decode(ids[ids != UNREAD].tolist(), clean_up_tokenization_spaces=False))
    return [word.lower() for word in _WORD.findall(text)]


def token_kinds(
    texts: Dataset, reading: Reading, tokenizer: PreTrainedTokenizerBase, *, public: Tensor | None
) -> Tensor:
    """For each token of a reading which of `CLASSES` it is of, `[items]` int64.

    Names are words written with a capital that does not begin a sentence; numbers have a digit; rare words are
    those of tokens that the attacker's own text hardly has. Where texts have no capitals, no name is told.

    Args:
        texts: The texts that the reading is of, in its order.
        reading: For how many tokens of each text there are.
        tokenizer: The model's.
        public: `[tokens]` int64, the attacker's own text; `None` where it has none, and no word is rare.
    """
    rare: set[int] = set()
    if public is not None:
        ids = torch.cat([side.values for side in reading.tokens.segments]).unique()
        size = 1 + int(max(int(ids.max()), int(public.max())))
        often = torch.bincount(public, minlength=size)
        rare = set(ids[often[ids] < RARE_SHARE * len(public)].tolist())
    kinds: list[int] = []
    for side, segment in enumerate(reading.tokens.segments):
        for row, found in enumerate(segment.split()):
            text = texts.texts[row][side]
            spans: Sequence[tuple[int, int]] = tokenizer(
                text, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True, verbose=False
            )["offset_mapping"]
            kinds += _kinds(text, spans, found.tolist(), rare)
    return torch.tensor(kinds, dtype=torch.int64)


def _kinds(text: str, spans: Sequence[tuple[int, int]], ids: Sequence[int], rare: set[int]) -> list[int]:
    words = [(match.start(), match.end()) for match in _WORD.finditer(text)]
    found = []
    at = 0
    # a text that was cut has fewer tokens than spans, and one with an end mark has one more
    for place, token in enumerate(ids):
        start, end = spans[place] if place < len(spans) else (len(text), len(text))
        while at < len(words) and words[at][1] <= start:
            at += 1
        inside = at < len(words) and words[at][0] < end and start < end
        word = text[slice(*words[at])] if inside else ""
        if any(character.isdigit() for character in text[start:end]):
            kind = NUMBERS
        elif not inside:
            kind = MARKS
        elif word[0].isupper() and word != "I" and not _SENTENCE_END.search(text[: words[at][0]]):
            kind = NAMES
        else:
            kind = RARE if token in rare else OTHER
        found.append(CLASSES.index(kind))
    return found


def by_class(reading: Reading, kinds: Tensor) -> tuple[TokenClass, ...]:
    """What was read of each kind of token.

    Args:
        reading: What was read.
        kinds: `[items]` int64, as `token_kinds` gives them.
    """
    found = []
    for number, name in enumerate(CLASSES):
        counted = reading.seen & (kinds == number)
        n = int(counted.sum())
        if not n:
            found.append(TokenClass(name=name, recovered=None, n=0))
            continue
        right, trials = reading.per_text(reading.right & counted), reading.per_text(counted)
        found.append(TokenClass(name=name, recovered=float(right.sum()) / n, ci=bootstrap(right, trials), n=n))
    return tuple(found)


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
