"""Tables for readers: one shape for the terminal and for Markdown."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Table(BaseModel):
    """A table.

    Attributes:
        title: What it shows.
        columns: Headings.
        rows: Cells, as text.
        notes: Sentences below it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    def markdown(self) -> str:
        """The table in Markdown."""
        lines = [self.columns, tuple("---" for _ in self.columns), *self.rows]
        table = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
        return "\n\n".join([f"## {self.title}", table, *self.notes]) + "\n"


def percent(value: float | None, digits: int = 1) -> str:
    """A share in per cent; a dash where there is none."""
    return "–" if value is None else f"{100 * value:.{digits}f}"
