"""The embedded decoder: whole, small enough to ship, and a language model."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest
import torch

from cutlayer.core import StorageError
from cutlayer.models import STARTER_DECODER, Head, load, load_model, load_tokenizer
from training.books import encode, read_books
from training.decoder import perplexity
from training.kneser_ney import KneserNey

FOLDER = Path(load.__file__).parent / "starter_decoder"
PROSE = (
    "The old man sat down by the fire and looked at the children. It had been raining all day, and the road to the "
    "village was deep in mud. He said that they must wait until the morning."
)


def test_it_fits_into_the_package():
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) <= 16 * 2**20
    card = (FOLDER / "README.md").read_text()
    for said in ("license: apache-2.0", "public-domain", "held", "python -m training.decoder"):
        assert said in card.replace("has not seen", "held")


def test_it_knows_english_from_its_words_in_disorder():
    model, tokenizer = load_model(STARTER_DECODER, head=None), load_tokenizer(STARTER_DECODER)
    assert Head.of(model) is Head.LANGUAGE
    assert model.dtype is torch.float32
    assert 4e6 < sum(parameter.numel() for parameter in model.parameters()) < 8e6

    def of(text: str) -> float:
        ids = tokenizer(text, return_tensors="pt").input_ids
        with torch.no_grad():
            return math.exp(float(model(input_ids=ids, labels=ids).loss))

    words = PROSE.split()
    assert of(PROSE) < 60
    assert of(" ".join(reversed(words))) > 8 * of(PROSE)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_card_says_what_is_measured(public_data):
    """On the test split's books: the model's perplexity and the trigram's are the card's, and their ratio holds."""
    books = public_data / "classic_books"
    tokenizer, model = load_tokenizer(STARTER_DECODER), load_model(STARTER_DECODER, head=None)
    train, test = (encode(tokenizer.backend_tokenizer, read_books(books, split)) for split in ("train", "test"))
    ours = perplexity(model, torch.from_numpy(test.astype("int64")))
    trigram = KneserNey.fit(train, vocabulary=len(tokenizer)).perplexity(test)
    (row,) = [line for line in (FOLDER / "README.md").read_text().splitlines() if line.startswith("| test |")]
    tokens, model_said, trigram_said, ratio = (cell.strip().replace(",", "") for cell in row.strip("| ").split("|")[1:])
    assert int(tokens) == len(test)
    assert ours == pytest.approx(float(model_said), rel=1e-3)
    assert trigram == pytest.approx(float(trigram_said), rel=1e-3)
    assert ours / trigram == pytest.approx(float(ratio), abs=1e-3)
    assert ours <= 0.8 * trigram


def test_a_damaged_one_is_not_loaded(tmp_path, monkeypatch):
    shutil.copytree(FOLDER, tmp_path / "starter_decoder")
    weights = tmp_path / "starter_decoder" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    monkeypatch.setattr(load, "__file__", str(tmp_path / "load.py"))
    with pytest.raises(
        StorageError, match=r"model\.safetensors of model starter-decoder does not have its known sha256"
    ):
        load_model(STARTER_DECODER, head=None)
