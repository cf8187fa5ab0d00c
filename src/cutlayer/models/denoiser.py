"""Denoisers: at home, with the noise that nobody else knows, a noisy embedding becomes what it would have been.

Trained once on public text by whoever has the model, handed out like a bottom, and run by the customer alone.

Ref: Split-and-Denoise, §3.4, arXiv:2310.09130.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar, Final

import torch
from torch import Tensor, nn

from cutlayer.core import Deviation
from cutlayer.core.denoiser import DenoiserSpec, LightDenoiserSpec, PaperDenoiserSpec
from cutlayer.models.heads import seeded

_LONGEST: Final = 4.0
"""Rows that left longer than so many of the table's are shortened to that; longer ones tell no more."""


class Denoiser(nn.Module, ABC):
    """Takes the noise out of embeddings.

    Args:
        spec: Its shape.
    """

    deviations: ClassVar[tuple[Deviation, ...]] = ()
    zero_at_first: ClassVar[tuple[str, ...]] = ("joined.weight", "proj.weight")
    """Suffixes of the names of matrices that are zero before training, so that each branch adds nothing at first."""
    divisors: ClassVar[tuple[str, ...]] = ("noisy_scale", "row_scale")
    """Buffers that are divided by: positive in every denoiser."""
    center: Tensor
    scale: Tensor
    noisy_center: Tensor
    noisy_scale: Tensor
    trust: Tensor
    row_scale: Tensor

    def __init__(self, spec: DenoiserSpec) -> None:
        super().__init__()
        self.spec = spec
        for name in ("center", "noisy_center"):
            self.register_buffer(name, torch.zeros(spec.width))
        for name in ("scale", "noisy_scale", "trust", "row_scale"):
            self.register_buffer(name, torch.ones(()))

    def fit_scales(self, noisy: Tensor, clean: Tensor, table: Tensor) -> None:
        """Measures embeddings and rows from their middle and by their size, so that one rate serves all models.

        `trust` is the factor by which a noisy embedding, so measured, comes nearest to the clean one: where it tells
        nothing, a denoiser begins at the mean embedding and need not learn first to take the noisy one away.

        Args:
            noisy: `[texts, width]`, embeddings of public text as it is released.
            clean: `[texts, width]`, of the same text as it is.
            table: `[vocabulary, width]`.
        """
        self.center.copy_(clean.mean(0))
        self.scale.copy_(_size(clean - clean.mean(0)))
        self.noisy_center.copy_(noisy.mean(0))
        self.noisy_scale.copy_(_size(noisy - noisy.mean(0)))
        both = (noisy - self.noisy_center) / self.noisy_scale * ((clean - self.center) / self.scale)
        self.trust.copy_(both.mean().clamp(0, 1))
        self.row_scale.copy_(_size(table))

    def unanswered(self, noisy: Tensor) -> Tensor:
        """What stands in the place of embeddings `[texts, width]` that it is not given: their mean on public text."""
        return self.noisy_center.expand_as(noisy)

    def forward(self, noisy: Tensor, rows: Tensor, noise: Tensor, mask: Tensor) -> Tensor:
        """Denoised embeddings `[batch, width]`, before normalisation.

        Args:
            noisy: `[batch, width]`: e_n, as the vendor's model made them of what left.
            rows: `[batch, tokens, width]`: x̃, as they left; special tokens' are left out. Anything at padding.
            noise: `[batch, tokens, width]`: z = x̃ - x.
            mask: `[batch, tokens]` bool: real tokens.
        """
        rows, noise = (each.masked_fill(~mask[:, :, None], 0) / self.row_scale for each in (rows, noise))
        noisy = (noisy - self.noisy_center) / self.noisy_scale
        return self.denoise(noisy, rows, noise, mask) * self.scale + self.center

    @abstractmethod
    def denoise(self, noisy: Tensor, rows: Tensor, noise: Tensor, mask: Tensor) -> Tensor:
        """The same, `[batch, width]`, of numbers of about size 1, 0 at padding."""

    def draw(self, seed: int) -> None:
        """Draws all weights, in place; public, and the same on every machine."""
        draw_weights(self, seed, zero_at_first=self.zero_at_first)


@torch.no_grad()
def draw_weights(module: nn.Module, seed: int, *, zero_at_first: tuple[str, ...]) -> None:
    """Draws a module's matrices, in place, each number of variance 1 / inputs; the same on every machine.

    Args:
        module: Its vectors become 0, and weights of its norms 1.
        seed: Of the draws.
        zero_at_first: Suffixes of the names of matrices that become 0.
    """
    for name, parameter in module.named_parameters():
        if name.endswith("norm.weight"):
            parameter.fill_(1)
        elif parameter.dim() == 1 or name.endswith(zero_at_first):
            parameter.zero_()
        else:
            drawn = torch.empty(parameter.shape).normal_(generator=seeded(seed, name))
            parameter.copy_(drawn / parameter.shape[1] ** 0.5)


class PaperDenoiser(Denoiser):
    """SnD's denoiser.

    H_0 = [e_n; x̃_1 … x̃_n; z_1 … z_n]                            (6)
    h_t^l = h_t^(l-1) + a_t^(l-1) + m_t^(l-1)                     (7)
    a_t = attn(h_1 … h_(2n+1)),  m_t = W_proj σ(W_fc γ(a_t + h_t))  (8)
    e_d = h_0^L                                                  (9)
    """

    spec: PaperDenoiserSpec

    deviations = (
        Deviation(
            what="attention of the denoiser, eq. (8)",
            value_in_paper="a transformer decoder",
            ours="every position attends to all",
            why="Under a causal mask the embedding, which stands first, would see nothing but itself.",
        ),
        Deviation(
            what="σ, γ, and the input of attention, eq. (8)",
            value_in_paper="not stated",
            ours="GELU; layer normalisation; normalised, too",
            why="As in GPT-2. Without it the scale of rows, noise and embedding would decide what is attended to.",
        ),
        Deviation(
            what="positions and kinds of the denoiser's input, eq. (6)",
            value_in_paper="not stated",
            ours="sinusoids of the token's place, and a trained vector for each of embedding, row and noise",
            why="Else a row and its noise could not be told to belong together.",
        ),
        Deviation(
            what="scales of the denoiser's input",
            value_in_paper="not stated",
            ours="embeddings, clean and noisy, are taken from their mean and in their standard deviation on public "
            "text, rows and noise in that of the table; e_n times the factor by which it comes nearest to e_c",
            why="Embeddings of GPT-2 are some hundred times as large as its rows. By eq. (7) all of e_n stays in e_d "
            "unless layers take it away again, and where noise is strong it tells nothing.",
        ),
        Deviation(
            what="initialisation and optimiser",
            value_in_paper="not stated",
            ours="normal draws of variance 1 / inputs, but zeros for what layers add; AdamW with a rate that rises and "
            "falls linearly",
            why="Without having learnt anything the denoiser then answers the best multiple of e_n, about its mean.",
        ),
        Deviation(
            what="special tokens",
            value_in_paper="not stated",
            ours="left out of the denoiser's input",
            why="They are public and have no noise.",
        ),
    )

    def __init__(self, spec: PaperDenoiserSpec) -> None:
        super().__init__(spec)
        self.kinds = nn.Parameter(torch.empty(3, spec.width)) if spec.placed else None
        self.layers = nn.ModuleList(
            DenoiserBlock(spec.width, d_ff=spec.d_ff, d_kv=spec.d_kv, n_head=spec.n_head) for _ in range(spec.layers)
        )

    def denoise(self, noisy: Tensor, rows: Tensor, noise: Tensor, mask: Tensor) -> Tensor:
        """See `Denoiser.denoise`."""
        first = self.trust * noisy[:, None]
        if self.kinds is not None:
            places = sinusoids(mask.shape[1], self.spec.width).to(rows)
            rows, noise = rows + places + self.kinds[1], noise + places + self.kinds[2]
            first = first + self.kinds[0]
        hidden = torch.cat([first, rows, noise], 1)
        seen = torch.cat([mask.new_ones(len(mask), 1), mask, mask], 1)[:, None, None]
        for layer in self.layers:
            hidden = layer(hidden, seen)
        denoised: Tensor = hidden[:, 0]
        return denoised


class LightDenoiser(Denoiser):
    """Ours: its cost follows from the length of the text and a narrow width, whatever the vendor's model is.

    What a token's row was and what left of it share a position of `inner` numbers, which the layers mix with the noisy
    embedding. From what they make of it follow, for each text, weights by which the tokens' own rows are averaged and
    then mapped to an embedding, what is added to that, and how far each number of the noisy embedding is believed.
    """

    spec: LightDenoiserSpec
    zero_at_first = (*Denoiser.zero_at_first, "words.weight", "out.weight", "gate.weight")

    def __init__(self, spec: LightDenoiserSpec) -> None:
        super().__init__(spec)
        inner = spec.inner
        self.clean = nn.Linear(spec.width, inner)
        self.rows = nn.Linear(spec.width, inner, bias=False)
        self.noisy = nn.Linear(spec.width, inner)
        self.layers = nn.ModuleList(
            DenoiserBlock(inner, d_ff=spec.d_ff, d_kv=inner // spec.n_head, n_head=spec.n_head)
            for _ in range(spec.layers)
        )
        self.token_norm = nn.LayerNorm(inner)
        self.weights = nn.Linear(inner, spec.means)
        self.words = nn.Linear(spec.means * spec.width, spec.width)
        self.norm = nn.LayerNorm(2 * inner)
        self.out = nn.Linear(2 * inner, spec.width)
        self.gate = nn.Linear(2 * inner, spec.width)

    def denoise(self, noisy: Tensor, rows: Tensor, noise: Tensor, mask: Tensor) -> Tensor:
        """See `Denoiser.denoise`."""
        clean = rows - noise
        # without clipping noise may be a million times as long as a row
        longest = self.spec.width**0.5 * _LONGEST
        rows = rows * (longest / rows.norm(dim=2, keepdim=True).clamp(min=longest))
        tokens = self.clean(clean) + self.rows(rows) + sinusoids(mask.shape[1], self.spec.inner).to(rows)
        hidden = torch.cat([self.noisy(noisy)[:, None], tokens], 1)
        seen = torch.cat([mask.new_ones(len(mask), 1), mask], 1)
        for layer in self.layers:
            hidden = layer(hidden, seen[:, None, None])
        real = seen.to(hidden)[:, :, None]
        summary = self.norm(torch.cat([hidden[:, 0], (hidden * real).sum(1) / real.sum(1)], 1))
        scores = self.weights(self.token_norm(hidden[:, 1:])).masked_fill(~mask[:, :, None], -torch.inf)
        means = scores.softmax(1).transpose(1, 2) @ clean
        found = self.words(means.flatten(1)) + self.out(summary)
        denoised: Tensor = found + (self.trust + self.gate(summary)) * noisy
        return denoised


def build_denoiser(spec: DenoiserSpec) -> Denoiser:
    """A denoiser of that shape, with weights that are still to be drawn or loaded."""
    if isinstance(spec, PaperDenoiserSpec):
        return PaperDenoiser(spec)
    if isinstance(spec, LightDenoiserSpec):
        return LightDenoiser(spec)
    raise TypeError(f"there is no denoiser of kind {type(spec).__name__}")


class DenoiserBlock(nn.Module):
    """Attention and a two-layer map, added to what came in side by side (SnD eq. 7 and 8).

    Args:
        width: Of hidden states.
        d_ff: Of the map.
        d_kv: Of a head.
        n_head: Heads.
    """

    def __init__(self, width: int, *, d_ff: int, d_kv: int, n_head: int) -> None:
        super().__init__()
        self._heads = n_head
        self.attention_norm = nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, n_head * d_kv) for _ in range(3))
        self.joined = nn.Linear(n_head * d_kv, width)
        self.norm = nn.LayerNorm(width)
        self.fc = nn.Linear(width, d_ff)
        self.proj = nn.Linear(d_ff, width)

    def forward(self, hidden: Tensor, seen: Tensor) -> Tensor:
        """Hidden states `[batch, seq, width]`, of which those that are `seen` (bool, a mask of attention) count."""
        normed = self.attention_norm(hidden)
        query, key, value = (
            each(normed).unflatten(-1, (self._heads, -1)).transpose(1, 2) for each in (self.query, self.key, self.value)
        )
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=seen)
        attended: Tensor = self.joined(mixed.transpose(1, 2).flatten(2))
        mapped: Tensor = self.proj(nn.functional.gelu(self.fc(self.norm(attended + hidden))))
        return hidden + attended + mapped


def _size(values: Tensor) -> Tensor:
    """The root of the mean square, never zero."""
    return values.square().mean().sqrt().clamp(min=1e-12)


def sinusoids(length: int, width: int) -> Tensor:
    """`[length, width]`: where positions stand, for texts of any length (Vaswani et al. 2017, §3.5)."""
    places = torch.arange(length)[:, None]
    rates = torch.exp(torch.arange(0, width, 2) * (-math.log(1e4) / width))
    table = torch.zeros(length, width)
    table[:, 0::2] = torch.sin(places * rates)
    table[:, 1::2] = torch.cos(places * rates[: width // 2])
    return table
