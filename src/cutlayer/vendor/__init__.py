"""The vendor: a service that trains and queries the top of a model for tenants whose text it never sees."""

from typing import TYPE_CHECKING

from cutlayer.core.lazy import on_first_use

if TYPE_CHECKING:
    from cutlayer.vendor import keys
    from cutlayer.vendor.app import create_app
    from cutlayer.vendor.serve import DEFAULT_PORT, init, serve
    from cutlayer.vendor.settings import Limits, VendorSettings, WarmUpSpec
    from cutlayer.vendor.warm_up import Warmed, warm_up

__all__ = [
    "DEFAULT_PORT",
    "Limits",
    "VendorSettings",
    "WarmUpSpec",
    "Warmed",
    "create_app",
    "init",
    "keys",
    "serve",
    "warm_up",
]

on_first_use(__name__, extra="vendor")
