"""What the customer keeps of an adapter: who may read it, and what happens when it is damaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cutlayer.core import DataError, StorageError, VendorError
from cutlayer.customer.home import Home
from cutlayer.customer.profile import Profile
from cutlayer.privacy import CtiSpec, TextToText, UtilityImportance, Words
from tests.settings import run_spec

SECRET = "wombat"
"""A label's name: it may stand in the profile and in no error."""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    folder = tmp_path / "shared"
    folder.mkdir(mode=0o755)
    return Home(folder)


@pytest.fixture
def profile(home: Home) -> Profile:
    spec = run_spec(privacy=TextToText(eta=80, cti=CtiSpec()), model="house", seed=1)
    made = Profile(adapter="a1" * 16, segments=1, max_content=14, labels=(SECRET, "other"), spec=spec)
    scores = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    made.save(home, UtilityImportance(scores, CtiSpec()), {"weight": torch.ones(2)})
    return made


def test_what_was_saved_is_loaded(profile: Profile, home: Home) -> None:
    assert Profile.load(home, "a1" * 16) == profile
    importance = profile.importance(home)
    assert importance is not None
    assert importance.scores.tolist() == [[1, -1]]
    assert profile.trained(home)["weight"].tolist() == [1, 1]


def test_what_an_adapter_learnt_to_read_is_checked_before_anything_leaves(profile: Profile, tmp_path: Path) -> None:
    profile.check_same("a new one")  # of an adapter from before it was kept
    known = profile.model_copy(update={"fingerprint": "f"})
    known.check_same("f")
    with pytest.raises(VendorError, match="other weights than house has now"):
        known.check_same("g")
    file = tmp_path / "words.tsv"
    file.write_text(f"{SECRET}\tNOUN\t1\n")
    privacy = Words(eta=6, vocabulary=file)
    drawn = known.model_copy(
        update={"spec": run_spec(privacy=privacy, model="house", seed=1), "vocabulary": privacy.vocabulary_digest}
    )
    drawn.check_same("f")
    file.write_text("other\tNOUN\t1\n")
    with pytest.raises(DataError, match="other words than when adapter") as refused:
        drawn.check_same("f")
    assert SECRET not in str(refused.value)
    file.unlink()
    with pytest.raises(DataError, match="There is no file"):
        drawn.check_same("f")


@pytest.mark.usefixtures("profile")
def test_only_the_owner_can_read_it(home: Home) -> None:
    modes = {file.name: file.stat().st_mode & 0o777 for file in home.adapter("a1" * 16).iterdir()}
    assert modes == {"importance.safetensors": 0o600, "trained.safetensors": 0o600, "profile.json": 0o600}


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content | {"labels": {SECRET: 1}},
        lambda content: content | {"labels": [SECRET, {SECRET: SECRET}]},
        lambda content: content | {"written_by_a_newer_version": SECRET},
        lambda content: content | {"spec": content["spec"] | {"privacy": {"eta": SECRET}}},
        lambda content: content | {"spec": content["spec"] | {"privacy": {"eta": 80, "cti": {SECRET: 1}}}},
        lambda content: [content],
        lambda content: SECRET,
    ],
)
@pytest.mark.usefixtures("profile")
def test_a_profile_that_is_damaged_or_newer(damage: Callable[[Any], Any], home: Home) -> None:
    file = home.adapter("a1" * 16) / "profile.json"
    file.write_text(json.dumps(damage(json.loads(file.read_text()))))
    with pytest.raises(StorageError, match="does not hold an adapter's profile") as refused:
        Profile.load(home, "a1" * 16)
    assert SECRET not in str(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__, "a traceback would print the values"


@pytest.mark.parametrize("content", [b"", b"no tensors", bytes(100)])
@pytest.mark.parametrize("name", ["importance", "trained"])
def test_damaged_tensors(name: str, content: bytes, profile: Profile, home: Home) -> None:
    (home.adapter("a1" * 16) / f"{name}.safetensors").write_bytes(content)
    with pytest.raises(StorageError, match=rf"{name}\.safetensors cannot be read"):
        getattr(profile, name)(home)
