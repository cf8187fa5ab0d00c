"""The Jacobian of a model's final norm: in closed form for LayerNorm and RMSNorm, else by automatic differentiation.

Ref: the norms are those of Ba et al., arXiv:1607.06450, §3, and Zhang and Sennrich, arXiv:1910.07467, eq. (4); their
Jacobians are this project's.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn


class Jacobian(Protocol):
    """J = d norm(z) / dz of some rows, in float64.

    Vectors are one for each row, `[rows, width]`; a table has vectors for all rows, `[n, width]`.
    """

    @property
    def features(self) -> Tensor:
        """norm(z) at the rows, `[rows, width]`."""

    def push(self, vectors: Tensor) -> Tensor:
        """J v `[rows, width]` for vectors v `[rows, width]`."""

    def gram(self, vectors: Tensor) -> Tensor:
        """J Jᵀ w `[rows, width]` for vectors w `[rows, width]`."""

    def squares(self, table: Tensor) -> Tensor:
        """‖Jᵀ w‖² for each row's J and each w of a table `[n, width]`: `[rows, n]`."""


@dataclass(frozen=True)
class ClosedJacobian:
    """LayerNorm's and RMSNorm's.

    With s = √(var z + ε), x = (z - mean z) / s, gain γ, shift β and width D, LayerNorm is γ x + β, and

        J = diag(γ) P / s,    P = I - 1 1ᵀ / D - x xᵀ / D,    P² = I - 1 1ᵀ / D - (2 - ‖x‖² / D) x xᵀ / D,

    as x and 1 are orthogonal. RMSNorm takes no mean off: s = √(mean z² + ε), x = z / s, and P is without
    1 1ᵀ. So

        ‖Jᵀ w‖² = (‖γ w‖² - (1ᵀ γ w)² / D - (2 - ‖x‖² / D) (xᵀ γ w)² / D) / s².

    Attributes:
        features: γ x + β, `[rows, width]`.
        unit: x, `[rows, width]`.
        size: s, `[rows, 1]`.
        gain: γ, `[width]`.
        centred: Whether the mean is taken off.
    """

    features: Tensor
    unit: Tensor
    size: Tensor
    gain: Tensor
    centred: bool

    def push(self, vectors: Tensor) -> Tensor:
        """J v = γ P v / s, `[positions, width]` as `vectors`."""
        along = (self.unit * vectors).mean(1, keepdim=True)
        return self.gain * (self._level(vectors) - self.unit * along) / self.size

    def gram(self, vectors: Tensor) -> Tensor:
        """J Jᵀ w = γ P² γ w / s², `[positions, width]` as `vectors`."""
        scaled = self.gain * vectors
        along = (self.unit * scaled).mean(1, keepdim=True) * self._share()
        return self.gain * (self._level(scaled) - self.unit * along) / self.size.square()

    def squares(self, table: Tensor) -> Tensor:
        """‖Jᵀ w‖² = wᵀ γ P² γ w / s², `[positions, vocabulary]`, of rows `[vocabulary, width]`."""
        own = table.square() @ self.gain.square()
        if self.centred:
            own = own - (table @ self.gain).square() / len(self.gain)
        along = ((self.gain * self.unit) @ table.T).square() * self._share() / len(self.gain)
        return (own - along) / self.size.square()

    def _level(self, vectors: Tensor) -> Tensor:
        return vectors - vectors.mean(1, keepdim=True) if self.centred else vectors

    def _share(self) -> Tensor:
        """2 - ‖x‖² / D, which is 1 but for ε."""
        return 2 - self.unit.square().mean(1, keepdim=True)


@dataclass(frozen=True)
class DenseJacobian:
    """Any other norm's, differentiated automatically.

    Attributes:
        features: norm(z), `[rows, width]`.
        matrix: J, `[rows, width, width]`.
    """

    features: Tensor
    matrix: Tensor

    def push(self, vectors: Tensor) -> Tensor:
        """See `Jacobian.push`."""
        return torch.einsum("nij,nj->ni", self.matrix, vectors)

    def gram(self, vectors: Tensor) -> Tensor:
        """See `Jacobian.gram`."""
        return self.push(torch.einsum("nij,ni->nj", self.matrix, vectors))

    def squares(self, table: Tensor) -> Tensor:
        """See `Jacobian.squares`; one row's J at a time."""
        return torch.stack([(table @ matrix).square().sum(1) for matrix in self.matrix])


def normed(norm: nn.Module | None, hidden: Tensor) -> Tensor:
    """norm(z), `[rows, width]` float64, for z `[rows, width]`; without a norm z itself."""
    return hidden.double() if norm is None else norm(hidden.float()).double()


def closed_jacobian(norm: nn.Module | None, hidden: Tensor) -> ClosedJacobian | None:
    """The closed form at z `[rows, width]`, if that is what the norm computes: its class need not be known."""
    z = hidden.double()
    one = z.new_ones(z.shape[1])
    if norm is None:
        # x = 0 and s = 1 make P the identity
        return ClosedJacobian(z, torch.zeros_like(z), z.new_ones(len(z), 1), one, centred=False)
    centred = isinstance(norm, nn.LayerNorm)
    eps = getattr(norm, "eps", getattr(norm, "variance_epsilon", None))
    gain, shift = getattr(norm, "weight", None), getattr(norm, "bias", None)
    if not isinstance(eps, float):
        return None
    level = z - z.mean(1, keepdim=True) if centred else z
    size = (level.square().mean(1, keepdim=True) + eps).sqrt()
    unit = level / size
    gain = gain.double() if isinstance(gain, Tensor) else one
    features = unit * gain + (shift.double() if isinstance(shift, Tensor) else 0)
    if not agree(features, normed(norm, hidden), 1e-4):
        return None
    return ClosedJacobian(features, unit, size, gain, centred)


def dense_jacobian(norm: nn.Module | None, hidden: Tensor) -> DenseJacobian:
    """Any norm's at z `[rows, width]`, in `rows` times `width` squared numbers."""
    norm = copy.deepcopy(norm)
    if norm is None:
        raise TypeError("without a norm, the Jacobian is the identity")
    norm.double()
    return DenseJacobian(norm(hidden.double()), torch.func.vmap(torch.func.jacrev(norm))(hidden.double()))


def agree(one: Tensor, other: Tensor, tolerance: float) -> bool:
    """Whether tensors `[...]` have one shape and nowhere differ by more than a share of the other's largest number."""
    return one.shape == other.shape and bool((one - other).abs().max() <= tolerance * other.abs().max())
