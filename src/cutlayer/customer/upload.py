"""Release once: every text is privatized, sent to the vendor's store, and named by number after.

A record is a release identity, so a sentence that stands twice in a file is one record. Shards are
made in the order of the texts and hold the same bytes each time they are made (the draw of an
identity never changes), so a broken upload is resumed by making them again and sending those that
the vendor does not hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from cutlayer.core import PrivacyError, Tokens
from cutlayer.customer.gate import Gate, StepTensors
from cutlayer.customer.link import Stored
from cutlayer.customer.progress import Progress
from cutlayer.customer.session import Session, Texts
from cutlayer.privacy import ReportedLabels
from cutlayer.wire import Form, routes
from cutlayer.wire.messages import RecordSetInfo, RecordSetSpec, SealRequest

BLOCK_TOKENS = 2**16
"""Tokens that are privatized, and sent as one shard, at a time: bounds memory for any corpus."""
BLOCK_BYTES = 4 * 2**20
"""The same bound for boundary rows, which are wider."""


@dataclass
class Uploaded:
    """A corpus at the vendor.

    Attributes:
        record_of: For each text, the number of the record that holds its release.
        first_text: For each record, the first text that it holds.
        segment_lengths: Positions of all texts `[n, segments]`, special tokens included, in pieces.
        tokens: Content tokens of all texts.
        released: Content tokens of all records (repeated texts counted once).
        replaced: How many of `tokens` were replaced by another token; `None` where rows of noise
            were released.
    """

    record_of: list[int] = field(default_factory=list)
    first_text: list[int] = field(default_factory=list)
    segment_lengths: list[Tensor] = field(default_factory=list)
    tokens: int = 0
    released: int = 0
    replaced: int | None = 0

    def stored(self, first_record: int) -> Stored:
        """The texts, by number over a job's sets, this set's first record being `first_record`."""
        return Stored(torch.tensor(self.record_of) + first_record, torch.cat(self.segment_lengths))


def blocks(tokens: Tokens, size: int) -> Iterator[torch.Tensor]:
    """Consecutive texts' numbers, `[block]` int64, at most `size` tokens (and at least one text) at a time."""
    ends = torch.stack([segment.lengths for segment in tokens.segments]).sum(0).cumsum(0)
    start = 0
    while start < len(tokens):
        done = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(torch.searchsorted(ends, done + size, right=True)))
        yield torch.arange(start, stop)
        start = stop


def upload(
    session: Session,
    gate: Gate,
    texts: Texts,
    *,
    record_set: str,
    spec: RecordSetSpec,
    progress: Progress,
    stage: str,
    labels: ReportedLabels | None = None,
) -> Uploaded:
    """Releases texts into a record set, or finishes a broken upload of it.

    Args:
        session: The road; its first half makes the releases.
        gate: The door.
        texts: What to release.
        record_set: The set's identifier, the same at every try.
        spec: What the records are.
        progress: Where to show progress.
        stage: What to call it there.
        labels: What is to lie beside them at the vendor; `None` where labels stay here.

    Raises:
        PrivacyError: The vendor holds other bytes for these texts than those drawn now.
    """
    where: dict[str, str | int] = {"record_set": record_set}
    info = gate.send(routes.RECORD_SET_PUT, where, control=spec).expect(RecordSetInfo)
    held = {shard.number: shard.sha256 for shard in info.shards}
    size = BLOCK_TOKENS if spec.form is Form.IDS else max(1, BLOCK_BYTES // (4 * gate.width))
    uploaded = Uploaded()
    number_of: dict[tuple[bytes, int], int] = {}
    shard = 0
    for chosen in blocks(texts.tokens, size):
        some = texts.select(chosen)
        release = session.release(some).release
        new = []
        for place, identity in enumerate(release.identities):
            text = int(chosen[place])
            key = identity, text if texts.apart else 0
            if key not in number_of:
                number_of[key] = len(number_of)
                uploaded.first_text.append(text)
                new.append(place)
            uploaded.record_of.append(number_of[key])
        uploaded.segment_lengths.append(session.segment_lengths(some))
        uploaded.tokens += int(release.tokens.sum())
        if release.replaced is None or uploaded.replaced is None:
            uploaded.replaced = None
        else:
            uploaded.replaced += int(release.replaced.sum())
        if new:
            fresh = release.select(torch.tensor(new))
            uploaded.released += int(fresh.tokens.sum())
            if shard not in held:
                gate.send(routes.SHARD_PUT, where | {"shard": shard}, release=fresh)
            elif held[shard] != gate.digest(fresh):
                raise PrivacyError(
                    f"Shard {shard} at the vendor holds other bytes than this customer's secret draws for these "
                    "texts: sending them would be a second look.",
                    remedy="Restore the customer's secret, or start a new run with a new ledger.",
                )
            shard += 1
        progress.update(stage, int(chosen[-1]) + 1, len(texts))
    if not info.sealed and labels is not None:
        records = torch.tensor(uploaded.record_of)
        gate.send(routes.LABELS_PUT, where, tensors=StepTensors(records), labels=_in_no_order(labels, records))
    if not info.sealed:
        gate.send(routes.SEAL, where, control=SealRequest(shards=shard, records=len(number_of)))
    return uploaded


def _in_no_order(labels: ReportedLabels, records: Tensor) -> ReportedLabels:
    """Labels, those of one record sorted: in clear they may differ, and their order would be that of the file."""
    by_label = labels.labels.argsort(stable=True)
    places = by_label[records[by_label].argsort(stable=True)]
    slots = records.argsort(stable=True)
    found = torch.empty_like(labels.labels)
    found[slots] = labels.labels[places]
    return replace(labels, labels=found)
