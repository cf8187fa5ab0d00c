"""The denoisers that a vendor hands out: whole folders beside a model, found whenever they are asked for."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path

from filelock import FileLock, Timeout
from pydantic import ValidationError

from cutlayer.core import ConfigError, StorageError
from cutlayer.core.files import TEMPORARY, make_folder, removed, whole_folder
from cutlayer.vendor.problems import not_found
from cutlayer.vendor.settings import VendorSettings
from cutlayer.wire.denoisers import DenoiserInfo, DenoiserList

log = logging.getLogger("cutlayer.vendor")

MANIFEST = "denoiser.json"
"""In a denoiser's folder: what it is."""
_NAME = re.compile(r"[0-9a-f]{32}")
TRAINING = ".training-"
"""What the folders of unfinished trainings begin with."""
_LOCK = "lock"
_WAITED = 1.0
"""Seconds in which whoever merely looks whether a training lives has looked."""


def denoisers_of(settings: VendorSettings, model: str, *, fingerprint: str | None = None) -> DenoiserList:
    """The denoisers of a model, by name; one that cannot be read is left out, and told of in the log.

    Args:
        settings: The vendor's.
        model: Its name.
        fingerprint: Of the weights that they must be for; those of any where it is left out.
    """
    told, unreadable = read_denoisers(settings, model)
    for name in unreadable:
        _tell_once(settings.denoisers(model) / name)
    return DenoiserList(denoisers=tuple(each for each in told if fingerprint in (None, each.fingerprint)))


@cache
def _tell_once(folder: Path) -> None:
    """Customers ask for the list with every call: a line for each would fill the log."""
    log.warning("denoiser %s cannot be read and is not offered; remove it, and train it again", folder.name)


def read_denoisers(settings: VendorSettings, model: str) -> tuple[list[DenoiserInfo], list[str]]:
    """What the published denoisers of a model say of themselves, and the ids of those that cannot be read."""
    folder = settings.denoisers(model)
    found = sorted(path for path in folder.glob("*") if _NAME.fullmatch(path.name)) if folder.is_dir() else []
    told, unreadable = list[DenoiserInfo](), list[str]()
    for path in found:
        try:
            told.append(read_denoiser(path))
        except StorageError:
            unreadable.append(path.name)
    return told, unreadable


def unfinished(settings: VendorSettings, model: str) -> tuple[str, ...]:
    """Denoisers of a model whose training was begun and is not finished, by the ids that they will have."""
    folder = settings.denoisers(model)
    found = (path.name.removeprefix(TRAINING) for path in sorted(folder.glob(f"{TRAINING}*")))
    return tuple(name for name in found if _NAME.fullmatch(name))


def read_denoiser(folder: Path) -> DenoiserInfo:
    """What a published denoiser says of itself.

    Raises:
        StorageError: It cannot be read.
    """
    try:
        return DenoiserInfo.model_validate_json((folder / MANIFEST).read_bytes())
    except (OSError, ValidationError) as error:
        raise StorageError(
            f"The denoiser in {folder} cannot be read.",
            remedy="Remove it (cutlayer vendor denoiser remove), and train it again.",
        ) from error


@contextmanager
def training_folder(work: Path) -> Iterator[None]:
    """Holds the folder of an unfinished training for this process: two would remove each other's files.

    However the process ends, the next one may have it.

    Args:
        work: The folder; made if it is not there.

    Raises:
        ConfigError: Another process works on this training.
    """
    make_folder(work)
    held = FileLock(work / _LOCK, timeout=_WAITED, mode=0o600)
    try:
        held.acquire()
    except Timeout as error:
        raise ConfigError(
            f"Denoiser {work.name.removeprefix(TRAINING)} is being trained already, of these texts and settings.",
            remedy="Wait until that training ends, or stop it; started again, it goes on.",
        ) from error
    try:
        yield
    finally:
        held.release()


def in_training(path: Path) -> bool:
    """Whether a temporary file or folder is of a training that a process works on now: beside the service, perhaps."""
    name, _, _ = path.name.removeprefix(TEMPORARY).partition(".")
    works = [path.with_name(f"{TRAINING}{name}"), *(each for each in path.parents if each.name.startswith(TRAINING))]
    return any(map(_is_held, works))


def _is_held(work: Path) -> bool:
    if not (work / _LOCK).is_file():
        return False
    try:
        with FileLock(work / _LOCK, timeout=0):
            return False
    except Timeout:
        return True


def offer_denoiser(settings: VendorSettings, model: str, folder: Path) -> DenoiserInfo:
    """Has a model's vendor hand out a denoiser that stands in another folder, if it does not yet.

    Args:
        settings: The vendor's.
        model: Its name.
        folder: The denoiser's, as it was published.

    Raises:
        StorageError: It cannot be read, or copied.
    """
    info = read_denoiser(folder)
    place = settings.denoisers(model) / info.denoiser
    if not place.exists():
        with whole_folder(place) as draft:
            shutil.copytree(folder, draft, dirs_exist_ok=True)
    return info


def denoiser_file(settings: VendorSettings, model: str, denoiser: str, file: str) -> Path:
    """A file of a denoiser.

    Raises:
        Refusal: There is no such denoiser, or no such file of it.
    """
    folder = settings.denoisers(model) / denoiser
    if not (folder / MANIFEST).is_file():
        raise not_found("denoiser", denoiser)
    if file not in {group.file.name for group in read_denoiser(folder).groups}:
        raise not_found("file", file if file.isalnum() else "of that name")
    return folder / file


def remove_denoiser(settings: VendorSettings, model: str, denoiser: str) -> bool:
    """Removes a denoiser, or what an unfinished training left, and says whether there was one.

    Customers who fetched it no longer use it: they ask the vendor each time what it offers.

    Raises:
        ConfigError: It is being trained.
    """
    if not _NAME.fullmatch(denoiser):
        return False
    folder = settings.denoisers(model)
    whole, work = folder / denoiser, folder / f"{TRAINING}{denoiser}"
    there = [path for path in (work, whole) if path.is_dir()]
    for path in there:
        with training_folder(work) if path == work else nullcontext(), removed(path):
            pass
    return bool(there)
