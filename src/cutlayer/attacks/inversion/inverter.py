"""A known-plaintext inverter: what an attacker reads who has public text and the bottom before training.

Nothing private is needed to learn how a bottom turns tokens into boundary rows: the vendor runs public
text through the bottom that it handed out and fits the way back. Then it reads the observed boundary,
one row at a time, in milliseconds. UnSplit, which has no text, has to find rows and weights together.

With h_t the boundary row of token w_t, and e_w the rows of the token-embedding
table, a ridge regression in closed form,

    min over A, b:  mean ‖A z_t + b - e_{w_t}‖² + lambda ‖A‖²,    z_t = (h_t - mean h) / std h,

and the row of the table that is nearest to A z + b in distance or in angle, whichever reads public text
better; or, starting there, a map f that is learnt by steps, with

    min over f:  mean -log softmax_w(g_w f(z_t) · e_w + c_w)[w_t],

where g and c are those of the distance (c_w = -‖e_w‖² / 2) or the angle (g_w = 1 / ‖e_w‖), times how
sharply the closed form tells tokens apart.

What it read may then be held against what was observed: `inverter_refinement`.

Ref: Chen et al., BiSR, arXiv:2409.00960 (a learned inverter). Yao and Li, "Is Split Learning Privacy-Preserving for
Fine-Tuning Large Language Models?", set learned inverters aside (§3.2.2).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from cutlayer.attacks.evaluation.statistics import clustered
from cutlayer.attacks.inversion.observed import check_depth, check_observed
from cutlayer.attacks.inversion.public_rows import HeldOut, PublicBoundary, among, windows
from cutlayer.attacks.inversion.row_reader import Moments, RowReader, Trial, barrier_of, best_tokens, sharpened
from cutlayer.core import ConfigError, DataError, Fault, Proportion, Spec
from cutlayer.core.deadline import check_time
from cutlayer.models import Bottom, Inputs

_SHUFFLED = 8
"""Steps whose rows are mixed, so that a step is not about one text alone."""


class InverterSpec(Spec):
    """How the way back is learned.

    Attributes:
        reading: `ridge` is the closed form; `linear` starts from it and learns tokens directly. A hidden layer
            beside the linear map was tried and read no more.
        context: Boundary rows before a position that are read with its own. Rows of a causal bottom mix
            in the tokens before.
        ridges: Penalties lambda to choose from, per mean square of a standardised feature.
        passes: Passes of `linear` over the public text.
        batch_rows: Boundary rows in each of its steps.
        learning_rate: Of AdamW in the first step; falls linearly to 0.
        weight_decay: AdamW's.
        dropout_copies: How often each text is also seen with the bottom's dropout on, beside once with it
            off: a customer's bottom drops out while it trains. Each copy is drawn anew in each pass.
        held_out: Share of the public texts that is kept to choose by, of at most 16,384 rows.
    """

    reading: Literal["ridge", "linear"] = "ridge"
    context: int = Field(default=0, ge=0, le=16)
    ridges: tuple[Annotated[float, Field(ge=1e-9, allow_inf_nan=False)], ...] = Field(
        default=(1e-6, 1e-4, 1e-2), min_length=1
    )
    passes: int = Field(default=2, ge=1)
    batch_rows: int = Field(default=1024, ge=1)
    learning_rate: float = Field(default=1e-3, gt=0, allow_inf_nan=False)
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    dropout_copies: int = Field(default=0, ge=0)
    held_out: float = Field(default=0.1, gt=0, le=0.5)


class Inverter:
    """Reads tokens from boundary rows. Made by `fit_inverter`.

    Attributes:
        spec: How it was fitted.
        trials: Every way of reading that was tried, with its accuracy on held-out public text.
        chosen: The one that it reads by: of the closed form's the best, of a learned reading its end.
    """

    def __init__(
        self,
        spec: InverterSpec,
        *,
        width: int,
        table: Tensor,
        barrier: Tensor,
        reader: RowReader,
        trials: Sequence[Trial],
        chosen: Trial,
    ) -> None:
        self.spec = spec
        self.trials = tuple(trials)
        self.chosen = chosen
        self._width = width
        self._table = table
        self._barrier = barrier
        self._reader = reader

    @property
    def candidates(self) -> Tensor:
        """`[vocab]` bool, the ids that it may guess."""
        return (self._barrier == 0).cpu()

    def guess(self, hidden: Tensor, inputs: Inputs) -> Tensor:
        """The most likely token of each position, `[batch, seq]` int64; -1 at padding.

        Args:
            hidden: `[batch, seq, width]`, the observed boundary, of any float type; values at padding are
                not looked at.
            inputs: Where padding stands. No ids and no rows.

        Raises:
            ConfigError: It was handed the answer.
            DataError: Boundary and mask do not fit together, or are of another bottom.
        """
        return self.ranked(hidden, inputs, 1)[:, :, 0]

    def ranked(self, hidden: Tensor, inputs: Inputs, k: int) -> Tensor:
        """The k most likely tokens of each position, best first, `[batch, seq, k]` int64; -1 at padding.

        Where there are fewer candidates than k, there are fewer columns.

        Args:
            hidden: `[batch, seq, width]`, as for `guess`, and so the next.
            inputs: Where padding stands.
            k: How many.

        Raises:
            ConfigError: It was handed the answer, or k is not positive.
            DataError: Boundary and mask do not fit together, or are of another bottom.
        """
        if k < 1:
            raise ConfigError([Fault("k", k, "must be 1 or more")])
        check_observed(hidden, inputs)
        if hidden.shape[2] != self._width:
            raise DataError(
                f"The boundary is {hidden.shape[2]} wide, that of the inverter's bottom {self._width}.",
                remedy="Attack with an inverter that was fitted on the bottom that made it.",
            )
        device = self._table.device
        mask = inputs.attention_mask.bool().to(device)
        values = hidden.detach().to(device, torch.float32)
        if not bool(values[mask].isfinite().all()):
            raise DataError("The boundary has values that are not finite, so no input gives it.")
        k = min(k, int(self.candidates.sum()))
        found = torch.full((*mask.shape, k), -1, dtype=torch.int64)
        features = windows(values, mask, self.spec.context)[mask]
        found[mask.cpu()] = best_tokens(self._reader, features, self._table, self._barrier, k).cpu()
        return found


def fit_inverter(
    bottom: Bottom,
    public: Iterable[Inputs],
    spec: InverterSpec,
    *,
    generator: torch.Generator,
    candidates: Tensor | None = None,
) -> Inverter:
    """Learns the way back from public text and the bottom before training.

    No boundary of the public text is kept but those to choose by, so memory does not grow with it: each
    pass computes them anew. Runs on the device of the bottom, in single precision. With dropout, the
    process-wide generator is seeded before each batch and put back after it; nothing else may draw
    from it meanwhile.

    Args:
        bottom: The customer's part as the vendor knows it before training. Not changed; must not be trained
            by others while the inverter is in use.
        public: Batches with ids, such as `Template.assemble` makes. Texts as long as those under attack
            are best: positions take part in a boundary. Learned readings go through it several times.
        spec: How to fit.
        generator: Draws dropout and the order of rows.
        candidates: `[vocab]` bool, ids that may be guessed; `None` allows every row of the table.

    Raises:
        Inapplicable: The bottom has no blocks.
        ConfigError: The spec, the candidates or the kind of iterable do not suit, or learning diverged.
        DataError: The public text is too little, or not of this bottom's vocabulary.
        UnsupportedArchitectureError: Dropout is asked of a family that is cut without it.
    """
    check_depth(bottom)
    table = bottom.table.detach().float()
    barrier = barrier_of(table, candidates)
    if spec.reading != "ridge" and isinstance(public, Iterator):
        raise ConfigError(
            [Fault("public", type(public).__name__, "can be gone through once, and learning takes several passes")],
            remedy='Give a list, or an object that can be iterated again; or fit a reading of "ridge".',
        )
    with torch.no_grad(), torch.autocast(table.device.type, enabled=False):
        source = PublicBoundary(
            bottom,
            public,
            context=spec.context,
            dropout_copies=spec.dropout_copies,
            seed=_draw_seed(generator),
        )
        moments, held = Moments(table), HeldOut()
        for rows in source:
            kept = held.take(rows, round(1 / spec.held_out))
            moments.add(rows.features[~kept], table[rows.ids[~kept]])
        if not moments.count or not held.texts:
            raise DataError(
                f"Of the public text's {len(source.seen)} texts too few have a real position to fit on some and to "
                "choose by others.",
                remedy=f"Give at least {round(1 / spec.held_out) + 1} texts, better some 100,000 tokens.",
            )
        features, ids, texts = held.joined()
        _, text = texts.unique(return_inverse=True)

        def accuracy(reader: RowReader) -> Proportion:
            right = best_tokens(reader, features, table, barrier, 1)[:, 0] == ids
            return clustered(text[right].bincount(minlength=len(held.texts)), text.bincount(minlength=len(held.texts)))

        trials, readers = [], []
        for ridge in spec.ridges:
            for distance, reader in moments.solve(ridge, table).items():
                readers.append(reader)
                trials.append(Trial("ridge", ridge, distance, accuracy(reader)))
        best = max(range(len(trials)), key=lambda number: trials[number].accuracy.value)
        chosen, reader = trials[best], readers[best]
        if spec.reading != "ridge":
            residual = (reader.rows(features) - table[ids]).square().mean()
            start = sharpened(reader, chosen, residual, table)
            reader = _learn(start, source, held.texts, moments.count, table, barrier, spec, generator)
            chosen = replace(chosen, reading=spec.reading, accuracy=accuracy(reader))
            trials.append(chosen)
    return Inverter(
        spec,
        width=len(reader.mean) // (spec.context + 1),
        table=table,
        barrier=barrier,
        reader=reader,
        trials=trials,
        chosen=chosen,
    )


def _draw_seed(generator: torch.Generator) -> int:
    return int(torch.randint(2**62, (), generator=generator, device=generator.device))


def _learn(
    reader: RowReader,
    source: PublicBoundary,
    held_out: set[int],
    rows_in_pass: int,
    table: Tensor,
    barrier: Tensor,
    spec: InverterSpec,
    generator: torch.Generator,
) -> RowReader:
    """Minimises the cross-entropy to tokens, by AdamW.

    Gain and bias stay the closed form's: how often public text has a token says little of private text,
    and a bias for each would only lower those that public text lacks.
    """
    learned = [reader.weight, reader.offset]
    for tensor in learned:
        tensor.requires_grad_(True)
    fused = table.device.type in ("cpu", "cuda")
    optimiser = torch.optim.AdamW(learned, lr=spec.learning_rate, weight_decay=spec.weight_decay, fused=fused or None)
    done, total = 0, spec.passes * rows_in_pass
    for _ in range(spec.passes):
        for features, ids in _shuffled(source, held_out, barrier, spec, generator):
            check_time()
            optimiser.param_groups[0]["lr"] = spec.learning_rate * max(0.0, 1 - done / total)
            with torch.enable_grad():
                loss = F.cross_entropy(reader.scores(features, table) + barrier, ids)
            if not math.isfinite(float(loss)):
                raise ConfigError("The inverter diverged: its loss is not finite.", remedy="Lower learning_rate.")
            optimiser.zero_grad(set_to_none=True)
            torch.autograd.backward(loss, inputs=learned)
            optimiser.step()
            done += len(ids)
    for tensor in learned:
        tensor.requires_grad_(False)
    return reader


def _shuffled(
    source: PublicBoundary, held_out: set[int], barrier: Tensor, spec: InverterSpec, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """A pass's features and ids, in batches of mixed rows: neither of held-out texts nor of tokens never guessed."""
    waiting: list[tuple[Tensor, Tensor]] = []
    for rows in source:
        wanted = ~among(rows.texts, held_out) & (barrier[rows.ids] == 0)
        waiting.append((rows.features[wanted], rows.ids[wanted]))
        if sum(len(ids) for _, ids in waiting) >= _SHUFFLED * spec.batch_rows:
            *batches, rest = _mixed(waiting, spec.batch_rows, generator)
            yield from batches
            waiting = [rest]
    yield from (batch for batch in _mixed(waiting, spec.batch_rows, generator) if len(batch[1]))


def _mixed(
    waiting: Sequence[tuple[Tensor, Tensor]], size: int, generator: torch.Generator
) -> list[tuple[Tensor, Tensor]]:
    if not waiting:
        return []
    features, ids = (torch.cat(column) for column in zip(*waiting, strict=True))
    order = torch.randperm(len(ids), generator=generator, device=generator.device).to(ids.device)
    return list(zip(features[order].split(size), ids[order].split(size), strict=True))
