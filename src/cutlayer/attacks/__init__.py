"""What a vendor can find out from what it saw: attacks on recorded transcripts, and controls that keep them honest."""

from cutlayer.attacks.attack import ATTACKS, Attack, Guesses, Question
from cutlayer.attacks.controls import Check, Control
from cutlayer.attacks.float_support import FloatSupport
from cutlayer.attacks.knowledge import Inapplicable, Knowledge, Need, Noise, PublicText
from cutlayer.attacks.linear_inversion import LinearInversion, LinearInversionSpec
from cutlayer.attacks.maximum_posterior import MaximumPosterior, MaximumPosteriorSpec
from cutlayer.attacks.measure import (
    ControlFailed,
    Examined,
    Measured,
    NotApplicable,
    Outcome,
    examine,
    measure,
    measure_empirical_privacy,
    measure_label_recovery,
)
from cutlayer.attacks.nearest_neighbour import NearestNeighbour, content_tokens
from cutlayer.attacks.next_tokens import ForwardLeak, GreedyTruth, TailGradient, TrainedTruth, greedy_texts
from cutlayer.attacks.output_gradient import OutputGradient
from cutlayer.attacks.prefix_search import PrefixSearch, SearchedTruth
from cutlayer.attacks.scoring import Score, clustered
from cutlayer.attacks.text_overlap import TextOverlap, text_overlap
from cutlayer.attacks.truth import LabelTruth, Reading, TokenTruth, Traffic, Truth
from cutlayer.attacks.unsplit import (
    InputTruth,
    OuterIteration,
    Reconstruction,
    UnSplit,
    UnSplitRun,
    UnSplitSpec,
    reconstruct,
)
from cutlayer.attacks.view import SeenAnswer, SeenFrame, SeenRelease, SeenStep, Transcript, View
from cutlayer.attacks.word_selection import WordSelection, WordSelectionSpec

__all__ = [
    "ATTACKS",
    "Attack",
    "Check",
    "Control",
    "ControlFailed",
    "Examined",
    "FloatSupport",
    "ForwardLeak",
    "GreedyTruth",
    "Guesses",
    "Inapplicable",
    "InputTruth",
    "Knowledge",
    "LabelTruth",
    "LinearInversion",
    "LinearInversionSpec",
    "MaximumPosterior",
    "MaximumPosteriorSpec",
    "Measured",
    "NearestNeighbour",
    "Need",
    "Noise",
    "NotApplicable",
    "Outcome",
    "OuterIteration",
    "OutputGradient",
    "PrefixSearch",
    "PublicText",
    "Question",
    "Reading",
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
    "WordSelection",
    "WordSelectionSpec",
    "clustered",
    "content_tokens",
    "examine",
    "greedy_texts",
    "measure",
    "measure_empirical_privacy",
    "measure_label_recovery",
    "reconstruct",
    "text_overlap",
]
