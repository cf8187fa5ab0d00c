"""DPNR and CAPE, the baselines that send an encoder's output: their arithmetic, and what is read of a tiny model's."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from scipy.stats import binomtest, kstest
from scipy.stats import laplace as distribution
from torch import nn

from cutlayer.attacks.evaluation import attributes
from cutlayer.core import ConfigError
from cutlayer.customer import FullTuning, Objective
from cutlayer.customer.attacker import AttackerSpec
from cutlayer.models import Head, load_model, load_tokenizer
from cutlayer.privacy.mechanisms import LATTICE
from cutlayer.recipes.baselines import (
    Encoder,
    OutputNoise,
    RepresentationCell,
    kept,
    laplace,
    reversed_gradient,
    scaled,
    spared_by_dropping,
    text_epsilon,
)
from cutlayer.recipes.lab import Lab
from cutlayer.recipes.options import RecipeOptions, Size
from cutlayer.recipes.reference.classifier import Batches
from cutlayer.recipes.tasks import Limits, Task
from cutlayer.recipes.training import settled
from tests.recipes.worlds import write_split
from tests.service.tiny import write_tiny_bert

WIDTH = 384


def seeded(seed=0):
    return np.random.Generator(np.random.PCG64(seed))


# ---------------------------------------------------------------- scaling, and what it bounds


def test_a_row_is_scaled_by_its_own_ends():
    rows = torch.tensor([[2.0, 4.0, 3.0], [-1.0, -1.0, -3.0], [5.0, 5.0, 5.0]])
    assert scaled(rows).tolist() == [[0, 1, 0.5], [1, 1, 0], [0, 0, 0]]


def test_no_number_of_a_row_changes_by_more_than_one_whatever_the_text():
    """So Laplace noise of scale 1 / epsilon is epsilon for each number, and their sum for a text; the bound is met."""
    rows = torch.from_numpy(seeded().standard_cauchy((400, WIDTH)))
    apart = (scaled(rows)[:200] - scaled(rows)[200:]).abs()
    assert apart.max() <= 1
    ends = scaled(torch.tensor([[0.0, 9.0], [9.0, 0.0]], dtype=torch.float64))
    loss = [distribution(loc=row, scale=1 / 5).logpdf(ends[0]).sum() for row in ends]
    assert loss[0] - loss[1] == pytest.approx(text_epsilon(5, width=2))
    # planted: without scaling the same noise promises nothing
    assert (rows[:200] - rows[200:]).abs().max() > 100


# ---------------------------------------------------------------- noise


def fits(noise, epsilon):
    return kstest(noise.flatten().numpy(), distribution(scale=1 / epsilon).cdf).pvalue > 1e-4


@pytest.mark.parametrize("epsilon", [0.01, 5.0, 50.0])
def test_noise_is_laplace_of_scale_one_over_epsilon(epsilon):
    noise = laplace((50, WIDTH), epsilon=epsilon, rng=seeded())
    assert noise.dtype is torch.float64
    assert fits(noise, epsilon)
    # planted: scales that are too small or too large, and noise that a row's numbers share
    for wrong in (2 / 3, 3 / 2):
        assert not fits(noise * wrong, epsilon)
    assert len(noise.unique()) == noise.numel()
    assert abs(np.corrcoef(noise[:, 0], noise[:, 1])[0, 1]) < 0.6


def test_an_infinite_epsilon_adds_nothing_and_a_seed_repeats():
    assert laplace((3, 4), epsilon=math.inf, rng=seeded()).abs().sum() == 0
    assert torch.equal(*(laplace((3, 4), epsilon=1.0, rng=seeded(7)) for _ in range(2)))


# ---------------------------------------------------------------- dropped words


def test_words_are_left_out_whole_and_as_often_as_asked():
    words = torch.tensor([[-1, *[n for n in range(200) for _ in range(2)], -1, -1]]).repeat(50, 1)
    stays = kept(words, dropped=0.1, rng=seeded())
    assert stays[words < 0].all()
    pieces = stays[:, 1:401].reshape(50, 200, 2)
    assert torch.equal(pieces[..., 0], pieces[..., 1])
    left_out = int((~pieces[..., 0]).sum())
    assert binomtest(left_out, 50 * 200, 0.1).pvalue > 1e-4
    # planted: another rate, and pieces that are drawn by themselves
    other = kept(words, dropped=0.12, rng=seeded())[:, 1:401:2]
    assert binomtest(int((~other).sum()), 50 * 200, 0.1).pvalue < 1e-4
    apart = kept(torch.arange(400)[None].repeat(50, 1), dropped=0.1, rng=seeded()).reshape(50, 200, 2)
    assert not torch.equal(apart[..., 0], apart[..., 1])


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
def test_dropping_spares_what_the_paper_states(epsilon):
    """And no more: of two answers, an epsilon-private draw of a word that is left out one time in ten."""
    stated = math.log(0.9 * math.exp(epsilon) + 0.1)
    assert epsilon - spared_by_dropping(epsilon, dropped=0.1) == pytest.approx(stated)
    p = 1 / (1 + math.exp(epsilon))  # of the less likely answer
    without = p  # of the text that lacks the word, at its worst
    ratio = (0.1 * without + 0.9 * (1 - p)) / (0.1 * without + 0.9 * p)
    assert math.log(ratio) == pytest.approx(stated)


def test_at_a_texts_epsilon_dropping_spares_next_to_nothing():
    total = text_epsilon(5, width=WIDTH)
    assert total == 1920
    assert spared_by_dropping(total, dropped=0.1) == pytest.approx(-math.log(0.9))
    assert spared_by_dropping(total, dropped=0.0) == 0


# ---------------------------------------------------------------- the encoder


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return str(write_tiny_bert(tmp_path_factory.mktemp("models") / "tiny"))


def encoder_of(tiny, dropped=0.0):
    model = load_model(tiny, head=Head.CLASSIFICATION).base_model
    return Encoder(model, Batches(load_tokenizer(tiny), 24, torch.device("cpu")), dropped=dropped).eval()


def test_a_texts_row_is_the_scaled_mean_of_its_states_whatever_stands_beside_it(tiny):
    encoder, tokenizer = encoder_of(tiny), load_tokenizer(tiny)
    texts = [("w1 w2 w3",), ("w4 w5 w6 w7 w8 w9",)]
    states = encoder.model(**tokenizer("w1 w2 w3", return_tensors="pt")).last_hidden_state
    rows = encoder(texts, seeded())
    torch.testing.assert_close(rows[:1], scaled(states.mean(1)), rtol=0, atol=1e-5)
    assert rows.amin(1).tolist() == [0, 0]
    assert rows.amax(1).tolist() == [1, 1]


def test_a_word_that_is_left_out_is_neither_read_nor_counted(tiny):
    class First:
        """Leaves out the first word of each text, and no other."""

        def random(self, size):
            drawn = np.ones(size)
            drawn[:, 0] = 0
            return drawn

    encoder = encoder_of(tiny, dropped=0.1)
    with torch.no_grad():
        one, other, kept_too = (encoder([(text,)], First()) for text in ("w1 w2 w3", "w9 w2 w3", "w1 w2 w4"))
    assert torch.equal(one, other)
    assert not torch.equal(one, kept_too)


def test_releases_lie_on_the_lattice_and_training_learns_through_the_noise(tiny):
    from cutlayer.data import Dataset

    encoder = encoder_of(tiny)
    left = encoder.release(Dataset((("w1 w2",), ("w3",))), epsilon=5.0, rng=seeded())
    assert left.dtype is torch.float64
    assert torch.equal((left / LATTICE).round() * LATTICE, left)
    encoder.model.requires_grad_(True)
    encoder([("w1 w2 w3",)], seeded()).square().sum().backward()
    assert any(each.grad is not None and bool(each.grad.abs().sum() > 0) for each in encoder.parameters())


def test_the_gradient_of_the_attributes_classifier_is_turned_round_for_the_encoder_alone():
    rows = torch.randn(4, 6, requires_grad=True)
    reader = nn.Linear(6, 2)
    plain = torch.autograd.grad(reader(rows).square().sum(), [rows, reader.weight])
    again = reversed_gradient(rows, 1.5)
    assert torch.allclose(again, rows)
    turned = torch.autograd.grad(reader(again).square().sum(), [rows, reader.weight])
    torch.testing.assert_close(turned[0], -1.5 * plain[0])
    torch.testing.assert_close(turned[1], plain[1])


# ---------------------------------------------------------------- the cell


def posts(count, first_author):
    """Posts whose words tell the label, and by other words the author's gender and age."""
    rng = random.Random(first_author)
    rows = []
    for number in range(count):
        author = first_author + number // 2
        label, gender, age = number % 2, author % 2, (author // 2) % 2
        starts = rng.choices((100 * gender, 50 + 100 * label, 25 + 100 * age), k=18)
        words = " ".join(f"w{start + rng.randrange(25)}" for start in starts)
        rows.append((words, label, ("female", "male")[gender], 20 + 20 * age + author % 3, author))
    return rows


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    columns = ("text", "label", "gender", "age", "author_id")
    for part, count, first in (("train", 400, 0), ("test", 100, 1000)):
        write_split(folder, "blog_authorship", part, posts(count, first), columns)
    return folder


TASK = Task(
    name="blog_authorship", title="Blog", dev_share=0.1, group="author_id", attributes=("gender", "age")
)  # fmt: skip
ATTACKER = AttackerSpec(auxiliary_fraction=0.5, group="author_id", secret=("gender", "age"), bins=2)


def cell(lab, noise, epsilon):
    tuning = FullTuning()
    training = settled(Objective.CLASSIFICATION, tuning, {"epochs": 6, "learning_rate": 2e-3, "max_length": 24})
    return RepresentationCell(
        task=TASK, limits=Limits(), model=lab.model().fingerprint, tuning=tuning, training=training, noise=noise,
        epsilon=epsilon, head_rate=1e-2, attacks=("attribute-mlp",), attacker=ATTACKER,
    )  # fmt: skip


@pytest.fixture
def short_controls(monkeypatch):
    monkeypatch.setattr(attributes, "CONTROL_KNOWN", 160)
    monkeypatch.setattr(attributes, "CONTROL_ATTACKED", 160)


@pytest.mark.slow
@pytest.mark.usefixtures("short_controls")
def test_rows_without_noise_tell_label_and_author_and_with_much_of_it_neither(tiny, data, tmp_path):
    options = RecipeOptions(size=Size.TINY, model=tiny, data=data, out=tmp_path)
    with Lab(options) as lab:
        told = {}
        for epsilon in (math.inf, 0.01):
            asked = cell(lab, OutputNoise(title="DPNR", epsilon=5, dropped=0.1), epsilon)
            result = lab.result(asked)
            assert type(result).model_validate_json(result.model_dump_json()) == result
            told[epsilon] = {
                (each.metric, each.axes.get("column", "")): each.value for each in asked.measures(result)
            }  # fmt: skip
    clear, noisy = told[math.inf], told[0.01]
    assert clear["UA", ""] > 0.8 > 0.65 > noisy["UA", ""]
    assert clear["UA from releases alone", ""] > 0.8
    assert clear["EP", "gender"] < 0.4 < noisy["EP", "gender"]
    assert noisy["epsilon of a text", ""] == pytest.approx(0.01 * result.width)
    assert clear["epsilon of a text", ""] == math.inf
    assert result.weights == sum(
        each.numel() for each in load_model(tiny, head=Head.CLASSIFICATION).base_model.parameters()
    )
    # as many bins as were asked for, by the same rule as an audit's
    assert clear["majority", "age"] < 0.75


def test_an_encoder_decoder_is_refused_before_anything_is_run(data, tmp_path, monkeypatch):
    from cutlayer.models import FAMILIES

    options = RecipeOptions(size=Size.TINY, model="starter", data=data, out=tmp_path)
    with Lab(options) as lab:
        asked = cell(lab, OutputNoise(title="CAPE", epsilon=0.01, reversal=1.5), 0.01)
        model = lab.model()
        monkeypatch.setitem(model.__dict__, "family", FAMILIES["t5"])
        with pytest.raises(ConfigError, match="CAPE needs an encoder or a decoder"):
            asked.check(lab)
