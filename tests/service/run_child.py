"""A customer's run in a process of its own that may end itself, or the vendor, with SIGKILL.

Usage: `python run_child.py URL KEY HOME SETTINGS`, SETTINGS being JSON: `finetune`'s keywords, and
`die` = [stage, done, pids] to kill those processes (0 is this one) when that point is reached. With
`language` = {…}, settings of training, it tunes a language model.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import signal
import sys
from pathlib import Path
from typing import Any

from cutlayer.customer import Client
from tests.promises.runs import LANGUAGE, TRAINING, corpus
from tests.settings import specs


class Executioner:
    """Progress that ends processes at one point of a run."""

    def __init__(self, stage: str, done: int, pids: list[int]) -> None:
        self._stage, self._done, self._pids = stage, done, pids

    def update(self, stage: str, done: int, total: int, note: str = "") -> None:
        """Kills when the point is reached."""
        if stage.startswith(self._stage) and done >= self._done:
            doomed, self._pids = sorted(self._pids, reverse=True), []
            for pid in doomed:  # itself, 0, last
                os.kill(pid or os.getpid(), signal.SIGKILL)


def main() -> None:
    """Runs to the end, or to the point of death."""
    url, key, home, settings = sys.argv[1:]
    keywords = json.loads(settings)
    die = keywords.pop("die")
    client = Client(url, key, home=Path(home), device="cpu")
    common: dict[str, Any] = {
        "test": corpus(10, seed=2),
        "seed": 3,
        "out": Path(home) / "run",
        "progress": Executioner(*die) if die else None,
    }
    language = keywords.pop("language", None)
    if language is not None:
        tuned = client.finetune(
            corpus(40, seed=1),
            objective="lm",
            unsafe_noise_seed=9,  # two customers drop out alike
            **common,
            **specs({"eta": math.inf, **LANGUAGE, **language, **keywords}),
        )
        own = client.home.adapter(tuned.adapter_id) / "trained.safetensors"
        found = {
            "sha256": tuned.adapter_sha256,
            "own": hashlib.sha256(own.read_bytes()).hexdigest() if own.exists() else "",
            "perplexity": tuned.perplexity,
            "dev": tuned.dev,
            "answers": None if (read := tuned.token_recovery_from_answers) is None else [read.value, read.n],
        }
    else:
        result = client.finetune(
            corpus(40, seed=1), training=TRAINING, unsafe_noise_seed=9, **common, **specs({"eta": 6.0, **keywords})
        )
        charged = sum(release.charged for release in client.ledger.releases())
        found = {"sha256": result.adapter_sha256, "charged": charged, "ua": result.ua, "ep": result.ep}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
