"""What an audit asks of texts that left without a training: through a frozen bottom, or for their embeddings.

What leaves of a text through a frozen bottom does not depend on what is learnt above it, so nothing needs to be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cutlayer.attacks import Knowledge, LengthTruth, RowTruth, TokenTruth, Transcript
from cutlayer.core import Tokens
from cutlayer.customer.attacker import AttackerSpec
from cutlayer.customer.connection import Connection
from cutlayer.customer.defaults import settle
from cutlayer.customer.derived import Privatizing, noise_secret, run_order, run_privatizing
from cutlayer.customer.embed import Embeddings
from cutlayer.customer.embedding import NONE
from cutlayer.customer.evidence import (
    Evidence,
    WordEvidence,
    attribute_truths,
    known_and_hidden,
    places_in,
    singles,
)
from cutlayer.customer.handout import local_archive
from cutlayer.customer.home import Home
from cutlayer.customer.progress import Progress
from cutlayer.customer.recorded import granted
from cutlayer.customer.recorded_words import WordNumbers, word_stream
from cutlayer.customer.releases import Road, identifier
from cutlayer.customer.results import ReleaseResult
from cutlayer.customer.settings import FinetuneSpec, RunSpec
from cutlayer.data import Dataset, tokenise
from cutlayer.models import Archive

_SET = "train"


@dataclass(frozen=True)
class Sent:
    """Texts that left, in the order in which they did.

    Attributes:
        spec: The settings.
        archive: What the vendor hands out.
        privatizing: How they were read and privatized.
        texts: Themselves.
        tokens: As they were read: tokens, or names of words.
        transcript: What the vendor saw.
        knowledge: What it knows beside.
        records: By record set, `[n]` int64: the record that holds each text; or none.
        steps: By the source of a release and its number, `[rows]` int64: each row's text; or none.
        result: What is to be told of them.
    """

    spec: RunSpec
    archive: Archive
    privatizing: Privatizing
    texts: Dataset
    tokens: Tokens
    transcript: Transcript
    knowledge: Knowledge
    records: Mapping[str, Tensor]
    steps: Mapping[tuple[str, int], Tensor]
    result: ReleaseResult

    def evidence(self, given: Dataset, attacker: AttackerSpec) -> Evidence:
        """What an audit asks of them.

        Args:
            given: The data that they are of.
            attacker: What the attacker is taken to know of the texts.

        Raises:
            ConfigError: The data has no column that the attacker asks for, or the attacker knows all texts.
        """
        archive, knowledge = self.archive, self.knowledge
        known, hidden = known_and_hidden(self.texts, self.tokens, attacker)
        own = known.nonzero()[:, 0]
        released, words = self.tokens, None
        truth = TokenTruth(self.tokens, records=self.records, steps=self.steps)
        search = knowledge.search
        if self.spec.privacy.mechanism == "words":
            numbers, transcript, truth = self._in_words()
            of_words = numbers.knowledge(knowledge)
            words = WordEvidence(numbers, transcript, of_words, known=singles(truth.tokens.select(own)))
            search = of_words.search
            content = archive.template.max_content(self.texts.segments, self.spec.training.max_length)
            released = tokenise(self.texts, archive.tokenizer, max_content=content)
        truth = replace(truth, search=search)
        where: dict[str, Any] = {"records": self.records, "steps": self.steps}
        places = places_in(given, self.texts)
        lengths = torch.stack([side.lengths for side in truth.tokens.segments]).sum(0)
        return Evidence(
            spec=self.spec,
            transcript=self.transcript,
            knowledge=knowledge,
            tokens=truth if bool(hidden.all()) else truth.only(hidden),
            trained=None,
            said=None,
            labels=None,
            classes=None,
            attributes=attribute_truths(self.texts, known, attacker, **where),
            lengths=LengthTruth(lengths, records=truth.records, steps=truth.steps),
            listed=RowTruth(torch.tensor(places), len(given), **where),
            known=singles(released.select(own)),
            known_records=int(known.sum()),
            label_names=(),
            texts=self.texts,
            rows=places,
            archive=archive,
            result=self.result,
            words=words,
        )

    def _in_words(self) -> tuple[WordNumbers, Transcript, TokenTruth]:
        """Numbers of words, what left word by word, and what the words were."""
        numbers = WordNumbers(self.privatizing)
        if self.records:
            ((name, records),) = self.records.items()
            source = f"record-set/{name}"
        else:  # each text was asked about once, in this order
            ((source, _), *_) = self.steps
            name, records = identifier(source), torch.arange(len(self.tokens))
        transcript, truth = word_stream(
            numbers,
            self.tokens,
            records,
            record_set=name,
            archive=self.archive,
            seen=self.transcript,
            source=source,
        )
        return numbers, transcript, truth


def released_evidence(
    texts: Dataset, given: FinetuneSpec, home: Home, folder: Path, progress: Progress, *, attacker: AttackerSpec
) -> Evidence:
    """What a run through a frozen bottom shows of its texts, whatever is learnt above it: without learning anything.

    Args:
        texts: The customer's.
        given: The settings; of the model the source.
        home: The customer's folder.
        folder: The transcript's.
        progress: Where to show progress.
        attacker: What the attacker is taken to know of the texts.

    Raises:
        ConfigError: See `Sent.evidence`.
    """
    spec = settle(given)
    archive = local_archive(home, spec.model, spec.cut)
    road = Road(archive, home, spec, run_privatizing(archive, home, spec))
    # others may hold a list of people in the file's order
    order = run_order(spec.seed, spec.privacy, noise_secret(home, spec.unsafe_noise_seed))
    ordered = texts.select(order.of(texts.texts))
    content = archive.template.behind(spec.tuning.positions).max_content(texts.segments, spec.training.max_length)
    tokens = road.privatizing.reading.read(ordered, max_content=content)
    released = road.release({_SET: tokens}, folder=folder, progress=progress)
    privatizer = road.privatizing.training
    result = ReleaseResult(
        replaced=released.replaced[_SET] if spec.privacy.mechanism != "vector" else None,
        clear_words=released.clear,
        guarantee=privatizer.guarantee,
        largest_distance=privatizer.largest_distance(),
    )
    sent = Sent(
        spec=spec,
        archive=archive,
        privatizing=road.privatizing,
        texts=ordered,
        tokens=tokens,
        transcript=released.transcript,
        knowledge=released.knowledge,
        records={identifier(_SET): released.records[_SET]},
        steps={},
        result=result,
    )
    return sent.evidence(texts, attacker)


def embedded_evidence(
    texts: Dataset,
    given: FinetuneSpec,
    connection: Connection,
    folder: Path,
    progress: Progress,
    *,
    attacker: AttackerSpec,
) -> Evidence:
    """What texts show of which embeddings are asked.

    Args:
        texts: The customer's; none was embedded before.
        given: The settings.
        connection: The way to the vendor, which records what crosses.
        folder: Of the transcript.
        progress: Where to show progress.
        attacker: What the attacker is taken to know of the texts.

    Raises:
        ConfigError: See `Sent.evidence` and `Embeddings.open`.
        DataError: See `Embeddings.read_all`.
    """
    road = Embeddings.open(connection, given, progress, denoiser=NONE)
    asked = road.ask(road.read_all(texts), texts.texts, progress)
    link, spec, privatizer = asked.link, road.spec, road.session.privatizer
    # equal texts leave once
    left = torch.cat(link.queries)
    rows = torch.arange(len(left)).split([len(query) for query in link.queries])
    result = ReleaseResult(
        objective="embed",
        replaced=None if link.replaced is None else link.replaced / asked.tokens.total,
        clear_words=link.gate.clear(),
        guarantee=privatizer.guarantee,
        largest_distance=privatizer.largest_distance(),
    )
    sent = Sent(
        spec=spec,
        archive=road.archive,
        privatizing=road.privatizing,
        texts=texts.select(asked.order[left].tolist()),
        tokens=asked.tokens.select(left),
        transcript=Transcript.recorded(folder),
        knowledge=granted(spec, road.archive),
        records={},
        steps={(f"model/{spec.model}/embeddings", number): texts_of for number, texts_of in enumerate(rows)},
        result=result,
    )
    return sent.evidence(texts, attacker)
