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
from cutlayer.customer.defaults import settle
from cutlayer.customer.derived import Privatizing, run_privatizing
from cutlayer.customer.gate import Gate, Terms
from cutlayer.customer.handout import local_archive
from cutlayer.customer.home import Home
from cutlayer.customer.plan import build_session
from cutlayer.customer.progress import Progress
from cutlayer.customer.recorded import granted
from cutlayer.customer.session import Texts
from cutlayer.customer.settings import FinetuneSpec, RunSpec
from cutlayer.customer.upload import upload
from cutlayer.models import Archive
from cutlayer.privacy import PrivacySpec
from cutlayer.wire import Frame, Reply, WireType, routes
from cutlayer.wire.messages import RecordSetInfo, RecordSetSpec
from cutlayer.wire.transports import RecordingTransport


class Shelf:
    """Takes every frame, and keeps none."""

    peer = "nobody"

    def send(self, frame: Frame) -> Reply:
        """Takes a frame; a record set is told to be empty."""
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
        replaced: By set, the share of tokens that the draw replaced; of rows 0.
        clear: By kind, how many words of all sets left as they are by the mechanism's own rule.
        knowledge: What the vendor knows of how they were made.
    """

    transcript: Transcript
    records: Mapping[str, Tensor]
    replaced: Mapping[str, float]
    clear: Mapping[str, int]
    knowledge: Knowledge

    def only(self, names: Collection[str]) -> Transcript:
        """What crossed of some sets."""
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

    Args:
        texts: Tokens, by the set's name.
        privacy: How they are privatized.
        bottom: Blocks below the cut.
        wire_type: Of rows.
        model: `starter`, a local folder or a hub id.
        home: The customer's folder.
        folder: The transcript's.
        progress: Where to show progress.
    """
    given = FinetuneSpec(privacy=privacy, cut=Cut(bottom=bottom), wire_type=wire_type)
    # nothing is trained, and a cut T5 has no dropout of its own
    spec = settle(given.model_copy(update={"training": given.training.model_copy(update={"dropout": False})}))
    archive = local_archive(home, model, spec.cut)
    road = Road(archive, home, spec, run_privatizing(archive, home, spec))
    return road.release(texts, folder=folder, progress=progress)


@dataclass(frozen=True)
class Road:
    """A customer's road for some settings, up to the shelf.

    Attributes:
        archive: What a vendor would hand out.
        home: The customer's folder.
        spec: The settings.
        privatizing: How texts are read and privatized.
    """

    archive: Archive
    home: Home
    spec: RunSpec
    privatizing: Privatizing

    def release(self, texts: Mapping[str, Tokens], *, folder: Path, progress: Progress) -> Released:
        """Releases sets of texts, by name, as those that a run trains on.

        Args:
            texts: As they were read: tokens, or names of words.
            folder: The transcript's; what it held is removed.
            progress: Where to show progress.
        """
        archive, home, spec = self.archive, self.home, self.spec
        session = build_session(archive, home, spec, self.privatizing, None, torch.device("cpu"))
        shutil.rmtree(folder, ignore_errors=True)
        recorder = RecordingTransport(Shelf(), folder)
        width = 1 if archive.table is None else archive.table.shape[1]
        gate = Gate(recorder, home.ledger, Terms(folder.name, archive.manifest.vocab_size, width, spec.wire_type))
        plain = spec.reconstruction
        records, replaced = {}, {}
        for name, tokens in texts.items():
            kind = RecordSetSpec(
                model="local",
                cut=spec.cut,
                form=spec.form,
                segments=len(tokens.segments),
                wire_type=spec.wire_type,
                plain_tokens=plain.plain_tokens,
                plain_sequences=plain.plain_sequences,
            )
            done = upload(
                session,
                gate,
                Texts(tokens, trained=True),
                record_set=identifier(name),
                spec=kind,
                progress=progress,
                stage=f"release {name}",
            )
            records[name] = torch.tensor(done.record_of)
            replaced[name] = (done.replaced or 0) / max(1, done.tokens)
        recorder.close()
        return Released(
            Transcript.recorded(folder), records, replaced, clear=gate.clear(), knowledge=granted(spec, archive)
        )
