"""Modified Kneser-Ney, fast, against the same formulas written out slowly, by hand, and on text that has a memory."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from training.kneser_ney import KneserNey, estimate_discounts

VOCABULARY = 150  # of which the texts below have the first 120


def zipf_text(n, *, seed, kinds=120):
    """Ids of which few are frequent and many rare; what follows an id depends a little on it."""
    rng = np.random.default_rng(seed)
    weights = 1 / np.arange(1, kinds + 1) ** 1.4
    ids = rng.choice(kinds, size=n, p=weights / weights.sum())
    for place in range(2, n):
        if rng.random() < 0.4:
            ids[place] = (3 * ids[place - 1] + ids[place - 2]) % 10
    ids[0] = kinds - 1  # what begins the text occurs nowhere else: it follows nothing
    ids[1:][ids[1:] == kinds - 1] = 0
    return ids.astype(np.uint16)


class Slow:
    """The formulas over dictionaries of tuples, one probability at a time."""

    def __init__(self, text, *, vocabulary, order):
        text = [int(each) for each in text]
        self.vocabulary, self.order = vocabulary, order
        self.counts = {}
        for n in range(1, order + 1):
            if n == order:
                self.counts[n] = Counter(tuple(text[i : i + n]) for i in range(len(text) - n + 1))
            else:
                before = {}
                for i in range(len(text) - n):
                    before.setdefault(tuple(text[i + 1 : i + 1 + n]), set()).add(text[i])
                self.counts[n] = {gram: len(tokens) for gram, tokens in before.items()}
        self.discounts = {n: self._discounts(counts) for n, counts in self.counts.items()}
        self.following = {}
        for counts in self.counts.values():
            for gram, count in counts.items():
                self.following.setdefault(gram[:-1], {})[gram[-1]] = count

    @staticmethod
    def _discounts(counts):
        n = Counter(counts.values())
        y = n[1] / (n[1] + 2 * n[2])
        return {1: 1 - 2 * y * n[2] / n[1], 2: 2 - 3 * y * n[3] / n[2], 3: 3 - 4 * y * n[4] / n[3]}

    def probability(self, token, context):
        context = tuple(context)[len(context) - min(len(context), self.order - 1) :]
        lower = self.probability(token, context[1:]) if context else 1 / self.vocabulary
        following = self.following.get(context)
        if following is None:
            return lower
        discounts = self.discounts[len(context) + 1]
        total = sum(following.values())
        one, two = (sum(1 for count in following.values() if count == k) for k in (1, 2))
        more = sum(1 for count in following.values() if count >= 3)
        gamma = (discounts[1] * one + discounts[2] * two + discounts[3] * more) / total
        count = following.get(token, 0)
        discounted = max(count - discounts[min(count, 3)], 0) if count else 0
        return discounted / total + gamma * lower


@pytest.fixture(scope="module")
def text():
    return zipf_text(4000, seed=1)


@pytest.fixture(scope="module")
def held_out():
    ids = zipf_text(1500, seed=2)
    ids[::50] = np.arange(120, 150)  # ids that the text has not
    return ids


@pytest.mark.parametrize("order", [1, 2, 3])
def test_probabilities_are_those_of_the_formulas(text, held_out, order):
    fast = KneserNey.fit(text, vocabulary=VOCABULARY, order=order)
    slow = Slow(text, vocabulary=VOCABULARY, order=order)
    assert fast.order == order
    for ids in (held_out, text[:300], held_out[:2], held_out[:3]):
        expected = [
            math.log(slow.probability(int(ids[i]), ids[max(i - 5, 0) : i].tolist())) for i in range(1, len(ids))
        ]
        found = fast.log_probabilities(ids)
        assert found.dtype == np.float64
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
        assert fast.perplexity(ids) == pytest.approx(math.exp(-sum(expected) / len(expected)), rel=1e-12)
    assert fast.log_probabilities(held_out[:1]).shape == (0,)


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.int64, np.uint64])
def test_large_ids_of_any_integer_type_do_not_overflow(text, held_out, dtype):
    shift = 65536 - VOCABULARY
    fast = KneserNey.fit(text.astype(dtype) + dtype(shift), vocabulary=65536)
    slow = Slow(text.astype(int) + shift, vocabulary=65536, order=3)
    ids = held_out[:200].astype(dtype) + dtype(shift)
    expected = [math.log(slow.probability(int(ids[i]), ids[max(i - 2, 0) : i].tolist())) for i in range(1, len(ids))]
    np.testing.assert_allclose(fast.log_probabilities(ids), expected, rtol=0, atol=1e-12)


CONTEXTS = {
    "none": (),
    "seen": (3, 0),
    "long": (7, 7, 7, 3, 0),
    "one": (4,),
    "the text's beginning, which follows nothing": (119,),
    "unseen pair of seen ids": (118, 117),
    "unseen id last": (0, 130),
    "unseen id first": (130, 0),
    "unseen ids": (140, 149),
}


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("context", CONTEXTS.values(), ids=CONTEXTS)
def test_every_distribution_sums_to_one_and_is_the_formulas(text, order, context):
    found = KneserNey.fit(text, vocabulary=VOCABULARY, order=order).next_distribution(context)
    slow = Slow(text, vocabulary=VOCABULARY, order=order)
    assert found.shape == (VOCABULARY,)
    assert abs(math.fsum(found) - 1) <= 1e-12
    assert found.min() > 0
    expected = [slow.probability(token, context) for token in range(VOCABULARY)]
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=0)


def test_contexts_are_what_their_names_say(text):
    pairs = set(zip(text[:-1].tolist(), text[1:].tolist(), strict=True))
    assert (3, 0) in pairs
    assert (118, 117) not in pairs
    assert {117, 118, 119} < set(text.tolist())
    assert 119 not in text[1:]
    assert text.max() < 130


def test_log_probabilities_are_those_of_the_distributions(text, held_out):
    model = KneserNey.fit(text, vocabulary=VOCABULARY)
    found = np.exp(model.log_probabilities(held_out[:100]))
    expected = [model.next_distribution(held_out[:i].tolist())[held_out[i]] for i in range(1, 100)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_discounts_are_the_closed_formulas(text):
    model = KneserNey.fit(text, vocabulary=VOCABULARY)
    ids = text.tolist()
    triples = Counter(zip(ids, ids[1:], ids[2:], strict=False))
    pairs = Counter((b, c) for _, b, c in triples)
    singles = Counter(b for _, b in set(pairwise(ids)))
    for level, counts in zip(model.levels, (singles, pairs, triples), strict=True):
        n1, n2, n3, n4 = (sum(1 for count in counts.values() if count == k) for k in (1, 2, 3, 4))
        y = n1 / (n1 + 2 * n2)
        assert level.discounts == pytest.approx((1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3))
        assert len(level.grams) == len(counts)
    # 10, 4, 2 and 1 of them: Y = 10/18
    counts = np.repeat([1, 2, 3, 4, 9], [10, 4, 2, 1, 5])
    y = Fraction(10, 18)
    expected = (1 - 2 * y * Fraction(4, 10), 2 - 3 * y * Fraction(2, 4), 3 - 4 * y * Fraction(1, 2))
    assert expected == (Fraction(5, 9), Fraction(7, 6), Fraction(17, 9))
    assert estimate_discounts(counts, order=2) == pytest.approx([float(each) for each in expected], rel=1e-15)


def test_twelve_ids_by_hand():
    # Pairs: 00 three times, 03 and 10 twice, 30, 01, 06 and 61 once. n1 = 4, n2 = 2, n3 = 1, n4 = 0, so Y = 1/2 and the
    # discounts are 1/2, 5/4 and 3. Different tokens before 0: three (0, 1, 3); before 1: two; before 3 and 6: one.
    # n1 = 2, n2 = n3 = 1, n4 = 0, so Y = 1/2 again and the discounts are 1/2, 1/2 and 3.
    model = KneserNey.fit(np.array([0, 0, 3, 0, 1, 0, 0, 0, 6, 1, 0, 3]), vocabulary=7, order=2)
    assert model.levels[0].discounts == pytest.approx((0.5, 0.5, 3))
    assert model.levels[1].discounts == pytest.approx((0.5, 1.25, 3))
    # Seven kinds of pairs; discounting takes 3 + 1/2 + 1/2 + 1/2 of 7, that is 9/98 for each of the seven ids.
    alone = np.array([0 + 9, 21 + 9, 9, 7 + 9, 9, 9, 7 + 9]) / 98
    # After 0: seven pairs; discounting takes 3 + 5/4 + 1/2 + 1/2 of 7, that is 3/4.
    after_0 = np.array([0, 0.5, 0, 0.75, 0, 0, 0.5]) / 7 + 0.75 * alone
    # After 1: twice 0; discounting takes 5/4 of 2.
    after_1 = np.array([0.375, 0, 0, 0, 0, 0, 0]) + 0.625 * alone
    np.testing.assert_allclose(model.next_distribution([]), alone, rtol=1e-14)
    np.testing.assert_allclose(model.next_distribution([0]), after_0, rtol=1e-14)
    np.testing.assert_allclose(model.next_distribution([1]), after_1, rtol=1e-14)
    np.testing.assert_allclose(model.next_distribution([5]), alone, rtol=1e-14)
    assert after_0[3] == pytest.approx(22.5 / 98)
    found = model.log_probabilities(np.array([5, 0, 3, 1, 0]))
    after_3 = np.array([0.5, 0, 0, 0, 0, 0, 0]) + 0.5 * alone  # once 0
    np.testing.assert_allclose(found, np.log([alone[0], after_0[3], after_3[1], after_1[0]]), rtol=1e-14)


def test_longer_contexts_predict_a_text_with_a_memory_better():
    rng = np.random.default_rng(5)
    weights = 1 / np.arange(1, 1501) ** 1.2
    one, two = rng.integers(20, size=20), rng.integers(20, size=(20, 20))
    ids = rng.choice(1500, size=33_000, p=weights / weights.sum())
    for place, chance in enumerate(rng.random(len(ids))):
        if place >= 2 and chance < 0.5:
            ids[place] = two[ids[place - 2] % 20, ids[place - 1] % 20]
        elif place >= 2 and chance < 0.7:
            ids[place] = one[ids[place - 1] % 20]
    train, held_out = ids[:30_000], ids[30_000:]
    first, second, third = (KneserNey.fit(train, vocabulary=1500, order=n).perplexity(held_out) for n in (1, 2, 3))
    assert third < 0.9 * second < 0.9 * 0.9 * first
    # and a text without one is not predicted better, nor much worse
    shuffled = rng.permutation(ids)
    train, held_out = shuffled[:30_000], shuffled[30_000:]
    first, third = (KneserNey.fit(train, vocabulary=1500, order=n).perplexity(held_out) for n in (1, 3))
    assert first < third < 1.5 * first


@pytest.mark.parametrize("bad", [[0, 5, VOCABULARY], [0, -1, 5]])
def test_ids_outside_the_vocabulary_are_refused(text, bad):
    model = KneserNey.fit(text, vocabulary=VOCABULARY)
    with pytest.raises(ValueError, match="this vocabulary of 150 has 0 to 149"):
        KneserNey.fit(np.concatenate([text.astype(np.int64), bad]), vocabulary=VOCABULARY)
    for ask in (model.log_probabilities, model.perplexity, model.next_distribution):
        with pytest.raises(ValueError, match="this vocabulary of 150 has 0 to 149"):
            ask(np.array(bad))


def test_what_is_not_a_text_is_refused(text):
    model = KneserNey.fit(text, vocabulary=VOCABULARY)
    with pytest.raises(ValueError, match="the text is empty"):
        KneserNey.fit(np.array([], np.uint16), vocabulary=VOCABULARY)
    with pytest.raises(ValueError, match="the text is empty"):
        model.log_probabilities(np.array([], np.uint16))
    with pytest.raises(ValueError, match="at least two"):
        model.perplexity(text[:1])
    with pytest.raises(ValueError, match="one row of integers, not 1-dimensional float64"):
        model.perplexity(text.astype(np.float64))
    with pytest.raises(ValueError, match="one row of integers, not 2-dimensional uint16"):
        KneserNey.fit(text.reshape(2, -1), vocabulary=VOCABULARY)


def test_orders_that_cannot_be_are_refused(text):
    for order in (0, -1):
        with pytest.raises(ValueError, match="at least 1"):
            KneserNey.fit(text, vocabulary=VOCABULARY, order=order)
    with pytest.raises(ValueError, match="5-grams over 8192 ids do not fit into 63 bits"):
        KneserNey.fit(text, vocabulary=8192, order=5)


@pytest.mark.parametrize(
    ("ids", "order", "match"),
    [
        ([0, 1, 2, 3, 4], 1, "undefined: of its 1-grams, 5, 0, 0 and 0 have a count of 1, 2, 3 and 4"),
        ([0, 1, 1, 2, 3], 1, "undefined: of its 1-grams, 3, 1, 0 and 0"),
        ([0, 0, 1, 1, 1], 1, "undefined: of its 1-grams, 0, 1, 1 and 0"),
        ([0, 1], 3, "undefined: of its 3-grams, 0, 0, 0 and 0"),
        ([0, 1, 1, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5], 1, "not above 0: of its 1-grams, 1, 1, 1 and 3"),
    ],
)
def test_texts_too_small_for_discounts_are_refused(ids, order, match):
    with pytest.raises(ValueError, match=match) as refused:
        KneserNey.fit(np.array(ids), vocabulary=10, order=order)
    assert "too small" in str(refused.value)
