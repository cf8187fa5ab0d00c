"""The denoisers that a vendor hands out: whole folders beside a model, found whenever they are asked for."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import ValidationError

from cutlayer.core import StorageError
from cutlayer.core.files import removed
from cutlayer.vendor.problems import not_found
from cutlayer.vendor.settings import VendorSettings
from cutlayer.wire.denoisers import DenoiserInfo, DenoiserList

MANIFEST = "denoiser.json"
"""In a denoiser's folder: what it is."""
_NAME = re.compile(r"[0-9a-f]{32}")
TRAINING = ".training-"
"""What the folders of unfinished trainings begin with."""


def denoisers_of(settings: VendorSettings, model: str, *, fingerprint: str | None = None) -> DenoiserList:
    """The denoisers of a model, by name.

    Args:
        settings: The vendor's.
        model: Its name.
        fingerprint: Of the weights that they must be for; those of any where it is left out.
    """
    folder = settings.model(model) / "denoisers"
    found = sorted(path for path in folder.glob("*") if _NAME.fullmatch(path.name)) if folder.is_dir() else []
    told = [read_denoiser(path) for path in found]
    return DenoiserList(denoisers=tuple(each for each in told if fingerprint in (None, each.fingerprint)))


def read_denoiser(folder: Path) -> DenoiserInfo:
    """What a published denoiser says of itself.

    Raises:
        StorageError: It cannot be read.
    """
    try:
        return DenoiserInfo.model_validate_json((folder / MANIFEST).read_bytes())
    except (OSError, ValidationError) as error:
        raise StorageError(f"The denoiser in {folder} cannot be read.", remedy="Train it again.") from error


def denoiser_file(settings: VendorSettings, model: str, denoiser: str, file: str) -> Path:
    """A file of a denoiser.

    Raises:
        Refusal: There is no such denoiser, or no such file of it.
    """
    folder = settings.model(model) / "denoisers" / denoiser
    if not (folder / MANIFEST).is_file():
        raise not_found("denoiser", denoiser)
    if file not in {group.file.name for group in read_denoiser(folder).groups}:
        raise not_found("file", file if file.isalnum() else "of that name")
    return folder / file


def remove_denoiser(settings: VendorSettings, model: str, denoiser: str) -> bool:
    """Removes a denoiser, and says whether there was one; customers who have it keep it."""
    folder = settings.model(model) / "denoisers" / denoiser
    if not _NAME.fullmatch(denoiser) or not folder.is_dir():
        return False
    with removed(folder):
        pass
    return True
