"""Audits of embeddings: what is attacked is what `embed` sends, nothing is trained, and what leaks is found."""

from __future__ import annotations

import json
import math
import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import cutlayer
from cutlayer import vendor
from cutlayer.attacks import Transcript
from cutlayer.core import ConfigError, Cut
from cutlayer.customer import Client, Silent
from cutlayer.customer.attacker import AttackerSpec
from cutlayer.customer.embed import Embeddings
from cutlayer.customer.embedding import EmbedSpec
from cutlayer.customer.embedding_link import EmbeddingLink
from cutlayer.customer.session import Drawn, Session, Texts
from cutlayer.data import Dataset, read_dataset
from cutlayer.privacy import NoPrivacy, PrivacySpec, TextToText, Vector, Words
from cutlayer.reports import summary
from cutlayer.reports.audit import LeakReport, local_evidence
from cutlayer.vendor import VendorSettings, create_app
from cutlayer.vendor.denoiser_settings import DenoisedReleases, DenoiserTraining
from cutlayer.vendor.denoiser_training import train_denoisers
from cutlayer.wire.transports import LocalTransport, RecordingTransport
from tests.promises.runs import corpus
from tests.service.fixtures import tiny_model  # noqa: F401 - fixtures are used by name
from tests.unit.reports.test_audit import parts

pytestmark = pytest.mark.usefixtures("known_secret")

NEAREST, POSTERIOR = "nearest-neighbour", "maximum-posterior"
MECHANISMS: dict[str, PrivacySpec] = {
    "ids": TextToText(eta=60),
    "rows": Vector(eta=60),
    "clipped rows": Vector(eta=60, clip=True),
    "words": Words(eta=60, words="all"),
    "clear ids": NoPrivacy(),
}
TEXTS = Dataset((*corpus(60, seed=5).texts, *corpus(60, seed=5).texts[:7]))
"""Some of them twice."""
ENGLISH = Dataset(
    tuple(
        (f"the {old} {who} went to the {where} in the {when}",)
        for old in ("young", "tired", "happy")
        for who in ("doctor", "teacher", "driver", "child")
        for where in ("house", "school", "river")
        for when in ("morning", "winter")
    )
)
"""Words that may be drawn, which those of the corpus above are not."""


def public(folder: Path) -> str:
    path = folder / "public.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for (text,) in corpus(60, seed=9).texts))
    return str(path)


def audited(folder: Path, texts: Any = TEXTS, **settings: Any) -> LeakReport:
    own = {"public": public(folder), "home": folder / "home", "only": (NEAREST, "lengths")}
    return cutlayer.audit(texts, objective="embed", progress=None, **(own | settings))


@pytest.fixture
def nothing_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    def trained(*_: object, **__: object) -> None:
        raise AssertionError("something was trained")

    monkeypatch.setattr("cutlayer.reports.audit.traffic.finetune", trained)
    monkeypatch.setattr("cutlayer.vendor.trainer.Trainer", trained)


@pytest.mark.usefixtures("nothing_trained")
@pytest.mark.parametrize("name", MECHANISMS)
def test_what_is_attacked_is_what_embed_sends(name: str, tiny_model: Path, tmp_path: Path) -> None:  # noqa: F811
    privacy = MECHANISMS[name]
    vendor.init(tmp_path / "vendor", models=[f"model={tiny_model}"])
    key = vendor.keys.create(tmp_path / "vendor", "tenant")
    transport = LocalTransport(create_app(VendorSettings.load(tmp_path / "vendor")), key)
    with closing(RecordingTransport(transport, tmp_path / "asked")) as recorder:
        client = Client(transport=recorder, home=tmp_path / "home", device="cpu")
        client.embed(TEXTS, privacy=privacy, denoiser="none", progress=None)
    spec = EmbedSpec(model=str(tiny_model), privacy=privacy)
    nobody = AttackerSpec(auxiliary_fraction=0)
    evidence = local_evidence(TEXTS, spec, tmp_path / "audit", Silent(), attacker=nobody)
    sent, seen = (list(each.releases()) for each in (Transcript.recorded(tmp_path / "asked"), evidence.transcript))
    assert [(each.source, each.number) for each in sent] == [(each.source, each.number) for each in seen] != []
    for ours, theirs in zip(sent, seen, strict=True):
        assert all(map(torch.equal, parts(ours.payload), parts(theirs.payload)))
    # equal texts leave once
    assert evidence.texts is not None
    assert sorted(evidence.texts.texts) == sorted(set(TEXTS.texts))
    assert (evidence.objective, evidence.unlabelled, evidence.labels) == ("embed", False, None)


@pytest.mark.usefixtures("nothing_trained")
@pytest.mark.parametrize("name", MECHANISMS)
def test_words_are_read_and_lengths_told(name: str, tiny_model: Path, tmp_path: Path) -> None:  # noqa: F811
    texts = ENGLISH if name == "words" else TEXTS
    audit = audited(tmp_path, texts, privacy=MECHANISMS[name], model=str(tiny_model))
    found = audit.report
    assert found.settings.clip == ("vector, clipped, eta" in audit.html) == (name == "clipped rows")
    read = {each.name: each for each in found.attacks}
    words = read[NEAREST].value
    assert words is not None
    assert words == 1 if name == "clear ids" else 0 < words < 1
    assert read["lengths"].value == 1
    assert {each.question for each in found.strongest} == {"words", "length"}
    assert (found.settings.objective, found.settings.unlabelled) == ("embed", False)
    assert (found.settings.replaced is None) == ("rows" in name)
    assert found.label_guarantee is None
    assert found.vendor is not None
    assert found.vendor.note.startswith("Nothing was tuned.")
    assert found.vendor.blocks is not None
    assert found.vendor.blocks.status == "not applicable"


def test_every_attack_that_applies_has_a_number_and_a_page(tiny_model: Path, tmp_path: Path) -> None:  # noqa: F811
    written_by = tuple(("ann", "ben")["w1" in row[0]] for row in TEXTS.texts)
    signed = replace(TEXTS, attributes={"author": written_by})
    attacker = AttackerSpec(auxiliary_fraction=0.3, secret=("author",))
    only = (NEAREST, POSTERIOR, "attribute-mlp", "lengths")
    found = audited(tmp_path, signed, eta=60, model=str(tiny_model), attacker=attacker, only=only)
    measured = {each.question for each in found.report.attacks if each.status == "measured"}
    assert measured >= {"words", "attribute:author", "length"}
    assert {each.question for each in found.report.attacks} & {"label", "answers"} == set()
    assert "embeddings were asked of the model as it is" in found.html
    assert json.loads(found.json)["settings"]["objective"] == "embed"
    assert found.report.settings.attacker_labels > 0


def test_a_road_round_its_privatizer_is_read_whole(
    tiny_model: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Planted fault: what is attacked is what left, not what was to leave."""
    draw = Session._draw

    def round_it(session: Session, texts: Texts, look: int | None) -> Drawn:
        drawn = draw(session, texts, look)
        return replace(drawn, release=replace(drawn.release, payload=texts.tokens))

    honest = audited(tmp_path, eta=20, model=str(tiny_model)).report.strongest[0].value
    monkeypatch.setattr(Session, "_draw", round_it)
    leaking = audited(tmp_path, eta=20, model=str(tiny_model)).report.strongest[0].value
    assert honest is not None
    assert honest < 0.5
    assert leaking == 1


def test_other_etas_stand_beside_it(tiny_model: Path, tmp_path: Path) -> None:  # noqa: F811
    found = audited(tmp_path, eta=60, frontier=(math.inf,), model=str(tiny_model), only=(NEAREST,)).report.frontier
    assert found is not None
    assert [(point.eta, point.utility) for point in found.points] == [(60, None), (math.inf, None)]
    assert found.points[0].recovered < found.points[1].recovered == 1


def test_a_vendors_blocks_stay_the_vendors(tiny_model: Path, tmp_path: Path) -> None:  # noqa: F811
    with pytest.raises(ConfigError, match="the vendor runs all blocks"):
        audited(tmp_path, eta=60, cut=Cut(bottom=1), model=str(tiny_model))


MAIL = Path(os.environ.get("CUTLAYER_DATA", "")) / "aeslc"


@pytest.mark.slow
@pytest.mark.skipif(not MAIL.is_dir(), reason="CUTLAYER_DATA names no folder with aeslc")
def test_the_strongest_attack_undoes_the_clipping(tmp_path: Path) -> None:
    """Of road-made clipped rows at eta 50 it reads 45.7 % (docs/papers/words.md), where the paper's reads 0.2 %."""
    texts = Dataset(read_dataset(str(MAIL / "dev.jsonl.gz"), text_column="text").texts[:60])
    found = audited(
        tmp_path,
        texts,
        privacy=Vector(eta=50, clip=True),
        public=str(MAIL / "train.jsonl.gz"),
        only=(NEAREST, POSTERIOR),
    ).report
    read = {each.name: each.value or 0 for each in found.attacks}
    assert read[POSTERIOR] >= 0.40
    assert read[NEAREST] <= 0.01
    assert found.strongest[0].attack == POSTERIOR


# ---------------------------------------------------------------- what embeddings are good for


def trained(folder: Path, model: Path, *, without_answer: bool = False, clip: bool = True) -> Path:
    """A denoiser of a few steps, as a vendor publishes it."""
    if not folder.exists():
        vendor.init(folder, models=[f"tiny={model}"])
    settings = VendorSettings.load(folder)
    public_texts = corpus(120, seed=9, canaries=False).texts
    training = DenoiserTraining(steps=10, batch_size=4, without_answer=without_answer)
    info = train_denoisers(
        settings, "tiny", [("public", public_texts)], DenoisedReleases(mechanism="vector", clip=clip), training
    )
    assert info.without_answer == without_answer
    return settings.denoisers("tiny") / info.denoiser


def test_what_the_vendors_model_is_worth_is_told(tiny_model: Path, tmp_path: Path) -> None:  # noqa: F811
    given = corpus(60, seed=5)
    denoisers = tuple(trained(tmp_path / "vendor", tiny_model, without_answer=each) for each in (False, True))
    assert len(set(denoisers)) == 2
    found = audited(
        tmp_path, given, privacy=Vector(eta=20, clip=True), model=str(tiny_model), denoisers=denoisers, seed=3
    )
    told = found.report.downstream
    assert told is not None
    by_name = {arm.name: arm for arm in told.arms}
    assert set(by_name) == {"clean", "noisy", "SnD", "customer-only"}
    assert by_name["clean"].mse.value == 0
    assert min(by_name[name].mse.value for name in ("noisy", "SnD", "customer-only")) > 0
    assert by_name["SnD"] != by_name["customer-only"]
    assert told.seeds == (3, 4, 5)
    assert told.worth_accuracy is not None
    assert "The vendor's model was worth" in told.worth
    tables = {table.title: table for table in summary(found.report)}
    shown = tables["What embeddings are good for (accuracy and AUC in %)"]
    assert [row[0] for row in shown.rows] == ["clean", "noisy", "SnD", "customer-only"]
    assert told.worth in shown.notes
    assert "The vendor’s model was worth" in found.html.replace("&#39;", "’").replace("'", "’")
    # labels are for this alone
    assert {each.question for each in found.report.strongest} == {"words", "length"}


def test_without_denoisers_embeddings_are_measured_as_they_come(
    tiny_model: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    told = audited(tmp_path, corpus(60, seed=5), eta=60, model=str(tiny_model)).report.downstream
    assert told is not None
    assert ([arm.name for arm in told.arms], told.worth) == (["clean", "noisy"], "")
    assert audited(tmp_path, TEXTS, eta=60, model=str(tiny_model)).report.downstream is None


def test_what_the_time_does_not_allow_is_said(tiny_model: Path, tmp_path: Path) -> None:  # noqa: F811
    found = audited(tmp_path, corpus(40, seed=5), eta=60, model=str(tiny_model), time_limit=0.01).report
    assert found.downstream is None
    assert found.traded[0] == "What embeddings are good for was not measured, for the time limit of 0.01 s."


def test_customer_only_is_not_given_the_answer(
    tiny_model: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever the vendor answers, its embeddings are the same; a denoiser's are not."""
    client, offered = asked(tiny_model, tmp_path)
    infer = EmbeddingLink.infer
    made: dict[bool, list[torch.Tensor]] = {False: [], True: []}
    with closing(client):
        for without_answer in offered:
            spec = EmbedSpec(privacy=Vector(eta=20, clip=True))
            road = Embeddings.open(client, spec, Silent(), denoiser=offered[without_answer])
            for answer in (infer, lambda *given: 3 * infer(*given) + 1):
                monkeypatch.setattr(EmbeddingLink, "infer", answer)
                made[without_answer].append(road.ask(road.read(TEXTS), TEXTS.texts, Silent()).values)
    assert torch.equal(*made[True])
    assert not torch.allclose(*made[False])


def test_a_control_serves_no_customer(tiny_model: Path, tmp_path: Path) -> None:  # noqa: F811
    client, _ = asked(tiny_model, tmp_path, controls=(True,))
    with (
        closing(client),
        pytest.raises(ConfigError, match=r"no denoiser for vector with clip.*no other for"),
    ):
        client.embed(TEXTS, privacy=Vector(eta=20, clip=True), progress=None)


def asked(model: Path, folder: Path, *, controls: tuple[bool, ...] = (False, True)) -> tuple[Client, dict[bool, str]]:
    """A customer of a vendor that offers denoisers, and their ids."""
    offered = {each: trained(folder / "vendor", model, without_answer=each).name for each in controls}
    key = vendor.keys.create(folder / "vendor", "tenant")
    transport = LocalTransport(create_app(VendorSettings.load(folder / "vendor")), key)
    return Client(transport=transport, home=folder / "customer", device="cpu"), offered


@pytest.mark.parametrize("which", ["no denoiser", "another mechanism's", "no labels", "a training"])
def test_denoisers_that_cannot_be_measured_are_refused(
    which: str,
    tiny_model: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    folder, given, settings = tmp_path / "none", corpus(40, seed=5), {"objective": "embed"}
    said = r"must be a denoiser's folder: there is no denoiser\.json in it"
    if which == "another mechanism's":
        folder, said = (
            trained(tmp_path / "vendor", tiny_model, clip=False),
            "is for vector in bf16, and not for vector with clip",
        )
    elif which == "no labels":
        given, said = Dataset(given.texts), "add objective embed and label_column"
    elif which == "a training":
        settings, said = {"objective": "classification"}, "add objective embed"
    with pytest.raises(ConfigError, match=said):
        cutlayer.audit(
            given,
            privacy=Vector(eta=20, clip=True),
            model=str(tiny_model),
            denoisers=(folder,),
            only=(NEAREST,),
            public=public(tmp_path),
            home=tmp_path / "home",
            progress=None,
            **settings,  # type: ignore[arg-type]
        )
