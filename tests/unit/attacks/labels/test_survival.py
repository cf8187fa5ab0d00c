from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cutlayer.attacks import (
    AttributeTruth,
    Inapplicable,
    Noise,
    PublicText,
    SignalSource,
    SurvivalPattern,
    View,
    measure,
    simulate,
)
from cutlayer.attacks import Transcript as Seen
from cutlayer.core import Cut, Ragged, Tokens
from cutlayer.privacy import CtiSpec, TextToText, UtilityImportance
from tests.unit.attacks import worlds
from tests.unit.attacks.test_simulate import CANDIDATES, seeded
from tests.unit.attacks.worlds import KNOWLEDGE, RECORD_SET, VOCAB

PUBLIC = PublicText(worlds.random_tokens(3000, seed=12), source="made up")


def importance(texts, labels):
    return UtilityImportance.fit(texts, labels, vocab_size=VOCAB, num_labels=2, spec=CtiSpec())


def telling(count, seed):
    """Texts of two classes that use the same words to other shares."""
    rng = worlds.generator(seed)
    labels = torch.randint(2, (count,), generator=rng)
    lengths = torch.full((count,), 40)
    shares = torch.rand(2, VOCAB - 10, generator=rng) + 0.2
    ids = torch.stack([10 + torch.multinomial(shares[label], 40, replacement=True, generator=rng) for label in labels])
    return Tokens((Ragged(ids.flatten(), lengths),)), labels


def known(noise, public=PUBLIC):
    return replace(KNOWLEDGE, cut=Cut(bottom=None), candidates=CANDIDATES, noise=noise, public=public)


def measured(folder, tokens, classes, labels, noise, public=PUBLIC):
    knowledge = known(noise, public)
    released = simulate(tokens, knowledge, rows=None, rng=seeded(4), classes=classes)
    transcript = Seen.recorded(worlds.record(folder, [worlds.shard(0, released)]))
    truth = AttributeTruth(
        labels, 2, torch.zeros(len(labels), dtype=torch.bool), records={RECORD_SET: torch.arange(len(labels))}
    )
    return measure("survival-pattern", transcript, knowledge=knowledge, truth=truth)


def test_a_class_that_spares_its_own_words_is_read_from_what_is_left(tmp_path):
    """The texts' words are drawn from one distribution for all: nothing but the noise knows the class."""
    tokens, labels = telling(400, seed=2)
    fitted = importance(tokens, labels)
    noise = Noise(TextToText(eta=6, cti=CtiSpec()), etas=fitted.etas(eta0=6))
    neutral = worlds.random_tokens(800, seed=5, longest=80)
    classes = torch.randint(2, (800,), generator=worlds.generator(6))
    outcome = measured(tmp_path / "own", neutral, classes, classes, noise)
    assert outcome.status == "measured"
    auc = {each.name: each for each in outcome.further}["auc"]
    assert auc.interval[0] > 0.55
    # the same releases say nothing of labels that the noise did not know
    others = torch.randint(2, (800,), generator=worlds.generator(7))
    blind = measured(tmp_path / "others", neutral, classes, others, noise)
    assert {each.name: each for each in blind.further}["auc"].interval[0] < 0.5


def test_it_is_checked_by_words_that_its_own_text_has(tmp_path):
    """A book has a small part of a model's vocabulary, and of the rest nobody could learn anything from it."""
    tokens, labels = telling(400, seed=2)
    noise = Noise(TextToText(eta=6, cti=CtiSpec()), etas=importance(tokens, labels).etas(eta0=6))
    (side,) = PUBLIC.tokens.segments
    few = PublicText(Tokens((side.with_values(10 + side.values % 30),)), source="made up")
    assert measured(tmp_path, tokens, labels, labels, noise, few).status == "measured"
    strange = PublicText(Tokens((side.with_values(side.values % 10),)), source="made up")
    none = measured(tmp_path / "none", tokens, labels, labels, noise, strange)
    assert (none.status, none.reason) == ("not applicable", "The attacker's own text has no word that may be guessed.")


def test_etas_of_classes_are_those_of_the_customers_importance():
    tokens, labels = telling(100, seed=2)
    fitted = importance(tokens, labels)
    (per_token,) = fitted.eta(tokens, labels, eta0=6)
    owner = labels.repeat_interleave(tokens.segments[0].lengths)
    assert torch.equal(fitted.etas(eta0=6)[tokens.segments[0].values, owner], per_token)


@pytest.mark.parametrize(
    "noise",
    [
        Noise(TextToText(eta=6)),
        Noise.nothing(),
        Noise(TextToText(eta=6, cti=CtiSpec(class_free=True)), etas=torch.full((VOCAB, 1), 6.0)),
        None,
    ],
)
def test_it_does_not_apply_where_noise_does_not_depend_on_the_class(tmp_path, noise):
    tokens = worlds.random_tokens(20)
    transcript = Seen.recorded(worlds.record(tmp_path, [worlds.shard(0, tokens)]))
    truth = AttributeTruth(
        torch.zeros(20, dtype=torch.int64), 2, torch.arange(20) < 1, records={RECORD_SET: torch.arange(20)}
    )
    assert measure("survival-pattern", transcript, knowledge=known(noise), truth=truth).status == "not applicable"


def test_rows_are_not_read(tmp_path):
    etas = torch.rand(VOCAB, 2, dtype=torch.float64) + 5
    rows = worlds.as_rows(worlds.random_tokens(20))
    transcript = Seen.recorded(worlds.record(tmp_path, [worlds.shard(0, rows)]))
    knowledge = known(Noise(TextToText(eta=6, cti=CtiSpec()), etas=etas))
    with pytest.raises(Inapplicable, match="Rows were released"):
        list(SurvivalPattern()(View(transcript, knowledge)))
    truth = AttributeTruth(torch.arange(4) % 2, 2, torch.arange(4) < 1, signal=SignalSource.SURVIVAL).sample()
    with pytest.raises(Inapplicable, match="ids of single texts"):
        truth.traffic("noise", transcript, knowledge, looks=1, rng=worlds.generator(0))
