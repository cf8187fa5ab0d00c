"""Jobs of encoder-decoders, whose steps are four frames: they leave memory between any two, and come back cheaply."""

from __future__ import annotations

import re
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
from cutlayer.core.tuning import FullSpec, PrefixSpec, PromptSpec
from cutlayer.models import Head
from cutlayer.vendor.seq2seq import Seq2SeqTrainer
from cutlayer.vendor.trainer import step_bytes
from cutlayer.wire import Frame, WireType, pack, routes
from cutlayer.wire.messages import StepSize
from cutlayer.wire.transports import LocalTransport
from tests.promises.test_families import write_model
from tests.service.customer import draw, first_model, some_rows
from tests.unit.vendor.test_jobs import vendor_of
from tests.unit.vendor.test_language_jobs import JOB, TEXTS, Author, drop, leave, refused, resume

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
    """An encoder-decoder's customer by rote.

    Attributes:
        copies: Numbers that it holds copies of.
    """

    copies: int = 0

    def send_rows(self, route: routes.Route, step: int, salt: int) -> None:
        rows = some_rows(TEXTS, width=self.width, salt=salt + step)
        self._send(route, step, pack(rows, vocab_size=0, wire_type=WireType.FP32))

    def send_back(self, route: routes.Route, step: int, salt: int) -> None:
        total = some_rows(TEXTS, width=self.width, salt=salt + step).total
        gradient = torch.randn(total, self.width, generator=draw(step, salt=salt + 5))
        self.copies = len(self._send(route, step, {"gradient": gradient}).tensors.get("shared_gradient", ()))

    def told(self, step: int) -> dict[str, Tensor]:
        copied = torch.randn(self.copies, generator=draw(step, salt=7))
        norm = {} if self.clip_norm is None else {"norm": self.norm(step)}
        return norm | ({"shared_gradient": copied} if self.copies else {})

    def due(self, step: int) -> bool:
        return self.updates_after(step) and (self.clip_norm is not None or self.copies > 0)

    def update(self, step: int, told: dict[str, Tensor]) -> None:
        self.transport.send(Frame(routes.UPDATE, {"job": self.job, "step": step}, None, told))

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
                yield f"norm {step}", lambda step=step: self.send_update(step)  # type: ignore[misc]


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


ALL: dict[str, Any] = CHANGES | {"tuning": FullSpec()}


PROMPT: dict[str, Any] = CHANGES | {"tuning": PromptSpec(prompt_length=3)}
PREFIX: dict[str, Any] = CHANGES | {"tuning": PrefixSpec(prefix_length=3)}


@pytest.mark.parametrize(
    "changes",
    [CHANGES, ALL, ALL | {"shared_weights": True}, PROMPT, PREFIX],
    ids=["lora", "all", "shared too", "prompt", "prefix"],
)
def test_a_job_that_leaves_in_mid_step_comes_back_without_taking_other_steps_again(
    transport: LocalTransport, changes: dict[str, Any], passes: list[str]
) -> None:
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
        assert not passes, "to ask is not to resume"
        resume(transport, again.job)
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


def test_what_a_step_takes_is_known_before_it_comes(transport: LocalTransport) -> None:
    author = Translator(transport, CHANGES, **STEPS)
    author.start()
    author.run(until="step 1")
    jobs = vendor_of(transport).jobs
    source, target = (
        int(some_rows(TEXTS, width=author.width, salt=salt + 1).packed.lengths.max()) for salt in (100, 200)
    )
    size = StepSize(texts=TEXTS, positions=source, target_positions=target)
    top = jobs._catalogue.top(first_model(transport).name, CHANGES["cut"])
    spec = author.info.spec
    assert jobs.graph_bytes == step_bytes(top, spec, size)
    jobs._graph_limit = jobs.graph_bytes - 1
    other = Translator(
        transport, CHANGES | {"largest_steps": (StepSize(texts=1, positions=1), size)}, job="f" * 32, **STEPS
    )
    with refused(422, f"Training on {TEXTS} texts takes about {jobs.graph_bytes} bytes"):
        other.start()
    with refused(404, "no job"):
        _ = other.info


# ---------------------------------------------------------------- what both hold copies of


@pytest.mark.parametrize("clip_norm", [None, 0.5])
def test_an_update_takes_both_parties_gradients_of_shared_weights(
    transport: LocalTransport, clip_norm: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    author = Translator(transport, ALL | {"shared_weights": True}, clip_norm=clip_norm, **STEPS)
    author.start()
    author.run(until="source gradient 2")
    assert author.info.update_waits
    trainer = vendor_of(transport).jobs._live["clinic", JOB]._trainer
    copies = [value for _, value in sorted(trainer.part.shared_parameters().items())]
    assert author.copies == sum(value.numel() for value in copies) > 0
    told = author.told(2)
    for wrong, said in (
        ({"shared_gradient": torch.zeros(author.copies + 1)}, f"shared_gradient [{author.copies + 1}]; it takes "),
        ({"norm": torch.ones(1)}, f"; it takes {'' if clip_norm is None else 'norm [1], '}shared_gradient"),
    ):
        with refused(422, re.escape(said)):
            author.update(2, (told | wrong) if "shared_gradient" in wrong else wrong)
    with refused(409, "waits for .*the gradients of the customer's copies of shared weights"):
        author.send_rows(routes.SOURCE, 3, 100)
    before = [value.detach().clone() for value in copies]
    own = torch.cat([value.grad.flatten() for value in copies if value.grad is not None])
    expected = own + told["shared_gradient"]
    taken: list[Tensor] = []
    honest = trainer._optimiser.step

    def noting() -> None:
        taken.extend(value.grad.flatten().clone() for value in copies if value.grad is not None)
        honest()

    monkeypatch.setattr(trainer._optimiser, "step", noting)
    author.send_update(2)
    summed = torch.cat(taken)
    if clip_norm is None:
        assert torch.equal(summed, expected)
    else:
        torch.testing.assert_close(summed / summed.norm(), expected / expected.norm())
        assert summed.norm() < expected.norm()
    assert not any(torch.equal(value, kept) for value, kept in zip(copies, before, strict=True))


def test_weights_that_are_the_vendors_alone_need_no_word_of_the_customer(transport: LocalTransport) -> None:
    """Embeddings and head at the customer: position biases are trained, and no update waits."""
    bare = ALL | {"cut": Cut(bottom=0, target=0, tail=0), "shared_weights": True}
    author = Translator(transport, bare, clip_norm=None, **STEPS)
    author.start()
    trainer = vendor_of(transport).jobs._live["clinic", JOB]._trainer
    before = [value.detach().clone() for value in trainer.part.shared_parameters().values()]
    author.run(until="source gradient 2")
    assert author.copies == 0
    assert not author.info.update_waits
    after = trainer.part.shared_parameters().values()
    assert not any(torch.equal(value, kept) for value, kept in zip(after, before, strict=True))
