"""An encoder-decoder's classifier at a vendor in a process of its own: the same weights with labels here and there."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cutlayer import vendor
from cutlayer.core import Cut, VendorError
from cutlayer.customer import Detached, Sampling
from cutlayer.models import Head
from cutlayer.privacy import NoPrivacy
from cutlayer.wire import Form, Frame, routes
from cutlayer.wire.messages import JobSpec, ModelList, OptimiserSpec
from cutlayer.wire.transports import HttpTransport
from tests.promises.test_encoder_decoders import DEV
from tests.promises.test_encoder_decoders import TRAIN as PAIRS
from tests.promises.test_families import write_model
from tests.promises.test_label_words import WORDS, sick
from tests.service.process import VendorProcess
from tests.service.test_labels_at_vendor import TRAINING_ALONE, client_of

TRAIN, TEST = sick(120, 5), sick(9, 3)


@pytest.fixture(scope="module")
def blank_vendor(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = write_model("t5", tmp_path_factory.mktemp("t5") / "tiny", head=Head.LANGUAGE)
    folder = tmp_path_factory.mktemp("vendor") / "data"
    vendor.init(folder, models=[str(source)], threads=1)
    return folder


@pytest.mark.filterwarnings("ignore")
def test_killed_at_any_time_it_ends_with_the_weights_of_labels_at_the_customer(
    process: VendorProcess, api_key: str, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {
        "privacy": NoPrivacy(), "training": TRAINING_ALONE, "seed": 3, "label_words": WORDS, "progress": None,
        "test": TEST,
    }  # fmt: skip
    with closing(client_of(process, api_key, tmp_path / "home")) as client:
        here = client.finetune(TRAIN, out=tmp_path / "here", **settings)
        found: list[Any] = []

        def train() -> None:
            found.append(client.finetune(TRAIN, out=tmp_path / "killed", labels_at="vendor", **settings))

        thread = threading.Thread(target=train)
        thread.start()
        for pause in (0.4, 0.5):
            time.sleep(pause)
            process.kill()
            process.start()
        thread.join()
        told = [client.predict(each.adapter_id, TEST.texts, progress=None) for each in (here, found[0])]
    assert found[0].adapter_sha256 == here.adapter_sha256
    assert found[0].dev == here.dev
    assert told[0] == told[1]
    assert {each.label for each in told[0]} <= set(WORDS)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_pairs_are_left_to_a_vendor_that_is_killed_and_end_with_the_same_weights(
    process: VendorProcess, api_key: str, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {
        "objective": "seq2seq", "privacy": NoPrivacy(), "cut": Cut(bottom=None), "labels_at": "vendor", "seed": 3,
        "training": TRAINING_ALONE, "progress": None, "dev": DEV,
    }  # fmt: skip
    with closing(client_of(process, api_key, tmp_path / "home")) as client:
        waited = client.finetune(PAIRS, out=tmp_path / "waited", **settings)
        begun = client.begin(PAIRS, out=tmp_path / "left", **settings)
        assert isinstance(begun, Detached)
        for pause in (0.3, 0.5):
            time.sleep(pause)
            process.kill()
            process.start()
        fetched = client.finetune(PAIRS, out=tmp_path / "left", **settings)
        told = client.generate(
            fetched.adapter_id, PAIRS.texts[0][0], progress=None, sampling=Sampling(num_beams=2, max_new_tokens=6)
        )
    assert fetched.adapter_sha256 == waited.adapter_sha256
    assert fetched.dev == waited.dev
    assert told[0].tokens > 0


@pytest.mark.parametrize("said", ["label_words", "as many as num_labels", "ids below 96", "dropout"])
def test_hostile_words_are_refused(process: VendorProcess, api_key: str, said: str) -> None:
    changes: dict[str, dict[str, Any]] = {
        "label_words": {"label_words": None},
        "as many as num_labels": {"label_words": ((5,), (6,), (7,))},
        "ids below 96": {"label_words": ((5,), (96,))},
        "dropout": {"dropout": True},
    }
    with closing(HttpTransport(process.url, api_key)) as transport:
        (model,) = transport.send(Frame(routes.MODELS, {}, None)).expect(ModelList).models
        given: dict[str, Any] = {"label_words": ((5,), (6, 2)), "dropout": False} | changes[said]
        spec = JobSpec(
            model=model.name, fingerprint=model.fingerprint, cut=Cut(bottom=None), form=Form.IDS, segments=1,
            num_labels=2, record_sets=("a" * 32,), optimiser=OptimiserSpec(total_steps=3), seed=1, **given,
        )  # fmt: skip
        with pytest.raises(VendorError) as refused:
            transport.send(Frame(routes.JOB_PUT, {"job": "b" * 32}, spec))
    assert refused.value.status == 422
    assert said in str(refused.value)
