"""What earlier versions wrote of a job, read under today's names."""

from __future__ import annotations

import json
from typing import Any, Final

from cutlayer.wire.messages import JobInfo, JobSpec

_LORA: Final = {"rank": "r", "alpha": "lora_alpha", "dropout": "lora_dropout", "targets": "target_modules"}
"""LoRA's settings in protocol 2, and today's."""


def read_job_spec(text: str) -> JobSpec:
    """A stored job's spec.

    Args:
        text: JSON, as this version or an earlier one wrote it.
    """
    return JobSpec.model_validate_json(json.dumps(_renamed(json.loads(text))))


def read_job_info(text: str) -> JobInfo:
    """A finished job, as `read_job_spec` reads its spec."""
    data = json.loads(text)
    return JobInfo.model_validate_json(json.dumps({**data, "spec": _renamed(data["spec"])}))


def _renamed(spec: dict[str, Any]) -> dict[str, Any]:
    """A job's spec with its method tagged; until protocol 2 it was LoRA, or null for the top's own weights."""
    if "lora" not in spec:
        return spec
    rest = {name: value for name, value in spec.items() if name != "lora"}
    lora = spec["lora"]
    tuning = {"method": "full"} if lora is None else {"method": "lora"} | {_LORA[name]: lora[name] for name in lora}
    return rest | {"tuning": tuning}
