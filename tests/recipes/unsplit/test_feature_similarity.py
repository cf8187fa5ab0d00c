"""Distance correlation against its definition and known cases, and what is said about parts of models."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, OPTConfig

from cutlayer.core import Cut, ModelError, StorageError
from cutlayer.models import split
from cutlayer.recipes.measures import feature_similarity
from cutlayer.recipes.measures.feature_similarity import (
    HeatMaps,
    Similarities,
    SimilarityCell,
    cosine_similarities,
    cosine_similarity,
    distance_correlation,
    distance_correlations,
    measure,
    text_features,
)
from cutlayer.recipes.measures.networks import Features
from cutlayer.recipes.unsplit_cases import PAPER
from tests.recipes.unsplit.made_up import told


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def slow_covariance(x, y):
    """dCov² by the letter of the definition, one number after another."""
    n = len(x)

    def centred(v):
        a = [[abs(p - q) for q in v] for p in v]
        rows = [sum(a[k]) / n for k in range(n)]
        columns = [sum(a[k][j] for k in range(n)) / n for j in range(n)]
        whole = sum(rows) / n
        return [[a[k][j] - rows[k] - columns[j] + whole for j in range(n)] for k in range(n)]

    left, right = centred(x), centred(y)
    return sum(left[k][j] * right[k][j] for k in range(n) for j in range(n)) / n**2


def slow_correlation(x, y):
    scale = math.sqrt(slow_covariance(x, x) * slow_covariance(y, y))
    return math.sqrt(slow_covariance(x, y) / scale) if scale else 0.0


# ---------------------------------------------------------------- distance correlation


@pytest.mark.parametrize("n", [2, 3, 7, 20])
def test_it_is_what_its_definition_says(n):
    x, y = normal(5, n, seed=1), normal(5, n, seed=2).exp()
    y[0] = x[0].square()
    y[1] = (x[1] > 0).double()  # ties
    found = distance_correlation(x, y).value
    expected = [slow_correlation(a.tolist(), b.tolist()) for a, b in zip(x, y, strict=True)]
    assert found.tolist() == pytest.approx(expected, abs=1e-9)


def test_many_long_vectors_go_in_pieces_and_give_the_same():
    x, y = normal(70, 300, seed=1), normal(70, 300, seed=2) + normal(70, 300, seed=1).abs()
    assert feature_similarity._BLOCK_BYTES < 8 * 300 * 300 * 64
    assert feature_similarity._MOST_CHANNELS < 70

    def centred(v):
        a = (v[:, :, None] - v[:, None]).abs()
        return a - a.mean(1, keepdim=True) - a.mean(2, keepdim=True) + a.mean((1, 2), keepdim=True)

    left, right = centred(x), centred(y)
    covariance, left_variance, right_variance = (
        (a * b).mean((1, 2)) for a, b in ((left, right), (left, left), (right, right))
    )
    expected = (covariance / (left_variance * right_variance).sqrt()).sqrt()
    torch.testing.assert_close(distance_correlation(x, y).value, expected, rtol=0, atol=1e-10)


def test_each_with_each():
    x, y = normal(66, 40, seed=1), normal(3, 40, seed=2)
    y[1] = x[65]
    value, chance = distance_correlations(x, y)
    assert value.shape == chance.shape == (66, 3)
    one_by_one = [[distance_correlation(a, b) for b in y] for a in x]
    torch.testing.assert_close(value, torch.tensor([[r.value for r in row] for row in one_by_one]).double())
    torch.testing.assert_close(chance, torch.tensor([[r.chance for r in row] for row in one_by_one]).double())
    assert value[65, 1].item() == pytest.approx(1)


@pytest.mark.parametrize("relation", [lambda x: x, lambda x: 5 - 3 * x, lambda x: 1e6 + x])
def test_a_linear_relation_is_one(relation):
    x = normal(4, 50)
    torch.testing.assert_close(distance_correlation(x, relation(x)).value, torch.ones(4).double(), atol=1e-6, rtol=0)


def test_a_relation_that_a_line_does_not_see():
    x = torch.linspace(-1, 1, 201, dtype=torch.float64)
    parabola = x.square()
    assert torch.corrcoef(torch.stack([x, parabola]))[0, 1].item() == pytest.approx(0, abs=1e-12)
    value, chance = distance_correlation(x, parabola)
    assert value > 0.4
    assert value > 3 * chance


def test_a_constant_vector_is_like_nothing():
    x = normal(3, 30)
    x[1] = 0.1
    value, chance = distance_correlation(x, normal(3, 30, seed=1))
    assert (value[1], chance[1]) == (0, 0)
    assert (value[[0, 2]] > 0).all()


def test_chance_is_the_mean_over_all_pairings():
    x, y = normal(6, seed=1), normal(6, seed=2).exp()
    squares = [distance_correlation(x, y[list(order)]).value ** 2 for order in itertools.permutations(range(6))]
    mean = math.sqrt(sum(squares) / math.factorial(6))
    assert distance_correlation(x, y).chance.item() == pytest.approx(mean, rel=1e-9)


@pytest.mark.parametrize("n", [64, 768])
def test_independent_vectors_are_near_chance_and_not_near_zero(n):
    x, y = normal(200, n, seed=1), normal(200, n, seed=2)
    value, chance = distance_correlation(x, y)
    found, expected = value.square().mean().sqrt().item(), chance.mean().item()
    assert found == pytest.approx(expected, rel=0.05)
    # normal numbers: E|x - x'|² / dVar = (4/π) / (4/3 - 4(√3 - 1)/π), Székely et al. 2007, theorem 7
    assert expected**2 * (n - 1) == pytest.approx((4 / math.pi) / (4 / 3 - 4 * (math.sqrt(3) - 1) / math.pi), rel=0.1)
    # the mean of squares is another statistic
    assert found**2 != pytest.approx(expected, rel=0.5)


def test_no_numbers_have_a_chance_level_below_the_least():
    n = 200
    shapes = [
        normal(n),
        normal(n).exp(),
        normal(n) ** 7,
        (normal(n) > 0).double(),
        torch.eye(n, dtype=torch.float64)[3],
    ]
    value = distance_correlations(torch.stack(shapes), torch.stack(shapes)).chance
    assert (value >= 1 / math.sqrt(n - 1) - 1e-9).all()
    assert value.min() < 1.02 / math.sqrt(n - 1)
    # so the paper's 0.008 for OPT, of 2,048 features, is no such value
    assert PAPER["table_5"]["OPT, first layer"]["distance_correlation"] < 1 / math.sqrt(2048 - 1)


# ---------------------------------------------------------------- cosine


def test_cosine():
    x = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    y = torch.tensor([[-2.0, 0.0], [3.0, 0.0], [1.0, 2.0]])
    assert cosine_similarity(x, y).tolist() == pytest.approx([-1, math.sqrt(0.5), 0])
    assert cosine_similarities(x, y)[1].tolist() == pytest.approx([-math.sqrt(0.5), math.sqrt(0.5), 3 / math.sqrt(10)])


# ---------------------------------------------------------------- parts


def features(inputs, outputs, **marks):
    return Features(name="a part", inputs=inputs, outputs=outputs, random_weights=True, **marks)


def test_a_part_that_hands_its_input_on():
    x = normal(3, 20, 12)
    found = measure(features(x, -x))
    for each, expected in ((found.distance, 1), (found.cosine, -1), (found.magnitude, 1)):
        assert each.corresponding == pytest.approx(expected)
        assert each.standard_error == pytest.approx(0, abs=1e-9)
    assert len(found.distance.heat) == len(found.distance.heat[0]) == 16
    assert [found.cosine.heat[k][k] for k in range(16)] == pytest.approx([-1] * 16)
    assert abs(found.cosine.overall) < 0.2
    assert (found.samples, found.channels, found.features) == (3, (20, 20), 12)


def test_averages_are_over_samples_and_channels():
    x, y = normal(3, 5, 12, seed=1), normal(3, 5, 12, seed=2) + normal(3, 5, 12, seed=1)
    found = measure(features(x, y), shown=4)
    values = distance_correlation(x, y).value
    assert found.distance.corresponding == pytest.approx(values.mean().item())
    assert found.distance.standard_error == pytest.approx(values.mean(1).std().item() / math.sqrt(3))
    heat = torch.stack([distance_correlations(a[:4], b[:4]).value for a, b in zip(x, y, strict=True)]).mean(0)
    torch.testing.assert_close(torch.tensor(found.distance.heat).double(), heat)
    assert found.distance.overall == pytest.approx(heat.mean().item())
    few = measure(features(x, y), compared=2)
    assert few.distance.corresponding == pytest.approx(values[:, [0, 4]].mean().item())
    assert measure(features(x[:1], y[:1])).distance.standard_error is None


def test_a_part_with_fewer_channels_above():
    found = measure(features(normal(2, 6, 12), normal(2, 3, 12)))
    assert found.distance.corresponding is found.cosine.corresponding is None
    assert (len(found.distance.heat), len(found.distance.heat[0])) == (6, 3)


# ---------------------------------------------------------------- language models


def decoder(config):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config)


def test_rows_and_boundary_of_a_decoder():
    model = decoder(GPT2Config(vocab_size=50, n_positions=16, n_embd=24, n_layer=3, n_head=2))
    ids = torch.randint(50, (4, 10), generator=generator())
    bottom = split(model, Cut(bottom=2, tail=0)).bottom
    bottom.train()  # dropout must not reach the measurement
    found = text_features(bottom, ids, name="GPT-2, first two layers", random_weights=True)
    assert bottom.training
    assert bottom.module.training
    model.eval()
    with torch.no_grad():
        states = model(ids, output_hidden_states=True).hidden_states
    torch.testing.assert_close(found.inputs, model.transformer.wte(ids))
    torch.testing.assert_close(found.outputs, states[2])
    assert not found.outputs.requires_grad
    assert measure(found).channels == (10, 10)


def test_rows_that_are_projected_have_nothing_to_compare_with():
    model = decoder(
        OPTConfig(
            vocab_size=50,
            hidden_size=32,
            word_embed_proj_dim=16,
            ffn_dim=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            do_layer_norm_before=False,
        )
    )
    bottom = split(model, Cut(bottom=1, tail=0)).bottom
    with pytest.raises(ModelError, match="rows of 16 numbers and the boundary of 32"):
        text_features(bottom, torch.ones(1, 4, dtype=torch.int64), name="OPT", random_weights=True)


# ---------------------------------------------------------------- what is shown


@pytest.fixture
def rows():
    x = normal(2, 4, 12)
    one = Features("ViT, first layer", x, x, random_weights=True, stand_in="drawn data", reading="so and so")
    return measure(one), measure(features(x, x[:, :2]))


def found(rows):
    return lambda cell: Similarities(rows=tuple(rows)) if isinstance(cell, SimilarityCell) else None


def test_the_table_marks_random_weights_and_what_stands_in_for_the_papers_data(rows):
    (table,), _ = told("table-5", found(rows))
    first, second = (next(row for row in table.rows if row[0] == name) for name in ("ViT, first layer", "a part"))
    assert first[:3] == ("ViT, first layer", "0.52", "1.000 ± 0.000")
    assert first[4:6] == ("0.29", "1.000 ± 0.000")
    assert first[-1] == "random weights; drawn data; so and so"
    assert second[1:3] == ("–", "–")
    assert second[8] == "4 → 2 × 12"
    assert second[-1] == "random weights"


def test_heat_maps_are_the_same_file_again(rows, tmp_path):
    _, results = told("table-5", found(rows))
    for name in ("a", "b"):
        files = HeatMaps(name, "a title").draw(results, tmp_path, model="m")
        assert [path.name for path in files] == [f"{name}.png", f"{name}.csv"]
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert len((tmp_path / "a.csv").read_text().splitlines()) == 1 + 4 * (16 + 8)
    with pytest.raises(StorageError, match="cannot be written"):
        HeatMaps("c", "a title").draw(results, tmp_path / "a.png", model="m")
    assert HeatMaps("d", "a title").draw(told("table-5", found([]))[1], tmp_path, model="m") == []
