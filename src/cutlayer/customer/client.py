"""The SDK: the whole job in a few lines.

```python
from cutlayer import Client

client = Client("https://vendor.example:8443", api_key="…")
result = client.finetune("notes.csv", label_column="ward", eta=80)
print(result.ua, result.ep)
print(client.predict(result.adapter_id, ["a new note"]))
```
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Unpack, cast, overload

from cutlayer.attacks import Exchanged
from cutlayer.core import ConfigError, Cut, Fault
from cutlayer.core.executors import Executor, InProcess
from cutlayer.customer.account import check_is_here, delete
from cutlayer.customer.arguments import Columns, Previewed, Querying, Settings
from cutlayer.customer.ask import continue_texts, exchange, predict
from cutlayer.customer.columns import DataSpec
from cutlayer.customer.connection import Connection
from cutlayer.customer.corpora import Corpora
from cutlayer.customer.defaults import of_pairs, settle
from cutlayer.customer.embed import Embedded, Roads, embed
from cutlayer.customer.embedding import EmbeddingSettings
from cutlayer.customer.entities import Entities, Protected, Protection, protect
from cutlayer.customer.entity_map import EntityMap
from cutlayer.customer.finetune import finetune
from cutlayer.customer.generate import OnText
from cutlayer.customer.handout import local_archive_folder
from cutlayer.customer.preview import Draw, Preview, PreviewStream
from cutlayer.customer.profile import Profile
from cutlayer.customer.progress import Progress, Shows, Silent, shown
from cutlayer.customer.results import Detached, FinetuneResult, Generation, LanguageResult, Prediction, RunResult
from cutlayer.customer.run import Run
from cutlayer.customer.settings import LOCAL_MODEL, FinetuneSpec, LabelsAt, Objective, Sampling, Training
from cutlayer.customer.shards import Drawing, ShardAccount, TextRows, Work
from cutlayer.customer.sources import Source, Texts, read_source, read_texts
from cutlayer.customer.validate import check_labels, check_public, check_sent_labels, choose_privacy, validate
from cutlayer.data import Dataset
from cutlayer.privacy import find_mechanism
from cutlayer.privacy.spec import PrivacySpec
from cutlayer.wire import routes


class Client(Connection):
    """A customer of one vendor.

    Args:
        vendor: The vendor's address; `CUTLAYER_VENDOR` where it is left out.
        api_key: The tenant's key; `CUTLAYER_API_KEY` where it is left out.
        home: The customer's folder; `CUTLAYER_HOME`, else `~/.cutlayer`, where it is left out.
        ca_cert: The certificate to trust, for a vendor that signed its own; `CUTLAYER_CA_CERT`.
        transport: Another way to the vendor, for an app in this process; then no address is needed.
        device: Where bottoms are computed: `cpu`, `cuda`, or `auto` for a GPU if there is one.
    """

    # ------------------------------------------------------------ fine-tuning

    @overload
    def finetune(
        self,
        train: Source,
        *,
        objective: Literal[Objective.CLASSIFICATION, "classification"] = ...,
        dev: Source | None = ...,
        test: Source | None = ...,
        out: Path | None = ...,
        progress: Shows = ...,
        **settings: Unpack[Settings],
    ) -> FinetuneResult: ...

    @overload
    def finetune(
        self,
        train: Source,
        *,
        objective: Literal[Objective.LM, Objective.SEQ2SEQ, "lm", "seq2seq"],
        dev: Source | None = ...,
        test: Source | None = ...,
        public_first: Source | None = ...,
        out: Path | None = ...,
        progress: Shows = ...,
        **settings: Unpack[Settings],
    ) -> LanguageResult: ...

    @overload
    def finetune(
        self,
        train: Source,
        *,
        objective: Objective,
        dev: Source | None = ...,
        test: Source | None = ...,
        public_first: Source | None = ...,
        out: Path | None = ...,
        progress: Shows = ...,
        **settings: Unpack[Settings],
    ) -> RunResult: ...

    def finetune(
        self,
        train: Source,
        *,
        objective: Objective | str = Objective.CLASSIFICATION,
        dev: Source | None = None,
        test: Source | None = None,
        public_first: Source | None = None,
        out: Path | None = None,
        progress: Shows = True,
        **settings: Any,
    ) -> RunResult:
        """Fine-tunes the vendor's model on private texts, and measures what it cost and bought.

        A classifier learns a label for each text, an encoder-decoder its words. A language model learns to continue
        texts (of pairs the second one), an encoder-decoder to write a target text for each source; of both the customer
        holds the bottom and the tail, and the tokens to be predicted stay the true ones, but where words are drawn
        those that leave. What crosses into an encoder-decoder's decoder is made of its labels: with
        `Cut(target=0)` a table lookup reads them all, and the result says how many.

        Args:
            train: Texts to train on.
            objective: What is learnt: `classification`, `lm` or `seq2seq`.
            dev: Texts to stop on; `training.dev_share` of train where it is left out.
            test: Texts to measure utility on; without it, it is measured on dev, which chose the epoch.
            public_first: Language models and encoder-decoders: public text to begin with, before any private text
                leaves, which did little where it was measured (see `docs/papers/unsplit.md`).
            out: Folder of the run; a stopped run in it is resumed, and of a finished one the result is
                returned again.
            progress: Where to show progress.
            **settings: `eta` or `privacy`, of which one must be given: there is no default. `cut`, `tuning`,
                `training`, and the other settings of `FinetuneSpec` and `DataSpec`, by name.

        Returns:
            A `FinetuneResult` of a classifier, else a `LanguageResult`.

        Raises:
            ConfigError: Settings that contradict each other, all named at once.
            DataError: Files that cannot be used.
            BudgetError: A text would be charged beyond the budget. It is found before the run begins, and no text
                leaves; only where another run charges the same texts meanwhile, some may have left.
            VendorError: The vendor refused or stayed away; the same call goes on.
        """
        files = train, dev, test, public_first
        found = self._run(Objective(objective), files, out=out, progress=progress, **settings)
        if isinstance(found, Detached):
            raise TypeError("nothing was to be left to the vendor")
        return found

    def begin(
        self,
        train: Source,
        *,
        objective: Objective | str = Objective.CLASSIFICATION,
        dev: Source | None = None,
        test: Source | None = None,
        out: Path | None = None,
        progress: Shows = True,
        **settings: Unpack[Settings],
    ) -> FinetuneResult | LanguageResult | Detached:
        """Begins a run with `labels_at="vendor"`, and leaves it to the vendor once all texts are there.

        `finetune` with the same arguments waits for it and fetches the result. Arguments are those of `finetune`.

        Returns:
            The job and its folder; the result of a run that is finished.

        Raises:
            ConfigError: Labels stay here, so that nothing goes on without this process; or as of `finetune`.
        """
        given: dict[str, Any] = dict(settings)
        if LabelsAt(given.get("labels_at", LabelsAt.CUSTOMER)) is LabelsAt.CUSTOMER:
            raise ConfigError(
                "A run can be left to the vendor only where the vendor has its labels.",
                remedy='Give labels_at="vendor" (--labels-at vendor), or wait for the run.',
            )
        files = train, dev, test, None
        found = self._run(Objective(objective), files, out=out, progress=progress, detach=True, **given)
        return cast("FinetuneResult | LanguageResult | Detached", found)

    def _run(
        self,
        objective: Objective,
        files: tuple[Source, Source | None, Source | None, Source | None],
        *,
        detach: bool = False,
        out: Path | None,
        progress: Shows,
        **settings: Any,
    ) -> RunResult | Detached:
        train, *others = files
        privacy = choose_privacy(settings.pop("eta", None), settings.pop("privacy", None))
        columns = {name: settings.pop(name) for name in DataSpec.model_fields if name in settings}
        given = FinetuneSpec(objective=objective, privacy=privacy, **settings)
        data = DataSpec(**columns)
        if data.second_column(given.objective) or (isinstance(train, Dataset) and train.segments == 2):
            given = of_pairs(given)
        check_public(given, public=others[-1] is not None)
        validate(settle(given, public=others[-1] is not None), data)
        check_sent_labels(train, given, data)

        def read(source: Source | None) -> Any:
            return None if source is None else read_source(source, data, given.objective)

        corpora = Corpora(read(train), *map(read, others))
        check_labels(corpora.train, data)
        with shown(progress) as bars:
            return finetune(self, given, corpora, out=out, progress=bars, detach=detach)

    # ------------------------------------------------------------ queries

    def predict(
        self,
        adapter: str,
        texts: Texts,
        *,
        progress: Shows = True,
        **columns: Unpack[Columns],
    ) -> list[Prediction]:
        """Asks an adapter for labels, privatized in the way it was trained.

        Args:
            adapter: The adapter's identifier, as `finetune` returned it.
            texts: A file or a table, or texts, or pairs of texts.
            progress: Where to show progress.
            **columns: `text_column` and `text_pair_column` of a file or table.

        Raises:
            ConfigError: This customer's folder does not know the adapter, or texts where it was trained on pairs,
                or the other way round.
        """
        profile = Profile.load(self.home, adapter)
        dataset = read_texts(texts, DataSpec(**columns))
        with shown(progress) as bars:
            return predict(self, profile, dataset, bars)

    def generate(
        self,
        adapter: str,
        prompts: str | Sequence[str] | Protected,
        *,
        sampling: Sampling | None = None,
        on_text: OnText | None = None,
        progress: Shows = True,
    ) -> list[Generation]:
        """Has an adapter continue texts, or an encoder-decoder answer them, privatized in the way it was trained.

        Prompts and the tokens that are chosen leave through the same gate as texts to train on. The vendor reads
        most of the tokens that are chosen from its own output all the same: see `docs/explanation/threat-model.md`.

        Args:
            adapter: The adapter's identifier, as `finetune` returned it.
            prompts: One text, or several that are continued together; of an encoder-decoder, source texts. Into answers
                to what `protect` returned entities are put back; the adapter must draw nothing itself.
            sampling: How tokens are chosen.
            on_text: Told of text as it comes: the prompt's number and what was added. With entities, of whole texts.
            progress: Where to show the fetching of the bottom.

        Raises:
            ConfigError: This customer's folder does not know the adapter, it gives labels, or a text may become
                longer than the model takes.
            DataError: A prompt has no token.
        """
        profile = Profile.load(self.home, adapter)
        with shown(progress if on_text is None else None) as bars:
            return continue_texts(
                self,
                profile,
                [prompts] if isinstance(prompts, str) else prompts,
                sampling=sampling or Sampling(),
                on_text=on_text,
                progress=bars,
            )

    def embed(
        self,
        texts: Texts,
        *,
        max_length: int | None = None,
        progress: Shows = True,
        **settings: Unpack[Querying],
    ) -> Embedded:
        """Embeddings of texts by the vendor's frozen model: privatized rows or ids go up, one row a text comes down.

        Args:
            texts: A file or a table, or texts.
            max_length: Tokens of a text, special tokens included; the model's limit where it is left out.
            progress: Where to show progress.
            **settings: `eta` or `privacy`, of which one must be given; `denoiser`, `model`, `wire_type`,
                `privacy_budget`; and `text_column` of a file or table.

        Raises:
            ConfigError: Settings that do not go together.
            DataError: Pairs, or a text without a token.
            BudgetError: A text would be charged beyond the budget; none is sent.
        """
        given: dict[str, Any] = dict(settings)
        privacy = choose_privacy(given.pop("eta", None), given.pop("privacy", None))
        columns = {name: given.pop(name) for name in DataSpec.model_fields if name in given}
        own = {name: given.pop(name) for name in EmbeddingSettings.model_fields if name in given}
        spec = FinetuneSpec(privacy=privacy, training=Training(max_length=max_length), **given)
        dataset = read_texts(texts, DataSpec(**columns))
        with shown(progress) as bars:
            road = self._roads.find(spec, bars, denoiser=EmbeddingSettings(**own).denoiser)
            return embed(road, dataset, bars)

    @cached_property
    def _roads(self) -> Roads:
        return Roads(self)

    def exchange(
        self,
        adapter: str,
        texts: Texts,
        *,
        progress: Shows = True,
        **columns: Unpack[Columns],
    ) -> Exchanged:
        """Sends texts through the vendor's blocks of a language model's adapter: rows in, and rows out.

        They leave through the same gate as others, privatized in the way the adapter was trained. What comes back is
        what a customer can learn the vendor's blocks from.

        Args:
            adapter: The adapter's identifier, as `finetune` returned it.
            texts: A file or a table, or texts; those without a token are left out.
            progress: Where to show progress.
            **columns: `text_column` of a file or table.

        Raises:
            ConfigError: This customer's folder does not know the adapter, or it does not take rows and give rows.
            DataError: No text has a token.
        """
        profile = Profile.load(self.home, adapter)
        dataset = read_texts(texts, DataSpec(**columns))
        with shown(progress) as bars:
            return exchange(self, profile, dataset, bars)

    def discard(self, folder: Path) -> None:
        """Gives up an unfinished run: its job and records at the vendor go, and what it wrote here.

        Other files in its folder stay. What was released stays in the ledger, and stays charged.

        Args:
            folder: The run's folder (`out`).

        Raises:
            ConfigError: The folder holds no run, or a finished one.
        """
        Run.unfinished(folder)  # before a folder is made that is not there
        gate = self.gate()
        with Run.held(folder):
            run = Run.unfinished(folder)
            where = {"job": run.identifier("job")}
            if run.state.accepted and not run.state.given_up:
                check_is_here(gate, routes.JOB_GET, where, "job of this run", lost=f"remove {folder} yourself")
                run.state.given_up = True
                run.save()
            delete(gate, routes.JOB_DELETE, where)
            for name in ("train", "dev"):
                delete(gate, routes.RECORD_SET_DELETE, {"record_set": run.identifier(name)})
            run.remove()

    # ------------------------------------------------------------ without a vendor

    def privatize(
        self,
        texts: Texts,
        *,
        model: str | None = None,
        max_length: int | None = None,
        unsafe_noise_seed: int | None = None,
        progress: Shows = True,
        **settings: Unpack[Previewed],
    ) -> Preview:
        """Shows what would leave, text-to-text, beside the originals. Nothing is sent or charged.

        The draw of a text is the one that `finetune` and `predict` release at the same eta with the same
        model: your secret fixes it. With CTI, the vector mechanism or a bottom that is
        trained on resampled releases they draw otherwise, and this does not show it.

        Args:
            texts: A file or a table, or texts, or pairs of texts.
            model: A local folder or a hub id, the embedded `starter` where it is left out; it must be the vendor's
                model.
            max_length: Tokens of a text, special tokens included, as in `Training`; the model's limit
                where it is left out.
            unsafe_noise_seed: Draws the noise from this seed, which then protects nothing.
            progress: Where to show progress.
            **settings: `eta` or `privacy`, of which one must be given; and `text_column` and `text_pair_column` of a
                file or table.

        Raises:
            ConfigError: There is no such noise, or it has no meaning at this eta.
        """
        privacy = choose_privacy(settings.get("eta"), settings.get("privacy"))
        find_mechanism(privacy.noise)  # before texts are read
        columns: dict[str, Any] = {name: value for name, value in settings.items() if name in DataSpec.model_fields}
        rows = read_texts(texts, DataSpec(**columns)).texts
        draw = Draw(privacy, model=model or LOCAL_MODEL, max_length=max_length, unsafe_noise_seed=unsafe_noise_seed)
        with shown(progress) as bars:
            return Preview.of(self.privatize_stream(rows, draw, resume=False, progress=bars))

    def protect(
        self,
        texts: Sequence[str] | Sequence[Sequence[str]],
        entities: Entities | None = None,
        *,
        eta: float | None = None,
        privacy: PrivacySpec | None = None,
        privacy_budget: float | None = None,
        unsafe_noise_seed: int | None = None,
    ) -> Protected:
        """Puts drawn words in the places of entities, and keeps what puts them back. Nothing is sent.

        Each word of an entity is drawn once, wherever it stands, and charged in the ledger before the texts are handed
        out. All other words are handed out as they are.

        Args:
            texts: Prompts; or rows of texts about the same entities, as a table and what people wrote of it.
            entities: Strings, of all texts; or for each text strings and spans (begin, end) of its characters. Names
                and numbers that the tagger finds where they are left out.
            eta: As of `Words(eta=…, words="all")`.
            privacy: How words are drawn: `Words` with `words="all"`.
            privacy_budget: Largest sum of eta that a word may be charged over all its draws.
            unsafe_noise_seed: Draws the noise from this seed, which then protects nothing.

        Returns:
            Texts, in the form and order in which they were given, and the map, of which `restore` puts entities back.

        Raises:
            ConfigError: Entities cannot be protected so.
            DataError: An entity is empty, or in no text.
            BudgetError: A word would be charged beyond the budget. Nothing is handed out.
        """
        protection = Protection.of(eta, privacy, budget=privacy_budget, seed=unsafe_noise_seed)
        return protect(self.home, texts, entities, protection)

    def entity_map(self, job: str) -> EntityMap:
        """What puts the entities of an earlier `protect` back.

        Args:
            job: Its name, as `EntityMap.job` has it.

        Raises:
            DataError: This customer's folder has no map of it.
        """
        return EntityMap.load(self.home, job)

    def privatize_stream(
        self,
        texts: TextRows,
        draw: Draw,
        *,
        charge: bool = False,
        privacy_budget: float | None = None,
        executor: Executor | None = None,
        resume: bool = True,
        progress: Progress | None = None,
    ) -> PreviewStream:
        """Shows what would leave of a corpus of any size, one text after the other, as `privatize` draws it.

        Args:
            texts: A `data.TextFile`, or rows of one text or two.
            draw: What is drawn of each.
            charge: Whether the ledger charges each text, before it is handed out, as one that left: for releases that
                are passed on by another way than `finetune` and `predict`, which charge the same draws no further.
            privacy_budget: Largest sum of eta that a text may be charged over all its releases.
            executor: Where the work is done; in this process where it is left out. What is drawn is the same.
            resume: Whether what was drawn is kept, sealed, until all of it was handed out: the same call goes on there.
            progress: Where to show progress.

        Returns:
            The texts. Close it where it may not be read to its end.

        Raises:
            ConfigError: There is no such noise, or it has no meaning at this eta; or a budget without charges.
            BudgetError: A text would be charged beyond the budget. It is found before anything is drawn.
        """
        if privacy_budget is not None and not charge:
            raise ConfigError([Fault("privacy_budget", privacy_budget, "bounds what is charged, and nothing is")])
        find_mechanism(draw.privacy.noise)
        drawing = Drawing(
            privacy=draw.privacy,
            archive=local_archive_folder(self.home, draw.model, Cut(bottom=0)),
            secret=self.home.secret_file(),
            max_length=draw.max_length,
            unsafe_noise_seed=draw.unsafe_noise_seed,
        )
        work = Work(executor or InProcess(), progress or Silent(), self.home.drawn if resume else None)
        account = ShardAccount(self.ledger, draw.model, privacy_budget) if charge else None
        return PreviewStream(texts, drawing, work, account=account)
