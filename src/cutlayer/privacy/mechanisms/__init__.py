"""Noise and its guarantee, as one object each."""

from cutlayer.privacy.mechanisms.dchi import LARGEST_RADIUS, DChi
from cutlayer.privacy.mechanisms.lattice import LATTICE, round_to_lattice
from cutlayer.privacy.mechanisms.mechanism import MECHANISMS, Mechanism

__all__ = ["LARGEST_RADIUS", "LATTICE", "MECHANISMS", "DChi", "Mechanism", "round_to_lattice"]
