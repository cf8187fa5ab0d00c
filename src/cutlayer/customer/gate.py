"""The one door: nothing leaves the customer except through `Gate.send`.

The gate is the only holder of the transport (design, promise 1). It builds the frame itself: release
tensors are packed from a `Release`, which only a privatizer makes; there is no argument through which
raw ids, labels or text could enter. The ledger entry is written and committed before the frame's
bytes exist, so an entry that was never closed means "may have left", and no bytes can leave unnamed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cutlayer import wire
from cutlayer.core import VendorError
from cutlayer.privacy import NewFrame
from cutlayer.wire import Frame, Message, Reply, Route, Shape, Transport, WireType
from cutlayer.wire.messages import JobSpec
from cutlayer.wire.routes import LABELS_PUT

if TYPE_CHECKING:
    from torch import Tensor

    from cutlayer.privacy import Ledger, Release, ReportedLabels, RunBytes


@dataclass(frozen=True)
class Terms:
    """What a gate writes on its frames, and what it holds them to.

    Attributes:
        run: The run that the frames belong to, for the ledger.
        vocab_size: Size of the model's vocabulary, which sets the width of token ids.
        width: Elements of a row of the upper boundary; 0 where the gate sends nothing that is answered with rows.
        wire_type: Element type of boundary rows.
        budget: Largest sum of eta that any one text may be charged, or `None` for no limit.
        label_budget: Largest sum of epsilon that any one label may be charged, or `None` for no limit.
        unsafe: Whether noise comes from a seed that was given, which the ledger notes on every frame.
        model: What the vendor calls the model, for the ledger.
    """

    run: str = ""
    vocab_size: int = 0
    width: int = 0
    wire_type: WireType = WireType.BF16
    budget: float | None = None
    label_budget: float | None = None
    unsafe: bool = False
    model: str = ""


@dataclass(frozen=True)
class StepTensors:
    """What goes up of a step beside a release: numbers of what the vendor holds, and gradients.

    Attributes:
        records: `[texts]`, numbers of records that the vendor holds.
        gradient: d loss / d output of the step before, in the output's shape and element type.
        gradient_stats: What an update that both parties take together needs of the customer's gradients, by role.
        parents: `[sequences]`, which sequence each one goes on from.
        search: `[4]`, how the vendor is to choose tokens.
    """

    records: Tensor | None = None
    gradient: Tensor | None = None
    gradient_stats: Mapping[str, Tensor] | None = None
    parents: Tensor | None = None
    search: Tensor | None = None

    def by_role(self) -> dict[str, Tensor]:
        """The tensors of a frame."""
        tensors: dict[str, Tensor] = {}
        if self.records is not None:
            tensors["records"] = self.records.to(wire.smallest_index(int(self.records.max())))
        if self.gradient is not None:
            tensors["gradient"] = self.gradient
        tensors |= self.gradient_stats or {}
        if self.parents is not None:
            tensors["parents"] = self.parents.to(wire.smallest_index(len(self.parents)))
        if self.search is not None:
            tensors["search"] = self.search
        return tensors


NO_TENSORS = StepTensors()


def _reported(route: Route, labels: ReportedLabels | None) -> dict[str, Tensor]:
    """Labels of a frame, by role: of the one kind of frame that has them."""
    if route is not LABELS_PUT or labels is None:
        return {}
    return {"labels": labels.labels.to(wire.smallest_index(int(labels.labels.max())))}


def _told(control: Message | None) -> dict[str, int]:
    """By kind, how many words a message tells: of labels, where the model writes them."""
    words = control.label_words if isinstance(control, JobSpec) else None
    return {} if words is None else {"words of a label": len(words)}


class Gate:
    """Releases frames to one vendor and writes the ledger first.

    Args:
        transport: The way to the vendor; nobody else holds it.
        ledger: The customer's record of what left.
        terms: What the frames belong to, and their limits.
    """

    def __init__(self, transport: Transport, ledger: Ledger, terms: Terms | None = None) -> None:
        self._transport = transport
        self._ledger = ledger
        self._terms = terms or Terms()

    @property
    def peer(self) -> str:
        """The vendor's address, as the ledger has it."""
        return self._transport.peer

    @property
    def width(self) -> int:
        """Elements of a row of the upper boundary."""
        return self._terms.width

    def send(
        self,
        route: Route,
        where: Mapping[str, str | int] | None = None,
        *,
        control: Message | None = None,
        release: Release | None = None,
        tensors: StepTensors = NO_TENSORS,
        labels: ReportedLabels | None = None,
        shapes: Mapping[str, Shape] | None = None,
        size: int | None = None,
    ) -> Reply:
        """Writes the ledger, then sends one frame and returns the answer.

        Args:
            route: What kind of message.
            where: Values of the route's placeholders.
            control: The JSON body, for routes that have one.
            release: What a privatizer returned, to be sent whole.
            tensors: What goes up beside it.
            labels: What gradients are computed from in frames after this one, for the ledger alone; only
                `record-set.labels` carries them.
            shapes: What is told of the answer's tensors, as in `Frame`.
            size: Bytes of the answer, of a file.

        Raises:
            BudgetError: The release would exceed a text's budget, or a label's; nothing was written or sent.
            VendorError: The vendor refused or could not be reached.
        """
        frame = Frame(
            route,
            where or {},
            control,
            self._tensors(release, tensors) | _reported(route, labels),
            shapes=shapes or {},
            size=size,
        )
        entry = self._ledger.open_frame(
            NewFrame(
                run=self._terms.run,
                vendor=self._transport.peer,
                route=route.name,
                where=frame.where,
                payload_bytes={str(category): size for category, size in frame.payload_bytes().items()},
                unsafe=self._terms.unsafe,
                model=self._terms.model,
                clear=_told(control),
            ),
            release=release,
            budget=None if release is not None and release.public else self._terms.budget,
            labels=labels,
            label_budget=self._terms.label_budget,
        )
        try:
            reply = self._transport.send(frame)
        except VendorError as error:
            self._ledger.close_frame(
                entry,
                uplink_bytes=error.uplink_bytes,
                downlink_bytes=error.downlink_bytes,
                status=error.status,
                digest=b"",
            )
            raise
        self._ledger.close_frame(
            entry,
            uplink_bytes=reply.uplink_bytes,
            downlink_bytes=reply.downlink_bytes,
            status=200,
            digest=reply.request_digest,
        )
        return reply

    def digest(self, release: Release) -> str:
        """SHA-256 of the body that `release` would travel in; nothing is sent."""
        return hashlib.sha256(wire.encode_tensors(self._tensors(release))).hexdigest()

    def _tensors(self, release: Release | None, beside: StepTensors = NO_TENSORS) -> dict[str, Tensor]:
        """All tensors of a frame, by role."""
        tensors: dict[str, Tensor] = {}
        if release is not None:
            terms = self._terms
            tensors |= wire.pack(release.payload, vocab_size=terms.vocab_size, wire_type=terms.wire_type)
        return tensors | beside.by_role()

    def spent(self) -> RunBytes:
        """What this run sent and received so far, over all its tries."""
        return self._ledger.spent(self._terms.run)

    def clear(self) -> dict[str, int]:
        """By kind, how many words this run released as they are, over all its tries."""
        return self._ledger.clear(self._terms.run)

    def looks(self) -> int:
        """The largest number of draws of one text that this run sent so far, over all its tries."""
        return self._ledger.looks(self._terms.run)

    def close(self) -> None:
        """Gives the transport's connections back."""
        self._transport.close()
