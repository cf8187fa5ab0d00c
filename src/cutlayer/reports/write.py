"""A report as files: JSON for machines, Markdown for readers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cutlayer.core import StorageError
from cutlayer.reports.cells import write_json
from cutlayer.reports.table import Table


def write_report(
    folder: Path, tables: Sequence[Table], content: Mapping[str, Any], *, title: str, pictures: Sequence[str] = ()
) -> tuple[Path, Path]:
    """Writes `report.json` and `report.md`.

    Args:
        folder: Where to.
        tables: For readers.
        content: For machines; numbers must be finite.
        title: The heading.
        pictures: Files in the same folder to be shown.

    Returns:
        Both paths.

    Raises:
        StorageError: A file cannot be written.
    """
    machines, readers = folder / "report.json", folder / "report.md"
    write_json(machines, content)
    parts = [f"# {title}\n", *(f"![{Path(name).stem}]({name})\n" for name in pictures), *(t.markdown() for t in tables)]
    try:
        readers.write_text("\n".join(parts), encoding="utf-8")
    except OSError as error:
        raise StorageError(
            f"{readers} cannot be written: {error.strerror}.", remedy="Choose another folder."
        ) from error
    return machines, readers
