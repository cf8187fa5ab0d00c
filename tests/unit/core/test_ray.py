"""The same pieces on a Ray cluster of one machine."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cutlayer.core import ConfigError
from cutlayer.core.executors import Executor, executor
from tests.unit.core.cluster import cluster  # noqa: F401 - a fixture by name

pytestmark = pytest.mark.slow

PACKAGES = ("cutlayer", "tests")
BEHAVE = "tests.unit.core.pieces:behave"


@pytest.fixture
def on_ray(cluster: str) -> Executor:  # noqa: F811
    return executor(ray=cluster, packages=PACKAGES)


def test_pieces_are_computed_there_and_fail_alone(on_ray: Executor) -> None:
    secret = "Maria Weber has the flu"
    told = [{"number": 0}, {"do": "stumble", "record": secret}, {"do": "refuse"}, {"do": "die"}, {"number": 4}]
    done = list(on_ray.run(BEHAVE, map(json.dumps, told), in_order=True))
    assert [each.index for each in done] == list(range(5))
    first, stumbled, refused, died, last = done
    for number, each in ((0, first), (4, last)):
        found = json.loads(each.result or "")
        assert found["number"] == number
        assert found["process"] != os.getpid()
    assert [each.failure.kind for each in done if each.failure] == ["ValueError", "DataError", "WorkerError"]
    assert refused.failure is not None
    assert refused.failure.message == "Row 3 has no text."
    assert secret not in repr((stumbled, died))


def test_a_corpus_of_any_size_is_asked_for_piece_by_piece_and_left_early(on_ray: Executor, tmp_path: Path) -> None:
    asked = 0

    def endless() -> Iterator[str]:
        nonlocal asked
        while True:
            asked += 1
            yield json.dumps({"number": asked} if asked < 9 else {"do": "stay", "folder": str(tmp_path)})

    with contextlib.closing(on_ray.run(BEHAVE, endless())) as done:
        for handed_out in range(1, 9):
            next(done)
            assert asked <= handed_out + 4
        while not any(tmp_path.iterdir()):
            time.sleep(0.05)
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{path.name}").exists() for path in tmp_path.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(Path(f"/proc/{path.name}").exists() for path in tmp_path.iterdir())


@pytest.mark.parametrize("address", ["127.0.0.1:9", "local", "here:there"])
def test_an_address_without_a_cluster_is_named_at_once(address: str) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'cutlayer[ray]'")
    with pytest.raises(ConfigError, match=f"No Ray cluster can be used at {address} "):
        list(executor(ray=address, packages=PACKAGES).run(BEHAVE, []))
