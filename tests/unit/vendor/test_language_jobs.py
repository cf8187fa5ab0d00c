"""Jobs of language models: which are offered, the norm that clips across the cut, and every way back."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cutlayer import vendor
from cutlayer.core import ConfigError, Cut, Rows, VendorError
from cutlayer.core.tuning import FullSpec, LoraSpec, MethodSpec, OptimiserKind, PrefixSpec, PromptSpec
from cutlayer.models import load_model, split
from cutlayer.vendor.catalogue import read_card
from cutlayer.vendor.trainer import Trainer
from cutlayer.wire import Form, Frame, WireType, pack, routes
from cutlayer.wire.messages import (
    AdapterInfo,
    JobInfo,
    JobSpec,
    ModelInfo,
    OptimiserSpec,
    SnapshotRequest,
)
from cutlayer.wire.transports import LocalTransport
from tests.service.customer import Customer, ask, draw, first_model, some_rows
from tests.service.tiny import BLOCKS, WIDTH, write_tiny_bert, write_tiny_gpt2
from tests.unit.vendor.test_jobs import vendor_of

Open = Callable[[], LocalTransport]
TEXTS = 3
"""Of a step."""
JOB = "e" * 32


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gpt2(tmp_path_factory.mktemp("decoder") / "tiny")


@pytest.fixture(scope="module")
def blank_decoder_vendor(tmp_path_factory: pytest.TempPathFactory, decoder: Path) -> Path:
    folder = tmp_path_factory.mktemp("vendor") / "data"
    vendor.init(folder, models=[str(decoder)], threads=1, max_bottom=2, max_tail=1)
    return folder


@pytest.fixture
def data_dir(blank_decoder_vendor: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(blank_decoder_vendor, tmp_path / "data"))


@dataclass
class Author:
    """A language model's customer by rote: made-up rows go up, made-up gradients come back.

    Attributes:
        transport: The way to the vendor.
        changes: What of its spec is not as usual.
        steps: Of the job.
        seen: Bits of every answer, by what was asked: where two runs do the same these are the same.
    """

    transport: LocalTransport
    changes: dict[str, Any] = field(default_factory=dict)
    steps: int = 7
    accumulation: int = 3
    clip_norm: float | None = 0.05
    job: str = JOB
    seen: dict[str, bytes] = field(default_factory=dict)

    def spec(self, model: ModelInfo) -> JobSpec:
        usual: dict[str, Any] = {
            "model": model.name,
            "fingerprint": model.fingerprint,
            "cut": Cut(bottom=1, tail=1),
            "form": Form.ROWS,
            "wire_type": WireType.FP32,
            "segments": 1,
            "trainable_bottom": True,
            "tuning": LoraSpec(lora_dropout=0.1),
            "optimiser": OptimiserSpec(
                learning_rate=1e-2, total_steps=self.steps, accumulation=self.accumulation, clip_norm=self.clip_norm
            ),
            "seed": 7,
            "checkpoint_every": 50,
        }
        return JobSpec(**(usual | self.changes))

    def start(self) -> JobInfo:
        spec = self.spec(first_model(self.transport))
        return ask(self.transport, routes.JOB_PUT, spec, job=self.job).expect(JobInfo)

    @property
    def info(self) -> JobInfo:
        return ask(self.transport, routes.JOB_GET, job=self.job).expect(JobInfo)

    def _send(self, route: routes.Route, step: int, tensors: dict[str, Tensor]) -> Any:
        reply = self.transport.send(Frame(route, {"job": self.job, "step": step}, None, tensors))
        for role, tensor in reply.tensors.items():
            bits = tensor.contiguous().view(torch.uint8).numpy().tobytes()
            key = f"{route.name} {role} {step}"
            assert self.seen.setdefault(key, bits) == bits, f"{key}: other bits than before"
        return reply

    def rows(self, step: int) -> Rows:
        return some_rows(TEXTS, width=WIDTH, salt=100 + step)

    def take(self, step: int, **more: Tensor) -> Tensor:
        """The step's forward pass."""
        tensors = pack(self.rows(step), vocab_size=0, wire_type=self.spec(first_model(self.transport)).wire_type)
        output: Tensor = self._send(routes.STEP, step, tensors | more).tensors["output"]
        return output

    def send_gradient(self, step: int, gradient: Tensor | None = None) -> dict[str, Tensor]:
        if gradient is None:
            gradient = torch.randn(self.rows(step).total, WIDTH, generator=draw(step, salt=5))
        tensors: dict[str, Tensor] = self._send(routes.GRADIENT, step, {"gradient": gradient}).tensors
        return tensors

    def norm(self, step: int) -> Tensor:
        return torch.tensor([0.25 + step])

    def told(self, step: int) -> dict[str, Tensor]:
        """What an update is told alone."""
        return {"norm": self.norm(step)}

    def send_update(self, step: int) -> JobInfo:
        info = self._send(routes.UPDATE, step, self.told(step)).control
        assert isinstance(info, JobInfo)
        return info

    def updates_after(self, step: int) -> bool:
        return step % self.accumulation == 0 or step == self.steps

    def due(self, step: int) -> bool:
        """Whether an update after this step waits for the customer's norm."""
        return self.clip_norm is not None and step > 0 and self.updates_after(step)

    def frames(self) -> Iterator[tuple[str, Callable[[], object]]]:
        """All frames of the job in order, each under its name."""
        for step in range(1, self.steps + 1):
            more = {"norm": self.norm(step - 1)} if self.due(step - 1) else {}
            yield f"step {step}", lambda step=step, more=more: self.take(step, **more)  # type: ignore[misc]
            yield f"gradient {step}", lambda step=step: self.send_gradient(step)  # type: ignore[misc]
        if self.due(self.steps):
            yield f"norm {self.steps}", lambda: self.send_update(self.steps)

    def run(self, *, until: str = "") -> None:
        """All frames, or all up to and with the one of that name."""
        for name, send in self.frames():
            send()
            if name == until:
                return

    def finish(self) -> AdapterInfo:
        request = SnapshotRequest(step=self.steps)
        return ask(self.transport, routes.FINISH, request, job=self.job).expect(AdapterInfo)


def refused(status: int, match: str) -> Any:
    return pytest.raises(VendorError, match=match, check=lambda error: error.status == status and bool(error.remedy))


# ---------------------------------------------------------------- what is offered


MEANINGLESS: tuple[tuple[dict[str, Any], str], ...] = (
    ({"num_labels": 3}, r"num_labels = 3: must be null where the customer holds a tail"),
    (
        {"cut": Cut(bottom=1)},
        r"num_labels = None: must be null where the customer holds a tail, or the vendor learns alone to write",
    ),
    ({"cut": Cut(bottom=1, tail=2)}, r"cut\.tail = 2: tails of tiny are handed out up to depth 1"),
    ({"cut": Cut(bottom=3, tail=0)}, r"cut\.bottom = 3: .* down to depth 2"),
    ({"shared_weights": True}, r"shared_weights = True: must be false but of method full"),
    ({"shared_weights": True, "tuning": FullSpec()}, r"shared_weights = True: must be false but of method full"),
    ({"trainable_bottom": False}, r"record_sets = '0 sets': must be empty with a trainable bottom, and not empty"),
    ({"record_sets": ("a" * 32,)}, r"record_sets = '1 sets': must be empty"),
    ({"cut": Cut(bottom=None, tail=0), "form": Form.IDS}, r"trainable_bottom = True: needs a bottom"),
)


def test_jobs_that_have_no_meaning_are_refused(transport: LocalTransport) -> None:
    for changes, match in MEANINGLESS:
        author = Author(transport, changes)
        with refused(422, match):
            author.start()
        with refused(404, "no job"):
            _ = author.info
    assert Author(transport).start().step == 0


def test_a_top_with_a_weight_that_the_customer_holds_too_is_not_trained_itself(transport: LocalTransport) -> None:
    above_ids = {"cut": Cut(bottom=None, tail=0), "form": Form.IDS, "trainable_bottom": False}
    author = Author(transport, above_ids | {"tuning": FullSpec(), "record_sets": ("a" * 32,)})
    with refused(422, r"tuning.method = full: Both parties hold transformer\.wte\.weight \(cut text-t0\)"):
        author.start()
    with refused(404, "no job"):
        _ = author.info


def test_a_classifier_and_a_language_model_stand_beside_each_other(transport: LocalTransport) -> None:
    """One base: the same decoder with the vendor's head, and with the customer's."""
    classifier = Author(transport, {"cut": Cut(bottom=1), "num_labels": 3}, job="c" * 32, clip_norm=None)
    classifier.start()
    author = Author(transport)
    author.start()
    assert classifier.take(1).shape == (TEXTS, 3)
    assert author.take(1).shape == (author.rows(1).total, WIDTH)
    catalogue = vendor_of(transport).catalogue
    tables = [catalogue.top("tiny", cut).model.transformer.h for cut in (Cut(bottom=1), Cut(bottom=1, tail=0))]
    left, right = (dict(blocks.named_parameters()) for blocks in tables)
    assert left
    assert all(value is right[name] for name, value in left.items()), "the base is in memory twice"


def test_full_tuning_is_limited_by_what_the_top_holds(
    open_vendor: Open,
    data_dir: Path,
    decoder: Path,
    change_settings: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    top = split(load_model(str(decoder), head=None), Cut(bottom=1, tail=1)).top
    held = sum(parameter.numel() for parameter in top.parameters())
    change_settings(data_dir, limits={"max_adapter_parameters": held - 1})
    transport = open_vendor()
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "__init__", lambda *_: pytest.fail("the copy was made"))
        with refused(422, f"Method full trains {held} parameters; this vendor takes {held - 1}"):
            Author(transport, {"tuning": FullSpec()}).start()
    transport.close()
    change_settings(data_dir, limits={"max_adapter_parameters": held})
    Author(open_vendor(), {"tuning": FullSpec()}).start()


def test_full_tuning_leaves_the_shared_top_as_it_is(transport: LocalTransport) -> None:
    author = Author(transport, {"tuning": FullSpec()})
    author.start()
    top = vendor_of(transport).catalogue.top("tiny", Cut(bottom=1, tail=1))
    before = {name: value.clone() for name, value in top.named_parameters()}
    author.run()
    author.finish()
    assert before
    for name, value in top.named_parameters():
        assert torch.equal(value, before[name])
        assert not value.requires_grad


# ---------------------------------------------------------------- what is handed out


def read_tail(folder: Path) -> tuple[int, int | None]:
    (name,) = vendor.VendorSettings.load(folder).models
    card = read_card(vendor.VendorSettings.load(folder), name)
    return card.info.max_bottom, card.info.max_tail


def test_how_deep_a_tail_is_handed_out(decoder: Path, tmp_path: Path) -> None:
    """A quarter of the blocks by default, as was set else; an encoder has none, whatever was set."""
    vendor.init(tmp_path / "default", models=[str(decoder)], threads=1)
    assert read_tail(tmp_path / "default") == (BLOCKS // 2, BLOCKS // 4)
    vendor.init(tmp_path / "set", models=[str(decoder)], threads=1, max_bottom=0, max_tail=3)
    assert read_tail(tmp_path / "set") == (0, 3)
    encoder = write_tiny_bert(tmp_path / "bert")
    vendor.init(tmp_path / "encoder", models=[str(encoder)], threads=1, max_bottom=2, max_tail=2)
    assert read_tail(tmp_path / "encoder") == (2, None)


@pytest.mark.parametrize(("bottom", "tail"), [(2, 2), (0, 4), (3, 1), (4, 0)])
def test_a_customer_cannot_be_handed_the_whole_model(decoder: Path, tmp_path: Path, bottom: int, tail: int) -> None:
    with pytest.raises(ConfigError, match=f"max_bottom = {bottom} and max_tail = {tail}, but .* has 4 blocks") as error:
        vendor.init(tmp_path / "data", models=[str(decoder)], threads=1, max_bottom=bottom, max_tail=tail)
    assert "--max-tail" in error.value.remedy
    assert "at most 3 together" in error.value.remedy


def test_an_encoder_s_customer_asks_for_a_tail(tmp_path: Path, blank_decoder_vendor: Path) -> None:
    encoder = write_tiny_bert(tmp_path / "bert")
    vendor.init(tmp_path / "data", models=[f"bert={encoder}"], threads=1)
    key = vendor.keys.create(tmp_path / "data", "clinic")
    app = vendor.create_app(vendor.VendorSettings.load(tmp_path / "data"))
    with closing(LocalTransport(app, key)) as transport:
        with refused(422, r"cut\.tail = 0: no tails of bert are handed out"):
            Author(transport, {"cut": Cut(bottom=1, tail=0)}).start()
        with refused(422, r"cut\.tail = 0"):
            ask(transport, routes.ARCHIVE, model="bert", cut="1-t0")


# ---------------------------------------------------------------- the norm


def test_an_update_is_taken_with_the_norm_and_not_before(transport: LocalTransport) -> None:
    author = Author(transport, {"tuning": LoraSpec()}, accumulation=2, steps=4)
    author.start()
    trainer = vendor_of(transport).jobs._live["clinic", JOB]._trainer
    taken = []
    for name, send in author.frames():
        send()
        taken.append((name, trainer._optimiser.steps, author.info.update_waits))
    assert taken == [
        ("step 1", 0, False),
        ("gradient 1", 0, False),
        ("step 2", 0, False),
        ("gradient 2", 0, True),
        ("step 3", 1, False),
        ("gradient 3", 1, False),
        ("step 4", 1, False),
        ("gradient 4", 1, True),
        ("norm 4", 2, False),
    ]


def test_the_norm_that_comes_back_is_that_of_what_waits(transport: LocalTransport) -> None:
    author = Author(transport, accumulation=2, steps=4)
    author.start()
    trainer = vendor_of(transport).jobs._live["clinic", JOB]._trainer
    for step in (1, 2):
        author.take(step)
        norm = author.send_gradient(step)["norm"]
        expected = sum(float(value.grad.double().square().sum()) for value in trainer._trained.values())
        assert norm.dtype is torch.float32
        assert norm.tolist() == pytest.approx([expected], rel=1e-6)


NORMS = {
    "negative": (torch.tensor([-1.0]), 422, "norm is less than 0"),
    "two numbers": (torch.tensor([1.0, 2.0]), 422, r"An update was sent norm \[2\]; it takes norm \[1\]"),
    "none": (torch.zeros(0), 422, r"An update was sent norm \[0\]; it takes norm \[1\]"),
    "no number": (torch.tensor([torch.nan]), 422, "not finite"),
    "infinite": (torch.tensor([torch.inf]), 422, "not finite"),
    "another type": (torch.tensor([1.0], dtype=torch.float64), 422, "F64"),
    "another rank": (torch.tensor([[1.0]]), 422, "rank"),
}


@pytest.mark.parametrize("alone", [True, False])
def test_norms_that_are_none(transport: LocalTransport, alone: bool) -> None:
    author = Author(transport)
    author.start()
    author.run(until="gradient 3")
    route, step = (routes.UPDATE, 3) if alone else (routes.STEP, 4)
    for norm, status, match in NORMS.values():
        tensors = {"norm": norm} | ({} if alone else pack(author.rows(4), vocab_size=0, wire_type=WireType.FP32))
        # as bytes: an honest customer's transport would not send it
        with refused(status, match):
            send_bytes(transport, route, {"job": JOB, "step": step}, tensors)
        assert (author.info.step, author.info.update_waits) == (3, True)
    author.take(4, norm=author.norm(3))


def send_bytes(
    transport: LocalTransport, route: routes.Route, where: dict[str, Any], tensors: dict[str, Tensor]
) -> None:
    """Sends a body that `Frame` would refuse to encode."""
    import safetensors.torch

    class Raw(Frame):
        def __post_init__(self) -> None:
            pass

        def encode(self) -> bytes:
            return safetensors.torch.save(tensors)

    transport.send(Raw(route, where, None, tensors))


def test_a_norm_that_is_missing_or_not_expected(transport: LocalTransport) -> None:
    author = Author(transport)
    author.start()
    with refused(409, "No update after step 0 waits for a norm"):
        author.take(1, norm=author.norm(0))
    author.take(1)
    with refused(409, "after step 1 needs was sent; the job stands at step 1 and waits for none"):
        author.send_update(1)
    author.send_gradient(1)
    with refused(409, "No update after step 1 waits for a norm"):
        author.take(2, norm=author.norm(1))
    author.take(2)
    author.send_gradient(2)
    author.take(3)
    author.send_gradient(3)
    with refused(409, "The update after step 3 waits for the norm of the customer's"):
        author.take(4)
    for step in (2, 4):
        with refused(409, f"after step {step} needs was sent; the job stands at step 3 and waits for that of step 3"):
            author.send_update(step)
    assert (author.info.step, author.info.update_waits) == (3, True)
    author.take(4, norm=author.norm(3))


def test_without_clipping_nobody_is_asked_for_a_norm(transport: LocalTransport) -> None:
    author = Author(transport, clip_norm=None, accumulation=1)
    author.start()
    author.take(1)
    assert set(author.send_gradient(1)) == {"boundary_gradient"}
    assert not author.info.update_waits
    with refused(409, "No update after step 1 waits for a norm"):
        author.take(2, norm=author.norm(1))
    with refused(409, "waits for none"):
        author.send_update(1)


def test_a_norm_is_taken_once_however_often_it_comes(transport: LocalTransport) -> None:
    author = Author(transport)
    author.start()
    author.run(until="gradient 3")
    trainer = vendor_of(transport).jobs._live["clinic", JOB]._trainer
    answers = [author.send_update(3) for _ in range(3)]
    assert answers[0] == answers[1] == answers[2] == author.info
    assert not answers[0].update_waits
    assert trainer._optimiser.steps == 1
    with refused(409, "update 3 was accepted with other bytes"):
        transport.send(Frame(routes.UPDATE, {"job": JOB, "step": 3}, None, {"norm": torch.tensor([9.0])}))
    author.take(4)


def test_while_a_norm_is_missing_the_weights_are_between_two_states(transport: LocalTransport) -> None:
    author = Author(transport)
    author.start()
    query = Frame(routes.JOB_INFER, {"job": JOB}, None, pack(author.rows(1), vocab_size=0, wire_type=WireType.FP32))
    author.run(until="gradient 2")
    transport.send(query)  # gradients that are kept for an update to come change nothing
    author.take(3)
    author.send_gradient(3)
    missing = "The update after step 3 waits for the norm"
    with refused(409, missing):
        transport.send(query)
    with refused(409, missing):
        ask(transport, routes.SNAPSHOT, SnapshotRequest(step=3), job=JOB)
    author.send_update(3)
    transport.send(query)
    ask(transport, routes.SNAPSHOT, SnapshotRequest(step=3), job=JOB)


def test_an_adapter_is_not_published_before_its_last_update(transport: LocalTransport) -> None:
    author = Author(transport)
    author.start()
    author.run(until=f"gradient {author.steps}")
    with refused(409, f"The update after step {author.steps} waits for the norm"):
        author.finish()
    author.send_update(author.steps)
    author.finish()


def test_the_customers_norm_counts(transport: LocalTransport) -> None:
    """Planted fault: a customer who says that its gradients have no norm gets another adapter."""
    published = []
    for job, scale in (("1" * 32, 1.0), ("2" * 32, 1.0), ("3" * 32, 0.0)):
        author = Author(transport, job=job)
        author.norm = lambda step, scale=scale: torch.tensor([scale * (0.25 + step)])  # type: ignore[method-assign, assignment, misc]
        author.start()
        author.run()
        published.append(author.finish().sha256)
    assert published[0] == published[1]
    assert published[0] != published[2]


# ---------------------------------------------------------------- gradients


def test_gradients_of_another_kind(transport: LocalTransport) -> None:
    author = Author(transport)
    author.start()
    author.take(1)
    total = author.rows(1).total
    for wrong, said in (
        (torch.zeros(total - 1, WIDTH), rf"gradient is \[{total - 1}, {WIDTH}\]; .* is \[{total}, {WIDTH}\]"),
        (torch.zeros(total, WIDTH + 1), rf"\[{total}, {WIDTH + 1}\]"),
        (torch.zeros(total, WIDTH, dtype=torch.bfloat16), r"bfloat16; .* torch.float32"),
        (torch.full((total, WIDTH), torch.inf), "not finite"),
    ):
        with refused(422, said):
            transport.send(Frame(routes.GRADIENT, {"job": JOB, "step": 1}, None, {"gradient": wrong}))
    assert not author.info.gradient_applied
    author.send_gradient(1)


def test_rows_and_their_gradients_come_in_the_agreed_type(transport: LocalTransport) -> None:
    author = Author(transport, {"wire_type": WireType.BF16})
    author.start()
    output = author.take(1)
    with refused(422, "float32; .* torch.bfloat16"):
        author.send_gradient(1)
    answer = author.send_gradient(1, torch.randn(output.shape).bfloat16())
    assert (output.dtype, answer["boundary_gradient"].dtype) == (torch.bfloat16, torch.bfloat16)
    assert bool(answer["boundary_gradient"].any())


# ---------------------------------------------------------------- the way back


def drop(transport: LocalTransport) -> None:
    """What a kill leaves: nothing but the log and the checkpoints that were due."""
    jobs = vendor_of(transport).jobs
    for tenant, name in list(jobs._live):
        jobs._drop(tenant, name)


def leave(transport: LocalTransport) -> None:
    """What happens where other jobs need the room."""
    vendor_of(transport).jobs.close()


def resume(transport: LocalTransport, job: str) -> None:
    """Brings a job back into memory."""
    found = vendor_of(transport)
    transport._run(found.compute.run(found.jobs.resume, "clinic", job))


STEPS = {"steps": 5, "accumulation": 2}


@pytest.mark.parametrize(
    ("tuning", "optimiser", "gone", "checkpoint_every"),
    [
        (LoraSpec(lora_dropout=0.1), "adamw", drop, 2),
        (LoraSpec(lora_dropout=0.1), "adafactor", leave, 50),
        (FullSpec(), "adafactor", drop, 50),
        (FullSpec(), "adamw", leave, 2),
        (PromptSpec(prompt_length=3), "adam", drop, 50),
        (PrefixSpec(prefix_length=3), "adafactor", leave, 2),
    ],
    ids=lambda value: getattr(value, "method", getattr(value, "__name__", str(value))),
)
def test_a_job_comes_back_between_any_two_frames(
    transport: LocalTransport,
    tuning: MethodSpec,
    optimiser: OptimiserKind,
    gone: Callable[[LocalTransport], None],
    checkpoint_every: int,
) -> None:
    """In the middle of an accumulation, while a norm is missing, and with a graph that waits: the same bits."""
    schedule = Author(transport, **STEPS).spec(first_model(transport)).optimiser
    told = schedule.model_copy(update={"kind": optimiser, "schedule": "constant"})
    changes: dict[str, Any] = {"tuning": tuning, "optimiser": told}
    author = Author(transport, changes, **STEPS)
    author.start()
    author.run()
    again = Author(transport, changes | {"checkpoint_every": checkpoint_every}, seen=author.seen, job="f" * 32, **STEPS)
    again.start()
    for name, send in again.frames():
        before = again.info
        gone(transport)
        assert again.info.model_copy(update={"checkpoints": before.checkpoints}) == before, name
        send()  # and its bits are compared with those of the first run
        if not name.startswith("norm"):
            gone(transport)
            send()
    assert again.finish().sha256 == author.finish().sha256
    assert len(again.seen) == 3 * again.steps


@pytest.mark.parametrize("gone", [drop, leave])
def test_a_norm_is_answered_again_by_a_job_that_came_back(
    transport: LocalTransport, gone: Callable[[LocalTransport], None]
) -> None:
    """As every other numbered frame: its answer may have been lost with the vendor's process."""
    author = Author(transport, **STEPS)
    author.start()
    author.run()
    answered = author.info
    gone(transport)
    assert author.send_update(author.steps) == answered


def test_gradients_that_are_kept_are_in_the_checkpoint(transport: LocalTransport) -> None:
    """Planted fault: a job that forgets them goes on with other bits."""
    author = Author(transport)
    author.start()
    author.run(until="gradient 2")
    author.take(3)
    norm = author.send_gradient(3)["norm"]
    ask(transport, routes.JOB_DELETE, job=JOB)
    forgetful = Author(transport)
    forgetful.start()
    forgetful.run(until="gradient 2")
    with pytest.MonkeyPatch.context() as patch:
        state = Trainer.state
        patch.setattr(
            Trainer,
            "state",
            lambda self: {name: value for name, value in state(self).items() if not name.startswith("gradient/")},
        )
        leave(transport)
    forgetful.take(3)
    assert not torch.equal(forgetful.send_gradient(3)["norm"], norm)


def test_rolling_back_is_to_where_no_gradient_is_kept(transport: LocalTransport) -> None:
    author = Author(transport, {"checkpoint_every": 2})
    author.start()
    author.run(until="gradient 6")
    assert author.info.update_waits
    assert author.info.checkpoints == (0, 3)
    back = ask(transport, routes.ROLLBACK, SnapshotRequest(step=3), job=JOB).expect(JobInfo)
    assert (back.step, back.gradient_applied, back.update_waits) == (3, True, False)
    assert author.due(3)
    author.take(4)  # the update after step 3 was taken before the checkpoint was made
    rest = dict(author.frames())
    for name in list(rest)[list(rest).index("gradient 4") :]:
        rest[name]()
    rolled = author.finish().sha256
    other = Author(transport, {"checkpoint_every": 2}, job="d" * 32)
    other.start()
    other.run()
    assert other.finish().sha256 == rolled


def test_the_other_kind_of_customer_is_not_disturbed(transport: LocalTransport) -> None:
    """A classifier by rote on the same decoder still trains: ids, records, logits."""
    customer = Customer(transport, steps=3)
    assert customer.run().num_labels == 3
