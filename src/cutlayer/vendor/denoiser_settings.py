"""How a vendor trains denoisers, and for which releases."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal, Self

from pydantic import model_validator

from cutlayer.core.denoiser import DenoiserKind
from cutlayer.core.setting import Shown, as_in, setting
from cutlayer.core.spec import SettingsSpec
from cutlayer.privacy.spec import Vector
from cutlayer.wire.denoisers import MOST_ETAS, MOST_GROUPS
from cutlayer.wire.messages import LARGEST_COUNT, Form, Precision, WireType

DENOISER = "Denoiser"
"""The topic of these settings."""


class DenoiserTraining(SettingsSpec):
    """How denoisers of a model's embeddings are trained on public text: one for each range of etas."""

    kind: DenoiserKind = setting(
        "light",
        help="paper: a transformer over embedding, rows and noise, nearly as large as a small model. light: its cost "
        "does not grow with the model's depth.",
        shown=Shown(DENOISER, source="SnD §3.4, Table 8; light is ours"),
    )
    steps: int = setting(4000, help="Updates per denoiser.", shown=Shown(DENOISER, unit="steps"), ge=1)
    batch_size: int = setting(32, help="Public texts per update.", shown=Shown(DENOISER, unit="texts"), ge=1)
    learning_rate: float | None = setting(
        None,
        help="The highest rate; it falls to zero.",
        shown=Shown(DENOISER, default="3e-3; 1e-3 for kind paper"),
        gt=0,
        allow_inf_nan=False,
    )
    without_answer: bool = setting(
        False,
        help="Train the control instead, which audits compare denoisers with: the same, but with the mean noisy answer "
        "in place of the model's answer. Customers are served by it only where they name its id.",
        shown=Shown(DENOISER),
    )
    borders: tuple[float, ...] = setting(
        (0.05, 0.25),
        help="Where one range of etas ends and the next begins, as the correlation between a token's row and what is "
        "released of it; repeat the option for each border.",
        shown=Shown(DENOISER, source="SnD, A.6.3, leaves them open", metavar="CORRELATION"),
    )
    lowest_eta: float = setting(
        0.001,
        help="Where the lowest range begins.",
        shown=Shown(DENOISER, unit="1/distance"),
        gt=0,
        allow_inf_nan=False,
    )
    highest_correlation: float = setting(
        0.9, help="Where the highest range ends.", shown=Shown(DENOISER, unit="correlation"), gt=0, lt=1
    )
    etas_per_range: int = setting(
        2,
        help="Etas of a range that its denoiser learns from, evenly spread by ratio.",
        shown=Shown(DENOISER),
        ge=1,
        le=MOST_ETAS,
    )
    positions: bool = setting(
        True,
        help="Tell the paper's denoiser each input's place and kind (embedding, row, noise), as its equations do not.",
        shown=Shown(DENOISER, source="SnD, eq. (6)"),
    )
    max_length: int | None = setting(
        None,
        help="Tokens of a public text, special tokens included; longer ones lose their end.",
        shown=Shown(DENOISER, unit="tokens", default="128, or the model's limit"),
        ge=1,
    )
    precision: Precision = setting(
        Precision.FP32,
        help="Precision of matrix products while training, in the model and the denoiser. bf16: faster where devices "
        "multiply bf16. Weights, optimiser, losses and what is measured of the denoiser stay fp32.",
        shown=Shown(DENOISER),
    )
    seed: int = setting(
        0, help="Seed of weights, order and noise on public text.", shown=Shown(DENOISER), ge=0, le=LARGEST_COUNT
    )
    checkpoint_steps: int = setting(
        200, help="Steps between checkpoints, from which a stopped training goes on.", shown=Shown(DENOISER), ge=1
    )

    @model_validator(mode="after")
    def _check_borders(self) -> Self:
        ordered = (0.0, *self.borders, self.highest_correlation)
        if any(low >= high for low, high in pairwise(ordered)):
            raise ValueError("borders must ascend between 0 and highest_correlation")
        if len(self.borders) >= MOST_GROUPS:
            raise ValueError(f"borders must be at most {MOST_GROUPS - 1}: each makes a denoiser more")
        return self

    @model_validator(mode="after")
    def _check_positions(self) -> Self:
        if not self.positions and self.kind != "paper":
            raise ValueError("positions must stay on with kind light, which does not work without them")
        return self


class DenoisedReleases(SettingsSpec):
    """Which releases of customers denoisers are for; those at any eta of their ranges."""

    mechanism: Literal["text-to-text", "vector"] = setting(
        "text-to-text",
        help="The customers' mechanism: of others nobody knows the noise of each token.",
        shown=Shown(DENOISER, common=True),
    )
    noise: str = as_in(Vector, "noise")
    clip: bool = as_in(Vector, "clip")
    wire_type: WireType = setting(
        WireType.BF16, help="Element type in which customers' rows travel.", shown=Shown(DENOISER)
    )

    @model_validator(mode="after")
    def _check_clip(self) -> Self:
        if self.clip and self.mechanism != "vector":
            raise ValueError("clip needs mechanism vector: ids are not clipped")
        return self

    @property
    def replaces(self) -> bool:
        """Whether tokens are replaced by others, so that ids leave."""
        return self.mechanism == "text-to-text"

    @property
    def form(self) -> Form:
        """What leaves."""
        return Form.IDS if self.replaces else Form.ROWS
