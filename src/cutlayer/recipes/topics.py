"""Topics as labels, for texts whose topic nobody wrote down: the main topic that a topic model finds in each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from pydantic import Field
from sklearn.decomposition import LatentDirichletAllocation
from sklearn.feature_extraction.text import CountVectorizer

from cutlayer.core import DataError, Spec
from cutlayer.data import Dataset

_WORD = r"[a-z]{3,}"


class Topics(Spec):
    """How topics are found.

    Attributes:
        count: Topics of the model.
        share: A text whose main topic makes less of it than this has no label.
        least_texts: Words that fewer training texts hold are not looked at.
        most_texts: Words that a greater share of the training texts hold are not looked at.
        passes: Passes over the training texts.
    """

    count: int = Field(default=10, ge=2)
    share: float = Field(default=0.5, gt=0, lt=1)
    least_texts: int = Field(default=20, ge=1)
    most_texts: float = Field(default=0.1, gt=0, le=1)
    passes: int = Field(default=10, ge=1)


class TopicLabels(Spec):
    """The main topic of each text, or `None` where none is main enough.

    Attributes:
        of: A line for each data set.
        texts: Digest of the texts of each data set.
    """

    of: tuple[tuple[str | None, ...], ...]
    texts: tuple[str, ...]

    def apply(self, datasets: Sequence[Dataset]) -> list[Dataset]:
        """The rows that have a topic, with the topic as their label.

        Raises:
            DataError: The data sets are not those that were labelled.
        """
        if tuple(_digest(dataset) for dataset in datasets) != self.texts:
            raise DataError(
                "The topics that were kept belong to other files.", remedy="Use a new folder for this experiment."
            )
        labelled = []
        for dataset, topics in zip(datasets, self.of, strict=True):
            found = [(row, topic) for row, topic in enumerate(topics) if topic is not None]
            labelled.append(
                replace(dataset.select([row for row, _ in found]), labels=tuple(topic for _, topic in found))
            )
        return labelled


def find_topics(datasets: Sequence[Dataset], topics: Topics, *, seed: int) -> TopicLabels:
    """Fits latent Dirichlet allocation to the first data set, the training texts, and labels all of them.

    The same seed gives the same topics.

    Raises:
        DataError: The training texts have too few words in common.
    """
    texts = [[" ".join(row) for row in dataset.texts] for dataset in datasets]
    words = CountVectorizer(
        stop_words="english", token_pattern=_WORD, min_df=topics.least_texts, max_df=topics.most_texts
    )
    try:
        counts = words.fit_transform(texts[0])
    except ValueError as error:
        raise DataError(
            f"No word of the {len(texts[0])} training texts stands in at least {topics.least_texts} of them and in "
            f"{topics.most_texts:.0%} at most, so they have no topics.",
            remedy="Give more texts, or lower `least_texts`.",
        ) from error
    model = LatentDirichletAllocation(topics.count, max_iter=topics.passes, random_state=seed).fit(counts)
    return TopicLabels(
        of=tuple(_main_topics(model.transform(words.transform(part)), topics.share) for part in texts),
        texts=tuple(_digest(dataset) for dataset in datasets),
    )


def _digest(dataset: Dataset) -> str:
    return hashlib.sha256(json.dumps(dataset.texts).encode()).hexdigest()


def _main_topics(shares: np.ndarray[tuple[int, int], np.dtype[np.float64]], least: float) -> tuple[str | None, ...]:
    return tuple(
        f"topic {main}" if row[main] >= least else None for row, main in zip(shares, shares.argmax(1), strict=True)
    )
