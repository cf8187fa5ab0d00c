"""Embeddings as a service on public tasks: denoisers that a vendor trains, and what embeddings are good for."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, Self

import torch
from torch import Tensor

from cutlayer import vendor
from cutlayer.attacks import Measured
from cutlayer.core import ConfigError, Fault, Proportion, Spec, StorageError
from cutlayer.customer import FinetuneSpec
from cutlayer.data import Dataset
from cutlayer.privacy import PrivacySpec
from cutlayer.recipes.lab import Cell, Lab
from cutlayer.recipes.long_table import Level, Measure
from cutlayer.recipes.read_releases import Form, ReadCell, of_mechanism
from cutlayer.recipes.tasks import Limits, Task, TextFile
from cutlayer.reports import Leaking, etas_for_recovery
from cutlayer.reports.audit.embeddings import embedding_arms
from cutlayer.reports.downstream import (
    CLEAN,
    NOISY,
    DownstreamSpec,
    Mean,
    distances,
    numbered,
    tested_networks,
)
from cutlayer.reports.estimate import standard_error
from cutlayer.vendor import VendorSettings
from cutlayer.vendor.denoiser_settings import DenoisedReleases, DenoiserTraining
from cutlayer.vendor.denoiser_training import train_denoisers
from cutlayer.vendor.denoisers import offer_denoiser
from cutlayer.vendor.public_tokens import PublicFile
from cutlayer.wire.denoisers import DenoiserInfo

MODEL: Final = "model"
"""What these vendors call it."""
_SEEDS: Final = 3
"""Networks of a cell."""
ACCURACY, AUC, COSINE = "accuracy", "AUC", "cosine"
FREQUENT: Final = "most frequent label"
"""The method that knows no text."""
_SHARES: Final = (ACCURACY, AUC)


class Spared(Cell):
    """Texts that no denoiser learns from: those of the tasks."""

    tasks: tuple[Task, ...] = ()
    files: tuple[TextFile, ...] = ()

    def texts(self, lab: Lab) -> frozenset[str]:
        """All of them, in one case and without outer blanks."""
        rows = [row for task in self.tasks for part in task.read(lab.options.data) for row in part.texts]
        rows += [row for file in self.files for row in file.read(lab.options.data).texts]
        return frozenset(_folded(text) for row in rows for text in row)


class DenoiserCell(Cell):
    """A vendor's denoisers of its model's embeddings, trained on public text.

    Attributes:
        releases: Which they are for.
        training: How they are trained.
        public: The text.
        spared: What none of it may be.
    """

    model: str
    releases: DenoisedReleases
    training: DenoiserTraining
    public: tuple[TextFile, ...]
    spared: Spared

    @property
    def name(self) -> str:
        releases, training = self.releases, self.training
        how = f"{releases.mechanism}{'-clip' if releases.clip else ''}-{releases.noise}"
        kind = f"{training.kind}{'' if training.positions else '-no-positions'}"
        return f"denoiser-{kind}-{how}{'-without-answer' if training.without_answer else ''}-s{self.seed}"

    def check(self, lab: Lab) -> None:
        super().check(lab)
        own = {task.name for task in self.spared.tasks} | {file.name for file in self.spared.files}
        if found := [file.name for file in self.public if file.name in own]:
            raise ConfigError(
                [Fault("public", found[0], "is a task's data set, of which denoisers learn nothing")],
                remedy="Name other public text.",
            )

    def run(self, lab: Lab) -> DenoiserInfo:
        settings = vendor_of(self, lab)
        training = self.training.model_copy(update={"seed": self.seed})
        info = train_denoisers(
            settings, MODEL, self.sources(lab), self.releases, training,
            on_step=lambda done, total, note: lab.progress.update("denoiser", done, total, note),
        )  # fmt: skip
        shutil.copytree(settings.denoisers(MODEL) / info.denoiser, lab.kept(self), dirs_exist_ok=True)
        return info

    def sources(self, lab: Lab) -> list[PublicFile]:
        """The public texts of each file, but for spared ones, by its name."""
        spared = lab.once(self.spared, lambda: self.spared.texts(lab))
        return [(f"{file.name}/{file.part}", but(file.read(lab.options.data), spared)) for file in self.public]

    def offer(self, lab: Lab) -> str:
        """Has this lab's vendors hand them out, and returns their id; they are trained now, if they were not yet.

        Raises:
            StorageError: They were removed.
        """
        found: DenoiserInfo = lab.result(self)
        if not lab.kept(self).is_dir():
            raise StorageError(f"{lab.kept(self)} is not there, which its cell kept.", remedy="Use a new folder.")
        for folder in lab.vendor_folders:
            offer_denoiser(VendorSettings.load(folder), MODEL, lab.kept(self))
        return found.denoiser

    def measures(self, result: DenoiserInfo) -> Iterator[Measure]:
        for group in result.groups:
            axes: dict[str, Level] = {"etas": f"{group.lowest:g} to {group.highest:g}"}
            for metric in ("noisy", "denoised", "without_answer", "mean_embedding"):
                found = getattr(group, metric)
                yield Measure(f"MSE, {metric}", found.mse, n=group.n, axes=axes)
                yield Measure(f"cosine, {metric}", found.cosine, n=group.n, axes=axes)


def vendor_of(cell: Cell, lab: Lab) -> VendorSettings:
    """A vendor of the recipe's model in a cell's own folder, made where there is none yet."""
    folder = lab.scratch(cell)
    if not (folder / "vendor.json").exists():
        vendor.init(folder, models=[f"{MODEL}={lab.options.model}"])
    return VendorSettings.load(folder)


class LeakCell(Cell):
    """Etas at which the strongest of some attacks reads shares of tokens of a method's releases, beyond chance.

    Whoever guesses the most frequent tokens everywhere reads some of them (7.7 % of film reviews) at any eta: a share
    that counted these would be reached by no eta.

    Attributes:
        private: Texts that are released.
        form: How.
        noise: Whose noise is drawn, by the mechanism's name.
        attacks: Those that are asked at each eta; the one that reads the most counts.
        public: The attackers' own text.
        leaks: The shares.
        between: Etas to look between.
        further: Attacks that take long, and read at the etas that were found alone; none may count for more.
    """

    model: str
    private: TextFile
    form: Form
    noise: str = of_mechanism()
    attacks: tuple[str, ...]
    public: TextFile
    leaks: tuple[float, ...]
    between: tuple[float, float]
    further: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"leak-{self.form.slug}-{self.private.name}-s{self.seed}"

    def run(self, lab: Lab) -> Leaks:
        def strongest(eta: float) -> Proportion:
            found = self._beyond_chance(lab, eta, self.attacks)
            if not found:
                raise ConfigError(
                    f"No attack on {self.form.value} passed its controls at eta {eta:g}.",
                    remedy="Look between other etas.",
                )
            return max(found.values(), key=lambda each: each.value)

        points = tuple(etas_for_recovery(strongest, self.leaks, between=self.between))
        asked = [each for each in (self.attacks, self.further) if each]
        read = tuple(
            {name: found for attacks in asked for name, found in self._beyond_chance(lab, point.eta, attacks).items()}
            for point in points
        )
        return Leaks(points=points, read=read)

    def _beyond_chance(self, lab: Lab, eta: float, attacks: tuple[str, ...]) -> dict[str, Proportion]:
        """What attacks read of releases at an eta; of those that passed their controls."""
        cell = ReadCell(
            model=self.model, private=self.private, form=self.form, eta=eta, noise=self.noise, attacks=attacks,
            public=self.public, seed=self.seed,
        )  # fmt: skip
        read = {name: each.outcome for name, each in lab.result(cell).reads.items()}
        lab.forget_public()  # what is fitted for one eta, some 100 MB, serves no other
        return {name: _beyond_chance(found) for name, found in read.items() if isinstance(found, Measured)}

    def measures(self, result: Leaks) -> Iterator[Measure]:
        for number, point in enumerate(result.points):
            axes: dict[str, Level] = {"leak": point.wanted}
            by = {found.value: attack for attack, found in result.read[number].items() if attack in self.attacks}
            yield Measure("eta", point.eta, axes=axes)
            yield replace(Measure.share("read", point.read, note=by[max(by)]), axes=axes)
            for attack, found in result.read[number].items():
                yield replace(Measure.share(f"read, {attack}", found), axes=axes)


def _beyond_chance(found: Measured) -> Proportion:
    success = found.success
    return success.model_copy(update={"value": max(0.0, success.value - found.chance)})


class Leaks(Spec):
    """One eta for each share.

    Attributes:
        points: The etas, and what the strongest attack read there beyond chance.
        read: The same of each attack that passed its controls there, by name.
    """

    points: tuple[Leaking, ...]
    read: tuple[dict[str, Proportion], ...]


class Scored(Spec):
    """What some methods score on the same texts, each text by itself, so that cells can be compared text by text.

    Attributes:
        methods: By what they are called and by metric, `[runs][texts]`: values whose mean is the score, to five digits.
    """

    methods: dict[str, dict[str, tuple[tuple[float, ...], ...]]]

    @classmethod
    def of(cls, methods: Mapping[str, Mapping[str, Tensor]], **more: Any) -> Self:
        """The same of `[runs, texts]`, and further fields."""
        told = {
            name: {metric: [[float(f"{each:.5g}") for each in run] for run in found.tolist()]
                   for metric, found in metrics.items()}
            for name, metrics in methods.items()
        }  # fmt: skip
        return cls.model_validate({"methods": told, **more})

    def by_text(self, metric: str, where: Mapping[str, Level]) -> Tensor | None:
        """`[runs, texts]` float64, as of `paired.ByText`; methods stand on the axis of that name."""
        found = self.methods.get(str(where["method"]), {}).get(metric) if where.keys() == {"method"} else None
        return None if found is None else torch.tensor(found, dtype=torch.float64)

    def measures(self) -> Iterator[Measure]:
        """The scores, with intervals over texts and runs."""
        for method, metrics in self.methods.items():
            for metric, by_text in metrics.items():
                yield measured(metric, torch.tensor(by_text, dtype=torch.float64), method)


class Denoised(Spec):
    """Embeddings of which a denoiser took the noise out.

    Attributes:
        method: What they are called.
        by: The denoiser.
    """

    method: str
    by: DenoiserCell


class EmbeddingCell(Cell):
    """Texts that are embedded by a frozen model in one way.

    Attributes:
        privacy: How they are privatized.
        method: What embeddings are called as they come.
        denoised: The same embeddings by denoisers.
    """

    model: str
    privacy: PrivacySpec
    method: str
    denoised: tuple[Denoised, ...] = ()

    @property
    def needs(self) -> tuple[Cell, ...]:
        return tuple(each.by for each in self.denoised)

    def check(self, lab: Lab) -> None:
        super().check(lab)
        for each in self.denoised:
            each.by.check(lab)

    @property
    def how(self) -> str:
        """The way in a few words, for the cell's name."""
        return f"{self.method.replace(' ', '-')}-eta{self.privacy.eta:g}-s{self.seed}"

    def arms(self, rows: Dataset, lab: Lab) -> dict[str, Tensor]:
        """Embeddings `[rows, width]`, or `[rows, 2, width]` of pairs, by what they are."""
        texts, of = singly(rows)
        spec, client = FinetuneSpec(privacy=self.privacy, model=MODEL), lab.client(f"embeddings-{self.seed}")
        offered = {each.method: each.by.offer(lab) for each in self.denoised}
        found = embedding_arms(texts, spec, client, client, lab.progress, denoisers=offered)
        return {name: values[of].squeeze(1) for name, values in found.items()}

    def measures(self, result: Scored) -> Iterator[Measure]:
        yield from result.measures()

    def told(self, arms: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Those that this cell tells of, by what they are called: clean ones, which all cells have, once."""
        return {
            self.method if arm == NOISY else arm: values
            for arm, values in arms.items()
            if arm != CLEAN or self.privacy.clipped
        }


class EmbeddedCell(EmbeddingCell):
    """What a small network learns of a task's labels from embeddings."""

    task: Task
    limits: Limits
    passes: int

    @property
    def name(self) -> str:
        return f"{self.task.name}-{self.how}"

    def check(self, lab: Lab) -> None:
        super().check(lab)
        self.task.check(lab.options.data)

    def run(self, lab: Lab) -> Scored:
        rows, learnt = self.task.read_at_most(lab.options.data, self.limits)
        arms = self.arms(rows, lab)
        return learnt_from(self.told(arms), arms[CLEAN], rows, learnt, seed=self.seed, passes=self.passes)


class FrequentCell(Cell):
    """What always telling the most frequent label of the training texts scores: accuracy counts from there on."""

    task: Task
    limits: Limits

    @property
    def name(self) -> str:
        return f"{self.task.name}-most-frequent-s{self.seed}"

    def check(self, lab: Lab) -> None:
        super().check(lab)
        self.task.check(lab.options.data)

    def run(self, lab: Lab) -> Scored:
        rows, learnt = self.task.read_at_most(lab.options.data, self.limits)
        labels = rows.labels or ()
        ((frequent, _),) = Counter(labels[:learnt]).most_common(1)
        right = torch.tensor([[label == frequent for label in labels[learnt:]]], dtype=torch.float64)
        return Scored.of({FREQUENT: {ACCURACY: right}})

    def measures(self, result: Scored) -> Iterator[Measure]:
        yield from result.measures()


def singly(rows: Dataset) -> tuple[Dataset, Tensor]:
    """The texts of some rows, each once, and `[rows, texts of a row]`: which of them each row has."""
    places: dict[str, int] = {}
    of = torch.tensor([[places.setdefault(text, len(places)) for text in row] for row in rows.texts])
    return Dataset(tuple((text,) for text in places)), of


def learnt_from(
    arms: Mapping[str, Tensor], clean: Tensor, rows: Dataset, learnt: int, *, seed: int, passes: int
) -> Scored:
    """What small networks learn of labels from each kind of embeddings, and how near these come to clean ones.

    Args:
        arms: Embeddings of the rows by what they are called, `[rows, width]`, or `[rows, 2, width]` of pairs.
        clean: Those without noise, in the same shape.
        rows: With labels.
        learnt: How many, at the beginning, are learnt from; the others are tested on.
        seed: Of the cell: networks of no other one have theirs.
        passes: Of each.
    """
    spec = DownstreamSpec(seeds=tuple(range(_SEEDS * seed, _SEEDS * (seed + 1))), passes=passes)
    labels, known = numbered(rows.labels or ()), torch.arange(len(rows)) < learnt
    tested = tested_networks(arms, labels, known, spec=spec)
    methods = {}
    for name, values in arms.items():
        mse, cosine = distances(values[learnt:], clean[learnt:])
        found = {ACCURACY: tested[name].right, AUC: tested[name].area, "MSE": mse[None], COSINE: cosine[None]}
        methods[name] = {metric: by_text for metric, by_text in found.items() if by_text is not None}
    return Scored.of(methods)


def measured(metric: str, values: Tensor, method: str) -> Measure:
    """The mean of `[runs, texts]`, as a number of a method's."""
    found = Mean.of_shares(values) if metric in _SHARES else Mean.of(values)
    low, high = found.ci
    return Measure(metric, found.value, standard_error(values), found.n, low, high, axes={"method": method})


def but(texts: Dataset, spared: frozenset[str]) -> list[tuple[str, ...]]:
    """Rows that are none of these texts."""
    return [row for row in texts.texts if _folded(row[0]) not in spared]


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())
