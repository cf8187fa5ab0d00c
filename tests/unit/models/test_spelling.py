"""How tokens read, by which the ledger knows a text again: in one case, Unicode form and number of blanks."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from cutlayer.models.spelling import token_spellings


def byte_level(*pieces: bytes) -> PreTrainedTokenizerBase:
    """A tokenizer of `a` and these pieces, written as in GPT-2's vocabulary, with one special token."""
    written = [_written(piece) for piece in (b"a", *pieces)]
    tokenizer = Tokenizer(models.BPE({piece: number for number, piece in enumerate(written)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")


def _written(piece: bytes) -> str:
    """Bytes in the letters of byte-level vocabularies: those that can be printed stand for themselves."""
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printed]
    return "".join(chr(byte) if byte in printed else chr(0x100 + others.index(byte)) for byte in piece)


def test_tokens_that_read_alike_are_spelled_alike() -> None:
    wide, sharp = "\N{FULLWIDTH LATIN SMALL LETTER S}lept".encode(), "\N{LATIN SMALL LETTER SHARP S}".encode()
    expected = {
        b" slept": (b" slept", b" Slept", b" SLEPT", b" " + wide, b"\tslept"),
        b"slept": (b"slept", b"SLEPT", wide),
        b" ": (b" ", b"  ", b"\n"),
        b"ss": (b"ss", sharp),
    }
    tokenizer = byte_level(*(piece for pieces in expected.values() for piece in pieces))
    _, *found, special = token_spellings(tokenizer, vocab_size=len(tokenizer))
    assert found == [spelled for spelled, pieces in expected.items() for _ in pieces]
    assert special == b"\xff</s>"


def test_parts_of_a_character_are_told_apart() -> None:
    first, second = "\N{LATIN SMALL LETTER A WITH GRAVE}".encode()[:1], "\N{EURO SIGN}".encode()[:1]
    tokenizer = byte_level(first, second)
    found = token_spellings(tokenizer, vocab_size=len(tokenizer) + 5)
    assert len(set(found)) == len(found) == len(tokenizer), "rows beyond the vocabulary have no name"
