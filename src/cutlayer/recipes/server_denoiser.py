"""A denoiser where noise is not known: what a vendor can make of clipped rows by itself.

Ref: Split-and-Denoise, §3.4 (Proposition 1), A.10 and Figure 6, arXiv:2310.09130.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from cutlayer import vendor
from cutlayer.core import Ragged, Spec
from cutlayer.core.denoiser import PaperDenoiserSpec, paper_shape
from cutlayer.customer import Progress
from cutlayer.data import Dataset, tokenise
from cutlayer.models import Optimiser
from cutlayer.models.denoiser import Denoiser, DenoiserBlock, sinusoids
from cutlayer.models.heads import seeded
from cutlayer.models.optimiser import warmup_in
from cutlayer.privacy.distances import largest_distance
from cutlayer.recipes.embedding_cells import Spared, but, learnt_from, of_arm, singly
from cutlayer.recipes.lab import Cell, Lab
from cutlayer.recipes.long_table import Level, Measure
from cutlayer.recipes.tasks import Limits, Task, TextFile, data_file
from cutlayer.reports.downstream import CLEAN, Downstream
from cutlayer.vendor import VendorSettings
from cutlayer.vendor.catalogue import Catalogue, pick_device
from cutlayer.vendor.denoiser_training import Pairing, pairing_of
from cutlayer.vendor.settings import DenoisedReleases, DenoiserTraining
from cutlayer.wire.messages import Precision

_MODEL: Final = "model"
SERVER: Final = "server"
_RATE, _DECAY, _WARMUP = 1e-3, 0.01, 0.06
"""As of denoisers that know the noise."""
_TEXTS: Final = 64


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
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if name == "out.weight":
                    parameter.copy_(trust * torch.eye(self._width))
                elif parameter.dim() == 1 or name.endswith(Denoiser.zero_at_first):
                    parameter.fill_(float(name.endswith("norm.weight")))
                else:
                    drawn = torch.empty(parameter.shape).normal_(generator=seeded(seed, name))
                    parameter.copy_(drawn / parameter.shape[1] ** 0.5)

    def forward(self, rows: Tensor, mask: Tensor) -> Tensor:
        """Rows `[texts, tokens, width]` of noisy ones, of which those of `mask` `[texts, tokens]` bool are real."""
        places = sinusoids(mask.shape[1], self._width)
        hidden = rows.masked_fill(~mask[:, :, None], 0) / self._scale + places
        for layer in self.layers:
            hidden = layer(hidden, mask[:, None, None])
        found: Tensor = self.out(hidden - places) * self._scale
        return found


class ServerDenoised(Spec):
    """What came of it.

    Attributes:
        downstream: What a small network learns of embeddings.
        exponent: eta · B_x of Proposition 1, whose bound is divided by e to that power, less 1.
        missed: Squared difference of denoised rows from rows as they are, in squares of these.
    """

    downstream: Downstream
    exponent: float
    missed: float


class ServerDenoiserCell(Cell):
    """A task's embeddings where the vendor denoises rows itself, by a denoiser that was trained at that eta.

    Attributes:
        task: The texts.
        limits: Rows of each split.
        passes: Of networks.
        releases: How they leave.
        eta: Privacy parameter per token.
        training: How the denoiser is trained, as far as it is as of others.
        public: What it learns from.
        spared: What none of that may be.
    """

    model: str
    task: Task
    limits: Limits
    passes: int
    releases: DenoisedReleases
    eta: float
    training: DenoiserTraining
    public: tuple[TextFile, ...]
    spared: Spared

    @property
    def name(self) -> str:
        return f"server-denoiser-{self.task.name}-eta{self.eta:g}-s{self.seed}"

    def check(self, lab: Lab) -> None:
        super().check(lab)
        for part in (self.task.train, self.task.test):
            data_file(lab.options.data, self.task.name, part)

    def run(self, lab: Lab) -> ServerDenoised:
        folder = lab.scratch(self)
        if not (folder / "vendor.json").exists():
            vendor.init(folder, models=[f"{_MODEL}={lab.options.model}"])
        settings = VendorSettings.load(folder)
        catalogue = Catalogue(settings, pick_device(settings.device))
        card, tokenizer = catalogue.card(_MODEL), catalogue.tokenizer(_MODEL)
        server = _Server(self, pairing_of(catalogue, _MODEL, self.releases))

        def read(texts: Dataset, most: int | None) -> Ragged:
            return tokenise(texts, tokenizer, max_content=card.template.max_content(1, most)).segments[0]

        spared = lab.once(self.spared, lambda: self.spared.texts(lab))
        public = [row for file in self.public for row in but(file.read(lab.options.data), spared)]
        known = read(Dataset(tuple(public)), self.training.max_length)
        shape = paper_shape(card.info.family, blocks=card.info.blocks, width=server.pairing.table.shape[1])
        denoiser = server.trained(known.select((known.lengths > 0).nonzero()[:, 0]), shape, lab.progress)
        rows, learnt = self.task.read_at_most(lab.options.data, self.limits)
        texts, of = singly(rows)
        embedded, missed = server.embedded(read(texts, card.info.embedding.max_length), denoiser, lab.progress)
        arms = {name: values[of].squeeze(1) for name, values in embedded.items()}
        return ServerDenoised(
            downstream=learnt_from(arms, rows, learnt, seed=self.seed, passes=self.passes),
            exponent=self.eta * largest_distance(server.pairing.table),
            missed=missed,
        )

    def measures(self, result: ServerDenoised) -> Iterator[Measure]:
        for arm in result.downstream.arms:
            if arm.name == SERVER:
                yield from of_arm(arm, SERVER)
        axes: dict[str, Level] = {"method": SERVER}
        yield Measure("bound's exponent", result.exponent, axes=axes)
        yield Measure("rows, variances", result.missed, axes=axes)


class _Server:
    """A vendor that has releases, and public text of its own.

    Args:
        cell: What it does.
        pairing: Makes releases and embeddings.
    """

    def __init__(self, cell: ServerDenoiserCell, pairing: Pairing) -> None:
        self._cell, self.pairing = cell, pairing
        self._rng = np.random.Generator(np.random.PCG64([cell.seed, 1]))

    def trained(self, known: Ragged, shape: PaperDenoiserSpec, progress: Progress) -> RowDenoiser:
        """A denoiser that has learnt from public tokens, released at the cell's eta."""
        training = self._cell.training
        denoiser = RowDenoiser(shape, float(self.pairing.table.square().mean().sqrt()))
        clean, released, mask = self._released(known.select(range(min(len(known), _TEXTS))))
        trust = float((clean * released)[mask].sum() / released[mask].square().sum())
        denoiser.draw(training.seed, min(1.0, max(0.0, trust)))
        weights = dict(denoiser.named_parameters())
        optimiser = Optimiser(
            weights, learning_rate=_RATE, weight_decay=_DECAY, warmup_steps=warmup_in(training.steps, _WARMUP),
            total_steps=training.steps,
        )  # fmt: skip
        half = training.precision is Precision.BF16
        for step in range(training.steps):
            some = known.select(torch.from_numpy(self._rng.integers(len(known), size=training.batch_size)))
            clean, released, mask = self._released(some)
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                found = denoiser(released, mask).float()
            loss = (found - clean)[mask].square().mean() / self.pairing.table.square().mean()
            loss.backward()
            nn.utils.clip_grad_norm_(weights.values(), 1.0)
            optimiser.step()
            progress.update("server's denoiser", step + 1, training.steps, f"loss {loss.item():.3g}")
        return denoiser.eval()

    @torch.no_grad()
    def embedded(self, texts: Ragged, denoiser: RowDenoiser, progress: Progress) -> tuple[dict[str, Tensor], float]:
        """Embeddings `[texts, width]` of texts as they are and denoised, and by how much rows were missed."""
        order = texts.lengths.argsort()
        found: dict[str, list[Tensor]] = {CLEAN: [], SERVER: []}
        missed = torch.zeros(2, dtype=torch.float64)
        for chosen in order.split(_TEXTS):
            some = texts.select(chosen)
            clean, released, mask = self._released(some)
            denoised = denoiser(released, mask)[mask]
            missed += torch.stack([(denoised - clean[mask]).square().sum(), clean[mask].square().sum()]).double()
            found[CLEAN].append(self.pairing.embed(some.with_values(clean[mask])))
            found[SERVER].append(self.pairing.embed(some.with_values(denoised)))
            progress.update("embed", sum(map(len, found[CLEAN])), len(texts))
        back = order.argsort()
        return {name: torch.cat(each)[back] for name, each in found.items()}, float(missed[0] / missed[1])

    def _released(self, texts: Ragged) -> tuple[Tensor, Tensor, Tensor]:
        """Rows as they are and as they leave, `[texts, tokens, width]`, and which places are real."""
        eta = np.full(len(texts.values), self._cell.eta)
        released = texts.with_values(self.pairing.release(texts.values, eta, self._rng)).padded(0.0)
        return texts.with_values(self.pairing.table[texts.values]).padded(0.0), released, texts.mask().bool()
