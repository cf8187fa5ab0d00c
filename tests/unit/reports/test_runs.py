"""Several runs of one customer: what is read of them together, and which are refused."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from cutlayer.attacks import ATTACKS, Measured, PublicText, examine
from cutlayer.core import ConfigError, Cut, DataError
from cutlayer.customer import Client, Home
from cutlayer.customer.attacker import AttackerSpec
from cutlayer.customer.corpora import Corpora
from cutlayer.customer.evidence import Evidence
from cutlayer.customer.handout import local_archive
from cutlayer.data import Dataset, tokenise
from cutlayer.reports.audit import check_runs, several_runs
from tests.promises.runs import TEST, TRAIN, corpus, customer, finetune
from tests.service.fixtures import (  # noqa: F401 - fixtures are used by name
    api_key,
    blank_vendor,
    data_dir,
    tiny_model,
)
from tests.unit.cli.conftest import Run, run  # noqa: F401 - fixtures are used by name

REVERSED = Dataset(TRAIN.texts[::-1], (TRAIN.labels or ())[::-1])


@pytest.fixture
def client(data_dir: Path, api_key: str, tmp_path: Path) -> Iterator[Client]:  # noqa: F811
    with customer(data_dir, api_key, tmp_path / "home") as opened:
        yield opened


def evidence(client: Client, model: Path, folders: Sequence[Path], given: Sequence[Dataset]) -> list[Evidence]:
    archive = local_archive(client.home, str(model), Cut(bottom=0))
    return [
        Evidence.of(
            folder,
            Corpora(train, None, TEST),
            archive,
            home=client.home,
            attacker=AttackerSpec(auxiliary_fraction=0 if n else 0.2),
        )
        for n, (folder, train) in enumerate(zip(folders, given, strict=True))
    ]


@pytest.mark.parametrize("other_eta", [6.0, 9.0])
def test_runs_are_read_together_whatever_the_order_of_rows_and_eta(
    client: Client,
    tiny_model: Path,  # noqa: F811
    other_eta: float,
) -> None:
    given = [TRAIN, REVERSED]
    folders = [
        finetune(client, train=train, eta=eta).folder for train, eta in zip(given, (6.0, other_eta), strict=True)
    ]
    check_runs(folders)
    runs = evidence(client, tiny_model, folders, given)
    several = several_runs(folders, runs)
    assert len(several.told) == 2
    assert "in another order" in several.told[1]
    found = several.evidence
    assert found.joined is not None
    attack = ATTACKS["multi-run"]
    ((_, truth),) = found.truths(attack)
    assert len(list(found.seen_by(attack).releases())) == sum(len(list(each.transcript.releases())) for each in runs)
    assert found.seen_by(ATTACKS["maximum-posterior"]) is runs[0].transcript
    assert found.known_to(ATTACKS["maximum-posterior"]) is runs[0].knowledge
    granted = found.known_to(attack).noises or {}
    later = {release.source for release in runs[1].transcript.releases()} if other_eta != 6.0 else set()
    assert {source: noise.privacy.eta for source, noise in granted.items()} == dict.fromkeys(later, other_eta)
    # of what the attacker knows of one run it is asked in none
    assert found.texts is not None
    assert runs[0].tokens.texts is not None
    assert runs[1].texts is not None
    hidden = {found.texts.texts[row] for row in runs[0].tokens.texts.tolist()}
    known = set(found.texts.texts) - hidden
    asked = [text for text in runs[1].texts.texts if text not in known]
    assert known & set(runs[1].texts.texts)
    assert len(truth.tokens) == len(runs[0].tokens.tokens) + len(asked)  # type: ignore[attr-defined]
    # a few tokens of the tiny model do for what an attacker has read
    own = PublicText(tokenise(corpus(300, seed=9), found.archive.tokenizer, max_content=20), source="made up")
    knowledge = dataclasses.replace(found.known_to(attack), public=own)
    outcome = examine("multi-run", found.seen_by(attack), knowledge=knowledge, truth=truth).outcome
    assert isinstance(outcome, Measured)
    assert outcome.success.n == truth.tokens.total  # type: ignore[attr-defined]


def test_one_run_is_what_it_was(client: Client, tiny_model: Path) -> None:  # noqa: F811
    folder = finetune(client).folder
    (found,) = evidence(client, tiny_model, [folder], [TRAIN])
    assert several_runs([folder], [found]).evidence is found
    ((_, truth),) = found.truths(ATTACKS["multi-run"])
    assert truth is found.tokens


def test_a_label_that_changed_is_named_by_its_rows(client: Client, tiny_model: Path) -> None:  # noqa: F811
    names = sorted(set(TRAIN.labels or ()))
    labels = tuple(names[(names.index(label) + 1) % len(names)] for label in TRAIN.labels or ())
    given = [TRAIN, Dataset(TRAIN.texts, labels)]
    folders = [finetune(client, train=train).folder for train in given]
    with pytest.raises(DataError, match=r"Row \d+ of the run in .* has another label in the run in") as raised:
        several_runs(folders, evidence(client, tiny_model, folders, given))
    assert not any(name in str(raised.value) for name in names)
    assert not any(text in str(raised.value) for (text,) in TRAIN.texts)


def test_runs_that_cannot_be_read_together_are_refused_by_their_settings(client: Client) -> None:
    first, clear, deeper = (finetune(client, **how).folder for how in ({"eta": 6.0}, {"eta": math.inf}, {"bottom": 1}))
    with pytest.raises(ConfigError, match="privatized in two ways"):
        check_runs([first, clear])
    with pytest.raises(ConfigError, match="differ in cut"):
        check_runs([first, deeper])
    with pytest.raises(ConfigError, match="named twice"):
        check_runs([first, first])
    state = clear / "run.json"
    state.write_text(state.read_text().replace(Evidence.settings(first).model, "another"))
    with pytest.raises(ConfigError, match="two models"):
        check_runs([first, clear])


def test_a_run_of_another_customer_is_refused(
    client: Client,
    tiny_model: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    folder = finetune(client).folder
    archive = local_archive(client.home, str(tiny_model), Cut(bottom=0))
    with pytest.raises(DataError, match="another customer's"):
        Evidence.of(folder, Corpora(TRAIN, None, TEST), archive, home=Home(tmp_path / "other"))


def test_files_must_be_as_many_as_runs_or_one(run: Run, tmp_path: Path) -> None:  # noqa: F811
    line = ("audit", "--data", "a.csv", "--data", "b.csv", "--out", tmp_path / "out", "--transcript", "run")
    refused = run(*line)
    assert refused.code == 3
    assert "--data = 2: must be one for all runs, or one for each of the 1 runs" in refused.err
