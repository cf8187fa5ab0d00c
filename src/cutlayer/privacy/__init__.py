"""Noise and its guarantee, where it acts on the road, and the ledger of what left.

`build_privatizer` makes a `Privatizer` from a `PrivacySpec`; a `Ledger` takes down every `Release`
before it leaves.
"""

from typing import TYPE_CHECKING

from cutlayer.core.lazy import on_first_use

if TYPE_CHECKING:
    from cutlayer.privacy.charges import Charges
    from cutlayer.privacy.context import Excerpts, Spellings
    from cutlayer.privacy.cti import UtilityImportance
    from cutlayer.privacy.distances import WorstCase, largest_distance, table_fingerprint
    from cutlayer.privacy.entries import (
        LABEL_UNIT,
        FrameEntry,
        LedgerSummary,
        MechanismSummary,
        NewFrame,
        ReleaseEntry,
        RunBytes,
        VendorSummary,
    )
    from cutlayer.privacy.labels import (
        LABELS_SENT,
        LABELS_SHOWN,
        LabelResponse,
        ReportedLabels,
        keep_probability,
    )
    from cutlayer.privacy.ledger import Ledger
    from cutlayer.privacy.mechanisms import LATTICE, MECHANISMS, DChi, Mechanism, PluggedIn, find_mechanism
    from cutlayer.privacy.neighbours import NeighbourSearch, SearchCounts
    from cutlayer.privacy.privatizers import PRIVATIZERS, Privatizer, Space, build_privatizer
    from cutlayer.privacy.randomness import generator
    from cutlayer.privacy.release import Release
    from cutlayer.privacy.seal import BrokenSeal, Seal
    from cutlayer.privacy.secret import CustomerSecret
    from cutlayer.privacy.spec import (
        LARGEST_EPSILON,
        NOISE_WINDOW,
        CtiSpec,
        NoPrivacy,
        PrivacySpec,
        TextToText,
        Vector,
        Words,
    )
    from cutlayer.privacy.vault import Vault
    from cutlayer.privacy.words import Dictionary, Grouping, Lexicon, PlainWords, Word, WordSpace

__all__ = [
    "LABELS_SENT",
    "LABELS_SHOWN",
    "LABEL_UNIT",
    "LARGEST_EPSILON",
    "LATTICE",
    "MECHANISMS",
    "NOISE_WINDOW",
    "PRIVATIZERS",
    "BrokenSeal",
    "Charges",
    "CtiSpec",
    "CustomerSecret",
    "DChi",
    "Dictionary",
    "Excerpts",
    "FrameEntry",
    "Grouping",
    "LabelResponse",
    "Ledger",
    "LedgerSummary",
    "Lexicon",
    "Mechanism",
    "MechanismSummary",
    "NeighbourSearch",
    "NewFrame",
    "NoPrivacy",
    "PlainWords",
    "PluggedIn",
    "PrivacySpec",
    "Privatizer",
    "Release",
    "ReleaseEntry",
    "ReportedLabels",
    "RunBytes",
    "Seal",
    "SearchCounts",
    "Space",
    "Spellings",
    "TextToText",
    "UtilityImportance",
    "Vault",
    "Vector",
    "VendorSummary",
    "Word",
    "WordSpace",
    "Words",
    "WorstCase",
    "build_privatizer",
    "find_mechanism",
    "generator",
    "keep_probability",
    "largest_distance",
    "table_fingerprint",
]

on_first_use(__name__)
