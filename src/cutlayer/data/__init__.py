"""Reading labelled texts, numbering their labels, turning them into tokens; and an embedded sample corpus."""

from typing import TYPE_CHECKING

from cutlayer.core.lazy import on_first_use

if TYPE_CHECKING:
    from cutlayer.data.bins import bin_columns
    from cutlayer.data.dataset import Dataset
    from cutlayer.data.labels import LabelNames
    from cutlayer.data.read import TextFile, has_column, read_dataset
    from cutlayer.data.sample import sample_path
    from cutlayer.data.tables import Table, is_table
    from cutlayer.data.tagger import UNIVERSAL_TAGS, TaggedTexts, Tagger, load_tagger
    from cutlayer.data.tokenise import UNCUT, tokenise
    from cutlayer.data.vocabulary import WordCounts, load_word_counts
    from cutlayer.data.webnlg import Facts, fact_pairs, read_fact_pairs, read_webnlg
    from cutlayer.data.words import NO_TAG, tokenise_words

__all__ = [
    "NO_TAG",
    "UNCUT",
    "UNIVERSAL_TAGS",
    "Dataset",
    "Facts",
    "LabelNames",
    "Table",
    "TaggedTexts",
    "Tagger",
    "TextFile",
    "WordCounts",
    "bin_columns",
    "fact_pairs",
    "has_column",
    "is_table",
    "load_tagger",
    "load_word_counts",
    "read_dataset",
    "read_fact_pairs",
    "read_webnlg",
    "sample_path",
    "tokenise",
    "tokenise_words",
]

on_first_use(__name__)
