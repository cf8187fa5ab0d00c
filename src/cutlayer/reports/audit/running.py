"""All attacks that apply; where time is limited each of them weakly first, then as strongly as fits.

Without a limit some run beside one another. With one they run one after the other, so that what is left is known.
An attack without a turn would be missing without a word of what it might have read, so every attack has a first go; if
time is too short even for that, every question has an answer before any has a second, and what had no turn is named.
What costs most begins at an eighth of its strength; what is left of the time then buys strength, shared evenly, the
cheapest first. How long a stronger go takes is foretold from the first one as if nothing in it were fixed: too long
rather than too short. What is at work when the time is up is cut short, if it asks (`check_time`), and counts as not
run, or with what it had read before.

Where an attack that costs little has read everything, none on the same question can read more: those that cost much are
left out then, and named, unless they were asked for by name.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, replace
from fractions import Fraction

import torch

from cutlayer.attacks import (
    ATTACKS,
    Attack,
    Examined,
    Measured,
    NotApplicable,
    Question,
    Reading,
    TokenTruth,
    Truth,
    examine,
)
from cutlayer.core.deadline import OutOfTime, within
from cutlayer.customer import Progress
from cutlayer.customer.evidence import Evidence

FIRST_GO = Fraction(1, 8)
"""Of its strength, in the first go of an attack that costs much."""
FIRST_TOKENS = 4096
"""Tokens that an attack which costs little is measured on in its first go."""
AT_ONCE = 2
"""Attacks that run beside one another where time is not limited: most work in steps too small for several cores."""
MOST_TOKENS = 2**16
"""Tokens that an attack with a dial is measured on at most: reading, too, takes time."""


@dataclass(frozen=True)
class AttackRun:
    """An attack that was run.

    Attributes:
        name: Its name.
        attack: What it declares.
        column: Of a private attribute, the column that it is about.
        found: What came of it.
        share: Of its strength; 0 where it had no turn.
        late: Whether it had none for lack of time.
        less: What it was run with where time was short, a phrase each.
        seconds: How long it took.
    """

    name: str
    attack: Attack
    column: str
    found: Examined
    share: Fraction = Fraction(1)
    late: bool = False
    less: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def question(self) -> str:
        """What it answers, for machines."""
        return f"{self.attack.question.value}:{self.column}" if self.column else self.attack.question.value

    @property
    def applies(self) -> bool:
        """Whether it was run, and has a meaning for what was sent."""
        return not isinstance(self.found.outcome, NotApplicable)

    @property
    def reading(self) -> Reading | None:
        """What it made of the run's texts, token by token; `None` for what is about others, and without a number."""
        found = self.found.reading
        # texts of several runs are none of this one's by their numbers
        several = found is not None and found.originals is not None
        return found if self.attack.question is Question.WORDS and not several else None


@dataclass(frozen=True)
class _Turn:
    """An attack that is to be run.

    Attributes:
        name: Its name.
        column: Of a private attribute, the column that it is about.
        truth: What it is scored on.
    """

    name: str
    column: str
    truth: Truth

    @property
    def attack(self) -> Attack:
        """What it declares."""
        return ATTACKS[self.name]

    @property
    def tokens(self) -> int | None:
        """How many tokens it is measured on; `None` where it is not about tokens."""
        if not isinstance(self.truth, TokenTruth):
            return None
        attack, truth = self.attack, self.truth
        total = (truth if attack.positions is None else truth.shortened(attack.positions)).tokens.total
        return total if attack.tokens is None else min(total, attack.tokens)

    @property
    def least(self) -> Fraction:
        """The share of its strength that it begins with."""
        if self.attack.costly and (self.attack.dial or self.tokens):
            return FIRST_GO
        return min(Fraction(1), Fraction(FIRST_TOKENS, self.tokens)) if self.tokens else Fraction(1)

    def not_run(self, reason: str, *, late: bool) -> AttackRun:
        """A result without a number: the attack was not run."""
        nothing = Examined(NotApplicable(attack=self.name, reason=reason))
        return AttackRun(self.name, self.attack, self.column, nothing, share=Fraction(0), late=late)

    def needless(self, ran: Iterable[AttackRun]) -> AttackRun | None:
        """A result without a number, if this attack is costly and a cheap one on the same question read everything."""
        for other in ran if self.attack.costly else ():
            outcome = other.found.outcome
            same = (other.attack.question, other.column) == (self.attack.question, self.column)
            whole = other.share == 1 and not other.attack.costly
            if same and whole and isinstance(outcome, Measured) and outcome.success.value == 1:
                read = f"{other.name} has read everything already; to run this one too, use `--attack {self.name}`."
                return self.not_run(read, late=False)
        return None

    def run(self, evidence: Evidence, share: Fraction, *, limited: bool, before: AttackRun | None = None) -> AttackRun:
        """Runs it.

        Args:
            evidence: The run that it attacks.
            share: Of its strength.
            limited: Whether time is.
            before: What it found with less strength.
        """
        attack, dial, tokens = self.attack, self.attack.dial, self.tokens
        less, controls = [], None
        if share < 1 and dial:
            attack = replace(attack, run=dial.turned(float(share)))
            less.append(f"{share} of the {dial.what}")
        most = tokens or 0
        if not dial:
            most = max(1, math.floor(share * most))
        elif limited:
            most = min(most, MOST_TOKENS)
        if tokens and most < tokens:
            attack = replace(attack, tokens=most)
            less.append(f"{most:,} of the {tokens:,} tokens that it is measured on")
        if before is not None and isinstance(before.found.outcome, Measured) and not attack.costly:
            controls = before.found.outcome.controls
        began = time.monotonic()
        found = examine(
            self.name,
            evidence.seen_by(attack),
            knowledge=evidence.known_to(attack),
            truth=self.truth,
            run=attack,
            controls=controls,
        )
        seconds = time.monotonic() - began
        return AttackRun(self.name, self.attack, self.column, found, share, less=tuple(less), seconds=seconds)


def run_attacks(
    evidence: Evidence,
    names: Sequence[str],
    *,
    budget: float | None,
    began: float | None = None,
    by_name: bool = False,
    progress: Progress,
) -> tuple[list[AttackRun], tuple[str, ...]]:
    """Runs attacks. Under a limit those that cost little come first, one on each question before any has its second.

    Args:
        evidence: The run that they attack.
        names: Their names.
        budget: Seconds that they may take. `None` for as long as they take.
        began: From when these count, by `time.monotonic`; from now on where it is left out.
        by_name: Whether somebody asked for these very attacks, so that none is left out for what others have read.
        progress: Where to show progress.

    Returns:
        What came of each, in the order of names, and what the limit left out or weakened, in sentences.
    """
    turns = [_Turn(name, column, truth) for name in names for column, truth in evidence.truths(ATTACKS[name])]
    start = time.monotonic() if began is None else began

    def left() -> float:
        return (budget or 0.0) - (time.monotonic() - start)

    order = _one_after_the_other(turns)
    if budget is None:
        found = _beside_one_another(turns, order, evidence, by_name=by_name, progress=progress)
        return [found[number] for number in range(len(turns))], ()
    found = {}
    for done, number in enumerate(order):
        turn = turns[number]
        progress.update("attacks", done, len(turns), turn.attack.title)
        if not by_name and (needless := turn.needless(found.values())) is not None:
            found[number] = needless
            continue
        if left() < 0:
            found[number] = turn.not_run(
                f"The time budget of {budget:g} s was used up before it was its turn.", late=True
            )
            continue
        try:
            with within(left()):
                found[number] = turn.run(evidence, turn.least, limited=True)
        except OutOfTime:
            found[number] = turn.not_run(f"The time budget of {budget:g} s was used up before it was done.", late=True)
    progress.update("attacks", len(turns), len(turns))
    ran = [found[number] for number in range(len(turns))]
    # once more with what time is left, the cheapest first, for what it leaves over serves the others
    weak = sorted((n for n, each in enumerate(ran) if each.share < 1 and each.applies), key=lambda n: ran[n].seconds)
    for place, number in enumerate(weak):
        before = ran[number]
        share = affordable(before.share, before.seconds, left() / (len(weak) - place))
        if share > before.share:
            progress.update("stronger attacks", place, len(weak), before.attack.title)
            with suppress(OutOfTime), within(left()):
                ran[number] = turns[number].run(evidence, share, limited=True, before=before)
    if weak:
        progress.update("stronger attacks", len(weak), len(weak))
    return ran, tuple(_traded(ran, budget))


def _beside_one_another(
    turns: Sequence[_Turn], order: Sequence[int], evidence: Evidence, *, by_name: bool, progress: Progress
) -> dict[int, AttackRun]:
    """All at full strength, by their numbers: some at a time, each with its share of the threads.

    What attacks fit on the same text is fitted once, and each draws from generators of its own: so they find what they
    find one after the other.
    """
    threads = torch.get_num_threads()
    workers = min(AT_ONCE, threads)
    if workers > 1:
        # what takes longest begins first, so that no worker is left alone with it at the end: who is granted most has
        # the most to learn from
        order = sorted(order, key=lambda number: -len(turns[number].attack.needs))
    found: dict[int, AttackRun] = {}
    try:
        with (
            within(math.inf) as deadline,
            ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(threads // workers,)) as pool,
        ):
            try:
                # in two lots, since what the first ones read says which of the others are run
                for costly in (False, True):
                    lot = [number for number in order if turns[number].attack.costly == costly]
                    needless = {} if by_name else {number: turns[number].needless(found.values()) for number in lot}
                    found |= {number: run for number, run in needless.items() if run is not None}
                    waiting = {
                        pool.submit(copy_context().run, turns[number].run, evidence, Fraction(1), limited=False): number
                        for number in lot
                        if number not in found
                    }
                    if waiting:
                        first = turns[next(iter(waiting.values()))]
                        progress.update("attacks", len(found), len(turns), first.attack.title)
                    for future in as_completed(waiting):
                        number = waiting[future]
                        found[number] = future.result()
                        progress.update("attacks", len(found), len(turns), turns[number].attack.title)
                progress.update("attacks", len(turns), len(turns))  # the last ones may all be left out
            except BaseException:
                # of what is at work nobody wants to hear any more
                deadline.over()
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    finally:
        torch.set_num_threads(threads)
    return found


def _one_after_the_other(turns: Sequence[_Turn]) -> list[int]:
    """Numbers of turns in the order in which they are taken.

    Where time runs out, every question has been asked before any is asked again. Of the attacks on one, who is granted
    least comes first: it has the least to learn from, and takes the least time.
    """
    places: Counter[tuple[bool, Question, str]] = Counter()
    keys: dict[int, tuple[bool, int, int]] = {}
    for number in sorted(range(len(turns)), key=lambda each: (len(turns[each].attack.needs), turns[each].name)):
        turn = turns[number]
        asked = (turn.attack.costly, turn.attack.question, turn.column)
        keys[number] = (turn.attack.costly, places[asked], list(Question).index(turn.attack.question))
        places[asked] += 1
    return sorted(keys, key=lambda each: keys[each])


def affordable(share: Fraction, seconds: float, allowed: float) -> Fraction:
    """The largest share of an attack's strength, by doubling, that is foretold to take no more than allowed.

    Args:
        share: What was tried.
        seconds: How long that took.
        allowed: Seconds that it may take.

    Returns:
        The same share where twice as much is too much already.
    """
    while share < 1 and 2 * seconds <= allowed:
        # the last step may be shorter than twice
        share, seconds = min(Fraction(1), 2 * share), 2 * seconds
    return share


def _traded(ran: Sequence[AttackRun], budget: float) -> Iterator[str]:
    for each in ran:
        if each.less:
            yield f"{each.name} was run with {' and '.join(each.less)}, for the time budget of {budget:g} s."
    late = [each.name for each in ran if each.late]
    if late:
        were = "was" if len(late) == 1 else "were"
        yield f"{', '.join(late)} {were} not run: the time budget of {budget:g} s was used up."
