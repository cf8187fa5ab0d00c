"""Tiny fast tokenizers, one per habit of placing special tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer, pre_tokenizers, processors
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

SPECIALS = ("[UNK]", "<s>", "</s>", "[PAD]", "[CLS]", "[SEP]", "[unused0]", "<extra_id_0>")
WORDS = (*"abcdefghijklmnopqrstuvwxyz", *(f"word{number}" for number in range(40)))

_TEMPLATES: Mapping[str, tuple[str, str] | None] = {
    "bert": ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"),
    "roberta": ("<s> $A </s>", "<s> $A </s> </s> $B </s>"),
    "llama": ("<s> $A", "<s> $A <s> $B"),
    "t5": ("$A </s>", "$A </s> $B </s>"),
    "gpt2": None,
}
HABITS = tuple(_TEMPLATES)


def make_tokenizer(habit: str, **settings: Any) -> PreTrainedTokenizerBase:
    """A word-level tokenizer with the special tokens of `habit`."""
    vocabulary = {token: index for index, token in enumerate(SPECIALS + WORDS)}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    template = _TEMPLATES[habit]
    if template is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=template[0], pair=template[1], special_tokens=[(name, vocabulary[name]) for name in SPECIALS]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="[UNK]", bos_token="<s>", eos_token="</s>", pad_token="[PAD]", cls_token="[CLS]",
        sep_token="[SEP]", extra_special_tokens=["<extra_id_0>"],
        model_input_names=["input_ids", "attention_mask", *(["token_type_ids"] if habit == "bert" else [])],
        **{"model_max_length": 32, **settings},
    )  # fmt: skip


def habit_of(name: str) -> str:
    """Which habit goes with a configuration of the zoo."""
    family = name.split("-")[0]
    return {"distilbert": "bert", "opt": "roberta"}.get(family, family if family in HABITS else "llama")
