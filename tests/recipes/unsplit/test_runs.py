"""Runs that are recorded: what is kept is what crossed, and the truth beside it is the texts'."""

from __future__ import annotations

import pytest
import torch

from cutlayer.core import DataError, ModelError
from cutlayer.customer.progress import Silent
from cutlayer.recipes.unsplit.runs import Corpus, Recorder, Recording, _filling
from tests.recipes.unsplit.worlds import CORPUS, PUBLIC, run_cell, two_iterations, write_words
from tests.service.tiny import write_tiny_bert, write_tiny_gpt2


@pytest.fixture(scope="module")
def recorder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorder")
    made = Recorder(
        folder / "out",
        model=str(write_tiny_gpt2(folder / "tiny")),
        data=write_words(folder / "data", "test", "public"),
        progress=Silent(),
    )
    yield made
    made.stop()


def boundary_of(recorder, tokens):
    known = recorder.knowledge(1)
    return known.template.unpad(known.bottom(known.template.assemble(tokens)), tokens).packed.values


def test_what_is_kept_is_the_public_bottoms_boundary_of_the_true_tokens(recorder):
    """Without dropout the first iteration's rows are the public bottom's, and the third's no longer."""
    found = recorder.recording(run_cell(recorder))
    assert list(found.seen) == [1, 3]
    first, third = found.seen[1], found.seen[3]
    torch.testing.assert_close(first.rows.packed.values, boundary_of(recorder, first.tokens), rtol=1e-4, atol=1e-5)
    moved = (third.rows.packed.values - boundary_of(recorder, third.tokens)).abs().max()
    assert 1e-6 < moved < 1e-2
    assert [len(seen.tokens) for seen in found.seen.values()] == [2, 2]
    assert first.tokens.segments[0].lengths.tolist() == [8, 8]
    assert not torch.equal(first.tokens.segments[0].values, third.tokens.segments[0].values)


def test_public_text_first_leaves_the_private_texts_as_they_are(recorder):
    plain = recorder.recording(run_cell(recorder)).seen[1]
    after = recorder.recording(run_cell(recorder, public=PUBLIC, public_iterations=2)).seen[1]
    assert torch.equal(plain.tokens.segments[0].values, after.tokens.segments[0].values)
    assert not torch.equal(plain.rows.packed.values, after.rows.packed.values)


def test_weights_after_the_first_iteration_are_the_customers(recorder):
    found = recorder.recording(two_iterations(recorder))
    own = dict(recorder.knowledge(1).bottom.model.named_parameters())
    shared = own.keys() & found.weights.keys()
    assert shared
    steps = torch.cat([(found.weights[name] - own[name]).abs().flatten() for name in shared])
    assert 0 < float(steps.max()) < 1e-4  # one step of AdamW at 5e-6


def test_a_recording_survives_its_file(recorder):
    found = recorder.recording(run_cell(recorder))
    again = Recording.load(found.save())
    assert torch.equal(again.seen[3].rows.packed.values, found.seen[3].rows.packed.values)
    assert torch.equal(again.seen[3].tokens.segments[0].values, found.seen[3].tokens.segments[0].values)


def test_texts_fill_the_iterations_exactly(recorder):
    dataset = recorder.texts(CORPUS)
    for tokens in (16, 37, 64):
        filled = _filling(dataset, recorder.tokenizer, range(len(dataset)), tokens)
        total = sum(len(text.split()) + 1 for (text,) in filled.texts)
        assert tokens - 1 <= total <= tokens


def test_too_short_a_data_set_is_told(recorder):
    with pytest.raises(DataError, match="too few tokens for 500 iterations of 16"):
        recorder.recording(run_cell(recorder, iterations=500))


def test_a_missing_file_is_told(recorder):
    with pytest.raises(DataError, match=r"nowhere.test\.jsonl\.gz"):
        recorder.texts(Corpus(title="none", name="nowhere", split="test"))


def test_an_encoder_is_refused(tmp_path):
    with pytest.raises(ModelError, match="The study is of decoders"):
        Recorder(tmp_path / "out", model=str(write_tiny_bert(tmp_path / "bert")), data=tmp_path, progress=Silent())
