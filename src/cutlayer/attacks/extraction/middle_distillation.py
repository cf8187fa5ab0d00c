"""How much of the vendor's blocks a customer can copy from rows in and rows out.

Here the attacker is the customer. Where it holds the tail, each query shows it what went into the vendor's blocks and
what came out, for every token. With a window z_t = (h_t, h_{t-1}, h_{t-2}, mean of h_1 … h_t) of rows in, each feature
standardised, a student learns rows out y_t, each coordinate by its own mean and spread:

    min over W, b:  mean ‖W z_t + b - y_t‖² + lambda ‖W‖²,    then    min over f:  mean ‖f(z_t) - (y_t - W z_t - b)‖²,

in closed form, and a perceptron f by steps for what that leaves over. The penalty, and whether f helps, are chosen on
texts that neither is fitted on nor reported. Behind its rows the customer's own tail says the next token.

A student of the same kind may learn from the answers instead, or from the customer's own text: W starts as the way past
the vendor's blocks (rows out are rows in), and all of it is fitted to say those tokens through the tail. What rows buy
is what a student gains by them over these two.

Students are small, for a report may not take hours: blocks of the vendor's own kind learn more from the same rows, with
many times the work. So a number is the least that a customer can do.

Ref: SAP §3.2, goal 1; a student that regresses hidden states as in Romero et al., "FitNets", ICLR 2015, §2.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cutlayer.attacks.evaluation.statistics import bootstrap
from cutlayer.attacks.extraction.exchanged import Exchanged
from cutlayer.attacks.extraction.explained import explained_by
from cutlayer.attacks.extraction.student import DistillationSpec, Student, imitate, regress

NAME = "middle-distillation"
TITLE = "A student of the vendor's blocks, from rows in and rows out"
REFERENCE = "this project; regression of hidden states: Romero et al., ICLR 2015 (FitNets)"


@dataclass(frozen=True)
class Copied:
    """How near a student comes to the vendor's blocks, on texts that it has not seen.

    Attributes:
        texts: That it was taught on.
        rows: How many these have.
        kind: What it is: `linear`, or `linear and perceptron`.
        explained: The share of variance of rows out that its rows explain, each coordinate in units of its own spread;
            negative where its rows are farther off than the mean row.
        explained_interval: 95 % over texts.
        agreement: The share of rows at which the customer's tail says of its rows what it says of the vendor's.
        agreement_interval: 95 % over texts.
        from_answers: Agreement of a student that learnt from what the tuned model says.
        from_answers_interval: 95 % over texts.
        from_text: Agreement of one that learnt from the texts' own tokens.
        from_text_interval: 95 % over texts.
        unseen: Texts behind these numbers.
        n: Their rows.
    """

    texts: int
    rows: int
    kind: str
    explained: float
    explained_interval: tuple[float, float]
    agreement: float
    agreement_interval: tuple[float, float]
    from_answers: float
    from_answers_interval: tuple[float, float]
    from_text: float
    from_text_interval: tuple[float, float]
    unseen: int
    n: int


def distil(
    exchanged: Exchanged,
    taught: Sequence[int],
    unseen: Sequence[int],
    *,
    spec: DistillationSpec,
    generator: torch.Generator,
) -> Copied:
    """Trains a student of the vendor's blocks, and two of the same kind that see no rows out.

    Args:
        exchanged: What the customer sent and got back.
        taught: Texts that are learnt from; a tenth of them, at the end, chooses between students.
        unseen: Texts that they are scored on.
        spec: How strong students are.
        generator: Draws weights, order and dropout.
    """
    learnt, compared = exchanged.select(taught), exchanged.select(unseen)
    student, kind = regress(learnt, spec, generator)
    explained = explained_by(student.rows(compared.sent), compared, learnt)
    students = (
        student,
        imitate(learnt, learnt.said(learnt.returned.packed.values), spec, generator),
        imitate(learnt, learnt.followers, spec, generator),
    )
    said = compared.said(compared.returned.packed.values)
    agreed = [_agreement(each, compared, said) for each in students]
    return Copied(
        texts=len(learnt),
        rows=learnt.sent.total,
        kind=kind,
        explained=explained.value,
        explained_interval=explained.interval,
        agreement=agreed[0][0],
        agreement_interval=agreed[0][1],
        from_answers=agreed[1][0],
        from_answers_interval=agreed[1][1],
        from_text=agreed[2][0],
        from_text_interval=agreed[2][1],
        unseen=len(compared),
        n=compared.sent.total,
    )


def _agreement(student: Student, compared: Exchanged, said: Tensor) -> tuple[float, tuple[float, float]]:
    """How often the tail says of a student's rows what it says of the vendor's, with its interval over texts."""
    agreed = (compared.said(student.rows(compared.sent)) == said).long()
    hits, rows = compared.per_text(agreed), compared.sent.packed.lengths
    return float(hits.sum()) / float(rows.sum()), bootstrap(hits, rows)
