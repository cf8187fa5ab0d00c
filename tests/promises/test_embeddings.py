"""Embeddings over the road: what leaves, what comes back, and that splitting changes nothing."""

from __future__ import annotations

import json
import math
import sqlite3
import traceback
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer, T5EncoderModel

from cutlayer.attacks import Transcript
from cutlayer.core import BudgetError, ConfigError, CutlayerWarning, DataError, ModelError, Tokens, VendorError
from cutlayer.core.embedding import EmbeddingSpec
from cutlayer.customer import Client, FinetuneSpec, Silent
from cutlayer.customer.embed import Embeddings, settle_embedding
from cutlayer.customer.link import QueryLink
from cutlayer.customer.run import RunState
from cutlayer.customer.session import Drawn, Session, Texts
from cutlayer.data import Dataset
from cutlayer.models import Head, Inputs, embedding_spec, pool
from cutlayer.models.load import resolve
from cutlayer.privacy import CtiSpec, NoPrivacy, PrivacySpec, TextToText, Vector, Words
from cutlayer.wire import Form, Reply, WireType, routes, unpack
from cutlayer.wire.messages import ModelList
from cutlayer.wire.recording import Direction, read_recording
from cutlayer.wire.transports import RecordingTransport
from tests.equivalence.zoo import CONFIGURATIONS, ENCODERS, SEQ2SEQ, families_first, make_model
from tests.promises.accounts import Watched, check_queries_accounted
from tests.promises.runs import TEST, TRAIN, customer, finetune, served
from tests.promises.script import Due
from tests.promises.test_families import corpus, write_model
from tests.promises.test_one_door import check_no_canary
from tests.service.fixtures import change_settings  # noqa: F401 - used by name
from tests.unit.gateway.asked import Embed, by_gateway, by_sdk

TEXTS = Dataset(TRAIN.texts[:12] + TEST.texts + TRAIN.texts[:3])
SETTINGS: dict[str, PrivacySpec] = {
    "ids": TextToText(eta=6),
    "rows": Vector(eta=6),
    "clipped rows": Vector(eta=2, clip=True),
    "clear ids": NoPrivacy(),
}


def pooled(folder: Path, name: str, texts: list[str]) -> NDArray[np.float32]:
    """What Hugging Face's model makes of each text by itself, pooled by hand."""
    kind: Any = T5EncoderModel if name in SEQ2SEQ else AutoModel
    model, tokenizer = kind.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    found = []
    for text in texts:
        inputs = tokenizer(text, return_tensors="pt")
        inputs.pop("token_type_ids", None)
        with torch.no_grad():
            (states,) = model(**inputs).last_hidden_state
        found.append(states.mean(0) if name in (*ENCODERS, *SEQ2SEQ) else states[-1])
    return torch.stack(found).numpy()


@pytest.mark.parametrize("form", Form)
@pytest.mark.parametrize("name", families_first(CONFIGURATIONS))
def test_an_embedding_is_the_whole_models(
    name: str, form: Form, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = Head.LANGUAGE if name in SEQ2SEQ else Head.CLASSIFICATION
    folder = write_model(name, tmp_path / "model", head=head)
    texts = [text for (text,) in corpus(6, 1, pairs=False).texts]
    expected = pooled(folder, name, texts)
    if form is Form.ROWS:  # which the road sends with noise alone
        draw = Session._draw
        monkeypatch.setattr(
            Session, "_draw", lambda session, *given: setattr(session, "form", Form.ROWS) or draw(session, *given)
        )
    with served(str(folder), tmp_path) as client:
        one_by_one = [
            client.embed([text], eta=math.inf, wire_type=WireType.FP32, progress=None).values[0] for text in texts
        ]
        routed = {entry.route for entry in client.ledger.frames()}
    assert "embeddings" in routed
    assert np.array_equal(np.stack(one_by_one), expected)


def test_padding_changes_nothing_but_rounding(data_dir: Path, api_key: str, tmp_path: Path) -> None:
    texts = [text for (text,) in TEXTS.texts]
    with customer(data_dir, api_key, tmp_path / "home") as client:
        together = client.embed(texts, eta=math.inf, progress=None)
    with customer(data_dir, api_key, tmp_path / "other") as client:
        alone = [client.embed([text], eta=math.inf, progress=None).values[0] for text in texts]
    assert together.sent == len(set(texts)) < len(texts)
    assert np.abs(together.values - np.stack(alone)).max() < 1e-5


@pytest.mark.parametrize("embed", [by_sdk, by_gateway])
@pytest.mark.parametrize("name", SETTINGS)
def test_every_byte_is_accounted_for(
    name: str, embed: Embed, data_dir: Path, api_key: str, tmp_path: Path, watched: Watched
) -> None:
    check_embedded(name, embed, data_dir, api_key, tmp_path, watched)


def check_embedded(name: str, embed: Embed, data_dir: Path, api_key: str, tmp_path: Path, watched: Watched) -> None:
    spec = settle_embedding(FinetuneSpec(privacy=SETTINGS[name]))
    distinct = Dataset(tuple(dict.fromkeys(TEXTS.texts)))
    with customer(data_dir, api_key, tmp_path / "home") as client:
        with closing(RecordingTransport(client.transport, tmp_path / "asked")) as recorder:
            asking = Client(transport=recorder, home=tmp_path / "home", device="cpu")
            first, again = (embed(asking, TEXTS, SETTINGS[name], "none") for _ in range(2))
        model = "tiny"
        state = RunState(run="", data_digest="", spec=spec.model_copy(update={"model": model}))
        due = Due(routes.EMBEDDINGS, {"model": model})
        check_queries_accounted(
            client, state, watched, distinct, tmp_path / "asked", run=f"embed/{model}", due=due, by_length=True
        )
        frames = [frame for frame in read_recording(tmp_path / "asked") if frame.direction is Direction.UP]
        if name != "clear ids":
            check_no_canary(frames, client)
        # each once, in both calls
        assert sum(entry.texts for entry in client.ledger.frames() if entry.route == "embeddings") == len(distinct)
    assert np.array_equal(first, again)


def test_a_text_that_leaves_as_it_is_is_caught(
    data_dir: Path, api_key: str, tmp_path: Path, watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted fault: a session that goes round its privatizer."""
    draw = Session._draw

    def round_it(session: Session, texts: Texts, look: int | None) -> Drawn:
        drawn = draw(session, texts, look)
        return replace(drawn, release=replace(drawn.release, payload=texts.tokens))

    monkeypatch.setattr(Session, "_draw", round_it)
    with pytest.raises(AssertionError, match="a text left with other content"):
        check_embedded("ids", by_sdk, data_dir, api_key, tmp_path, watched)


def test_looks_by_other_noise_leave_in_other_orders(data_dir: Path, api_key: str, tmp_path: Path) -> None:
    """Else their rows could be laid side by side: the first of one frame beside the first of the other."""
    texts = Dataset(tuple((f"w{number} w{number + 1}",) for number in range(24)))
    looks = [TextToText(eta=6), TextToText(eta=5), Vector(eta=6), Vector(eta=6, clip=True), NoPrivacy()]

    def order(client: Client, privacy: PrivacySpec) -> list[int]:
        road = Embeddings.open(client, FinetuneSpec(privacy=privacy), Silent(), denoiser="none")
        return road.ask(road.read_all(texts), texts.texts, Silent()).order.tolist()

    with customer(data_dir, api_key, tmp_path / "home") as client:
        orders = [order(client, privacy) for privacy in looks]
        assert order(client, looks[0]) == orders[0]
    assert all(sorted(each) == list(range(24)) for each in orders)
    for number, one in enumerate(orders):
        for other in orders[:number]:  # two orders by chance have about one text in the same place
            assert sum(a == b for a, b in zip(one, other, strict=True)) < 8


@pytest.mark.parametrize("name", SETTINGS)
def test_of_a_text_its_embedding_is_kept_and_nothing_that_follows_from_the_secret(
    name: str, data_dir: Path, api_key: str, tmp_path: Path
) -> None:
    """A token's noisy row is a hundred times as long as its part of an embedding: a folder would fill up with them."""
    texts = [text for (text,) in dict.fromkeys(TEXTS.texts)]
    with customer(data_dir, api_key, tmp_path / "home") as client:
        client.embed(texts, privacy=SETTINGS[name], denoiser="none", progress=None)
    with closing(sqlite3.connect(tmp_path / "home" / "vault.sqlite")) as vault:
        ((kept,),) = vault.execute("SELECT count(*) FROM sealed").fetchall()
    assert kept == len(texts)


def test_an_answer_that_no_embedding_is_spoils_no_later_one(
    data_dir: Path, api_key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kept, it would be what this text is answered with for good; and what one vendor answered is not another's."""
    infer, at_vendor = QueryLink.infer, Vector(eta=6)

    def spoilt(link: QueryLink, sent: Any) -> torch.Tensor:
        return infer(link, sent).index_fill(0, torch.tensor([1]), 3e38)

    with customer(data_dir, api_key, tmp_path / "home") as client:
        with monkeypatch.context() as patched:
            patched.setattr(QueryLink, "infer", spoilt)
            with pytest.raises(VendorError, match=r"numbers as large as 3e\+38"):
                client.embed(TEST, privacy=at_vendor, denoiser="none", progress=None)
        found = client.embed(TEST, privacy=at_vendor, denoiser="none", progress=None)
        assert found.sent == len(TEST)
        assert np.abs(found.values).max() < 100
        assert not client.embed(TEST, privacy=at_vendor, denoiser="none", progress=None).sent
        monkeypatch.setattr(type(client.transport), "peer", "https://another.example", raising=False)
        elsewhere = Client(transport=client.transport, home=tmp_path / "home", device="cpu")
        assert elsewhere.embed(TEST, privacy=at_vendor, denoiser="none", progress=None).sent == len(TEST)


def test_embeddings_are_no_wider_than_the_model(
    data_dir: Path, api_key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an answer may take of memory follows from what the vendor says of its width."""
    expect = Reply.expect

    def answered(response: Reply, kind: Any) -> Any:
        found = expect(response, kind)
        if not isinstance(found, ModelList):
            return found
        (own,) = found.models
        wide = own.require_embedding().model_copy(update={"width": 4096})
        return ModelList(models=(own.model_copy(update={"embedding": wide}),))

    monkeypatch.setattr(Reply, "expect", answered)
    with customer(data_dir, api_key, tmp_path / "home") as client:
        with pytest.raises(VendorError, match="has width 32, and its embeddings have 4096"):
            client.embed(TEST, eta=6, denoiser="none", progress=None)
        assert not any(entry.texts for entry in client.ledger.frames())


def test_a_vendor_sees_a_query_like_others(data_dir: Path, api_key: str, tmp_path: Path) -> None:
    with (
        customer(data_dir, api_key, tmp_path / "home") as client,
        closing(RecordingTransport(client.transport, tmp_path / "asked")) as recorder,
    ):
        asking = Client(transport=recorder, home=tmp_path / "home", device="cpu")
        found = asking.embed(TEST, privacy=Vector(eta=6), denoiser="none", progress=None)
    seen = Transcript.recorded(tmp_path / "asked")
    assert [(each.source, each.number) for each in seen.releases()] == [(f"model/{found.model}/embeddings", 0)]
    (answer,) = seen.answers()
    assert sorted(map(tuple, answer.output.tolist())) == sorted(map(tuple, found.values.tolist()))


@pytest.mark.parametrize(
    ("texts", "settings", "error", "said"),
    [
        ([("a", "b")], {}, DataError, "single texts"),
        (["w1", "", "w2"], {}, DataError, "1 of 3 texts contain no tokens; the first is text 2"),
        (["w1", 3], {}, DataError, "Text 2 is of type int"),
        (["w1", "w2 \ud800"], {}, DataError, "Row 2 holds half of a surrogate pair"),
        (["w1"], {"privacy": TextToText(eta=6, cti=CtiSpec())}, ConfigError, "cti"),
        (["w1 w2 w3"], {"eta": 6, "privacy_budget": 5.0}, BudgetError, "budget"),
        (["w1"], {"eta": math.inf, "privacy_budget": 5.0}, BudgetError, "budget of 5"),
        (["w1"], {"privacy": TextToText(eta=6, noise="gone")}, ConfigError, "gone"),
        (["w1"], {"eta": 6, "model": "other"}, ModelError, "other"),
    ],
)
def test_bad_input_is_refused_before_a_text_leaves(
    texts: Any, settings: Any, error: Any, said: str, data_dir: Path, api_key: str, tmp_path: Path
) -> None:
    given = settings if "privacy" in settings else {"eta": 6} | settings
    with customer(data_dir, api_key, tmp_path / "home") as client:
        with pytest.raises(error, match=said):
            client.embed(texts, denoiser="none", progress=None, **given)
        assert not any(entry.texts for entry in client.ledger.frames())


def test_a_text_in_the_place_of_texts_is_not_told(data_dir: Path, api_key: str, tmp_path: Path) -> None:
    text = "diabetes"
    with customer(data_dir, api_key, tmp_path / "home") as client:
        with pytest.raises(
            DataError, match=r"file's name \(8 characters\) names no file. Pass a path.*list of"
        ) as caught:
            client.embed(text, eta=6, denoiser="none", progress=None)
        assert text not in "".join(traceback.format_exception(caught.value))
        (tmp_path / "notes.csv").write_text("text\nw1\n")
        assert client.embed(str(tmp_path / "notes.csv"), eta=6, denoiser="none", progress=None).sent == 1


def test_no_texts_have_no_embeddings(data_dir: Path, api_key: str, tmp_path: Path) -> None:
    with customer(data_dir, api_key, tmp_path / "home") as client:
        found = client.embed([], eta=6, denoiser="none", progress=None)
    assert (found.values.shape, found.sent, found.uplink_bytes) == ((0, 32), 0, 0)


def test_long_texts_lose_their_end_and_are_counted(data_dir: Path, api_key: str, tmp_path: Path) -> None:
    with customer(data_dir, api_key, tmp_path / "home") as client:
        with pytest.warns(CutlayerWarning, match="1 of 2 texts are truncated"):
            found = client.embed(["w1 w2 w3 w4", "w1"], eta=math.inf, max_length=4, progress=None)
        same = client.embed(["w1 w2"], eta=math.inf, progress=None)
    assert found.cut_texts == 1
    assert np.array_equal(found.values[0], same.values[0])
    assert same.sent == 0


def test_what_a_vendor_does_not_take_at_a_time_is_cut_off_and_told(
    data_dir: Path,
    api_key: str,
    tmp_path: Path,
    change_settings: Callable[..., None],  # noqa: F811 - the fixture
) -> None:
    """It was refused when others had left."""
    change_settings(data_dir, limits={"max_rows_per_step": 20})
    with customer(data_dir, api_key, tmp_path / "home") as client:
        with pytest.warns(CutlayerWarning, match="1 of 3 texts are truncated to the first 18 tokens"):
            found = client.embed(["w5", "w1 " * 40, "w2"], eta=math.inf, progress=None)
        same = client.embed(["w1 " * 18], eta=math.inf, progress=None)
        frames = [(entry.texts, entry.status) for entry in client.ledger.frames() if entry.route == "embeddings"]
    assert (found.cut_texts, found.tokens, found.sent) == (1, 20, 3)
    assert (same.sent, frames) == (0, [(2, 200), (1, 200)])
    assert np.array_equal(found.values[1], same.values[0])


@pytest.mark.parametrize("positions", [20, 64])
def test_what_words_become_is_cut_and_told_by_the_models_tokens(
    positions: int,
    data_dir: Path,
    api_key: str,
    tmp_path: Path,
    change_settings: Callable[..., None],  # noqa: F811 - the fixture
) -> None:
    """A number leaves as it is: one word, and three tokens."""
    change_settings(data_dir, limits={"max_rows_per_step": 100 if positions == 64 else positions})
    longest, privacy = positions - 2, Words(eta=6, space="starter")
    texts = ["3.14 " * (longest // 3), "3.14 " * (longest // 3 + 1), "3.14 " * 200, "3.14"]
    with (
        customer(data_dir, api_key, tmp_path / "home") as client,
        closing(RecordingTransport(client.transport, tmp_path / "asked")) as recorder,
    ):
        asking = Client(transport=recorder, home=tmp_path / "home", device="cpu")
        with pytest.warns(CutlayerWarning, match=f"2 of 4 texts are truncated to the first {longest} tokens"):
            found = asking.embed(texts, privacy=privacy, denoiser="none", progress=None)
    frames = [frame for frame in read_recording(tmp_path / "asked") if frame.direction is Direction.UP]
    payloads = [unpack(frame.tensors()) for frame in frames if frame.route.name == "embeddings"]
    left = sorted(
        length for each in payloads if isinstance(each, Tokens) for length in each.segments[0].lengths.tolist()
    )
    whole = longest // 3 * 3
    assert left == [3, whole, longest, longest]
    assert (found.cut_texts, found.tokens) == (2, 3 + whole + 2 * longest)


def test_a_frame_takes_no_more_than_the_vendor_does(
    data_dir: Path,
    api_key: str,
    tmp_path: Path,
    change_settings: Callable[..., None],  # noqa: F811 - the fixture
) -> None:
    texts = [f"w{number} w{number % 7}" for number in range(200)]
    change_settings(data_dir, limits={"max_rows_per_step": 100})
    with customer(data_dir, api_key, tmp_path / "home") as client:
        found = client.embed(texts, eta=math.inf, progress=None)
        frames = [entry.texts for entry in client.ledger.frames() if entry.route == "embeddings"]
    assert sum(frames) == found.sent == 200
    assert max(frames) * 4 <= 100


@pytest.mark.parametrize("name", ["ids", "rows"])
def test_a_frame_has_no_more_bytes_than_the_vendor_takes(
    name: str,
    data_dir: Path,
    api_key: str,
    tmp_path: Path,
    change_settings: Callable[..., None],  # noqa: F811 - the fixture
) -> None:
    """Rows of wide models are more bytes than the vendor takes long before they are too many positions."""
    texts, limit = [f"w{number} w{number % 7}" for number in range(200)], 4096
    change_settings(data_dir, limits={"max_step_bytes": limit})
    with customer(data_dir, api_key, tmp_path / "home") as client:
        found = client.embed(texts, privacy=SETTINGS[name], denoiser="none", progress=None)
        frames = [entry for entry in client.ledger.frames() if entry.route == "embeddings"]
        assert sum(entry.texts for entry in frames) == found.sent == 200
        assert max(sum(entry.payload_bytes.values()) for entry in frames) <= limit
        long = " ".join(f"w{number}" for number in range(60))
    if name == "ids":
        return
    with customer(data_dir, api_key, tmp_path / "other") as client:
        with pytest.warns(CutlayerWarning, match="1 of 201 texts are truncated to the first 40 tokens"):
            found = client.embed([*texts, long], privacy=SETTINGS[name], denoiser="none", progress=None)
        assert (found.cut_texts, found.sent) == (1, 201)


def test_what_was_answered_before_a_stop_is_not_asked_again(
    data_dir: Path,
    api_key: str,
    tmp_path: Path,
    change_settings: Callable[..., None],  # noqa: F811 - the fixture
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = [f"w{number} w{number % 7}" for number in range(60)]
    change_settings(data_dir, limits={"max_rows_per_step": 100})
    infer, calls = QueryLink.infer, []

    def fails_at_third(link: QueryLink, sent: Any) -> torch.Tensor:
        calls.append(len(sent))
        if len(calls) == 3:
            raise VendorError("It is gone.", status=None)
        return infer(link, sent)

    with customer(data_dir, api_key, tmp_path / "home") as client:
        with monkeypatch.context() as patch:
            patch.setattr(QueryLink, "infer", fails_at_third)
            with pytest.raises(VendorError, match="gone"):
                client.embed(texts, eta=6, denoiser="none", progress=None)
        rest = client.embed(texts, eta=6, denoiser="none", progress=None)
    assert rest.sent == 60 - sum(calls[:2])
    with customer(data_dir, api_key, tmp_path / "other") as client:
        assert np.abs(client.embed(texts, eta=6, denoiser="none", progress=None).values - rest.values).max() < 1e-5


def test_the_embedded_model_is_sentence_transformers_own(tmp_path: Path) -> None:
    """Its folder says how its embeddings are made, and how much of a text it reads."""
    whole = SentenceTransformer(resolve("starter"), device="cpu")
    texts = ["A cat sat.", "She wrote a long letter to the editor about the new road.", "word " * 400]
    with served("starter", tmp_path) as client, pytest.warns(CutlayerWarning, match="1 of 3"):
        found = client.embed(texts, eta=math.inf, progress=None)
    assert np.abs(found.values - whole.encode(texts)).max() <= 1e-5


@pytest.mark.parametrize(
    ("modules", "pooling", "said"),
    [
        (["Transformer", "Pooling", "Dense"], {"pooling_mode_mean_tokens": True}, "module 'Dense'"),
        (["Transformer"], {}, "names no Pooling"),
        (["Transformer", "Pooling"], {"pooling_mode_weightedmean_tokens": True}, "weightedmean"),
        (["Transformer", "Pooling"], {"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}, "mean.*max"),
        (["Transformer", "Pooling"], {"pooling_mode": "lasttoken"}, EmbeddingSpec(width=16, pooling="last")),
        (
            ["Transformer", "Pooling", "Normalize"],
            {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False},
            EmbeddingSpec(width=16, pooling="cls", normalize=True),
        ),
    ],
)
def test_a_folder_says_how_its_embeddings_are_made(
    modules: list[str], pooling: dict[str, Any], said: str | EmbeddingSpec, tmp_path: Path
) -> None:
    model = make_model("bert", Head.CLASSIFICATION)
    listed = [{"type": f"sentence_transformers.models.{name}", "path": f"{name}"} for name in modules]
    (tmp_path / "Pooling").mkdir()
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    (tmp_path / "Pooling" / "config.json").write_text(json.dumps(pooling))
    if isinstance(said, str):
        with pytest.raises(ModelError, match=said):
            embedding_spec(str(tmp_path), model)
    else:
        assert embedding_spec(str(tmp_path), model) == said
    (tmp_path / "modules.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be read"):
        embedding_spec(str(tmp_path), model)


def test_a_model_whose_embeddings_are_not_supported_serves_all_else(tmp_path: Path) -> None:
    """Its vendor is told so at once, and a customer before anything leaves."""
    folder = write_model("bert", tmp_path / "model")
    (folder / "modules.json").write_text('[{"type": "sentence_transformers.models.Dense", "path": "2_Dense"}]')
    with ExitStack() as stack:
        with pytest.warns(CutlayerWarning, match="offered without embeddings.*'Dense'"):
            client = stack.enter_context(served(str(folder), tmp_path))
        with pytest.raises(ModelError, match="offers no embeddings of model"):
            client.embed(["a"], eta=6, denoiser="none", progress=None)
        assert not any(entry.texts for entry in client.ledger.frames())
        made = finetune(client, train=corpus(40, 1, pairs=False), test=corpus(10, 2, pairs=False))
    assert made.adapter_id


@pytest.mark.parametrize(
    ("error", "offline", "said"),
    [
        (LocalEntryNotFoundError("away"), False, "The hub does not answer, and modules.json of 'org/model'"),
        (LocalEntryNotFoundError("away"), True, None),
        (EntryNotFoundError("404"), False, None),
    ],
)
def test_a_hub_that_does_not_answer_is_no_answer(
    error: Exception, offline: bool, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that fails while a vendor is set up must not decide how its model pools."""

    def asked(*given: str) -> str:
        raise error

    monkeypatch.setattr("cutlayer.models.embedding.hf_hub_download", asked)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
    model = make_model("bert", Head.CLASSIFICATION)
    if said is None:
        assert embedding_spec("org/model", model).pooling == "mean"
    else:
        with pytest.raises(ModelError, match=said):
            embedding_spec("org/model", model)


@pytest.mark.parametrize("pooling", ["mean", "cls", "last", "max"])
def test_pooling_reads_no_padding(pooling: Any) -> None:
    mask = torch.tensor([[1, 1, 1, 0], [0, 0, 1, 1], [0, 1, 1, 0]])
    hidden = torch.full((3, 4, 2), torch.nan).masked_fill(mask[:, :, None].bool(), 0)
    hidden += torch.arange(4.0)[None, :, None]
    expected = {"mean": [1, 2.5, 1.5], "cls": [0, 2, 1], "last": [2, 3, 2], "max": [2, 3, 2]}[pooling]
    found = pool(hidden.nan_to_num(99), Inputs(mask, mask.cumsum(1)), pooling)
    assert found.tolist() == [[value, value] for value in expected]
