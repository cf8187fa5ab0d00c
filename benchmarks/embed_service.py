"""How many embeddings a vendor serves to eight customers at once, against the same model in this process.

Run it with `python -m benchmarks.embed_service`. It starts a real vendor process with MiniLM. Customers replay payloads
of 32 privatized texts over loopback HTTP, which an SDK sent once, each in a thread and over a connection of its own;
nothing is denoised. In turns with them, this process computes the embeddings of the same payloads, one after the other,
by the vendor's own model without a server. Both have all cores, as neither works while the other does.

Ratios:
    vs_in_process: Texts a second that eight customers get together, rows of the token table, against this process.
    vs_in_process_ids: The same of token ids, the default.
    p95_ms: Milliseconds within which 95 of 100 payloads of rows were answered, waiting for the others' included.
    end_to_end: The same as `vs_in_process` of eight SDKs in processes of their own, from texts that they have
        not sent before to embeddings: reading, noise, names and ledger are on the same cores.
    joining_single_texts: How many times as many single-text queries would be answered if eight customers' were computed
        as one batch, by what a text takes to be served and computed alone, and computed with seven others.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

from benchmarks.corpora import sentences
from benchmarks.results import write
from cutlayer import vendor
from cutlayer.core import Cut, Payload, Rows, Tokens
from cutlayer.core.timing import interleaved
from cutlayer.customer import Client
from cutlayer.privacy import PrivacySpec, TextToText, Vector
from cutlayer.serving.compute import use_threads
from cutlayer.vendor import VendorSettings
from cutlayer.vendor.catalogue import Catalogue
from cutlayer.vendor.passes import compute, prepare
from cutlayer.vendor.process import VendorProcess
from cutlayer.wire import Frame, WireType, pack, routes, unpack
from cutlayer.wire.recording import Direction, read_recording
from cutlayer.wire.transports import HttpTransport, RecordingTransport

CUSTOMERS = 8
TEXTS = 32
"""Of a payload."""
SINGLES = 64
"""Texts that are asked about one by one."""
FORMS: dict[str, PrivacySpec] = {"rows": Vector(eta=100.0, clip=True), "ids": TextToText(eta=80.0)}


def record(url: str, key: str, home: Path, texts: Sequence[str], privacy: PrivacySpec) -> Payload:
    """What leaves when an SDK embeds texts.

    Args:
        url: The vendor's address.
        key: A customer's.
        home: The customer's folder.
        texts: Texts.
        privacy: How they are privatized.
    """
    with closing(RecordingTransport(HttpTransport(url, key), home / "transcript")) as recorder:
        client = Client(transport=recorder, home=home, device="cpu")
        client.embed(texts, privacy=privacy, denoiser="none", progress=None)
    sent = [
        unpack(frame.tensors())
        for frame in read_recording(home / "transcript")
        if frame.direction is Direction.UP and frame.route is routes.EMBEDDINGS
    ]
    rows = [each for each in sent if isinstance(each, Rows)]
    ids = [each for each in sent if isinstance(each, Tokens)]
    whole: Payload = Rows.concatenate(rows) if rows else Tokens.concatenate(ids)
    return whole.select(torch.randperm(len(whole), generator=torch.Generator().manual_seed(0)))


class InProcess:
    """The vendor's model in this process.

    Args:
        settings: The vendor's.
    """

    def __init__(self, settings: VendorSettings) -> None:
        catalogue = Catalogue(settings, torch.device("cpu"))
        self._part = catalogue.embeddings("starter", Cut(bottom=0))
        self._by_ids = catalogue.embeddings("starter", Cut(bottom=None))
        card = catalogue.card("starter")
        self._template, self._info = card.template, card.info
        self._threads = settings.compute_threads

    def frames(self, payload: Payload, *, texts: int) -> list[Frame]:
        """What a payload is sent in, so many texts in each."""
        tensors = partial(pack, vocab_size=self._info.vocab_size, wire_type=WireType.BF16)
        pieces = (payload.select(some) for some in torch.arange(len(payload)).split(texts))
        return [Frame(routes.EMBEDDINGS, {"model": self._info.name}, tensors=tensors(piece)) for piece in pieces]

    def ready(self, frames: Sequence[Frame]) -> list[Payload]:
        """Payloads as the model takes them."""
        return [prepare(unpack(frame.tensors), torch.device("cpu")) for frame in frames]

    @torch.no_grad()
    def embed(self, payloads: Sequence[Payload], *, ids: bool = False) -> None:
        """Embeds payloads, one after the other."""
        use_threads(self._threads)
        for payload in payloads:
            compute(self._by_ids if ids else self._part, self._template, payload, torch.device("cpu"))


class Customers:
    """Several customers who send at the same time.

    Args:
        url: The vendor's address.
        keys: One for each.
    """

    def __init__(self, url: str, keys: Sequence[str]) -> None:
        self._transports = [HttpTransport(url, key) for key in keys]
        self._pool = ThreadPoolExecutor(len(keys))

    def replay(self, frames: Sequence[Frame], waited: list[float]) -> None:
        """Sends all frames, each by one of the customers, and adds the seconds that each answer took to `waited`."""
        shares = [frames[number :: len(self._transports)] for number in range(len(self._transports))]
        for each in self._pool.map(self._send, self._transports, shares):
            waited += each

    def _send(self, transport: HttpTransport, frames: Sequence[Frame]) -> list[float]:
        waited = []
        for frame in frames:
            start = time.perf_counter()
            transport.send(frame)
            waited.append(time.perf_counter() - start)
        return waited

    def close(self) -> None:
        """Ends their connections."""
        self._pool.shutdown()
        for transport in self._transports:
            transport.close()


def embed_at_home(url: str, key: str, home: Path, texts: Sequence[str]) -> None:
    """One customer's SDK, from texts to embeddings."""
    with closing(Client(url, key, home=home)) as client:
        client.embed(texts, privacy=FORMS["rows"], denoiser="none", progress=None)


def end_to_end(url: str, keys: Sequence[str], at: Path, texts: Sequence[str]) -> float:
    """Seconds a text in which customers embed texts together, each its share in a process of its own."""
    shares = [texts[number :: len(keys)] for number in range(len(keys))]
    with ExitStack() as processes:
        spawn = get_context("spawn")
        pools = [processes.enter_context(ProcessPoolExecutor(1, mp_context=spawn)) for _ in keys]

        def embed(parts: Sequence[Sequence[str]]) -> None:
            running = [
                pool.submit(embed_at_home, url, key, at / str(number), part)
                for number, (pool, key, part) in enumerate(zip(pools, keys, parts, strict=True))
            ]
            for each in running:
                each.result()

        embed([share[:1] for share in shares])  # processes start, and the table is fetched
        start = time.perf_counter()
        embed([share[1:] for share in shares])
        return (time.perf_counter() - start) / (len(texts) - len(keys))


def main() -> None:
    """Measures and writes `benchmarks/results/embed_service.json`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--payloads", type=int, default=16, help="Of 32 texts, in a round.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, help="Compute threads of both; the machine's cores by default.")
    given = parser.parse_args()
    texts = [text for (text,) in sentences(TEXTS * given.payloads).texts]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as opened:
        at = Path(folder)
        vendor.init(at / "vendor", models=["starter"], threads=given.threads)
        keys = [vendor.keys.create(at / "vendor", f"customer-{number}") for number in range(CUSTOMERS)]
        process = opened.enter_context(VendorProcess(at / "vendor"))
        sent = {name: record(process.url, keys[0], at / name, texts, privacy) for name, privacy in FORMS.items()}
        some = sent["rows"].select(torch.arange(min(SINGLES, len(texts))))
        here = InProcess(VendorSettings.load(at / "vendor"))
        frames = {name: here.frames(payload, texts=TEXTS) for name, payload in sent.items()}
        frames |= {"single": here.frames(some, texts=1), "joined": here.frames(some, texts=CUSTOMERS)}
        customers = opened.enter_context(closing(Customers(process.url, keys)))
        waited: dict[str, list[float]] = {name: [] for name in frames}
        contenders: dict[str, Callable[[], object]] = {}
        for name, each in frames.items():
            contenders[f"{name} here"] = partial(here.embed, here.ready(each), ids=name == "ids")
            contenders[f"{name} served"] = partial(customers.replay, each, waited[name])
        seconds = interleaved(contenders, rounds=given.rounds)
        whole = end_to_end(process.url, keys, at / "homes", texts)
    counts = {name: len(some if name in ("single", "joined") else texts) for name in frames}
    per_text = {name: took / counts[name.split()[0]] for name, took in seconds.items()}
    for name, took in per_text.items():
        print(f"{name:32} {1 / took:,.0f} texts/s, {1e3 * took:.2f} ms a text")
    print(f"{'rows end to end':32} {1 / whole:,.0f} texts/s")
    saved = per_text["single here"] - per_text["joined here"]
    times = {name: 1e3 * np.array(took[len(frames[name]) :]) for name, took in waited.items()}  # but the warm-up's
    print(f"{'single text, p95':32} {np.quantile(times['single'], 0.95):.1f} ms")
    write(
        "embed_service",
        {
            "vs_in_process": per_text["rows here"] / per_text["rows served"],
            "vs_in_process_ids": per_text["ids here"] / per_text["ids served"],
            "p95_ms": float(np.quantile(times["rows"], 0.95)),
            "end_to_end": per_text["rows here"] / whole,
            "joining_single_texts": per_text["single served"] / (per_text["single served"] - saved),
        },
    )


if __name__ == "__main__":
    main()
