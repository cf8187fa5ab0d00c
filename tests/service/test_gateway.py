"""A gateway and a vendor in processes of their own, asked by the clients that applications have."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from langchain_openai import OpenAIEmbeddings

from cutlayer import Client, vendor
from cutlayer.customer.home import existing_ledger
from cutlayer.wire import routes
from tests.service.gateways import Running, running_gateway
from tests.service.process import VendorProcess
from tests.unit.cli.conftest import Run

TEXTS = [f"w{number} w{number + 1} w{number % 5}" for number in range(40)]
SETTINGS = ("--eta", "6", "--denoiser", "none", "--alias", "text-embedding-3-small=tiny")


@pytest.fixture
def gateway(at_vendor: VendorProcess, tmp_path: Path) -> Iterator[Running]:
    with running_gateway(tmp_path / "home", *SETTINGS) as found:
        yield found


@pytest.fixture
def wanted(at_vendor: VendorProcess, tmp_path: Path, gateway: Running) -> np.ndarray[Any, Any]:
    """What the SDK has for the same texts, by the same secret."""
    with closing(Client(home=tmp_path / "home")) as client:
        return client.embed(TEXTS, eta=6, denoiser="none", progress=None).values


def array(answer: Any) -> np.ndarray[Any, Any]:
    return np.array([each.embedding for each in answer.data], dtype=np.float32)


def test_the_official_client_is_unchanged(gateway: Running, wanted: np.ndarray[Any, Any]) -> None:
    with openai.OpenAI(**gateway.known) as client:
        # without a format the client asks for base64, and decodes it
        found = client.embeddings.create(model="text-embedding-3-small", input=TEXTS)
        assert np.array_equal(array(found), wanted)
        found = client.embeddings.create(model="text-embedding-3-small", input=TEXTS, encoding_format="float")
        assert np.array_equal(array(found), wanted)
        assert np.array_equal(array(client.embeddings.create(model="tiny", input=TEXTS[3])), wanted[3:4])
        assert {each.id for each in client.models.list()} == {"tiny", "text-embedding-3-small"}
        with pytest.raises(openai.NotFoundError) as caught:
            client.embeddings.create(model="gpt", input="w1")
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
        with pytest.raises(openai.BadRequestError, match="check_embedding_ctx_length"):
            client.embeddings.create(model="tiny", input=[[1, 2]])
    other = openai.OpenAI(**gateway.known | {"api_key": "other"})
    with other, pytest.raises(openai.AuthenticationError):
        other.embeddings.create(model="tiny", input="w1")

    async def several() -> list[Any]:
        async with openai.AsyncOpenAI(**gateway.known) as client:
            return await asyncio.gather(
                *(client.embeddings.create(model="tiny", input=text, user="somebody") for text in TEXTS)
            )

    assert np.array_equal(np.concatenate([array(each) for each in asyncio.run(several())]), wanted)
    told = gateway.log.read_text()
    assert "embeddings 200" in told
    assert "w1" not in told
    assert "somebody" not in told


def test_applications_elsewhere_ask_over_tls(at_vendor: VendorProcess, tmp_path: Path, tiny_model: Path) -> None:
    made = vendor.init(tmp_path / "certificates", models=[str(tiny_model)], threads=1, tls_host="127.0.0.1")
    tls = ("--host", "127.0.0.1", "--tls-cert", str(made.certificate), "--tls-key", str(made.private_key))
    with running_gateway(tmp_path / "home", *SETTINGS, *tls) as gateway:
        assert gateway.url.startswith("https://")
        trusted = openai.DefaultHttpxClient(verify=ssl.create_default_context(cafile=str(made.certificate)))
        with openai.OpenAI(**gateway.known, http_client=trusted) as client:
            assert len(client.embeddings.create(model="tiny", input=TEXTS).data) == len(TEXTS)
        with openai.OpenAI(**gateway.known, max_retries=0) as client, pytest.raises(openai.APIConnectionError):
            client.embeddings.create(model="tiny", input=TEXTS)


def test_langchain_asks_as_it_does_elsewhere(gateway: Running, wanted: np.ndarray[Any, Any]) -> None:
    embeddings = OpenAIEmbeddings(model="text-embedding-3-small", check_embedding_ctx_length=False, **gateway.known)
    assert np.allclose(embeddings.embed_documents(TEXTS), wanted, atol=1e-7)
    assert np.allclose(embeddings.embed_query(TEXTS[0]), wanted[0], atol=1e-7)


def test_requests_at_once_leave_in_fewer_frames(gateway: Running, tmp_path: Path) -> None:
    with openai.OpenAI(**gateway.known) as client, ThreadPoolExecutor(16) as threads:
        found = list(threads.map(lambda text: client.embeddings.create(model="tiny", input=text), TEXTS[:16]))
    assert len(found) == 16
    frames = [each for each in existing_ledger(tmp_path / "home").frames() if each.route == routes.EMBEDDINGS.name]
    assert sum(each.texts for each in frames) == 16
    assert len(frames) < 16


@pytest.mark.slow  # its tries take a while; without processes, tests/unit/gateway/test_absence.py
def test_a_vendor_that_goes_and_comes_back(gateway: Running, at_vendor: VendorProcess) -> None:
    with openai.OpenAI(max_retries=0, timeout=120, **gateway.known) as client:
        client.embeddings.create(model="tiny", input=TEXTS[0])
        at_vendor.kill()
        with pytest.raises(openai.InternalServerError) as caught:
            client.embeddings.create(model="tiny", input=TEXTS[1])
        assert (caught.value.status_code, caught.value.code) == (503, "vendor_unavailable")
        at_vendor.start()
        time.sleep(int(caught.value.response.headers["retry-after"]))  # as clients do that may try again
        assert len(client.embeddings.create(model="tiny", input=TEXTS[1]).data) == 1


def test_what_keeps_it_from_starting_is_said_at_once(
    at_vendor: VendorProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setenv("CUTLAYER_HOME", str(tmp_path / "home"))

    def refused(*arguments: str) -> tuple[int, str]:
        ran = run("gateway", *arguments, "--port", "0")
        return ran.code, ran.err

    code, said = refused("--eta", "6", "--denoiser", "none")
    assert code == 3
    assert "cutlayer gateway key" in said
    assert run("gateway", "key").code == 0
    assert refused()[0] == 2  # eta has no default
    assert refused("--eta", "6")[0] == 3  # the vendor has no denoiser
    assert refused("--eta", "6", "--denoiser", "none", "--alias", "a=b")[0] == 3
    assert refused("--eta", "6", "--denoiser", "none", "--clip")[0] == 3
    assert "TLS" in refused("--eta", "6", "--denoiser", "none", "--host", "0.0.0.0")[1]
    assert refused("--eta", "6", "--denoiser", "none", "--tls-cert", "none.pem")[0] == 3
    assert refused("--eta", "6", "--denoiser", "none", "--api-key", "wrong")[0] == 8
    at_vendor.kill()
    assert refused("--eta", "6", "--denoiser", "none")[0] == 7
