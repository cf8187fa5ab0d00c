"""How much of a text a reconstruction gives away in words rather than in tokens: ROUGE.

Ref: Lin, "ROUGE: A Package for Automatic Evaluation of Summaries", 2004; used for reconstructed texts in
Yao and Li, "Is Split Learning Privacy-Preserving for Fine-Tuning Large Language Models?", §3.3.1.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from cutlayer.core import DataError, Proportion
from cutlayer.core.extras import require

_KINDS = ("rouge1", "rouge2", "rougeL", "rougeLsum")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


class TextOverlap(BaseModel):
    """Mean F1 over texts, each between 0 and 1, with the standard error of the mean.

    Attributes:
        rouge1: Overlap of single words.
        rouge2: Overlap of pairs of neighbouring words.
        rouge_l: Longest common subsequence of words.
        rouge_lsum: Union of the longest common subsequences of sentences.
        n: Texts compared.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rouge1: Proportion
    rouge2: Proportion
    rouge_l: Proportion
    rouge_lsum: Proportion
    n: int


def text_overlap(true: Sequence[str], guessed: Sequence[str]) -> TextOverlap:
    """Compares texts with their reconstructions, one by one.

    Computed by `rouge-score`, without stemming. Its words are runs of a-z and 0-9 after folding case
    ("we did not differentiate between upper and lower cases", §3.3.1), so other alphabets and
    punctuation do not count; true texts without a word in this sense are left out.

    ROUGE-Lsum needs sentences, and reconstructions rarely keep their lines. Both texts are divided at
    newlines and at white space after `.`, `!` or `?`. The paper does not say how it divides; its released
    code leaves it to torchmetrics, which uses NLTK's trained Punkt model, a download that is not
    needed here.

    The standard error is that of a mean over texts. One text shows no spread: then it is the largest
    that a value between 0 and 1 can have, sqrt(m (1 - m)).

    Args:
        true: What the texts were.
        guessed: What an attack made of them, in the same order.

    Raises:
        DataError: The two differ in number, or no true text has a word.
    """
    require("audit")
    from rouge_score import rouge_scorer, tokenizers

    if len(true) != len(guessed):
        raise DataError(f"There are {len(true)} true texts and {len(guessed)} guesses; each text needs one.")
    tokenizer = tokenizers.DefaultTokenizer()
    scorer = rouge_scorer.RougeScorer(_KINDS, tokenizer=tokenizer)
    scores = [
        scorer.score(_by_sentence(text), _by_sentence(guess))
        for text, guess in zip(true, guessed, strict=True)
        if tokenizer.tokenize(text)
    ]
    if not scores:
        raise DataError("There is nothing to compare: no true text has a word of a-z or 0-9.")
    means = [_mean([float(score[kind].fmeasure) for score in scores]) for kind in _KINDS]
    return TextOverlap(rouge1=means[0], rouge2=means[1], rouge_l=means[2], rouge_lsum=means[3], n=len(scores))


def _by_sentence(text: str) -> str:
    """A newline after each sentence, which is what rouge-score goes by; between words it is white space like any."""
    return _SENTENCE_END.sub("\n", text)


def _mean(values: list[float]) -> Proportion:
    n, mean = len(values), math.fsum(values) / len(values)
    spread = math.fsum((value - mean) ** 2 for value in values) / (n - 1) if n > 1 else mean * (1 - mean)
    return Proportion(value=mean, n=n, standard_error=math.sqrt(spread / n))
