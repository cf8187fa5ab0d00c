"""What to do about what the vendor reads, said where the number stands."""

from __future__ import annotations

import math

from cutlayer.core import Proportion

HIGH = 0.1
"""A share of tokens above which there is something to advise: below, Yao & Li call an attack not effective (§3.3.4)."""


def classifier_advice(accuracy: Proportion, *, baseline: float) -> tuple[str, ...]:
    """What to try where a classifier learnt nothing that could be told from always giving one label.

    Args:
        accuracy: Of the tuned model.
        baseline: Accuracy of always giving the most frequent label, on the same texts.
    """
    if accuracy.value - baseline > 2 * accuracy.standard_error:
        return ()
    return (
        f"Accuracy is not above that of always giving the most frequent label, {100 * baseline:.2f} %, by two standard "
        "errors: the model may have learnt nothing. Try a higher --learning-rate (small models need more than large "
        "ones), more --epochs with as much --patience, more texts, or a larger --eta; and measure on more texts.",
    )


def language_advice(
    *,
    trained: Proportion | None,
    said: Proportion | None,
    rows: Proportion | None,
    eta: float,
    vocabulary: int,
) -> tuple[str, ...]:
    """What helps against what was measured, what it costs, and what does not help.

    Args:
        trained: Tokens read from gradients; `None` where it was not measured.
        said: Tokens read from answers.
        rows: Tokens read from rows on their way up.
        eta: The run's privacy parameter.
        vocabulary: Tokens that a label may be.
    """
    found: list[str] = []
    if _high(trained) or _high(said):
        found.append(
            "Treat what you train on and what is generated as readable by the vendor. Noise (--eta) does not act on "
            "gradients and answers, and a deeper --tail took a few points off where it was measured, for memory and "
            "time on your side."
        )
        found.append(
            "What would help is planned, and not in this version: labels drawn at random before training (randomised "
            f"response; to hide half of them among {vocabulary} tokens costs epsilon {math.log(vocabulary - 1):.1f} a "
            "token and half of the labels), and an enclave at the vendor (it costs the hardware, and with masks that "
            "are used once it computes about as much as the layers that it protects)."
        )
    if _high(rows):
        found.append(
            "Rows that go up are read through your blocks. "
            + (
                "Give a finite --eta: what is read are then the tokens that were drawn. It costs perplexity."
                if math.isinf(eta)
                else "A smaller --eta draws more tokens away. It costs perplexity."
            )
        )
    return tuple(found)


def _high(share: Proportion | None) -> bool:
    return share is not None and share.value > HIGH
