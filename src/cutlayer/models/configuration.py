"""Which settings of a configuration that somebody else wrote are read, and how large each may be.

An archive's `config.json` is a vendor's. Transformers puts every key of it on its own object, and some keys load code
(`auto_map`, an attention implementation by the name of a repository) or decide how much memory is taken. So only the
keys below are read, those that the blocks of a family in the anatomy table compute with; each has its type and its
largest value. How a part computes attention is never the vendor's choice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from transformers import PretrainedConfig
from transformers.activations import ACT2FN
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from cutlayer.core import ModelError
from cutlayer.models.anatomy import FAMILIES, family_of

ATTENTION = "sdpa"
"""What every family in the table has, and what `load_model` takes: both parties' blocks compute alike."""
MAX_BLOCKS = 512
MAX_POSITIONS = 2**22
MAX_VOCABULARY = 2**24
MAX_LABELS = 2**16
_MAX_WIDTH = 2**18
_MAX_INNER = 2**20
_MAX_HEADS = 2**12

_READ_OF_ANY = frozenset({"attention_chunk_size", "head_dim", "is_causal", "layer_types", "sliding_window"})
"""What the models' code reads of a configuration whether or not its class knows it."""
NOT_READ = frozenset(
    {
        "_name_or_path",
        "architectures",
        "chunk_size_feed_forward",
        "dtype",
        "label2id",
        "output_attentions",
        "output_hidden_states",
        "problem_type",
        "return_dict",
        "transformers_version",
    }
)
"""What every configuration of transformers has and none of the blocks computes with. Archives have held it; it is
passed over. Any other unknown key is refused: without it, a part might compute something else than the vendor's."""

Allowed = tuple[str, Callable[[Any], bool]]
"""What may stand there, in words, and the check."""


def _whole(least: int, most: int) -> Allowed:
    return f"a whole number from {least} to {most}", lambda given: type(given) is int and least <= given <= most


def _word(words: Mapping[str, Any] | frozenset[str], what: str) -> Allowed:
    return what, lambda given: isinstance(given, str) and given in words


def _or_null(allowed: Allowed) -> Allowed:
    return f"{allowed[0]}, or null", lambda given: given is None or allowed[1](given)


def _is_rate(given: Any) -> bool:
    return type(given) in (int, float) and math.isfinite(given) and 0 <= given <= 1000


_ROPE_TYPES = frozenset({"default", *ROPE_INIT_FUNCTIONS})
"""Words of rotary positions. Transformers repeats others in warnings of its own, which go to the terminal as they
are."""


def _is_rope(given: Any) -> bool:
    """Numbers, words and lists of numbers, for the whole model or for each kind of layer."""
    if not isinstance(given, dict) or len(given) > 16:
        return False
    return all(
        value is None
        or type(value) in (bool, int, float)
        or (isinstance(value, str) and value in _ROPE_TYPES)
        or (isinstance(value, list) and len(value) <= _MAX_WIDTH and all(type(each) in (int, float) for each in value))
        or (isinstance(value, dict) and not any(isinstance(each, dict) for each in value.values()) and _is_rope(value))
        for value in given.values()
    )


def _is_token(given: Any) -> bool:
    return type(given) is int and -1 <= given < MAX_VOCABULARY


_FLAG: Allowed = "true or false", lambda given: isinstance(given, bool)
_RATE: Allowed = "a number from 0 to 1000", _is_rate
_BLOCKS, _HEADS = _whole(1, MAX_BLOCKS), _whole(1, _MAX_HEADS)
_WIDTH, _INNER = _whole(1, _MAX_WIDTH), _whole(1, _MAX_INNER)
_POSITIONS = _whole(1, MAX_POSITIONS)
_TOKEN: Allowed = "a token's number, or null", lambda given: given is None or _is_token(given)
_TOKENS: Allowed = (
    "a token's number, up to 64 of them, or null",
    lambda given: (
        given is None
        or _is_token(given)
        or (isinstance(given, list) and len(given) <= 64 and all(map(_is_token, given)))
    ),
)
_ACTIVATION = _word(ACT2FN, "an activation that transformers knows")
_LAYERS = frozenset({"full_attention", "sliding_attention", "chunked_attention"})

SETTINGS: Mapping[str, Allowed] = {
    # sizes: of tables, rows, blocks and heads
    "vocab_size": _whole(1, MAX_VOCABULARY),
    "type_vocab_size": _whole(0, 2**16),
    **dict.fromkeys(("hidden_size", "n_embd", "dim", "d_model", "word_embed_proj_dim"), _WIDTH),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "hidden_dim", "d_ff"), _INNER),
    "n_inner": _or_null(_INNER),
    **dict.fromkeys(("num_hidden_layers", "n_layers", "n_layer", "num_layers", "num_decoder_layers"), _BLOCKS),
    **dict.fromkeys(("num_attention_heads", "n_heads", "n_head", "num_heads", "num_key_value_heads"), _HEADS),
    "head_dim": _or_null(_WIDTH),
    "d_kv": _WIDTH,
    **dict.fromkeys(("max_position_embeddings", "n_positions"), _POSITIONS),
    **dict.fromkeys(("relative_attention_num_buckets", "relative_attention_max_distance"), _POSITIONS),
    **dict.fromkeys(("sliding_window", "attention_chunk_size"), _or_null(_POSITIONS)),
    "max_window_layers": _whole(0, MAX_BLOCKS),
    "pretraining_tp": _whole(1, 64),
    # tokens that the model's code knows by number
    **dict.fromkeys(("pad_token_id", "bos_token_id"), _TOKEN),
    "eos_token_id": _TOKENS,
    # rates and scales
    **dict.fromkeys(
        (
            "hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout", "qa_dropout",
            "seq_classif_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop", "summary_first_dropout", "layerdrop",
            "dropout_rate", "initializer_range", "init_std", "initializer_factor", "layer_norm_eps",
            "layer_norm_epsilon", "rms_norm_eps",
        ),
        _RATE,
    ),
    "classifier_dropout": _or_null(_RATE),
    # how blocks are built
    **dict.fromkeys(
        (
            "add_cross_attention", "attention_bias", "do_layer_norm_before", "enable_bias", "is_causal", "is_decoder",
            "is_encoder_decoder", "is_gated_act", "layer_norm_elementwise_affine", "mlp_bias",
            "reorder_and_upcast_attn", "_remove_final_layer_norm", "scale_attn_by_inverse_layer_idx",
            "scale_attn_weights", "scale_decoder_outputs", "sinusoidal_pos_embds", "summary_proj_to_labels",
            "summary_use_proj", "tie_word_embeddings", "use_cache", "use_sliding_window",
        ),
        _FLAG,
    ),
    **dict.fromkeys(("hidden_act", "activation", "activation_function", "dense_act_fn"), _ACTIVATION),
    "feed_forward_proj": (
        "an activation that transformers knows, gated- before it or not",
        lambda given: isinstance(given, str) and given.removeprefix("gated-") in ACT2FN,
    ),
    "summary_activation": _or_null(_ACTIVATION),
    "summary_type": _word(frozenset({"last", "first", "mean", "cls_index", "attn"}), "a summary that GPT-2 knows"),
    "layer_types": _or_null(
        (
            f"a list of {', '.join(sorted(_LAYERS))}",
            lambda given: (
                isinstance(given, list) and len(given) <= MAX_BLOCKS and all(map(list(_LAYERS).__contains__, given))
            ),
        )
    ),
    "rope_parameters": _or_null(("numbers and words of rotary positions", _is_rope)),
    "id2label": (
        f"1 to {MAX_LABELS} labels by number",
        lambda given: isinstance(given, dict) and 1 <= len(given) <= MAX_LABELS,
    ),
    "model_type": _word(FAMILIES, f"one of {', '.join(FAMILIES)}"),
}  # fmt: skip
"""Every key that is read of an archive's configuration, with what may stand there."""


def settings_of(config: PretrainedConfig) -> dict[str, Any]:
    """The settings of a vendor's model that an archive holds: what a part of it is built from, and no notes beside.

    Raises:
        ModelError: One that its class knows, and that is not the default, is none that archives hold: without it a part
            would compute something else.
    """
    plain = type(config)(num_labels=config.num_labels).to_dict()  # type: ignore[call-arg]  # all classes take it
    given = {name: value for name, value in config.to_dict().items() if name in plain or name in _READ_OF_ANY}
    strange = [
        name for name in given.keys() - SETTINGS.keys() - NOT_READ if given[name] != plain.get(name, given[name])
    ]
    if strange:
        raise ModelError(
            f"This {config.model_type} model has {min(strange)} = {given[min(strange)]!r}, which no archive holds.",
            remedy="Use a checkpoint without it, or another version of transformers.",
        )
    settings = {name: value for name, value in given.items() if name in SETTINGS}
    # the labels' names are the vendor's
    return settings | {"id2label": plain["id2label"]}


def read_settings(settings: Mapping[str, Any], family: str) -> PretrainedConfig:
    """A configuration made of what an archive holds, checked key by key before anything is built from it.

    Raises:
        ModelError: A key that is not read, or a value that no model of this family has.
    """
    kind = CONFIG_MAPPING[family]
    known = kind().to_dict().keys() | _READ_OF_ANY
    kept: dict[str, Any] = {}
    for name, value in settings.items():
        if name in NOT_READ:
            continue
        if name not in SETTINGS or name not in known:
            raise _refused(name, value, f"no setting of a {family} model that is read")
        allowed, fits = SETTINGS[name]
        if not fits(value):
            raise _refused(name, value, f"it must be {allowed}")
        kept[name] = value
    labels = len(kept.pop("id2label", (0, 1)))
    try:
        config: PretrainedConfig = kind.from_dict(kept | {"num_labels": labels})
    except Exception as error:  # each class checks its own settings, with errors of its own
        raise ModelError(
            f"A {family} model has no such configuration: {type(error).__name__}.", remedy="Ask the vendor."
        ) from error
    family_of(config)
    config._attn_implementation = ATTENTION
    return config


def _refused(name: str, given: object, why: str) -> ModelError:
    shown = repr(given)
    shown = shown if len(shown) <= 80 else f"{shown[:80]}…"
    return ModelError(
        f"The archive's configuration has {name[:80]} = {shown}: {why}.",
        remedy="Nothing was built from it. Ask the vendor; an archive of an earlier version is fetched again after the "
        "folder `archives` in your home folder is removed.",
    )
