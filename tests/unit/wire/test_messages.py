"""What a message may say: bounds hold on the wire too, whoever sends it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from cutlayer.wire.messages import LoraSpec, Message, OptimiserSpec


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (LoraSpec, "rank", "0"),
        (LoraSpec, "rank", "1025"),
        (LoraSpec, "rank", "1e400"),
        (LoraSpec, "alpha", "0"),
        (LoraSpec, "alpha", "Infinity"),
        (LoraSpec, "dropout", "1"),
        (LoraSpec, "dropout", "NaN"),
        (OptimiserSpec, "learning_rate", "0"),
        (OptimiserSpec, "learning_rate", "-0.001"),
        (OptimiserSpec, "learning_rate", "NaN"),
        (OptimiserSpec, "learning_rate", "Infinity"),
        (OptimiserSpec, "weight_decay", "-1"),
        (OptimiserSpec, "weight_decay", "Infinity"),
        (OptimiserSpec, "total_steps", "0"),
    ],
)
def test_numbers_out_of_bounds_are_refused_by_name(kind: type[Message], field: str, value: str) -> None:
    good: dict[str, Any] = {"total_steps": 3} if kind is OptimiserSpec else {}
    kind.model_validate_json(json.dumps(good))
    text = json.dumps({**good, field: "VALUE"}).replace('"VALUE"', value)
    with pytest.raises(ValidationError) as refused:
        kind.model_validate_json(text)
    assert {fault["loc"] for fault in refused.value.errors()} == {(field,)}
