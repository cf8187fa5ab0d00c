"""What embeddings of the audited setting are good for: as they come, denoised, and without the vendor's answer.

All of it is computed by the audit's own vendor and customer. Denoisers are given: an audit trains none.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from torch import Tensor

from cutlayer.core import ConfigError, CutlayerWarning, Fault
from cutlayer.customer import Client, FinetuneSpec, Progress
from cutlayer.customer.embed import Embeddings
from cutlayer.customer.embedding import NONE
from cutlayer.data import Dataset
from cutlayer.privacy.spec import NoPrivacy
from cutlayer.reports.audit.traffic import local_transport
from cutlayer.reports.downstream import (
    CLEAN,
    CUSTOMER_ONLY,
    DENOISED,
    NOISY,
    Downstream,
    DownstreamSpec,
    held_out,
    measure_downstream,
    numbered,
)
from cutlayer.vendor import VendorSettings
from cutlayer.vendor.denoisers import MANIFEST, offer_denoiser
from cutlayer.wire.denoisers import DenoiserInfo

_TESTED: Final = 0.5
"""Share of the texts that networks are tested on."""
_SEEDS: Final = 3


def measure_embeddings(
    texts: Dataset, spec: FinetuneSpec, folder: Path, progress: Progress, *, denoisers: Sequence[Path], seed: int
) -> Downstream:
    """Measures embeddings of the texts of a local run, by what a small network learns of their labels.

    Args:
        texts: What the run was on, with labels.
        spec: The setting.
        folder: Where vendor, customer and run are, as `local_evidence` was given it.
        progress: Where to show progress.
        denoisers: Folders of denoisers that a vendor trained, of the same model; without any, embeddings are measured
            as they come.
        seed: Which texts are tested on; networks have this seed and the next ones.

    Raises:
        ConfigError: A folder holds no denoiser, or one that is not for this setting.
        DataError: There are too few texts or labels.
    """
    offered: dict[str, str] = {}
    for denoiser in denoisers:
        info = _offered(denoiser, folder)
        arm = CUSTOMER_ONLY if info.without_answer else DENOISED
        if offered.setdefault(arm, info.denoiser) != info.denoiser:
            kind = "control" if info.without_answer else "denoiser"
            raise ConfigError(
                [Fault("denoisers", denoiser, f"is a second {kind}")], remedy="Audit one after the other."
            )
    here = spec.model_copy(update={"model": "model"})
    with warnings.catch_warnings(), closing(local_transport(folder)) as transport:
        # of texts that are cut the run has told
        warnings.simplefilter("ignore", CutlayerWarning)
        client, apart = (Client(transport=transport, home=folder / home) for home in ("customer", "clean"))
        arms = embedding_arms(texts, here, client, apart, progress, denoisers=offered)
    learnt = held_out(len(texts), share=_TESTED, seed=seed)
    spec_of = DownstreamSpec(seeds=tuple(range(seed, seed + _SEEDS)))
    return measure_downstream(arms, arms[CLEAN], numbered(texts.labels or ()), learnt, spec=spec_of)


def embedding_arms(
    texts: Dataset,
    spec: FinetuneSpec,
    client: Client,
    apart: Client,
    progress: Progress,
    *,
    denoisers: Mapping[str, str],
) -> dict[str, Tensor]:
    """Embeddings `[n, width]` of texts, by kind: clean, as they come, and denoised.

    Args:
        texts: Single texts.
        spec: How they are privatized, and by which model they are embedded.
        client: A customer of a vendor that offers the denoisers.
        apart: Who asks for clean ones.
        progress: Where to show progress.
        denoisers: By what their embeddings are called, their ids; controls are denoisers like others.

    Raises:
        ConfigError: A denoiser is not for this setting.
    """
    clear = spec.model_copy(update={"privacy": NoPrivacy()})
    arms = {}
    for name, asking, given, denoiser in (
        (CLEAN, apart, clear, NONE),
        (NOISY, client, spec, NONE),
        *((name, client, spec, each) for name, each in denoisers.items()),
    ):
        try:
            road = Embeddings.open(asking, given, progress, denoiser=denoiser)
        except ConfigError as error:
            remedy = "Name denoisers of this model, mechanism and eta (--denoisers), or none."
            raise ConfigError(error.faults or str(error), remedy=remedy) from error
        arms[name] = road.ask(road.read_all(texts), texts.texts, progress).values
    return arms


def _offered(denoiser: Path, folder: Path) -> DenoiserInfo:
    """Has the local vendor offer a denoiser."""
    if not (denoiser / MANIFEST).is_file():
        raise ConfigError(
            [Fault("denoisers", denoiser, f"must be a denoiser's folder: there is no {MANIFEST} in it")],
            remedy="Name what `cutlayer vendor denoiser train` made: models/MODEL/denoisers/ID in the vendor's folder.",
        )
    return offer_denoiser(VendorSettings.load(folder / "vendor"), "model", denoiser)
