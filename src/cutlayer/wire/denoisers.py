"""Messages about denoisers that a vendor hands out: for which releases each was trained, and how well it does."""

from __future__ import annotations

from typing import Annotated

from pydantic import FailFast, Field

from cutlayer.core.denoiser import DenoiserSpec
from cutlayer.core.embedding import EmbeddingSpec
from cutlayer.wire.messages import ArchiveFile, Count, Digest, Form, Identifier, Message, WireType, Word

MOST_GROUPS = 16
MOST_ETAS = 16
"""That one denoiser learns from."""
MOST_CORPORA = 64

Eta = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=-1, le=1)]


class Corpus(Message):
    """Public text that denoisers were trained on."""

    name: Annotated[str, Field(max_length=255)] = ""
    """As the vendor calls it: a file's name without its folder."""
    sha256: Digest
    texts: Count


class Distances(Message):
    """How far embeddings of public text that was kept back are from those of the text as it was."""

    mse: float = Field(ge=0, allow_inf_nan=False)
    """Squared differences, mean over numbers and texts, before normalisation."""
    cosine: Share


class DenoiserGroup(Message):
    """One denoiser of several: each serves the etas of a range."""

    lowest: Eta
    highest: Eta
    trained_at: Annotated[tuple[Eta, ...], Field(min_length=1, max_length=MOST_ETAS), FailFast()]
    file: ArchiveFile
    noisy: Distances
    """As the model answers."""
    denoised: Distances
    without_answer: Distances
    """Denoised with the mean answer in the place of the model's own: how much the denoiser relies on that."""
    mean_embedding: Distances
    """The mean embedding of public text, one for all texts: what no denoiser should be worse than."""
    n: Count
    """Texts that were kept back."""


class DenoiserInfo(Message):
    """Denoisers of one model and mechanism, by eta.

    They fit releases of the same table, mechanism, form and element type, embedded and pooled by the same weights.
    """

    denoiser: Identifier
    fingerprint: Digest
    table: Digest
    embedding: EmbeddingSpec
    shape: DenoiserSpec
    mechanism: Word
    noise: Word
    clip: bool
    form: Form
    wire_type: WireType
    steps: Count
    seed: Count
    without_answer: bool = False
    """A control: it was trained, and is used, with the mean noisy answer in place of the model's answer."""
    corpora: Annotated[tuple[Corpus, ...], Field(min_length=1, max_length=MOST_CORPORA), FailFast()]
    groups: Annotated[tuple[DenoiserGroup, ...], Field(min_length=1, max_length=MOST_GROUPS), FailFast()]

    @property
    def releases(self) -> str:
        """What it is for, in a few words."""
        return releases_told(self.mechanism, clip=self.clip, rows=self.wire_type if self.form is Form.ROWS else None)


def releases_told(mechanism: str, *, clip: bool, rows: WireType | None) -> str:
    """Releases in a few words: their mechanism, and the element type of rows."""
    return f"{mechanism}{' with clip' * clip}{f' in {rows}' if rows else ''}"


class DenoiserList(Message):
    """The denoisers of a model."""

    denoisers: Annotated[tuple[DenoiserInfo, ...], FailFast()]
