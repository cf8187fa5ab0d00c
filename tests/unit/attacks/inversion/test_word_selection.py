from __future__ import annotations

import copy
import dataclasses

import pytest
import torch

from cutlayer.attacks import (
    Inapplicable,
    Knowledge,
    Measured,
    NearestNeighbour,
    SeenFrame,
    TokenTruth,
    Transcript,
    View,
    WordSelection,
    WordSelectionSpec,
    measure,
)
from cutlayer.core import Cut, Ragged, Tokens
from cutlayer.wire import WireType, pack, routes
from cutlayer.wire.recording import Direction
from tests.unit.attacks import worlds
from tests.unit.attacks.worlds import JOB, PLAIN, RECORD_SET, VOCAB

SPEC = WordSelectionSpec(steps=60)


def released(tokens, bottom, *, pieces=1):
    """Rows behind a block, in so many shards."""
    frames = []
    for number, texts in enumerate(torch.arange(len(tokens)).chunk(pieces)):
        some = tokens.select(texts)
        with torch.no_grad():
            rows = PLAIN.unpad(bottom(PLAIN.assemble(some, table=bottom.table)), some)
        tensors = pack(rows, vocab_size=VOCAB, wire_type=WireType.FP32)
        frames.append(
            SeenFrame(
                Direction.UP,
                routes.SHARD_PUT,
                {"record_set": RECORD_SET, "shard": number},
                lambda tensors=tensors: tensors,
            )
        )
    return Transcript(lambda: frames)


def knowledge(family):
    bottom = worlds.gentle_bottom(family)
    return Knowledge(cut=Cut(bottom=1), table=bottom.table, template=PLAIN, bottom=bottom)


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_rows_behind_blocks_are_read(family):
    known = knowledge(family)
    tokens = worlds.language_texts(20, seed=4)
    truth = TokenTruth(tokens, records={RECORD_SET: torch.arange(20)})
    shown = released(tokens, known.bottom, pieces=2)
    assert truth.score(WordSelection(SPEC)(View(shown, known))).success.value > 0.95


def test_it_searches_through_the_weights_that_were_handed_out():
    """Behind a block that mixes words, rows are nobody's neighbours, and another block's weights lead nowhere."""
    known = knowledge("bert")
    bottoms = [_mixing(known.bottom, seed) for seed in (0, 1)]
    tokens = worlds.language_texts(20, seed=4)
    truth = TokenTruth(tokens, records={RECORD_SET: torch.arange(20)})
    shown = released(tokens, bottoms[0])
    right, wrong = (
        truth.score(WordSelection(SPEC)(View(shown, dataclasses.replace(known, bottom=bottom)))).success.value
        for bottom in bottoms
    )
    as_embeddings = dataclasses.replace(known, cut=Cut(bottom=0))
    nearest = truth.score(NearestNeighbour()(View(shown, as_embeddings))).success.value
    assert right > 0.9
    assert wrong < 0.5
    assert nearest < 0.5


def _mixing(bottom, seed):
    other, rng = copy.deepcopy(bottom), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in other.named_parameters():
            if parameter.dim() == 2 and "embeddings" not in name:
                parameter.copy_(torch.randn(parameter.shape, generator=rng) * 0.2)
    return other


def test_it_is_measured_on_the_first_texts_alone():
    """It takes seconds a text: a large transcript is told by its beginning, and the number says of how many."""
    known = knowledge("bert")
    tokens = worlds.language_texts(300, seed=4)
    twice = tokens.select([*range(300), *range(20)])
    numbers = torch.tensor([*range(300), *range(20)])
    outcome = measure(
        "word-selection",
        released(tokens, known.bottom, pieces=6),
        knowledge=known,
        truth=TokenTruth(twice, records={RECORD_SET: numbers}),
    )
    assert isinstance(outcome, Measured)
    assert 256 <= outcome.success.n < 600
    assert outcome.success.value > 0.95


@pytest.mark.parametrize("size", [1, 40, 100, 10_000])
def test_the_beginning_of_steps_holds_whole_steps(size):
    tokens = Tokens((Ragged(torch.arange(10, 70), torch.full((20,), 3)),))
    order = torch.randperm(20, generator=worlds.generator(1)).split(5)
    steps = {(JOB, number): texts for number, texts in enumerate(order, start=1)}
    frames = [
        SeenFrame(
            Direction.UP,
            routes.STEP,
            {"job": JOB, "step": number},
            lambda texts=texts: pack(tokens.select(texts), vocab_size=VOCAB, wire_type=WireType.FP32),
        )
        for number, texts in enumerate(order, start=1)
    ]
    shown, part = TokenTruth(tokens, steps=steps).beginning(Transcript(lambda: frames), size)
    count = min(4, -(-size // 15))
    assert len(list(shown)) == count
    assert part.texts.tolist() == sorted(torch.cat(order[:count]).tolist())
    guesses = ((each.source, each.number, each.payload) for each in shown.releases())
    score = part.score(guesses)
    assert (score.success.value, score.success.n) == (1, 15 * count)


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"cut": Cut(bottom=0)}, "no blocks"), ({"bottom": None}, "not granted the bottom")],
)
def test_what_it_cannot_read_it_says(changes, said):
    known = knowledge("bert")
    shown = released(worlds.language_texts(3), known.bottom)
    with pytest.raises(Inapplicable, match=said):
        list(WordSelection(SPEC)(View(shown, dataclasses.replace(known, **changes))))
