"""Beam search at the customer: Hugging Face's own, over a model whose blocks are elsewhere."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, GenerationConfig, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from cutlayer.core import Ragged
from cutlayer.customer.session import Growing, Session
from cutlayer.customer.settings import Sampling


class _Parents(DynamicCache):
    """Stands where a model's keys and values would be, and notes which text each one goes on from."""

    def __init__(self) -> None:
        super().__init__()
        self.parents: Tensor | None = None
        self.seen = 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.seen

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.parents = beam_idx


class _Config(PretrainedConfig):
    """What `generate` asks a model's configuration for."""

    vocab_size: int = 0


class _Elsewhere(PreTrainedModel, GenerationMixin):
    """A session as `generate` sees a model."""

    config_class = _Config

    def __init__(self, session: Session, texts: Growing) -> None:
        super().__init__(_Config(vocab_size=len(session.archive.candidates)))
        self._session = [session]  # in a list, so that its weights are not this module's
        self._texts = texts

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def forward(self, input_ids: Tensor, past_key_values: _Parents, **_: Any) -> CausalLMOutputWithPast:
        """Logits of what follows the newest token of each text."""
        first = past_key_values.seen == 0
        newest = input_ids[:, :0] if first else input_ids[:, -1:]  # the start token is the session's own
        lengths = torch.full((len(newest),), newest.shape[1])
        parents, past_key_values.parents = past_key_values.parents, None
        past_key_values.seen += 1
        logits = self._session[0].grow(self._texts, Ragged(newest.flatten(), lengths), parents=parents)
        return CausalLMOutputWithPast(logits=logits[:, None], past_key_values=past_key_values)


def best_texts(session: Session, texts: Growing, sampling: Sampling) -> list[list[int]]:
    """The most probable continuation that beam search finds for each source text, its end mark included.

    Args:
        session: The road, with trained weights loaded.
        texts: What grows: `beams` texts for each source text.
        sampling: Beams, length penalty and tokens at most.
    """
    start = session.archive.target_template.opening[0]
    tokenizer = session.archive.tokenizer
    config = GenerationConfig(
        max_new_tokens=sampling.max_new_tokens,
        num_beams=sampling.num_beams,
        length_penalty=sampling.length_penalty,
        do_sample=False,
        bos_token_id=start,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.eos_token_id,  # what fills texts that have ended; padding is the start token of some
    )
    prompts = torch.full((texts.link.spec.sequences // sampling.num_beams, 1), start)
    model = _Elsewhere(session, texts)
    model.generation_config = config
    inputs: dict[str, Any] = {"attention_mask": torch.ones_like(prompts), "past_key_values": _Parents()}
    found: Any = model.generate(prompts, generation_config=config, **inputs)  # type: ignore[misc]  # its own mixture
    return [_until_end(ids, tokenizer.eos_token_id) for ids in found[:, 1:].tolist()]


def _until_end(ids: list[int], end: int) -> list[int]:
    return ids[: ids.index(end) + 1] if end in ids else ids
