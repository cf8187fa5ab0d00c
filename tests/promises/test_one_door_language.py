"""Promise 1 for language models: no token id, no label and no weight of the customer's own is sent or kept."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cutlayer.core import ConfigError, Place, Ragged, Tokens
from cutlayer.customer import Client, Gate, LanguageResult, Sampling, Training
from cutlayer.customer.derived import run_privatizing
from cutlayer.customer.order import Order
from cutlayer.customer.plan import build_session
from cutlayer.customer.profile import Profile
from cutlayer.customer.session import Session, Texts
from cutlayer.data import Dataset
from cutlayer.models import Tail
from cutlayer.privacy import Ledger
from cutlayer.wire import routes
from cutlayer.wire.tensors import decode_tensors
from tests.promises.accounts import Watched, archive_of, check_accounted, check_kept_home
from tests.promises.runs import LANGUAGE, SEED, corpus, customer
from tests.quick import slow_but
from tests.service.fixtures import change_settings  # noqa: F401 - used by name
from tests.settings import specs

TRAIN, TEST = (Dataset(corpus(n, seed=seed).texts) for n, seed in ((40, 1), (10, 2)))
FULL = {"method": "full"}
CLIPPED = {"max_grad_norm": 0.5, "gradient_accumulation_steps": 2}
SETTINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "adapters": ({"bottom": 1, "tail": 1}, {}),
    "the head alone": ({"bottom": 1, "tail": 0}, {}),
    "all weights": ({"bottom": 1, "tail": 1}, FULL),
    "all weights, clipped and accumulated": ({"bottom": 1, "tail": 0}, FULL | CLIPPED),
    "frozen below": ({"bottom": 1, "tail": 1, "train_bottom": "frozen"}, {}),
    "ids of other tokens": ({"bottom": 0, "tail": 0, "eta": 6.0}, {"max_grad_norm": 0.5}),
    "other tokens below a block": ({"bottom": 1, "tail": 0, "eta": 6.0}, {}),
    "noisy rows after a block": (
        {"bottom": 1, "tail": 1, "eta": 6.0, "mechanism": "vector", "place": Place.ACTIVATIONS}, {},
    ),
}  # fmt: skip
QUICK = ("all weights, clipped and accumulated", "ids of other tokens")


@pytest.fixture
def data_dir(decoder_dir: Path) -> Path:
    return decoder_dir


def tune(client: Client, name: str) -> tuple[LanguageResult, Training]:
    cut, changes = SETTINGS[name]
    told = specs({"eta": math.inf, **cut, **LANGUAGE, **changes})
    return client.finetune(TRAIN, objective="lm", test=TEST, seed=SEED, **told), told["training"]


def check(client: Client, name: str, watched: Watched) -> LanguageResult:
    result, settings = tune(client, name)
    check_accounted(client, result, watched, train=TRAIN, test=TEST, training=settings)
    return result


@pytest.mark.parametrize("name", slow_but(QUICK, SETTINGS))
def test_every_byte_is_accounted_for(name: str, data_dir: Path, api_key: str, tmp_path: Path, watched: Watched) -> None:
    with customer(data_dir, api_key, tmp_path / "home") as client:
        check(client, name, watched)


def plant_tokens_in_gradient(patch: pytest.MonkeyPatch) -> None:
    """The lowest bits of a gradient spell out ids."""
    honest = Gate._tensors

    def planted(gate: Gate, *given: Any) -> dict[str, Tensor]:
        tensors = honest(gate, *given)
        if "gradient" in tensors:
            tensors["gradient"] = tensors["gradient"].clone()
            tensors["gradient"].view(torch.int16)[0, 0] ^= 1
        return tensors

    patch.setattr(Gate, "_tensors", planted)


def plant_true_labels_above(patch: pytest.MonkeyPatch) -> None:
    """The tail learns from other tokens than it should: what goes up is the gradient of something else."""
    honest = Session.loss

    def planted(session: Session, texts: Any, labels: Any, **given: Any) -> Tensor:
        (segment,) = labels.segments
        shifted = type(labels)((segment.with_values(segment.values.roll(1)),))
        return honest(session, texts, shifted, **given)

    patch.setattr(Session, "loss", planted)


def plant_a_second_number_in_the_norm(patch: pytest.MonkeyPatch) -> None:
    honest = Gate._tensors

    def planted(gate: Gate, *given: Any) -> dict[str, Tensor]:
        tensors = honest(gate, *given)
        if "norm" in tensors:
            tensors["norm"] = torch.cat([tensors["norm"], torch.tensor([7.0])])
        return tensors

    patch.setattr(Gate, "_tensors", planted)


def plant_the_true_tokens(patch: pytest.MonkeyPatch) -> None:
    """The road goes round the privatizer."""
    honest = Session._draw

    def planted(session: Session, texts: Texts, look: Any) -> Any:
        return honest(session, Texts(texts.tokens, texts.cti_classes, public=True), look)

    patch.setattr(Session, "_draw", planted)


@pytest.mark.parametrize(
    ("fault", "name", "said"),
    [
        pytest.param(plant_tokens_in_gradient, "adapters", "gradient: another value", marks=pytest.mark.slow),
        (plant_true_labels_above, "adapters", "gradient: another value"),
        pytest.param(
            plant_a_second_number_in_the_norm, "all weights, clipped and accumulated", "norm", marks=pytest.mark.slow
        ),
        (plant_the_true_tokens, "ids of other tokens", "a text is due that no privatizer was given"),
    ],
)
def test_a_planted_leak_is_caught(
    fault: Any,
    name: str,
    said: str,
    data_dir: Path,
    api_key: str,
    tmp_path: Path,
    watched: Watched,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fault(monkeypatch)
    with customer(data_dir, api_key, tmp_path / "home") as client, pytest.raises(Exception, match=said):
        check(client, name, watched)


def test_the_vendor_gets_and_keeps_no_token_and_no_weight_of_the_customers(
    data_dir: Path, api_key: str, tmp_path: Path, watched: Watched
) -> None:
    with customer(data_dir, api_key, tmp_path / "home") as client:
        result, _ = tune(client, "all weights")
        before = len(watched.requests)
        client.generate(result.adapter_id, [TRAIN.texts[0][0]], sampling=Sampling(max_new_tokens=9, seed=1))
        assert len(watched.requests) > before
        sent = b"\n".join(f"{request.line}\n".encode() + request.body for request in watched.requests)
        check_kept_home(client, result, [text for (text,) in TRAIN.texts], sent=sent, vendor=data_dir)


PROMPTS = [TRAIN.texts[0][0], TRAIN.texts[1][0][:20]]


def generated(client: Client, data: Path, watched: Watched) -> None:
    """Generates, and asserts that each frame holds the customer's rows of the newest tokens, and not a byte more."""
    result, _ = tune(client, "adapters")
    before = len(watched.requests)
    texts = client.generate(result.adapter_id, PROMPTS, sampling=Sampling(max_new_tokens=6, greedy=True))
    bodies = [request for request in watched.requests[before:] if request.body]
    assert all("/v1/generations/" in request.line for request in bodies)
    steps = [request for request in bodies if "/steps/" in request.line]
    assert len(steps) == texts[0].round_trips == len(bodies) - 1
    archive, profile = archive_of(client), Profile.load(client.home, result.adapter_id)
    privatizing = run_privatizing(archive, client.home, profile.spec)
    session = build_session(archive, client.home, profile.spec, privatizing, None, torch.device("cpu"))
    session.load_trained(profile.trained(client.home))
    session.eval()
    tokenizer = archive.tokenizer
    # they are asked for in an order of the secret's
    order = Order(client.home.secret, f"generate/{result.adapter_id}").of([(prompt,) for prompt in PROMPTS])
    prompts, texts = [PROMPTS[place] for place in order], [texts[place] for place in order]
    ids = [tokenizer(prompt, add_special_tokens=False)["input_ids"] for prompt in prompts]
    written = [
        tokenizer(prompt + text.text, add_special_tokens=False)["input_ids"][len(own) :]
        for prompt, own, text in zip(prompts, ids, texts, strict=True)
    ]
    whole = [own + new for own, new in zip(ids, written, strict=True)]
    with torch.no_grad():
        rows = [session.bottom(archive.template.assemble(Tokens((Ragged.from_lists([row]),))))[0] for row in whole]
    start = [0] * len(PROMPTS)
    for request in steps:
        tensors = decode_tensors(routes.GENERATION_STEP, request.body)
        assert set(tensors) == {"rows", "lengths"}
        lengths = tensors["lengths"].flatten().tolist()
        expected = torch.cat([rows[text][at : at + n] for text, (at, n) in enumerate(zip(start, lengths, strict=True))])
        torch.testing.assert_close(tensors["rows"].float(), expected, atol=0.05, rtol=0.02)  # bf16 on the wire
        assert len(request.body) < tensors["rows"].nbytes + tensors["lengths"].nbytes + 512
        start = [at + n for at, n in zip(start, lengths, strict=True)]
    assert start[0] >= len(ids[0])


def test_generation_sends_rows_of_the_newest_tokens_and_nothing_else(
    data_dir: Path, api_key: str, tmp_path: Path, watched: Watched
) -> None:
    with customer(data_dir, api_key, tmp_path / "home") as client:
        generated(client, data_dir, watched)


def test_prompts_that_make_a_larger_frame_than_the_vendor_takes_are_refused_before_any_leaves(
    data_dir: Path,
    api_key: str,
    tmp_path: Path,
    change_settings: Callable[..., None],  # noqa: F811 - the fixture
) -> None:
    """Prompts leave together, as rows; one of them alone is small enough."""
    with customer(data_dir, api_key, tmp_path / "home") as client:
        result, _ = tune(client, "adapters")
    several = [text[:12] for (text,) in TRAIN.texts[:8]]
    change_settings(data_dir, limits={"max_step_bytes": 1024 + 72 * 20})
    with customer(data_dir, api_key, tmp_path / "home") as client:
        before = len(list(client.ledger.frames()))
        with pytest.raises(
            ConfigError, match=r"8 prompts of up to \d+ positions make \d+; the vendor takes 20"
        ) as caught:
            client.generate(result.adapter_id, several, sampling=Sampling(max_new_tokens=2, greedy=True))
        assert "fewer at a time" in caught.value.remedy
        assert not any(entry.texts for entry in list(client.ledger.frames())[before:])
        assert client.generate(result.adapter_id, several[:1], sampling=Sampling(max_new_tokens=2, greedy=True))


def test_a_leak_in_generation_is_caught(
    data_dir: Path, api_key: str, tmp_path: Path, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted fault: the rows' first element carries the token."""
    honest = Session._grown_rows

    def planted(session: Session, texts: Any, drawn: Any, opening: Tensor, inputs: Any) -> Any:
        release = honest(session, texts, drawn, opening, inputs)
        release.payload.packed.values[:, 0] = drawn.payload.segments[0].values[-1].float()
        return release

    monkeypatch.setattr(Session, "_grown_rows", planted)
    with customer(data_dir, api_key, tmp_path / "home") as client, pytest.raises(AssertionError, match="not close"):
        generated(client, data_dir, watched)


def test_the_vendor_is_not_told_what_the_customer_drops_out(
    data_dir: Path, api_key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two customers with one seed drop out differently, and each the same again; a job's seed says nothing of it."""
    seeds: dict[str, list[int]] = {}
    honest = Session.__init__

    def noting(session: Session, **given: Any) -> None:
        seeds.setdefault(who, []).append(given["seed"])
        honest(session, **given)

    monkeypatch.setattr(Session, "__init__", noting)
    for number, name in enumerate(("one", "other", "one")):
        who = name
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "secret").touch(mode=0o600)
        (tmp_path / name / "secret").write_bytes(name.encode().ljust(32))
        assert Ledger(tmp_path / name / "ledger.sqlite")
        with customer(data_dir, api_key, tmp_path / name) as client:
            client.finetune(
                TRAIN,
                objective="lm",
                eta=math.inf,
                **specs({**LANGUAGE, "epochs": 1}),
                seed=SEED,
                out=tmp_path / f"run{number}",
            )
    assert len(set(seeds["one"])) == 1
    assert not {*seeds["one"], SEED} & set(seeds["other"])
    assert SEED not in seeds["one"]


def test_no_route_answers_with_the_top(data_dir: Path, api_key: str, tmp_path: Path) -> None:
    """What the customer is handed out holds bottom and tail, and none of the blocks between."""
    with customer(data_dir, api_key, tmp_path / "home") as client:
        tune(client, "adapters")
        archive = archive_of(client)
    assert isinstance(archive.tail, Tail)
    held = {name for part in (archive.bottom, archive.tail) if part for name, _ in part.model.named_parameters()}
    blocks = {name.split(".")[2] for name in held if name.startswith("transformer.h.")}
    assert blocks == {"0", "3"}
    assert routes.ARCHIVE_FILE.raw_reply
