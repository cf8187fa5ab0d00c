"""A page as a browser would see it, without one: its elements, its rows, its words."""

from __future__ import annotations

from html.parser import HTMLParser

_SILENT = frozenset({"script", "style"})
_VOID = frozenset({"meta", "link", "br", "rect"})


class Page(HTMLParser):
    """Reads a page.

    Attributes:
        elements: Name and attributes of each, in order.
        words: All that can be read, blanks run together.
        scripts: What scripts hold.
        tables: By name, the words of each cell of each row.
        inside: By id, the words of an element.
    """

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.scripts: list[str] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.inside: dict[str, str] = {}
        self._open: list[tuple[str, str | None]] = []
        self._said: list[str] = []
        self._rows: list[list[str]] = []
        self.feed(html)
        self.close()
        assert not self._open, f"not closed: {self._open}"
        self.words = " ".join("".join(self._said).split())
        for rows in self.tables.values():
            rows[:] = [[" ".join(cell.split()) for cell in row] for row in rows]
        self.inside = {name: " ".join(words.split()) for name, words in self.inside.items()}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        assert len(given) == len(attrs), f"<{tag}> has an attribute twice"
        self.elements.append((tag, given))
        if tag == "table":
            self._rows = self.tables[given["aria-labelledby"]] = []
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("th", "td"):
            self._rows[-1].append("")
        if tag not in _VOID:
            self._open.append((tag, given.get("id")))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        if tag not in _VOID:
            opened, _ = self._open.pop()
            assert opened == tag, f"</{tag}> closes <{opened}>"

    def handle_data(self, data: str) -> None:
        names = [tag for tag, _ in self._open]
        if names and names[-1] == "script":
            self.scripts.append(data)
        if _SILENT & set(names):
            return
        self._said.append(data)
        for _, name in self._open:
            if name is not None:
                self.inside[name] = self.inside.get(name, "") + data
        if {"td", "th"} & set(names):
            self._rows[-1][-1] += data

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def row(self, table: str, first: str) -> list[str]:
        (found,) = [row for row in self.tables[table] if row[0] == first and len(row) > 1]
        return found
