from __future__ import annotations

import functools
import json
import math
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tokenizers import pre_tokenizers
from torch import Tensor
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from cutlayer.core import Cut, ModelError, StorageError
from cutlayer.models import (
    FAMILIES,
    MANIFEST,
    Head,
    candidate_tokens,
    load_model,
    load_tokenizer,
    read_archive,
    read_manifest,
    write_archive,
)
from cutlayer.models.configuration import NOT_READ, SETTINGS
from tests.equivalence.checks import Batch, Case, cut_up, make_batch
from tests.equivalence.zoo import CONFIGURATIONS, ENCODERS, VOCAB, configuration, make_model, shared_model
from tests.unit.models.vocabularies import SPECIALS, WORDS, habit_of, make_tokenizer

CUTS = (Cut(bottom=None), Cut(bottom=0), Cut(bottom=2), Cut(bottom=1, tail=1), Cut(bottom=0, tail=0))


def head_of(name: str) -> Head:
    return Head.CLASSIFICATION if name in ENCODERS else Head.LANGUAGE


def write(name: str, cut: Cut, folder: Path) -> Path:
    model, tokenizer = shared_model(name, head_of(name)), make_tokenizer(habit_of(name))
    write_archive(model, tokenizer, cut, folder, name="vendor-model")
    return folder


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Cut], Path]:
    """Archives that tests only read, each written once."""
    folder = tmp_path_factory.mktemp("archives")

    @functools.cache
    def once(name: str, cut: Cut) -> Path:
        return write(name, cut, folder / f"{name}-{cut.slug}")

    return once


@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: cut.slug)
@pytest.mark.parametrize("name", CONFIGURATIONS)
@torch.no_grad()  # attention takes another kernel where its bias needs a gradient
def test_what_was_written_computes_what_the_parts_compute(
    name: str, cut: Cut, written: Callable[[str, Cut], Path]
) -> None:
    case = Case(name, head_of(name), cut)
    batch = make_batch(case)
    archive = read_archive(written(name, cut))
    parts = cut_up(shared_model(name, case.head), cut, name)
    assert archive.cut == cut
    assert archive.tokenizer("word1 b")["input_ids"] == make_tokenizer(habit_of(name))("word1 b")["input_ids"]
    assert (archive.bottom is None) == (parts.bottom is None)
    assert (archive.tail is None) == (parts.tail is None)
    if parts.bottom is None:
        assert archive.table is None
        return
    assert archive.table is not None
    assert torch.equal(archive.table, parts.bottom.table)
    expected = below(parts.bottom, parts.top, batch)
    assert_equal(below(archive.bottom, parts.top, batch), expected)
    if archive.tail is not None and parts.tail is not None:
        assert_equal(above(archive.tail, parts.top, batch, expected), above(parts.tail, parts.top, batch, expected))


def below(bottom: Any, top: Any, batch: Batch) -> list[torch.Tensor]:
    """What a bottom makes of a batch: of an encoder-decoder both boundaries, and the encoder's output between."""
    if batch.target is None:
        return [bottom(batch.inputs)]
    source = bottom.encode(batch.inputs)
    encoded = top.encode(batch.inputs, source)
    return [source, encoded, bottom.decode(encoded, batch.inputs, batch.target)]


def above(tail: Any, top: Any, batch: Batch, boundaries: list[torch.Tensor]) -> list[torch.Tensor]:
    """What a tail makes of what a top makes of these."""
    if batch.target is None:
        return [tail(top(batch.inputs, *boundaries), batch.inputs)]
    _, encoded, low = boundaries
    upper = top.decode(encoded, batch.inputs, batch.target, low)
    return [tail.decode(encoded, batch.inputs, batch.target, upper)]


def assert_equal(left: list[torch.Tensor], right: list[torch.Tensor]) -> None:
    assert len(left) == len(right)
    assert all(torch.equal(one, other) for one, other in zip(left, right, strict=True))


@pytest.mark.parametrize("cut", CUTS, ids=lambda cut: cut.slug)
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_no_weight_of_the_top_is_inside(name: str, cut: Cut, written: Callable[[str, Cut], Path]) -> None:
    folder = written(name, cut)
    model = shared_model(name, head_of(name))
    parts = cut_up(model, cut, name)
    ours = {id(value) for part in (parts.bottom, parts.tail) if part is not None for value in part.parameters()}
    names = {key for key, value in model.named_parameters() if id(value) in ours}
    content = b"".join(path.read_bytes() for path in folder.iterdir())
    for key, value in model.named_parameters():
        if id(value) not in ours:
            assert value.detach().numpy().tobytes()[:32] not in content, key
        else:
            assert value.detach().numpy().tobytes() in content, key
    if not ours:
        assert not (folder / "weights.safetensors").exists()
        assert not (folder / "config.json").exists()
        return
    with safe_open(folder / "weights.safetensors", "pt") as file:
        assert set(file.keys()) == names


@pytest.mark.usefixtures("starter_installed")
def test_the_starters_archive_tokenizes_as_the_vendor_does(tmp_path: Path) -> None:
    model, tokenizer = load_model("starter", head=Head.CLASSIFICATION), load_tokenizer("starter")
    write_archive(model, tokenizer, Cut(bottom=1), tmp_path / "archive", name="starter")
    archive = read_archive(tmp_path / "archive")
    texts = ["It's été, naïve — 東京!", "  Two\tspaces  ", "", "[MASK] [CLS] e-mail@example.org 3.14"]
    for segments in ((texts,), (texts, texts[::-1])):
        assert archive.tokenizer(*segments)["input_ids"] == tokenizer(*segments)["input_ids"]
    assert archive.max_length == 512
    assert archive.candidates.sum() == 30522 - 994 - 5  # [unused] rows and special tokens
    content = (tmp_path / "archive" / "weights.safetensors").read_bytes()
    assert model.bert.encoder.layer[0].output.dense.weight.numpy().tobytes()[:64] in content
    assert model.bert.encoder.layer[1].output.dense.weight.numpy().tobytes()[:64] not in content


def test_the_manifest_counts_what_leaves(tmp_path: Path) -> None:
    model = shared_model("bert", Head.CLASSIFICATION)
    handed_out = []
    for cut in (Cut(bottom=None), Cut(bottom=0), Cut(bottom=1), Cut(bottom=3)):
        manifest = read_manifest(write("bert", cut, tmp_path / cut.slug))
        assert manifest.parameters_of_model == sum(parameter.numel() for parameter in model.parameters())
        handed_out.append(manifest.parameters_handed_out)
    assert handed_out[:2] == [0, model.get_input_embeddings().weight.numel()]
    assert handed_out[1] < handed_out[2] < handed_out[3] < manifest.parameters_of_model


@pytest.mark.parametrize("name", ["llama-tied", "gpt2", "t5"])
def test_a_customer_with_both_ends_holds_one_tied_table(name: str, tmp_path: Path) -> None:
    archive = read_archive(write(name, Cut(bottom=0, tail=0), tmp_path / "archive"))
    assert archive.tail is not None
    assert archive.table is archive.tail.model.lm_head.weight


def test_a_customer_with_one_end_may_not_train_it(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"model\.embed_tokens\.weight"):
        read_archive(write("llama-tied", Cut(bottom=1), tmp_path / "one")).check_trainable()
    read_archive(write("llama-tied", Cut(bottom=1, tail=0), tmp_path / "both")).check_trainable()
    read_archive(write("bert", Cut(bottom=1), tmp_path / "none")).check_trainable()


def test_archives_do_not_depend_on_earlier_calls_or_name_the_vendors_folders(tmp_path: Path) -> None:
    model = shared_model("bert", Head.CLASSIFICATION)
    model.config._name_or_path = str(tmp_path)
    tokenizer = make_tokenizer("bert", name_or_path=str(tmp_path))
    first = write_archive(model, tokenizer, Cut(), tmp_path / "one", name="m")
    tokenizer(["a b", "c"], padding=True, truncation=True, max_length=3)
    assert write_archive(model, tokenizer, Cut(), tmp_path / "two", name="m") == first
    for path in (tmp_path / "one").iterdir():
        assert str(tmp_path).encode() not in path.read_bytes(), path.name


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_notes_in_a_checkpoint_stay_with_the_vendor(name: str, tmp_path: Path) -> None:
    """Fields that no class of transformers knows, names of labels, and paths; none is read to rebuild a part."""
    notes = {"train_file": "/data/private/patients.csv", "note": "ward 7", "patients": 4312, "more": {"a": "ward 7"}}
    model = make_model(name, head_of(name))
    for field, value in notes.items():
        setattr(model.config, field, value)
    if name in ENCODERS:
        model.config.id2label = {0: "FRAUD", 1: "OK", 2: "FRAUD AGAIN"}
        model.config.label2id = {label: number for number, label in model.config.id2label.items()}
    tokenizer = make_tokenizer(
        habit_of(name),
        special_tokens_map_file="/srv/secret/special_tokens_map.json",
        sources=[{"from": "C:\\secret\\vocab.txt"}],
        cache="~/secret",
        mask_token="/private/",  # a token may look like anything
    )
    write_archive(model, tokenizer, Cut(bottom=2), tmp_path / "one", name="m")
    config = json.loads((tmp_path / "one" / "config.json").read_text())
    assert config.keys() - {"head_dim"} <= configuration(name).to_dict().keys()
    assert config["id2label"] == {str(number): f"LABEL_{number}" for number in range(model.config.num_labels)}
    for path in (tmp_path / "one").glob("*.json"):
        assert not re.search("FRAUD|ward 7|4312|patients|secret", path.read_text()), path.name
    archive = read_archive(tmp_path / "one")
    assert archive.tokenizer.mask_token == "/private/"
    plain = read_archive(write(name, Cut(bottom=2), tmp_path / "two"))
    batch = make_batch(Case(name, head_of(name), Cut(bottom=2)))
    assert archive.bottom is not None
    assert plain.bottom is not None
    top = cut_up(shared_model(name, head_of(name)), Cut(bottom=2), name).top
    with torch.no_grad():
        assert_equal(below(archive.bottom, top, batch), below(plain.bottom, top, batch))


def test_what_the_models_code_reads_beside_its_class_is_handed_out(tmp_path: Path) -> None:
    model = make_model("llama", Head.CLASSIFICATION)
    model.config.is_causal = False  # embedding models read both ways; LlamaConfig has no such field
    write_archive(model, make_tokenizer("llama"), Cut(bottom=1), tmp_path / "archive", name="m")
    assert json.loads((tmp_path / "archive" / "config.json").read_text())["is_causal"] is False


def test_candidates_are_ordinary_tokens(tmp_path: Path) -> None:
    archive = read_archive(write("bert", Cut(), tmp_path / "archive"))
    assert archive.candidates.shape == (VOCAB,)
    assert archive.candidates.nonzero()[:, 0].tolist() == list(range(len(SPECIALS), len(SPECIALS) + len(WORDS)))
    assert archive.max_length == 32
    assert archive.family == "bert"


def test_rows_that_fill_a_table_are_no_candidates() -> None:
    """As BERT, T5 and fairseq (RoBERTa, OPT) name them; in RoBERTa's vocabulary they are ordinary tokens."""
    fill = ["[unused1]", "<unused_2>", "madeupword0000", "madeupword0002"]
    alike = ["unused", "madeup", "madeupwords"]
    tokenizer = make_tokenizer("roberta")
    tokenizer.add_tokens([*fill, *alike])
    candidates = candidate_tokens(tokenizer, vocab_size=len(tokenizer))
    assert not candidates[tokenizer.convert_tokens_to_ids(fill)].any()
    assert candidates[tokenizer.convert_tokens_to_ids(alike)].all()


def test_byte_level_tokens_are_all_candidates() -> None:
    tokenizer = make_tokenizer("gpt2")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.add_tokens(alphabet)
    candidates = candidate_tokens(tokenizer, vocab_size=512)
    ids = tokenizer.convert_tokens_to_ids(alphabet)
    assert candidates[ids].all()
    assert not candidates[len(tokenizer) :].any()


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_an_archive_of_the_version_before_is_read(name: str, tmp_path: Path) -> None:
    """It has what every configuration of transformers has, and more of the tokenizer than is read."""
    folder = write(name, Cut(bottom=2), tmp_path / "archive")
    known = type(configuration(name))().to_dict().keys()
    whole = {key: value for key, value in shared_model(name, head_of(name)).config.to_dict().items() if key in known}
    before = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(before | {key: whole[key] for key in whole.keys() - before.keys()}))
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    more = {
        "tokenizer_class": "TokenizersBackend",
        "backend": "tokenizers",
        "is_local": True,
        "chat_template": "{{ x }}",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer | more))
    (folder / "chat_template.jinja").write_text("{{ x }}")
    relist(folder)
    archive = read_archive(folder)
    plain = read_archive(write(name, Cut(bottom=2), tmp_path / "plain"))
    assert archive.bottom is not None
    assert plain.bottom is not None
    assert {key: value.shape for key, value in archive.bottom.state_dict().items()} == {
        key: value.shape for key, value in plain.bottom.state_dict().items()
    }
    told = archive.bottom.model.config.to_dict()
    assert told == plain.bottom.model.config.to_dict()
    assert archive.tokenizer("word1 b")["input_ids"] == plain.tokenizer("word1 b")["input_ids"]
    assert archive.tokenizer.special_tokens_map == plain.tokenizer.special_tokens_map


@pytest.mark.parametrize("family", FAMILIES)
def test_every_setting_of_a_family_has_its_bounds(family: str) -> None:
    """Of the transformers that is installed: a new setting is looked at before it is handed out or read."""
    known = CONFIG_MAPPING[family]().to_dict().keys()
    assert known - SETTINGS.keys() == NOT_READ


def test_a_setting_that_archives_do_not_hold_is_named(tmp_path: Path) -> None:
    model = make_model("bert", Head.CLASSIFICATION)
    model.config.quantization_config = {"quant_method": "x"}  # no setting of the class: a note, and left out
    write_archive(model, make_tokenizer("bert"), Cut(bottom=1), tmp_path / "archive", name="m")
    assert "quantization_config" not in json.loads((tmp_path / "archive" / "config.json").read_text())


def test_a_rotary_setting_takes_no_memory(tmp_path: Path) -> None:
    archive = write("glm", Cut(bottom=1), tmp_path / "archive")
    config = json.loads((archive / "config.json").read_text())
    rope = config["rope_parameters"] | {"partial_rotary_factor": 1e13}
    (archive / "config.json").write_text(json.dumps(config | {"rope_parameters": rope}))
    relist(archive)
    with pytest.raises(ModelError, match=r"bytes beside weights|No glm model"):
        read_archive(archive)


@pytest.mark.parametrize("key", ["rope_type", "attention_factor"])
def test_a_rotary_setting_commands_no_terminal(key: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Transformers repeats words of it in warnings of its own."""
    archive = write("llama", Cut(bottom=1), tmp_path / "archive")
    config = json.loads((archive / "config.json").read_text())
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, key: "\x1b]0;owned\x07\x1b[2J"}
    (archive / "config.json").write_text(json.dumps(config | {"rope_parameters": rope}))
    relist(archive)
    with pytest.raises(ModelError, match="rope_parameters"):
        read_archive(archive)
    assert "\x1b" not in "".join(capfd.readouterr())


# ---------------------------------------------------------------- damaged archives


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return write("llama", Cut(bottom=1), tmp_path / "archive")


def edit(archive: Path, **changes: object) -> None:
    manifest = json.loads((archive / MANIFEST).read_text())
    (archive / MANIFEST).write_text(json.dumps(manifest | changes))


@pytest.mark.parametrize("name", ["weights.safetensors", "tokenizer.json", "config.json"])
def test_a_flipped_bit_is_named(archive: Path, name: str) -> None:
    content = bytearray((archive / name).read_bytes())
    content[-3] ^= 1
    (archive / name).write_bytes(content)
    with pytest.raises(StorageError, match=f"{name} has sha256"):
        read_archive(archive)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_weights_that_are_no_numbers_are_refused(number: float, tmp_path: Path) -> None:
    """What is added to infinity leaves as infinity: such a row of a table names its token at any eta."""
    model = make_model("bert", head_of("bert"))
    with torch.no_grad():
        model.get_input_embeddings().weight[7, 3] = number
    write_archive(model, make_tokenizer("bert"), Cut(bottom=0), tmp_path / "archive", name="m")
    with pytest.raises(ModelError, match=r"not finite, the first in .*embeddings"):
        read_archive(tmp_path / "archive")


def test_missing_and_unlisted_files_are_named(archive: Path) -> None:
    (archive / ".weights.safetensors.x1").write_text("an interrupted download")
    read_archive(archive)
    (archive / "added_tokens.json").write_text("{}")
    with pytest.raises(StorageError, match=r"added_tokens\.json"):
        read_archive(archive)
    (archive / "added_tokens.json").unlink()
    (archive / "weights.safetensors").unlink()
    with pytest.raises(StorageError, match=r"weights\.safetensors is missing"):
        read_archive(archive)


def test_a_link_out_of_the_folder_is_refused(archive: Path, tmp_path: Path) -> None:
    (archive / "config.json").rename(tmp_path / "config.json")
    (archive / "config.json").symlink_to(tmp_path / "config.json")
    with pytest.raises(StorageError, match=r"config\.json"):
        read_archive(archive)


@pytest.mark.parametrize("name", ["../config.json", "/etc/passwd", "a/b", "..", "", ".hidden", "a\\b"])
def test_a_manifest_that_points_elsewhere_is_refused(archive: Path, name: str) -> None:
    edit(archive, files=[{"name": name, "sha256": "0" * 64, "size": 1}])
    with pytest.raises(StorageError, match=r"files\.0\.name"):
        read_archive(archive)


@pytest.mark.parametrize("content", ["", "{}", "[1]", "no json"])
def test_a_manifest_that_is_none_is_refused(archive: Path, content: str) -> None:
    (archive / MANIFEST).write_text(content)
    with pytest.raises(StorageError, match="no manifest"):
        read_archive(archive)


def test_no_manifest_and_a_huge_one_are_refused(archive: Path) -> None:
    (archive / MANIFEST).write_bytes(b" " * (1 << 21))
    with pytest.raises(StorageError, match="larger than"):
        read_archive(archive)
    (archive / MANIFEST).unlink()
    with pytest.raises(StorageError, match="cannot be read"):
        read_archive(archive)


def relist(archive: Path, **changes: object) -> None:
    """Makes the manifest true again after files were changed: a vendor that is wrong, not a broken disk."""
    from cutlayer.models.archive import _entry

    files = [_entry(path).model_dump() for path in sorted(archive.iterdir()) if path.name != MANIFEST]
    edit(archive, files=files, **changes)


def test_weights_that_a_part_lacks_are_never_drawn(archive: Path) -> None:
    weights = load_file(archive / "weights.safetensors")
    del weights["model.layers.0.mlp.up_proj.weight"]
    save_file(weights, archive / "weights.safetensors")
    relist(archive)
    with pytest.raises(ModelError, match=r"model\.layers\.0\.mlp\.up_proj\.weight"):
        read_archive(archive)


def test_weights_of_another_shape_and_another_family_are_refused(archive: Path) -> None:
    weights = load_file(archive / "weights.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    save_file(weights | {name: weights[name][:3].clone()}, archive / "weights.safetensors")
    relist(archive)
    with pytest.raises(ModelError, match="shape"):
        read_archive(archive)
    relist(archive, family="mistral")
    with pytest.raises(StorageError, match="mistral"):
        read_archive(archive)
    (archive / "weights.safetensors").write_bytes(b"no tensors")
    relist(archive, family="llama")
    with pytest.raises(StorageError, match="cannot be read"):
        read_archive(archive)


def test_an_archive_gets_a_folder_of_its_own(archive: Path) -> None:
    with pytest.raises(StorageError, match="not empty"):
        write("llama", Cut(), archive)


def test_threads_read_archives_beside_one_another(written: Callable[[str, Cut], Path]) -> None:
    """Making a model without weights changes what all modules of the process do meanwhile."""
    folder, together = written("bert", Cut(bottom=0)), threading.Barrier(4)

    def read(_: int) -> Tensor:
        together.wait()
        table = read_archive(folder).table
        assert table is not None
        return table

    with ThreadPoolExecutor(4) as threads:
        for _ in range(5):
            first, *others = threads.map(read, range(4))
            assert all(torch.equal(first, other) for other in others)
            assert not first.is_meta
