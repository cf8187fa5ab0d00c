"""What the gateway costs beside the SDK, and what joining requests gains.

Run it with `python -m benchmarks.gateway`. It starts a real vendor and a real gateway, each in a process of its own, on
MiniLM, and asks for embeddings of single texts by the official client and by the SDK, in turns.

Figures:
    gateway_ms: Milliseconds that a single text takes more by the gateway than by the SDK, the median of each.
    joined: How many times faster 16 requests are answered at once than one by one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

from openai import OpenAI

from benchmarks.corpora import sentences
from benchmarks.results import write
from cutlayer import Client, vendor
from cutlayer.core.timing import interleaved
from cutlayer.vendor.process import VendorProcess

ETA = 80
AT_ONCE = 16


@contextmanager
def gateway(home: Path, url: str, key: str) -> Iterator[OpenAI]:
    """A client of a gateway in a process of its own."""
    environment = os.environ | {"CUTLAYER_API_KEY": key, "CUTLAYER_HOME": str(home)}
    command = [sys.executable, "-m", "cutlayer.cli", "gateway"]
    made = json.loads(subprocess.check_output([*command, "key", "--json"], env=environment))
    command += [
        "--vendor",
        url,
        "--eta",
        str(ETA),
        "--denoiser",
        "none",
        "--port",
        "0",
        "--json",
        "--until-stdin-closes",
    ]
    with (home / "gateway.log").open("w") as log:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
    if process.stdin is None or process.stdout is None:
        raise TypeError("it has pipes")
    try:
        told = json.loads(process.stdout.readline())
        with OpenAI(base_url=told["base_url"], api_key=made["key"]) as client:
            yield client
    finally:
        process.stdin.close()
        process.wait(timeout=60)
        process.stdout.close()


def main() -> None:
    """Measures and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    texts = (text for (text,) in itertools.cycle(sentences(4000).texts))  # each leaves for the first time
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(AT_ONCE) as threads:
        data = Path(folder) / "vendor"
        vendor.init(data)
        key = vendor.keys.create(data, "customer")
        with VendorProcess(data) as process, closing(Client(process.url, key, home=Path(folder) / "sdk")) as sdk:
            (Path(folder) / "home").mkdir()
            with gateway(Path(folder) / "home", process.url, key) as client:

                def ask(text: str) -> object:
                    return client.embeddings.create(model="starter", input=text)

                def several() -> list[str]:
                    return list(itertools.islice(texts, AT_ONCE))

                single = interleaved(
                    {
                        "sdk": lambda: sdk.embed([next(texts)], eta=ETA, denoiser="none", progress=None),
                        "gateway": lambda: ask(next(texts)),
                    },
                    rounds=rounds,
                )
                batches = interleaved(
                    {
                        "one by one": lambda: [ask(text) for text in several()],
                        "at once": lambda: list(threads.map(ask, several())),
                    },
                    rounds=max(3, rounds // 4),
                )
    print(f"a single text: {1000 * single['sdk']:.1f} ms by the SDK, {1000 * single['gateway']:.1f} ms by the gateway")
    print(f"{AT_ONCE} texts: {batches['one by one']:.2f} s one by one, {batches['at once']:.2f} s at once")
    write(
        "gateway",
        {
            "gateway_ms": 1000 * (single["gateway"] - single["sdk"]),
            "joined": batches["one by one"] / batches["at once"],
        },
    )


if __name__ == "__main__":
    main()
