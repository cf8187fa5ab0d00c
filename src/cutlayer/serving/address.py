"""Where a service listens."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

from cutlayer.core import ConfigError, Fault
from cutlayer.core.setting import Shown, setting
from cutlayer.core.spec import SettingsSpec
from cutlayer.wire.transports.http import is_loopback, reason

LISTENING: Final = "Address"
"""The topic of these settings."""


class Address(SettingsSpec):
    """Where a service listens, and with which certificate."""

    host: str = setting(
        "127.0.0.1", help="Address to listen on. Off loopback, TLS is required.", shown=Shown(LISTENING, metavar="HOST")
    )
    port: int | None = setting(
        None, help="Port to listen on; 0 for one that the system chooses.", shown=Shown(LISTENING), ge=0, le=65535
    )
    tls_cert: Path | None = setting(None, help="PEM certificate.", shown=Shown(LISTENING, metavar="FILE"))
    tls_key: Path | None = setting(None, help="The certificate's private key.", shown=Shown(LISTENING, metavar="FILE"))

    def check(self, *, remedy: str) -> None:
        """Refuses what would show keys and texts to a network.

        Args:
            remedy: How a certificate is given.

        Raises:
            ConfigError: TLS is missing, or its files cannot be used.
        """
        files = self.tls_cert, self.tls_key
        if any(file is not None for file in files):
            told = ", ".join(str(file) for file in files if file is not None)
            if self.tls_cert is None or self.tls_key is None:
                raise ConfigError([Fault("tls", told, "must be two PEM files: a certificate and its private key")])
            try:
                # a key that needs a password would have its reader ask for one where nobody sees it
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.tls_cert, self.tls_key, lambda: "")
            except (OSError, ValueError) as error:
                allowed = "must be a PEM certificate and its own private key, without a password, both readable"
                raise ConfigError([Fault("tls", told, f"{allowed} ({reason(error)})")]) from None
        elif not is_loopback(self.host):
            raise ConfigError(
                f"Serving {self.host} without TLS would show keys and what is sent to the network.", remedy=remedy
            )
