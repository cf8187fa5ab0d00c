"""Embeddings of texts: a model's base without its head, and one row for each text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from huggingface_hub import constants, hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from torch import Tensor, nn
from transformers import PreTrainedModel

from cutlayer.core import ModelError, UnsupportedArchitectureError
from cutlayer.core.embedding import EmbeddingPooling, EmbeddingSpec
from cutlayer.models.anatomy import Kind, family_of
from cutlayer.models.cutting import Top
from cutlayer.models.inputs import Inputs
from cutlayer.models.load import quiet, resolve
from cutlayer.models.pooling import mean_of_text, pool_last
from cutlayer.models.seq2seq import Seq2SeqTop

_MODULES = "modules.json"
"""In the folder of a sentence-transformers model: what runs after one another."""
_TRANSFORMER = "sentence_bert_config.json"
_MODES: Mapping[str, EmbeddingPooling] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
    "pooling_mode_max_tokens": "max",
}


class Embeddings(nn.Module):
    """What the vendor computes of a text for its embedding, before normalisation.

    Attributes:
        has_head: Whether a text gets one row, as of a head: it does.

    Args:
        top: The vendor's part, without a head; of an encoder-decoder its encoder alone is used.
        spec: How hidden states become one row.
    """

    has_head: Final = True

    def __init__(self, top: Top | Seq2SeqTop, spec: EmbeddingSpec) -> None:
        super().__init__()
        self.top = top
        self.spec = spec

    def forward(self, inputs: Inputs, hidden: Tensor | None = None) -> Tensor:
        """Embeddings `[batch, width]`.

        Args:
            inputs: Mask and positions; ids for a text cut.
            hidden: The boundary `[batch, seq, width]`; None for a text cut.
        """
        run = self.top.encode if isinstance(self.top, Seq2SeqTop) else self.top
        return pool(run(inputs, hidden), inputs, self.spec.pooling)


def pool(hidden: Tensor, inputs: Inputs, pooling: EmbeddingPooling) -> Tensor:
    """One row `[batch, width]` of each text's hidden states `[batch, seq, width]`; padding is never read.

    Padding may stand on either side.
    """
    if pooling == "mean":
        return mean_of_text(hidden, inputs)
    if pooling == "last":
        return pool_last(hidden, inputs)
    real = inputs.attention_mask[:, -hidden.shape[1] :]
    if pooling == "max":
        return hidden.masked_fill(~real.bool()[:, :, None], -torch.inf).amax(1)
    return hidden[torch.arange(len(hidden), device=hidden.device), real.argmax(1)]


def embedding_spec(source: str, model: PreTrainedModel) -> EmbeddingSpec:
    """How a model's embeddings are made: as its folder says, else by its kind.

    A folder of sentence-transformers says it. Of others encoders take the mean over real positions (of an
    encoder-decoder the encoder does), decoders their last position.

    Args:
        source: Where the model lies: `starter`, a folder, or a hub id.
        model: The model.

    Raises:
        UnsupportedArchitectureError: The folder asks for something else than pooling and normalisation.
        ModelError: It cannot be read, or the hub does not answer.
    """
    # OPT's last hidden states may be projected back to its table's width
    width = getattr(model.config, "word_embed_proj_dim", None) or model.config.hidden_size
    modules = _read(source, _MODULES)
    if modules is None:
        decodes = family_of(model.config).kind is Kind.DECODER
        return EmbeddingSpec(width=width, pooling="last" if decodes else "mean")
    mode, normalize = None, False
    for module in modules:
        name = str(module.get("type", "")).rpartition(".")[2]
        if name == "Pooling":
            mode = _mode(source, _read(source, f"{module['path']}/config.json") or {})
        elif name == "Normalize":
            normalize = True
        elif name != "Transformer":
            raise UnsupportedArchitectureError(
                f"Embeddings of {source!r} go through a module {name!r}, which is not supported.",
                remedy="Use a sentence-transformers model of Transformer, Pooling and Normalize.",
            )
    if mode is None:
        raise UnsupportedArchitectureError(
            f"{_MODULES} of {source!r} names no Pooling.", remedy="Use a complete folder."
        )
    longest = (_read(source, _TRANSFORMER) or {}).get("max_seq_length")
    return EmbeddingSpec(width=width, pooling=mode, normalize=normalize, max_length=longest)


def _mode(source: str, config: dict[str, Any]) -> EmbeddingPooling:
    """The one way of pooling that a configuration asks for; versions name it differently."""
    asked = config.get("pooling_mode")
    chosen = [key for key, on in config.items() if key.startswith("pooling_mode_") and on is True]
    if isinstance(asked, str):
        chosen = [next((key for key, mode in _MODES.items() if asked in (mode, key[13:])), asked)]
    if len(chosen) != 1 or chosen[0] not in _MODES:
        raise UnsupportedArchitectureError(
            f"The pooling of {source!r} is {', '.join(chosen) or 'not told'}, which is not supported.",
            remedy=f"Use a model with one of: {', '.join(_MODES)}.",
        )
    return _MODES[chosen[0]]


def _read(source: str, name: str) -> Any:
    """A JSON file of a model; `None` where there is none.

    Raises:
        ModelError: It cannot be read; or the hub does not answer, and whether there is one is not known.
    """
    where = Path(resolve(source))
    try:
        if where.is_dir():
            content = (where / name).read_bytes()
        else:
            with quiet():
                content = Path(hf_hub_download(source, name)).read_bytes()
        return json.loads(content)
    except LocalEntryNotFoundError as error:
        if constants.HF_HUB_OFFLINE:
            return None  # what was fetched before is all that there is
        raise ModelError(
            f"The hub does not answer, and {name} of {source!r}, which says how embeddings are made, is not here.",
            remedy="Try again. HF_HUB_OFFLINE=1 takes the model as it was fetched before, without that file.",
        ) from error
    except (FileNotFoundError, EntryNotFoundError):
        return None
    except (OSError, ValueError) as error:
        raise ModelError(f"{name} of {source!r} cannot be read.", remedy="Use a complete folder.") from error
