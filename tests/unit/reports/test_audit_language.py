"""An audit of a language model's run: its text and what it answers are questions of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from cutlayer.attacks import NotApplicable
from cutlayer.core import Cut
from cutlayer.customer import FinetuneSpec, Objective, Silent, Training, measure
from cutlayer.customer.attacker import AttackerSpec
from cutlayer.privacy import TextToText
from cutlayer.reports import AuditReport, read_audit, render, write_audit
from cutlayer.reports.audit import METRICS, Attacked, audit, local_evidence
from tests.promises.runs import corpus
from tests.service.tiny import write_tiny_gpt2

pytestmark = pytest.mark.usefixtures("known_secret")

ATTACKS = ("forward-leak", "lengths", "nearest-neighbour")
TEXTS = corpus(120, seed=1)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> AuditReport:
    model = str(write_tiny_gpt2(tmp_path_factory.mktemp("decoder") / "tiny"))
    spec = FinetuneSpec(
        model=model,
        objective=Objective.LM,
        privacy=TextToText(eta=20.0),
        training=Training(epochs=1, max_length=16, learning_rate=1e-4, dev_share=0.5),
        cut=Cut(bottom=0, tail=1),
    )
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        # what the run itself reads back takes most of its time
        patch.setattr(measure, "measure", lambda name, *_, **__: NotApplicable(attack=name, reason="not asked"))
        evidence = local_evidence(TEXTS, spec, folder, Silent(), attacker=AttackerSpec(auxiliary_fraction=0.2))
    return audit(
        Attacked(evidence, model),
        public=None,
        budget=None,
        only=ATTACKS,
        shown=4,
        seed=0,
        repeat=(),
        progress=Silent(),
    )


def test_what_the_model_answers_is_asked(report: AuditReport) -> None:
    assert {each.question for each in report.strongest} == {"words", "answers", "length"}
    (answers,) = (each for each in report.strongest if each.question == "answers")
    assert answers.asked == "What did the tuned model answer?"
    assert answers.attack == "forward-leak"
    assert answers.metric == METRICS["answers"] == "answer_recovery"
    assert answers.above_chance
    assert "words and pieces of words" in answers.sentence
    assert "forward-leak" in render(report)


def test_answers_are_not_told_as_texts(report: AuditReport) -> None:
    """Nearly all answers are read here and hardly a word: what is shown and named are texts."""
    by_question = {each.question: each for each in report.strongest}
    answered, read = by_question["answers"].value, by_question["words"].value
    assert answered is not None
    assert read is not None
    assert answered > 0.5 > read
    assert report.stand_out == ()
    assert {each.attack for each in report.examples} == {"nearest-neighbour"}
    told = {each.name: {metric.name for metric in each.further} for each in report.attacks}
    assert told["nearest-neighbour"] == {"exact_text", "rouge_l", "bleu"}
    assert told["forward-leak"] == set()


def test_blocks_have_no_kinds_of_words(report: AuditReport, tmp_path: Path) -> None:
    assert not any(each.classes for each in report.attacks)
    assert "texts were joined and cut into blocks" in render(report)
    write_audit(tmp_path, report)
    assert read_audit(tmp_path) == report
