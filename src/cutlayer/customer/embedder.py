"""Embeddings by the interface that applications have already: sentence-transformers' `encode`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Unpack, cast, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cutlayer.customer.arguments import Querying
from cutlayer.customer.client import Client
from cutlayer.customer.handout import choose_model


class Embedder:
    """A vendor's model as sentence-transformers has models: texts in, embeddings out.

    ```python
    embedder = Embedder(Client(), eta=80)
    embedder.encode(["a note", "another one"])
    ```

    Args:
        client: A customer of a vendor.
        **settings: As of `Client.embed`: `eta` or `privacy`, of which one must be given, and the others.
    """

    def __init__(self, client: Client, **settings: Unpack[Querying]) -> None:
        self._client = client
        self._settings: dict[str, Any] = dict(settings)

    def __repr__(self) -> str:
        told = ", ".join(f"{name}={value!r}" for name, value in self._settings.items())
        return f"{type(self).__name__}({told})"

    @overload
    def encode(
        self,
        sentences: str | Sequence[str],
        *,
        convert_to_tensor: Literal[False] = ...,
        normalize_embeddings: bool = ...,
        show_progress_bar: bool | None = ...,
    ) -> NDArray[np.float32]: ...

    @overload
    def encode(
        self,
        sentences: str | Sequence[str],
        *,
        convert_to_tensor: Literal[True],
        normalize_embeddings: bool = ...,
        show_progress_bar: bool | None = ...,
    ) -> Tensor: ...

    def encode(
        self,
        sentences: str | Sequence[str],
        *,
        convert_to_tensor: bool = False,
        normalize_embeddings: bool = False,
        show_progress_bar: bool | None = None,
    ) -> NDArray[np.float32] | Tensor:
        """Embeddings of texts; see `Client.embed`.

        Args:
            sentences: Texts, or one text.
            convert_to_tensor: Whether a tensor is returned.
            normalize_embeddings: Whether embeddings are scaled to length 1, where the model does not do so.
            show_progress_bar: Whether progress is shown, on standard error where that is a terminal.

        Returns:
            `[n, width]` float32; of one text `[width]`.
        """
        one = isinstance(sentences, str)
        texts = [cast(str, sentences)] if one else list(sentences)
        found = self._client.embed(texts, progress=bool(show_progress_bar), **self._settings).values
        if normalize_embeddings:
            found = found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), np.finfo(np.float32).tiny)
        chosen = found[0] if one else found
        return torch.from_numpy(np.ascontiguousarray(chosen)) if convert_to_tensor else chosen

    def get_sentence_embedding_dimension(self) -> int:
        """Numbers of an embedding."""
        return choose_model(self._client.gate(), self._settings.get("model")).model.embedding.width
