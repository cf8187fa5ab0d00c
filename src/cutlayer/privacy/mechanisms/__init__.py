"""Noise and its guarantee, as one object each."""

from typing import TYPE_CHECKING

from cutlayer.core.lazy import on_first_use

if TYPE_CHECKING:
    from cutlayer.privacy.mechanisms.dchi import LARGEST_RADIUS, DChi
    from cutlayer.privacy.mechanisms.lattice import LATTICE, round_to_lattice
    from cutlayer.privacy.mechanisms.mechanism import MECHANISMS, Mechanism
    from cutlayer.privacy.mechanisms.plugin import PluggedIn, find_mechanism

__all__ = [
    "LARGEST_RADIUS",
    "LATTICE",
    "MECHANISMS",
    "DChi",
    "Mechanism",
    "PluggedIn",
    "find_mechanism",
    "round_to_lattice",
]

on_first_use(__name__)
