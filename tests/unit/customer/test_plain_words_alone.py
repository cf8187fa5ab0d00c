"""Plain words before texts of which nothing is drawn, as `protect` wrote them (`--words none`)."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import pytest

from cutlayer.attacks import NotApplicable, measure
from cutlayer.core import BudgetError, ConfigError, Cut, PrecededTokens
from cutlayer.core.guarantee import Claim
from cutlayer.customer import Client
from cutlayer.customer.corpora import Corpora
from cutlayer.customer.derived import run_privatizing
from cutlayer.customer.evidence import Evidence
from cutlayer.customer.handout import local_archive
from cutlayer.customer.home import Home
from cutlayer.privacy import Words
from cutlayer.privacy.privatizers.words import WordsPrivatizer
from tests.promises.runs import give_secret
from tests.settings import run_spec
from tests.unit.customer.test_reconstruction import (  # noqa: F401 - fixtures by name
    PLAIN,
    TEST,
    TRAIN,
    api_key,
    blank_vendor,
    client,
    data_dir,
    finetune,
    needs_words,
    privacy,
    tiny_model,
)

pytestmark = pytest.mark.usefixtures("needs_words")


@pytest.fixture
def alone(privacy: Words) -> Words:  # noqa: F811
    """Of the categories that a vocabulary has by default, this one has words of three."""
    file = privacy.vocabulary
    assert file is not None
    tags = ("VERB", "PRON", "ADJ", "ADV", "DET", "NUM", "PART", "INTJ", "CCONJ", "PUNCT", "X")
    file.write_text(file.read_text() + "".join(f"w{number}\t{tag}\t1\n" for tag in tags for number in range(9)))
    return privacy.model_copy(update={"words": ("none",)})


def made(alone: Words, model: Path, folder: Path) -> tuple[Any, Any]:
    """A run's privatizers and its texts as words."""
    home = Home(give_secret(folder / "own"))
    archive = local_archive(home, str(model), Cut(bottom=0))
    spec = run_spec(eta=1.0).model_copy(update={"privacy": alone, "reconstruction": PLAIN, "seed": 4})
    privatizing = run_privatizing(archive, home, spec)
    return privatizing, privatizing.reading.read(TRAIN, max_content=62), archive.tokenizer


def test_texts_leave_as_they_are_and_plain_words_do_not(alone: Words, tiny_model: Path, tmp_path: Path) -> None:  # noqa: F811
    privatizing, tokens, tokenizer = made(alone, tiny_model, tmp_path)
    training = privatizing.training
    assert isinstance(training, WordsPrivatizer)
    release = training.tokens(tokens, labels=None)
    assert isinstance(release.payload, PrecededTokens)
    _, own = release.payload.parted()
    assert [ids.tolist() for ids in own.segments[0].split()] == [
        tokenizer.encode(text, add_special_tokens=False) for (text,) in TRAIN.texts
    ]
    assert int(release.replaced.sum()) == 0
    drawn = training.drawn(tokens)
    assert drawn.changed[~drawn.own].any(), "plain words are drawn"
    assert not drawn.changed[drawn.own].any()
    assert release.etas.tolist() == [math.inf] * len(tokens)
    planted = training.tokens(tokens.select([0]), labels=None)
    assert planted.digests() == release.digests()[:1], "the same draw in another batch"


def test_the_same_run_with_words_to_draw_draws_them(alone: Words, tiny_model: Path, tmp_path: Path) -> None:  # noqa: F811
    """Planted: a reading that tells parts of speech all the same would have texts drawn which are told to leave."""
    privatizing, tokens, _ = made(alone.model_copy(update={"words": ("noun",)}), tiny_model, tmp_path)
    assert int(privatizing.training.tokens(tokens, labels=None).replaced.sum()) > 0


def test_a_run_says_that_its_texts_left_as_they_are(client: Client, alone: Words, tiny_model: Path) -> None:  # noqa: F811
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        result = finetune(client, alone, reconstruction=PLAIN)
    assert not [each for each in told if "leave as they are" in str(each.message)], "it was asked for"
    assert result.guarantee.claim is Claim.NONE
    assert "Texts are released as they are" in result.guarantee.caveats[0]
    assert result.no_privacy
    assert (result.ep, result.ep_n, result.replaced) == (None, 0, 0.0)
    assert "No word of these texts was drawn" in result.ep_note
    assert result.reconstruction_loss
    (mechanism,) = client.ledger.summary().mechanisms
    assert (mechanism.mechanism, mechanism.largest_spent) == ("words, plain ones alone", math.inf)
    archive = local_archive(client.home, str(tiny_model), Cut(bottom=Evidence.settings(result.folder).cut.bottom))
    found = Evidence.of(result.folder, Corpora(TRAIN, None, TEST), archive, home=client.home)
    assert found.words is not None
    outcome = measure("nearest-neighbour", found.words.transcript, knowledge=found.words.knowledge, truth=found.tokens)
    assert isinstance(outcome, NotApplicable)


def test_a_budget_is_exceeded_by_texts_that_leave_as_they_are(client: Client, alone: Words) -> None:  # noqa: F811
    with pytest.raises(BudgetError):
        finetune(client, alone, reconstruction=PLAIN, privacy_budget=1e9)
    assert client.home.ledger.is_empty()


def test_without_plain_words_there_is_nothing_to_draw(client: Client, alone: Words) -> None:  # noqa: F811
    with pytest.raises(ConfigError, match="words = 'none': draws nothing without plain tokens"):
        finetune(client, alone)
    with pytest.raises(ConfigError, match="draws nothing of a text: name categories"):
        client.privatize(["w1 met w2"], privacy=alone)
    with pytest.raises(ConfigError, match="words = 'none': must be all"):
        client.protect(["w1 met w2"], ["w1"], privacy=alone)


def test_a_drawn_text_is_another_release_than_one_that_leaves_as_it_is(
    alone: Words,
    tiny_model: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    """Charges of the one say nothing of the other, whose unit is another."""
    privatizing, tokens, _ = made(alone, tiny_model, tmp_path)
    drawing, same, _ = made(alone.model_copy(update={"words": ("noun",)}), tiny_model, tmp_path)
    open_, drawn = (each.training.tokens(some, labels=None) for each, some in ((privatizing, tokens), (drawing, same)))
    assert open_.unit == "none" != drawn.unit
    assert not set(open_.identities) & set(drawn.identities)
    assert open_.mechanism == "words, plain ones alone"
