from __future__ import annotations

from typing import Any

import pytest
import torch

from cutlayer.core import ConfigError, Proportion, Ragged, Tokens
from cutlayer.privacy import CustomerSecret, TextToText, Vector, Word, build_privatizer
from cutlayer.privacy.privatizers.words import WordsPrivatizer
from cutlayer.reports import etas_for_recovery, etas_for_shares
from tests.contract.test_words import build as words_privatizer
from tests.contract.test_words import lexicon, space

VOCAB, WIDTH = 500, 16
TABLE = torch.randn(VOCAB, WIDTH, generator=torch.Generator().manual_seed(1))
CANDIDATES = torch.arange(VOCAB) >= 10
SHARES = (0.9, 0.75, 0.6, 0.4, 0.25, 0.1)
TAGS = ("X", "NOUN", "VERB")
"""By turns the parts of speech of words: every third stands for itself, and the others are of two groups."""


def some_ids(lowest=10, n=4000):
    return torch.randint(lowest, VOCAB, (n,), generator=torch.Generator().manual_seed(2))


def text_to_text(eta=1.0, mechanism=TextToText, **noise: Any):
    return build_privatizer(
        mechanism(eta=eta, **noise), secret=CustomerSecret.unsafe(0), table=TABLE, candidates=CANDIDATES,
        table_fingerprint="sha256:t",
    )  # fmt: skip


def words(eta=1.0, missing=(), draw="noise"):
    members = [[f"w{i}" for i in range(VOCAB) if i % 3 == group and i not in missing] for group in (1, 2)]

    def embed(forms):
        return TABLE[[int(form[1:]) for form in forms]]

    vocabulary = space(embed=embed, members=members)
    return words_privatizer(eta=eta, vocabulary=vocabulary, draw=draw, secret=CustomerSecret.unsafe(0))


def names(privatizer: WordsPrivatizer):
    return torch.tensor(lexicon(privatizer).names([Word(" ", f"w{i}", TAGS[i % 3]) for i in some_ids().tolist()]))


def released(privatizer, ids):
    """The share of tokens that a release replaces: of one text, in which each has noise of its own."""
    given = Tokens((Ragged(ids, torch.tensor([len(ids)])),))
    return float(privatizer.tokens(given, labels=None).replaced.sum()) / len(ids)


@pytest.mark.parametrize("noise", ["d-chi", "snd-code"])
def test_a_release_at_the_eta_replaces_the_share(noise):
    points = etas_for_shares(some_ids(), text_to_text(noise=noise), SHARES, seed=0)
    assert [point.eta for point in points] == sorted(point.eta for point in points)
    for point in points:
        # two samples of 2,048 and 4,000
        assert released(text_to_text(point.eta, noise=noise), some_ids()) == pytest.approx(point.wanted, abs=0.05)
        assert point.replaced == pytest.approx(point.wanted, abs=0.01)


def test_noise_of_another_density_needs_other_etas():
    (own,) = etas_for_shares(some_ids(), text_to_text(), [0.5], seed=0)
    (other,) = etas_for_shares(some_ids(), text_to_text(noise="snd-code"), [0.5], seed=0)
    assert other.eta > 1.5 * own.eta


@pytest.mark.parametrize("draw", ["noise", "exponential"])
def test_of_words_the_share_is_of_all_though_some_leave_as_they_are(draw):
    privatizer = words(draw=draw)
    asked = names(privatizer)
    for share in (0.2, 0.4, 0.6):
        (point,) = etas_for_shares(asked, privatizer, [share], seed=0)
        drawing = words(point.eta, draw=draw)
        assert released(drawing, names(drawing)) == pytest.approx(share, abs=0.04)
        assert point.replaced == pytest.approx(share, abs=0.01)
        assert point.n == 2048
    with pytest.raises(ConfigError, match="leave as they are"):
        etas_for_shares(asked, privatizer, [0.7], seed=0)


def test_probabilities_need_other_etas_than_noise():
    by_noise, by_chance = words(), words(draw="exponential")
    (noise,) = etas_for_shares(names(by_noise), by_noise, [0.4], seed=0)
    (chance,) = etas_for_shares(names(by_chance), by_chance, [0.4], seed=0)
    assert noise.eta != chance.eta


@pytest.mark.parametrize("draw", ["noise", "exponential"])
def test_a_word_that_the_vocabulary_does_not_have_is_always_replaced(draw):
    privatizer = words(missing=range(250, VOCAB), draw=draw)
    asked = names(privatizer)
    with pytest.raises(ConfigError, match="no candidates"):
        etas_for_shares(asked, privatizer, [0.25], seed=0)
    (point,) = etas_for_shares(asked, privatizer, [0.5], seed=0)
    drawing = words(point.eta, missing=range(250, VOCAB), draw=draw)
    assert released(drawing, names(drawing)) == pytest.approx(0.5, abs=0.04)


def test_it_repeats():
    found = [etas_for_shares(some_ids(), text_to_text(), [0.5], seed=3) for _ in range(2)]
    assert found[0] == found[1] != etas_for_shares(some_ids(), text_to_text(), [0.5], seed=4)


def test_tokens_that_are_no_candidates_are_always_replaced():
    ids = some_ids(lowest=0)
    struck = torch.where(torch.arange(len(ids)) % 2 == 0, ids % 10, ids)
    with pytest.raises(ConfigError, match="no candidates"):
        etas_for_shares(struck, text_to_text(), [0.25], seed=0)


def test_rows_replace_no_tokens():
    with pytest.raises(ConfigError, match="replaces no tokens"):
        etas_for_shares(some_ids(), text_to_text(mechanism=Vector), [0.5], seed=0)


@pytest.mark.parametrize("share", [0, 1, -0.5, float("nan")])
def test_shares_out_of_range(share):
    with pytest.raises(ConfigError, match="shares"):
        etas_for_shares(some_ids(), text_to_text(), [0.5, share], seed=0)


def curve(tried, middle=100.0, n=2000):
    """An attack that reads more at higher etas, and remembers where it was asked."""

    def read(eta):
        tried.append(eta)
        return Proportion.of(round(n / (1 + (middle / eta) ** 3)), n)

    return read


def test_etas_at_which_an_attack_reads_a_share():
    tried = []
    found = etas_for_recovery(curve(tried), (0.01, 0.1, 0.3), between=(1.0, 1000.0))
    for point in found:
        assert abs(point.read.value - point.wanted) <= 2 * point.read.standard_error
        assert point.eta == pytest.approx(100 * (point.wanted / (1 - point.wanted)) ** (1 / 3), rel=0.1)
    assert len(tried) == len(set(tried)) <= 2 + 3 * 8
    # what was read for one share serves the next
    assert len(tried) < 2 + sum(len(each) - 2 for each in (alone(0.01), alone(0.1), alone(0.3)))


def alone(leak):
    tried = []
    etas_for_recovery(curve(tried), (leak,), between=(1.0, 1000.0))
    return tried


def test_a_share_that_nothing_reads():
    with pytest.raises(ConfigError, match=r"it reads 0\.0% to 0\.1%"):
        etas_for_recovery(curve([]), (0.3,), between=(1.0, 10.0))
    with pytest.raises(ConfigError, match="leaks"):
        etas_for_recovery(curve([]), (0.3, 1.0), between=(1.0, 10.0))
