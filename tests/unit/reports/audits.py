"""Leak reports made by hand: numbers and texts in them are invented."""

from __future__ import annotations

import math
import re
from typing import Any

from cutlayer.attacks import Check, Control
from cutlayer.core import Claim, Guarantee
from cutlayer.reports.audit.words import strongest as by_question
from cutlayer.reports.audit.words import verdict
from cutlayer.reports.schema import (
    AuditReport,
    AuditSettings,
    BlocksCopies,
    BlocksCopy,
    Example,
    Finding,
    Frontier,
    FrontierPoint,
    HandedOut,
    Metric,
    Piece,
    Strongest,
    Student,
    TokenClass,
    VendorPage,
)

WORDS = "Which words did the texts have?"
LABEL = "Which label did each text have?"
GENDER = "Which gender does each text's author have?"
ENTITIES = "Where do the texts name people, places and other entities?"
LENGTH = "How long is each text?"


def controls(*, noise: float = 0.041, passed: bool = True, graded: str | None = None) -> tuple[Control, ...]:
    return (
        Control(check=Check.UNPROTECTED, recovered=0.998, bound=0.99, n=4096, passed=True),
        Control(check=Check.NOISE, recovered=noise, bound=0.057, n=4096, passed=passed),
        Control(check=Check.SHUFFLED, recovered=0.043, bound=0.057, n=4096, passed=True),
        Control(check=Check.REPEATED, recovered=1.0, bound=1.0, n=4096, passed=True),
        Control(check=Check.GRADED, recovered=0.384, bound=0.361, n=4096, passed=True)
        if graded is None
        else Control.without_meaning(Check.GRADED, graded),
    )


def classes(*shares: float) -> tuple[TokenClass, ...]:
    """Of names, numbers, rare words, other words and punctuation; of whole names half of what is read of names."""
    names = ("names", "numbers", "rare words", "other words", "punctuation")
    counts = (611, 498, 1043, 9712, 2336)
    kinds = [
        TokenClass(
            name=name,
            recovered=share,
            ci=(share - 0.03, share + 0.03),
            n=n,
            precision=0.9 * share,
            precision_ci=(0.9 * share - 0.02, 0.9 * share + 0.02),
            guessed=n + 100,
        )
        for name, share, n in zip(names, shares, counts, strict=True)
    ]
    share = shares[0] / 2
    whole = TokenClass(name="whole names", recovered=share, ci=(share - 0.03, share + 0.03), n=340)
    return (kinds[0], whole, *kinds[1:])


def finding(name: str = "nearest-neighbour", **changes: Any) -> Finding:
    values: dict[str, Any] = {
        "name": name,
        "title": "the nearest row of the embedding table",
        "question": "words",
        "asked": WORDS,
        "status": "measured",
        "metric": "token_recovery",
        "counted": "words",
        "value": 0.371,
        "ci": (0.352, 0.391),
        "chance": 0.042,
        "n": 14200,
        "p_value": 1e-9,
        "above_chance": True,
        "reference": "Split-and-Privatize, section 5.1, arXiv:2312.15603",
        "needs": ("the embedding table",),
        "controls": controls(),
        "seconds": 14.2,
    }
    return Finding(**(values | changes))


def failed(name: str = "inverter", **changes: Any) -> Finding:
    values: dict[str, Any] = {
        "title": "a map from rows to words, learnt from public text",
        "status": "control failed",
        "reason": "control failed: noise: 12.00 % of 4096, must be at most 5.70 %",
        "metric": "",
        "counted": "",
        "value": None,
        "ci": None,
        "chance": None,
        "n": 0,
        "p_value": None,
        "above_chance": None,
        "controls": controls(noise=0.12, passed=False),
    }
    return finding(name, **(values | changes))


def inapplicable(name: str = "prefix-search", **changes: Any) -> Finding:
    values: dict[str, Any] = {
        "title": "words from left to right, each tried in a decoder's first blocks",
        "status": "not applicable",
        "reason": "The model is no decoder: a row depends on the words behind it, too.",
        "controls": (),
    }
    return failed(name, **(values | changes))


def strongest(found: Finding, sentence: str) -> Strongest:
    return Strongest(
        question=found.question,
        asked=found.asked,
        attack=found.name,
        metric=found.metric,
        value=found.value,
        ci=found.ci,
        chance=found.chance,
        above_chance=found.above_chance,
        sentence=sentence,
    )


def pieces(text: str) -> tuple[Piece, ...]:
    return tuple(Piece(text=token) for token in re.findall(r"\s*(?:\w+|[^\w\s])", text))


def example(original: str, released: str, guess: str, why: str = "chosen at random") -> Example:
    true, guessed = pieces(original), pieces(guess)
    marked = tuple(
        Piece(text=guess.text, hit=number < len(true) and true[number].text.strip() == guess.text.strip())
        for number, guess in enumerate(guessed)
    )
    return Example(original=true, released=pieces(released), guess=marked, attack="channel-prior", why=why)


def settings(**changes: Any) -> AuditSettings:
    values: dict[str, Any] = {
        "source": "local",
        "model": "all-MiniLM-L6-v2",
        "fingerprint": "sha256:53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        "cut": "0",
        "bottom_blocks": 0,
        "blocks": 6,
        "mechanism": "text-to-text",
        "noise": "d-chi",
        "eta": 70.0,
        "place": "tokens",
        "cti": False,
        "objective": "a classifier of 4 labels, with low-rank adapters",
        "texts": 512,
        "tokens": 14200,
        "replaced": 0.63,
        "looks": 1,
        "largest_distance": 2.117,
        "public_text": "the embedded sample corpus, 1,200 texts",
        "attacker_labels": 128,
        "unsafe_noise": False,
        "budget_seconds": 900.0,
        "seed": 7,
    }
    return AuditSettings(**(values | changes))


PROMISE = Guarantee(
    claim=Claim.METRIC,
    budget=70.0,
    unit="1/distance in table sha256:53aa51172d142c89",
    per="token",
    caveats=(
        "How long each text is, how many texts there are, and which of them are equal.",
        "Labels: the gradients of training show them.",
        "A text as a whole: of a text of 28 words each word uses up a budget of its own.",
    ),
)

LETTER = (
    "Mrs Kowalczyk called again about the swelling after her operation on 14 March. She takes 40 mg of prednisolone "
    "a day and wants to know whether she may fly to Lisbon next week."
)
LETTER_OUT = (
    "Miss Kovacs phoned again regarding a bruise after his surgery on 14 April. He takes 30 grams of cortisone each "
    "day but wishes to ask if he should travel toward Porto last month."
)
LETTER_GUESS = (
    "Mrs Kovacs phoned again about a bruise after his surgery on 14 April. He takes 30 mg of cortisone each "
    "day and wishes to ask whether he should travel to Porto last week."
)
COMPLAINT = "The invoice of 2 May charges me twice for the same room, and nobody at the desk in Graz picks up."
COMPLAINT_OUT = "A receipt of 3 June costs us once for that other suite, but someone at an office in Linz gets up."
COMPLAINT_GUESS = "The bill of 3 May costs us once for the other suite, but nobody at an office in Linz gets up."


def long_example() -> Example:
    opening = "We met the plumber on Tuesday and he looked at every pipe in the cellar."
    return example(
        " ".join([opening] * 20),
        " ".join([opening.replace("plumber", "builder").replace("cellar", "attic")] * 20),
        " ".join([opening.replace("plumber", "painter")] * 20),
        "one of those that leaked most",
    )


NEAREST = finding(counted="words and pieces of words", classes=classes(0.12, 0.31, 0.09, 0.36, 0.83))
PRIOR = finding(
    "channel-prior",
    title="the most probable word, given how the noise works and what people write",
    counted="words and pieces of words",
    value=0.462,
    ci=(0.441, 0.484),
    chance=0.058,
    reference="No paper: nearest neighbour with the mechanism's own odds and a bigram prior",
    needs=("the embedding table", "how releases are privatized", "public text"),
    settings={"prior": "bigrams", "candidates": "512"},
    classes=classes(0.18, 0.44, 0.13, 0.47, 0.91),
    further=(
        Metric(name="exact_sentence", title="whole texts read", value=0.004, ci=(0.0, 0.01), n=512),
        Metric(name="rouge_l", title="ROUGE-L", value=0.52, ci=(0.5, 0.54), n=512),
        Metric(name="mse", title="mean squared error of rows", value=0.7312, n=14200, unit="", higher_is_leak=False),
    ),
    seconds=611.0,
)
GRADIENT = finding(
    "output-gradient",
    title="labels, from the gradients of the outputs",
    question="label",
    asked=LABEL,
    metric="label_recovery",
    counted="labels",
    value=1.0,
    ci=(1.0, 1.0),
    chance=0.27,
    n=512,
    p_value=0.0,
    reference="Sharp edges of cutlayer’s documentation: gradients show labels",
    needs=(),
    seconds=0.4,
)
AUTHOR = finding(
    "attribute-logistic",
    title="a regression on released words",
    question="attribute:gender",
    asked=GENDER,
    metric="accuracy",
    counted="texts",
    value=0.553,
    ci=(0.501, 0.604),
    chance=0.524,
    n=384,
    p_value=0.1323,
    above_chance=False,
    reference="Split-and-Denoise, section 5.3",
    needs=("labels of some of the records",),
    seconds=31.0,
)
TAGGER = finding(
    "entity-tagger",
    title="a tagger trained on noised public text",
    question="entities",
    asked=ENTITIES,
    metric="entity_f1",
    counted="",
    value=0.298,
    ci=(0.263, 0.333),
    chance=0.071,
    n=733,
    needs=("public text in which entities are marked",),
    seconds=205.0,
)


def copied_blocks(**changes: Any) -> BlocksCopies:
    """What students made of the vendor's blocks."""
    made = {
        "name": "middle-distillation",
        "title": "a student of blocks",
        "reference": "somebody",
        "status": "measured",
        "controls": (
            Control(check=Check.UNPROTECTED, recovered=0.998, bound=0.95, n=900, passed=True),
            Control(check=Check.NONLINEAR, recovered=0.915, bound=0.844, n=900, passed=True),
            Control(check=Check.SHUFFLED, recovered=-0.02, bound=0.004, n=900, passed=True),
        ),
        "students": (
            BlocksCopy(texts=100, rows=2531, kind="linear", explained=-0.125, agreement=0.0, unseen=200, n=5757),
            BlocksCopy(
                texts=1000,
                rows=25310,
                kind="linear and perceptron",
                explained=0.731,
                explained_ci=(0.72, 0.742),
                agreement=0.487,
                agreement_ci=(0.47, 0.504),
                from_answers=0.461,
                from_answers_ci=(0.44, 0.48),
                from_text=0.213,
                from_text_ci=(0.2, 0.23),
                unseen=200,
                n=5757,
            ),
        ),
        "seconds": 33.0,
    }
    return BlocksCopies(**{**made, **changes})


def full(**changes: Any) -> AuditReport:
    """A report with something in each of its parts."""
    attacks = (
        NEAREST,
        PRIOR,
        failed(),
        inapplicable(),
        GRADIENT,
        AUTHOR,
        TAGGER,
        failed("length-regression", title="a regression on row norms", question="length", asked=LENGTH),
    )
    best = by_question(attacks)
    values: dict[str, Any] = {
        "version": "0.1.0",
        "created": "2026-11-23T16:02:38+00:00",
        "verdict": verdict(best, settings(), stand_out=(), tried=0),
        "settings": settings(),
        "guarantee": PROMISE,
        "strongest": best,
        "attacks": attacks,
        "correction": "Above chance: p below 0.05 after Holm's correction over the 5 attacks with a number.",
        "examples": (
            example(LETTER, LETTER_OUT, LETTER_GUESS),
            example(COMPLAINT, COMPLAINT_OUT, COMPLAINT_GUESS),
            long_example(),
        ),
        "frontier": Frontier(
            utility_name="accuracy on dev",
            attack="the most probable word",
            points=tuple(
                FrontierPoint(
                    label=f"text-to-text, eta {eta:g}" if math.isfinite(eta) else "no noise",
                    eta=eta,
                    replaced=replaced,
                    recovered=recovered,
                    recovered_ci=(recovered - 0.02, min(1.0, recovered + 0.02)),
                    attack="channel-prior" if math.isfinite(eta) else "nearest-neighbour",
                    attacks=("channel-prior", "nearest-neighbour"),
                    utility=utility,
                    utility_ci=(utility - 0.025, utility + 0.025),
                    audited=eta == 70,
                )
                for eta, replaced, recovered, utility in (
                    (40.0, 0.96, 0.09, 0.471),
                    (60.0, 0.78, 0.31, 0.672),
                    (70.0, 0.63, 0.462, 0.746),
                    (80.0, 0.41, 0.66, 0.791),
                    (100.0, 0.15, 0.89, 0.838),
                    (math.inf, 0.0, 1.0, 0.87),
                )
            ),
            note="Other settings than the audited one were measured on 128 texts each.",
        ),
        "vendor": VendorPage(
            handed=(
                HandedOut(name="embeddings", parameters=11_720_448, share=0.5163, handed_out=True),
                *(
                    HandedOut(name=f"block {block}", parameters=1_774_464, share=0.0782, handed_out=False)
                    for block in range(6)
                ),
                HandedOut(name="pooler and head", parameters=336_384, share=0.0148, handed_out=False),
                HandedOut(name="denoiser", parameters=0, share=0.0, handed_out=False),
            ),
            parameters=22_703_616,
            share=0.5163,
            students=(
                Student(queries=100, agreement=0.63, agreement_ci=(0.6, 0.66), from_labels=0.55, n=1000),
                Student(
                    queries=1000,
                    agreement=0.81,
                    agreement_ci=(0.785, 0.833),
                    from_labels=0.72,
                    from_labels_ci=(0.69, 0.75),
                    n=1000,
                ),
                Student(
                    queries=10000,
                    agreement=0.93,
                    agreement_ci=(0.913, 0.945),
                    from_labels=0.79,
                    from_labels_ci=(0.765, 0.815),
                    n=1000,
                ),
            ),
            blocks=copied_blocks(),
            note="Students begin from the public weights of the same kind of model.",
        ),
        "traded": ("The learnt map was trained on 400 of 1,200 public texts.",),
        "repeat": (
            "cutlayer audit --input notes.csv --text-column body --label-column ward --eta 70 --seed 7 --out audit",
        ),
    }
    return AuditReport(**(values | changes))


def empty(**changes: Any) -> AuditReport:
    """A report of nothing but its settings."""
    values: dict[str, Any] = {
        "version": "0.1.0",
        "created": "at some time",
        "verdict": (),
        "settings": settings(
            mechanism="none",
            eta=math.inf,
            bottom_blocks=None,
            replaced=None,
            largest_distance=None,
            budget_seconds=None,
            objective="",
            public_text="",
            attacker_labels=0,
        ),
        "guarantee": Guarantee.nothing("Texts are released without noise."),
        "strongest": (),
        "attacks": (),
        "correction": "",
    }
    return AuditReport(**(values | changes))
