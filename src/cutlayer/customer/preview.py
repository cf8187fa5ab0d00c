"""What would leave, beside the original: drawn here, sent nowhere, charged nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self

from cutlayer.customer.results import PrivatizedText
from cutlayer.customer.shards import Drawing, ShardAccount, TextRows, Work, drawer_of, in_shards
from cutlayer.privacy import PrivacySpec


@dataclass(frozen=True)
class Draw:
    """What is drawn of a text.

    Attributes:
        privacy: How texts are privatized.
        model: `starter`, a local folder or a hub id; it must be the vendor's model.
        max_length: Tokens of a text, special tokens included, as in `Training`; the model's limit where it is left
            out.
        unsafe_noise_seed: Draws the noise from this seed, which then protects nothing.
    """

    privacy: PrivacySpec
    model: str = "starter"
    max_length: int | None = None
    unsafe_noise_seed: int | None = None


@dataclass(frozen=True)
class Preview:
    """Texts beside their releases.

    Attributes:
        texts: One for each text, in order.
        largest_distance: No two rows of the table are farther apart; eta times this is the worst case
            of one look. `None` where nothing is promised.
        cut_texts: How many texts were longer than allowed, and lost their end; a pair counts once.
        clear: By kind, how many words left as they are by the mechanism's own rule.
    """

    texts: tuple[PrivatizedText, ...]
    largest_distance: float | None
    cut_texts: int
    clear: Mapping[str, int]

    @classmethod
    def of(cls, stream: PreviewStream) -> Self:
        """All texts of a stream."""
        return cls(tuple(stream), stream.largest_distance, stream.cut_texts, dict(stream.clear))

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


class PreviewStream:
    """Texts beside their releases, one after the other, of a corpus of any size. What it counts is of those so far.

    Args:
        rows: The texts.
        drawing: What to draw.
        work: How it is gone about.
        account: Where to charge it.
    """

    def __init__(self, rows: TextRows, drawing: Drawing, work: Work, *, account: ShardAccount | None) -> None:
        drawer_of.cache_clear()  # a file that it was read from may have been written anew
        self._drawer = drawer_of(drawing)
        self._shards = in_shards(rows, drawing, work, account=account)
        self._texts = self._replaced = 0
        self.tokens = 0
        self.cut_texts = 0
        self.clear: Counter[str] = Counter()
        """By kind, how many words left as they are by the mechanism's own rule."""

    def __iter__(self) -> Iterator[PrivatizedText]:
        for shard in self._shards:
            self.cut_texts += shard.cut_texts
            self.clear += Counter(shard.clear)
            for text in shard.texts:
                self._texts += 1
                self._replaced += text.replaced
                self.tokens += text.tokens
                yield text

    def __len__(self) -> int:
        return self._texts

    @property
    def replaced(self) -> float:
        """Share of tokens that were replaced."""
        return self._replaced / max(1, self.tokens)

    @property
    def largest_distance(self) -> float | None:
        """As of a `Preview`."""
        return self._drawer.largest_distance

    def close(self) -> None:
        """Stops drawing at once."""
        self._shards.close()
