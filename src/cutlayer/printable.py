"""Text that somebody else wrote, as it may be shown: no character in it commands a terminal or reorders a line.

Below all rooms and without imports: the command line prints errors before anything that takes seconds is imported.
"""

from __future__ import annotations

_KEPT = "\n\t"
_BIDIRECTIONAL = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
"""Embeddings, overrides and isolates: what follows is read in another order than it stands. The marks that text in
Arabic or Hebrew needs (U+200E, U+200F, U+061C) are no part of it."""
_SEPARATORS = "\u2028\u2029"
"""Lines end here for some who read logs, and not for others."""

_ESCAPES = {
    code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    for code in (
        *range(0x20),  # C0: escape sequences begin here, and a carriage return writes over the line
        *range(0x7F, 0xA0),  # DEL and C1, where terminals know escape sequences of one character
        *map(ord, _BIDIRECTIONAL + _SEPARATORS),
        *range(0xD800, 0xE000),  # halves of surrogate pairs, which no output can encode
    )
    if chr(code) not in _KEPT
}


def printable(text: str) -> str:
    r"""The text with control characters written out (`\x1b`), line breaks and tabs left as they are.

    Control characters are C0, DEL and C1, what reorders a line, separators of lines and halves of surrogate pairs.
    """
    return text.translate(_ESCAPES)


def quoted(text: str, *, longest: int = 500) -> str:
    """Somebody else's words within a sentence of ours: one line, printable, and cut where they go on for too long."""
    line = " ".join(text[: longest + 1].split())
    return printable(line if len(text) <= longest else f"{line[:longest]}…")
