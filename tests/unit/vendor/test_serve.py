"""Listening: prompt answers, and ports that cannot be had."""

from __future__ import annotations

import json
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import urllib3
from cryptography.hazmat.primitives import serialization

from cutlayer import vendor
from cutlayer.core import ConfigError
from cutlayer.serving.address import Address
from cutlayer.serving.listening import _most_connections, _url, listen
from cutlayer.serving.tls import make_certificate


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
    with pytest.raises(ConfigError, match="PEM certificate and its own private key"):
        vendor.serve(data_dir, tls_cert=data_dir / "none.pem", tls_key=data_dir / "none.pem")


def test_tls_files_that_do_not_belong_together(tmp_path: Path) -> None:
    """They are read before anybody is told an address; of a locked key the password would be asked for unseen."""
    files = []
    for name in ("one", "other"):
        files.append((tmp_path / f"{name}.pem", tmp_path / f"{name}.key"))
        make_certificate("localhost", certificate=files[-1][0], private_key=files[-1][1])
    (certificate, key), (_, other) = files
    locked = tmp_path / "locked.key"
    made = serialization.load_pem_private_key(key.read_bytes(), None)
    encryption = serialization.BestAvailableEncryption(b"secret")
    locked.write_bytes(made.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption))
    text = tmp_path / "text.pem"
    text.write_text("no PEM")
    Address(host="0.0.0.0", tls_cert=certificate, tls_key=key).check(remedy="")
    for pair in ((certificate, other), (certificate, locked), (text, key), (certificate, text), (certificate, None)):
        with pytest.raises(ConfigError, match=r"tls = .* private key"):
            Address(tls_cert=pair[0], tls_key=pair[1]).check(remedy="")


def test_all_file_descriptors_are_asked_for_and_half_are_for_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        most = _most_connections()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
        assert most == min(4096, hard // 2)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_machine_is_told_the_address(data_dir: Path) -> None:
    """With port 0 the system chooses one, and nothing else says which."""
    command = [sys.executable, "-m", "cutlayer.cli", "vendor", "serve", "--port", "0", "--json", "--data-dir"]
    with subprocess.Popen([*command, str(data_dir)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        try:
            told = json.loads(process.stdout.readline())
            assert told["data_dir"] == str(data_dir)
            assert not told["url"].endswith(":0")
            answer = urllib3.request("GET", f"{told['url']}/healthz", timeout=60)
            assert answer.status == 200
        finally:
            process.terminate()
        assert process.stdout.read() == b""


@pytest.mark.parametrize(("host", "url"), [("127.0.0.1", "http://127.0.0.1:80"), ("::1", "http://[::1]:80")])
def test_an_address_is_one_that_can_be_asked(host: str, url: str) -> None:
    assert _url("http", host, 80) == url
