"""A vendor's folder: made by `init`, refused if it is none."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from cutlayer import vendor
from cutlayer.core import ConfigError, ModelError, StorageError, VendorError
from cutlayer.vendor.catalogue import ModelCard, read_card
from cutlayer.vendor.database import SCHEMA, Database, Key
from cutlayer.vendor.lock import lock
from cutlayer.wire import routes
from cutlayer.wire.messages import ArchiveManifest
from cutlayer.wire.transports import LocalTransport
from tests.service.customer import ask, first_model
from tests.service.tiny import BLOCKS


def test_init_writes_settings_that_load_again(data_dir: Path) -> None:
    settings = vendor.VendorSettings.load(data_dir)
    assert settings.models.keys() == {"tiny"}
    assert settings.default_model == "tiny"
    assert stat.S_IMODE((data_dir / "vendor.json").stat().st_mode) == 0o600
    settings.save()
    assert vendor.VendorSettings.load(data_dir) == settings


def test_a_second_init_keeps_tenants_and_models(data_dir: Path, tiny_model: Path) -> None:
    vendor.keys.create(data_dir, "clinic")
    vendor.init(data_dir, models=[f"other={tiny_model}"], threads=1)
    settings = vendor.VendorSettings.load(data_dir)
    assert settings.models.keys() == {"tiny", "other"}
    assert settings.default_model == "tiny"
    assert [key.tenant for key in vendor.keys.list(data_dir)] == ["clinic"]


def test_a_second_init_changes_what_it_is_given_and_nothing_else(tmp_path: Path, tiny_model: Path) -> None:
    folder = tmp_path / "data"
    moved = shutil.copytree(tiny_model, tmp_path / "moved")
    vendor.init(
        folder,
        models=[f"b={moved}", f"a={tiny_model}"],
        database_url=f"sqlite:///{tmp_path / 'elsewhere.sqlite'}",
        max_bottom=1,
        threads=1,
        limits=vendor.Limits(live_jobs=3),
    )
    by_hand = json.loads((folder / "vendor.json").read_text()) | {"verify_shards": False}
    (folder / "vendor.json").write_text(json.dumps(by_hand))
    shutil.rmtree(moved)  # what is not named is not loaded
    before = vendor.VendorSettings.load(folder)
    assert vendor.init(folder, tls_host="vendor.example") == before
    assert vendor.VendorSettings.load(folder) == before
    assert before.certificate.is_file()
    assert not (folder / "vendor.sqlite").exists()

    changed = vendor.init(folder, models=[f"b={tiny_model}"], threads=2)
    assert changed == before.model_copy(update={"models": {"b": str(tiny_model), "a": str(tiny_model)}, "threads": 2})
    assert vendor.VendorSettings.load(folder) == changed
    assert read_card(changed, "b").source == str(tiny_model)


def test_a_second_init_brings_cards_in_line_with_the_settings(
    data_dir: Path, change_settings: Callable[..., None]
) -> None:
    vendor.init(data_dir, max_bottom=0)
    assert read_card(vendor.VendorSettings.load(data_dir), "tiny").info.max_bottom == 0
    change_settings(data_dir, max_bottom=None)
    card = read_card(vendor.init(data_dir), "tiny")
    assert card.info.max_bottom == card.info.blocks // 2
    (data_dir / "models/tiny/card.json").write_text("{}")
    assert read_card(vendor.init(data_dir), "tiny") == card


def test_a_second_init_does_not_start_over_from_settings_that_are_off(data_dir: Path) -> None:
    (data_dir / "vendor.json").write_text("{")
    with pytest.raises(ConfigError, match="no JSON object"):
        vendor.init(data_dir)
    assert (data_dir / "vendor.json").read_text() == "{"


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (None, "no vendor's data folder"),
        ("[]", "no JSON object"),
        ("{", "no JSON object"),
        ('{"models": {}, "default_model": "a"}', r"vendor.json.models = \{\}"),
        ('{"models": {"a": "a"}, "default_model": "b"}', "default_model 'b' is none of a"),
        ('{"models": {"a": "a"}, "default_model": "a", "treads": 2}', "treads"),
        ('{"models": {"a": "a"}, "default_model": "a", "limits": {"live_jobs": 0}}', "limits.live_jobs = 0"),
    ],
)
def test_settings_that_are_off(tmp_path: Path, content: str | None, match: str) -> None:
    if content is not None:
        (tmp_path / "vendor.json").write_text(content)
    with pytest.raises(ConfigError, match=match):
        vendor.VendorSettings.load(tmp_path)


def test_models_that_cannot_be_offered(tmp_path: Path, tiny_model: Path) -> None:
    with pytest.raises(ModelError, match="no model"):
        vendor.init(tmp_path / "a", models=[str(tmp_path / "nothing")])
    with pytest.raises(ConfigError, match="a name of its own"):
        vendor.init(tmp_path / "a", models=[str(tiny_model), str(tiny_model)])
    for depth in (9, BLOCKS):
        with pytest.raises(ConfigError, match=f"max_bottom = {depth}.* must keep at least one") as caught:
            vendor.init(tmp_path / "a", models=[str(tiny_model)], max_bottom=depth)
        assert f"at most {BLOCKS - 1}" in caught.value.remedy
    with pytest.raises(ConfigError, match="models"):
        vendor.init(tmp_path / "a", models=[f"no/slash={tiny_model}"])
    assert not (tmp_path / "a").exists()


def test_the_deepest_cut_that_may_be_set_is_one_that_can_be_made(tmp_path: Path, tiny_model: Path) -> None:
    vendor.init(tmp_path / "data", models=[str(tiny_model)], max_bottom=BLOCKS - 1, threads=1)
    key = vendor.keys.create(tmp_path / "data", "clinic")
    transport = LocalTransport(vendor.create_app(vendor.VendorSettings.load(tmp_path / "data")), key)
    deepest = first_model(transport).max_bottom
    assert deepest == BLOCKS - 1
    manifest = ask(transport, routes.ARCHIVE, model="tiny", cut=str(deepest)).expect(ArchiveManifest)
    assert manifest.cut.bottom == deepest
    transport.close()


def test_a_folder_is_served_once(data_dir: Path) -> None:
    first = vendor.create_app(vendor.VendorSettings.load(data_dir))
    with pytest.raises(ConfigError, match="Another process serves"):
        vendor.create_app(vendor.VendorSettings.load(data_dir))
    first.state.vendor.close()
    vendor.create_app(vendor.VendorSettings.load(data_dir)).state.vendor.close()


def test_a_folder_is_not_set_up_beneath_the_vendor_that_serves_it(data_dir: Path, tiny_model: Path) -> None:
    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in data_dir.rglob("*") if path.is_file() and "sqlite" not in path.name}

    running = vendor.create_app(vendor.VendorSettings.load(data_dir)).state.vendor
    before = files()
    with pytest.raises(ConfigError, match=r"Another process serves .*/data, or sets it up") as caught:
        vendor.init(data_dir, models=[f"other={tiny_model}"], max_bottom=0, tls_host="vendor.example")
    assert "Stop the vendor, then run this again" in caught.value.remedy
    assert files() == before
    vendor.keys.create(data_dir, "clinic")  # customers come and go without a stop
    assert [key.revoked for key in vendor.keys.list(data_dir)] == [None]
    assert vendor.keys.revoke(data_dir, "clinic")
    running.close()
    assert vendor.init(data_dir, max_bottom=0).max_bottom == 0


@pytest.mark.parametrize("is_new", [True, False])
def test_a_folder_is_not_served_while_it_is_set_up(
    data_dir: Path, tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, is_new: bool
) -> None:
    folder = tmp_path / "new" if is_new else data_dir
    serving = importlib.import_module("cutlayer.vendor.serve")  # the package has a function of that name
    write, written = serving.write_card, []

    def look(settings: vendor.VendorSettings, card: ModelCard) -> None:
        with pytest.raises(ConfigError, match="Another process"):
            lock(folder)
        write(settings, card)
        written.append(card.info.name)

    monkeypatch.setattr(serving, "write_card", look)
    vendor.init(folder, models=[f"other={tiny_model}"], threads=1)
    assert written == ["other"]
    os.close(lock(folder))


def test_of_two_who_set_a_new_folder_up_one_is_told(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_up = ModelCard.draw_up

    def beaten(name: str, source: str, settings: vendor.VendorSettings) -> ModelCard:
        if name == "second":
            vendor.init(tmp_path / "data", models=[f"first={tiny_model}"], threads=1)
        return draw_up(name, source, settings)

    monkeypatch.setattr(ModelCard, "draw_up", beaten)
    with pytest.raises(ConfigError, match=r"has set up .*/data meanwhile"):
        vendor.init(tmp_path / "data", models=[f"second={tiny_model}"], threads=1)
    assert vendor.VendorSettings.load(tmp_path / "data").models.keys() == {"first"}


def test_a_folder_that_cannot_be_locked(data_dir: Path) -> None:
    (data_dir / ".lock").unlink()
    (data_dir / ".lock").mkdir()
    for use in (vendor.init, lambda folder: vendor.create_app(vendor.VendorSettings.load(folder))):
        with pytest.raises(StorageError, match="cannot be locked: Is a directory"):
            use(data_dir)


def test_a_missing_card_names_the_remedy(data_dir: Path) -> None:
    (data_dir / "models/tiny/card.json").write_text("{}")
    with pytest.raises(StorageError, match="vendor init"):
        vendor.create_app(vendor.VendorSettings.load(data_dir))


def test_tables_of_another_version_are_refused(data_dir: Path) -> None:
    url = vendor.VendorSettings.load(data_dir).url
    database = Database(url)
    with database.session() as session:
        session.connection().exec_driver_sql(f"UPDATE cutlayer_schema SET version = {SCHEMA + 1}")
    database.close()
    with pytest.raises(StorageError, match=f"version {SCHEMA + 1}"):
        Database(url)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0o022, 0o000])
def test_a_folder_that_is_there_already_is_for_its_owner_only(tmp_path: Path, tiny_model: Path, umask: int) -> None:
    """As one that `init` makes: it lists tenants and holds what they released."""
    folder = tmp_path / "data"
    folder.mkdir(0o755)
    folder.chmod(0o755)
    before = os.umask(umask)
    try:
        vendor.init(folder, models=[str(tiny_model)], threads=1)
        vendor.keys.create(folder, "clinic")
    finally:
        os.umask(before)
    assert mode(folder) == 0o700
    database = Database(vendor.VendorSettings.load(folder).url)
    with database.session() as session:
        session.add(Key(id="a", tenant="b", digest="c", created="d"))
        session.flush()
        files = {path.name: mode(path) for path in folder.glob("vendor.*")}
    database.close()
    assert len(files) == 5, "with what SQLite keeps beside its file while it is open"
    assert set(files.values()) == {0o600}


def test_a_data_folder_of_before_is_closed_to_others(data_dir: Path, tiny_model: Path) -> None:
    """When it is set up again, when a key is made and when it is served: here the first two."""
    data_dir.chmod(0o755)
    for path in data_dir.glob("vendor.sqlite*"):
        path.chmod(0o644)
    vendor.keys.create(data_dir, "clinic")
    assert {mode(path) for path in data_dir.glob("vendor.sqlite*")} == {0o600}
    vendor.init(data_dir, models=[str(tiny_model)])
    assert mode(data_dir) == 0o700


def test_a_folder_that_is_shared_with_others_is_refused(tmp_path: Path, tiny_model: Path) -> None:
    (tmp_path / "notes.csv").write_text("a\n")
    tmp_path.chmod(0o755)
    with pytest.raises(ConfigError, match=r"mode 0755\) and holds files .*: notes.csv") as caught:
        vendor.init(tmp_path, models=[str(tiny_model)])
    assert "chmod 700" in caught.value.remedy
    assert mode(tmp_path) == 0o755
    assert [path.name for path in tmp_path.iterdir()] == ["notes.csv"]
    tmp_path.chmod(0o700)
    vendor.init(tmp_path, models=[str(tiny_model)])


def test_a_folder_of_another_user_is_refused_and_one_that_is_served_is_warned_of(
    data_dir: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def not_ours(*_: object) -> None:
        raise PermissionError

    data_dir.chmod(0o770)
    monkeypatch.setattr(Path, "chmod", not_ours)
    with pytest.raises(ConfigError, match=r"mode 0770\) and belongs to one of them"):
        vendor.init(data_dir, models=[str(tiny_model)])
    with pytest.raises(ConfigError, match="port"):
        vendor.serve(data_dir, port=-1)
    assert "may be entered by other users" in caplog.text


def test_a_url_with_a_password_is_in_a_file_of_the_owner_only(data_dir: Path) -> None:
    settings = vendor.VendorSettings.load(data_dir).model_copy(update={"database_url": "postgresql://u:p@h/d"})
    assert settings.url == "postgresql+psycopg://u:p@h/d"
    assert "data_dir" not in json.loads(settings.model_dump_json())


def test_weights_that_changed_behind_the_vendor_are_noticed(data_dir: Path, api_key: str, tiny_model: Path) -> None:
    moved = data_dir / "model"
    shutil.copytree(tiny_model, moved)
    settings = vendor.init(data_dir, models=[f"tiny={moved}"], threads=1)
    weights = moved / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-20_000] ^= 64
    weights.write_bytes(content)
    transport = LocalTransport(vendor.create_app(settings), api_key)
    with pytest.raises(VendorError, match="other weights") as caught:
        ask(transport, routes.ARCHIVE, model="tiny", cut="1")
    assert caught.value.status == 500
    weights.unlink()
    with pytest.raises(VendorError, match="cannot be loaded") as caught:
        ask(transport, routes.ARCHIVE, model="tiny", cut="1")
    assert str(moved) not in str(caught.value)
    transport.close()
