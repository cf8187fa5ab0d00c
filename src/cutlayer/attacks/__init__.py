"""What a vendor can find out from what it saw: attacks on recorded transcripts, and controls that keep them honest."""

from typing import TYPE_CHECKING

from cutlayer.core.lazy import on_first_use

if TYPE_CHECKING:
    from cutlayer.attacks.attack import ATTACKS, Attack, Clue, Dial, Guesses, Question
    from cutlayer.attacks.attribute_classifier import AttributeClassifier
    from cutlayer.attacks.attribute_mlp import AttributeMlp
    from cutlayer.attacks.attributes import AttributeTruth
    from cutlayer.attacks.autoencoder_inversion import AutoencoderInversion
    from cutlayer.attacks.controls import Check, Control
    from cutlayer.attacks.entities import EntityTruth
    from cutlayer.attacks.entity_tagger import EntityTagger
    from cutlayer.attacks.float_support import FloatSupport
    from cutlayer.attacks.gradient_norm import GradientNorm
    from cutlayer.attacks.knowledge import AnnotatedText, Inapplicable, Knowledge, Labelled, Need, Noise, PublicText
    from cutlayer.attacks.label_clusters import ActivationClusters, GradientDirection
    from cutlayer.attacks.learned_inversion import LearnedInversion, LearnedInversionSpec
    from cutlayer.attacks.lengths import LengthClassifier, Lengths, LengthTruth
    from cutlayer.attacks.linear_inversion import LinearInversion, LinearInversionSpec
    from cutlayer.attacks.masked_infill import MaskedInfill, MaskedInfillSpec
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
    from cutlayer.attacks.middle_distillation import Copied, DistillationSpec, Exchanged, control_students, distil
    from cutlayer.attacks.mlp_inversion import MlpInversion
    from cutlayer.attacks.multi_run import MultiRun, MultiRunSpec
    from cutlayer.attacks.nearest_neighbour import NearestNeighbour, content_tokens
    from cutlayer.attacks.next_tokens import MEASURED_TOKENS, ForwardLeak, GreedyTruth, TailGradient, TrainedTruth
    from cutlayer.attacks.output_gradient import GradientSign, OutputGradient
    from cutlayer.attacks.perceptron import Fitting
    from cutlayer.attacks.prefix_search import PrefixSearch, SearchedTruth
    from cutlayer.attacks.record_order import KnownInOrder, RecordLinkage, RecordOrder, RowTruth
    from cutlayer.attacks.refined_inversion import RefinedInversion, RefinedInversionSpec
    from cutlayer.attacks.reports_and_text import ReportsAndText
    from cutlayer.attacks.scoring import Further, Score, bootstrap, clustered
    from cutlayer.attacks.simulate import released_as, simulate
    from cutlayer.attacks.survival import SurvivalPattern
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
    "MEASURED_TOKENS",
    "ActivationClusters",
    "AnnotatedText",
    "Attack",
    "AttributeClassifier",
    "AttributeMlp",
    "AttributeTruth",
    "AutoencoderInversion",
    "Check",
    "Clue",
    "Control",
    "ControlFailed",
    "Copied",
    "Dial",
    "DistillationSpec",
    "EntityTagger",
    "EntityTruth",
    "Examined",
    "Exchanged",
    "Fitting",
    "FloatSupport",
    "ForwardLeak",
    "Further",
    "GradientDirection",
    "GradientNorm",
    "GradientSign",
    "GreedyTruth",
    "Guesses",
    "Inapplicable",
    "InputTruth",
    "Knowledge",
    "KnownInOrder",
    "LabelTruth",
    "Labelled",
    "LearnedInversion",
    "LearnedInversionSpec",
    "LengthClassifier",
    "LengthTruth",
    "Lengths",
    "LinearInversion",
    "LinearInversionSpec",
    "MaskedInfill",
    "MaskedInfillSpec",
    "MaximumPosterior",
    "MaximumPosteriorSpec",
    "Measured",
    "MlpInversion",
    "MultiRun",
    "MultiRunSpec",
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
    "RecordLinkage",
    "RecordOrder",
    "RefinedInversion",
    "RefinedInversionSpec",
    "ReportsAndText",
    "RowTruth",
    "Score",
    "SearchedTruth",
    "SeenAnswer",
    "SeenFrame",
    "SeenRelease",
    "SeenStep",
    "SurvivalPattern",
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
    "bootstrap",
    "clustered",
    "content_tokens",
    "control_students",
    "distil",
    "examine",
    "measure",
    "measure_empirical_privacy",
    "measure_label_recovery",
    "reconstruct",
    "released_as",
    "simulate",
    "text_overlap",
]

on_first_use(__name__)
