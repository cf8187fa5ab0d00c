"""What would leave, beside the original: drawn here, sent nowhere, charged nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from cutlayer.core import ConfigError, Payload, Rows, Tokens
from cutlayer.customer.progress import Progress
from cutlayer.customer.results import PrivatizedText
from cutlayer.customer.upload import BLOCK_TOKENS, blocks
from cutlayer.data import Dataset, tokenise
from cutlayer.models import Archive
from cutlayer.privacy import Privatizer


@dataclass(frozen=True)
class Preview:
    """Texts beside their releases.

    Attributes:
        texts: One for each text, in order.
        largest_distance: No two rows of the table are farther apart; eta times this is the worst case
            of one look. `None` where nothing is promised.
        cut_texts: How many texts were longer than allowed, and lost their end; a pair counts once.
    """

    texts: tuple[PrivatizedText, ...]
    largest_distance: float | None
    cut_texts: int

    def __len__(self) -> int:
        return len(self.texts)

    def __iter__(self) -> Iterator[PrivatizedText]:
        return iter(self.texts)

    def __getitem__(self, place: int) -> PrivatizedText:
        return self.texts[place]

    @property
    def tokens(self) -> int:
        """Tokens of all texts."""
        return sum(text.tokens for text in self.texts)

    @property
    def replaced(self) -> float:
        """Share of tokens that were replaced."""
        return sum(text.replaced for text in self.texts) / max(1, self.tokens)


def preview(
    dataset: Dataset, archive: Archive, privatizer: Privatizer, *, max_length: int | None, progress: Progress
) -> Preview:
    """Draws what would leave for each text.

    Args:
        dataset: The texts.
        archive: Tokenizer, template and table.
        privatizer: Where releases are privatized.
        max_length: Tokens of a text, special tokens included; `None` for the model's limit.
        progress: Where to show progress.
    """
    max_content = archive.template.max_content(dataset.segments, max_length)
    tokens = tokenise(dataset, archive.tokenizer, max_content=max_content)
    shown: list[PrivatizedText] = []
    for indices in blocks(tokens, BLOCK_TOKENS):
        original = tokens.select(indices)
        released = privatizer.tokens(original, labels=None).payload
        shown += [_side_by_side(archive, original, released, row) for row in range(len(indices))]
        progress.update("privatize", int(indices[-1]) + 1, len(dataset))
    return Preview(tuple(shown), privatizer.largest_distance(), _cut_texts(dataset, tokens, archive, max_content))


def _cut_texts(dataset: Dataset, tokens: Tokens, archive: Archive, max_content: int) -> int:
    """How many texts have more tokens than were kept of them."""
    # a text that is cut keeps all that is allowed, so only those that do are tokenised again
    full = (_lengths(tokens) == max_content).nonzero().flatten().tolist()
    longer = tokenise(dataset.select(full), archive.tokenizer, max_content=max_content + 1)
    return int((_lengths(longer) > max_content).sum())


def _lengths(tokens: Tokens) -> torch.Tensor:
    return torch.stack([segment.lengths for segment in tokens.segments]).sum(0)


def _side_by_side(archive: Archive, original: Tokens, released: Payload, row: int) -> PrivatizedText:
    if isinstance(released, Rows):
        raise ConfigError("Only text-to-text releases can be read as text.")
    pairs = [(before[row], after[row]) for before, after in zip(original.segments, released.segments, strict=True)]
    return PrivatizedText(
        original=tuple(str(archive.tokenizer.decode(before)) for before, _ in pairs),
        released=tuple(str(archive.tokenizer.decode(after)) for _, after in pairs),
        replaced=sum(int((before != after).sum()) for before, after in pairs),
        tokens=sum(len(before) for before, _ in pairs),
    )
