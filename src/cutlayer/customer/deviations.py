"""Where a run fills in what the papers leave open, or differs from them, beside the privatizer's own."""

from __future__ import annotations

from cutlayer.core import Deviation
from cutlayer.customer.settings import RunSpec, TrainBottom


def deviations(spec: RunSpec) -> tuple[Deviation, ...]:
    """Of the method that a run's settings choose; what a paper trained with belongs to its recipe."""
    return (*_of_bottom(spec), *_of_head(spec), *_of_reconstruction(spec))


def _of_bottom(spec: RunSpec) -> tuple[Deviation, ...]:
    """Of a bottom that is trained."""
    if spec.train_bottom is TrainBottom.FROZEN:
        return ()
    bottom = Deviation(
        what="what of the bottom is trained",
        value_in_paper="the embedding layer; not stated for deeper bottoms",
        ours="the token table" if not spec.cut.bottom else "the blocks; the table stays as it was handed out",
        why="Released tokens then stay tokens of one table.",
    )
    drawn = Deviation(
        what="which table noise is added to and searched, eq. (3) and (4), once the table is trained",
        value_in_paper="not stated",
        ours="the initial one; the row that is sent is the trained table's",
        why="Distances of a table that private texts have trained would be no public metric, and budgets over "
        "changing metrics could not be added.",
    )
    return (bottom, drawn) if not spec.cut.bottom else (bottom,)


def _of_head(spec: RunSpec) -> tuple[Deviation, ...]:
    """Of a head that reads the mean, RAPT's (§III-B1)."""
    if spec.objective.generates or spec.tuning.pooling != "mean":
        return ()
    return (
        Deviation(
            what="what the head reads, eq. (9)",
            value_in_paper="the mean over the n words of a text",
            ours="the mean over all of its positions, special tokens included",
            why="The vendor is sent ids, and not told which of them make a word.",
        ),
    )


def _of_reconstruction(spec: RunSpec) -> tuple[Deviation, ...]:
    """Of plain words, which RAPT §III-B2 describes."""
    asked = spec.reconstruction
    if not asked.plain_tokens:
        return ()
    weighted = Deviation(
        what="weight of the reconstruction, eq. (11)",
        value_in_paper="1",
        ours=f"{asked.weight:g}",
        why="It is a sum over the plain words, which begins far above the labels' loss: at 1 accuracy fell in all "
        "trainings that were measured (docs/papers/rapt.md).",
    )
    return (
        *((weighted,) if asked.weight not in (0, 1) else ()),
        Deviation(
            what="state of a plain word, eq. (7)",
            value_in_paper="g at its position",
            ours="the mean over its pieces",
            why="A word is drawn, and may have several pieces in the vendor's model.",
        ),
        Deviation(
            what="noise on plain words",
            value_in_paper="not stated",
            ours="drawn for each text",
            why="One draw of a sequence for all texts would be as many fixed words to learn by heart.",
        ),
        Deviation(
            what="length of texts behind plain words",
            value_in_paper="128 tokens, not stated whether these are among them",
            ours="as without: plain words take further positions",
            why="Of short texts they would leave too little to learn labels from.",
        ),
        Deviation(
            what="vocabulary of the reconstruction head, §V-A3",
            value_in_paper="19,369 words, not stated which",
            ours="the plain words themselves"
            if (outputs := asked.reconstruction_vocabulary) is None
            else f"{outputs:,} outputs, those of the plain words and others that no text has",
            why="No other word is ever to be told. Among thousands, which words these are is learnt first, by states "
            "that become alike, and labels may then not be learnt at all (docs/papers/rapt.md).",
        ),
    )
