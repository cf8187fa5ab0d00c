"""The embedded decoder's model card, written from what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Card:
    """What a training run came to.

    Attributes:
        parameters: Of the model, the tied table once.
        tokens: Of each split.
        steps: Updates.
        tokens_per_step: Tokens of an update.
        seed: Initialisation and batches.
        hours: Of training.
        perplexity: Per token, of the saved model, by held-out split.
        trigram: The same of the modified Kneser-Ney trigram.
    """

    parameters: int
    tokens: Mapping[str, int]
    steps: int
    tokens_per_step: int
    seed: int
    hours: float
    perplexity: Mapping[str, float]
    trigram: Mapping[str, float]

    def render(self) -> str:
        """The card in Markdown, with the hub's metadata."""
        seen, available = self.steps * self.tokens_per_step, self.tokens["train"]
        rows = "\n".join(
            f"| {split} | {self.tokens[split]:,} | {ours:.2f} | {self.trigram[split]:.2f} "
            f"| {ours / self.trigram[split]:.3f} |"
            for split, ours in self.perplexity.items()
        )
        return f"""---
license: apache-2.0
language: en
library_name: transformers
pipeline_tag: text-generation
---

# starter-decoder

A GPT-2 of {self.parameters:,} parameters (6 blocks, width 256, 4 heads, 1,024 positions) with a byte-level BPE
tokenizer of its own (8,192 entries), trained from nothing so that cutlayer's decoder jobs, attacks and tests have a
real model where no other can be fetched. It continues English prose of before 1930 and knows little else: it is made
for measuring what leaks, not for use.

- **Data**: 102 public-domain books (children's, adventure and domestic prose), {available:,} tokens; three other books
  each for dev and test. No text that somebody may own, no personal data of living people, and the tastes and prejudices
  of its time.
- **Training**: {self.steps:,} steps of {self.tokens_per_step:,} tokens ({seen:,}, or {seen / available:.2f} epochs),
  {self.hours:.1f} hours on two CPU cores; Muon for the blocks' matrices, AdamW for the rest, bf16 products, no dropout,
  seed {self.seed}. The configuration has GPT-2's dropout of 0.1, which acts when it is fine-tuned.
- **Weights**: fp16; read as fp32. Licence: Apache-2.0, like the package.

Perplexity per token on books that it has not seen, beside an interpolated modified Kneser-Ney trigram on the same
tokens and training text:

| split | tokens | this model | trigram | ratio |
|---|---|---|---|---|
{rows}

Made again from the repository with: `python -m training.decoder --books FOLDER --out FOLDER`.
"""
