from __future__ import annotations

import dataclasses
import functools

import pytest
import torch

from cutlayer.attacks import (
    Inapplicable,
    MaskedInfill,
    MaskedInfillSpec,
    MaximumPosterior,
    MaximumPosteriorSpec,
    Noise,
    PublicText,
    Transcript,
    View,
)
from cutlayer.attacks.evaluation.traffic import CONTROL, packed, sent
from cutlayer.attacks.inversion import infill
from cutlayer.attacks.inversion.emission import Candidates
from cutlayer.attacks.inversion.masked_infill import _MaskedLanguageModel
from cutlayer.attacks.inversion.prior import Bigram
from cutlayer.attacks.simulate import boundary, simulate
from cutlayer.core import Cut, Ragged, Tokens
from cutlayer.models import Head, cut_up
from cutlayer.privacy import TextToText, Vector, Words
from cutlayer.privacy.replacement import CLEAR
from cutlayer.wire.recording import Direction
from tests.equivalence import zoo
from tests.unit.attacks import worlds
from tests.unit.attacks.test_simulate import seeded
from tests.unit.attacks.worlds import CANDIDATES, KNOWLEDGE, VOCAB, generator

SPEC = MaskedInfillSpec(
    posterior=MaximumPosteriorSpec(pairs=4000, candidates=16), passes=6, batch=128, learning_rate=4e-3, share=1
)
TOPICS = 3
KINDS = 12


@torch.no_grad()
def model():
    """An encoder whose table has a token of each topic close to another: noise swaps topics."""
    made = worlds.reading_model(vocab=VOCAB)
    table = made.bert.embeddings.word_embeddings.weight
    kinds = torch.randn(KINDS, table.shape[1], generator=generator(3))
    table[10 : 10 + (TOPICS + 1) * KINDS] = kinds.repeat(TOPICS + 1, 1) + 0.4 * table[10 : 10 + (TOPICS + 1) * KINDS]
    return made


MODEL = model()


def telling(texts, *, seed):
    """Texts about a topic, which every other token tells; those between are the same for all topics."""
    made = generator(seed)
    lengths = torch.randint(6, 14, (texts,), generator=made)
    values = []
    for length in lengths.tolist():
        topic = int(torch.randint(TOPICS, (), generator=made))
        ids = 10 + torch.randint(KINDS, (length,), generator=made)
        ids[::2] += KINDS * (1 + topic)
        values.append(ids)
    return Tokens((Ragged(torch.cat(values), lengths),))


TEXTS = telling(300, seed=2)
KNOWN = dataclasses.replace(
    KNOWLEDGE,
    cut=Cut(bottom=None),
    table=cut_up(MODEL, Cut(bottom=0)).bottom.table.detach(),
    candidates=CANDIDATES,
    model=MODEL,
    noise=Noise(TextToText(eta=3.5)),
    public=PublicText(telling(1200, seed=1), source="made up"),
)


@functools.cache
def released(seed=5):
    return simulate(TEXTS, KNOWN, rows=None, rng=seeded(seed))


def seen(folder, payload, knowledge=KNOWN):
    return View(Transcript.recorded(worlds.record(folder, [worlds.shard(0, payload)])), knowledge)


def guessed(attack, view):
    ((_, _, guess),) = attack(view)
    return guess.segments[0].values


def share(ids):
    return float((ids == TEXTS.segments[0].values).double().mean())


FAST = MaskedInfillSpec(posterior=MaximumPosteriorSpec(pairs=2000, candidates=8), passes=1, tokens=1500)
"""Where it does not matter how much is learnt."""


def fresh(**changes):
    """The same knowledge, of which nothing was learnt yet."""
    return dataclasses.replace(KNOWN, public=PublicText(telling(400, seed=1), source="made up"), **changes)


@pytest.mark.slow
def test_it_reads_what_neighbours_further_off_tell(tmp_path):
    """A topic stands in every other word: no pair of neighbours tells it, and the whole text does."""
    view = seen(tmp_path, released())
    plain = share(released().segments[0].values)
    nearby, whole = share(guessed(MaximumPosterior(SPEC.posterior), view)), share(guessed(MaskedInfill(SPEC), view))
    assert 0.4 < plain < 0.6, "noise that hides some"
    assert whole > nearby + 0.01 > plain
    tuned = MaskedInfill(SPEC).reader(KNOWN, rows=False).tuned
    assert tuned.exponent
    assert tuned.read > tuned.without


def test_suspicious_tokens_are_masked_as_far_as_they_are_suspicious():
    prior = Bigram(telling(400, seed=1).segments[0], allowed=CANDIDATES)
    model = _MaskedLanguageModel(KNOWN, prior, share=1, generator=generator(1))
    shown = []
    blocks = model._blocks.forward
    model._blocks.forward = lambda inputs, hidden: shown.append(hidden) or blocks(inputs, hidden)
    ids = torch.tensor([[11, 12], [11, 12], [11, 12]])
    wanted = torch.tensor([1.0, 0.5, 0.75]).double()
    # what the channel says beside how often the tokens stand
    scores = torch.stack([wanted, 1 - wanted], 1).log() - prior.unigram[ids]
    model(Candidates(ids, scores), torch.tensor([3]), ids[:, 0])
    ((rows,),) = shown
    for row, likely in zip(rows[1:4], wanted.float(), strict=True):
        assert torch.allclose(row, likely * KNOWN.table[11] + (1 - likely) * model._mask, atol=1e-5)
    assert torch.equal(rows[[0, 4]], KNOWN.table[[1, 2]]), "special tokens stand as they are"


def test_texts_are_told_of_in_their_order_whatever_their_lengths(monkeypatch):
    prior = Bigram(telling(400, seed=1).segments[0], allowed=CANDIDATES)
    model = _MaskedLanguageModel(KNOWN, prior, share=1, generator=generator(1))
    lengths = torch.tensor([2, 5, 1, 4])
    ids = 10 + torch.randint(40, (12, 3), generator=generator(2))
    candidates = Candidates(ids, torch.randn(12, 3, generator=generator(3)).double())
    monkeypatch.setattr(infill, "_POSITIONS", 6)
    told = model.log_ratio(candidates, lengths, prior, ids[:, 0])
    parts = zip(ids.split(lengths.tolist()), candidates.scores.split(lengths.tolist()), strict=True)
    alone = torch.cat([model(Candidates(*part), torch.tensor([len(part[0])]), part[0][:, 0]) for part in parts])
    assert torch.allclose(told + prior.unigram[ids], alone.double(), atol=0.05)
    assert float(alone.std()) > 0.5


def test_the_vendors_model_and_the_process_generator_stay_as_they_are(tmp_path):
    before, state = {name: value.clone() for name, value in MODEL.state_dict().items()}, torch.get_rng_state()
    first = guessed(MaskedInfill(FAST), seen(tmp_path / "first", released(), fresh()))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in MODEL.state_dict().items())
    assert not any(parameter.requires_grad for parameter in MODEL.parameters())
    torch.manual_seed(1)
    assert torch.equal(guessed(MaskedInfill(FAST), seen(tmp_path / "again", released(), fresh())), first)


def test_rows_of_released_tokens_are_read_as_their_ids(tmp_path):
    knowledge = fresh(cut=Cut(bottom=0))
    payload = boundary(released(), knowledge)
    found = guessed(MaskedInfill(FAST), seen(tmp_path / "rows", payload, knowledge))
    assert torch.equal(found, guessed(MaskedInfill(FAST), seen(tmp_path / "ids", released(), fresh())))


def test_what_was_fitted_is_fitted_once(tmp_path, monkeypatch):
    knowledge, fits = fresh(), []
    train = MaskedInfill._trained
    monkeypatch.setattr(MaskedInfill, "_trained", lambda *given: fits.append(1) or train(*given))
    attack = MaskedInfill(FAST)
    assert attack.reader(knowledge, rows=False) is attack.reader(knowledge, rows=False)
    assert len(fits) == 1
    attack.reader(dataclasses.replace(knowledge, noise=Noise(TextToText(eta=4))), rows=False)
    assert len(fits) == 2


NUMBERS = torch.arange(VOCAB)
TOLD_BY = 100
"""From here on words leave as they are: of each topic five, which tell it."""
CATEGORIES = torch.where(NUMBERS < TOLD_BY, NUMBERS % 2, CLEAR)
"""Words of one kind and other topics are of one category."""
WORDS = dataclasses.replace(
    KNOWN, groups=CATEGORIES, candidates=(NUMBERS >= 10) & (CATEGORIES != CLEAR), noise=Noise(Words(eta=3.5))
)


def with_words_in_clear(texts, *, seed):
    """Texts about a topic: every other word leaves as it is and tells it, and noise on those between swaps topics."""
    made = generator(seed)
    lengths = torch.randint(6, 14, (texts,), generator=made)
    values = []
    for length in lengths.tolist():
        topic = int(torch.randint(TOPICS, (), generator=made))
        ids = 10 + KINDS * topic + torch.randint(KINDS, (length,), generator=made)
        ids[::2] = TOLD_BY + 5 * topic + torch.randint(5, (len(ids[::2]),), generator=made)
        values.append(ids)
    return Tokens((Ragged(torch.cat(values), lengths),))


def test_words_are_read_within_their_category_and_words_in_clear_are_certain():
    texts = with_words_in_clear(150, seed=2)
    public = PublicText(with_words_in_clear(600, seed=1), source="made up")
    known = dataclasses.replace(WORDS, public=public)
    released = simulate(texts, known, rows=None, rng=seeded(5))
    true, clear = texts.values, CATEGORIES[texts.values] == CLEAR
    attack = MaskedInfill(SPEC.model_copy(update={"passes": 3}))

    def found(payload, attack=attack, knowledge=known):
        payload = sent(Direction.UP, 1, packed(payload, payload))
        return guessed(attack, View(Transcript(lambda: [payload]), knowledge))

    def share(ids):
        return float((ids == true)[~clear].double().mean())

    read = found(released)
    assert torch.equal(CATEGORIES[read], CATEGORIES[true])
    assert torch.equal(read[clear], true[clear])
    assert share(read) > share(released.values) + 0.1
    # the fault that is planted: words in clear that are another text's tell nothing, or the wrong thing
    crossed = released.values.clone()
    crossed[clear] = crossed[clear].roll(40)
    assert share(found(released.with_values(crossed))) < share(read) - 0.1
    # and who does not know categories guesses outside of them
    blind = dataclasses.replace(
        known,
        groups=torch.where(CATEGORIES == CLEAR, CLEAR, 0),
        noise=Noise(Words(eta=3.501)),  # fitted anew
    )
    outside = CATEGORIES[found(released, MaximumPosterior(SPEC.posterior), blind)] != CATEGORIES[true]
    assert bool(outside[~clear].any())


@pytest.mark.parametrize("noise", [Noise.nothing(), Noise(TextToText(eta=1e4))])
def test_where_nothing_is_hidden_nothing_is_learnt(tmp_path, monkeypatch, noise):
    monkeypatch.setattr(MaskedInfill, "_trained", lambda *_: pytest.fail("there is nothing to fill in"))
    assert share(guessed(MaskedInfill(FAST), seen(tmp_path, TEXTS, fresh(noise=noise)))) == 1


def test_a_model_that_tells_nothing_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(_MaskedLanguageModel, "log_ratio", lambda self, candidates, *_: 0 * candidates.scores)
    knowledge = fresh()
    without = MaximumPosterior(FAST.posterior)
    spec = FAST.model_copy(update={"weights": FAST.posterior.weights})
    view = seen(tmp_path, released(), knowledge)
    assert torch.equal(guessed(MaskedInfill(spec), view), guessed(without, view))
    assert MaskedInfill(spec).reader(knowledge, rows=False).tuned.exponent == 0


def test_releases_of_one_text_are_read_together():
    steps = [sent(Direction.UP, number, packed(released(number), released())) for number in (1, 2, 3)]
    links = {(f"job/{CONTROL}", number): torch.arange(len(TEXTS)) for number in (1, 2, 3)}

    def read(**changes):
        view = View(Transcript(lambda: steps), dataclasses.replace(KNOWN, **changes))
        return [share(guess.segments[0].values) for _, _, guess in MaskedInfill(SPEC)(view)]

    alone, together = read(), read(links=links)
    assert min(together) > max(alone) + 0.1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"noise": Noise(Vector(eta=9))}, "Noisy rows were sent"),
        ({"model": None}, "was granted none"),
        ({"template": None}, "was granted none"),
        ({"model": zoo.shared_model("gpt2", Head.CLASSIFICATION)}, "no encoder"),
        ({"noise": None}, "not told how releases are privatized"),
        ({"public": None}, "no text of its own"),
        ({"cut": Cut(bottom=1)}, "behind blocks"),
    ],
)
def test_what_it_cannot_read_it_says(tmp_path, changes, said):
    view = seen(tmp_path, released(), dataclasses.replace(KNOWN, **changes))
    with pytest.raises(Inapplicable, match=said):
        list(MaskedInfill(FAST)(view))
