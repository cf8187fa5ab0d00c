"""Runs that are recorded: what is kept is what crossed, and the truth beside it is the texts'."""

from __future__ import annotations

import pytest
import torch

from cutlayer.core import DataError, ModelError
from cutlayer.recipes.recordings import Recording, filling, knowledge, recording
from cutlayer.recipes.tasks import TextFile
from cutlayer.recipes.unsplit import RECIPE
from cutlayer.recipes.unsplit_cases import Grid
from tests.recipes.unsplit.worlds import CORPUS, PUBLIC, open_lab, split_run, two_iterations, write_words
from tests.service.tiny import write_tiny_bert, write_tiny_gpt2


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recordings")
    data = write_words(folder / "data", "test", "public")
    with open_lab(write_tiny_gpt2(folder / "tiny"), data, folder / "out") as made:
        yield made


def boundary_of(lab, tokens):
    known = knowledge(1, lab)
    return known.template.unpad(known.bottom(known.template.assemble(tokens)), tokens).packed.values


@pytest.mark.slow
def test_what_is_kept_is_the_public_bottoms_boundary_of_the_true_tokens(lab):
    """Without dropout the first iteration's rows are the public bottom's, and the third's no longer."""
    found = recording(split_run(lab), lab)
    assert list(found.seen) == [1, 3]
    first, third = found.seen[1], found.seen[3]
    torch.testing.assert_close(first.rows.packed.values, boundary_of(lab, first.tokens), rtol=1e-4, atol=1e-5)
    moved = (third.rows.packed.values - boundary_of(lab, third.tokens)).abs().max()
    assert 1e-6 < moved < 1e-2
    assert [len(seen.tokens) for seen in found.seen.values()] == [2, 2]
    assert first.tokens.segments[0].lengths.tolist() == [8, 8]
    assert not torch.equal(first.tokens.segments[0].values, third.tokens.segments[0].values)


@pytest.mark.slow
def test_public_text_first_leaves_the_private_texts_as_they_are(lab):
    plain = recording(split_run(lab), lab).seen[1]
    after = recording(split_run(lab, public=PUBLIC, public_iterations=2), lab).seen[1]
    assert torch.equal(plain.tokens.segments[0].values, after.tokens.segments[0].values)
    assert not torch.equal(plain.rows.packed.values, after.rows.packed.values)


@pytest.mark.slow
def test_weights_after_the_first_iteration_are_the_customers(lab):
    found = recording(two_iterations(lab), lab)
    own = dict(knowledge(1, lab).bottom.model.named_parameters())
    shared = own.keys() & found.weights.keys()
    assert shared
    steps = torch.cat([(found.weights[name] - own[name]).abs().flatten() for name in shared])
    assert 0 < float(steps.max()) < 1e-4  # one step of AdamW at 5e-6


@pytest.mark.slow
def test_a_recording_survives_its_file(lab):
    found = recording(split_run(lab), lab)
    again = Recording.load(found.save())
    assert torch.equal(again.seen[3].rows.packed.values, found.seen[3].rows.packed.values)
    assert torch.equal(again.seen[3].tokens.segments[0].values, found.seen[3].tokens.segments[0].values)


def test_texts_fill_the_iterations_exactly(lab):
    dataset = CORPUS.read(lab.options.data)
    for tokens in (16, 37, 64):
        filled = filling(dataset, lab.model(head=None).tokenizer, range(len(dataset)), tokens)
        total = sum(len(text.split()) + 1 for (text,) in filled.texts)
        assert tokens - 1 <= total <= tokens


def test_too_short_a_data_set_is_told(lab):
    with pytest.raises(DataError, match="too few tokens for 500 iterations of 16"):
        recording(split_run(lab, iterations=500), lab)


def test_a_missing_file_is_told(lab):
    with pytest.raises(DataError, match=r"nowhere.test\.jsonl\.gz"):
        recording(split_run(lab, corpus=TextFile(name="nowhere", part="test")), lab)


def test_an_encoder_is_refused(tmp_path):
    lab = open_lab(write_tiny_bert(tmp_path / "bert"), tmp_path, tmp_path / "out")
    with pytest.raises(ModelError, match="The study is of decoders"):
        Grid(RECIPE.config, lab)
