from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from cutlayer.attacks import FloatSupport, Inapplicable, NearestNeighbour, SeenFrame, TokenTruth, Transcript, View
from cutlayer.core import Cut
from cutlayer.privacy.mechanisms import DChi, round_to_lattice
from cutlayer.wire import WireType, pack, routes
from cutlayer.wire.recording import Direction
from tests.unit.attacks import worlds
from tests.unit.attacks.worlds import JOB, VOCAB

WIDTH = 384
TABLE = torch.randn(VOCAB, WIDTH, generator=worlds.generator(7)) * 0.05
KNOWLEDGE = dataclasses.replace(worlds.KNOWLEDGE, table=TABLE)
TEXTS = worlds.random_tokens(60, seed=3)
ETA = 30.0
"""Under which nearest neighbour reads little."""


def released(add, *, wire_type=WireType.FP32, knowledge=KNOWLEDGE):
    """Rows of the texts' tokens with noise that `add` puts on them, and what they were."""
    (side,) = TEXTS.segments
    rng = np.random.Generator(np.random.PCG64(4))
    noise = torch.from_numpy(DChi().noise(etas=np.full(TEXTS.total, ETA), width=WIDTH, rng=rng))
    noisy = dataclasses.replace(TEXTS, segments=(side.with_values(add(TABLE[side.values], noise)),))
    rows = worlds.TEMPLATE.unpad(worlds.TEMPLATE.assemble(noisy, table=TABLE).inputs_embeds, TEXTS)
    tensors = pack(rows, vocab_size=VOCAB, wire_type=wire_type)
    frame = SeenFrame(Direction.UP, routes.STEP, {"job": JOB, "step": 1}, lambda: tensors)
    truth = TokenTruth(TEXTS, steps={(JOB, 1): torch.arange(len(TEXTS))})
    return View(Transcript(lambda: [frame]), knowledge), truth


def single(row, noise):
    return row + noise.float()


def double_on_a_lattice(row, noise):
    return round_to_lattice(row.double() + noise).float()


def test_noise_added_in_single_precision_is_no_protection():
    view, truth = released(single)
    assert truth.score(NearestNeighbour()(view)).success.value < 0.4
    assert truth.score(FloatSupport()(view)).success.value > 0.99


@pytest.mark.parametrize(
    ("add", "changes", "said"),
    [
        (double_on_a_lattice, {}, "multiples of 0.000976562"),
        (single, {"wire_type": WireType.BF16}, "rounded on the wire"),
        (single, {"knowledge": dataclasses.replace(KNOWLEDGE, cut=Cut(bottom=2))}, "behind blocks"),
        (single, {"knowledge": dataclasses.replace(KNOWLEDGE, table=None)}, "no embedding table"),
    ],
)
def test_where_bits_tell_nothing_it_says_so(add, changes, said):
    view, _ = released(add, **changes)
    with pytest.raises(Inapplicable, match=said):
        list(FloatSupport()(view))
