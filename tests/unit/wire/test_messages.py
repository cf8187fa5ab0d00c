"""What a message may say: bounds hold on the wire too, whoever sends it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from cutlayer.core import Cut
from cutlayer.core.tuning import LoraSpec
from cutlayer.wire.messages import (
    MAX_CONTROL_BYTES,
    MAX_PLAIN_INDICES,
    Form,
    JobSpec,
    OptimiserSpec,
    ReconstructionSpec,
    SealRequest,
    SnapshotRequest,
)

JOB = JobSpec(
    model="m" * 128,
    fingerprint="0" * 64,
    cut=Cut(),
    form=Form.ROWS,
    segments=1,
    num_labels=2,
    optimiser=OptimiserSpec(total_steps=2**53, warmup_steps=2**53),
    checkpoint_every=2**53,
    seed=2**63 - 1,
)
GOOD: dict[type[BaseModel], dict[str, Any]] = {
    LoraSpec: {},
    OptimiserSpec: {"total_steps": 3},
    SnapshotRequest: {"step": 3},
    SealRequest: {"shards": 3, "records": 3},
    JobSpec: JOB.model_dump(mode="json"),
}


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (LoraSpec, "r", "0"),
        (LoraSpec, "r", "1025"),
        (LoraSpec, "r", "1e400"),
        (LoraSpec, "lora_alpha", "0"),
        (LoraSpec, "lora_alpha", "Infinity"),
        (LoraSpec, "lora_dropout", "1"),
        (LoraSpec, "lora_dropout", "NaN"),
        (OptimiserSpec, "learning_rate", "0"),
        (OptimiserSpec, "learning_rate", "-0.001"),
        (OptimiserSpec, "learning_rate", "NaN"),
        (OptimiserSpec, "learning_rate", "Infinity"),
        (OptimiserSpec, "weight_decay", "-1"),
        (OptimiserSpec, "weight_decay", "Infinity"),
        (OptimiserSpec, "total_steps", "0"),
        (OptimiserSpec, "total_steps", "9007199254740993"),
        (OptimiserSpec, "warmup_steps", "9007199254740993"),
        (OptimiserSpec, "warmup_steps", "1" + "0" * 400),
        (SnapshotRequest, "step", "9007199254740993"),
        (SealRequest, "shards", "9007199254740993"),
        (SealRequest, "records", "9007199254740993"),
        (JobSpec, "checkpoint_every", "9007199254740993"),
    ],
)
def test_numbers_out_of_bounds_are_refused_by_name(kind: type[BaseModel], field: str, value: str) -> None:
    good = GOOD[kind]
    kind.model_validate_json(json.dumps(good))
    text = json.dumps({**good, field: "VALUE"}).replace('"VALUE"', value)
    with pytest.raises(ValidationError) as refused:
        kind.model_validate_json(text)
    assert {fault["loc"] for fault in refused.value.errors()} == {(field,)}


def sets(*numbers: int) -> tuple[str, ...]:
    return tuple(f"{number:032x}" for number in numbers)


def test_the_longest_message_of_a_customer_fits() -> None:
    longest = JobSpec.model_validate(JOB.model_dump() | {"record_sets": sets(*range(64))})
    assert 2000 < len(longest.model_dump_json()) < MAX_CONTROL_BYTES / 4
    words = tuple((2**20 - 1,) * (MAX_PLAIN_INDICES // 4) for _ in range(4))
    task = ReconstructionSpec(vocabulary=2**20, width=4096, weight=1e6 / 3, words=words)
    assert len(longest.model_copy(update={"reconstruction": task}).model_dump_json()) < MAX_CONTROL_BYTES * 3 / 4


@pytest.mark.parametrize(
    ("names", "fault"),
    [
        (sets(*range(65)), "at most 64 items"),
        (sets(1) * 25_000, "at most 64 items"),
        (sets(1, 2, 1), "names a set more than once"),
        (("0",) * 50, "should match pattern"),
        ((0,) * 500_000, "should be a valid string"),
    ],
    ids=["65", "25,000 times one", "one twice", "no names", "numbers"],
)
def test_a_job_has_few_record_sets_and_each_once(names: tuple[object, ...], fault: str) -> None:
    with pytest.raises(ValidationError, match=fault) as refused:
        JobSpec.model_validate(JOB.model_dump() | {"record_sets": names})
    assert refused.value.error_count() == 1
