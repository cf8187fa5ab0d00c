"""Settings and results of the improved UnSplit attack (`unsplit_run`), and what it says of each outer loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from cutlayer.core import Spec


class UnSplitSpec(Spec):
    """How the attack is run: the paper's settings, and a choice for each thing that it leaves open.

    The loss is a mean over real positions and width, as the paper's is over positions without padding,
    so gradients shrink as the batch grows. At 4 texts of 1,024 tokens and width 768 they come near
    Adam's epsilon (1e-8, PyTorch's default; the paper states none), which then slows the last steps: a
    large batch is another attack than its texts one by one.

    Attributes:
        outer_iterations: Outer loops (line 4). 100 in §3.3.1.
        inner_inputs: Steps on the rows x' in each (line 5). 100 in §3.3.1.
        inner_weights: Steps on the weights theta in each (line 8). 100 in §3.3.1; 0 keeps the weights
            as they were before training.
        learning_rate_inputs: Of Adam on x'. 0.1 in §3.3.1, 0.01 as a variant in §3.3.5 and in the
            released configuration.
        learning_rate_weights: Of AdamW on theta. 0.001 in §3.3.1, 1e-4 as a variant in §3.3.5; 0.1 in the
            released configuration.
        weight_decay: AdamW's. Not stated; 0.01 is PyTorch's default, which the released code takes.
        amsgrad: Takes AMSGrad's step for x'. The paper says Adam; the released code switches this on.
        initial_std: Standard deviation of the normal noise that x' starts from. Line 3 says "randomly"
            and no more. `table` takes that of the table's elements before training, which the vendor
            knows: what the steps leave of the start hides the row, so a start of another size makes
            the attack weaker and the text look better kept than it is. 1 is `torch.randn`; 0 starts from
            zeros, as the released code does.
        nearest_in: The table that line 12 searches: of the guessed bottom as optimised (line 11, the
            released code), or as it was before training (§3.2.3). A bottom that is given rows does not
            use its table, so the table gets no gradient and no weight decay, and both are the same
            table in every family of ours. They differ only for a bottom whose boundary also depends
            on the table in another way.
        guess_mode: Whether dropout of the guessed bottom acts. "It can be set either in the mode of
            training or the mode of evaluation" (§4.1.1); evaluation in the released code. With
            dropout every step draws anew.
        optimised: What theta is. `all`: every weight of the guessed bottom that the boundary depends on
            (Table 2). `adapter`: only the tensors of a LoRA adapter on it, for a customer that trains
            with LoRA (Table 3).
        precision: Element type of the guessed bottom's matrix products. Rows, weights, both optimisers
            and the loss stay fp32. bf16 is another rounding of the same attack.
    """

    outer_iterations: int = Field(default=100, ge=1)
    inner_inputs: int = Field(default=100, ge=1)
    inner_weights: int = Field(default=100, ge=0)
    learning_rate_inputs: float = Field(default=0.1, gt=0, allow_inf_nan=False)
    learning_rate_weights: float = Field(default=1e-3, gt=0, allow_inf_nan=False)
    weight_decay: float = Field(default=0.01, ge=0, allow_inf_nan=False)
    amsgrad: bool = False
    initial_std: Literal["table"] | Annotated[float, Field(ge=0, allow_inf_nan=False)] = "table"
    nearest_in: Literal["optimised", "pre-trained"] = "optimised"
    guess_mode: Literal["eval", "train"] = "eval"
    optimised: Literal["all", "adapter"] = "all"
    precision: Literal["fp32", "bf16"] = "fp32"


@dataclass(frozen=True)
class InputTruth:
    """What the attack is looking for. Whoever measures it has this; it changes nothing but the history.

    Attributes:
        rows: `[batch, seq, table_width]`, the true tokens' rows of the customer's own table.
        ids: `[batch, seq]` int64, the true tokens.
    """

    rows: Tensor | None = None
    ids: Tensor | None = None


@dataclass(frozen=True)
class OuterIteration:
    """Where the attack stood after an outer loop; means over real positions (figures 13 and 14).

    Attributes:
        number: Which, from 1.
        mse_after_inputs: MSE of outputs, ‖M(x') - boundary‖² per element, after the steps on x'.
        mse_after_weights: The same after the steps on theta.
        mse_inputs: MSE between x' and the true rows, where the measurer gave them.
        accuracy: The share of tokens recovered, where the measurer gave them.
    """

    number: int
    mse_after_inputs: float
    mse_after_weights: float
    mse_inputs: float | None = None
    accuracy: float | None = None


@dataclass(frozen=True)
class Reconstruction:
    """What the attack found.

    Attributes:
        ids: `[batch, seq]` int64, the guessed tokens; -1 at padding.
        mask: `[batch, seq]` bool, real positions.
        rows: `[batch, seq, table_width]` fp32, x'; zero at padding.
        history: One entry per outer loop; fewer than the spec asks for if the attack was stopped.
        spec: How it was run.
    """

    ids: Tensor
    mask: Tensor
    rows: Tensor
    history: tuple[OuterIteration, ...]
    spec: UnSplitSpec
