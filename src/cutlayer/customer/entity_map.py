"""What stands for the words of entities, sealed, and what puts them back into answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Self

from pydantic import ValidationError

from cutlayer.core import DataError
from cutlayer.customer.home import Home, write_bytes
from cutlayer.customer.stand_ins import Spellings, put_back
from cutlayer.privacy import BrokenSeal, CustomerSecret, Seal, Words


@dataclass(frozen=True)
class EntityMap:
    """What stands for the words of a job's entities: private, and kept in the customer's folder.

    Attributes:
        job: Names the texts that were protected together.
        words: The word of an entity, as it is put back, by what stands for it; and entities that are written otherwise
            than word by word.
        drawn: How many words of entities were drawn; singular and plural are one.
        replaced: How many of them became another word.
        numbered: How many have a number, since two were drawn alike or the texts have the drawn word anyway.
        mentions: How many words of the texts others stand for.
        clear: By kind, how many words stand outside entities and left as they are.
        own: Of each text, or row of texts, what it writes otherwise than `words` do.
        privacy: How words were drawn, as JSON; `None` of a job of before this was kept.
        vocabulary: Digest of the customer's own file of words that might come out; `None` where there was none.
    """

    job: str
    words: Mapping[str, str] = field(repr=False)
    drawn: int
    replaced: int
    numbered: int
    mentions: int
    clear: Mapping[str, int]
    own: Sequence[Mapping[str, str]] = field(default=(), repr=False)
    privacy: Mapping[str, Any] | None = None
    vocabulary: str | None = None

    def restore(self, answer: str, *, row: int | None = None, job: str | None = None) -> str:
        """An answer with the entities' own words in it.

        What an answer copies is put back, whatever stands around it. A word that the model writes by itself and that
        stands for an entity's is put back, too.

        Args:
            answer: What was generated from protected texts.
            row: Which of the texts, or rows of texts, is answered, from 0 on: entities are written as there. Where it
                is not known, as in the first text that has them: "Muller" where others have "Müller".
            job: The job of these texts, where it is known.

        Raises:
            DataError: It is another job than this map's, or has no such row.
        """
        if job is not None and job != self.job:
            raise DataError(
                f"This is the map of job {self.job}, and the answer is to texts of job {job}.",
                remedy="Load the map of that job: `Client.entity_map(job)`, or `cutlayer restore`.",
            )
        if row is None:
            return put_back(answer, self._everywhere)
        if not 0 <= row < len(self.own):
            raise DataError(
                f"Job {self.job} has {len(self.own)} texts, and the answer is to number {row}, counted from 0.",
                remedy="Give the number that the text had when it was protected.",
            )
        return put_back(answer, Spellings(self.own[row]), self._everywhere)

    @property
    def drawn_as(self) -> Words:
        """How words were drawn.

        Raises:
            DataError: The map does not say, since another version made it; or the vocabulary was written anew.
        """
        anew = "Protect the texts anew."
        try:
            privacy = Words.model_validate(self.privacy)
        except ValidationError:
            raise DataError(f"The map of job {self.job} does not say how its words were drawn.", remedy=anew) from None
        if privacy.vocabulary_digest != self.vocabulary:
            raise DataError(f"{privacy.vocabulary} holds other words than when job {self.job} drew.", remedy=anew)
        return privacy

    @cached_property
    def _everywhere(self) -> Spellings:
        return Spellings(self.words)

    @property
    def clear_share(self) -> float:
        """Share of all words that left as they are."""
        clear = sum(self.clear.values())
        return clear / max(1, clear + self.mentions)

    def save(self, home: Home) -> None:
        """Saves it encrypted in the customer's folder, readable by its owner only."""
        told = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "job"}
        sealed = _seal(home.secret).close(json.dumps(told, ensure_ascii=False).encode(), name=self.job.encode())
        write_bytes(home.entities(self.job), sealed)

    @classmethod
    def load(cls, home: Home, job: str) -> Self:
        """The map of a job.

        Raises:
            ConfigError: This is no job's name.
            DataError: There is none of this job here, or the file is another one's.
        """
        path = home.entities(job)
        if not path.exists():
            raise DataError(
                f"There is no map of job {job} in {home.path}.",
                remedy="Name the folder (--home, CUTLAYER_HOME) in which the texts were protected, and their job.",
            )
        try:
            told = json.loads(_seal(home.secret).open(path.read_bytes(), name=job.encode()))
        except BrokenSeal:
            raise DataError(
                f"{path} is the map of another job, or was changed.",
                remedy="Restore it from a backup, or protect anew.",
            ) from None
        return cls(job=job, **told)


def _seal(secret: CustomerSecret) -> Seal:
    return Seal(secret.derive("entity maps"))
