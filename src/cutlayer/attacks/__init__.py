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
from cutlayer.attacks.next_tokens import ForwardLeak, GreedyTruth, TailGradient, TrainedTruth, greedy_texts
from cutlayer.attacks.output_gradient import OutputGradient
from cutlayer.attacks.prefix_search import PrefixSearch, SearchedTruth
from cutlayer.attacks.scoring import Score, clustered
from cutlayer.attacks.text_overlap import TextOverlap, text_overlap
from cutlayer.attacks.truth import LabelTruth, TokenTruth, Traffic, Truth
from cutlayer.attacks.unsplit import (
    InputTruth,
    OuterIteration,
    Reconstruction,
    UnSplit,
    UnSplitRun,
    UnSplitSpec,
    reconstruct,
)
from cutlayer.attacks.view import (
    Inapplicable,
    Knowledge,
    SeenAnswer,
    SeenFrame,
    SeenRelease,
    SeenStep,
    Transcript,
    View,
)

__all__ = [
    "ATTACKS",
    "Attack",
    "Control",
    "ControlFailed",
    "ForwardLeak",
    "GreedyTruth",
    "Guesses",
    "Inapplicable",
    "InputTruth",
    "Knowledge",
    "LabelTruth",
    "Measured",
    "NearestNeighbour",
    "NotApplicable",
    "Outcome",
    "OuterIteration",
    "OutputGradient",
    "PrefixSearch",
    "Reconstruction",
    "Score",
    "SearchedTruth",
    "SeenAnswer",
    "SeenFrame",
    "SeenRelease",
    "SeenStep",
    "TailGradient",
    "TextOverlap",
    "TokenTruth",
    "Traffic",
    "TrainedTruth",
    "Transcript",
    "Truth",
    "UnSplit",
    "UnSplitRun",
    "UnSplitSpec",
    "View",
    "clustered",
    "greedy_texts",
    "measure",
    "measure_empirical_privacy",
    "measure_label_recovery",
    "reconstruct",
    "text_overlap",
]
