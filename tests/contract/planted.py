"""Mechanisms that are wrong in one respect each, as code in public is, and the check that must see it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from cutlayer.core import Guarantee
from cutlayer.privacy import DChi
from tests.contract.noise_checks import Array, stream

Draw = Callable[[Array, int, np.random.Generator], Array]
"""draw(etas [n], width, rng) -> [n, width]"""


class Planted(DChi):
    """States d_chi noise, and draws something else."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw

    def noise(self, *, etas: Array, width: int, rng: np.random.Generator) -> Array:
        return self.draw(etas, width, rng)


def true(etas: Array, width: int, rng: np.random.Generator) -> Array:
    return DChi().noise(etas=etas, width=width, rng=rng)


def times(factor: float) -> Draw:
    """An eta that is off by a factor: as much less noise."""
    return lambda etas, width, rng: true(etas * factor, width, rng)


def directions(rows: int, width: int, rng: np.random.Generator) -> Array:
    normal = rng.standard_normal((rows, width))
    return normal / np.linalg.norm(normal, axis=1, keepdims=True)


def radii(etas: Array, shape: float, rng: np.random.Generator) -> Array:
    return (rng.standard_gamma(shape, len(etas)) / etas)[:, None]


def cube(etas: Array, width: int, rng: np.random.Generator) -> Array:
    """A radius per coordinate, as in public code: √(width / 3) times too large, and no sphere."""
    radius = rng.standard_gamma(width, (len(etas), width)) / etas[:, None]
    return radius * rng.uniform(-1, 1, (len(etas), width))


def shared_radius(etas: Array, width: int, rng: np.random.Generator) -> Array:
    """One radius for the whole batch, as in public code."""
    return directions(len(etas), width, rng) * rng.standard_gamma(width) / etas[:, None]


def gamma_of_one_less(etas: Array, width: int, rng: np.random.Generator) -> Array:
    return directions(len(etas), width, rng) * radii(etas, max(width - 1, 0.5), rng)


def gaussian(etas: Array, width: int, rng: np.random.Generator) -> Array:
    """The right variance, the wrong tail."""
    return rng.standard_normal((len(etas), width)) * np.sqrt(width + 1) / etas[:, None]


def independent_laplace(etas: Array, width: int, rng: np.random.Generator) -> Array:
    return rng.laplace(0, 1, (len(etas), width)) / etas[:, None]


def cube_direction(etas: Array, width: int, rng: np.random.Generator) -> Array:
    """The right radius, but directions that crowd into the corners."""
    corner = rng.uniform(-1, 1, (len(etas), width))
    return corner / np.linalg.norm(corner, axis=1, keepdims=True) * radii(etas, width, rng)


def half_precision(etas: Array, width: int, rng: np.random.Generator) -> Array:
    """Directions rounded to 16 bits; the distribution is right to what any test of it can see."""
    return directions(len(etas), width, rng).astype(np.float16).astype(np.float64) * radii(etas, width, rng)


def single_precision(etas: Array, width: int, rng: np.random.Generator) -> Array:
    return true(etas, width, rng).astype(np.float32).astype(np.float64)


def repeated_halves(etas: Array, width: int, rng: np.random.Generator) -> Array:
    half = true(etas[: -(-len(etas) // 2)], width, rng)
    return np.concatenate([half, half])[: len(etas)]


def one_row_again(etas: Array, width: int, rng: np.random.Generator) -> Array:
    noise = true(etas, width, rng)
    noise[-1] = noise[0]
    return noise


def forgets_tokens(etas: Array, width: int, rng: np.random.Generator) -> Array:
    """The first token's eta for all."""
    return true(np.full_like(etas, etas[0]), width, rng)


def forgets_eta(etas: Array, width: int, rng: np.random.Generator) -> Array:
    return true(np.ones_like(etas), width, rng)


OWN_STREAM = stream(77)


def own_generator(etas: Array, width: int, rng: np.random.Generator) -> Array:
    """From a generator of its own: the same key never gives the same noise."""
    return true(etas, width, OWN_STREAM)


def global_generator(etas: Array, width: int, rng: np.random.Generator) -> Array:
    radius = torch.from_numpy(radii(etas, width, rng))
    return (torch.nn.functional.normalize(torch.randn(len(etas), width, dtype=torch.float64)) * radius).numpy()


def default_seed(etas: Array, width: int, rng: np.random.Generator) -> Array:
    return true(etas, width, stream(42))


FAULTS: dict[str, tuple[Draw, tuple[str, ...]]] = {
    "eta off by one percent": (times(1.01), ("radius", "density")),
    "eta off by 1.3": (times(1.3), ("radius", "density", "privacy loss")),
    "eta off by 2/3": (times(2 / 3), ("radius", "density")),
    "eta off by 3/2": (times(3 / 2), ("radius", "density", "privacy loss")),
    "Gamma(width - 1)": (gamma_of_one_less, ("radius", "density", "privacy loss")),
    "radius per coordinate": (cube, ("radius", "cosines", "fourth moment", "density", "privacy loss")),
    "radius per batch": (shared_radius, ("radius", "independence", "scale")),
    "Gaussian": (gaussian, ("radius", "density", "privacy loss")),
    "independent Laplace": (independent_laplace, ("radius", "cosines", "fourth moment", "privacy loss")),
    "cube directions": (cube_direction, ("cosines", "fourth moment", "privacy loss")),
    "16-bit directions": (half_precision, ("precision",)),
    "32-bit noise": (single_precision, ("precision",)),
    "repeated halves": (repeated_halves, ("mean direction", "axes", "independence", "repetition")),
    "one row again": (one_row_again, ("repetition",)),
    "one eta for all": (forgets_tokens, ("radius", "density")),
    "no eta": (forgets_eta, ("radius", "scale", "density")),
    "generator of its own": (own_generator, ("repetition",)),
    "torch's generator": (global_generator, ("repetition",)),
    "default seed": (default_seed, ("repetition",)),
}
"""By what is wrong: how it draws, and checks that must fail it."""


class WrongDensity(DChi):
    """The normaliser of one dimension for all."""

    def log_density(self, noise: Array, *, etas: Array) -> Array:
        return np.log(etas / 2) - etas * np.linalg.norm(noise, axis=1)


class Overclaiming(DChi):
    """Promises less loss than its noise has."""

    def guarantee(self, *, eta: float, space: str, per: str) -> Guarantee:
        return super().guarantee(eta=eta, space=space, per=per).model_copy(update={"budget": eta / 1.3})
