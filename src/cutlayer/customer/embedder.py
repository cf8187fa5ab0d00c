"""Embeddings by the interface that applications have already: sentence-transformers' `encode`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypedDict, Unpack, cast, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cutlayer.core import ConfigError
from cutlayer.customer.arguments import Querying
from cutlayer.customer.client import Client
from cutlayer.customer.handout import choose_model


class Encoding(TypedDict, total=False):
    """What `encode` takes by name, as sentence-transformers names it.

    Embeddings are cut to their first `truncate_dim` numbers, then scaled to length 1 with `normalize_embeddings`, where
    the model does not do so. `show_progress_bar` shows progress on standard error where that is a terminal. Nothing
    follows from `batch_size`: how many texts leave together follows from their lengths, and from what the vendor takes.
    `device` may name the client's alone. The others are refused unless they say what is done anyway.
    """

    batch_size: int
    show_progress_bar: bool | None
    normalize_embeddings: bool
    truncate_dim: int | None
    device: object
    prompt: str | None
    prompt_name: str | None
    output_value: str | None
    precision: str
    pool: object
    chunk_size: int | None


_HONOURED: Final = ("batch_size", "show_progress_bar", "normalize_embeddings", "truncate_dim", "device")
_ONLY: Final = {"output_value": "sentence_embedding", "precision": "float32"}
"""Values that are accepted because they say what is done anyway; other refused arguments accept `None` alone."""
_PROMPT: Final = "cannot be set: embeddings are of the texts alone, to which you may add it"
_ALONE: Final = "cannot be set: embeddings are computed by the vendor, of one process's texts"
_REFUSED: Final = {
    "prompt": _PROMPT,
    "prompt_name": _PROMPT,
    "output_value": "must be sentence_embedding: the vendor returns one row for each text",
    "precision": "must be float32",
    "pool": _ALONE,
    "chunk_size": _ALONE,
}


def of_length_one(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Rows `[n, width]`, each scaled to length 1; zeros stay."""
    found: NDArray[np.float32] = rows / np.maximum(
        np.linalg.norm(rows, axis=1, keepdims=True), np.finfo(np.float32).tiny
    )
    return found


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
        convert_to_numpy: Literal[True] = ...,
        convert_to_tensor: Literal[False] = ...,
        **given: Unpack[Encoding],
    ) -> NDArray[np.float32]: ...

    @overload
    def encode(
        self,
        sentences: str | Sequence[str],
        *,
        convert_to_numpy: bool = ...,
        convert_to_tensor: Literal[True],
        **given: Unpack[Encoding],
    ) -> Tensor: ...

    @overload
    def encode(
        self,
        sentences: str | Sequence[str],
        *,
        convert_to_numpy: Literal[False],
        convert_to_tensor: Literal[False] = ...,
        **given: Unpack[Encoding],
    ) -> list[Tensor] | Tensor: ...

    def encode(
        self,
        sentences: str | Sequence[str],
        *,
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        **given: Unpack[Encoding],
    ) -> NDArray[np.float32] | Tensor | list[Tensor]:
        """Embeddings of texts; see `Client.embed`.

        Args:
            sentences: Texts, or one text.
            convert_to_numpy: Whether an array is returned; else a list of tensors `[width]`.
            convert_to_tensor: Whether one tensor is returned.
            **given: What sentence-transformers' `encode` takes further, by name; see `Encoding`.

        Returns:
            `[n, width]` float32; of one text `[width]`.

        Raises:
            ConfigError: An argument of sentence-transformers' that would change embeddings, and cannot be honoured.
        """
        asked: dict[str, Any] = dict(given)
        self._check(asked)
        one = isinstance(sentences, str)
        texts = [cast(str, sentences)] if one else list(sentences)
        progress = bool(asked.get("show_progress_bar"))
        found = self._client.embed(texts, progress=progress, **self._settings).values[:, : asked.get("truncate_dim")]
        if asked.get("normalize_embeddings"):
            found = of_length_one(found)
        if convert_to_numpy and not convert_to_tensor:
            return found[0] if one else found
        tensors = torch.from_numpy(np.ascontiguousarray(found))
        if one:
            return tensors[0]
        return tensors if convert_to_tensor else list(tensors)

    def _check(self, asked: Mapping[str, Any]) -> None:
        """Refuses arguments that cannot be honoured, before a text leaves.

        Raises:
            ConfigError: With all of them.
        """
        # no value is told: a prompt is text, and what is misplaced may be
        wrong = [
            f"{name} {_REFUSED.get(name, 'is no argument of encode')}"
            for name, value in asked.items()
            if name not in _HONOURED and value is not None and value != _ONLY.get(name)
        ]
        device, size, width = (asked.get(name) for name in ("device", "batch_size", "truncate_dim"))
        if device is not None and str(device) != str(self._client.device):
            wrong.append(f"device must be left out, or the Client's, which is {self._client.device}")
        if size is not None and not (isinstance(size, int) and size > 0):
            wrong.append("batch_size must be a number above 0")
        if width is not None:
            most = self.get_sentence_embedding_dimension()
            if not (isinstance(width, int) and 0 < width <= most):
                wrong.append(f"truncate_dim must be a number from 1 to {most}")
        if wrong:
            raise ConfigError(f"encode cannot do as asked: {'; '.join(wrong)}.", remedy="Leave that out.")

    def get_sentence_embedding_dimension(self) -> int:
        """Numbers of an embedding."""
        return choose_model(self._client.gate(), self._settings.get("model")).model.require_embedding().width
