"""A vendor's model that read public text, and releases of it, before any job: `cutlayer vendor warm-up` in a recipe."""

from __future__ import annotations

import hashlib
from pathlib import Path

from filelock import FileLock

from cutlayer import vendor
from cutlayer.core import Spec
from cutlayer.customer import Draw, PublicDraws
from cutlayer.privacy import PrivacySpec
from cutlayer.recipes.lab import Lab
from cutlayer.recipes.replacement import made_here
from cutlayer.recipes.tasks import TextFile
from cutlayer.vendor.settings import WarmUpSpec


class PublicWarmUp(Spec):
    """What a model reads beforehand.

    Attributes:
        texts: Public ones.
        max_length: Tokens of a text, special tokens included.
        training: How it learns from them.
    """

    texts: TextFile
    max_length: int
    training: WarmUpSpec = WarmUpSpec()


def warmed_model(lab: Lab, privacy: PrivacySpec, asked: PublicWarmUp) -> str:
    """The folder of the lab's model after it learnt to read a mechanism's releases; made once for all seeds."""
    model, about = lab.model(), f"{privacy.model_dump_json()} {asked.model_dump_json()}"
    named = hashlib.sha256(f"{model.fingerprint} {about}".encode()).hexdigest()[:12]
    folder = made_here(f"warm-{named}", lab)

    def make() -> Path:
        folder.parent.mkdir(parents=True, exist_ok=True)
        texts = [text for (text,) in asked.texts.read(lab.options.data).texts]
        # public text: its noise may repeat, and so does the model
        drawing = Draw(privacy, model.source, asked.max_length, unsafe_noise_seed=0)
        draws = PublicDraws(texts, drawing, lab.progress)
        with FileLock(folder.with_suffix(".lock")):
            made = vendor.warm_up(
                model.source, folder, asked.training, draws=draws,
                on_step=lambda done, total, note: lab.progress.update("warm up", done, total, note),
            )  # fmt: skip
        return made.folder

    return str(lab.once((PublicWarmUp, named), make))
