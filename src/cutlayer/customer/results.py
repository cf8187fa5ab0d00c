"""What a run tells: how useful, how private, what left."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from cutlayer.core import Deviation, Guarantee
from cutlayer.customer.settings import RunSpec


class FinetuneResult(BaseModel):
    """A finished fine-tuning run; `model_dump()` is what `finetune --json` prints.

    Attributes:
        adapter_id: The adapter, in this tenant's namespace at the vendor.
        adapter_sha256: Digest of its weights.
        ua: Utility accuracy: share of texts labelled right (SAP §5.1).
        ua_on: `test` or `dev`, whichever it was measured on. Dev also chose the epoch.
        ua_n: How many texts.
        ua_standard_error: Its standard error.
        ep: Empirical privacy: 1 - share of tokens that nearest-neighbour inversion of the recorded
            transcript recovered; `None` where that attack does not apply, with the reason in `ep_note`.
        ep_n: How many tokens.
        ep_standard_error: Its standard error, clustered by text.
        ep_note: What the number covers, or why there is none.
        replaced: Share of tokens that the text-to-text draw replaced; `None` for rows of noise.
        label_recovery: Share of training labels that the vendor can read from output gradients.
        uplink_bytes: What was sent, by `release`, `gradient` and `control`, and `total`.
        downlink_bytes: What was received.
        tokens_released: Content tokens in distinct releases of this run.
        eta: The privacy parameter, per token, in 1/distance of the model's embedding table.
        looks: Largest number of draws of one text that were sent: one, with `redraw` one in each epoch for each place
            where the text stands in train, and with CTI another where it also stands in dev or test.
        guarantee: What is promised for all looks together, and what is not. Its caveats tell, too, how many
            texts other releases have charged beyond the run's budget.
        largest_distance: No two rows of the table are farther apart; eta times this, a look, is the
            worst case. `None` where nothing is promised.
        no_privacy: Whether texts were released as they are.
        unsafe_noise: Whether the noise came from a seed that was given, which protects nothing.
        deviations: Where the run differs from the paper.
        dev: Dev accuracy after each epoch.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    adapter_id: str
    adapter_sha256: str
    ua: float
    ua_on: str
    ua_n: int
    ua_standard_error: float
    ep: float | None
    ep_n: int
    ep_standard_error: float | None
    ep_note: str
    replaced: float | None
    label_recovery: float | None
    n_train: int
    n_dev: int
    n_test: int
    uplink_bytes: dict[str, int]
    downlink_bytes: int
    tokens_released: int
    seconds: float
    steps: int
    epochs: int
    best_epoch: int
    dev: tuple[float, ...]
    eta: float
    no_privacy: bool
    unsafe_noise: bool
    looks: int
    guarantee: Guarantee
    largest_distance: float | None
    deviations: tuple[Deviation, ...]
    spec: RunSpec
    folder: Path


class Prediction(BaseModel):
    """An adapter's answer to one text.

    Attributes:
        label: The most probable label.
        probability: Its probability, after softmax.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    label: str
    probability: float


class PrivatizedText(BaseModel):
    """A text beside what would leave.

    Attributes:
        original: The text as its tokens read.
        released: The text as the released tokens read.
        replaced: How many tokens were replaced.
        tokens: How many tokens the text has.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    original: tuple[str, ...]
    released: tuple[str, ...]
    replaced: int
    tokens: int
