"""A step of a scikit-learn pipeline that embeds texts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin

from cutlayer.core import ConfigError, DataError, Fault
from cutlayer.customer.client import Client
from cutlayer.customer.handout import choose_model
from cutlayer.privacy.spec import PrivacySpec


class EmbeddingTransformer(TransformerMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Embeddings as a step of a scikit-learn pipeline: a list or a column of texts in, their embeddings out.

    The key is taken from `CUTLAYER_API_KEY` whenever the vendor is asked (a certificate from `CUTLAYER_CA_CERT`),
    and is in no parameter: neither `repr` nor a pickle has it, nor the connection.

    Args:
        eta: Noise per token; this or `privacy` must be given.
        privacy: How texts are privatized.
        model: One of the vendor's models.
        denoiser: `auto`, `none`, or the id of one of the vendor's; as of `EmbeddingSettings`.
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
        self.model_, self.width_ = found.name, found.require_embedding().width
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
        DataError: They are in several columns.
    """
    values = np.asarray(given, dtype=object)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1 or isinstance(given, str):
        raise DataError(
            f"Texts are a list or one column; these have the shape {list(values.shape)}.",
            remedy="Choose the column, for example with a ColumnTransformer.",
        )
    return list(cast(Iterable[str], values))
