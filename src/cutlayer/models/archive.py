"""What a customer receives of a model: tokenizer, table, bottom and tail, and never the top.

An archive is a folder of flat files: `manifest.json`, the tokenizer's files and, unless the cut is
the text cut, `config.json` and `weights.safetensors`. Weights carry their whole-model names. Reading
builds the whole model's skeleton without weights, cuts it by the same code that the vendor runs, and
fills in what came along; what a part needs and the archive lacks is an error, never a random draw.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Annotated, Any

import safetensors
import torch
from accelerate import init_empty_weights  # type: ignore[import-untyped]  # it has no py.typed
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from cutlayer.core import Cut, ModelError, StorageError
from cutlayer.models.anatomy import FAMILIES, family_of
from cutlayer.models.cutting import Bottom, Tail, check_untied, embedding_table
from cutlayer.models.heads import FRESH, Head, frozen, model_class
from cutlayer.models.inputs import Template
from cutlayer.models.load import fingerprint, max_length
from cutlayer.models.seq2seq import Seq2SeqBottom, Seq2SeqTail, cut_up, target_template
from cutlayer.models.spelling import token_spellings

MANIFEST = "manifest.json"
_CONFIG = "config.json"
_WEIGHTS = "weights.safetensors"
_LARGEST_MANIFEST = 1 << 20
_READ_OF_ANY = frozenset({"attention_chunk_size", "head_dim", "is_causal", "layer_types", "sliding_window"})
"""What the models' code reads of a configuration whether or not its class knows it."""

FileName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
"""A flat name: nothing in a manifest can point outside the archive's folder."""


class FileEntry(BaseModel):
    """One file of an archive."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: FileName
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    size: int = Field(ge=0)


class Manifest(BaseModel):
    """What an archive holds.

    Attributes:
        name: The vendor's name of the model.
        family: Row of the anatomy table.
        fingerprint: Of the whole base model.
        cut: Which cut the archive is for.
        head: The head that a tail ends in.
        template: Where special tokens stand.
        target_template: The same of an encoder-decoder's target texts, as its decoder takes them.
        vocab_size: Rows of the embedding table.
        files: Every file but the manifest.
        aliases: Further names of tied weights, each with the name it is stored under.
        tied: Names of weights that the vendor's part holds too.
        fresh: Head modules that the checkpoint did not have.
        parameters_handed_out: Numbers in `weights.safetensors`.
        parameters_of_model: Numbers in the whole model.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    family: str
    fingerprint: str
    cut: Cut
    head: Head
    template: Template
    target_template: Template | None = None
    vocab_size: int
    files: tuple[FileEntry, ...]
    aliases: dict[str, str] = {}
    tied: tuple[str, ...] = ()
    fresh: tuple[str, ...] = ()
    parameters_handed_out: int
    parameters_of_model: int

    @property
    def has_weights(self) -> bool:
        """Whether the customer holds any part of the model."""
        return not self.cut.is_text or self.cut.tail is not None


@dataclass(frozen=True)
class Archive:
    """An archive, read and checked.

    Attributes:
        manifest: What it says of itself.
        tokenizer: The model's tokenizer.
        bottom: The lower part, of both stacks where there are two; None for a text cut.
        tail: The upper part, if the cut has one.
        candidates: `[vocab]` bool: the public list of tokens that a text-to-text release may hold.
    """

    manifest: Manifest
    tokenizer: PreTrainedTokenizerBase
    bottom: Bottom | Seq2SeqBottom | None
    tail: Tail | Seq2SeqTail | None
    candidates: Tensor

    @property
    def cut(self) -> Cut:
        """The cut it is for."""
        return self.manifest.cut

    @property
    def template(self) -> Template:
        """Where special tokens stand."""
        return self.manifest.template

    @property
    def target_template(self) -> Template:
        """Where they stand in a target text, as a decoder takes it.

        Raises:
            ModelError: The model is no encoder-decoder.
        """
        if self.manifest.target_template is None:
            raise ModelError(f"A {self.family} model takes no target texts.", remedy="Use an encoder-decoder.")
        return self.manifest.target_template

    @property
    def family(self) -> str:
        """The model's family."""
        return self.manifest.family

    @property
    def fingerprint(self) -> str:
        """Of the whole base model."""
        return self.manifest.fingerprint

    @property
    def table(self) -> Tensor | None:
        """The token-embedding table `[vocab, width]`, of both stacks where there are two; None for a text cut."""
        return None if self.bottom is None else self.bottom.table

    @cached_property
    def spellings(self) -> tuple[bytes, ...]:
        """How each token reads; see `token_spellings`."""
        return token_spellings(self.tokenizer, vocab_size=self.manifest.vocab_size)

    def check_trainable(self) -> None:
        """Checks that the customer may train these weights themselves, not only through adapters.

        Raises:
            ModelError: The vendor holds some of them too, and the two copies would drift apart.
        """
        check_untied(FAMILIES[self.family], self.cut, self.manifest.tied)

    @property
    def max_length(self) -> int | None:
        """The longest sequence, specials included."""
        return self.manifest.template.max_length


def write_archive(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, cut: Cut, folder: Path, *, name: str
) -> Manifest:
    """Writes the archive for one cut.

    Args:
        model: The whole model, as `load_model` gives it.
        tokenizer: Its tokenizer.
        cut: What the customer may have.
        folder: Where to; must not exist or be empty.
        name: The vendor's name of the model.

    Raises:
        ModelError: The cut does not fit into the model.
        StorageError: The folder holds something already.
    """
    if folder.exists() and any(folder.iterdir()):
        raise StorageError(f"{folder} is not empty.", remedy="Give an archive a folder of its own.")
    weights = _customers(model, cut)
    folder.mkdir(parents=True, exist_ok=True)
    _save_tokenizer(tokenizer, folder)
    if weights:
        (folder / _CONFIG).write_text(_config_json(model.config), encoding="utf-8")
        save_file(
            {key: value.detach().cpu().contiguous() for key, value in weights.items()},
            folder / _WEIGHTS,
            metadata={"format": "pt"},
        )
    stored = {id(value): key for key, value in weights.items()}
    template = Template.from_tokenizer(tokenizer, max_length=max_length(model.config))
    manifest = Manifest(
        name=name,
        family=model.config.model_type,
        fingerprint=fingerprint(model),
        cut=cut,
        head=Head.of(model),
        template=template,
        target_template=target_template(template, model.config),
        vocab_size=embedding_table(model).shape[0],
        files=tuple(_entry(path) for path in sorted(folder.iterdir())),
        aliases={
            alias: stored[id(parameter)]
            for alias, parameter in model.named_parameters(remove_duplicate=False)
            if alias != stored.get(id(parameter), alias)
        },
        tied=cut_up(model, cut).tied,
        fresh=getattr(model, FRESH, ()),
        parameters_handed_out=sum(value.numel() for value in weights.values()),
        parameters_of_model=sum(parameter.numel() for parameter in model.parameters()),
    )
    (folder / MANIFEST).write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """Reads an archive's manifest.

    Raises:
        StorageError: There is none, or it is not one of ours.
    """
    path = folder / MANIFEST
    try:
        if path.stat().st_size > _LARGEST_MANIFEST:
            raise StorageError(f"{path} is larger than {_LARGEST_MANIFEST} bytes.", remedy="Fetch the archive again.")
        return Manifest.model_validate_json(path.read_bytes())
    except OSError as error:
        raise StorageError(f"{path} cannot be read.", remedy="Fetch the archive again.") from error
    except ValidationError as error:
        places = ", ".join(".".join(str(step) for step in fault["loc"]) for fault in error.errors())
        raise StorageError(f"{path} is no manifest: {places} is off.", remedy="Fetch the archive again.") from error


def read_archive(folder: Path) -> Archive:
    """Reads an archive, after checking every file against its sha256.

    Raises:
        StorageError: A file is missing, damaged or not listed.
        ModelError: The archive does not hold what its cut needs.
    """
    manifest, tokenizer, candidates = _read(folder)
    if not manifest.has_weights:
        return Archive(manifest, tokenizer, None, None, candidates)
    parts = cut_up(_skeleton(folder, manifest), manifest.cut)
    for part in (parts.bottom, parts.tail):
        _check_whole(part)
    return Archive(manifest, tokenizer, parts.bottom, parts.tail, candidates)


def candidate_tokens(tokenizer: PreTrainedTokenizerBase, *, vocab_size: int) -> Tensor:
    """`[vocab]` bool: tokens that may stand for another: no special, unused or padding rows.

    The list depends on nothing but the tokenizer and the table's size, both public.
    """
    candidates = torch.zeros(vocab_size, dtype=torch.bool)
    special = set(tokenizer.all_special_ids)
    special |= {index for index, token in tokenizer.added_tokens_decoder.items() if token.special}
    for token, index in tokenizer.get_vocab().items():
        if index < vocab_size and index not in special and not _UNUSED.fullmatch(token):
            candidates[index] = True
    return candidates


_UNUSED = re.compile(r"[\[<]unused_?\d+[\]>]|madeupword\d+")
"""Rows that fill a table up to a round size: BERT's and T5's names, and fairseq's, which RoBERTa and OPT have."""


def _read(folder: Path) -> tuple[Manifest, PreTrainedTokenizerBase, Tensor]:
    manifest = read_manifest(folder)
    _check_files(folder, manifest)
    tokenizer = _load_tokenizer(folder)
    return manifest, tokenizer, candidate_tokens(tokenizer, vocab_size=manifest.vocab_size)


def _customers(model: PreTrainedModel, cut: Cut) -> dict[str, nn.Parameter]:
    """The customer's weights by whole-model name, tied ones once."""
    parts = cut_up(model, cut)
    held = {id(value) for part in (parts.bottom, parts.tail) if part is not None for value in part.parameters()}
    return {name: value for name, value in model.named_parameters() if id(value) in held}


def _save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    tokenizer = copy.deepcopy(tokenizer)
    # what an earlier call set; it would otherwise be saved and change the archive's bytes
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    for private in ("name_or_path", "tokenizer_file"):  # paths on the vendor's machine
        settings.pop(private, None)
    tokens = {*tokenizer.special_tokens_map, "extra_special_tokens"}
    settings = {name: value for name, value in settings.items() if name in tokens or not _names_a_path(value)}
    path.write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n", encoding="utf-8")


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


def _load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    try:
        # not the family's own class, which would build its pipeline anew: tokenizer.json is the vendor's
        tokenizer: PreTrainedTokenizerBase = PreTrainedTokenizerFast.from_pretrained(str(folder))
    except (OSError, ValueError, KeyError) as error:
        raise StorageError(f"The tokenizer in {folder} cannot be read.", remedy="Fetch the archive again.") from error
    return tokenizer


def _config_json(config: PretrainedConfig) -> str:
    """What the model's code reads of a configuration; checkpoints carry notes of their own training beside it."""
    plain = type(config)(num_labels=config.num_labels).to_dict()  # type: ignore[call-arg]  # all classes take it
    settings = {name: value for name, value in config.to_dict().items() if name in plain or name in _READ_OF_ANY}
    settings |= {name: plain[name] for name in ("id2label", "label2id")}  # the labels' names are the vendor's
    settings.pop("_name_or_path", None)  # a path on the vendor's machine
    return json.dumps(settings, indent=2, sort_keys=True) + "\n"


def _entry(path: Path) -> FileEntry:
    with open(path, "rb") as file:
        return FileEntry(
            name=path.name, sha256=hashlib.file_digest(file, "sha256").hexdigest(), size=path.stat().st_size
        )


def _check_files(folder: Path, manifest: Manifest) -> None:
    listed = {entry.name for entry in manifest.files}
    # names that start with a dot are left by interrupted downloads; nothing reads them
    present = {path.name for path in folder.iterdir() if not path.name.startswith(".")} - {MANIFEST}
    if present - listed:
        # an unlisted config or tokenizer file would be read without having been checked
        raise StorageError(
            f"{folder} holds {min(present - listed)}, which the manifest does not list.",
            remedy="Fetch the archive again into an empty folder.",
        )
    for entry in manifest.files:
        path = folder / entry.name
        if not path.is_file() or path.is_symlink():
            raise StorageError(f"{path} is missing.", remedy="Fetch the archive again.")
        found = _entry(path)
        if found != entry:
            raise StorageError(
                f"{path} has sha256 {found.sha256} ({found.size} bytes), the manifest says {entry.sha256} "
                f"({entry.size} bytes).",
                remedy="Fetch the archive again.",
            )


def _skeleton(folder: Path, manifest: Manifest) -> PreTrainedModel:
    """The whole model with the archive's weights; all others take no memory. Buffers are real."""
    settings = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
    if settings.get("model_type") != manifest.family:
        raise StorageError(
            f"{_CONFIG} is of family {settings.get('model_type')!r}, the manifest says {manifest.family!r}.",
            remedy="Fetch the archive again.",
        )
    config = CONFIG_MAPPING[manifest.family].from_dict(settings)
    family_of(config)
    with init_empty_weights(include_buffers=False):
        model: PreTrainedModel = model_class(config, manifest.head).from_config(config)
    setattr(model, FRESH, manifest.fresh)
    _fill(model, manifest, folder)
    return frozen(model)


def _fill(model: PreTrainedModel, manifest: Manifest, folder: Path) -> None:
    try:
        tensors = load_file(folder / _WEIGHTS)
    except (OSError, safetensors.SafetensorError) as error:
        raise StorageError(f"{folder / _WEIGHTS} cannot be read.", remedy="Fetch the archive again.") from error
    parameters: Mapping[str, nn.Parameter] = {
        name: nn.Parameter(tensor, requires_grad=False) for name, tensor in tensors.items()
    }
    for name, empty in list(model.named_parameters(remove_duplicate=False)):
        filled = parameters.get(manifest.aliases.get(name, name))
        if filled is None:
            continue
        if filled.shape != empty.shape:
            raise ModelError(
                f"{name} has shape {list(filled.shape)} in the archive, {list(empty.shape)} by its configuration.",
                remedy="Ask the vendor for a new archive.",
            )
        owner, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(owner), attribute, filled)


def _check_whole(part: nn.Module | None) -> None:
    """Checks that a part has all its weights."""
    lacking = [] if part is None else [name for name, value in part.named_parameters() if value.is_meta]
    if lacking:
        raise ModelError(
            f"The archive lacks {len(lacking)} weights of its parts, the first is {lacking[0]}.",
            remedy="Ask the vendor for a new archive.",
        )
