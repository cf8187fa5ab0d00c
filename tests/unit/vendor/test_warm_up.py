"""Warming up: what is learnt, what stays as it was, going on after a stop, and what is refused."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from cutlayer import vendor
from cutlayer.core import ConfigError, ModelError, Ragged
from cutlayer.models import Template, fingerprint, load_model, load_tokenizer
from cutlayer.models.cutting import embedding_table
from cutlayer.models.denoising import Pairs, Pieces, denoising_loss
from cutlayer.vendor import WarmUpSpec
from cutlayer.vendor.catalogue import read_card
from cutlayer.vendor.warm_up import UNFINISHED
from cutlayer.wire.messages import WarmedFor
from tests.service.fixtures import tiny_model  # noqa: F401 - a fixture by name
from tests.service.tiny import write_tiny_gpt2

PRIVACY = {"mechanism": "words", "eta": 30.0, "words": ["noun"], "candidates": "category", "space": "/somewhere"}
SPEC = WarmUpSpec(steps=8, batch_size=4, learning_rate=1e-2, checkpoint_steps=3)


class Planned:
    """Made-up texts of a tiny model's tokens, of which every third word became its neighbour in the table."""

    def __init__(self, texts: int = 20, seed: int = 0) -> None:
        self.asked = 0
        rng = random.Random(seed)
        clear = [[rng.randrange(40, 290) for _ in range(rng.randrange(4, 9))] for _ in range(texts)]
        self.about: Mapping[str, Any] = {"privacy": PRIVACY, "seed": seed, "texts": texts}
        released = [[each + (place % 3 == 0) for place, each in enumerate(text)] for text in clear]
        self._pairs = Pairs(*(Pieces(Ragged.from_lists(own), _places(own)) for own in (clear, released)))

    def pairs(self, folder: Path) -> Pairs:
        assert folder.name == UNFINISHED
        self.asked += 1
        return self._pairs


def _places(texts: list[list[int]]) -> torch.Tensor:
    return torch.tensor([place for text in texts for place in range(len(text))])


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return dict(load_model(str(folder), head=None).named_parameters())


class StopError(Exception):
    pass


def stops_at(step: int) -> Any:
    def told(done: int, total: int, note: str) -> None:
        if done == step:
            raise StopError

    return told


@pytest.fixture(scope="module")
def warmed(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    out = tmp_path_factory.mktemp("warm") / "warm"
    vendor.warm_up(str(tiny_model), out, SPEC, draws=Planned())
    return out


# ---------------------------------------------------------------- what is learnt


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_texts_that_it_never_saw_are_read_better(family: str, tiny_model: Path, tmp_path: Path) -> None:  # noqa: F811
    source = str(tiny_model if family == "bert" else write_tiny_gpt2(tmp_path / "decoder"))
    made = vendor.warm_up(source, tmp_path / "out", WarmUpSpec(steps=60, learning_rate=3e-3), draws=Planned(200))
    template = Template.from_tokenizer(load_tokenizer(source), max_length=64)
    cold, warm = load_model(source, head=None), load_model(str(made.folder), head=None)
    unseen = Planned(60, seed=1).pairs(Path(UNFINISHED))
    before, after = (float(denoising_loss(each, cold, unseen, template)) for each in (cold, warm))
    assert after < 0.9 * before
    assert made.after < made.before


def test_a_model_that_reads_what_stood_there_loses_nothing(tiny_model: Path) -> None:  # noqa: F811
    model = load_model(str(tiny_model), head=None)
    template = Template.from_tokenizer(load_tokenizer(str(tiny_model)), max_length=64)
    pairs = Planned().pairs(Path(UNFINISHED))
    assert float(denoising_loss(model, model, Pairs(pairs.clear, pairs.clear), template)) == 0
    assert float(denoising_loss(model, model, pairs, template)) > 0.01


def test_states_are_compared_by_word_and_not_by_position(tiny_model: Path) -> None:  # noqa: F811
    """By hand: a word of two token ids in the text and of one in the release."""
    model = load_model(str(tiny_model), head=None)
    template = Template.from_tokenizer(load_tokenizer(str(tiny_model)), max_length=64)
    clear = Pieces(Ragged.from_lists([[50, 51, 52], [60]]), torch.tensor([0, 0, 1, 0]))
    released = Pieces(Ragged.from_lists([[70, 52, 53], [61]]), torch.tensor([0, 1, 2, 0]))
    found = float(denoising_loss(model, model, Pairs(clear, released), template))

    def states(ids: list[int]) -> torch.Tensor:
        with torch.no_grad():
            return model.base_model(torch.tensor([[2, *ids, 3]])).last_hidden_state[0]  # type: ignore[no-any-return]

    one, other, own, also = (states(ids) for ids in ([50, 51, 52], [60], [70, 52, 53], [61]))
    wanted = torch.stack([one[1:3].mean(0), one[3], other[1]])
    had = torch.stack([own[1], own[2], also[1]])
    means = torch.stack([one.mean(0), other.mean(0)]), torch.stack([own.mean(0), also.mean(0)])
    expected = (had - wanted).square().sum() / wanted.square().sum()
    expected += (means[1] - means[0]).square().sum() / means[0].square().sum()
    assert found == pytest.approx(float(expected), rel=1e-4)


def test_the_token_table_stays_and_all_blocks_change(tiny_model: Path, warmed: Path) -> None:  # noqa: F811
    cold, warm = load_model(str(tiny_model), head=None), load_model(str(warmed), head=None)
    assert torch.equal(embedding_table(cold), embedding_table(warm))
    assert fingerprint(cold) != fingerprint(warm)
    now = weights(warmed)
    same = {name for name, value in cold.base_model.named_parameters() if torch.equal(value, now[f"bert.{name}"])}
    assert same == {"embeddings.word_embeddings.weight"} | {name for name in same if name.startswith("pooler.")}


def test_a_vendor_offers_it_under_a_name_of_its_own_and_its_card_says_for_what(
    tiny_model: Path,  # noqa: F811
    warmed: Path,
    tmp_path: Path,
) -> None:
    settings = vendor.init(tmp_path / "data", models=[f"cold={tiny_model}", f"warm={warmed}"])
    cold, warm = (read_card(settings, name) for name in ("cold", "warm"))
    own = WarmedFor(mechanism="words", eta=30.0, words=("noun",), candidates="category", space="somewhere")
    assert warm.info.warmed_for == own
    assert cold.info.warmed_for is None
    assert warm.info.fingerprint != cold.info.fingerprint
    assert warm.tokenizer == cold.tokenizer


# ---------------------------------------------------------------- going on


@pytest.mark.parametrize("step", [2, 3, 5, 8])
def test_a_stopped_one_goes_on_to_the_same_bits_with_the_same_draws(
    step: int,
    tiny_model: Path,  # noqa: F811
    warmed: Path,
    tmp_path: Path,
) -> None:
    draws, out = Planned(), tmp_path / "out"
    with pytest.raises(StopError):
        vendor.warm_up(str(tiny_model), out, SPEC, draws=draws, on_step=stops_at(step))
    with pytest.raises(ModelError):
        load_model(str(out), head=None)  # there is no half of a model
    steps: list[int] = []
    vendor.warm_up(str(tiny_model), out, SPEC, draws=draws, on_step=lambda done, *_: steps.append(done))
    assert draws.asked == 1
    # a stop at step 3 comes behind its checkpoint
    assert steps == list(range(step - step % 3 + 1, SPEC.steps + 1))
    ours, theirs = weights(out), weights(warmed)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert not (out / UNFINISHED).exists()


@pytest.mark.slow
def test_a_killed_one_goes_on_to_the_same_bits(tiny_model: Path, warmed: Path, tmp_path: Path) -> None:  # noqa: F811
    program = f"""
import os
from pathlib import Path
from cutlayer import vendor
from tests.unit.vendor.test_warm_up import SPEC, Planned
def killed(done, total, note):
    if done == 5:
        os.kill(os.getpid(), 9)
vendor.warm_up({str(tiny_model)!r}, Path({str(tmp_path / "out")!r}), SPEC, draws=Planned(), on_step=killed)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -9
    draws = Planned()
    vendor.warm_up(str(tiny_model), tmp_path / "out", SPEC, draws=draws)
    assert draws.asked == 0
    ours, theirs = weights(tmp_path / "out"), weights(warmed)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_finished_one_is_shown_again(tiny_model: Path, warmed: Path) -> None:  # noqa: F811
    draws = Planned()
    again = vendor.warm_up(str(tiny_model), warmed, SPEC, draws=draws, on_step=lambda *_: pytest.fail("it trained"))
    assert draws.asked == 0
    assert again.fingerprint == fingerprint(load_model(str(warmed), head=None))


# ---------------------------------------------------------------- what is refused


def test_folders_of_other_warm_ups_and_of_others_are_refused(
    tiny_model: Path,  # noqa: F811
    warmed: Path,
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError, match="a model of another warm-up"):
        vendor.warm_up(str(tiny_model), warmed, SPEC, draws=Planned(seed=5))
    begun = tmp_path / "begun"
    with pytest.raises(StopError):
        vendor.warm_up(str(tiny_model), begun, SPEC, draws=Planned(), on_step=stops_at(4))
    with pytest.raises(ConfigError, match="the beginning of another warm-up"):
        vendor.warm_up(str(tiny_model), begun, SPEC.model_copy(update={"seed": 1}), draws=Planned())
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigError, match="holds other files"):
        vendor.warm_up(str(tiny_model), mine, SPEC, draws=Planned())
    assert (mine / "thesis.txt").read_text() == "mine"


def test_a_card_is_not_drawn_up_from_a_note_that_says_nothing(warmed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    folder.mkdir()
    for path in warmed.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "warm-up.json").write_text(json.dumps({"model": 3}))
    with pytest.raises(ModelError, match="does not say what the model was warmed up for"):
        vendor.init(tmp_path / "data", models=[f"warm={folder}"])
