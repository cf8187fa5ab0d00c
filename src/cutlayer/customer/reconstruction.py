"""What is said of plain words: public ones before training texts, which the vendor learns to reconstruct."""

from __future__ import annotations

import math
import warnings
from typing import Final

from cutlayer.core import CutlayerWarning
from cutlayer.core.setting import Shown, setting
from cutlayer.core.spec import SettingsSpec
from cutlayer.core.tuning import TUNING, Pooling
from cutlayer.wire.messages import MAX_PLAIN_SEQUENCES, MAX_PLAIN_TOKENS

_OUTWEIGHS: Final = 5
"""By which a second task's loss outweighs that of labels: at 4 beside 0.7 LoRA lost ten points."""


def _unsaid(value: object) -> bool:
    """What nobody said is not written either: records of runs, and cells of recipes, stay what they were."""
    return value is None


class Reconstruction(SettingsSpec):
    """A second task: the vendor learns to tell public words from what noise made of them.

    Ref: RAPT §III-B2.
    """

    plain_tokens: int = setting(
        0,
        help="Public words that are put before each training text and drawn with it (mechanism words, or plain_as). "
        "They cost no budget. Of a classifier use them with pooling mean: other heads read them, too. Nothing learns "
        "to write them. max_length does not count them. 0: none; the paper has 40.",
        shown=Shown(TUNING, unit="words", source="RAPT §III-B2"),
        ge=0,
        le=MAX_PLAIN_TOKENS,
    )
    plain_sequences: int = setting(
        1,
        help="Sequences of such words, of which each text has one.",
        shown=Shown(TUNING, unit="sequences", source="RAPT §V-E2"),
        ge=1,
        le=MAX_PLAIN_SEQUENCES,
    )
    plain_as: str | None = setting(
        None,
        help="The job of `protect` that drew words of these texts: plain words are drawn as it drew these, and nothing "
        "else is (eta inf).",
        shown=Shown(TUNING, metavar="JOB", default="as the run's own words"),
        exclude_if=_unsaid,
    )
    plain_seed: int | None = setting(
        None,
        help="Which plain words are drawn: another number draws others, under the same seed of the run.",
        shown=Shown(TUNING, source="RAPT §V-E2", default="the run's seed"),
        ge=0,
        le=2**63 - 1,
        exclude_if=_unsaid,
    )
    reconstruction_weight: float | None = setting(
        None,
        help="What their reconstruction counts in the loss, beside the labels. 0: they stand there, and nothing is "
        "learnt from them.",
        shown=Shown(TUNING, source="RAPT §III-B2, eq. (11)", default="1"),
        ge=0,
        le=1e6,
        allow_inf_nan=False,
    )
    reconstruction_width: int = setting(
        96,
        help="Hidden size of the head that reconstructs them; it is thrown away after training.",
        shown=Shown(TUNING, source="RAPT §V-A3"),
        ge=1,
        le=4096,
    )
    reconstruction_vocabulary: int | None = setting(
        None,
        help="Outputs of that head, among which it tells the plain words. Among many more than these, the model may "
        "learn nothing but which these are, and no labels.",
        shown=Shown(
            TUNING,
            unit="words",
            source="RAPT §V-A3 has 19,369",
            default="the plain words",
        ),
        ge=2,
        le=2**20,
        exclude_if=_unsaid,
    )
    plain_tokens_at_inference: bool = setting(
        False,
        help="Classifiers: put them before dev, test and later queries, too.",
        shown=Shown(TUNING),
    )

    @property
    def weight(self) -> float:
        """What reconstruction counts, where there is any."""
        return 1.0 if self.reconstruction_weight is None else self.reconstruction_weight

    def first_loss(self) -> float:
        """About where its part of the loss begins, in nats: a sum over all plain words, each guessed at random."""
        outputs = self.reconstruction_vocabulary or self.plain_tokens * self.plain_sequences
        return self.weight * self.plain_tokens * math.log(max(2, outputs))

    def warn_of_what_labels_lose(self, pooling: Pooling, labels: int) -> None:
        """Tells a classifier's owner of settings by which, where it was measured, fewer labels were learnt, or none.

        Args:
            pooling: What the head reads.
            labels: How many there are.
        """
        told = []
        if pooling != "mean":
            told.append(
                "the head reads plain words, too, by which a prefix lost 7 points, and LoRA all that it had learnt "
                "(--pooling mean leaves them out)"
            )
        if self.first_loss() > _OUTWEIGHS * math.log(max(2, labels)):
            told.append(
                f"reconstruction begins at a loss of {self.first_loss():.0f} beside {math.log(max(2, labels)):.1f} of "
                "labels, where at 4 LoRA lost ten points (--reconstruction-weight 0.001 was measured)"
            )
        if self.plain_tokens and told:
            warnings.warn(
                f"Plain words before texts: {'; '.join(told)}. See docs/papers/rapt.md, Reconstruction.",
                CutlayerWarning,
                stacklevel=3,
            )
