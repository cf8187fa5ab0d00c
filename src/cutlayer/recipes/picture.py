"""A figure as a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cutlayer.core import StorageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def save_picture(figure: Figure, path: Path) -> None:
    """Writes a figure as PNG; the file depends on nothing but what is drawn.

    Raises:
        StorageError: It cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120, format="png", metadata={"Software": None})
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}.", remedy="Choose another folder.") from error
