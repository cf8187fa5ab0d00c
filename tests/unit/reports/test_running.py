"""A limit on time: every attack has a turn, strength is bought with what is left, and each trade is said."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from cutlayer.attacks import (
    ATTACKS,
    Attack,
    Dial,
    Examined,
    Guesses,
    Measured,
    Need,
    NotApplicable,
    Question,
    TokenTruth,
    View,
)
from cutlayer.core import DataError, Proportion, Ragged, Tokens
from cutlayer.core.deadline import check_time
from cutlayer.customer import Silent
from cutlayer.customer.evidence import Evidence
from cutlayer.reports.audit import running
from cutlayer.reports.audit.running import FIRST_TOKENS, AttackRun, affordable, run_attacks
from tests.unit.reports.audits import controls

TOKENS = 40_000
SECONDS_A_TOKEN = 0.001
SECONDS_LEARNING = 80.0
"""At full strength."""


@dataclass
class Clock:
    """Stands still but for what attacks take."""

    now: float = 0.0
    seen: list[tuple[str, int, bool]] = field(default_factory=list)

    def monotonic(self) -> float:
        return self.now


def guess_nothing(view: View) -> Guesses:
    raise AssertionError("attacks are replaced in these tests")


def learning(share: float) -> object:
    def run(view: View) -> Guesses:
        raise AssertionError("attacks are replaced in these tests")

    run.share = share  # type: ignore[attr-defined]
    return run


SUITE = {
    "cheap": Attack(guess_nothing, "cheap", Question.WORDS, "here"),
    "learnt": Attack(
        cast(Any, learning(1.0)),
        "learnt",
        Question.WORDS,
        "here",
        costly=True,
        dial=Dial("public text that it learns from", cast(Any, learning)),
    ),
    "slow": Attack(guess_nothing, "slow", Question.WORDS, "here", costly=True, tokens=256),
}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Attacks that take as long as their strength says, and find nothing."""
    clock = Clock()

    def examine(
        name: str, *_: object, truth: TokenTruth, run: Attack, controls: object = None, **__: object
    ) -> Examined:
        tokens = min(truth.tokens.total, run.tokens or truth.tokens.total)
        clock.now += tokens * (SECONDS_A_TOKEN if name == "cheap" else 10 * SECONDS_A_TOKEN if name == "slow" else 0)
        clock.now += SECONDS_LEARNING * getattr(run.run, "share", 0.0)
        clock.seen.append((name, tokens, controls is not None))
        return Examined(outcome(name, tokens))

    monkeypatch.setattr(running, "time", clock)
    monkeypatch.setattr(running, "examine", examine)
    monkeypatch.setattr(running, "ATTACKS", SUITE)
    return clock


def outcome(name: str, tokens: int, *, value: float = 0.1) -> Measured:
    return Measured(
        attack=name,
        success=Proportion(value=value, n=tokens, standard_error=0.01),
        interval=(0.08, 0.12),
        chance=0.1,
        p_value=0.5,
        looks=1,
        controls=controls(),
    )


def run(
    budget: float | None, *names: str, tokens: int = TOKENS, by_name: bool = False
) -> tuple[dict[str, AttackRun], tuple[str, ...]]:
    texts = Tokens((Ragged(torch.arange(tokens), torch.full((tokens // 10,), 10)),))
    evidence = SimpleNamespace(
        seen_by=lambda _: None, known_to=lambda _: None, truths=lambda _: [("", TokenTruth(texts))]
    )
    names = names or tuple(SUITE)
    ran, traded = run_attacks(cast(Evidence, evidence), names, budget=budget, by_name=by_name, progress=Silent())
    return {each.name: each for each in ran}, traded


def test_without_a_limit_all_run_at_full_strength(clock: Clock) -> None:
    ran, traded = run(None)
    assert [each.share for each in ran.values()] == [1, 1, 1]
    assert traded == ()
    assert clock.seen == [("cheap", TOKENS, False), ("learnt", TOKENS, False), ("slow", 256, False)]


def test_time_enough_buys_full_strength(clock: Clock) -> None:
    ran, traded = run(1000.0)
    assert [each.share for each in ran.values()] == [1, 1, 1]
    assert traded == ()
    assert not any(each.less for each in ran.values())


def test_each_has_a_first_go_before_any_has_a_second(clock: Clock) -> None:
    run(1000.0)
    assert [name for name, *_ in clock.seen[:3]] == ["cheap", "learnt", "slow"]
    assert [tokens for _, tokens, _ in clock.seen[:3]] == [FIRST_TOKENS, TOKENS, 32]


@pytest.mark.parametrize("budget", [14.5, 20.0, 40.0, 75.0, 120.0, 200.0])
def test_a_limit_is_kept_and_its_price_is_said(clock: Clock, budget: float) -> None:
    ran, traded = run(budget)
    # each has a second go at most, foretold from the first: so many seconds, and no more
    assert clock.now <= budget + 1e-9
    weaker = [name for name, each in ran.items() if each.less]
    assert [sentence.split()[0] for sentence in traded] == weaker
    assert all(f"time budget of {budget:g} s" in sentence for sentence in traded)


def test_more_time_never_means_less_strength(clock: Clock) -> None:
    shares = [tuple(each.share for each in run(budget)[0].values()) for budget in (15.0, 30.0, 60.0, 120.0, 400.0)]
    assert all(low <= high for less, more in pairwise(shares) for low, high in zip(less, more, strict=True))
    assert shares[0] != shares[-1]


def test_what_a_weaker_attack_was_run_with_is_said_in_its_own_words(clock: Clock) -> None:
    _, traded = run(14.5)
    assert traded[1] == (
        "learnt was run with 1/8 of the public text that it learns from, for the time budget of 14.5 s."
    )
    assert traded[2] == (
        "slow was run with 32 of the 256 tokens that it is measured on, for the time budget of 14.5 s."
    )


def test_one_that_had_no_turn_says_so(clock: Clock) -> None:
    ran, traded = run(5.0, "learnt", "slow")
    assert isinstance(ran["slow"].found.outcome, NotApplicable)
    assert traded[-1] == "slow was not run: the time budget of 5 s was used up."
    _, traded = run(1.0)
    assert traded[-1] == "learnt, slow were not run: the time budget of 1 s was used up."


def test_every_question_is_asked_before_any_is_asked_again(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose names come first in the alphabet must not use up the time of the question that counts most."""
    told = frozenset({Need.TABLE})
    suite = {
        "a label": Attack(guess_nothing, "", Question.LABEL, "here"),
        "b label": Attack(guess_nothing, "", Question.LABEL, "here"),
        "c length": Attack(guess_nothing, "", Question.LENGTH, "here"),
        "d words": Attack(guess_nothing, "", Question.WORDS, "here", needs=told | {Need.NOISE}),
        "e words": Attack(guess_nothing, "", Question.WORDS, "here", needs=told),
        "f costly": Attack(guess_nothing, "", Question.WORDS, "here", costly=True),
    }
    monkeypatch.setattr(running, "ATTACKS", suite)
    ran, _ = run(None, *suite)
    assert [name for name, *_ in clock.seen] == ["e words", "a label", "c length", "d words", "b label", "f costly"]
    assert list(ran) == list(suite)


def test_a_learnt_attack_does_not_read_all_of_a_long_transcript(clock: Clock) -> None:
    ran, traded = run(2000.0, "learnt", tokens=1_000_000)
    assert ran["learnt"].share == 1
    assert traded == (
        "learnt was run with 65,536 of the 1,000,000 tokens that it is measured on, for the time budget of 2000 s.",
    )


def test_controls_of_cheap_attacks_count_for_more_of_the_same_traffic(clock: Clock) -> None:
    run(1000.0)
    again = {name: reused for name, _, reused in clock.seen[3:]}
    assert again == {"cheap": True, "learnt": False, "slow": False}


@pytest.mark.parametrize(
    ("share", "seconds", "allowed", "expected"),
    [
        (Fraction(1, 8), 1.0, 1.9, Fraction(1, 8)),
        (Fraction(1, 8), 1.0, 2.0, Fraction(1, 4)),
        (Fraction(1, 8), 1.0, 7.9, Fraction(1, 2)),
        (Fraction(1, 8), 1.0, 8.0, Fraction(1)),
        (Fraction(3, 5), 1.0, 2.0, Fraction(1)),
        (Fraction(1, 8), 1.0, -1.0, Fraction(1, 8)),
    ],
)
def test_what_is_affordable(share: Fraction, seconds: float, allowed: float, expected: Fraction) -> None:
    assert affordable(share, seconds, allowed) == expected


def strength(run: object) -> object:
    """What an attack is run with: its spec, or all that it holds."""
    return getattr(run, "spec", vars(run))


def test_turned_down_attacks_are_other_attacks() -> None:
    """A dial that is not connected would say weaker and be as strong, or share another's fit."""
    for name in ATTACKS:
        if (dial := ATTACKS[name].dial) is not None:
            weaker = dial.turned(0.125)
            assert type(weaker) is type(ATTACKS[name].run)
            assert strength(weaker) != strength(ATTACKS[name].run)
            assert strength(weaker) == strength(dial.turned(0.125))


def test_who_has_the_most_to_learn_from_begins_first_beside_others(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What takes longest would else be left alone with one worker at the end."""
    table, noise, text = Need.TABLE, Need.NOISE, Need.PUBLIC_TEXT
    suite = {
        "cheap": Attack(guess_nothing, "", Question.WORDS, "here", needs=frozenset({table, noise, text, Need.LINKS})),
        "least": Attack(guess_nothing, "", Question.WORDS, "here", costly=True, needs=frozenset({table})),
        "most": Attack(guess_nothing, "", Question.WORDS, "here", costly=True, needs=frozenset({table, noise, text})),
        "some": Attack(guess_nothing, "", Question.LABEL, "here", costly=True, needs=frozenset({table, noise})),
    }
    begun: list[str] = []
    submitted = ThreadPoolExecutor.submit

    def submit(pool: ThreadPoolExecutor, call: Any, run: Any, *args: Any, **settings: Any) -> Any:
        begun.append(run.__self__.name)
        return submitted(pool, call, run, *args, **settings)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", submit)
    monkeypatch.setattr(running, "ATTACKS", suite)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        ran, _ = run(None, *suite)
    finally:
        torch.set_num_threads(before)
    assert begun == ["cheap", "most", "some", "least"]
    assert list(ran) == list(suite)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("budget", [None, 1000.0])
def test_what_cannot_read_more_than_another_is_left_out_and_named(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, budget: float | None, threads: int
) -> None:
    def examine(name: str, *_: object, **__: object) -> Examined:
        clock.seen.append((name, 0, False))
        return Examined(outcome(name, 10, value=1.0 if name == "all labels" else 0.1))

    suite = {
        "all labels": Attack(guess_nothing, "", Question.LABEL, "here"),
        "cheap": Attack(guess_nothing, "", Question.LABEL, "here"),
        "costly": Attack(guess_nothing, "", Question.LABEL, "here", costly=True),
        "words": Attack(guess_nothing, "", Question.WORDS, "here", costly=True),
    }
    monkeypatch.setattr(running, "ATTACKS", suite)
    monkeypatch.setattr(running, "examine", examine)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        ran, traded = run(budget, *suite, tokens=1000)
        assert list(ran) == list(suite)
        assert {name for name, *_ in clock.seen} == {"all labels", "cheap", "words"}
        left_out = ran["costly"].found.outcome
        assert isinstance(left_out, NotApplicable)
        assert left_out.reason == "all labels has read everything already; to run this one too, use `--attack costly`."
        assert traded == ()  # nothing of it is for lack of time
        ran, _ = run(budget, *suite, tokens=1000, by_name=True)
        assert isinstance(ran["costly"].found.outcome, Measured)
        # a part of it, read whole, is not everything
        more, _ = run(budget, "all labels", "costly", tokens=10 * FIRST_TOKENS)
        assert isinstance(more["costly"].found.outcome, NotApplicable) == (budget is None)
        assert not isinstance(run(budget, "words", "costly")[0]["costly"].found.outcome, NotApplicable)
    finally:
        torch.set_num_threads(before)


def test_what_fails_beside_others_stops_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are at work when one fails: its error is told, and the other ends at its next question for the time."""
    stopped, both = threading.Event(), threading.Barrier(2)

    def examine(name: str, *_: object, **__: object) -> Examined:
        both.wait(timeout=60)
        if name == "slow":
            raise DataError("Transcript and truth do not belong together.")
        try:
            while True:
                check_time()
                time.sleep(0.01)
        finally:
            stopped.set()

    monkeypatch.setattr(running, "examine", examine)
    monkeypatch.setattr(running, "ATTACKS", SUITE)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(DataError, match="do not belong together"):
            run(None, "learnt", "slow")
        assert stopped.is_set()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
