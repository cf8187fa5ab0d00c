"""No privacy, said out loud."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cutlayer.core import ConfigError, Deviation, Fault, Guarantee, PrecededTokens, Tokens
from cutlayer.privacy.context import Excerpts
from cutlayer.privacy.privatizers.privatizer import PRIVATIZERS, Privatizer
from cutlayer.privacy.privatizers.space import Space
from cutlayer.privacy.privatizers.words import WordsPrivatizer
from cutlayer.privacy.release import Release
from cutlayer.privacy.spec import PrivacySpec

_BLOCK = 1_000
"""Texts before which words are drawn at once."""


@dataclass(frozen=True)
class Behind:
    """Public words before texts that leave as they are.

    Attributes:
        words: Draws them.
        limits: Tokens of a row that the model takes, theirs among them: of single texts, and of pairs. `None` of a
            model without a limit.
    """

    words: WordsPrivatizer
    limits: tuple[int, int] | None

    def release(self, release: Release, texts: Tokens) -> Release:
        """Texts, which are released as they are, behind the words that are drawn for each by its name.

        Raises:
            ConfigError: A row is too long for the model.
        """
        return release.carried_as(self.tokens(release, texts), self.words.plain_context)

    def tokens(self, release: Release, texts: Tokens) -> PrecededTokens:
        """Token ids of the same.

        Args:
            release: Names the texts.
            texts: `n` texts.
        """
        words = self.words.plain_before(release.carried_as(texts, self.words.plain_context))
        own = torch.stack([side.lengths for side in texts.segments]).sum(0)
        limit = None if self.limits is None else self.limits[texts.segment_count - 1]
        before = words.segments[0].lengths
        if limit is not None and int((own + before).max()) > limit:
            raise ConfigError(
                f"A text of {int(own.max())} tokens leaves no room for plain words, which are up to "
                f"{int(before.max())} of the {limit} that fit the model.",
                remedy=f"Use a max_length of {max(1, limit - int(before.max()))} or less, or fewer plain tokens.",
            )
        return words.followed_by(texts)


@PRIVATIZERS.add("none")
class NoPrivacyPrivatizer(Privatizer):
    """Releases texts as they are: an event in the ledger with eta = ∞, not an absence of one.

    Attributes:
        behind: Public words before each text, where there are any.
    """

    behind: Behind | None = None

    def preceded_by(self, behind: Behind) -> NoPrivacyPrivatizer:
        """The same for texts behind public words, which are drawn, and charged to nobody.

        Args:
            behind: The words.
        """
        other = copy.copy(self)
        other.behind = behind
        return other

    @classmethod
    def faults(cls, spec: PrivacySpec, space: Space) -> Iterator[Fault]:
        """It needs nothing."""
        yield from ()

    @property
    def deviations(self) -> tuple[Deviation, ...]:
        """None: the paper's own line without privatization."""
        return ()

    def _caveats(self) -> tuple[str, ...]:
        return ()

    def _noise_guarantee(self) -> Guarantee:
        return Guarantee.nothing("Texts are released without noise: the vendor can read them, from hidden rows too.")

    def tokens(
        self,
        tokens: Tokens,
        *,
        labels: Tensor | None,
        look: int | None = None,
        excerpts: Excerpts | None = None,
    ) -> Release:
        """See `Privatizer.tokens`: the texts, untouched."""
        release = self._name(tokens, labels, look, excerpts).release
        release = replace(release, replaced=torch.zeros(len(release), dtype=torch.int64), pending=None)
        return release if self.behind is None else self.behind.release(release, tokens)

    def shape(self, tokens: Tokens) -> Tokens:
        """See `Privatizer.shape`: with what plain words became before each text."""
        if self.behind is None or not len(tokens):
            return tokens
        blocks = [tokens.select(some) for some in torch.arange(len(tokens)).split(_BLOCK)]
        named = [self._name(each, None, None, None).release for each in blocks]
        return PrecededTokens.concatenate([self.behind.tokens(*each) for each in zip(named, blocks, strict=True)])
