"""An account at a vendor with what runs and queries need beside it: a device, and a door for each run."""

from __future__ import annotations

from pathlib import Path

import torch

from cutlayer.core import ConfigError, Fault
from cutlayer.customer.account import Account
from cutlayer.customer.gate import Gate, Terms
from cutlayer.customer.handout import Offer
from cutlayer.customer.settings import RunSpec
from cutlayer.wire import Transport


class Connection(Account):
    """A customer's way to one vendor.

    Args:
        vendor: The vendor's address; `CUTLAYER_VENDOR` where it is left out.
        api_key: The tenant's key; `CUTLAYER_API_KEY` where it is left out.
        home: The customer's folder; `CUTLAYER_HOME`, else `~/.cutlayer`, where it is left out.
        ca_cert: The certificate to trust, for a vendor that signed its own; `CUTLAYER_CA_CERT`.
        transport: Another way to the vendor, for an app in this process; then no address is needed.
        device: Where bottoms are computed: `cpu`, `cuda`, or `auto` for a GPU if there is one.
    """

    def __init__(
        self,
        vendor: str | None = None,
        api_key: str | None = None,
        *,
        home: Path | None = None,
        ca_cert: Path | None = None,
        transport: Transport | None = None,
        device: str = "auto",
    ) -> None:
        super().__init__(vendor, api_key, home=home, ca_cert=ca_cert, transport=transport)
        self.device = choose_device(device)

    def gate_of(
        self, run: str, spec: RunSpec, offer: Offer, *, transport: Transport | None = None, labels: bool = False
    ) -> Gate:
        """The door of one run.

        Args:
            run: Its name in the ledger.
            spec: Its settings.
            offer: The vendor's model.
            transport: A transport around this connection's own, which records.
            labels: Whether labels are charged, too.
        """
        terms = Terms(
            run=run,
            vocab_size=offer.model.vocab_size,
            width=offer.model.width,
            wire_type=spec.wire_type,
            budget=spec.privacy_budget,
            label_budget=spec.label_budget if labels else None,
            unsafe=spec.unsafe_noise_seed is not None,
            model=offer.model.name,
        )
        return Gate(self.transport if transport is None else transport, self.home.ledger, terms)


def choose_device(name: str) -> torch.device:
    """The device of that name; `auto` is a GPU if there is one.

    Args:
        name: `auto`, `cpu` or `cuda`.

    Raises:
        ConfigError: There is no such device here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda") or (name == "cuda" and not torch.cuda.is_available()):
        raise ConfigError([Fault("device", name, "must be auto, cpu, or cuda where there is a GPU")])
    return torch.device(name)
