"""What would cross: texts released by a customer's own road, through its gate, to a shelf in the place of a vendor.

No attack here asks a vendor anything, so none is started. Everything before it is the road itself: session, privatizer,
ledger, gate, frames.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from cutlayer.attacks import Knowledge, Transcript
from cutlayer.core import Cut, Tokens
from cutlayer.customer import FinetuneSpec, Gate, Home, Progress, Texts
from cutlayer.customer.defaults import settle
from cutlayer.customer.derived import run_privatizing
from cutlayer.customer.gate import Terms
from cutlayer.customer.handout import local_archive
from cutlayer.customer.plan import build_session
from cutlayer.customer.recorded import granted
from cutlayer.customer.upload import upload
from cutlayer.privacy import PrivacySpec
from cutlayer.wire import Frame, Reply, WireType, routes
from cutlayer.wire.messages import RecordSetInfo, RecordSetSpec
from cutlayer.wire.transports import RecordingTransport


class Shelf:
    """Takes every frame, and keeps none."""

    peer = "nobody"

    def send(self, frame: Frame) -> Reply:
        if frame.route is not routes.RECORD_SET_PUT or not isinstance(frame.control, RecordSetSpec):
            return Reply()
        name = str(frame.where["record_set"])
        return Reply(control=RecordSetInfo(record_set=name, spec=frame.control, shards=(), sealed=False, records=0))

    def close(self) -> None:
        """Nothing is open."""


@dataclass(frozen=True)
class Released:
    """Sets of texts as they crossed at one eta.

    Attributes:
        transcript: All of them.
        records: By set, `[n]` int64: the record that holds each text.
        replaced: By set, the share of tokens that the draw replaced.
        knowledge: What the vendor knows of how they were made.
    """

    transcript: Transcript
    records: Mapping[str, Tensor]
    replaced: Mapping[str, float]
    knowledge: Knowledge

    def only(self, names: Collection[str]) -> Transcript:
        wanted = {identifier(name) for name in names}
        return Transcript(lambda: (frame for frame in self.transcript if frame.where.get("record_set") in wanted))


def identifier(name: str) -> str:
    """A record set's identifier on the wire."""
    return hashlib.blake2b(name.encode(), digest_size=16).hexdigest()


def release(
    texts: Mapping[str, Tokens],
    privacy: PrivacySpec,
    *,
    bottom: int = 0,
    wire_type: WireType = WireType.BF16,
    model: str,
    home: Home,
    folder: Path,
    progress: Progress,
) -> Released:
    """Releases sets of texts, by name, as a run with a frozen bottom does.

    The secret of the customer's folder fixes the noise. The transcript is recorded in `folder`; what that held is
    removed.
    """
    spec = settle(FinetuneSpec(privacy=privacy, cut=Cut(bottom=bottom), wire_type=wire_type))
    archive = local_archive(home, model, spec.cut)
    session = build_session(archive, home, spec, run_privatizing(archive, home, spec), None, torch.device("cpu"))
    shutil.rmtree(folder, ignore_errors=True)
    recorder = RecordingTransport(Shelf(), folder)
    width = 1 if archive.table is None else archive.table.shape[1]
    terms = Terms(run=folder.name, vocab_size=archive.manifest.vocab_size, width=width, wire_type=wire_type)
    gate = Gate(recorder, home.ledger, terms)
    kind = RecordSetSpec(model="local", cut=spec.cut, form=spec.form, segments=1, wire_type=wire_type)
    records, replaced = {}, {}
    for name, tokens in texts.items():
        done = upload(
            session, gate, Texts(tokens), record_set=identifier(name), spec=kind,
            progress=progress, stage=f"release {name}",
        )  # fmt: skip
        records[name] = torch.tensor(done.record_of)
        replaced[name] = (done.replaced or 0) / max(1, done.tokens)
    recorder.close()
    return Released(Transcript.recorded(folder), records, replaced, granted(spec, archive))
