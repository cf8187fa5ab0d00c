"""Plain words before texts in which `protect` drew words: they are drawn as it drew these, and nothing else is."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from cutlayer.attacks import Measured, measure
from cutlayer.core import ConfigError, Cut, DataError, PrecededTokens, Stopped
from cutlayer.core.guarantee import Claim
from cutlayer.customer import Client, FinetuneResult, Prefix, Reconstruction
from cutlayer.customer.corpora import Corpora
from cutlayer.customer.derived import Privatizing, run_privatizing, run_reading
from cutlayer.customer.entity_map import EntityMap
from cutlayer.customer.evidence import Evidence
from cutlayer.customer.handout import local_archive
from cutlayer.customer.home import Home
from cutlayer.customer.settings import RunSpec
from cutlayer.data import Dataset
from cutlayer.privacy import NoPrivacy, Words
from cutlayer.privacy.privatizers.none import NoPrivacyPrivatizer
from cutlayer.wire.recording import read_recording
from tests.promises.runs import SEED, TRAINING, give_secret
from tests.settings import run_spec
from tests.unit.customer.test_reconstruction import (  # noqa: F401 - fixtures by name
    PLAIN,
    TEST,
    TRAIN,
    Interrupts,
    api_key,
    blank_vendor,
    client,
    data_dir,
    needs_words,
    privacy,
    tiny_model,
)

pytestmark = pytest.mark.usefixtures("needs_words")
ENTITIES = [f"w{number}" for number in range(20)]
PAIRS = Dataset(tuple((text, f"w1 {text} w2") for (text,) in TRAIN.texts[:9]), TRAIN.labels and TRAIN.labels[:9])


@pytest.fixture
def drawn(privacy: Words) -> Words:  # noqa: F811
    return privacy.model_copy(update={"words": ("all",), "candidates": "all"})


def texts_of(rows: Dataset) -> list[str]:
    return [text for (text,) in rows.texts]


def finetune(client: Client, drawn: Words, *, rows: Dataset | None = None, **settings: Any) -> FinetuneResult:  # noqa: F811
    """On texts of which `protect` drew words, behind plain words that are drawn as these."""
    protected = client.protect(texts_of(TRAIN), ENTITIES, privacy=drawn)
    rows = rows or Dataset(tuple((str(text),) for text in protected.texts), TRAIN.labels)
    given = {
        "reconstruction": PLAIN.model_copy(update={"plain_as": protected.map.job}),
        "cut": Cut(bottom=None),
        "tuning": Prefix(prefix_length=3, pooling="mean"),
        **settings,
    }
    return client.finetune(rows, test=TEST, privacy=NoPrivacy(), training=TRAINING, seed=SEED, **given)


def made(drawn: Words, model: Path, folder: Path, **changes: Any) -> tuple[Privatizing, RunSpec, Any]:
    """A run's privatizers after a job of `protect`."""
    home = Home(give_secret(folder / "own"))
    job = EntityMap(
        "0f" * 16,
        {},
        drawn=0,
        replaced=0,
        numbered=0,
        mentions=0,
        clear={},
        privacy=drawn.model_dump(mode="json"),
        vocabulary=drawn.vocabulary_digest,
    )
    job.save(home)
    archive = local_archive(home, str(model), Cut(bottom=0))
    reconstruction = PLAIN.model_copy(update={"plain_as": job.job})
    spec = run_spec(**changes).model_copy(update={"privacy": NoPrivacy(), "reconstruction": reconstruction, "seed": 4})
    reading = run_reading(archive, home, spec)
    return run_privatizing(archive, home, spec, reading=reading), spec, archive


@pytest.mark.parametrize("rows", [TRAIN, PAIRS, Dataset((("",), ("w1",)))], ids=["texts", "pairs", "empty"])
@pytest.mark.parametrize("longest", [None, 7])
def test_texts_leave_as_without_plain_words(
    rows: Dataset,
    longest: int | None,
    drawn: Words,
    tiny_model: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    """Ids, names of accounts and charges are those of the same texts by themselves; the words before them are drawn."""
    privatizing, spec, archive = made(drawn, tiny_model, tmp_path, eta=1.0, max_length=longest)
    content = archive.template.max_content(rows.segments, spec.training.max_length)
    tokens = privatizing.reading.read(rows, max_content=content)
    behind, alone = (each.tokens(tokens, labels=None) for each in (privatizing.training, privatizing.privatizer))
    assert isinstance(behind.payload, PrecededTokens)
    words, own = behind.payload.parted()
    assert [ids.tolist() for side in own.segments for ids in side.split()] == [
        ids.tolist() for side in tokens.segments for ids in side.split()
    ]
    assert torch.equal(privatizing.training.shape(tokens).values, behind.payload.values)
    assert behind.contents == alone.contents
    assert behind.charges.records.values.tolist() == alone.charges.records.values.tolist()
    assert behind.etas.tolist() == alone.etas.tolist()
    assert not set(behind.identities) & set(alone.identities), "other bytes are another release"
    plain = privatizing.plain
    assert plain is not None
    assert behind.payload.preceding.shape == (len(rows.texts), plain.count)
    assert len({tuple(ids.tolist()) for ids in words.split()}) > 1, "each text has draws of its own"
    again = privatizing.training.tokens(tokens.select([0]), labels=None)
    assert again.digests() == behind.digests()[:1], "the same draw in another batch"


def known(word: str) -> str:
    """As the tiny model's tokenizer reads it."""
    return word if word.startswith("w") else "[UNK]"


def test_plain_words_are_drawn_as_the_job_drew(drawn: Words, tiny_model: Path, tmp_path: Path) -> None:  # noqa: F811
    """Planted: at an eta that replaces nothing they leave as they are."""
    found = []
    for number, eta in enumerate((1.0, 1e4)):
        privatizing, _, archive = made(
            drawn.model_copy(update={"eta": eta}), tiny_model, tmp_path / str(number), eta=1.0
        )
        training, plain = privatizing.training, privatizing.plain
        assert isinstance(training, NoPrivacyPrivatizer)
        assert training.behind is not None
        assert plain is not None
        tokens = privatizing.reading.read(TRAIN, max_content=62)
        payload = training.shape(tokens)
        assert isinstance(payload, PrecededTokens)
        lexicon = training.behind.words.space.dictionary.lexicon  # type: ignore[union-attr]
        told = [" ".join(known(lexicon.word(name).form) for name in row) for row in plain.names.tolist()]
        left = [archive.tokenizer.decode(ids) for ids in payload.parted()[0].split()]
        found.append([ids == told[sequence] for ids, sequence in zip(left, payload.sequences.tolist(), strict=True)])
    assert not all(found[0])
    assert all(found[1])


def test_a_run_learns_from_them_and_says_that_texts_left_as_they_are(
    client: Client,  # noqa: F811
    drawn: Words,
    tiny_model: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    result = finetune(client, drawn, out=tmp_path / "run")
    weightless = finetune(
        client, drawn, out=tmp_path / "other",
        reconstruction=PLAIN.model_copy(update={"plain_as": Evidence.settings(result.folder).reconstruction.plain_as,
                                                "reconstruction_weight": 0.0}),
    )  # fmt: skip
    assert result.adapter_sha256 != weightless.adapter_sha256
    assert result.no_privacy
    assert result.guarantee.claim is Claim.NONE
    assert result.reconstruction_loss
    by_name = {each.mechanism: each for each in client.ledger.summary().mechanisms}
    assert by_name["none"].largest_spent == math.inf
    assert by_name["words, entities"].largest_spent == drawn.eta
    shards = [
        frame.tensors() for frame in read_recording(result.folder / "transcript") if "preceding" in frame.tensors()
    ]
    assert shards
    archive = local_archive(client.home, str(tiny_model), Cut(bottom=None))
    sent = client.protect(texts_of(TRAIN), ENTITIES, privacy=drawn).texts
    rows = Dataset(tuple((str(text),) for text in sent), TRAIN.labels)
    found = Evidence.of(result.folder, Corpora(rows, None, TEST), archive, home=client.home)
    assert found.words is None
    outcome = measure("nearest-neighbour", found.transcript, knowledge=found.knowledge, truth=found.tokens)
    assert isinstance(outcome, Measured)
    assert outcome.success.value == 1.0, "what leaves as it is can be read"


def test_a_stopped_run_goes_on_to_the_same_bits(client: Client, drawn: Words, tmp_path: Path) -> None:  # noqa: F811
    with pytest.raises(Stopped):
        finetune(client, drawn, progress=Interrupts(), out=tmp_path / "run")
    resumed, straight = (finetune(client, drawn, out=tmp_path / name) for name in ("run", "straight"))
    assert resumed.adapter_sha256 == straight.adapter_sha256


def test_the_vendor_alone_learns_the_same(client: Client, drawn: Words, tmp_path: Path) -> None:  # noqa: F811
    """Of texts that it can tell apart: labels of others lie there in no order."""
    here, there = (
        finetune(client, drawn, rows=TRAIN, out=tmp_path / place, labels_at=place) for place in ("customer", "vendor")
    )
    assert here.adapter_sha256 == there.adapter_sha256


def test_an_adapter_is_asked_where_the_job_is_forgotten(client: Client, drawn: Words) -> None:  # noqa: F811
    result = finetune(client, drawn)
    job = Evidence.settings(result.folder).reconstruction.plain_as
    assert job is not None
    client.home.entities(job).unlink()
    assert len(client.predict(result.adapter_id, ["w1 met w2"])) == 1
    with pytest.raises(DataError, match=f"no map of job {job}"):
        finetune_again(client, job)


def finetune_again(client: Client, job: str) -> None:  # noqa: F811
    plain = PLAIN.model_copy(update={"plain_as": job})
    client.finetune(
        TRAIN, test=TEST, privacy=NoPrivacy(), training=TRAINING, seed=SEED, cut=Cut(bottom=None), reconstruction=plain
    )


def test_a_job_that_does_not_say_how_it_drew_is_refused(client: Client) -> None:  # noqa: F811
    """An earlier version's map."""
    job = EntityMap("0f" * 16, {}, drawn=0, replaced=0, numbered=0, mentions=0, clear={})
    job.save(client.home)
    with pytest.raises(DataError, match="does not say how its words were drawn"):
        finetune_again(client, job.job)
    assert client.home.ledger.is_empty()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (
            {"privacy": NoPrivacy(), "reconstruction": Reconstruction(plain_tokens=4)},
            "needs mechanism words, or plain_as",
        ),
        (
            {"reconstruction": Reconstruction(plain_tokens=4, plain_as="0f" * 16, plain_tokens_at_inference=True)},
            "plain_tokens_at_inference = True: needs mechanism words",
        ),
        ({"cut": Cut(bottom=1)}, "needs bottom 0, or the text cut"),
    ],
)
def test_what_does_not_go_with_them(client: Client, changes: dict[str, Any], named: str) -> None:  # noqa: F811
    given = {
        "privacy": NoPrivacy(), "cut": Cut(bottom=None),
        "reconstruction": Reconstruction(plain_tokens=4, plain_as="0f" * 16), **changes,
    }  # fmt: skip
    with pytest.raises(ConfigError, match=named):
        client.finetune(TRAIN, test=TEST, training=TRAINING, seed=SEED, **given)
    assert client.home.ledger.is_empty()


def test_texts_that_leave_no_room_are_refused_before_anything_leaves(client: Client, drawn: Words) -> None:  # noqa: F811
    """None is cut behind plain words: what attacks are scored on is what left. By itself such a text fits."""
    long = Dataset((*TRAIN.texts, (" ".join(["w1"] * 62),)), (*(TRAIN.labels or ()), "a"))
    with pytest.raises(ConfigError, match=r"of 59 tokens leaves no room for plain words, .* Use a max_length of 54"):
        finetune(client, drawn, rows=long)
    assert not [frame for frame in client.ledger.frames() if frame.texts and not frame.run.startswith("protect/")]


def test_words_of_a_vocabulary_that_was_written_anew_are_no_jobs_words(client: Client, drawn: Words) -> None:  # noqa: F811
    job = client.protect(texts_of(TRAIN), ENTITIES, privacy=drawn).map.job
    file = drawn.vocabulary
    assert file is not None
    file.write_text(file.read_text() + "more\tNOUN\t1\n")
    with pytest.raises(DataError, match=f"holds other words than when job {job} drew"):
        finetune_again(client, job)


@pytest.mark.parametrize(
    "told", [[], {"mechanism": "vector", "eta": 1.0}, {"mechanism": "words", "eta": 1.0, "new": 1}]
)
def test_a_map_of_another_version_says_nothing(told: Any) -> None:
    made_of = EntityMap("0f" * 16, {}, drawn=0, replaced=0, numbered=0, mentions=0, clear={}, privacy=told)
    with pytest.raises(DataError, match="does not say how its words were drawn"):
        _ = made_of.drawn_as
