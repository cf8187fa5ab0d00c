"""Embeddings by the interfaces that applications have already: sentence-transformers' `encode`, and scikit-learn's."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, Self, Unpack, cast, overload

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from torch import Tensor

from cutlayer.core import ConfigError, DataError, Fault
from cutlayer.customer.arguments import Querying
from cutlayer.customer.client import Client
from cutlayer.customer.handout import choose_model
from cutlayer.privacy.spec import PrivacySpec


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


class EmbeddingTransformer(TransformerMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Embeddings as a step of a scikit-learn pipeline: a list or a column of texts in, their embeddings out.

    The key is taken from `CUTLAYER_API_KEY` whenever the vendor is asked (a certificate from `CUTLAYER_CA_CERT`),
    and is in no parameter: neither `repr` nor a pickle has it, nor the connection.

    Args:
        eta: Noise per token; this or `privacy` must be given.
        privacy: How texts are privatized.
        model: One of the vendor's models.
        denoiser: `auto` or `none`.
        privacy_budget: Most eta that one text may be charged over all its releases.
        max_length: Tokens of a text.
        vendor: The vendor's address; `CUTLAYER_VENDOR` where it is left out.
        home: The customer's folder; `CUTLAYER_HOME` where it is left out.

    Attributes:
        model_: The model that was found.
        width_: Numbers of an embedding.
    """

    def __init__(
        self,
        *,
        eta: float | None = None,
        privacy: PrivacySpec | None = None,
        model: str | None = None,
        denoiser: str | None = None,
        privacy_budget: float | None = None,
        max_length: int | None = None,
        vendor: str | None = None,
        home: Path | None = None,
    ) -> None:
        self.eta = eta
        self.privacy = privacy
        self.model = model
        self.denoiser = denoiser
        self.privacy_budget = privacy_budget
        self.max_length = max_length
        self.vendor = vendor
        self.home = home

    def fit(self, X: Any, y: Any = None) -> Self:  # noqa: N803 - scikit-learn's names
        """Looks the model up; no text leaves.

        Args:
            X: Texts.
            y: Not used.
        """
        _texts(X)
        client = self._client()
        try:
            found = choose_model(client.gate(), self.model).model
        finally:
            client.close()
        self.model_, self.width_ = found.name, found.embedding.width
        return self

    def transform(self, X: Any) -> NDArray[np.float32]:  # noqa: N803 - scikit-learn's name
        """Embeddings `[n, width]`; see `Client.embed`.

        Args:
            X: Texts: a list, a Series, an array, or a table of one column.

        Raises:
            ConfigError: It was fitted to another width than the vendor's model has now.
        """
        given = {"eta": self.eta, "privacy": self.privacy, "denoiser": self.denoiser, "max_length": self.max_length}
        given |= {"privacy_budget": self.privacy_budget, "model": getattr(self, "model_", self.model)}
        settings: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        client = self._client()
        try:
            found = client.embed(_texts(X), progress=None, **settings).values
        finally:
            client.close()
        if getattr(self, "width_", found.shape[1]) != found.shape[1]:
            raise ConfigError(
                [Fault("model", self.model_, "has embeddings of another width than when this was fitted")]
            )
        return found

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """Names of the columns, for `set_output`."""
        if not hasattr(self, "width_"):
            raise ConfigError("The transformer was not fitted.", remedy="Call fit, or fit_transform.")
        return np.array([f"embedding{number}" for number in range(self.width_)], dtype=object)

    def _client(self) -> Client:
        return Client(self.vendor, home=self.home)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        tags.requires_fit = False
        return tags


def _texts(given: Any) -> list[str]:
    """Texts, as scikit-learn's callers have them.

    Raises:
        DataError: They are in several columns, or are no texts.
    """
    values = np.asarray(given, dtype=object)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1 or isinstance(given, str):
        raise DataError(
            f"Texts are a list or one column; these have the shape {list(values.shape)}.",
            remedy="Choose the column, for example with a ColumnTransformer.",
        )
    texts = list(cast(Iterable[Any], values))
    for row, text in enumerate(texts, start=1):
        if not isinstance(text, str):
            raise DataError(f"Text {row} is a {type(text).__name__}.", remedy="Give strings.")
    return texts
