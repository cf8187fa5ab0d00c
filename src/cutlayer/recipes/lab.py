"""Where cells are run: models, texts, vendors and folders, and the store of what is finished."""

from __future__ import annotations

import json
import shutil
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, get_type_hints

import torch
from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from cutlayer import vendor
from cutlayer.attacks import PublicText
from cutlayer.core import ConfigError, Cut, Fault, Spec, Stopped, StorageError, Tokens
from cutlayer.core.executors import Executor, executor
from cutlayer.customer import Client, Home, Progress, Silent
from cutlayer.customer.handout import local_archive
from cutlayer.data import tokenise
from cutlayer.models import Archive, Head, Quantization
from cutlayer.recipes.long_table import Measure
from cutlayer.recipes.model import Model
from cutlayer.recipes.options import RecipeOptions
from cutlayer.recipes.tasks import TextFile
from cutlayer.reports import Calibrated, CellStore, etas_for_shares
from cutlayer.reports.cells import digest
from cutlayer.vendor import VendorSettings
from cutlayer.vendor.process import VendorProcess

T = TypeVar("T")
_CALIBRATION_SEED = 0
_TENANT = "recipe"


class Rows(Spec, Generic[T]):
    """The result of a cell that finds a table: of its own, or rows of the long table."""

    model_config = ConfigDict(ser_json_inf_nan="strings")

    rows: tuple[T, ...]


class Cell(Spec):
    """A unit of work: a pure function of its fields.

    Attributes:
        seed: Of what is drawn; which customer, whose secret its noise comes from.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=True, ser_json_inf_nan="strings")

    seed: int = 0

    def __hash__(self) -> int:
        return hash(self.model_dump_json())  # settings may hold mappings

    @property
    def name(self) -> str:
        """The cell in a few words, for its file and for messages."""
        return f"{type(self).__name__.removesuffix('Cell').lower()}-s{self.seed}"

    @property
    def needs(self) -> tuple[Cell, ...]:
        """Cells that it builds on: they are run before it, beside each other. Here: none."""
        return ()

    @classmethod
    def result_type(cls) -> type[BaseModel]:
        """The class of its result: of what `measures` takes."""
        found: type[BaseModel] | Any = get_type_hints(cls.measures)["result"]
        return Rows[Measure] if found is Any else found

    def check(self, lab: Lab) -> None:
        """Looks before anything is run whether what the cell needs is there: here, its files.

        Raises:
            ConfigError: Settings that the model does not allow.
            DataError: A file is missing.
        """
        for file in _files(self):
            file.path(lab.options.data)

    def run(self, lab: Lab) -> BaseModel:
        """Does the work."""
        raise NotImplementedError

    def measures(self, result: Any) -> Iterable[Measure]:
        """The numbers of what `run` returned; by default it returned `Rows` of nothing else."""
        found: tuple[Measure, ...] = result.rows
        return found

    def clear(self, lab: Lab) -> None:
        """Removes what the work left behind, once its result is kept; until then a stopped cell goes on with it."""
        shutil.rmtree(lab.scratch(self), ignore_errors=True)


def _files(spec: BaseModel) -> Iterator[TextFile]:
    """The files that a spec names, in whatever depth."""
    for _, value in spec:
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, TextFile):
                yield each
            elif isinstance(each, BaseModel):
                yield from _files(each)


class Calibration(Spec):
    """One eta for each share of tokens."""

    points: tuple[Calibrated, ...]


class CalibrationCell(Cell):
    """Which etas replace which shares of some texts' tokens; `about` tells these texts from others."""

    model: str
    about: str
    shares: tuple[float, ...]

    @property
    def name(self) -> str:
        return "calibration"

    @classmethod
    def result_type(cls) -> type[BaseModel]:
        return Calibration


class Lab:
    """Runs cells, each once, and keeps what they need in common.

    Args:
        options: Model, data, seeds and folder.
        progress: Where to show progress.
        pool: Where cells are computed; in this process by default.

    Attributes:
        shared: What cells of this process have computed and may use again, by all that it depends on. It must change
            no number.
    """

    def __init__(self, options: RecipeOptions, progress: Progress | None = None, pool: Executor | None = None) -> None:
        self.options = options
        self.progress = progress or Silent()
        self.shared: dict[object, Any] = {}
        self._pool = pool or executor()
        self._vendors: dict[tuple[Any, ...], tuple[VendorProcess, str]] = {}
        self._locks: list[FileLock] = []
        self._temporary: TemporaryDirectory[str] | None = None
        self._models = cache(Model)
        self._archives = cache(self._archive)
        self.tokens = cache(self._tokens)
        self.public = cache(self._public)

    # ------------------------------------------------------------ what cells need

    def model(self, source: str | None = None, head: Head | None = Head.CLASSIFICATION) -> Model:
        """A model, the lab's by default; one object for each."""
        return self._models(source or self.options.model, head)

    def archive(self, cut: Cut, source: str | None = None) -> Archive:
        """What is handed out for a cut; one object for each, by which attacks know what they fitted for it."""
        return self._archives(cut, source or self.options.model)

    def _archive(self, cut: Cut, source: str) -> Archive:
        return local_archive(self.home("attacker"), source, cut)

    def _tokens(self, file: TextFile, model: Model | None = None) -> Tokens:
        """A file's texts as tokens, each cut where the model's positions end."""
        of = model or self.model(head=None)
        return tokenise(file.read(self.options.data), of.tokenizer, max_content=of.template.max_content(1))

    def stream(self, file: TextFile) -> Tensor:
        """A file's texts as one stream of tokens, `[total]` int64, none of them cut."""
        tokenizer = self.model(head=None).tokenizer
        return tokenise(file.read(self.options.data), tokenizer, max_content=2**31).segments[0].values

    def _public(self, file: TextFile) -> PublicText:
        """A file as text that an attacker has; one object for each, by which attacks know what they fitted on it."""
        tokens = self.tokens(file)
        return PublicText(tokens, source=f"{file.name}/{file.part}, {tokens.total} tokens")

    def home(self, name: str) -> Home:
        """A party's folder. Each customer has a secret of its own, from which its noise is drawn."""
        return Home(self.options.out / "customers" / name)

    def client(
        self,
        customer: str,
        *,
        source: str | None = None,
        max_bottom: int | None = None,
        max_tail: int | None = None,
        quantize: Quantization | None = None,
    ) -> Client:
        """A customer of a vendor in another process of this machine, which is started when the first one asks.

        Args:
            customer: Whose folder and secret.
            source: The model; the lab's by default.
            max_bottom: The deepest cut for which the vendor hands out bottoms; half of the blocks by default.
            max_tail: The deepest tail that it hands out; see `vendor.init`.
            quantize: How it keeps the weights of its blocks, where not in fp32.
        """
        key = (source or self.options.model, max_bottom, max_tail, quantize)
        if key not in self._vendors:
            self.progress.update("start vendor", 0, 1)
            folder = self._vendor_folder(key)
            # as many threads as here: a baseline in this process and a split run then round alike
            vendor.init(
                folder, models=[f"model={key[0]}"], max_bottom=max_bottom, max_tail=max_tail, quantize=quantize,
                threads=torch.get_num_threads(),
            )  # fmt: skip
            # a new key for the same tenant opens the same namespace, so none has to be kept
            self._vendors[key] = VendorProcess(folder), vendor.keys.create(folder, _TENANT)
            self._vendors[key][0].start()
            self.progress.update("start vendor", 1, 1)
        process, api_key = self._vendors[key]
        return Client(process.url, api_key, home=self.home(customer).path)

    def _vendor_folder(self, key: tuple[Any, ...]) -> Path:
        """A vendor's own folder: workers beside each other have one each, and a stopped one finds its own again."""
        about = "-".join(str(each) for each in (Path(key[0]).name, *key[1:]) if each is not None)
        for number in range(1, 1000):
            folder = self.options.out / "vendors" / f"{about}-{number}"
            folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(folder.with_suffix(".lock"))
            try:
                lock.acquire(timeout=0)
            except Timeout:
                continue
            self._locks.append(lock)
            return folder
        raise ConfigError([Fault("jobs", 1000, "must be fewer")])

    def keep_adapter(self, cell: Cell, adapter: str) -> None:
        """Copies what a vendor of this lab published in a cell: of an experiment both parties' folders are here.

        Raises:
            StorageError: None of them holds it.
        """
        for process, _ in self._vendors.values():
            published = VendorSettings.load(process.data_dir).adapter(_TENANT, adapter)
            if published.is_dir():
                shutil.copytree(published, self._adapter(cell), dirs_exist_ok=True)
                return
        raise StorageError(f"No vendor here holds adapter {adapter}.", remedy="Run the same command again.")

    def adapter(self, cell: Cell) -> Path:
        """The adapter that a finished cell kept.

        Raises:
            StorageError: It is not there.
        """
        folder = self._adapter(cell)
        if not folder.is_dir():
            raise StorageError(
                f"{folder} is not there, which its cell kept.", remedy=f"Remove {self._store(cell).path(cell)}, too."
            )
        return folder

    def _adapter(self, cell: Cell) -> Path:
        return self.options.out / "adapters" / self._store(cell).path(cell).stem

    def kept(self, cell: Cell) -> Path:
        """Where a cell keeps what is too large for its result."""
        return self.options.out / "kept" / self._store(cell).path(cell).stem

    @property
    def vendor_folders(self) -> tuple[Path, ...]:
        """Of the vendors that were started here."""
        return tuple(process.data_dir for process, _ in self._vendors.values())

    def scratch(self, cell: Cell) -> Path:
        """Where a cell keeps what it needs until it is finished."""
        return self.options.out / "runs" / self._store(cell).path(cell).stem

    @cached_property
    def workspace(self) -> Path:
        """A folder for what cells of this process share and nobody needs later; removed when the lab closes."""
        (self.options.out / "runs").mkdir(parents=True, exist_ok=True)
        self._temporary = TemporaryDirectory(dir=self.options.out / "runs", prefix="shared-")
        return Path(self._temporary.name)

    def once(self, key: object, make: Callable[[], T]) -> T:
        """What was computed for an earlier cell of this process, or is now."""
        if key not in self.shared:
            self.shared[key] = make()
        found: T = self.shared[key]
        return found

    def etas(self, tokens: Tokens, shares: Iterable[float], *, about: str, model: Model) -> tuple[Calibrated, ...]:
        """The etas that replace these shares of some texts' tokens, from the store or measured.

        `about` says what the texts are; other texts need other words.
        """
        cell = CalibrationCell(model=model.fingerprint, about=about, shares=tuple(shares), seed=_CALIBRATION_SEED)
        store: CellStore[Cell, Any] = self._store(cell)
        found = store.get(cell)
        if found is None:
            points = etas_for_shares(tokens.values, model.replacing, cell.shares, seed=cell.seed)
            found = Calibration(points=tuple(points))
            store.put(cell, found)
        return tuple(found.points)

    def forget_public(self) -> None:
        """Lets go of attackers' text, with all that attacks fitted on it: for cells that go through many etas."""
        self.public.cache_clear()

    # ------------------------------------------------------------ running

    def _store(self, cell: Cell) -> CellStore[Cell, Any]:
        return CellStore(self.options.out / "cells", cell.result_type())

    def result(self, cell: Cell) -> Any:
        """A cell's result, from the store or computed here and now: for what other cells build on."""
        store = self._store(cell)
        lock = self.options.out / "locks" / f"{store.path(cell).stem}.lock"
        lock.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(lock):  # two workers may build on the same cell
            found = store.get(cell)
            if found is None:
                found = cell.run(self)
                store.put(cell, found)
                cell.clear(self)
        return found

    def run(self, cells: Iterable[Cell]) -> Outcomes:
        """Results of cells: those in the store are taken from it, the others are computed, each after what it needs.

        A cell that fails is reported by its name, and the others go on, but for those that build on it.

        Raises:
            Stopped: The user interrupted; what is finished is kept, and a cell that was begun goes on.
        """
        wanted = list(dict.fromkeys(cells))
        results: dict[Cell, Any] = {}
        missing: dict[Cell, None] = {}

        def look_up(cell: Cell) -> None:
            if cell in results or cell in missing:
                return
            if (found := self._store(cell).get(cell)) is not None:
                results[cell] = found
                return
            for need in cell.needs:
                look_up(need)
            missing[cell] = None  # behind what it needs

        for cell in wanted:
            look_up(cell)
        failed: dict[Cell, str] = {}
        handed_out: list[Cell] = []

        def work() -> Iterator[str | None]:
            waiting = dict(missing)
            while waiting:
                before = len(waiting)
                for cell in tuple(waiting):
                    needs = cell.needs
                    lost = next((need for need in needs if need in failed), None)
                    if lost is not None:
                        failed[cell] = f"It builds on {lost.name}, which failed."
                        del waiting[cell]
                    elif all(need in results for need in needs):
                        handed_out.append(cell)
                        del waiting[cell]
                        yield _work(self.options, cell)
                if len(waiting) == before:
                    yield None  # until one that others need is done

        known = len(results)
        everything = known + len(missing)
        self.progress.update("cells", known, everything, next((cell.name for cell in missing), ""))
        # closed, so that no worker goes on where this loop is left
        with _used_here(self), closing(self._pool.run(f"{__name__}:{run_cell.__name__}", work())) as finished:
            for number, done in enumerate(finished, start=1):
                cell = handed_out[done.index]
                if done.failure is not None:
                    failed[cell] = f"{done.failure.kind}: {done.failure.message}"
                else:
                    results[cell] = self._store(cell).get(cell)
                self.progress.update("cells", known + number, everything, cell.name)
        return Outcomes({cell: results[cell] for cell in wanted if cell in results}, self._by_name(failed))

    def _by_name(self, failed: Mapping[Cell, str]) -> dict[str, str]:
        """Why cells failed; one whose name another has, too, by its file's."""
        why: dict[str, str] = {}
        for cell, reason in failed.items():
            why[cell.name if cell.name not in why else self._store(cell).path(cell).stem] = reason
        return why

    def close(self) -> None:
        """Ends the vendors, and removes what no later run needs."""
        if self._temporary is not None:
            self._temporary.cleanup()
            self.shared.clear()  # it may name files of that folder
            del self.workspace
            self._temporary = None
        for process, _ in self._vendors.values():
            process.stop()
        for lock in self._locks:
            lock.release()
        self._vendors, self._locks = {}, []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if isinstance(error, KeyboardInterrupt | Stopped):  # or a run within was, and names its own folder
            raise Stopped(
                f"Stopped. Finished cells are in {self.options.out}.", remedy="Run the same command again to go on."
            ) from error


@dataclass(frozen=True)
class Outcomes:
    """Results of cells that are finished, in order, and why others are not, by name."""

    results: Mapping[Cell, Any]
    failures: Mapping[str, str] = field(default_factory=dict)


# ---------------------------------------------------------------- in a worker

_LABS: dict[str, Lab] = {}
"""Of this process, by their options: cells of one worker share models, fits and a vendor."""


@contextmanager
def _used_here(lab: Lab) -> Iterator[None]:
    """Within it, cells of these options that run in this process use this lab."""
    key = digest(lab.options)
    _LABS[key] = lab
    try:
        yield
    finally:
        del _LABS[key]


def _work(options: RecipeOptions, cell: Cell) -> str:
    kind = f"{type(cell).__module__}:{type(cell).__qualname__}"
    return json.dumps({"options": options.model_dump(mode="json"), "kind": kind, "cell": cell.model_dump(mode="json")})


def run_cell(work: str) -> str:
    """Computes a cell and keeps its result, for executors: from JSON of options, class and cell to its file's path."""
    content = json.loads(work)
    options = RecipeOptions.model_validate(content["options"])
    module, _, name = content["kind"].partition(":")
    kind = getattr(import_module(module), name)
    key = digest(options)
    if key not in _LABS:
        _LABS[key] = Lab(options)
    lab = _LABS[key]
    cell: Cell = kind.model_validate(content["cell"])
    try:
        lab.result(cell)
    except Exception:
        failed = lab.options.out / "failures" / f"{cell.name}.txt"
        failed.parent.mkdir(parents=True, exist_ok=True)
        failed.write_text(traceback.format_exc(), encoding="utf-8")
        raise
    return str(lab._store(cell).path(cell))
