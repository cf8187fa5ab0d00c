from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from seqeval.metrics import f1_score, precision_score, recall_score

from cutlayer.attacks import (
    AnnotatedText,
    EntityTagger,
    EntityTruth,
    Inapplicable,
    Knowledge,
    Noise,
    View,
    simulate,
)
from cutlayer.attacks import Transcript as Seen
from cutlayer.attacks.knowledge import UNMARKED
from cutlayer.core import Cut, DataError, Ragged, Tokens
from cutlayer.models import Head, cut_up
from cutlayer.privacy import TextToText
from tests.equivalence import zoo
from tests.unit.attacks import worlds
from tests.unit.attacks.test_simulate import seeded
from tests.unit.attacks.worlds import JOB, RECORD_SET

NAMES = ("O", "B-person", "I-person", "B-place", "I-place")
SET, STEPS = f"record-set/{RECORD_SET}", f"job/{JOB}"


def tagged(*lists):
    return Tokens((Ragged.from_lists(lists),))


def truth_of(tags, **where):
    return EntityTruth(tags, tags=tags, names=NAMES, **where)


def further(score):
    return {each.name: each.value for each in score.further}


def random_tags(lengths, seed):
    return torch.randint(len(NAMES), (sum(lengths),), generator=worlds.generator(seed)).split(lengths)


@pytest.mark.parametrize("seed", range(5))
def test_f1_precision_and_recall_are_seqevals(seed):
    lengths = [5, 1, 9, 3, 12, 7]
    true, guess = random_tags(lengths, seed), random_tags(lengths, seed + 50)
    guess = [
        torch.where(torch.rand(len(b), generator=worlds.generator(seed)) < 0.6, a, b)
        for a, b in zip(true, guess, strict=True)
    ]
    tags = tagged(*(part.tolist() for part in true))
    score = truth_of(tags, records={RECORD_SET: torch.arange(6)}).score(
        [(SET, 0, tagged(*(part.tolist() for part in guess)))]
    )
    said, told = ([[NAMES[tag] for tag in part.tolist()] for part in parts] for parts in (guess, true))
    assert score.success.value == pytest.approx(f1_score(told, said))
    assert further(score)["precision"] == pytest.approx(precision_score(told, said))
    assert further(score)["recall"] == pytest.approx(recall_score(told, said))


def test_an_entity_needs_its_kind_its_beginning_and_its_end():
    tags = tagged([1, 2, 0], [3, 0, 0], [1, 0, 1])
    truth = truth_of(tags, steps={(JOB, 1): torch.arange(3)})
    for guess, found in (
        (tagged([1, 2, 0], [3, 0, 0], [1, 0, 1]), 4),
        (tagged([1, 0, 0], [3, 0, 0], [1, 0, 1]), 3),
        (tagged([1, 2, 2], [3, 4, 0], [0, 0, 0]), 0),
        (tagged([3, 4, 0], [1, 0, 0], [0, 0, 1]), 1),
    ):
        assert int(truth.score([(STEPS, 1, guess)]).hits.sum()) == 2 * found


def test_an_entity_ends_with_its_text():
    tags = tagged([0, 1], [2, 0])
    score = truth_of(tags, steps={(JOB, 1): torch.arange(2)}).score([(STEPS, 1, tags)])
    # joined, there would be one entity of two words
    assert score.hits.tolist() == [2, 2]
    assert score.trials.tolist() == [2, 2]
    again = truth_of(tags, steps={(JOB, 1): torch.tensor([0]), (JOB, 2): torch.tensor([1])})
    assert again.score([(STEPS, 1, tags.select([0])), (STEPS, 2, tags.select([1]))]).hits.tolist() == [2, 2]


def test_pieces_without_a_tag_of_their_own_do_not_count():
    tags = tagged([1, UNMARKED, UNMARKED, 2, 0])
    guess = tagged([1, 3, 0, 2, 0])
    score = truth_of(tags, steps={(JOB, 1): torch.arange(1)}).score([(STEPS, 1, guess)])
    assert (score.success.value, score.success.n) == (1, 2)


def test_each_look_counts():
    tags = tagged([1, 0], [3, 0])
    truth = truth_of(tags, steps={(JOB, 1): torch.tensor([1, 0]), (JOB, 2): torch.tensor([1])})
    looks = [(STEPS, 1, tagged([3, 0], [0, 0])), (STEPS, 2, tagged([0, 0])), (STEPS, 3, tags)]
    score = truth.score(looks)
    assert score.hits.tolist() == [0, 2]
    assert score.trials.tolist() == [1, 3]
    assert score.looks == 2


def test_chance_is_what_guesses_find_beside_other_words():
    """Guessing every second word right by habit alone is chance; what is found beyond it is not."""
    always = tagged(*([[1, 0]] * 200))
    truth = truth_of(always, records={RECORD_SET: torch.arange(200)})
    assert 0.3 < truth.score([(SET, 0, always)]).chance < 0.7
    lengths = [20] * 100
    rare = [torch.where(torch.rand(20, generator=worlds.generator(s)) < 0.05, 1, 0).tolist() for s in range(100)]
    truth = truth_of(tagged(*rare), records={RECORD_SET: torch.arange(len(lengths))})
    found = truth.score([(SET, 0, tagged(*rare))])
    assert found.success.value == 1
    assert found.chance < 0.1
    assert found.p_value < 1e-6


def test_what_cannot_be_scored_is_named():
    tags = tagged([0, 0])
    truth = truth_of(tags, steps={(JOB, 1): torch.arange(1)})
    with pytest.raises(DataError, match="name no entity"):
        truth.score([(STEPS, 1, tags)])
    with pytest.raises(DataError, match="none of the texts"):
        truth.score([])
    with pytest.raises(DataError, match="one tag for each token"):
        AnnotatedText(tags, tags=tagged([0]), names=NAMES, source="made up")


def test_a_sample_keeps_texts_and_tags_together():
    tokens, tags = worlds.named_texts(2000)
    sample = EntityTruth(tokens, tags=tags, names=worlds.TAGS).sample()
    assert len(sample.tokens) < 1000
    names = sample.tokens.segments[0].values < 18
    assert torch.equal(names, sample.tags.segments[0].values == 1)


# ---------------------------------------------------------------- the tagger


def known(**changes):
    model = worlds.reading_model()
    table = cut_up(model, Cut(bottom=0)).bottom.table.detach()
    tokens, tags = worlds.named_texts(1200, seed=3)
    annotated = AnnotatedText(tokens, tags=tags, names=worlds.TAGS, source="made up")
    everything = Knowledge(
        cut=Cut(bottom=None),
        template=worlds.TEMPLATE,
        table=table,
        model=model,
        noise=Noise.nothing(),
        annotated=annotated,
        candidates=torch.arange(zoo.VOCAB) >= 10,
    )
    return replace(everything, **changes)


def seen(folder, tokens):
    return Seen.recorded(worlds.record(folder, [worlds.shard(0, tokens)]))


def test_it_learns_from_the_noise_that_it_meets(tmp_path):
    """Where most tokens were replaced, "none" is the most probable tag of all: names are told by less than that."""
    told = known(noise=Noise(TextToText(eta=1.2)))
    tokens, tags = worlds.named_texts(300, seed=4)
    released = simulate(tokens, told, rows=None, rng=seeded(9))
    replaced = float((released.segments[0].values != tokens.segments[0].values).double().mean())
    assert 0.7 < replaced < 0.9
    truth = EntityTruth(tokens, records={RECORD_SET: torch.arange(300)}, tags=tags, names=worlds.TAGS)
    transcript = seen(tmp_path, released)
    ours = truth.score(EntityTagger()(View(transcript, told)))
    naive = truth.score(EntityTagger(clear=True)(View(transcript, replace(told, noise=None))))
    # it is told of no noise, and would make nothing of it
    again = truth.score(EntityTagger(clear=True)(View(transcript, told)))
    assert again.success.value == naive.success.value
    assert ours.success.value > 1.5 * naive.success.value
    assert ours.success.value > ours.chance + 0.02


def test_texts_and_passes_are_its_strength(tmp_path):
    tokens, tags = worlds.named_texts(100, seed=4)
    truth = EntityTruth(tokens, records={RECORD_SET: torch.arange(100)}, tags=tags, names=worlds.TAGS)
    view = View(seen(tmp_path, tokens), known())
    weak, strong = (truth.score(EntityTagger(texts=texts)(view)).success.value for texts in (5, 1200))
    assert weak < 0.9 < strong


@pytest.mark.parametrize("missing", ["annotated", "model", "noise", "template"])
def test_what_was_not_granted_is_named(tmp_path, missing):
    with pytest.raises(Inapplicable):
        list(EntityTagger()(View(seen(tmp_path, worlds.named_texts(3)[0]), known(**{missing: None}))))


def test_models_and_texts_that_it_cannot_read(tmp_path):
    tokens, _ = worlds.named_texts(3)
    t5 = zoo.shared_model("t5", Head.LANGUAGE)
    with pytest.raises(Inapplicable, match="encoder-decoder"):
        list(EntityTagger()(View(seen(tmp_path / "a", tokens), known(model=t5))))
    pairs = Tokens((tokens.segments[0], tokens.segments[0]))
    with pytest.raises(Inapplicable, match="Pairs of texts"):
        list(EntityTagger(texts=20)(View(seen(tmp_path / "b", pairs), known())))
