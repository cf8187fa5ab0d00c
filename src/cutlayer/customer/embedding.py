"""Settings of embeddings, beside those that they share with runs."""

from __future__ import annotations

from typing import Final, Literal

from cutlayer.core.setting import Shown, setting
from cutlayer.core.spec import SettingsSpec

EMBEDDING: Final = "Embedding"
"""The topic of these settings."""


class EmbeddingSettings(SettingsSpec):
    """What becomes of the vendor's answers."""

    denoiser: Literal["auto", "none"] = setting(
        "auto",
        help="auto: take the noise out of embeddings with the vendor's denoiser for this mechanism and eta, at home; "
        "where it has none, the call is refused. none: embeddings as they come.",
        shown=Shown(EMBEDDING, source="SnD §3.4"),
    )
