from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cutlayer.attacks import (
    ATTACKS,
    Inapplicable,
    Knowledge,
    Measured,
    PrefixSearch,
    SearchedTruth,
    SeenFrame,
    Transcript,
    View,
    examine,
    measure,
)
from cutlayer.attacks.evaluation.traffic import Traffic
from cutlayer.core import Cut, Ragged, Tokens
from cutlayer.models import Head, Template, cut_up
from cutlayer.wire import WireType, pack, routes
from cutlayer.wire.recording import Direction
from tests.equivalence import zoo
from tests.unit.attacks.worlds import ASKED, PLAIN, TEMPLATE, generator

JOB = "b" * 32
START = Template.opened_by(1, max_length=None)
FAMILIES = [*zoo.DECODERS, *zoo.SEQ2SEQ]


def texts(n=4, longest=14, seed=0):
    rng = generator(seed)
    lengths = torch.randint(1, longest, (n,), generator=rng)
    ids = torch.randint(4, zoo.VOCAB, (int(lengths.sum()),), generator=rng)
    return Tokens((Ragged(ids, lengths),))


def knowledge(name, depth=1, **changes):
    seq2seq = name in zoo.SEQ2SEQ
    cut = Cut(bottom=1, target=depth) if seq2seq else Cut(bottom=depth)
    bottom = cut_up(zoo.shared_model(name, Head.LANGUAGE), cut).bottom
    template = START if seq2seq else PLAIN
    granted = Knowledge(
        cut=Cut(bottom=depth, tail=0), table=bottom.table, template=template, source_template=PLAIN, bottom=bottom
    )
    return replace(granted, **changes)


def rows_like(name):
    """The form of some step's rows; the traffic is made in it."""
    width = knowledge(name).bottom.model.config.hidden_size
    sent = {"rows": torch.zeros(1, width), "lengths": torch.ones(1, 1, dtype=torch.int64)}
    return Transcript(lambda: [SeenFrame(Direction.UP, routes.STEP, {"job": JOB, "step": 1}, lambda: sent)])


def read(name, granted, kind, tokens, attack=None):
    seen, truth = SearchedTruth(tokens).traffic(kind, rows_like(name), granted, looks=1, rng=generator(3))
    return truth.score((attack or PrefixSearch())(View(seen, granted))).success.value


@pytest.mark.parametrize("name", FAMILIES)
def test_every_token_is_read_from_an_untrained_bottom(name):
    assert read(name, knowledge(name), Traffic.UNPROTECTED, texts()) == 1.0


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral", "t5"])
def test_through_two_blocks(name):
    granted = knowledge(name, depth=2)
    assert read(name, granted, Traffic.UNPROTECTED, texts()) == 1.0


@pytest.mark.parametrize("kind", [Traffic.NOISE, Traffic.SHUFFLED])
@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_nothing_is_read_where_nothing_is_shown(name, kind):
    assert read(name, knowledge(name), kind, texts(12)) < 0.12


def test_stored_texts_are_read_as_those_of_steps_are():
    """A frozen bottom releases each text once, before the first step."""
    tokens, granted = texts(7), knowledge("gpt2")
    seen, _ = SearchedTruth(tokens).traffic(Traffic.UNPROTECTED, rows_like("gpt2"), granted, looks=1, rng=generator(3))
    (release,) = seen.releases()
    halves = [release.payload.select(torch.arange(4)), release.payload.select(torch.arange(4, 7))]

    def stored(record_set):
        return [
            SeenFrame(
                Direction.UP,
                routes.SHARD_PUT,
                {"record_set": record_set, "shard": shard},
                lambda half=half: {"rows": half.packed.values, "lengths": half.segment_lengths},
            )
            for shard, half in enumerate(halves)
        ]

    shown = Transcript(lambda: [*stored("dev"), *stored("train")]).first_records("train", 5).shortened(6)
    first = Tokens((tokens.segments[0].select(torch.arange(5)),))
    first = Tokens((first.segments[0].first(first.segments[0].lengths.clamp(max=6)),))
    truth = SearchedTruth(first, records={"train": torch.arange(5)})
    outcome = measure("prefix-search", shown, knowledge=granted, truth=truth)
    assert isinstance(outcome, Measured)
    assert (outcome.success.value, outcome.success.n) == (1, first.total)


def test_few_tries_are_enough_and_candidates_are_kept_to():
    tokens = texts()
    assert read("gpt2", knowledge("gpt2"), Traffic.UNPROTECTED, tokens, PrefixSearch(tried=32)) > 0.8
    missing = int(tokens.segments[0].values[0])
    candidates = torch.ones(zoo.VOCAB, dtype=torch.bool)
    candidates[missing] = False
    granted = knowledge("gpt2", candidates=candidates)
    seen, truth = SearchedTruth(tokens).traffic(
        Traffic.UNPROTECTED, rows_like("gpt2"), granted, looks=1, rng=generator(3)
    )
    ((_, _, guess),) = list(PrefixSearch()(View(seen, granted)))
    assert missing not in guess.segments[0].values
    assert truth.score([("job/control", 1, guess)]).success.value < 1


def test_it_is_measured_with_its_controls():
    tokens, granted = texts(8), knowledge("gpt2")
    seen, truth = SearchedTruth(tokens).traffic(
        Traffic.UNPROTECTED, rows_like("gpt2"), granted, looks=1, rng=generator(3)
    )
    outcome = measure("prefix-search", seen, knowledge=granted, truth=truth)
    assert isinstance(outcome, Measured)
    assert outcome.success.value == 1
    assert {control.check for control in outcome.controls} == ASKED


@pytest.mark.parametrize("template", [PLAIN, TEMPLATE])
def test_of_long_texts_the_first_tokens_count_and_the_rest_is_not_read(template):
    """What a text's later rows show does not matter, nor is there a special token where it was cut off."""
    tokens, granted = texts(8), knowledge("gpt2", template=template)
    seen, truth = SearchedTruth(tokens).traffic(
        Traffic.UNPROTECTED, rows_like("gpt2"), granted, looks=1, rng=generator(3)
    )
    read = examine(
        "prefix-search", seen, knowledge=granted, truth=truth, run=replace(ATTACKS["prefix-search"], positions=5)
    )
    assert isinstance(read.outcome, Measured)
    (lengths,) = (segment.lengths for segment in tokens.segments)
    assert lengths.max() > 5
    assert (read.outcome.success.value, read.outcome.success.n) == (1, int(lengths.clamp(max=5).sum()))
    assert read.reading.read.total == read.outcome.success.n


@pytest.mark.parametrize(
    ("granted", "said"),
    [
        (Knowledge(cut=Cut(bottom=1), template=PLAIN), "not granted the bottom"),
        (knowledge("gpt2", depth=0), "the embedding table's"),
        (
            Knowledge(
                cut=Cut(bottom=1),
                template=PLAIN,
                bottom=cut_up(zoo.shared_model("bert", Head.CLASSIFICATION), Cut(bottom=1)).bottom,
            ),
            "depend on the tokens behind them",
        ),
        (knowledge("t5", source_template=None), "in source texts"),
    ],
)
def test_where_it_does_not_apply(granted, said):
    with pytest.raises(Inapplicable, match=said):
        list(PrefixSearch()(View(rows_like("gpt2"), granted)))


def test_ids_are_nothing_to_search_for():
    sent = pack(texts(), vocab_size=zoo.VOCAB, wire_type=WireType.FP32)
    seen = Transcript(lambda: [SeenFrame(Direction.UP, routes.STEP, {"job": JOB, "step": 1}, lambda: sent)])
    with pytest.raises(Inapplicable, match="Token ids were released"):
        list(PrefixSearch()(View(seen, knowledge("gpt2"))))


def test_the_encoders_output_must_be_in_the_transcript():
    with pytest.raises(Inapplicable, match="does not show the encoder's output"):
        list(PrefixSearch()(View(rows_like("t5"), knowledge("t5"))))
