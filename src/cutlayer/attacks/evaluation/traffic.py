"""Traffic that attacks are checked with: of texts that are known, in the form of a transcript's.

Nothing here is a party's: frames are laid out as a recording shows them, under a job that no service knows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from enum import StrEnum

import numpy as np
import torch
from torch import Tensor

from cutlayer.attacks.evaluation.telling import vocabulary
from cutlayer.attacks.knowledge import Inapplicable, Knowledge
from cutlayer.attacks.simulate import boundary, simulate
from cutlayer.attacks.view import SeenFrame, Transcript
from cutlayer.core import Payload, PrecededTokens, Ragged, Rows, Tokens
from cutlayer.wire import WireType, pack, routes
from cutlayer.wire.recording import Direction

CONTROL_ITEMS = 4096
"""Tokens, or labels, that a control looks at: enough to tell 1 % more than chance, little enough for a second."""
CONTROL = "control"
"""The job that control traffic is said to be of."""


class Traffic(StrEnum):
    """What a control's traffic holds."""

    UNPROTECTED = "unprotected"
    """The truth itself: an attack that works recovers it."""
    NOISE = "noise"
    """Nothing: an attack that recovers more than chance knows the truth from elsewhere."""
    SHUFFLED = "shuffled"
    """The truth's values, each at another's place: so must a score that counts right."""


def form_of(like: Transcript) -> Payload:
    """The form of a transcript's releases: its first one, ids or rows.

    Raises:
        Inapplicable: Nothing was released.
    """
    first = next(like.releases(), None)
    if first is None:
        raise Inapplicable("The transcript holds no released text.")
    return first.payload


def sent(direction: Direction, step: int, tensors: Mapping[str, Tensor]) -> SeenFrame:
    """A step's frame of control traffic, with the tensors that its route has by role (`wire.routes`)."""
    return SeenFrame(direction, routes.STEP, {"job": CONTROL, "step": step}, lambda: tensors)


def released_again(
    tokens: Tokens, like: Transcript, knowledge: Knowledge, *, rng: torch.Generator, classes: Tensor | None = None
) -> tuple[Transcript, Payload]:
    """Texts released once more as a run released its own, with noise of the control's own.

    Attacks on one run share such releases, with what else is kept with the attacker's text.

    Args:
        tokens: The texts.
        like: What is under attack; the form of what it released is taken.
        knowledge: All that any attacker is granted.
        rng: Draws the noise, which hides nothing.
        classes: `[n]` int64, as for `simulate`.

    Returns:
        A step's release, and what it holds; public words before the texts left out.

    Raises:
        Inapplicable: Nothing was released, nothing is privatized, or it is not known how.
    """
    form = form_of(like)
    if knowledge.noise is None:
        raise Inapplicable("It is not known how texts are privatized, so none can be released in the same way.")
    if knowledge.noise.privacy.mechanism == "none":
        raise Inapplicable("Nothing is privatized: unprotected traffic is of the run's own settings.")
    seed = int(torch.randint(2**62, (), generator=rng))
    dtype = form.packed.values.dtype if isinstance(form, Rows) else None
    drawn = np.random.Generator(np.random.PCG64(seed))

    def release() -> Payload:
        return simulate(tokens, knowledge, rows=dtype, rng=drawn, classes=classes)

    if knowledge.public is None:
        payload = release()
    else:
        key = ("released again", knowledge.key, dtype, seed, _digest(tokens), classes is None)
        payload = knowledge.public.fitted(key, release)
    own = payload.parted()[1] if isinstance(payload, PrecededTokens) else payload
    return Transcript(lambda: [sent(Direction.UP, 1, packed(payload, form))]), own


def _digest(tokens: Tokens) -> bytes:
    """Tells texts from others, in memory and nowhere else."""
    state = hashlib.blake2b(digest_size=16)
    for side in tokens.segments:
        state.update(side.lengths.numpy().tobytes() + side.values.numpy().tobytes())
    return state.digest()


def stored(tensors: Mapping[str, Tensor]) -> SeenFrame:
    """A record set's only shard, of control traffic, with the tensors that its route has by role (`wire.routes`)."""
    where: Mapping[str, str | int] = {"record_set": CONTROL, "shard": 0}
    return SeenFrame(Direction.UP, routes.SHARD_PUT, where, lambda: tensors)


def stored_words(count: int, like: Transcript, knowledge: Knowledge, *, rng: torch.Generator) -> Transcript:
    """Records of one word each, the same for all, in the form of those in another transcript."""
    form = form_of(like)
    word = 0 if knowledge.candidates is None else int(knowledge.candidates.nonzero()[0])
    lengths = torch.ones(count, dtype=torch.int64)
    sides: tuple[Ragged, ...] = (Ragged(torch.full((count,), word), lengths),)
    if form.segment_count == 2:
        sides = (*sides, Ragged(sides[0].values[:0], torch.zeros_like(lengths)))
    tokens = Tokens(sides)
    payload = as_rows(tokens, Traffic.UNPROTECTED, knowledge, rng) if isinstance(form, Rows) else tokens
    frame = stored(packed(payload, form))
    return Transcript(lambda: [frame])


def packed(payload: Payload, like: Payload) -> Mapping[str, Tensor]:
    """A release's tensors as a frame carries them (`wire.pack`), rows in the element type of another release's."""
    bf16 = isinstance(like, Rows) and like.packed.values.dtype is torch.bfloat16
    return pack(payload, vocab_size=2**32, wire_type=WireType.BF16 if bf16 else WireType.FP32)


def behind_plain_words(tokens: Tokens, knowledge: Knowledge, *, rng: torch.Generator) -> Tokens:
    """Texts behind public words as a run's are, each behind a sequence that is drawn; as they are where it has none.

    Args:
        tokens: The texts.
        knowledge: Which words these are.
        rng: Draws which sequence each text has.
    """
    if knowledge.plain is None:
        return tokens
    count, length = knowledge.plain.shape
    sequences = torch.randint(count, (len(tokens),), generator=rng)
    words = Ragged(knowledge.plain[sequences].flatten(), torch.full((len(tokens),), length))
    return PrecededTokens.of(words, tokens, sequences=sequences)


def altered(tokens: Tokens, kind: Traffic, knowledge: Knowledge, rng: torch.Generator) -> Tokens:
    """Texts as ids of a kind of traffic: as they are, of random words, or each word at another's place."""
    values = tokens.values
    if kind is Traffic.SHUFFLED:
        values = values[torch.randperm(len(values), generator=rng)]
    elif kind is Traffic.NOISE:
        allowed = vocabulary(knowledge, largest=int(values.max()))
        values = allowed[torch.randint(len(allowed), values.shape, generator=rng)]
    return tokens.with_values(values)


def as_rows(tokens: Tokens, kind: Traffic, knowledge: Knowledge, rng: torch.Generator) -> Rows:
    """The boundary rows of tokens as the handed-out bottom makes them; for noise, rows of nothing but noise."""
    rows = boundary(tokens, knowledge)
    if kind is not Traffic.NOISE:
        return rows
    values = rows.packed.values
    return Rows(rows.packed.with_values(torch.randn(values.shape, generator=rng) * values.std()), rows.segment_lengths)
