"""A BERT and a GPT-2 that are written in a moment and train in milliseconds a step."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
)

VOCAB = 300
WIDTH = 32
BLOCKS = 4
MAX_LENGTH = 64


def write_tiny_bert(folder: Path, *, seed: int = 11, width: int = WIDTH, max_length: int = MAX_LENGTH) -> Path:
    """Writes model and tokenizer in Hugging Face's format; wider, it takes longer."""
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=VOCAB,
        hidden_size=width,
        num_hidden_layers=BLOCKS,
        num_attention_heads=4,
        intermediate_size=2 * width,
        max_position_embeddings=max_length,
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
        num_labels=2,
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = specials + list("abcdefghijklmnopqrstuvwxyz")
    words += [f"w{number}" for number in range(VOCAB - len(words))]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        model_max_length=max_length,
    ).save_pretrained(folder)
    return folder


def write_tiny_gpt2(folder: Path, *, seed: int = 12) -> Path:
    """Writes a decoder of as many blocks, with dropout and a tied head, and a tokenizer without special tokens."""
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=VOCAB,
        n_positions=MAX_LENGTH,
        n_embd=WIDTH,
        n_layer=BLOCKS,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
    )
    GPT2LMHeadModel(config).save_pretrained(folder)
    words = ["<end>", "<unk>", *(f"w{number}" for number in range(VOCAB - 2))]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        bos_token="<end>",
        eos_token="<end>",
        model_max_length=MAX_LENGTH,
    ).save_pretrained(folder)
    return folder
