"""Fine-tune and query a vendor's language model without showing it your text."""

from typing import TYPE_CHECKING

from cutlayer.core.lazy import on_first_use

if TYPE_CHECKING:
    from cutlayer.customer import Client
    from cutlayer.privacy import CtiSpec

__all__ = ["Client", "CtiSpec"]

on_first_use(__name__)
