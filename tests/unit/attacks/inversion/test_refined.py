from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache

import pytest
import torch

from cutlayer.attacks import (
    Inapplicable,
    Knowledge,
    LearnedInversion,
    LearnedInversionSpec,
    MaximumPosterior,
    Noise,
    RefinedInversion,
    RefinedInversionSpec,
    Transcript,
    View,
    simulate,
)
from cutlayer.attacks.inversion import refined
from cutlayer.attacks.inversion.observed import ObservedRows
from cutlayer.attacks.inversion.refined import refine
from cutlayer.core import Cut, Place, Rows, Tokens
from cutlayer.privacy import TextToText, Vector
from tests.unit.attacks import worlds
from tests.unit.attacks.test_simulate import seeded
from tests.unit.attacks.worlds import PLAIN, TEMPLATE, VOCAB

POOR = LearnedInversionSpec(tokens=1500, passes=2, hidden=16)
"""A reader that learnt little: much is left to be refined."""
ATTACK = RefinedInversion(RefinedInversionSpec(start=POOR, candidates=VOCAB, rounds=64, trials=64))
QUICK = RefinedInversion(RefinedInversionSpec(start=POOR, candidates=32, rounds=8, trials=16, tuning_tokens=128))
"""Under noise no text is known to be right, and all rounds are used."""
ROWS_NOISE = Vector(eta=14, place=Place.ACTIVATIONS)
REPLACED = TextToText(eta=150)
"""Half of the tokens are."""


@cache
def mixing_bottom(seed=0):
    """A block that mixes words, so that a row tells of its neighbours' as of its own."""
    bottom, rng = copy.deepcopy(worlds.gentle_bottom("bert")), worlds.generator(seed)
    with torch.no_grad():
        for name, parameter in bottom.named_parameters():
            if parameter.dim() == 2 and "embeddings" not in name:
                parameter.copy_(torch.randn(parameter.shape, generator=rng) * 0.2)
    return bottom


def knowledge(privacy=None, *, template=PLAIN):
    bottom = mixing_bottom()
    return Knowledge(
        cut=Cut(bottom=1),
        table=bottom.table.detach(),
        candidates=worlds.CANDIDATES,
        template=template,
        bottom=bottom,
        noise=Noise.nothing() if privacy is None else Noise(privacy),
        public=worlds.own_text(),
    )


def sent(folder, tokens, known, *, seed=5, rows=torch.float32):
    payload = simulate(tokens, known, rows=rows, rng=seeded(seed))
    frames = [worlds.shard(number, part, worlds.WireType.FP32) for number, part in enumerate(_halves(payload))]
    return View(Transcript.recorded(worlds.record(folder, frames)), known)


def _halves(payload):
    return [payload.select(texts) for texts in torch.arange(len(payload)).chunk(2)]


def words(guesses):
    """All guessed tokens, of single texts in two shards."""
    return torch.cat([guess.segments[0].values for _, _, guess in guesses])


def share(guesses, tokens):
    return float((words(guesses) == tokens.segments[0].values).double().mean())


def test_what_a_reader_missed_behind_blocks_is_found(tmp_path):
    known, tokens = knowledge(), worlds.language_texts(40, seed=4)
    view = sent(tmp_path, tokens, known)
    assert share(LearnedInversion(POOR)(view), tokens) < 0.9
    assert share(ATTACK(view), tokens) > 0.99
    other = View(view.transcript, replace(known, bottom=mixing_bottom(1)))
    assert share(QUICK(other), tokens) < 0.5


def test_of_pairs_both_texts_are_read(tmp_path):
    known = knowledge(template=TEMPLATE)
    first, second = (worlds.language_texts(15, seed=seed).segments[0] for seed in (4, 5))
    tokens = Tokens((first, second))
    ((_, _, one), (_, _, other)) = ATTACK(sent(tmp_path, tokens, known))
    for side, text in enumerate((first, second)):
        read = torch.cat([one.segments[side].values, other.segments[side].values])
        assert float((read == text.values).double().mean()) > 0.98


def test_under_noise_on_rows_it_reads_more_than_the_reader(tmp_path):
    known, tokens = knowledge(ROWS_NOISE), worlds.language_texts(40, seed=4)
    view = sent(tmp_path, tokens, known)
    learnt, refined = share(LearnedInversion(POOR)(view), tokens), share(QUICK(view), tokens)
    assert 0.05 < learnt < 0.8
    assert refined > learnt + 0.1


def test_where_refining_reads_less_of_its_own_text_the_readers_guess_stays(tmp_path, monkeypatch):
    known, tokens = knowledge(ROWS_NOISE), worlds.language_texts(20, seed=4)
    view = sent(tmp_path, tokens, known)
    attack = RefinedInversion(QUICK.spec.model_copy(update={"seed": 1}))  # chosen anew
    monkeypatch.setattr(refined, "refine", lambda observed, ids, costs, **_: ids[:, -1])
    assert torch.equal(words(attack(view)), words(LearnedInversion(POOR)(view)))


def test_tokens_that_were_replaced_before_the_blocks_are_read_as_if_their_ids_had_left(tmp_path):
    known, tokens = knowledge(REPLACED), worlds.language_texts(40, seed=4)
    behind = sent(tmp_path / "rows", tokens, known)
    ids = sent(tmp_path / "ids", tokens, replace(known, cut=Cut(bottom=None)), rows=None)
    read = words(MaximumPosterior()(ids))
    assert 0.3 < float((read == tokens.values).double().mean()) < 0.8
    assert float((words(ATTACK(behind)) == read).double().mean()) > 0.98


def test_several_looks_at_a_text_are_read_together(tmp_path):
    known, tokens = knowledge(REPLACED), worlds.language_texts(40, seed=4)
    links = {(f"record-set/{worlds.RECORD_SET}", number): torch.arange(40) for number in (0, 1)}
    known = replace(known, links=links)

    def twice(name, knowledge, rows):
        looks = [simulate(tokens, knowledge, rows=rows, rng=seeded(seed)) for seed in (5, 6)]
        frames = [worlds.shard(number, look, worlds.WireType.FP32) for number, look in enumerate(looks)]
        return View(Transcript.recorded(worlds.record(tmp_path / name, frames)), knowledge)

    behind = twice("rows", known, torch.float32)
    read = words(MaximumPosterior()(twice("ids", replace(known, cut=Cut(bottom=None)), None)))
    assert float((words(ATTACK(behind)) == read).double().mean()) > 0.98
    apart = words(ATTACK(View(behind.transcript, replace(known, links=None))))
    assert float((apart == read).double().mean()) < 0.95


def test_both_attacks_share_the_reader(tmp_path, monkeypatch):
    known, tokens = knowledge(), worlds.language_texts(8, seed=4)
    view = sent(tmp_path, tokens, known)
    list(LearnedInversion(POOR)(view))
    monkeypatch.setattr(LearnedInversion, "_fit", lambda *_: pytest.fail("it was fitted again"))
    list(ATTACK(view))


# ---------------------------------------------------------------- the search


def observed(tokens, known):
    return ObservedRows.of(simulate(tokens, known, rows=torch.float32, rng=seeded(5)), known)


def totals(seen, ids, costs, chosen):
    words = ids.gather(1, chosen[:, None])[:, 0]
    of_words = costs.gather(1, chosen[:, None])[:, 0]
    text = torch.arange(len(seen)).repeat_interleave(seen.rows.packed.lengths)
    with torch.no_grad():
        apart = seen.distances(seen.content.with_values(words))
    none = torch.zeros(len(seen))
    return none.index_add(0, text, apart).index_add(0, seen.content.owners, of_words)


@pytest.mark.parametrize("privacy", [None, ROWS_NOISE], ids=["no noise", "noise"])
@pytest.mark.parametrize("cost", [0.0, 3.0])
def test_no_text_gets_worse(privacy, cost):
    tokens = worlds.language_texts(30, seed=4)
    seen = observed(tokens, knowledge(privacy))
    rng = worlds.generator(3)
    ids = torch.stack([10 + torch.randperm(VOCAB - 10, generator=rng)[:6] for _ in range(tokens.total)])
    ids[::2, 3] = tokens.values[::2]  # in every other place the right one is among them
    ids[::2, 0] = torch.where(ids[::2, 0] == tokens.values[::2], 10, ids[::2, 0])
    costs = cost * torch.rand(ids.shape, generator=rng)
    before = totals(seen, ids, costs, torch.zeros(len(ids), dtype=torch.int64))
    found = refine(seen, ids, costs, rounds=6, trials=4)
    chosen = (ids == found[:, None]).float().argmax(1)
    after = totals(seen, ids, costs, chosen)
    assert (after <= before * (1 + 1e-5)).all()
    assert (after < before).float().mean() > 0.9


def test_what_words_cost_counts_against_what_they_explain():
    """The right word is refused where it costs more than it brings nearer, and taken where it costs less."""
    tokens = worlds.language_texts(6, seed=4)
    seen = observed(tokens, knowledge())
    start = torch.where(tokens.values == 10, 11, 10)
    ids = torch.stack([start, tokens.values], 1)
    for cost, right in ((0.0, 1.0), (1e6, 0.0)):
        costs = torch.tensor([[0.0, cost]]).expand(len(ids), -1)
        found = refine(seen, ids, costs, rounds=20, trials=16)
        assert float((found == tokens.values).double().mean()) == right


def test_a_round_keeps_all_exchanges_of_a_text_that_are_better_together():
    tokens = worlds.language_texts(6, seed=4)
    seen = observed(tokens, knowledge())
    ids = torch.stack([torch.where(tokens.values == 10, 11, 10), tokens.values], 1)
    found = refine(seen, ids, torch.zeros(ids.shape), rounds=1, trials=16)
    assert int((found == tokens.values).sum()) > 2 * len(tokens)


def test_a_text_that_makes_its_rows_up_to_their_rounding_is_left_alone(monkeypatch):
    tokens = worlds.language_texts(6, seed=4)
    seen = ObservedRows.of(simulate(tokens, knowledge(), rows=torch.bfloat16, rng=seeded(5)), knowledge())
    ids = torch.stack([tokens.values, torch.where(tokens.values == 10, 11, 10)], 1)
    monkeypatch.setattr(refined._Search, "_promising", lambda *_: pytest.fail("it was searched"))
    assert torch.equal(refine(seen, ids, torch.zeros(ids.shape), rounds=3, trials=4), tokens.values)


def test_a_guess_is_judged_by_all_rows_special_tokens_included():
    tokens = worlds.language_texts(4, seed=4)
    seen = observed(tokens, knowledge(template=TEMPLATE))
    shifted = ObservedRows(
        Rows(seen.rows.packed.with_values(seen.rows.packed.values + 0.5), seen.rows.segment_lengths),
        seen.content,
        seen.bottom,
        seen.template,
    )
    apart = shifted.distances(tokens)
    assert len(apart) == tokens.total + 2 * len(tokens)
    torch.testing.assert_close(apart, torch.full_like(apart, 0.25 * worlds.HIDDEN), atol=1e-3, rtol=0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"cut": Cut(bottom=0)}, "no blocks"),
        ({"bottom": None}, "not granted the bottom"),
        ({"public": None}, "lacks text, table or mechanism"),
        ({"noise": None}, "not told how releases are privatized"),
        ({"noise": Noise(Vector(eta=50))}, "before the blocks"),
    ],
)
def test_what_it_cannot_read_it_says(tmp_path, changes, said):
    view = sent(tmp_path, worlds.language_texts(3), knowledge())
    with pytest.raises(Inapplicable, match=said):
        list(ATTACK(View(view.transcript, replace(view.knowledge, **changes))))


def test_of_ids_it_says_so(tmp_path):
    known = replace(knowledge(), cut=Cut(bottom=None))
    view = sent(tmp_path, worlds.language_texts(3), known, rows=None)
    with pytest.raises(Inapplicable, match="ids were released"):
        list(ATTACK(view))
