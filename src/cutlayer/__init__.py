"""Fine-tune and query a vendor's language model without showing it your text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cutlayer.customer import Client
    from cutlayer.privacy import CtiSpec

__all__ = ["Client", "CtiSpec"]


def __getattr__(name: str) -> Any:
    # on first use, because it imports torch: the command line and the vendor must not wait for it
    if name == "Client":
        from cutlayer.customer import Client

        return Client
    if name == "CtiSpec":
        from cutlayer.privacy import CtiSpec

        return CtiSpec
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
