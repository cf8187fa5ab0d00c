"""One call from texts to a leak report: a run, or several that were, attacked and told.

```python
import cutlayer

report = cutlayer.audit("notes.csv", label_column="ward", eta=80)
report.save("report")
```
"""

from __future__ import annotations

import html
import math
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Unpack, cast

from cutlayer.attacks import ATTACKS
from cutlayer.core import ConfigError, Cut, CutlayerWarning, Fault
from cutlayer.core.deadline import OutOfTime, within
from cutlayer.customer import DataSpec, FinetuneSpec, Home, Objective, Progress, Source, Training, TuningSpec
from cutlayer.customer.arguments import Columns, Privacy
from cutlayer.customer.attacker import AttackerSpec
from cutlayer.customer.corpora import Corpora
from cutlayer.customer.embedding import EmbedSpec, check_embedding
from cutlayer.customer.evidence import Evidence
from cutlayer.customer.progress import Shows, shown
from cutlayer.customer.results import RunResult
from cutlayer.customer.settings import LOCAL_MODEL
from cutlayer.customer.sources import read_source
from cutlayer.customer.validate import choose_privacy
from cutlayer.data import Dataset, bin_columns, has_column, is_table
from cutlayer.privacy.spec import NoPrivacy, PrivacySpec, TextToText
from cutlayer.reports.audit.blocks import copy_blocks, unanswered, unasked
from cutlayer.reports.audit.embeddings import measure_embeddings
from cutlayer.reports.audit.frontier import HELD_OUT, beside, evaluate_beside, quick_attacks
from cutlayer.reports.audit.protected import protected_entities
from cutlayer.reports.audit.public import public_text
from cutlayer.reports.audit.report import Attacked
from cutlayer.reports.audit.report import audit as attack
from cutlayer.reports.audit.runs import check_runs, several_runs
from cutlayer.reports.audit.students import train_students
from cutlayer.reports.audit.time_limit import TimeLimit
from cutlayer.reports.audit.traffic import local_answers, local_evidence, recorded_evidence
from cutlayer.reports.audit_files import write_audit
from cutlayer.reports.audit_spec import AuditObjective, AuditSpec
from cutlayer.reports.page.plots import plots
from cutlayer.reports.page.render import render
from cutlayer.reports.schema import AuditReport, BlocksCopies, Student
from cutlayer.reports.wording import duration

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

SEED: Final = 0
"""Of audits where none is given; never noise."""
_COPYING: Final = 4
"""Of the time that is left when a run is done, copies of a model have one part in so many."""
_WRITING: Final = 3
"""The same of public text that has to be written."""
_PAGE_HEIGHT: Final = 800
"""Pixels of a report in a notebook."""


class AuditSettings(Privacy, Columns, total=False):
    """The settings of `FinetuneSpec`, `DataSpec` and `AuditSpec` that an audit takes, by name."""

    objective: AuditObjective | Objective | str
    cut: Cut
    tuning: TuningSpec
    training: Training
    model: str | None
    seed: int
    label_column: str
    target_column: str
    facts: bool
    public: str | None
    public_column: str
    time_limit: float | None
    only: tuple[str, ...]
    frontier: tuple[float, ...]
    denoisers: tuple[Path, ...]
    examples: int
    repeat: tuple[str, ...]
    began: float


@dataclass(frozen=True)
class LeakReport:
    """What a vendor could learn from a setting.

    Attributes:
        report: The numbers, and what they mean.
    """

    report: AuditReport

    @property
    def html(self) -> str:
        """The page for people, whole; it holds texts, as its examples."""
        return render(self.report)

    @property
    def json(self) -> str:
        """The same for machines."""
        return self.report.model_dump_json(indent=1)

    @property
    def figures(self) -> dict[str, Figure]:
        """The page's plots, by name."""
        from plotly.graph_objects import Figure

        return {name: Figure(data=list(plot.data), layout=plot.layout) for name, plot in plots(self.report).items()}

    def save(self, folder: str | Path) -> tuple[Path, ...]:
        """Writes `report.html`, `report.json`, and `frontier.png` where there is a frontier; their owner can read them.

        Args:
            folder: Where to; made on first use.

        Returns:
            The files.

        Raises:
            StorageError: A file cannot be written.
        """
        return write_audit(Path(folder), self.report)

    def _repr_html_(self) -> str:
        # in a frame of its own: the page's styles are not the notebook's
        page = html.escape(self.html)
        return f'<iframe srcdoc="{page}" width="100%" height="{_PAGE_HEIGHT}" style="border:0"></iframe>'


def audit(
    data: Source | Sequence[Source],
    *,
    transcript: Path | Sequence[Path] = (),
    dev: Source | None = None,
    test: Source | None = None,
    attacker: AttackerSpec | None = None,
    home: Path | None = None,
    progress: Shows = True,
    **settings: Unpack[AuditSettings],
) -> LeakReport:
    """Attacks what a vendor sees of texts, and reports what it could learn.

    Without `transcript` a vendor is run in this process for it, on these texts and settings: nothing leaves, nothing is
    charged. With it finished runs are audited as they are.

    Args:
        data: The customer's texts; with several runs one source for all, or one for each in their order.
        transcript: Folders of finished runs (`finetune(out=…)`), whose settings count. Several are read together, and
            the first is what other attacks read.
        dev: Of recorded runs, as in `finetune`.
        test: The same.
        attacker: What the attacker is taken to know, and what it asks for.
        home: The customer's folder; `CUTLAYER_HOME`, else `~/.cutlayer`, where it is left out.
        progress: Where to show progress.
        **settings: `eta` or `privacy`, of which one must be given without `transcript`; `cut`, `tuning`, `training`,
            `model` (a local folder or a hub id, the embedded model by default), `seed`; columns, as in
            `finetune`; and the settings of `AuditSpec`, by name. `time_limit` counts from this call on, or from
            `began` on, by `time.monotonic`.

    Raises:
        ConfigError: Settings that contradict each other, or a folder that holds no finished run.
        DataError: Texts that cannot be read or trained on, or those of another run.
    """
    folders = (transcript,) if isinstance(transcript, Path) else tuple(transcript)
    sources = _sources(data)
    given: dict[str, Any] = dict(settings)
    repeat, began = given.pop("repeat", ()), given.pop("began", time.monotonic())
    asked = AuditSpec(**{name: given.pop(name) for name in AuditSpec.model_fields if name in given})
    columns = {name: given.pop(name) for name in DataSpec.model_fields if name in given}
    embeds = asked.objective is AuditObjective.EMBED
    objective = Objective.CLASSIFICATION if embeds else Objective(asked.objective.value)
    if embeds:
        check_embedding({**given, **columns, "transcript": folders or None, "dev": dev, "test": test})
    seed = given.setdefault("seed", SEED)
    limit = TimeLimit(asked.time_limit, began)
    compared = _check(asked, folders, sources)
    attacker = attacker or AttackerSpec()
    attacker = attacker.model_copy(update={"secret": tuple(dict.fromkeys(attacker.secret)), "seed": seed})
    model = given.pop("model", None) or LOCAL_MODEL
    specs: list[FinetuneSpec] = []
    if not folders:
        privacy = choose_privacy(given.pop("eta", None), given.pop("privacy", None))
        specs = _settings(asked, model=model, privacy=privacy, **given | {"objective": objective})
    foretold = 0.0
    if embeds:
        labelled = "label_column" in columns or (isinstance(sources[0], Dataset) and sources[0].labels is not None)
    else:
        labelled = bool(folders) or _labelled(sources[0], columns, objective)
    if asked.denoisers and not (embeds and labelled):
        why = "is measured on labels: add objective embed and label_column (--objective embed, --label-column)"
        raise ConfigError([Fault("denoisers", asked.denoisers, why)])
    named = dict.fromkeys((*attacker.secret, *([attacker.group] if attacker.group else [])))

    def read(source: Source | None) -> Dataset | None:
        if source is None:
            return None
        return read_source(source, DataSpec(**columns), objective, labelled=labelled, attributes=tuple(named))

    corpora = [cast(Dataset, read(source)) for source in sources]
    if attacker.bins is not None:
        corpora = [bin_columns(each, attacker.secret, attacker.bins) for each in corpora]
    customer = Home(home)
    with shown(progress) as bars, tempfile.TemporaryDirectory(prefix="cutlayer-audit-") as folder:
        if folders:
            given_to = [Corpora(each, read(dev), read(test)) for each in corpora]
            attacked = _recorded(given_to, folders, model, customer, attacker)
        else:
            start = time.monotonic()
            evidence = local_evidence(corpora[0], specs[0], Path(folder), bars, attacker=attacker)
            foretold = time.monotonic() - start
            attacked = _with_copies(corpora[0], evidence, Path(folder), model, bars, limit, foretold)
            if embeds and labelled and foretold > limit.left:
                late = f"What embeddings are good for was not measured, for {limit}."
                attacked = replace(attacked, left_out=(*attacked.left_out, late))
            elif embeds and labelled:
                useful = measure_embeddings(
                    corpora[0], specs[0], Path(folder), bars, denoisers=asked.denoisers, seed=seed
                )
                attacked = replace(attacked, downstream=useful)
        archive = attacked.evidence.archive
        own = public_text(
            asked.public,
            archive.tokenizer,
            kept=customer.path / "public-text",
            max_content=archive.template.max_content(1),
            progress=bars,
            column=asked.public_column,
            seconds=limit.share(_WRITING),
        )
        found = evaluate_beside(
            corpora[0],
            specs[1:],
            attacker=attacker,
            public=own,
            attacks=compared,
            progress=bars,
            limit=limit,
            foretold=foretold,
        )
        report = attack(
            replace(attacked, began=limit.began, protected=protected_entities(sources, customer)),
            public=own,
            budget=asked.time_limit,
            only=asked.only or None,
            shown=asked.examples,
            seed=seed,
            repeat=repeat,
            progress=bars,
        )
    if asked.frontier:
        frontier = beside(report, attacked.evidence, specs[0], found, attacks=compared)
        report = report.model_copy(update={"frontier": frontier})
    return LeakReport(report)


def _recorded(
    given: Sequence[Corpora], folders: Sequence[Path], model: str, home: Home, attacker: AttackerSpec
) -> Attacked:
    """What finished runs showed."""
    check_runs(folders)
    nobody = AttackerSpec(auxiliary_fraction=0)  # of further runs it is asked what it does not know of the first
    found: list[Evidence] = []
    for number, run in enumerate(folders):
        told = nobody if number else attacker
        first = found[0] if found else None
        found.append(recorded_evidence(given[number % len(given)], run, model, home, attacker=told, beside=first))
    several = several_runs(folders, found)
    return Attacked(several.evidence, model, recorded=True, runs=several.told, blocks=unasked(several.evidence.spec))


def _with_copies(
    texts: Dataset,
    evidence: Evidence,
    folder: Path,
    source: str,
    progress: Progress,
    limit: TimeLimit,
    foretold: float,
) -> Attacked:
    """What a run for the audit showed, and copies of its model, as far as time allows.

    Args:
        texts: What the run was on, and what the vendor is asked about.
        evidence: The run.
        folder: Where vendor, customer and run are.
        source: Where the vendor's model is to be had.
        progress: Where to show progress.
        limit: On the time of all.
        foretold: Seconds that questions about all texts take at most: as many as the run.
    """
    if not isinstance(evidence.result, RunResult):
        return Attacked(evidence, source, blocks=unanswered(evidence))
    seed = evidence.spec.seed or SEED
    if limit.left <= 0:
        over = (
            f"The run that is attacked, which cannot be cut short, took {duration(foretold)}: with it {limit} was over."
        )
        return Attacked(evidence, source, left_out=(over,), blocks=unasked(evidence.spec, _NO_TIME), late=True)
    late = foretold > limit.share(_COPYING)
    students: tuple[Student, ...] = ()
    blocks: BlocksCopies = unasked(evidence.spec, _NO_TIME)
    if not late:
        if texts.labels is not None:
            answers = local_answers(texts, evidence.adapter, folder, progress)
            archive = evidence.archive
            students = train_students(texts, answers, tokenizer=archive.tokenizer, table=archive.table, seed=seed)
        with suppress(OutOfTime), within(limit.share(_COPYING)):
            blocks = copy_blocks(texts, evidence, folder, progress, seed=seed)
    left_out = []
    if late and texts.labels is not None:
        left_out.append(f"Copies of the tuned model were not tried, for {limit}.")
    if blocks.status == "not run":
        left_out.append(f"Copies of the vendor's blocks were not tried, for {limit}.")
    return Attacked(evidence, source, students=students, blocks=blocks, left_out=tuple(left_out), late=late)


_NO_TIME = "There was no time for it within the time limit."


def _sources(data: Source | Sequence[Source]) -> tuple[Source, ...]:
    """One source, or several; a list of dicts is one table."""
    several = isinstance(data, Sequence) and not isinstance(data, str) and not is_table(data)
    return tuple(cast("Sequence[Source]", data)) if several else (cast("Source", data),)


def _check(asked: AuditSpec, folders: Sequence[Path], sources: Sequence[Source]) -> tuple[str, ...]:
    """The attacks that settings are compared by.

    Raises:
        ConfigError: What is asked for has no meaning together.
    """
    for name in asked.only:
        ATTACKS[name]  # names those that there are, before anything is run
    compared = tuple(name for name in quick_attacks() if not asked.only or name in asked.only)
    faults = []
    if asked.frontier and folders:
        faults.append(
            Fault(
                "frontier",
                asked.frontier,
                "a recorded run is of one eta, and others would take a vendor: leave `transcript` out to have one in "
                "this process",
            )
        )
    if asked.frontier and not compared:
        quick = ", ".join(quick_attacks())
        faults.append(
            Fault("frontier", asked.frontier, f"is compared by attacks that take seconds; name one of them: {quick}")
        )
    if len(sources) not in (1, len(folders)):
        faults.append(
            Fault("data", len(sources), f"must be one for all runs, or one for each of the {len(folders)} runs")
        )
    if faults:
        raise ConfigError(faults)
    return compared


def _labelled(source: Source, columns: Mapping[str, Any], objective: Objective) -> bool:
    """Whether a classifier's texts have labels; where their column was not named, only if there is one."""
    if objective is not Objective.CLASSIFICATION or "label_column" in columns:
        return True
    if isinstance(source, Dataset):
        return source.labels is not None
    column = DataSpec().label_column
    if has_column(source, column):
        return True
    warnings.warn(
        f"the texts have no labels: there is no column {column!r}. What the vendor could learn of labels is not "
        "asked. Name their column (label_column, --label-column) to ask it.",
        CutlayerWarning,
        stacklevel=3,
    )
    return False


def _settings(asked: AuditSpec, *, training: Training | None = None, **given: Any) -> list[FinetuneSpec]:
    """The run that is audited, and those at other etas that it is compared with."""
    said = {} if training is None else training.model_dump(exclude_unset=True)
    # comparing accuracies takes trained models; attacks need one pass over the texts
    own: dict[str, Any] = {"dev_share": HELD_OUT} if asked.frontier else {"epochs": 1}
    if asked.objective is AuditObjective.EMBED:
        first: FinetuneSpec = EmbedSpec(training=Training(**said), **given)
    else:
        first = FinetuneSpec(training=Training(**own | said), **given)
    others = dict.fromkeys(eta for eta in asked.frontier if eta != first.privacy.eta)
    return [first, *(first.model_copy(update={"privacy": _at(first.privacy, eta)}) for eta in others)]


def _at(privacy: PrivacySpec, eta: float) -> PrivacySpec:
    """The same at another eta; without noise there is none to choose or to steer."""
    if math.isinf(eta):
        return NoPrivacy()
    return TextToText(eta=eta) if math.isinf(privacy.eta) else privacy.model_copy(update={"eta": eta})
