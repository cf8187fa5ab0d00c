"""What a customer receives of a model: tokenizer, table, bottom and tail, and never the top.

An archive is a folder of flat files: `manifest.json`, the tokenizer's files and, unless the cut is
the text cut, `config.json` and `weights.safetensors`. Weights carry their whole-model names. Reading
builds the whole model's skeleton without weights, cuts it by the same code that the vendor runs, and
fills in what came along; what a part needs and the archive lacks is an error, never a random draw.

Whoever wrote an archive may be hostile: of its files only what is known is read, and each size is compared with the
tensors that came, and bounded, before memory is taken for it.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Annotated, Self

import safetensors
import torch
from accelerate import init_empty_weights  # type: ignore[import-untyped]  # it has no py.typed
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from cutlayer.core import Cut, CutlayerError, ModelError, StorageError
from cutlayer.models.anatomy import FAMILIES
from cutlayer.models.configuration import ATTENTION, MAX_VOCABULARY, read_settings, settings_of
from cutlayer.models.cutting import Bottom, Tail, check_untied, embedding_table
from cutlayer.models.heads import FRESH, Head, frozen, model_class
from cutlayer.models.inputs import Template
from cutlayer.models.load import fingerprint, max_length
from cutlayer.models.seq2seq import Seq2SeqBottom, Seq2SeqTail, cut_up, target_template
from cutlayer.models.spelling import token_spellings
from cutlayer.models.tokenizer import LARGEST_TOKENIZER, as_json, read_json, read_tokenizer, save_tokenizer
from cutlayer.printable import quoted

MANIFEST = "manifest.json"
_CONFIG = "config.json"
_WEIGHTS = "weights.safetensors"
_LARGEST_MANIFEST = _LARGEST_CONFIG = 1 << 20
_LARGEST_HEADER = 1 << 24
_NUMBER_BYTES = 4
_LARGEST_BUFFERS = 1 << 28
"""Bytes that a model may take for what is no weight: numbers of positions, rotary frequencies."""
_ELEMENTS = ("F32", "BF16", "F16")

FileName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
"""A flat name: nothing in a manifest can point outside the archive's folder."""


class FileEntry(BaseModel):
    """One file of an archive."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: FileName
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    size: int = Field(ge=0)


def largest_file(name: str, *, parameters: int) -> int:
    """Most bytes that a file of an archive may have; 0 for a name that no archive has.

    Args:
        name: The file's.
        parameters: Numbers that the vendor says it hands out.
    """
    if name == _WEIGHTS:
        return _NUMBER_BYTES * parameters + _LARGEST_HEADER
    return LARGEST_TOKENIZER.get(name) or {MANIFEST: _LARGEST_MANIFEST, _CONFIG: _LARGEST_CONFIG}.get(name, 0)


MAX_SPECIALS = 64
"""Special tokens that a text gets."""


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

    name: FileName
    family: str = Field(pattern=r"^[a-z0-9_-]{1,64}$")
    fingerprint: str = Field(pattern=r"^[0-9a-f]{64}$")
    cut: Cut
    head: Head
    template: Template
    target_template: Template | None = None
    vocab_size: int = Field(ge=1, le=MAX_VOCABULARY)
    files: tuple[FileEntry, ...] = Field(max_length=16)
    aliases: dict[str, str] = {}
    tied: tuple[str, ...] = ()
    fresh: tuple[str, ...] = ()
    parameters_handed_out: int = Field(ge=0)
    parameters_of_model: int = Field(ge=0)

    @model_validator(mode="after")
    def _template_is_of_the_table(self) -> Self:
        for template in (self.template, self.target_template):
            for layout in () if template is None else (template.single, template.pair):
                ids = [token for gap in layout.specials for token in gap]
                if len(ids) > MAX_SPECIALS or not all(0 <= token < self.vocab_size for token in ids):
                    raise ValueError(f"special tokens are at most {MAX_SPECIALS} rows of the table")
        return self

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
        """Where the model was cut."""
        return self.manifest.cut

    @property
    def template(self) -> Template:
        """Where special tokens stand in a text."""
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
        """The model's `model_type`, a key of `FAMILIES`."""
        return self.manifest.family

    @property
    def fingerprint(self) -> str:
        """What names the base model's weights, heads left out; see `models.fingerprint`."""
        return self.manifest.fingerprint

    @property
    def tokenizing(self) -> str:
        """Names what makes token ids of texts: the tokenizer's files, and where special tokens stand."""
        files = " ".join(file.sha256 for file in self.manifest.files if file.name in LARGEST_TOKENIZER)
        return f"{files} {self.template.model_dump_json()}"

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
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    cut: Cut,
    folder: Path,
    *,
    name: str,
    offered: str | None = None,
) -> Manifest:
    """Writes the archive for one cut.

    Args:
        model: The whole model, as `load_model` gives it.
        tokenizer: Its tokenizer.
        cut: What the customer may have.
        folder: Where to; must not exist or be empty.
        name: The vendor's name of the model.
        offered: The fingerprint of what the vendor computes, if that is not this model, but the same in fewer bits.

    Raises:
        ModelError: The cut does not fit into the model.
        StorageError: The folder holds something already.
    """
    if folder.exists() and any(folder.iterdir()):
        raise StorageError(f"{folder} is not empty.", remedy="Give an archive a folder of its own.")
    weights = _customers(model, cut)
    folder.mkdir(parents=True, exist_ok=True)
    save_tokenizer(tokenizer, folder)
    if weights:
        (folder / _CONFIG).write_text(as_json(settings_of(model.config)), encoding="utf-8")
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
        fingerprint=offered or fingerprint(model),
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
        places = [".".join(map(str, fault["loc"])) or "body" for fault in error.errors()[:8]]
        raise StorageError(
            f"{path} is no manifest: {quoted(', '.join(places))} is off.", remedy="Fetch the archive again."
        ) from None


def read_archive(folder: Path) -> Archive:
    """Reads an archive, after checking every file against its sha256.

    Raises:
        StorageError: A file is missing, damaged or not listed.
        ModelError: The archive does not hold what its cut needs.
    """
    manifest, tokenizer, candidates = _read(folder)
    if not manifest.has_weights:
        return Archive(manifest, tokenizer, None, None, candidates)
    with _MADE_EMPTY:
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
    tokenizer = read_tokenizer(folder)
    return manifest, tokenizer, candidate_tokens(tokenizer, vocab_size=manifest.vocab_size)


def _customers(model: PreTrainedModel, cut: Cut) -> dict[str, nn.Parameter]:
    """The customer's weights by whole-model name, tied ones once."""
    parts = cut_up(model, cut)
    held = {id(value) for part in (parts.bottom, parts.tail) if part is not None for value in part.parameters()}
    return {name: value for name, value in model.named_parameters() if id(value) in held}


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
        if entry.size > largest_file(entry.name, parameters=manifest.parameters_handed_out):
            raise StorageError(
                f"{path} is no file of an archive, or larger than one: {entry.size} bytes.", remedy="Ask the vendor."
            )
        if not path.is_file() or path.is_symlink():
            raise StorageError(f"{path} is missing.", remedy="Fetch the archive again.")
        found = _entry(path)
        if found != entry:
            raise StorageError(
                f"{path} has sha256 {found.sha256} ({found.size} bytes), the manifest says {entry.sha256} "
                f"({entry.size} bytes).",
                remedy="Fetch the archive again.",
            )


_CHECKED: set[str] = set()
"""Manifests whose model was planned and checked in this process: a manifest has the digests of all that is read."""
_MADE_EMPTY = Lock()
"""Accelerate replaces a method of all modules of the process while a model is made empty: what another thread then puts
into one stays empty, too."""


def _skeleton(folder: Path, manifest: Manifest) -> PreTrainedModel:
    """The whole model with the archive's weights; all others take no memory. Buffers are real."""
    settings = read_json(folder / _CONFIG, largest=_LARGEST_CONFIG)
    if settings.get("model_type") != manifest.family:
        raise StorageError(
            f"{_CONFIG} is of family {quoted(str(settings.get('model_type')), longest=80)!r}, the manifest says "
            f"{manifest.family!r}.",
            remedy="Fetch the archive again.",
        )
    config = read_settings(settings, manifest.family)
    try:
        if (checked := manifest.model_dump_json()) not in _CHECKED:
            with torch.device("meta"):  # first without any memory, for what it would take
                planned = model_class(config, manifest.head).from_config(config, attn_implementation=ATTENTION)
            _check_plan(planned, manifest, folder)
            _CHECKED.add(checked)
        with init_empty_weights(include_buffers=False):
            model: PreTrainedModel = model_class(config, manifest.head).from_config(
                config, attn_implementation=ATTENTION
            )
    except CutlayerError:
        raise
    except Exception as error:  # what a class does not like of its settings it tells in many ways
        raise ModelError(
            f"No {manifest.family} model can be made of the archive's configuration: {type(error).__name__}.",
            remedy="Ask the vendor for a new archive.",
        ) from error
    setattr(model, FRESH, manifest.fresh)
    _fill(model, manifest, folder)
    return frozen(model)


def _check_plan(planned: PreTrainedModel, manifest: Manifest, folder: Path) -> None:
    """Checks what a configuration would build against the tensors that came, before memory is taken for either.

    Raises:
        StorageError: The file of weights cannot be read.
        ModelError: They do not fit together.
    """
    buffers = sum(buffer.nbytes for buffer in planned.buffers())
    if buffers > _LARGEST_BUFFERS:
        raise ModelError(
            f"The archive's configuration takes {buffers} bytes beside weights; at most {_LARGEST_BUFFERS} are taken.",
            remedy="Ask the vendor: no model needs as many.",
        )
    parameters = dict(planned.named_parameters(remove_duplicate=False))
    found = _stored(folder)
    for name, (element, _) in found.items():
        if name not in parameters or element not in _ELEMENTS:
            raise ModelError(
                f"The archive holds a tensor {quoted(name, longest=80)} of type {element}, which no part of it has.",
                remedy="Ask the vendor for a new archive.",
            )
    for name, planned_parameter in parameters.items():
        stored = found.get(manifest.aliases.get(name, name))
        if stored is not None and stored[1] != tuple(planned_parameter.shape):
            raise ModelError(
                f"{name} has shape {list(stored[1])} in the archive, {list(planned_parameter.shape)} by its "
                "configuration.",
                remedy="Ask the vendor for a new archive.",
            )
    stored_in_all = sum(math.prod(shape) for _, shape in found.values())
    counts = {
        "parameters_of_model": sum(parameter.numel() for parameter in planned.parameters()),
        # where some are missing, the part that lacks one names it
        "parameters_handed_out": max(stored_in_all, manifest.parameters_handed_out),
        "vocab_size": embedding_table(planned).shape[0],
    }
    for name, count in counts.items():
        if getattr(manifest, name) != count:
            raise ModelError(
                f"The archive's manifest says {name} = {getattr(manifest, name)}; configuration and tensors make it "
                f"{count}.",
                remedy="Ask the vendor for a new archive.",
            )


def _stored(folder: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Element type and shape of each tensor in the file of weights, by name; no tensor is read."""
    try:
        with safetensors.safe_open(folder / _WEIGHTS, "pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
            return {name: (part.get_dtype(), tuple(part.get_shape())) for name, part in slices.items()}
    except (OSError, safetensors.SafetensorError) as error:
        raise StorageError(f"{folder / _WEIGHTS} cannot be read.", remedy="Fetch the archive again.") from error


def _fill(model: PreTrainedModel, manifest: Manifest, folder: Path) -> None:
    parameters: Mapping[str, nn.Parameter] = {
        name: nn.Parameter(tensor, requires_grad=False) for name, tensor in load_file(folder / _WEIGHTS).items()
    }
    for name, _ in list(model.named_parameters(remove_duplicate=False)):
        filled = parameters.get(manifest.aliases.get(name, name))
        if filled is not None:
            owner, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(owner), attribute, filled)


def _check_whole(part: nn.Module | None) -> None:
    """Checks that a part has all its weights, and that they are numbers: noise on infinity hides nothing."""
    weights = [] if part is None else list(part.named_parameters())
    lacking = [name for name, value in weights if value.is_meta]
    if lacking:
        raise ModelError(
            f"The archive lacks {len(lacking)} weights of its parts, the first is {lacking[0]}.",
            remedy="Ask the vendor for a new archive.",
        )
    if wrong := [name for name, value in weights if not bool(value.isfinite().all())]:
        raise ModelError(
            f"{len(wrong)} weights of the archive's parts are not finite, the first in {wrong[0]}.",
            remedy="Ask the vendor for a new archive.",
        )
