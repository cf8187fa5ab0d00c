"""How fast attacks on tokens read: what an audit of a large corpus costs.

Run it with `python -m benchmarks.attacks`. Sentences of SST-2 are released at eta 70 as ids, and at eta 50 as noisy
rows of the embedded model's table. What an attacker fits beforehand is fitted once, whatever the number of texts, and
timed by itself.

Ratios:
    ids_against_10000: Tokens per second of maximum-posterior recovery from ids, fitted, against 10,000.
    rows_against_10000: The same of nearest-neighbour search from rows.
    fitting_in_tokens: What maximum-posterior fits beforehand, in tokens that it reads in as long.
"""

from __future__ import annotations

import time
from collections import deque
from typing import cast

import numpy as np
import torch

from benchmarks.corpora import sentences
from benchmarks.results import write
from cutlayer.attacks import ATTACKS, Knowledge, Noise, PublicText, Transcript, View
from cutlayer.attacks.evaluation.traffic import packed, sent
from cutlayer.attacks.simulate import simulate
from cutlayer.core import Cut, Tokens
from cutlayer.core.timing import interleaved
from cutlayer.data import tokenise
from cutlayer.models import (
    STARTER,
    Bottom,
    Head,
    Template,
    candidate_tokens,
    load_model,
    load_tokenizer,
    max_length,
    split,
)
from cutlayer.privacy import PrivacySpec, TextToText, Vector
from cutlayer.wire.recording import Direction

ROUNDS = 3
TEXTS = 1000
WANTED = 10_000


def view(tokens: Tokens, knowledge: Knowledge, privacy: PrivacySpec, *, rows: torch.dtype | None) -> View:
    """What a vendor sees of some texts, and knows."""
    knowledge = Knowledge(
        cut=Cut(bottom=None) if rows is None else Cut(bottom=0),
        table=knowledge.table,
        candidates=knowledge.candidates,
        template=knowledge.template,
        public=knowledge.public,
        noise=Noise(privacy),
    )
    payload = simulate(tokens, knowledge, rows=rows, rng=np.random.default_rng(0))
    frame = sent(Direction.UP, 1, packed(payload, payload))
    return View(Transcript(lambda: [frame]), knowledge)


def main() -> None:
    """Measures and writes `benchmarks/results/attacks.json`."""
    whole, tokenizer = load_model(STARTER, head=Head.CLASSIFICATION), load_tokenizer(STARTER)
    template = Template.from_tokenizer(tokenizer, max_length=max_length(whole.config))
    table = cast(Bottom, split(whole, Cut(bottom=0)).bottom).table.detach()
    tokens = tokenise(sentences(2 * TEXTS), tokenizer, max_content=template.max_content(1))
    order = torch.arange(len(tokens))
    private = tokens.select(order[:TEXTS])
    known = Knowledge(
        Cut(),
        table=table,
        candidates=candidate_tokens(tokenizer, vocab_size=len(table)),
        template=template,
        public=PublicText(tokens.select(order[TEXTS:]), source="other sentences"),
    )
    ids = view(private, known, TextToText(eta=70.0), rows=None)
    rows = view(private, known, Vector(eta=50.0), rows=torch.bfloat16)

    def read(attack: str, seen: View) -> None:
        deque(ATTACKS[attack](seen), maxlen=0)

    began = time.perf_counter()
    read("maximum-posterior", ids)
    first = time.perf_counter() - began
    seconds = interleaved(
        {
            "maximum-posterior, ids": lambda: read("maximum-posterior", ids),
            "nearest-neighbour, rows": lambda: read("nearest-neighbour", rows),
        },
        rounds=ROUNDS,
    )
    speed = {name: private.total / median for name, median in seconds.items()}
    print(f"{private.total} tokens a round, {ROUNDS} rounds")
    for name, each in speed.items():
        print(f"{name:32} {each:,.0f} tokens/s")
    fitting = first - seconds["maximum-posterior, ids"]
    print(f"{'maximum-posterior, fitted once':32} {fitting:.1f} s")
    write(
        "attacks",
        {
            "ids_against_10000": speed["maximum-posterior, ids"] / WANTED,
            "rows_against_10000": speed["nearest-neighbour, rows"] / WANTED,
            "fitting_in_tokens": fitting * speed["maximum-posterior, ids"],
        },
    )


if __name__ == "__main__":
    main()
