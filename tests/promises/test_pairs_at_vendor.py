"""An encoder-decoder that the vendor holds whole learns from pairs that it is sent, which words are drawn of first."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from cutlayer.core import BudgetError, ConfigError, Cut, CutlayerWarning
from cutlayer.customer import Client, FullTuning, LanguageResult, Lora, Prefix, Prompt, Sampling, Silent, Training
from cutlayer.customer.corpora import Corpora
from cutlayer.customer.defaults import settle_training
from cutlayer.customer.evidence import Evidence
from cutlayer.customer.handout import local_archive
from cutlayer.customer.settings import Objective, TuningSpec
from cutlayer.models import Head, load_tokenizer
from cutlayer.privacy import NoPrivacy, Words
from cutlayer.recipes.reference.fit import ReferenceRun
from cutlayer.recipes.reference.language import CentralisedLanguage, train_centralised_language_model
from cutlayer.wire import decode_tensors, routes
from cutlayer.wire.recording import Direction, read_recording
from tests.promises.runs import clear_order, served
from tests.promises.test_encoder_decoders import DEV, TEST, TRAIN
from tests.promises.test_families import write_model
from tests.quick import slow_but

TRAINING = Training(epochs=2, batch_size=4, max_length=20, max_target_length=20, save_steps=3, learning_rate=2e-3)
ONE_EPOCH = TRAINING.model_copy(update={"epochs": 1})
ASKED = Sampling(greedy=True, max_new_tokens=12)


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_model("t5", tmp_path_factory.mktemp("t5") / "model", head=Head.LANGUAGE))


def finetune(client: Client, **settings: Any) -> LanguageResult:
    given: dict[str, Any] = {
        "privacy": NoPrivacy(), "cut": Cut(bottom=None), "training": TRAINING, "seed": 4, "labels_at": "vendor",
        "dev": DEV, "test": TEST, "progress": None,
    }  # fmt: skip
    return client.finetune(settings.pop("train", TRAIN), objective="seq2seq", **given | settings)


def whole(source: str, tuning: TuningSpec, training: Training = TRAINING) -> CentralisedLanguage:
    settled = settle_training(training, Objective.SEQ2SEQ, tuning)
    run = ReferenceRun(TRAIN, DEV, TEST, source, settled, tuning, 4, clear_order(4))
    return train_centralised_language_model(run, progress=Silent(), device="cpu")


METHODS = (Lora(), FullTuning(), Prompt(prompt_length=4))
EVERY = {f"{name} {tuning.method}": (name, tuning) for name in ("t5", "t5-gated") for tuning in METHODS}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "tuning"), slow_but(["t5 lora"], EVERY.values(), ids=EVERY))
def test_the_vendor_alone_learns_what_the_whole_model_learns(name: str, tuning: TuningSpec, tmp_path: Path) -> None:
    source = str(write_model(name, tmp_path / "model", head=Head.LANGUAGE))
    training = TRAINING.model_copy(update={"group_by_length": False})  # else batches follow from other lengths
    expected = whole(source, tuning, training)
    prompts = [source for source, _ in TEST.texts]
    with served(source, tmp_path) as client:
        result = finetune(client, tuning=tuning, training=training)
        told = [
            client.generate(
                result.adapter_id, prompts, progress=None, sampling=ASKED.model_copy(update={"num_beams": n})
            )
            for n in (1, 3)
        ]
    losses = torch.tensor(expected.losses).view(2, -1)
    assert result.train_loss == pytest.approx(losses.mean(1).tolist(), rel=1e-5)
    assert result.dev == pytest.approx(expected.dev, rel=1e-5)
    assert result.perplexity == pytest.approx(expected.perplexity.value, rel=1e-5)
    assert (result.perplexity_on, result.perplexity_n) == ("test", expected.perplexity.n)
    tokenizer = load_tokenizer(source)
    batch = tokenizer(prompts, return_tensors="pt", padding=True, return_token_type_ids=False)
    for beams, found in zip((1, 3), told, strict=True):
        with torch.no_grad():
            ids = expected.model.eval().generate(
                **batch, max_new_tokens=12, num_beams=beams, do_sample=False, eos_token_id=tokenizer.eos_token_id
            )
        assert [each.text for each in found] == tokenizer.batch_decode(ids, skip_special_tokens=True)
        assert {each.round_trips for each in found} == {1}


def test_texts_in_clear_are_warned_of_and_crossed_once(t5: str, tmp_path: Path) -> None:
    with served(t5, tmp_path) as client:
        with pytest.warns(CutlayerWarning, match="Source and target texts are sent to the vendor as they are"):
            result = finetune(client, training=ONE_EPOCH)
        archive = local_archive(client.home, t5, result.spec.cut)
        evidence = Evidence.of(result.folder, Corpora(TRAIN, DEV, TEST), archive, home=client.home)
        shards = [frame for frame in client.ledger.frames() if frame.route == routes.SHARD_PUT.name]
    assert result.guarantee.budget == math.inf
    assert result.dev_before is None, "the vendor tells each epoch's, not that of before"
    assert "NaN" not in (result.folder / "result.json").read_text()
    assert sum(frame.texts for frame in shards) == len(TRAIN) + len(DEV), "a pair that stands twice is told twice"
    up = {f.route.name for f in read_recording(result.folder / "transcript") if f.direction is Direction.UP}
    assert not up & {"job.step", "job.source", "job.gradient", "job.infer", "record-set.labels"}
    for note in (result.token_recovery_first_steps_note, result.token_recovery_from_answers_note):
        assert "The vendor was sent target texts" in note
    assert evidence.targets is evidence.trained is evidence.said is None


@pytest.mark.filterwarnings("ignore")
def test_words_of_both_texts_are_drawn_before_they_leave(t5: str, tmp_path: Path) -> None:
    """No canary leaves: a word that no draw can return is in no frame, of sources, targets or prompts."""
    pytest.importorskip("spacy", reason="the tagger needs spaCy: pip install 'cutlayer[words]'")
    canaries = {f"w{number}" for number in range(60, 92)}
    file = tmp_path / "words.tsv"
    file.write_text("".join(f"w{number}\t{tag}\t1\n" for number in range(60) for tag in TAGS))
    privacy = Words(eta=1.0, words="all", candidates="all", space=t5, vocabulary=file)
    few: dict[str, Any] = {"privacy": privacy, "train": TRAIN.select(range(12)), "training": ONE_EPOCH}
    with served(t5, tmp_path) as client:
        result = finetune(client, **few, privacy_budget=1000.0)
        prompts = [source for source, _ in TEST.texts]
        client.generate(result.adapter_id, prompts, sampling=ASKED, progress=None)
        again = finetune(client, **few, out=tmp_path / "again")
        archive = local_archive(client.home, t5, result.spec.cut)
        evidence = Evidence.of(result.folder, Corpora(few["train"], DEV, TEST), archive, home=client.home)
        with pytest.raises(BudgetError):
            finetune(client, **few | {"privacy": privacy.model_copy(update={"eta": 2.0})}, privacy_budget=2.5)
    assert again.adapter_sha256 == result.adapter_sha256, "draws are kept"
    assert result.replaced
    assert result.clear_words == {}
    assert evidence.words is not None
    tokenizer = load_tokenizer(t5)
    ids = {tokenizer.convert_tokens_to_ids(word) for word in canaries}
    sent = [
        frame for frame in read_recording(result.folder / "transcript")
        if frame.direction is Direction.UP and frame.route.name in (routes.SHARD_PUT.name, routes.ADAPTER_INFER.name)
    ]  # fmt: skip
    seen = {int(each) for frame in sent for each in decode_tensors(frame.route, frame.body)["ids"]}
    assert seen
    assert not seen & ids


TAGS = ("NOUN", "PROPN", "VERB", "AUX", "PRON", "ADP", "ADJ", "ADV", "DET", "NUM", "SYM", "PUNCT", "X", "INTJ", "PART",
        "CCONJ", "SCONJ")  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"labels_at": "customer"}, "bottom = 'text': must be 0 or more"),
        ({"cut": Cut(bottom=0)}, "for seq2seq at bottom text"),
        ({"cut": Cut(bottom=None, tail=0)}, "tail = 0: must be left out"),
        ({"cut": Cut(bottom=1), "labels_at": "customer", "privacy": Words(eta=3.0)}, "needs bottom text and labels_at"),
        ({"label_epsilon": 1.0}, "label_epsilon"),
        ({"training": Training(max_length=90, max_target_length=95)}, "leaves no room for source texts"),
    ],
)
def test_what_is_refused_before_anything_leaves(changes: dict[str, Any], said: str, t5: str, tmp_path: Path) -> None:
    with served(t5, tmp_path) as client:
        with pytest.raises(ConfigError) as error:
            finetune(client, **changes)
        assert said in str(error.value)
        assert not [frame for frame in client.ledger.frames() if frame.texts or frame.route == "job.put"]
        assert not [frame for frame in client.ledger.frames() if frame.route == "record-set.put"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_prefix_is_trained_and_writes(t5: str, tmp_path: Path) -> None:
    """PEFT's own has other pairs for a T5's blocks, so there is no whole model to compare with."""
    with served(t5, tmp_path) as client:
        result = finetune(client, tuning=Prefix(prefix_length=3))
        told = client.generate(result.adapter_id, [TEST.texts[0][0]], sampling=ASKED, progress=None)
    assert result.train_loss[-1] < result.train_loss[0]
    assert told[0].tokens > 0
