"""The customer's gateway: embeddings behind the HTTP API that applications speak already, privatized on the way."""

from typing import TYPE_CHECKING

from cutlayer.core.lazy import on_first_use

if TYPE_CHECKING:
    from cutlayer.gateway.app import create_app
    from cutlayer.gateway.key import make_key
    from cutlayer.gateway.serve import DEFAULT_PORT, serve
    from cutlayer.gateway.settings import GatewaySettings

__all__ = ["DEFAULT_PORT", "GatewaySettings", "create_app", "make_key", "serve"]

on_first_use(__name__, extra="gateway")
