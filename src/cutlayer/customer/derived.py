"""What a run derives from the customer's secret: its noise, its labels, its dropout, and in which order texts leave."""

from __future__ import annotations

import math

from cutlayer.core import Cut
from cutlayer.customer.home import Home
from cutlayer.customer.order import Order
from cutlayer.customer.settings import RunSpec
from cutlayer.models import Archive
from cutlayer.privacy import (
    CustomerSecret,
    LabelResponse,
    PrivacySpec,
    Privatizer,
    Spellings,
    UtilityImportance,
    build_privatizer,
    table_fingerprint,
)


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


def run_privatizer(
    archive: Archive, spec: RunSpec, secret: CustomerSecret, importance: UtilityImportance | None
) -> Privatizer:
    """How a run privatizes.

    Args:
        archive: What the vendor handed out.
        spec: The run's settings.
        secret: What noise derives from.
        importance: What CTI knows of each token.
    """
    return build_privatizer(
        spec.privacy,
        secret=secret,
        table=None if archive.table is None else archive.table.detach().cpu().clone(),
        candidates=archive.candidates,
        table_fingerprint=table_fingerprint(archive.table),
        boundary=f"{archive.fingerprint}/{Cut(bottom=spec.cut.bottom).slug}",
        spellings=Spellings(archive.spellings),
        importance=importance,
    )
