"""A gateway in this process, and what applications ask of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import httpx
import numpy as np
from numpy.typing import NDArray
from starlette.applications import Starlette

from cutlayer.customer import Client, FinetuneSpec
from cutlayer.customer.embedding import NONE
from cutlayer.data import Dataset
from cutlayer.gateway import GatewaySettings, create_app, make_key
from cutlayer.privacy import PrivacySpec, TextToText


@dataclass(frozen=True)
class Asking:
    """An application with the gateway's key."""

    app: Starlette
    key: str

    def send(self, method: str, path: str, **given: Any) -> httpx.Response:
        (found,) = asyncio.run(self._send([(method, path, given)]))
        return found

    def embed(self, texts: Any, **more: Any) -> httpx.Response:
        headers = more.pop("headers", {})
        return self.send("POST", "/v1/embeddings", json={"input": texts, "model": "tiny"} | more, headers=headers)

    def together(self, texts: Sequence[Any]) -> list[httpx.Response]:
        """Several requests at once."""
        asked = [("POST", "/v1/embeddings", {"json": {"input": each, "model": "tiny"}}) for each in texts]
        return asyncio.run(self._send(asked))

    async def _send(self, asked: Sequence[tuple[str, str, dict[str, Any]]]) -> list[httpx.Response]:
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway", headers=headers) as client:
            return await asyncio.gather(*(client.request(method, path, **given) for method, path, given in asked))


@contextmanager
def gateway_of(
    client: Client, privacy: PrivacySpec | None = None, *, denoiser: str = NONE, spec: Any = None, **settings: Any
) -> Iterator[Asking]:
    """A gateway of a customer."""
    key = make_key(client.home)
    given = FinetuneSpec(privacy=privacy or TextToText(eta=6), **(spec or {}))
    app = create_app(client, given, GatewaySettings(**settings), denoiser=denoiser)
    try:
        yield Asking(app, key)
    finally:
        app.state.gateway.compute.close(lambda: None)


def values_of(answer: httpx.Response) -> list[list[float]]:
    """The embeddings of an answer."""
    assert answer.status_code == 200, answer.text
    content = answer.json()
    assert [each["index"] for each in content["data"]] == list(range(len(content["data"])))
    return [each["embedding"] for each in content["data"]]


Embed: TypeAlias = Callable[[Client, Dataset, PrivacySpec, str], NDArray[np.float32]]
"""Embeds texts, with a denoiser (`auto`) or without one (`none`)."""


def by_sdk(client: Client, texts: Dataset, privacy: PrivacySpec, denoiser: str) -> NDArray[np.float32]:
    """Embeddings by a call of the SDK's."""
    return client.embed(texts, privacy=privacy, denoiser=denoiser, progress=None).values


def by_gateway(client: Client, texts: Dataset, privacy: PrivacySpec, denoiser: str) -> NDArray[np.float32]:
    """Embeddings by one request to a gateway."""
    with gateway_of(client, privacy, denoiser=denoiser) as asking:
        return np.array(values_of(asking.embed([text for (text,) in texts.texts])), dtype=np.float32)
