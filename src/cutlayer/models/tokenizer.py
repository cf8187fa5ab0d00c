"""A model's tokenizer as files that another party reads.

`tokenizer.json` alone makes the ids. Beside it only the names of special tokens and a few switches are read: settings
of a tokenizer may name files, classes and repositories, and hold templates that are programs.
"""

from __future__ import annotations

import copy
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from cutlayer.core import StorageError
from cutlayer.models.configuration import MAX_VOCABULARY

_PIPELINE = "tokenizer.json"
_SETTINGS = "tokenizer_config.json"
_PASSED_OVER = ("added_tokens.json", "chat_template.jinja", "special_tokens_map.json")
"""What versions of transformers save beside, and earlier archives of ours hold; none of it is read."""
LARGEST_TOKENIZER: Mapping[str, int] = {_PIPELINE: 1 << 27, _SETTINGS: 1 << 24, **dict.fromkeys(_PASSED_OVER, 1 << 20)}
"""Most bytes of each file. The largest vocabularies in use take some 30 MiB."""
_MOST_ADDED = 2**16
"""Tokens beside the vocabulary: each is looked for in every text."""


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Writes a tokenizer's files; nothing in them names a folder of this machine."""
    tokenizer = copy.deepcopy(tokenizer)
    # what an earlier call set; it would otherwise be saved and change the archive's bytes
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.save_pretrained(folder)
    for name in _PASSED_OVER:
        (folder / name).unlink(missing_ok=True)
    path = folder / _SETTINGS
    settings = _tokenizer_settings(json.loads(path.read_text(encoding="utf-8")))
    tokens = {*tokenizer.special_tokens_map, "extra_special_tokens"}
    settings = {name: value for name, value in settings.items() if name in tokens or not _names_a_path(value)}
    path.write_text(as_json(settings), encoding="utf-8")


def as_json(settings: Mapping[str, Any]) -> str:
    """Settings as a file holds them, the same for the same settings."""
    return json.dumps(settings, indent=2, sort_keys=True) + "\n"


def _names_a_path(value: Any) -> bool:
    """Whether a setting holds an absolute path: of the machine that the tokenizer was made on."""
    if isinstance(value, dict):
        return any(map(_names_a_path, value.values()))
    if isinstance(value, list):
        return any(map(_names_a_path, value))
    if not isinstance(value, str) or len(value) < 2:
        return False
    absolute = PurePosixPath(value).is_absolute() or PureWindowsPath(value).is_absolute()
    return absolute or value.startswith(("~", "file:"))


_READ: Mapping[str, Callable[[Any], bool]] = {
    "model_max_length": lambda given: type(given) in (int, float),
    "model_input_names": lambda given: (
        isinstance(given, list) and set(map(str, given)) <= {"input_ids", "token_type_ids", "attention_mask"}
    ),
    **dict.fromkeys(("padding_side", "truncation_side"), lambda given: given in ("left", "right")),
    **dict.fromkeys(
        ("add_prefix_space", "clean_up_tokenization_spaces", "split_special_tokens"),
        lambda given: given is None or isinstance(given, bool),
    ),
    **dict.fromkeys(
        ("additional_special_tokens", "extra_special_tokens"),
        lambda given: (
            isinstance(given, list | dict) and all(map(_is_token, given.values() if isinstance(given, dict) else given))
        ),
    ),
    "added_tokens_decoder": lambda given: (
        isinstance(given, dict) and all(str(at).isdecimal() and _is_token(token) for at, token in given.items())
    ),
}
"""Settings of a tokenizer that are read beside its tokens; all others are passed over."""
_SWITCHES = ("add_bos_token", "add_eos_token")
"""Named like tokens. `tokenizer.json` says what is added."""
_TOKEN_FIELDS = frozenset({"__type", "content", "id", "lstrip", "normalized", "rstrip", "single_word", "special"})


def _is_token(given: Any) -> bool:
    if isinstance(given, dict):
        return given.keys() <= _TOKEN_FIELDS and isinstance(given.get("content"), str)
    return isinstance(given, str)


def _tokenizer_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What is read of a tokenizer's settings.

    Raises:
        ValueError: One of them is not what it should be.
    """
    kept: dict[str, Any] = {}
    for name, value in settings.items():
        fits = _READ.get(name, _is_token if name.endswith("_token") and name not in _SWITCHES else None)
        if fits is None:
            continue
        if value is not None and not fits(value):
            raise ValueError(name)
        kept[name] = value
    return kept


def read_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Reads a tokenizer that somebody else wrote.

    Raises:
        StorageError: Its files cannot be read, or are larger than any tokenizer's.
    """
    try:
        pipeline = read_json(folder / _PIPELINE, largest=LARGEST_TOKENIZER[_PIPELINE])
        added, model = pipeline.get("added_tokens", []), pipeline["model"]
        if len(added) > _MOST_ADDED or len(model["vocab"]) > MAX_VOCABULARY:
            raise StorageError(
                f"The tokenizer in {folder} has {len(model['vocab'])} tokens and {len(added)} beside; at most "
                f"{MAX_VOCABULARY} and {_MOST_ADDED} are read.",
                remedy="Ask the vendor.",
            )
        settings = _tokenizer_settings(read_json(folder / _SETTINGS, largest=LARGEST_TOKENIZER[_SETTINGS]))
        with tempfile.TemporaryDirectory() as kept:  # what stands in a folder is read, and its settings as they are
            shutil.copyfile(folder / _PIPELINE, Path(kept) / _PIPELINE)
            (Path(kept) / _SETTINGS).write_text(as_json(settings), encoding="utf-8")
            # not the family's own class, which would build its pipeline anew: tokenizer.json is the vendor's
            tokenizer: PreTrainedTokenizerBase = PreTrainedTokenizerFast.from_pretrained(kept, local_files_only=True)
    except StorageError:
        raise
    except Exception as error:  # the tokenizers package raises nothing more exact
        raise StorageError(
            f"The tokenizer in {folder} cannot be read: {type(error).__name__}.", remedy="Fetch the archive again."
        ) from error
    # of its own accord it might fill each text up to any length
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.backend_tokenizer.no_truncation()
    return tokenizer


def read_json(path: Path, *, largest: int) -> dict[str, Any]:
    """A file of settings that somebody else wrote.

    Args:
        path: The file.
        largest: Most bytes that are read.

    Raises:
        StorageError: It is none, or too large to be one.
    """
    try:
        if path.stat().st_size > largest:
            raise StorageError(
                f"{path} has {path.stat().st_size} bytes; at most {largest} are read.", remedy="Ask the vendor."
            )
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise StorageError(f"{path} cannot be read.", remedy="Fetch the archive again.") from error
    if not isinstance(content, dict):
        raise StorageError(f"{path} holds no settings.", remedy="Fetch the archive again.")
    return content
