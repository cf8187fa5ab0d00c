"""Settings of a leak report: what is asked, for how long, and what is made of the answers."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from cutlayer.core.setting import Shown, setting
from cutlayer.core.spec import SettingsSpec
from cutlayer.customer.attacker import ATTACKER

REPORT: Final = "The report"
"""The topic of what is made of the answers."""


class AuditObjective(StrEnum):
    """What texts leave for."""

    CLASSIFICATION = "classification"
    """To train a classifier; without labels nothing is trained."""
    LM = "lm"
    """To train a language model."""
    SEQ2SEQ = "seq2seq"
    """To train an encoder-decoder."""
    EMBED = "embed"
    """For embeddings of the frozen model: nothing is trained."""


class PublicText(SettingsSpec):
    """Text that an attacker has of its own."""

    public: str | None = setting(
        None,
        help="Text that the attacker may have.",
        shown=Shown(ATTACKER, metavar="FILE", default="what the embedded language model writes"),
    )
    public_column: str = setting(
        "text", help="The column of the text in that file.", shown=Shown(ATTACKER, metavar="NAME")
    )


class AuditSpec(PublicText):
    """What is asked, for how long, and what is made of the answers."""

    objective: AuditObjective = setting(
        AuditObjective.CLASSIFICATION,
        help="What the texts leave for: to train a classifier, (lm) a language model or (seq2seq) an encoder-decoder; "
        "or (embed) for embeddings of the model as it is, for which nothing is trained and no labels are needed.",
        shown=Shown(REPORT, common=True),
    )
    time_limit: float | None = setting(
        None,
        help="Time for all of it, the run that is attacked included, for example 5m. Attacks are run more weakly for "
        "it, and what does not fit is left out, as the report says.",
        shown=Shown(ATTACKER, unit="seconds", metavar="TIME", default="as long as it takes"),
        gt=0,
    )
    only: tuple[str, ...] = setting(
        (),
        help="Run this attack alone.",
        shown=Shown(ATTACKER, flags=("--attack",), metavar="NAME", default="all that apply"),
    )
    frontier: tuple[Annotated[float, Field(gt=0)], ...] = setting(
        (),
        help="Another eta to compare with: how useful the model is under it, on a fifth of the texts that is held out, "
        "and what quick attacks read.",
        shown=Shown(REPORT, common=True, metavar="NUMBER|inf"),
    )
    denoisers: tuple[Path, ...] = setting(
        (),
        help="With objective embed and --label-column: a denoiser that `vendor denoiser train` made, or a control "
        "(--without-answer), whose embeddings are measured by what a small network learns of the labels.",
        shown=Shown(REPORT, source="SnD, A.5", metavar="DIR"),
    )
    examples: int = setting(8, help="Texts on page one; 0 for none.", shown=Shown(REPORT, unit="texts"), ge=0)
