"""What a language model's run was about: attacks in an audit read what the run's result says."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cutlayer import vendor
from cutlayer.attacks import ATTACKS, Check, Measured, NotApplicable, Outcome, Question, Transcript, measure
from cutlayer.core import Cut
from cutlayer.customer import Client, LanguageResult
from cutlayer.customer.attacker import AttackerSpec
from cutlayer.customer.corpora import Corpora
from cutlayer.customer.evidence import Evidence
from cutlayer.customer.handout import local_archive
from cutlayer.models import Archive
from tests.promises.runs import corpus, customer
from tests.service.tiny import write_tiny_gpt2
from tests.settings import specs

TRAIN, TEST = corpus(60, seed=1), corpus(12, seed=2)
FAST = {"epochs": 3, "learning_rate": 0.1}
FULL = {"method": "full", "epochs": 3, "learning_rate": 5e-3}
PUBLIC = {"public_first": corpus(20, seed=5), "public_iterations": 2}
RUNS: dict[str, tuple[dict[str, Any], dict[str, Any], bool]] = {
    "adapters": ({"tail": 1}, FAST, True),
    "the head alone": ({"tail": 0}, {}, False),
    "all weights, the head tied": ({"tail": 1}, FULL, True),
    "frozen below": ({"tail": 1, "train_bottom": "frozen"}, FAST, True),
    "public steps first, and no test": ({"tail": 1, "test": None, **PUBLIC}, {"learning_rate": 0.1}, True),
}
"""By name the cut, how it is trained, and whether that moves the tail."""


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gpt2(tmp_path_factory.mktemp("decoder") / "tiny")


@pytest.fixture(autouse=True)
def nothing_else_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run reads nothing back but answers: the other attacks take most of its time."""

    def only_answers(attack: str, transcript: Transcript, **known: Any) -> Outcome:
        return measure(attack, transcript, **known) if attack == "forward-leak" else _unasked(attack)

    monkeypatch.setattr("cutlayer.customer.measure.measure", only_answers)


def _unasked(attack: str) -> NotApplicable:
    return NotApplicable(attack=attack, reason="not asked")


@pytest.fixture
def client(decoder: Path, tmp_path: Path) -> Iterator[Client]:
    vendor.init(tmp_path / "data", models=[str(decoder)], threads=1, max_bottom=2, max_tail=1)
    key = vendor.keys.create(tmp_path / "data", "clinic")
    with customer(tmp_path / "data", key, tmp_path / "home") as opened:
        yield opened


def tune(client: Client, name: str) -> tuple[LanguageResult, Corpora]:
    settings, training, _ = RUNS[name]
    usual = {"epochs": 1, "max_length": 16, "dropout": False, "dev_share": 0.2, "save_steps": 2}
    given = {"eta": math.inf, "bottom": 1, "seed": 3, "test": TEST, **usual, **training, **settings}
    result = client.finetune(TRAIN, objective="lm", **specs(given))
    return result, Corpora(TRAIN, None, given["test"], given.get("public_first"))


def evidence_of(client: Client, result: LanguageResult, data: Corpora, model: Path) -> tuple[Evidence, Archive]:
    archive = local_archive(client.home, str(model), Evidence.settings(result.folder).cut)
    found = Evidence.of(result.folder, data, archive, home=client.home, attacker=AttackerSpec(auxiliary_fraction=0.2))
    return found, archive


@pytest.mark.parametrize("name", RUNS)
def test_what_is_read_of_answers_is_what_the_result_says(client: Client, decoder: Path, name: str) -> None:
    result, data = tune(client, name)
    found, archive = evidence_of(client, result, data, decoder)
    assert found.said is not None
    outcome = measure("forward-leak", found.transcript, knowledge=found.knowledge, truth=found.said)
    assert isinstance(outcome, Measured)
    assert outcome.success == result.token_recovery_from_answers
    (unprotected,) = (control for control in outcome.controls if control.check is Check.UNPROTECTED)
    assert unprotected.recovered == 1, "the control's truth is about rows as they are sent"
    moved = RUNS[name][2]
    assert (outcome.success.value < 1) == moved, "the tail as it was handed out says what the vendor's does"
    fresh = local_archive(client.home, str(decoder), Cut(bottom=1, tail=RUNS[name][0]["tail"]))
    assert found.knowledge.tail is archive.tail
    for part, other in ((archive.tail, fresh.tail), (archive.bottom, fresh.bottom)):
        assert part is not None
        assert other is not None
        kept, expected = part.state_dict(), other.state_dict()
        assert kept.keys() == expected.keys()
        assert all(kept[key].equal(expected[key]) for key in kept), "what was handed out is what the attacker has"


def test_an_audit_asks_for_answers_once(client: Client, decoder: Path) -> None:
    result, data = tune(client, "adapters")
    found, _ = evidence_of(client, result, data, decoder)
    asked = {name: [column for column, _ in found.truths(ATTACKS[name])] for name in ATTACKS}
    assert asked["forward-leak"] == [""]
    about = {ATTACKS[name].question for name, columns in asked.items() if columns}
    assert about == {Question.WORDS, Question.ANSWERS, Question.LENGTH}


def test_without_queries_there_is_a_reason_and_no_number(client: Client, decoder: Path) -> None:
    result, data = tune(client, "adapters")
    found, _ = evidence_of(client, result, data, decoder)
    silent = Transcript(lambda: (frame for frame in found.transcript if "infer" not in frame.route.name))
    assert found.said is not None
    outcome = measure("forward-leak", silent, knowledge=found.knowledge, truth=found.said)
    assert isinstance(outcome, NotApplicable)
    assert outcome.reason == "The transcript holds no query."


def test_the_truth_is_of_the_adapter_and_not_of_training(client: Client, decoder: Path) -> None:
    """Dev was asked about before, too, by weights that nobody has any more."""
    result, data = tune(client, "adapters")
    found, _ = evidence_of(client, result, data, decoder)
    assert found.said is not None
    sources = {answer.source for answer in found.transcript.answers()}
    assert len(sources) == 2
    assert {source for source, _ in found.said.queries} == {f"adapter/{result.adapter_id}/infer"}
