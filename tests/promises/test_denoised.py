"""Denoising stays at home: what is computed, that nothing of it leaves, and what a hostile vendor may hand out."""

from __future__ import annotations

import json
import math
import struct
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save

from cutlayer.core import ConfigError, CutlayerError, CutlayerWarning, Place, Rows, StorageError, VendorError
from cutlayer.core.denoiser import light_shape
from cutlayer.customer import Client, ask, denoising
from cutlayer.customer import embed as embedding
from cutlayer.customer.embedding_link import EmbeddingLink
from cutlayer.customer.link import QueryLink
from cutlayer.customer.session import Session
from cutlayer.data import Dataset, tokenise
from cutlayer.models import Head
from cutlayer.models.denoiser import Denoiser, build_denoiser
from cutlayer.privacy import PrivacySpec, TextToText, Vector, Words
from cutlayer.vendor import VendorSettings
from cutlayer.vendor.denoiser_settings import DenoisedReleases, DenoiserTraining
from cutlayer.vendor.denoiser_training import train_denoisers
from cutlayer.vendor.denoisers import MANIFEST, remove_denoiser
from cutlayer.wire import unpack
from cutlayer.wire.denoisers import DenoiserInfo
from cutlayer.wire.recording import Direction, RecordedFrame, read_recording
from cutlayer.wire.transports import RecordingTransport
from tests.promises.accounts import Watched, archive_of
from tests.promises.runs import TEST, corpus, customer, served
from tests.promises.test_families import corpus as small_words
from tests.promises.test_families import write_model
from tests.promises.test_one_door import check_no_canary
from tests.unit.gateway.asked import Embed, by_gateway, by_sdk

TRAINING = DenoiserTraining(steps=10, batch_size=4)
ROWS = DenoisedReleases(mechanism="vector", clip=True)
KINDS: dict[str, tuple[PrivacySpec, DenoisedReleases]] = {
    "rows": (Vector(eta=20, clip=True), ROWS),
    "ids": (TextToText(eta=20), DenoisedReleases()),
}


def train(
    data_dir: Path, releases: DenoisedReleases, model: str = "tiny", public: Dataset | None = None
) -> DenoiserInfo:
    texts = (public or corpus(120, seed=9, canaries=False)).texts
    return train_denoisers(VendorSettings.load(data_dir), model, [("public", texts)], releases, TRAINING)


@pytest.mark.parametrize("name", KINDS)
def test_a_denoised_embedding_is_what_the_denoiser_makes_of_answer_rows_and_noise(
    name: str, data_dir: Path, api_key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = train(data_dir, KINDS[name][1])
    with customer(data_dir, api_key, tmp_path / "home") as client:
        check_denoised(name, client, data_dir / "models" / "tiny" / "denoisers" / info.denoiser, info, monkeypatch)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("model", "pooling"), [("gpt2", "lasttoken"), ("t5", "mean_tokens")])
def test_so_it_is_of_other_families_and_before_normalisation(
    model: str, pooling: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Denoisers learnt from embeddings before these are of length 1, and special tokens stand elsewhere."""
    head = Head.CLASSIFICATION if model == "gpt2" else Head.LANGUAGE
    folder = write_model(model, tmp_path / "model", head=head)
    modules = [{"type": f"sentence_transformers.models.{name}", "path": name} for name in ("Pooling", "Normalize")]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "Pooling").mkdir()
    (folder / "Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{pooling}": True}))
    with served(str(folder), tmp_path) as client:
        info = train(tmp_path / "vendor", KINDS[kind][1], "model", small_words(120, 9, pairs=False))
        place = tmp_path / "vendor" / "models" / "model" / "denoisers" / info.denoiser
        check_denoised(kind, client, place, info, monkeypatch, small_words(10, 2, pairs=False))


def check_denoised(
    name: str,
    client: Client,
    folder: Path,
    info: DenoiserInfo,
    monkeypatch: pytest.MonkeyPatch,
    test: Dataset = TEST,
) -> None:
    group = info.groups[1]
    privacy = KINDS[name][0].model_copy(update={"eta": group.trained_at[0]})
    denoiser = build_denoiser(info.shape)
    denoiser.load_state_dict(load_file(folder / group.file.name))
    texts = [text for (text,) in test.texts]
    drawn: list[Any] = []
    draw, infer = Session._draw, EmbeddingLink.infer

    def drawing(session: Session, *given: Any) -> Any:
        drawn.append((given[0].tokens, draw(session, *given)))
        return drawn[-1][1]

    answers: list[torch.Tensor] = []
    monkeypatch.setattr(Session, "_draw", drawing)
    monkeypatch.setattr(EmbeddingLink, "infer", lambda link, sent: answers.append(infer(link, sent)) or answers[-1])
    noisy = client.embed(texts, privacy=privacy, denoiser="none", progress=None)
    drawn.clear()
    answers.clear()
    found = client.embed(texts, privacy=privacy, progress=None)
    archive = archive_of(client)
    assert (found.sent, found.uplink_bytes) == (0, 0), "a text was sent again, to be denoised"
    assert found.denoised_for == (group.lowest, group.highest)
    assert noisy.denoised_for is None
    assert archive.table is not None
    table, expected = archive.table.detach(), {}
    before = len(archive.template.opening)
    # rows are drawn once more to be denoised
    for (asked, left), answered in zip(drawn[: len(answers)], answers, strict=True):
        for place, ids in enumerate(asked.segments[0].split()):
            payload = left.release.payload
            if name == "ids":
                rows = table[payload.segments[0][place]]
            else:
                rows = payload.packed[place][before : before + len(ids)].bfloat16().float()
            with torch.no_grad():
                made = denoiser(
                    answered[place][None], rows[None], (rows - table[ids])[None], torch.ones(1, len(ids)).bool()
                )
            one = made[0]
            expected[tuple(ids.tolist())] = one / one.norm() if info.embedding.normalize else one
    for ids, row in _by_ids(archive, texts, found.values):
        assert torch.allclose(torch.from_numpy(row), expected[tuple(ids)], atol=1e-5)
    assert not np.allclose(found.values, noisy.values, atol=1e-3)


def _by_ids(archive: Any, texts: list[str], values: Any) -> Any:
    tokens = tokenise(Dataset(tuple((text,) for text in texts)), archive.tokenizer, max_content=99)
    return zip((ids.tolist() for ids in tokens.segments[0].split()), values, strict=True)


def noting_noise(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """What denoisers are told of noise from now on: of each call `[tokens, width]`, where there is any."""
    noted: list[torch.Tensor] = []
    fetch = embedding.fetch_denoiser

    def note(denoiser: Any, given: tuple[torch.Tensor, ...]) -> None:
        _, _, noise, mask = given
        rows = noise[mask]
        noted.append(rows[rows.any(1)])  # a token that became itself has none

    def fetching(*given: Any, **named: Any) -> Any:
        denoiser = fetch(*given, **named)
        denoiser.register_forward_pre_hook(note)
        return denoiser

    monkeypatch.setattr(embedding, "fetch_denoiser", fetching)
    return noted


def left(rows: torch.Tensor, frames: Sequence[RecordedFrame]) -> bool:
    """Whether any of some rows is in what was sent, in any element type and of either sign."""
    sent = b"".join(frame.body for frame in frames)
    needles = (one[:8].to(kind).contiguous().view(torch.uint8).numpy().tobytes() for row in rows for one in (row, -row)
               for kind in (torch.float64, torch.float32, torch.bfloat16))  # fmt: skip
    return any(needle in sent for needle in needles)


def check_stays(name: str, embed: Embed, data_dir: Path, api_key: str, folder: Path, noted: list[torch.Tensor]) -> None:
    """Of an embedding nothing leaves but the release: no row as it was, no noise, no denoised embedding, no canary."""
    privacy, releases = KINDS[name]
    train(data_dir, releases)
    with (
        customer(data_dir, api_key, folder / "home") as client,
        closing(RecordingTransport(client.transport, folder / "asked")) as recorder,
    ):
        found = embed(Client(transport=recorder, home=folder / "home", device="cpu"), TEST, privacy, "auto")
        table = archive_of(client).table
        frames = [frame for frame in read_recording(folder / "asked") if frame.direction is Direction.UP]
        check_no_canary(frames, client)
    assert {frame.route.name for frame in frames} == {
        "service", "models", "archive", "archive.file", "denoisers", "denoiser.file", "embeddings",
    }  # fmt: skip
    assert table is not None
    noise = torch.cat(noted)
    assert len(noise) > len(TEST), "the denoiser was told no noise"
    assert not left(torch.from_numpy(found), frames), "a denoised embedding left"
    assert not left(table.detach()[31:280], frames), "a row left as it was"
    assert not left(noise, frames), "noise left"
    payloads = [unpack(frame.tensors()) for frame in frames if frame.route.name == "embeddings"]
    rows = [each.packed for each in payloads if isinstance(each, Rows)]
    assert bool(rows) == (name == "rows")
    assert all(left(torch.cat(each.split()), frames) for each in rows), "what does leave is not seen, either"


@pytest.mark.parametrize("embed", [by_sdk, by_gateway])
@pytest.mark.parametrize("name", KINDS)
def test_nothing_of_it_leaves(
    name: str,
    embed: Embed,
    data_dir: Path,
    api_key: str,
    tmp_path: Path,
    watched: Watched,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No row as it was, no noise, no denoised embedding is in any byte, in any element type."""
    check_stays(name, embed, data_dir, api_key, tmp_path, noting_noise(monkeypatch))


def test_noise_that_leaves_is_caught(
    data_dir: Path, api_key: str, tmp_path: Path, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted fault: in the place of noisy rows their noise is sent, and the denoiser works as ever."""
    noted, draw, infer = noting_noise(monkeypatch), Session._draw, QueryLink.infer
    clean: dict[bytes, torch.Tensor] = {}

    def drawing(session: Session, texts: Any, look: Any) -> Any:
        drawn, table = draw(session, texts, look), session.archive.table
        assert table is not None
        for identity, ids in zip(drawn.release.identities, texts.tokens.segments[0].split(), strict=True):
            clean[identity] = torch.nn.functional.pad(table.detach()[ids], (0, 0, 1, 1))  # special tokens have no noise
        return drawn

    def telling(link: QueryLink, sent: Any) -> torch.Tensor:
        packed = sent.payload.packed
        noise = packed.values - torch.cat([clean[each] for each in sent.identities]).to(packed.values.dtype)
        return infer(link, replace(sent, payload=replace(sent.payload, packed=packed.with_values(noise))))

    monkeypatch.setattr(Session, "_draw", drawing)
    monkeypatch.setattr(QueryLink, "infer", telling)
    with pytest.raises(AssertionError, match="noise left"):
        check_stays("rows", by_sdk, data_dir, api_key, tmp_path, noted)


def spoil_file(change: Callable[[dict[str, torch.Tensor]], Any], *, told: bool = True) -> Callable[[Path], None]:
    """Changes the tensors of all groups; the manifest tells the new files' sums, where it is `told`."""

    def spoil(folder: Path) -> None:
        import hashlib

        manifest = json.loads((folder / MANIFEST).read_text())
        for group in manifest["groups"]:
            path = folder / group["file"]["name"]
            tensors = load_file(path)
            body = change(tensors)
            body = body if isinstance(body, bytes) else save(tensors)
            path.write_bytes(body)
            if told:
                group["file"] |= {"sha256": hashlib.sha256(body).hexdigest(), "size": len(body)}
        (folder / MANIFEST).write_text(json.dumps(manifest))

    return spoil


def spoil_manifest(**changes: Any) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        manifest = json.loads((folder / MANIFEST).read_text())
        (folder / MANIFEST).write_text(json.dumps(manifest | changes))

    return spoil


NARROW = light_shape(width=16)


def spoil_width(folder: Path) -> None:
    """A whole denoiser that says what it is, of another width than the model."""
    denoiser = build_denoiser(NARROW)
    denoiser.draw(0)
    body = save(denoiser.state_dict())
    spoil_file(lambda tensors: body)(folder)
    spoil_manifest(shape=NARROW.model_dump())(folder)


def spoil_finite(tensors: dict[str, torch.Tensor]) -> None:
    """Each number is finite, and what is made of them is not."""
    for value in tensors.values():
        value.fill_(3e38)


def unknown_type(tensors: dict[str, torch.Tensor]) -> bytes:
    size = sum(4 * value.numel() for value in tensors.values())
    header = json.dumps({"a": {"dtype": "F8_E8M0", "shape": [size], "data_offsets": [0, size]}}).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + bytes(size)


LARGER = {"kind": "paper", "width": 32, "d_ff": 256, "d_kv": 32, "n_head": 8, "layers": 64, "placed": True}
HUGE = LARGER | {"d_kv": 33}
HOSTILE: dict[str, tuple[Callable[[Path], None], type[CutlayerError], str]] = {
    "another sum": (spoil_file(lambda tensors: tensors["out.bias"].add_(1), told=False), StorageError, "checksum"),
    "no number": (spoil_file(lambda tensors: tensors["out.bias"].fill_(math.nan)), VendorError, "not all finite"),
    "too large a number": (spoil_file(spoil_finite), VendorError, "rows without noise .* not finite"),
    "another width": (spoil_width, VendorError, "has width 16, the model's embeddings 32 and rows of its tokens 32"),
    "nothing to divide by": (
        spoil_file(lambda tensors: tensors["row_scale"].zero_()), VendorError, "divides by is not positive"
    ),
    "another name": (
        spoil_file(lambda tensors: tensors.__setitem__("out.bians", tensors.pop("out.bias"))), VendorError, "names"
    ),
    "another type": (
        spoil_file(lambda tensors: tensors.__setitem__("out.bias", tensors["out.bias"].view(torch.int32))),
        VendorError, "not fp32",
    ),
    "too large": (spoil_file(lambda tensors: save(tensors) + bytes(2**17)), VendorError, "has .* bytes"),
    "too small": (spoil_file(lambda tensors: b"x"), VendorError, "has 1 bytes"),
    "no safetensors": (spoil_file(lambda tensors: b"\xff" * (len(save(tensors)))), StorageError, "cannot be read"),
    "a type that torch lacks": (spoil_file(unknown_type), StorageError, "cannot be read"),
    "another shape": (spoil_manifest(shape=LARGER), VendorError, "and its shape"),
    "more memory than its file tells": (spoil_manifest(shape=HUGE), VendorError, "inside it is 264 wide, more than 8 "),
    "other weights": (spoil_manifest(fingerprint="0" * 64), ConfigError, "and no other for this model"),
    "another table": (
        spoil_manifest(table="0" * 64), ConfigError, r"some for vector with clip in bf16 \(of another token table\)"
    ),
    "another pooling": (
        spoil_manifest(embedding={"width": 32, "pooling": "cls", "normalize": False}), ConfigError,
        r"bf16 \(pooling cls, not mean\)",
    ),
    "another type of rows": (spoil_manifest(wire_type="fp32"), ConfigError, "some for vector with clip in fp32"),
    "another noise": (spoil_manifest(noise="laplace"), ConfigError, r"bf16 \(noise laplace, not d-chi\)"),
    "without clip": (spoil_manifest(clip=False), ConfigError, "some for vector in bf16"),
}  # fmt: skip


@pytest.mark.parametrize("fault", HOSTILE)
def test_a_denoiser_that_does_not_fit_or_is_none_is_refused_before_a_text_leaves(
    fault: str, data_dir: Path, api_key: str, tmp_path: Path
) -> None:
    spoil, error, said = HOSTILE[fault]
    info = train(data_dir, ROWS)
    spoil(data_dir / "models" / "tiny" / "denoisers" / info.denoiser)
    with customer(data_dir, api_key, tmp_path / "home") as client:
        with pytest.raises(error, match=said) as caught:
            client.embed(TEST, privacy=Vector(eta=20, clip=True), progress=None)
        assert caught.value.remedy
        assert not any(entry.texts for entry in client.ledger.frames())
        assert client.embed(TEST, privacy=Vector(eta=20, clip=True), denoiser="none", progress=None).sent


def test_a_denoised_embedding_that_is_not_finite_is_refused(
    data_dir: Path, api_key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A denoiser that does well on public rows may fail on a text's."""
    train(data_dir, ROWS)
    forward = Denoiser.forward

    def planted(denoiser: Denoiser, noisy: torch.Tensor, rows: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        found = forward(denoiser, noisy, rows, *rest)
        return found if len(found) == 1 else found.index_fill(0, torch.tensor([1]), math.inf)

    with customer(data_dir, api_key, tmp_path / "home") as client:
        monkeypatch.setattr(Denoiser, "forward", planted)
        with pytest.raises(VendorError, match=r"these texts' answers .* not finite") as caught:
            client.embed(TEST, privacy=Vector(eta=20, clip=True), progress=None)
        assert "--denoiser none" in caught.value.remedy


@pytest.mark.parametrize("name", KINDS)
def test_all_texts_of_a_call_leave_before_any_is_denoised(
    name: str, data_dir: Path, api_key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights by which some words take long, or fail, decide neither when another frame leaves nor whether it does."""
    privacy, releases = KINDS[name]
    train(data_dir, releases)
    monkeypatch.setattr(ask, "EVALUATION_POSITIONS", 36)
    happened: list[str] = []
    forward, infer = Denoiser.forward, EmbeddingLink.infer

    def asking(link: EmbeddingLink, sent: Any) -> torch.Tensor:
        happened.append("sent")
        return infer(link, sent)

    def failing(denoiser: Denoiser, *given: torch.Tensor) -> torch.Tensor:
        found = forward(denoiser, *given)
        if not given[2].any():  # it is tried on public rows without noise
            return found
        happened.append("denoised")
        return found.fill_(math.inf)

    monkeypatch.setattr(EmbeddingLink, "infer", asking)
    with customer(data_dir, api_key, tmp_path / "home") as client:
        client.embed(TEST, privacy=privacy.model_copy(update={"eta": 20.5}), progress=None)
        frames = len(happened)
        happened.clear()
        monkeypatch.setattr(Denoiser, "forward", failing)
        with pytest.raises(VendorError, match="not finite"):
            client.embed(TEST, privacy=privacy, progress=None)
        texts = [entry.texts for entry in client.ledger.frames() if entry.route == "embeddings"]
    assert frames > 2
    assert happened[:frames] == ["sent"] * frames
    assert set(happened[frames:]) == {"denoised"}
    assert texts[:frames] == texts[frames:]


def test_denormal_numbers_are_zero_to_all_threads_that_denoise() -> None:
    """By them a product takes a hundred times as long: what a denoiser takes tells nothing of a text."""
    if not torch.set_flush_denormal(False):
        pytest.skip("this processor cannot take denormal numbers for zero")
    before = torch.get_num_threads()
    many = torch.full((64, 4096), 1e-39)  # computed by several threads
    try:
        torch.set_num_threads(2)
        assert bool((many * 1.0).all()), "elsewhere they stay"
        with denoising.steady_thread() as thread:
            assert not bool(thread.submit(lambda: many * 1.0).result().any())
    finally:
        torch.set_num_threads(before)


def test_rows_with_noise_on_special_tokens_have_no_denoiser(data_dir: Path, api_key: str, tmp_path: Path) -> None:
    """Of the same form, mechanism and eta, and made otherwise than those that the denoiser learnt from."""
    train(data_dir, DenoisedReleases(mechanism="vector"))
    with customer(data_dir, api_key, tmp_path / "home") as client:
        with pytest.raises(ConfigError, match=r"place = 'activations'.*special tokens.*--denoiser none"):
            client.embed(TEST, privacy=Vector(eta=20, place=Place.ACTIVATIONS), progress=None)
        assert not any(entry.texts for entry in client.ledger.frames())
        assert client.embed(TEST, privacy=Vector(eta=20), progress=None).denoised_for is not None


def test_texts_are_denoised_a_few_at_a_time(
    data_dir: Path, api_key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many texts a frame has, and with the same result."""
    train(data_dir, ROWS)
    seen: list[int] = []
    forward = Denoiser.forward

    def noting(denoiser: Denoiser, *given: torch.Tensor) -> torch.Tensor:
        seen.append(given[3].numel())
        return forward(denoiser, *given)

    with customer(data_dir, api_key, tmp_path / "home") as client:
        together = client.embed(TEST, privacy=Vector(eta=20, clip=True), progress=None)
        monkeypatch.setattr(denoising, "_POSITIONS", 40)
        monkeypatch.setattr(Denoiser, "forward", noting)
        apart = client.embed(TEST, privacy=Vector(eta=20, clip=True), progress=None)
    assert len(seen) > 1
    assert max(seen) <= 40
    assert np.allclose(together.values, apart.values, atol=1e-5)


def test_words_have_no_denoiser(data_dir: Path, api_key: str, tmp_path: Path) -> None:
    pytest.importorskip("spacy", reason="the tagger needs spaCy: pip install 'cutlayer[words]'")
    train(data_dir, DenoisedReleases())
    with customer(data_dir, api_key, tmp_path / "home") as client:
        with pytest.raises(ConfigError, match=r"mechanism = 'words': has no denoiser.*Take text-to-text or vector"):
            client.embed(TEST, privacy=Words(eta=20, space="starter"), progress=None)
        assert not any(entry.texts for entry in client.ledger.frames())


def test_an_eta_of_no_range_is_told_the_ranges(data_dir: Path, api_key: str, tmp_path: Path) -> None:
    info = train(data_dir, ROWS)
    with customer(data_dir, api_key, tmp_path / "home") as client:
        with pytest.raises(ConfigError, match=rf"1000000.0: is covered by no denoiser.*to {info.groups[-1].highest:g}"):
            client.embed(TEST, privacy=Vector(eta=1e6, clip=True), progress=None)
        assert not any(entry.texts for entry in client.ledger.frames())
        clear = client.embed(TEST, eta=math.inf, progress=None)
        with pytest.raises(ConfigError, match="nothing to take out"):
            client.embed(TEST, eta=math.inf, denoiser=info.denoiser, progress=None)
    assert clear.denoised_for is None


Measured = dict[str, tuple[float, float]]
WORTH: dict[str, tuple[Measured, str | None]] = {
    "no better than the answers": (
        {"noisy": (0.61, 1.5), "denoised": (0.52, 1.0), "mean_embedding": (0.2, 2.0)},
        r"no better than the answers as they come.*public texts: denoised, .* 0\.520 and MSE 1; .* 0\.610 and MSE 1\.5",
    ),
    "by its squares alone": (
        {"noisy": (0.4, 1.5), "denoised": (0.5, 1.6), "mean_embedding": (0.2, 2.0)}, "no better than the answers"
    ),
    "no better than the mean": (
        {"noisy": (0.1, 3.0), "denoised": (0.2, 2.0), "mean_embedding": (0.2, 2.0)},
        r"no better than one mean embedding for all.*all, cosine 0\.200 and MSE 2",
    ),
    "better": ({"noisy": (0.1, 3.0), "denoised": (0.3, 1.9), "mean_embedding": (0.2, 2.0)}, None),
}  # fmt: skip


@pytest.mark.parametrize("name", WORTH)
def test_a_denoiser_that_is_no_better_by_its_own_measure_is_used_with_a_warning(
    name: str, data_dir: Path, api_key: str, tmp_path: Path
) -> None:
    measured, said = WORTH[name]
    info = train(data_dir, ROWS)
    path = data_dir / "models" / "tiny" / "denoisers" / info.denoiser / MANIFEST
    told = json.loads(path.read_text())
    for group in told["groups"]:
        group |= {key: {"cosine": cosine, "mse": mse} for key, (cosine, mse) in measured.items()}
    path.write_text(json.dumps(told))
    with (
        customer(data_dir, api_key, tmp_path / "home") as client,
        pytest.warns(CutlayerWarning, match=said) if said else nullcontext(),
        warnings.catch_warnings(action="default" if said else "error", category=CutlayerWarning),
    ):
        assert client.embed(TEST, privacy=Vector(eta=20, clip=True), progress=None).sent


def test_of_several_the_better_one_is_taken(data_dir: Path, api_key: str, tmp_path: Path) -> None:
    info = train(data_dir, ROWS)
    folder = data_dir / "models" / "tiny" / "denoisers"
    other = "0" * 32
    (folder / other).mkdir()
    told = json.loads((folder / info.denoiser / MANIFEST).read_text()) | {"denoiser": other}
    for group in told["groups"]:
        group["denoised"]["cosine"] = 1.0
        (folder / other / group["file"]["name"]).write_bytes(
            (folder / info.denoiser / group["file"]["name"]).read_bytes()
        )
    (folder / other / MANIFEST).write_text(json.dumps(told))
    with customer(data_dir, api_key, tmp_path / "home") as client:
        for denoiser in ("auto", info.denoiser):
            client.embed(TEST, privacy=Vector(eta=20, clip=True), denoiser=denoiser, progress=None)
        asked = [entry.where["denoiser"] for entry in client.ledger.frames() if entry.route == "denoiser.file"]
        assert asked == [other, info.denoiser]
        for denoiser, said in (("f" * 32, "is none of the vendor's"), ("best", "denoiser")):
            with pytest.raises(ConfigError, match=said):
                client.embed(["w1"], privacy=Vector(eta=20, clip=True), denoiser=denoiser, progress=None)
        with pytest.raises(ConfigError, match=rf"{other}.*is for vector with clip in bf16, and not for text-to-text"):
            client.embed(["w1"], eta=20, denoiser=other, progress=None)
        assert not any(entry.texts == 1 for entry in client.ledger.frames())


def test_denoisers_come_and_go_beside_a_running_service(data_dir: Path, api_key: str, tmp_path: Path) -> None:
    """A customer whose road is open takes the one that is offered now, and none that no longer is."""
    privacy, settings = Vector(eta=20, clip=True), VendorSettings.load(data_dir)
    with customer(data_dir, api_key, tmp_path / "home") as client:

        def embed() -> Any:
            return client.embed(TEST, privacy=privacy, progress=None)

        with pytest.raises(ConfigError, match="no other for this model"):
            embed()
        info = train(data_dir, ROWS)
        first = embed()
        assert first.sent == len(TEST)
        other = train_denoisers(
            settings, "tiny", [("public", corpus(120, seed=8, canaries=False).texts)], ROWS, TRAINING
        )
        assert remove_denoiser(settings, "tiny", info.denoiser)
        second = embed()
        assert second.sent == 0
        assert not np.allclose(first.values, second.values, atol=1e-4), "it is still denoised by what was removed"
        assert remove_denoiser(settings, "tiny", other.denoiser)
        with pytest.raises(ConfigError, match="no other for this model"):
            embed()
