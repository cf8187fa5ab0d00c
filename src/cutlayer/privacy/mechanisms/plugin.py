"""A mechanism of another package: its noise is looked at before it is used, its claim is never cutlayer's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from cutlayer.core import ConfigError, CutlayerError, Fault, Guarantee
from cutlayer.privacy.mechanisms.dchi import LARGEST_RADIUS
from cutlayer.privacy.mechanisms.mechanism import MECHANISMS, Float64, Mechanism, Rng, least_width_of, norm_of
from cutlayer.privacy.randomness import Streams

_METHODS = ("noise", "log_density", "guarantee")


class PluggedIn:
    """A mechanism that an installed package names.

    What the package promises is shown as its claim, whatever it says of itself: privatizers ask here
    for noise and guarantee, never the plug-in. The unit of its etas has its name, so that they are
    never added to those of other noise.

    Noise of a wrong shape would be spread over tokens without a word, one draw for all of them, so
    shape, type and size are looked at before it is used.

    Args:
        name: The entry point's name, under which ledgers and reports have it.
        part: What the entry point gives.
        origin: Package and version.

    Raises:
        ConfigError: The part is no mechanism.
    """

    def __init__(self, name: str, part: Mechanism, *, origin: str) -> None:
        missing = [method for method in _METHODS if not callable(getattr(part, method, None))]
        if missing or isinstance(part, type):
            given = "is a class" if isinstance(part, type) else f"has no {' and no '.join(missing)}"
            raise ConfigError(
                f"Mechanism {name!r} of {origin} {given}.",
                remedy=f"Its entry point must name an object with {', '.join(_METHODS)}.",
            )
        self.name = name
        self.origin = origin
        self._part: Any = part
        self.norm, self.least_width = norm_of(part), least_width_of(part)

    def noise(self, *, etas: Float64, width: int, rng: Rng) -> Float64:
        """The plug-in's noise, looked at; see `Mechanism.noise`. Of streams, row by row.

        Raises:
            ConfigError: It raised what is no error of cutlayer's, or its noise has another shape or type, is not
                finite, or drowns the lattice.
        """
        if isinstance(rng, Streams):
            rows = [
                self.noise(etas=etas[row : row + 1], width=width, rng=rng.generator(row)) for row in range(len(etas))
            ]
            return np.concatenate(rows) if rows else np.empty((0, width))
        with self._running("noise"):
            noise = self._part.noise(etas=etas, width=width, rng=rng)
        wanted = (len(etas), width)
        if not isinstance(noise, np.ndarray) or noise.shape != wanted or noise.dtype != np.float64:
            found = f"{noise.dtype}{list(noise.shape)}" if isinstance(noise, np.ndarray) else type(noise).__name__
            raise self._error(f"draws {found} where float64{list(wanted)} is asked for")
        if noise.size and not np.abs(noise).max() <= LARGEST_RADIUS:  # what is no number compares as False
            raise ConfigError(
                [Fault("eta", float(np.min(etas)), f"must give finite noise of at most {LARGEST_RADIUS:.3g}")],
                remedy=f"Choose a larger eta; if the noise is not finite at any, mend {self.origin}.",
            )
        return noise

    def log_density(self, noise: Float64, *, etas: Float64) -> Float64:
        """What the plug-in states of its density; see `Mechanism.log_density`.

        Raises:
            ConfigError: It raised what is no error of cutlayer's, or gives no number a row.
        """
        with self._running("log_density"):
            density = np.asarray(self._part.log_density(noise, etas=etas), dtype=np.float64)
        if density.shape != (len(noise),):
            raise self._error(f"states a density of shape {list(density.shape)} for {len(noise)} rows")
        return density

    def guarantee(self, *, eta: float, space: str, per: str) -> Guarantee:
        """What the plug-in claims, under its package's name; see `Mechanism.guarantee`.

        Raises:
            ConfigError: It raised what is no error of cutlayer's, or returned no guarantee.
        """
        with self._running("guarantee"):
            claimed = self._part.guarantee(eta=eta, space=space, per=per)
        if not isinstance(claimed, Guarantee):
            raise self._error(f"gives a {type(claimed).__name__} for a guarantee")
        return Guarantee(
            claim=claimed.claim,
            budget=claimed.budget,
            unit=f"eta of noise {self.name} in {space}",
            per=per,
            caveats=(
                f"The noise {self.name} and what it promises are of {self.origin}: cutlayer has not verified either. "
                f"It counts its budget in {claimed.unit} per {claimed.per}.",
                *claimed.caveats,
            ),
            claimed_by=self.origin,
        )

    @contextmanager
    def _running(self, method: str) -> Iterator[None]:
        try:
            yield
        except CutlayerError:
            raise
        except Exception as error:  # whatever a stranger's code raises
            raise self._error(f"raised {type(error).__name__} in {method}") from error

    def _error(self, what: str) -> ConfigError:
        return ConfigError(f"Mechanism {self.name!r} of {self.origin} {what}.", remedy=f"Mend {self.origin}.")


def find_mechanism(name: str) -> Mechanism:
    """The mechanism of that name: cutlayer's own, or a plug-in's, whose claim is marked as such.

    Raises:
        ConfigError: There is none, or it cannot be loaded.
    """
    origin = MECHANISMS.origin(name)
    return MECHANISMS[name] if origin is None else PluggedIn(name, MECHANISMS[name], origin=origin)
