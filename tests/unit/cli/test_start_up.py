"""Commands that compute nothing do not wait for what computes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from cutlayer.cli.reference import commands
from cutlayer.core import Cut
from cutlayer.customer import Home
from cutlayer.customer.defaults import settle
from cutlayer.customer.profile import Profile
from cutlayer.customer.settings import FinetuneSpec
from cutlayer.privacy import NewFrame
from cutlayer.privacy.spec import TextToText
from cutlayer.vendor.database import open_database
from cutlayer.vendor.settings import VendorSettings
from cutlayer.wire import Form, WireType
from cutlayer.wire.messages import AdapterInfo, AdapterList

HEAVY = {"torch", "transformers", "matplotlib", "plotly", "sklearn", "pandas", "pyarrow"}
PROGRAM = """
import sys

from cutlayer.cli import main

try:
    main()
finally:
    print(*sys.modules, file=open(sys.argv[0] + ".imported", "w"))
"""
HELPED = """
import contextlib, io, json, sys

from cutlayer.cli import main

told, seen = [], set()
for arguments in json.load(sys.stdin):
    sys.argv, printed = ["cutlayer", *arguments], io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        main()
    told.append((arguments, printed.getvalue(), sorted(set(sys.modules) - seen)))
    seen.update(sys.modules)
print(json.dumps(told))
"""
HELP = [("--help",), *((*command.name.split()[1:], "--help") for command in commands())]


ADAPTER = AdapterInfo(
    adapter="0" * 32,
    model="starter",
    fingerprint="0" * 64,
    cut=Cut(bottom=0),
    form=Form.IDS,
    wire_type=WireType.BF16,
    segments=1,
    num_labels=2,
    step=7,
    sha256="0" * 64,
    size=1,
    created="2026-01-01T00:00:00Z",
)


class Adapters(BaseHTTPRequestHandler):
    """A vendor that is asked for its customer's adapters, and for nothing else."""

    def do_GET(self) -> None:
        content = AdapterList(adapters=(ADAPTER,)).model_dump_json().encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        """Nothing is told."""


@pytest.fixture
def address() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Adapters)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def imported(tmp_path: Path, *arguments: str, code: int = 0, **environment: str) -> tuple[str, set[str]]:
    """What a command printed, which must end with a code, and the modules that it imported."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, program, *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == code, done.stderr
    return done.stdout, set(Path(f"{program}.imported").read_text().split())


def test_help() -> None:
    """Of every command, in one process: what a command imports that none before it did is its own."""
    program, asked = [sys.executable, "-c", HELPED], json.dumps(HELP)
    told = json.loads(subprocess.run(program, input=asked, stdout=subprocess.PIPE, text=True, check=True).stdout)
    assert len(told) == len(HELP) > 20
    for arguments, printed, modules in told:
        assert "Usage: cutlayer" in printed, arguments
        assert not HEAVY.intersection(modules), arguments


@pytest.fixture
def vendor(tmp_path: Path) -> str:
    """A vendor's folder, as `vendor init` makes it, without models: these take seconds."""
    folder = tmp_path / "vendor"
    folder.mkdir(mode=0o700)
    settings = VendorSettings(data_dir=folder, models={"starter": "starter"}, default_model="starter")
    settings.save()
    open_database(settings, claim=True).close()
    return str(folder)


def test_what_is_missing_of_a_command_line_is_told_at_once(tmp_path: Path) -> None:
    _, modules = imported(tmp_path, "finetune", "--train", "x", code=2)
    assert not modules & (HEAVY | {"fastapi"})


def test_recipe_list(tmp_path: Path) -> None:
    printed, modules = imported(tmp_path, "recipe", "list")
    assert "sap" in printed
    assert not modules & HEAVY


def test_ledger_show(own_home: Path, tmp_path: Path) -> None:
    Home(own_home).ledger.open_frame(
        NewFrame(run="run", vendor="http://127.0.0.1", route="service.get", where={}, payload_bytes={}, unsafe=False)
    )
    printed, modules = imported(tmp_path, "ledger", "show", "--frames", "--releases")
    assert "may have left" in printed
    assert not modules & HEAVY


def test_adapter_list(own_home: Path, address: str, tmp_path: Path) -> None:
    run = settle(FinetuneSpec(privacy=TextToText(eta=80), model="starter", seed=1))
    profile = Profile(adapter=ADAPTER.adapter, segments=1, max_content=8, labels=("a", "b"), spec=run)
    profile.save(Home(own_home), None, {})
    account = {"CUTLAYER_VENDOR": address, "CUTLAYER_API_KEY": "key"}
    printed, modules = imported(tmp_path, "adapter", "list", **account)
    assert "eta 80, text-to-text" in printed
    assert not modules & HEAVY


def test_vendor_key(vendor: str, tmp_path: Path) -> None:
    for arguments in (("create", "hospital"), ("list",), ("revoke", "hospital")):
        _, modules = imported(tmp_path, "vendor", "key", *arguments, "--data-dir", vendor)
        assert not modules & HEAVY, arguments


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str, tmp_path: Path) -> None:
    typed = {"COMP_WORDS": "cutlayer fine", "COMP_CWORD": "1", "_TYPER_COMPLETE_ARGS": "cutlayer fine"}
    asked = {"_CUTLAYER_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    printed, modules = imported(tmp_path, **typed, **asked)
    assert "finetune" in printed
    assert not modules & HEAVY
