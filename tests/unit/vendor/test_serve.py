"""Listening: prompt answers, and ports that cannot be had."""

from __future__ import annotations

import resource
import socket
from pathlib import Path

import pytest

from cutlayer import vendor
from cutlayer.core import ConfigError
from cutlayer.vendor.serve import _most_connections, listen


def test_answers_do_not_wait_for_acknowledgements() -> None:
    """asyncio sets TCP_NODELAY on sockets of this protocol number only; without it a step takes 40 ms more."""
    with listen("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP


def test_a_port_that_is_taken(data_dir: Path) -> None:
    with listen("127.0.0.1", 0) as taken, pytest.raises(ConfigError, match="in use"):
        vendor.serve(data_dir, port=taken.getsockname()[1])


@pytest.mark.parametrize("port", [-1, 70000])
def test_a_port_that_is_none(port: int) -> None:
    with pytest.raises(ConfigError, match="port"):
        listen("127.0.0.1", port)


def test_tls_files_that_are_not_there(data_dir: Path) -> None:
    with pytest.raises(ConfigError, match="readable PEM"):
        vendor.serve(data_dir, tls_cert=data_dir / "none.pem", tls_key=data_dir / "none.pem")


def test_all_file_descriptors_are_asked_for_and_half_are_for_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        most = _most_connections()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
        assert most == min(4096, hard // 2)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
