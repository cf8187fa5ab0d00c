"""Promise 1 where a decoder learns and writes on drawn words: nothing leaves but the ids that they make."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cutlayer.core import ConfigError, DataError, VendorError
from cutlayer.customer import Client, EntityMap, LanguageResult, Protected, Reconstruction, Sampling, reading
from cutlayer.customer.derived import prompt_reading, run_privatizing
from cutlayer.customer.handout import choose_model, fetch_archive
from cutlayer.customer.profile import Profile
from cutlayer.customer.progress import Silent
from cutlayer.data import UNCUT, Dataset
from cutlayer.models import Head
from cutlayer.models.load import load_model, load_tokenizer
from cutlayer.privacy import Words
from cutlayer.wire import Frame, decode_tensors, routes
from cutlayer.wire.recording import Direction, RecordedFrame, read_recording
from cutlayer.wire.transports import RecordingTransport
from tests.promises.runs import CANARIES, LANGUAGE, SEED, Sent, customer
from tests.promises.test_one_door import paired
from tests.promises.test_one_door_language import TEST, TRAIN
from tests.promises.test_one_door_words import CLEAR, ByNumber, released_ids
from tests.settings import specs

PROMPTS = [text for (text,) in TRAIN.texts[:6]]
BEAMS = Sampling(num_beams=3, max_new_tokens=5)
PAIRS = pytest.mark.parametrize("pairs", [False, True], ids=["texts", "pairs"])


@pytest.fixture(autouse=True)
def by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "load_tagger", lambda name: ByNumber())


@pytest.fixture
def data_dir(decoder_dir: Path) -> Path:
    return decoder_dir


@pytest.fixture
def words(decoder: Path, tmp_path: Path) -> dict[str, Any]:
    file = tmp_path / "public.tsv"
    lines = [f"w{number}\t{tag}\t1\n" for number in range(CLEAR) for tag in ("NOUN", "VERB", "PRON", "ADP")]
    file.write_text("".join(lines))
    return {"mechanism": "words", "space": str(decoder), "vocabulary": file, "eta": 6.0}


def tune(client: Client, settings: dict[str, Any], *, pairs: bool, **changes: Any) -> LanguageResult:
    training = LANGUAGE | {"max_length": 40}
    train, test = (paired(TRAIN), paired(TEST)) if pairs else (TRAIN, TEST)
    return client.finetune(
        train, objective="lm", test=test, seed=SEED, progress=None, **specs({**settings, **training, **changes})
    )


def words_in(decoder: Path, frames: Sequence[RecordedFrame]) -> list[str]:
    """The words that a vendor reads in what was sent, with its tokenizer."""
    ids = [frame.tensors()["ids"].long() for frame in frames if frame.body and "ids" in frame.tensors()]
    text = load_tokenizer(str(decoder)).decode(torch.cat(ids), skip_special_tokens=True)
    return re.findall(r"w\d+", text)


def check_no_canaries(decoder: Path, frames: Sequence[RecordedFrame]) -> None:
    assert not set(CANARIES) & set(words_in(decoder, frames)), "a canary left"


def asked(
    client: Client, adapter: str, folder: Path, *, prompts: Sequence[str] | Protected = PROMPTS
) -> list[RecordedFrame]:
    """What is sent to have prompts continued."""
    with closing(RecordingTransport(client.transport, folder)) as recorder:
        asking = Client(transport=recorder, home=client.home.path, device="cpu")
        assert len(asking.generate(adapter, prompts, sampling=BEAMS, progress=None)) == len(PROMPTS)
    return [frame for frame in read_recording(folder) if frame.direction is Direction.UP]


def drawn(client: Client, result: LanguageResult) -> dict[str, Tensor]:
    """The ids that each prompt is drawn to, by the customer's secret."""
    profile = Profile.load(client.home, result.adapter_id)
    archive = fetch_archive(
        client.gate(), client.home, choose_model(client.gate(), None).model, result.spec.cut, Silent()
    )
    read = prompt_reading(archive, client.home, result.spec, segments=profile.segments)
    privatizer = run_privatizing(archive, client.home, result.spec, reading=read).privatizer
    names = read.read(Dataset(tuple((prompt,) for prompt in PROMPTS)), max_content=UNCUT)
    (ids,) = privatizer.shape(names).segments
    return dict(zip(PROMPTS, ids.split(), strict=True))


def check_prompts_sent(client: Client, result: LanguageResult, frames: Sequence[RecordedFrame]) -> None:
    """Everything that is sent is the draw of the prompts, and stands in the ledger."""
    sending = [frame for frame in frames if frame.body]
    assert {frame.route for frame in sending} == {routes.ADAPTER_GENERATE}, "and nothing beside it has a body"
    entries = {entry.digest for entry in client.ledger.frames() if entry.route == routes.ADAPTER_GENERATE.name}
    crossed = []
    for frame in sending:
        tensors = decode_tensors(routes.ADAPTER_GENERATE, frame.body)
        assert set(tensors) == {"ids", "lengths", "search"}
        assert tensors["search"][:3].tolist() == [3, 5, 1], "settings of the search"
        crossed += [ids.tolist() for ids in tensors["ids"].long().split(tensors["lengths"].flatten().tolist())]
        assert hashlib.sha256(frame.body).digest() in entries, "written down"
    assert sorted(crossed) == sorted(ids.tolist() for ids in drawn(client, result).values()), "other ids left"


@PAIRS
def test_words_alone_are_learnt_from_and_asked_with(
    pairs: bool, decoder: Path, words: dict[str, Any], data_dir: Path, api_key: str, tmp_path: Path
) -> None:
    with customer(data_dir, api_key, tmp_path / "home") as client:
        result = tune(client, words, pairs=pairs)
        frames = Sent.by(result).frames
        check_no_canaries(decoder, frames)
        clear = [word for word in words_in(decoder, frames) if int(word[1:]) >= CLEAR]
        assert result.clear_words == {"number": len(clear)}, "they have digits"
        assert result.token_recovery_first_steps is None, "labels are what left"
        spent = client.ledger.summary().mechanisms[0].largest_spent
        sent = asked(client, result.adapter_id, tmp_path / "asked")
        check_no_canaries(decoder, sent)
        check_prompts_sent(client, result, sent)
        # a prompt that was trained on is drawn as it was then: no further look
        assert client.ledger.summary().mechanisms[0].largest_spent == spent == 6.0


def test_a_prompt_that_leaves_undrawn_is_caught(
    decoder: Path,
    words: dict[str, Any],
    data_dir: Path,
    api_key: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fault that is planted: words of prompts are taken for words that are not chosen."""
    with customer(data_dir, api_key, tmp_path / "home") as client:
        result = tune(client, words, pairs=False)
        with monkeypatch.context() as planted:
            planted.setattr(ByNumber, "_tag", staticmethod(lambda word: "DET"))
            sent = asked(client, result.adapter_id, tmp_path / "asked")
        with pytest.raises(AssertionError, match="canary"):
            check_no_canaries(decoder, sent)
        with pytest.raises(AssertionError, match="other ids left"):
            check_prompts_sent(client, result, sent)


def test_labels_of_drawn_words_are_those_that_leave(
    words: dict[str, Any], data_dir: Path, api_key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No loss is computed from a word that was hidden, so that no gradient tells one."""
    from cutlayer.customer.session import Session

    seen: list[Tensor] = []
    losses = Session.next_token_losses

    def watched(self: Session, logits: Tensor, labels: Any) -> Any:
        seen.extend(segment.values for segment in labels.segments)
        return losses(self, logits, labels)

    monkeypatch.setattr(Session, "next_token_losses", watched)
    with customer(data_dir, api_key, tmp_path / "home") as client:
        result = tune(client, words, pairs=True)
        released = set(released_ids(Sent.by(result).frames).tolist())
    assert set(torch.cat(seen).tolist()) <= released


@pytest.mark.parametrize(
    ("changes", "told"),
    [({"bottom": 1}, "bottom"), ({"packing": True}, "packing"), ({"train_bottom": "resample"}, "train_bottom")],
)
def test_what_does_not_go_with_words_is_refused_before_anything_is_sent(
    changes: dict[str, Any], told: str, words: dict[str, Any], data_dir: Path, api_key: str, tmp_path: Path
) -> None:
    with customer(data_dir, api_key, tmp_path / "home") as client:
        with pytest.raises(ConfigError, match=told):
            tune(client, words, pairs=False, **changes)
        assert client.ledger.is_empty()


@pytest.mark.parametrize("sampling", [Sampling(max_new_tokens=5), Sampling(num_beams=3, max_new_tokens=5000)])
def test_what_the_vendor_cannot_write_is_refused_before_a_prompt_leaves(
    sampling: Sampling, words: dict[str, Any], data_dir: Path, api_key: str, tmp_path: Path
) -> None:
    with customer(data_dir, api_key, tmp_path / "home") as client:
        result = tune(client, words, pairs=False, epochs=1)
        left = len(list(client.ledger.frames()))
        with pytest.raises(ConfigError):
            client.generate(result.adapter_id, PROMPTS, sampling=sampling, progress=None)
        assert not any(entry.route == "adapter.generate" for entry in list(client.ledger.frames())[left:])


def test_an_adapter_of_rows_is_not_written_with(data_dir: Path, api_key: str, tmp_path: Path) -> None:
    """Neither by a customer that keeps to the rules nor by one that does not."""
    with customer(data_dir, api_key, tmp_path / "home") as client:
        result = tune(client, {"mechanism": "none", "bottom": 1}, pairs=False, epochs=1)
        with pytest.raises(ConfigError, match="num_beams"):
            client.generate(result.adapter_id, PROMPTS, sampling=BEAMS, progress=None)
        tensors = {"ids": torch.tensor([40], dtype=torch.uint16), "lengths": torch.tensor([[1]], dtype=torch.uint8)}
        tensors["search"] = torch.tensor([2.0, 3.0, 1.0, 2.0])
        with pytest.raises(VendorError, match="text cut with a tail of 0"):
            client.transport.send(Frame(routes.ADAPTER_GENERATE, {"adapter": result.adapter_id}, None, tensors))


def test_no_rows_are_exchanged_with_an_adapter_of_drawn_words(
    words: dict[str, Any], data_dir: Path, api_key: str, tmp_path: Path
) -> None:
    """At bottom 0 its customer has a table to make rows of; what was trained on are texts in which words were drawn."""
    with customer(data_dir, api_key, tmp_path / "home") as client:
        result = tune(client, words | {"bottom": 0}, pairs=False, epochs=1)
        left = len(list(client.ledger.frames()))
        with pytest.raises(ConfigError, match="draws no words"):
            client.exchange(result.adapter_id, PROMPTS, progress=None)
        assert len(list(client.ledger.frames())) == left


@pytest.mark.parametrize("behind", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["alone", "plain words"])
def test_entities_of_prompts_leave_as_drawn_words_and_are_put_back(
    behind: bool, decoder: Path, words: dict[str, Any], data_dir: Path, api_key: str, tmp_path: Path
) -> None:
    """By an adapter that learnt from texts in which nothing was drawn, or nothing but plain words before them."""
    settings: dict[str, Any] = {"mechanism": "none", "bottom": None}
    privacy = Words(eta=6, words=("all",), candidates="all", space=words["space"], vocabulary=words["vocabulary"])
    with customer(data_dir, api_key, tmp_path / "home") as client:
        protected = client.protect(PROMPTS, list(CANARIES), privacy=privacy)
        if behind:
            settings["reconstruction"] = Reconstruction(plain_tokens=3, plain_as=protected.map.job)
        result = tune(client, settings, pairs=False, epochs=1)
        sent = asked(client, result.adapter_id, tmp_path / "asked", prompts=protected)
        check_no_canaries(decoder, sent)
        with pytest.raises(AssertionError, match="canary"):
            check_no_canaries(decoder, asked(client, result.adapter_id, tmp_path / "clear", prompts=PROMPTS))
        # whatever the model says stands for something
        names = {f"w{number}": f"name{number}" for number in range(300)}
        everything = protected._replace(map=dataclasses.replace(protected.map, words=names))
        plain = client.generate(result.adapter_id, list(protected.texts), sampling=BEAMS, progress=None)
        pieces: dict[int, str] = {}
        restored = client.generate(
            result.adapter_id, everything, sampling=BEAMS, on_text=lambda *told: pieces.update([told]), progress=None
        )
    assert [each.text for each in restored] == [each.text.replace("w", "name") for each in plain]
    assert pieces == {number: each.text for number, each in enumerate(restored)}
    assert "name" in restored[0].text


def test_words_that_stand_for_entities_are_not_drawn_again(
    words: dict[str, Any], data_dir: Path, api_key: str, tmp_path: Path
) -> None:
    with customer(data_dir, api_key, tmp_path / "home") as client:
        result = tune(client, words, pairs=False, epochs=1)
        empty = EntityMap("0" * 32, {}, drawn=0, replaced=0, numbered=0, mentions=0, clear={})
        left = len(list(client.ledger.frames()))
        with pytest.raises(ConfigError, match="once more"):
            client.generate(result.adapter_id, Protected(PROMPTS, empty), sampling=BEAMS, progress=None)
        with pytest.raises(DataError, match="rows of texts"):
            client.generate(result.adapter_id, Protected([("a", "b")], empty), sampling=BEAMS, progress=None)
        assert len(list(client.ledger.frames())) == left


def test_beams_of_ids_without_noise_are_those_of_the_whole_model(
    decoder: Path, data_dir: Path, api_key: str, tmp_path: Path
) -> None:
    """The road to the vendor and back adds nothing: an adapter that has learnt nothing writes what its model writes."""
    settings = {"mechanism": "none", "bottom": None, "learning_rate": 1e-30}
    with customer(data_dir, api_key, tmp_path / "home") as client:
        result = tune(client, settings, pairs=False, epochs=1)
        written = client.generate(result.adapter_id, PROMPTS, sampling=BEAMS, progress=None)
    model, tokenizer = load_model(str(decoder), head=Head.LANGUAGE), load_tokenizer(str(decoder))
    for prompt, found in zip(PROMPTS, written, strict=True):
        ids = torch.tensor([tokenizer(prompt, add_special_tokens=False)["input_ids"]])
        end = tokenizer.eos_token_id
        (grown,) = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            num_beams=3,
            max_new_tokens=5,
            do_sample=False,
            eos_token_id=end,
            pad_token_id=end,
        )
        whole = tokenizer.decode(grown, skip_special_tokens=True)
        assert whole[len(tokenizer.decode(ids[0])) :] == found.text
