"""Training denoisers: the vendor adds noise to public text itself, sees both embeddings, and learns from one the other.

No customer has a part in it. Weights, order and noise follow from a seed, so that a training which was stopped ends
with the same bytes, on a processor with as many threads.

Ref: Split-and-Denoise, eq. (10) and (11), A.6.3.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save
from torch import Tensor, nn

from cutlayer.core import ConfigError, Cut, DataError, Fault, Ragged, StorageError, Tokens
from cutlayer.core.denoiser import DenoiserKind, DenoiserSpec, light_shape, paper_shape
from cutlayer.core.files import make_folder, whole_folder
from cutlayer.data import Dataset, tokenise
from cutlayer.models import Embeddings, Template, candidate_tokens
from cutlayer.models.denoiser import Denoiser, build_denoiser
from cutlayer.privacy import NeighbourSearch, find_mechanism, table_fingerprint
from cutlayer.privacy.replacement import largest_norm, noisy_rows, replacements
from cutlayer.vendor.catalogue import Catalogue, pick_device
from cutlayer.vendor.checkpoints import Checkpoints
from cutlayer.vendor.denoiser_settings import DenoisedReleases, DenoiserTraining
from cutlayer.vendor.denoisers import MANIFEST, TRAINING, read_denoiser, training_folder
from cutlayer.vendor.public_tokens import DRAWN_TOGETHER, PublicFile, PublicTokens, digest_of
from cutlayer.vendor.settings import VendorSettings
from cutlayer.vendor.stepwise import OnStep, Stepwise
from cutlayer.wire import WireType
from cutlayer.wire.denoisers import MOST_CORPORA, DenoiserGroup, DenoiserInfo, Distances
from cutlayer.wire.messages import ArchiveFile, Precision

_LENGTH = 128
_SCALED_BY = 500
"""Texts that are learnt from on which the sizes of embeddings are measured before."""
RATES: Mapping[DenoiserKind, float] = {"light": 3e-3, "paper": 1e-3}
"""Learning rates where none is said."""
_LOOKED_AT = 4096
"""Tokens on which a correlation is measured."""
_BISECTIONS = 40
_HIGHEST_ETA = 2.0**30
"""So much larger than one over any distance of tokens that nothing is left of the noise."""


class Pairing:
    """Makes noisy and clean embeddings of public text.

    Args:
        part: What the vendor computes for an embedding.
        template: Where special tokens stand.
        table: `[vocabulary, width]`.
        candidates: `[vocabulary]` bool: what tokens may become.
        drawing: How releases are privatized.
        device: Where embeddings are computed, and denoisers trained.
    """

    def __init__(
        self,
        part: Embeddings,
        template: Template,
        table: Tensor,
        candidates: Tensor,
        *,
        drawing: DenoisedReleases,
        device: torch.device,
    ) -> None:
        self._part, self._template, self.device = part, template, device
        self.table = table.detach().cpu().float()
        self._wire_type = drawing.wire_type
        self._mechanism = find_mechanism(drawing.noise)
        self._search = NeighbourSearch(self.table, candidates) if drawing.replaces else None
        self._longest = largest_norm(self.table, candidates) if drawing.clip else None

    def release(self, ids: Tensor, etas: NDArray[np.float64], rng: np.random.Generator) -> Tensor:
        """Rows `[n, width]` fp32 that stand at the vendor for tokens `[n]`, each released at an eta of its own."""
        noise = self._mechanism.noise(etas=etas, width=self.table.shape[1], rng=rng)
        if self._search is not None:
            return self.table[replacements(ids, noise, self._search)]
        rows = noisy_rows(self.table[ids], noise, longest=self._longest)
        return rows.to(torch.bfloat16 if self._wire_type is WireType.BF16 else torch.float32).float()

    @torch.no_grad()
    def embed(self, rows: Ragged) -> Tensor:
        """`[texts, width]` of rows in the places of tokens."""
        inputs = self._template.assemble(Tokens((rows,)), table=self.table).to(self.device)
        embedded: Tensor = self._part(inputs, inputs.inputs_embeds)
        return embedded.float()

    def batch(
        self, texts: Ragged, etas: Sequence[float], rng: np.random.Generator, *, unanswered: Denoiser | None = None
    ) -> Batch:
        """Public texts, each released at one of some etas.

        Args:
            texts: Their ids.
            etas: Which.
            rng: Draws etas and noise.
            unanswered: A denoiser that is not given the model's answers, which then are not computed.
        """
        chosen = np.repeat(rng.choice(np.asarray(etas), size=len(texts)), texts.lengths.numpy())
        rows = self.table[texts.values]
        released = self.release(texts.values, chosen, rng)
        clean = self.embed(texts.with_values(rows))
        return Batch(
            noisy=unanswered.unanswered(clean) if unanswered else self.embed(texts.with_values(released)),
            clean=clean,
            rows=texts.with_values(released).padded(0.0).to(self.device),
            noise=texts.with_values(released - rows).padded(0.0).to(self.device),
            mask=texts.mask().bool().to(self.device),
        )

    def correlation(self, ids: Tensor, eta: float, seed: int) -> float:
        """Pearson's, over coordinates, of rows and what leaves of them; the mean over tokens `[n]`."""
        rng = np.random.Generator(np.random.PCG64(seed))
        rows, released = self.table[ids].double(), self.release(ids, np.full(len(ids), eta), rng).double()
        rows, released = (each - each.mean(1, keepdim=True) for each in (rows, released))
        return float(nn.functional.cosine_similarity(rows, released).mean())


def pairing_of(catalogue: Catalogue, model: str, drawing: DenoisedReleases) -> Pairing:
    """That of one of a vendor's models.

    Args:
        catalogue: The vendor's.
        model: The model.
        drawing: How releases are privatized.
    """
    table = catalogue.table(model)
    return Pairing(
        catalogue.embeddings(model, Cut(bottom=0)),
        catalogue.card(model).template,
        table,
        candidate_tokens(catalogue.tokenizer(model), vocab_size=len(table)),
        drawing=drawing,
        device=catalogue.device,
    )


@dataclass(frozen=True)
class Batch:
    """Public texts as a denoiser meets them, and what it is to find: `clean`, `[texts, width]`."""

    noisy: Tensor
    clean: Tensor
    rows: Tensor
    noise: Tensor
    mask: Tensor

    def denoised(self, denoiser: Denoiser, *, without_answer: bool = False) -> Tensor:
        """What a denoiser makes of it, `[texts, width]`, perhaps without the model's answer."""
        noisy = denoiser.unanswered(self.noisy) if without_answer else self.noisy
        found: Tensor = denoiser(noisy, self.rows, self.noise, self.mask)
        return found


def eta_ranges(pairing: Pairing, ids: Tensor, spec: DenoiserTraining) -> list[tuple[float, float]]:
    """The ranges of etas that have denoisers of their own, by the correlation of what leaves with what was there.

    Args:
        pairing: Draws releases.
        ids: `[n]` int64, public tokens.
        spec: Where ranges end.

    Raises:
        ConfigError: At the lowest eta more is seen than where its range ends; or at none so much as where one ends.
    """
    ends, named = [spec.lowest_eta], [*(("borders", border) for border in spec.borders)]
    named.append(("highest_correlation", spec.highest_correlation))
    reached = pairing.correlation(ids, _HIGHEST_ETA, spec.seed)
    if faults := [Fault(name, border, _out_of_reach(reached)) for name, border in named if border > reached]:
        raise ConfigError(
            faults,
            remedy="Give public text in the model's language, of words that it knows, or lower --borders and "
            "--highest-correlation.",
        )
    for _, border in named:
        low, high = ends[-1], max(ends[-1], 1.0)
        if pairing.correlation(ids, low, spec.seed) >= border:
            raise ConfigError(
                [Fault("lowest_eta", spec.lowest_eta, f"must be lower: the correlation there is above {border:g}")]
            )
        while high < _HIGHEST_ETA and pairing.correlation(ids, high, spec.seed) < border:
            low, high = high, 2 * high
        for _ in range(_BISECTIONS):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if pairing.correlation(ids, middle, spec.seed) < border else (low, middle)
            if high / low < 1.001:
                break
        ends.append(float(f"{high:.3g}"))
    return list(pairwise(ends))


def _out_of_reach(reached: float) -> str:
    return (
        f"cannot be reached on this public text: even without noise the correlation is only {reached:.3g}, for unknown "
        "words and special tokens are always replaced"
    )


def representatives(lowest: float, highest: float, count: int) -> tuple[float, ...]:
    """The etas of a range that its denoiser is trained at, evenly by ratio: of two, a quarter of the way and three."""
    ratio = highest / lowest
    return tuple(float(f"{lowest * ratio ** ((2 * place + 1) / (2 * count)):.3g}") for place in range(count))


def train_denoisers(
    settings: VendorSettings,
    model: str,
    sources: Sequence[PublicFile],
    drawing: DenoisedReleases,
    spec: DenoiserTraining,
    *,
    on_step: OnStep = lambda done, total, note: None,
) -> DenoiserInfo:
    """Trains the denoisers of a model for one mechanism, and publishes them whole.

    A training that was stopped goes on from its last checkpoint; a finished one is shown again.

    Args:
        settings: The vendor's.
        model: One of its models.
        sources: Public texts: of each file what it is called, and its rows, which are read twice.
        drawing: How the releases are privatized that are to be denoised.
        spec: How it is trained.
        on_step: Told the steps taken, of how many, and a remark.

    Raises:
        ConfigError: There is no such model, or its releases cannot be denoised; there are too many files; another
            process does the same training; or it diverged.
        DataError: No public text has a token.
        StorageError: The data folder cannot be written.
    """
    settings.check_model(model)
    catalogue = Catalogue(settings, pick_device(settings.device))
    if len(sources) > MOST_CORPORA:
        raise ConfigError(
            [Fault("public", f"{len(sources)} files", f"must be at most {MOST_CORPORA}")],
            remedy="Write several of them into one file.",
        )
    try:
        return _Training(settings, catalogue, model, drawing, spec).run(sources, on_step)
    except OSError as error:
        raise StorageError(
            f"{settings.data_dir} cannot be written: {error.strerror}.",
            remedy="Make sure that you may write there and that the disk is not full.",
        ) from error


class _Training:
    """One training: its model, its draws, its folder."""

    def __init__(
        self,
        settings: VendorSettings,
        catalogue: Catalogue,
        model: str,
        drawing: DenoisedReleases,
        spec: DenoiserTraining,
    ) -> None:
        self._card, self._spec, self._drawing = catalogue.card(model), spec, drawing
        self._tokenizer = catalogue.tokenizer(model)
        self._template = self._card.template
        self._pairing = pairing_of(catalogue, model, drawing)
        self._folder = settings.denoisers(model)
        self._shape = self._shape_of()

    def _shape_of(self) -> DenoiserSpec:
        info = self._card.info
        if self._spec.kind == "light":
            return light_shape(width=info.require_embedding().width)
        shape = paper_shape(info.family, blocks=info.blocks, width=info.require_embedding().width)
        return shape.model_copy(update={"placed": self._spec.positions})

    def run(self, sources: Sequence[PublicFile], on_step: OnStep) -> DenoiserInfo:
        most = self._template.max_content(1, self._spec.max_length or min(_LENGTH, self._card.info.max_length))
        # by its texts, too: what was begun on others is no beginning of this training
        name = _digest({**self._about(), "corpora": [digest_of(texts) for _, texts in sources]})
        if (self._folder / name / MANIFEST).is_file():
            return read_denoiser(self._folder / name)
        work = self._folder / f"{TRAINING}{name}"
        with training_folder(work):
            try:
                if not (self._folder / name / MANIFEST).is_file():  # else another process was faster meanwhile
                    self._train(name, sources, most, work, on_step)
            except DataError:
                shutil.rmtree(work, ignore_errors=True)  # there is nothing to go on with
                raise
            shutil.rmtree(work, ignore_errors=True)
        return read_denoiser(self._folder / name)

    def _train(self, name: str, sources: Sequence[PublicFile], most: int, work: Path, on_step: OnStep) -> None:
        """Trains all groups, and publishes them."""
        tokens = PublicTokens.write(
            work / "tokens",
            sources,
            lambda texts: tokenise(
                Dataset(tuple((text,) for text in texts)), self._tokenizer, max_content=most
            ).segments[0],
            lambda read: on_step(0, self._spec.steps, f"{read} texts read"),
        )
        if len(tokens) == 1:
            raise DataError("One public text is too few: some are kept back and measured on.", remedy="Give more.")
        looked_at = tokens.select(range(min(len(tokens), _LOOKED_AT))).values[:_LOOKED_AT]
        ranges = eta_ranges(self._pairing, looked_at, self._spec)
        trained = [
            self._group(number, etas, tokens, work / f"group-{number}", on_step, len(ranges))
            for number, etas in enumerate(ranges)
        ]
        info = self._info(name, tokens, [group for group, _ in trained])
        with whole_folder(self._folder / name) as folder:
            for group, body in trained:
                (folder / group.file.name).write_bytes(body)
            (folder / MANIFEST).write_text(info.model_dump_json(indent=2) + "\n", encoding="utf-8")

    def _about(self) -> dict[str, Any]:
        """JSON that tells this training from others, but for its texts."""
        training = self._spec.model_dump()
        before_there_was_a_choice = {
            "without_answer": False, "precision": Precision.FP32, "etas_per_range": 2, "positions": True,
        }  # fmt: skip
        for name, before in before_there_was_a_choice.items():
            if training[name] == before:  # denoisers keep their names
                del training[name]
        return {
            "fingerprint": self._card.info.fingerprint,
            "embedding": self._card.info.require_embedding().model_dump(),
            "tokenizer": self._card.tokenizer,
            "releases": self._drawing.model_dump(),
            "shape": self._shape.model_dump(),
            "training": training,
            "drawn_together": DRAWN_TOGETHER,
        }

    def _group(
        self,
        number: int,
        etas: tuple[float, float],
        tokens: PublicTokens,
        folder: Path,
        on_step: OnStep,
        groups: int,
    ) -> tuple[DenoiserGroup, bytes]:
        """Trains the denoiser of one range of etas."""
        spec, trained_at = self._spec, representatives(*etas, self._spec.etas_per_range)
        make_folder(folder)
        denoiser = build_denoiser(self._shape)
        denoiser.draw(spec.seed)
        denoiser.to(self._pairing.device)
        scaled_by = min(_SCALED_BY, tokens.learnt_from)
        spread = np.arange(scaled_by) * tokens.learnt_from // scaled_by
        sample = self._batches(tokens.select(tokens.learnt(spread)), trained_at, [spec.seed, number, spec.steps + 1])
        noisy, clean = zip(*((batch.noisy, batch.clean) for batch in sample), strict=True)
        denoiser.fit_scales(torch.cat(noisy), torch.cat(clean), self._pairing.table)

        unanswered = denoiser if spec.without_answer else None

        def loss(step: int) -> Tensor:
            chosen = tokens.of_step(step, size=spec.batch_size, seed=(spec.seed, number))
            rng = np.random.Generator(np.random.PCG64([spec.seed, number, step]))
            with torch.autocast(self._pairing.device.type, torch.bfloat16, enabled=spec.precision is Precision.BF16):
                batch = self._pairing.batch(tokens.select(chosen), trained_at, rng, unanswered=unanswered)
                found = batch.denoised(denoiser).float()
            missed: Tensor = ((found - batch.clean) / denoiser.scale).square().mean()
            return missed

        stepwise = Stepwise(
            dict(denoiser.named_parameters()),
            steps=spec.steps,
            learning_rate=spec.learning_rate or RATES[spec.kind],
            checkpoint_steps=spec.checkpoint_steps,
            checkpoints=Checkpoints(folder),
        )
        stepwise.train(loss, lambda done, total, note: on_step(number * total + done, groups * total, note))
        denoiser.eval()
        kept = tokens.select(tokens.kept_back)
        told = self._measure(denoiser, self._batches(kept, trained_at, [spec.seed, number, spec.steps]))
        body = save({name: value.cpu().contiguous() for name, value in denoiser.state_dict().items()})
        file = ArchiveFile(name=f"group-{number}.safetensors", sha256=hashlib.sha256(body).hexdigest(), size=len(body))
        group = DenoiserGroup(lowest=etas[0], highest=etas[1], trained_at=trained_at, file=file, n=len(kept), **told)
        return group, body

    def _batches(self, texts: Ragged, etas: tuple[float, ...], seed: list[int]) -> Iterator[Batch]:
        """Texts as a denoiser meets them, some at a time, the shortest first."""
        rng = np.random.Generator(np.random.PCG64(seed))
        for some in texts.lengths.argsort(stable=True).split(self._spec.batch_size):
            yield self._pairing.batch(texts.select(some), etas, rng)

    @torch.no_grad()
    def _measure(self, denoiser: Denoiser, texts: Iterable[Batch]) -> dict[str, Distances]:
        """How near embeddings of texts come that were not learnt from."""
        found: dict[str, list[Tensor]] = {"noisy": [], "denoised": [], "without_answer": [], "mean_embedding": []}
        for batch in texts:
            without = batch.denoised(denoiser, without_answer=True)
            made_of_all = without if self._spec.without_answer else batch.denoised(denoiser)
            mean = denoiser.center.expand_as(batch.noisy)
            made = batch.noisy, made_of_all, without, mean
            for name, each in zip(found, made, strict=True):
                squares = (each - batch.clean).square().mean(1)
                found[name].append(torch.stack([squares, nn.functional.cosine_similarity(each, batch.clean)]))
        means = {name: torch.cat(each, 1).mean(1).tolist() for name, each in found.items()}
        if wrong := [name for name, each in means.items() if not all(map(math.isfinite, each))]:
            raise ConfigError(
                f"Of public text {', '.join(wrong)} embeddings are not finite after {self._spec.steps} steps.",
                remedy="Begin another training with a lower learning rate, or in fp32 where it was in bf16.",
            )
        return {name: Distances(mse=mse, cosine=max(-1.0, min(1.0, cosine))) for name, (mse, cosine) in means.items()}

    def _info(self, name: str, tokens: PublicTokens, groups: Sequence[DenoiserGroup]) -> DenoiserInfo:
        info, drawing = self._card.info, self._drawing
        return DenoiserInfo(
            denoiser=name,
            fingerprint=info.fingerprint,
            table=table_fingerprint(self._pairing.table),
            embedding=info.require_embedding(),
            shape=self._shape,
            mechanism=drawing.mechanism,
            noise=drawing.noise,
            clip=drawing.clip,
            form=drawing.form,
            wire_type=drawing.wire_type,
            steps=self._spec.steps,
            seed=self._spec.seed,
            without_answer=self._spec.without_answer,
            corpora=tokens.corpora,
            groups=tuple(groups),
        )


def _digest(about: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:32]
