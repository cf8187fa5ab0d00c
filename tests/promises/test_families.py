"""Promise 2 over the wire for every family: a split run is the run that ordinary PEFT makes."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from cutlayer import vendor
from cutlayer.core import Cut
from cutlayer.customer import Client, FullTuning, Lora, Objective, Prefix, Prompt, Silent, Training, TuningSpec
from cutlayer.customer.defaults import settle_training
from cutlayer.customer.run import Run, RunState
from cutlayer.data import Dataset
from cutlayer.models import Head
from cutlayer.recipes.reference.classifier import train_centralised
from cutlayer.recipes.reference.fit import ReferenceRun
from cutlayer.vendor import VendorSettings, create_app
from cutlayer.wire import WireType
from cutlayer.wire.transports import LocalTransport
from tests.equivalence.zoo import CONFIGURATIONS, ENCODERS, PAD, VARIANTS, VOCAB, make_model
from tests.promises.runs import clear_order, give_secret
from tests.quick import slow_but

FAMILIES = [name for name in CONFIGURATIONS if not name.startswith("t5")]
TRAINING = Training(epochs=2, batch_size=8, learning_rate=2e-3, dropout=False)


SPECIALS = ["[UNK]", "<s>", "</s>", "<pad>"]
assert SPECIALS[PAD] == "<pad>"


def words() -> Tokenizer:
    """A token a word, with special tokens around."""
    vocabulary = [*SPECIALS, *(f"w{number}" for number in range(VOCAB - len(SPECIALS)))]
    numbers = {word: number for number, word in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    return tokenizer


def letters() -> Tokenizer:
    """A token a byte, without special tokens: what transformers makes of any Qwen2 tokenizer."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet(), key=lambda byte: (not byte.isascii() and byte != "Ġ", byte))
    vocabulary = [*SPECIALS, *alphabet[: VOCAB - len(SPECIALS)]]
    tokenizer = Tokenizer(models.BPE({byte: number for number, byte in enumerate(vocabulary)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


def write_model(name: str, folder: Path, *, head: Head = Head.CLASSIFICATION) -> Path:
    """A tiny random model of a family with a tokenizer, in Hugging Face's format."""
    make_model(name, head).save_pretrained(folder)
    PreTrainedTokenizerFast(
        tokenizer_object=letters() if name.startswith("qwen2") else words(),
        unk_token="[UNK]",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        model_max_length=96,
    ).save_pretrained(folder)
    return folder


def corpus(n: int, seed: int, *, pairs: bool) -> Dataset:
    rng = random.Random(seed)

    def text() -> str:
        return " ".join(f"w{rng.randrange(VOCAB - 4)}" for _ in range(rng.randint(1, 9)))

    texts = tuple((text(), text()) if pairs else (text(),) for _ in range(n))
    return Dataset(texts, tuple("abc"[rng.randrange(3)] for _ in range(n)))


QUICK = ("bert", "gpt2")
"""The families that `make test` takes through all of this; of the others it takes a run each."""


def each(*settings: Any) -> list[Any]:
    """Every family with every setting, of which the first is quick."""
    cases = [(name, setting) for name in FAMILIES for setting in settings]
    quick = [case for case in cases if case[0] in QUICK or (case[1] == settings[0] and case[0] not in VARIANTS)]
    return slow_but(quick, cases, ids=[f"{name}-{setting}" for name, setting in cases])


@pytest.mark.parametrize(("name", "bottom"), each(0, 2))
def test_split_run_equals_ordinary_peft(name: str, bottom: int, tmp_path: Path) -> None:
    check_split_equals_whole(name, bottom, Lora(), tmp_path)


@pytest.mark.parametrize(
    ("name", "tuning"), each(Prefix(prefix_length=3), FullTuning(), Prompt(prompt_length=4, pooling="sequence"))
)
def test_each_method_of_a_split_run_equals_the_whole_model(name: str, tuning: TuningSpec, tmp_path: Path) -> None:
    if name == "distilbert" and tuning.method == "prefix":
        pytest.skip("refused: its blocks attend to the text's own keys and values alone")
    if name not in ENCODERS and tuning.method == "prompt":
        pytest.skip("behind a prompt Hugging Face's head takes a decoder's last column, padding or not")
    check_split_equals_whole(name, 0, tuning, tmp_path)


def check_split_equals_whole(name: str, bottom: int, tuning: TuningSpec, tmp_path: Path) -> None:
    source = str(write_model(name, tmp_path / "model"))
    pairs = bottom == 2
    train, dev, test = (corpus(n, seed, pairs=pairs) for n, seed in ((40, 1), (9, 2), (9, 3)))
    settled = settle_training(TRAINING, Objective.CLASSIFICATION, tuning)
    run = ReferenceRun(train, dev, test, source, settled, tuning, 4, clear_order(4))
    expected = train_centralised(run, progress=Silent(), bottom=bottom)
    vendor.init(tmp_path / "vendor", models=[source], threads=torch.get_num_threads())
    key = vendor.keys.create(tmp_path / "vendor", "clinic")
    transport = LocalTransport(create_app(VendorSettings.load(tmp_path / "vendor")), key)
    client = Client(transport=transport, home=give_secret(tmp_path / "home"), device="cpu")
    result = client.finetune(
        train,
        dev=dev,
        test=test,
        eta=math.inf,
        wire_type=WireType.FP32,
        training=TRAINING,
        seed=4,
        cut=Cut(bottom=bottom),
        tuning=tuning,
    )
    client.close()
    state = RunState.model_validate_json((result.folder / "run.json").read_bytes())
    losses = Run(result.folder, state).losses()
    assert losses == pytest.approx(expected.losses, rel=1e-4)
    assert result.dev == expected.dev
    assert result.ua == expected.accuracy.value
