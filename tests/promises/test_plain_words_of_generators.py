"""Plain words before the texts of models that write: told again, and no part of what is learnt to be written."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cutlayer.core import ConfigError, Cut
from cutlayer.customer import Client, LanguageResult, Reconstruction, Training
from cutlayer.customer.run import Run
from cutlayer.customer.validate import validate
from cutlayer.models import Head
from cutlayer.models.load import load_model
from cutlayer.privacy import Words
from cutlayer.wire import WireType, routes
from cutlayer.wire.recording import read_recording
from tests.promises import test_pairs_at_vendor as at_vendor
from tests.promises.runs import SEED, customer, served
from tests.promises.test_one_door_writing import (  # noqa: F401 - fixtures by name
    TEST,
    TRAIN,
    by_number,
    data_dir,
    paired,
    words,
)
from tests.settings import run_spec, specs

PLAIN = Reconstruction(plain_tokens=3, plain_sequences=2, reconstruction_width=8, reconstruction_vocabulary=60)
TRAINING = Training(epochs=1, batch_size=8, learning_rate=2e-3, dropout=False, max_length=40)
FEW = TRAIN.select(range(8))


def finetune(client: Client, settings: dict[str, Any], *, pairs: bool, **changes: Any) -> LanguageResult:
    train, test = (paired(FEW), paired(TEST)) if pairs else (FEW, TEST)
    given = {"reconstruction": PLAIN, "training": TRAINING, "seed": SEED, "wire_type": WireType.FP32} | changes
    return client.finetune(train, objective="lm", dev=test, progress=None, **specs(settings), **given)


def losses(model_folder: Path, result: LanguageResult, *, pairs: bool) -> tuple[float, float]:
    """What the whole model loses on the texts that were released, without what stands before them, and with it."""
    shards = [
        frame.tensors() for frame in read_recording(result.folder / "transcript")
        if frame.route is routes.SHARD_PUT and frame.body and "preceding" in frame.tensors()
    ]  # fmt: skip
    model = load_model(str(model_folder), head=Head.LANGUAGE)
    own: list[Tensor] = []
    all_of: list[Tensor] = []
    for tensors in shards:
        texts = tensors["ids"].long().split(tensors["lengths"][:, 0].tolist())
        for ids, before in zip(texts, tensors["preceding"].long().sum(1).tolist(), strict=True):
            logs = model(input_ids=ids[None]).logits[0].log_softmax(-1)
            found = -logs[:-1].gather(-1, ids[1:, None])[:, 0]
            first = int((ids == model.config.eos_token_id).nonzero()[0]) + 1 if pairs else before
            own.append(found[first - 1 :])
            all_of.append(found)
    return float(torch.cat(own).mean()), float(torch.cat(all_of).mean())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("barely_measured")
@pytest.mark.parametrize("pairs", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["texts", "pairs"])
def test_a_decoder_reads_plain_words_and_does_not_learn_to_write_them(
    pairs: bool, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    names = ("decoder", "data_dir", "api_key", "words")
    model, folder, key, settings = map(request.getfixturevalue, names)
    with customer(folder, key, tmp_path / "home") as client:
        result = finetune(client, settings, pairs=pairs)
        unweighted = finetune(
            client, settings, pairs=pairs, reconstruction=PLAIN.model_copy(update={"reconstruction_weight": 0.0})
        )
    (loss,) = Run.read(result.folder).losses()
    expected, planted = losses(model, result, pairs=pairs)
    assert loss == pytest.approx(expected, rel=1e-5)
    assert loss != pytest.approx(planted, rel=1e-4), "planted: plain words are predicted, too"
    assert result.adapter_sha256 != unweighted.adapter_sha256
    assert result.train_loss == unweighted.train_loss, "the first step's, before anything is learnt"
    (told,) = result.reconstruction_loss
    assert 0.5 < told / (3 * math.log(60)) < 1.5


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_vendor_with_pairs_learns_from_plain_words_before_sources(tmp_path: Path) -> None:
    t5 = str(at_vendor.write_model("t5", tmp_path / "model", head=Head.LANGUAGE))
    file = tmp_path / "words.tsv"
    file.write_text("".join(f"w{number}\t{tag}\t1\n" for number in range(60) for tag in at_vendor.TAGS))
    privacy = Words(eta=6.0, words="all", candidates="all", space=t5, vocabulary=file)
    found = []
    with served(t5, tmp_path) as client:
        for weight in (1.0, 0.0):
            plain = PLAIN.model_copy(update={"reconstruction_weight": weight})
            found.append(
                at_vendor.finetune(
                    client,
                    privacy=privacy,
                    training=at_vendor.ONE_EPOCH,
                    reconstruction=plain,
                    out=tmp_path / str(weight),
                )
            )
    assert found[0].adapter_sha256 != found[1].adapter_sha256
    assert 0.5 < found[0].reconstruction_loss[0] / (3 * math.log(60)) < 1.5


def test_plain_words_before_queries_are_a_classifiers() -> None:
    spec = run_spec(
        objective="lm", mechanism="words", eta=6.0,
        reconstruction=PLAIN.model_copy(update={"plain_tokens_at_inference": True}),
    )  # fmt: skip
    with pytest.raises(ConfigError, match="is for classifiers: others are measured"):
        validate(spec)
    assert spec.cut == Cut(bottom=None, tail=0)
