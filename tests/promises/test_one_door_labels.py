"""Promise 1 where labels lie at the vendor: they leave in one kind of frame, as numbers, as they were reported."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from cutlayer import wire
from cutlayer.core import Payload
from cutlayer.customer import Lora, Reconstruction, gate, upload
from cutlayer.customer.order import Order
from cutlayer.data import Dataset
from cutlayer.privacy import ReportedLabels, Words
from cutlayer.wire import Route, routes
from cutlayer.wire.messages import JobSpec
from tests.promises.accounts import Watched, check_accounted
from tests.promises.runs import CANARIES, LABELS, SEED, TEST, TRAIN, TRAINING, Sent, customer, finetune
from tests.promises.test_one_door import REPEATED, check_no_canary

pytestmark = pytest.mark.filterwarnings("ignore:Labels of train and dev are sent")
DRAWN = {"labels_at": "vendor", "label_epsilon": 1.0}
CLEAR = {"labels_at": "vendor"}
TWICE = Dataset(TRAIN.texts + TRAIN.texts, (TRAIN.labels or ()) + tuple(reversed(TRAIN.labels or ())))
"""Each text with two labels that may differ."""
TEXT, LABEL = "anamnesis_text", "diagnosis_column"


def private(file: Path) -> list[bytes]:
    """What no frame, file of the vendor's or line of a log may hold."""
    texts = [text for data in (TRAIN, TEST) for (text,) in data.texts]
    return [each.encode() for each in (*LABELS, *CANARIES, TEXT, LABEL, file.stem, *texts)]


@pytest.mark.parametrize("settings", [pytest.param(CLEAR, id="clear"), pytest.param(DRAWN, id="drawn")])
def test_every_byte_is_accounted_for(
    settings: dict[str, Any], data_dir: Path, api_key: str, tmp_path: Path, watched: Watched
) -> None:
    """Some texts stand twice, with two labels: one record, and of labels in clear both, in no order of the file's."""
    with customer(data_dir, api_key, tmp_path / "home") as client:
        result = finetune(client, train=REPEATED, **settings)
        check_accounted(client, result, watched, train=REPEATED)
        check_no_canary(Sent.by(result).frames, client)
        listed = list(client.ledger.labels())
        sending = {entry.entry: entry.route for entry in client.ledger.frames()}
    assert {sending[label.entry] for label in listed} == {routes.LABELS_PUT.name}
    assert {label.eta for label in listed} == {settings.get("label_epsilon", float("inf"))}


@pytest.fixture
def drawn_words(tiny_model: Path, tmp_path: Path) -> dict[str, Any]:
    """Settings of runs that draw words, with public ones before texts to train on."""
    file = tmp_path / "words.tsv"
    file.write_text("".join(f"w{number}\tNOUN\t1\n" for number in range(240)))
    return {
        "privacy": Words(eta=6.0, words=("all",), candidates="all", space=str(tiny_model), vocabulary=file),
        "reconstruction": Reconstruction(
            plain_tokens=3, plain_sequences=2, reconstruction_weight=0.001, reconstruction_width=8
        ),
        "tuning": Lora(pooling="mean"),
        "training": TRAINING,
        "seed": SEED,
    }


@pytest.mark.parametrize("settings", [pytest.param({}, id="here"), pytest.param(DRAWN, id="at the vendor")])
def test_every_byte_behind_plain_words_is_accounted_for(
    settings: dict[str, Any],
    drawn_words: dict[str, Any],
    data_dir: Path,
    api_key: str,
    tmp_path: Path,
    watched: Watched,
) -> None:
    """Of public words it is told which they are, how many tokens each became, and before which text which stand."""
    told = []
    for number, train in enumerate((TRAIN, TRAIN.select(range(len(TRAIN) // 2)))):
        with customer(data_dir, api_key, tmp_path / f"home{number}") as client:
            result = client.finetune(train, test=TEST, out=tmp_path / f"run{number}", **drawn_words, **settings)
            if number == 0:
                check_accounted(client, result, watched)
                check_no_canary(Sent.by(result).frames, client)
            jobs = [frame.control() for frame in Sent.by(result).frames if frame.route is routes.JOB_PUT]
            told += [job.reconstruction for job in jobs if isinstance(job, JobSpec)]
    assert len(set(told)) == 1, "public words follow from the vocabulary and the seed, and from no text"


def test_a_text_that_shows_in_its_plain_words_is_caught(
    drawn_words: dict[str, Any],
    data_dir: Path,
    api_key: str,
    tmp_path: Path,
    watched: Watched,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Planted: which words stand before a text tells one of it."""
    honest = wire.pack

    def planted(payload: Payload, **settings: Any) -> dict[str, Tensor]:
        tensors = honest(payload, **settings)
        if "sequences" in tensors:
            tensors["sequences"] = (tensors["lengths"][:, 0] % 2).to(tensors["sequences"].dtype)
        return tensors

    monkeypatch.setattr(wire, "pack", planted)
    with customer(data_dir, api_key, tmp_path / "home") as client:
        result = client.finetune(TRAIN, test=TEST, **drawn_words)
        with pytest.raises(AssertionError, match="a text left with other content"):
            check_accounted(client, result, watched)


def test_words_names_and_columns_are_in_no_frame_no_log_and_no_file_of_the_vendors(
    data_dir: Path, api_key: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "patients-of-doctor-x.csv"
    rows = zip(TRAIN.texts, TRAIN.labels or (), strict=True)
    file.write_text("\n".join([f"{TEXT},{LABEL}", *(f"{text},{label}" for (text,), label in rows)]))
    with caplog.at_level(logging.DEBUG), customer(data_dir, api_key, tmp_path / "home") as client:
        result = finetune(
            client, train=file, test=Dataset(TEST.texts, TEST.labels), **DRAWN, text_column=TEXT, label_column=LABEL
        )
    sent = [frame.body + frame.route.path.format(**frame.where).encode() for frame in Sent.by(result).frames]
    kept = [each.read_bytes() for each in data_dir.rglob("*") if each.is_file() and "models" not in each.parts]
    logged = caplog.text.encode()
    assert logged
    for needle in private(file):
        assert not any(needle in place for place in (*sent, *kept, logged))


# ---------------------------------------------------------------- planted faults


def plant_true_labels(patch: pytest.MonkeyPatch) -> None:
    """The gate sends other labels than those that were drawn."""
    honest = gate._reported

    def planted(route: Route, labels: ReportedLabels | None) -> dict[str, Tensor]:
        return {role: (value + 1) % len(LABELS) for role, value in honest(route, labels).items()}

    patch.setattr(gate, "_reported", planted)


def plant_the_order_of_the_file(patch: pytest.MonkeyPatch) -> None:
    """Labels of texts that stand twice come in the order of the file."""
    patch.setattr(upload, "_in_no_order", lambda labels, records: labels)


def plant_a_label_in_the_order(patch: pytest.MonkeyPatch) -> None:
    """The key of an epoch's order tells the first label."""
    honest = Order.key
    patch.setattr(Order, "key", lambda order, number: honest(order, number)[:-1] + b"\x02")


@pytest.mark.parametrize(
    ("fault", "settings", "said"),
    [
        (plant_true_labels, DRAWN, "labels: another value"),
        (plant_the_order_of_the_file, CLEAR, "labels: another value"),
        pytest.param(
            plant_a_label_in_the_order, DRAWN, "a control message left with other content", marks=pytest.mark.slow
        ),
    ],
)
def test_a_planted_leak_is_caught(
    fault: Callable[[pytest.MonkeyPatch], None],
    settings: dict[str, Any],
    said: str,
    data_dir: Path,
    api_key: str,
    tmp_path: Path,
    watched: Watched,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fault(monkeypatch)
    with customer(data_dir, api_key, tmp_path / "home") as client:
        result = finetune(client, train=TWICE, **settings)
        with pytest.raises(AssertionError, match=said):
            check_accounted(client, result, watched, train=TWICE)
