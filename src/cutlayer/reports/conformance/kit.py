"""All questions to one mechanism."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from cutlayer.core import ConfigError, Fault
from cutlayer.customer import Progress, Silent
from cutlayer.privacy import PluggedIn
from cutlayer.privacy.mechanisms import Mechanism
from cutlayer.privacy.mechanisms.mechanism import least_width_of
from cutlayer.reports.conformance.check import Conformance, ConformanceCheck, Replacement
from cutlayer.reports.conformance.density import check_density, check_normaliser, check_ratio
from cutlayer.reports.conformance.distribution import (
    check_directions,
    check_independence,
    check_precision,
    check_radius,
    check_repetition,
    check_scale,
)
from cutlayer.reports.conformance.draws import Draws
from cutlayer.reports.conformance.exponential import check_exponential
from cutlayer.reports.conformance.loss import check_privacy_loss
from cutlayer.reports.conformance.replacement import TokenSample, check_replacement, replacement_curve

WIDTHS: Final = (1, 2, 3, 8, 384)
ETAS: Final = (3.0, 50.0)
SAMPLES: Final = 4000
LEAST_SAMPLES: Final = 1000
LOSS_FACTOR: Final = 100
"""Draws for the privacy loss, for each draw of the other checks: an event of odds e^1 must be met often."""


def check_mechanism(
    mechanism: Mechanism,
    *,
    rng: np.random.Generator,
    etas: Sequence[float] = ETAS,
    widths: Sequence[int] = WIDTHS,
    samples: int = SAMPLES,
    loss_samples: int | None = None,
    tokens: TokenSample | None = None,
    progress: Progress | None = None,
) -> Conformance:
    """Checks a mechanism against what it states: its density, its claim, and how privatizers use it.

    Each check fails a true mechanism with a probability of `ALPHA` at most. A mechanism that states
    d_chi noise is compared with the closed form; another with what follows from its own density.

    Args:
        mechanism: Any, a plug-in included: take it from `find_mechanism`.
        rng: Where all randomness comes from; the same state gives the same answers.
        etas: Privacy parameters, which take turns in one call.
        widths: Coordinates of a row, each with draws of its own. Small ones find what large ones hide. Those that are
            too small for the mechanism are left out.
        samples: Draws at each width.
        loss_samples: Draws for the privacy loss; a hundred times `samples` where it is left out, and with 0 the
            question is not asked.
        tokens: On what to measure how many tokens are replaced; that is left out where there is nothing.
        progress: Where to show progress.

    Raises:
        ConfigError: Too few samples, no eta or width, or the mechanism refuses what it is asked for.
    """
    _check_arguments(etas, widths, samples)
    least = least_width_of(mechanism)
    widths = [width for width in widths if width >= least]
    if not widths:
        raise ConfigError([Fault("width", 1, f"must be at least {least} for noise {mechanism.name}")])
    lost = LOSS_FACTOR * samples if loss_samples is None else loss_samples
    draws = [Draws.of(mechanism, width=width, etas=etas, samples=samples, rng=rng) for width in widths]
    curve: list[Replacement] = []

    def replace() -> list[ConformanceCheck]:
        if tokens is not None:
            curve.extend(replacement_curve(mechanism, tokens, rng=rng))
        return [check_replacement(curve)]

    stages: dict[str, Callable[[], list[ConformanceCheck]]] = {
        "radius": lambda: [check_radius(mechanism, draws)],
        "directions": lambda: check_directions(mechanism, draws, rng),
        "independence": lambda: [check_independence(mechanism, draws, rng)],
        "repetition": lambda: [check_repetition(mechanism, draws, rng)],
        "precision": lambda: [check_precision(draws)],
        "scale": lambda: [check_scale(mechanism, etas=etas, widths=widths, samples=samples, rng=rng)],
        "normaliser": lambda: [check_normaliser(mechanism, etas=etas, widths=widths)],
        "density": lambda: [check_density(mechanism, draws)],
        "ratio": lambda: [check_ratio(mechanism, etas=etas, widths=widths, rng=rng)],
        "privacy loss": lambda: [check_privacy_loss(mechanism, samples=lost, rng=rng)],
        "replacement": replace,
        "exponential draw": lambda: [check_exponential(mechanism, etas=etas)],
    }
    shown = progress or Silent()
    checks: list[ConformanceCheck] = []
    for done, (stage, asked) in enumerate(stages.items()):
        shown.update("check the mechanism", done, len(stages), stage)
        checks += asked()
    shown.update("check the mechanism", len(stages), len(stages))
    return Conformance(
        mechanism=mechanism.name,
        origin=mechanism.origin if isinstance(mechanism, PluggedIn) else None,
        guarantee=mechanism.guarantee(eta=etas[0], space="the table", per="token"),
        etas=tuple(etas),
        widths=tuple(widths),
        samples=samples,
        loss_samples=lost,
        checks=tuple(checks),
        replacement=tuple(curve),
        passed=not any(check.passed is False for check in checks),
    )


def _check_arguments(etas: Sequence[float], widths: Sequence[int], samples: int) -> None:
    faults = [Fault("eta", eta, "must be above 0 and finite") for eta in etas if not 0 < eta < np.inf]
    faults += [Fault("width", width, "must be at least 1") for width in widths if width < 1]
    if samples < LEAST_SAMPLES:
        faults.append(Fault("samples", samples, f"must be at least {LEAST_SAMPLES}: fewer draws show nothing"))
    if not etas or not widths:
        faults.append(Fault("eta" if not etas else "width", "nothing", "must be one at least"))
    if faults:
        raise ConfigError(faults)
