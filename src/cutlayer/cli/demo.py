"""`cutlayer demo`: both parties and an attacker on this machine."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Adds the command to the main app."""
