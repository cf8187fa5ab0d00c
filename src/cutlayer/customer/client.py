"""The SDK: the whole job in a few lines.

```python
from cutlayer import Client

client = Client("https://vendor.example:8443", api_key="…")
result = client.finetune("notes.csv", text_column="text", label_column="label", eta=80)
print(result.ua, result.ep)
print(client.predict(result.adapter_id, ["a new note"]))
```
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import secrets
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch

from cutlayer.attacks import Exchanged
from cutlayer.core import (
    ConfigError,
    Cut,
    DataError,
    Fault,
    Place,
    Ragged,
    Rows,
    Tokens,
    checked,
)
from cutlayer.core.executors import Executor, InProcess
from cutlayer.customer.account import Account, check_is_here, delete
from cutlayer.customer.derived import noise_secret
from cutlayer.customer.finetune import Finetuning, build_session, check_spec, delete_records
from cutlayer.customer.forecast import charges_of, releases_of
from cutlayer.customer.gate import Gate
from cutlayer.customer.generate import OnText, generate
from cutlayer.customer.handout import Offer, choose_model, fetch_archive, local_archive_folder
from cutlayer.customer.link import AdapterLink
from cutlayer.customer.order import Order
from cutlayer.customer.prepare import Corpora, split_rows
from cutlayer.customer.preview import Draw, Preview, PreviewStream
from cutlayer.customer.profile import Profile
from cutlayer.customer.progress import Progress, Silent
from cutlayer.customer.results import FinetuneResult, Generation, LanguageResult, Prediction, RunResult
from cutlayer.customer.run import DataDigests, Run
from cutlayer.customer.sampling import Sampling
from cutlayer.customer.session import Session, Texts
from cutlayer.customer.settings import BUDGETS, Method, Objective, RunSpec, TrainBottom, TrainSpec
from cutlayer.customer.shards import Drawing, ShardAccount, TextRows, Work
from cutlayer.customer.trainer import EVALUATION_POSITIONS, LANGUAGE_POSITIONS, padded_batches
from cutlayer.data import UNCUT, Dataset, read_dataset, tokenise
from cutlayer.models import Tail
from cutlayer.privacy import (
    NOISE_WINDOW,
    CtiSpec,
    DChi,
    PrivacySpec,
    find_mechanism,
)
from cutlayer.wire import Transport, WireType, routes
from cutlayer.wire.transports import RecordingTransport

Mechanism = Literal["none", "text-to-text", "vector"]
"""How texts are privatized: not at all, to other tokens, or to rows of noise."""
Source = str | Path | Dataset
"""Where texts come from: a file, a hub data set (`hub:OWNER/NAME:SPLIT`), or a `Dataset`."""


class Client(Account):
    """A customer of one vendor.

    Args:
        vendor: The vendor's address; `CUTLAYER_VENDOR` where it is left out.
        api_key: The tenant's key; `CUTLAYER_API_KEY` where it is left out.
        home: The customer's folder; `CUTLAYER_HOME`, else `~/.cutlayer`, where it is left out.
        ca_cert: The certificate to trust, for a vendor that signed its own; `CUTLAYER_CA_CERT`.
        transport: Another way to the vendor, for an app in this process; then no address is needed.
        device: Where bottoms are computed: `cpu`, `cuda`, or `auto` for a GPU if there is one.
    """

    def __init__(
        self,
        vendor: str | None = None,
        api_key: str | None = None,
        *,
        home: Path | None = None,
        ca_cert: Path | None = None,
        transport: Transport | None = None,
        device: str = "auto",
    ) -> None:
        super().__init__(vendor, api_key, home=home, ca_cert=ca_cert, transport=transport)
        self.device = choose_device(device)

    # ------------------------------------------------------------ fine-tuning

    def finetune(
        self,
        train: Source,
        *,
        eta: float,
        text_column: str = "text",
        text_pair_column: str | None = None,
        label_column: str = "label",
        dev: Source | None = None,
        test: Source | None = None,
        mechanism: Mechanism | None = None,
        noise: str = DChi.name,
        noise_window: int | None = NOISE_WINDOW,
        place: Place = Place.TOKENS,
        cti: bool | CtiSpec = False,
        cti_class_free: bool = False,
        bottom: int | None = 0,
        train_bottom: TrainBottom = TrainBottom.FROZEN,
        model: str | None = None,
        wire_type: WireType = WireType.BF16,
        training: TrainSpec | None = None,
        budget: float | None = None,
        label_epsilon: float | None = None,
        label_budget: float | None = None,
        seed: int | None = None,
        unsafe_noise_seed: int | None = None,
        out: Path | None = None,
        progress: Progress | None = None,
    ) -> FinetuneResult:
        """Fine-tunes the vendor's model to label private texts, and measures what it cost and bought.

        Args:
            train: Texts to train on.
            eta: Privacy parameter per token, in 1/distance of the model's embedding table. There is
                no default: `math.inf` means no privacy, and is said everywhere.
            text_column: Column of the text.
            text_pair_column: Column of the second text, for pairs.
            label_column: Column of the label.
            dev: Texts to stop on; `training.dev_share` of train where it is left out.
            test: Texts to measure utility on; without it, it is measured on dev, which chose the epoch.
            mechanism: How texts are privatized; text-to-text for a finite eta.
            noise: The mechanism whose noise is drawn, by name: d_chi noise, or a plug-in's, whose promise is that
                package's claim and no guarantee of cutlayer's.
            noise_window: How many tokens before it a token's noise follows from; `None`: from all of them.
            place: Whether noise acts on tokens or on the bottom's output.
            cti: Contributing-token identification (SAP §4.4): eta per token and class. A `CtiSpec`
                makes the choices that the paper leaves open; `True` takes its defaults.
            cti_class_free: CTI whose noise does not depend on a text's own label; its scores are fitted on all.
                Turns CTI on.
            bottom: Blocks at the customer; `None` is the text cut.
            train_bottom: Whether and how the bottom is trained (SAP Appendix A).
            model: The vendor's model, or its default one.
            wire_type: Element type of boundary rows on the wire.
            training: How the adapter is trained.
            budget: Largest sum of eta that a text may be charged over all its releases.
            label_epsilon: Randomised response of labels, above 0: each is reported as it is with probability
                e^ε / (e^ε + K - 1), else as one of the others, drawn once for each text. Smaller hides more. Without
                it gradients show the labels of train.
            label_budget: Largest sum of epsilon that a label may be charged over all its draws.
            seed: Data order, initialisation and dropout; drawn where it is left out. Never noise.
            unsafe_noise_seed: Draws the noise from this seed. It then protects nothing; for tests.
            out: Folder of the run; a stopped run in it is resumed, and of a finished one the result is
                returned again.
            progress: Where to show progress.

        Raises:
            ConfigError: Settings that have no meaning together, all named at once.
            DataError: Files that cannot be used.
            BudgetError: A text would be charged beyond the budget. It is found before the run begins, and no text
                leaves; only where another run charges the same texts meanwhile, some may have left.
            VendorError: The vendor refused or stayed away; the same call goes on.
        """
        privacy = _privacy(
            eta, mechanism, place, noise=noise, noise_window=noise_window, cti=cti, cti_class_free=cti_class_free
        )
        columns = {"text_column": text_column, "text_pair_column": text_pair_column, "label_column": label_column}
        result = self._begin(
            _corpora(train, dev, test, **columns),
            privacy=privacy,
            train=training or TrainSpec(),
            objective=Objective.CLASSIFICATION,
            model=model,
            bottom=bottom,
            train_bottom=train_bottom,
            wire_type=wire_type,
            budget=budget,
            label_epsilon=label_epsilon,
            label_budget=label_budget,
            seed=seed,
            unsafe_noise_seed=unsafe_noise_seed,
            out=out,
            progress=progress,
        )
        return _of_kind(FinetuneResult, result)

    def finetune_language_model(
        self,
        train: Source,
        *,
        eta: float,
        text_column: str = "text",
        dev: Source | None = None,
        test: Source | None = None,
        mechanism: Mechanism | None = None,
        noise: str = DChi.name,
        noise_window: int | None = NOISE_WINDOW,
        place: Place = Place.TOKENS,
        bottom: int | None = 1,
        tail: int = 0,
        train_bottom: TrainBottom | None = None,
        model: str | None = None,
        wire_type: WireType = WireType.BF16,
        training: TrainSpec | None = None,
        budget: float | None = None,
        public_first: Source | None = None,
        public_iterations: int = 1,
        seed: int | None = None,
        unsafe_noise_seed: int | None = None,
        out: Path | None = None,
        progress: Progress | None = None,
    ) -> LanguageResult:
        """Fine-tunes the vendor's decoder to continue private texts: bottom and tail here, the blocks between there.

        Args:
            train: Texts to train on.
            eta: Privacy parameter per token, as in `finetune`. The tokens to be predicted stay the true ones.
            text_column: Column of the text.
            dev: Texts to stop on; `training.dev_share` of train where it is left out.
            test: Texts to measure perplexity on; dev where it is left out.
            mechanism: How texts are privatized; text-to-text for a finite eta.
            noise: As in `finetune`.
            noise_window: As in `finetune`.
            place: Whether noise acts on tokens or on the bottom's output.
            bottom: Blocks below the cut at the customer; `None` is the text cut.
            tail: Blocks above the upper cut at the customer, below the head; 0 is the final norm and the head.
            train_bottom: Whether and how the bottom is trained. By default it is, above one memoised release of the
                tokens, where it has something to train and the mechanism allows it.
            model: The vendor's model, or its default one.
            wire_type: Element type of rows and their gradients on the wire.
            training: How the model is tuned; `TrainSpec.language()` by default.
            budget: Largest sum of eta that a block of text may be charged over all its releases.
            public_first: Public text to begin with, before any private text leaves: the split fine-tuning paper's
                defence, which did little where it was measured (see `docs/papers/unsplit.md`).
            public_iterations: Steps on it.
            seed: Data order, initialisation and dropout; drawn where it is left out. Never noise.
            unsafe_noise_seed: Draws the noise from this seed. It then protects nothing; for tests.
            out: Folder of the run, as in `finetune`.
            progress: Where to show progress.

        It raises what `finetune` raises.
        """
        privacy = _privacy(eta, mechanism, place, noise=noise, noise_window=noise_window)
        settings = training or TrainSpec.language()
        given = _corpora(train, dev, test, text_column=text_column)
        if public_first is not None:
            public = _corpora(public_first, None, None, text_column=text_column).train
            given = dataclasses.replace(given, public=public)
        result = self._begin(
            given,
            privacy=privacy,
            train=settings,
            objective=Objective.LM,
            model=model,
            bottom=bottom,
            tail=tail,
            train_bottom=train_bottom or _default_train_bottom(bottom, privacy, settings),
            public_iterations=0 if public_first is None else public_iterations,
            wire_type=wire_type,
            budget=budget,
            seed=seed,
            unsafe_noise_seed=unsafe_noise_seed,
            out=out,
            progress=progress,
        )
        return _of_kind(LanguageResult, result)

    def finetune_seq2seq(
        self,
        train: Source,
        *,
        eta: float,
        text_column: str = "text",
        target_column: str = "target",
        dev: Source | None = None,
        test: Source | None = None,
        mechanism: Mechanism | None = None,
        noise: str = DChi.name,
        noise_window: int | None = NOISE_WINDOW,
        bottom: int = 1,
        target_bottom: int = 1,
        tail: int = 0,
        train_bottom: TrainBottom | None = None,
        model: str | None = None,
        wire_type: WireType = WireType.BF16,
        training: TrainSpec | None = None,
        budget: float | None = None,
        public_first: Source | None = None,
        public_iterations: int = 1,
        seed: int | None = None,
        unsafe_noise_seed: int | None = None,
        out: Path | None = None,
        progress: Progress | None = None,
    ) -> LanguageResult:
        """Fine-tunes the vendor's encoder-decoder to write a target text for each source text.

        Embeddings, the first blocks of encoder and decoder and the decoder's end are here, the blocks between at the
        vendor. Target texts go into the decoder, shifted by one, so what crosses there is made of their labels: with
        `target_bottom` 0 a table lookup reads them all, and the result says how many.

        Args:
            train: Pairs to train on.
            eta: Privacy parameter per token, as in `finetune`, of both texts. The tokens to be predicted stay the
                true ones.
            text_column: Column of the source text.
            target_column: Column of the target text.
            dev: Pairs to stop on; `training.dev_share` of train where it is left out.
            test: Pairs to measure perplexity on; dev where it is left out.
            mechanism: How texts are privatized; text-to-text for a finite eta.
            noise: As in `finetune`.
            noise_window: As in `finetune`.
            bottom: Encoder blocks at the customer.
            target_bottom: First decoder blocks at the customer.
            tail: Last decoder blocks at the customer, below the head.
            train_bottom: As in `finetune_language_model`.
            model: The vendor's model, or its default one.
            wire_type: Element type of rows and their gradients on the wire.
            training: How the model is tuned; `TrainSpec.seq2seq()` by default.
            budget: Largest sum of eta that a pair may be charged over all its releases.
            public_first: Public pairs to begin with, as in `finetune_language_model`.
            public_iterations: Steps on them.
            seed: Data order and initialisation; drawn where it is left out. Never noise.
            unsafe_noise_seed: Draws the noise from this seed. It then protects nothing; for tests.
            out: Folder of the run, as in `finetune`.
            progress: Where to show progress.

        It raises what `finetune` raises.
        """
        privacy = _privacy(eta, mechanism, Place.TOKENS, noise=noise, noise_window=noise_window)
        settings = training or TrainSpec.seq2seq()
        columns = {"text_column": text_column, "text_pair_column": target_column}
        given = _corpora(train, dev, test, **columns)
        if public_first is not None:
            given = dataclasses.replace(given, public=_corpora(public_first, None, None, **columns).train)
        result = self._begin(
            given,
            privacy=privacy,
            train=settings,
            objective=Objective.SEQ2SEQ,
            model=model,
            bottom=bottom,
            target=target_bottom,
            tail=tail,
            train_bottom=train_bottom or _default_train_bottom(bottom or target_bottom, privacy, settings),
            public_iterations=0 if public_first is None else public_iterations,
            wire_type=wire_type,
            budget=budget,
            seed=seed,
            unsafe_noise_seed=unsafe_noise_seed,
            out=out,
            progress=progress,
        )
        return _of_kind(LanguageResult, result)

    def _begin(
        self,
        given: Corpora,
        *,
        model: str | None,
        seed: int | None,
        out: Path | None,
        progress: Progress | None,
        **settings: Any,
    ) -> RunResult:
        """The run of these settings on these texts, begun, continued, or shown again."""
        chosen = choose_model(self._gate(), model)
        with checked():
            spec = RunSpec(model=chosen.model.name, seed=seed or 0, **settings)
        check_spec(spec)
        digests = given.digests(self.home.secret.derive("data digest"))
        folder = self._default_folder(spec, seed, digests.rows) if out is None else out.expanduser()
        with Run.held(folder):
            if seed is None:
                found = Run.seed_in(folder)
                spec = spec.model_copy(update={"seed": secrets.randbelow(2**31) if found is None else found})
            return self._run(folder, spec, given, chosen, digests=digests, progress=progress or Silent())

    def _run(
        self, folder: Path, spec: RunSpec, given: Corpora, chosen: Offer, *, digests: DataDigests, progress: Progress
    ) -> RunResult:
        """The run in a folder, begun, continued, or shown again."""
        secret = noise_secret(self.home, spec.unsafe_noise_seed)
        rows = split_rows(given, spec, secret)  # what is wrong with the data is told before anything is begun
        run = Run.open(folder, run=secrets.token_hex(16), data=digests, spec=spec)
        if run.state.adapter is not None:
            if not self.home.adapter(run.state.adapter).exists():
                raise ConfigError(
                    f"{folder} holds this run, finished, and its adapter {run.state.adapter} was deleted.",
                    remedy="Choose another folder with --out.",
                )
            if run.state.undeleted:
                delete_records(run, self._gate())
            return run.result()
        run.save()
        try:
            with closing(RecordingTransport(self._transport, run.transcript)) as recorder:
                gate = Gate(
                    recorder,
                    self.home.ledger,
                    run=run.state.run,
                    vocab_size=chosen.model.vocab_size,
                    width=chosen.model.width,
                    wire_type=spec.wire_type,
                    budget=spec.budget,
                    label_budget=spec.label_budget,
                    unsafe=spec.unsafe_noise_seed is not None,
                    model=chosen.model.name,
                )
                return Finetuning(self.home, gate, chosen, rows, run, progress, self.device).execute()
        finally:
            if not run.state.asked:
                run.forget()

    def _default_folder(self, spec: RunSpec, seed: int | None, data: str) -> Path:
        """A folder by vendor, settings and data, so that the same call finds what it left unfinished."""
        # the address in one spelling: another one would make another run of the same call
        call = f"{self._transport.peer}\n{spec.model_dump_json(exclude=set(BUDGETS))}\n{seed}\n{data}"
        name = hashlib.blake2b(call.encode(), digest_size=8).hexdigest()
        number = 0
        while Run.is_finished(folder := self.home.run(f"{name}-{number}")):
            number += 1
        return folder

    # ------------------------------------------------------------ queries

    def predict(
        self,
        adapter: str,
        texts: Source | Sequence[str] | Sequence[tuple[str, str]],
        *,
        text_column: str = "text",
        text_pair_column: str | None = None,
        progress: Progress | None = None,
    ) -> list[Prediction]:
        """Asks an adapter for labels, privatized in the way it was trained.

        Args:
            adapter: The adapter's identifier, as `finetune` returned it.
            texts: A file, or texts, or pairs of texts.
            text_column: The file's column of the text.
            text_pair_column: The file's column of the second text, for pairs.
            progress: Where to show progress.

        Raises:
            ConfigError: This customer's folder does not know the adapter, or texts where it was trained on pairs,
                or the other way round.
        """
        progress = progress or Silent()
        profile = Profile.load(self.home, adapter)
        if profile.spec.objective.generates:
            raise ConfigError(f"Adapter {adapter} is a language model's: it gives no labels.", remedy="Use generate.")
        dataset = _dataset(texts, text_column, text_pair_column)
        if dataset.segments != profile.segments:
            raise ConfigError(
                f"The adapter was trained on {'pairs' if profile.segments == 2 else 'single texts'}.",
                remedy="Pass the column of the second text." if profile.segments == 2 else "Pass one text a row.",
            )
        session, gate, offer = self._asking(profile, f"predict/{adapter}", progress)
        session.link = AdapterLink(gate, adapter, labels=len(profile.labels))
        archive = session.archive
        session.eval()
        tokens = tokenise(dataset, archive.tokenizer, max_content=profile.max_content)
        order = self._order(profile, f"predict/{adapter}").of(dataset.texts)
        tokens = tokens.select(torch.tensor(order))
        self._check_budget(profile, session, tokens, offer, progress)
        most = min(offer.positions, EVALUATION_POSITIONS)
        predictions: list[Prediction] = []
        with torch.no_grad():
            for indices in padded_batches(archive.template.segment_lengths(tokens).sum(1), most):
                probabilities, best = session(Texts(tokens.select(indices))).softmax(1).max(1)
                predictions += [
                    Prediction(label=profile.labels[label], probability=probability)
                    for label, probability in zip(best.tolist(), probabilities.tolist(), strict=True)
                ]
                progress.update("predict", int(indices[-1]) + 1, len(dataset))
        found = dict(zip(order, predictions, strict=True))
        return [found[row] for row in range(len(dataset))]

    def generate(
        self,
        adapter: str,
        prompts: str | Sequence[str],
        *,
        sampling: Sampling | None = None,
        on_text: OnText | None = None,
        progress: Progress | None = None,
    ) -> list[Generation]:
        """Has an adapter continue texts, or an encoder-decoder answer them, privatized in the way it was trained.

        Prompts and the tokens that are chosen leave through the same gate as texts to train on. The vendor reads
        most of the tokens that are chosen from its own output all the same: see `docs/explanation/threat-model.md`.

        Args:
            adapter: The adapter's identifier, as `finetune_language_model` returned it.
            prompts: One text, or several that are continued together; of an encoder-decoder, source texts.
            sampling: How tokens are chosen.
            on_text: Told of text as it comes: the prompt's number and what was added.
            progress: Where to show the fetching of the bottom.

        Raises:
            ConfigError: This customer's folder does not know the adapter, it gives labels, or a text may become
                longer than the model takes.
            DataError: A prompt has no token.
        """
        profile = Profile.load(self.home, adapter)
        if not profile.spec.objective.generates:
            raise ConfigError(f"Adapter {adapter} is a classifier's: it gives no text.", remedy="Use predict.")
        given = [prompts] if isinstance(prompts, str) else list(prompts)
        if not given:
            raise DataError("There are no prompts.", remedy="Give one at least.")
        session, gate, offer = self._asking(profile, f"generate/{adapter}", progress or Silent())
        order = self._order(profile, f"generate/{adapter}").of([(prompt,) for prompt in given])
        dataset = Dataset(tuple((given[row],) for row in order))
        # a source text is cut as those of training were; a prompt never is
        most = profile.max_content if profile.spec.objective is Objective.SEQ2SEQ else UNCUT
        (tokens,) = tokenise(dataset, session.archive.tokenizer, max_content=most).segments
        found = generate(
            session,
            gate,
            adapter,
            tokens,
            sampling or Sampling(),
            limit=offer.model.max_length,
            on_text=(lambda number, piece: on_text(order[number], piece)) if on_text else (lambda number, piece: None),
        )
        written = dict(zip(order, found, strict=True))
        return [written[row] for row in range(len(given))]

    def exchange(
        self,
        adapter: str,
        texts: Source | Sequence[str],
        *,
        text_column: str = "text",
        progress: Progress | None = None,
    ) -> Exchanged:
        """Sends texts through the vendor's blocks of a language model's adapter: rows in, and rows out.

        They leave through the same gate as others, privatized in the way the adapter was trained. What comes back is
        what a customer can learn the vendor's blocks from.

        Args:
            adapter: The adapter's identifier, as `finetune_language_model` returned it.
            texts: A file, or texts; those without a token are left out.
            text_column: The file's column of the text.
            progress: Where to show progress.

        Raises:
            ConfigError: This customer's folder does not know the adapter, or it does not take rows and give rows.
            DataError: No text has a token.
        """
        progress = progress or Silent()
        profile = Profile.load(self.home, adapter)
        if profile.spec.objective is not Objective.LM or profile.spec.bottom is None:
            raise ConfigError(
                f"Adapter {adapter} does not take rows and give rows back.",
                remedy="Name a language model's, with bottom 0 or more.",
            )
        session, gate, offer = self._asking(profile, f"exchange/{adapter}", progress)
        session.link = AdapterLink(gate, adapter, labels=None)
        session.eval()
        template, tail, table = session.archive.template, session.tail, session.archive.table
        if not isinstance(tail, Tail) or table is None:
            raise TypeError("a language model's customer holds table and tail")
        dataset = _dataset(texts, text_column, None)
        order = torch.tensor(self._order(profile, f"exchange/{adapter}").of(dataset.texts))
        tokens = tokenise(dataset, session.archive.tokenizer, max_content=profile.max_content).select(order)
        held = template.segment_lengths(tokens).sum(1) > 0
        tokens, order = tokens.select(held.nonzero()[:, 0]), order[held]
        if not len(tokens):
            raise DataError("No text has a token.", remedy="Name the column of the text.")
        self._check_budget(profile, session, tokens, offer, progress)
        sent, returned = [], []
        for indices in padded_batches(
            template.segment_lengths(tokens).sum(1), min(offer.positions, LANGUAGE_POSITIONS)
        ):
            release = session.release(Texts(tokens.select(indices))).release
            rows = release.payload
            if isinstance(rows, Tokens):  # ids left, and the vendor looks them up in the table that is here too
                embedded = template.assemble(rows, table=table.detach()).inputs_embeds
                if embedded is None:
                    raise TypeError("what is looked up in a table are rows")
                rows = template.unpad(embedded, rows)
            output = session.link.infer(release)
            rows = dataclasses.replace(rows, packed=rows.packed.with_values(rows.packed.values.float().cpu()))
            sent.append(rows)
            returned.append(dataclasses.replace(rows, packed=rows.packed.with_values(output)))
            progress.update("exchange rows", int(indices[-1]) + 1, len(tokens))
        inputs = template.assemble(tokens)
        if inputs.input_ids is None:
            raise TypeError("texts have token ids")
        lengths = template.segment_lengths(tokens).sum(1)
        return Exchanged(
            sent=Rows.concatenate(sent),
            returned=Rows.concatenate(returned),
            tokens=Ragged(inputs.input_ids[inputs.attention_mask.bool()], lengths),
            tail=tail,
            template=template,
        ).select(order.argsort())

    def _order(self, profile: Profile, run: str) -> Order:
        """In which texts are asked about: others may hold a list of people in the file's order."""
        return Order(noise_secret(self.home, profile.spec.unsafe_noise_seed), run)

    def _check_budget(
        self, profile: Profile, session: Session, tokens: Tokens, offer: Offer, progress: Progress
    ) -> None:
        """Refuses, before any leaves, texts that would be charged beyond the adapter's budget."""
        if profile.spec.budget is None:
            return
        releases = releases_of(session, Texts(tokens), width=offer.model.width)
        charges = charges_of(releases, total=len(tokens), progress=progress)
        self.ledger.check_budget(charges, unit=session.privatizer.unit, budget=profile.spec.budget)

    def _asking(self, profile: Profile, run: str, progress: Progress) -> tuple[Session, Gate, Offer]:
        """The road to an adapter, as it was trained, with the door on it."""
        find_mechanism(profile.spec.privacy.noise)  # before the vendor is asked: a plug-in may be gone
        offer = choose_model(self._gate(), profile.spec.model)
        gate = Gate(
            self._transport,
            self.home.ledger,
            run=run,
            vocab_size=offer.model.vocab_size,
            width=offer.model.width,
            wire_type=profile.spec.wire_type,
            budget=profile.spec.budget,
            unsafe=profile.spec.unsafe_noise_seed is not None,
            model=offer.model.name,
        )
        archive = fetch_archive(gate, self.home, offer.model, profile.spec.cut, progress)
        session = build_session(archive, self.home, profile.spec, profile.importance(self.home), None, self.device)
        session.load_trained(profile.trained(self.home))
        return session, gate, offer

    def discard(self, folder: Path) -> None:
        """Gives up an unfinished run: its job and records at the vendor go, and what it wrote here.

        Other files in its folder stay. What was released stays in the ledger, and stays charged.

        Args:
            folder: The run's folder (`out`).

        Raises:
            ConfigError: The folder holds no run, or a finished one.
        """
        Run.unfinished(folder)  # before a folder is made that is not there
        gate = self._gate()
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
        texts: Source | Sequence[str] | Sequence[tuple[str, str]],
        *,
        eta: float,
        noise: str = DChi.name,
        noise_window: int | None = NOISE_WINDOW,
        model: str = "starter",
        text_column: str = "text",
        text_pair_column: str | None = None,
        max_length: int | None = None,
        unsafe_noise_seed: int | None = None,
        progress: Progress | None = None,
    ) -> Preview:
        """Shows what would leave, text-to-text, beside the originals. Nothing is sent or charged.

        The draw of a text is the one that `finetune` and `predict` release at the same eta with the same
        model: your secret fixes it. With CTI, the vector mechanism or a bottom that is
        trained by redraw they draw otherwise, and this does not show it.

        Args:
            texts: A file, or texts, or pairs of texts.
            eta: Privacy parameter per token, in 1/distance of the model's embedding table.
            noise: As in `finetune`.
            noise_window: As in `finetune`.
            model: `starter`, a local folder or a hub id; it must be the vendor's model.
            text_column: The file's column of the text.
            text_pair_column: The file's column of the second text, for pairs.
            max_length: Tokens of a text, special tokens included, as in `TrainSpec`; the model's limit
                where it is left out.
            unsafe_noise_seed: Draws the noise from this seed, which then protects nothing.
            progress: Where to show progress.

        Raises:
            ConfigError: There is no such noise, or it has no meaning at this eta.
        """
        privacy = _privacy(eta, None, Place.TOKENS, noise=noise, noise_window=noise_window)
        draw = Draw(privacy, model=model, max_length=max_length, unsafe_noise_seed=unsafe_noise_seed)
        rows = _dataset(texts, text_column, text_pair_column).texts
        return Preview.of(self.privatize_stream(rows, draw, resume=False, progress=progress))

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


def choose_device(name: str) -> torch.device:
    """The device of that name; `auto` is a GPU if there is one.

    Raises:
        ConfigError: There is no such device here.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda") or (name == "cuda" and not torch.cuda.is_available()):
        raise ConfigError([Fault("device", name, "must be auto, cpu, or cuda where there is a GPU")])
    return torch.device(name)


def _corpora(train: Source, dev: Source | None, test: Source | None, **columns: str | None) -> Corpora:
    """Train, dev and test, read from wherever they come."""

    def read(source: Source) -> Dataset:
        return source if isinstance(source, Dataset) else read_dataset(source, **columns)  # type: ignore[arg-type]

    return Corpora(read(train), None if dev is None else read(dev), None if test is None else read(test))


R = TypeVar("R", bound=RunResult)


def _of_kind(kind: type[R], result: RunResult) -> R:
    if not isinstance(result, kind):
        raise TypeError(f"the run has a {type(result).__name__}")
    return result


def _default_train_bottom(bottom: int | None, privacy: PrivacySpec, settings: TrainSpec) -> TrainBottom:
    """Trained, as the tail is, where there is something to train without a second look at a text."""
    if bottom and privacy.mechanism != "vector":
        return TrainBottom.MEMOISED
    whole_table = bottom == 0 and privacy.mechanism == "none" and settings.method is Method.FULL
    return TrainBottom.REDRAW if whole_table else TrainBottom.FROZEN


def _privacy(
    eta: float,
    mechanism: Mechanism | None,
    place: Place,
    *,
    noise: str,
    noise_window: int | None,
    cti: bool | CtiSpec = False,
    cti_class_free: bool = False,
) -> PrivacySpec:
    """The privacy settings; the mechanism follows from eta where it is not named."""
    find_mechanism(noise)  # before texts are read and a vendor is asked
    if mechanism is None:
        mechanism = "none" if eta == math.inf else "text-to-text"
    choices = cti if isinstance(cti, CtiSpec) else CtiSpec() if cti or cti_class_free else None
    if choices is not None and cti_class_free:
        choices = choices.model_copy(update={"class_free": True})
    return PrivacySpec(mechanism=mechanism, eta=eta, place=place, cti=choices, noise=noise, noise_window=noise_window)


def _dataset(
    texts: Source | Sequence[str] | Sequence[tuple[str, str]], text_column: str, text_pair_column: str | None
) -> Dataset:
    """Texts without labels, from wherever they come."""
    if isinstance(texts, Dataset):
        return texts
    if isinstance(texts, str | Path):
        return read_dataset(texts, text_column=text_column, text_pair_column=text_pair_column)
    return Dataset(tuple((text,) if isinstance(text, str) else tuple(text) for text in texts))
