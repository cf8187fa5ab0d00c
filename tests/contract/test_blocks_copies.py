"""What holds of students of the vendor's blocks for every decoder: controls, bounds, and what they are granted."""

from __future__ import annotations

import inspect
import math

import pytest
import torch

from cutlayer.attacks import DistillationSpec, Exchanged, control_students, distil
from cutlayer.models import Part
from tests.unit.attacks.extraction.test_middle_distillation import exchanged

SPEC = DistillationSpec(passes=1)
TAUGHT, UNSEEN = range(120), range(120, 160)


@pytest.mark.parametrize("name", ["gpt2", "opt-projected", "llama-tied", "mistral", "qwen2-mixed", "glm"])
@pytest.mark.parametrize(("bottom", "tail"), [(0, 0), (1, 2)])
def test_students_of_every_family_pass_controls_and_say_numbers(name, bottom, tail):
    seen = exchanged(name, bottom=bottom, tail=tail, texts=160)
    controls = control_students(seen, TAUGHT, UNSEEN, spec=SPEC, generator=torch.Generator().manual_seed(0))
    assert [control.passed for control in controls] == [True] * 3, list(map(str, controls))
    found = distil(seen, TAUGHT, UNSEEN, spec=SPEC, generator=torch.Generator().manual_seed(0))
    assert found.explained <= 1
    for value, (low, high) in (
        (found.explained, found.explained_interval),
        (found.agreement, found.agreement_interval),
        (found.from_answers, found.from_answers_interval),
        (found.from_text, found.from_text_interval),
    ):
        assert math.isfinite(value)
        assert low <= value <= high
        assert low < high


def test_a_customer_is_granted_no_weight_of_the_vendors():
    """A student is made of rows, tokens, and the customer's own tail."""
    held = {name: str(kind) for name, kind in inspect.get_annotations(Exchanged).items()}
    assert held == {"sent": "Rows", "returned": "Rows", "tokens": "Ragged", "tail": "Tail", "template": "Template"}
    assert set(inspect.signature(distil).parameters) == {"exchanged", "taught", "unseen", "spec", "generator"}
    seen = exchanged(texts=4)
    assert isinstance(seen.tail, Part)
    assert seen.tail.has_head
