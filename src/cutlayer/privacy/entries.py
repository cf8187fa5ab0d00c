"""What the ledger tells: frames, the texts in them, and sums over both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

LABEL_UNIT: Final = "epsilon per label"
"""What labels are charged in; never added to an eta."""


@dataclass(frozen=True)
class NewFrame:
    """A frame that is about to be made.

    Attributes:
        run: What it belongs to.
        vendor: Who gets it.
        route: What kind of message.
        where: Values of the path's placeholders.
        payload_bytes: Bytes of its tensors, by what they are spent on.
        unsafe: Whether noise comes from a seed.
        model: What the vendor calls the model.
        clear: By kind, how many words it tells as they are beside what a release has.
    """

    run: str
    vendor: str
    route: str
    where: Mapping[str, str | int]
    payload_bytes: Mapping[str, int]
    unsafe: bool
    model: str = ""
    clear: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class FrameEntry:
    """One frame.

    Attributes:
        entry: Its number.
        opened: When it was written down, before its bytes existed.
        run: What it belongs to: a fine-tuning run's name, or what else was asked of the vendor.
        vendor: Who got it: the address that it was sent to. Empty in entries of a ledger's first version.
        route: What kind of message.
        where: Values of the path's placeholders.
        payload_bytes: Bytes of its tensors, by what they were spent on.
        texts: How many texts it releases.
        clear: By kind, how many words a privatizer's own rule left as they are, and how many label words were sent.
        unsafe: Whether noise came from a seed.
        closed: When its answer came; `None`: it may have left.
        uplink_bytes: Bytes on the wire, envelope included.
        downlink_bytes: Bytes of the answer.
        status: HTTP status of the answer.
        digest: Of the bytes sent.
    """

    entry: int
    opened: datetime
    run: str
    vendor: str
    route: str
    where: Mapping[str, str | int]
    payload_bytes: Mapping[str, int]
    texts: int
    clear: Mapping[str, int]
    unsafe: bool
    closed: datetime | None
    uplink_bytes: int | None
    downlink_bytes: int | None
    status: int | None
    digest: bytes | None


@dataclass(frozen=True)
class ReleaseEntry:
    """One text in one frame. Texts are named by keyed hashes only; what left of them has a plain one.

    Attributes:
        entry: The frame.
        position: The text's place in it.
        time: When the frame was opened.
        identity: Names the bytes.
        draw: Names the noise in them.
        content: Names the text, as far as it was released, by how it reads.
        digest: Hash, without a key, of the text's part of the payload: for comparison with what was recorded elsewhere.
        mechanism: How it was privatized.
        unit: What `eta` is counted in.
        eta: The largest eta of any of its tokens.
        tokens: How many tokens it has, or words where words are drawn.
        payload_bytes: Its share of the frame's release bytes.
        charged: Whether any token of it was charged for a draw that had not left before.
    """

    entry: int
    position: int
    time: datetime
    identity: bytes
    draw: bytes
    content: bytes
    digest: bytes
    mechanism: str
    unit: str
    eta: float
    tokens: int
    payload_bytes: int
    charged: bool


@dataclass(frozen=True)
class MechanismSummary:
    """Everything that one mechanism released in one unit.

    Attributes:
        mechanism: Its name.
        unit: What etas are counted in.
        texts: Different texts.
        releases: Texts sent, repetitions included.
        draws: Looks that the vendor got, all texts together.
        tokens: Tokens sent, or words where words are drawn, repetitions included.
        payload_bytes: Release bytes sent.
        largest_eta: Of any draw.
        largest_spent: Largest sum over one text's draws in this unit, other mechanisms included.
    """

    mechanism: str
    unit: str
    texts: int
    releases: int
    draws: int
    tokens: int
    payload_bytes: int
    largest_eta: float
    largest_spent: float


@dataclass(frozen=True)
class VendorSummary:
    """What went to one vendor.

    Attributes:
        vendor: Its address.
        frames: Number of frames.
        texts: Different texts.
        uplink_bytes: Bytes on the wire, envelopes included; of frames that may have left, their tensors alone.
    """

    vendor: str
    frames: int
    texts: int
    uplink_bytes: int


@dataclass(frozen=True)
class LedgerSummary:
    """What left altogether.

    Attributes:
        frames: Number of frames.
        may_have_left: Frames of which no answer is known.
        unsafe: Frames whose noise came from a seed.
        uplink_bytes: Bytes on the wire, envelopes included; of frames that may have left, their tensors alone.
        downlink_bytes: Bytes of answers.
        payload_bytes: Bytes of tensors, by what they were spent on, of all frames.
        clear: By kind, how many words left as they are by a privatizer's own rule, repetitions included.
        vendors: One line per vendor.
        mechanisms: One line per mechanism and unit.
        labels: The same of labels that gradients were computed from; their etas are epsilons.
        looks: By model, the largest number of draws of one text, whatever the units: a vendor that changes its table
            by a bit begins a unit of its own. Models that a ledger's first versions did not note are under "".
    """

    frames: int
    may_have_left: int
    unsafe: int
    uplink_bytes: int
    downlink_bytes: int
    payload_bytes: Mapping[str, int]
    vendors: tuple[VendorSummary, ...]
    mechanisms: tuple[MechanismSummary, ...]
    labels: tuple[MechanismSummary, ...] = ()
    clear: Mapping[str, int] = field(default_factory=dict)
    looks: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class RunBytes:
    """What one run sent and received.

    Attributes:
        uplink: Bytes sent, envelopes included, by what they were spent on.
        downlink: Bytes received.
        tokens: Content tokens in the run's distinct releases.
    """

    uplink: Mapping[str, int]
    downlink: int
    tokens: int
