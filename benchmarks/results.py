"""How benchmarks report: ratios measured in one run, with the machine and the versions they belong to."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

FOLDER = Path(__file__).parent / "results"
PACKAGES = ("cutlayer", "faiss-cpu", "numpy", "peft", "randomgen", "torch", "transformers")


def write(name: str, ratios: Mapping[str, float | Mapping[str, float]]) -> Path:
    """Prints the ratios and writes `benchmarks/results/<name>.json`.

    Args:
        name: The benchmark.
        ratios: What was measured, by the names that the documentation uses; of several shapes one for each.
    """
    told = {key: value if isinstance(value, float | int) else dict(value) for key, value in ratios.items()}
    for key, value in told.items():
        for shape, ratio in value.items() if isinstance(value, dict) else [("", value)]:
            print(f"{f'{key} {shape}'.strip():32} {ratio:.4g}")
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{name}.json"
    result = {"name": name, "ratios": told, "machine": machine(), "versions": versions()}
    path.write_text(json.dumps(result, indent=2) + "\n")
    return path


def machine() -> dict[str, object]:
    """What the figures were measured on, without naming the computer."""
    return {
        "system": platform.system(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "texts": "public data sets" if os.environ.get("CUTLAYER_DATA") else "embedded sample",
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
    }


def versions() -> dict[str, str]:
    """Versions of everything that can move the figures."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
