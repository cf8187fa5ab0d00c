"""An audit from the texts to the report: what is planted is found, what is not there is not."""

from __future__ import annotations

import dataclasses
import logging
import math
import shutil
from pathlib import Path

import pytest
import torch

from cutlayer.attacks import ATTACKS, AttributeTruth, LengthTruth, PublicText, Question, Traffic, Transcript
from cutlayer.core import ConfigError, Payload, Rows, Stopped, Tokens
from cutlayer.customer import FinetuneSpec, Home, Silent, TrainBottom, Training
from cutlayer.customer.attacker import AttackerSpec
from cutlayer.customer.evidence import Evidence
from cutlayer.data import Dataset, tokenise
from cutlayer.privacy import CtiSpec, NoPrivacy, PrivacySpec, TextToText
from cutlayer.privacy.privatizers import text_to_text
from cutlayer.reports import read_audit, render, write_audit
from cutlayer.reports.audit import Attacked, audit, local_answers, local_evidence, train_students
from tests.promises.runs import corpus
from tests.service.fixtures import tiny_model  # noqa: F401 - fixtures are used by name
from tests.settings import specs

pytestmark = pytest.mark.usefixtures("known_secret")

TRAINING = Training(epochs=1, batch_size=32, learning_rate=1e-3, dev_share=0.1)
QUICK = [name for name in ATTACKS if not ATTACKS[name].costly]
NOBODY = AttackerSpec(auxiliary_fraction=0)
ETA = 60.0
"""Hides about half of the tiny model's tokens."""


def evidence_of(
    model: Path, folder: Path, texts: Dataset, *, eta: float = ETA, attacker: AttackerSpec = NOBODY
) -> Evidence:
    privacy = NoPrivacy() if math.isinf(eta) else TextToText(eta=eta)
    spec = FinetuneSpec(model=str(model), privacy=privacy, training=TRAINING, seed=1)
    return local_evidence(texts, spec, folder, Silent(), attacker=attacker)


def own_text(evidence: Evidence) -> PublicText:
    tokens = tokenise(corpus(300, seed=9), evidence.archive.tokenizer, max_content=60)
    return PublicText(tokens, source="made up")


def report_on(evidence: Evidence, model: Path, **changes: object):
    attacked = Attacked(evidence, str(model), students=changes.pop("students", ()))  # type: ignore[arg-type]
    settings = {"public": own_text(evidence), "budget": None, "shown": 4, "seed": 0, "repeat": ()}
    return audit(attacked, progress=Silent(), **{**settings, **changes})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def texts() -> Dataset:
    return corpus(330, seed=5)


def test_a_report_answers_every_question_of_a_run(
    tiny_model: Path,  # noqa: F811
    tmp_path: Path,
    texts: Dataset,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    written_by = tuple(("ann", "ben")["w1" in row[0]] for row in texts.texts)
    signed = Dataset(texts.texts, texts.labels, {"author": written_by})
    attacker = AttackerSpec(auxiliary_fraction=0.3, secret=("author",))
    evidence = evidence_of(tiny_model, tmp_path / "run", signed, attacker=attacker)
    answers = local_answers(signed, evidence.adapter, tmp_path / "run", Silent())
    students = train_students(
        signed, answers, tokenizer=evidence.archive.tokenizer, table=evidence.archive.table, seed=0
    )
    report = report_on(evidence, tiny_model, only=QUICK, students=students)
    assert len(answers) == len(texts)
    assert set(answers) <= set(texts.labels or ())
    assert bool(students) == (len(set(answers)) > 1)
    by_name = {each.name: each for each in report.attacks}
    assert {each.question for each in report.strongest} == {"words", "label", "attribute:author", "length", "row"}
    assert report.settings.attacker_labels == evidence.known_records > 0
    assert "records that it knows" in report.settings.public_text
    assert by_name["lengths"].value == 1
    words = max(each.value for each in report.attacks if each.question == "words" and each.value is not None)
    assert next(each for each in report.strongest if each.question == "words").value == words
    assert by_name["attribute-mlp"].n < len(evidence.texts)
    assert by_name["nearest-neighbour"].n == evidence.tokens.tokens.total < sum(evidence.lengths.lengths)
    assert by_name["output-gradient"].value == 1
    for each in report.attacks:
        assert each.controls or each.status == "not applicable"
        assert (each.ci is None) == (each.value is None)
    assert report.settings.texts == len(evidence.texts)
    assert report.vendor is not None
    assert report.vendor.students == students
    assert report.vendor.share == pytest.approx(sum(part.share for part in report.vendor.handed if part.handed_out))
    assert report.stand_out == ()
    assert len(report.examples) == 4
    for example in report.examples:
        assert len(example.original) == len(example.guess)
        assert [piece.text for piece in example.guess if piece.hit] == [
            mine.text for mine, piece in zip(example.original, example.guess, strict=True) if piece.hit
        ]
    # texts stand in the examples, and nowhere else
    bare = report.model_copy(update={"examples": ()}).model_dump_json()
    words_of = {word for row in texts.texts for word in row[0].split()}
    assert not [word for word in words_of if f'"{word}' in bare or f" {word} " in bare]
    assert not [word for word in words_of if any(f" {word}" in record.getMessage() for record in caplog.records)]
    write_audit(tmp_path / "report", report)
    assert read_audit(tmp_path / "report") == report
    assert render(report).count("<h1") == 1


@pytest.mark.slow
def test_without_noise_everything_is_read_and_said(
    tiny_model: Path,  # noqa: F811
    tmp_path: Path,
    texts: Dataset,
) -> None:
    evidence = evidence_of(tiny_model, tmp_path, texts, eta=math.inf, attacker=AttackerSpec(auxiliary_fraction=0.3))
    # asked for by name, so that gradients which tell every label make it no less wanted
    asked = report_on(evidence, tiny_model, only=("output-gradient", "label-classifier"))
    assert {each.name for each in asked.attacks if each.status != "not run"} == {"output-gradient", "label-classifier"}
    report = report_on(evidence, tiny_model, only=QUICK)
    # but for places in the file, which the order of records does not tell
    assert {each.value for each in report.strongest if not each.question.startswith(Question.ROW)} == {1.0}
    assert report.verdict[0].startswith("No noise was added")
    assert report.guarantee.budget == math.inf
    assert report.label_guarantee is not None
    assert "the vendor reads each of them" in report.label_guarantee.caveats[0]
    assert report.stand_out == ()


def test_an_interrupted_run_names_no_folder_that_goes(
    tiny_model: Path,  # noqa: F811
    tmp_path: Path,
    texts: Dataset,
) -> None:
    class Impatient(Silent):
        def update(self, stage: str, done: int, total: int, note: str = "") -> None:
            if stage.startswith("epoch"):
                raise KeyboardInterrupt

    spec = FinetuneSpec(model=str(tiny_model), privacy=TextToText(eta=ETA), training=TRAINING, seed=1)
    with pytest.raises(Stopped) as stopped:
        local_evidence(texts, spec, tmp_path, Impatient(), attacker=NOBODY)
    assert str(tmp_path) not in f"{stopped.value} {stopped.value.remedy}"
    assert "--out" not in stopped.value.remedy


def test_a_planted_leak_is_found_and_named(
    tiny_model: Path,  # noqa: F811
    tmp_path: Path,
    texts: Dataset,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A gate that sends one sentence in a hundred as it is."""
    long = [row for row, (text,) in enumerate(texts.texts) if len(text.split()) >= 10]
    planted = {texts.texts[row] for row in long[:: len(long) // 3][:3]}
    honest = text_to_text.TextToTextPrivatizer.tokens
    evidence_tokens: dict[tuple[int, ...], bool] = {}

    def leaky(self, tokens, **settings):  # type: ignore[no-untyped-def]
        release = honest(self, tokens, **settings)
        (true,), (drawn,) = tokens.segments, release.payload.segments
        owners = torch.arange(len(true)).repeat_interleave(true.lengths)
        clear = torch.tensor([tuple(ids.tolist()) in evidence_tokens for ids in true.split()])
        mixed = torch.where(clear[owners], true.values, drawn.values)
        return dataclasses.replace(release, payload=Tokens((drawn.with_values(mixed),)))

    from cutlayer.models import load_tokenizer

    ids = tokenise(Dataset(tuple(planted)), load_tokenizer(str(tiny_model)), max_content=60).segments[0]
    evidence_tokens.update({tuple(each.tolist()): True for each in ids.split()})
    monkeypatch.setattr(text_to_text.TextToTextPrivatizer, "tokens", leaky)
    evidence = evidence_of(tiny_model, tmp_path, texts)
    report = report_on(evidence, tiny_model, only=QUICK)
    trained = {texts.texts.index(text) + 1 for text in planted if text in set(evidence.texts.texts)}
    assert trained
    assert set(report.stand_out) == trained
    assert "far better than noise like the others' allows" in report.verdict[0]
    assert str(min(trained)) in report.verdict[0]
    assert f"{len(trained)} of the {len(evidence.texts)} texts whose words were tried" in report.verdict[0]


@pytest.mark.parametrize(
    ("only", "seeds"), [(QUICK, 2), pytest.param(None, 1, marks=pytest.mark.slow)], ids=["quick", "all"]
)
def test_a_report_on_pure_noise_finds_nothing(
    tiny_model: Path,  # noqa: F811
    tmp_path: Path,
    texts: Dataset,
    only: list[str] | None,
    seeds: int,
) -> None:
    evidence = evidence_of(tiny_model, tmp_path, texts)
    assert evidence.labels is not None
    alarms = 0
    for seed in range(seeds):
        rng = torch.Generator().manual_seed(seed)
        seen, tokens = evidence.tokens.traffic(Traffic.NOISE, evidence.transcript, evidence.knowledge, looks=1, rng=rng)
        shown, labels = evidence.labels.traffic(
            Traffic.NOISE, evidence.transcript, evidence.knowledge, looks=1, rng=rng
        )
        count = len(tokens.tokens)
        nothing = dataclasses.replace(
            evidence,
            transcript=Transcript(lambda seen=seen, shown=shown: [*seen, *shown]),
            tokens=tokens,
            labels=labels,
            classes=AttributeTruth(
                torch.randint(2, (count,), generator=rng),
                2,
                known=torch.rand(count, generator=rng) < 0.3,
                steps=tokens.steps,
            ),
            attributes={
                "author": AttributeTruth(
                    torch.randint(3, (count,), generator=rng), 3, known=torch.arange(count) % 2 < 1, steps=tokens.steps
                )
            },
            # lengths are what no noise hides: here they are another's
            lengths=LengthTruth(
                evidence.lengths.lengths[torch.randperm(count, generator=rng)],
                steps=tokens.steps,
            ),
        )
        report = report_on(nothing, tiny_model, seed=seed, only=only)
        asked = {each.question for each in report.attacks if each.value is not None}
        assert asked == {"words", "label", "attribute:author", "length"}
        alarms += any(each.above_chance for each in report.attacks) or bool(report.stand_out)
        if not alarms:
            assert all("more than guessing" in each.sentence for each in report.strongest if each.value is not None)
    assert alarms == 0


def test_what_the_time_does_not_allow_is_said(
    tiny_model: Path,  # noqa: F811
    tmp_path: Path,
    texts: Dataset,
) -> None:
    report = report_on(evidence_of(tiny_model, tmp_path, texts), tiny_model, budget=0.0)
    left_out = [each.name for each in report.attacks if each.status == "not run"]
    assert len(left_out) > 10
    (told,) = report.traded
    assert told == f"{', '.join(left_out)} were not run: the time budget of 0 s was used up."
    assert "used up before" in report.strongest[0].sentence
    assert report.settings.budget_seconds == 0


# ---------------------------------------------------------------- without labels


@pytest.mark.parametrize("mechanism", ["text-to-text", "vector"])
def test_texts_leave_without_labels_as_they_do_with_them(
    tiny_model: Path,  # noqa: F811
    tmp_path: Path,
    texts: Dataset,
    mechanism: str,
) -> None:
    """Noise follows from the customer's secret and the text: with one secret, nothing that leaves of a text differs."""
    home = Home(tmp_path / "home")
    assert home.secret
    home.ledger.close()
    spec = FinetuneSpec(
        model=str(tiny_model),
        privacy=PrivacySpec.model_validate({"eta": ETA, "mechanism": mechanism}),
        training=TRAINING,
        seed=1,
    )
    left, few = [], texts.select(range(90))
    for name, given in (("labelled", few), ("plain", dataclasses.replace(few, labels=None))):
        shutil.copytree(home.path, tmp_path / name / "customer")
        evidence = local_evidence(given, spec, tmp_path / name, Silent(), attacker=NOBODY)
        assert evidence.unlabelled == (name == "plain")
        left.append(by_text(evidence))
    labelled, plain = left
    # a run holds some texts out to stop on; where nothing is trained, none is
    assert plain.keys() == set(few.texts) > labelled.keys() > set()
    for text, parts_of in labelled.items():
        assert all(map(torch.equal, parts_of, plain[text]))


def test_without_labels_nothing_is_trained(
    tiny_model: Path,  # noqa: F811
    tmp_path: Path,
    texts: Dataset,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def trained(*_: object, **__: object) -> None:
        raise AssertionError("a classifier was trained, on labels that nobody gave")

    monkeypatch.setattr("cutlayer.reports.audit.traffic.finetune", trained)
    monkeypatch.setattr("cutlayer.vendor.init", trained)
    evidence = evidence_of(tiny_model, tmp_path, dataclasses.replace(texts, labels=None))
    assert evidence.unlabelled
    assert evidence.objective == ""
    assert evidence.texts is not None
    assert sorted(evidence.texts.texts) == sorted(texts.texts)
    # whoever holds the file does not know which record is which row
    assert list(evidence.rows) != sorted(evidence.rows)
    with pytest.raises(TypeError, match="nothing was trained"):
        assert evidence.adapter
    with pytest.raises(AssertionError, match="nobody gave"):
        evidence_of(tiny_model, tmp_path / "labelled", texts)


def by_text(evidence: Evidence) -> dict[tuple[str, ...], list[torch.Tensor]]:
    """By text all numbers of the record that holds it."""
    ((name, records),) = evidence.tokens.records.items()
    shards = sorted(
        (each.number, each.payload) for each in evidence.transcript.releases() if each.source == f"record-set/{name}"
    )
    held = [shard.select(torch.tensor([row])) for _, shard in shards for row in range(len(shard))]
    assert evidence.texts is not None
    return {text: parts(held[record]) for text, record in zip(evidence.texts.texts, records.tolist(), strict=True)}


def parts(payload: Payload) -> list[torch.Tensor]:
    """All numbers of a release."""
    if isinstance(payload, Rows):
        return [payload.packed.values, payload.packed.lengths, payload.segment_lengths]
    return [part for side in payload.segments for part in (side.values, side.lengths)]


@pytest.mark.slow
def test_a_report_on_texts_without_labels_says_so_and_asks_for_none(
    tiny_model: Path,  # noqa: F811
    tmp_path: Path,
    texts: Dataset,
) -> None:
    written_by = tuple(("ann", "ben")["w1" in row[0]] for row in texts.texts)
    unlabelled = Dataset(texts.texts, None, {"author": written_by})
    attacker = AttackerSpec(auxiliary_fraction=0.3, secret=("author",))
    evidence = evidence_of(tiny_model, tmp_path, unlabelled, attacker=attacker)
    assert (evidence.labels, evidence.classes, evidence.label_names) == (None, None, ())
    assert evidence.texts is not None
    assert evidence.texts.labels is None
    report = report_on(evidence, tiny_model, only=QUICK)
    answers = {each.question: each for each in report.strongest}
    assert set(answers) == {"words", "attribute:author", "length", "label", "row"}
    assert [name for name, each in answers.items() if each.value is None] == ["label"]
    assert "given without labels" in answers["label"].sentence
    unasked = [each for each in report.attacks if each.question == "label"]
    assert {each.name for each in unasked} == {name for name in QUICK if ATTACKS[name].question is Question.LABEL}
    assert {each.status for each in unasked} == {"not applicable"}
    assert report.settings.unlabelled
    assert report.label_guarantee is None
    assert report.verdict[0].startswith("No labels were given")
    assert report.vendor is not None
    assert "no labels were given" in report.vendor.note
    page = render(report)
    assert page.count("No labels were given, so nothing was trained.") == 1
    assert "Nothing was trained: the texts were given without labels." in page
    assert "Nothing is promised about labels" not in page
    write_audit(tmp_path / "report", report)
    assert read_audit(tmp_path / "report") == report


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"privacy": TextToText(eta=ETA, cti=CtiSpec())}, "cti"),
        ({"privacy": TextToText(eta=ETA, cti=CtiSpec(class_free=True))}, "cti"),
        ({"train_bottom": TrainBottom.RESAMPLE}, "train_bottom"),
    ],
    ids=["cti", "class-free", "trained bottom"],
)
def test_what_labels_would_change_is_refused_without_them(
    tiny_model: Path,  # noqa: F811
    tmp_path: Path,
    texts: Dataset,
    changes: dict[str, object],
    named: str,
) -> None:
    spec = FinetuneSpec(model=str(tiny_model), **specs({"privacy": TextToText(eta=ETA), **changes}))
    with pytest.raises(ConfigError) as refused:
        local_evidence(
            dataclasses.replace(texts, labels=None), spec, tmp_path / "run", Silent(), attacker=AttackerSpec()
        )
    assert [fault.path for fault in refused.value.faults] == [named]
    assert "--label-column" in refused.value.remedy
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_attacks_beside_one_another_find_what_they_find_alone(
    tiny_model: Path,  # noqa: F811
    tmp_path: Path,
    texts: Dataset,
) -> None:
    """Those that share what they fit, and one that trains: each number is the same."""
    some = texts.select(range(60))
    evidence = evidence_of(tiny_model, tmp_path, some, attacker=AttackerSpec(auxiliary_fraction=0.3))
    only = ("maximum-posterior", "multi-run", "nearest-neighbour", "label-mlp", "lengths")
    threads, found = torch.get_num_threads(), []
    try:
        for at_once in (1, 2):
            torch.set_num_threads(at_once)
            report = report_on(evidence, tiny_model, only=only)
            found.append([each.model_copy(update={"seconds": 0}) for each in report.attacks])
            assert sum(each.status == "measured" for each in report.attacks) >= 3
    finally:
        torch.set_num_threads(threads)
    assert found[0] == found[1]
