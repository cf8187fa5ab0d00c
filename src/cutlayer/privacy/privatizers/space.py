"""Where distances are measured, and what may be released there."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from cutlayer.core import ConfigError, Fault
from cutlayer.privacy.context import Spellings
from cutlayer.privacy.words import Dictionary


@dataclass(frozen=True)
class Space:
    """Where distances are measured, and what may be released there.

    Attributes:
        table: `[vocabulary, width]`: the customer's token-embedding table; `None` at a text cut.
        candidates: `[vocabulary]` bool, public: tokens that text-to-text may return.
        fingerprint: Names the table, for example the sha256 of its bytes.
        boundary: Names what hidden rows are: the model's fingerprint and the cut.
        spellings: How tokens read.
        dictionary: What words are drawn with, where words are drawn and not tokens.
    """

    table: Tensor | None = None
    candidates: Tensor | None = None
    fingerprint: str = ""
    boundary: str = ""
    spellings: Spellings = Spellings()  # noqa: RUF009 - it does not change
    dictionary: Dictionary | None = None

    def require_table(self) -> Tensor:
        """The table, `[vocabulary, width]`.

        Raises:
            ConfigError: There is none.
        """
        if self.table is None:
            raise ConfigError(
                [Fault("table", None, "must be the token-embedding table; at a text cut the customer has none")]
            )
        return self.table
