"""Releases of one original are found, and read together, without being told which they are."""

from __future__ import annotations

import numpy as np
import torch

from cutlayer.attacks import MultiRun, MultiRunSpec, Noise, Transcript, View
from cutlayer.attacks.attack import Guess
from cutlayer.core import Ragged, Tokens
from cutlayer.privacy import PrivacySpec
from tests.unit.attacks import test_maximum_posterior as chains
from tests.unit.attacks.worlds import JOB, VOCAB, generator

ETA = 5.0
LOOKS = 6


def texts(*, count: int = 60, length: int = 24, seed: int = 5) -> Ragged:
    """Texts with little in common, of tokens that tell nothing of each other."""
    values = torch.randint(10, VOCAB, (count * length,), generator=generator(seed))
    return Ragged(values, torch.full((count,), length))


def released(given: Ragged, seed: int) -> Tokens:
    ids = chains.draw_ids(
        given.values, chains.SEARCH, mechanism=chains.DChi(), etas=chains.constant(ETA)(given.values),
        rng=np.random.Generator(np.random.PCG64(seed)),
    )  # fmt: skip
    return Tokens((given.with_values(ids),))


def share(given: Ragged, guess: Guess) -> float:
    tokens = guess[2]
    assert isinstance(tokens, Tokens)
    return float((tokens.values == given.values).double().mean())


def read(*payloads: Tokens) -> list[Guess]:
    shown: Transcript = chains.transcript(*payloads)[0]
    known = chains.knowledge(Noise(PrivacySpec(eta=ETA)))
    return list(MultiRun(MultiRunSpec(posterior=chains.SPEC))(View(shown, known)))


def test_runs_over_the_same_texts_are_read_together() -> None:
    """In another order each time, and cut elsewhere: nobody says which is which."""
    given = texts()
    looks, cut = [], []
    for seed in range(LOOKS):
        order = torch.randperm(len(given), generator=generator(seed))
        some = given.select(order)
        cut.append(some.first(torch.full((len(some),), 24 - seed)))
        looks.append(released(cut[-1], seed))
    (alone,) = read(looks[0])
    together = read(*looks)
    assert share(cut[0], together[0]) > share(cut[0], alone) + 0.1
    assert [guess[:2] for guess in together] == [(f"job/{JOB}", step) for step in range(1, LOOKS + 1)]


def test_one_draw_that_is_shown_again_tells_nothing_more() -> None:
    given = texts()
    once = released(given, 1)
    (alone,) = read(once)
    again = read(once, once, once)
    assert abs(share(given, again[0]) - share(given, alone)) < 0.03


def test_a_passage_under_many_texts_of_one_run_is_read_from_all_of_them() -> None:
    body, passage, repeats = 8, texts(count=1, length=40, seed=8).values, 12
    bodies = texts(count=repeats, length=body, seed=9)
    size = body + len(passage)
    joined = Ragged(torch.cat([torch.cat([own, passage]) for own in bodies.split()]), torch.full((repeats,), size))
    drawn = released(joined, 3)
    alone = [read(drawn.select(torch.tensor([text])))[0] for text in range(repeats)]
    ((*_, together),) = read(drawn)
    assert isinstance(together, Tokens)
    read_of_it = [float((text[body:] == passage).double().mean()) for text in together.segments[0].split()]
    read_alone = [
        float((tokens.values[body:] == passage).double().mean()) for *_, tokens in alone if isinstance(tokens, Tokens)
    ]
    assert np.mean(read_of_it) > np.mean(read_alone) + 0.1
