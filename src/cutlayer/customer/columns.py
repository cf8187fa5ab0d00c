"""Where texts and labels stand in a table."""

from __future__ import annotations

from typing import Final

from cutlayer.core.setting import Shown, setting
from cutlayer.core.spec import SettingsSpec
from cutlayer.customer.settings import Objective

TEXTS: Final = "Texts"
"""The topic of these settings."""
JOB: Final = "job"
"""The column of texts that `protect` wrote: by which map their entities are put back."""
ROW: Final = "row"
"""The column beside it: which of the job's texts it is, from 0 on, as `EntityMap.restore` takes it."""


class DataSpec(SettingsSpec):
    """Where texts and labels stand in a table, and what a label column may look like."""

    text_column: str = setting(
        "text",
        help="The column that holds the text; of an encoder-decoder, the source text.",
        shown=Shown(TEXTS, common=True, metavar="NAME"),
    )
    text_pair_column: str | None = setting(
        None,
        help="Classifiers: the column of the second text, for pairs.",
        shown=Shown(TEXTS, metavar="NAME"),
    )
    label_column: str = setting(
        "label",
        help="Classifiers: the column that holds the label.",
        shown=Shown(TEXTS, common=True, metavar="NAME"),
    )
    target_column: str = setting(
        "target",
        help="Encoder-decoders: the column of the text to be written. Of a decoder (lm), where it is given, texts are "
        "pairs, and this one is learnt as what follows the source text.",
        shown=Shown(TEXTS, metavar="NAME"),
    )
    facts: bool = setting(
        False,
        help="Rows are facts and texts that state them, as WebNLG's: columns triples, references and category; or "
        "source and references, as `protect --webnlg` writes them. Each reference is learnt as the target text of all "
        "facts.",
        shown=Shown(TEXTS),
    )
    many_labels: bool = setting(
        False,
        help="Classifiers: take a label column that looks like no label, with more than 200 values or another one in "
        "each row.",
        shown=Shown(TEXTS),
    )

    def second_column(self, objective: Objective) -> str | None:
        """The column of each row's second text, by what is learnt; `None` where rows have one text."""
        if objective is Objective.CLASSIFICATION:
            return self.text_pair_column
        written = objective is Objective.SEQ2SEQ or self.facts or "target_column" in self.model_fields_set
        return self.target_column if written else None
