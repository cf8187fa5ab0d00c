from __future__ import annotations

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from cutlayer.core import DataError
from cutlayer.data import NO_TAG, tokenise_words

PIECES = ["[UNK]", "new", "york", "york", "##er", "##s", "a", "b"]


@pytest.fixture(scope="module")
def tokenizer():
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(PIECES))}
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")


def test_a_words_first_piece_has_its_tag(tokenizer):
    ids, tags = tokenise_words([["new", "yorkers", "a"], [], ["b"]], [[3, 4, 0], [], [0]], tokenizer, max_content=9)
    assert tokenizer.convert_ids_to_tokens(ids.segments[0][0].tolist()) == ["new", "york", "##er", "##s", "a"]
    assert tags.segments[0][0].tolist() == [3, 4, NO_TAG, NO_TAG, 0]
    assert tags.segments[0].lengths.tolist() == ids.segments[0].lengths.tolist() == [5, 0, 1]


def test_long_texts_lose_their_end_and_lost_words_their_tag(tokenizer):
    ids, tags = tokenise_words([["", "yorkers", "a"]], [[1, 2, 3]], tokenizer, max_content=2)
    assert tokenizer.convert_ids_to_tokens(ids.segments[0][0].tolist()) == ["york", "##er"]
    assert tags.segments[0][0].tolist() == [2, NO_TAG]


def test_each_word_needs_a_tag(tokenizer):
    with pytest.raises(DataError, match="Text 2 has 2 words and 1 tags"):
        tokenise_words([["a"], ["a", "b"]], [[0], [0]], tokenizer, max_content=9)
