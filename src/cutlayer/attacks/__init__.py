"""What a vendor can find out from what it saw: attacks on recorded transcripts, and controls that keep them honest."""

from cutlayer.attacks.attack import ATTACKS, Attack, Guesses
from cutlayer.attacks.controls import Control
from cutlayer.attacks.measure import (
    ControlFailed,
    Measured,
    NotApplicable,
    Outcome,
    measure,
    measure_empirical_privacy,
    measure_label_recovery,
)
from cutlayer.attacks.nearest_neighbour import NearestNeighbour
from cutlayer.attacks.output_gradient import OutputGradient
from cutlayer.attacks.scoring import Score, clustered
from cutlayer.attacks.truth import LabelTruth, TokenTruth, Traffic, Truth
from cutlayer.attacks.view import Inapplicable, Knowledge, SeenFrame, SeenRelease, SeenStep, Transcript, View

__all__ = [
    "ATTACKS",
    "Attack",
    "Control",
    "ControlFailed",
    "Guesses",
    "Inapplicable",
    "Knowledge",
    "LabelTruth",
    "Measured",
    "NearestNeighbour",
    "NotApplicable",
    "Outcome",
    "OutputGradient",
    "Score",
    "SeenFrame",
    "SeenRelease",
    "SeenStep",
    "TokenTruth",
    "Traffic",
    "Transcript",
    "Truth",
    "View",
    "clustered",
    "measure",
    "measure_empirical_privacy",
    "measure_label_recovery",
]
