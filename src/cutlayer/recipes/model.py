"""A model whose text is measured, and all that is asked of it beside its weights."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import cast

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from cutlayer.core import Cut
from cutlayer.customer.defaults import PAPERS, Learner
from cutlayer.models import (
    Bottom,
    Family,
    Head,
    Kind,
    Template,
    block_list,
    candidate_tokens,
    family_of,
    fingerprint,
    load_classifier,
    load_model,
    load_tokenizer,
    max_length,
    split,
)
from cutlayer.privacy import CustomerSecret, NeighbourSearch, TextToText
from cutlayer.privacy.privatizers.space import Space
from cutlayer.privacy.privatizers.text_to_text import TextToTextPrivatizer


class Model:
    """A model whose text is measured, loaded when it is first asked for.

    Args:
        source: An embedded model's name, a local folder or a hub id.
        head: Which head it has.
    """

    def __init__(self, source: str, head: Head | None) -> None:
        self.source = source
        self.head = head

    @cached_property
    def whole(self) -> PreTrainedModel:
        """The model; not to be changed."""
        if self.head is Head.CLASSIFICATION:
            return load_classifier(self.source)
        return load_model(self.source, head=self.head)

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint(self.whole)

    @cached_property
    def family(self) -> Family:
        return family_of(self.whole.config)

    @cached_property
    def blocks(self) -> int:
        """How many blocks its first stack has."""
        return len(block_list(self.whole, self.family.stacks[0]))

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return load_tokenizer(self.source)

    @cached_property
    def limit(self) -> int | None:
        """The most tokens of a text, if its positions end."""
        return max_length(self.whole.config)

    @cached_property
    def template(self) -> Template:
        return Template.from_tokenizer(self.tokenizer, max_length=self.limit)

    @cached_property
    def learner(self) -> Learner:
        """What a classifier's default schedule depends on; as many texts as of SAP's, so that epochs are not more."""
        drops_out = self.family.kind is not Kind.ENCODER_DECODER
        return replace(PAPERS, width=self.whole.config.hidden_size, drops_out=drops_out)

    @cached_property
    def replacing(self) -> TextToTextPrivatizer:
        """Replaces tokens by the nearest rows of its table, to measure: its noise is no secret."""
        table = cast(Bottom, split(self.whole, Cut(bottom=0)).bottom).table.detach()
        space = Space(table, candidate_tokens(self.tokenizer, vocab_size=len(table)), self.fingerprint)
        return TextToTextPrivatizer(TextToText(eta=1.0), secret=CustomerSecret.unsafe(0), space=space)

    @property
    def search(self) -> NeighbourSearch:
        """The nearest rows of its token-embedding table."""
        return self.replacing.search
