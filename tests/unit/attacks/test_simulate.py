from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from cutlayer.attacks import Inapplicable, Knowledge, Noise, PublicText, released_as, simulate
from cutlayer.attacks import Transcript as Seen
from cutlayer.attacks.simulate import release_public
from cutlayer.core import Cut, Place, Ragged, Rows, Tokens
from cutlayer.models import Head, cut_up
from cutlayer.privacy import CtiSpec, CustomerSecret, TextToText, Vector, build_privatizer
from cutlayer.privacy.neighbours import NeighbourSearch
from tests.equivalence import zoo
from tests.plugins import FAINT, installing
from tests.unit.attacks import worlds
from tests.unit.attacks.worlds import KNOWLEDGE, TABLE, VOCAB, WIDTH

CANDIDATES = torch.arange(VOCAB) >= 10


def seeded(seed=0):
    return np.random.Generator(np.random.PCG64(seed))


def told(privacy, **more):
    return replace(KNOWLEDGE, candidates=CANDIDATES, noise=Noise(privacy, **more))


def clear_rows(tokens):
    return worlds.as_rows(tokens).packed.values


@pytest.mark.parametrize("segments", [1, 2])
def test_without_noise_releases_are_what_they_are_made_of(segments):
    tokens = worlds.random_tokens(30, segments=segments)
    known = replace(KNOWLEDGE, noise=Noise.nothing())
    assert simulate(tokens, known, rows=None, rng=seeded()) is tokens
    rows = simulate(tokens, known, rows=torch.bfloat16, rng=seeded())
    assert rows.packed.values.dtype is torch.bfloat16
    assert torch.equal(rows.packed.values, clear_rows(tokens).bfloat16())
    assert torch.equal(rows.segment_lengths, worlds.TEMPLATE.segment_lengths(tokens))


def test_tokens_are_replaced_as_often_as_by_the_customer():
    tokens = worlds.random_tokens(900)
    privacy = TextToText(eta=6)
    secret = CustomerSecret.unsafe(3)
    privatizer = build_privatizer(
        privacy, secret=secret, table=TABLE, candidates=CANDIDATES, table_fingerprint="a table"
    )
    theirs = privatizer.tokens(tokens, labels=None).payload.segments[0].values
    ours = simulate(tokens, told(privacy), rows=None, rng=seeded()).segments[0].values
    true = tokens.segments[0].values
    assert bool(CANDIDATES[ours].all())
    kept = [float((drawn == true).double().mean()) for drawn in (theirs, ours)]
    # a table of 12 columns: one draw a text says little, so five standard errors of the difference
    assert abs(kept[0] - kept[1]) < 5 * (2 * kept[0] * (1 - kept[0]) / len(true)) ** 0.5
    assert 0.2 < kept[1] < 0.9
    table = [torch.bincount(drawn, minlength=VOCAB)[10:60].numpy() + 1 for drawn in (theirs, ours)]
    assert stats.chi2_contingency(table).pvalue > 1e-4


def test_an_attackers_rows_are_clipped_as_the_customers_are():
    tokens, privacy = worlds.random_tokens(400), Vector(eta=2, clip=True)
    known = told(privacy)
    made = simulate(tokens, known, rows=torch.float32, rng=seeded()).packed.values
    privatizer = build_privatizer(
        privacy, secret=CustomerSecret.unsafe(3), table=TABLE, candidates=CANDIDATES, table_fingerprint="a table"
    )
    theirs = privatizer.tokens(tokens, labels=None).payload.segments[0].values
    largest = float(TABLE[CANDIDATES].norm(dim=1).max())
    for rows in (made, theirs):
        lengths = rows.double().norm(dim=1)
        assert float(lengths.max()) < largest * (1 + 1e-6)
        assert 0.3 < float((lengths > largest * (1 - 1e-6)).double().mean()) < 1


def test_noise_on_rows_has_the_mechanisms_length_and_leaves_special_tokens_alone():
    tokens = worlds.random_tokens(400)
    rows = simulate(tokens, told(Vector(eta=7)), rows=torch.float32, rng=seeded())
    drawn = (rows.packed.values - clear_rows(tokens)).double()
    special = torch.zeros(len(drawn), dtype=torch.bool)
    ends = rows.packed.offsets
    special[ends[:-1]] = special[ends[1:] - 1] = True
    assert float(drawn[special].abs().max()) == 0
    radii = drawn[~special].norm(dim=1)
    assert stats.kstest(radii.numpy(), stats.gamma(WIDTH, scale=1 / 7).cdf).pvalue > 1e-4
    # on the customer's lattice, where only single precision's rounding is left
    lattice = rows.packed.values[~special] * 1024
    assert float((lattice - lattice.round()).abs().max()) < 1e-3


def test_the_noise_is_the_one_that_the_customer_draws(tmp_path):
    tokens = worlds.random_tokens(400)
    with installing(tmp_path) as install:
        install("bundle", FAINT, faint="NOISE")
        privacy = Vector(eta=7, noise="faint")
        rows = simulate(tokens, told(privacy), rows=torch.float32, rng=seeded())
    radii = (rows.packed.values - clear_rows(tokens)).double().norm(dim=1)
    assert float(radii[radii > 0].mean()) == pytest.approx(WIDTH / 7 / 10, rel=0.05)


def test_noise_on_the_bottoms_output_is_on_every_row():
    tokens = worlds.random_tokens(200)
    privacy = Vector(eta=7, place=Place.ACTIVATIONS)
    rows = simulate(tokens, told(privacy), rows=torch.float32, rng=seeded())
    radii = (rows.packed.values - clear_rows(tokens)).double().norm(dim=1)
    assert stats.kstest(radii.numpy(), stats.gamma(WIDTH, scale=1 / 7).cdf).pvalue > 1e-4


def test_a_text_of_no_known_class_is_of_the_one_that_its_tokens_are_likeliest_in():
    """Two tokens of class 0 and one of class 1: eta is that of class 0 for all of them."""
    etas = torch.where(torch.arange(VOCAB)[:, None] % 2 == torch.arange(2), 1e5, 0.1).double()
    texts = Tokens((Ragged.from_lists([[20, 22, 31], [21, 23, 30]]),))
    known = told(TextToText(eta=6e4, cti=CtiSpec()), etas=etas)
    drawn = simulate(texts, known, rows=None, rng=seeded()).segments[0]
    assert drawn[0][:2].tolist() == [20, 22]
    assert drawn[1][:2].tolist() == [21, 23]
    assert int(drawn[0][2]) != 31
    assert int(drawn[1][2]) != 30


def test_eta_may_depend_on_the_token_and_on_the_texts_class():
    tokens = worlds.random_tokens(200)
    (side,) = tokens.segments
    classes = torch.arange(200) % 2
    etas = torch.full((VOCAB, 2), 0.1, dtype=torch.float64)
    etas[:, 1] = 1e5
    known = told(TextToText(eta=6, cti=CtiSpec()), etas=etas)
    drawn = simulate(tokens, known, rows=None, rng=seeded(), classes=classes).segments[0].values
    of_class = classes.repeat_interleave(side.lengths)
    assert torch.equal(drawn[of_class == 1], side.values[of_class == 1])
    assert float((drawn == side.values)[of_class == 0].double().mean()) < 0.1
    # one column is for all classes
    everyone = told(TextToText(eta=6, cti=CtiSpec()), etas=etas[:, 1:])
    assert torch.equal(
        simulate(tokens, everyone, rows=None, rng=seeded(), classes=classes).segments[0].values, side.values
    )


def test_rows_behind_blocks_come_through_the_bottom():
    bottom = cut_up(zoo.shared_model("bert", Head.CLASSIFICATION), Cut(bottom=1)).bottom
    knowledge = Knowledge(
        cut=Cut(bottom=1), table=bottom.table, template=worlds.TEMPLATE, bottom=bottom, noise=Noise.nothing()
    )
    lengths = torch.tensor([3, 0, 5])
    tokens = Tokens((Ragged(torch.arange(4, 12), lengths),))
    rows = simulate(tokens, knowledge, rows=torch.float32, rng=seeded())
    for text in range(3):
        alone = tokens.select([text])
        with torch.no_grad():
            expected = bottom(worlds.TEMPLATE.assemble(alone, table=bottom.table))[0]
        assert torch.allclose(rows.packed[text], expected, atol=1e-5)
    with pytest.raises(Inapplicable, match="no bottom"):
        simulate(tokens, replace(knowledge, bottom=None), rows=torch.float32, rng=seeded())


def test_small_blocks_and_large_ones_release_alike(monkeypatch):
    tokens = worlds.random_tokens(60, segments=2)
    known = told(TextToText(eta=6))
    whole = simulate(tokens, known, rows=None, rng=seeded())
    assert torch.equal(whole.segments[1].values, simulate(tokens, known, rows=None, rng=seeded()).segments[1].values)
    module = sys.modules[simulate.__module__]
    monkeypatch.setattr(module, "_NUMBERS", 5 * WIDTH)
    monkeypatch.setattr(module, "_POSITIONS", 16)
    small = simulate(tokens, known, rows=torch.float32, rng=seeded())
    assert torch.equal(small.segment_lengths, worlds.TEMPLATE.segment_lengths(tokens))
    unseen = Tokens((Ragged.from_lists([[], []]), Ragged.from_lists([[11], []])))
    assert simulate(unseen, known, rows=None, rng=seeded()).total == 1


@pytest.mark.parametrize("rows", [None, torch.float32])
def test_public_text_is_released_once_for_all_who_learn_from_it(monkeypatch, rows):
    public = PublicText(Tokens((worlds.random_tokens(200).segments[0],)), source="made up")
    known = replace(told(TextToText(eta=6)), public=public)
    searched = []
    real = NeighbourSearch.nearest
    monkeypatch.setattr(NeighbourSearch, "nearest", lambda *given: searched.append(len(given[1])) or real(*given))

    def released(**changes):
        texts, releases = release_public(known, **{"rows": rows, "tokens": 300, "seed": 1, "draws": 2, **changes})
        return texts, [payload.packed.values if rows else payload.segments[0].values for payload in releases]

    texts, (first, second) = released()
    assert len(texts.values) <= 300
    assert texts.values.equal(public.tokens.segments[0].values[: len(texts.values)])
    assert not first.equal(second), "each has noise of its own"
    once = sum(searched)
    again, others = released()
    assert again.values.equal(texts.values)
    assert all(one.equal(other) for one, other in zip((first, second), others, strict=True))
    assert sum(searched) == once, "nothing was searched for twice"
    assert not first.equal(released(seed=2)[1][0])
    assert sum(searched) > once
    known = replace(known, noise=Noise(TextToText(eta=500)))
    assert not first.equal(released()[1][0]), "other noise, other draws"


def test_nothing_is_kept_of_rows_with_noise():
    public = PublicText(Tokens((worlds.random_tokens(50).segments[0],)), source="made up")
    known = replace(told(Vector(eta=7)), public=public)
    made = [next(release_public(known, rows=torch.float32, tokens=100, seed=1, draws=1)[1]) for _ in range(2)]
    assert made[0].packed.values.equal(made[1].packed.values)
    assert not public._fitted


@pytest.mark.parametrize("missing", ["public", "noise"])
def test_to_release_public_text_it_must_be_granted(missing):
    public = PublicText(worlds.random_tokens(5), source="made up")
    known = replace(told(TextToText(eta=6)), **{"public": public, missing: None})
    with pytest.raises(Inapplicable, match="text or mechanism"):
        release_public(known, rows=None, tokens=10, seed=0, draws=1)


@pytest.mark.parametrize("missing", ["noise", "table"])
def test_what_was_not_granted_is_named(missing):
    known = replace(told(TextToText(eta=6)), **{missing: None})
    with pytest.raises(Inapplicable):
        simulate(worlds.random_tokens(3), known, rows=None, rng=seeded())


def test_the_form_of_releases_is_that_of_the_first(tmp_path):
    tokens = worlds.random_tokens(4)
    rows = worlds.as_rows(tokens)
    assert released_as(Seen.recorded(worlds.record(tmp_path / "ids", [worlds.shard(0, tokens)]))) is None
    assert released_as(Seen.recorded(worlds.record(tmp_path / "rows", [worlds.shard(0, rows)]))) is torch.bfloat16
    assert isinstance(rows, Rows)
    with pytest.raises(Inapplicable, match="no released text"):
        released_as(Seen(lambda: iter(())))
