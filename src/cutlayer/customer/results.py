"""What a run tells: how useful, how private, what left."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator

from cutlayer.core import Deviation, Guarantee, Proportion
from cutlayer.customer import earlier
from cutlayer.customer.settings import Objective, RunSpec
from cutlayer.privacy import LABELS_SHOWN


class RunResult(BaseModel):
    """What every finished fine-tuning run tells; `model_dump()` is what `finetune --json` prints.

    Attributes:
        adapter_id: The adapter, in this tenant's namespace at the vendor.
        adapter_sha256: Digest of its weights.
        ep: Empirical privacy: 1 - share of tokens that nearest-neighbour inversion of the recorded
            transcript recovered; `None` where that attack does not apply, with the reason in `ep_note`.
        ep_n: How many tokens.
        ep_standard_error: Its standard error, clustered by text.
        ep_note: What the number covers, or why there is none.
        replaced: Share of tokens, or words, that the draw replaced; `None` for rows of noise.
        clear_words: By kind, how many words left as they are by the mechanism's own rule; see `LedgerSummary`.
        n_train: Texts (of a language model: blocks) to train on.
        n_dev: To stop on.
        n_test: To measure on.
        uplink_bytes: What was sent, by `release`, `gradient` and `control`, and `total`.
        downlink_bytes: What was received.
        tokens_released: Content tokens in distinct releases of this run.
        eta: The privacy parameter, per token, in 1/distance of the model's embedding table.
        looks: Largest number of draws of one text that were sent: one, with `resample` one in each epoch for each place
            where the text stands in train, and with CTI another where it also stands in dev or test.
        guarantee: What is promised for all looks together, and what is not. Its caveats tell, too, how many
            texts other releases have charged beyond the run's budget.
        largest_distance: No two rows of the table are farther apart; eta times this, a look, is the
            worst case. `None` where nothing is promised.
        no_privacy: Whether texts were released as they are.
        unsafe_noise: Whether the noise came from a seed that was given, which protects nothing.
        deviations: Where the run differs from the paper.
        dev: Dev accuracy or perplexity after each epoch, on `n_dev` texts.
        train_loss: Mean training loss of each epoch; empty for a run of a version that did not tell it.
        reconstruction_loss: Mean loss of each epoch's reconstruction of plain words, a sum over the words; empty
            without them. It begins near words · ln(outputs of the head), which is chance.
        advice: What to do about what was found, what it costs, and what does not help.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    @model_validator(mode="before")
    @classmethod
    def _read_earlier(cls, data: Any) -> Any:
        return earlier.result(data)

    adapter_id: str
    adapter_sha256: str
    ep: float | None
    ep_n: int
    ep_standard_error: float | None
    ep_note: str
    replaced: float | None
    clear_words: dict[str, int] = {}
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
    train_loss: tuple[float, ...] = ()
    reconstruction_loss: tuple[float, ...] = ()
    eta: float
    no_privacy: bool
    unsafe_noise: bool
    looks: int
    guarantee: Guarantee
    largest_distance: float | None
    deviations: tuple[Deviation, ...]
    spec: RunSpec
    folder: Path
    advice: tuple[str, ...] = ()


class FinetuneResult(RunResult):
    """A finished run of a classifier.

    Attributes:
        ua: Utility accuracy: share of texts labelled right (SAP §5.1), by their true labels.
        ua_on: `test` or `dev`, whichever it was measured on. Dev also chose the epoch; under randomised response its
            reported labels did, and `dev` counts by these.
        ua_n: How many texts.
        ua_standard_error: Its standard error.
        majority_baseline: Accuracy of always giving the label that is most frequent in train, on the same texts; `None`
            of a run of a version that did not tell it.
        label_recovery: Share of training labels that the vendor can read from output gradients.
        label_guarantee: What is promised of each label, whatever the vendor does with gradients.
        label_keep: Under randomised response, the probability that a label is reported as it is.
    """

    ua: float
    ua_on: str
    ua_n: int
    ua_standard_error: float
    majority_baseline: float | None = None
    label_recovery: float | None
    label_guarantee: Guarantee = Guarantee.nothing(LABELS_SHOWN)
    label_keep: float | None = None


class LanguageResult(RunResult):
    """A finished run of a language model.

    Attributes:
        perplexity: Per predicted token, of the tuned model.
        perplexity_on: `test` or `dev`, whichever it was measured on. Dev also chose the epoch.
        perplexity_n: How many tokens were predicted.
        perplexity_standard_error: Its standard error, clustered by block.
        dev_before: Dev perplexity before the first step on private text; after those on public text, if there are any.
            `None` where the vendor has both texts of pairs: it measures each epoch's, and not that of before.
        token_recovery_first_steps: Share of tokens of the first training steps that the vendor reads from the
            gradients that go up, by means of the tail that it handed out; `None` with the reason in the note.
        token_recovery_first_steps_note: Why there is no number.
        token_recovery_last_steps: The same of the last training steps, when the customer's tail has moved from the one
            handed out.
        token_recovery_last_steps_note: Why there is no number.
        token_recovery_from_answers: Share of the customer's own most probable next tokens that the vendor reads from
            the hidden states that it sends down: of greedily generated tokens, and much of sampled ones.
        token_recovery_from_answers_note: Why there is no number.
        token_recovery_from_boundary: Share of tokens of the first training steps (of an encoder-decoder: of its target
            texts) that the vendor reads from the rows that go up into its decoder blocks: behind blocks by a search
            from the left with the blocks that it handed out, else by nearest neighbour in the embedding table.
        token_recovery_from_boundary_note: Why there is no number.
        token_recovery_without_blocks: What a table lookup would read of the same rows with no block of the customer
            below the cut; `None` where there is none, or where noise is drawn.
    """

    perplexity: float
    perplexity_on: str
    perplexity_n: int
    perplexity_standard_error: float | None
    dev_before: float | None
    token_recovery_first_steps: Proportion | None
    token_recovery_first_steps_note: str
    token_recovery_last_steps: Proportion | None
    token_recovery_last_steps_note: str
    token_recovery_from_answers: Proportion | None
    token_recovery_from_answers_note: str
    token_recovery_from_boundary: Proportion | None
    token_recovery_from_boundary_note: str
    token_recovery_without_blocks: Proportion | None = None


class ReleaseResult(BaseModel):
    """What is to be told of texts that left, and on which nothing was trained.

    Attributes:
        objective: `embed` where they left for embeddings; empty where they left as texts to train on do.
        replaced: Share of tokens, or words, that the draw replaced; `None` for rows of noise.
        clear_words: By kind, how many words left as they are by the mechanism's own rule.
        guarantee: What is promised, and what is not.
        largest_distance: As in `RunResult`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    objective: Literal["", "embed"] = ""
    replaced: float | None
    clear_words: Mapping[str, int]
    guarantee: Guarantee
    largest_distance: float | None


RESULTS: Mapping[Objective, type[RunResult]] = {
    Objective.CLASSIFICATION: FinetuneResult,
    Objective.LM: LanguageResult,
    Objective.SEQ2SEQ: LanguageResult,
}
"""What a run of each objective tells."""


class Prediction(BaseModel):
    """An adapter's answer to one text.

    Attributes:
        label: The most probable label.
        probability: Its probability, after softmax.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    label: str
    probability: float


class Generation(BaseModel):
    """A text that an adapter continued.

    Attributes:
        text: What was added to the prompt.
        tokens: How many tokens that is.
        ended: Why it ended: `end mark`, `stop string` or `length`.
        seconds: How long all prompts of the call took together.
        round_trips: Frames that brought them further: one for the prompts, one for each further token.
        replays: How many times the vendor had lost the session and was told it again.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: str
    tokens: int
    ended: str
    seconds: float
    round_trips: int
    replays: int


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


class Detached(BaseModel):
    """A run that the vendor goes on with alone.

    Attributes:
        job: Its job, as `Client.watch_job` and `Client.cancel_job` take it.
        folder: The run's, by which the same call fetches the result.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    job: str
    folder: Path
