"""What a vendor can find out from what it saw: attacks on recorded transcripts, and controls that keep them honest."""

from typing import TYPE_CHECKING

from cutlayer.core.lazy import on_first_use

if TYPE_CHECKING:
    from cutlayer.attacks.attack import ATTACKS, Attack, Dial, Guesses, Question, SignalSource
    from cutlayer.attacks.attributes.classifier import AttributeClassifier
    from cutlayer.attacks.attributes.entity_tagger import EntityTagger
    from cutlayer.attacks.attributes.lengths import LengthClassifier, Lengths
    from cutlayer.attacks.attributes.mlp import AttributeMlp
    from cutlayer.attacks.content import content_tokens
    from cutlayer.attacks.evaluation.attributes import AttributeTruth
    from cutlayer.attacks.evaluation.controls import Check, Control
    from cutlayer.attacks.evaluation.entities import EntityTruth
    from cutlayer.attacks.evaluation.labels import LabelTruth
    from cutlayer.attacks.evaluation.lengths import LengthTruth
    from cutlayer.attacks.evaluation.measure import (
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
    from cutlayer.attacks.evaluation.rows import RowTruth
    from cutlayer.attacks.evaluation.scoring import Reading, Score, SecondaryMetric
    from cutlayer.attacks.evaluation.statistics import bootstrap, clustered
    from cutlayer.attacks.evaluation.text_overlap import TextOverlap, text_overlap
    from cutlayer.attacks.evaluation.tokens import TokenTruth
    from cutlayer.attacks.evaluation.traffic import Traffic
    from cutlayer.attacks.evaluation.truth import Truth
    from cutlayer.attacks.extraction.controls import control_students
    from cutlayer.attacks.extraction.exchanged import Exchanged
    from cutlayer.attacks.extraction.middle_distillation import Copied, distil
    from cutlayer.attacks.extraction.student import DistillationSpec
    from cutlayer.attacks.inversion.autoencoder import AutoencoderInversion
    from cutlayer.attacks.inversion.float_support import FloatSupport
    from cutlayer.attacks.inversion.known_pairs import KnownPairs, KnownPairsSpec
    from cutlayer.attacks.inversion.learned import LearnedInversion, LearnedInversionSpec
    from cutlayer.attacks.inversion.linear import LinearInversion, LinearInversionSpec
    from cutlayer.attacks.inversion.masked_infill import MaskedInfill, MaskedInfillSpec
    from cutlayer.attacks.inversion.maximum_posterior import MaximumPosterior, MaximumPosteriorSpec
    from cutlayer.attacks.inversion.mlp import MlpInversion
    from cutlayer.attacks.inversion.multi_run import MultiRun, MultiRunSpec
    from cutlayer.attacks.inversion.nearest_neighbour import NearestNeighbour
    from cutlayer.attacks.inversion.prefix_search import PrefixSearch, SearchedTruth
    from cutlayer.attacks.inversion.reconstruction_head import HeadReading, HeadReadingSpec
    from cutlayer.attacks.inversion.refined import RefinedInversion, RefinedInversionSpec
    from cutlayer.attacks.inversion.unsplit import UnSplit
    from cutlayer.attacks.inversion.unsplit_run import UnSplitRun, reconstruct
    from cutlayer.attacks.inversion.unsplit_spec import InputTruth, OuterIteration, Reconstruction, UnSplitSpec
    from cutlayer.attacks.inversion.word_selection import WordSelection, WordSelectionSpec
    from cutlayer.attacks.knowledge import (
        AnnotatedText,
        Inapplicable,
        Knowledge,
        Labelled,
        Need,
        Noise,
        PublicText,
        WordRows,
    )
    from cutlayer.attacks.labels.clusters import ActivationClusters, GradientDirection
    from cutlayer.attacks.labels.gradient_norm import GradientNorm
    from cutlayer.attacks.labels.output_gradient import GradientSign, OutputGradient
    from cutlayer.attacks.labels.record_order import KnownInOrder, RecordLinkage, RecordOrder
    from cutlayer.attacks.labels.reports_and_text import ReportsAndText
    from cutlayer.attacks.labels.survival import SurvivalPattern
    from cutlayer.attacks.language.next_tokens import (
        MEASURED_TOKENS,
        ForwardLeak,
        GreedyTruth,
        TailGradient,
        TrainedTruth,
    )
    from cutlayer.attacks.simulate import released_as, simulate
    from cutlayer.attacks.view import SeenAnswer, SeenFrame, SeenRelease, SeenStep, Transcript, View
    from cutlayer.models.perceptron import Fitting

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
    "GradientDirection",
    "GradientNorm",
    "GradientSign",
    "GreedyTruth",
    "Guesses",
    "HeadReading",
    "HeadReadingSpec",
    "Inapplicable",
    "InputTruth",
    "Knowledge",
    "KnownInOrder",
    "KnownPairs",
    "KnownPairsSpec",
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
    "SecondaryMetric",
    "SeenAnswer",
    "SeenFrame",
    "SeenRelease",
    "SeenStep",
    "SignalSource",
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
    "WordRows",
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
