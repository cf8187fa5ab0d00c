"""Copies of the vendor's blocks in a report: of a real run, where they apply, and where they do not."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from cutlayer.attacks import Check, Control, DistillationSpec, NotApplicable
from cutlayer.core import ConfigError, Cut, Tokens
from cutlayer.customer import FinetuneSpec, Lora, Objective, Silent, TrainBottom, Training, client, measure
from cutlayer.customer.attacker import AttackerSpec
from cutlayer.data import Dataset
from cutlayer.privacy import NoPrivacy, TextToText
from cutlayer.reports import render, summary
from cutlayer.reports.audit import blocks, copy_blocks, local_evidence, local_exchange, study_blocks, unasked
from cutlayer.reports.schema import AuditReport, BlocksCopies
from tests.promises.runs import corpus
from tests.service.tiny import write_tiny_gpt2
from tests.unit.attacks.extraction.test_middle_distillation import exchanged
from tests.unit.reports.audits import copied_blocks, full

SPEC = DistillationSpec(passes=1)
TEXTS = corpus(130, seed=1)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(write_tiny_gpt2(tmp_path_factory.mktemp("decoder") / "tiny"))


def run(model, folder, texts, *, eta, bottom):
    privacy = NoPrivacy() if math.isinf(eta) else TextToText(eta=eta)
    spec = FinetuneSpec(
        model=model,
        objective=Objective.LM,
        privacy=privacy,
        training=Training(epochs=1, max_length=16, dev_share=0.5),
        cut=Cut(bottom=bottom, tail=1),
        tuning=Lora(train_bottom=TrainBottom.FROZEN),
    )
    with pytest.MonkeyPatch.context() as patch:
        # what the run itself reads back takes most of its time
        patch.setattr(measure, "measure", lambda name, *_, **__: NotApplicable(attack=name, reason="not asked"))
        return local_evidence(texts, spec, folder, Silent(), attacker=AttackerSpec(auxiliary_fraction=0))


def test_of_a_run_rows_in_are_the_bottoms_and_rows_out_others(model, tmp_path):
    texts = TEXTS.select(range(20))
    evidence = run(model, tmp_path, texts, eta=math.inf, bottom=1)
    given = Dataset((*texts.texts[:1], ("",), *texts.texts[1:]))
    found = local_exchange(given, evidence.adapter, tmp_path, Silent())
    assert len(found) == len(texts)
    for number in (0, 7):
        assert found.tokens[number].tolist() == evidence.archive.tokenizer(texts.texts[number][0])["input_ids"]
        with torch.no_grad():
            rows = evidence.archive.bottom(found.template.assemble(Tokens((found.tokens.select([number]),))))[0]
        assert torch.dist(found.sent.packed[number], rows) < 0.01 * rows.norm()  # bf16 on the wire
    assert found.returned.packed.values.shape == found.sent.packed.values.shape
    sent, returned = found.sent.packed.values, found.returned.packed.values
    assert torch.dist(returned, sent) > 0.1 * sent.norm()


def test_of_released_ids_rows_in_are_the_tables_and_are_copied(model, tmp_path, monkeypatch):
    evidence = run(model, tmp_path, TEXTS, eta=20.0, bottom=0)
    found = local_exchange(TEXTS, evidence.adapter, tmp_path, Silent())
    distances = torch.cdist(found.sent.packed.values, evidence.archive.table.detach())
    assert float(distances.min(1).values.max()) < 1e-4
    true = distances.argmin(1) == found.tokens.values
    assert 0 < int(true.sum()) < len(true)  # they were privatized as in the run
    monkeypatch.setattr(blocks, "DistillationSpec", lambda: SPEC)
    page = copy_blocks(TEXTS, evidence, tmp_path, Silent(), seed=0)
    assert page.status == "measured"
    assert [(each.texts, each.unseen) for each in page.students] == [(100, 26)]
    assert BlocksCopies.model_validate_json(page.model_dump_json()) == page


@pytest.mark.parametrize(("objective", "bottom"), [(Objective.CLASSIFICATION, 0), (Objective.LM, None)])
def test_an_adapter_without_rows_in_and_out_is_refused(objective, bottom, tmp_path, monkeypatch):
    profile = SimpleNamespace(adapter="adapter", spec=SimpleNamespace(objective=objective, cut=Cut(bottom=bottom)))
    monkeypatch.setattr(client.Profile, "load", lambda *_: profile)
    with pytest.raises(ConfigError, match="does not take rows"):
        client.Client(transport=object(), home=tmp_path).exchange("adapter", ["a text"])


@pytest.mark.parametrize(
    ("objective", "bottom", "said"),
    [
        (Objective.CLASSIFICATION, 0, "classifier's head is the vendor's"),
        (Objective.SEQ2SEQ, 1, "Encoder-decoders"),
        (Objective.LM, None, "text cut"),
    ],
)
def test_where_no_rows_cross_that_is_said(objective, bottom, said):
    spec = SimpleNamespace(objective=objective, cut=Cut(bottom=bottom))
    found = unasked(spec)
    assert copy_blocks(TEXTS, SimpleNamespace(spec=spec), None, Silent(), seed=0) == found
    assert found.status == "not applicable"
    assert said in found.reason
    page = full().vendor.model_copy(update={"blocks": found})
    report = full(vendor=page)
    assert found.reason.replace("'", "&#39;") in render(report)
    assert any(found.reason in note for table in summary(report) for note in table.notes)
    assert 'id="blocks-table"' not in render(report)


def test_a_recorded_run_has_no_vendor_to_ask():
    assert unasked(SimpleNamespace(objective=Objective.LM, cut=Cut(bottom=1))).status == "not run"


def test_few_texts_are_not_enough():
    found = study_blocks(exchanged(texts=124), Silent(), seed=0, spec=SPEC)
    assert (found.status, found.students) == ("not applicable", ())


def test_a_failed_control_takes_the_place_of_numbers(monkeypatch):
    broken = Control(check=Check.UNPROTECTED, recovered=0.4, bound=0.95, n=50, passed=False)
    monkeypatch.setattr(blocks, "control_students", lambda *_, **__: (broken,))
    found = study_blocks(exchanged(texts=130), Silent(), seed=0, spec=SPEC)
    assert found.status == "control failed"
    assert found.students == ()
    report = full(vendor=full().vendor.model_copy(update={"blocks": found}))
    page = render(report)
    assert "Students failed a control" in page
    assert "students explain 40.0 % of the variance; must be at least 95.0 %" in page
    assert 'id="blocks-table"' not in page


def test_numbers_come_with_students_and_reasons_without():
    with pytest.raises(ValueError, match="an attack that was measured has students"):
        copied_blocks(students=())
    with pytest.raises(ValueError, match="an attack that was measured has students"):
        copied_blocks(status="control failed")


def test_reports_of_before_stay_readable():
    old = full().model_dump(mode="json")
    del old["vendor"]["blocks"]
    report = AuditReport.model_validate(old)
    assert report.vendor.blocks is None
    assert "This report did not try to copy the vendor’s blocks." in render(report)
