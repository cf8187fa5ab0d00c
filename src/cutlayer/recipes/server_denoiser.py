"""A denoiser where noise is not known: what a vendor can make of clipped rows by itself.

Ref: Split-and-Denoise, §3.4 (Proposition 1), A.10 and Figure 6, arXiv:2310.09130.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from cutlayer.core import Ragged
from cutlayer.core.denoiser import PaperDenoiserSpec, paper_shape
from cutlayer.customer import Progress
from cutlayer.data import Dataset, tokenise
from cutlayer.models.denoiser import Denoiser, DenoiserBlock, draw_weights, sinusoids
from cutlayer.privacy import find_mechanism
from cutlayer.privacy.distances import largest_distance
from cutlayer.privacy.mechanisms.mechanism import norm_of
from cutlayer.recipes.embedding_cells import MODEL, DenoiserCell, Scored, learnt_from, singly, vendor_of
from cutlayer.recipes.lab import Cell, Lab
from cutlayer.recipes.long_table import Level, Measure
from cutlayer.recipes.tasks import Limits, Task
from cutlayer.reports.downstream import CLEAN
from cutlayer.vendor.catalogue import Catalogue, pick_device
from cutlayer.vendor.checkpoints import Checkpoints
from cutlayer.vendor.denoiser_training import RATES, Pairing, pairing_of
from cutlayer.vendor.stepwise import Stepwise
from cutlayer.wire.messages import Precision

SERVER: Final = "server"
_TEXTS: Final = 64
_MOST: Final = 690.0
"""An exponent whose power of e is a number."""


class RowDenoiser(nn.Module):
    """Makes rows of noisy rows, of the paper's denoiser's size; it is given nothing else (A.10).

    Args:
        spec: Its shape.
        scale: The size of a number of the table.
    """

    def __init__(self, spec: PaperDenoiserSpec, scale: float) -> None:
        super().__init__()
        self._scale, self._width = scale, spec.width
        self.layers = nn.ModuleList(
            DenoiserBlock(spec.width, d_ff=spec.d_ff, d_kv=spec.d_kv, n_head=spec.n_head) for _ in range(spec.layers)
        )
        self.out = nn.Linear(spec.width, spec.width)

    def draw(self, seed: int, trust: float) -> None:
        """Draws all matrices, in place, so that before it has learnt anything it answers a multiple of noisy rows.

        Args:
            seed: Of the draws.
            trust: The multiple.
        """
        draw_weights(self, seed, zero_at_first=Denoiser.zero_at_first)
        with torch.no_grad():
            self.out.weight.copy_(trust * torch.eye(self._width))

    def forward(self, rows: Tensor, mask: Tensor) -> Tensor:
        """Rows `[texts, tokens, width]` of noisy ones, of which those of `mask` `[texts, tokens]` bool are real."""
        places = sinusoids(mask.shape[1], self._width)
        hidden = rows.masked_fill(~mask[:, :, None], 0) / self._scale + places
        for layer in self.layers:
            hidden = layer(hidden, mask[:, None, None])
        found: Tensor = self.out(hidden - places) * self._scale
        return found


class ServerDenoised(Scored):
    """What a small network learns of its embeddings.

    Attributes:
        exponent: eta · B_x of Proposition 1, in the distance of the mechanism's promise.
        missed: Squared difference of denoised rows from rows as they are, in squares of these.
        bound: Of what an unbiased denoiser at the vendor misses at least (eq. 4), for rows in the table's box, in the
            same unit. It is 0 below the smallest number.
    """

    exponent: float
    bound: float
    missed: float


class ServerDenoiserCell(Cell):
    """A task's embeddings where the vendor denoises rows itself, by a denoiser that was trained at that eta.

    Attributes:
        task: The texts.
        limits: Rows of each split.
        passes: Of networks.
        eta: Privacy parameter per token.
        beside: The denoiser at home that it is compared with: of the same releases, trained alike on the same text.
    """

    task: Task
    limits: Limits
    passes: int
    eta: float
    beside: DenoiserCell

    @property
    def name(self) -> str:
        return f"server-denoiser-{self.task.name}-eta{self.eta:g}-s{self.seed}"

    def check(self, lab: Lab) -> None:
        super().check(lab)
        self.task.check(lab.options.data)

    def run(self, lab: Lab) -> ServerDenoised:
        settings = vendor_of(self, lab)
        catalogue = Catalogue(settings, pick_device(settings.device))
        card, tokenizer = catalogue.card(MODEL), catalogue.tokenizer(MODEL)
        server = _Server(self, pairing_of(catalogue, MODEL, self.beside.releases))

        def read(texts: Dataset, most: int | None) -> Ragged:
            return tokenise(texts, tokenizer, max_content=card.template.max_content(1, most)).segments[0]

        public = Dataset(tuple(chain.from_iterable(texts for _, texts in self.beside.sources(lab))))
        known = read(public, self.beside.training.max_length)
        shape = paper_shape(card.info.family, blocks=card.info.blocks, width=server.pairing.table.shape[1])
        checkpoints = Checkpoints(lab.scratch(self) / "checkpoints")
        denoiser = server.trained(known.select((known.lengths > 0).nonzero()[:, 0]), shape, checkpoints, lab.progress)
        rows, learnt = self.task.read_at_most(lab.options.data, self.limits)
        texts, of = singly(rows)
        longest = card.info.require_embedding().max_length
        embedded, missed, squares = server.embedded(read(texts, longest), denoiser, lab.progress)
        arms = {name: values[of].squeeze(1) for name, values in embedded.items()}
        clean = arms.pop(CLEAN)
        norm = norm_of(find_mechanism(self.beside.releases.noise))
        exponent = self.eta * largest_distance(server.pairing.table, norm)
        found = learnt_from(arms, clean, rows, learnt, seed=self.seed, passes=self.passes)
        return ServerDenoised(
            methods=found.methods,
            exponent=exponent,
            bound=server.spread / squares / math.expm1(exponent) if exponent < _MOST else 0.0,
            missed=missed,
        )

    def measures(self, result: ServerDenoised) -> Iterator[Measure]:
        yield from result.measures()
        axes: dict[str, Level] = {"method": SERVER}
        yield Measure("bound's exponent", result.exponent, axes=axes)
        yield Measure("bound", result.bound, axes=axes)
        yield Measure("rows, squares", result.missed, axes=axes)


class _Server:
    """A vendor that has releases, and public text of its own.

    Args:
        cell: What it does.
        pairing: Makes releases and embeddings.
    """

    def __init__(self, cell: ServerDenoiserCell, pairing: Pairing) -> None:
        self._cell, self.pairing = cell, pairing

    @property
    def spread(self) -> float:
        """Of the table's box: the sum of its squared sides, by four times their number (eq. 4's numerator)."""
        sides = self.pairing.table.amax(0) - self.pairing.table.amin(0)
        return float(sides.double().square().mean() / 4)

    def trained(
        self, known: Ragged, shape: PaperDenoiserSpec, checkpoints: Checkpoints, progress: Progress
    ) -> RowDenoiser:
        """A denoiser that has learnt from public tokens, released at that eta; it goes on where it was stopped."""
        training, size = self._cell.beside.training, self.pairing.table.square().mean()
        denoiser = RowDenoiser(shape, float(size.sqrt()))
        clean, released, mask = self._released(known.select(range(min(len(known), _TEXTS))), self._rng(training.steps))
        trust = float((clean * released)[mask].sum() / released[mask].square().sum())
        denoiser.draw(training.seed, min(1.0, max(0.0, trust)))

        def loss(step: int) -> Tensor:
            rng = self._rng(step)
            some = known.select(torch.from_numpy(rng.integers(len(known), size=training.batch_size)))
            clean, released, mask = self._released(some, rng)
            with torch.autocast("cpu", torch.bfloat16, enabled=training.precision is Precision.BF16):
                found = denoiser(released, mask).float()
            missed: Tensor = (found - clean)[mask].square().mean() / size
            return missed

        stepwise = Stepwise(
            dict(denoiser.named_parameters()),
            steps=training.steps,
            learning_rate=training.learning_rate or RATES["paper"],
            checkpoint_steps=training.checkpoint_steps,
            checkpoints=checkpoints,
        )
        stepwise.train(loss, lambda done, total, note: progress.update("server's denoiser", done, total, note))
        return denoiser.eval()

    @torch.no_grad()
    def embedded(
        self, texts: Ragged, denoiser: RowDenoiser, progress: Progress
    ) -> tuple[dict[str, Tensor], float, float]:
        """Embeddings `[texts, width]` of texts as they are and denoised, and two means of rows.

        Returns:
            The embeddings by arm; the squared difference of denoised rows in squares of those as they are; and the mean
            of these squares.
        """
        order = texts.lengths.argsort()
        found: dict[str, list[Tensor]] = {CLEAN: [], SERVER: []}
        missed, rng = torch.zeros(2, dtype=torch.float64), self._rng(self._cell.beside.training.steps + 1)
        for chosen in order.split(_TEXTS):
            some = texts.select(chosen)
            clean, released, mask = self._released(some, rng)
            denoised = denoiser(released, mask)[mask]
            missed += torch.stack([(denoised - clean[mask]).square().sum(), clean[mask].square().sum()]).double()
            found[CLEAN].append(self.pairing.embed(some.with_values(clean[mask])).cpu())
            found[SERVER].append(self.pairing.embed(some.with_values(denoised)).cpu())
            progress.update("embed", sum(map(len, found[CLEAN])), len(texts))
        back = order.argsort()
        squares = float(missed[1]) / (int(texts.lengths.sum()) * self.pairing.table.shape[1])
        return {name: torch.cat(each)[back] for name, each in found.items()}, float(missed[0] / missed[1]), squares

    def _rng(self, step: int) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64([self._cell.seed, step]))

    def _released(self, texts: Ragged, rng: np.random.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Rows as they are and as they leave, `[texts, tokens, width]`, and which places are real."""
        eta = np.full(len(texts.values), self._cell.eta)
        released = texts.with_values(self.pairing.release(texts.values, eta, rng)).padded(0.0)
        return texts.with_values(self.pairing.table[texts.values]).padded(0.0), released, texts.mask().bool()
