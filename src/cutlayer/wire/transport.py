"""What a transport is: one method, so that network, in-process vendor and recording look the same."""

from __future__ import annotations

from typing import Protocol

from cutlayer.wire.frame import Frame, Reply


class Transport(Protocol):
    """Carries frames to a vendor and brings answers back. Held by the gate and nobody else."""

    @property
    def peer(self) -> str:
        """Who gets the frames: the vendor's address, in one spelling."""
        ...

    def send(self, frame: Frame) -> Reply:
        """Sends one frame.

        Raises:
            VendorError: The vendor refused (with its status) or could not be reached (status 0).
            AuthError: The vendor does not accept the key.
        """
        ...

    def close(self) -> None:
        """Gives connections back."""
        ...
