"""Promise 1 where words are drawn: chosen words never leave, and those that do by rule are counted."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from cutlayer.core import BudgetError, CutlayerWarning
from cutlayer.customer import Client, reading
from cutlayer.data import Dataset, TaggedTexts
from cutlayer.wire.recording import Direction, read_recording
from cutlayer.wire.transports import RecordingTransport
from tests.promises.accounts import Watched, check_accounted
from tests.promises.runs import CANARIES, TEST, TRAIN, TRAINING, Sent, corpus, customer, finetune
from tests.promises.test_one_door import check_no_canary
from tests.settings import specs

CLEAR = 200
"""Words of this number and higher ones are determiners, which leave as they are; but for canaries."""
BOTTOMS = pytest.mark.parametrize("bottom", ["text", 0, pytest.param(1, marks=pytest.mark.slow)])


class ByNumber:
    """Tags words of the tiny vocabulary by their number."""

    name = "by number"

    def tag(self, texts: Sequence[str]) -> TaggedTexts:
        words = [text.split() for text in texts]
        flat = [word for own in words for word in own]
        return TaggedTexts(
            tuple(flat),
            tuple(self._tag(word) for word in flat),
            tuple("" if at == len(own) - 1 else " " for own in words for at in range(len(own))),
            tuple("" for _ in texts),
            torch.tensor([len(own) for own in words], dtype=torch.int64),
        )

    @staticmethod
    def _tag(word: str) -> str:
        if word in CANARIES:
            return "PROPN"
        number = int(word[1:]) if word[1:].isdigit() else 0
        return "DET" if number >= CLEAR else ("NOUN", "VERB", "PRON")[number % 3]


@pytest.fixture(autouse=True)
def by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "load_tagger", lambda name: ByNumber())


@pytest.fixture
def words(tiny_model: Path, tmp_path: Path) -> dict[str, Any]:
    """Settings that draw words; canaries are none of the vocabulary."""
    file = tmp_path / "public.tsv"
    lines = [f"w{number}\t{tag}\t1\n" for number in range(CLEAR) for tag in ("NOUN", "VERB", "PRON", "ADP")]
    file.write_text("".join(lines))
    return {"mechanism": "words", "space": str(tiny_model), "vocabulary": file}


def cut(bottom: str | int) -> dict[str, Any]:
    return {"bottom": None if bottom == "text" else bottom}


REPEATED = Dataset(TRAIN.texts + TRAIN.texts[:8], (TRAIN.labels or ()) + (TRAIN.labels or ())[:8])


@BOTTOMS
def test_every_byte_is_accounted_for_and_no_chosen_word_is_among_them(
    bottom: str | int, words: dict[str, Any], data_dir: Path, api_key: str, tmp_path: Path, watched: Watched
) -> None:
    with customer(data_dir, api_key, tmp_path / "home") as client:
        result = finetune(client, train=REPEATED, **words, **cut(bottom))
        check_accounted(client, result, watched, train=REPEATED)
        frames = Sent.by(result).frames
        check_no_ids_of_canaries(frames)
        if bottom != "text":
            check_no_canary(frames, client)
        if bottom != 1:
            ids = released_ids(frames)
            assert result.clear_words == {"number": int((ids >= CLEAR + 31).sum())}, "they have digits"
            assert client.ledger.summary().clear == result.clear_words
        assert client.ledger.summary().mechanisms[0].largest_spent == 6.0


def released_ids(frames: Sequence[Any]) -> torch.Tensor:
    return torch.cat([frame.tensors()["ids"].long() for frame in frames if "ids" in frame.tensors()])


def test_words_that_are_not_chosen_leave_as_they_are_and_are_counted_once(
    words: dict[str, Any], data_dir: Path, api_key: str, tmp_path: Path
) -> None:
    with customer(data_dir, api_key, tmp_path / "home") as client:
        result = finetune(client, **words, bottom=0)
        clear = sorted(
            int(word[1:]) + 31
            for (text,) in (*TRAIN.texts, *TEST.texts)
            for word in text.split()
            if word not in CANARIES and int(word[1:]) >= CLEAR
        )
        ids = released_ids(Sent.by(result).frames)
        assert ids[ids >= CLEAR + 31].sort().values.tolist() == clear
        assert result.clear_words == client.ledger.summary().clear == {"number": len(clear)}


def check_no_ids_of_canaries(frames: Sequence[Any]) -> None:
    ids = torch.tensor([31 + int(word[1:]) for word in CANARIES])
    for frame in frames:
        everything = frame.body + frame.route.path.format(**frame.where).encode()
        assert not any(word.encode() in everything for word in CANARIES)
        if "ids" in frame.tensors():
            assert not torch.isin(frame.tensors()["ids"].long(), ids).any(), "a canary's id was released"


@pytest.mark.parametrize("bottom", ["text", 0])
def test_a_word_that_leaves_as_it_is_is_caught(
    bottom: str | int,
    words: dict[str, Any],
    data_dir: Path,
    api_key: str,
    tmp_path: Path,
    watched: Watched,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fault that is planted: a tagger that takes canaries for words that are not chosen."""
    monkeypatch.setattr(ByNumber, "_tag", staticmethod(lambda word: "DET" if word in CANARIES else "NOUN"))
    with customer(data_dir, api_key, tmp_path / "home") as client:
        result = finetune(client, **words, **cut(bottom))
        with pytest.raises(AssertionError, match="canary"):
            check_no_ids_of_canaries(Sent.by(result).frames)


def test_a_prediction_draws_words_as_a_run_does(
    words: dict[str, Any], data_dir: Path, api_key: str, tmp_path: Path, watched: Watched
) -> None:
    with customer(data_dir, api_key, tmp_path / "home") as client:
        result = finetune(client, **words, bottom=0)
        spent = client.ledger.summary().mechanisms[0].largest_spent
        with closing(RecordingTransport(client.transport, tmp_path / "asked")) as recorder:
            asking = Client(transport=recorder, home=tmp_path / "home", device="cpu")
            asked = Dataset(TRAIN.texts[:6] + corpus(9, seed=5).texts)
            assert len(asking.predict(result.adapter_id, asked)) == 15
        sent = [frame for frame in read_recording(tmp_path / "asked") if frame.direction is Direction.UP]
        check_no_canary(sent, client)
        assert client.ledger.summary().mechanisms[0].largest_spent == spent


def test_words_of_both_texts_of_a_pair_are_drawn(
    words: dict[str, Any], data_dir: Path, api_key: str, tmp_path: Path, watched: Watched
) -> None:
    def paired(data: Dataset) -> Dataset:
        before = data.texts[-1:] + data.texts[:-1]
        return Dataset(tuple((one, two) for (one,), (two,) in zip(data.texts, before, strict=True)), data.labels)

    train, test = paired(TRAIN), paired(TEST)
    with customer(data_dir, api_key, tmp_path / "home") as client:
        result = finetune(client, train=train, test=test, **words, bottom=0)
        check_accounted(client, result, watched, train=train, test=test)
        check_no_canary(Sent.by(result).frames, client)


def test_a_budget_refuses_before_a_text_is_sent(
    words: dict[str, Any], data_dir: Path, api_key: str, tmp_path: Path
) -> None:
    with customer(data_dir, api_key, tmp_path / "home") as client, pytest.raises(BudgetError, match="No text was sent"):
        finetune(client, **words, bottom=0, budget=5.0)
    with customer(data_dir, api_key, tmp_path / "home") as client:
        assert client.ledger.is_empty()
        assert client.ledger.summary().clear == {}


def test_numbers_that_leave_are_warned_of(words: dict[str, Any], data_dir: Path, api_key: str, tmp_path: Path) -> None:
    """How many, and of which kind; none of them is named."""
    with customer(data_dir, api_key, tmp_path / "home") as client, pytest.warns(CutlayerWarning) as told:
        finetune(client, **words, bottom=0)
    (warning,) = [str(each.message) for each in told if "leave as they are" in str(each.message)]
    assert "of the kind number" in warning
    assert not any(word in warning for (text,) in TRAIN.texts for word in text.split())


def test_the_same_words_are_sent_to_a_second_vendor_without_a_second_look(
    words: dict[str, Any], data_dir: Path, api_key: str, tmp_path: Path
) -> None:
    """Cut shorter, or read by another tokenizer, the same draws are other ids; at a block, rows of other positions."""
    for bottom in (None, 1):
        with customer(data_dir, api_key, tmp_path / f"home {bottom}") as client:
            for length in (6, 16):
                client.finetune(
                    TRAIN,
                    test=TEST,
                    seed=3,
                    **specs(
                        {
                            **TRAINING.model_dump(exclude_unset=True),
                            "eta": 6.0,
                            **words,
                            "bottom": bottom,
                            "max_length": length,
                        }
                    ),
                )
            (line,) = client.ledger.summary().mechanisms
            assert line.largest_spent <= 2 * 6.0


def test_no_word_is_kept_in_clear(
    words: dict[str, Any], data_dir: Path, api_key: str, tmp_path: Path, watched: Watched
) -> None:
    """Neither in the customer's folder beside what the run was told to keep, nor at the vendor."""
    odd = ("zanzibar", "quixotic")
    train = Dataset(tuple((f"{text} {odd[at % 2]}",) for at, (text,) in enumerate(TRAIN.texts)), TRAIN.labels)
    with customer(data_dir, api_key, tmp_path / "home") as client:
        finetune(client, train=train, **words, bottom=1)
    for folder in (tmp_path / "home", data_dir):
        for file in folder.rglob("*"):
            told = file.name.encode() + (file.read_bytes() if file.is_file() else b"")
            for word in (*odd, *CANARIES):
                if word in CANARIES and "tokenizer" in file.name:
                    continue  # the model's own vocabulary has them
                assert word.encode() not in told, f"{file.name} holds a word"
