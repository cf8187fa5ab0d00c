"""What protocol 2 stored of jobs and adapters, as it stood in the database."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlalchemy import select

from cutlayer.core.tuning import FullSpec, LoraSpec, MethodSpec
from cutlayer.vendor.database import Adapter, Job
from cutlayer.vendor.earlier import read_job_info, read_job_spec
from cutlayer.wire.messages import JobInfo, JobState
from cutlayer.wire.transports import LocalTransport
from tests.service.customer import Customer, first_model
from tests.unit.vendor.test_jobs import info, vendor_of

STORED: dict[str, Any] = {
    "model": "tiny", "fingerprint": "0" * 64, "cut": {"bottom": 1, "tail": None, "target": 0}, "form": "rows",
    "wire_type": "bf16", "segments": 1, "record_sets": ["a" * 32], "num_labels": 3, "trainable_bottom": False,
    "lora": {"rank": 4, "alpha": 8.0, "dropout": 0.1, "targets": "all-linear"}, "shared_weights": False,
    "optimiser": {
        "learning_rate": 0.002, "weight_decay": 0.01, "warmup_steps": 0, "total_steps": 10, "accumulation": 1,
        "clip_norm": None,
    },
    "dropout": True, "gradient_checkpointing": False, "precision": "fp32", "seed": 7, "checkpoint_every": 50,
    "largest_steps": [],
}  # fmt: skip


@pytest.mark.parametrize(
    ("lora", "tuning"),
    [
        (STORED["lora"], LoraSpec(r=4, lora_alpha=8, lora_dropout=0.1, target_modules="all-linear")),
        ({}, LoraSpec()),
        (None, FullSpec()),
    ],
)
def test_a_job_is_read_under_todays_names(lora: dict[str, Any] | None, tuning: MethodSpec) -> None:
    spec = read_job_spec(json.dumps(STORED | {"lora": lora}))
    assert spec.tuning == tuning
    assert (spec.optimiser.kind, spec.optimiser.schedule) == ("adamw", "linear")
    assert read_job_spec(spec.model_dump_json()) == spec
    stands: Any = {"step": 3, "gradient_applied": True, "checkpoints": (), "snapshots": (3,), "threads": 1}
    final = JobInfo(job="b" * 32, spec=spec, state=JobState.FINISHED, **stands)
    old = json.loads(final.model_dump_json()) | {"spec": STORED | {"lora": lora}}
    assert read_job_info(json.dumps(old)) == final


def test_a_job_of_an_earlier_version_goes_on_and_its_adapter_answers(transport: LocalTransport) -> None:
    """Both as they would be found after an update of the vendor."""
    customer = Customer(transport)
    customer.upload()
    customer.train(customer.start(), until=5)
    found = vendor_of(transport)
    with found.database.session() as session:
        (row,) = session.scalars(select(Job)).all()
        row.spec = json.dumps(_as_before(json.loads(row.spec)))
    found.jobs.close()
    published = customer.run()  # the same spec, put again by a customer of today
    straight = Customer(transport, job="0" * 31 + "2").run()
    assert published.sha256 == straight.sha256
    with found.database.session() as session:
        adapter = session.get(Adapter, ("clinic", published.adapter))
        stored = json.loads(adapter.info)
        assert stored.pop("virtual_positions") == 0
        adapter.info = json.dumps(stored)
        row = session.get(Job, ("clinic", customer.job))
        final = json.loads(row.final)
        row.final = json.dumps(final | {"spec": _as_before(final["spec"])})
    assert info(customer).spec.tuning == customer.spec(first_model(transport)).tuning
    assert found.adapters.info("clinic", published.adapter) == published


def _as_before(spec: dict[str, Any]) -> dict[str, Any]:
    """A spec as protocol 2 had it."""
    tuning = spec.pop("tuning")
    names = {"r": "rank", "lora_alpha": "alpha", "lora_dropout": "dropout", "target_modules": "targets"}
    lora = {before: tuning[now] for now, before in names.items()}
    optimiser = {name: value for name, value in spec["optimiser"].items() if name not in ("kind", "schedule")}
    return spec | {"lora": lora, "optimiser": optimiser}
