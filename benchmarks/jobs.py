"""What a second process brings `privatize`.

Run it with `python -m benchmarks.jobs`. Sentences of SST-2 are drawn at eta 80 with the embedded model, as `cutlayer
privatize` draws them: in this process, which uses all cores for the search alone, and in two processes with half of the
cores each, which begin with starting both and loading the model in each.

Ratios:
    jobs2_vs_jobs1: Texts per second of two processes against one, start included.
    differing: Texts that two processes draw otherwise than one.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.corpora import sentences
from benchmarks.results import write
from cutlayer.core.executors import executor
from cutlayer.core.timing import interleaved
from cutlayer.customer import Client, Draw, PrivatizedText
from cutlayer.privacy import TextToText

TEXTS = 4_000
ROUNDS = 3
JOBS = (1, 2)


def main() -> None:
    """Measures and writes `benchmarks/results/jobs.json`."""
    rows = sentences(TEXTS).texts
    drawn: dict[int, list[PrivatizedText]] = {}
    with tempfile.TemporaryDirectory() as home:
        client = Client(home=Path(home))
        draw = Draw(TextToText(eta=80.0))

        def privatize(jobs: int) -> None:
            drawn[jobs] = list(client.privatize_stream(rows, draw, executor=executor(jobs=jobs)))

        seconds = interleaved({f"{jobs}": lambda jobs=jobs: privatize(jobs) for jobs in JOBS}, rounds=ROUNDS)  # type: ignore[misc]
    for jobs, median in seconds.items():
        print(f"jobs {jobs:27} {len(rows) / median:,.0f} texts/s")
    write(
        "jobs",
        {
            "jobs2_vs_jobs1": seconds["1"] / seconds["2"],
            "differing": sum(one != two for one, two in zip(drawn[1], drawn[2], strict=True)),
        },
    )


if __name__ == "__main__":
    main()
