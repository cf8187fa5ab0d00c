"""A known-plaintext inverter: what an attacker reads who has public text and the bottom before training.

Nothing private is needed to learn how a bottom turns tokens into boundary rows: the vendor runs public
text through the bottom that it handed out and fits the way back. Then it reads the observed boundary,
one row at a time, in milliseconds. UnSplit, which has no text, has to find rows and weights together.

Stage 1, `fit_inverter`. With h_t the boundary row of token w_t, and e_w the rows of the token-embedding
table, a ridge regression in closed form,

    min over A, b:  mean ‖A z_t + b - e_{w_t}‖² + lambda ‖A‖²,    z_t = (h_t - mean h) / std h,

and the row of the table that is nearest to A z + b in distance or in angle, whichever reads public text
better; or, starting there, a map f that is learnt by steps, with

    min over f:  mean -log softmax_w(g_w f(z_t) · e_w + c_w)[w_t],

where g and c are those of the distance (c_w = -‖e_w‖² / 2) or the angle (g_w = 1 / ‖e_w‖), times how
sharply the closed form tells tokens apart.

Stage 2, `refine`. The guess is compared with what was observed: rows x' that start from the guessed
tokens' are moved until the bottom's boundary is the observed one (UnSplit's first phase, from a better
start), and for a causal bottom the tokens are chosen anew from left to right, each as the one of its
best K whose boundary row behind the tokens chosen before is nearest to the observed row.

Ref: Chen et al., BiSR, arXiv:2409.00960 (learned inverter, then matching by optimisation); Nikolaou et
al., SipIt, arXiv:2510.15511 (exact search from left to right). The paper on UnSplit tried neither:
Yao and Li, "Is Split Learning Privacy-Preserving for Fine-Tuning Large Language Models?".
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from cutlayer.attacks.evaluation.statistics import clustered
from cutlayer.attacks.inversion.unsplit import (
    InputTruth,
    OuterIteration,
    Reconstruction,
    UnSplitRun,
    UnSplitSpec,
    check_depth,
    check_observed,
)
from cutlayer.attacks.knowledge import Inapplicable
from cutlayer.core import ConfigError, DataError, Fault, Proportion, Spec
from cutlayer.models import Bottom, Inputs, Kind, cache_bytes, seed_dropout, set_dropout, twin

_SCORES = 2**24
"""Scores in memory at a time: 64 MiB."""
_ROWS = 8192
"""Rows that are turned into fp64 at a time."""
_HELD_OUT_ROWS = 16_384
"""Public rows kept to choose by: their share of right guesses is then known to 0.4 points."""
_SHUFFLED = 8
"""Steps whose rows are mixed, so that a step is not about one text alone."""
_CACHE_BYTES = 2**29
_CONSTANT = 1e-12
"""Share of a feature's mean square below which its variance is rounding."""


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


class RefineSpec(Spec):
    """How a guess is refined on the observed boundary.

    Attributes:
        matching: Algorithm 1 from the guessed tokens' rows; `None` leaves it out. The default moves the
            rows alone and for a short way: the paper's rate of 0.1 would first walk off.
        search: How many of the inverter's best tokens per position the search from left to right tries,
            beside what is guessed already; 0 leaves it out. It takes their number times the work of
            computing the boundary, and the memory of as many caches of one text.
    """

    matching: UnSplitSpec | None = UnSplitSpec(
        outer_iterations=1, inner_inputs=200, inner_weights=0, learning_rate_inputs=0.01
    )
    search: int = Field(default=16, ge=0, le=4096)


@dataclass(frozen=True)
class Trial:
    """How well a way of reading did on public text that it was not fitted on.

    Attributes:
        reading: `ridge` or `linear`.
        ridge: lambda of the closed form; where a learned reading started.
        distance: What its nearest row is nearest in; a learned reading began there.
        accuracy: The share of tokens read.
    """

    reading: Literal["ridge", "linear"]
    ridge: float
    distance: Literal["euclid", "cosine"]
    accuracy: Proportion


@dataclass(frozen=True)
class Refined:
    """What was read, stage by stage; `[batch, seq]` int64 ids, -1 at padding.

    Attributes:
        guessed: By the inverter alone.
        matched: After the rows were moved, with them and the history; `None` if that was left out.
        searched: After the search; `None` if that was left out.
    """

    guessed: Tensor
    matched: Reconstruction | None = None
    searched: Tensor | None = None

    @property
    def stages(self) -> dict[str, Tensor]:
        """The ids of each stage that was run, in order."""
        found = {"guessed": self.guessed}
        if self.matched is not None:
            found["matched"] = self.matched.ids
        if self.searched is not None:
            found["searched"] = self.searched
        return found

    @property
    def ids(self) -> Tensor:
        """The ids of the last stage."""
        return list(self.stages.values())[-1]


@dataclass(frozen=True)
class _Reader:
    """score[w] = (f(z) · e_w) gain[w] + bias[w], with z the standardised features and f(z) = z weight + offset.

    With gain 1 and bias -‖e_w‖² / 2 the best token is the nearest in distance; with gain 1 / ‖e_w‖ and
    bias 0 the nearest in angle.
    """

    mean: Tensor
    scale: Tensor
    weight: Tensor
    offset: Tensor
    gain: Tensor
    bias: Tensor

    def rows(self, features: Tensor) -> Tensor:
        """f(z), `[n, table_width]`."""
        return (features - self.mean) / self.scale @ self.weight + self.offset

    def scores(self, features: Tensor, table: Tensor) -> Tensor:
        """`[n, vocab]`."""
        return torch.addcmul(self.bias, self.rows(features) @ table.T, self.gain)


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
        reader: _Reader,
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
            hidden: See `guess`, as for the next.
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
        features = _features(values, mask, self.spec.context)[mask]
        found[mask.cpu()] = _best(self._reader, features, self._table, self._barrier, k).cpu()
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
    barrier = _barrier(table, candidates)
    if spec.reading != "ridge" and isinstance(public, Iterator):
        raise ConfigError(
            [Fault("public", type(public).__name__, "can be gone through once, and learning takes several passes")],
            remedy='Give a list, or an object that can be iterated again; or fit a reading of "ridge".',
        )
    with torch.no_grad(), torch.autocast(table.device.type, enabled=False):
        source = _Public(bottom, public, spec, seed=_draw_seed(generator))
        moments, held = _Moments(table), _HeldOut()
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

        def accuracy(reader: _Reader) -> Proportion:
            right = _best(reader, features, table, barrier, 1)[:, 0] == ids
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
            start = _sharpened(reader, chosen, residual, table)
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


def refine(
    inverter: Inverter,
    bottom: Bottom,
    hidden: Tensor,
    inputs: Inputs,
    spec: RefineSpec,
    *,
    generator: torch.Generator,
    truth: InputTruth | None = None,
    on_progress: Callable[[OuterIteration], None] | None = None,
) -> Refined:
    """Reads a boundary and holds the reading against it.

    Args:
        inverter: Fitted on this bottom.
        bottom: The customer's part as the vendor knows it before training, or a better guess of it.
        hidden: `[batch, seq, width]`, the observed boundary, padded on either side.
        inputs: Mask and positions. No ids and no rows.
        spec: Which refinements.
        generator: Draws dropout where `matching` has the guessed bottom in training mode.
        truth: For the history of `matching` alone.
        on_progress: Called after each of its outer loops.

    Raises:
        Inapplicable: The bottom has no blocks, or the search is asked of one that is not causal.
        ConfigError: The spec does not suit the bottom, or the attack was handed the answer.
        DataError: Boundary, mask, bottom and inverter do not fit together.
    """
    check_depth(bottom)
    if spec.search and bottom.family.kind is not Kind.DECODER:
        raise Inapplicable(
            "Tokens after a position change its boundary row where attention looks both ways, so none can be chosen "
            "from left to right: set search to 0."
        )
    options = inverter.ranked(hidden, inputs, max(1, spec.search))
    guessed, matched, searched = options[:, :, 0], None, None
    latest = guessed
    if spec.matching is not None:
        run = UnSplitRun(
            bottom,
            hidden,
            inputs,
            spec.matching,
            generator=generator,
            candidates=inverter.candidates,
            truth=truth,
        )
        mask = guessed >= 0
        rows = bottom.table.detach()[guessed.clamp(min=0).to(bottom.table.device)].float().cpu()
        run.load({**run.state(), "inputs/rows/value": rows.masked_fill(~mask[:, :, None], 0)})
        while not run.done:
            entry = run.step()
            if on_progress is not None:
                on_progress(entry)
        matched = run.reconstruction()
        latest = matched.ids
    if spec.search:
        searched = _search(bottom, hidden, inputs, torch.cat([latest[:, :, None], options], 2))
    return Refined(guessed, matched, searched)


# ---------------------------------------------------------------- what comes in


def _barrier(table: Tensor, candidates: Tensor | None) -> Tensor:
    """`[vocab]`, what is added to scores: 0 for candidates, -inf for others."""
    allowed = torch.ones(len(table), dtype=torch.bool) if candidates is None else candidates
    if allowed.dtype != torch.bool or allowed.shape != table.shape[:1] or not bool(allowed.any()):
        raise ConfigError(
            f"The candidates are {allowed.dtype}{list(allowed.shape)} with {int(allowed.sum())} allowed; needed is a "
            f"bool for each of the table's {len(table)} rows and at least one candidate."
        )
    return torch.zeros(len(table), device=table.device).masked_fill(~allowed.to(table.device), -math.inf)


def _features(hidden: Tensor, mask: Tensor, context: int) -> Tensor:
    """Each row and those before it, zero where there is none: `[batch, seq, (context + 1) * width]`."""
    hidden = hidden.masked_fill(~mask[:, :, None], 0)
    return torch.cat([F.pad(hidden, (0, 0, back, 0))[:, : hidden.shape[1]] for back in range(context + 1)], 2)


def _single(bottom: Bottom) -> Bottom:
    """A copy in single precision whose modes can be switched; it shares the weights where they are that already."""
    single = all(tensor.dtype is torch.float32 for tensor in bottom.parameters() if tensor.is_floating_point())
    return twin(bottom) if single else copy.deepcopy(bottom).float()


def _draw_seed(generator: torch.Generator) -> int:
    return int(torch.randint(2**62, (), generator=generator, device=generator.device))


class _Rows(NamedTuple):
    """Some boundary rows of public text: features `[n, f]`, their tokens `[n]` and the numbers of their texts `[n]`."""

    features: Tensor
    ids: Tensor
    texts: Tensor


class _Public:
    """Boundary rows of public text, batch by batch, computed anew each time that it is iterated."""

    def __init__(self, bottom: Bottom, public: Iterable[Inputs], spec: InverterSpec, *, seed: int) -> None:
        self._bottom = _single(bottom)
        if spec.dropout_copies:
            set_dropout(self._bottom, True)
        self._public = public
        self._spec = spec
        self._seed = seed
        self._forwards = 0
        self.seen = range(0)
        """The numbers of the texts of the latest pass so far."""

    def __iter__(self) -> Iterator[_Rows]:
        table = self._bottom.table.detach()
        self.seen = range(0)
        for batch in self._public:
            inputs, ids, mask = self._checked(batch, len(table))
            texts = len(self.seen) + torch.arange(len(ids), device=table.device)
            self.seen = range(len(self.seen) + len(ids))
            if not bool(mask.any()):
                continue
            known = replace(inputs, input_ids=None, inputs_embeds=table[ids])
            for number in range(1 + self._spec.dropout_copies):
                with self._dropout(number > 0):
                    hidden = self._bottom(known).float()
                features = _features(hidden, mask, self._spec.context)[mask]
                yield _Rows(features, ids[mask], texts[:, None].expand_as(ids)[mask])

    def _checked(self, batch: Inputs, vocabulary: int) -> tuple[Inputs, Tensor, Tensor]:
        ids, mask = batch.input_ids, batch.attention_mask.bool()
        if ids is None or ids.dtype != torch.int64 or ids.dim() != 2 or mask.shape != ids.shape:
            raise DataError("A batch of public text needs ids [batch, seq] of int64 and a mask of the same shape.")
        real = ids[mask.to(ids.device)]
        if len(real) and not 0 <= int(real.min()) <= int(real.max()) < vocabulary:
            raise DataError(
                f"The public text has ids outside of the table's {vocabulary} rows.",
                remedy="Tokenise it with the tokenizer of this model.",
            )
        inputs = batch.to(self._bottom.table.device)
        mask = inputs.attention_mask.bool()
        return inputs, ids.to(mask.device).masked_fill(~mask, 0), mask

    @contextmanager
    def _dropout(self, on: bool) -> Iterator[None]:
        """Makes a batch's dropout a function of the seed and of how many went before, and leaves no trace of it."""
        self._forwards += 1
        self._bottom.train(on)
        if not on:
            yield
            return
        device = self._bottom.table.device
        with torch.random.fork_rng(
            devices=[] if device.type == "cpu" else [device],
            device_type="cuda" if device.type == "cpu" else device.type,
        ):
            seed_dropout(self._seed, self._forwards)
            yield


class _HeldOut:
    """Public rows to choose by: every so manieth text, until there are enough rows."""

    def __init__(self) -> None:
        self.texts: set[int] = set()
        self._rows: list[_Rows] = []
        self._count = 0

    def take(self, rows: _Rows, every: int) -> Tensor:
        """Keeps its share of some rows and says which, `[n]` bool. Copies of a text come one after the other."""
        if self._count < _HELD_OUT_ROWS:
            self.texts.update(text for text in rows.texts.unique().tolist() if text % every == every - 1)
        kept = self.among(rows.texts)
        if bool(kept.any()):
            self._rows.append(_Rows(rows.features[kept], rows.ids[kept], rows.texts[kept]))
            self._count += int(kept.sum())
        return kept

    def among(self, texts: Tensor) -> Tensor:
        """Which rows are of texts that were kept, `[n]` bool."""
        return _among(texts, self.texts)

    def joined(self) -> _Rows:
        """All of them."""
        return _Rows(*map(torch.cat, zip(*self._rows, strict=True)))


def _among(texts: Tensor, chosen: set[int]) -> Tensor:
    return torch.isin(texts, torch.tensor(sorted(chosen), dtype=torch.int64, device=texts.device))


# ---------------------------------------------------------------- fitting


class _Moments:
    """Sums from which the ridge regression follows, in fp64: text is added in pieces and not kept."""

    def __init__(self, table: Tensor) -> None:
        # Apple's GPUs have no fp64
        self._device = torch.device("cpu") if table.device.type == "mps" else table.device
        self.count = 0
        self._sums: list[Tensor] | None = None

    def add(self, features: Tensor, targets: Tensor) -> None:
        """Adds rows, features `[n, f]` and targets `[n, t]`."""
        for some, wanted in zip(features.split(_ROWS), targets.split(_ROWS), strict=True):
            x, y = some.to(self._device).double(), wanted.to(self._device).double()
            terms = [x.sum(0), y.sum(0), x.T @ x, x.T @ y]
            if self._sums is None:
                self._sums = terms
            else:
                for total, term in zip(self._sums, terms, strict=True):
                    total.add_(term)
            self.count += len(x)

    def solve(self, ridge: float, table: Tensor) -> dict[Literal["euclid", "cosine"], _Reader]:
        """The readers of a penalty: the normal equations (Z'Z / n + lambda I) A' = Z'E / n, centred."""
        if self._sums is None:
            raise ValueError("nothing was added")
        x, y, xx, xy = (total / self.count for total in self._sums)
        if not bool(xx.isfinite().all()):
            raise DataError(
                "The public text's boundary has values that are not finite.", remedy="Load the model again."
            )
        variance = xx.diagonal() - x.square()
        constant = variance <= _CONSTANT * xx.diagonal()
        scale = torch.where(constant, 1, variance).sqrt()
        correlation = (xx - torch.outer(x, x)) / torch.outer(scale, scale)
        cross = (xy - torch.outer(x, y)) / scale[:, None]
        correlation.diagonal().add_(ridge)
        weight = torch.cholesky_solve(cross, torch.linalg.cholesky(correlation))
        norms = table.norm(dim=1)
        ways: dict[Literal["euclid", "cosine"], tuple[Tensor, Tensor]] = {
            "euclid": (torch.ones_like(norms), -norms.square() / 2),
            # a row of zeros has no direction: its score is 0
            "cosine": (torch.where(norms > 0, 1 / norms, 0), torch.zeros_like(norms)),
        }
        mean, scale, weight, offset = (tensor.float().to(table.device) for tensor in (x, scale, weight, y))
        return {name: _Reader(mean, scale, weight, offset, gain, bias) for name, (gain, bias) in ways.items()}


def _best(reader: _Reader, features: Tensor, table: Tensor, barrier: Tensor, k: int) -> Tensor:
    """The k best candidates of each row, best first, `[n, k]`."""
    size = max(1, _SCORES // len(table))
    with torch.no_grad(), torch.autocast(table.device.type, enabled=False):
        return torch.cat([reader.scores(some, table).add_(barrier).topk(k).indices for some in features.split(size)])


def _sharpened(reader: _Reader, chosen: Trial, residual: Tensor, table: Tensor) -> _Reader:
    """Where learning starts: the closed form's reading as log-probabilities, with the same best tokens.

    If a predicted row is e_w plus Gaussian noise of variance s² in each element, the logarithm of the
    likelihood of w is (x · e_w - ‖e_w‖² / 2) / s² up to a constant; for angles, rows are taken as if all
    were of the mean length. They are measured in units of their elements' standard deviation, so that
    one learning rate suits tables of any size.
    """
    unit = table.std()
    sharpness = 1 / residual.clamp(min=1e-4 * unit.square())
    if chosen.distance == "cosine":
        sharpness = sharpness * table.norm(dim=1).mean()
    return replace(
        reader,
        weight=reader.weight / unit,
        offset=reader.offset / unit,
        gain=reader.gain * unit * sharpness,
        bias=reader.bias * sharpness,
    )


def _learn(
    reader: _Reader,
    source: _Public,
    held_out: set[int],
    rows_in_pass: int,
    table: Tensor,
    barrier: Tensor,
    spec: InverterSpec,
    generator: torch.Generator,
) -> _Reader:
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
    source: _Public, held_out: set[int], barrier: Tensor, spec: InverterSpec, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """A pass's features and ids, in batches of mixed rows: neither of held-out texts nor of tokens never guessed."""
    waiting: list[tuple[Tensor, Tensor]] = []
    for rows in source:
        wanted = ~_among(rows.texts, held_out) & (barrier[rows.ids] == 0)
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


# ---------------------------------------------------------------- the search


def _search(bottom: Bottom, hidden: Tensor, inputs: Inputs, options: Tensor) -> Tensor:
    """Chooses tokens from left to right: the option whose boundary row is nearest to the observed one.

    Each text's real positions are taken together, wherever padding stands. The cache holds the chosen
    tokens; it is repeated for the options of a position, and the chosen option's is what remains.

    Args:
        bottom: Causal.
        hidden: `[batch, seq, width]`.
        inputs: Mask and positions.
        options: `[batch, seq, k]`, of equals the first wins.

    Returns:
        `[batch, seq]` int64, -1 at padding.
    """
    guess = _single(bottom)
    guess.eval()
    device = guess.table.device
    mask = inputs.attention_mask.bool().cpu()
    lengths, order = mask.sum(1), (~mask).to(torch.uint8).argsort(dim=1, stable=True)
    found = torch.full(mask.shape, -1, dtype=torch.int64)
    per_text = options.shape[2] * cache_bytes(guess, sequences=1, positions=int(lengths.max()))
    size = max(1, _CACHE_BYTES // per_text)
    # texts of like lengths end together
    for texts in lengths.argsort(descending=True).split(size):
        longest = int(lengths[texts].max())
        columns = order[texts][:, :longest]
        places = texts[:, None], columns
        chosen = _search_together(
            guess,
            hidden.detach()[texts[:, None].to(hidden.device), columns.to(hidden.device)].to(device, torch.float32),
            inputs.position_ids[tuple(place.to(inputs.position_ids.device) for place in places)].to(device),
            options[places].clamp(min=0).to(device),
        )
        real = torch.arange(longest) < lengths[texts][:, None]
        found[texts[:, None].expand_as(columns)[real], columns[real]] = chosen.cpu()[real]
    return found


def _search_together(guess: Bottom, observed: Tensor, positions: Tensor, options: Tensor) -> Tensor:
    """The search over texts that begin in the first column; `[texts, longest]`, of no meaning behind a text's end."""
    texts, longest, k = options.shape
    table, cache = guess.table.detach(), guess.new_cache()
    chosen = torch.empty((texts, longest), dtype=torch.int64, device=options.device)
    first = k * torch.arange(texts, device=options.device)
    with torch.no_grad(), torch.autocast(table.device.type, enabled=False):
        for place in range(longest):
            tried = options[:, place]
            cache.batch_repeat_interleave(k)
            one = Inputs(
                attention_mask=torch.ones((texts * k, place + 1), dtype=torch.int64, device=options.device),
                position_ids=positions[:, place].repeat_interleave(k)[:, None],
                inputs_embeds=table[tried.flatten()][:, None],
            )
            rows = guess(one, cache)[:, 0].view(texts, k, -1)
            if rows.shape[2] != observed.shape[2]:
                raise DataError(
                    f"The boundary is {observed.shape[2]} wide, that of the guessed bottom {rows.shape[2]}.",
                    remedy="Attack with the bottom that made it.",
                )
            best = (rows.float() - observed[:, place, None]).square().sum(2).argmin(1)
            chosen[:, place] = tried.gather(1, best[:, None])[:, 0]
            cache.batch_select_indices(first + best)
    return chosen
