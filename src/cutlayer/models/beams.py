"""Beam search: Hugging Face's own, over whatever tells what follows texts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, GenerationConfig, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from cutlayer.core import Ragged
from cutlayer.models.cutting import Tail, Top
from cutlayer.models.decoding import Decoding
from cutlayer.models.inputs import Inputs
from cutlayer.models.seq2seq import Seq2SeqTop

Follow = Callable[[Ragged, Tensor | None], Tensor]
"""Logits `[n, vocabulary]` of what follows `n` texts, of their newest ids (of their beginnings at first) and of which
text each one goes on from, `[n]` int64; `None`: from itself."""


@dataclass(frozen=True)
class BeamSearch:
    """What is searched for.

    Attributes:
        num_beams: Continuations that are followed; 1 takes the most probable token each time.
        max_new_tokens: Ids of a text at most, its beginning left out.
        length_penalty: A text's log-probability is divided by its length to this power.
        end: The id that ends a text.
        vocabulary: How many ids there are.
    """

    num_beams: int
    max_new_tokens: int
    length_penalty: float
    end: int
    vocabulary: int


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
    """What tells what follows, as `generate` sees a model."""

    config_class = _Config

    def __init__(self, follow: Follow, vocabulary: int) -> None:
        super().__init__(_Config(vocab_size=vocabulary))
        self._follow = follow

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def forward(
        self, input_ids: Tensor, past_key_values: _Parents, attention_mask: Tensor | None = None, **_: Any
    ) -> CausalLMOutputWithPast:
        """Logits of what follows the newest ids of each text."""
        if past_key_values.seen:
            newest = Ragged(input_ids[:, -1], torch.ones(len(input_ids), dtype=torch.int64))
        else:
            # `generate` hands on no mask that hides nothing
            real = (torch.ones_like(input_ids) if attention_mask is None else attention_mask).bool()
            newest = Ragged(input_ids[real], real.sum(1))
        parents, past_key_values.parents = past_key_values.parents, None
        past_key_values.seen += 1
        return CausalLMOutputWithPast(logits=self._follow(newest, parents)[:, None], past_key_values=past_key_values)


def best_texts(follow: Follow, beginnings: Ragged, search: BeamSearch) -> list[list[int]]:
    """The most probable continuation that is found for each beginning, its end mark included.

    Args:
        follow: Tells what follows; it is asked about `num_beams` texts for each beginning, one behind the other.
        beginnings: Ids of `n` texts, one at least of each.
        search: What is searched for.
    """
    longest = int(beginnings.lengths.max())
    mask = (torch.arange(longest) >= longest - beginnings.lengths[:, None]).to(torch.int64)
    ids = torch.full(mask.shape, search.end)
    ids[mask.bool()] = beginnings.values
    config = GenerationConfig(
        max_new_tokens=search.max_new_tokens,
        num_beams=search.num_beams,
        length_penalty=search.length_penalty if search.num_beams > 1 else 1.0,
        do_sample=False,
        eos_token_id=search.end,
        pad_token_id=search.end,  # what fills texts that have ended; padding is the start token of some
    )
    model = _Elsewhere(follow, search.vocabulary)
    model.generation_config = config
    inputs: dict[str, Any] = {"attention_mask": mask, "past_key_values": _Parents()}
    found: Any = model.generate(ids, generation_config=config, **inputs)  # type: ignore[misc]  # its own mixture
    return [_until_end(text, search.end) for text in found[:, longest:].tolist()]


class _Growing:
    """Texts that grow, and what a decoder keeps of them.

    Args:
        top: The decoder.
        texts: How many grow, beams among them.
    """

    def __init__(self, top: Top | Seq2SeqTop, *, texts: int) -> None:
        self._cache = top.new_cache()
        self._decoding = Decoding(texts)
        self._device = next(top.parameters()).device

    def _next(self, newest: Ragged, parents: Tensor | None) -> Inputs:
        """The newest ids, as the decoder reads them behind those of their parents."""
        if parents is not None:
            self._cache.reorder_cache(parents.to(self._device))  # type: ignore[arg-type]  # any integers will do
            self._decoding.reorder(parents)
        inputs = self._decoding.grow(newest.lengths)
        return inputs.with_ids(self._decoding.pad(newest, inputs)).to(self._device)


class Continued(_Growing):
    """A decoder in two parts that continues texts: what `best_texts` asks.

    Args:
        top: All blocks, with the embeddings.
        tail: The final norm and the head.
        texts: How many are continued, beams among them.
    """

    def __init__(self, top: Top, tail: Tail, *, texts: int) -> None:
        super().__init__(top, texts=texts)
        self._top = top
        self._tail = tail

    @torch.no_grad()
    def __call__(self, newest: Ragged, parents: Tensor | None) -> Tensor:
        """See `Follow`."""
        hidden = self._top(self._next(newest, parents), None, self._cache)[:, -1:]
        # norm and head look at nothing but the position that is continued
        here = torch.zeros(len(hidden), 1, dtype=torch.int64, device=self._device)
        logits: Tensor = self._tail(hidden, Inputs(here + 1, here))
        return logits[:, -1].float().cpu()


class Translated(_Growing):
    """A whole encoder-decoder that writes target texts: what `best_texts` asks, beginning with the start token.

    Args:
        top: The model.
        sources: The source texts' ids and mask.
        beams: Target texts that are followed for each.
    """

    @torch.no_grad()
    def __init__(self, top: Seq2SeqTop, sources: Inputs, *, beams: int) -> None:
        super().__init__(top, texts=beams * len(sources.attention_mask))
        self._top = top
        sources = sources.to(self._device)
        self._encoded = top.encode(sources).repeat_interleave(beams, 0)
        mask, positions = (each.repeat_interleave(beams, 0) for each in (sources.attention_mask, sources.position_ids))
        self._seen = Inputs(mask, positions)

    @torch.no_grad()
    def __call__(self, newest: Ragged, parents: Tensor | None) -> Tensor:
        """See `Follow`; texts go on from others of the same source text alone."""
        target = self._next(newest, parents)
        return self._top.decode(self._encoded, self._seen, target, None, self._cache)[:, -1].float().cpu()


def _until_end(ids: list[int], end: int) -> list[int]:
    return ids[: ids.index(end) + 1] if end in ids else ids
