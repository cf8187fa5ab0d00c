"""Denoisers are trained, stopped, published and handed out; what a vendor says of them was measured."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from cutlayer.core import ConfigError, Cut, DataError, Ragged, StorageError
from cutlayer.core.files import TEMPORARY
from cutlayer.models import candidate_tokens
from cutlayer.models.denoiser import build_denoiser
from cutlayer.privacy.mechanisms import LATTICE
from cutlayer.vendor import VendorSettings, create_app
from cutlayer.vendor.catalogue import Catalogue
from cutlayer.vendor.denoiser_settings import DenoisedReleases, DenoiserTraining
from cutlayer.vendor.denoiser_training import _HIGHEST_ETA, Pairing, eta_ranges, representatives, train_denoisers
from cutlayer.vendor.denoisers import MANIFEST, denoisers_of, remove_denoiser, unfinished
from cutlayer.vendor.denoisers import TRAINING as BEGUN
from cutlayer.vendor.public_tokens import DRAWN_TOGETHER, PublicTokens
from cutlayer.wire import Form, Frame, routes
from cutlayer.wire.denoisers import MOST_GROUPS, DenoiserList
from cutlayer.wire.messages import Precision
from cutlayer.wire.transports import LocalTransport
from tests.promises.runs import corpus

PUBLIC = corpus(120, seed=9, canaries=False).texts
NEWS = [("news", PUBLIC)]
ROWS = DenoisedReleases(mechanism="vector", clip=True)
IDS = DenoisedReleases()
TRAINING = DenoiserTraining(steps=12, batch_size=4, checkpoint_steps=5)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def settings(data_dir: Path) -> VendorSettings:
    return VendorSettings.load(data_dir)


def pairing(settings: VendorSettings, releases: DenoisedReleases) -> Pairing:
    catalogue = Catalogue(settings, torch.device("cpu"))
    table = catalogue.table("tiny")
    return Pairing(
        catalogue.embeddings("tiny", Cut(bottom=0)),
        catalogue.card("tiny").template,
        table,
        candidate_tokens(catalogue.tokenizer("tiny"), vocab_size=len(table)),
        drawing=releases,
        device=torch.device("cpu"),
    )


@pytest.mark.parametrize("releases", [ROWS, IDS], ids=["rows", "ids"])
@pytest.mark.parametrize("kind", ["light", "paper"])
def test_three_denoisers_are_trained_and_told_of(
    kind: Any, releases: DenoisedReleases, settings: VendorSettings
) -> None:
    said: list[tuple[int, int]] = []
    spec = TRAINING.model_copy(update={"kind": kind})
    made = train_denoisers(
        settings,
        "tiny",
        NEWS,
        releases,
        spec,
        on_step=lambda done, total, note: said.append((done, total)),
    )
    assert said[-1] == (36, 36)
    (listed,) = denoisers_of(settings, "tiny").denoisers
    assert listed == made
    assert (made.form, made.clip, made.shape.kind) == (releases.form, releases.clip, kind)
    assert [corpus.texts for corpus in made.corpora] == [120]
    groups = made.groups
    assert len(groups) == 3
    assert [group.lowest for group in groups][1:] == [group.highest for group in groups][:-1]
    assert all(group.lowest < min(group.trained_at) < max(group.trained_at) < group.highest for group in groups)
    assert [group.n for group in groups] == [12] * 3
    # the less noise, the nearer an embedding comes by itself
    assert groups[0].noisy.cosine < groups[2].noisy.cosine
    folder = settings.denoisers("tiny")
    assert {path.name for path in folder.iterdir()} == {made.denoiser}
    again = train_denoisers(settings, "tiny", NEWS, releases, spec)
    assert again == made


def test_a_denoiser_learns(settings: VendorSettings) -> None:
    spec = DenoiserTraining(steps=250, batch_size=16, borders=(0.2,), learning_rate=3e-3)
    made = train_denoisers(settings, "tiny", [("more", corpus(600, seed=4, canaries=False).texts)], ROWS, spec)
    for group in made.groups:
        assert group.denoised.mse < 0.8 * group.noisy.mse
        assert group.denoised.cosine > group.noisy.cosine
        assert group.denoised.mse < 0.8 * group.mean_embedding.mse


def test_products_in_bf16_are_near_those_in_fp32(settings: VendorSettings) -> None:
    found = {}
    for precision in Precision:
        spec = DenoiserTraining(steps=60, batch_size=16, borders=(0.2,), precision=precision)
        made = train_denoisers(settings, "tiny", NEWS, ROWS, spec)
        found[precision] = made.groups[-1]
    half, whole = found[Precision.BF16], found[Precision.FP32]
    assert half.file.sha256 != whole.file.sha256
    assert half.denoised.mse == pytest.approx(whole.denoised.mse, rel=0.05)
    assert half.noisy == whole.noisy  # measured in fp32


class StopError(Exception):
    """Stands for a process that is killed."""


def test_a_training_that_was_stopped_ends_with_the_same_bytes(settings: VendorSettings, tmp_path: Path) -> None:
    folder = settings.denoisers("tiny")
    whole = files(folder) if train_denoisers(settings, "tiny", NEWS, ROWS, TRAINING) else {}
    (made,) = denoisers_of(settings, "tiny").denoisers
    assert remove_denoiser(settings, "tiny", made.denoiser)
    assert not remove_denoiser(settings, "tiny", made.denoiser)
    for at in (3, 7, 19, 30, 36):

        def dies(done: int, total: int, note: str, at: int = at) -> None:
            if done == at:
                raise StopError

        with pytest.raises(StopError):
            train_denoisers(settings, "tiny", NEWS, ROWS, TRAINING, on_step=dies)
        assert not denoisers_of(settings, "tiny").denoisers, "half a denoiser is offered"
    train_denoisers(settings, "tiny", NEWS, ROWS, TRAINING)
    assert files(folder) == whole


def test_a_training_does_not_go_on_from_one_on_other_text(settings: VendorSettings) -> None:
    others = corpus(80, seed=3, canaries=False).texts

    def dies(done: int, total: int, note: str) -> None:
        if done == 7:
            raise StopError

    with pytest.raises(StopError):
        train_denoisers(settings, "tiny", [("others", others)], ROWS, TRAINING, on_step=dies)
    made = train_denoisers(settings, "tiny", NEWS, ROWS, TRAINING)
    assert [(each.name, each.texts) for each in made.corpora] == [("news", len(PUBLIC))]
    (left,) = unfinished(settings, "tiny")
    assert left != made.denoiser
    assert remove_denoiser(settings, "tiny", left)
    assert not unfinished(settings, "tiny")
    assert denoisers_of(settings, "tiny").denoisers == (made,)


def test_a_second_start_of_one_training_is_refused_and_disturbs_nothing(
    settings: VendorSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cutlayer.vendor.denoisers._WAITED", 0.01)
    refused: list[ConfigError] = []

    def starts_again(done: int, total: int, note: str) -> None:
        if done in (0, 7, 36):
            (name,) = unfinished(settings, "tiny")
            before = files(settings.denoisers("tiny"))
            for other in (
                lambda: train_denoisers(settings, "tiny", NEWS, ROWS, TRAINING),
                lambda: remove_denoiser(settings, "tiny", name),
            ):
                with pytest.raises(ConfigError, match=f"Denoiser {name} is being trained already") as caught:
                    other()
                refused.append(caught.value)
            assert files(settings.denoisers("tiny")) == before

    made = train_denoisers(settings, "tiny", NEWS, ROWS, TRAINING, on_step=starts_again)
    assert len(refused) >= 6
    assert all("started again, it goes on" in each.remedy for each in refused)
    assert denoisers_of(settings, "tiny").denoisers == (made,)
    assert {path.name for path in settings.denoisers("tiny").iterdir()} == {made.denoiser}
    other = TRAINING.model_copy(update={"seed": 1})  # another one is not in its way
    train_denoisers(
        settings, "tiny", NEWS, ROWS, other,
        on_step=lambda done, total, note: train_denoisers(settings, "tiny", NEWS, IDS, TRAINING) and None,
    )  # fmt: skip
    assert len(denoisers_of(settings, "tiny").denoisers) == 3


def test_a_service_that_starts_meanwhile_leaves_a_live_training_its_files(
    settings: VendorSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a checkpoint and an unpublished folder have names like those that crashes leave behind."""
    folder = settings.denoisers("tiny")
    starts: list[str] = []

    def start(path: Path) -> None:
        starts.append(path.name)
        create_app(settings).state.vendor.close()
        assert path.exists(), "the service removed what a live training was writing"

    replace, rename = os.replace, os.rename

    def replaces(source: Path, target: Path) -> None:
        if BEGUN in str(target) and "0000000005" in target.name:
            start(Path(source))
        replace(source, target)

    def renames(source: Path, target: Path) -> None:
        if Path(target).parent == folder and not Path(target).name.startswith("."):
            start(Path(source))
        rename(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", replaces)
        patched.setattr(os, "rename", renames)
        made = train_denoisers(settings, "tiny", NEWS, ROWS, TRAINING)
    assert len(starts) == 4  # of each group's checkpoint, and of the denoiser
    dead = [
        folder / f"{BEGUN}{'0' * 32}" / "group-0" / f"{TEMPORARY}0000000005.safetensors.ab",
        folder / f"{TEMPORARY}{'0' * 32}.ab" / "group-0.safetensors",
    ]
    for path in dead:
        path.parent.mkdir(parents=True)
        path.write_bytes(b"half")
    create_app(settings).state.vendor.close()
    assert not any(path.exists() for path in dead)
    assert {path.name for path in folder.iterdir()} == {made.denoiser, f"{BEGUN}{'0' * 32}"}


def test_token_ids_are_on_disk_before_they_are_said_to_be_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[tuple[str, int]] = []
    fsync, replace = os.fsync, os.replace

    def settles(handle: int) -> None:
        fsync(handle)
        done.append((Path(os.readlink(f"/proc/self/fd/{handle}")).name, os.fstat(handle).st_size))

    def replaces(source: Path, target: Path) -> None:
        done.append((Path(target).name, 0))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", settles)
    monkeypatch.setattr(os, "replace", replaces)
    PublicTokens.write(
        tmp_path / "t", [("a", [("a",)] * 5)], lambda some: Ragged.from_lists([[1]] * len(some)), lambda read: None
    )
    whole = done.index(("corpus.json", 0))
    assert {("ids.bin", 5 * 4), ("ends.bin", 5 * 8)} <= set(done[:whole])


def test_texts_are_read_a_few_at_a_time_and_kept_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cutlayer.vendor.public_tokens._CHUNK", 7)
    asked: list[int] = []

    def lengths_of(texts: list[str]) -> Ragged:
        asked.append(len(texts))
        return Ragged.from_lists([[len(word) for word in text.split()] for text in texts])

    def rows() -> Iterator[tuple[str, ...]]:
        for number in range(30):
            yield ("a " * (number % 4),)

    made = PublicTokens.write(
        tmp_path / "t", [("first", rows()), ("second", [("bb c",)])], lengths_of, lambda read: None
    )
    assert max(asked) == 7
    assert [each.name for each in made.corpora] == ["first", "second"]
    assert [each.texts for each in made.corpora] == [sum(1 for n in range(30) if n % 4), 1]
    assert len(made) == made.corpora[0].texts + 1
    some = made.select([len(made) - 1, 0, 1])
    assert [row.tolist() for row in some.split()] == [[2, 1], [1], [1, 1]]
    asked.clear()
    assert len(PublicTokens.write(tmp_path / "t", [], lengths_of, lambda read: None)) == len(made)
    assert not asked
    with pytest.raises(DataError, match="No public text has a token"):
        PublicTokens.write(tmp_path / "none", [("blank", [(" ",)])], lengths_of, lambda read: None)


@pytest.mark.parametrize("texts", [2, 9, 10, 11, 25, 199, 5023])
def test_texts_are_learnt_from_or_measured_on_and_both_are_spread_over_all_files(texts: int, tmp_path: Path) -> None:
    made = PublicTokens.write(
        tmp_path / "t", [("a", [("a",)] * texts)], lambda some: Ragged.from_lists([[1]] * len(some)), lambda read: None
    )
    kept = made.kept_back
    learnt = made.learnt(np.arange(texts - len(kept)))
    assert sorted([*kept, *learnt]) == list(range(texts))
    assert len(kept) == min(500, max(1, texts // 10))
    assert max(np.diff([*kept, texts])) <= texts / len(kept) + 1


def test_texts_of_a_step_are_of_like_lengths_and_each_is_learnt_from_as_often(tmp_path: Path) -> None:
    lengths = np.random.default_rng(0).integers(1, 65, size=900)
    made = PublicTokens.write(
        tmp_path / "t",
        [("a", [("a " * length,) for length in lengths])],
        lambda some: Ragged.from_lists([[1] * len(text.split()) for text in some]),
        lambda read: None,
    )
    assert made.lengths(np.array([0, 7, 899, 7])).tolist() == lengths[[0, 7, 899, 7]].tolist()
    steps = [made.of_step(step, size=16, seed=(3, 0)) for step in range(1, 1 + 30 * DRAWN_TOGETHER)]
    padded, real = (sum(how(lengths[each]) for each in steps) for how in (lambda some: 16 * some.max(), np.sum))
    assert padded < 1.15 * real
    assert made.of_step(5, size=16, seed=(3, 0)) == steps[4]
    assert made.of_step(5, size=16, seed=(3, 1)) != steps[4]
    seen = np.bincount(np.concatenate(steps), minlength=900)
    assert not seen[made.kept_back].any()
    learnt = seen[np.setdiff1d(np.arange(900), made.kept_back)]
    assert abs(np.corrcoef(learnt, lengths[np.setdiff1d(np.arange(900), made.kept_back)])[0, 1]) < 0.1
    assert learnt.std() < 1.2 * learnt.mean() ** 0.5
    first = [lengths[each].mean() for each in steps[DRAWN_TOGETHER - 1 :: DRAWN_TOGETHER]]
    assert np.std(first) > 10  # no place among those that are drawn together has the short ones


def test_etas_of_a_range_and_positions_are_settings_and_names_stay(settings: VendorSettings) -> None:
    usual = TRAINING.model_copy(update={"kind": "paper"})
    plain = usual.model_copy(update={"positions": False, "etas_per_range": 3})
    made = [train_denoisers(settings, "tiny", NEWS, ROWS, spec) for spec in (usual, plain)]
    assert [each.shape.placed for each in made] == [True, False]
    assert [{len(group.trained_at) for group in each.groups} for each in made] == [{2}, {3}]
    assert made[0].denoiser != made[1].denoiser
    with pytest.raises(ConfigError, match="positions = False: must stay on with kind light"):
        DenoiserTraining(positions=False)


@pytest.mark.parametrize("releases", [ROWS, IDS], ids=["rows", "ids"])
def test_ranges_of_etas_end_where_the_correlation_does(releases: DenoisedReleases, settings: VendorSettings) -> None:
    draws = pairing(settings, releases)
    ids = torch.arange(40, 240).repeat(4)
    ranges = eta_ranges(draws, ids, DenoiserTraining(borders=(0.1, 0.4), highest_correlation=0.8))
    assert [ranges[0][0], *(high for _, high in ranges)] == sorted({end for pair in ranges for end in pair})
    for (_, high), border in zip(ranges, (0.1, 0.4, 0.8), strict=True):
        assert draws.correlation(ids, high, 5) == pytest.approx(border, abs=0.1)
    assert representatives(1.0, 16.0, 1) == (4.0,)
    assert representatives(1.0, 4096.0, 3) == (4.0, 64.0, 1020.0)
    low, high = representatives(1.0, 16.0, 2)
    assert (low, high) == (2.0, 8.0)
    with pytest.raises(ConfigError, match="lowest_eta"):
        eta_ranges(draws, ids, DenoiserTraining(lowest_eta=1e4))


@pytest.mark.parametrize("noise", ["d-chi", "snd-code"])
@pytest.mark.parametrize("releases", [ROWS, IDS], ids=["rows", "ids"])
def test_all_is_seen_where_nothing_is_left_of_the_noise(
    releases: DenoisedReleases, noise: str, settings: VendorSettings
) -> None:
    draws = pairing(settings, releases.model_copy(update={"noise": noise}))
    assert draws.correlation(torch.arange(40, 240), _HIGHEST_ETA, 0) > 0.999


def test_a_border_that_public_text_does_not_reach_is_named_at_once(
    settings: VendorSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens that are no candidates leave as others, however little noise there is."""
    draws, asked = pairing(settings, IDS), list[float]()
    correlation = draws.correlation
    monkeypatch.setattr(draws, "correlation", lambda ids, eta, seed: asked.append(eta) or correlation(ids, eta, seed))
    unknown = torch.cat([torch.zeros(60, dtype=torch.int64), torch.arange(40, 140)])
    said = r"^highest_correlation = 0\.9: cannot be reached on this public text: even without noise .* only 0\.\d+"
    with pytest.raises(ConfigError, match=said) as caught:
        eta_ranges(draws, unknown, DenoiserTraining())
    assert "--highest-correlation" in caught.value.remedy
    assert len(asked) == 1
    assert len(eta_ranges(draws, unknown, DenoiserTraining(highest_correlation=0.5))) == 3


def test_what_it_learns_from_is_what_leaves(settings: VendorSettings) -> None:
    """Noisy rows on the lattice before they are clipped, in the customers' element type; ids' own rows."""
    ids, rng = torch.arange(40, 240).repeat(3), np.random.Generator(np.random.PCG64(3))
    table = pairing(settings, ROWS).table
    plain = pairing(settings, DenoisedReleases(mechanism="vector", wire_type="fp32"))
    rows = plain.release(ids, np.full(len(ids), 50.0), rng)
    assert torch.equal(rows, (rows / LATTICE).round() * LATTICE)
    radii = (rows - table[ids]).norm(dim=1)
    assert float(radii.mean()) == pytest.approx(table.shape[1] / 50, rel=0.05)
    clipped = pairing(settings, ROWS).release(ids, np.full(len(ids), 5.0), rng)
    assert torch.equal(clipped, clipped.bfloat16().float())
    assert float(clipped.norm(dim=1).max()) <= float(table.norm(dim=1).max()) * (1 + 2**-7)
    replaced = pairing(settings, IDS).release(ids, np.full(len(ids), 5.0), rng)
    assert bool((replaced[:, None] == table[None]).all(2).any(1).all())


def test_bad_input_is_refused(settings: VendorSettings) -> None:
    with pytest.raises(ConfigError, match="must be one of tiny"):
        train_denoisers(settings, "other", NEWS, ROWS, TRAINING)
    with pytest.raises(DataError, match="No public text"):
        train_denoisers(settings, "tiny", [("none", [("",)])], ROWS, TRAINING)
    with pytest.raises(DataError, match="too few"):
        train_denoisers(settings, "tiny", [("one", [("one",)])], ROWS, TRAINING)
    assert unfinished(settings, "tiny") == ()
    with pytest.raises(ConfigError, match="clip"):
        DenoisedReleases(clip=True)
    with pytest.raises(ConfigError, match="borders"):
        DenoiserTraining(borders=(0.4, 0.1))
    assert len(DenoiserTraining(borders=tuple(place / 40 for place in range(1, MOST_GROUPS))).borders) == 15
    with pytest.raises(ConfigError, match=r"borders = .*: must be at most 15"):
        DenoiserTraining(borders=tuple(place / 40 for place in range(1, MOST_GROUPS + 1)))
    with pytest.raises(ConfigError, match="seed"):  # a manifest's numbers are smaller
        DenoiserTraining(seed=2**60)
    steps: list[int] = []
    with pytest.raises(ConfigError, match="public = '65 files': must be at most 64") as caught:
        train_denoisers(
            settings,
            "tiny",
            NEWS * 65,
            ROWS,
            TRAINING,
            on_step=lambda done, total, note: steps.append(done),
        )
    assert (caught.value.remedy, steps) == ("Write several of them into one file.", [])
    with pytest.raises(ConfigError, match="diverged at step"):
        train_denoisers(settings, "tiny", NEWS, ROWS, TRAINING.model_copy(update={"learning_rate": 1e30}))
    made = train_denoisers(settings, "tiny", NEWS, ROWS, TRAINING)
    manifest = settings.denoisers("tiny") / made.denoiser / MANIFEST
    told = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(told | {"secret": 1}))
    with pytest.raises(StorageError, match="cannot be read") as unreadable:  # and not taken for a finished training
        train_denoisers(settings, "tiny", NEWS, ROWS, TRAINING)
    assert "Remove it" in unreadable.value.remedy
    assert remove_denoiser(settings, "tiny", made.denoiser)
    assert train_denoisers(settings, "tiny", NEWS, ROWS, TRAINING) == made


@pytest.mark.parametrize("spoilt", ["{", None], ids=["no manifest's", "none"])
def test_one_that_cannot_be_read_does_not_hide_the_others(
    spoilt: str | None, settings: VendorSettings, api_key: str, caplog: pytest.LogCaptureFixture
) -> None:
    made, other = (train_denoisers(settings, "tiny", NEWS, each, TRAINING) for each in (ROWS, IDS))
    manifest = settings.denoisers("tiny") / other.denoiser / MANIFEST
    manifest.unlink()
    if spoilt is not None:
        manifest.write_text(spoilt)
    transport = LocalTransport(create_app(settings), api_key)
    try:
        listed, again = (transport.send(Frame(routes.DENOISERS, {"model": "tiny"})) for _ in range(2))
    finally:
        transport.close()
    assert listed.expect(DenoiserList).denoisers == again.expect(DenoiserList).denoisers == (made,)
    assert caplog.text.count(f"denoiser {other.denoiser} cannot be read and is not offered") == 1, "told once"
    assert str(settings.data_dir) not in caplog.text


def test_denoisers_of_other_weights_are_not_offered(settings: VendorSettings) -> None:
    made = train_denoisers(settings, "tiny", NEWS, IDS, TRAINING)
    assert made.form is Form.IDS
    assert denoisers_of(settings, "tiny", fingerprint=made.fingerprint).denoisers == (made,)
    assert denoisers_of(settings, "tiny", fingerprint="0" * 64).denoisers == ()


def test_a_control_learns_nothing_of_the_answer(settings: VendorSettings) -> None:
    """What reads the answer meets zeros, so it only decays; of a denoiser it learns."""
    for without_answer in (False, True):
        spec = TRAINING.model_copy(update={"without_answer": without_answer})
        made = train_denoisers(settings, "tiny", NEWS, ROWS, spec)
        assert made.without_answer == without_answer
        folder = settings.denoisers("tiny") / made.denoiser
        drawn = build_denoiser(made.shape)
        drawn.draw(spec.seed)
        for group in made.groups:
            ratio = load_file(folder / group.file.name)["noisy.weight"] / drawn.state_dict()["noisy.weight"]
            unlearnt = torch.allclose(ratio, ratio.median().expand_as(ratio), rtol=1e-4)
            assert unlearnt == without_answer
            if without_answer:
                assert group.denoised == group.without_answer
    assert len(denoisers_of(settings, "tiny").denoisers) == 2
