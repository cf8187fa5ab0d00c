"""Running the gateway."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from starlette.applications import Starlette

from cutlayer.customer import Client, FinetuneSpec
from cutlayer.customer.embed import settle_embedding
from cutlayer.customer.embedding import AUTO
from cutlayer.gateway.app import create_app
from cutlayer.gateway.settings import GatewaySettings
from cutlayer.serving.address import Address
from cutlayer.serving.compute import ThisThread
from cutlayer.serving.listening import run

DEFAULT_PORT = 8378


def serve(
    client: Client,
    spec: FinetuneSpec,
    settings: GatewaySettings,
    address: Address,
    *,
    denoiser: str = AUTO,
    on_listening: Callable[[str], object] = lambda url: None,
) -> None:
    """Runs the gateway until it is told to stop.

    Args:
        client: The customer: its connection, folder and device.
        spec: How texts are privatized; its model is each request's.
        settings: What applications may ask.
        address: Where to listen.
        denoiser: What takes the noise out, where there is any; as of `EmbeddingSettings`.
        on_listening: Told the gateway's address once requests reach it.

    Raises:
        ConfigError: Settings that cannot be used, no key, no vendor's address, no denoiser; TLS is missing, or the port
            is taken.
        VendorError: The vendor does not answer.
    """
    settle_embedding(spec)
    address.check(remedy="Give --tls-cert and --tls-key, or listen on 127.0.0.1.")
    _ = client.transport  # what is missing of the connection is said now, and not to applications
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")

    def make(compute: ThisThread) -> Starlette:
        app = create_app(client, spec, settings, denoiser=denoiser, executor=compute)
        app.state.gateway.open()
        return app

    run(make, address, port=DEFAULT_PORT, threads=torch.get_num_threads(), on_listening=on_listening)
