"""What the SDK's calls take by name beside their own arguments: settings of specs, declared there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict

from cutlayer.core import Cut
from cutlayer.customer.reconstruction import Reconstruction
from cutlayer.customer.settings import LabelsAt, Training, TuningSpec
from cutlayer.privacy.spec import PrivacySpec
from cutlayer.wire import WireType


class Privacy(TypedDict, total=False):
    """How texts are privatized: with an eta, which is text-to-text noise and at `math.inf` none, or in full."""

    eta: float
    privacy: PrivacySpec


class Columns(TypedDict, total=False):
    """Which columns of a table texts stand in."""

    text_column: str
    text_pair_column: str | None


class Previewed(Privacy, Columns, total=False):
    """What a preview needs to know."""


class Querying(Privacy, total=False):
    """How the frozen model is asked: settings of `FinetuneSpec`, `EmbeddingSettings` and `DataSpec`, by name."""

    text_column: str
    denoiser: str
    model: str | None
    wire_type: WireType
    privacy_budget: float | None
    unsafe_noise_seed: int | None


class Settings(Privacy, Columns, total=False):
    """The settings of `FinetuneSpec` and `DataSpec`, by name; `eta` is short for `privacy`."""

    cut: Cut
    tuning: TuningSpec
    training: Training
    reconstruction: Reconstruction
    model: str | None
    wire_type: WireType
    privacy_budget: float | None
    label_epsilon: float | None
    label_budget: float | None
    label_words: Mapping[str, str] | Sequence[str]
    labels_at: LabelsAt | Literal["customer", "vendor"]
    public_iterations: int
    seed: int | None
    unsafe_noise_seed: int | None
    label_column: str
    target_column: str
    facts: bool
    many_labels: bool
