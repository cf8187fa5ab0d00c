"""Whether a classifier learns where nothing is said of its schedule.

Run it with `python -m benchmarks.defaults --out DIR`; `--help` shows what else there is. It takes hours, keeps
finished cells and goes on, and is no part of `make bench`. On six data sets, with 400 and 2,000 labelled texts, without
noise and at eta 80, it trains by the defaults and by each schedule of a small grid, and compares what they reach on
test. The best of a grid is chosen by the same test texts, so it is told too high: the comparison is against the
defaults.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from cutlayer.cli.output import Output
from cutlayer.core import Spec
from cutlayer.core.executors import executor
from cutlayer.customer import Lora, Objective, Training
from cutlayer.customer.corpora import default_held_out
from cutlayer.customer.defaults import Learner, settle_training
from cutlayer.models import STARTER
from cutlayer.recipes.lab import Lab
from cutlayer.recipes.long_table import Measure
from cutlayer.recipes.options import RecipeConfig, RecipeOptions, Size, data_folder
from cutlayer.recipes.recipe import Recipe
from cutlayer.recipes.study import Part, Results, Scenario
from cutlayer.recipes.tables import Axis, Column, Pivot, eta_text, points, share
from cutlayer.recipes.tasks import Limits, Task
from cutlayer.recipes.training import CentralisedCell, SplitCell

WITHIN = 2.0
"""Points by which the defaults may be below the best of the grid."""


class Scale(Spec):
    """How many texts: labelled ones, of which dev is taken, and test's."""

    texts: tuple[int, ...]
    test: int


class Config(RecipeConfig[Scale]):
    """What is run: data sets, etas, and a grid of schedules by name, beside the defaults.

    `lengths` holds, by the number of texts, what the grid's schedules have in common; each says what it has of its own.
    The grid sets everything that the defaults set, so it stays the same when those change.
    """

    tasks: tuple[Task, ...]
    etas: tuple[float, ...]
    lengths: Mapping[int, Training]
    grid: Mapping[str, Training]


CONFIG = Config(
    title="Defaults of a classifier's training beside a small grid",
    reference="this benchmark",
    tasks=(
        Task(name="sst2", title="SST-2", train="train_sentences", test="dev", dev_share=0.5),
        Task(name="mrpc", title="MRPC", text_columns=("text_a", "text_b"), dev_share=0.5),
        Task(name="ag_news", title="AG News", dev_share=0.5),
        Task(name="tweet_eval_emotion", title="TweetEval emotion", dev_share=0.3),
        Task(name="rotten_tomatoes", title="Rotten Tomatoes", dev_share=0.5),
        Task(name="sms_spam", title="SMS spam", dev_share=0.3),
    ),
    etas=(math.inf, 80.0),
    lengths={
        texts: Training(epochs=epochs, patience=patience, batch_size=32, warmup_steps=0.06)
        for texts, epochs, patience in ((64, 40, 75), (400, 40, 12), (2000, 10, 3))
    },
    grid={
        "3e-4, 5 epochs": Training(learning_rate=3e-4, epochs=5),
        "3e-4": Training(learning_rate=3e-4),
        "1e-3": Training(learning_rate=1e-3),
        "3e-3": Training(learning_rate=3e-3),
    },
    sizes={Size.TINY: Scale(texts=(64,), test=64), Size.FULL: Scale(texts=(400, 2000), test=1000)},
)
DEFAULTS = "defaults"
RECIPE = Recipe("defaults", CONFIG, default_model=STARTER)


@RECIPE.part("schedules")
def beside_a_grid(c: Config, lab: Lab) -> Part:
    """Each schedule on each data set."""
    scale, model = c.at(lab.options.size), lab.model()
    scenarios: list[Scenario] = []
    for task, texts, eta in product(c.tasks, scale.texts, c.etas):
        schedules = {name: c.lengths[texts].model_copy(update=_said(each)) for name, each in c.grid.items()}
        for name, said in ({DEFAULTS: Training()} | schedules).items():
            learner = Learner(texts, model.whole.config.hidden_size)
            dev = default_held_out(texts)
            shared: dict[str, Any] = {
                "task": task,
                "limits": Limits(train=texts - dev, dev=dev, test=scale.test),
                "training": settle_training(said, Objective.CLASSIFICATION, Lora(), learner),
                "model": model.fingerprint,
            }
            cell = CentralisedCell(**shared) if math.isinf(eta) else SplitCell(**shared, eta=eta)
            axes: dict[str, Any] = {"task": task.name, "texts": texts, "eta": eta, "schedule": name}
            scenarios += Scenario.each(lab.options.seeds, cell, **axes)
    titles = {task.name: task.title for task in c.tasks}
    place = [Axis("task", "data set", titles), Axis("texts"), Axis("eta", "eta", eta_text)]
    behind = [
        Column("defaults, %", "UA", {"schedule": DEFAULTS}, share(interval=False)),
        Column("best of the grid, %", "best UA", show=share(interval=False)),
        Column("defaults - best, points", "behind", show=points(1)),
    ]
    return Part(
        "Defaults beside a grid",
        scenarios,
        derived=_behind,
        tables=[
            Pivot("Accuracy on test by schedule, %", place, [Column("", "UA", show=share(interval=False))],
                  across=Axis("schedule")),
            Pivot("The defaults beside the best of the grid", place, behind, notes=[_judged]),
        ],
    )  # fmt: skip


def _said(training: Training) -> dict[str, Any]:
    return training.model_dump(exclude_unset=True)


def _behind(results: Results) -> Iterable[Measure]:
    """At each place, the best accuracy of the grid, and by how much the defaults differ from it."""
    for task, texts, eta in _places(results):
        place: dict[str, Any] = {"task": task, "texts": texts, "eta": eta}
        found = {
            name: results.number("UA", **place, schedule=name)
            for name in results.levels("schedule", **place, metric="UA")
        }
        ours = found.pop(DEFAULTS, None)
        numbers = [each for each in found.values() if each.value is not None]
        if ours is None or ours.value is None or not numbers:
            continue
        best = max(numbers, key=lambda each: each.value or 0.0)
        yield Measure("best UA", best.value, best.se, best.n, axes=place)
        error = math.hypot(ours.se or 0.0, best.se or 0.0)
        yield Measure("behind", ours.value - (best.value or 0.0), error, ours.n, axes=place)


def _places(results: Results) -> Sequence[tuple[str, int, float]]:
    rows = results.rows(metric="UA")
    return list(dict.fromkeys(rows[["task", "texts", "eta"]].itertuples(index=False, name=None)))


def _judged(results: Results) -> Iterable[str]:
    """How often the defaults are as good as they should be."""
    gaps = (100 * results.rows(metric="behind")["value"]).round(6)  # 820 - 840 of 1,000 are two points
    near = int((gaps >= -WITHIN).sum())
    yield f"Within {WITHIN:g} points of the best of the grid, or above it: {near} of {len(gaps)} places."
    yield "The grid's best is the best of several on the same test texts, and the standard errors do not know that."


def main() -> None:
    """Runs what is not finished and writes the report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--out", type=Path, required=True, help="Folder of finished cells and the report.")
    parser.add_argument("--data", type=Path, help="Folder of public data sets; CUTLAYER_DATA by default.")
    parser.add_argument("--size", default="full", choices=[size.value for size in CONFIG.sizes])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="Worker processes.")
    given = parser.parse_args()
    options = RecipeOptions(
        size=Size(given.size), seeds=given.seeds, model=STARTER, data=data_folder(given.data), out=given.out
    )
    output = Output(as_json=False)
    with output.progress() as progress:
        report = RECIPE.run(options, progress, executor(jobs=given.jobs))
    for table in report.tables:
        output.show(table.markdown())


if __name__ == "__main__":
    main()
