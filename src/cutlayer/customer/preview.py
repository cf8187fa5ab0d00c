"""What would leave, beside the original: drawn here, sent nowhere, charged nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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
    """

    texts: tuple[PrivatizedText, ...]
    largest_distance: float | None

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
    tokens = tokenise(
        dataset, archive.tokenizer, max_content=archive.template.max_content(dataset.segments, max_length)
    )
    shown: list[PrivatizedText] = []
    for indices in blocks(tokens, BLOCK_TOKENS):
        original = tokens.select(indices)
        released = privatizer.tokens(original, labels=None).payload
        shown += [_side_by_side(archive, original, released, row) for row in range(len(indices))]
        progress.update("privatize", int(indices[-1]) + 1, len(dataset))
    return Preview(tuple(shown), privatizer.largest_distance())


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
