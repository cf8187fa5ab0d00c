"""Everything that may cross between customer and vendor, and how."""

from typing import TYPE_CHECKING

from cutlayer.core.lazy import on_first_use

if TYPE_CHECKING:
    from cutlayer.wire import routes
    from cutlayer.wire.frame import Frame, Reply, Shape
    from cutlayer.wire.header import FrameError, read_header
    from cutlayer.wire.messages import Form, Message, Precision, WireType
    from cutlayer.wire.routes import ROLES, ROUTES, Category, Role, Route
    from cutlayer.wire.tensors import decode_tensors, encode_tensors, id_type, pack, smallest_index, unpack
    from cutlayer.wire.transport import Transport

__all__ = [
    "ROLES",
    "ROUTES",
    "Category",
    "Form",
    "Frame",
    "FrameError",
    "Message",
    "Precision",
    "Reply",
    "Role",
    "Route",
    "Shape",
    "Transport",
    "WireType",
    "decode_tensors",
    "encode_tensors",
    "id_type",
    "pack",
    "read_header",
    "routes",
    "smallest_index",
    "unpack",
]

on_first_use(__name__)
