from __future__ import annotations

import pytest
import torch

from cutlayer.attacks import LabelTruth, Measured, ReportsAndText, Transcript, View, measure
from cutlayer.attacks.attack import SignalSource
from cutlayer.attacks.evaluation.telling import telling_texts
from cutlayer.models.perceptron import Fitting, fit_classifier
from cutlayer.privacy import keep_probability
from tests.unit.attacks import worlds
from tests.unit.attacks.worlds import JOB, generator, record


def run(folder, *, told, epsilon=0.5, count=1500, seed=0):
    """A run whose labels were drawn, with the labels; a share of the texts tells its label by a word."""
    rng = generator(seed)
    labels = torch.randint(2, (count,), generator=rng)
    reports = worlds.reported(labels, epsilon, 2, rng)
    said = torch.where(torch.rand(count, generator=rng) < told, labels, torch.randint(2, (count,), generator=rng))
    tokens = telling_texts(said, count, 2, SignalSource.WORDS, torch.arange(10, worlds.VOCAB), rng)
    frames, outputs, steps = [worlds.shard(0, tokens)], {}, {}
    for number, texts in enumerate(torch.randperm(count, generator=rng).split(100), start=1):
        logits = torch.randn(len(texts), 2, generator=rng, requires_grad=True)
        torch.nn.functional.cross_entropy(logits, reports[texts]).backward()
        frames += [worlds.step(number, records=texts.to(torch.uint16)), worlds.gradient(number, logits.grad)]
        outputs[number] = logits.detach()
        steps[JOB, number] = texts
    record(folder, frames, outputs)
    return Transcript.recorded(folder), LabelTruth(labels, 2, steps, epsilon=epsilon), reports


def read(transcript, truth):
    outcome = measure("reports-and-text", transcript, knowledge=worlds.KNOWLEDGE, truth=truth)
    assert isinstance(outcome, Measured), outcome
    return outcome.success


def test_reports_teach_what_texts_say(tmp_path):
    """Reports that are right 62 times in 100 teach a word that is right nine times in ten."""
    transcript, truth, reports = run(tmp_path, told=0.8)
    found = read(transcript, truth)
    assert float((reports == truth.labels).double().mean()) < 0.66
    assert 0.78 < found.value < 0.93


def test_where_texts_say_nothing_reports_are_all_there_is(tmp_path):
    transcript, truth, reports = run(tmp_path, told=0.0)
    alone = float((reports == truth.labels).double().mean())
    assert read(transcript, truth).value == pytest.approx(alone, abs=0.02)
    assert alone == pytest.approx(keep_probability(0.5, 2), abs=0.04)


def test_a_texts_own_report_has_no_part_in_its_classifier(tmp_path):
    """A classifier that knows each text by heart would say what its report says."""
    transcript, truth, reports = run(tmp_path, told=0.8, count=600)
    by_heart = ReportsAndText(hidden=512, fitting=Fitting(passes=60, batch=32, learning_rate=3e-3))
    knowledge = truth.granted(transcript, worlds.KNOWLEDGE)
    score = truth.score(list(by_heart(View(transcript, knowledge))))
    alone = float((reports == truth.labels).double().mean())
    assert score.success.value > alone + 0.03


def test_the_loss_is_of_what_the_draw_makes_of_an_answer():
    """Of one kind of text, 73 in 100 of whose reports say 0: all labels may be 0, and the classifier says so."""
    features, targets = torch.ones(4000, 3), (torch.arange(4000) % 100 >= 73).long()
    response = torch.tensor([[0.731, 0.269], [0.269, 0.731]])
    fitting = Fitting(passes=20, batch=200, learning_rate=1e-2)
    plain, corrected = (
        fit_classifier(features, targets, classes=2, hidden=4, fitting=fitting, response=each)(features[:1]).softmax(1)
        for each in (None, response)
    )
    assert plain[0, 0] == pytest.approx(0.73, abs=0.02)
    assert corrected[0, 0] > 0.85
