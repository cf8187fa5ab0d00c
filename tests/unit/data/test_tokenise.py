from __future__ import annotations

import importlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from cutlayer.core import ConfigError
from cutlayer.data import Dataset, tokenise

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[", "]", "SEP", *"abcdefghij"]


def make_tokenizer():
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    # some published tokenizers come with truncation and padding switched on
    backend.enable_truncation(4)
    backend.enable_padding(length=6)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]"
    )


TOKENIZER = make_tokenizer()
TEXT = st.lists(st.sampled_from("abcdefghij"), max_size=12).map(" ".join)


@settings(deadline=None)
@given(st.lists(TEXT, max_size=5), st.integers(1, 12))
def test_single_texts_are_cut_as_hugging_face_cuts_them(texts, most):
    tokens = tokenise(Dataset(tuple((text,) for text in texts)), TOKENIZER, max_content=most)
    assert len(tokens) == len(texts)
    for i, text in enumerate(texts):
        whole = TOKENIZER(text, truncation=True, max_length=most + 2)["input_ids"]
        assert tokens.segments[0][i].tolist() == whole[1:-1]


@settings(deadline=None, max_examples=300)
# Hugging Face takes an empty second text for none at all, so there is nothing to compare with
@given(st.lists(st.tuples(TEXT, TEXT.filter(bool)), min_size=1, max_size=5), st.integers(1, 20))
def test_pairs_are_cut_as_hugging_face_cuts_them(pairs, most):
    tokens = tokenise(Dataset(tuple(pairs)), TOKENIZER, max_content=most)
    for i, (first, second) in enumerate(pairs):
        whole = TOKENIZER(first, second, truncation="longest_first", max_length=most + 3)["input_ids"]
        end = whole.index(3)
        assert tokens.segments[0][i].tolist() == whole[1:end]
        assert tokens.segments[1][i].tolist() == whole[end + 1 : -1]


def test_special_tokens_written_in_a_text_are_text():
    tokens = tokenise(Dataset((("a [SEP] b",),)), TOKENIZER, max_content=10)
    assert [WORDS[i] for i in tokens.segments[0].values] == ["a", "[", "SEP", "]", "b"]
    # and the tokenizer is left as it was
    assert TOKENIZER("a [SEP] b")["input_ids"].count(3) == 2


@pytest.mark.parametrize(
    ("limit", "most", "calls"),
    [("_TEXTS", 2, [2, 2, 1]), ("_CHARACTERS", 4, [3, 1, 1]), ("_CHARACTERS", 1, [1, 2, 1, 1])],
)
def test_many_texts_go_through_in_parts(limit, most, calls, monkeypatch):
    dataset = Dataset(tuple((text,) for text in ["a b", "", "c", "d e f", "gg"]))
    whole = tokenise(dataset, TOKENIZER, max_content=2)
    # the function of the same name hides the module as an attribute
    module, told = importlib.import_module("cutlayer.data.tokenise"), []
    parts = module._parts
    monkeypatch.setattr(module, limit, most)
    monkeypatch.setattr(module, "_parts", lambda texts: (told.append(len(some)) or some for some in parts(texts)))
    divided = tokenise(dataset, TOKENIZER, max_content=2)
    assert told == calls
    assert torch.equal(whole.segments[0].values, divided.segments[0].values)
    assert whole.segments[0].lengths.tolist() == [2, 0, 1, 2, 1]


def test_no_room_for_content():
    with pytest.raises(ConfigError, match="max_content"):
        tokenise(Dataset((("a",),)), TOKENIZER, max_content=0)
