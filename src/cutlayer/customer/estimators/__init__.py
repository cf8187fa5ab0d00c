"""Estimators of scikit-learn."""

from typing import TYPE_CHECKING

from cutlayer.core.lazy import on_first_use

if TYPE_CHECKING:
    from cutlayer.customer.estimators.transformer import EmbeddingTransformer

__all__ = ["EmbeddingTransformer"]

on_first_use(__name__, extra="sklearn")
