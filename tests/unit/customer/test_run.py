from __future__ import annotations

import errno
import hashlib
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cutlayer.core import ConfigError, Guarantee, Proportion, Ragged, StorageError, Tokens
from cutlayer.core.files import TEMPORARY
from cutlayer.customer import LanguageResult, Lora, Objective, RunSpec, TrainBottom, Training
from cutlayer.customer.corpora import Corpora
from cutlayer.customer.home import read_json, write_bytes, write_json
from cutlayer.customer.order import Order
from cutlayer.customer.run import DataDigests, Run
from cutlayer.customer.upload import blocks
from cutlayer.customer.validate import validate
from cutlayer.data import Dataset
from cutlayer.models.batches import EVALUATION_POSITIONS, padded_batches
from cutlayer.privacy import CustomerSecret, NoPrivacy, TextToText, Vector
from cutlayer.wire import Form
from tests.settings import run_spec


def spec(**changes: Any) -> RunSpec:
    settings = {"privacy": TextToText(eta=80), "model": "starter", "bottom": 0, "seed": 1}
    return run_spec(**settings | changes)


def test_what_a_killed_run_left_half_written_goes_when_it_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    left = [folder / f"{TEMPORARY}{name}.x1" for name in ("run.json", "result.json", "trained-0000000004.safetensors")]
    # another process may be at work below, or beside: a vendor, or another run
    others = [folder / ".notes", folder / f"{TEMPORARY}card.json.x1", folder / "vendor" / f"{TEMPORARY}run.json.x1"]
    for path in (*left, *others):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
    with Run.held(folder):
        assert not any(path.exists() for path in left)
        assert all(path.exists() for path in others)


def opened(folder: Path, **changes: Any) -> Run:
    run = Run.open(folder, run="a1", data=DataDigests("d", "d", "d"), spec=spec(**changes))
    run.state.asked = True
    run.save()
    return run


def test_an_interrupted_run_is_found_again(tmp_path: Path) -> None:
    first = opened(tmp_path)
    first.state.dev += [0.5, 0.7]
    first.save()
    again = Run.open(tmp_path, run="b2", data=DataDigests("d", "d", "d"), spec=spec())
    assert again.state.run == "a1"
    assert again.state.dev == [0.5, 0.7]
    assert again.identifier("job") == first.identifier("job") != first.identifier("train")
    assert Run.seed_in(tmp_path) == 1


def test_infinite_eta_survives_the_file(tmp_path: Path) -> None:
    bare = NoPrivacy()
    opened(tmp_path, privacy=bare)
    assert opened(tmp_path, privacy=bare).state.spec.privacy.eta == math.inf


def test_other_settings_are_refused_by_name(tmp_path: Path) -> None:
    opened(tmp_path)
    with pytest.raises(ConfigError, match="other settings") as error:
        opened(tmp_path, bottom=1, privacy=TextToText(eta=70))
    assert "cut.bottom (there 0, here 1), privacy.eta (there " in str(error.value)
    assert "--out" in error.value.remedy


def test_other_data_is_refused(tmp_path: Path) -> None:
    opened(tmp_path)
    with pytest.raises(ConfigError, match="other data"):
        Run.open(tmp_path, run="b2", data=DataDigests("e", "e", "e"), spec=spec())


def test_a_damaged_result_names_the_adapter(tmp_path: Path) -> None:
    run = opened(tmp_path)
    run.state.adapter = "f" * 32
    run.save()
    assert Run.is_finished(tmp_path)
    for content in (b'{"ua": 1}', b"[]"):
        (tmp_path / "result.json").write_bytes(content)
        with pytest.raises(StorageError, match="does not hold the result") as caught:
            opened(tmp_path).result()
        assert "f" * 32 in caught.value.remedy


def test_a_result_that_an_earlier_version_wrote_is_read_by_its_names(tmp_path: Path) -> None:
    run = opened(tmp_path, objective=Objective.LM)
    share = Proportion.of(9, 10)
    recovered = {
        "token_recovery_first_steps": share,
        "token_recovery_first_steps_note": "",
        "token_recovery_last_steps": None,
        "token_recovery_last_steps_note": "why not",
        "token_recovery_from_answers": share,
        "token_recovery_from_answers_note": "",
        "token_recovery_from_boundary": share,
        "token_recovery_from_boundary_note": "",
        "token_recovery_without_blocks": Proportion.of(1, 1),
    }
    counts = dict.fromkeys(("ep_n", "n_train", "n_dev", "n_test", "downlink_bytes", "tokens_released", "steps"), 7)
    told = LanguageResult(
        **recovered,
        **counts,
        **dict.fromkeys(("ep", "ep_standard_error", "replaced", "largest_distance", "perplexity_standard_error")),
        **dict.fromkeys(("perplexity", "dev_before", "seconds", "eta"), 2.5),
        **dict.fromkeys(("no_privacy", "unsafe_noise"), False),
        **dict.fromkeys(("epochs", "best_epoch", "looks", "perplexity_n"), 1),
        adapter_id="a",
        adapter_sha256="b",
        ep_note="",
        uplink_bytes={},
        dev=(2.5,),
        guarantee=Guarantee.nothing("nothing"),
        deviations=(),
        spec=run.state.spec,
        folder=tmp_path,
        perplexity_on="dev",
    )
    run.finish(told)
    assert run.result() == told
    former = {
        "first_steps": "read_in_training",
        "last_steps": "read_at_end",
        "from_answers": "read_from_answers",
        "from_boundary": "read_from_rows",
        "without_blocks": "read_without_blocks",
    }
    kept = read_json(tmp_path / "result.json")
    for name, before in former.items():
        for note in ("", "_note"):
            if (now := f"token_recovery_{name}{note}") in kept:
                kept[before + note] = kept.pop(now)
    assert not any(name.startswith("token_recovery") for name in kept)
    write_json(tmp_path / "result.json", kept)
    assert run.result() == told


def test_the_best_epoch_is_the_first_of_equals(tmp_path: Path) -> None:
    run = opened(tmp_path)
    assert run.state.best_epoch == 0
    run.state.dev += [0.5, 0.8, 0.8, 0.1]
    assert run.state.best_epoch == 2


def test_losses_count_a_repeated_step_once_and_survive_a_torn_line(tmp_path: Path) -> None:
    run = opened(tmp_path)
    assert run.losses() == []
    for step, loss in ((1, 0.9), (2, 0.8), (2, 0.7)):
        run.log_loss(step, loss)
    with (tmp_path / "losses.jsonl").open("a") as file:
        file.write('{"step": 3, "lo')
    assert run.losses() == [0.9, 0.7]
    run.log_loss(3, 0.6)
    assert (tmp_path / "losses.jsonl").stat().st_mode & 0o077 == 0, "losses are made of labels"
    assert run.losses() == [0.9, 0.7, 0.6]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no device that is always full")
def test_losses_on_a_full_disk_say_so(tmp_path: Path) -> None:
    run = opened(tmp_path)
    (tmp_path / "losses.jsonl").symlink_to("/dev/full")
    with pytest.raises(StorageError, match=r"losses.*No space left") as full:
        run.log_loss(1, 0.9)
    assert "same command again" in full.value.remedy


def test_checkpoints_keep_the_newest_and_the_best(tmp_path: Path) -> None:
    run = opened(tmp_path, training=Training(save_steps=10))
    for step in (10, 20, 30, 40):
        run.write_checkpoint(step, {"w": torch.full((2,), float(step))}, keep=10)
    assert run.checkpoints() == [0, 10, 30, 40]
    assert run.read_checkpoint(30)["w"].tolist() == [30.0, 30.0]
    with pytest.raises(StorageError, match="step 20"):
        run.read_checkpoint(20)


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "state.json"
    write_json(file, {"epoch": 1})

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="No space left"):
        write_json(file, {"epoch": 2})
    assert read_json(file) == {"epoch": 1}
    assert [each.name for each in tmp_path.iterdir()] == ["state.json"]


def test_a_torn_file_is_told(tmp_path: Path) -> None:
    write_bytes(tmp_path / "state.json", b'{"epoch": ')
    with pytest.raises(StorageError, match=r"state\.json cannot be read"):
        read_json(tmp_path / "state.json")


# ---------------------------------------------------------------- settings


def test_checkpoints_of_epochs_do_not_displace_those_that_both_parties_have(tmp_path: Path) -> None:
    """The vendor can go back to multiples of `save_steps` alone."""
    run = opened(tmp_path, training=Training(save_steps=50))
    weights = {"w": torch.zeros(1)}
    for step, best in ((50, 0), (60, 50), (70, 60), (80, 70)):
        run.write_checkpoint(step, weights, keep=best)
        assert 50 in run.checkpoints()
    assert run.checkpoints() == [0, 50, 70, 80]
    for step in (100, 150):
        run.write_checkpoint(step, weights, keep=80)
    assert run.checkpoints() == [0, 80, 100, 150]


@pytest.mark.parametrize(
    ("changes", "form"),
    [
        ({}, Form.IDS),
        ({"bottom": None, "privacy": NoPrivacy()}, Form.IDS),
        ({"privacy": Vector(eta=80)}, Form.ROWS),
        ({"bottom": 1}, Form.ROWS),
        ({"train_bottom": TrainBottom.RESAMPLE}, Form.ROWS),
    ],
)
def test_ids_travel_where_the_bottom_is_a_frozen_lookup(changes: dict[str, Any], form: Form) -> None:
    validate(spec(**changes))
    assert spec(**changes).form is form


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"bottom": None}, "bottom"),
        ({"bottom": None, "train_bottom": TrainBottom.RESAMPLE}, "bottom = 'text'.*train_bottom"),
        ({"train_bottom": TrainBottom.CACHED}, "cached"),
        ({"budget": 100.0, "unsafe_noise_seed": 1}, r"privacy_budget = 100\.0.*noise from a seed"),
        ({"train_bottom": TrainBottom.RESAMPLE, "privacy": Vector(eta=80)}, "vector"),
    ],
)
def test_settings_without_meaning_are_refused_together(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        validate(spec(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"r": 0},
        {"r": 1025},
        {"lora_alpha": 0},
        {"lora_alpha": math.inf},
        {"learning_rate": 0},
        {"learning_rate": -1e-3},
        {"learning_rate": math.nan},
        {"learning_rate": math.inf},
        {"weight_decay": -0.1},
        {"epochs": 0},
        {"batch_size": 0},
    ],
    ids=str,
)
def test_settings_of_training_out_of_bounds_are_refused_by_name(changes: dict[str, Any]) -> None:
    (name,) = changes
    with pytest.raises(ConfigError, match=name):
        (Lora if name in Lora.model_fields else Training)(**changes)


# ---------------------------------------------------------------- data


SECRET = CustomerSecret.unsafe(1)


def labelled(n: int) -> Dataset:
    return Dataset(tuple((f"text {i}",) for i in range(n)), tuple("ab"[i % 2] for i in range(n)))


def test_one_per_cent_of_sst_is_the_papers_674() -> None:
    train, dev = Corpora(labelled(67_349), None, None).split(dev_share=0.01, order=Order(SECRET, "split"))
    assert (len(train), len(dev)) == (66_675, 674)


@pytest.mark.parametrize(("rows", "held"), [(2_000, 200), (395, 50), (100, 20), (20, 4), (3, 1)])
def test_a_tenth_is_held_out_and_fifty_where_that_leaves_enough(rows: int, held: int) -> None:
    _, dev = Corpora(labelled(rows), None, None).split(dev_share=None, order=Order(SECRET, "split"))
    assert len(dev) == held


def test_the_held_out_rows_do_not_depend_on_labels() -> None:
    data = labelled(50)
    permuted = Dataset(data.texts, tuple(reversed(data.labels or ())))
    parts = [Corpora(each, None, None).split(dev_share=0.2, order=Order(SECRET, "split")) for each in (data, permuted)]
    assert parts[0][0].texts == parts[1][0].texts
    assert parts[0][1].texts == parts[1][1].texts


def in_order_of(purpose: str, key: bytes, texts: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Single texts by their ranks, computed from the secret's bytes without the library."""
    derived = hashlib.blake2b(purpose.encode(), key=key, digest_size=32).digest()

    def rank(text: tuple[str, ...]) -> bytes:
        said = text[0].encode()
        return hashlib.blake2b(len(said).to_bytes(8) + said, key=derived, digest_size=16).digest()

    return sorted(texts, key=rank)


@pytest.mark.parametrize("key", [bytes(range(32)), bytes(32)], ids=("one secret", "another"))
def test_which_texts_are_held_out_and_all_orders_follow_from_the_secret(key: bytes) -> None:
    """Neither the seed that the vendor is told nor the file's order says which texts become dev."""
    settings = spec(dev_share=0.2)
    data, others = labelled(50), labelled(9)
    split = in_order_of(f"order/split/{settings.seed}", key, data.texts)
    run = f"order/run/{settings.seed}/{settings.privacy.identity}"
    train, dev, test = Corpora(data, None, others).arranged(settings, CustomerSecret(key))
    assert list(dev.texts) == in_order_of(run, key, split[:10])
    assert list(train.texts) == in_order_of(run, key, split[10:])
    assert test is not None
    assert list(test.texts) == in_order_of(run, key, others.texts)
    _, given, _ = Corpora(data, others, None).arranged(settings, CustomerSecret(key))
    assert list(given.texts) == in_order_of(run, key, others.texts)


def test_a_share_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="dev_share"):
        Corpora(labelled(1), None, None).split(dev_share=0.5, order=Order(SECRET, "split"))


@given(st.lists(st.integers(0, 40), min_size=1, max_size=30), st.integers(1, 60))
def test_blocks_hold_every_text_once_within_their_size(lengths: list[int], size: int) -> None:
    tokens = Tokens((Ragged.from_lists([[1] * length for length in lengths]),))
    found = [block.tolist() for block in blocks(tokens, size)]
    assert [number for block in found for number in block] == list(range(len(lengths)))
    for block in found:
        assert len(block) == 1 or sum(lengths[number] for number in block) <= size


@given(st.lists(st.integers(1, 512), min_size=1, max_size=200), st.integers(512, 2 * EVALUATION_POSITIONS))
def test_padded_batches_stay_within_what_a_vendor_takes(lengths: list[int], most: int) -> None:
    found = [batch.tolist() for batch in padded_batches(torch.tensor(lengths), most)]
    assert [number for batch in found for number in batch] == list(range(len(lengths)))
    for batch in found:
        assert len(batch) * max(lengths[number] for number in batch) <= min(most, EVALUATION_POSITIONS)
