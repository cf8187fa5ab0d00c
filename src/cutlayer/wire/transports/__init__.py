"""Ways to carry frames: a network, a vendor in the same process, and either of them recorded."""

from cutlayer.wire.transports.http import HttpTransport
from cutlayer.wire.transports.local import LocalTransport
from cutlayer.wire.transports.recording import RecordingTransport

__all__ = ["HttpTransport", "LocalTransport", "RecordingTransport"]
