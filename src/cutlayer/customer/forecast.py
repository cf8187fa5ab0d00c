"""What a run would release, looked at before the vendor hears of it: can its noise be drawn, does its budget last?

A refusal in the middle would leave texts released for nothing, and a job at the vendor that nobody ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cached_property

import numpy as np

from cutlayer.core import Guarantee, Place
from cutlayer.customer.home import Home
from cutlayer.customer.prepare import Prepared
from cutlayer.customer.progress import Progress
from cutlayer.customer.session import Session, Texts
from cutlayer.customer.settings import RunSpec, TrainBottom
from cutlayer.customer.trainer import training_order
from cutlayer.customer.upload import BLOCK_BYTES, blocks
from cutlayer.models import Archive
from cutlayer.privacy import LABEL_UNIT, CustomerSecret, Ledger, PrivacySpec, Release, build_privatizer, generator
from cutlayer.privacy.charges import within_budget
from cutlayer.privacy.randomness import KEY_BYTES


class Forecast:
    """The releases of one run, before any of them is made.

    Args:
        home: The customer's folder, whose ledger knows what was charged.
        spec: The run's settings.
        data: Its texts.
        session: What privatizes them.
        secret: What their names in the ledger are keyed with.
        width: Of a hidden row.
    """

    def __init__(
        self, home: Home, spec: RunSpec, data: Prepared, session: Session, *, secret: CustomerSecret, width: int
    ) -> None:
        self._ledger = home.ledger
        self._spec = spec
        self._data = data
        self._session = session
        self._secret = secret
        self._width = width

    def check_noise(self, archive: Archive) -> None:
        """Refuses an eta for which the mechanism draws no noise: under CTI the smallest of any token.

        Raises:
            ConfigError: It is too small.
        """
        privacy, importance = self._spec.privacy, self._data.importance
        if privacy.mechanism == "none" or archive.table is None:
            return
        etas = [privacy.eta]
        if importance is not None:
            found = [importance.eta(each.tokens, each.cti_classes, eta0=privacy.eta) for each in self._texts]
            etas = [float(values.min()) for segments in found for values in segments if len(values)]
        width = archive.table.shape[1] if privacy.place is Place.TOKENS else self._width
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
        self._check_label_budget()
        if self._spec.budget is None or self._is_within(self._spec.budget):
            return
        total = sum(map(len, self._texts)) + (self._looks - 1) * len(self._data.train)
        check_releases(self._ledger, self._releases(), budget=self._spec.budget, total=total, progress=progress)

    def _check_label_budget(self) -> None:
        labels = self._data.reported
        if self._spec.label_budget is not None and labels is not None:
            self._ledger.check_budget(
                draws=labels.identities,
                contents=labels.contents,
                etas=labels.etas,
                unit=LABEL_UNIT,
                budget=self._spec.label_budget,
                what="labels",
            )

    def label_guarantee(self) -> Guarantee | None:
        """What is promised of each label, all that was drawn of it so far taken together; `None` without labels."""
        labels = self._data.reported
        if labels is None:
            return None
        spent = self._ledger.spent_on(labels.contents, LABEL_UNIT)
        return labels.guarantee(spent=max(spent.values(), default=0.0))

    def overspent(self) -> tuple[str, ...]:
        """Says that texts exceed the budget, if they do: a release that costs nothing is not refused for it."""
        budget = self._spec.budget
        if budget is None:
            return ()
        contents = set().union(*self._contents)
        spent = self._ledger.spent_on(list(contents), self._session.privatizer.unit)
        over = [each for each in spent.values() if not within_budget(each, budget)]
        if not over:
            return ()
        return (
            f"{len(over)} of {len(contents)} texts have been charged more than the budget of {budget:g} by earlier "
            f"releases, up to {max(over):g}. What this run released of them was charged before and cost nothing.",
        )

    @cached_property
    def _texts(self) -> tuple[Texts, ...]:
        """Train, dev and test, as far as there are any."""
        given = (self._data.train, self._data.dev, self._data.test)
        return tuple(each.texts for each in given if each is not None and isinstance(each.texts, Texts))

    @cached_property
    def _contents(self) -> tuple[tuple[bytes, ...], ...]:
        """What the ledger calls these texts. It does not depend on noise, so none is drawn."""
        bare = build_privatizer(PrivacySpec.no_privacy(), secret=self._secret)
        return tuple(bare.tokens(texts.tokens, labels=None).contents for texts in self._texts)

    @property
    def _looks(self) -> int:
        """Draws of a training text, at most."""
        return self._spec.train.epochs if self._spec.train_bottom is TrainBottom.REDRAW else 1

    def _is_within(self, budget: float) -> bool:
        """Whether no text can come to exceed the budget, even if every draw of the run is new.

        Mostly it is so, and then the noise need not be drawn twice. Under CTI the etas are not known before.
        """
        if self._spec.privacy.cti is not None:
            return False
        train, *others = self._contents
        looks = Counter(set(train).union(*others))
        if self._spec.train_bottom is TrainBottom.REDRAW:
            # a text that stands twice may be drawn twice an epoch
            fresh = Counter({content: count * self._looks for content, count in Counter(train).items()})
            looks = fresh + Counter(set().union(*others))
        spent = self._ledger.spent_on(list(looks), self._session.privatizer.unit)
        return all(
            within_budget(spent.get(content, 0) + number * self._spec.privacy.eta, budget)
            for content, number in looks.items()
        )

    def _releases(self) -> Iterator[Release]:
        """All that the run would release, block by block. It is drawn for its names, and not sent."""
        train, *others = self._texts
        if self._spec.train_bottom is TrainBottom.REDRAW:
            yield from self._fresh(train)
        else:
            others.append(train)
        for texts in others:
            yield from drawn(self._session, texts, width=self._width)

    def _fresh(self, train: Texts) -> Iterator[Release]:
        step = self._spec.public_iterations
        for epoch in range(self._looks):
            for batch in training_order(self._spec, self._data.train.lengths, epoch):
                step += 1
                some = train.select(batch)
                yield self._session.privatizer.tokens(some.tokens, labels=some.cti_classes, look=(epoch, step))


def drawn(session: Session, texts: Texts, *, width: int) -> Iterator[Release]:
    """What texts leave as, block by block, for its names: nothing is sent.

    Args:
        session: What privatizes them.
        texts: Any number.
        width: Of a hidden row.
    """
    for chosen in blocks(texts.tokens, max(1, BLOCK_BYTES // (4 * width))):
        some = texts.select(chosen)
        release = session.privatizer.tokens(some.tokens, labels=some.cti_classes)
        # noise on rows has draws of its own
        yield release if release.pending is None else session.release(some).release


def check_releases(
    ledger: Ledger, releases: Iterable[Release], *, budget: float, total: int, progress: Progress
) -> None:
    """Refuses releases that the ledger would refuse on their way.

    Args:
        ledger: It knows what was charged.
        releases: All of them, before any is sent.
        budget: Largest sum of etas per text and unit.
        total: How many texts they are, at most.
        progress: Where to show progress.

    Raises:
        BudgetError: A text would be charged beyond the budget, once all of them had left.
    """
    draws: list[bytes] = []
    contents: list[bytes] = []
    etas: list[float] = []
    unit = ""
    for release in releases:
        draws += release.draws
        contents += release.contents
        etas += release.etas.tolist()
        unit = release.unit
        progress.update("check the budget", len(draws), total)
    ledger.check_budget(draws=draws, contents=contents, etas=etas, unit=unit, budget=budget)
