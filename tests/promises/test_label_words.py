"""An encoder-decoder classifies by the words of its labels: split as whole, and nobody tells more than these words."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cutlayer.core import ConfigError, Cut, CutlayerWarning, ModelError, Stopped
from cutlayer.customer import (
    Client,
    FinetuneResult,
    FullTuning,
    Lora,
    Prefix,
    Prompt,
    Reconstruction,
    Silent,
    TrainBottom,
    Training,
    TuningSpec,
)
from cutlayer.customer.defaults import Learner, settle_training
from cutlayer.customer.run import Run
from cutlayer.customer.settings import Objective
from cutlayer.data import Dataset
from cutlayer.models import Head
from cutlayer.privacy import Words
from cutlayer.recipes.reference.classifier import train_centralised
from cutlayer.recipes.reference.fit import ReferenceRun
from cutlayer.wire import WireType
from cutlayer.wire.recording import read_recording
from tests.equivalence.zoo import VOCAB
from tests.promises.runs import clear_order, served
from tests.promises.test_families import write_model
from tests.quick import slow_but

ONE_TOKEN, SEVERAL = ("w1", "w2", "w7"), ("w1", "w1 w2", "w3 w2 w5")
"""Labels in order; of the second, one begins as another does."""
TRAINING = Training(epochs=2, batch_size=8, learning_rate=2e-3, save_steps=3)


def corpus(n: int, seed: int, labels: tuple[str, ...], *, pairs: bool = False) -> Dataset:
    rng = random.Random(seed)

    def text() -> str:
        return " ".join(f"w{rng.randrange(VOCAB - 4)}" for _ in range(rng.randint(1, 9)))

    texts = tuple((text(), text()) if pairs else (text(),) for _ in range(n))
    return Dataset(texts, tuple(labels[rng.randrange(len(labels))] for _ in range(n)))


def parts(labels: tuple[str, ...], *, pairs: bool = False) -> Iterator[Dataset]:
    return (corpus(n, seed, labels, pairs=pairs) for n, seed in ((40, 1), (9, 2), (9, 3)))


@pytest.fixture(scope="module")
def t5(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_model("t5", tmp_path_factory.mktemp("t5") / "model", head=Head.LANGUAGE))


def finetune(client: Client, labels: tuple[str, ...], *, pairs: bool = False, **settings: Any) -> FinetuneResult:
    train, dev, test = parts(labels, pairs=pairs)
    given: dict[str, Any] = {"eta": math.inf, "wire_type": WireType.FP32, "training": TRAINING, "seed": 4}
    with pytest.warns(CutlayerWarning, match="told what labels are called"):
        return client.finetune(train, dev=dev, test=test, **{"progress": None, **given, **settings})


METHODS = (Lora(), FullTuning(), Prompt(prompt_length=4), Prefix(prefix_length=3))
EVERY = [
    pytest.param("t5", Lora(), Cut(bottom=0), ONE_TOKEN, id="t5 lora"),
    pytest.param("t5", FullTuning(), Cut(bottom=None), SEVERAL, id="t5 full at the text cut, words of several tokens"),
    *(
        pytest.param(name, tuning, Cut(bottom=bottom), labels, id=f"{name} {tuning.method} {bottom} {len(labels[1])}",
                     marks=pytest.mark.slow)
        for name in ("t5", "t5-gated")
        for tuning in METHODS
        for bottom in (None, 0, 1)
        for labels in (ONE_TOKEN, SEVERAL)
        # what has no place in PEFT's whole model; what would break a tie
        if tuning.method != "prefix"
        and not (bottom == 1 and tuning.method == "prompt")
        and not (bottom is not None and tuning.method == "full")
    ),
]  # fmt: skip


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize(("name", "tuning", "cut", "labels"), EVERY)
def test_a_split_run_is_the_whole_models(
    name: str, tuning: TuningSpec, cut: Cut, labels: tuple[str, ...], tmp_path: Path
) -> None:
    source = str(write_model(name, tmp_path / "model", head=Head.LANGUAGE))
    pairs = cut.bottom == 1
    train, dev, test = parts(labels, pairs=pairs)
    settled = settle_training(TRAINING, Objective.CLASSIFICATION, tuning, Learner(40, 16, drops_out=False))
    run = ReferenceRun(train, dev, test, source, settled, tuning, 4, clear_order(4))
    expected = train_centralised(run, progress=Silent(), bottom=cut.bottom or 0, device="cpu")
    with served(source, tmp_path) as client:
        result = finetune(client, labels, pairs=pairs, cut=cut, tuning=tuning)
        losses = Run.read(result.folder).losses()
        assert losses == pytest.approx(expected.losses, rel=1e-5)
        assert losses[0] > math.log(len(labels)), "what is learnt is to write words, among all that there are"
        assert result.dev == expected.dev
        assert result.ua == expected.accuracy.value
        told = client.predict(result.adapter_id, test.texts, progress=None)
        assert sum(each.label == label for each, label in zip(told, test.labels or (), strict=True)) == round(
            result.ua * len(test)
        )


# ---------------------------------------------------------------- what leaves, and what stays

SICK = ("sick-note", "well-note")
WORDS = {"sick-note": "w1 w2", "well-note": "w3"}


def sick(n: int, seed: int) -> Dataset:
    return corpus(n, seed, SICK)


@pytest.mark.usefixtures("barely_measured")
@pytest.mark.filterwarnings("error:The vendor is told what labels")
@pytest.mark.filterwarnings("ignore")
def test_given_words_are_told_and_labels_are_not(t5: str, tmp_path: Path) -> None:
    with served(t5, tmp_path) as client:
        result = client.finetune(
            sick(40, 1), test=sick(9, 3), eta=9.0, training=TRAINING, seed=4, label_words=WORDS, progress=None,
            cut=Cut(bottom=1),
        )  # fmt: skip
        told = {each.label for each in client.predict(result.adapter_id, sick(9, 3).texts, progress=None)}
        puts = [frame for frame in client.ledger.frames() if frame.route == "job.put"]
    assert told <= set(SICK)
    assert len(puts) == 2, "the vendor is asked once more where the job stands"
    assert puts[0].clear == puts[1].clear == result.clear_words == {"words of a label": 2}
    up = b"".join(frame.body for frame in read_recording(result.folder / "transcript"))
    assert b'"label_words":[[5,6,2],[7,2]]' in up
    assert b"note" not in up


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "tuning",
    slow_but([Prompt(prompt_length=3)], [Lora(r=2), Prompt(prompt_length=3), FullTuning()]),
    ids=lambda each: each.method,
)
def test_a_vendor_with_words_plain_words_and_labels_ends_at_the_same_weights(
    t5: str, tuning: TuningSpec, tmp_path: Path
) -> None:
    pytest.importorskip("spacy", reason="the tagger needs spaCy: pip install 'cutlayer[words]'")
    file = tmp_path / "words.tsv"
    file.write_text("".join(f"w{number}\t{tag}\t1\n" for number in range(60) for tag in ("NOUN", "PROPN")))
    privacy = Words(eta=6.0, words=("noun",), space=t5, vocabulary=file)
    settings: dict[str, Any] = {
        "privacy": privacy, "training": TRAINING, "seed": 4, "tuning": tuning, "cut": Cut(bottom=None),
        "reconstruction": Reconstruction(plain_tokens=4, reconstruction_width=8), "label_words": WORDS,
    }  # fmt: skip
    with served(t5, tmp_path) as client:
        here, there, without = (
            client.finetune(sick(40, 1), test=sick(9, 3), out=tmp_path / name, progress=None, **settings | more)
            for name, more in (
                ("here", {}),
                ("there", {"labels_at": "vendor"}),
                ("without", {"reconstruction": Reconstruction()}),
            )
        )
    assert there.adapter_sha256 == here.adapter_sha256 != without.adapter_sha256
    assert there.reconstruction_loss == pytest.approx(here.reconstruction_loss, abs=1e-9)
    assert there.train_loss == pytest.approx(here.train_loss, abs=1e-9)


class Interrupts(Silent):
    """Ctrl-C in the second epoch."""

    def update(self, stage: str, done: int, total: int, note: str = "") -> None:
        if stage.startswith("epoch 2"):
            raise KeyboardInterrupt


@pytest.mark.usefixtures("unmeasured")
@pytest.mark.parametrize(
    ("tuning", "bottom"),
    [
        (Lora(r=2, train_bottom=TrainBottom.CACHED), 1),
        (FullTuning(), None),
        pytest.param(Prompt(prompt_length=3), 1, marks=pytest.mark.slow),
        pytest.param(Prefix(prefix_length=3), 0, marks=pytest.mark.slow),
    ],
    ids=lambda each: getattr(each, "method", str(each)),
)
def test_a_stopped_run_goes_on_and_its_adapter_answers(
    t5: str, tuning: TuningSpec, bottom: int | None, tmp_path: Path
) -> None:
    """To the same bits; with blocks of the customer's that are trained, too."""
    settings: dict[str, Any] = {"tuning": tuning, "cut": Cut(bottom=bottom)}
    with served(t5, tmp_path) as client:
        with pytest.raises(Stopped):
            finetune(client, SEVERAL, progress=Interrupts(), out=tmp_path / "run", **settings)
        resumed = finetune(client, SEVERAL, out=tmp_path / "run", **settings)
        straight = finetune(client, SEVERAL, out=tmp_path / "straight", **settings)
        told = [
            client.predict(each.adapter_id, corpus(9, 3, SEVERAL).texts, progress=None) for each in (resumed, straight)
        ]
    assert resumed.adapter_sha256 == straight.adapter_sha256
    assert told[0] == told[1]


# ---------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"label_words": {"other": "w1"}}, "of labels that the data has"),
        ({"label_words": {"sick-note": "w1"}}, "must give words for label 2 of 2"),
        ({"label_words": {**WORDS, "well-note": ""}}, "must give words for label 2 of 2"),
        ({"label_words": {**WORDS, "well-note": "w1 w2"}}, "words of its own"),
        ({"label_words": {**WORDS, "well-note": "w1 " * 40}}, "must give shorter words"),
        ({"label_words": WORDS, "training": Training(dropout=True)}, "dropout = True: must be off"),
        ({"label_words": WORDS, "tuning": Lora(pooling="mean")}, "pooling = 'mean': must be left out"),
        (
            {"label_words": WORDS, "tuning": Prefix(), "training": Training(gradient_checkpointing=True)},
            "must be off with a prefix",
        ),
        ({"label_words": WORDS, "cut": Cut(bottom=1), "tuning": FullTuning()}, "would break the tie"),
        ({"label_words": WORDS, "cut": Cut(bottom=1, target=1)}, "target = 1: must be 0"),
        ({"label_words": WORDS, "objective": "lm"}, "there are no labels"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_what_is_refused_before_anything_leaves(changes: dict[str, Any], said: str, t5: str, tmp_path: Path) -> None:
    with served(t5, tmp_path) as client:
        with pytest.raises((ConfigError, ModelError)) as error:
            client.finetune(sick(40, 1), **{"eta": 9.0, "seed": 4, "progress": None, **changes})
        assert said in str(error.value)
        assert "note" not in str(error.value)
        assert not [frame for frame in client.ledger.frames() if frame.texts or frame.route == "job.put"]


@pytest.mark.filterwarnings("ignore")
def test_a_model_with_a_head_takes_no_words(tmp_path: Path) -> None:
    source = str(write_model("bert", tmp_path / "model"))
    with served(source, tmp_path) as client, pytest.raises(ConfigError, match="has a head for labels"):
        client.finetune(sick(40, 1), eta=9.0, label_words=WORDS, progress=None)
