"""What the version before settings were declared anew wrote of runs, as it stood in its files."""

from __future__ import annotations

import math
from typing import Any

import pytest

from cutlayer.core import ConfigError, Cut
from cutlayer.customer import FullTuning, Lora, RunSpec, TrainBottom
from cutlayer.customer.earlier import result
from cutlayer.privacy import NoPrivacy, TextToText

TRAIN: dict[str, Any] = {
    "method": "lora", "epochs": 3, "patience": 2, "batch_size": 8, "learning_rate": 0.002, "weight_decay": 0.01,
    "rank": 4, "alpha": 8.0, "lora_dropout": 0.0, "targets": "all-linear", "dropout": True, "dev_share": 0.2,
    "max_length": None, "max_target_length": None, "packing": False, "accumulation": 2, "clip_norm": 0.5,
    "gradient_checkpointing": False, "group_by_length": True, "precision": "fp32", "checkpoint_every": 3,
}  # fmt: skip
RUN: dict[str, Any] = {
    "privacy": {"mechanism": "text-to-text", "eta": 6.0, "place": "tokens", "cti": None}, "train": TRAIN,
    "objective": "classification", "model": "enc", "bottom": 1, "tail": None, "target": 0, "train_bottom": "redraw",
    "wire_type": "bf16", "budget": 100.0, "label_epsilon": None, "label_budget": None, "public_iterations": 0,
    "seed": 3, "unsafe_noise_seed": None,
}  # fmt: skip


def test_a_run_is_read_under_todays_names() -> None:
    spec = RunSpec.model_validate(RUN)
    assert spec.privacy == TextToText(eta=6)
    assert spec.cut == Cut(bottom=1)
    assert spec.tuning == Lora(r=4, lora_alpha=8, target_modules="all-linear", train_bottom=TrainBottom.RESAMPLE)
    assert (spec.privacy_budget, spec.seed) == (100, 3)
    training = spec.training
    assert (training.gradient_accumulation_steps, training.max_grad_norm, training.save_steps) == (2, 0.5, 3)
    assert RunSpec.model_validate_json(spec.model_dump_json()) == spec


def test_of_a_method_and_a_mechanism_only_what_is_theirs_is_kept() -> None:
    bare = {"mechanism": "none", "eta": "Infinity", "place": "tokens", "cti": None}
    full = RUN | {"privacy": bare, "train": TRAIN | {"method": "full"}, "train_bottom": "memoised"}
    spec = RunSpec.model_validate(full)
    assert spec.privacy == NoPrivacy()
    assert spec.privacy.eta == math.inf
    assert spec.tuning == FullTuning(train_bottom=TrainBottom.CACHED)


def test_what_no_version_wrote_is_refused() -> None:
    with pytest.raises(ConfigError, match="warmth"):
        RunSpec(**RUN | {"train": TRAIN | {"warmth": 1}})


def test_results_are_read_under_todays_names() -> None:
    found = result({"read_at_end": None, "read_at_end_note": "why", "read_without_blocks": None, "perplexity": 2.0})
    assert found == {
        "token_recovery_last_steps": None,
        "token_recovery_last_steps_note": "why",
        "token_recovery_without_blocks": None,
        "perplexity": 2.0,
    }
