"""Jobs: the same steps as training in one process, one job's peace from another's, and every way back."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from torch import Tensor
from transformers import BertForSequenceClassification

from cutlayer import vendor
from cutlayer.core import Cut, Rows, VendorError
from cutlayer.core.tuning import LoraSpec, MethodSpec, PrefixSpec, PromptSpec
from cutlayer.models import Head, Template, attach_lora, load_model, load_tokenizer, seed_dropout, set_dropout, split
from cutlayer.models.optimiser import Optimiser
from cutlayer.vendor.log import FrameLog
from cutlayer.vendor.trainer import Trainer
from cutlayer.wire import Form, Frame, WireType, pack, routes
from cutlayer.wire.messages import (
    AdapterInfo,
    AdapterList,
    JobInfo,
    JobState,
    OptimiserSpec,
    RecordSetSpec,
    SnapshotRequest,
    StepSize,
)
from cutlayer.wire.transports import LocalTransport
from cutlayer.wire.transports.local import _exchange
from tests.service.customer import BATCH, TEXTS, Customer, ask, draw, first_model, some_rows, some_tokens
from tests.service.tiny import MAX_LENGTH, VOCAB, WIDTH

Open = Callable[[], LocalTransport]


def job_folder(data_dir: Path, customer: Customer) -> Path:
    return data_dir / "tenants/clinic/jobs" / customer.job


def info(customer: Customer) -> JobInfo:
    return ask(customer.transport, routes.JOB_GET, job=customer.job).expect(JobInfo)


def resumed(customer: Customer) -> JobInfo:
    """Where the job stands once it is back in memory; to ask for it does not bring it back."""
    vendor, transport = vendor_of(customer.transport), customer.transport
    assert isinstance(transport, LocalTransport)
    found = transport._run(vendor.compute.run(vendor.jobs.resume, "clinic", customer.job))
    assert isinstance(found, JobInfo)
    assert found == info(customer)
    return found


def vendor_of(transport: LocalTransport) -> Any:
    return transport._app.state.vendor  # type: ignore[attr-defined]


def at(customer: Customer, route: routes.Route, step: int) -> Any:
    return ask(customer.transport, route, SnapshotRequest(step=step), job=customer.job).control


@pytest.mark.parametrize("dropout", [True, False])
@pytest.mark.parametrize("trainable", [False, True])
def test_steps_equal_training_in_one_process(
    transport: LocalTransport, tiny_model: Path, trainable: bool, dropout: bool
) -> None:
    """Bit for bit: outputs, boundary gradients, and the weights at the end, with torch's own AdamW and schedule."""
    torch.set_num_threads(1)  # as the vendor does; bits depend on it
    customer = Customer(transport, trainable=trainable)
    spec = customer.spec(first_model(transport)).model_copy(update={"dropout": dropout})
    customer.spec = lambda _: spec  # type: ignore[method-assign, assignment]
    customer.upload()
    customer.train(customer.start())
    adapter = at(customer, routes.FINISH, customer.steps)

    model = load_model(str(tiny_model), head=Head.CLASSIFICATION)
    template = Template.from_tokenizer(load_tokenizer(str(tiny_model)), max_length=MAX_LENGTH)
    part = attach_lora(split(model, spec.cut).top, rank=8, alpha=16, dropout=0.1, num_labels=3, seed=spec.seed)
    set_dropout(part, dropout)
    part.train()
    trained = [parameter for parameter in part.parameters() if parameter.requires_grad]
    adamw = torch.optim.AdamW(trained, lr=1e-2, weight_decay=0.01)
    warmup, total = 2, customer.steps
    schedule = torch.optim.lr_scheduler.LambdaLR(
        adamw, lambda step: step / warmup if step < warmup else (total - step) / (total - warmup)
    )
    tokens = some_tokens(TEXTS, vocab_size=VOCAB)
    for step in range(1, total + 1):
        seed_dropout(spec.seed, step)
        boundary = None
        if trainable:
            rows = some_rows(BATCH, width=WIDTH, salt=100 + step)
            boundary = rows.packed.values.clone().requires_grad_()
            hidden, inputs = template.from_rows(Rows(rows.packed.with_values(boundary), rows.segment_lengths))
            output = part(inputs, hidden)
        else:
            records = torch.randint(0, TEXTS, (BATCH,), generator=draw(step, salt=9))
            output = part(template.assemble(tokens.select(records)))
        assert torch.equal(output, customer.outputs[step])
        labels = torch.randint(0, 3, (BATCH,), generator=draw(step, salt=5))
        torch.nn.functional.cross_entropy(output, labels).backward()
        if boundary is not None:
            assert boundary.grad is not None
            digest = hashlib.sha256(boundary.grad.numpy().tobytes()).hexdigest()
            assert digest == customer.boundary_gradients[step]
        adamw.step()
        schedule.step()
        adamw.zero_grad()
    queried = query(customer)
    part.eval()
    with torch.no_grad():
        if trainable:
            hidden, inputs = template.from_rows(some_rows(5, width=WIDTH, salt=77))
            assert torch.equal(part(inputs, hidden), queried)
        else:
            assert torch.equal(part(template.assemble(some_tokens(5, vocab_size=VOCAB, salt=77))), queried)
    assert adapter.step == total


def query(customer: Customer) -> Tensor:
    payload = some_rows(5, width=WIDTH, salt=77) if customer.trainable else some_tokens(5, vocab_size=VOCAB, salt=77)
    tensors = pack(payload, vocab_size=VOCAB, wire_type=WireType.FP32)
    reply = customer.transport.send(Frame(routes.ADAPTER_INFER, {"adapter": customer.job}, None, tensors))
    return reply.tensors["output"]


def test_the_adapter_works_on_the_whole_model_with_plain_peft(
    transport: LocalTransport, data_dir: Path, tiny_model: Path
) -> None:
    customer = Customer(transport)
    adapter = customer.run()
    folder = data_dir / "tenants/clinic/adapters" / customer.job
    weights = (folder / "adapter_model.safetensors").read_bytes()
    assert (hashlib.sha256(weights).hexdigest(), len(weights)) == (adapter.sha256, adapter.size)
    whole = BertForSequenceClassification.from_pretrained(tiny_model, num_labels=3, ignore_mismatched_sizes=True)
    tuned = PeftModel.from_pretrained(whole, str(folder)).eval()
    template = Template.from_tokenizer(load_tokenizer(str(tiny_model)), max_length=MAX_LENGTH)
    inputs = template.assemble(some_tokens(5, vocab_size=VOCAB, salt=77))
    with torch.no_grad():
        logits = tuned(
            input_ids=inputs.input_ids, attention_mask=inputs.attention_mask, token_type_ids=inputs.token_type_ids
        ).logits
    assert torch.allclose(logits, query(customer), atol=1e-6, rtol=0)


def test_jobs_in_turn_do_not_disturb_each_other(
    open_vendor: Open, data_dir: Path, change_settings: Callable[..., None]
) -> None:
    """Three jobs step by step in turn, graphs kept open across turns, in memory or resumed at every touch."""
    kinds: list[dict[str, Any]] = [{"trainable": False}, {"trainable": True}, {"trainable": False, "seed": 8}]
    alone = []
    transport = open_vendor()
    for number, kind in enumerate(kinds):
        customer = Customer(transport, job=f"{number:032x}", **kind)
        alone.append(customer.run().sha256)
        ask(transport, routes.ADAPTER_DELETE, adapter=customer.job)
        ask(transport, routes.JOB_DELETE, job=customer.job)
    assert len(set(alone)) == 3
    transport.close()
    for live_jobs in (32, 1):
        change_settings(data_dir, limits={"live_jobs": live_jobs})
        transport = open_vendor()
        together = [Customer(transport, job=f"{10 * live_jobs + n:032x}", **kind) for n, kind in enumerate(kinds)]
        pending: list[Tensor | None] = [None] * 3
        for customer in together:
            customer.upload()
            customer.start()
        for step in range(1, together[0].steps + 1):
            for number, customer in enumerate(together):
                pending[number] = customer.take(step, pending[number])
        assert [at(customer, routes.FINISH, customer.steps).sha256 for customer in together] == alone
        transport.close()


def test_many_adapters_over_one_base(open_vendor: Open, data_dir: Path, change_settings: Callable[..., None]) -> None:
    change_settings(data_dir, limits={"live_adapters": 1})
    transport = open_vendor()
    customers = [Customer(transport, job=f"{n:032x}", seed=n, steps=4) for n in range(3)]
    adapters = [customer.run() for customer in customers]
    first = [query(customer) for customer in customers]
    assert not torch.equal(first[0], first[1])
    for number in (2, 0, 1, 1, 0):
        assert torch.equal(query(customers[number]), first[number])
    listed = ask(transport, routes.ADAPTERS).expect(AdapterList).adapters
    assert sorted(listed, key=lambda one: one.adapter) == adapters
    assert ask(transport, routes.ADAPTER_GET, adapter=customers[1].job).control == adapters[1]
    ask(transport, routes.ADAPTER_DELETE, adapter=customers[1].job)
    with pytest.raises(VendorError, match="no adapter") as caught:
        query(customers[1])
    assert caught.value.status == 404


def test_a_running_job_answers_queries_as_its_adapter_will(transport: LocalTransport) -> None:
    customer = Customer(transport)
    customer.upload()
    customer.train(customer.start())
    records = {"records": torch.arange(7, dtype=torch.uint8)}
    running = transport.send(Frame(routes.JOB_INFER, {"job": customer.job}, None, records)).tensors["output"]
    tokens = pack(some_tokens(TEXTS, vocab_size=VOCAB).select(range(7)), vocab_size=VOCAB, wire_type=WireType.FP32)
    inline = transport.send(Frame(routes.JOB_INFER, {"job": customer.job}, None, tokens)).tensors["output"]
    at(customer, routes.FINISH, customer.steps)
    published = transport.send(Frame(routes.ADAPTER_INFER, {"adapter": customer.job}, None, tokens)).tensors["output"]
    assert torch.equal(running, inline)
    assert torch.equal(running, published)


# ---------------------------------------------------------------- the way back


def test_rolling_back_and_going_on_ends_with_the_same_bits(open_vendor: Open, data_dir: Path) -> None:
    for trainable in (False, True):
        transport = open_vendor()
        customer = Customer(transport, trainable=trainable, job=f"{trainable:032x}")
        straight = customer.run().sha256
        ask(transport, routes.JOB_DELETE, job=customer.job)
        customer.upload()
        customer.train(customer.start(), until=11)
        assert info(customer).checkpoints == (0, 4, 8)
        for back in (8, 4, 0):
            found = at(customer, routes.ROLLBACK, back)
            assert (found.step, found.gradient_applied, found.checkpoints[-1]) == (back, True, back)
            customer.train(found, until=back + 2)
            transport.close()
            transport = customer.transport = open_vendor()
            assert info(customer).step == back + 2
        assert customer.run().sha256 == straight
        transport.close()


def test_an_output_that_is_gone_is_said_so(open_vendor: Open) -> None:
    """Only the last step's output is kept, and only until its gradient is in a checkpoint."""
    customer = Customer(open_vendor())
    customer.upload()
    customer.train(customer.start(), until=6)
    for step, reopened in ((5, False), (6, True), (7, True)):
        if reopened:
            customer.transport.close()
            customer.transport = open_vendor()
        with pytest.raises(VendorError, match=f"output of step {step} is not kept; the job stands at step 6") as caught:
            ask(customer.transport, routes.STEP_GET, job=customer.job, step=step)
        assert caught.value.status == 409
        assert "next step" in caught.value.remedy
    customer.train(info(customer), until=7)


def test_a_gradient_that_was_not_asked_for_is_refused(transport: LocalTransport) -> None:
    customer = Customer(transport)
    customer.upload()
    customer.start()
    for done in (0, 6):
        if done:
            customer.train(info(customer), until=done)
        with pytest.raises(VendorError, match=f"Step {done} has its gradient already") as caught:
            customer.send_step(done + 1, torch.zeros(BATCH, 3))
        assert caught.value.status == 409
        assert "once" in caught.value.remedy
        assert info(customer).step == done


def test_other_weights_are_noticed_by_adapters_and_jobs(open_vendor: Open, data_dir: Path, tiny_model: Path) -> None:
    """The vendor sets a model up again with other weights: what was trained on the old ones says so, and stays."""
    customer = Customer(open_vendor())
    running = Customer(customer.transport, job="8" * 32)
    customer.run()
    running.upload()
    running.train(running.start(), until=3)
    customer.transport.close()
    model = BertForSequenceClassification.from_pretrained(tiny_model)
    with torch.no_grad():
        model.bert.encoder.layer[0].output.dense.bias += 1
    moved = Path(shutil.copytree(tiny_model, data_dir / "model"))
    model.save_pretrained(moved)
    vendor.init(data_dir, models=[f"tiny={moved}"])
    customer.transport = running.transport = open_vendor()
    with pytest.raises(VendorError, match="was trained on other weights than tiny has now") as caught:
        query(customer)
    assert caught.value.status == 409
    assert "again" in caught.value.remedy
    with pytest.raises(VendorError, match="fingerprint of tiny is") as caught:
        running.take(4, None)
    assert caught.value.status == 409
    customer.transport.close()
    vendor.init(data_dir, models=[f"tiny={tiny_model}"])
    customer.transport = running.transport = open_vendor()
    query(customer)
    running.train(info(running))


def test_rolling_back_to_where_there_is_no_checkpoint(transport: LocalTransport) -> None:
    customer = Customer(transport)
    customer.upload()
    customer.train(customer.start(), until=6)
    with pytest.raises(VendorError, match=r"no checkpoint at step 5; there are \[0, 4\]") as caught:
        at(customer, routes.ROLLBACK, 5)
    assert caught.value.status == 409
    assert info(customer).step == 6


def test_the_log_and_the_checkpoints_stay_short(transport: LocalTransport, data_dir: Path) -> None:
    customer = Customer(transport, steps=40, checkpoint_every=3)
    customer.upload()
    customer.train(customer.start(), until=35)
    assert info(customer).checkpoints == (0, 27, 30, 33)
    segments = sorted(path.name for path in (job_folder(data_dir, customer) / "log").iterdir())
    assert segments == ["0000000027.log", "0000000030.log", "0000000033.log"]


def test_a_log_that_grows_too_long_is_shortened_out_of_turn(
    open_vendor: Open, data_dir: Path, change_settings: Callable[..., None]
) -> None:
    straight = (transport := open_vendor()) and Customer(transport, trainable=True).run().sha256
    transport.close()
    change_settings(data_dir, limits={"log_bytes_per_checkpoint": 20_000})
    transport = open_vendor()
    customer = Customer(transport, trainable=True, checkpoint_every=1000, job="2" * 32)
    customer.train(customer.start(), until=9)
    folder = job_folder(data_dir, customer)
    assert sum(path.stat().st_size for path in (folder / "log").iterdir()) < 30_000
    assert (folder / "checkpoints/recent.safetensors").exists()
    assert info(customer).checkpoints == (0,)
    transport.close()
    customer.transport = open_vendor()
    assert customer.run().sha256 == straight


def test_snapshots_are_published_or_refused(transport: LocalTransport) -> None:
    customer = Customer(transport)
    customer.upload()
    customer.train(customer.start(), until=6)
    assert at(customer, routes.SNAPSHOT, 6).snapshots == (6,)
    assert at(customer, routes.SNAPSHOT, 6).snapshots == (6,)
    customer.train(info(customer), until=12)
    with pytest.raises(
        VendorError, match="the gradients of 12 steps have been taken, and there are snapshots at"
    ) as caught:
        at(customer, routes.SNAPSHOT, 7)
    assert caught.value.status == 409
    with pytest.raises(VendorError, match="snapshots at"):
        at(customer, routes.FINISH, 2**53)
    adapter = at(customer, routes.FINISH, 6)
    assert adapter.step == 6
    assert at(customer, routes.FINISH, 6) == adapter
    with pytest.raises(VendorError, match="finished at step 6, not 12"):
        at(customer, routes.FINISH, 12)
    done = info(customer)
    assert (done.state, done.step) == (JobState.FINISHED, 12)
    with pytest.raises(VendorError, match="is finished") as caught:
        customer.take(13, None)
    assert caught.value.status == 409
    early = Customer(transport, job="3" * 32)
    early.upload()
    early.train(early.start(), until=6)
    assert at(early, routes.FINISH, 6).sha256 == adapter.sha256, "a snapshot is the adapter as it was"


def test_a_step_that_fails_half_way_is_undone(
    transport: LocalTransport, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The update is done and the forward pass fails: the frame is neither logged nor half applied."""
    customer = Customer(transport)
    straight = customer.run().sha256
    ask(transport, routes.JOB_DELETE, job=customer.job)
    customer.upload()
    pending = None
    customer.start()
    for step in range(1, 4):
        pending = customer.take(step, pending)
    value = 3.14159
    with monkeypatch.context() as patch:

        def fail(*_: object) -> None:
            raise RuntimeError(f"out of memory; the first value is {value}")

        patch.setattr(Trainer, "forward", fail)
        with pytest.raises(VendorError, match="made a mistake") as caught:
            customer.take(4, pending)
    assert caught.value.status == 500
    assert str(value) not in str(caught.value) + caplog.text
    assert "RuntimeError" in caplog.text
    assert info(customer).step == 3
    for step in range(4, customer.steps + 1):
        pending = customer.take(step, pending)
    assert at(customer, routes.FINISH, customer.steps).sha256 == straight


def test_training_that_diverges_is_said_so(transport: LocalTransport) -> None:
    customer = Customer(transport)
    spec = customer.spec(first_model(transport))
    wild = spec.model_copy(
        update={"optimiser": OptimiserSpec(learning_rate=1e6, total_steps=10), "tuning": LoraSpec(lora_alpha=1e6)}
    )
    customer.spec = lambda _: wild  # type: ignore[method-assign, assignment]
    customer.upload()
    with pytest.raises(VendorError, match="diverged") as caught:
        customer.train(customer.start())
    assert caught.value.status == 409
    assert "learning rate" in caught.value.remedy
    assert info(customer).step >= 1


def test_a_full_disk_at_a_checkpoint_loses_nothing(
    transport: LocalTransport, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    customer = Customer(transport)
    straight = customer.run().sha256
    ask(transport, routes.JOB_DELETE, job=customer.job)
    customer.upload()
    job = customer.start()
    with monkeypatch.context() as patch:

        def full(*_: object, **__: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patch.setattr("cutlayer.vendor.checkpoints.write_whole", full)
        customer.train(job, until=5)
    assert "no checkpoint (No space left on device)" in caplog.text
    assert info(customer).checkpoints == (0,)
    assert customer.run().sha256 == straight


def test_a_damaged_log_is_said_and_rolled_back(open_vendor: Open, data_dir: Path) -> None:
    customer = Customer(open_vendor())
    customer.upload()
    customer.train(customer.start(), until=11)
    customer.transport.close()
    [*_, newest] = sorted((job_folder(data_dir, customer) / "log").iterdir())
    content = bytearray(newest.read_bytes())
    content[60] ^= 255
    newest.write_bytes(content)
    (job_folder(data_dir, customer) / "checkpoints/recent.safetensors").unlink()
    customer.transport = open_vendor()
    with pytest.raises(VendorError, match="damaged") as caught:
        ask(customer.transport, routes.STEP_GET, job=customer.job, step=11)
    assert caught.value.status == 409
    assert "[0, 4, 8]" in caught.value.remedy
    customer.train(at(customer, routes.ROLLBACK, 8))
    assert info(customer).step == customer.steps


def test_a_damaged_checkpoint_is_made_up_for_by_the_one_before(open_vendor: Open, data_dir: Path) -> None:
    customer = Customer(open_vendor())
    straight = customer.run().sha256
    ask(customer.transport, routes.JOB_DELETE, job=customer.job)
    customer.upload()
    customer.train(customer.start(), until=11)
    customer.transport.close()
    folder = job_folder(data_dir, customer) / "checkpoints"
    (folder / "recent.safetensors").unlink()
    newest = folder / "0000000008.safetensors"
    newest.write_bytes(newest.read_bytes()[:-10])
    customer.transport = open_vendor()
    assert info(customer).step == 11
    assert customer.run().sha256 == straight


def test_a_job_keeps_the_threads_it_started_with(
    open_vendor: Open, data_dir: Path, change_settings: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    customer = Customer(open_vendor())
    customer.upload()
    assert customer.start().threads == 1
    customer.transport.close()
    change_settings(data_dir, threads=2)
    seen = []
    forward = Trainer.forward

    def watched(self: Trainer, payload: Any) -> Tensor:
        seen.append(torch.get_num_threads())
        return forward(self, payload)

    monkeypatch.setattr(Trainer, "forward", watched)
    customer.transport = open_vendor()
    customer.take(1, None)
    other = Customer(customer.transport, job="4" * 32)
    other.upload()
    assert other.start().threads == 2
    other.take(1, None)
    assert seen == [1, 2]


# ---------------------------------------------------------------- planted faults


def test_an_adapter_that_gets_no_gradient_is_noticed(
    transport: LocalTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(self: Trainer, *_: Any) -> Tensor:
        self.step += 1
        bias = next(parameter for name, parameter in self._trained.items() if name.endswith("bias"))
        self._output = bias.expand(BATCH, 3) * 1.0
        return self._output.detach()

    monkeypatch.setattr(Trainer, "forward", cut_off)
    customer = Customer(transport)
    customer.upload()
    customer.start()
    with pytest.raises(VendorError, match=r"Method lora does not train this bert model: \d+ of its tensors"):
        customer.take(2, customer.take(1, None))
    assert info(customer).step == 1


def test_an_optimiser_that_moves_nothing_is_noticed(transport: LocalTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    def idle(self: Optimiser) -> None:
        self.steps += 1

    monkeypatch.setattr(Optimiser, "step", idle)
    customer = Customer(transport)
    customer.upload()
    customer.start()
    pending = customer.take(1, None)
    pending = customer.take(2, pending)  # the warm-up's first rate is zero
    with pytest.raises(VendorError, match="made a mistake"):
        customer.take(3, pending)


def test_an_unlogged_step_would_be_noticed(open_vendor: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a log that forgets frames gives a gap on resume, never a silently different run."""
    append = FrameLog.append
    monkeypatch.setattr(FrameLog, "append", lambda self, entry: None if entry.step == 2 else append(self, entry))
    monkeypatch.setattr("cutlayer.vendor.job.LiveJob.leave", lambda self: self.close())
    customer = Customer(open_vendor())
    customer.upload()
    customer.train(customer.start(), until=3)
    customer.transport.close()
    customer.transport = open_vendor()
    with pytest.raises(VendorError, match="damaged"):
        info(customer)


@pytest.mark.parametrize("fault", ["unseeded dropout", "forgotten moments"])
def test_a_resume_that_differs_would_be_noticed(open_vendor: Open, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """Planted: what the equality of hashes after a resume rests on, taken away."""
    customer = Customer(open_vendor())
    straight = customer.run().sha256
    ask(customer.transport, routes.JOB_DELETE, job=customer.job)
    customer.upload()
    customer.train(customer.start(), until=9)
    customer.transport.close()
    if fault == "unseeded dropout":
        monkeypatch.setattr("cutlayer.vendor.trainer.seed_dropout", lambda *_: torch.seed())
    else:
        load = Optimiser.load
        monkeypatch.setattr(Optimiser, "load", lambda self, state: load(self, {"steps": state["steps"]}))
    customer.transport = open_vendor()
    assert customer.run().sha256 != straight


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("change", "status", "match"),
    [
        ({"model": "large"}, 404, "no model large"),
        ({"fingerprint": "0" * 64}, 409, "fingerprint of tiny is"),
        ({"cut": Cut(bottom=3), "form": Form.ROWS}, 422, "down to depth 2"),
        ({"form": Form.ROWS}, 422, "at cut text"),
        ({"record_sets": ()}, 422, "must be empty with a trainable bottom"),
        ({"segments": 2}, 422, "made for another"),
        ({"wire_type": WireType.BF16}, 422, "made for another"),
        ({"trainable_bottom": True}, 422, "needs a bottom"),
        (
            {"optimiser": OptimiserSpec(learning_rate=1e7, total_steps=4)},
            422,
            r"learning_rate = 10000000.0: must be at most 1e\+06",
        ),
        (
            {"optimiser": OptimiserSpec(weight_decay=1e7, total_steps=4)},
            422,
            r"weight_decay = 10000000.0: must be at most 1e\+06",
        ),
        (
            {"tuning": PromptSpec(prompt_length=60), "largest_steps": (StepSize(texts=1, positions=10),)},
            422,
            "60 virtual positions'?: leave no room for texts of 10",
        ),
        ({"tuning": LoraSpec(lora_alpha=1e7)}, 422, r"tuning.lora_alpha = 10000000.0: must be at most 1e\+06"),
        (
            {"optimiser": OptimiserSpec(learning_rate=1e-60, total_steps=4)},
            422,
            "learning_rate = 1e-60: must be at least 1e-12",
        ),
    ],
)
def test_specs_that_are_refused(transport: LocalTransport, change: dict[str, Any], status: int, match: str) -> None:
    customer = Customer(transport)
    customer.upload()
    spec = customer.spec(first_model(transport)).model_copy(update=change)
    with pytest.raises(VendorError, match=match) as caught:
        ask(transport, routes.JOB_PUT, spec, job=customer.job)
    assert caught.value.status == status
    assert caught.value.remedy


@pytest.mark.parametrize("tuning", [PromptSpec(prompt_length=60), PrefixSpec(prefix_length=60)])
def test_texts_that_do_not_fit_behind_virtual_positions_are_refused(
    transport: LocalTransport, tuning: MethodSpec
) -> None:
    """Records were checked when no job was known; the job's own step finds that they are too long for it."""
    customer = Customer(transport)
    spec = customer.spec(first_model(transport)).model_copy(update={"tuning": tuning})
    customer.spec = lambda _: spec  # type: ignore[method-assign, assignment]
    customer.upload()
    customer.start()
    with pytest.raises(VendorError, match=r"positions behind 60 virtual ones; tiny has 64") as caught:
        customer.take(1, None)
    assert caught.value.status == 422
    assert info(customer).step == 0


@pytest.mark.parametrize("name", ["learning_rate", "weight_decay", "lora_alpha"])
def test_numbers_that_overflow_are_refused_by_name(transport: LocalTransport, name: str) -> None:
    """`1e999` is good JSON and an infinite float, which our own messages cannot hold."""
    customer = Customer(transport)
    spec = customer.spec(first_model(transport)).model_dump_json()
    changed, count = re.subn(rf'"{name}":[^,}}]+', f'"{name}":1e999', spec)
    assert count == 1
    status, problem = raw_put(transport, customer.job, changed)
    assert status == 422
    assert re.search(rf"\.{name} = inf: [^;]*finite", problem)


def raw_put(transport: LocalTransport, job: str, body: str) -> tuple[int, str]:
    fields = [
        (b"authorization", f"Bearer {transport._api_key}".encode()),
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "method": "PUT",
        "path": f"/v1/jobs/{job}",
        "raw_path": b"",
        "query_string": b"",
        "root_path": "",
        "headers": fields,
        "client": ("127.0.0.1", 0),
        "server": ("vendor", 80),
    }
    status, _, content = transport._run(_exchange(transport._app, scope, body.encode()))
    return status, content.decode()


def test_a_job_is_put_once(transport: LocalTransport) -> None:
    customer = Customer(transport)
    customer.upload()
    first = customer.start()
    assert customer.start() == first
    customer.take(1, None)
    assert customer.start().step == 1
    customer.seed = 9
    with pytest.raises(VendorError, match="another spec") as caught:
        customer.start()
    assert caught.value.status == 409


def unsealed(customer: Customer) -> None:
    """The record set, with one of its shards."""
    model = first_model(customer.transport)
    spec = RecordSetSpec(model=model.name, cut=customer.cut, form=customer.form, segments=1, wire_type=WireType.FP32)
    ask(customer.transport, routes.RECORD_SET_PUT, spec, record_set=customer.job)
    shard = customer.shards(model)[0]
    customer.transport.send(Frame(routes.SHARD_PUT, {"record_set": customer.job, "shard": 0}, None, shard))


@pytest.mark.parametrize("restart", [False, True])
def test_a_job_is_put_before_its_records(open_vendor: Open, data_dir: Path, restart: bool) -> None:
    """It waits as one that was just started, is touched in vain, and ends as one put after them."""
    customer = Customer(open_vendor())

    def reopen() -> None:
        if restart:
            customer.transport.close()
            customer.transport = open_vendor()

    straight = customer.run().sha256
    ask(customer.transport, routes.JOB_DELETE, job=customer.job)
    ask(customer.transport, routes.RECORD_SET_DELETE, record_set=customer.job)
    waiting = customer.start()
    for status, refusal in ((404, "no record set"), (409, "not sealed")):
        if status == 409:
            unsealed(customer)
        reopen()
        touches: list[Callable[[], object]] = [
            lambda: customer.take(1, None),
            lambda: customer.send_gradient(1, torch.zeros(BATCH, 3)),
            lambda: ask(customer.transport, routes.STEP_GET, job=customer.job, step=1),
            lambda: customer.transport.send(
                Frame(routes.JOB_INFER, {"job": customer.job}, None, {"records": torch.zeros(1, dtype=torch.uint8)})
            ),
            lambda: at(customer, routes.SNAPSHOT, 0),
            lambda: at(customer, routes.ROLLBACK, 0),
            lambda: at(customer, routes.FINISH, 0),
        ]
        for touch in touches:
            with pytest.raises(VendorError, match=refusal) as caught:
                touch()
            assert caught.value.status == status
            assert caught.value.remedy
        assert customer.start() == info(customer) == waiting
        assert not job_folder(data_dir, customer).exists()
    with pytest.raises(VendorError, match="uses record set"):
        ask(customer.transport, routes.RECORD_SET_DELETE, record_set=customer.job)
    reopen()
    customer.upload()
    assert info(customer) == waiting, "as a job that was just started"
    assert customer.run().sha256 == straight


@pytest.mark.parametrize(
    ("limits", "change", "match"),
    [
        ({}, {"fingerprint": "0" * 64}, "fingerprint of tiny is"),
        ({}, {"cut": Cut(bottom=3), "form": Form.ROWS}, "down to depth 2"),
        ({}, {"num_labels": 4097}, "num_labels = 4097; this vendor takes 4096"),
        ({"max_adapter_parameters": 1000}, {}, "Method lora, .* trains"),
        ({"jobs_per_tenant": 0}, {}, "0 unfinished jobs already"),
        ({"stored_bytes_per_tenant": 1000}, {}, "of 1000 used"),
    ],
)
def test_a_job_is_refused_before_its_records_are_released(
    open_vendor: Open,
    data_dir: Path,
    change_settings: Callable[..., None],
    limits: dict[str, int],
    change: dict[str, Any],
    match: str,
) -> None:
    change_settings(data_dir, limits=limits)
    customer = Customer(open_vendor())
    spec = customer.spec(first_model(customer.transport)).model_copy(update=change)
    with pytest.raises(VendorError, match=match):
        ask(customer.transport, routes.JOB_PUT, spec, job=customer.job)
    with pytest.raises(VendorError, match="no job"):
        info(customer)


def test_jobs_that_wait_for_their_records_count(
    open_vendor: Open, data_dir: Path, change_settings: Callable[..., None]
) -> None:
    change_settings(data_dir, limits={"jobs_per_tenant": 1})
    customer = Customer(open_vendor())
    customer.start()
    with pytest.raises(VendorError, match="1 unfinished jobs already"):
        Customer(customer.transport, job="5" * 32).start()
    customer.run()


def test_a_job_that_waits_for_its_records_is_deleted(transport: LocalTransport) -> None:
    customer = Customer(transport)
    customer.start()
    ask(transport, routes.JOB_DELETE, job=customer.job)
    with pytest.raises(VendorError, match="no job"):
        info(customer)
    customer.seed = 9
    assert customer.start().spec.seed == 9


def test_a_job_that_waits_for_its_records_is_its_spec(open_vendor: Open, data_dir: Path, tiny_model: Path) -> None:
    customer = Customer(open_vendor())
    customer.start()
    customer.seed = 9
    with pytest.raises(VendorError, match="another spec"):
        customer.start()
    customer.seed = 7
    old = customer.spec(first_model(customer.transport))
    customer.transport.close()
    model = BertForSequenceClassification.from_pretrained(tiny_model)
    with torch.no_grad():
        model.bert.encoder.layer[0].output.dense.bias += 1
    moved = Path(shutil.copytree(tiny_model, data_dir / "model"))
    model.save_pretrained(moved)
    vendor.init(data_dir, models=[f"tiny={moved}"])
    customer.transport = open_vendor()
    with pytest.raises(VendorError, match="fingerprint of tiny is"):
        ask(customer.transport, routes.JOB_PUT, old, job=customer.job)


@pytest.mark.parametrize("sealed", [False, True])
def test_a_job_is_refused_whose_records_are_there_and_do_not_fit(transport: LocalTransport, sealed: bool) -> None:
    """Whether they came before it or after."""
    customer = Customer(transport)
    spec = customer.spec(first_model(transport)).model_copy(update={"segments": 2})
    ask(transport, routes.JOB_PUT, spec, job="e" * 32)
    unsealed(customer)
    if sealed:
        customer.upload()
    for job in ("d" * 32, "e" * 32):
        with pytest.raises(VendorError, match="made for another") as caught:
            ask(transport, routes.JOB_PUT, spec, job=job)
        assert caught.value.status == 422
    with pytest.raises(VendorError, match="no job"):
        ask(transport, routes.JOB_GET, job="d" * 32)


def test_steps_end_with_the_schedule(transport: LocalTransport) -> None:
    customer = Customer(transport, steps=3)
    customer.upload()
    customer.train(customer.start())
    with pytest.raises(VendorError, match="total_steps = 3"):
        customer.take(4, None)


def test_batches_have_a_limit(open_vendor: Open, data_dir: Path, change_settings: Callable[..., None]) -> None:
    change_settings(data_dir, limits={"max_rows_per_step": 60})
    customer = Customer(open_vendor())
    customer.upload()
    customer.start()
    with pytest.raises(VendorError, match="one pass takes 60") as caught:
        customer.take(1, None)
    assert caught.value.status == 422
    customer.transport.close()


@pytest.mark.parametrize("stored", [True, False])
def test_a_batch_of_too_many_texts_is_refused_before_any_is_looked_at(
    transport: LocalTransport, monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    """64 MiB of zeros name 67 million records."""

    def looked(*_: object) -> None:
        raise AssertionError("the texts were looked at")

    customer = Customer(transport)
    customer.upload()
    customer.start()
    monkeypatch.setattr("cutlayer.vendor.records.Records.longest", looked)
    monkeypatch.setattr("cutlayer.vendor.checks.check_lengths", looked)
    zeros = torch.zeros(32769, dtype=torch.uint8)
    tensors = {"records": zeros} if stored else {"ids": torch.zeros(0).to(torch.uint16), "lengths": zeros[:, None]}
    frames = [Frame(routes.JOB_INFER, {"job": customer.job}, None, tensors)]
    if stored:
        frames.append(Frame(routes.STEP, {"job": customer.job, "step": 1}, None, tensors))
    for frame in frames:
        with pytest.raises(VendorError, match="32769 texts take at least one position each") as caught:
            transport.send(frame)
        assert caught.value.status == 422
        assert "fewer texts" in caught.value.remedy


def test_snapshots_have_a_limit(open_vendor: Open, data_dir: Path, change_settings: Callable[..., None]) -> None:
    change_settings(data_dir, limits={"snapshots_per_job": 2})
    customer = Customer(open_vendor(), trainable=True)
    customer.train(customer.start(), until=1)
    for step in (1, 2):
        customer.train(info(customer), until=step)
        at(customer, routes.SNAPSHOT, step)
    customer.train(info(customer), until=5)
    with pytest.raises(VendorError, match="has 2 snapshots already; it may keep 2") as caught:
        at(customer, routes.SNAPSHOT, 5)
    assert_quota(caught.value)
    assert at(customer, routes.SNAPSHOT, 2).snapshots == (1, 2), "one that is there is no new one"
    at(customer, routes.ROLLBACK, 0)
    customer.train(info(customer), until=5)
    assert at(customer, routes.SNAPSHOT, 5).snapshots == (5,)


def test_what_jobs_keep_counts_towards_the_quota_of_stored_bytes(
    open_vendor: Open, data_dir: Path, change_settings: Callable[..., None]
) -> None:
    """A snapshot, an upload and a new job are refused; the job that runs goes on, and is published."""
    transport = open_vendor()
    customer = Customer(transport)
    customer.upload()
    customer.train(customer.start(), until=6)
    at(customer, routes.SNAPSHOT, 6)
    transport.close()
    kept = sum(path.stat().st_size for path in job_folder(data_dir, customer).rglob("*.*") if path.is_file())
    change_settings(data_dir, limits={"stored_bytes_per_tenant": kept})
    transport = customer.transport = open_vendor()
    customer.train(info(customer))
    other = Customer(transport, job="6" * 32)
    for refused in (
        lambda: at(customer, routes.SNAPSHOT, customer.steps),
        other.upload,
        Customer(transport, trainable=True, job="7" * 32).start,
    ):
        with pytest.raises(VendorError, match=rf"\d+ more bytes .* \d+ of {kept} used") as caught:
            refused()
        assert_quota(caught.value)
    assert at(customer, routes.FINISH, 6).step == 6, "an adapter is smaller than what its job kept"
    other.upload()


def test_an_adapter_beyond_the_quota_is_published_where_that_makes_room(
    open_vendor: Open, data_dir: Path, change_settings: Callable[..., None]
) -> None:
    """A job without checkpoints keeps less than the adapter that it ends with; one with a checkpoint keeps more."""
    transport = open_vendor()
    customer = Customer(transport, steps=2)
    customer.upload()
    customer.train(customer.start())
    stored = transport._app.state.vendor.store.stored_bytes("clinic")  # type: ignore[attr-defined]
    transport.close()
    change_settings(data_dir, limits={"stored_bytes_per_tenant": stored})
    (job_folder(data_dir, customer) / "checkpoints/recent.safetensors").unlink()
    transport = customer.transport = open_vendor()
    with pytest.raises(VendorError, match=f"of {stored} used") as caught:
        at(customer, routes.FINISH, 2)
    assert_quota(caught.value)
    transport.close()  # which makes one
    transport = customer.transport = open_vendor()
    assert transport._app.state.vendor.store.stored_bytes("clinic") > 2 * stored  # type: ignore[attr-defined]
    assert at(customer, routes.FINISH, 2).step == 2


def assert_quota(error: VendorError) -> None:
    assert error.status == 403
    assert error.remedy
    assert type(error) is VendorError, "the key is fine: no AuthError"


def test_large_adapters_are_refused_before_they_are_made(
    open_vendor: Open, data_dir: Path, change_settings: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(*_: object, **__: object) -> None:
        raise AssertionError("the adapter was allocated")

    monkeypatch.setattr("cutlayer.vendor.trainer.attach", made)
    transport = open_vendor()
    customer = Customer(transport)
    customer.upload()
    spec = customer.spec(first_model(transport))
    largest = spec.model_copy(
        update={
            "num_labels": 4096,
            "tuning": LoraSpec(r=1024, target_modules="all-linear"),
            "record_sets": (customer.job,),
        }
    )
    change_settings(data_dir, limits={"max_adapter_parameters": 300_000})
    transport.close()
    transport = open_vendor()
    refused = r"r = 1024, .* = all-linear and num_labels = 4096 trains (\d+) parameters.* takes 300000"
    with pytest.raises(VendorError, match=refused) as caught:
        ask(transport, routes.JOB_PUT, largest, job=customer.job)
    assert caught.value.status == 422
    assert "rank" in caught.value.remedy
    assert not job_folder(data_dir, customer).exists()
    with pytest.raises(VendorError, match=r"num_labels = 4097; this vendor takes 4096") as caught:
        ask(transport, routes.JOB_PUT, largest.model_copy(update={"num_labels": 4097}), job=customer.job)
    assert caught.value.status == 422
    transport.close()
    change_settings(data_dir, limits={"max_adapter_parameters": 2**27, "stored_bytes_per_tenant": 10_000})
    transport = open_vendor()
    with pytest.raises(VendorError, match=r"\d{7,} more bytes .* of 10000 used") as caught:
        ask(transport, routes.JOB_PUT, largest, job=customer.job)
    assert_quota(caught.value)


def test_jobs_and_adapters_have_quotas(open_vendor: Open, data_dir: Path, change_settings: Callable[..., None]) -> None:
    change_settings(data_dir, limits={"jobs_per_tenant": 1, "adapters_per_tenant": 1})
    transport = open_vendor()
    first, second = Customer(transport, steps=2), Customer(transport, steps=2, job="5" * 32)
    first.upload()
    second.upload()
    first.start()
    with pytest.raises(VendorError, match="1 unfinished jobs") as caught:
        second.start()
    assert_quota(caught.value)
    first.run()
    second.train(second.start())
    with pytest.raises(VendorError, match="1 adapters") as caught:
        at(second, routes.FINISH, 2)
    assert_quota(caught.value)
    ask(transport, routes.ADAPTER_DELETE, adapter=first.job)
    assert isinstance(at(second, routes.FINISH, 2), AdapterInfo)


def test_boundary_gradients_come_in_the_agreed_type(transport: LocalTransport) -> None:
    customer = Customer(transport, trainable=True)
    spec = customer.spec(first_model(transport)).model_copy(update={"wire_type": WireType.BF16})
    ask(transport, routes.JOB_PUT, spec, job=customer.job)
    rows = pack(some_rows(BATCH, width=WIDTH), vocab_size=VOCAB, wire_type=WireType.BF16)
    reply = transport.send(Frame(routes.STEP, {"job": customer.job, "step": 1}, None, rows))
    gradient = customer.send_gradient(1, customer.loss_gradient(1, reply)).tensors["boundary_gradient"]
    assert gradient.dtype is torch.bfloat16
    assert gradient.shape == rows["rows"].shape
    assert bool(gradient.any())
