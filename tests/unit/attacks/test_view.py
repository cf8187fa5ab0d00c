from __future__ import annotations

import pytest
import torch

from cutlayer.attacks import TokenTruth, Transcript
from cutlayer.core import DataError, Rows, Tokens
from cutlayer.wire import Frame, routes
from tests.unit.attacks import worlds
from tests.unit.attacks.worlds import JOB, RECORD_SET, record


def test_releases_name_where_they_went(tmp_path):
    tokens = worlds.random_tokens(6)
    first, second = worlds.pieces(tokens, 4, 2)
    query = worlds.tensors(second)
    adapter = {"adapter": "c" * 32}
    record(
        tmp_path,
        [
            worlds.shard(0, first),
            worlds.shard(1, worlds.as_rows(second)),
            worlds.step(3, second),
            Frame(routes.JOB_INFER, {"job": JOB}, tensors=query),
            Frame(routes.ADAPTER_INFER, adapter, tensors=query),
            Frame(routes.ADAPTER_INFER, adapter, tensors=worlds.tensors(first)),
        ],
    )
    seen = list(Transcript.recorded(tmp_path).releases())
    assert [(release.source, release.number) for release in seen] == [
        (f"record-set/{RECORD_SET}", 0),
        (f"record-set/{RECORD_SET}", 1),
        (f"job/{JOB}", 3),
        (f"job/{JOB}/infer", 0),
        (f"adapter/{'c' * 32}/infer", 0),
        (f"adapter/{'c' * 32}/infer", 1),
    ]
    assert isinstance(seen[1].payload, Rows)
    assert isinstance(seen[2].payload, Tokens)
    assert torch.equal(seen[0].payload.segments[0].values, first.segments[0].values)


def test_a_repeated_frame_is_no_second_look_but_other_bytes_are(tmp_path):
    one, other = worlds.random_tokens(4, seed=1), worlds.random_tokens(4, seed=2)
    record(tmp_path, [worlds.shard(0, one), worlds.shard(0, one), worlds.step(1, one), worlds.step(1, other)])
    assert len(list(Transcript.recorded(tmp_path).releases())) == 3


def test_what_an_adapter_is_asked_again_is_no_second_look_and_what_a_job_is_asked_again_is(tmp_path):
    one, other = worlds.random_tokens(4, seed=1), worlds.random_tokens(4, seed=2)
    adapter = [worlds.query(each) for each in (one, one, other, one)]
    job = [Frame(routes.JOB_INFER, {"job": JOB}, tensors=worlds.tensors(one))] * 2
    record(tmp_path, [*adapter, *job], outputs={f"query {n}": torch.ones(4, 2) for n in range(6)})
    answers = [(answer.source, answer.number) for answer in Transcript.recorded(tmp_path).answers()]
    assert answers == [
        (f"adapter/{JOB}/infer", 0),
        (f"adapter/{JOB}/infer", 1),
        (f"job/{JOB}/infer", 0),
        (f"job/{JOB}/infer", 1),
    ]
    assert len(list(Transcript.recorded(tmp_path).releases())) == 4


def test_frames_that_name_stored_records_release_nothing(tmp_path):
    records = torch.tensor([0, 1], dtype=torch.uint8)
    frames = [worlds.step(1, records=records), Frame(routes.JOB_INFER, {"job": JOB}, tensors={"records": records})]
    assert not list(Transcript.recorded(record(tmp_path, frames)).releases())


def test_gradients_meet_the_output_of_their_own_step(tmp_path):
    records = torch.tensor([0, 1], dtype=torch.uint8)
    outputs = {n: torch.full((2, 3), float(n)) for n in (1, 2, 3)}
    slopes = {n: torch.full((2, 3), -float(n)) for n in (1, 2, 3)}
    frames = [
        worlds.step(1, records=records),
        worlds.step(2, records=records, gradient=slopes[1]),
        worlds.step(3, records=records, gradient=slopes[2]),
        worlds.gradient(3, slopes[3]),
    ]
    seen = list(Transcript.recorded(record(tmp_path, frames, outputs)).steps())
    assert [step.number for step in seen] == [1, 2, 3]
    for step in seen:
        assert torch.equal(step.output, outputs[step.number])
        assert torch.equal(step.gradient, slopes[step.number])


def test_a_gradient_without_its_output_is_still_seen(tmp_path):
    (step,) = Transcript.recorded(record(tmp_path, [worlds.gradient(1, torch.ones(2, 3))])).steps()
    assert step.output is None


def test_the_first_steps_end_with_their_gradient_and_without_the_next_release(tmp_path):
    records = torch.tensor([0, 1], dtype=torch.uint8)
    tokens = worlds.random_tokens(2)
    slopes = {n: torch.full((2, 3), -float(n)) for n in (1, 2, 3)}
    stored = [
        worlds.step(1, records=records),
        *(worlds.step(n, records=records, gradient=slopes[n - 1]) for n in (2, 3)),
    ]
    released = [frame for n in (1, 2, 3) for frame in (worlds.step(n, tokens), worlds.gradient(n, slopes[n]))]
    for name, frames in (("stored", stored), ("released", released)):
        seen = Transcript.recorded(record(tmp_path / name, frames))
        for after, numbers in ((0, [1, 2]), (1, [2])):
            first = seen.first_steps(2, after=after)
            gradients = {step.number: step.gradient for step in first.steps()}
            assert sorted({*gradients} - {after}) == numbers
            assert all(torch.equal(gradients[n], slopes[n]) for n in numbers)
            assert [release.number for release in first.releases()] == (numbers if name == "released" else [])


def embedding_queries(folder, tokens, *sizes):
    """Texts of which embeddings were asked, some at a time."""
    where = {"model": "starter"}
    parts = worlds.pieces(tokens, *sizes)
    record(folder, [Frame(routes.EMBEDDINGS, where, tensors=worlds.tensors(part)) for part in parts])
    rows = torch.arange(len(tokens)).split(list(sizes))
    return {("model/starter/embeddings", number): texts for number, texts in enumerate(rows)}


def test_queries_for_embeddings_are_cut_short_by_their_numbers(tmp_path):
    tokens = worlds.random_tokens(9)
    steps = embedding_queries(tmp_path, tokens, 4, 3, 2)
    transcript = Transcript.recorded(tmp_path)
    assert [each.number for each in transcript.first_steps(1).releases()] == [0, 1]
    lengths = tokens.segments[0].lengths
    seen, truth = TokenTruth(tokens, steps=steps).beginning(transcript, int(lengths[:4].sum()) + 1)
    assert [each.number for each in seen.releases()] == [0, 1]
    assert len(truth.tokens) == 7
    (first, *_) = (each.payload for each in transcript.shortened(2).releases())
    assert isinstance(first, Tokens), "ids are not shortened: rows are"


def test_a_truth_knows_queries_by_their_source(tmp_path):
    tokens = worlds.random_tokens(9)
    steps = embedding_queries(tmp_path, tokens, 4, 5)
    guesses = [(each.source, each.number, each.payload) for each in Transcript.recorded(tmp_path).releases()]
    assert TokenTruth(tokens, steps=steps).score(guesses).success.value == 1
    swapped = {("model/starter/embeddings", 0): steps["model/starter/embeddings", 1]}
    with pytest.raises(DataError, match="Release 0 has another number of texts"):
        TokenTruth(tokens, steps=swapped).score(guesses)
    elsewhere = {("model/other/embeddings", number): texts for (_, number), texts in steps.items()}
    with pytest.raises(DataError, match="shows none of the texts"):
        TokenTruth(tokens, steps=elsewhere).score(guesses)


def test_rows_that_are_embedded_are_shortened(tmp_path):
    rows = worlds.as_rows(worlds.random_tokens(3))
    frame = Frame(routes.EMBEDDINGS, {"model": "starter"}, tensors=worlds.tensors(rows))
    record(tmp_path, [frame])
    (release,) = Transcript.recorded(tmp_path).shortened(2).releases()
    assert isinstance(release.payload, Rows)
    assert int(release.payload.packed.lengths.max()) == 2
