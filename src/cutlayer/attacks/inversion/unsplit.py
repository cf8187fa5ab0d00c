"""The improved UnSplit attack on language models: texts read from hidden states, without any text to learn from.

The vendor guesses the customer's bottom, starting from the weights that it knew before training, and
the rows that went into it, starting from noise. It improves the rows and the weights in turn until
what comes out is the boundary that it was sent, and takes each row's nearest neighbour in the
embedding table. What it needs is the boundary, where padding stands, and the bottom before training.

Where the paper leaves something open or its parts disagree, the choice is a field of `UnSplitSpec`,
and the field says what the paper and what the authors' released code does.

Ref: Yao and Li, "Is Split Learning Privacy-Preserving for Fine-Tuning Large Language Models?",
§3.2.3, Algorithm 1 and §3.3.1. The released code is TL-System/plato, examples/split_learning/llm_split_learning.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from cutlayer.attacks.attack import Guesses
from cutlayer.attacks.content import content_rows
from cutlayer.attacks.inversion.unsplit_run import UnSplitRun, reconstruct
from cutlayer.attacks.inversion.unsplit_spec import OuterIteration, UnSplitSpec
from cutlayer.attacks.knowledge import Inapplicable
from cutlayer.attacks.view import View
from cutlayer.core import Ragged, Rows, Tokens
from cutlayer.models import Seq2SeqBottom, seeded


class UnSplit:
    """The attack on a transcript: each batch of boundary rows that was released is reconstructed.

    It takes minutes a batch, so it has settings and is no attack that every run is measured by.

    Args:
        spec: How to run it.
        seed: Of the start of x', for each batch by its place in the transcript, and of the guess's dropout.
        steps: Numbers of the training steps to look at; `None` looks at every release, queries too.
        on_progress: Told of each outer loop.
    """

    def __init__(
        self,
        spec: UnSplitSpec,
        *,
        seed: int,
        steps: Collection[int] | None = None,
        on_progress: Callable[[OuterIteration], None] | None = None,
    ) -> None:
        self._spec = spec
        self._seed = seed
        self._steps = steps
        self._on_progress = on_progress

    def __call__(self, view: View) -> Guesses:
        """Guesses the texts of each batch.

        Raises:
            Inapplicable: Token ids were released, or the bottom was not granted, or has no blocks.
        """
        bottom, template = view.knowledge.bottom, view.knowledge.template
        if isinstance(bottom, Seq2SeqBottom):
            raise Inapplicable("The attack guesses the bottom of a model with one stack of blocks.")
        if bottom is None or template is None:
            raise Inapplicable("The attacker was not granted the bottom as it was handed out.")
        for release in view.transcript.releases():
            if self._steps is not None and not (_is_step(release.source) and release.number in self._steps):
                continue
            payload = release.payload
            if not isinstance(payload, Rows):
                raise Inapplicable("Token ids were released, so nothing is left to reconstruct.")
            hidden, inputs = template.from_rows(payload)
            run = UnSplitRun(
                bottom,
                hidden,
                inputs,
                self._spec,
                generator=seeded(self._seed, f"{release.source}/{release.number}"),
                candidates=view.knowledge.candidates,
            )
            found = reconstruct(run, on_progress=self._on_progress)
            guessed = Rows(payload.packed.with_values(found.ids[found.mask]), payload.segment_lengths)
            values, lengths = content_rows(guessed, view.knowledge)
            yield release.source, release.number, Tokens((Ragged(values, lengths[:, 0].contiguous()),))


def _is_step(source: str) -> bool:
    return source.startswith("job/") and source.count("/") == 1
