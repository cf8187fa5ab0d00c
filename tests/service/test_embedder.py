"""Embeddings by sentence-transformers' and scikit-learn's interfaces, from a vendor in a process of its own."""

from __future__ import annotations

import inspect
import io
import pickle  # noqa: TID251 - users pickle pipelines; what such a pickle holds is looked at
from contextlib import closing
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from cutlayer import Client, Embedder, EmbeddingTransformer
from cutlayer.core import ConfigError, DataError
from cutlayer.privacy import TextToText
from tests.promises.runs import corpus

DATA = corpus(40, seed=5, canaries=False)
TEXTS, LABELS = [text for (text,) in DATA.texts], list(DATA.labels or ())
pytestmark = pytest.mark.usefixtures("at_vendor")


def test_it_encodes_as_sentence_transformers_does() -> None:
    with closing(Client()) as client:
        embedder = Embedder(client, eta=6, denoiser="none")
        found = embedder.encode(TEXTS)
        assert np.array_equal(found, client.embed(TEXTS, eta=6, denoiser="none", progress=None).values)
        one = embedder.encode(TEXTS[0])
        assert (found.shape, one.shape, found.dtype) == ((40, 32), (32,), np.float32)
        assert np.array_equal(one, found[0])
        tensor = embedder.encode(TEXTS, convert_to_tensor=True, normalize_embeddings=True)
        assert isinstance(tensor, torch.Tensor)
        assert torch.allclose(tensor.norm(dim=1), torch.ones(40), atol=1e-6)
        assert embedder.get_sentence_embedding_dimension() == 32
        assert repr(embedder) == "Embedder(eta=6, denoiser='none')"
        with pytest.raises(DataError, match="the first is text 2"):
            embedder.encode(["w1", ""])


def test_it_takes_what_sentence_transformers_takes() -> None:
    with closing(Client(device="cpu")) as client:
        embedder = Embedder(client, eta=6, denoiser="none")
        wanted = embedder.encode(TEXTS)
        callers = {
            "batch_size": 4, "show_progress_bar": False, "device": "cpu", "output_value": "sentence_embedding",
            "precision": "float32", "prompt": None, "prompt_name": None, "pool": None, "chunk_size": None,
            "truncate_dim": None, "normalize_embeddings": False, "convert_to_numpy": True, "convert_to_tensor": False,
        }  # fmt: skip
        assert callers.keys() <= inspect.signature(SentenceTransformer.encode).parameters.keys()
        assert np.array_equal(embedder.encode(TEXTS, **callers), wanted)  # type: ignore[call-overload]
        listed = embedder.encode(TEXTS[:3], convert_to_numpy=False)
        assert [each.shape for each in listed] == [(32,)] * 3
        assert np.array_equal(torch.stack(list(listed)).numpy(), wanted[:3])
        one = embedder.encode(TEXTS[0], convert_to_numpy=False)
        assert isinstance(one, torch.Tensor)
        assert one.shape == (32,)
        cut = embedder.encode(pd.Series(TEXTS[:2]), truncate_dim=5, normalize_embeddings=True)
        first = wanted[:2, :5]
        assert np.allclose(cut, first / np.linalg.norm(first, axis=1, keepdims=True), atol=1e-6)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"prompt": "secret: "}, "prompt cannot be set"),
        ({"prompt_name": "secret"}, "prompt_name cannot be set"),
        ({"output_value": "token_embeddings"}, "output_value must be"),
        ({"precision": "int8"}, "precision must be float32"),
        ({"device": "cuda:7"}, "device must be left out, or the Client's, which is cpu"),
        ({"pool": {}}, "pool cannot be set"),
        ({"chunk_size": 5}, "chunk_size cannot be set"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"truncate_dim": 33}, "truncate_dim must be a number from 1 to 32"),
        ({"truncate_dim": 0}, "truncate_dim must be"),
        ({"task": "secret", "prompt": "secret"}, "task is no argument of encode; prompt cannot"),
    ],
)
def test_what_it_cannot_honour_is_refused_by_name(given: dict[str, Any], said: str) -> None:
    with closing(Client(device="cpu")) as client:
        with pytest.raises(ConfigError, match=said) as caught:
            Embedder(client, eta=6, denoiser="none").encode(["w1"], **given)
        assert "secret" not in str(caught.value)
        assert not any(entry.texts for entry in client.ledger.frames())


def test_no_pickle_has_the_key(api_key: str) -> None:
    """Neither of one that was used, nor of one that was not."""
    with closing(Client()) as client:
        for embedder in (Embedder(client, eta=6, denoiser="none"), Embedder(Client(api_key=api_key), eta=6)):
            for one in (embedder, embedder._client):
                file = io.BytesIO()
                with pytest.raises(ConfigError, match=r"Client is not pickled.*key.*Make it anew"):
                    pickle.dump(one, file)
                assert api_key.encode() not in file.getvalue()
            client.embed(["w1"], eta=6, denoiser="none", progress=None)


def test_it_is_a_step_of_a_pipeline(api_key: str) -> None:
    step = EmbeddingTransformer(privacy=TextToText(eta=300), denoiser="none")
    pipeline = make_pipeline(step, LogisticRegression(max_iter=200))
    guessed = pipeline.fit(TEXTS, LABELS).predict(TEXTS)
    assert set(guessed) <= set(LABELS)
    assert clone(step).get_params() == step.get_params()
    fitted = pipeline[0]
    assert (fitted.model_, fitted.width_) == ("tiny", 32)
    for text in (repr(pipeline), pickle.dumps(pipeline).decode("latin-1")):
        assert api_key not in text
    again = pickle.loads(pickle.dumps(pipeline))
    assert np.array_equal(again.predict(TEXTS), guessed)


def test_it_names_columns_and_takes_them_from_tables() -> None:
    table = pd.DataFrame({"note": TEXTS, "age": range(40)})
    step = EmbeddingTransformer(eta=6, denoiser="none").set_output(transform="pandas")
    found = step.fit_transform(table["note"])
    assert list(found.columns[:2]) == ["embedding0", "embedding1"]
    assert found.shape == (40, 32)
    both = ColumnTransformer([("note", step, ["note"]), ("age", "passthrough", ["age"])]).fit_transform(table)
    assert np.asarray(both).shape == (40, 33)


@pytest.mark.parametrize(
    ("given", "said"),
    [([["a", "b"]], r"shape \[1, 2\]"), ("a text", "a list or one column"), (["a", 3], "Text 2 is of type int")],
)
def test_what_is_no_column_of_texts_is_refused(given: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        EmbeddingTransformer(eta=6, denoiser="none").transform(given)


def test_settings_are_those_of_embed() -> None:
    with pytest.raises(ConfigError, match="eta"):
        EmbeddingTransformer().fit(TEXTS).transform(TEXTS)
    with pytest.raises(ConfigError, match="not fitted"):
        EmbeddingTransformer(eta=6).get_feature_names_out()
