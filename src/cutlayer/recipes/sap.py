"""Recipe `sap`: Table 1, Figure 2 and Table 3 of Split-and-Privatize, at the scale of the model given.

Ref: arXiv:2312.15603. Settings and the paper's figures: `configs/sap.yaml`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import ConfigDict, Field

from cutlayer.core import Deviation, Spec
from cutlayer.customer import Progress, TrainBottom, TrainSpec
from cutlayer.recipes.cells import CellResult, CentralisedCell, Kitchen, SplitCell
from cutlayer.recipes.recipe import RECIPES, Order, Report, Size, read_config
from cutlayer.recipes.tasks import Limits, Task
from cutlayer.reports import Curve, Estimate, Gain, Panel, Table, draw_panels, percent, write_report

Setting = float | int | str | bool | None


class Scale(Spec):
    """What `--size` changes: rows, and settings of training, for all tasks or for one."""

    limits: Limits
    training: Mapping[str, Setting] = {}
    task_training: Mapping[str, Mapping[str, Setting]] = {}


class PaperRows(Spec):
    """A line of Table 1; accuracy in per cent."""

    train: int
    dev: int
    test: int
    accuracy: float


class PaperPoint(Spec):
    """A point of Figure 2 that the text states; in per cent. `cti` is `None` where the text does not say."""

    task: str
    eta: float
    cti: bool | None
    ep: float
    ua_loss: float


class PaperLine(Spec):
    """A line of Table 3, in per cent."""

    ep: tuple[float, ...]
    ua: tuple[float, ...]


class PaperTable3(Spec):
    """Table 3."""

    eta: tuple[float, ...]
    frozen: PaperLine
    redraw: PaperLine


class Paper(Spec):
    """What the paper reports."""

    model: str
    table_1: Mapping[str, PaperRows]
    figure_2: tuple[PaperPoint, ...]
    figure_2_claims: tuple[str, ...]
    cti_helps: Mapping[str, bool]
    table_3: PaperTable3


class SapConfig(Spec):
    """`configs/sap.yaml`; that file says what each field is for."""

    title: str
    reference: str
    tasks: tuple[Task, ...]
    replaced: tuple[float, ...] = Field(min_length=1)
    training: Mapping[str, Setting]
    task_training: Mapping[str, Mapping[str, Setting]]
    table_3: str
    memoised_bottom: int = Field(ge=1)
    sizes: Mapping[Size, Scale]
    paper: Paper
    deviations: tuple[Deviation, ...]

    def task(self, name: str) -> Task:
        """A task by name."""
        return next(task for task in self.tasks if task.name == name)

    def training_of(self, task: Task, size: Size) -> TrainSpec:
        """How a task's cells are trained."""
        scale = self.sizes[size]
        layers = (self.training, self.task_training.get(task.name), scale.training, scale.task_training.get(task.name))
        merged: dict[str, Any] = {}
        for layer in layers:
            merged |= layer or {}
        return TrainSpec.model_validate(merged)


class Grid:
    """Every cell of the paper's experiments for one order, by where it stands in the report."""

    def __init__(self, config: SapConfig, order: Order, kitchen: Kitchen) -> None:
        self.config = config
        self._order = order
        self._model = kitchen.model
        self._limits = config.sizes[order.size].limits
        self.etas = {
            task.name: [
                point.eta
                for point in kitchen.calibrated(
                    task, self._limits, config.replaced, max_tokens=self._training(task).max_length
                )
            ]
            for task in config.tasks
        }

    def _training(self, task: Task) -> TrainSpec:
        return self.config.training_of(task, self._order.size)

    def _base(self, task: Task, seed: int) -> dict[str, Any]:
        return {
            "task": task,
            "limits": self._limits,
            "model": self._model,
            "training": self._training(task),
            "seed": seed,
        }

    def centralised(self, task: Task) -> list[CentralisedCell]:
        """Table 1's accuracy, a cell for each seed."""
        return [CentralisedCell(**self._base(task, seed)) for seed in range(self._order.seeds)]

    def split(self, task: Task, eta: float, **settings: Any) -> list[CentralisedCell]:
        """A point of Figure 2 or Table 3, a cell for each seed."""
        return [SplitCell(**self._base(task, seed), eta=eta, **settings) for seed in range(self._order.seeds)]

    def figure_2(self, task: Task, *, cti: bool) -> list[tuple[float, list[CentralisedCell]]]:
        """A task's curve: the calibrated eta0, then no privacy, which is the same with and without CTI."""
        curve = [(eta, self.split(task, eta, cti=cti)) for eta in self.etas[task.name]]
        return [*curve, (math.inf, self.split(task, math.inf))]

    def table_3(self) -> dict[TrainBottom, list[tuple[float, list[CentralisedCell]]]]:
        """Table 3's lines, and the third: trainable blocks above one memoised release."""
        task = self.config.task(self.config.table_3)
        bottoms = {TrainBottom.FROZEN: 0, TrainBottom.REDRAW: 0, TrainBottom.MEMOISED: self.config.memoised_bottom}
        return {
            how: [(eta, self.split(task, eta, bottom=bottom, train_bottom=how)) for eta in self.etas[task.name]]
            for how, bottom in bottoms.items()
        }

    def __iter__(self) -> Iterator[CentralisedCell]:
        for task in self.config.tasks:
            yield from self.centralised(task)
            for cti in (False, True):
                for _, cells in self.figure_2(task, cti=cti):
                    yield from cells
        for line in self.table_3().values():
            for _, cells in line:
                yield from cells


class Point(Spec):
    """Runs of one setting, over seeds.

    Attributes:
        eta: Privacy parameter (eta0 under CTI).
        ua: Utility accuracy on test.
        ep: Empirical privacy; `None` where the attack does not apply.
        ep_note: What it covers, or why there is none.
        replaced: Share of tokens replaced.
        label_recovery: Share of labels that the vendor read from gradients.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=True, ser_json_inf_nan="strings")

    eta: float
    ua: Estimate
    ep: Estimate | None
    ep_note: str
    replaced: float | None
    label_recovery: float | None

    @classmethod
    def of(cls, eta: float, results: list[CellResult]) -> Point:
        """The mean of a setting's runs."""
        attacked = [result.ep for result in results if result.ep is not None]
        return cls(
            eta=eta,
            ua=Estimate.of([result.ua for result in results]),
            # one run without a number leaves the setting without one
            ep=Estimate.of(attacked) if len(attacked) == len(results) else None,
            ep_note=results[0].ep_note,
            replaced=_mean(result.replaced for result in results),
            label_recovery=_mean(result.label_recovery for result in results),
        )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


class Findings:
    """Finished cells, as the points and lines of the paper's tables."""

    def __init__(self, grid: Grid, results: Mapping[CentralisedCell, CellResult]) -> None:
        self.config = grid.config
        tasks = self.config.tasks
        self.rows = {task.name: results[grid.centralised(task)[0]].rows for task in tasks}
        self.centralised = {
            task.name: Estimate.of([results[cell].ua for cell in grid.centralised(task)]) for task in tasks
        }
        self.curves = {
            (task.name, cti): [
                Point.of(eta, [results[cell] for cell in cells]) for eta, cells in grid.figure_2(task, cti=cti)
            ]
            for task in tasks
            for cti in (False, True)
        }
        self.gains = {
            task.name: Gain.of(*(self._measured(task.name, cti=cti) for cti in (True, False))) for task in tasks
        }
        self.table_3 = {
            how: [Point.of(eta, [results[cell] for cell in cells]) for eta, cells in line]
            for how, line in grid.table_3().items()
        }
        found = {each.what: each for result in results.values() for each in result.deviations}
        self.deviations = (*self.config.deviations, *found.values())

    def _measured(self, task: str, *, cti: bool) -> list[tuple[Estimate, Estimate]]:
        """A curve's points for comparison; without noise there is nothing that CTI could change."""
        points = self.curves[task, cti]
        return [(point.ua, point.ep) for point in points if point.ep is not None and (not cti or point.eta < math.inf)]


class Sap:
    """Split-and-Privatize: Table 1, Figure 2, Table 3.

    Args:
        config: Other settings than those that ship.
    """

    def __init__(self, config: SapConfig | None = None) -> None:
        self._config = config or read_config("sap", SapConfig)
        self.title = self._config.title
        self.reference = self._config.reference

    def show(self) -> Mapping[str, Any]:
        """Settings, the paper's figures and the deviations from it."""
        return self._config.model_dump(mode="json")

    def run(self, order: Order, progress: Progress) -> Report:
        """Runs what is not finished yet and reports.

        Raises:
            DataError: A data set is missing.
            Stopped: The user interrupted; the same order goes on.
        """
        config = self._config
        with Kitchen(order.out, model=order.model, data=order.data, progress=progress) as kitchen:
            for task in config.tasks:
                kitchen.splits(task, config.sizes[order.size].limits)  # a missing file is told before hours of work
            grid = Grid(config, order, kitchen)
            findings = Findings(grid, kitchen.run(list(grid)))
        tables = (
            _table_1(findings),
            *(_figure_2(findings, task) for task in config.tasks),
            _figure_2_verdicts(findings),
            _figure_2_paper(config),
            _table_3(findings),
            _table_3_paper(config),
            _deviations(findings.deviations),
        )
        content = {
            "recipe": "sap",
            "reference": self.reference,
            "model": {"source": order.model, "fingerprint": kitchen.model},
            "size": order.size.value,
            "seeds": order.seeds,
            "table_1": {name: _plain_row(findings, name) for name in findings.rows},
            "figure_2": {
                task.name: {
                    "plain": [point.model_dump(mode="json") for point in findings.curves[task.name, False]],
                    "cti": [point.model_dump(mode="json") for point in findings.curves[task.name, True]],
                    "cti_gain": _dumped(findings.gains[task.name]),
                }
                for task in config.tasks
            },
            "table_3": {
                how.value: [point.model_dump(mode="json") for point in line] for how, line in findings.table_3.items()
            },
            "paper": config.paper.model_dump(mode="json"),
            "deviations": [each.model_dump() for each in findings.deviations],
        }
        plot = order.out / "figure-2.png"
        draw_panels([_panel(findings, task) for task in config.tasks], plot, title=f"SAP, Figure 2, on {order.model}")
        written = write_report(order.out, tables, content, title=f"Recipe sap: {self.title}", pictures=[plot.name])
        return Report(tables, content, (*written, plot))


RECIPES.add("sap")(Sap())


# ---------------------------------------------------------------- tables


def _plain_row(findings: Findings, task: str) -> dict[str, Any]:
    train, dev, test = findings.rows[task]
    return {"train": train, "dev": dev, "test": test, "centralised": findings.centralised[task].model_dump()}


def _dumped(gain: Gain | None) -> dict[str, Any] | None:
    return None if gain is None else gain.model_dump()


def _table_1(findings: Findings) -> Table:
    paper = findings.config.paper
    rows = []
    for task in findings.config.tasks:
        train, dev, test = findings.rows[task.name]
        theirs = paper.table_1[task.name]
        unprotected = findings.curves[task.name, False][-1].ua
        rows.append(
            (
                task.title,
                f"{train} / {dev} / {test}",
                f"{theirs.train} / {theirs.dev} / {theirs.test}",
                str(findings.centralised[task.name]),
                str(unprotected),
                f"{theirs.accuracy:.2f}",
            )
        )
    return Table(
        title="Table 1: rows and centralised accuracy (%)",
        columns=(
            "data set",
            "train / dev / test",
            "the paper's rows",
            "centralised",
            "split, no privacy",
            f"the paper's centralised ({paper.model})",
        ),
        rows=tuple(rows),
        notes=("Centralised is ordinary PEFT in one process; ± is one standard error, over texts and seeds.",),
    )


def _eta(point: Point) -> str:
    return "∞ (no privacy)" if math.isinf(point.eta) else f"{point.eta:g}"


def _figure_2(findings: Findings, task: Task) -> Table:
    rows = [
        (
            _eta(plain),
            percent(plain.replaced),
            str(plain.ua),
            _or_dash(plain.ep),
            *((percent(cti.replaced), str(cti.ua), _or_dash(cti.ep)) if math.isfinite(cti.eta) else ("–",) * 3),
        )
        for plain, cti in zip(findings.curves[task.name, False], findings.curves[task.name, True], strict=True)
    ]
    centralised = findings.centralised[task.name]
    return Table(
        title=f"Figure 2: {task.title} (%)",
        columns=("eta0", "replaced", "UA", "EP", "replaced, CTI", "UA, CTI", "EP, CTI"),
        rows=tuple(rows),
        notes=(
            f"Centralised accuracy: {centralised}.",
            "EP is 1 - the share of tokens that nearest-neighbour inversion recovers; stronger attacks exist.",
        ),
    )


def _or_dash(estimate: Estimate | None) -> str:
    return "–" if estimate is None else str(estimate)


def _figure_2_verdicts(findings: Findings) -> Table:
    rows = []
    for task in findings.config.tasks:
        gain = findings.gains[task.name]
        ours = ("–", "the curves do not overlap")
        if gain is not None:
            ours = (f"{100 * gain.value:+.1f} ± {100 * gain.standard_error:.1f}", gain.verdict)
        helps = findings.config.paper.cti_helps[task.name]
        rows.append((task.title, *ours, "helps" if helps else "no significant improvement"))
    return Table(
        title="Figure 2: does CTI help?",
        columns=("data set", "UA gained at equal EP (points)", "here", "in the paper"),
        rows=tuple(rows),
        notes=(
            "Mean over the CTI points that lie within the plain curve, which is read along straight lines; "
            "a verdict needs two standard errors.",
        ),
    )


def _figure_2_paper(config: SapConfig) -> Table:
    with_cti = {True: "yes", False: "no", None: "not stated"}
    return Table(
        title=f"Figure 2 in the paper: what the text states ({config.paper.model}, %)",
        columns=("data set", "eta0", "CTI", "EP", "UA lost against centralised"),
        rows=tuple(
            (
                config.task(point.task).title,
                f"{point.eta:g}",
                with_cti[point.cti],
                f"{point.ep:g}",
                f"{point.ua_loss:g}",
            )
            for point in config.paper.figure_2
        ),
        notes=config.paper.figure_2_claims,
    )


_LINES = {
    TrainBottom.FROZEN: "frozen embedding layer",
    TrainBottom.REDRAW: "unfrozen embedding layer, fresh release each epoch",
    TrainBottom.MEMOISED: "trained blocks above one memoised release",
}


def _table_3(findings: Findings) -> Table:
    config = findings.config
    rows = []
    notes = ["EP of the unfrozen layer counts a token as recovered if the attack on any epoch's release recovers it."]
    for how, line in findings.table_3.items():
        rows.append((_LINES[how], "EP", *(_or_dash(point.ep) for point in line)))
        rows.append((_LINES[how], "UA", *(str(point.ua) for point in line)))
        missing = next((point for point in line if point.ep is None), None)
        if missing is not None:
            notes.append(f"No EP for {_LINES[how]}: {missing.ep_note}")
            notes.append(
                "Whoever inverts those blocks exactly has the released tokens and no more: EP is then the share of "
                "tokens replaced, at every epoch."
            )
    frozen = findings.table_3[TrainBottom.FROZEN]
    notes.append(_unfreezing(config.paper.table_3, frozen, findings.table_3[TrainBottom.REDRAW]))
    rows.append(("tokens replaced by one draw", "", *(percent(point.replaced) for point in frozen)))
    return Table(
        title=f"Table 3: {config.task(config.table_3).title}, frozen and trained bottoms (%)",
        columns=("bottom", "", *(f"eta0 {_eta(point)}" for point in frozen)),
        rows=tuple(rows),
        notes=tuple(notes),
    )


def _unfreezing(paper: PaperTable3, frozen: list[Point], redraw: list[Point]) -> str:
    """The paper's finding on unfreezing (Appendix A), counted in the paper's table and in ours."""
    pairs = [(a, b, a.ep.value - b.ep.value) for a, b in zip(frozen, redraw, strict=True) if a.ep and b.ep]
    ours = f"EP falls at {sum(fall > 0 for _, _, fall in pairs)} of {len(pairs)}"
    if pairs:
        ours += f" (by {100 * max(fall for *_, fall in pairs):.1f} points at most)"
    gained = sum(b.ua.value > a.ua.value for a, b in zip(frozen, redraw, strict=True))
    falls = [a - b for a, b in zip(paper.frozen.ep, paper.redraw.ep, strict=True)]
    rises = sum(b > a for a, b in zip(paper.frozen.ua, paper.redraw.ua, strict=True))
    return (
        f"Unfreezing the embedding layer. In the paper EP falls at {sum(fall > 0 for fall in falls)} of {len(falls)} "
        f"eta0 (by {max(falls):.1f} points at most) and UA rises at {rises}. Here {ours}, and UA rises at {gained} of "
        f"{len(frozen)}."
    )


def _table_3_paper(config: SapConfig) -> Table:
    table = config.paper.table_3
    rows = [
        (_LINES[how].partition(",")[0], name, *(f"{value:.2f}" for value in values))
        for how, line in ((TrainBottom.FROZEN, table.frozen), (TrainBottom.REDRAW, table.redraw))
        for name, values in (("EP", line.ep), ("UA", line.ua))
    ]
    return Table(
        title=f"Table 3 in the paper ({config.paper.model}, %)",
        columns=("bottom", "", *(f"eta0 {eta:g}" for eta in table.eta)),
        rows=tuple(rows),
    )


def _deviations(deviations: tuple[Deviation, ...]) -> Table:
    return Table(
        title="Where this differs from the paper",
        columns=("what", "in the paper", "here", "why"),
        rows=tuple((each.what, each.value_in_paper, each.ours, each.why) for each in deviations),
    )


# ---------------------------------------------------------------- plot


def _panel(findings: Findings, task: Task) -> Panel:
    plain, cti = findings.curves[task.name, False], findings.curves[task.name, True]
    return Panel(
        title=task.title,
        ticks=tuple("∞" if math.isinf(p.eta) else f"{p.eta:g}\n({percent(p.replaced, 0)} %)" for p in plain),
        curves=tuple(
            curve
            for points, name in ((plain, "SAP"), (cti, "SAP-CTI"))
            for curve in (
                Curve(name=f"UA, {name}", group=name, values=tuple(p.ua for p in points)),
                Curve(name=f"EP, {name}", group=name, values=tuple(p.ep for p in points), dashed=True),
            )
        ),
        level=findings.centralised[task.name],
        level_name="centralised accuracy",
    )
