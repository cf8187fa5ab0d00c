from __future__ import annotations

import dataclasses

import pytest
import torch

from cutlayer.attacks import TokenTruth
from cutlayer.attacks.truth import UNREAD
from cutlayer.core import Ragged, Tokens
from cutlayer.data import Dataset, tokenise
from cutlayer.models import load_tokenizer
from cutlayer.reports.audit.outliers import stand_out
from cutlayer.reports.metrics import CLASSES, by_class, exact_texts, holm, likeness, token_kinds
from tests.service.fixtures import tiny_model  # noqa: F401 - fixtures are used by name

JOB = "b" * 32


def reading(tokens, guess):
    truth = TokenTruth(tokens, steps={(JOB, 1): torch.arange(len(tokens))})
    return truth.read([(f"job/{JOB}", 1, guess)])


def texts(*lengths, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return Tokens((Ragged(torch.randint(10, 200, (sum(lengths),), generator=rng), torch.tensor(lengths)),))


def garbled(tokens, share, *, seed=1, clear=()):
    """Guesses of which about `share` are right, and in some texts all."""
    (side,) = tokens.segments
    rng = torch.Generator().manual_seed(seed)
    wrong = torch.rand(tokens.total, generator=rng) >= share
    owners = torch.arange(len(tokens)).repeat_interleave(side.lengths)
    wrong &= ~torch.isin(owners, torch.tensor(clear, dtype=torch.int64))
    return Tokens((side.with_values(torch.where(wrong, 5, side.values)),))


def test_whole_texts_are_those_without_a_mistake():
    tokens = texts(3, 1, 4, 0, 2)
    found = exact_texts(reading(tokens, garbled(tokens, 0, clear=(1, 4))))
    assert (found.value, found.n) == (pytest.approx(2 / 4), 4)
    assert found.ci is not None
    assert found.ci[0] <= found.value <= found.ci[1]


def test_kinds_of_tokens():
    tokenizer = load_tokenizer("starter")
    rows = Dataset((("Yesterday I met Anna Kowalski, 42, in Paris. Her phlebotomist said no!",), ("it 's 7pm",)))
    tokens = tokenise(rows, tokenizer, max_content=99)
    common = tokenise(Dataset((("yesterday i met her in no said it 's , . !",),) * 50), tokenizer, max_content=99)
    kinds = token_kinds(rows, reading(tokens, tokens), tokenizer, public=common.segments[0].values)
    told = [
        (tokenizer.convert_ids_to_tokens(int(token)), CLASSES[int(kind)])
        for token, kind in zip(tokens.segments[0].values, kinds, strict=True)
    ]
    named = dict(told)
    assert named["anna"] == named["kowalski" if "kowalski" in named else "##ski"] == named["paris"] == "names"
    assert named["42"] == "numbers"
    assert named["7"] == "numbers" if "7" in named else named["7pm"] == "numbers"
    assert named["yesterday"] == named["her"] == named["i"] == named["said"] == "other words", "capitals of sentences"
    assert named[","] == named["."] == named["!"] == "punctuation"
    assert [kind for token, kind in told if token.startswith("ph") or token == "##bot"] == ["rare words"] * sum(
        token.startswith("ph") or token == "##bot" for token, _ in told
    )


def test_what_is_read_of_each_kind():
    tokens = texts(20, 20)
    kinds = torch.arange(40) % 5
    found = by_class(reading(tokens, garbled(tokens, 0, clear=(1,))), kinds.where(kinds != 3, 4))
    assert [each.name for each in found] == list(CLASSES)
    assert [each.n for each in found] == [8, 8, 8, 0, 16]
    assert found[3].recovered is None
    assert all(each.recovered == 0.5 for each in found if each.n)


def test_holm_is_between_one_test_and_all_of_them():
    assert holm({"a": 0.009}, alpha=0.01) == {"a": True}
    assert holm({"a": 0.004, "b": 0.009, "c": 0.5}, alpha=0.01) == {"a": False, "b": False, "c": False}
    assert holm({"a": 0.003, "b": 0.004, "c": 0.011}, alpha=0.01) == {"a": True, "b": True, "c": False}
    assert holm({}, alpha=0.01) == {}


def test_nothing_raises_an_alarm_as_rarely_as_it_says():
    rng = torch.Generator().manual_seed(3)
    alarms = sum(
        any(holm({str(n): float(p) for n, p in enumerate(torch.rand(20, generator=rng))}, alpha=0.05).values())
        for _ in range(400)
    )
    assert 5 <= alarms <= 40


def test_texts_that_left_in_clear_stand_out():
    tokens = texts(*[15] * 200)
    assert stand_out(reading(tokens, garbled(tokens, 0.4, clear=(17, 117))), alpha=0.01).tolist() == [17, 117]


@pytest.mark.parametrize("share", [0.0, 0.05, 0.4, 0.9, 1.0])
def test_where_all_are_protected_alike_none_stands_out(share):
    named = 0
    for seed in range(20):
        tokens = texts(*torch.randint(1, 30, (150,), generator=torch.Generator().manual_seed(seed)).tolist(), seed=seed)
        named += len(stand_out(reading(tokens, garbled(tokens, share, seed=seed)), alpha=0.01))
    assert named <= 1


def test_tokens_that_noise_hides_badly_do_not_make_a_text_stand_out():
    """A text of nothing but such tokens is read well, and left like all others."""
    (side,) = texts(*[12] * 300).segments
    easy = side.values < 40
    rng = torch.Generator().manual_seed(4)
    values = side.values.clone()
    values[: 12 * 5] = 10 + torch.randint(0, 30, (60,), generator=rng)
    tokens = Tokens((side.with_values(values),))
    easy = values < 40
    right = torch.rand(len(values), generator=rng) < torch.where(easy, 0.95, 0.1)
    guess = Tokens((side.with_values(torch.where(right, values, 5)),))
    assert stand_out(reading(tokens, guess), alpha=0.01).tolist() == []


def test_likeness_is_of_words_wherever_they_stand(tiny_model):  # noqa: F811
    tokenizer = load_tokenizer(str(tiny_model))
    data = Dataset((("w1 w2 w3 w4 w5 w6",), ("w7 w8 w9",), ("",)))
    tokens = tokenise(data, tokenizer, max_content=20)
    (side,) = tokens.segments

    def of(values):
        found = likeness(reading(tokens, Tokens((side.with_values(values),))), tokenizer)
        return {each.name: (each.value, each.n) for each in found}

    assert of(side.values) == {"rouge_l": (1.0, 2), "bleu": (1.0, 2)}
    other = int(tokenizer.convert_tokens_to_ids("w99"))
    mixed = side.values.clone()
    mixed[:2] = other  # the first two of six words
    # ROUGE-L: four of six words in order, in both directions
    assert of(mixed)["rouge_l"][0] == pytest.approx((4 / 6 + 1) / 2)
    # BLEU-4 of the first: precisions 4/6, 3/5, 2/4, 1/3
    assert of(mixed)["bleu"][0] == pytest.approx(((4 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25 + 1) / 2)
    assert of(torch.full_like(side.values, other))["rouge_l"][0] == 0
    nothing = Tokens((side.with_values(torch.full_like(side.values, UNREAD)),))
    unread = dataclasses.replace(reading(tokens, tokens), read=nothing)
    assert {each.value for each in likeness(unread, tokenizer)} == {0.0}
