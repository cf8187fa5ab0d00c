"""What was tuned, as named tensors and as files: an adapter in PEFT's form, or a part's own weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import safetensors
import torch
from peft import PeftConfig, PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file, save
from torch import Tensor

from cutlayer.core import ModelError, StorageError
from cutlayer.models.adapters.whole import tune_whole
from cutlayer.models.cutting import Part
from cutlayer.models.heads import Head, resize_head
from cutlayer.models.seq2seq import Seq2SeqTop
from cutlayer.models.twin import twin
from cutlayer.models.virtual import ADAPTER

P = TypeVar("P", bound=Part)

ADAPTER_WEIGHTS = "adapter_model.safetensors"
"""PEFT's name for an adapter's tensors."""
WHOLE_WEIGHTS = "weights.safetensors"
"""A tuned part's own weights, by whole-model name."""
_NOTES = "cutlayer.json"


def adapter_state(part: Part) -> dict[str, Tensor]:
    """The trained tensors under whole-model names; those of an adapter are PEFT's.

    Returns:
        Views of the parameters, or copies, each in its own shape: of a map that LoRA adapts `[rank, inputs]` and
        `[outputs, rank]`, of a prompt `[positions, width]`, of a prefix `[positions, blocks * 2 * width]`.

    Raises:
        ModelError: Nothing of this part is trained.
    """
    if isinstance(part.module, PeftModel):
        return dict(get_peft_model_state_dict(part.module, save_embedding_layers=False))
    own: dict[str, Tensor] = dict(part.model.named_parameters())
    if not any(value.requires_grad for value in own.values()):
        raise ModelError("This part has no adapter.", remedy="Attach a method.")
    return own


def load_adapter_state(part: Part, state: Mapping[str, Tensor]) -> None:
    """Puts trained tensors back.

    Args:
        part: Where they belong; nothing else of it changes.
        state: Tensors by whole-model name, with the names and shapes of `adapter_state`.

    Raises:
        ModelError: Names or shapes are others.
    """
    mine = adapter_state(part)
    expected = {name: tuple(tensor.shape) for name, tensor in mine.items()}
    given = {name: tuple(tensor.shape) for name, tensor in state.items()}
    if expected != given:
        strange = sorted(name for name in expected.keys() | given.keys() if expected.get(name) != given.get(name))
        raise ModelError(
            f"The adapter does not fit this part: {len(strange)} tensors differ, the first is {strange[0]}.",
            remedy="Load it on the cut, rank and number of labels that it was trained with.",
        )
    if isinstance(part.module, PeftModel):
        set_peft_model_state_dict(part.module, dict(state))
        return
    with torch.no_grad():
        for name, tensor in mine.items():
            tensor.copy_(state[name])


def save_adapter(part: Part, folder: Path, notes: Mapping[str, Any]) -> None:
    """Writes the adapter as PEFT does, or the part's own weights, with `cutlayer.json` beside it.

    Blocks have their whole-model numbers, so `PeftModel.from_pretrained(whole_model, folder)` puts
    a low-rank adapter where it belongs, and a part's own weights replace the whole model's of the same names. A prompt
    or a prefix has no names of blocks: PEFT puts it where it belongs if the part began with the embeddings and ended
    with the last block; one of another cut needs that cut (`load_adapter`).

    Args:
        part: A tuned part.
        folder: Where to; created if it does not exist.
        notes: What else to keep, JSON: the cut, the fingerprint.
    """
    folder.mkdir(parents=True, exist_ok=True)
    weights = WHOLE_WEIGHTS
    if isinstance(part.module, PeftModel):
        weights = ADAPTER_WEIGHTS
        config = part.module.peft_config[ADAPTER]
        inference, config.inference_mode = config.inference_mode, True
        config.save_pretrained(str(folder))
        config.inference_mode = inference
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in adapter_state(part).items()}
    # Not `save_file`: where the disk is full, that raises an error of its own that nobody takes for what it is.
    (folder / weights).write_bytes(save(tensors, metadata={"format": "pt"}))
    told: dict[str, Any] = {} if part.pooling == "sequence" else {"pooling": part.pooling}
    if isinstance(part, Seq2SeqTop) and part.label_words is not None:
        told["label_words"] = part.label_words.ids
    (folder / _NOTES).write_text(json.dumps({**notes, **told}, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def weights_file(folder: Path) -> Path:
    """The file with a saved adapter's tensors."""
    whole = folder / WHOLE_WEIGHTS
    return whole if whole.exists() else folder / ADAPTER_WEIGHTS


def load_adapter(part: P, folder: Path) -> P:
    """A twin of `part` with a saved adapter on it, or a copy with saved weights, frozen and in evaluation mode.

    Raises:
        StorageError: The folder holds no adapter, or a damaged one.
        ModelError: The adapter was trained on another cut or model.
    """
    file = weights_file(folder)
    try:
        config = PeftConfig.from_pretrained(str(folder)) if file.name == ADAPTER_WEIGHTS else None
        state = load_file(file)
        notes = folder / _NOTES
        told = json.loads(notes.read_bytes()) if notes.exists() else {}
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise StorageError(f"The adapter in {folder} cannot be read.", remedy="Save it again.") from error
    part = tune_whole(part) if config is None else twin(part)
    if part.has_head and Head.of(part.model) is Head.CLASSIFICATION:
        resize_head(part.model, _labels(part, state))
    if config is not None:
        part.module = PeftModel(part.model, config)
    if "pooling" in told:
        part.pooling = told["pooling"]
    if "label_words" in told and isinstance(part, Seq2SeqTop):
        part.tell(told["label_words"])
    load_adapter_state(part, state)
    part.requires_grad_(False)
    part.eval()
    return part


def _labels(part: Part, state: Mapping[str, Tensor]) -> int:
    """How many labels a saved head is for."""
    weight = f".{part.family.classifier_output}.weight"
    for name, tensor in state.items():
        if f".{name}".endswith(weight):
            return len(tensor)
    raise ModelError("The adapter's head does not fit this model.", remedy="Load it on the model it is for.")
