"""What a run will do, worked out and checked before any text leaves: its parts, its data as tokens, its job."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Final

import torch

from cutlayer.core import Cut, CutlayerWarning, PrecededTokens, Tokens
from cutlayer.customer.clear_words import warn_of_clear_words
from cutlayer.customer.corpora import Labelled, Plain
from cutlayer.customer.derived import Privatizing, dropout_seed, label_response, noise_secret, run_order
from cutlayer.customer.forecast import Forecast
from cutlayer.customer.gate import Gate
from cutlayer.customer.handout import Offer, fetch_archive
from cutlayer.customer.home import Home
from cutlayer.customer.link import Link, QueryLink
from cutlayer.customer.order import Order
from cutlayer.customer.prepare import Prepared, check_batches, largest_step, prepare
from cutlayer.customer.progress import Progress
from cutlayer.customer.run import Run
from cutlayer.customer.seq2seq import Seq2SeqSession
from cutlayer.customer.session import Releasing, Session
from cutlayer.customer.settings import FullTuning, LabelsAt, Objective, RunSpec, TrainBottom
from cutlayer.customer.tuning import trains_shared, tune
from cutlayer.customer.validate import check_head, check_model
from cutlayer.models import FAMILIES, Archive
from cutlayer.models.optimiser import updates_in, warmup_in
from cutlayer.privacy import Spellings, build_privatizer
from cutlayer.privacy.privatizers.words import WordsPrivatizer
from cutlayer.privacy.spec import NoPrivacy, PrivacySpec
from cutlayer.wire import Form
from cutlayer.wire.messages import (
    JobSpec,
    LoopSpec,
    ModelInfo,
    OptimiserSpec,
    ReconstructionSpec,
    RecordSetSpec,
    WarmedFor,
)

_LOOKED_AT: Final = 500
"""Texts of train that are drawn without plain words, too, to tell what these cost them."""


@dataclass(frozen=True)
class Plan:
    """A run as it will be.

    Attributes:
        spec: Its settings.
        offer: The vendor's model and limits.
        archive: What the vendor handed out for the cut.
        data: The texts as tokens.
        order: In which order they leave and are trained on.
        session: The road, without a link yet.
        forecast: What it will release.
    """

    spec: RunSpec
    offer: Offer
    archive: Archive
    data: Prepared
    order: Order
    session: Session
    forecast: Forecast

    @property
    def trains(self) -> bool:
        """Whether the customer has weights of its own to train, and to keep in step with the vendor's."""
        return bool(self.session.trained())

    @property
    def by_vendor(self) -> bool:
        """Whether the vendor trains alone, on labels that it is sent."""
        return self.spec.labels_at is LabelsAt.VENDOR

    @property
    def _loop(self) -> LoopSpec | None:
        """How the vendor trains alone: in the order in which the customer would."""
        training = self.spec.training
        if not self.by_vendor:
            return None
        return LoopSpec(
            orders=tuple(self.order.key(epoch).hex() for epoch in range(training.epochs)),
            batch_size=training.batch_size,
            group_by_length=training.group_by_length,
            patience=training.patience,
        )

    @property
    def total_steps(self) -> int:
        """Steps of the whole run, if nothing stops it early."""
        training = self.spec.training
        return self.spec.public_iterations + -(-len(self.data.train) // training.batch_size) * training.epochs

    @property
    def warmup_steps(self) -> int:
        """Updates over which the rate rises."""
        training = self.spec.training
        updates = updates_in(self.total_steps, training.gradient_accumulation_steps)
        return warmup_in(updates, training.warmup_steps)

    @property
    def job_cut(self) -> Cut:
        """The cut as the vendor sees it: ids make every bottom a text cut's."""
        cut = self.spec.cut
        return cut.model_copy(update={"bottom": None}) if self.spec.form is Form.IDS else cut

    @property
    def _segments(self) -> int:
        """Texts of a row as it leaves: an encoder-decoder's leave one by one or as they are, a decoder's joined."""
        return 1 if self.spec.objective.generates and not self.spec.sends_pairs else self.data.segments

    def record_set_spec(self, *, trained: bool) -> RecordSetSpec:
        """What the vendor is told of stored texts.

        Args:
            trained: Whether they are trained on: it is told where plain words stand before these alone.
        """
        plain = self.data.privatizing.plain if trained else None
        told = {} if plain is None else {"plain_tokens": plain.count, "plain_sequences": len(plain.numbers)}
        return RecordSetSpec(
            **told,
            num_labels=(len(self.data.label_names) or None) if self.by_vendor else None,
            model=self.offer.model.name,
            cut=self.job_cut,
            form=self.spec.form,
            segments=self._segments,
            wire_type=self.spec.wire_type,
        )

    @property
    def _reconstruction(self) -> ReconstructionSpec | None:
        """What the vendor is told of plain words: their numbers, and no word."""
        plain, settings = self.data.privatizing.plain, self.spec.reconstruction
        if plain is None:
            return None
        return ReconstructionSpec(
            vocabulary=plain.vocabulary,
            width=settings.reconstruction_width,
            weight=settings.weight,
            words=plain.numbers,
        )

    def job_spec(self, run: Run) -> JobSpec:
        """What the vendor is told of the job.

        Args:
            run: Which names its record sets.
        """
        spec, training = self.spec, self.spec.training
        return JobSpec(
            model=self.offer.model.name,
            fingerprint=self.offer.model.fingerprint,
            cut=self.job_cut,
            form=spec.form,
            wire_type=spec.wire_type,
            segments=self._segments,
            record_sets=tuple(run.identifier(name) for name in ("train", "dev")) if spec.stores else (),
            loop=self._loop,
            num_labels=len(self.data.label_names) or None,
            label_words=self.data.label_words,
            trainable_bottom=not spec.stores,
            tuning=spec.tuning.told,
            shared_weights=trains_shared(spec, FAMILIES[self.offer.model.family]),
            reconstruction=self._reconstruction,
            optimiser=OptimiserSpec(
                kind=training.optim,
                schedule=training.lr_scheduler_type,
                learning_rate=training.learning_rate,
                weight_decay=training.weight_decay,
                warmup_steps=self.warmup_steps,
                total_steps=self.total_steps,
                accumulation=training.gradient_accumulation_steps,
                clip_norm=training.max_grad_norm,
            ),
            dropout=training.dropout,
            gradient_checkpointing=training.gradient_checkpointing,
            precision=training.precision,
            seed=spec.seed,
            checkpoint_every=training.checkpoint_steps,
            largest_steps=tuple(
                largest_step(examples, self.archive, batch_size=training.batch_size)
                for examples in (self.data.train, self.data.public)
                if examples is not None
            ),
        )


def plan(
    home: Home,
    gate: Gate,
    offer: Offer,
    rows: Labelled | Plain,
    spec: RunSpec,
    progress: Progress,
    device: torch.device,
) -> Plan:
    """Works out a run, and refuses what would fail in its middle. Only the bottom is fetched; no text leaves.

    Args:
        home: The customer's folder.
        gate: The door.
        offer: The vendor's model and limits.
        rows: The data.
        spec: The run's settings.
        progress: Where to show progress.
        device: Where the bottom is computed.

    Raises:
        ConfigError: Settings that this model or this data does not allow.
        DataError: Texts that cannot be trained on.
        ModelError: The model cannot learn what is to be learnt, or cannot be cut so.
    """
    check_model(spec, offer.model)
    warn_of_another_warm_up(spec.privacy, offer.model)
    archive = fetch_archive(gate, home, offer.model, spec.cut, progress)
    whole = isinstance(spec.tuning, FullTuning)
    if (spec.train_bottom is not TrainBottom.FROZEN and not spec.cut.bottom) or whole:
        archive.check_trainable()  # the table is trained; deeper bottoms may train their blocks alone
    if spec.form is Form.IDS and whole:
        check_head(archive)
    secret = noise_secret(home, spec.unsafe_noise_seed)
    data = prepare(
        rows,
        spec,
        archive,
        home,
        vocab_size=offer.model.vocab_size,
        reported=rows.report(label_response(spec, secret), archive.tokenizer, vault=home.vault)
        if isinstance(rows, Labelled)
        else None,
    )
    session = build_session(archive, home, spec, data.privatizing, None, device)
    data.check()
    privatizer = data.privatizing.privatizer
    warn_of_clear_words(privatizer.clear(data.tokens), data.tokens.total, of="train")
    warn_of_lost_ends(spec, archive, data.privatizing, data.tokens)
    if data.label_words is None and data.label_names:
        spec.reconstruction.warn_of_what_labels_lose(spec.tuning.pooling, len(data.label_names))
    if data.label_words is not None and len(spec.label_words) < len(data.label_words):
        warnings.warn(
            "The vendor is told what labels are called: this model writes their names. label_words gives other words.",
            CutlayerWarning,
            stacklevel=2,
        )
    if spec.labels_at is LabelsAt.VENDOR and (told := _told_as_they_are(spec)):
        warnings.warn(
            told,
            CutlayerWarning,
            stacklevel=2,
        )
    data.privatizing.reading.check_vocabulary(data.tokens)
    forecast = Forecast(home, spec, data, session, width=offer.model.width)
    forecast.check_noise()
    for examples in (data.train, data.public):
        if examples is not None:
            positions = offer.most_positions(spec.step_type)
            check_batches(examples.lengths, batch_size=spec.training.batch_size, positions=positions)
    return Plan(
        spec=spec,
        offer=offer,
        archive=archive,
        data=data,
        order=run_order(spec.seed, spec.privacy, secret),
        session=session,
        forecast=forecast,
    )


def warn_of_lost_ends(spec: RunSpec, archive: Archive, privatizing: Privatizing, tokens: Tokens) -> None:
    """Tells, before anything leaves, of training texts that lose their end to the plain words before them."""
    training, some = privatizing.training, tokens.select(range(min(len(tokens), _LOOKED_AT)))
    behind = training.shape(some)
    if not isinstance(behind, PrecededTokens):
        return
    by_itself = privatizing.privatizer
    if isinstance(training, WordsPrivatizer):  # whose other texts may have plain words, too
        by_itself = training.preceded_by(None, told=False)
    own, whole = (
        torch.stack([segment.lengths for segment in each.segments]).sum(0)
        for each in (behind.parted()[1], by_itself.shape(some))
    )
    template = archive.template.behind(spec.tuning.positions)
    if template.max_length is None:
        return
    # a tokenizer may make fewer tokens of a word behind others: a text is cut where it would not fit
    full = behind.preceding.sum(1) + whole > template.max_content(behind.segment_count)
    if cut := int((full & (own < whole)).sum()):
        lost = (whole - own)[full].sum().item() / whole.sum().item()
        warnings.warn(
            f"Plain words take positions of the model: of the first {len(some)} texts of train {cut} lose their end "
            f"to them, {lost:.0%} of all tokens. Give fewer plain_tokens, or choose a model with more positions.",
            CutlayerWarning,
            stacklevel=3,
        )


def _told_as_they_are(spec: RunSpec) -> str:
    """What a run with labels at the vendor sends of them in clear; empty if nothing."""
    if not spec.sends_pairs:
        clear = spec.label_epsilon is None
        return "Labels of train and dev are sent to the vendor as they are. label_epsilon draws them first." * clear
    clear = spec.privacy.mechanism == "none"
    return "Source and target texts are sent to the vendor as they are. --mechanism words draws them first." * clear


def warn_of_another_warm_up(privacy: PrivacySpec, model: ModelInfo) -> None:
    """Tells, before anything leaves, of a model that learnt to read other releases than this run's."""
    if model.warmed_for is None:
        return
    own = WarmedFor.told(privacy.model_dump(mode="json"))
    warmed = model.warmed_for.model_dump(mode="json", exclude_none=True)
    differ = [f"{name} = {warmed[name]} (yours: {own.get(name)})" for name in warmed if own.get(name) != warmed[name]]
    if differ:
        warnings.warn(
            f"{model.name} was warmed up to read releases by other settings than yours: {', '.join(differ)}. What it "
            "gains was measured where they are the same.",
            CutlayerWarning,
            stacklevel=2,
        )


def build_session(
    archive: Archive,
    home: Home,
    spec: RunSpec,
    privatizing: Privatizing,
    link: Link | QueryLink | None,
    device: torch.device,
) -> Session:
    """The road for these settings.

    Args:
        archive: What the vendor handed out.
        home: The customer's folder.
        spec: The run's settings.
        privatizing: How its texts are read and privatized.
        link: The way to the vendor, where there is one already.
        device: Where the bottom is computed.
    """
    secret = noise_secret(home, spec.unsafe_noise_seed)
    kind = Seq2SeqSession if spec.objective is Objective.SEQ2SEQ and not spec.sends_pairs else Session
    return kind(
        archive=archive,
        parts=tune(archive, spec),
        releasing=Releasing(
            privatizing=privatizing,
            public=build_privatizer(NoPrivacy(), secret=secret, spellings=Spellings(archive.spellings)),
            form=spec.form,
            wire_type=spec.wire_type,
            vault=home.vault,
        ),
        link=link,
        seed=dropout_seed(secret, spec.seed),
        precision=spec.training.precision,
        device=device,
    )
