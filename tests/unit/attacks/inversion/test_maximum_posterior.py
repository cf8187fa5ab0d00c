from __future__ import annotations

import dataclasses
import functools
import itertools
import math

import numpy as np
import pytest
import torch

from cutlayer.attacks import (
    Inapplicable,
    MaximumPosterior,
    MaximumPosteriorSpec,
    Measured,
    Noise,
    PublicText,
    SeenFrame,
    TokenTruth,
    Transcript,
    View,
    measure,
)
from cutlayer.attacks.inversion.channel import Channel, Pairs, draw_ids
from cutlayer.attacks.inversion.decoding import decode
from cutlayer.attacks.inversion.emission import Candidates, NoisyRows, Stated
from cutlayer.attacks.inversion.prior import Bigram
from cutlayer.attacks.simulate import simulate
from cutlayer.core import Cut, Place, Ragged, Tokens
from cutlayer.privacy import CtiSpec, DChi, TextToText, Vector
from cutlayer.privacy.mechanisms.snd_code import SndCode
from cutlayer.privacy.neighbours import NeighbourSearch
from cutlayer.wire import WireType, pack, routes
from cutlayer.wire.recording import Direction
from tests.plugins import FAINT, installing
from tests.unit.attacks import worlds
from tests.unit.attacks.worlds import CANDIDATES, JOB, KNOWLEDGE, TABLE, VOCAB, WIDTH, generator

ETA = 3.0
SEARCH = NeighbourSearch(TABLE, CANDIDATES)
SPEC = MaximumPosteriorSpec(pairs=4000, candidates=16)


def rng(seed=0):
    return np.random.Generator(np.random.PCG64(seed))


def constant(eta):
    """The same eta for every token."""
    return lambda ids: torch.full((len(ids),), eta, dtype=torch.float64)


def chain(texts, *, seed):
    """Texts in which each token tells much of the next: the one after it in a fixed order, three times in four."""
    made = generator(seed)
    follower = 10 + torch.randperm(VOCAB - 10, generator=generator(99))
    lengths = torch.randint(4, 12, (texts,), generator=made)
    values = []
    for length in lengths.tolist():
        token = int(torch.randint(10, VOCAB, (), generator=made))
        for _ in range(length):
            values.append(token)
            jump = float(torch.rand((), generator=made)) < 0.25
            token = int(torch.randint(10, VOCAB, (), generator=made)) if jump else int(follower[token - 10])
    return Tokens((Ragged(torch.tensor(values), lengths),))


PUBLIC = PublicText(chain(3000, seed=1), source="made up")
TEXTS = chain(300, seed=2)


def packed(payload):
    return pack(payload, vocab_size=VOCAB, wire_type=WireType.FP32)


def transcript(*payloads):
    frames = [
        SeenFrame(Direction.UP, routes.STEP, {"job": JOB, "step": number}, functools.partial(packed, payload))
        for number, payload in enumerate(payloads, start=1)
    ]
    steps = {(JOB, number): torch.arange(len(TEXTS)) for number in range(1, len(payloads) + 1)}
    return Transcript(lambda: frames), TokenTruth(TEXTS, steps=steps)


def drawn(seed, eta=ETA):
    (side,) = TEXTS.segments
    ids = draw_ids(side.values, SEARCH, privacy=TextToText(eta=1), etas=constant(eta)(side.values), rng=rng(seed))
    return Tokens((side.with_values(ids),))


def knowledge(noise, **changes):
    return dataclasses.replace(KNOWLEDGE, candidates=CANDIDATES, noise=noise, public=PUBLIC, **changes)


def recovered(attack, seen, known):
    shown, truth = seen
    return truth.score(MaximumPosterior(SPEC)(View(shown, known))).success.value


# ---------------------------------------------------------------- the parts


def test_the_prior_is_a_distribution_and_knows_what_it_saw():
    prior = Bigram(PUBLIC.tokens.segments[0], allowed=CANDIDATES)
    everything = torch.cat([torch.arange(VOCAB), torch.tensor([prior.end])])
    for before in (10, 57, prior.begin):
        total = float(prior.probability(torch.tensor(before), everything).double().sum())
        assert total == pytest.approx(1, abs=1e-5)
    follower = 10 + torch.randperm(VOCAB - 10, generator=generator(99))
    assert int(prior.probability(torch.tensor(42), torch.arange(VOCAB)).argmax()) == int(follower[32])
    assert float(prior.unigram.exp()[~CANDIDATES].sum()) == 0


def test_the_channel_is_what_draws_show():
    """Against 200,000 draws of a few tokens, which the formula was not fitted on."""
    uniform = torch.where(CANDIDATES, -math.log(VOCAB - 10), -torch.inf).double()
    pairs = Pairs.drawn(6000, SEARCH, uniform, privacy=TextToText(eta=1), etas=constant(ETA), rng=rng())
    channel = Channel(SEARCH, pairs, eta=ETA)
    tokens = torch.tensor([11, 60, 150])
    many = tokens.repeat_interleave(60_000)
    released = draw_ids(many, SEARCH, privacy=TextToText(eta=1), etas=constant(ETA)(many), rng=rng(5)).view(3, -1)
    off = []
    for token, found in zip(tokens, released, strict=True):
        share = torch.bincount(found, minlength=VOCAB).double() / len(found)
        told = channel.log_probability(torch.arange(VOCAB), token.expand(VOCAB, 1))[:, 0].double().exp()
        assert float(told[CANDIDATES].sum()) == pytest.approx(1, abs=1e-4)
        off.append(float((told - share)[CANDIDATES].abs().sum()) / 2)
        assert float(told[token]) == pytest.approx(float(share[token]), abs=0.2)
    # a released token says nothing of which it was: half of the mass would be off
    assert max(off) < 0.35


def test_decoding_finds_the_largest_posterior_of_each_place():
    """Against all paths, counted one by one."""
    prior = Bigram(PUBLIC.tokens.segments[0], allowed=CANDIDATES)
    lengths = torch.tensor([3, 1, 4])
    made = generator(4)
    ids = torch.stack([torch.randperm(VOCAB - 10, generator=made)[:3] + 10 for _ in range(8)])
    scores = torch.randn(8, 3, generator=made).double()
    found = decode(Candidates(ids, scores), lengths, prior, weight=0.7)
    at = 0
    for length in lengths.tolist():
        posterior = torch.zeros(length, 3).double()
        for path in torch.cartesian_prod(*[torch.arange(3)] * length).view(-1, length):
            tokens = [int(ids[at + step, choice]) for step, choice in enumerate(path)]
            chain_of = [prior.begin, *tokens, prior.end]
            steps = [
                float(prior.probability(torch.tensor(a), torch.tensor(b))) for a, b in itertools.pairwise(chain_of)
            ]
            seen = sum(float(scores[at + step, choice]) for step, choice in enumerate(path))
            weight = math.exp(seen + 0.7 * sum(map(math.log, steps)))
            for step, choice in enumerate(path):
                posterior[step, choice] += weight
        assert (
            found[at : at + length].tolist()
            == ids[at : at + length].gather(1, posterior.argmax(1)[:, None])[:, 0].tolist()
        )
        at += length


@pytest.mark.parametrize("clip", [None, 1.0])
def test_the_density_of_noisy_rows(clip):
    """Against the integral over all lengths that a shortened row may have had."""
    eta = 9.0
    emission = NoisyRows(TABLE, eta=eta, clip=clip, unigram=torch.zeros(VOCAB).double(), sources=torch.arange(VOCAB))
    rows = (
        TABLE[[20, 33, 90]].double()
        + torch.from_numpy(np.random.Generator(np.random.PCG64(1)).normal(size=(3, WIDTH))) * 3
    )
    if clip is not None:
        rows *= clip / rows.norm(dim=1, keepdim=True)
    ids = torch.arange(VOCAB).expand(3, VOCAB)
    told = emission.scores(rows.float(), ids)
    if clip is None:
        exact = -eta * (rows[:, None] - TABLE.double()).norm(dim=2)
    else:
        lengths = torch.linspace(clip, 12, 3000).double()
        directions = rows / rows.norm(dim=1, keepdim=True)
        apart = (lengths[:, None, None, None] * directions[:, None] - TABLE.double()).norm(dim=3)
        exact = ((WIDTH - 1) * lengths.log()[:, None, None] - eta * apart).logsumexp(0)
    told, exact = (each - each.logsumexp(1, keepdim=True) for each in (told, exact))
    likely = exact > -6
    assert float((told - exact)[likely].abs().max()) < (1e-4 if clip is None else 0.3)
    assert torch.equal(told.argmax(1), exact.argmax(1))


# ---------------------------------------------------------------- the attack


def test_it_reads_more_than_the_nearest_neighbour():
    seen = transcript(drawn(3))
    plain = float((drawn(3).segments[0].values == TEXTS.segments[0].values).double().mean())
    assert 0.3 < plain < 0.7, "noise that hides some"
    assert recovered(MaximumPosterior, seen, knowledge(Noise(TextToText(eta=ETA)))) > plain + 0.1


def test_rows_behind_clipping_are_read_where_nearest_neighbour_reads_little():
    known = knowledge(Noise(Vector(eta=2.0, clip=True)))
    shown, truth = transcript(simulate(TEXTS, known, rows=torch.float32, rng=rng(4)))
    naive = measure("nearest-neighbour", shown, knowledge=known, truth=truth)
    assert isinstance(naive, Measured)
    assert truth.score(MaximumPosterior(SPEC)(View(shown, known))).success.value > naive.success.value + 0.15


ETAS = torch.where(torch.arange(VOCAB)[:, None] % 2 == torch.arange(2), 1.5, 0.6).double() * ETA
"""Under CTI: a token of one class keeps more in a text of its own."""


@pytest.mark.parametrize("etas", [ETAS, None])
def test_ids_under_cti_are_read_whether_etas_are_estimated_or_not(etas):
    (side,) = TEXTS.segments
    drawn_at = ETAS[side.values, torch.arange(len(TEXTS)).repeat_interleave(side.lengths) % 2]
    ids = draw_ids(side.values, SEARCH, privacy=TextToText(eta=1), etas=drawn_at, rng=rng(3))
    plain = float((ids == side.values).double().mean())
    noise = Noise(TextToText(eta=ETA, cti=CtiSpec()), etas=etas)
    assert 0.3 < plain < 0.7, "noise that hides some"
    assert recovered(MaximumPosterior, transcript(Tokens((side.with_values(ids),))), knowledge(noise)) > plain + 0.05


def test_rows_under_cti_are_read_though_no_tokens_eta_is_known():
    """A likelihood with one eta for all takes the length of the noise for more than it tells."""
    (side,) = TEXTS.segments
    drawn_at = ETAS[side.values, torch.arange(len(TEXTS)).repeat_interleave(side.lengths) % 2]
    noise = torch.from_numpy(DChi().noise(etas=drawn_at.numpy(), width=WIDTH, rng=rng(4)))
    rows = (TABLE[side.values].double() + noise).float()
    sources = torch.arange(VOCAB)
    common = {"eta": ETA, "clip": None, "unigram": torch.zeros(VOCAB).double(), "sources": sources}
    spread, alone = NoisyRows(TABLE, spread=0.45, **common), NoisyRows(TABLE, **common)
    truth = side.values[:, None]

    def told(emission):
        scores = emission.scores(rows, sources.expand(len(rows), -1))
        return float((scores.log_softmax(1)).gather(1, truth).mean())

    assert told(spread) > told(alone)
    payload = worlds.TEMPLATE.unpad(
        worlds.TEMPLATE.assemble(Tokens((side.with_values(rows),)), table=TABLE).inputs_embeds, TEXTS
    )
    shown, truth_of = transcript(payload)
    known = knowledge(Noise(Vector(eta=ETA, cti=CtiSpec()), etas=ETAS))
    naive = measure("nearest-neighbour", shown, knowledge=known, truth=truth_of)
    assert truth_of.score(MaximumPosterior(SPEC)(View(shown, known))).success.value > naive.success.value + 0.1


def test_releases_of_one_text_are_read_together():
    one = transcript(drawn(3))
    four = transcript(*(drawn(seed) for seed in (3, 4, 5, 6)))
    noise = Noise(TextToText(eta=ETA))
    single = recovered(MaximumPosterior, one, knowledge(noise))
    # the union of what each look reads by itself, as the paper counts it; and each guess made of all of them
    links = {(f"job/{JOB}", step): torch.arange(len(TEXTS)) for step in (1, 2, 3, 4)}
    shown, _ = four
    last = TokenTruth(TEXTS, steps={(JOB, 4): torch.arange(len(TEXTS))})
    alone = last.score(MaximumPosterior(SPEC)(View(shown, knowledge(noise)))).success.value
    joint = last.score(MaximumPosterior(SPEC)(View(shown, knowledge(noise, links=links)))).success.value
    assert abs(alone - single) < 0.05
    assert joint > single + 0.1


def test_linked_texts_may_stand_in_another_order_each_time():
    order = torch.randperm(len(TEXTS), generator=generator(1))
    first, second = drawn(3), drawn(4).select(order)
    noise = Noise(TextToText(eta=ETA))
    straight = {(f"job/{JOB}", 1): torch.arange(len(TEXTS)), (f"job/{JOB}", 2): torch.arange(len(TEXTS))}
    mixed = {**straight, (f"job/{JOB}", 2): order}
    shown, _ = transcript(first, drawn(4))
    *_, (_, _, expected) = MaximumPosterior(SPEC)(View(shown, knowledge(noise, links=straight)))
    shown, _ = transcript(first, second)
    *_, (_, _, found) = MaximumPosterior(SPEC)(View(shown, knowledge(noise, links=mixed)))
    assert torch.equal(found.segments[0].values, expected.select(order).segments[0].values)


def test_where_nothing_reads_more_releases_are_taken_as_they_are():
    attack = MaximumPosterior(SPEC)
    known = knowledge(Noise(TextToText(eta=1e4)))
    reader = attack.reader(known, rows=False)
    assert reader.tuned.weight is None
    assert reader.tuned.read == reader.tuned.as_released == 1
    shown, truth = transcript(TEXTS)
    assert truth.score(attack(View(shown, known))).success.value == 1


def test_what_was_fitted_is_fitted_once():
    calls = []
    public = PublicText(PUBLIC.tokens, source="made up")
    real = public.fitted
    public.fitted = lambda key, fit: real(key, lambda: calls.append(key) or fit())
    known = dataclasses.replace(knowledge(Noise(TextToText(eta=ETA))), public=public)
    attack = MaximumPosterior(SPEC)
    assert attack.reader(known, rows=False) is attack.reader(known, rows=False)
    assert len(calls) == 1
    attack.reader(dataclasses.replace(known, noise=Noise(TextToText(eta=ETA + 1))), rows=False)
    assert len(calls) == 2


def test_it_knows_whose_noise_is_drawn(tmp_path):
    with installing(tmp_path) as install:
        install("bundle", FAINT, faint="NOISE")
        for noise, read in (("d-chi", (0.1, 0.7)), ("faint", (0.99, 1))):
            reader = MaximumPosterior(SPEC).reader(knowledge(Noise(TextToText(eta=ETA, noise=noise))), rows=False)
            assert read[0] <= reader.tuned.as_released <= read[1], noise
        rows = knowledge(Noise(Vector(eta=ETA, noise="faint")))
        assert MaximumPosterior(SPEC).reader(rows, rows=True).tuned.read > 0.99
        rows = knowledge(Noise(Vector(eta=ETA, noise="faint", cti=CtiSpec())))
        with pytest.raises(Inapplicable, match="d_chi noise alone, not of faint"):
            MaximumPosterior(SPEC).reader(rows, rows=True)


@pytest.mark.parametrize("clip", [None, 1.0])
def test_the_density_of_other_noise(clip):
    """Against the integral over all lengths that a shortened row may have had."""
    eta, noise = 4.0, SndCode()

    def log_density(rows):
        flat = rows.reshape(-1, WIDTH).numpy()
        return torch.from_numpy(noise.log_density(flat, etas=np.full(len(flat), eta))).reshape(rows.shape[:-1])

    drawn = noise.noise(etas=np.full(3, eta), width=WIDTH, rng=rng(1))
    emission = NoisyRows(
        TABLE, eta=eta, stated=Stated(log_density, length=float(np.linalg.norm(drawn, axis=1).mean())), clip=clip,
        unigram=torch.zeros(VOCAB).double(), sources=torch.arange(VOCAB),
    )  # fmt: skip
    rows = TABLE[[20, 33, 90]].double() + torch.from_numpy(drawn)
    if clip is not None:
        rows *= clip / rows.norm(dim=1, keepdim=True)
    ids = torch.arange(VOCAB).expand(3, VOCAB)
    told = emission.scores(rows.float(), ids)
    if clip is None:
        exact = log_density(rows[:, None] - TABLE.double())
    else:
        lengths = torch.linspace(clip, 60, 4000).double()
        along = torch.stack([log_density(length * rows[:, None] - TABLE.double()) for length in lengths])
        exact = (along + (WIDTH - 1) * lengths.log()[:, None, None]).logsumexp(0)
    told, exact = (each - each.logsumexp(1, keepdim=True) for each in (told, exact))
    assert float((told - exact)[exact > -6].abs().max()) < (1e-3 if clip is None else 0.05)


@pytest.mark.parametrize("clip", [False, True])
def test_rows_of_the_released_samplers_noise_are_read_by_its_density(clip):
    known = knowledge(Noise(Vector(eta=4.0, noise="snd-code", clip=clip)))
    shown, truth = transcript(simulate(TEXTS, known, rows=torch.float32, rng=rng(4)))
    naive = measure("nearest-neighbour", shown, knowledge=known, truth=truth)
    assert isinstance(naive, Measured)
    assert truth.score(MaximumPosterior(SPEC)(View(shown, known))).success.value > naive.success.value + 0.1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"noise": None}, "not told how releases are privatized"),
        ({"public": None}, "no text of its own"),
        ({"cut": Cut(bottom=2)}, "behind blocks"),
        ({"noise": Noise(Vector(eta=5, place=Place.ACTIVATIONS))}, "no row is a token's"),
    ],
)
def test_what_it_cannot_read_it_says(changes, said):
    shown, _ = transcript(drawn(1))
    known = dataclasses.replace(knowledge(Noise(TextToText(eta=ETA))), **changes)
    with pytest.raises(Inapplicable, match=said):
        list(MaximumPosterior(SPEC)(View(shown, known)))
