"""Jobs of encoder-decoders, whose steps are four frames: they leave memory between any two, and come back cheaply."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cutlayer import vendor
from cutlayer.core import Cut
from cutlayer.models import Head
from cutlayer.vendor.seq2seq import Seq2SeqTrainer
from cutlayer.wire import WireType, pack, routes
from cutlayer.wire.transports import LocalTransport
from tests.promises.test_families import write_model
from tests.service.customer import draw, some_rows
from tests.unit.vendor.test_jobs import vendor_of
from tests.unit.vendor.test_language_jobs import TEXTS, Author, drop, leave

Open = Callable[[], LocalTransport]
STEPS: dict[str, Any] = {"steps": 4, "accumulation": 2}
CHANGES: dict[str, Any] = {"cut": Cut(bottom=1, target=1, tail=0), "dropout": False}


@pytest.fixture(scope="module")
def blank_t5_vendor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = write_model("t5", tmp_path_factory.mktemp("t5") / "tiny", head=Head.LANGUAGE)
    folder = tmp_path_factory.mktemp("vendor") / "data"
    vendor.init(folder, models=[str(source)], threads=1, max_bottom=1, max_tail=1)
    return folder


@pytest.fixture
def data_dir(blank_t5_vendor: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(blank_t5_vendor, tmp_path / "data"))


@dataclass
class Translator(Author):
    """An encoder-decoder's customer by rote."""

    def send_rows(self, route: routes.Route, step: int, salt: int) -> None:
        rows = some_rows(TEXTS, width=self.width, salt=salt + step)
        self._send(route, step, pack(rows, vocab_size=0, wire_type=WireType.FP32))

    def send_back(self, route: routes.Route, step: int, salt: int) -> None:
        total = some_rows(TEXTS, width=self.width, salt=salt + step).total
        gradient = torch.randn(total, self.width, generator=draw(step, salt=salt + 5))
        self._send(route, step, {"gradient": gradient})

    @property
    def width(self) -> int:
        return int(next(iter(vendor_of(self.transport).catalogue.cards.values())).info.width)

    def frames(self) -> Iterator[tuple[str, Callable[[], object]]]:
        for step in range(1, self.steps + 1):
            yield f"source {step}", lambda step=step: self.send_rows(routes.SOURCE, step, 100)  # type: ignore[misc]
            yield f"step {step}", lambda step=step: self.send_rows(routes.STEP, step, 200)  # type: ignore[misc]
            yield f"gradient {step}", lambda step=step: self.send_back(routes.GRADIENT, step, 200)  # type: ignore[misc]
            yield f"source gradient {step}", lambda step=step: self.send_back(routes.SOURCE_GRADIENT, step, 100)  # type: ignore[misc]
            if self.due(step):
                yield f"norm {step}", lambda step=step: self.send_norm(step)  # type: ignore[misc]


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the vendor computes, by name."""
    found: list[str] = []
    for name in ("encode", "forward", "backward", "backward_source"):
        honest = getattr(Seq2SeqTrainer, name)

        def counted(self: Seq2SeqTrainer, tensor: Any, name: str = name, honest: Any = honest) -> Any:
            found.append(name)
            return honest(self, tensor)

        monkeypatch.setattr(Seq2SeqTrainer, name, counted)
    return found


@pytest.mark.parametrize("lora", [True, False])
def test_a_job_that_leaves_in_mid_step_comes_back_without_taking_other_steps_again(
    transport: LocalTransport, lora: bool, passes: list[str]
) -> None:
    changes = CHANGES if lora else CHANGES | {"lora": None}
    author = Translator(transport, changes, **STEPS)
    author.start()
    author.run()
    again = Translator(transport, changes, seen=author.seen, job="f" * 32, **STEPS)
    again.start()
    waiting = {"source": ["encode"], "step": ["encode", "forward"], "gradient": ["encode"]}
    for name, send in again.frames():
        send()
        before = again.info
        leave(transport)
        passes.clear()
        assert again.info == before, name
        assert passes == waiting.get(name.rpartition(" ")[0], []), name
        send()  # an answer that was lost is given again
    assert again.finish().sha256 == author.finish().sha256


@pytest.mark.parametrize("until", ["gradient 3", "step 4", "source gradient 4"])
def test_what_a_job_left_in_mid_step_outlives_a_kill(transport: LocalTransport, until: str) -> None:
    """Further frames are replayed on a checkpoint that holds half of a step's gradients."""
    author = Translator(transport, CHANGES, **STEPS)
    author.start()
    author.run()
    again = Translator(transport, CHANGES, seen=author.seen, job="f" * 32, **STEPS)
    again.start()
    again.run(until="gradient 3")
    leave(transport)
    rest = dict(again.frames())
    names = list(rest)
    for name in names[names.index("gradient 3") + 1 : names.index(until) + 1]:
        rest[name]()
    before = again.info
    drop(transport)
    assert again.info == before
    for name in names[names.index(until) + 1 :]:
        rest[name]()
    assert again.finish().sha256 == author.finish().sha256


def test_half_of_the_gradients_is_in_the_checkpoint(transport: LocalTransport) -> None:
    """Planted fault: what the decoder said of the encoder's output is forgotten."""
    whole = Translator(transport, CHANGES, **STEPS)
    whole.start()
    whole.run(until="source gradient 1")
    author = Translator(transport, CHANGES, job="f" * 32, seen=whole.seen, **STEPS)
    author.start()
    author.run(until="gradient 1")
    honest = Seq2SeqTrainer.state

    def forgetful(self: Seq2SeqTrainer) -> dict[str, Tensor]:
        return {name: value * 0 if name == "attended" else value for name, value in honest(self).items()}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Seq2SeqTrainer, "state", forgetful)
        leave(transport)
    with pytest.raises(AssertionError, match=r"source-gradient .* 1: other bits"):
        author.send_back(routes.SOURCE_GRADIENT, 1, 100)


def test_two_jobs_that_do_not_fit_together_take_no_step_twice(
    open_vendor: Open, data_dir: Path, change_settings: Callable[..., None], passes: list[str]
) -> None:
    """Frame by frame in turn, where the graphs of one find room: each return costs forward passes of one step."""
    transport = open_vendor()
    alone = Translator(transport, CHANGES, **STEPS)
    alone.start()
    sizes = []
    for _, send in alone.frames():
        send()
        sizes.append(vendor_of(transport).jobs.graph_bytes)
    straight = alone.finish().sha256
    transport.close()
    change_settings(data_dir, limits={"max_graph_bytes": max(sizes)})
    transport = open_vendor()
    both = [Translator(transport, CHANGES, seen=alone.seen, job=name * 32, **STEPS) for name in "ab"]
    for each in both:
        each.start()
    passes.clear()
    for frames in zip(*(each.frames() for each in both), strict=True):
        for _, send in frames:
            send()
    backward = [name for name in passes if name.startswith("backward")]
    assert len(backward) == 2 * 2 * alone.steps, "no backward pass is taken again"
    assert len(passes) > 2 * 4 * alone.steps, "they do not fit together"
    assert {each.finish().sha256 for each in both} == {straight}
