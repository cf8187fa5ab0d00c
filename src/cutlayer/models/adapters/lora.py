"""Low-rank adaptation of a part, in PEFT's own form and with whole-model names."""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import safetensors
import torch
from peft import LoraConfig, PeftModel, TaskType, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file, save
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from cutlayer.core import ModelError, StorageError
from cutlayer.models.cutting import Part, block_list
from cutlayer.models.heads import Head, draw_head, head_modules, resize_head, seeded
from cutlayer.models.twin import twin

Targets = Literal["query-value", "all-linear"]
P = TypeVar("P", bound=Part)

# PEFT asks transformers by a name that transformers has deprecated; nothing a user can act on.
warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated", category=FutureWarning)

_WEIGHTS = "adapter_model.safetensors"
_NOTES = "cutlayer.json"
_NAME = "default"


def attach_lora(
    part: P,
    *,
    rank: int,
    alpha: float,
    dropout: float,
    targets: Targets = "query-value",
    num_labels: int | None = None,
    seed: int,
) -> P:
    """A twin of `part` with a low-rank adapter on its blocks, ready to train.

    The base stays frozen and shared; only the adapter, and the fresh classification head of a part
    that ends in one, are trained. Each new tensor is drawn from the seed and its whole-model name
    alone, so the adapter of a cut model starts equal to that of the whole one.
    Ref: Hu et al. 2021, arXiv:2106.09685.

    Args:
        part: What to adapt.
        rank: Rank of the update.
        alpha: The update is scaled by alpha / rank.
        dropout: Dropout on the adapter's input.
        targets: Query and value projections (for GPT-2 the fused map, hence keys too), or all linear
            maps of the blocks.
        num_labels: Size of the fresh head; required for a part that ends in a classification head.
        seed: Seed of the initialisation.
    """
    part = twin(part)
    model = part.model
    heads: tuple[str, ...] = ()
    if part.has_head and Head.of(model) is Head.CLASSIFICATION:
        if num_labels is None:
            raise ModelError("A classification head needs the number of labels.", remedy="Pass num_labels.")
        heads = head_modules(model)
        resize_head(model, num_labels)
    elif num_labels is not None:
        raise ModelError("This part does not end in a classification head.", remedy="Leave num_labels out.")
    config = LoraConfig(
        task_type=TaskType.SEQ_CLS if heads else None,
        r=rank,
        lora_alpha=cast(int, alpha),  # PEFT only divides it by the rank
        lora_dropout=dropout,
        target_modules=_pattern(part, targets),
        modules_to_save=list(heads) or None,
        fan_in_fan_out=part.family.fan_in_fan_out,
    )
    model.requires_grad_(False)
    part.module = PeftModel(model, config)
    _draw(part, seed=seed, heads=heads)
    part.train(part.training)
    return part


def adapter_state(part: Part) -> dict[str, Tensor]:
    """The trained tensors under the names that PEFT gives them on the whole model."""
    return dict(get_peft_model_state_dict(_peft(part), save_embedding_layers=False))


def load_adapter_state(part: Part, state: Mapping[str, Tensor]) -> None:
    """Puts trained tensors back; names and shapes must be exactly those of `adapter_state`.

    Raises:
        ModelError: They are not.
    """
    expected = {name: tuple(tensor.shape) for name, tensor in adapter_state(part).items()}
    given = {name: tuple(tensor.shape) for name, tensor in state.items()}
    if expected != given:
        strange = sorted(name for name in expected.keys() | given.keys() if expected.get(name) != given.get(name))
        raise ModelError(
            f"The adapter does not fit this part: {len(strange)} tensors differ, the first is {strange[0]}.",
            remedy="Load it on the cut, rank and number of labels that it was trained with.",
        )
    set_peft_model_state_dict(_peft(part), dict(state))


def save_adapter(part: Part, folder: Path, notes: Mapping[str, Any]) -> None:
    """Writes the adapter as PEFT does, with `cutlayer.json` beside it.

    Blocks have their whole-model numbers, so `PeftModel.from_pretrained(whole_model, folder)` puts
    them where they belong.

    Args:
        part: An adapted part.
        folder: Where to; created if it does not exist.
        notes: What else to keep, JSON: the cut, the fingerprint.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = _peft(part).peft_config[_NAME]
    inference, config.inference_mode = config.inference_mode, True
    config.save_pretrained(str(folder))
    config.inference_mode = inference
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in adapter_state(part).items()}
    # Not `save_file`: where the disk is full, that raises an error of its own that nobody takes for what it is.
    (folder / _WEIGHTS).write_bytes(save(tensors, metadata={"format": "pt"}))
    (folder / _NOTES).write_text(json.dumps(dict(notes), indent=2, sort_keys=True) + "\n", encoding="utf-8")


def load_adapter(part: P, folder: Path) -> P:
    """A twin of `part` with a saved adapter on it, frozen and in evaluation mode.

    Raises:
        StorageError: The folder holds no adapter, or a damaged one.
        ModelError: The adapter was trained on another cut or model.
    """
    try:
        config = LoraConfig.from_pretrained(str(folder))
        state = load_file(folder / _WEIGHTS)
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise StorageError(f"The adapter in {folder} cannot be read.", remedy="Save it again.") from error
    part = twin(part)
    model = part.model
    if config.modules_to_save:
        weight = f"base_model.model.{part.family.classifier_output}.weight"
        if weight not in state:
            raise ModelError("The adapter's head does not fit this model.", remedy="Load it on the model it is for.")
        resize_head(model, len(state[weight]))
    part.module = PeftModel(model, config)
    load_adapter_state(part, state)
    part.requires_grad_(False)
    part.eval()
    return part


def _peft(part: Part) -> PeftModel:
    if not isinstance(part.module, PeftModel):
        raise ModelError("This part has no adapter.", remedy="Attach one with attach_lora.")
    return part.module


def _pattern(part: Part, targets: Targets) -> str:
    """A regular expression for the adapted modules of this part's own blocks, and no others.

    PEFT matches it against names in the whole model too, so blocks below the cut stay bare there.
    """
    choices = []
    for stack in part.family.stacks:
        blocks = dict(block_list(part.model, stack).named_children())
        if not blocks:
            continue
        names = part.family.query_value
        if targets == "all-linear":
            names = tuple(
                dict.fromkeys(
                    name
                    for block in blocks.values()
                    for name, module in block.named_modules()
                    if isinstance(module, nn.Linear | Conv1D)
                )
            )
        numbers = "|".join(blocks)
        endings = "|".join(re.escape(name) for name in names)
        path = re.escape(f"{stack.path}.{stack.blocks}")
        choices.append(rf"{path}\.(?:{numbers})\.(?:.*\.)?(?:{endings})")
    if not choices:
        raise ModelError("This part has no blocks, so there is nothing to adapt.", remedy="Choose another cut.")
    return "|".join(choices)


def _draw(part: Part, *, seed: int, heads: tuple[str, ...]) -> None:
    model = part.model
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_A." in name:
                drawn = torch.empty(parameter.shape)
                nn.init.kaiming_uniform_(drawn, a=math.sqrt(5), generator=seeded(seed, name))
                parameter.copy_(drawn)
            elif ".lora_B." in name:
                parameter.zero_()
    std = getattr(model.config, "initializer_range", 0.02)
    for path in heads:
        copies: Any = model.get_submodule(path).modules_to_save
        draw_head(copies[_NAME], seed=seed, name=path, std=std)
