"""Contributing-token identification: less noise on tokens that tell classes apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final, Self

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from cutlayer.core import ConfigError, DataError, Deviation, Ragged, StorageError, Tokens
from cutlayer.privacy.layout import check_ids
from cutlayer.privacy.spec import CtiSpec

NO_GUARANTEE: Final = (
    "Under contributing-token identification eta depends on the token and, in training, on the label. Densities of two "
    "tokens then have different normalisers, so no constant bounds their ratio: no finite d_chi guarantee is claimed."
)
_FORMAT: Final = "cutlayer utility importance 1"


class UtilityImportance:
    """UI of every token for every class, and the etas that follow from it.

    With p(t | c) the frequency of token t in class c, N classes and the basic parameter eta0:

        UI(m, c) = 1/(N-1) Σ_{c' ≠ c} ln p(m | c) / p(m | c')            eq. (5)
        eta(m, c) = 2 eta0 / (1 + exp(-UI(m, c) + c0))                    eq. (6)

    Learnt from private texts and labels, so it stays at the customer like they do. What it does to
    the noise is visible all the same: the length of a noise vector alone betrays its eta.

    Ref: SAP §4.4.

    Args:
        scores: UI, `[vocabulary, labels]` float64.
        spec: The choices that the paper leaves open.
    """

    def __init__(self, scores: Tensor, spec: CtiSpec) -> None:
        self.scores = scores
        self.spec = spec

    @classmethod
    def fit(
        cls, tokens: Tokens, labels: Tensor, *, vocab_size: int, num_labels: int, spec: CtiSpec | None = None
    ) -> Self:
        """Counts tokens per class.

        Args:
            tokens: Training texts.
            labels: `[texts]` int64, 0 to `num_labels` - 1.
            vocab_size: Entries of the embedding table.
            num_labels: N of eq. (5); at least two.
            spec: `CtiSpec()` if left out.

        Raises:
            DataError: Labels or token ids out of range, fewer than two classes, or a class without texts.
        """
        spec = spec or CtiSpec()
        if num_labels < 2:
            raise DataError(
                f"Token importance compares classes; there is {num_labels}.",
                remedy="Give data with two classes or more.",
            )
        if len(labels) != len(tokens) or (len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < num_labels):
            raise DataError(
                f"Token importance needs one label in 0..{num_labels - 1} for each of the {len(tokens)} texts.",
                remedy="Check the label column.",
            )
        texts = torch.bincount(labels, minlength=num_labels)
        if not bool((texts > 0).all()):
            raise DataError(
                f"{int((texts == 0).sum())} of {num_labels} classes have no text to learn token importance from.",
                remedy="Leave out --cti or the empty classes.",
            )
        counts = torch.zeros(vocab_size * num_labels, dtype=torch.float64)
        for segment in _counted(tokens, spec):
            check_ids(segment.values, vocab_size)
            per_item = labels.repeat_interleave(segment.lengths)
            cells = segment.values * num_labels + per_item
            if spec.frequency == "texts":
                owner = torch.arange(len(tokens)).repeat_interleave(segment.lengths)
                cells = torch.unique(torch.stack([owner, cells]), dim=1)[1]
            counts += torch.bincount(cells, minlength=len(counts))
        counts = counts.view(vocab_size, num_labels)
        if spec.frequency == "tokens":
            share = (counts + spec.smoothing) / (counts.sum(0) + spec.smoothing * vocab_size)
        else:
            # a pair counts twice at most: each of its texts is one text of the class
            share = (counts + spec.smoothing) / (texts * len(_counted(tokens, spec)) + 2 * spec.smoothing)
        logs = share.log()
        # mean over the other classes of ln p(m|c) - ln p(m|c')
        scores = (num_labels * logs - logs.sum(1, keepdim=True)) / (num_labels - 1)
        return cls(scores, spec)

    @property
    def c0(self) -> float:
        """The constant of eq. (6)."""
        if self.spec.c0 is not None:
            return self.spec.c0
        return (float(self.scores.max()) + float(self.scores.min())) / 2

    def etas(self, *, eta0: float) -> Tensor:
        """eta of every token in a text of every class, `[vocabulary, labels]` float64, eq. (6).

        Args:
            eta0: The basic privacy parameter.
        """
        return 2 * eta0 * torch.sigmoid(self.scores - self.c0)

    def unlabelled_etas(self, *, eta0: float) -> Tensor:
        """eta of every token in a text whose label is not used, `[vocabulary, 1]` float64.

        Args:
            eta0: The basic privacy parameter.
        """
        return 2 * eta0 * torch.sigmoid(self._unlabelled[:, None] - self.c0)

    @property
    def _unlabelled(self) -> Tensor:
        """`[vocabulary]`, importance over classes."""
        return self.scores.amax(1) if self.spec.unlabelled == "max" else self.scores.mean(1)

    def eta(self, tokens: Tokens, labels: Tensor | None, *, eta0: float) -> tuple[Tensor, ...]:
        """eta of every token, eq. (6).

        Args:
            tokens: Texts, as ids.
            labels: `[texts]`; `None` where they are unknown, as at inference. Not used if the spec
                is class-free.
            eta0: The basic privacy parameter.

        Returns:
            For each segment `[tokens]` float64, aligned with its values.
        """
        if labels is not None and not self.spec.class_free and len(labels) != len(tokens):
            raise DataError(
                f"There are {len(labels)} labels for {len(tokens)} texts.", remedy="Give one label per text."
            )
        if labels is None or self.spec.class_free:
            per_token = self._unlabelled
        etas = []
        for segment in tokens.segments:
            check_ids(segment.values, len(self.scores))
            if labels is None or self.spec.class_free:
                score = per_token[segment.values]
            else:
                score = self.scores[segment.values, labels.repeat_interleave(segment.lengths)]
            etas.append(2 * eta0 * torch.sigmoid(score - self.c0))
        return tuple(etas)

    def to_bytes(self) -> bytes:
        """Scores and spec as one safetensors file. Private: whoever writes it lets only its owner read it."""
        metadata = {"format": _FORMAT, "spec": self.spec.model_dump_json()}
        return safetensors.torch.save({"scores": self.scores.contiguous()}, metadata)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Reads a file of what `to_bytes` gave.

        Raises:
            StorageError: The file is missing, damaged or something else.
        """
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                if metadata.get("format") != _FORMAT:
                    raise StorageError(
                        f"{path} holds no token importance.", remedy="Give the file that the training run wrote."
                    )
                return cls(file.get_tensor("scores"), CtiSpec.model_validate(json.loads(metadata["spec"])))
        except (OSError, safetensors.SafetensorError, KeyError, ValueError, ConfigError) as error:
            raise StorageError(
                f"{path} cannot be read as token importance.", remedy="Train again, or restore the file."
            ) from error

    @property
    def deviations(self) -> tuple[Deviation, ...]:
        """The choices that the paper leaves open, and what they are here."""
        spec = self.spec
        frequency = (
            "token's share of the class's tokens"
            if spec.frequency == "tokens"
            else "share of the class's texts that hold the token"
        )
        return (
            Deviation(
                what="CTI: p(t | c)",
                value_in_paper="frequency of the token in the class's samples; smoothing not stated",
                ours=f"{frequency}, {spec.smoothing:g} added to each count",
                why="Without smoothing a token missing from one class has infinite importance.",
            ),
            Deviation(
                what="CTI: c0",
                value_in_paper="(max UI + min UI) / 2; over what is not stated",
                ours=f"{self.c0:.4f}"
                + (" = (max + min) / 2 over all tokens and classes" if spec.c0 is None else ", as given"),
                why="One constant for the whole vocabulary, so that etas of different classes compare.",
            ),
            Deviation(
                what="CTI: text pairs",
                value_in_paper="not stated",
                ours="both texts count" if spec.pair == "both" else f"the {spec.pair} text counts",
                why="The label belongs to the pair.",
            ),
            Deviation(
                what="CTI: texts without label",
                value_in_paper="not stated; inference has no labels",
                ours=f"{'largest' if spec.unlabelled == 'max' else 'mean'} importance over classes"
                + (", in training too" if spec.class_free else "; in training that of the text's class"),
                why="The label must not be needed, and must not show, at inference."
                if not spec.class_free
                else "A text's noise then does not depend on its own label; the scores are fitted on all labels.",
            ),
            Deviation(
                what="CTI: guarantee",
                value_in_paper="eta d_chi-privacy is stated for the framework",
                ours="none is claimed with CTI",
                why=NO_GUARANTEE,
            ),
        )


def _counted(tokens: Tokens, spec: CtiSpec) -> tuple[Ragged, ...]:
    if len(tokens.segments) == 1 or spec.pair == "both":
        return tokens.segments
    return (tokens.segments[0 if spec.pair == "first" else 1],)
