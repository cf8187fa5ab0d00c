"""What a gateway answers, and what it refuses before a text leaves."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import math
import time
import warnings
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cutlayer.core import (
    AuthError,
    BudgetError,
    ConfigError,
    CutlayerWarning,
    DataError,
    ModelError,
    PrivacyError,
    StorageError,
    VendorError,
)
from cutlayer.customer import Client
from cutlayer.customer import embed as embedding
from cutlayer.customer.embed import Embeddings
from cutlayer.data import Dataset
from cutlayer.gateway import GatewaySettings, make_key
from cutlayer.gateway.answers import error_for
from cutlayer.gateway.requests import eta_of
from cutlayer.privacy import Ledger, NoPrivacy, PrivacySpec, TextToText, Vector, Words
from cutlayer.wire import Reply, routes
from cutlayer.wire.messages import ModelList
from cutlayer.wire.recording import Direction, read_recording
from cutlayer.wire.transports import RecordingTransport
from tests.unit.gateway.asked import Asking, gateway_of, values_of

TEXTS = ["w1 w2 w3", "w4", "w5 w6"]


def code(answer: Any) -> tuple[int, str | None]:
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert all(text not in error["message"] for text in ("w1", "w7", "secret"))
    return answer.status_code, error["code"]


def test_embeddings_are_the_sdks(client: Client) -> None:
    wanted = client.embed(TEXTS, eta=6, denoiser="none", progress=None)
    with gateway_of(client) as asking:
        answer = asking.embed(TEXTS)
        assert np.array_equal(np.array(values_of(answer), dtype=np.float32), wanted.values)
        content = answer.json()
        assert (content["object"], content["model"]) == ("list", "tiny")
        assert content["usage"] == {"prompt_tokens": 6, "total_tokens": 6}
        assert answer.headers["X-Cutlayer-Eta"] == "6"
        packed = asking.embed(TEXTS[0], encoding_format="base64").json()["data"][0]["embedding"]
        assert np.array_equal(np.frombuffer(base64.b64decode(packed), dtype="<f4"), wanted.values[0])
    entries = [entry for entry in client.ledger.frames() if entry.route == routes.EMBEDDINGS.name]
    assert sum(entry.texts for entry in entries) == 3  # what left once leaves no more


def test_models_have_names_that_applications_know(client: Client) -> None:
    with gateway_of(client, alias=("text-embedding-3-small=tiny",)) as asking:
        listed = asking.send("GET", "/v1/models").json()
        assert [each["id"] for each in listed["data"]] == ["text-embedding-3-small", "tiny"]
        assert asking.send("GET", "/v1/models/tiny").json()["object"] == "model"
        answer = asking.embed("w1", model="text-embedding-3-small")
        assert values_of(answer) == values_of(asking.embed("w1"))
        assert answer.json()["model"] == "text-embedding-3-small"
        assert code(asking.send("GET", "/v1/models/other")) == (404, "model_not_found")
    with pytest.raises(ConfigError, match="NAME=MODEL"), gateway_of(client, alias=("a=b", "a=c")):
        pass
    with gateway_of(client, alias=("a=b",)) as asking, pytest.raises(ConfigError, match="one of the vendor's models"):
        asking.app.state.gateway.open()


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ({"input": ""}, (400, "invalid_input")),
        ({"input": []}, (400, "invalid_input")),
        ({"input": ["w7", ""]}, (400, "invalid_input")),
        ({"input": ["w7", " "]}, (400, "invalid_input")),
        ({"input": ["w7", "\ud800"]}, (400, "invalid_input")),
        ({"input": ["w7", 3]}, (400, "invalid_input")),
        ({"input": {"w7": "w7"}}, (400, "invalid_input")),
        ({"input": None}, (400, "invalid_input")),
        ({"input": ["w7"] * 2049}, (400, "invalid_input")),
        ({"input": [[5, 6]]}, (400, "token_ids_not_taken")),
        ({"input": [5, 6]}, (400, "token_ids_not_taken")),
        ({"input": "w7 " * 200}, (400, "context_length_exceeded")),
        ({"input": "w7", "model": "other"}, (404, "model_not_found")),
        ({"input": "w7", "model": 3}, (400, "invalid_value")),
        ({"input": "w7", "dimensions": 0}, (400, "invalid_dimensions")),
        ({"input": "w7", "dimensions": 33}, (400, "invalid_dimensions")),
        ({"input": "w7", "dimensions": 31}, (400, "invalid_dimensions")),
        ({"input": "w7", "dimensions": True}, (400, "invalid_value")),
        ({"input": "w7", "encoding_format": "hex"}, (400, "invalid_value")),
        ({"input": "w7", "secret w7": 1}, (400, "unknown_field")),
        ({"input": "w7", "stream": True}, (400, "unknown_field")),
    ],
)
def test_what_cannot_be_answered_is_refused_before_a_text_leaves(
    body: dict[str, Any], wanted: tuple[int, str], client: Client
) -> None:
    with gateway_of(client) as asking:
        sent = json.dumps({"model": "tiny"} | body).encode()
        assert code(asking.send("POST", "/v1/embeddings", content=sent)) == wanted
    assert not any(entry.texts for entry in client.ledger.frames())


@pytest.mark.parametrize("content", [b"", b"w7", b"[1]", b'{"input": "w7"}', b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_request_is_refused(content: bytes, client: Client) -> None:
    with gateway_of(client) as asking:
        answer = asking.send("POST", "/v1/embeddings", content=content)
    assert answer.status_code == 400
    assert "w7" not in answer.text
    assert ("JSON object" in answer.json()["error"]["message"]) == (content == b"[1]")


def test_eta_may_be_lowered_and_not_raised(client: Client) -> None:
    with gateway_of(client) as asking:
        lower = asking.embed(TEXTS, headers={"X-Cutlayer-Eta": "3"})
        assert lower.headers["X-Cutlayer-Eta"] == "3"
        wanted = client.embed(TEXTS, eta=3, denoiser="none", progress=None).values
        assert np.array_equal(np.array(values_of(lower), dtype=np.float32), wanted)
        for header, said in (
            ("6.5", "eta_too_high"),
            ("inf", "eta_too_high"),
            ("0", "invalid_eta"),
            ("x", "invalid_eta"),
        ):
            assert code(asking.embed("w9", headers={"X-Cutlayer-Eta": header})) == (400, said)
        assert code(asking.embed("w9", headers={"X-Cutlayer-Eta": "nan"})) == (400, "invalid_eta")
    assert [line.largest_eta for line in client.ledger.summary().mechanisms] == [3]


@pytest.mark.parametrize("eta", [66.6666667, 0.01953125, 0.1 + 0.2])
def test_the_eta_of_an_answer_may_be_sent_back(eta: float, client: Client) -> None:
    with gateway_of(client, TextToText(eta=eta)) as asking:
        told = asking.embed("w1").headers["X-Cutlayer-Eta"]
        assert float(told) == eta
        assert asking.embed("w1", headers={"X-Cutlayer-Eta": told}).headers["X-Cutlayer-Eta"] == told
    assert [entry.texts for entry in client.ledger.frames() if entry.texts] == [1]


def test_lowered_etas_together_cost_at_most_twice_the_gateways() -> None:
    """However finely applications divide it, each other eta would be another look at the same text."""
    asked = [6 - number / 1000 for number in range(6000)]
    found = {eta_of(f"{eta}", most=6) for eta in asked}
    assert found == {6 / 2**halved for halved in range(14)}
    assert sum(found) < 2 * 6
    assert all(eta_of(f"{eta}", most=6) <= eta for eta in asked)
    assert [eta_of(header, most=6) for header in (None, "6", "5.9", "3", "2.9")] == [6, 6, 3, 3, 1.5]


@pytest.mark.parametrize("privacy", [NoPrivacy(), TextToText(eta=6), Vector(eta=6, clip=True, noise_window=2)])
def test_what_leaves_is_what_the_answer_says(privacy: PrivacySpec, client: Client) -> None:
    """At a gateway that hides nothing, too: a lower eta is then what `--eta` with that number is."""
    with gateway_of(client, privacy) as asking:
        answer = asking.embed(TEXTS, headers={"X-Cutlayer-Eta": "3"})
        assert answer.headers["X-Cutlayer-Eta"] == "3"
        assert asking.embed("w9", headers={"X-Cutlayer-Eta": "1e-320"}).status_code in (200, 400)
    (left,) = [line for line in client.ledger.summary().mechanisms if line.largest_eta == 3]
    assert left.mechanism == ("text-to-text" if isinstance(privacy, NoPrivacy | TextToText) else "vector+clip")
    given = TextToText(eta=3) if isinstance(privacy, NoPrivacy) else privacy.model_copy(update={"eta": 3})
    wanted = client.embed(TEXTS, privacy=given, denoiser="none", progress=None)
    assert wanted.sent == 0
    assert np.array_equal(np.array(values_of(answer), dtype=np.float32), wanted.values)


def test_a_request_has_2048_texts_at_most(client: Client) -> None:
    with gateway_of(client) as asking:
        assert len(values_of(asking.embed(["w1"] * 2048))) == 2048
        assert code(asking.embed(["w1"] * 2049)) == (400, "invalid_input")


def test_dimensions_are_cut_off_only_where_that_was_allowed(client: Client) -> None:
    with gateway_of(client, allow_truncation=True) as asking:
        whole = np.array(values_of(asking.embed("w1")))
        cut = np.array(values_of(asking.embed("w1", dimensions=5)))
    first = whole[:, :5] / np.linalg.norm(whole[:, :5])
    assert np.allclose(cut, first, atol=1e-6)


def test_long_texts_lose_their_end_only_where_that_was_allowed(client: Client) -> None:
    with gateway_of(client, NoPrivacy(), truncate=True) as asking:
        found = asking.embed(["w7 " * 200, "w7"])
    longest = client.embed(["w7 " * 200], eta=math.inf, progress=None)
    assert np.array_equal(np.array(values_of(found), dtype=np.float32)[0], longest.values[0])
    assert found.json()["usage"]["prompt_tokens"] == longest.tokens + 1


def test_ids_of_the_models_own_tokenizer_are_taken_where_they_were_asked_for(client: Client) -> None:
    with gateway_of(client, token_ids=True) as asking:
        tokenizer = _tokenizer(asking)
        ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in TEXTS]
        assert values_of(asking.embed(ids)) == values_of(asking.embed(TEXTS))
        assert values_of(asking.embed(ids[0])) == values_of(asking.embed(TEXTS[0]))
        for wrong in ([[len(tokenizer)]], [[-1]], [[tokenizer.cls_token_id]], [ids[0], []], [[True]]):
            assert code(asking.embed(wrong)) == (400, "invalid_input")


def _tokenizer(asking: Asking) -> Any:
    gateway = asking.app.state.gateway
    gateway.open()
    ((_, _, road),) = gateway.joiner._roads._open
    return road.archive.tokenizer


def test_the_gateway_has_a_key_of_its_own(client: Client, api_key: str) -> None:
    with gateway_of(client) as asking:
        for key in ("", "x", api_key):
            assert code(Asking(asking.app, key).embed("w1")) == (401, "invalid_api_key")
        assert Asking(asking.app, "").send("GET", "/healthz").json() == {"status": "ok"}
        assert code(Asking(asking.app, "").send("GET", "/ledger")) == (401, "invalid_api_key")
        values_of(asking.embed("w1"))
        key = make_key(client.home)  # while it runs
        assert code(asking.embed("w1")) == (401, "invalid_api_key")
        values_of(Asking(asking.app, key).embed("w1"))
    kept = (client.home.path / "gateway.json").read_text()
    assert key not in kept
    assert (client.home.path / "gateway.json").stat().st_mode & 0o077 == 0


def test_without_a_key_it_does_not_start(client: Client) -> None:
    from cutlayer.customer import FinetuneSpec
    from cutlayer.gateway import create_app

    with pytest.raises(ConfigError, match="cutlayer gateway key"):
        create_app(client, FinetuneSpec(privacy=TextToText(eta=6)))


def test_a_model_that_is_taken_away_takes_no_other_with_it(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A vendor that starts again with fewer models; one without embeddings is no model here."""
    (own,) = client.gate().send(routes.MODELS).expect(ModelList).models
    others = {name: own.model_copy(update={"name": name}) for name in ("taken", "silent")}
    others["silent"] = others["silent"].model_copy(update={"embedding": None})
    listed = (own, *others.values())
    expect = Reply.expect

    def answered(response: Reply, kind: Any) -> Any:
        return ModelList(models=listed) if kind is ModelList else expect(response, kind)

    monkeypatch.setattr(Reply, "expect", answered)
    monkeypatch.setattr("cutlayer.gateway.app._SECONDS_BETWEEN_LOOKS", -1.0)
    with gateway_of(client, alias=("old=taken", "new=tiny")) as asking:

        def names() -> list[str]:
            return [each["id"] for each in asking.send("GET", "/v1/models").json()["data"]]

        assert names() == ["new", "old", "taken", "tiny"]
        listed = (own,)
        assert names() == ["new", "tiny"]
        assert code(asking.embed("w1", model="old")) == (404, "model_not_found")
        assert len(values_of(asking.embed("w1", model="new"))) == 1


def test_a_model_that_was_not_named_is_not_offered(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """An eta hides much with one table and nothing with another, and a vendor may add models at any time."""
    (own,) = client.gate().send(routes.MODELS).expect(ModelList).models
    other, expect = own.model_copy(update={"name": "other"}), Reply.expect

    def answered(response: Reply, kind: Any) -> Any:
        return ModelList(models=(other, own)) if kind is ModelList else expect(response, kind)

    monkeypatch.setattr(Reply, "expect", answered)
    for alias, wanted in (((), ["tiny"]), (("new=other",), ["new", "other"]), (("a=tiny", "other=other"), None)):
        with gateway_of(client, alias=alias) as asking:
            listed = [each["id"] for each in asking.send("GET", "/v1/models").json()["data"]]
            assert listed == (wanted or ["a", "other", "tiny"])
            refused = asking.embed("w1", model="other" if wanted == ["tiny"] else "third")
            assert code(refused) == (404, "model_not_found")
            assert "--alias NAME=MODEL" in refused.json()["error"]["message"]
    assert not any(entry.texts for entry in client.ledger.frames())


def test_a_text_far_too_long_is_not_read_to_its_end(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    reading = Embeddings.read

    def noting(road: Embeddings, dataset: Dataset) -> Any:
        read.append(max(len(text) for (text,) in dataset.texts))
        return reading(road, dataset)

    monkeypatch.setattr(Embeddings, "read", noting)
    long, longest = "w5 " * 40_000, 62  # of 64 positions two are for special tokens
    with gateway_of(client) as asking:
        answer = asking.embed(["w7", long])
        assert code(answer) == (400, "context_length_exceeded")
        assert "input[1] has 120000 characters" in answer.json()["error"]["message"]
        assert not read
    with gateway_of(client, truncate=True) as asking:
        assert values_of(asking.embed(long)) == values_of(asking.embed("w5 " * longest))
        assert max(read) <= 64 * longest


def test_the_ledger_is_read_once_for_all_who_wait(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """One reading at a time, and one more for those who came meanwhile: who polls locks nobody out."""
    reading, most, times, summary = [0], [0], [0], Ledger.summary

    def slowly(ledger: Ledger) -> Any:
        reading[0] += 1
        times[0] += 1
        most[0] = max(most[0], reading[0])
        time.sleep(0.05)
        reading[0] -= 1
        return summary(ledger)

    monkeypatch.setattr(Ledger, "summary", slowly)
    with gateway_of(client) as asking:
        answers = asyncio.run(asking._send([("GET", "/ledger", {})] * 40))
    assert [answer.status_code for answer in answers] == [200] * 40
    assert most == [1]
    assert 1 <= times[0] <= 5


def test_the_ledger_is_shown(client: Client) -> None:
    with gateway_of(client) as asking:
        assert asking.send("GET", "/ledger").json()["mechanisms"] == []
        values_of(asking.embed(TEXTS))
        told = asking.send("GET", "/ledger").json()
        assert [line["texts"] for line in told["mechanisms"]] == [3]
        assert told["mechanisms"][0]["largest_eta"] == 6
        assert code(asking.send("DELETE", "/v1/models")) == (405, "method_not_allowed")
        assert code(asking.send("GET", "/v1/completions")) == (404, "not_found")


def test_the_ledger_is_shown_where_texts_left_as_they_are(client: Client) -> None:
    """JSON has no infinity; it is the word that `--eta` takes, as in `ledger show --json`."""
    with gateway_of(client, NoPrivacy()) as asking:
        values_of(asking.embed(TEXTS))
        told = asking.send("GET", "/ledger")
    assert told.status_code == 200
    assert [line["largest_eta"] for line in told.json()["mechanisms"]] == ["inf"]


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(
    ("method", "path", "wanted"),
    [
        ("POST", "/v1/chat/completions", (404, "not_found")),
        ("POST", "/v1/embeddings/", (404, "not_found")),
        ("POST", "/v1/embedding", (404, "not_found")),
        ("POST", "/healthz", (405, "method_not_allowed")),
        ("PUT", "/v1/embeddings", (405, "method_not_allowed")),
        ("POST", "/v1/models", (405, "method_not_allowed")),
        ("POST", "/v1/models/tiny", (405, "method_not_allowed")),
    ],
)
def test_a_body_for_no_route_is_not_read(
    method: str, path: str, wanted: tuple[int, str], chunked: bool, client: Client
) -> None:
    read: list[bytes] = []

    async def body() -> AsyncIterator[bytes]:
        read.append(b"w7")
        yield b"w7"

    with gateway_of(client) as asking:
        given: dict[str, Any] = {"content": body()} if chunked else {"json": {"input": "w7", "model": "tiny"}}
        answer = asking.send(method, path, **given)
        assert code(answer) == wanted
        assert "close" in answer.headers["Connection"]
        if answer.status_code == 405:
            assert f"This route accepts only {answer.headers['Allow']}." in answer.text
        assert not read
        if path != "/healthz":
            assert code(Asking(asking.app, "x").send(method, path, json={})) == (401, "invalid_api_key")


def test_a_large_body_is_refused_unread(client: Client) -> None:
    with gateway_of(client, max_body_bytes=2000) as asking:
        assert code(asking.embed("w7 " * 1000)) == (413, "too_large")
        assert code(asking.send("GET", "/v1/models", content=b"x")) == (413, "too_large")


def test_a_budget_is_kept_and_the_client_told_not_to_try_again(client: Client) -> None:
    with gateway_of(client, spec={"privacy_budget": 7.0}) as asking:
        values_of(asking.embed(TEXTS))
        answer = asking.embed(["w9", TEXTS[0]], headers={"X-Cutlayer-Eta": "3"})
        assert code(answer) == (403, "privacy_budget_exceeded")
        assert answer.headers["x-should-retry"] == "false"
        assert answer.json()["error"]["type"] == "permission_error"
    texts = sum(entry.texts for entry in client.ledger.frames() if entry.route == routes.EMBEDDINGS.name)
    assert texts == 3  # nothing of the batch left


def test_a_vendor_that_is_away_may_come_back(client: Client) -> None:
    for status, wanted in ((0, 503), (429, 503), (500, 503), (422, 502)):
        answer = error_for(VendorError("It refused.", status=status)).response()
        assert answer.status_code == wanted
        assert ("Retry-After" in answer.headers) == (wanted == 503)
        assert answer.headers.get("x-should-retry") == ("false" if wanted == 502 else None)


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (AuthError("No.", status=401), (502, "vendor_refused_key", False)),
        (BudgetError("Spent."), (403, "privacy_budget_exceeded", False)),
        (PrivacyError("It would be a second look."), (403, "privacy_refused", False)),
        (ModelError("It cannot be cut."), (502, "vendor_model_unusable", False)),
        (StorageError("The disk is full."), (507, "storage_unusable", False)),
        (DataError("No token."), (400, "invalid_input", None)),
        (ConfigError("No denoiser."), (400, "invalid_settings", None)),
        (VendorError("It refused.", status=422), (502, "vendor_refused", False)),
    ],
)
def test_what_no_second_try_mends_says_so(error: Exception, wanted: tuple[int, str, bool | None]) -> None:
    answer = error_for(error).response()
    status, named, again = wanted
    assert (answer.status_code, json.loads(bytes(answer.body))["error"]["code"]) == (status, named)
    assert answer.headers.get("x-should-retry") == (None if again is None else "false")


def test_the_applications_user_is_told_to_nobody(client: Client, tmp_path: Path) -> None:
    with closing(RecordingTransport(client.transport, tmp_path / "asked")) as recorder:
        asking_as = Client(transport=recorder, home=tmp_path / "home", device="cpu")
        with gateway_of(asking_as) as asking:
            values_of(asking.embed(TEXTS, user="Maria Weber"))
        frames = [frame for frame in read_recording(tmp_path / "asked") if frame.direction is Direction.UP]
    assert any(frame.route is routes.EMBEDDINGS for frame in frames)
    assert not any(b"Maria" in frame.body or "Maria" in str(frame.where) for frame in frames)
    assert not any(b"Maria" in path.read_bytes() for path in (tmp_path / "home").rglob("*") if path.is_file())


def test_mistakes_of_its_own_are_told_without_values(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    with gateway_of(client) as asking, caplog.at_level(logging.DEBUG):
        asking.app.state.gateway.joiner._roads.find = lambda *_, **__: 1 // len("")
        assert code(asking.embed("w7 secret")) == (500, "internal_error")
        asking.embed("w7 secret", user="secret")
    assert "ZeroDivisionError" in caplog.text
    assert "w7" not in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize("book", ["ledger", "vault"])
def test_a_full_disk_is_said_and_forgotten_when_there_is_room(
    client: Client, book: str, caplog: pytest.LogCaptureFixture
) -> None:
    many = [f"w{first} w{second}" for first in range(20) for second in range(20)]
    with gateway_of(client, Vector(eta=6)) as asking:
        values_of(asking.embed(TEXTS))
        full = (client.ledger if book == "ledger" else client.home.vault)._database._own()
        full.execute("PRAGMA max_page_count=1")  # no more than it has now
        answer = asking.embed(many)
        assert code(answer) == (507, "storage_unusable")
        assert answer.headers["x-should-retry"] == "false"
        assert "see its log" in answer.json()["error"]["message"]
        assert str(client.home.path) not in answer.text
        assert f"{book}.sqlite cannot be used: database or disk is full" in caplog.text
        assert "w19" not in caplog.text
        full.execute("PRAGMA max_page_count=1000000")
        assert len(values_of(asking.embed(many))) == len(many)


def test_words_are_drawn_from_texts_alone(client: Client) -> None:
    with gateway_of(client, Words(eta=6, space="starter"), token_ids=True) as asking:
        assert code(asking.embed([[5]])) == (400, "invalid_input")


def test_words_are_counted_as_the_models_tokens(client: Client) -> None:
    """A number leaves as it is: one word, and three tokens, of which the model reads 62."""
    privacy = Words(eta=6, space="starter")
    with gateway_of(client, privacy) as asking:
        refused = asking.embed(["3.14", "3.14 " * 21])
        assert code(refused) == (400, "context_length_exceeded")
        assert "input[1] has 63 tokens; this model's limit is 62 tokens" in refused.json()["error"]["message"]
        assert not any(entry.texts for entry in client.ledger.frames())
        assert asking.embed(["3.14", "3.14 " * 20]).json()["usage"]["prompt_tokens"] == 63
    with gateway_of(client, privacy, truncate=True) as asking:
        cut = asking.embed(["3.14", "3.14 " * 21])
        assert cut.json()["usage"]["prompt_tokens"] == 3 + 62


def test_of_words_that_leave_as_they_are_nothing_is_told(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    """An application sees to its own texts: what is in a request is in no log of the gateway's."""
    with warnings.catch_warnings(record=True) as told, gateway_of(client, Words(eta=6, space="starter")) as asking:
        warnings.simplefilter("always")
        values_of(asking.embed(["call 555 0199 now", "ask bob@example.org"]))
    assert not [str(each.message) for each in told if issubclass(each.category, CutlayerWarning)]
    assert "0199" not in caplog.text
    with pytest.warns(CutlayerWarning, match="of the kind number"):
        client.embed(["call 555 0199 now"], privacy=Words(eta=6, space="starter"), denoiser="none", progress=None)


def test_a_road_that_met_many_words_is_opened_anew(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "_MOST_WORDS", 40)
    with gateway_of(client, Words(eta=6, space="starter")) as asking:
        first, met = values_of(asking.embed("a first text")), []
        for number in range(12):
            values_of(asking.embed(" ".join(f"{number}{each}" for each in range(10))))
            roads = asking.app.state.gateway.joiner._roads
            met.append(max(len(road.session.reading.dictionary.lexicon) for *_, road in roads._open))
        assert max(met) < 70
        assert values_of(asking.embed("a first text")) == first


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match="requests_at_once"):
        GatewaySettings(requests_at_once=0)
