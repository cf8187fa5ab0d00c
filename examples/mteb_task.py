"""MTEB on private text: a task of your own data, embedded by a vendor that sees only what is released of it.

Needs `pip install 'cutlayer[mteb]'`, a vendor's address and key in CUTLAYER_VENDOR and CUTLAYER_API_KEY, and a file
with the columns `text` and `label`, of which every other row is learnt from:

python examples/mteb_task.py notes.csv --eta 80

By default the vendor's denoiser takes the noise out; `--denoiser none` measures embeddings as they come.
"""

import argparse
from typing import Any, cast

import datasets
import mteb
from mteb.abstasks import AbsTaskClassification
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.models import ModelMeta
from mteb.models.abs_encoder import AbsEncoder

from cutlayer import Client
from cutlayer.customer import Embedder
from cutlayer.data import Dataset, read_dataset


class Private(AbsEncoder):
    """A vendor's model, as MTEB asks for embeddings."""

    def __init__(self, embedder: Embedder) -> None:
        self.embedder = embedder
        self.mteb_model_meta = ModelMeta.create_empty({"name": "private/vendor", "revision": "1"})

    def encode(self, inputs: Any, **_: Any) -> Any:
        """Embeddings `[texts, width]` of batches of texts."""
        return self.embedder.encode([text for batch in inputs for text in batch["text"]])


class Notes(AbsTaskClassification):
    """Labels of a file on this machine."""

    metadata = TaskMetadata(
        name="Notes",
        description="Labels of private notes.",
        dataset={"path": "local", "revision": "1"},
        type="Classification",
        eval_langs=["eng-Latn"],
        main_score="accuracy",
    )

    def __init__(self, rows: Dataset) -> None:
        super().__init__()
        self.rows = rows

    def load_data(self, num_proc: int | None = None, **_: Any) -> None:
        """Every other row to learn from, the others to test on."""
        labels = sorted(set(self.rows.labels or ()))
        found = [
            {"text": text, "label": labels.index(label)}
            for (text,), label in zip(self.rows.texts, self.rows.labels or (), strict=True)
        ]
        self.dataset = datasets.DatasetDict(
            train=datasets.Dataset.from_list(found[::2]), test=datasets.Dataset.from_list(found[1::2])
        )
        self.data_loaded = True


if __name__ == "__main__":
    given = argparse.ArgumentParser()
    given.add_argument("file")
    given.add_argument("--eta", type=float, required=True)
    given.add_argument("--denoiser", default="auto")
    said = given.parse_args()
    task = Notes(read_dataset(said.file, text_column="text", label_column="label"))
    model = Private(Embedder(Client(), eta=said.eta, denoiser=said.denoiser))
    found: Any = mteb.evaluate(cast(Any, model), task, cache=None, show_progress_bar=False)
    (scores,) = found.task_results[0].scores["test"]
    print(f"accuracy {scores['accuracy']:.3f} of {len(task.rows.texts) // 2} notes, at eta {said.eta:g}")
