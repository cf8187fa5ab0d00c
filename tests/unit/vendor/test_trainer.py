"""What a job takes is known before it is made."""

from __future__ import annotations

from typing import Literal

import pytest

from cutlayer.core import Cut
from cutlayer.models import Head, adapter_state, attach_lora, split
from cutlayer.vendor.trainer import adapter_parameters
from cutlayer.wire import Form
from cutlayer.wire.messages import JobSpec, LoraSpec, OptimiserSpec
from tests.equivalence.zoo import CONFIGURATIONS, shared_model

FAMILIES = [name for name in CONFIGURATIONS if not name.startswith("t5")]


@pytest.mark.parametrize("targets", ["query-value", "all-linear"])
@pytest.mark.parametrize("name", FAMILIES)
def test_an_adapter_is_counted_before_it_is_made(name: str, targets: Literal["query-value", "all-linear"]) -> None:
    model = shared_model(name, Head.CLASSIFICATION)
    for cut, rank, labels in ((Cut(bottom=None), 3, 2), (Cut(bottom=1), 1, 7)):
        spec = JobSpec(
            model=name,
            fingerprint="0" * 64,
            cut=cut,
            form=Form.IDS if cut.is_text else Form.ROWS,
            segments=1,
            num_labels=labels,
            lora=LoraSpec(rank=rank, targets=targets),
            optimiser=OptimiserSpec(total_steps=1),
            seed=0,
        )
        top = split(model, cut).top
        counted = adapter_parameters(top, spec)
        made = attach_lora(top, rank=rank, alpha=16, dropout=0, targets=targets, num_labels=labels, seed=0)
        assert counted == sum(tensor.numel() for tensor in adapter_state(made).values())
        assert counted == sum(one.numel() for one in made.parameters() if one.requires_grad)
