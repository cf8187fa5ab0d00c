"""What an attack is: a callable from a view to guesses, in a registry that plugins may add to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from torch import Tensor

from cutlayer.attacks.view import View
from cutlayer.core import Registry, Tokens

Guess: TypeAlias = tuple[str, int, Tokens | Tensor]
"""Where (source and number of a release or a step), and what: ids in the shape of the texts, or `[texts]` labels."""

Guesses: TypeAlias = Iterator[Guess]
"""Made one release at a time, so that an attack on a long transcript need not hold it."""

Attack: TypeAlias = Callable[[View], Guesses]
"""An attack. Raises `Inapplicable` where it has no meaning for what was sent."""

ATTACKS: Registry[Attack] = Registry("attack")
