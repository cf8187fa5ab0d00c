"""Mechanisms that are wrong in one respect each, as code in public is, and checks that must see it; true ones too."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from scipy import special

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


# ---------------------------------------------------------------- true ones that are no d_chi noise


class Nothing(DChi):
    """Claims nothing, whatever it draws."""

    def guarantee(self, *, eta: float, space: str, per: str) -> Guarantee:
        return Guarantee.nothing("It bounds no loss.")


class Gaussian(Nothing):
    """Of d_chi noise's variance."""

    def noise(self, *, etas: Array, width: int, rng: np.random.Generator) -> Array:
        return gaussian(etas, width, rng)

    def log_density(self, noise: Array, *, etas: Array) -> Array:
        width = noise.shape[1]
        deviation = np.sqrt(width + 1) / etas
        return -width / 2 * np.log(2 * np.pi * deviation**2) - (noise**2).sum(1) / (2 * deviation**2)


class Ball(Nothing):
    """Uniform in a ball of radius 1 / eta: its density ends at a wall."""

    def noise(self, *, etas: Array, width: int, rng: np.random.Generator) -> Array:
        return directions(len(etas), width, rng) * (rng.random(len(etas)) ** (1 / width) / etas)[:, None]

    def log_density(self, noise: Array, *, etas: Array) -> Array:
        width = noise.shape[1]
        inside = width * np.log(etas) + math.lgamma(width / 2 + 1) - width / 2 * math.log(math.pi)
        return np.where(np.linalg.norm(noise, axis=1) * etas <= 1, inside, -np.inf)


class Plateau(DChi):
    """A density ∝ exp(-eta max(‖n‖, width / 2 eta)): of the norm alone, with d_chi's promise, and not d_chi noise."""

    @staticmethod
    def masses(width: int) -> tuple[float, float]:
        """ln of the mass within the plateau and beyond it, per unit of surface, at eta 1."""
        edge = width / 2
        within = -edge + width * math.log(edge) - math.log(width)
        return within, math.lgamma(width) + math.log(special.gammaincc(width, edge))

    def noise(self, *, etas: Array, width: int, rng: np.random.Generator) -> Array:
        within, beyond = self.masses(width)
        flat = rng.random(len(etas)) < 1 / (1 + math.exp(beyond - within))
        inner = width / 2 * rng.random(len(etas)) ** (1 / width)
        outer = special.gammainccinv(width, rng.random(len(etas)) * special.gammaincc(width, width / 2))
        return directions(len(etas), width, rng) * (np.where(flat, inner, outer) / etas)[:, None]

    def log_density(self, noise: Array, *, etas: Array) -> Array:
        width = noise.shape[1]
        surface = math.log(2) + width / 2 * math.log(math.pi) - math.lgamma(width / 2)
        radius = np.linalg.norm(noise, axis=1) * etas
        return width * np.log(etas) - surface - np.logaddexp(*self.masses(width)) - np.maximum(radius, width / 2)


TRUE_ONES: dict[str, DChi] = {"Gaussian": Gaussian(), "ball": Ball(), "plateau": Plateau()}


class ClaimingGaussian(Gaussian):
    """Promises what Gaussian noise has not."""

    guarantee = DChi.guarantee


class ClaimingBall(Ball):
    """Promises what noise that ends at a wall has not."""

    guarantee = DChi.guarantee
