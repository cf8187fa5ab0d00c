"""Facts and sentences that state them: the data-to-text task of WebNLG (Gardent et al. 2017)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cutlayer.core import DataError
from cutlayer.data.dataset import Dataset, check_characters
from cutlayer.data.read import has_column, rows_with, source_name
from cutlayer.data.tables import Table

Triple = tuple[str, str, str]


@dataclass(frozen=True)
class Facts:
    """What is to be said, and how people said it.

    Attributes:
        triples: Subject, property and object of each fact, one at least.
        references: Texts that state all of them, one at least.
        category: What they are about, such as "Airport".
    """

    triples: tuple[Triple, ...]
    references: tuple[str, ...]
    category: str

    @property
    def source(self) -> str:
        """The facts as one text, " | subject : property : object" each."""
        return "".join(f" | {' : '.join(triple)}" for triple in self.triples)

    @property
    def entities(self) -> tuple[str, ...]:
        """Subjects and objects, each once, in their order."""
        return tuple(dict.fromkeys(part for triple in self.triples for part in (triple[0], triple[2])))


def read_webnlg(source: str | Path | Table) -> tuple[Facts, ...]:
    """Reads facts with all their references.

    Args:
        source: As of `read_dataset`: rows with `triples` (a list of lists of subject, property and object),
            `references` (a list of texts) and `category`; of files, JSON lines and Parquet hold lists.

    Raises:
        DataError: The file cannot be read, a column is missing, or a row holds something else.
    """
    return tuple(_facts(source))


def fact_pairs(facts: Iterable[Facts]) -> Dataset:
    """Pairs to train on: the facts as a source text, with each of their references as a target text."""
    return Dataset(tuple((each.source, reference) for each in facts for reference in each.references))


def read_fact_pairs(source: str | Path | Table) -> Dataset:
    """Reads pairs to train on, as of `fact_pairs`.

    Args:
        source: As of `read_webnlg`, or with facts that are a text already, in column `source`.

    Raises:
        DataError: As of `read_webnlg`.
    """
    if has_column(source, "triples") or not has_column(source, "source"):
        return fact_pairs(read_webnlg(source))
    pairs: list[tuple[str, str]] = []
    for number, row in enumerate(rows_with(source, ("source", "references")), start=1):
        place = f"{source_name(source)}: row {number}"
        told = row["source"]
        if not isinstance(told, str):
            raise DataError(f"{place} has no text in column 'source'.", remedy="Put the facts there.")
        references = _references(row["references"], place)
        for text in (told, *references):
            check_characters(text, place)
        pairs += [(told, reference) for reference in references]
    return Dataset(tuple(pairs))


def _facts(source: str | Path | Table) -> Iterator[Facts]:
    for number, row in enumerate(rows_with(source, ("triples", "references", "category")), start=1):
        place = f"{source_name(source)}: row {number}"
        triples, category = row["triples"], row["category"]
        if not _is_list(triples) or not all(_are_texts(triple) and len(triple) == 3 for triple in triples):
            raise DataError(
                f"{place} has no list of facts in column 'triples'.",
                remedy="Put a list of lists there, each of a subject, a property and an object.",
            )
        references = _references(row["references"], place)
        if not isinstance(category, str):
            raise DataError(f"{place} has no text in column 'category'.", remedy="Put a name there.")
        for text in (*(part for triple in triples for part in triple), *references):
            check_characters(text, place)
        yield Facts(tuple((triple[0], triple[1], triple[2]) for triple in triples), references, category)


def _references(given: Any, place: str) -> tuple[str, ...]:
    if not _are_texts(given):
        raise DataError(f"{place} has no list of texts in column 'references'.", remedy="Put one text there at least.")
    return tuple(given)


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) > 0


def _are_texts(value: Any) -> bool:
    return _is_list(value) and all(isinstance(text, str) for text in value)
