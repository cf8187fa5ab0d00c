"""Ways to carry frames: a network, a vendor in the same process, and either of them recorded."""

from typing import TYPE_CHECKING

from cutlayer.core.lazy import on_first_use

if TYPE_CHECKING:
    from cutlayer.wire.transports.http import HttpTransport
    from cutlayer.wire.transports.local import LocalTransport
    from cutlayer.wire.transports.recording import RecordingTransport

__all__ = ["HttpTransport", "LocalTransport", "RecordingTransport"]

on_first_use(__name__)
