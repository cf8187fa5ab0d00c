"""What both services share, the vendor's and the customer's gateway: connections, the door, TLS, the compute thread."""

from typing import TYPE_CHECKING

from cutlayer.core.lazy import on_first_use

if TYPE_CHECKING:
    from cutlayer.serving.address import Address
    from cutlayer.serving.compute import ComputeThread, ThisThread
    from cutlayer.serving.door import Door
    from cutlayer.serving.listening import run
    from cutlayer.serving.refusal import Refusal

__all__ = ["Address", "ComputeThread", "Door", "Refusal", "ThisThread", "run"]

on_first_use(__name__, extra="serving")
