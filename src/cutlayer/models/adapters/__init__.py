"""What is trained of a part: an adapter beside its frozen blocks, or its own weights. One registry of methods."""

from typing import TYPE_CHECKING

from cutlayer.core.lazy import on_first_use

if TYPE_CHECKING:
    from cutlayer.models.adapters.lora import attach_lora
    from cutlayer.models.adapters.methods import METHODS, Method, attach, check_method
    from cutlayer.models.adapters.store import (
        adapter_state,
        load_adapter,
        load_adapter_state,
        save_adapter,
        weights_file,
    )
    from cutlayer.models.adapters.whole import tune_whole

__all__ = [
    "METHODS",
    "Method",
    "adapter_state",
    "attach",
    "attach_lora",
    "check_method",
    "load_adapter",
    "load_adapter_state",
    "save_adapter",
    "tune_whole",
    "weights_file",
]

on_first_use(__name__)
