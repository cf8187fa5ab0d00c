"""Embeddings as a service: the frozen base's, for whoever may query the model.

A query is computed alone, as an adapter's is: what a text gets does not depend on what others ask at the same time.
"""

from __future__ import annotations

from functools import partial

import torch
from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse, Response

from cutlayer.core import Cut, Payload
from cutlayer.serving.compute import ComputeThread, Pieces
from cutlayer.vendor.catalogue import Catalogue
from cutlayer.vendor.checks import read_release
from cutlayer.vendor.denoisers import denoiser_file, denoisers_of
from cutlayer.vendor.description import at, tenant_of
from cutlayer.vendor.frames import in_tensors
from cutlayer.vendor.passes import answered, compute, prepare
from cutlayer.vendor.settings import VendorSettings
from cutlayer.wire import Form, WireType, decode_tensors, routes
from cutlayer.wire.denoisers import DenoiserList
from cutlayer.wire.messages import FileName, Identifier, ModelName, RecordSetSpec
from cutlayer.wire.transports.answer import TENSOR_MEDIA_TYPE


def add_embeddings(app: FastAPI, settings: VendorSettings, catalogue: Catalogue, compute: ComputeThread) -> None:
    """Adds the routes of embeddings, and of what takes the noise out of them.

    Args:
        app: The application.
        settings: The vendor's settings.
        catalogue: The models on offer.
        compute: Where embeddings are computed.
    """

    @app.api_route(**at(routes.EMBEDDINGS))
    async def embeddings(request: Request, model: ModelName) -> Response:
        """The frozen model's embeddings of a release, one row for each text."""
        run = partial(embed, settings, catalogue, model, await request.body())
        return in_tensors(await compute.run(lambda _: run(), tenant_of(request)))

    @app.api_route(**at(routes.DENOISERS))
    def denoisers(model: ModelName) -> DenoiserList:
        """The denoisers of a model's embeddings."""
        return denoisers_of(settings, model, fingerprint=catalogue.card(model).info.fingerprint)

    @app.api_route(**at(routes.DENOISER_FILE))
    async def file(model: ModelName, denoiser: Identifier, file: FileName) -> Response:
        """One file of a denoiser."""
        catalogue.card(model)
        path = await run_in_threadpool(denoiser_file, settings, model, denoiser, file)
        return FileResponse(path, media_type=TENSOR_MEDIA_TYPE)


def embed(settings: VendorSettings, catalogue: Catalogue, model: str, body: bytes) -> Pieces[bytes]:
    """Embeddings of a release, one row for each text, before normalisation. Runs in the compute thread.

    Args:
        settings: The vendor's settings.
        catalogue: The models on offer.
        model: Which one.
        body: The release: ids, or rows of the token table with noise or without.

    Raises:
        Refusal: There is no such model, or the release is not one that it takes.
    """
    card = catalogue.card(model)
    tensors = decode_tensors(routes.EMBEDDINGS, body)
    asked = RecordSetSpec(
        model=model,
        cut=Cut(bottom=None if "ids" in tensors else 0),
        form=Form.IDS if "ids" in tensors else Form.ROWS,
        segments=1,
        wire_type=WireType.FP32 if "rows" in tensors and tensors["rows"].dtype is torch.float32 else WireType.BF16,
    )
    payload = read_release(card, asked, tensors, limit=settings.limits.max_rows_per_step)
    part, device = catalogue.embeddings(model, asked.cut), catalogue.device

    def run(piece: Payload) -> torch.Tensor:
        return compute(part, card.template, prepare(piece, device), device)

    return (yield from answered(payload, card.template, settings, run, of_texts=True))
