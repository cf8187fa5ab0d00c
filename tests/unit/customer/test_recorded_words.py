"""An audit of drawn words reads what crossed, word by word, and no other texts than the run's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cutlayer.attacks import ATTACKS, ControlFailed, Measured, TokenTruth, Transcript, measure
from cutlayer.core import ConfigError, Cut, DataError, Tokens
from cutlayer.customer import Client
from cutlayer.customer.attacker import AttackerSpec
from cutlayer.customer.corpora import Corpora, split_rows
from cutlayer.customer.evidence import Evidence
from cutlayer.customer.handout import local_archive
from cutlayer.customer.prepare import prepare
from cutlayer.customer.recorded import RecordedRun
from cutlayer.customer.recorded_words import WordNumbers, word_stream
from cutlayer.customer.run import Run
from cutlayer.data import Dataset
from cutlayer.models import Head, load_model
from cutlayer.reports.audit import check_runs, several_runs
from tests.promises.runs import CANARIES, SEED, TEST, TRAIN, TRAINING, customer
from tests.promises.test_one_door_words import CLEAR, by_number, words  # noqa: F401 - fixtures are used by name
from tests.service.fixtures import (  # noqa: F401
    api_key,
    blank_vendor,
    data_dir,
    tiny_model,
)
from tests.settings import specs

TWICE = Dataset(TRAIN.texts + TRAIN.texts[:9], (TRAIN.labels or ()) + (TRAIN.labels or ())[:9])


@pytest.fixture
def client(data_dir: Path, api_key: str, tmp_path: Path) -> Iterator[Client]:  # noqa: F811
    with customer(data_dir, api_key, tmp_path / "home") as opened:
        yield opened


def tuned(client: Client, given: dict[str, Any], **changes: Any) -> Any:
    told = {**TRAINING.model_dump(exclude_unset=True), "epochs": 1, "eta": 6.0, **given, **changes}
    return client.finetune(TWICE, test=TEST, seed=SEED, **specs(told))


def recorded(client: Client, folder: Path, model: Path) -> RecordedRun:
    spec = Evidence.settings(folder)
    archive = local_archive(client.home, str(model), Cut(bottom=spec.cut.bottom))
    rows = split_rows(Corpora(TWICE, None, TEST), spec, client.home.secret)
    data = prepare(rows, spec, archive, client.home, vocab_size=archive.manifest.vocab_size)
    return RecordedRun(Run.read(folder), rows, data, archive, client.home)


def chosen(text: str) -> list[str]:
    return [word for word in text.split() if word in CANARIES or int(word[1:]) < CLEAR]


@pytest.mark.parametrize("bottom", [None, 0])
def test_word_by_word_is_what_crossed(
    bottom: int | None,
    client: Client,
    tiny_model: Path,  # noqa: F811
    words: dict[str, Any],  # noqa: F811
) -> None:
    result = tuned(client, words, bottom=bottom)
    run = recorded(client, result.folder, tiny_model)
    numbers = run.numbers
    assert isinstance(numbers, WordNumbers)
    crossed = [
        ids
        for release in run.crossed.releases()
        if release.source == f"record-set/{run.run.identifier('train')}" and isinstance(release.payload, Tokens)
        for ids in release.payload.segments[0].split()
    ]
    seen = [
        each
        for release in run.in_words.transcript.releases()
        if isinstance(release.payload, Tokens)
        for each in release.payload.segments[0].split()
    ]
    assert len(seen) == len(crossed) > 0
    for own, ids in zip(seen, crossed, strict=True):
        assert numbers.decode(own) == run.archive.tokenizer.decode(ids)
    truth = run.words
    told = [numbers.decode(text) for text in truth.tokens.segments[0].split()]
    texts = [text for (text,) in run.rows.train.texts]
    assert told == texts


def test_a_transcript_of_other_texts_is_refused(
    client: Client,
    tiny_model: Path,  # noqa: F811
    words: dict[str, Any],  # noqa: F811
) -> None:
    run = recorded(client, tuned(client, words, bottom=0).folder, tiny_model)
    assert run.numbers is not None
    tokens, records = run.data.tokens, next(iter(run.records.values()))

    def stream(some: Tokens, own: torch.Tensor, record_set: str = run.run.identifier("train")) -> object:
        assert run.numbers is not None
        return word_stream(run.numbers, some, own, record_set=record_set, archive=run.archive, seen=run.crossed)

    stream(tokens, records)
    order = torch.arange(len(tokens)).roll(1)
    with pytest.raises(DataError, match="other texts than those that were given"):
        stream(tokens.select(order), records)
    more = tokens.select(torch.cat([torch.arange(len(tokens)), torch.tensor([0])]))
    kept = (records < records.max()).nonzero()[:, 0]
    with pytest.raises(DataError, match="other texts"):  # the customer's list is longer
        stream(more, torch.cat([records, records.max()[None] + 1]))
    with pytest.raises(DataError, match="other texts"):  # or shorter
        stream(tokens.select(kept), records[kept])


def evidence(client: Client, folder: Path, model: Path, *, known: float = 0.0) -> Evidence:
    archive = local_archive(client.home, str(model), Cut(bottom=Evidence.settings(folder).cut.bottom))
    attacker = AttackerSpec(auxiliary_fraction=known)
    return Evidence.of(folder, Corpora(TWICE, None, TEST), archive, home=client.home, attacker=attacker)


@pytest.mark.parametrize("bottom", [None, 0])
def test_who_has_the_model_has_its_table(
    bottom: int | None,
    client: Client,
    tiny_model: Path,  # noqa: F811
    words: dict[str, Any],  # noqa: F811
) -> None:
    """Nothing is handed out at the text cut, and what attacks learn of released ids they learn all the same."""
    found = evidence(client, tuned(client, words, bottom=bottom).folder, tiny_model, known=0.5)
    granted = found.granted(None, load_model(str(tiny_model), head=Head.CLASSIFICATION))
    attack = ATTACKS["label-mlp"]
    ((_, truth),) = granted.truths(attack)
    outcome = measure("label-mlp", granted.seen_by(attack), knowledge=granted.known_to(attack), truth=truth)
    assert isinstance(outcome, Measured | ControlFailed)


@pytest.mark.parametrize("bottom", [None, 0, 1])
def test_an_attack_on_words_reads_what_the_result_says(
    bottom: int | None,
    client: Client,
    tiny_model: Path,  # noqa: F811
    words: dict[str, Any],  # noqa: F811
) -> None:
    result = tuned(client, words, bottom=bottom)
    found = evidence(client, result.folder, tiny_model)
    assert found.words is not None
    outcome = measure("nearest-neighbour", found.words.transcript, knowledge=found.words.knowledge, truth=found.tokens)
    assert isinstance(outcome, Measured)
    assert (outcome.privacy.value, outcome.success.n) == (pytest.approx(result.ep), result.ep_n)
    texts = {text for (text,) in found.texts.texts}
    assert result.ep_n == sum(len(chosen(text)) for (text,) in found.texts.texts), "only words that were drawn count"
    assert texts <= {text for (text,) in TWICE.texts}
    # canaries are drawn, and are no guess: they never come out
    assert outcome.success.value < 1


def test_of_a_text_that_was_cut_only_words_that_left_count(
    client: Client,
    tiny_model: Path,  # noqa: F811
    words: dict[str, Any],  # noqa: F811
) -> None:
    short = tuned(client, words, bottom=0, max_length=7)
    found = evidence(client, short.folder, tiny_model)
    kept = [text.split()[:5] for (text,) in found.texts.texts]
    assert short.ep_n == sum(len(chosen(" ".join(own))) for own in kept)
    assert found.tokens.tokens.segments[0].lengths.tolist() == [len(own) for own in kept]


def test_a_word_of_several_pieces_counts_once_it_left_whole(
    client: Client,
    tiny_model: Path,  # noqa: F811
    words: dict[str, Any],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = recorded(client, tuned(client, words, bottom=0).folder, tiny_model)
    assert run.numbers is not None
    drawn = run.numbers.privatizer.drawn(run.data.tokens)
    pieces = drawn.pieces.copy()
    pieces[:, 1] = "abc"
    pieces[:, 0] = " "
    lengths = drawn.lengths
    cut = replace(drawn, pieces=pieces, lengths=lengths).within(torch.full_like(lengths, 9))
    # `" abc abc"` is 8 characters, and the third word is cut in the middle
    assert cut.tolist() == lengths.clamp(max=2).tolist()


def test_several_runs_are_read_word_by_word_together(
    client: Client,
    tiny_model: Path,  # noqa: F811
    words: dict[str, Any],  # noqa: F811
) -> None:
    """Words that the vocabulary does not have are others in the second file, and those of both are numbered alike."""
    first = tuned(client, words, bottom=None)
    given = Dataset(TWICE.texts[:12:-1], (TWICE.labels or ())[:12:-1])
    told = {**TRAINING.model_dump(exclude_unset=True), "epochs": 1, "eta": 9.0, **words, "bottom": None}
    second = client.finetune(given, test=TEST, seed=SEED, **specs(told))
    folders = [first.folder, second.folder]
    check_runs(folders)
    archive = local_archive(client.home, str(tiny_model), Cut(bottom=None))
    nobody = AttackerSpec(auxiliary_fraction=0)
    own = Evidence.of(first.folder, Corpora(TWICE, None, TEST), archive, home=client.home, attacker=nobody)
    assert own.words is not None
    attack, numbers = ATTACKS["multi-run"], own.words.numbers

    def together(beside: WordNumbers | None) -> tuple[list[str], list[str], Evidence]:
        """The texts of both runs as they were, and as they left, by the numbers of the first one's words."""
        corpora = Corpora(given, None, TEST)
        run = Evidence.of(second.folder, corpora, archive, home=client.home, attacker=nobody, beside=beside)
        found = several_runs(folders, [own, run]).evidence
        ((_, truth),) = found.truths(attack)
        assert isinstance(truth, TokenTruth)
        left = [numbers.decode(ids) for each in found.seen_by(attack).releases() for ids in _texts(each.payload)]
        assert truth.uncounted is not None
        clear = numbers.decode(truth.tokens.values[truth.uncounted[truth.tokens.values]]).split()
        assert beside is None or all(int(word[1:]) >= CLEAR and word not in CANARIES for word in clear)
        return [numbers.decode(text) for text in _texts(truth.tokens)], left, found

    texts, left, found = together(numbers)
    assert set(texts) <= {text for (text,) in TWICE.texts}
    crossed = [archive.tokenizer.decode(ids) for folder in folders for ids in _ids(Run.read(folder))]
    assert left == crossed
    noises = found.known_to(attack).noises or {}
    assert [noise.privacy.eta for noise in noises.values()] == [9.0]
    assert found.seen_by(ATTACKS["maximum-posterior"]) is own.words.transcript
    # the fault that is planted: the second run numbers its words by itself
    try:
        apart = together(None)[:2]
    except IndexError:  # words that the first run never met
        apart = ([], [])
    assert apart != (texts, left)


def test_words_of_two_vocabularies_are_not_read_together(
    client: Client,
    tiny_model: Path,  # noqa: F811
    words: dict[str, Any],  # noqa: F811
) -> None:
    given = [words, {**words, "words": ("noun",)}]
    folders = [tuned(client, each, bottom=0).folder for each in given]
    check_runs(folders)
    archive = local_archive(client.home, str(tiny_model), Cut(bottom=0))
    own = Evidence.of(folders[0], Corpora(TWICE, None, TEST), archive, home=client.home)
    assert own.words is not None
    with pytest.raises(ConfigError, match="drew words by other categories"):
        Evidence.of(folders[1], Corpora(TWICE, None, TEST), archive, home=client.home, beside=own.words.numbers)


def _texts(payload: Any) -> tuple[torch.Tensor, ...]:
    return tuple(payload.segments[0].split())


def _ids(run: Run) -> list[torch.Tensor]:
    """Ids of the texts that a run released for training."""
    own = f"record-set/{run.identifier('train')}"
    releases = Transcript.recorded(run.transcript).releases()
    return [ids for each in releases if each.source == own for ids in _texts(each.payload)]
