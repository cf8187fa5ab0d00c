"""The customer's folder: what it refuses to begin anew without a word."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from cutlayer.core import ConfigError, Ragged, StorageError, Tokens
from cutlayer.customer.home import Home
from cutlayer.customer.run import DataDigests, Run
from cutlayer.privacy import NewFrame, NoPrivacy, build_privatizer
from tests.unit.customer.test_run import opened, spec

TEXTS = Tokens((Ragged.from_lists([[1, 2, 3]]),))


def release_one(home: Home) -> None:
    release = build_privatizer(NoPrivacy(), secret=home.secret).tokens(TEXTS, labels=None)
    home.ledger.open_frame(
        NewFrame(run="r", vendor="v", route="shard.put", where={}, payload_bytes={}, unsafe=False), release=release
    )


def test_a_lost_secret_is_not_replaced_once_a_text_was_released(tmp_path: Path) -> None:
    """Another one would draw every text again, under names that no budget knows."""
    release_one(Home(tmp_path))
    (tmp_path / "secret").unlink()
    with pytest.raises(StorageError, match=r"secret .*is missing") as caught:
        assert Home(tmp_path).secret
    assert "Restore it" in caught.value.remedy
    assert not (tmp_path / "secret").exists()


def test_a_secret_of_another_folder_is_not_taken(tmp_path: Path) -> None:
    """Restored from the wrong backup, say: every text would be a new one to the ledger."""
    release_one(Home(tmp_path / "a"))
    release_one(Home(tmp_path / "b"))
    (tmp_path / "a/secret").write_bytes((tmp_path / "b/secret").read_bytes())
    with pytest.raises(StorageError, match="is not the one with which the texts") as caught:
        assert Home(tmp_path / "a").secret
    assert "Restore the secret and the ledger of one folder together" in caught.value.remedy
    assert Home(tmp_path / "b").secret


def test_a_lost_ledger_is_not_replaced_once_there_is_a_secret(tmp_path: Path) -> None:
    release_one(Home(tmp_path))
    for file in tmp_path.glob("ledger.sqlite*"):
        file.unlink()
    for ask in (lambda home: home.ledger, lambda home: home.secret):
        with pytest.raises(StorageError, match=r"ledger\.sqlite is missing"):
            ask(Home(tmp_path))
    assert not (tmp_path / "ledger.sqlite").exists()


def test_an_older_copy_of_the_ledger_is_noticed(tmp_path: Path) -> None:
    """Put back from a backup, say: it has forgotten what was spent since, and every budget would begin there."""
    home = Home(tmp_path)
    release_one(home)
    home.ledger.close()
    copies = {file: file.read_bytes() for file in tmp_path.glob("ledger.sqlite*")}
    release_one(Home(tmp_path))
    newest = {file: file.read_bytes() for file in tmp_path.glob("ledger.sqlite*")}
    for file in newest:
        file.unlink()
    for file, content in copies.items():
        file.write_bytes(content)
    for ask in (lambda home: home.secret, lambda home: home.vault, release_one):
        with pytest.raises(StorageError, match=r"ends at frame 1, and .*vault\.sqlite knows of frame 2") as caught:
            ask(Home(tmp_path))
        assert "newest copy" in caught.value.remedy
    for file in copies:
        file.unlink()
    for file, content in newest.items():
        file.write_bytes(content)
    release_one(Home(tmp_path))


def test_a_vault_of_the_version_before_is_taken_over(tmp_path: Path) -> None:
    release_one(Home(tmp_path))
    with sqlite3.connect(tmp_path / "vault.sqlite") as connection:
        connection.execute("DROP TABLE counter")
        connection.execute("PRAGMA user_version=2")
    home = Home(tmp_path)
    assert home.vault.noted() == 0
    release_one(home)
    assert home.vault.noted() == 2


def test_a_ledger_of_questions_alone_needs_no_secret(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.ledger.open_frame(NewFrame(run="", vendor="v", route="adapters", where={}, payload_bytes={}, unsafe=False))
    assert Home(tmp_path).secret


def test_a_tilde_is_the_users_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Service files and quotes leave it as it is, and a folder `~` would be a new one in each working directory."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUTLAYER_HOME", "~/customer")
    assert Home().path == tmp_path / "customer"
    assert Home(Path("~/other")).path == tmp_path / "other"
    assert not (tmp_path / "~").exists()


@pytest.mark.parametrize(
    "name", ["result.json", "losses.jsonl", "trained-7.safetensors", "transcript/frames.bin", "transcript/frames.jsonl"]
)
def test_a_run_does_not_take_a_folder_with_files_that_it_would_replace(name: str, tmp_path: Path) -> None:
    mine = tmp_path / name
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("mine")
    with pytest.raises(ConfigError, match=f"would replace: {name}") as caught:
        Run.open(tmp_path, run="a1", data=DataDigests("d", "d", "d"), spec=spec())
    assert "--out" in caught.value.remedy
    assert mine.read_text() == "mine"


def test_other_files_do_not_keep_a_run_out(tmp_path: Path) -> None:
    (tmp_path / "notes.csv").write_text("mine")
    run = opened(tmp_path)
    run.log_loss(1, 0.5)
    run.forget()
    assert [file.name for file in tmp_path.iterdir()] == ["notes.csv"]
    assert opened(tmp_path).state.run == "a1"


def test_what_is_no_folder_holds_no_run(tmp_path: Path) -> None:
    file = tmp_path / "notes.csv"
    file.write_text("mine")
    for folder in (file, file / "run"):
        with pytest.raises(StorageError, match="cannot hold a run") as caught, Run.held(folder):
            pass
        assert "--out" in caught.value.remedy
