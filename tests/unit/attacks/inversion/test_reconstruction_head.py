"""The vendor's head, turned on the texts: learnt on releases of public text, where public words stood before texts."""

from __future__ import annotations

import dataclasses
import functools
from functools import partial

import pytest
import torch

from cutlayer.attacks import (
    HeadReading,
    HeadReadingSpec,
    Inapplicable,
    KnownPairs,
    KnownPairsSpec,
    MaximumPosterior,
    Noise,
    PublicText,
    Transcript,
    View,
)
from cutlayer.attacks.evaluation.traffic import packed, sent
from cutlayer.attacks.inversion.known_pairs import known_pairs
from cutlayer.attacks.simulate import simulate
from cutlayer.core import PrecededTokens, Ragged
from cutlayer.wire.recording import Direction
from tests.unit.attacks.inversion.test_masked_infill import FAST, KNOWN, MODEL, SPEC, TEXTS, guessed, telling
from tests.unit.attacks.test_simulate import seeded

STRONG = HeadReadingSpec(
    posterior=SPEC.posterior, passes=4, batch=128, learning_rate=4e-3, width=16, exponents=(0.7, 1.0)
)
WEAK = HeadReadingSpec(posterior=FAST.posterior, passes=1, tokens=1500, width=8)
PLAIN = torch.arange(10, 50).reshape(1, 40)
TOLD = dataclasses.replace(KNOWN, plain=PLAIN, public=PublicText(telling(1200, seed=1), source="made up"))
UNTOLD = dataclasses.replace(TOLD, noise=None, public=PublicText(telling(1200, seed=1), source="made up"))


@functools.cache
def release():
    """Texts behind public words, drawn alike."""
    sequences = torch.zeros(len(TEXTS), dtype=torch.int64)
    words = Ragged(PLAIN[sequences].flatten(), torch.full((len(TEXTS),), PLAIN.shape[1]))
    return simulate(PrecededTokens.of(words, TEXTS, sequences=sequences), KNOWN, rows=None, rng=seeded(5))


def seen(knowledge, payload=None):
    payload = release() if payload is None else payload
    frame = sent(Direction.UP, 1, packed(payload, payload))
    return View(Transcript(lambda: [frame]), knowledge)


def share(ids):
    return float((ids == TEXTS.values).double().mean())


@pytest.mark.slow
def test_it_reads_what_neighbours_further_off_tell():
    """As `masked-infill` does, of words that were released as they were; told the mechanism."""
    plain = share(release().parted()[1].values)
    attacks = (MaximumPosterior(SPEC.posterior), HeadReading(STRONG))
    nearby, whole = (share(guessed(attack, seen(TOLD))) for attack in attacks)
    assert 0.4 < plain < 0.6, "noise that hides some"
    assert whole > nearby + 0.01 > plain
    pairs = known_pairs(seen(TOLD).transcript, TOLD)
    tuned = HeadReading(STRONG).reader(TOLD, rows=False, pairs=pairs).tuned
    assert tuned.exponent
    assert tuned.read > tuned.without


@pytest.mark.slow
def test_untold_it_learns_from_what_public_words_became():
    """The channel is known-pairs', and so are the releases that the head learns from: nothing here knows the noise."""
    view = seen(UNTOLD)
    learnt = share(guessed(HeadReading(STRONG), view))
    pairs = share(guessed(KnownPairs(KnownPairsSpec(posterior=SPEC.posterior)), view))
    assert learnt > pairs - 0.01 > share(release().parted()[1].values)


@pytest.mark.slow
def test_releases_of_its_own_that_are_no_releases_teach_nothing(monkeypatch):
    """The fault that is planted: public words that became what others did. The head is then left out, or reads less."""
    monkeypatch.setattr(
        HeadReading,
        "_released",
        lambda self, knowledge, public, pairs: (
            (texts := public.tokens.segments[0].beginning(self.spec.tokens)),
            [texts.values.roll(shift) for shift in range(1, self.spec.passes + 1)],
        ),
    )
    fresh = dataclasses.replace(TOLD, public=PublicText(telling(1200, seed=1), source="made up"))
    pairs = known_pairs(seen(fresh).transcript, fresh)
    tuned = HeadReading(STRONG).reader(fresh, rows=False, pairs=pairs).tuned
    assert tuned.read - tuned.without < 0.005


def test_the_vendors_model_stays_as_it_is_and_the_head_is_fitted_once():
    before = {name: value.clone() for name, value in MODEL.state_dict().items()}
    pairs = known_pairs(seen(TOLD).transcript, TOLD)
    read = partial(HeadReading(WEAK).reader, rows=False, pairs=pairs)
    assert read(TOLD) is read(TOLD)
    assert read(UNTOLD) is read(UNTOLD) is not read(TOLD)
    assert all(torch.equal(value, before[name]) for name, value in MODEL.state_dict().items())
    assert not any(parameter.requires_grad for parameter in MODEL.parameters())


@pytest.mark.parametrize("knowledge", [dataclasses.replace(TOLD, noise=Noise.nothing()), UNTOLD])
def test_where_nothing_is_hidden_it_reads_everything(knowledge):
    """Told so, or where all public words are what they were."""
    words, texts = release().parted()
    whole = PrecededTokens.of(words.with_values(PLAIN[0].repeat(len(texts))), TEXTS, sequences=release().sequences)
    assert share(guessed(HeadReading(WEAK), seen(knowledge, whole))) > 0.99


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"plain": None}, "No public words stood before the texts"),
        ({"model": None}, "the attacker was granted none"),
        ({"public": None}, "no text of its own"),
    ],
)
def test_what_it_cannot_read_it_says(changes, said):
    with pytest.raises(Inapplicable, match=said):
        list(HeadReading(WEAK)(seen(dataclasses.replace(TOLD, **changes))))
