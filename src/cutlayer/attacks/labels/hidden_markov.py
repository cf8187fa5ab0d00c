"""Labels of records that lie in an order: a hidden Markov model over record numbers, fitted without any label.

Each record is in one of a few states; a state says how frequent each label is there, and which state the next record is
in. Of each record some evidence about its label is given, which may be next to nothing. Schwarz's criterion chooses:

- no order: one state, with all labels alike, or with shares that are fitted. Records are then read one by one;
- change points: a state for each label, which holds no other, and one number for how seldom it changes. A file that is
  sorted by label is such;
- a few states, all of whose numbers are fitted: parts of a file in which a label is more frequent than in others.

Ref: Baum, Petrie, Soules and Weiss, Annals of Mathematical Statistics 41, 1970; Schwarz, Annals of Statistics 6, 1978.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cutlayer.core.deadline import check_time

Float64 = NDArray[np.float64]

_FIRST_ROUNDS, _ROUNDS = 8, 60
"""Steps from every start, and from the best of what they lead to."""
_ENOUGH = 1e-3
"""Rise of the log-likelihood below which a fit ends."""
_STAYS = (0.995, 0.9, 0.2)
"""Probability that the next record is in the same state, where fits start; the last one is of labels that alternate."""
_PURE = 0.9
_LEAST = 1e-6
"""Of probabilities, so that no state or label is ruled out for good."""


@dataclass(frozen=True)
class Chain:
    """A fitted model of `s` states and `k` labels.

    Attributes:
        initial: `[s]`, probability of each state at the first record.
        transition: `[s, s]`, of each state behind each.
        labels: `[s, k]`, of each label in each state.
        changes_alike: Whether every state is left as often as every other, and holds the labels that it began with.
        log_likelihood: Of the evidence.
    """

    initial: Float64
    transition: Float64
    labels: Float64
    changes_alike: bool = False
    log_likelihood: float = -math.inf

    @property
    def parameters(self) -> int:
        """How many numbers are fitted: what Schwarz's criterion counts."""
        states, classes = int(self.labels.shape[0]), int(self.labels.shape[1])
        if self.changes_alike:
            return int(states > 1)
        return states - 1 + states * (states - 1) + states * (classes - 1)

    def improved(self, evidence: Float64, shares: Float64, moves: Float64) -> Chain:
        """The likeliest where each record is in each state with these shares, and states change as in `moves`."""
        if self.changes_alike:
            states = len(moves)
            if states == 1:
                return self
            stay = min(max(float(np.trace(moves) / moves.sum()), _LEAST), 1 - _LEAST)
            return replace(self, transition=_staying(states, stay))
        labels = self.labels * ((shares / (evidence @ self.labels.T)).T @ evidence)
        return Chain(_normal(shares[0]), _normal(moves), _normal(labels))


def read_in_order(evidence: Float64, *, states: Sequence[int]) -> Float64:
    """Log-probabilities of each record's label, by what is known of it and of the records around it.

    Args:
        evidence: `[records, k]`, how probable what was seen of each record is, were its label each of these; ones where
            nothing was seen.
        states: Numbers of states to choose from, 2 or more each, beside change points and no order.

    Returns:
        `[records, k]`.
    """
    told = int((evidence.max(1) > evidence.min(1)).sum())
    if not told:
        return np.full(evidence.shape, -math.log(evidence.shape[1]))
    fitted = [_best(starts, evidence) for starts in _models(evidence, states)]
    best = min(fitted, key=lambda chain: chain.parameters * math.log(told) - 2 * chain.log_likelihood)
    shares, _, _ = _states(best, evidence)
    joint = np.einsum("ns,sk->nk", shares / (evidence @ best.labels.T), best.labels) * evidence
    read: Float64 = np.log(np.maximum(joint / joint.sum(1, keepdims=True), np.finfo(np.float64).tiny))
    return read


def _best(starts: Iterator[Chain], evidence: Float64) -> Chain:
    """The likeliest model of those that starts lead to, by Baum's and Welch's steps."""
    begun = [_climb(start, evidence, rounds=_FIRST_ROUNDS) for start in starts]
    return _climb(max(begun, key=lambda chain: chain.log_likelihood), evidence, rounds=_ROUNDS)


def _models(evidence: Float64, states: Sequence[int]) -> Iterator[Iterator[Chain]]:
    """Where fits of each model start."""
    classes = evidence.shape[1]
    alike, alone = np.full((1, classes), 1 / classes), np.ones((1, 1))
    yield iter([Chain(np.ones(1), alone, alike, changes_alike=True)])
    yield iter([Chain(np.ones(1), alone, alike)])
    pure, one_each = _normal(np.eye(classes)), np.full(classes, 1 / classes)
    yield (Chain(one_each, _staying(classes, stay), pure, changes_alike=True) for stay in _STAYS)
    yield from (_starts(evidence, count) for count in states)


def _starts(evidence: Float64, states: int) -> Iterator[Chain]:
    # a state for each part of the file, and one for each label
    classes = evidence.shape[1]
    parts = np.array_split(evidence / evidence.sum(1, keepdims=True), states)
    by_place = np.stack([part.mean(0) for part in parts])
    by_label = np.full((states, classes), (1 - _PURE) / max(1, classes - 1))
    by_label[np.arange(states), np.arange(states) % classes] = _PURE
    for stay in _STAYS:
        for labels in (by_place, by_label):
            yield Chain(np.full(states, 1 / states), _staying(states, stay), _normal(labels))


def _staying(states: int, stay: float) -> Float64:
    """Each state is followed by itself with a probability, and by all others alike."""
    transition = np.full((states, states), (1 - stay) / (states - 1))
    np.fill_diagonal(transition, stay)
    return transition


def _climb(chain: Chain, evidence: Float64, *, rounds: int) -> Chain:
    """So many steps, or until they raise the likelihood no more."""
    before = -math.inf
    for _ in range(rounds):
        check_time()
        shares, moves, likelihood = _states(chain, evidence)
        if likelihood - before < _ENOUGH:
            break
        before = likelihood
        chain = chain.improved(evidence, shares, moves)
    return replace(chain, log_likelihood=_states(chain, evidence)[2])


def _normal(weights: Float64) -> Float64:
    safe = weights + _LEAST * weights.sum(-1, keepdims=True) + np.finfo(np.float64).tiny
    normal: Float64 = safe / safe.sum(-1, keepdims=True)
    return normal


def _states(chain: Chain, evidence: Float64) -> tuple[Float64, Float64, float]:
    """How probable each state is at each record `[records, s]`, each move in sum `[s, s]`, and the log-likelihood.

    Forward and backward, exactly. So that √n steps do for n records, stretches of √n records are passed side by side:
    first what each makes of every state that it may be entered in, then, stretch by stretch, in which it is.
    """
    seen = evidence @ chain.labels.T
    count, states = seen.shape
    length = math.isqrt(count - 1) + 1
    stretches = -(-count // length)
    # behind the last record nothing is seen, which changes nothing
    padded = np.ones((stretches * length, states))
    padded[:count] = seen
    emitted = padded.reshape(stretches, length, states)
    through = np.broadcast_to(np.eye(states), (stretches, states, states))
    for place in range(length):
        through = through @ chain.transition
        if place == 0:
            through[0] = chain.initial  # whatever precedes the first record
        through = through * emitted[:, place, None, :]
        through /= through.sum((1, 2), keepdims=True)
    entered, left = np.empty((stretches, states)), np.empty((stretches, states))
    entry, exit_ = np.full(states, 1 / states), np.ones(states)
    for stretch in range(stretches):
        entered[stretch] = entry
        entry = entry @ through[stretch]
        entry = entry / entry.sum()
    for stretch in reversed(range(stretches)):
        left[stretch] = exit_
        exit_ = through[stretch] @ exit_
        exit_ = exit_ / exit_.sum()
    forward, backward, scale = np.empty_like(emitted), np.empty_like(emitted), np.empty(emitted.shape[:2])
    at, after = entered, left
    for place in range(length):
        at = at @ chain.transition
        if place == 0:
            at[0] = chain.initial
        at = at * emitted[:, place]
        scale[:, place] = at.sum(1)
        at = at / scale[:, place, None]
        forward[:, place] = at
    for place in reversed(range(length)):
        backward[:, place] = after
        after = (emitted[:, place] * after) @ chain.transition.T
        after = after / after.sum(1, keepdims=True)
    flat, behind = forward.reshape(-1, states)[:count], backward.reshape(-1, states)[:count]
    shares = flat * behind
    shares /= shares.sum(1, keepdims=True)
    next_to = seen[1:] * behind[1:]
    together = np.einsum("ns,st,nt->n", flat[:-1], chain.transition, next_to)
    moves = chain.transition * ((flat[:-1] / together[:, None]).T @ next_to)
    return shares, moves, float(np.log(scale.reshape(-1)[:count]).sum())
