"""A leak report on disk: a page for people, JSON for machines, and the frontier as a picture."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from cutlayer.core import StorageError
from cutlayer.core.files import write_whole
from cutlayer.reports.page.picture import draw_frontier
from cutlayer.reports.page.render import render
from cutlayer.reports.schema import SCHEMA_VERSION, AuditReport

PAGE, MACHINES, PICTURE = "report.html", "report.json", "frontier.png"


def write_audit(folder: Path, report: AuditReport) -> tuple[Path, ...]:
    """Writes a report's files, each whole; nobody but their owner can read them, for examples are private text.

    Args:
        folder: Where to; made on first use.
        report: The report.

    Returns:
        The files: `report.html`, `report.json`, and `frontier.png` where there is a frontier to draw.

    Raises:
        StorageError: A file cannot be written.
    """
    contents: dict[str, bytes | None] = {
        PAGE: render(report).encode(),
        MACHINES: report.model_dump_json(indent=1).encode() + b"\n",
        PICTURE: None if report.frontier is None else draw_frontier(report.frontier),
    }
    written = []
    for name, content in contents.items():
        path = folder / name
        try:
            if content is not None:
                write_whole(path, content)
                written.append(path)
            else:
                # of an earlier report in the same folder
                path.unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(
                f"{path} cannot be written: {error.strerror}.", remedy="Free some space or choose another folder."
            ) from error
    return tuple(written)


def read_audit(path: Path) -> AuditReport:
    """Reads a report.

    Args:
        path: `report.json`, or the folder that it is in.

    Raises:
        StorageError: There is none, or it is not of this version's format.
    """
    file = path / MACHINES if path.is_dir() else path
    try:
        content = file.read_bytes()
    except OSError as error:
        raise StorageError(
            f"{file} cannot be read: {error.strerror}.", remedy="Name a folder that holds a leak report."
        ) from error
    try:
        report = AuditReport.model_validate_json(content)
    except ValidationError:
        # its message would quote private text
        raise StorageError(f"{file} holds no leak report of this version.", remedy="Make the report again.") from None
    if report.schema_version != SCHEMA_VERSION:
        raise StorageError(
            f"{file} is of format {report.schema_version}, and this version of cutlayer reads {SCHEMA_VERSION}.",
            remedy="Read it with the version that wrote it.",
        )
    return report
