"""How a vocabulary's tokens read, whatever the tokenizer's own marks for the beginnings of words."""

from __future__ import annotations

import unicodedata

from transformers import PreTrainedTokenizerBase

_BEFORE = "a"
"""Stands before a token when it is read, because some tokenizers write a text's first word without its blank."""
_TORN = "\N{REPLACEMENT CHARACTER}"


def token_spellings(tokenizer: PreTrainedTokenizerBase, *, vocab_size: int) -> tuple[bytes, ...]:
    """UTF-8 of each token in one Unicode form and case, with one blank before it where it begins a word.

    A token that is no text by itself (a part of a character, a special one) keeps the tokenizer's own name for it, so
    that no two of them read alike.

    Args:
        tokenizer: A fast Hugging Face tokenizer.
        vocab_size: Rows of the table; those beyond the tokenizer's vocabulary have no name.
    """
    names = tokenizer.convert_ids_to_tokens(list(range(min(vocab_size, len(tokenizer)))))
    before = tokenizer(_BEFORE, add_special_tokens=False)["input_ids"]
    skipped = len(tokenizer.decode(before, clean_up_tokenization_spaces=False))
    read = tokenizer.batch_decode([[*before, token] for token in range(len(names))], clean_up_tokenization_spaces=False)
    special = set(tokenizer.all_special_ids)
    return tuple(
        _normalised(text[skipped:])
        if text[skipped:] and _TORN not in text and token not in special
        else b"\xff" + str(name).encode()
        for token, (name, text) in enumerate(zip(names, read, strict=True))
    )


def _normalised(text: str) -> bytes:
    folded = unicodedata.normalize("NFKC", text).casefold()
    words = " ".join(folded.split())
    if not words:
        return b" "
    return ((" " if folded[0].isspace() else "") + words + (" " if folded[-1].isspace() else "")).encode()
