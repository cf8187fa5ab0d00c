from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from cutlayer.core import Cut, MissingExtraError, ModelError, StorageError, UnsupportedArchitectureError
from cutlayer.models import Head, fingerprint, load, load_model, load_tokenizer, max_length, split, twin
from tests.equivalence import zoo
from tests.equivalence.zoo import configuration, make_model, shared_model
from tests.unit.models.vocabularies import make_tokenizer

STARTER_FINGERPRINT = "a74549246e7fd26eada9cd31ad7f0af4bc48873ef6648e3b304088eb7cf3839e"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder as a vendor has it."""
    make_model("bert", Head.CLASSIFICATION).save_pretrained(tmp_path)
    make_tokenizer("bert").save_pretrained(tmp_path)
    return tmp_path


def damage(folder: Path, drop: str) -> None:
    weights = load_file(folder / "model.safetensors")
    kept = {name: value for name, value in weights.items() if not name.startswith(drop)}
    assert len(kept) < len(weights)
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    "load_it",
    [lambda folder: load_model(str(folder), head=Head.CLASSIFICATION), lambda folder: load_tokenizer(str(folder))],
)
@pytest.mark.parametrize("asked", ["AutoConfig", "AutoTokenizer", "BertForSequenceClassification"])
def test_a_hub_that_cannot_be_reached_is_told_once(
    load_it: Callable[[Path], object],
    asked: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The hub's client remarks on each of its tries; the error is to stand alone."""
    hub = logging.getLogger("huggingface_hub.utils._http")
    kind = getattr(transformers, asked)
    real = kind.from_pretrained

    def from_pretrained(*arguments: object, **settings: object) -> object:
        hub.warning("Retrying in 1s [Retry 1/5].")
        return real(*arguments, **settings)

    monkeypatch.setattr(kind, "from_pretrained", from_pretrained)
    load_it(folder)
    assert not caplog.messages
    hub.warning("Somebody else's.")
    assert caplog.messages == ["Somebody else's."]


@pytest.mark.usefixtures("starter_installed")
def test_the_starter_loads_frozen_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    model = load_model("starter", head=Head.CLASSIFICATION, num_labels=5)
    assert not model.training
    assert not any(value.requires_grad for value in model.parameters())
    assert model.classifier.out_features == 5
    assert max_length(model.config) == 512
    again = load_model("starter", head=Head.CLASSIFICATION)
    assert fingerprint(model) == fingerprint(again) != fingerprint(make_model("bert", Head.CLASSIFICATION))
    three = split(again, Cut(bottom=3))
    assert three.bottom is not None
    assert len(list(three.bottom.block_parameters())) == 3 * 16
    assert load_tokenizer("starter").vocab_size == 30522
    monkeypatch.setitem(load._SHA256["starter"], "config.json", "0" * 64)
    with pytest.raises(StorageError, match=r"config\.json"):
        load_model("starter", head=Head.CLASSIFICATION)


def test_a_missing_starter_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "_STARTER_PACKAGE", "no_such_package")
    with pytest.raises(MissingExtraError, match=r"cutlayer\[starter\]"):
        load_model("starter", head=Head.CLASSIFICATION)


@pytest.mark.parametrize("source", ["/no/such/folder", "no-such-org/no-such-model"])
def test_an_unknown_model_is_one_clear_error(source: str) -> None:
    with pytest.raises(ModelError, match=source):
        load_model(source, head=Head.CLASSIFICATION)
    with pytest.raises(ModelError, match=source):
        load_tokenizer(source)


def test_a_folder_loads_and_its_head_is_the_same_on_every_machine(folder: Path) -> None:
    damage(folder, "classifier")
    torch.manual_seed(1)
    first = load_model(str(folder), head=Head.CLASSIFICATION, num_labels=4)
    torch.manual_seed(2)
    second = load_model(str(folder), head=Head.CLASSIFICATION, num_labels=4)
    assert torch.equal(first.classifier.weight, second.classifier.weight)
    assert load_tokenizer(str(folder)).is_fast


def test_a_trained_head_of_another_size_is_replaced(folder: Path) -> None:
    same = load_model(str(folder), head=Head.CLASSIFICATION)
    assert torch.equal(same.classifier.weight, make_model("bert", Head.CLASSIFICATION).classifier.weight)
    first, second = (load_model(str(folder), head=Head.CLASSIFICATION, num_labels=6) for _ in range(2))
    assert first.classifier.weight.shape[0] == 6
    assert torch.equal(first.classifier.weight, second.classifier.weight)
    assert fingerprint(first) == fingerprint(same)


HUB = """
import sys
from cutlayer import vendor
from cutlayer.models import Head, fingerprint, load_model, load_tokenizer
vendor.init(sys.argv[1], models=["clinic/tiny"])
print(len(load_tokenizer("clinic/tiny")), fingerprint(load_model("clinic/tiny", head=Head.CLASSIFICATION)))
"""


@pytest.mark.slow
def test_a_hub_id_loads_from_the_cache(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The hub's own cache, laid out as its client leaves it; no network is asked, and none is there."""
    revision, home = "0" * 40, tmp_path_factory.mktemp("hub")
    repository = home / "hub" / "models--clinic--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(revision)
    shutil.copytree(folder, repository / "snapshots" / revision)
    environment = os.environ | {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", HUB, str(home / "vendor")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    expected = fingerprint(load_model(str(folder), head=Head.CLASSIFICATION))
    assert ran.stdout.split() == [str(len(make_tokenizer("bert"))), expected]


def test_weights_of_another_size_are_refused_by_name(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    name = "bert.encoder.layer.1.output.dense.bias"
    save_file(weights | {name: torch.zeros(3)}, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=name):
        load_model(str(folder), head=Head.CLASSIFICATION)


def test_a_missing_pooler_becomes_part_of_the_head(folder: Path) -> None:
    whole = fingerprint(load_model(str(folder), head=Head.CLASSIFICATION))
    damage(folder, "bert.pooler")
    first, second = (load_model(str(folder), head=Head.CLASSIFICATION) for _ in range(2))
    assert load.head_modules(first) == ("bert.pooler", "classifier")
    assert load.head_modules(twin(first)) == ("bert.pooler", "classifier")
    assert torch.equal(first.bert.pooler.dense.weight, second.bert.pooler.dense.weight)
    assert fingerprint(first) == fingerprint(second) != whole


def test_an_incomplete_checkpoint_is_refused_by_name(folder: Path) -> None:
    damage(folder, "bert.encoder.layer.2.output")
    with pytest.raises(ModelError, match=r"bert\.encoder\.layer\.2\.output"):
        load_model(str(folder), head=Head.CLASSIFICATION)


def test_a_truncated_checkpoint_is_one_clear_error(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ModelError, match="could not be loaded"):
        load_model(str(folder), head=Head.CLASSIFICATION)


def test_unsupported_families_are_refused_before_weights_are_read(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "electra"}))
    with pytest.raises(UnsupportedArchitectureError, match="electra"):
        load_model(str(folder), head=Head.CLASSIFICATION)


def test_heads_that_a_family_lacks_are_refused(tmp_path: Path) -> None:
    configuration("t5").save_pretrained(tmp_path / "t5")
    configuration("bert").save_pretrained(tmp_path / "bert")
    with pytest.raises(UnsupportedArchitectureError, match="Classification on a t5"):
        load_model(str(tmp_path / "t5"), head=Head.CLASSIFICATION)
    with pytest.raises(UnsupportedArchitectureError, match="no next token"):
        load_model(str(tmp_path / "bert"), head=Head.LANGUAGE)


@pytest.mark.parametrize("name", ["llama", "gpt2", "opt", "qwen3-mixed", "t5"])
def test_fingerprints_ignore_the_head_and_see_every_weight(name: str, tmp_path: Path) -> None:
    shared_model(name, Head.LANGUAGE).save_pretrained(tmp_path)
    model = load_model(str(tmp_path), head=Head.LANGUAGE)
    before = fingerprint(model)
    if name != "t5":
        assert fingerprint(load_model(str(tmp_path), head=Head.CLASSIFICATION, num_labels=7)) == before
    last = [value for key, value in model.named_parameters() if not key.startswith("lm_head")][-1]
    last.view(-1)[-1].add_(1e-3)
    assert fingerprint(model) != before


def test_roberta_positions_start_behind_the_padding() -> None:
    assert max_length(configuration("roberta")) == 64 - 3 - 1
    assert max_length(configuration("llama")) == zoo.POSITIONS
    assert max_length(configuration("t5")) is None


def test_a_tokenizers_fingerprint_is_of_what_makes_ids() -> None:
    first, second = make_tokenizer("bert"), make_tokenizer("bert", name_or_path="/elsewhere", model_max_length=7)
    expected = load.tokenizer_fingerprint(first)
    first(["a b", "c"], padding=True, truncation=True, max_length=3)
    assert load.tokenizer_fingerprint(first) == load.tokenizer_fingerprint(second) == expected
    second.add_tokens(["new"])
    others = [second, make_tokenizer("roberta"), make_tokenizer("bert", mask_token="b")]
    assert len({expected, *map(load.tokenizer_fingerprint, others)}) == 4
