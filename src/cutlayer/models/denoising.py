"""Denoising: a model learns to see in released text what it sees in the same text as it was.

The model as it was reads the text, and its twin that is trained reads the release. Words tell which of their states
belong together, for a release may have more or fewer token ids than the text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor
from transformers import PreTrainedModel

from cutlayer.core import Ragged, Tokens
from cutlayer.models.inputs import Template
from cutlayer.models.pooling import mean_of_text


@dataclass(frozen=True)
class Pieces:
    """Texts as token ids, and the word that each id is of.

    Attributes:
        ids: `n` texts, special tokens left out.
        words: `[total]` int64, numbers of words, in each text from 0.
    """

    ids: Ragged = field(repr=False)
    words: Tensor = field(repr=False)

    def select(self, indices: Tensor) -> Pieces:
        """The texts at `indices`, `[chosen]` int64, in that order."""
        return Pieces(self.ids.select(indices), self.ids.with_values(self.words).select(indices).values)


@dataclass(frozen=True)
class Pairs:
    """Public texts as they were and as they would have left; word for word, however many token ids each is."""

    clear: Pieces
    released: Pieces

    def __len__(self) -> int:
        return len(self.clear.ids)

    def select(self, indices: Tensor) -> Pairs:
        """The pairs at `indices`, `[chosen]` int64, in that order."""
        return Pairs(self.clear.select(indices), self.released.select(indices))

    @classmethod
    def concatenate(cls, parts: list[Pairs]) -> Self:
        """Puts the texts of several packs one behind the other."""
        sides = [[getattr(part, side) for part in parts] for side in ("clear", "released")]
        return cls(
            *(Pieces(Ragged.concatenate([p.ids for p in own]), torch.cat([p.words for p in own])) for own in sides)
        )

    def tensors(self) -> dict[str, Tensor]:
        """All of it, for one safetensors file."""
        return {
            f"{side}.{name}": value
            for side, own in (("clear", self.clear), ("released", self.released))
            for name, value in (("ids", own.ids.values), ("lengths", own.ids.lengths), ("words", own.words))
        }

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Self:
        """What `tensors` returned."""
        return cls(
            *(
                Pieces(Ragged(tensors[f"{side}.ids"], tensors[f"{side}.lengths"]), tensors[f"{side}.words"])
                for side in ("clear", "released")
            )
        )


def denoising_loss(model: PreTrainedModel, teacher: PreTrainedModel, pairs: Pairs, template: Template) -> Tensor:
    """How far a model's states of released texts are from its teacher's states of the same texts as they were.

        L = Σ_w ‖h(released)_w - h'(clear)_w‖² / Σ_w ‖h'(clear)_w‖²  +  the same of the mean over a text's positions

    `h_w` is the mean of the last hidden states of a word's token ids, over the words that both sides have. 0 is a model
    that reads the release as its teacher reads the text; one whose states are all 0 has 2.

    Args:
        model: Reads releases; gradients reach it.
        teacher: Reads the texts as they were; none reach it.
        pairs: The texts.
        template: Where special tokens stand in them.

    Returns:
        `[]`.
    """
    most = 1 + max((int(own.words.max()) if len(own.words) else 0) for own in (pairs.clear, pairs.released))
    with torch.no_grad():
        words, has, mean = _states(teacher, pairs.clear, template, most)
    own, also, its = _states(model, pairs.released, template, most)
    both = has & also
    return _apart(own[both], words[both]) + _apart(its, mean)


def _apart(found: Tensor, wanted: Tensor) -> Tensor:
    distance: Tensor = (found - wanted).square().sum() / wanted.square().sum().clamp(min=1e-12)
    return distance


def _states(model: PreTrainedModel, pieces: Pieces, template: Template, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """A model's last states: `[n * most, width]` by word, which of these words there are, and `[n, width]` by text."""
    inputs = template.assemble(Tokens((pieces.ids,))).to(model.device)
    types = {} if inputs.token_type_ids is None else {"token_type_ids": inputs.token_type_ids}
    hidden = model.base_model(
        input_ids=inputs.input_ids, attention_mask=inputs.attention_mask, **types
    ).last_hidden_state
    content = hidden[:, len(template.opening) :][:, : int(pieces.ids.lengths.max())]
    rows = content[pieces.ids.mask().bool().to(hidden.device)]
    place = (Tokens((pieces.ids,)).owners * most + pieces.words).to(hidden.device)
    sums = hidden.new_zeros(len(pieces.ids) * most, hidden.shape[2]).index_add(0, place, rows)
    counts = torch.bincount(place, minlength=len(sums))
    return sums / counts.clamp(min=1)[:, None], counts > 0, mean_of_text(hidden, inputs)
