"""What a reviewer reads: how a release is privatized. How often a text is released is the run's."""

from __future__ import annotations

import math
from typing import Any, Literal, Self

from pydantic import ConfigDict, Field, ModelWrapValidatorHandler, ValidationError, model_validator

from cutlayer.core import ConfigError, Fault, Place, Spec
from cutlayer.privacy.mechanisms import DChi

NOISE_WINDOW = 4
"""So many tokens: edited copies, or a signature under many texts, then show hardly more than one of them (measured)."""
LARGEST_EPSILON = 20.0
"""Beyond it a label is changed less than once in 10^8 draws: rounding would begin to show, and nothing is hidden."""
NO_PRIVACY_REMEDY = 'For a release without privacy say so: mechanism="none" and eta=inf.'
ROWS_REMEDY = 'For noise on rows add --mechanism vector (in Python mechanism="vector").'


class _Closed(Spec):
    """A spec whose faults are `ConfigError`s that list every path, value and what is allowed."""

    # infinity is a value here, and JSON has no other word for it
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=True, ser_json_inf_nan="strings")

    @model_validator(mode="wrap")
    @classmethod
    def _as_config_error(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(data)
        except ValidationError as error:
            faults = [
                Fault(".".join(map(str, entry["loc"])) or cls.__name__, entry["input"], entry["msg"])
                for entry in error.errors()
            ]
            raise ConfigError(faults) from None


class CtiSpec(_Closed):
    """Contributing-token identification: which choices the paper's eq. (5) and (6) leave open.

    Ref: SAP §4.4.

    Attributes:
        frequency: What p(t | c) counts. `tokens`: the token's share of the class's tokens.
            `texts`: the share of the class's texts that hold the token.
        smoothing: Added to each count, so that the logarithms are finite; above 0.
        c0: The constant of eq. (6). `None`: (max UI + min UI) / 2 over all tokens and classes.
        pair: Which texts of a pair are counted.
        unlabelled: The score of a token in a text without label: over classes.
        class_free: Uses the unlabelled score in training too, so that a text's noise does not depend on
            its own label. The scores are still fitted on all labels.
    """

    frequency: Literal["tokens", "texts"] = "tokens"
    smoothing: float = 1.0
    c0: float | None = None
    pair: Literal["both", "first", "second"] = "both"
    unlabelled: Literal["max", "mean"] = "max"
    class_free: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        faults = []
        if not (0 < self.smoothing < math.inf):
            faults.append(Fault("cti.smoothing", self.smoothing, "must be above 0 and finite"))
        if self.c0 is not None and not math.isfinite(self.c0):
            faults.append(Fault("cti.c0", self.c0, "must be finite, or left out for (max + min) / 2"))
        if faults:
            raise ConfigError(faults)
        return self


class PrivacySpec(_Closed):
    """How texts are privatized before they leave.

    Attributes:
        mechanism: `text-to-text`: noise on the token's embedding, then the nearest row's token.
            `vector`: the noisy rows themselves. `none`: nothing is done, and everything says so.
        eta: Privacy parameter of d_chi noise, 1/distance, per token; smaller is more private.
            Infinite exactly when `mechanism` is `none`. There is no default.
        place: Where noise is added when the bottom has blocks: at the tokens, before the blocks, or
            at the blocks' output.
        cti: Makes eta depend on the token. With it no finite guarantee is claimed.
        noise: The noise, by its name among the mechanisms. Any other than d_chi noise is a plug-in's, and so
            is what it promises. Not written down where it is d_chi noise.
        noise_window: How many tokens before it a token's noise follows from; `None`: from all of them, back to the
            text's beginning. Where these are equal, noise is equal. Not written down where it is `NOISE_WINDOW`.
    """

    mechanism: Literal["none", "text-to-text", "vector"] = "text-to-text"
    eta: float
    place: Place = Place.TOKENS
    cti: CtiSpec | None = None
    # what runs and profiles are known by stays what it was before there was a choice
    noise: str = Field(default=DChi.name, exclude_if=lambda noise: bool(noise == DChi.name))
    noise_window: int | None = Field(default=NOISE_WINDOW, ge=1, exclude_if=lambda window: bool(window == NOISE_WINDOW))

    @classmethod
    def no_privacy(cls) -> PrivacySpec:
        """The explicit decision to release without privacy."""
        return cls(mechanism="none", eta=math.inf)

    @model_validator(mode="after")
    def _check(self) -> Self:
        faults = []
        if math.isnan(self.eta) or self.eta <= 0:
            faults.append(Fault("eta", self.eta, "must be above 0"))
        elif self.mechanism == "none" and math.isfinite(self.eta):
            faults.append(Fault("eta", self.eta, 'must be inf with mechanism "none"'))
        elif self.mechanism != "none" and math.isinf(self.eta):
            faults.append(Fault("eta", self.eta, f'must be finite with mechanism "{self.mechanism}"'))
        if self.mechanism == "none" and self.cti is not None:
            faults.append(Fault("cti", "set", 'must be left out with mechanism "none": there is no noise to steer'))
        if self.mechanism == "none" and self.noise != DChi.name:
            faults.append(Fault("noise", self.noise, 'must be left out with mechanism "none": nothing is drawn'))
        if self.mechanism == "text-to-text" and self.place is Place.ACTIVATIONS:
            faults.append(
                Fault(
                    "place",
                    self.place.value,
                    'must be "tokens" with mechanism "text-to-text": rows above a block are no tokens\' rows',
                )
            )
        if self.cti is not None and self.place is Place.ACTIVATIONS:
            faults.append(
                Fault(
                    "cti",
                    "set",
                    'must be left out at place "activations": above a block each row depends on every token',
                )
            )
        if faults:
            remedies = {"eta": NO_PRIVACY_REMEDY, "place": ROWS_REMEDY}
            named = {fault.path for fault in faults}
            raise ConfigError(faults, remedy=" ".join(remedies[path] for path in remedies if path in named))
        return self
