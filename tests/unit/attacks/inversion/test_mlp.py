from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cutlayer.attacks import Fitting, Inapplicable, MlpInversion, NearestNeighbour, Noise, PublicText, View, simulate
from cutlayer.attacks import Transcript as Seen
from cutlayer.core import Cut
from cutlayer.privacy import TextToText, Vector
from tests.unit.attacks import worlds
from tests.unit.attacks.test_simulate import seeded
from tests.unit.attacks.worlds import KNOWLEDGE, VOCAB

QUICK = MlpInversion(hidden=64, fitting=Fitting(passes=3, batch=128, learning_rate=3e-3))


def seen(folder, payload):
    return Seen.recorded(worlds.record(folder, [worlds.shard(0, payload)]))


def hits(guesses, tokens):
    ((_, _, guess),) = guesses
    return float((guess.segments[0].values == tokens.segments[0].values).double().mean())


def test_it_learns_which_tokens_are_frequent(tmp_path):
    """Nearest neighbours take all rows for equally probable; of noisy rows, that costs."""
    public = PublicText(worlds.random_tokens(3000, seed=1), source="made up")
    noise = Noise(Vector(eta=3))
    knowledge = replace(KNOWLEDGE, candidates=torch.arange(VOCAB) >= 10, noise=noise, public=public)
    tokens = worlds.random_tokens(300, seed=2)
    view = View(seen(tmp_path, simulate(tokens, knowledge, rows=torch.float32, rng=seeded(5))), knowledge)
    nearest, learnt = hits(NearestNeighbour()(view), tokens), hits(QUICK(view), tokens)
    assert learnt > nearest + 0.1


def test_what_is_fitted_is_kept_for_the_same_noise_alone(tmp_path, monkeypatch):
    public = PublicText(worlds.random_tokens(200, seed=1), source="made up")
    knowledge = replace(KNOWLEDGE, noise=Noise.nothing(), public=public)
    view = View(seen(tmp_path, worlds.random_tokens(9)), knowledge)
    attack = MlpInversion(hidden=8)
    list(attack(view))
    fits = []
    monkeypatch.setattr(MlpInversion, "_fit", lambda self, *_: fits.append(1) or (lambda found: found[:, 0].long()))
    list(attack(view))
    assert not fits
    others = (
        replace(knowledge, noise=Noise(TextToText(eta=5))),
        replace(knowledge, table=knowledge.table.flip(0)),
        replace(knowledge, candidates=torch.arange(VOCAB) >= 10),
        replace(knowledge, cut=Cut(bottom=None)),
    )
    for number, other in enumerate(others, start=1):
        list(attack(View(view.transcript, other)))
        assert len(fits) == number
    list(MlpInversion(hidden=9)(view))
    assert len(fits) == 5


@pytest.mark.parametrize("missing", ["noise", "public", "table"])
def test_what_was_not_granted_is_named(tmp_path, missing):
    everything = replace(
        KNOWLEDGE, noise=Noise.nothing(), public=PublicText(worlds.random_tokens(9, seed=1), source="made up")
    )
    view = View(seen(tmp_path, worlds.random_tokens(9)), replace(everything, **{missing: None}))
    with pytest.raises(Inapplicable, match="lacks text, table or mechanism"):
        list(QUICK(view))
