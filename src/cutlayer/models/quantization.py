"""Frozen linear maps in 4 bits, over which an adapter is trained (QLoRA).

Weights are kept in NF4, in blocks of 64 with a scale each, and the scales in 8 bits; each pass makes numbers of them
again, one map at a time, and computes in the type of its input.
Ref: Dettmers et al. 2023, QLoRA, §3, eq. (5), (6), arXiv:2305.14314.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import Any, Final, Literal, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from cutlayer.core.extras import require
from cutlayer.models.anatomy import family_of
from cutlayer.models.cutting import block_list
from cutlayer.models.twin import twin

Quantization = Literal["nf4"]

_FP32 = 4
_IN_4_BIT: Final = "is_loaded_in_4bit"
"""What Hugging Face calls it on a model, and where PEFT looks."""


def quantized(model: PreTrainedModel, kind: Quantization | None) -> PreTrainedModel:
    """A twin of a model with the linear maps of its blocks in 4 bits; embeddings, norms and heads are shared.

    It is the model that transformers loads with `BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4",
    bnb_4bit_use_double_quant=True)` and all but these maps left out. What transformers keeps in fp32, some maps of T5,
    is left out here, too. Codes are made on the processor, wherever they are used, and so the same everywhere.

    Args:
        model: A model in fp32, frozen, on the processor. It stays as it is.
        kind: The type of the weights; `None` returns the model itself.

    Raises:
        MissingExtraError: bitsandbytes is not installed.
    """
    if kind is None:
        return model
    linear, model = _nf4(), twin(model)
    kept = tuple(getattr(model, "_keep_in_fp32_modules", None) or ())
    for stack in family_of(model.config).stacks:
        for block in block_list(model, stack):
            for name, module in list(block.named_modules()):
                if isinstance(module, nn.Linear | Conv1D) and not set(kept) & set(name.split(".")):
                    block.set_submodule(name, linear(module))
    setattr(model, _IN_4_BIT, True)
    return model


def is_quantized(model: PreTrainedModel) -> bool:
    """Whether a model's blocks are in 4 bits."""
    return bool(getattr(model, _IN_4_BIT, False))


def shape_of(weight: Tensor) -> tuple[int, ...]:
    """The shape of a weight as the map has it, `[outputs, inputs]`; packed ones are kept as `[numbers / 2, 1]`."""
    state = getattr(weight, "quant_state", None)
    return tuple(weight.shape if state is None else state.shape)


def stored(weight: Tensor) -> Iterator[Tensor]:
    """The tensors that a weight is kept in.

    Args:
        weight: `[outputs, inputs]`, or `[numbers / 2, 1]` codes.

    Yields:
        Itself; of codes, too, what makes numbers of them, among it scales of blocks `[numbers / 64]` and of these
        `[numbers / 16384]`.
    """
    yield weight.detach()
    state = getattr(weight, "quant_state", None)
    if state is not None:
        yield from (tensor for _, tensor in sorted(state.as_dict(packed=True).items()))


def unpacked_bytes(module: nn.Module) -> int:
    """Bytes that numbers in fp32 take of its largest map in 4 bits, while a pass uses it; 0 where none is."""
    packed = (weight for weight in module.parameters() if hasattr(weight, "quant_state"))
    return max((_FP32 * math.prod(shape_of(weight)) for weight in packed), default=0)


@cache
def _nf4() -> Any:
    """The class of linear maps in NF4."""
    require("qlora")
    from bitsandbytes import matmul_4bit
    from bitsandbytes.nn import Linear4bit, Params4bit

    class NF4Linear(Linear4bit):  # type: ignore[misc]  # bitsandbytes has types, but not of its modules
        """A frozen linear map in NF4, without state of its own: twins on one base compute at a time, or in turn.

        bitsandbytes' own forward pass packs the shared weights otherwise on some processors as soon as a twin is in
        evaluation mode: another twin then gets no gradient through them, and other numbers, in bf16.
        """

        def __init__(self, source: nn.Linear | Conv1D) -> None:
            weight = source.weight.T if isinstance(source, Conv1D) else source.weight
            outputs, inputs = weight.shape
            with torch.device("meta"):
                super().__init__(inputs, outputs, quant_type="nf4")
            # Its state stays with the codes: a module's own would be copied for each twin.
            packed = Params4bit(weight.detach(), requires_grad=False, quant_type="nf4", compress_statistics=True)
            self.weight = packed.to("cpu")
            self.bias = source.bias
            self.train(source.training)

        def forward(self, x: Tensor) -> Tensor:
            """The map's outputs `[..., outputs]`, in the type that an ordinary linear map would compute in."""
            device = x.device.type
            if torch.is_autocast_enabled(device):
                x = x.to(torch.get_autocast_dtype(device))
            held: Tensor | None = self.bias
            bias = None if held is None else held.to(x.dtype)
            return cast(Tensor, matmul_4bit(x, self.weight, bias=bias, quant_state=self.weight.quant_state))

    return NF4Linear
