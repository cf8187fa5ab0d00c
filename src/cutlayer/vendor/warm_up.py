"""Warming up: before any job, a vendor's model learns from public text to read what a mechanism makes of text.

The vendor draws releases of public text by a mechanism that its customers use, which is public, and trains all weights
but the token table to see in them what the model sees in the text as it was. What comes out is another model, in a
folder of its own, for `vendor init`. No customer has a part in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
from safetensors.torch import load, save
from torch import Tensor, nn
from transformers import PreTrainedModel

from cutlayer.core import ConfigError, ModelError, StorageError
from cutlayer.core.files import make_folder, whole_folder, write_whole
from cutlayer.models import (
    Head,
    Kind,
    Template,
    family_of,
    fingerprint,
    load_model,
    load_tokenizer,
    max_length,
)
from cutlayer.models.batches import epoch_batches
from cutlayer.models.cutting import embedding_table
from cutlayer.models.denoising import Pairs, denoising_loss
from cutlayer.models.load import tokenizer_fingerprint
from cutlayer.vendor.catalogue import WARMED, pick_device
from cutlayer.vendor.checkpoints import Checkpoints
from cutlayer.vendor.settings import WarmUpSpec
from cutlayer.vendor.stepwise import OnStep, Stepwise, ends

UNFINISHED = "unfinished"
"""Below the model's folder, until there is a model in it: draws, weights so far, the secret of the draws."""
_BEGUN, _PAIRS = "begun.json", "pairs.safetensors"


class Draws(Protocol):
    """Public texts, and how a customer's mechanism draws them; see `customer.PublicDraws`."""

    @property
    def about(self) -> Mapping[str, Any]:
        """JSON that tells these draws from others."""
        ...

    def pairs(self, folder: Path) -> Pairs:
        """The texts and their releases, drawn with what the folder holds."""
        ...


@dataclass(frozen=True)
class Warmed:
    """A model that was warmed up.

    Attributes:
        folder: Where it is.
        fingerprint: What names its weights.
        before: The loss (see `denoising_loss`) of the first steps, and `after` of the last.
    """

    folder: Path
    fingerprint: str
    before: float
    after: float


def warm_up(
    source: str,
    out: Path,
    spec: WarmUpSpec,
    *,
    draws: Draws,
    on_step: OnStep = lambda done, total, note: None,
) -> Warmed:
    """Makes a model that reads releases of a mechanism better than the one it is made from.

    A run that was stopped goes on from its last checkpoint, to the same bits on a CPU with as many threads; a finished
    one is shown again.

    Args:
        source: `starter`, a local folder or a hub id.
        out: The new model's folder.
        spec: How it is trained.
        draws: Public texts, and how they are drawn.
        on_step: Told the steps taken, of how many, and a remark.

    Raises:
        ConfigError: The folder holds another warm-up, or something else.
        ModelError: The model cannot be loaded, or is an encoder-decoder.
        StorageError: The folder cannot be written.
    """
    teacher = load_model(source, head=None)
    if family_of(teacher.config).kind is Kind.ENCODER_DECODER:
        raise ModelError(f"{source} is an encoder-decoder: these are not warmed up.", remedy="Use another model.")
    about = {
        "model": fingerprint(teacher),
        "tokenizer": tokenizer_fingerprint(load_tokenizer(source)),
        "warmed_for": dict(draws.about),
        "training": spec.model_dump(),
    }
    try:
        if (found := _finished(out, about)) is not None:
            return found
        pairs = _begun(out / UNFINISHED, about, draws)
        run = _Run(source, teacher, pairs, spec, Checkpoints(out / UNFINISHED))
        losses = run.train(on_step)
        return _write(run, out, {**about, "losses": losses})
    except OSError as error:
        raise StorageError(f"{out} cannot be written: {error.strerror}.", remedy="Choose another folder.") from error


class _Run:
    """A training, from its last checkpoint on."""

    def __init__(
        self, source: str, teacher: PreTrainedModel, pairs: Pairs, spec: WarmUpSpec, checkpoints: Checkpoints
    ) -> None:
        self._device = pick_device("auto")
        self._teacher, self.model = teacher, load_model(source, head=None)
        for each in (self._teacher, self.model):
            nn.Module.to(each, self._device)
        self.tokenizer = load_tokenizer(source)
        self._template = Template.from_tokenizer(self.tokenizer, max_length=max_length(teacher.config))
        self._pairs, self._spec = pairs, spec
        self._epoch, self._batches = -1, list[Tensor]()
        # the table gives words of customers their vectors, at cut 0, and distances their unit
        table = embedding_table(self.model)
        trained = {name: each for name, each in self.model.base_model.named_parameters() if each is not table}
        self._stepwise = Stepwise(
            trained,
            steps=spec.steps,
            learning_rate=spec.learning_rate,
            checkpoint_steps=spec.checkpoint_steps,
            checkpoints=checkpoints,
        )

    def train(self, on_step: OnStep) -> list[float]:
        """All steps that are left; the losses of all."""
        return self._stepwise.train(self._loss, on_step)

    def _loss(self, step: int) -> Tensor:
        return denoising_loss(self.model, self._teacher, self._pairs.select(self._batch(step)), self._template)

    def _batch(self, step: int) -> Tensor:
        """The numbers of a step's texts."""
        size, lengths = self._spec.batch_size, self._pairs.released.ids.lengths
        epoch, within = divmod(step, -(-len(lengths) // size))
        if epoch != self._epoch:
            rng = np.random.default_rng([self._spec.seed, epoch])
            self._batches = epoch_batches(lengths, batch_size=size, rng=rng, group_by_length=True)
            self._epoch = epoch
        return self._batches[within]


def _begun(folder: Path, about: Mapping[str, Any], draws: Draws) -> Pairs:
    """The draws of a warm-up, made now or before.

    Raises:
        ConfigError: Another one was begun here.
    """
    make_folder(folder, mode=0o700)
    begun, drawn = folder / _BEGUN, folder / _PAIRS
    if begun.exists() and json.loads(begun.read_bytes()) != _plain(about):
        raise _occupied(folder.parent, "holds the beginning of another warm-up")
    write_whole(begun, json.dumps(about).encode())
    if not drawn.exists():
        write_whole(drawn, save({name: value.contiguous() for name, value in draws.pairs(folder).tensors().items()}))
    return Pairs.of(load(drawn.read_bytes()))


def _finished(out: Path, about: Mapping[str, Any]) -> Warmed | None:
    """The model, if it is there.

    Raises:
        ConfigError: Something else is.
    """
    if (out / WARMED).is_file():
        told = json.loads((out / WARMED).read_bytes())
        if {name: told.get(name) for name in about} != _plain(about):
            raise _occupied(out, "holds a model of another warm-up")
        return Warmed(out, fingerprint(load_model(str(out), head=None)), told["before"], told["after"])
    if out.exists() and {path.name for path in out.iterdir()} - {UNFINISHED}:
        raise _occupied(out, "holds other files")
    return None


def _write(run: _Run, out: Path, about: Mapping[str, Any]) -> Warmed:
    """Puts the model in the place of its beginning, the draws and their secret."""
    before, after = ends(about["losses"])
    # jobs draw heads of their own; a language model's is part of what the vendor offers
    model = cast(PreTrainedModel, run.model.base_model) if Head.of(run.model) is Head.CLASSIFICATION else run.model
    with whole_folder(out) as folder:
        model.save_pretrained(folder)
        run.tokenizer.save_pretrained(folder)
        if tokenizer_fingerprint(load_tokenizer(str(folder))) != about["tokenizer"]:
            raise ModelError(
                "The model's tokenizer is another one after it was saved, by which ids would name other tokens.",
                remedy="Save model and tokenizer with transformers' save_pretrained, and warm that folder up.",
            )
        told = {name: value for name, value in about.items() if name != "losses"}
        told |= {"before": before, "after": after}
        (folder / WARMED).write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    return Warmed(out, fingerprint(load_model(str(out), head=None)), before, after)


def _plain(about: Mapping[str, Any]) -> Any:
    """As it is after a file."""
    return json.loads(json.dumps(about))


def _occupied(out: Path, why: str) -> ConfigError:
    return ConfigError(f"{out} {why}.", remedy="Give --out a new folder, or repeat what was begun there.")
