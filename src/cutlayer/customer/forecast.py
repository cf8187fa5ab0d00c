"""What a run would release, looked at before the vendor hears of it: can its noise be drawn, does its budget last?

A refusal in the middle would leave texts released for nothing, and a job at the vendor that nobody ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property

import numpy as np

from cutlayer.core import Guarantee, Place
from cutlayer.customer.home import Home
from cutlayer.customer.prepare import Prepared
from cutlayer.customer.progress import Progress
from cutlayer.customer.session import Session, Texts
from cutlayer.customer.settings import LabelsAt, RunSpec, TrainBottom
from cutlayer.customer.upload import BLOCK_BYTES, blocks
from cutlayer.privacy import LABEL_UNIT, LABELS_SENT, Charges, Release, generator
from cutlayer.privacy.budget import within_budget
from cutlayer.privacy.randomness import KEY_BYTES


class Forecast:
    """The releases of one run, before any of them is made.

    Args:
        home: The customer's folder, whose ledger knows what was charged.
        spec: The run's settings.
        data: Its texts.
        session: What privatizes them.
        width: Of a hidden row.
    """

    def __init__(self, home: Home, spec: RunSpec, data: Prepared, session: Session, *, width: int) -> None:
        self._ledger = home.ledger
        self._spec = spec
        self._data = data
        self._session = session
        self._width = width

    def check_noise(self) -> None:
        """Refuses an eta for which the mechanism draws no noise: under CTI the smallest of any token.

        Raises:
            ConfigError: It is too small.
        """
        privacy, importance = self._spec.privacy, self._data.importance
        if privacy.mechanism == "none":
            return
        etas = [privacy.eta]
        if importance is not None:
            found = [importance.eta(each.tokens, each.cti_classes, eta0=privacy.eta) for each in self._texts]
            etas = [float(values.min()) for segments in found for values in segments if len(values)]
        measured = self._session.privatizer.measured if privacy.place is Place.TOKENS else None
        width = self._width if measured is None else measured.shape[1]
        # its bounds are its own to tell; what it draws here is thrown away
        self._session.privatizer.mechanism.noise(
            etas=np.array([min(etas)]), width=width, rng=generator(bytes(KEY_BYTES))
        )

    def check_budget(self, progress: Progress) -> None:
        """Refuses a run that the ledger would refuse in its middle.

        Raises:
            BudgetError: A text, in train, dev or test, would be charged beyond the budget by the last epoch, or a
                label beyond its own.
        """
        labels = self._data.reported
        if self._spec.label_budget is not None and labels is not None:
            self._ledger.check_budget([labels.charges], unit=LABEL_UNIT, budget=self._spec.label_budget, what="labels")
        if self._spec.privacy_budget is not None:
            total = sum(map(len, self._texts)) + (self._looks - 1) * len(self._data.train)
            unit = self._session.privatizer.unit
            charges = charges_of(self._releases(), total=total, progress=progress)
            self._ledger.check_budget(charges, unit=unit, budget=self._spec.privacy_budget)

    def label_guarantee(self) -> Guarantee | None:
        """What is promised of each label, all that was drawn of it so far taken together; `None` without labels."""
        labels = self._data.reported
        if labels is None:
            return None
        if self._spec.labels_at is LabelsAt.VENDOR and self._spec.label_epsilon is None:
            return Guarantee.nothing(LABELS_SENT)
        return labels.guarantee(spent=max(self._ledger.spent_on([labels.charges], LABEL_UNIT), default=0.0))

    def overspent(self) -> tuple[str, ...]:
        """Says that texts exceed the budget, if they do: a release that costs nothing is not refused for it."""
        budget = self._spec.privacy_budget
        if budget is None:
            return ()
        charges = (release.charges for texts in self._texts for release in self._named(texts))
        spent = self._ledger.spent_on(charges, self._session.privatizer.unit)
        over = [each for each in spent if not within_budget(each, budget)]
        if not over:
            return ()
        return (
            f"{len(over)} of {len(spent)} texts have been charged more than the budget of {budget:g} by earlier "
            f"releases, up to {max(over):g}. What this run released of them was charged before and cost nothing.",
        )

    @cached_property
    def _texts(self) -> tuple[Texts, ...]:
        """Train, dev and test, as far as there are any."""
        given = (self._data.train, self._data.dev, self._data.test)
        return tuple(each.texts for each in given if each is not None and isinstance(each.texts, Texts))

    @property
    def _looks(self) -> int:
        """Draws of a training text, at most."""
        return self._spec.training.epochs if self._spec.train_bottom is TrainBottom.RESAMPLE else 1

    def _releases(self) -> Iterator[Release]:
        """All that the run would release, block by block, by name."""
        train, *others = self._texts
        if self._spec.train_bottom is TrainBottom.RESAMPLE:
            for epoch in range(self._looks):
                yield from self._named(train, look=epoch)
        else:
            others.append(train)
        for texts in others:
            yield from releases_of(self._session, texts, width=self._width)

    def _named(self, texts: Texts, *, look: int | None = None) -> Iterator[Release]:
        """Names and accounts of texts, block by block."""
        for chosen in blocks(texts.tokens, max(1, BLOCK_BYTES // (4 * self._width))):
            yield _named(self._session, texts.select(chosen), look=look)


def releases_of(session: Session, texts: Texts, *, width: int) -> Iterator[Release]:
    """What texts would leave as, block by block, for its names and what it costs: nothing is sent.

    Args:
        session: What privatizes them.
        texts: Any number.
        width: Of a hidden row.
    """
    for chosen in blocks(texts.tokens, max(1, BLOCK_BYTES // (4 * width))):
        some = texts.select(chosen)
        if session.privatizer.spec.place is Place.ACTIVATIONS:
            yield session.release(some).release  # noise on rows has draws of its own
        else:
            yield _named(session, some)


def charges_of(releases: Iterable[Release], *, total: int, progress: Progress) -> Iterator[Charges]:
    """What releases cost.

    Args:
        releases: Before any is sent.
        total: How many texts they are, at most.
        progress: Where to show progress.
    """
    done = 0
    for release in releases:
        done += len(release)
        progress.update("check the budget", done, total)
        yield release.charges


def _named(session: Session, texts: Texts, *, look: int | None = None) -> Release:
    return session.privatizer.named(texts.tokens, labels=texts.cti_classes, look=look, excerpts=texts.excerpts)
