"""Trainable additions to a frozen part."""

from cutlayer.models.adapters.lora import (
    adapter_state,
    attach_lora,
    load_adapter,
    load_adapter_state,
    save_adapter,
)

__all__ = [
    "adapter_state",
    "attach_lora",
    "load_adapter",
    "load_adapter_state",
    "save_adapter",
]
