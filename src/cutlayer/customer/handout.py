"""What the vendor hands out for a cut, fetched once and checked file by file."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cutlayer.core import ConfigError, Cut, Fault, ModelError, StorageError, VendorError
from cutlayer.customer.gate import Gate
from cutlayer.customer.home import Home, write_bytes
from cutlayer.customer.progress import Progress
from cutlayer.models import (
    Archive,
    fingerprint,
    largest_file,
    load_model,
    load_tokenizer,
    read_archive,
    write_archive,
)
from cutlayer.printable import quoted
from cutlayer.wire import Route, routes
from cutlayer.wire.messages import PROTOCOL, ArchiveFile, ArchiveManifest, ModelInfo, ModelList, ServiceInfo, WireType

_TYPE_BYTES = {WireType.BF16: 2, WireType.FP32: 4}
_ID_BYTES = 4
_LENGTH_BYTES = 8
"""Of a text's lengths, of two segments at most; a text has one position at least."""
_HEADER_BYTES = 1024
"""Of a frame's names and shapes of tensors."""


@dataclass(frozen=True)
class Offer:
    """A model, and what its vendor takes.

    Attributes:
        model: The model.
        positions: Of one frame at most, padding included.
        frame_bytes: Of one frame's body at most, where texts leave in it, or gradients.
    """

    model: ModelInfo
    positions: int
    frame_bytes: int

    def most_positions(self, row_type: WireType | None) -> int:
        """Most positions of a frame, padding included, whose body the vendor takes, too.

        Args:
            row_type: The element type of its rows; `None` where it has ids, or numbers of records.
        """
        of_row = _ID_BYTES if row_type is None else self.model.width * _TYPE_BYTES[row_type]
        return max(0, min(self.positions, (self.frame_bytes - _HEADER_BYTES) // (of_row + _LENGTH_BYTES)))


def choose_model(gate: Gate, name: str | None) -> Offer:
    """The vendor's model of that name, or its default one.

    Raises:
        ModelError: The vendor has no such model.
        VendorError: The vendor speaks another version of the protocol, or what it says of the model cannot be.
    """
    service = gate.send(routes.SERVICE).expect(ServiceInfo)
    if service.protocol != PROTOCOL:
        raise VendorError(
            f"The vendor speaks version {service.protocol} of the protocol, this customer version {PROTOCOL}.",
            status=200,
            remedy=f"Run the same version of cutlayer on both sides; the vendor's is {service.version}.",
        )
    models = {model.name: model for model in gate.send(routes.MODELS).expect(ModelList).models}
    wanted = name or service.default_model
    if wanted not in models:
        raise ModelError(
            f"The vendor has no model named {wanted!r}.", remedy=f"Choose one of: {quoted(', '.join(sorted(models)))}."
        )
    model = models[wanted]
    # what answers take of memory follows from it; less than the blocks' width is OPT's, which projects its output
    if model.embedding is not None and model.embedding.width > model.width:
        raise VendorError(
            f"The vendor's model {wanted} has width {model.width}, and its embeddings have {model.embedding.width}.",
            status=200,
            remedy="Ask the vendor; nothing was sent.",
        )
    return Offer(model, service.max_rows_per_step, service.max_step_bytes)


def fetch_archive(gate: Gate, home: Home, model: ModelInfo, cut: Cut, progress: Progress) -> Archive:
    """The bottom for a cut, from the customer's folder or from the vendor.

    Raises:
        ModelError: The vendor does not hand out a bottom that deep, or no model can be made of what it handed out.
        StorageError: A file does not hold what the manifest says.
        VendorError: What it hands out is not what was asked for.
        ConfigError: The bottom is larger than the customer accepts.
        PrivacyError: The vendor handed out another token table or tokenizer of this model before.
    """
    if cut.bottom is not None and cut.bottom > model.max_bottom:
        raise ModelError(
            f"The vendor hands out at most {model.max_bottom} of the {model.blocks} blocks of {model.name}, "
            f"not {cut.bottom}.",
            remedy=f"Use --bottom {model.max_bottom} or less.",
        )
    if cut.tail is not None and (model.max_tail is None or cut.tail > model.max_tail):
        none = model.max_tail is None
        raise ModelError(
            f"The vendor hands out no tail of {model.name}, which a language model needs."
            if none
            else f"The vendor hands out tails of at most {model.max_tail} of the "
            f"{model.target_blocks or model.blocks} blocks of {model.name}, not {cut.tail}.",
            remedy="Choose a decoder." if none else f"Use --tail {model.max_tail} or less.",
        )
    if cut.target > (0 if model.target_blocks is None else model.max_bottom):
        raise ModelError(
            f"{model.name} is no encoder-decoder, and has no target texts."
            if model.target_blocks is None
            else f"The vendor hands out at most {model.max_bottom} of the {model.target_blocks} decoder blocks of "
            f"{model.name}, not {cut.target}.",
            remedy="Choose an encoder-decoder."
            if model.target_blocks is None
            else f"Use --target-bottom {model.max_bottom} or less.",
        )
    where: dict[str, str | int] = {"model": model.name, "cut": cut.slug}
    manifest = gate.send(routes.ARCHIVE, where).expect(ArchiveManifest)
    _check_manifest(manifest, model)
    folder = home.archives / hashlib.sha256(manifest.model_dump_json().encode()).hexdigest()[:32]
    for number, file in enumerate(manifest.files):
        if fetch_file(gate, folder, file, routes.ARCHIVE_FILE, where):
            progress.update("fetch bottom", number + 1, len(manifest.files))
    archive = read_archive(folder)
    given = archive.manifest
    if (given.cut, given.family, given.fingerprint, given.vocab_size) != (
        cut,
        model.family,
        model.fingerprint,
        model.vocab_size,
    ):
        raise _other_archive(
            f"its files are cut {given.cut.slug} of a {given.family} model with {given.vocab_size} tokens"
        )
    home.known_models.check(gate.peer, model.name, archive)
    return archive


def fetch_file(gate: Gate, folder: Path, file: ArchiveFile, route: Route, where: Mapping[str, str | int]) -> bool:
    """Fetches and checks a file of what a vendor hands out, unless it is here whole; returns whether it was fetched.

    Args:
        gate: The door.
        folder: Where it is kept.
        file: Its name, size and checksum.
        route: How it is asked for.
        where: Of what it is, by the route's placeholders but `file`.

    Raises:
        StorageError: It does not have its checksum, or cannot be written.
    """
    path = safe_path(folder, file.name)
    if path.exists() and _digest(path) == file.sha256:
        return False
    content = gate.send(route, {**where, "file": file.name}, size=file.size).raw
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise StorageError(
            f"File {file.name} does not have the checksum that its manifest states.",
            remedy="Try again; if it stays so, ask the vendor.",
        )
    write_bytes(path, content)
    return True


def _check_manifest(manifest: ArchiveManifest, model: ModelInfo) -> None:
    """Checks what a vendor says that an archive is, before any of it is fetched.

    Raises:
        VendorError: It is of another model, or has files that no archive has.
        ConfigError: It is larger than the customer accepts.
    """
    if (manifest.family, manifest.fingerprint) != (model.family, model.fingerprint):
        raise _other_archive(f"it is of {manifest.family} {manifest.fingerprint[:16]}")
    if not manifest.parameters_handed_out <= manifest.parameters_of_model <= 2 * model.parameters:
        raise _other_archive(
            f"it hands out {manifest.parameters_handed_out} of {manifest.parameters_of_model} parameters, the model "
            f"has {model.parameters}"
        )
    for file in manifest.files:
        largest = largest_file(file.name, parameters=manifest.parameters_handed_out)
        if file.size > largest:
            raise _other_archive(f"it has a file {file.name} of {file.size} bytes; at most {largest} are taken")
    total, accepted = sum(file.size for file in manifest.files), accepted_bytes()
    if total > accepted:
        raise ConfigError(
            f"The bottom of {model.name} has {total} bytes; at most {accepted} are fetched.",
            remedy=f"Choose a shallower cut, or, if this machine has the memory for it, set {MOST_BYTES}={total}.",
        )


def _other_archive(why: str) -> VendorError:
    return VendorError(
        f"The vendor's archive is not what was asked for: {why}.",
        status=200,
        remedy="Ask the vendor: it may have changed the model meanwhile. Nothing of the archive is used.",
    )


MOST_BYTES = "CUTLAYER_MAX_ARCHIVE_BYTES"
_MOST_ACCEPTED = 16 * 2**30


def accepted_bytes() -> int:
    """Most bytes of an archive that are fetched: it is kept in memory, once as it came and then as weights.

    Raises:
        ConfigError: The environment says something that is no number.
    """
    given = os.environ.get(MOST_BYTES)
    if given is None:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return min(_MOST_ACCEPTED, memory // 2)
    if not (given.isascii() and given.isdigit() and len(given) <= 18):
        raise ConfigError([Fault(MOST_BYTES, given, "must be a number of bytes")])
    return int(given)


def local_archive(home: Home, source: str, cut: Cut) -> Archive:
    """The bottom of a model that the customer can load itself, without a vendor; see `local_archive_folder`."""
    return read_archive(local_archive_folder(home, source, cut))


def local_archive_folder(home: Home, source: str, cut: Cut) -> Path:
    """Where such an archive lies.

    Args:
        home: The customer's folder, where the archive is kept.
        source: `starter`, a local folder or a hub id.
        cut: Which bottom.
    """
    model = load_model(source, head=None)
    folder = home.archives / f"local-{fingerprint(model)[:24]}-{cut.slug}"
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=home.path) as temporary:
            write_archive(model, load_tokenizer(source), cut, Path(temporary) / "archive", name="local")
            home.archives.mkdir(exist_ok=True)
            try:
                (Path(temporary) / "archive").rename(folder)
            except OSError:
                if not folder.exists():  # else another process made the same one meanwhile
                    raise
    return folder


def safe_path(folder: Path, name: str) -> Path:
    """A file directly inside the folder.

    Raises:
        StorageError: The name points elsewhere.
    """
    if name != Path(name).name or name in ("", ".", ".."):
        raise StorageError(f"The vendor names a file {name!r}, which is outside its folder.", remedy="Ask the vendor.")
    return folder / name


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
