"""The one door: nothing leaves the customer except through `Gate.send`.

The gate is the only holder of the transport (design, promise 1). It builds the frame itself: release
tensors are packed from a `Release`, which only a privatizer makes; there is no argument through which
raw ids, labels or text could enter. The ledger entry is written and committed before the frame's
bytes exist, so an entry that was never closed means "may have left", and no bytes can leave unnamed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from cutlayer import wire
from cutlayer.core import VendorError
from cutlayer.privacy import NewFrame
from cutlayer.wire import Frame, Message, Reply, Route, Shape, Transport, WireType

if TYPE_CHECKING:
    from torch import Tensor

    from cutlayer.privacy import Ledger, Release, ReportedLabels, RunBytes


class Gate:
    """Releases frames to one vendor and writes the ledger first.

    Args:
        transport: The way to the vendor; nobody else holds it.
        ledger: The customer's record of what left.
        run: The run that the frames belong to, for the ledger.
        vocab_size: Size of the model's vocabulary, which sets the width of token ids.
        width: Elements of a row of the upper boundary; 0 where the gate sends nothing that is answered with rows.
        wire_type: Element type of boundary rows.
        budget: Largest sum of eta that any one text may be charged, or `None` for no limit.
        label_budget: Largest sum of epsilon that any one label may be charged, or `None` for no limit.
        unsafe: Whether noise comes from a seed that was given, which the ledger notes on every frame.
        model: What the vendor calls the model, for the ledger.
    """

    def __init__(
        self,
        transport: Transport,
        ledger: Ledger,
        *,
        run: str = "",
        vocab_size: int = 0,
        width: int = 0,
        wire_type: WireType = WireType.BF16,
        budget: float | None = None,
        label_budget: float | None = None,
        unsafe: bool = False,
        model: str = "",
    ) -> None:
        self._transport = transport
        self._ledger = ledger
        self._run = run
        self._vocab_size = vocab_size
        self.width = width
        self._wire_type = wire_type
        self._budget = budget
        self._label_budget = label_budget
        self._unsafe = unsafe
        self._model = model

    def send(
        self,
        route: Route,
        where: Mapping[str, str | int] | None = None,
        *,
        control: Message | None = None,
        release: Release | None = None,
        records: Tensor | None = None,
        gradient: Tensor | None = None,
        told: Mapping[str, Tensor] | None = None,
        parents: Tensor | None = None,
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
            records: `[texts]`, numbers of records that the vendor holds.
            gradient: d loss / d output of the step before, in the output's shape and element type.
            told: What an update that both parties take together needs of the customer's gradients, by role.
            parents: `[sequences]`, which sequence each one goes on from.
            labels: What gradients are computed from in frames after this one. For the ledger: no frame has a field
                for a label.
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
            self._tensors(release, records, gradient, told, parents),
            shapes=shapes or {},
            size=size,
        )
        entry = self._ledger.open_frame(
            NewFrame(
                run=self._run,
                vendor=self._transport.peer,
                route=route.name,
                where=frame.where,
                payload_bytes={str(category): size for category, size in frame.payload_bytes().items()},
                unsafe=self._unsafe,
                model=self._model,
            ),
            release=release,
            budget=None if release is not None and release.public else self._budget,
            labels=labels,
            label_budget=self._label_budget,
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

    def _tensors(
        self,
        release: Release | None,
        records: Tensor | None = None,
        gradient: Tensor | None = None,
        told: Mapping[str, Tensor] | None = None,
        parents: Tensor | None = None,
    ) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = {}
        if release is not None:
            tensors |= wire.pack(release.payload, vocab_size=self._vocab_size, wire_type=self._wire_type)
        if records is not None:
            tensors["records"] = records.to(wire.smallest_index(int(records.max())))
        if gradient is not None:
            tensors["gradient"] = gradient
        tensors |= told or {}
        if parents is not None:
            tensors["parents"] = parents.to(wire.smallest_index(len(parents)))
        return tensors

    def spent(self) -> RunBytes:
        """What this run sent and received so far, over all its tries."""
        return self._ledger.spent(self._run)

    def looks(self) -> int:
        """The largest number of draws of one text that this run sent so far, over all its tries."""
        return self._ledger.looks(self._run)

    def close(self) -> None:
        """Gives the transport's connections back."""
        self._transport.close()
