"""Draws against the form that a mechanism states: radius, direction, independence, repetition, precision, scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from scipy import stats

from cutlayer.privacy.mechanisms import Mechanism
from cutlayer.privacy.mechanisms.mechanism import Float64
from cutlayer.privacy.randomness import KEY_BYTES
from cutlayer.reports.conformance.check import ALPHA, NOT_SPHERICAL, ConformanceCheck, Tested, verdict
from cutlayer.reports.conformance.density import Stated
from cutlayer.reports.conformance.draws import Draws, source


def check_radius(mechanism: Mechanism, draws: Sequence[Draws]) -> ConformanceCheck:
    """Kolmogorov-Smirnov of the norm against the stated one: of d_chi noise Gamma(shape width, scale 1 / eta).

    Small widths are essential: at width 384 Gamma(383) passes for Gamma(384).
    """
    tests = []
    for each in draws:
        cdf = _radial_quantiles(mechanism, each)
        if cdf is None:
            continue
        tests += [
            _ks(f"eta {eta:g}, width {each.width}", cdf[each.etas == eta], stats.uniform.cdf)
            for eta in np.unique(each.etas)
        ]
        tests.append(_ks(f"all etas, width {each.width}", cdf, stats.uniform.cdf))
    return verdict("radius", "Is the norm distributed as stated?", tests, n=len(draws[0]))


def check_directions(mechanism: Mechanism, draws: Sequence[Draws], rng: np.random.Generator) -> list[ConformanceCheck]:
    """Whether directions are uniform on the sphere, of a mechanism whose density is of the norm alone.

    A projection on a random vector misses directions that crowd into corners; projections on axes and
    the fourth moment see them.

    Ref: Mardia and Jupp, *Directional Statistics*, on Rayleigh's and Bingham's tests.

    Args:
        mechanism: The mechanism.
        draws: Its draws, at several widths.
        rng: Gives the fixed vectors on which directions are projected.
    """
    spherical = [each for each in draws if _is_spherical(mechanism, each)]
    several = [each for each in spherical if each.width > 1]
    otherwise = "There is no width above 2." if len(spherical) == len(draws) else NOT_SPHERICAL
    n = len(draws[0])
    rayleigh = [test for each in spherical for test in _mean(each)]
    bingham = [test for each in several for test in _axes(each)]
    cosines = [test for each in several for test in _cosines(each, rng)]
    fourth = [
        _t("sum of fourth powers", each.width, (each.unit**4).sum(1), 3 / (each.width + 2))
        for each in several
        if each.width > 2  # on the circle it says what the second moments say
    ]
    return [
        verdict("mean direction", "Do directions cancel out (Rayleigh)?", rayleigh, n=n),
        verdict("axes", "Is every axis as likely as any other (Bingham)?", bingham, n=n, otherwise=otherwise),
        verdict(
            "cosines",
            "Are cosines with a fixed vector, and with axes, as on a sphere?",
            cosines,
            n=n,
            otherwise=otherwise,
        ),
        verdict("fourth moment", "Do directions keep out of corners?", fourth, n=n, otherwise=otherwise),
    ]


def check_independence(mechanism: Mechanism, draws: Sequence[Draws], rng: np.random.Generator) -> ConformanceCheck:
    """Whether rows of one call depend on each other, or a row's norm on its direction.

    Args:
        mechanism: The mechanism.
        draws: Its draws, at several widths.
        rng: Gives the vector on which directions are projected.
    """
    tests = []
    for each in draws:
        tests.append(_kendall("norms of neighbours", each.width, each.rank[:-1], each.rank[1:]))
        if each.width == 1 or not _is_spherical(mechanism, each):
            continue
        half = len(each) // 2
        for what, left, right in (
            ("cosine of neighbours", each.unit[: 2 * half : 2], each.unit[1 : 2 * half : 2]),
            ("cosine of halves", each.unit[:half], each.unit[half : 2 * half]),
        ):
            tests.append(_ks(f"{what}, width {each.width}", (1 + (left * right).sum(1)) / 2, _beta(each.width)))
        tests.append(_kendall("norm and direction", each.width, each.rank, each.unit @ _fixed(each.width, rng)))
    return verdict("independence", "Is each row independent of the others?", tests, n=len(draws[0]))


def check_repetition(mechanism: Mechanism, draws: Sequence[Draws], rng: np.random.Generator) -> ConformanceCheck:
    """Whether one key gives one draw, and nothing is drawn twice.

    A release is made again from its key: noise from another source than the one given would
    make it another release, uncharged. And noise that two rows share is subtracted from both.

    Args:
        mechanism: The mechanism.
        draws: Its draws, at several widths.
        rng: Gives other keys.
    """
    wrong, n = [], 0
    for each in draws:
        again, other = (
            mechanism.noise(etas=each.etas, width=each.width, rng=source(mechanism, key, len(each)))
            for key in (each.key, rng.bytes(KEY_BYTES))
        )
        if not np.array_equal(again, each.noise):
            wrong.append(f"one key gives two draws at width {each.width}")
        rows = np.concatenate([each.noise, other])
        repeated = len(rows) - len(np.unique(rows, axis=0))
        if repeated:
            wrong.append(f"{repeated} of {len(rows)} rows occur before at width {each.width}")
        n += len(rows)
    return _exact("repetition", "Does one key give one draw, and no row twice?", wrong, f"{n} rows", n)


def check_precision(draws: Sequence[Draws]) -> ConformanceCheck:
    """Whether numbers have the 52 bits of a float64: those that repeat in a row, or fit into 32 bits, were rounded."""
    wrong, n = [], 0
    for each in draws:
        in_order = np.sort(np.abs(each.noise), axis=1)
        repeated = int((in_order[:, 1:] == in_order[:, :-1]).sum())
        if repeated:
            wrong.append(f"{repeated} numbers stand twice in their row at width {each.width}")
        # by chance one of 2^29 does
        short = int((each.noise.astype(np.float32) == each.noise).sum())
        if short > max(3, each.noise.size // 1000):
            wrong.append(f"{short} of {each.noise.size} numbers fit into 32 bits at width {each.width}")
        n += each.noise.size
    return _exact("precision", "Are numbers drawn in float64?", wrong, f"{n} numbers", n)


def check_scale(
    mechanism: Mechanism, *, etas: Sequence[float], widths: Sequence[int], samples: int, rng: np.random.Generator
) -> ConformanceCheck:
    """Whether noise shrinks as eta grows: norms at eta are mostly larger than norms at 2 eta (Mann and Whitney).

    Args:
        mechanism: The mechanism.
        etas: Privacy parameters.
        widths: Coordinates of a row.
        samples: Draws at each.
        rng: Gives keys.
    """
    least, where = 1.0, ""
    for width in widths:
        for eta in etas:
            one, two = (
                Draws.of(mechanism, width=width, etas=[factor * eta], samples=samples, rng=rng).radius
                for factor in (1, 2)
            )
            share = float(stats.mannwhitneyu(one, two).statistic) / samples**2
            if share <= least:
                least, where = share, f"width {width}, eta {eta:g}"
    # what a mechanism that ignores eta exceeds with a probability of ALPHA
    bound = 0.5 + float(stats.norm.isf(ALPHA)) * math.sqrt((2 * samples + 1) / 12) / samples
    return ConformanceCheck(
        name="scale",
        asks="Does noise shrink as eta grows?",
        statistic=least,
        bound=bound,
        n=samples,
        passed=least > bound,
        found=f"Noise at eta is longer than noise at 2 eta in {100 * least:.1f} % of pairs at least ({where}).",
    )


def _exact(name: str, asks: str, wrong: Sequence[str], looked_at: str, n: int) -> ConformanceCheck:
    found = f"{'; '.join(wrong)}." if wrong else f"No fault in {looked_at}."
    found = found[0].upper() + found[1:]
    return ConformanceCheck(name=name, asks=asks, statistic=len(wrong), bound=0, n=n, passed=not wrong, found=found)


def _is_spherical(mechanism: Mechanism, draws: Draws) -> bool:
    return all(Stated(mechanism, draws.width, float(eta)).is_spherical for eta in np.unique(draws.etas))


def _radial_quantiles(mechanism: Mechanism, draws: Draws) -> Float64 | None:
    """`[tokens]`: the stated probability of a smaller norm; `None` where the density is not of the norm alone."""
    below = np.empty(len(draws))
    for eta in np.unique(draws.etas):
        stated = Stated(mechanism, draws.width, float(eta))
        if not stated.is_spherical:
            return None
        below[draws.etas == eta] = stated.radial_cdf(draws.radius[draws.etas == eta])
    return below


def _mean(draws: Draws) -> Iterator[Tested]:
    n, width = len(draws), draws.width
    if width == 1:
        above = int((draws.noise[:, 0] > 0).sum())
        yield Tested("sign, width 1", above / n, float(stats.binomtest(above, n).pvalue))
        return
    statistic = n * width * float((draws.unit.mean(0) ** 2).sum())
    yield from _both_sides("mean direction", draws, statistic, stats.chi2(width))


def _axes(draws: Draws) -> Iterator[Tested]:
    n, width = len(draws), draws.width
    scatter = draws.unit.T @ draws.unit / n
    statistic = n * width * (width + 2) / 2 * (float((scatter**2).sum()) - 1 / width)
    yield from _both_sides("axes", draws, statistic, stats.chi2((width - 1) * (width + 2) / 2))


def _both_sides(what: str, draws: Draws, statistic: float, law: stats.rv_continuous) -> Iterator[Tested]:
    """Too uneven, and too even: rows that were made to cancel out are no noise either."""
    yield Tested(f"{what}, width {draws.width}", statistic, float(law.sf(statistic)))
    yield Tested(f"{what}, too even, width {draws.width}", statistic, float(law.cdf(statistic)))


def _cosines(draws: Draws, rng: np.random.Generator) -> Iterator[Tested]:
    cdf = _beta(draws.width)
    towards = (1 + draws.unit @ _fixed(draws.width, rng)) / 2
    yield _ks(f"cosine with a fixed vector, width {draws.width}", towards, cdf)
    for axis in sorted({0, draws.width // 2, draws.width - 1}):
        yield _ks(f"cosine with axis {axis}, width {draws.width}", (1 + draws.unit[:, axis]) / 2, cdf)


def _fixed(width: int, rng: np.random.Generator) -> Float64:
    vector = rng.standard_normal(width)
    unit: Float64 = vector / np.linalg.norm(vector)
    return unit


def _beta(width: int) -> Callable[[Float64], Float64]:
    """Of (1 + cosine) / 2 for directions that are uniform on the sphere."""
    cdf: Callable[[Float64], Float64] = stats.beta((width - 1) / 2, (width - 1) / 2).cdf
    return cdf


def _ks(where: str, values: Float64, cdf: Callable[[Float64], Float64]) -> Tested:
    test = stats.kstest(values, cdf)
    return Tested(where, float(test.statistic), float(test.pvalue))


def _kendall(what: str, width: int, left: Float64, right: Float64) -> Tested:
    where = f"{what}, width {width}"
    if np.ptp(left) == 0 or np.ptp(right) == 0:
        return Tested(where, 1.0, 0.0)
    test = stats.kendalltau(left, right)
    return Tested(where, float(test.statistic), float(test.pvalue))


def _t(what: str, width: int, values: Float64, mean: float) -> Tested:
    test = stats.ttest_1samp(values, mean)
    return Tested(f"{what}, width {width}", float(test.statistic), float(test.pvalue))
