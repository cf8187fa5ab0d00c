"""Every mechanism does what it states, and every planted fault is caught by a check that is named for it."""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial, partialmethod
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, special, stats

from cutlayer.core import Claim, ConfigError, ConformanceError, PrivacyError, Ragged, Tokens
from cutlayer.privacy import (
    LATTICE,
    MECHANISMS,
    CustomerSecret,
    DChi,
    Mechanism,
    NeighbourSearch,
    TextToText,
    Vector,
    build_privatizer,
)
from cutlayer.privacy.mechanisms.mechanism import least_width_of, norm_of
from cutlayer.privacy.mechanisms.snd_code import SndCode, log_survival
from cutlayer.privacy.randomness import Streams
from cutlayer.privacy.replacement import Exponential
from cutlayer.reports import Replacement, TokenSample, check_mechanism
from cutlayer.reports.conformance.density import check_ratio
from cutlayer.reports.conformance.exponential import check_exponential
from cutlayer.reports.conformance.kit import WIDTHS
from cutlayer.reports.conformance.loss import LOSS_WIDTHS, check_privacy_loss
from cutlayer.reports.conformance.replacement import check_replacement
from cutlayer.reports.parameterisations import PARAMETERISATIONS
from tests.contract.noise_checks import Array, off_lattice, shared_rows, stream, tokens_named_by_their_floats
from tests.contract.planted import (
    FAULTS,
    TRUE_ONES,
    ClaimingBall,
    ClaimingGaussian,
    Overclaiming,
    Planted,
    WrongDensity,
    forgets_eta,
    times,
)
from tests.quick import slow_but

TRUE = DChi().noise
LOSS_DRAWS = 400_000


def mechanisms() -> list[Mechanism]:
    return [MECHANISMS[name] for name in MECHANISMS]


def loss_of(mechanism: Mechanism, width: int) -> float:
    found = check_privacy_loss(mechanism, samples=LOSS_DRAWS, rng=stream(2000 + width), widths=(width,))
    assert found.statistic is not None
    assert found.passed is (found.statistic <= 1)
    return found.statistic


# ---------------------------------------------------------------- what it states


def widths_of(mechanism: Mechanism) -> tuple[int, ...]:
    """Of noise of the product's own all; of a study's the small ones, at which faults show."""
    return WIDTHS if mechanism.name == "d-chi" else (2, 3, 8)


@pytest.mark.parametrize("mechanism", mechanisms(), ids=lambda mechanism: mechanism.name)
def test_a_mechanism_does_what_it_states(mechanism: Mechanism) -> None:
    told = check_mechanism(mechanism, rng=stream(1), widths=widths_of(mechanism))
    assert told.failed == ()
    assert told.passed
    loss = next(check for check in told.checks if check.name == "privacy loss")
    assert 0.5 < (loss.statistic or 0) <= 1, "the bound is no empty one"


@pytest.mark.slow  # 20 whole runs
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mechanism", mechanisms(), ids=lambda mechanism: mechanism.name)
def test_a_true_mechanism_passes_whatever_the_generator(mechanism: Mechanism) -> None:
    widths = widths_of(mechanism)
    failed = [(seed, check_mechanism(mechanism, rng=stream(seed), widths=widths).failed) for seed in range(100, 120)]
    assert [(seed, names) for seed, names in failed if names] == []


@pytest.mark.parametrize(
    "fault", slow_but(["radius per coordinate", "eta off by 1.3", "generator of its own", "one row again"], FAULTS)
)
def test_a_planted_fault_is_caught(fault: str) -> None:
    draw, expected = FAULTS[fault]
    told = check_mechanism(Planted(draw), rng=stream(1), widths=(1, 2, 384), samples=2000, loss_samples=0)
    assert set(expected) - {"privacy loss"} <= set(told.failed)
    assert not told.passed
    with pytest.raises(ConformanceError, match="does not do what it states"):
        told.require()


STREAM_FAULTS: dict[str, tuple[str, Callable[..., Any], str]] = {
    "a coordinate twice": (
        "standard_normal",
        lambda drawn: np.concatenate([drawn[:, :1], drawn[:, :-1]], 1),
        "cosines",
    ),
    "half a normal": ("standard_normal", np.abs, "mean direction"),
    "rows alike": ("standard_normal", lambda drawn: np.broadcast_to(drawn[:1], drawn.shape).copy(), "independence"),
    "a tenth too short": ("standard_gamma", lambda drawn: 0.9 * drawn, "radius"),
}


@pytest.mark.parametrize("fault", STREAM_FAULTS)
def test_a_fault_in_the_streams_that_releases_draw_from_is_caught(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drawing, spoilt, seen_by = STREAM_FAULTS[fault]
    honest = getattr(Streams, drawing)
    monkeypatch.setattr(Streams, drawing, lambda self, *given, **named: spoilt(honest(self, *given, **named)))
    told = check_mechanism(MECHANISMS["d-chi"], rng=stream(1), widths=(2, 3, 8), samples=2000, loss_samples=0)
    assert seen_by in told.failed


@pytest.mark.parametrize("name", TRUE_ONES)
def test_true_noise_of_another_kind_passes(name: str) -> None:
    told = check_mechanism(TRUE_ONES[name], rng=stream(1), widths=(1, 2, 3, 8), loss_samples=40_000)
    assert told.failed == ()
    asked = {check.name for check in told.checks if check.passed}
    assert {"radius", "mean direction", "cosines", "normaliser", "density", "scale"} <= asked


@pytest.mark.parametrize(("factor", "width"), [(2 / 3, 8), (3 / 2, 8), (2 / 3, 384), (3 / 2, 384), (1.01, 384)])
def test_other_scales_are_caught_at_each_width(factor: float, width: int) -> None:
    told = check_mechanism(Planted(times(factor)), rng=stream(1), widths=(width,), loss_samples=0)
    assert {"radius", "density"} <= set(told.failed)


# ---------------------------------------------------------------- what events show


@pytest.mark.parametrize("mechanism", mechanisms(), ids=lambda mechanism: mechanism.name)
@pytest.mark.parametrize("width", LOSS_WIDTHS)
def test_no_event_shows_more_than_eta_times_distance(mechanism: Mechanism, width: int) -> None:
    if width < least_width_of(mechanism):
        with pytest.raises(ConfigError, match="width"):
            mechanism.noise(etas=np.ones(1), width=width, rng=stream(1))
        return
    assert 0.4 < loss_of(mechanism, width) <= 1


@pytest.mark.parametrize(
    ("fault", "width"),
    slow_but(
        [("radius per coordinate", 1), ("Gamma(width - 1)", 4), ("independent Laplace", 2), ("eta off by 1.3", 2)],
        [
            ("radius per coordinate", 1),
            ("Gamma(width - 1)", 2),
            ("Gamma(width - 1)", 4),
            ("Gaussian", 1),
            ("cube directions", 4),
            ("independent Laplace", 2),
            ("independent Laplace", 4),
            *(("eta off by 1.3", width) for width in LOSS_WIDTHS),
            ("eta off by 3/2", 4),
        ],
    ),
)
def test_a_planted_privacy_loss_is_certified(fault: str, width: int) -> None:
    draw, expected = FAULTS[fault]
    assert "privacy loss" in expected
    assert loss_of(Planted(draw), width) > 1


def test_a_promise_of_too_little_loss_is_refuted() -> None:
    assert check_privacy_loss(Overclaiming(), samples=LOSS_DRAWS, rng=stream(3), widths=(1,)).passed is False
    ratio = check_ratio(Overclaiming(), etas=(3.0,), widths=(1, 384), rng=stream(3))
    assert ratio.passed is False
    assert ratio.statistic == pytest.approx(1.3)


@pytest.mark.parametrize("mechanism", [ClaimingGaussian(), ClaimingBall()], ids=["Gaussian", "ball"])
def test_a_promise_that_noise_of_this_kind_cannot_keep_is_refuted(mechanism: Mechanism) -> None:
    told = check_mechanism(mechanism, rng=stream(1), widths=(1, 2, 8), loss_samples=LOSS_DRAWS // 4)
    assert set(told.failed) == {"ratio", "privacy loss"}


# ---------------------------------------------------------------- the noise of SnD's released code


class _OneRadius(SndCode):
    """Planted: one radius for all coordinates of a row."""

    def noise(self, *, etas: Array, width: int, rng: Any) -> Array:
        radius = (rng.standard_gamma(width, size=len(etas)) / etas)[:, None]
        return radius * np.stack([1 - 2 * rng.random(len(etas)) for _ in range(width)], axis=1)


class _Euclidean(SndCode):
    """Planted: the same noise, and the promise of d_chi noise."""

    norm = 2


@pytest.mark.parametrize(
    ("planted", "seen_by"), [(_OneRadius(), {"density", "privacy loss"}), (_Euclidean(), {"ratio", "privacy loss"})]
)
def test_faults_of_the_released_sampler_are_caught(planted: SndCode, seen_by: set[str]) -> None:
    told = check_mechanism(planted, rng=stream(1), widths=(2, 8), loss_samples=LOSS_DRAWS // 2)
    assert set(told.failed) & {"density", "ratio", "privacy loss"} == seen_by


@pytest.mark.parametrize("width", [2, 5, 384])
def test_a_coordinate_of_the_released_sampler_is_distributed_as_its_density(width: int) -> None:
    rows = SndCode().noise(etas=np.full(40, 3.0), width=width, rng=stream(5))
    grid = np.concatenate([[0.0], np.geomspace(1e-4, 3 * width, 4000)])
    density = 3.0 / (2 * (width - 1)) * np.exp(log_survival(width - 1, 3.0 * grid))
    below = integrate.cumulative_trapezoid(2 * density, grid, initial=0)
    assert below[-1] == pytest.approx(1, abs=1e-4)
    found = stats.kstest(np.abs(rows).ravel(), lambda x: np.interp(x, grid, below / below[-1]))
    assert found.pvalue > 1e-3
    size = PARAMETERISATIONS["snd-code"].size
    assert size is not None
    assert np.sqrt((rows**2).sum(1).mean()) == pytest.approx(size(width) / 3.0, rel=0.25)


@pytest.mark.parametrize("shape", [1, 2, 7, 383])
def test_survival_is_exact_in_its_table_and_where_floats_end(shape: int) -> None:
    near = np.linspace(0, shape + 40, 5_000)
    assert np.allclose(log_survival(shape, near), np.log(special.gammaincc(shape, near)), rtol=0, atol=1e-8)
    for x in (700.0, 5e3, 1e6):
        terms = np.arange(shape) * math.log(x) - special.gammaln(np.arange(shape) + 1)
        assert log_survival(shape, np.array([x]))[0] == pytest.approx(special.logsumexp(terms) - x, rel=1e-12)


def test_its_worst_case_is_counted_in_its_own_distance() -> None:
    table = torch.from_numpy(stream(3).standard_normal((50, 6))).float()
    secret = CustomerSecret(b"s" * 32)
    told = {
        noise: build_privatizer(Vector(eta=3, noise=noise), secret=secret, table=table, table_fingerprint="sha256:t")
        for noise in ("d-chi", "snd-code")
    }
    largest = {noise: each.largest_distance() for noise, each in told.items()}
    rows = table.double()
    for noise, norm in (("d-chi", 2), ("snd-code", 1)):
        assert float(torch.cdist(rows, rows, p=norm).max()) <= (largest[noise] or 0)
    assert told["snd-code"].unit == "1/L1 distance in table sha256:t"
    assert told["snd-code"].unit != told["d-chi"].unit
    assert told["snd-code"].name == "vector, noise snd-code"


def test_a_density_that_is_none_is_seen() -> None:
    told = check_mechanism(WrongDensity(), rng=stream(1), loss_samples=0)
    assert "normaliser" in told.failed


# ---------------------------------------------------------------- words drawn without noise


def test_the_exponential_draw_is_as_stated_and_its_bound_is_no_empty_one() -> None:
    found = check_exponential(MECHANISMS["d-chi"], etas=(1e-3, 3.0, 50.0, 1e99))
    assert found.passed, found.found
    assert 0.95 < (found.statistic or 0) <= 1


WRONG_DRAWS: dict[str, tuple[str, Callable[..., Any]]] = {
    "no half": ("scores", lambda own, self, vectors, groups: 2 * own(self, vectors, groups)),
    "one group": ("scores", lambda own, self, vectors, groups: own(self, vectors, groups * 0)),
    "other vectors": ("scores", lambda own, self, vectors, groups: own(self, 0.99 * vectors, groups)),
    "uneven": ("draw", lambda own, self, vectors, groups, of, even: own(self, vectors, groups, of, even**1.01)),
    "another group": ("draw", lambda own, self, vectors, groups, of, even: own(self, vectors, 1 - groups, of, even)),
}


@pytest.mark.parametrize("fault", WRONG_DRAWS)
def test_a_wrong_exponential_draw_is_caught(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    part, wrong = WRONG_DRAWS[fault]
    monkeypatch.setattr(Exponential, part, partialmethod(partial(wrong, getattr(Exponential, part))))
    found = check_exponential(MECHANISMS["d-chi"], etas=(3.0,))
    assert found.passed is False
    assert "Not at eta 3" in found.found
    assert ((found.statistic or 0) > 1) is (fault == "no half")


def test_an_exponential_draw_beyond_its_claim_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    claims = Overclaiming()
    monkeypatch.setattr("cutlayer.reports.conformance.exponential.MECHANISMS", {"d-chi": claims})
    found = check_exponential(claims, etas=(3.0,))
    assert found.passed is False
    assert "It draws as stated" in found.found
    assert 1.2 < (found.statistic or 0) <= 1.3


@pytest.mark.parametrize(("mechanism", "eta"), [(Overclaiming(), 3.0), (MECHANISMS["d-chi"], 1e200)])
def test_where_the_exponential_draw_is_not_asked(mechanism: Mechanism, eta: float) -> None:
    """A plug-in's promise is not that of the draw; and float64 cannot tell words' distances at every eta."""
    assert check_exponential(mechanism, etas=(eta,)).passed is None


# ---------------------------------------------------------------- tokens replaced


def tokens() -> TokenSample:
    search = NeighbourSearch(_table(300, 12), torch.arange(300) >= 5)
    return TokenSample(search, torch.arange(5, 300).repeat(4))


@pytest.mark.parametrize("mechanism", mechanisms(), ids=lambda mechanism: mechanism.name)
def test_fewer_tokens_are_replaced_as_eta_grows(mechanism: Mechanism) -> None:
    told = check_mechanism(mechanism, rng=stream(1), widths=(2,), samples=1000, loss_samples=0, tokens=tokens())
    assert told.failed == ()
    etas, shares = zip(*((point.eta, point.replaced) for point in told.replacement), strict=True)
    assert etas[-1] == pytest.approx(16 * etas[0], rel=0.01)
    assert shares[0] > 0.95 > 0.6 > shares[-1]
    assert all(point.ci[0] <= point.replaced <= point.ci[1] for point in told.replacement)


def test_an_eta_that_changes_nothing_is_caught_by_what_is_replaced() -> None:
    planted = Planted(forgets_eta)
    told = check_mechanism(planted, rng=stream(1), widths=(1,), samples=1000, loss_samples=0, tokens=tokens())
    assert "replacement" in told.failed


@pytest.mark.parametrize(
    ("shares", "passed"),
    [((0.9, 0.5, 0.1), True), ((0.9, 0.1, 0.5), False), ((0.1, 0.5, 0.9), False), ((0.5, 0.5, 0.5), False), ((), None)],
)
def test_what_is_replaced_must_fall(shares: tuple[float, ...], passed: bool | None) -> None:
    curve = [Replacement(eta=10.0 + at, replaced=share, ci=(0, 1), n=1000) for at, share in enumerate(shares)]
    assert check_replacement(curve).passed is passed


# ---------------------------------------------------------------- the claim and the density


@pytest.mark.parametrize("mechanism", mechanisms(), ids=lambda mechanism: mechanism.name)
@settings(deadline=None)
@given(eta=st.floats(0.01, 500), width=st.integers(1, 384), seed=st.integers(0, 2**32), distance=st.floats(1e-3, 10))
def test_density_ratio_is_bounded_by_the_claim(
    mechanism: Mechanism, eta: float, width: int, seed: int, distance: float
) -> None:
    rng, width = stream(seed), max(width, least_width_of(mechanism))
    outputs = mechanism.noise(etas=np.full(8, eta), width=width, rng=rng)
    shift = rng.standard_normal(width)
    shift *= distance / np.linalg.norm(shift, ord=norm_of(mechanism))
    etas = np.full(8, eta)
    ratio = mechanism.log_density(outputs, etas=etas) - mechanism.log_density(outputs + shift, etas=etas)
    claim = mechanism.guarantee(eta=eta, space="table x", per="token")
    assert claim.claim is Claim.METRIC
    assert (np.abs(ratio) <= claim.budget * distance * (1 + 1e-9) + 1e-9).all()
    assert np.allclose(mechanism.log_density(outputs, etas=etas), mechanism.log_density(-outputs, etas=etas))


def test_density_is_normalised() -> None:
    mechanism = DChi()
    for width in (1, 2, 3, 8):
        surface = 2 * math.pi ** (width / 2) / math.gamma(width / 2)

        def shell(radius: float, width: int = width, surface: float = surface) -> float:
            point = np.zeros((1, width))
            point[0, 0] = radius
            return surface * radius ** (width - 1) * math.exp(mechanism.log_density(point, etas=np.array([2.0]))[0])

        assert integrate.quad(shell, 0, 60)[0] == pytest.approx(1, abs=1e-6)


def test_one_dimension_is_the_laplace_distribution() -> None:
    points = np.linspace(-3, 3, 13)[:, None]
    assert np.allclose(
        DChi().log_density(points, etas=np.full(13, 4.0)), math.log(4 / 2) - 4 * np.abs(points[:, 0]), atol=1e-12
    )


@pytest.mark.parametrize("eta", [0.0, -1.0, math.nan, math.inf, 1e-9])
def test_etas_without_noise_are_refused(eta: float) -> None:
    with pytest.raises(ConfigError, match="at least"):
        DChi().noise(etas=np.array([5.0, eta]), width=384, rng=stream(0))


def test_a_mechanism_is_closed_to_unknown_names() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'd-chi'"):
        MECHANISMS["d-chj"]


# ---------------------------------------------------------------- floats


def _table(rows: int = 2000, width: int = 384) -> torch.Tensor:
    return torch.from_numpy(stream(3).standard_normal((rows, width)) * 0.055).float()


def _one_text(ids: torch.Tensor) -> Tokens:
    return Tokens((Ragged(ids, torch.tensor([len(ids)])),))


def test_released_vectors_do_not_name_their_token() -> None:
    table, truth = _table(), torch.arange(60) * 7
    for eta in (50.0, 200.0):
        privatizer = build_privatizer(
            Vector(eta=eta),
            secret=CustomerSecret.unsafe(1),
            table=table,
            table_fingerprint="t",
        )
        outputs = privatizer.tokens(_one_text(truth), labels=None).payload.segments[0].values.numpy()
        assert tokens_named_by_their_floats(outputs, table.numpy(), truth.numpy()) <= 1
        assert off_lattice(outputs, LATTICE) == 0


def test_planted_fp32_addition_is_caught() -> None:
    table, truth = _table(), np.arange(60) * 7
    noise = TRUE(etas=np.full(60, 50.0), width=384, rng=stream(4)).astype(np.float32)
    outputs = table.numpy()[truth] + noise
    assert tokens_named_by_their_floats(outputs, table.numpy(), truth) >= 58
    assert off_lattice(outputs, LATTICE) > 0


# ---------------------------------------------------------------- streams

TEXTS = Tokens((Ragged(torch.arange(52) % 13, torch.full((13,), 4)),))  # no two alike
INHERITED = stream(5)


def _privatizer() -> object:
    return build_privatizer(
        Vector(eta=50.0),
        secret=CustomerSecret.unsafe(2),
        table=_table(13, 16),
        table_fingerprint="t",
    )


def _noise_of(look: int) -> Array:
    """One worker's noise: the same texts, at a look of its own."""
    table = _table(13, 16)
    rows = _privatizer().tokens(TEXTS, labels=None, look=look).payload.segments[0].values  # type: ignore[attr-defined]
    return (rows - table[TEXTS.segments[0].values]).double().numpy()


def _planted_noise_of(look: int) -> Array:
    """A worker that draws from the generator it was forked with."""
    return TRUE(etas=np.full(52, 50.0), width=16, rng=INHERITED)


def test_no_noise_repeats_over_forks() -> None:
    with multiprocessing.get_context("fork").Pool(2, torch.set_num_threads, (1,)) as pool:
        parts = pool.map(_noise_of, range(4), chunksize=1)
        assert shared_rows([*parts, _noise_of(4)]) == 0
        again = pool.apply(_noise_of, (2,))
    assert np.array_equal(again, _noise_of(2))  # and one look is one draw, wherever it is made


def test_a_planted_stream_that_repeats_after_a_fork_is_caught() -> None:
    with multiprocessing.get_context("fork").Pool(2, torch.set_num_threads, (1,)) as pool:
        parts = [pool.apply(_planted_noise_of, (look,)) for look in range(2)]
    assert shared_rows([*parts, _planted_noise_of(2)]) > 0


def test_no_noise_repeats_over_threads() -> None:
    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(_noise_of, range(8)))
    assert shared_rows(parts) == 0
    assert all(np.array_equal(part, _noise_of(look)) for look, part in enumerate(parts))


def test_no_global_generator_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise PrivacyError("a global generator was used")

    for module, names in (
        (torch, "rand randn randint randperm normal bernoulli multinomial rand_like randn_like manual_seed seed"),
        (
            np.random,
            "rand randn randint random normal gamma standard_normal standard_gamma uniform choice seed default_rng",
        ),
    ):
        for name in names.split():
            monkeypatch.setattr(module, name, forbidden)
    before = torch.random.get_rng_state(), np.random.get_state()[1].tobytes()  # noqa: NPY002 - looked at, not used
    table = _table(40, 16)
    for kind in (Vector, TextToText):
        build_privatizer(
            kind(eta=30.0),
            secret=CustomerSecret.unsafe(3),
            table=table,
            candidates=torch.ones(40, dtype=torch.bool),
            table_fingerprint="t",
        ).tokens(TEXTS, labels=None)
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert np.random.get_state()[1].tobytes() == before[1]  # noqa: NPY002 - looked at, not used
