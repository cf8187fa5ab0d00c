"""Tiny random models of every family, in the configurations that have broken cuts before."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from cutlayer.models import Head
from cutlayer.models.heads import model_class
from tests.quick import slow_but

VOCAB = 96
WIDTH = 16
BLOCKS = 4
POSITIONS = 128
"""Of decoders, which are held to 64 new tokens."""
PAD = 3
"""Never drawn as a real token, so that Hugging Face's own pooling finds the last real one."""

_LLAMA = dict(
    vocab_size=VOCAB, hidden_size=WIDTH, intermediate_size=24, num_hidden_layers=BLOCKS, num_attention_heads=4,
    num_key_value_heads=2, head_dim=4, max_position_embeddings=POSITIONS, pad_token_id=PAD, bos_token_id=1,
    eos_token_id=2,
)  # fmt: skip
_BERT = dict(
    vocab_size=VOCAB, hidden_size=WIDTH, intermediate_size=24, num_hidden_layers=BLOCKS, num_attention_heads=4,
    max_position_embeddings=64, pad_token_id=PAD,
)  # fmt: skip
_GPT2 = dict(
    vocab_size=VOCAB, n_embd=WIDTH, n_layer=BLOCKS, n_head=4, n_positions=POSITIONS, pad_token_id=PAD, bos_token_id=1,
    eos_token_id=2,
)  # fmt: skip
_OPT = dict(
    vocab_size=VOCAB, hidden_size=WIDTH, ffn_dim=24, num_hidden_layers=BLOCKS, num_attention_heads=4,
    max_position_embeddings=POSITIONS, word_embed_proj_dim=WIDTH, pad_token_id=PAD,
)  # fmt: skip
_T5 = dict(
    vocab_size=VOCAB, d_model=WIDTH, d_kv=4, d_ff=24, num_layers=BLOCKS, num_decoder_layers=3, num_heads=4,
    relative_attention_num_buckets=8, relative_attention_max_distance=16, pad_token_id=PAD, eos_token_id=2,
    decoder_start_token_id=PAD,
)  # fmt: skip
_MIXED = ["full_attention", "sliding_attention", "full_attention", "sliding_attention"]
_LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8,
}  # fmt: skip

CONFIGURATIONS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertConfig", _BERT),
    "roberta": ("RobertaConfig", _BERT | {"type_vocab_size": 1}),
    "distilbert": (
        "DistilBertConfig",
        dict(
            vocab_size=VOCAB, dim=WIDTH, hidden_dim=24, n_layers=BLOCKS, n_heads=4, max_position_embeddings=64,
            pad_token_id=PAD,
        ),
    ),
    "gpt2": ("GPT2Config", _GPT2),
    "gpt2-inverse-scale": ("GPT2Config", _GPT2 | {"scale_attn_by_inverse_layer_idx": True}),
    "opt": ("OPTConfig", _OPT),
    "opt-projected": ("OPTConfig", _OPT | {"word_embed_proj_dim": 8, "do_layer_norm_before": False}),
    "llama": ("LlamaConfig", _LLAMA),
    "llama-tied": ("LlamaConfig", _LLAMA | {"tie_word_embeddings": True}),
    "llama-llama3-rope": ("LlamaConfig", _LLAMA | {"rope_parameters": _LLAMA3}),
    "mistral": ("MistralConfig", _LLAMA | {"sliding_window": 5}),
    "qwen2": ("Qwen2Config", _LLAMA | {"tie_word_embeddings": True}),
    "qwen2-mixed": (
        "Qwen2Config",
        _LLAMA | {"use_sliding_window": True, "sliding_window": 4, "layer_types": _MIXED},
    ),
    "qwen3": ("Qwen3Config", _LLAMA),
    "qwen3-mixed": (
        "Qwen3Config",
        _LLAMA | {"use_sliding_window": True, "sliding_window": 4, "layer_types": _MIXED, "tie_word_embeddings": True},
    ),
    "glm": ("GlmConfig", _LLAMA),
    "t5": ("T5Config", _T5),
    "t5-gated": ("T5Config", _T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
}  # fmt: skip

ENCODERS = ("bert", "roberta", "distilbert")
SEQ2SEQ = ("t5", "t5-gated")
DECODERS = tuple(name for name in CONFIGURATIONS if name not in ENCODERS + SEQ2SEQ)
VARIANTS = frozenset(name for name in CONFIGURATIONS if "-" in name)
"""Further configurations of a family: `make test` compares a step of each, and leaves the rest to `make test-all`."""
ATTENTION = ("sdpa", "eager")


def families_first(names: Iterable[str]) -> list[Any]:
    """Parameters of a test, of which variants are slow."""
    names = list(names)
    return slow_but([name for name in names if name not in VARIANTS], names)


def configuration(name: str, **changes: Any) -> Any:
    kind, arguments = CONFIGURATIONS[name]
    return getattr(transformers, kind)(**{**arguments, **changes})


def make_model(name: str, head: Head, *, attention: str = "sdpa", seed: int = 0, labels: int = 3) -> PreTrainedModel:
    """A random model whose every module matters: wide weights, biases and norms away from 0 and 1."""
    config = configuration(name, **({"num_labels": labels} if head is Head.CLASSIFICATION else {}))
    config._attn_implementation = attention
    model = model_class(config, head).from_config(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.empty(parameter.shape).normal_(0, 1, generator=generator)
            if parameter.dim() > 1:
                parameter.copy_(0.3 * noise)
            else:
                parameter.add_(0.2 * noise)
    return model.eval()


@functools.cache
def shared_model(name: str, head: Head, attention: str = "sdpa") -> PreTrainedModel:
    """One model per configuration, for tests that do not train it."""
    return make_model(name, head, attention=attention)
