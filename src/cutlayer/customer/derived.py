"""What a run derives from the customer's secret: its noise, its labels, its dropout, and in which order texts leave."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cutlayer.core import Cut
from cutlayer.customer.entity_map import EntityMap
from cutlayer.customer.home import Home
from cutlayer.customer.order import Order
from cutlayer.customer.plain import plain_words
from cutlayer.customer.reading import Reading, pair_lengths, reading_of
from cutlayer.customer.settings import Objective, RunSpec
from cutlayer.models import Archive
from cutlayer.privacy import (
    CustomerSecret,
    LabelResponse,
    PlainWords,
    PrivacySpec,
    Privatizer,
    Spellings,
    UtilityImportance,
    build_privatizer,
    table_fingerprint,
)
from cutlayer.privacy.privatizers.none import Behind, NoPrivacyPrivatizer
from cutlayer.privacy.privatizers.words import WordsPrivatizer


def noise_secret(home: Home, unsafe_noise_seed: int | None) -> CustomerSecret:
    """What noise derives from: the customer's secret, or a seed that protects nothing."""
    return home.secret.or_seeded(unsafe_noise_seed)


def label_response(spec: RunSpec, secret: CustomerSecret) -> LabelResponse:
    """How a run draws the labels that losses are computed from.

    Args:
        spec: The run's settings.
        secret: What its noise derives from, too.
    """
    return LabelResponse(math.inf if spec.label_epsilon is None else spec.label_epsilon, secret=secret)


def dropout_seed(secret: CustomerSecret, seed: int) -> int:
    """What the customer's parts drop out by: repeats with the run's seed, and is the customer's alone.

    The vendor is told the run's seed. With it, it could drop out what the customer drops out, and would see
    through that.

    Args:
        secret: What the run's noise derives from, too.
        seed: The run's.
    """
    return int.from_bytes(secret.derive(f"dropout/{seed}")[:8], "little") % 2**63


def split_order(spec: RunSpec, secret: CustomerSecret) -> Order:
    """By which dev is chosen where none was given: the same for all settings under one seed, so that runs compare."""
    return Order(secret, f"split/{spec.seed}")


def run_order(seed: int, privacy: PrivacySpec, secret: CustomerSecret) -> Order:
    """In which texts leave, and are trained on. Runs with other noise have another: no order aligns their texts."""
    return Order(secret, f"run/{seed}/{privacy.identity}")


@dataclass(frozen=True)
class Privatizing:
    """How a run's texts become releases.

    Attributes:
        reading: How texts are read.
        privatizer: How what was read is privatized.
        training: The same of texts that are trained on, before which plain words may stand.
        plain: These words.
    """

    reading: Reading
    privatizer: Privatizer
    training: Privatizer
    plain: PlainWords | None = None

    def of(self, *, trained: bool) -> Privatizer:
        """What privatizes texts that are trained on, or others."""
        return self.training if trained else self.privatizer


def run_reading(archive: Archive, home: Home, spec: RunSpec) -> Reading:
    """How a run reads its texts; see `reading_of`."""
    return reading_of(
        spec.privacy,
        archive,
        home,
        max_length=spec.training.max_length,
        positions=spec.tuning.positions,
        closed=spec.objective is Objective.LM,
        sides=pair_lengths(archive, spec) if spec.sends_pairs else None,
    )


def prompt_reading(archive: Archive, home: Home, spec: RunSpec, *, segments: int) -> Reading:
    """How a run's model reads texts that it is to continue: whole, and closed where they are a decoder's source texts.

    An encoder-decoder's source texts are read as those of training were.

    Args:
        archive: What the vendor handed out.
        home: The customer's folder.
        spec: The run's settings.
        segments: Texts of a row in training.
    """
    if spec.objective is Objective.SEQ2SEQ:
        return run_reading(archive, home, spec)
    return reading_of(
        spec.privacy, archive, home, max_length=None, positions=spec.tuning.positions, closed=segments == 2
    )


def run_privatizing(
    archive: Archive,
    home: Home,
    spec: RunSpec,
    *,
    importance: UtilityImportance | None = None,
    reading: Reading | None = None,
) -> Privatizing:
    """How a run privatizes.

    Args:
        archive: What the vendor handed out.
        home: The customer's folder.
        spec: The run's settings.
        importance: What CTI knows of each token.
        reading: How its texts were read, where they were already.
    """
    reading = reading or run_reading(archive, home, spec)
    privatizer = build_privatizer(
        spec.privacy,
        secret=noise_secret(home, spec.unsafe_noise_seed),
        table=None if archive.table is None else archive.table.detach().cpu().clone(),
        candidates=archive.candidates,
        table_fingerprint=table_fingerprint(archive.table),
        boundary=f"{archive.fingerprint}/{Cut(bottom=spec.cut.bottom).slug}",
        spellings=reading.dictionary or Spellings(archive.spellings),
        importance=importance,
    )
    if not spec.reconstruction.plain_tokens:
        return Privatizing(reading, privatizer, privatizer)
    if isinstance(privatizer, NoPrivacyPrivatizer):
        return _behind_others(archive, home, spec, reading, privatizer)
    if not isinstance(privatizer, WordsPrivatizer):
        raise TypeError("plain words without words are refused before")
    plain = plain_words(spec, spec.privacy, reading)
    training = privatizer.preceded_by(plain, told=True)
    asked = privatizer.preceded_by(plain, told=False) if spec.reconstruction.plain_tokens_at_inference else privatizer
    return Privatizing(reading, asked, training, plain)


def _behind_others(
    archive: Archive, home: Home, spec: RunSpec, reading: Reading, privatizer: NoPrivacyPrivatizer
) -> Privatizing:
    """How a run privatizes of which `protect` drew words before: plain words alone, as it drew these."""
    if (job := spec.reconstruction.plain_as) is None:
        raise TypeError("plain words without words are refused before")
    privacy = EntityMap.load(home, job).drawn_as
    words = reading_of(privacy, archive, home, max_length=None, positions=spec.tuning.positions)
    drawer = build_privatizer(
        privacy, secret=noise_secret(home, spec.unsafe_noise_seed), spellings=words.dictionary or Spellings(())
    )
    if not isinstance(drawer, WordsPrivatizer):
        raise TypeError("words are drawn by their privatizer")
    plain = plain_words(spec, privacy, words)
    template = archive.template.behind(spec.tuning.positions)
    limits = None if template.max_length is None else (template.max_content(1), template.max_content(2))
    behind = Behind(drawer.preceded_by(plain, told=True), limits)
    return Privatizing(reading, privatizer, privatizer.preceded_by(behind), plain)
