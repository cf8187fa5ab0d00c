"""Denoisers against the paper's equations computed by hand, its table of shapes, and what padding must not do."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from cutlayer.core import ConfigError
from cutlayer.core.denoiser import TABLE_8, DenoiserSpec, LightDenoiserSpec, PaperDenoiserSpec, light_shape, paper_shape
from cutlayer.models.denoiser import Denoiser, PaperDenoiser, build_denoiser, sinusoids
from cutlayer.recipes.denoiser_costs import SHAPES, counts

WIDTH = 10
SPECS: dict[str, DenoiserSpec] = {
    "paper": PaperDenoiserSpec(width=WIDTH, d_ff=7, d_kv=3, n_head=2, layers=2),
    "paper without places": PaperDenoiserSpec(width=WIDTH, d_ff=7, d_kv=3, n_head=2, layers=2, placed=False),
    "light": LightDenoiserSpec(width=WIDTH, inner=8, n_head=2, layers=2, means=3),
}


def made(spec: DenoiserSpec) -> Denoiser:
    """One whose every weight matters."""
    denoiser = build_denoiser(spec).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in denoiser.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator))
    return denoiser.eval()


def texts(*lengths: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    mask = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    shape = (len(lengths), max(lengths), WIDTH)
    rows, noise = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    return torch.randn(len(lengths), WIDTH, generator=generator, dtype=torch.float64), rows, noise, mask


def test_the_papers_equations_by_hand() -> None:
    """Eq. 6 to 9, one position and one head at a time."""
    denoiser = made(SPECS["paper"])
    assert isinstance(denoiser, PaperDenoiser)
    assert denoiser.kinds is not None
    noisy, rows, noise, mask = texts(3)
    places = sinusoids(3, WIDTH).double()
    hidden = [noisy[0] + denoiser.kinds[0]]
    hidden += [rows[0, t] + places[t] + denoiser.kinds[1] for t in range(3)]
    hidden += [noise[0, t] + places[t] + denoiser.kinds[2] for t in range(3)]
    for layer in denoiser.layers:
        normed = [layer.attention_norm(h) for h in hidden]
        queries, keys, values = ([part(h).view(2, 3) for h in normed] for part in (layer.query, layer.key, layer.value))
        above = []
        for t, h in enumerate(hidden):
            heads = []
            for head in range(2):
                scores = torch.stack([queries[t][head] @ key[head] for key in keys]) / 3**0.5
                heads.append(sum(w * v[head] for w, v in zip(scores.softmax(0), values, strict=True)))
            attended = layer.joined(torch.cat(heads))
            mapped = layer.proj(nn.functional.gelu(layer.fc(layer.norm(attended + h))))
            above.append(h + attended + mapped)
        hidden = above
    assert torch.allclose(denoiser(noisy, rows, noise, mask)[0], hidden[0], atol=1e-12)


@pytest.mark.parametrize("name", SPECS)
def test_larger_embeddings_and_rows_are_denoised_alike(name: str) -> None:
    noisy, rows, noise, mask = texts(4, 3)
    found = []
    for size, row_size in ((1.0, 1.0), (300.0, 5.0)):
        denoiser, sample = made(SPECS[name]), 7 + size * torch.eye(WIDTH, dtype=torch.float64)
        noised = sample + size * torch.randn(sample.shape, generator=torch.Generator().manual_seed(3)).double()
        denoiser.fit_scales(noised, sample, row_size * torch.ones(2, WIDTH, dtype=torch.float64))
        middle = sample.mean(0)
        found.append((denoiser(middle + size * noisy, row_size * rows, row_size * noise, mask) - middle) / size)
    assert torch.allclose(*found)


@pytest.mark.parametrize("name", SPECS)
def test_padding_and_neighbours_change_nothing(name: str) -> None:
    denoiser = made(SPECS[name])
    noisy, rows, noise, mask = texts(5, 2, 1)
    together = denoiser(noisy, rows, noise, mask)
    other = denoiser(noisy, *(torch.where(mask[:, :, None], each, torch.nan) for each in (rows, noise)), mask)
    assert torch.equal(together, other)
    for text, length in enumerate((5, 2, 1)):
        one = slice(text, text + 1)
        alone = denoiser(noisy[one], rows[one, :length], noise[one, :length], mask[one, :length])
        assert torch.allclose(alone, together[one], atol=1e-12)


@pytest.mark.parametrize("name", SPECS)
def test_everything_that_it_is_told_matters(name: str) -> None:
    denoiser = made(SPECS[name])
    given = texts(4, 4)
    found = denoiser(*given)
    for place in range(3):
        changed = [each.clone() for each in given]
        changed[place][0] += torch.arange(WIDTH) / WIDTH  # not one number for all, which normalisation takes away
        other = denoiser(*changed)
        assert not torch.allclose(other[0], found[0])
        assert torch.equal(other[1], found[1])
    swapped = [given[0], given[1].flip(1), given[2].flip(1), given[3]]
    assert torch.allclose(denoiser(*swapped), found) == (name == "paper without places")


@pytest.mark.parametrize("name", SPECS)
def test_weights_follow_from_the_seed_and_a_text_may_be_of_any_length(name: str) -> None:
    one, other = build_denoiser(SPECS[name]), build_denoiser(SPECS[name])
    one.draw(3)
    other.draw(3)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    other.draw(4)
    assert not all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    noisy, rows, noise, mask = (each.float() if each.is_floating_point() else each for each in texts(700))
    assert torch.isfinite(one(noisy, rows, noise, mask)).all()


@pytest.mark.parametrize(
    ("family", "blocks", "width", "d_ff", "d_kv", "n_head", "layers"),
    [
        ("distilbert", 6, 768, 768, 240, 6, 3),
        ("bert", 12, 768, 1024, 240, 8, 6),
        ("bert", 24, 1024, 1024, 256, 8, 6),
        ("t5", 6, 512, 512, 240, 6, 6),
        ("t5", 12, 768, 768, 256, 8, 6),
        ("t5", 24, 1024, 1024, 256, 8, 6),
        ("gpt2", 12, 768, 768, 240, 8, 6),
        ("gpt2", 24, 1024, 1024, 256, 8, 6),
        ("gpt2", 36, 1280, 1280, 256, 8, 6),
        ("gpt2", 48, 1600, 1600, 256, 10, 6),
        ("bert", 6, 384, 384, 120, 6, 3),
        ("llama", 32, 4096, 4096, 256, 8, 6),
    ],
)
def test_shapes_are_table_8s(
    family: str, blocks: int, width: int, d_ff: int, d_kv: int, n_head: int, layers: int
) -> None:
    found = paper_shape(family, blocks=blocks, width=width)
    assert (found.d_ff, found.d_kv, found.n_head, found.layers) == (d_ff, d_kv, n_head, layers)
    assert len(TABLE_8) == 10


@pytest.mark.parametrize("told", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("name", SPECS)
def test_before_it_learns_it_is_no_worse_than_the_mean_embedding(name: str, told: float) -> None:
    """A denoiser begins at the best multiple of the answer: nothing of it, where it tells nothing."""
    generator = torch.Generator().manual_seed(5)
    clean, other = 5 + 2 * torch.randn(2, 600, WIDTH, generator=generator)
    noisy = -3 + 7 * (told * clean + (1 - told) * other)
    denoiser = build_denoiser(SPECS[name])
    denoiser.draw(1)
    denoiser.fit_scales(noisy, clean, torch.randn(9, WIDTH, generator=generator))
    rows, noise = torch.randn(2, 600, 4, WIDTH, generator=generator)
    with torch.no_grad():
        found = denoiser(noisy, rows, noise, torch.ones(600, 4, dtype=torch.bool))
    left = float((found - clean).square().mean() / clean.var())
    correlation = told / (told**2 + (1 - told) ** 2) ** 0.5
    assert left == pytest.approx(1 - correlation**2, abs=0.25 if name == "paper" else 0.02)


def test_a_light_denoiser_does_not_grow_with_the_models_depth() -> None:
    assert light_shape(width=1600) == LightDenoiserSpec(width=1600, inner=256, n_head=8, layers=2, means=4)
    cost = counts(SHAPES["gpt2-xl"])
    assert cost["light"].operations < 0.01 * cost["whole"].operations
    assert cost["light"].bytes + cost["table"].bytes < 0.07 * cost["whole"].bytes
    # Table 8's shape beside the paper's 4.7 % of time and 6.5 % of memory
    assert cost["paper"].operations / cost["whole"].operations == pytest.approx(0.18, abs=0.005)
    assert cost["paper"].bytes / cost["whole"].bytes == pytest.approx(0.083, abs=0.0005)
    assert cost["table"].bytes / cost["whole"].bytes == pytest.approx(0.052, abs=0.0005)


def test_its_choices_are_told() -> None:
    told = PaperDenoiser.deviations
    assert {each.what for each in told} == {
        "attention of the denoiser, eq. (8)", "σ, γ, and the input of attention, eq. (8)",
        "positions and kinds of the denoiser's input, eq. (6)", "scales of the denoiser's input",
        "initialisation and optimiser", "special tokens",
    }  # fmt: skip
    assert all(each.value_in_paper and each.ours.strip() and each.why.endswith(".") for each in told)


def test_a_light_denoiser_has_no_more_heads_than_width() -> None:
    """Else its heads would be 0 wide; a vendor's manifest may say anything."""
    LightDenoiserSpec(width=8, inner=2, n_head=2, layers=1, means=1)
    with pytest.raises(ConfigError, match="64 heads of layers that are 2 wide"):
        LightDenoiserSpec(width=8, inner=2, n_head=64, layers=1, means=1)
