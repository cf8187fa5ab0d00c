"""An embedded corpus of 2,000 support messages for demos and tests.

The messages are synthetic: `training.sample_corpus` made them from templates, nobody wrote
them, and every row says so in its column `origin`. Columns:

- `text`: the message;
- `label`: what it is about, one of `account`, `billing`, `delivery`, `technical`;
- `age_group`: a secret attribute of the made-up writer, `18-29`, `30-59` or `60+`, which shows in the
  wording but is never stated;
- `entities`: JSON, a list of `[start, end, type]` in characters, end excluded, with type `person`,
  `city` or `product`;
- `origin`: always `synthetic`.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Literal


def sample_path(split: Literal["train", "test"]) -> Path:
    """The corpus's file for a split: 1,600 messages to train on, 400 to test on."""
    return Path(str(files(__name__) / f"{split}.csv.gz"))
