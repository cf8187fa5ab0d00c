"""A guess of a batch's tokens, held against the boundary that was observed.

Rows x' that start from the guessed tokens' are moved until the bottom's boundary is the observed one (UnSplit's first
phase, from a better start). For a causal bottom the tokens are then chosen anew from left to right, each as the one of
its best K whose boundary row behind the tokens chosen before is nearest to the observed row.

Ref: Chen et al., BiSR, arXiv:2409.00960 (a learned inverter's guess, then matching by optimisation); Nikolaou et
al., SipIt, arXiv:2510.15511 (exact search from left to right).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from pydantic import Field
from torch import Tensor

from cutlayer.attacks.inversion.inverter import Inverter
from cutlayer.attacks.inversion.observed import check_depth
from cutlayer.attacks.inversion.public_rows import single_precision
from cutlayer.attacks.inversion.unsplit_run import UnSplitRun, reconstruct
from cutlayer.attacks.inversion.unsplit_spec import InputTruth, OuterIteration, Reconstruction, UnSplitSpec
from cutlayer.attacks.knowledge import Inapplicable
from cutlayer.core import DataError, Spec
from cutlayer.core.deadline import check_time
from cutlayer.models import Bottom, Inputs, Kind, cache_bytes

_CACHE_BYTES = 2**29


class RefineSpec(Spec):
    """How a guess is refined on the observed boundary.

    Attributes:
        matching: Algorithm 1 from the guessed tokens' rows; `None` leaves it out. The default moves the
            rows alone and for a short way: the paper's rate of 0.1 would first walk off.
        search: How many of the inverter's best tokens per position the search from left to right tries,
            beside what is guessed already; 0 leaves it out. It takes their number times the work of
            computing the boundary, and the memory of as many caches of one text.
    """

    matching: UnSplitSpec | None = UnSplitSpec(
        outer_iterations=1, inner_inputs=200, inner_weights=0, learning_rate_inputs=0.01
    )
    search: int = Field(default=16, ge=0, le=4096)


@dataclass(frozen=True)
class Refined:
    """What was read, stage by stage; ids are -1 at padding.

    Attributes:
        guessed: `[batch, seq]` int64, by the inverter alone.
        matched: After the rows were moved, with them and the history; `None` if that was left out.
        searched: `[batch, seq]` int64, after the search; `None` if that was left out.
    """

    guessed: Tensor
    matched: Reconstruction | None = None
    searched: Tensor | None = None

    @property
    def stages(self) -> dict[str, Tensor]:
        """The ids `[batch, seq]` int64 of each stage that was run, in order."""
        found = {"guessed": self.guessed}
        if self.matched is not None:
            found["matched"] = self.matched.ids
        if self.searched is not None:
            found["searched"] = self.searched
        return found

    @property
    def ids(self) -> Tensor:
        """The ids `[batch, seq]` int64 of the last stage."""
        return list(self.stages.values())[-1]


def refine(
    inverter: Inverter,
    bottom: Bottom,
    hidden: Tensor,
    inputs: Inputs,
    spec: RefineSpec,
    *,
    generator: torch.Generator,
    truth: InputTruth | None = None,
    on_progress: Callable[[OuterIteration], None] | None = None,
) -> Refined:
    """Reads a boundary and holds the reading against it.

    Args:
        inverter: Fitted on this bottom.
        bottom: The customer's part as the vendor knows it before training, or a better guess of it.
        hidden: `[batch, seq, width]`, the observed boundary, padded on either side.
        inputs: Mask and positions. No ids and no rows.
        spec: Which refinements.
        generator: Draws dropout where `matching` has the guessed bottom in training mode.
        truth: For the history of `matching` alone.
        on_progress: Called after each of its outer loops.

    Raises:
        Inapplicable: The bottom has no blocks, or the search is asked of one that is not causal.
        ConfigError: The spec does not suit the bottom, or the attack was handed the answer.
        DataError: Boundary, mask, bottom and inverter do not fit together.
    """
    check_depth(bottom)
    if spec.search and bottom.family.kind is not Kind.DECODER:
        raise Inapplicable(
            "Tokens after a position change its boundary row where attention looks both ways, so none can be chosen "
            "from left to right: set search to 0."
        )
    options = inverter.ranked(hidden, inputs, max(1, spec.search))
    guessed, matched, searched = options[:, :, 0], None, None
    latest = guessed
    if spec.matching is not None:
        run = UnSplitRun(
            bottom,
            hidden,
            inputs,
            spec.matching,
            generator=generator,
            candidates=inverter.candidates,
            truth=truth,
        )
        mask = guessed >= 0
        rows = bottom.table.detach()[guessed.clamp(min=0).to(bottom.table.device)].float().cpu()
        run.load({**run.state(), "inputs/rows/value": rows.masked_fill(~mask[:, :, None], 0)})
        matched = reconstruct(run, on_progress=on_progress)
        latest = matched.ids
    if spec.search:
        searched = _search(bottom, hidden, inputs, torch.cat([latest[:, :, None], options], 2))
    return Refined(guessed, matched, searched)


def _search(bottom: Bottom, hidden: Tensor, inputs: Inputs, options: Tensor) -> Tensor:
    """Chooses tokens from left to right: the option whose boundary row is nearest to the observed one.

    Each text's real positions are taken together, wherever padding stands. The cache holds the chosen
    tokens; it is repeated for the options of a position, and the chosen option's is what remains.

    Args:
        bottom: Causal.
        hidden: `[batch, seq, width]`.
        inputs: Mask and positions.
        options: `[batch, seq, k]`, of equals the first wins.

    Returns:
        `[batch, seq]` int64, -1 at padding.
    """
    guess = single_precision(bottom)
    guess.eval()
    device = guess.table.device
    mask = inputs.attention_mask.bool().cpu()
    lengths, order = mask.sum(1), (~mask).to(torch.uint8).argsort(dim=1, stable=True)
    found = torch.full(mask.shape, -1, dtype=torch.int64)
    per_text = options.shape[2] * cache_bytes(guess, sequences=1, positions=int(lengths.max()))
    size = max(1, _CACHE_BYTES // per_text)
    # texts of like lengths end together
    for texts in lengths.argsort(descending=True).split(size):
        longest = int(lengths[texts].max())
        columns = order[texts][:, :longest]
        places = texts[:, None], columns
        chosen = _search_together(
            guess,
            hidden.detach()[texts[:, None].to(hidden.device), columns.to(hidden.device)].to(device, torch.float32),
            inputs.position_ids[tuple(place.to(inputs.position_ids.device) for place in places)].to(device),
            options[places].clamp(min=0).to(device),
        )
        real = torch.arange(longest) < lengths[texts][:, None]
        found[texts[:, None].expand_as(columns)[real], columns[real]] = chosen.cpu()[real]
    return found


def _search_together(guess: Bottom, observed: Tensor, positions: Tensor, options: Tensor) -> Tensor:
    """The search over texts that begin in the first column; `[texts, longest]`, of no meaning behind a text's end."""
    texts, longest, k = options.shape
    table, cache = guess.table.detach(), guess.new_cache()
    chosen = torch.empty((texts, longest), dtype=torch.int64, device=options.device)
    first = k * torch.arange(texts, device=options.device)
    with torch.no_grad(), torch.autocast(table.device.type, enabled=False):
        for place in range(longest):
            check_time()
            tried = options[:, place]
            cache.batch_repeat_interleave(k)
            one = Inputs(
                attention_mask=torch.ones((texts * k, place + 1), dtype=torch.int64, device=options.device),
                position_ids=positions[:, place].repeat_interleave(k)[:, None],
                inputs_embeds=table[tried.flatten()][:, None],
            )
            rows = guess(one, cache)[:, 0].view(texts, k, -1)
            if rows.shape[2] != observed.shape[2]:
                raise DataError(
                    f"The boundary is {observed.shape[2]} wide, that of the guessed bottom {rows.shape[2]}.",
                    remedy="Attack with the bottom that made it.",
                )
            best = (rows.float() - observed[:, place, None]).square().sum(2).argmin(1)
            chosen[:, place] = tried.gather(1, best[:, None])[:, 0]
            cache.batch_select_indices(first + best)
    return chosen
