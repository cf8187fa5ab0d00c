"""Runs with plain words before their texts: what is learnt, charged, continued, published and refused."""

from __future__ import annotations

import json
import math
import re
import unicodedata
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

import cutlayer
from cutlayer.attacks import Check, Measured, measure
from cutlayer.attacks.inversion.known_pairs import known_pairs
from cutlayer.core import ConfigError, Cut, PrecededTokens, Stopped, Tokens
from cutlayer.core.tuning import Pooling
from cutlayer.customer import Client, Lora, Prefix, Reconstruction, Silent
from cutlayer.customer.corpora import Corpora
from cutlayer.customer.defaults import settle
from cutlayer.customer.derived import Privatizing, run_privatizing
from cutlayer.customer.deviations import deviations
from cutlayer.customer.evidence import Evidence
from cutlayer.customer.handout import local_archive
from cutlayer.customer.home import Home
from cutlayer.customer.plan import warn_of_lost_ends
from cutlayer.customer.results import FinetuneResult
from cutlayer.customer.settings import FinetuneSpec
from cutlayer.customer.validate import validate
from cutlayer.data import Dataset
from cutlayer.privacy import PlainWords, PrivacySpec, Release, Words
from cutlayer.privacy.privatizers.words import WordsPrivatizer
from cutlayer.wire.recording import Direction, read_recording
from tests.promises.runs import SEED, TRAINING, customer, give_secret
from tests.quick import slow_but
from tests.service.fixtures import api_key, blank_vendor, data_dir, tiny_model  # noqa: F401 - fixtures by name
from tests.settings import run_spec

VOCABULARY = [f"w{number}" for number in range(60)]
PLAIN = Reconstruction(plain_tokens=5, plain_sequences=2, reconstruction_width=8)
OUTPUTS = 10
"""Different words among these."""
pytestmark = pytest.mark.usefixtures("needs_words")


@pytest.fixture(scope="module")
def needs_words() -> None:
    pytest.importorskip("spacy", reason="the tagger needs spaCy: pip install 'cutlayer[words]'")


def corpus(n: int, *, seed: int) -> Dataset:
    """Texts of nouns, verbs and words in clear, of several lengths; some stand twice."""
    drawn = torch.randint(60, (n, 9), generator=torch.Generator().manual_seed(seed)).tolist()
    texts = [" ".join(f"the w{word} of" for word in row[: 1 + row[-1] % 8]) for row in drawn]
    texts[n // 2] = texts[0]
    return Dataset(tuple((text,) for text in texts), tuple("ab"[row[0] % 2] for row in drawn))


TRAIN, TEST = corpus(40, seed=1), corpus(10, seed=2)


@pytest.fixture
def client(data_dir: Path, api_key: str, tmp_path: Path) -> Iterator[Client]:  # noqa: F811
    with customer(data_dir, api_key, tmp_path / "home") as opened:
        yield opened


@pytest.fixture
def privacy(tiny_model: Path, tmp_path: Path) -> Words:  # noqa: F811
    """The tagger takes the texts' made-up words for nouns, mostly; `of` is replaced, and `the` is not."""
    members = [(word, tag) for tag in ("NOUN", "PROPN") for word in VOCABULARY]
    members += [(word, "ADP") for word in ("of", "in", "on")]
    file = tmp_path / "words.tsv"
    file.write_text("".join(f"{word}\t{tag}\t1\n" for word, tag in members))
    return Words(eta=6.0, words=("noun", "preposition"), space=str(tiny_model), vocabulary=file)


def finetune(client: Client, privacy: PrivacySpec, **settings: Any) -> FinetuneResult:
    return client.finetune(TRAIN, test=TEST, privacy=privacy, training=TRAINING, seed=SEED, **settings)


@pytest.mark.filterwarnings("ignore")
def test_the_vendor_alone_learns_from_plain_words_what_it_learns_with_the_customer(
    client: Client, privacy: Words, tmp_path: Path
) -> None:
    tuning, cut = Prefix(prefix_length=3, pooling="mean"), Cut(bottom=None)
    settings: dict[str, Any] = {"cut": cut, "tuning": tuning, "reconstruction": PLAIN}
    here = finetune(client, privacy, out=tmp_path / "here", **settings)
    there = finetune(client, privacy, out=tmp_path / "there", labels_at="vendor", **settings)
    without = finetune(
        client, privacy, out=tmp_path / "without", labels_at="vendor",
        **{**settings, "reconstruction": PLAIN.model_copy(update={"reconstruction_weight": 0.0})},
    )  # fmt: skip
    assert there.adapter_sha256 == here.adapter_sha256 != without.adapter_sha256
    assert there.reconstruction_loss == pytest.approx(here.reconstruction_loss, abs=1e-9)


class Interrupts(Silent):
    """Ctrl-C in the second epoch."""

    def update(self, stage: str, done: int, total: int, note: str = "") -> None:
        if stage.startswith("epoch 2"):
            raise KeyboardInterrupt


STOPPED = {
    f"{tuning.method}-{cut.slug}": (tuning, cut)
    for tuning in (Lora(r=2), Prefix(prefix_length=3, pooling="mean"))
    for cut in (Cut(bottom=0), Cut(bottom=None))
}


@pytest.mark.parametrize(
    ("tuning", "cut"),
    slow_but(["prefix-text"], STOPPED.values(), ids=STOPPED),
)
def test_a_stopped_run_goes_on_to_the_same_bits(
    client: Client, privacy: Words, cut: Cut, tuning: Any, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"cut": cut, "tuning": tuning, "reconstruction": PLAIN}
    with pytest.raises(Stopped):
        finetune(client, privacy, progress=Interrupts(), out=tmp_path / "run", **settings)
    resumed = finetune(client, privacy, out=tmp_path / "run", **settings)
    straight = finetune(client, privacy, out=tmp_path / "straight", **settings)
    without = finetune(client, privacy, cut=cut, tuning=tuning)
    assert resumed.adapter_sha256 == straight.adapter_sha256 != without.adapter_sha256
    assert resumed.reconstruction_loss == straight.reconstruction_loss
    assert without.reconstruction_loss == ()
    # what attacks read of the texts, and what left of them, is the same
    for name in ("ep", "ep_n", "replaced", "clear_words", "tokens_released", "looks", "guarantee"):
        assert getattr(straight, name) == getattr(without, name), name
    first = json.loads((straight.folder / "losses.jsonl").read_text().splitlines()[0])
    assert first["reconstruction_loss"] == pytest.approx(5 * math.log(OUTPUTS), rel=0.05)
    assert straight.reconstruction_loss[-1] < straight.reconstruction_loss[0]
    assert len(client.predict(straight.adapter_id, TEST.texts[:3])) == 3


@pytest.mark.slow
def test_a_vocabulary_that_was_written_anew_is_another_run(client: Client, privacy: Words, tmp_path: Path) -> None:
    """A run that goes on would draw a part among other words; a finished one is not shown as if it had them."""
    assert privacy.vocabulary is not None
    before, folder = privacy.vocabulary.read_text(), tmp_path / "run"
    with pytest.raises(Stopped):
        finetune(client, privacy, progress=Interrupts(), out=folder)
    with pytest.raises(Stopped):
        finetune(client, privacy, progress=Interrupts())
    sent = sum(frame.texts > 0 for frame in client.ledger.frames())
    privacy.vocabulary.write_text(before + "more\tNOUN\t1\n")
    with pytest.raises(ConfigError, match="among other words than the vocabulary holds now"):
        finetune(client, privacy, out=folder)
    assert sum(frame.texts > 0 for frame in client.ledger.frames()) == sent
    anew = finetune(client, privacy)
    privacy.vocabulary.write_text(before)
    named, found = finetune(client, privacy, out=folder), finetune(client, privacy)
    assert named.adapter_sha256 == found.adapter_sha256 != anew.adapter_sha256


@pytest.mark.parametrize(("virtual", "longest"), [(48, None), (3, None), (3, 8)])
def test_texts_that_lose_their_end_to_plain_words_are_told_of(
    client: Client, privacy: Words, virtual: int, longest: int | None, tmp_path: Path
) -> None:
    """Of 64 positions, 48 virtual ones, 2 marks and 5 words nine are left, for texts of up to nine words, and of more
    pieces. `max_length` takes as much of a text without them.
    """
    short = TRAINING.model_copy(update={"max_length": longest, "epochs": 1})
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        client.finetune(
            TRAIN, test=TEST, privacy=privacy, training=short, seed=SEED, reconstruction=PLAIN, out=tmp_path / "run",
            tuning=Prefix(prefix_length=virtual),
        )  # fmt: skip
    found = [str(each.message) for each in told if "lose their end" in str(each.message)]
    assert len(found) == (virtual == 48)
    assert all(re.search(r"of the first \d+ texts of train \d+ lose their end to them, \d+%", each) for each in found)


@dataclass(frozen=True)
class Roads:
    """The privatizers of a run with plain words before its training texts, and texts."""

    privatizing: Privatizing
    tokens: Tokens
    tokenizer: Any
    cut: bool


_KEPT = 4
"""Ids of a text that lost its end."""


@pytest.fixture(params=[None, _KEPT + 2], ids=["whole", "cut"])
def roads(request: pytest.FixtureRequest, tiny_model: Path, privacy: Words, tmp_path: Path) -> Roads:  # noqa: F811
    """Of texts that leave whole, or of which the most lose their end."""
    home = Home(give_secret(tmp_path / "own"))
    archive = local_archive(home, str(tiny_model), Cut(bottom=0))
    spec = run_spec(eta=1.0, max_length=request.param)
    spec = spec.model_copy(update={"privacy": privacy, "reconstruction": PLAIN, "seed": 4})
    privatizing = run_privatizing(archive, home, spec)
    tokens = privatizing.reading.read(TRAIN, max_content=62)
    return Roads(privatizing, tokens, archive.tokenizer, cut=request.param is not None)


def charged(release: Release) -> tuple[Any, Any]:
    """All that its charges hold."""
    return release.charges.records.values.tolist(), release.charges.records.lengths.tolist()


def test_plain_words_cost_nothing_and_change_no_draw(roads: Roads) -> None:
    """Charges, draws, own words that leave, and counts are those of the same texts without them."""
    ways = roads.privatizing.training, roads.privatizing.privatizer
    before, without = (each.tokens(roads.tokens, labels=None) for each in ways)
    assert charged(before) == charged(without)
    assert (before.contents, before.draws) == (without.contents, without.draws)
    assert torch.equal(before.etas, without.etas)
    assert torch.equal(before.tokens, without.tokens)
    assert before.replaced is not None
    assert without.replaced is not None
    assert torch.equal(before.replaced, without.replaced)
    assert before.replaced.sum() > 0
    assert before.clear_words() == without.clear_words() == {"determiner": roads.tokens.total // 3}
    # other bytes are another release, of the same draw
    assert not set(before.identities) & set(without.identities)
    assert isinstance(before.payload, PrecededTokens)
    assert isinstance(without.payload, Tokens)
    assert not isinstance(without.payload, PrecededTokens)
    behind = before.payload.preceding.sum(1).tolist()
    (own,), (all_,) = without.payload.segments, before.payload.segments
    for number, count in enumerate(behind):
        assert all_[number][count:].tolist() == own[number].tolist()
    longest = int(own.lengths.max())
    assert (longest == _KEPT) if roads.cut else (longest > _KEPT)


def test_it_is_told_where_each_word_stands(roads: Roads) -> None:
    """By the tokenizer alone: a word's pieces are those that it has when it stands alone."""
    training, plain = roads.privatizing.training, roads.privatizing.plain
    assert isinstance(training, WordsPrivatizer)
    assert plain is not None
    payload = training.tokens(roads.tokens, labels=None).payload
    drawn = training.drawn(roads.tokens)
    assert isinstance(payload, PrecededTokens)
    words = [drawn.pieces[number, 1] for number in (~drawn.own).nonzero()[:, 0].tolist()]
    expected = [roads.tokenizer.encode(word, add_special_tokens=False) for word in words]
    assert payload.preceding.flatten().tolist() == [len(pieces) for pieces in expected]
    texts = zip(payload.segments[0].split(), payload.preceding.sum(1).tolist(), strict=True)
    left = [ids[:count].tolist() for ids, count in texts]
    assert list(chain(*left)) == list(chain(*expected))
    assert set(payload.sequences.tolist()) == {0, 1}
    # each text has draws of its own: one sequence does not leave as the same words every time
    first = payload.sequences == 0
    assert len({tuple(ids) for ids, chosen in zip(left, first.tolist(), strict=True) if chosen}) > 5
    assert torch.equal(training.shape(roads.tokens).values, payload.values)


def test_an_attacker_sees_what_plain_words_became(client: Client, privacy: Words, tiny_model: Path) -> None:  # noqa: F811
    """Which they were it is told; what they became stands in the word stream, and is what crossed."""
    result = finetune(client, privacy, reconstruction=PLAIN)
    archive = local_archive(client.home, str(tiny_model), Cut(bottom=Evidence.settings(result.folder).cut.bottom))
    found = Evidence.of(result.folder, Corpora(TRAIN, None, TEST), archive, home=client.home)
    assert found.words is not None
    told = found.words.knowledge.plain
    assert told is not None
    assert told.shape == (2, 5)
    assert found.knowledge.plain is None, "of token ids no word is one number"
    seen = [each.preceded for each in found.words.transcript.releases()]
    crossed = [each.preceded for each in found.transcript.releases() if each.preceded is not None]
    decode, became = found.words.numbers.decode, 0
    for words, ids in zip(seen, crossed, strict=True):
        assert words is not None
        assert ids is not None
        assert torch.equal(words.sequences, ids.sequences)
        for own, sent, sequence in zip(
            words.parted()[0].split(), ids.parted()[0].split(), words.sequences.tolist(), strict=True
        ):
            assert decode(own) == archive.tokenizer.decode(sent)
            became += int((own != told[sequence]).sum())
    assert became, "nothing was replaced"
    pairs = known_pairs(found.words.transcript, found.words.knowledge)
    assert len(pairs.true) == 5 * sum(len(each) for each in seen if each is not None)
    # guesses are about the texts' own words alone
    outcome = measure("nearest-neighbour", found.words.transcript, knowledge=found.words.knowledge, truth=found.tokens)
    assert isinstance(outcome, Measured)
    assert (outcome.privacy.value, outcome.success.n) == (pytest.approx(result.ep), result.ep_n)


@pytest.mark.slow
def test_an_audit_of_the_run_tells_what_plain_words_taught(
    client: Client,
    privacy: Words,
    tiny_model: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    """From the recorded run to the page: the attack's number, of how many words, and its controls stand there."""
    # enough texts and noise little enough for controls to tell something
    texts = corpus(160, seed=1)
    weak = privacy.model_copy(update={"eta": 30.0})
    result = client.finetune(
        texts, test=TEST, privacy=weak, training=TRAINING, seed=SEED, reconstruction=PLAIN, out=tmp_path / "run"
    )
    public = tmp_path / "public.jsonl"
    public.write_text("".join(json.dumps({"text": text}) + "\n" for (text,) in corpus(200, seed=9).texts))
    report = cutlayer.audit(
        texts, test=TEST, transcript=result.folder, model=str(tiny_model), home=client.home.path, public=str(public),
        only=("nearest-neighbour", "known-pairs"), progress=None,
    )  # fmt: skip
    (found,) = (each for each in report.report.attacks if each.name == "known-pairs")
    assert found.status == "measured", found.reason
    assert found.value is not None
    checks = {control.check for control in found.controls}
    assert checks == {Check.UNPROTECTED, Check.NOISE, Check.SHUFFLED, Check.REPEATED, Check.GRADED}
    rows = [row for row in re.findall(r"<tr.*?</tr>", report.html, re.DOTALL) if found.title in row]
    result, controls = rows[0], rows[-1]
    assert f"{100 * found.value:.1f}" in result
    assert f"{found.n:,}" in result
    assert controls.count(">passed<") == len(checks)


def letters(text: str) -> str:
    """What stays of a text by a tokenizer that takes accents off, and puts blanks around hyphens."""
    return "".join(
        each for each in unicodedata.normalize("NFD", text) if not (unicodedata.combining(each) or each == " ")
    )


@pytest.mark.parametrize(
    ("settings", "pooling", "said"),
    [
        ({"plain_tokens": 40}, "mean", ("begins at a loss of 148 beside 0.7",)),
        ({"plain_tokens": 40, "reconstruction_vocabulary": 19369}, "mean", ("begins at a loss of 395 beside 0.7",)),
        ({"plain_tokens": 40, "reconstruction_weight": 0}, "sequence", ("reads plain words, too",)),
        ({"plain_tokens": 40}, "sequence", ("reads plain words, too", "begins at a loss of 148")),
        ({"plain_tokens": 40, "reconstruction_weight": 0.001}, "mean", ()),
        ({"plain_tokens": 40, "reconstruction_weight": 0}, "text", ("reads plain words, too",)),
        ({}, "sequence", ()),
    ],
)
def test_settings_that_cost_labels_are_told_of(
    settings: dict[str, Any], pooling: Pooling, said: tuple[str, ...]
) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        Reconstruction(**settings).warn_of_what_labels_lose(pooling, 2)
    assert len(told) == bool(said)
    assert all(each in str(told[0].message) for each in said)


@pytest.mark.usefixtures("starter_installed")
def test_words_of_several_pieces_are_found(tmp_path: Path) -> None:
    """By a real tokenizer: the pieces that are told of a word read as the word; what follows is the text."""
    home = Home(give_secret(tmp_path / "own"))
    archive = local_archive(home, "starter", Cut(bottom=0))
    settings = {"privacy": Words(eta=60.0), "reconstruction": Reconstruction(plain_tokens=40), "seed": 4}
    privatizing = run_privatizing(archive, home, run_spec(eta=1.0).model_copy(update=settings))
    training = privatizing.training
    assert isinstance(training, WordsPrivatizer)
    rows = Dataset((("The doctor saw (53) patients in Paris; she didn't.",), ("“Well”, said he, ’tis naïve!",), ("",)))
    tokens = privatizing.reading.read(rows, max_content=200)
    payload, drawn = training.tokens(tokens, labels=None).payload, training.drawn(tokens)
    assert isinstance(payload, PrecededTokens)
    assert int(payload.preceding.max()) > 1
    words = drawn.pieces[(~drawn.own).numpy(), 1].reshape(3, 40).tolist()
    for ids, counts, expected in zip(payload.segments[0].split(), payload.preceding, words, strict=True):
        *pieces, rest = ids.split([*counts.tolist(), len(ids) - int(counts.sum())])
        assert [letters(archive.tokenizer.decode(each)) for each in pieces] == [letters(word) for word in expected]
    assert not len(rest), "the last text is empty"


def test_which_words_and_how_many_outputs_can_be_said(tiny_model: Path, privacy: Words, tmp_path: Path) -> None:  # noqa: F811
    """Other words under the run's own seed; another head for the same words."""
    home = Home(give_secret(tmp_path / "own"))
    archive = local_archive(home, str(tiny_model), Cut(bottom=0))

    def drawn(**settings: Any) -> PlainWords:
        spec = run_spec(eta=1.0).model_copy(update={"privacy": privacy, "seed": 4})
        reconstruction = Reconstruction(**{**PLAIN.model_dump(), **settings})
        found = run_privatizing(archive, home, spec.model_copy(update={"reconstruction": reconstruction})).plain
        assert found is not None
        return found

    own, others, same, fewer = drawn(), drawn(plain_seed=5), drawn(plain_seed=4), drawn(reconstruction_vocabulary=12)
    assert torch.equal(own.names, same.names)
    assert not torch.equal(own.names, others.names)
    assert (own.vocabulary, fewer.vocabulary) == (len({number for each in own.numbers for number in each}), 12)
    assert torch.equal(own.names, fewer.names)
    told, before = torch.tensor(fewer.numbers), torch.tensor(own.numbers)
    assert int(told.max()) < 12
    equal = before.flatten()[:, None] == before.flatten()
    assert torch.equal(told.flatten()[:, None] == told.flatten(), equal), "a word has one number, and no other has it"


def test_what_nobody_said_is_not_written() -> None:
    """Cells of recipes and runs of before are known by what their settings were."""
    assert set(PLAIN.model_dump()) == {
        "plain_tokens", "plain_sequences", "reconstruction_weight", "reconstruction_width", "plain_tokens_at_inference"
    }  # fmt: skip
    assert PLAIN.model_copy(update={"plain_seed": 0}).model_dump()["plain_seed"] == 0


def test_where_a_run_differs_from_the_paper_is_told(privacy: Words) -> None:
    def told(**changes: Any) -> dict[str, str]:
        asked = Reconstruction(plain_tokens=5, **changes)
        tuning = Lora(pooling="mean")
        run = settle(FinetuneSpec(privacy=privacy, cut=Cut(bottom=None), tuning=tuning, reconstruction=asked))
        return {each.what: each.ours for each in deviations(run)}

    weight = "weight of the reconstruction, eq. (11)"
    assert told(reconstruction_weight=0.001)[weight] == "0.001"
    assert weight not in told()
    assert weight not in told(reconstruction_weight=0)
    assert "special tokens included" in told()["what the head reads, eq. (9)"]
    assert not deviations(settle(FinetuneSpec(privacy=privacy, cut=Cut(bottom=None))))


def test_equal_texts_are_one_release(roads: Roads) -> None:
    release = roads.privatizing.training.tokens(roads.tokens, labels=None)
    assert TRAIN.texts[0] == TRAIN.texts[20]
    assert release.identities[0] == release.identities[20]
    alone = roads.privatizing.training.tokens(roads.tokens.select([20]), labels=None)
    assert alone.digests() == release.digests()[20:21]


def test_a_text_that_plain_words_leave_no_room_for_is_refused(client: Client, privacy: Words) -> None:
    many = Reconstruction(plain_tokens=40)
    with pytest.raises(ConfigError, match=r"plain_tokens = 40: leaves no room for a text: tiny has 64 positions"):
        finetune(client, privacy, reconstruction=many, tuning=Prefix(prefix_length=17))
    assert client.home.ledger.is_empty()


@pytest.mark.parametrize("text", ["A house.", ""])
def test_words_of_many_pieces_that_leave_no_room_are_refused(text: str, tmp_path: Path) -> None:
    """Found by drawing them, before anything leaves; of a text without words, too, which would be too long as well."""
    home = Home(give_secret(tmp_path / "own"))
    archive = local_archive(home, "starter", Cut(bottom=0))
    few = archive.manifest.template.model_copy(update={"max_length": 48})
    short = replace(archive, manifest=archive.manifest.model_copy(update={"template": few}))
    settings = {"privacy": Words(eta=60.0), "reconstruction": Reconstruction(plain_tokens=40), "seed": 4}
    privatizing = run_privatizing(short, home, run_spec(eta=1.0).model_copy(update=settings))
    with pytest.raises(ConfigError, match="leave no room for a text: of 46 tokens that fit the model up to"):
        privatizing.training.shape(privatizing.reading.read(Dataset(((text,),)), max_content=200))


def test_a_tokenizer_that_makes_fewer_pieces_behind_a_blank_cuts_nothing(tmp_path: Path) -> None:
    """A first word has a blank before it behind plain words, and by byte-level pieces may be fewer: nothing is lost."""
    home = Home(give_secret(tmp_path / "own"))
    archive = local_archive(home, "starter-decoder", Cut(bottom=None, tail=0))
    texts = Dataset(tuple((f"{word} was there, and nobody else.",) for word in ("Zebulon", "Ferdinand", "Marguerite")))
    given = {"privacy": Words(eta=60.0), "reconstruction": Reconstruction(plain_tokens=10), "seed": 4}
    spec = run_spec(objective="lm", eta=1.0).model_copy(update=given)
    privatizing = run_privatizing(archive, home, spec)
    tokens = privatizing.reading.read(texts, max_content=200)
    behind, alone = (each.shape(tokens) for each in (privatizing.training, privatizing.privatizer))
    assert isinstance(behind, PrecededTokens)
    assert (behind.parted()[1].segments[0].lengths < alone.segments[0].lengths).any(), "fewer pieces"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_lost_ends(spec, archive, privatizing, tokens)


@pytest.mark.parametrize(
    ("settings", "changes", "named"),
    [
        ({"reconstruction_weight": 1}, {}, r"reconstruction_weight = 1.0: needs plain tokens"),
        ({"reconstruction_weight": 0}, {}, r"reconstruction_weight = 0.0: needs plain tokens"),
        ({"plain_sequences": 2}, {}, r"plain_sequences = 2: needs plain tokens"),
        ({"plain_seed": 0}, {}, r"plain_seed = 0: needs plain tokens"),
        (
            {"plain_tokens": 5, "plain_sequences": 2, "reconstruction_vocabulary": 9},
            {},
            "reconstruction_vocabulary = 9: must be at least 10, one for each plain word",
        ),
        ({"plain_tokens_at_inference": True}, {}, "plain_tokens_at_inference = True: needs plain tokens"),
        ({"plain_tokens": 40}, {"eta": 6.0}, "plain_tokens = 40: needs mechanism words, or plain_as"),
        ({"plain_tokens": 40, "plain_as": "0f"}, {}, "plain_as = '0f': must be left out with mechanism words"),
        ({"plain_as": "0f"}, {}, "plain_as = '0f': needs plain tokens"),
        ({"plain_tokens": 40}, {"bottom": 1}, "plain_tokens = 40: needs bottom 0, or the text cut"),
        ({"plain_tokens": 40, "plain_sequences": 30}, {}, "plain_sequences = 30: make more than 1024 words"),
        (
            {"plain_tokens": 4, "plain_tokens_at_inference": True},
            {"tuning": Prefix(pooling="mean", train_bottom="frozen")},
            "plain_tokens_at_inference = True: must be off with pooling mean",
        ),
    ],
    ids=str,
)
def test_settings_that_contradict_each_other(settings: Any, changes: Any, named: str, privacy: Words) -> None:
    spec = run_spec(eta=6.0, **{name: value for name, value in changes.items() if name == "bottom"})
    updates = {"reconstruction": Reconstruction(**settings), "privacy": privacy}
    if "eta" in changes:
        del updates["privacy"]
    if "tuning" in changes:
        updates["tuning"] = changes["tuning"]
    with pytest.raises(ConfigError, match=named):
        validate(spec.model_copy(update=updates))


def test_what_leaves_of_them_is_numbers_and_what_was_drawn(client: Client, privacy: Words) -> None:
    """Every shard of train is the privatizer's own release; the job has the words' numbers, and no frame a word."""
    result = finetune(client, privacy, reconstruction=PLAIN)
    frames = [frame for frame in read_recording(result.folder / "transcript") if frame.direction is Direction.UP]
    (job,) = {frame.body for frame in frames if frame.route.name == "job.put"}
    task = json.loads(job)["reconstruction"]
    assert set(task) == {"vocabulary", "width", "weight", "words"}
    assert (task["vocabulary"], task["width"], task["weight"]) == (OUTPUTS, 8, 1.0)
    assert [len(words) for words in task["words"]] == [5, 5]
    shards = [frame for frame in frames if frame.route.name == "shard.put"]
    sets = [json.loads(frame.body) for frame in frames if frame.route.name == "record-set.put"]
    assert [(each["plain_tokens"], each["plain_sequences"]) for each in sets] == [(5, 2), (0, 1)]
    assert ["preceding" in frame.tensors() for frame in shards] == [True, False]
    held = shards[0].tensors()
    texts = {text for (text,) in TRAIN.texts}
    assert held["preceding"].shape[1] == 5
    assert len(held["sequences"]) <= len(texts)
    assert set(held["sequences"].tolist()) == {0, 1}
    control = [frame.body for frame in frames if not frame.tensors()]
    assert not any(word.encode() in body for body in control for word in VOCABULARY)


def test_they_can_stand_before_queries_too_and_weigh_nothing(client: Client, privacy: Words) -> None:
    """Of queries nothing is told but ids; with weight 0 the task moves no weight of the model."""
    asked = PLAIN.model_copy(update={"plain_tokens_at_inference": True})
    result = finetune(client, privacy, reconstruction=asked)
    release = [frame for frame in read_recording(result.folder / "transcript") if "preceding" in frame.tensors()]
    assert {frame.route.name for frame in release} == {"shard.put"}
    shown = client.predict(result.adapter_id, TEST.texts[:3])
    assert len(shown) == 3
    control = PLAIN.model_copy(update={"reconstruction_weight": 0.0})
    ended = [
        finetune(client, privacy, reconstruction=control.model_copy(update={"reconstruction_width": width}))
        for width in (8, 9)
    ]
    assert len({each.adapter_sha256 for each in ended}) == 1
    assert ended[0].reconstruction_loss[0] == pytest.approx(5 * math.log(OUTPUTS), rel=0.05)
