"""Rules across settings: which of them contradict each other. All faults are reported at once, before any text is read.

A rule of one setting alone stands with it, as its bounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from cutlayer.core import ConfigError, DataError, Fault, ModelError, Place
from cutlayer.customer.columns import DataSpec
from cutlayer.customer.reconstruction import Reconstruction
from cutlayer.customer.settings import FinetuneSpec, FullTuning, LabelsAt, Objective, RunSpec, TrainBottom
from cutlayer.customer.sources import Source
from cutlayer.data import Dataset, has_column
from cutlayer.models import Archive, check_method
from cutlayer.privacy import find_mechanism
from cutlayer.privacy.spec import NoPrivacy, PrivacySpec, TextToText
from cutlayer.wire.messages import MAX_EPOCHS_ALONE, MAX_PLAIN_INDICES, Form, ModelInfo


def choose_privacy(eta: float | None, privacy: PrivacySpec | None) -> PrivacySpec:
    """How releases are privatized: as it was said, or text-to-text with an eta.

    Args:
        eta: Privacy parameter per token, in 1/distance of the embedding table; infinite for no privacy.
        privacy: The whole of it.

    Raises:
        ConfigError: Both were given, or neither: how much of a text leaves is never decided by a default.
    """
    if privacy is not None:
        if eta is not None:
            raise ConfigError([Fault("eta", eta, f"must be left out with privacy: {privacy.mechanism} has its own")])
        return privacy
    if eta is None:
        raise ConfigError(
            [Fault("eta", None, "has no default")],
            remedy="Give a number, of which smaller ones hide more (`Client.privatize` shows what would leave), or "
            "math.inf for no privacy; or give privacy=TextToText(eta=…), Vector(eta=…) or NoPrivacy().",
        )
    return NoPrivacy() if eta == math.inf else TextToText(eta=eta)


def validate(spec: RunSpec, data: DataSpec | None = None) -> None:
    """Refuses settings that contradict each other.

    Args:
        spec: The run's settings.
        data: Where its texts and labels stand; `None` where they are not read from a table.

    Raises:
        ConfigError: With all faults.
    """
    find_mechanism(spec.privacy.noise)
    faults = [*_cut_faults(spec), *_budget_faults(spec), *_label_faults(spec), *_reconstruction_faults(spec)]
    faults += _vendor_label_faults(spec)
    if spec.objective is Objective.CLASSIFICATION:
        faults += _classifier_faults(spec)
    else:
        faults += _generating_faults(spec)
    if spec.objective is Objective.SEQ2SEQ:
        faults += _seq2seq_faults(spec)
    elif spec.training.max_target_length is not None:
        faults.append(Fault("max_target_length", spec.training.max_target_length, "must be left out: " + _NO_TARGET))
    if data is not None:
        faults += _data_faults(spec, data)
    if faults:
        raise ConfigError(faults)


_NO_TARGET = "encoder-decoders have target texts, objective seq2seq"


def _cut_faults(spec: RunSpec) -> Iterator[Fault]:
    """What does not go with where the model is cut, or with a bottom that is trained."""
    bottom, trained = spec.cut.bottom, spec.train_bottom is not TrainBottom.FROZEN
    if bottom is None and spec.privacy.mechanism not in ("none", "words"):
        yield Fault(
            "bottom", "text", "has no embedding table, which noise on tokens needs: use 0, mechanism words, or eta inf"
        )
    if bottom is None and trained:
        yield Fault("train_bottom", spec.train_bottom, "needs weights at the customer: use `bottom` 0 or more")
    if trained and spec.privacy.mechanism == "vector":
        yield Fault("mechanism", "vector", "works with a frozen bottom only: use text-to-text")
    if spec.train_bottom is TrainBottom.RESAMPLE and spec.privacy.mechanism == "words":
        yield Fault("train_bottom", "resample", "means other words in each epoch, and other lengths: use cached")
    if spec.train_bottom is TrainBottom.CACHED and not bottom and not spec.cut.target:
        yield Fault("train_bottom", "cached", "trains blocks: use bottom 1 or more")


def _budget_faults(spec: RunSpec) -> Iterator[Fault]:
    """What does not go with a budget of eta."""
    budget, epochs, eta = spec.privacy_budget, spec.training.epochs, spec.privacy.eta
    if budget is None:
        return
    if spec.unsafe_noise_seed is not None:
        yield Fault("privacy_budget", budget, "cannot limit noise from a seed, which protects nothing")
    if spec.train_bottom is TrainBottom.RESAMPLE and not spec.privacy.cti and epochs * eta > budget:
        yield Fault(
            "privacy_budget",
            budget,
            f"must be {epochs * eta:g} or more for {epochs} epochs, each a look at eta {eta:g}",
        )


def _label_faults(spec: RunSpec) -> Iterator[Fault]:
    """What does not go with labels drawn by randomised response."""
    epsilon, budget = spec.label_epsilon, spec.label_budget
    if epsilon is None:
        if budget is not None:
            yield Fault("label_budget", budget, "needs `label_epsilon`: labels as they are exceed every budget")
        return
    if spec.objective.generates:
        yield Fault("label_epsilon", epsilon, "must be left out: these labels are the text, and leave as eta says")
    if spec.privacy.cti is not None:
        yield Fault("cti", "set", "must be left out with `label_epsilon`: its noise is made of the true labels")
    if budget is not None and spec.unsafe_noise_seed is not None:
        yield Fault("label_budget", budget, "cannot limit labels drawn from a seed, which protects nothing")


def _vendor_label_faults(spec: RunSpec) -> Iterator[Fault]:
    """What does not go with labels at the vendor."""
    if spec.labels_at is LabelsAt.CUSTOMER:
        return
    pairs = spec.sends_pairs and spec.cut.is_text
    if not pairs and (spec.objective.generates or not spec.stores):
        why = "is for classifiers with a frozen bottom, and for seq2seq at bottom text: others' labels stay here"
        yield Fault("labels_at", spec.labels_at, why)
    if spec.training.epochs > MAX_EPOCHS_ALONE:
        yield Fault("epochs", spec.training.epochs, f"must be at most {MAX_EPOCHS_ALONE} with labels at the vendor")


def _faults_behind_others(spec: RunSpec) -> Iterator[Fault]:
    """What does not go with plain words before texts of which `protect` drew words."""
    if spec.reconstruction.plain_tokens_at_inference:
        yield Fault("plain_tokens_at_inference", True, "needs mechanism words")
    if spec.objective is Objective.SEQ2SEQ and not spec.sends_pairs:
        yield Fault("plain_as", spec.reconstruction.plain_as, "needs labels_at vendor with seq2seq")
    if spec.objective is Objective.LM and spec.training.packing:
        yield Fault("packing", True, "must be off behind plain tokens, which stand before each text")


def _reconstruction_faults(spec: RunSpec) -> Iterator[Fault]:
    """What does not go with public words before texts, or with their absence."""
    settings, count = spec.reconstruction, spec.reconstruction.plain_tokens
    if not count:
        for name, declared in Reconstruction.model_fields.items():
            if (value := getattr(settings, name)) != declared.default:
                yield Fault(name, value, "needs plain tokens: give plain_tokens, 40 for example")
        return
    if spec.objective.generates and settings.plain_tokens_at_inference:
        yield Fault("plain_tokens_at_inference", True, "is for classifiers: others are measured on texts by themselves")
    if spec.privacy.mechanism == "none" and settings.plain_as is not None:
        yield from _faults_behind_others(spec)
    elif spec.privacy.mechanism != "words":
        why = "needs mechanism words, or plain_as: plain tokens are drawn as words of a text are, or of its entities"
        yield Fault("plain_tokens", count, why)
    elif settings.plain_as is not None:
        yield Fault("plain_as", settings.plain_as, "must be left out with mechanism words: they are drawn as the texts")
    if spec.form is not Form.IDS:
        yield Fault("plain_tokens", count, "needs bottom 0, or the text cut, and a frozen bottom: ids are released")
    if count * settings.plain_sequences > MAX_PLAIN_INDICES:
        yield Fault(
            "plain_sequences", settings.plain_sequences, f"make more than {MAX_PLAIN_INDICES} words with plain_tokens"
        )
    outputs, words = settings.reconstruction_vocabulary, count * settings.plain_sequences
    if outputs is not None and outputs < words:
        yield Fault("reconstruction_vocabulary", outputs, f"must be at least {words}, one for each plain word")
    if settings.plain_tokens_at_inference and spec.tuning.pooling == "mean":
        yield Fault(
            "plain_tokens_at_inference", True, "must be off with pooling mean: queries do not say where they stand"
        )


def _classifier_faults(spec: RunSpec) -> Iterator[Fault]:
    """What is for language models and encoder-decoders alone."""
    if spec.cut.tail is not None:
        yield Fault("tail", spec.cut.tail, "must be left out: a classifier's head is the vendor's")
    if spec.cut.target:
        yield Fault("target", spec.cut.target, "must be 0: a classifier has one stack of blocks")
    if spec.training.packing:
        yield Fault("packing", True, "must be off: each text has a label of its own")
    if spec.public_iterations:
        yield Fault("public_iterations", spec.public_iterations, "must be 0: a classifier needs labels to train on")


def _generating_faults(spec: RunSpec) -> Iterator[Fault]:
    """What does not go with learning text."""
    if spec.label_words:
        yield Fault("label_words", f"{len(spec.label_words)} of them", "must be left out: there are no labels")
    iterations, accumulated = spec.public_iterations, spec.training.gradient_accumulation_steps
    if spec.cut.target and spec.objective is not Objective.SEQ2SEQ:
        yield Fault("target", spec.cut.target, "must be 0: a language model has one stack of blocks")
    if spec.privacy.mechanism == "words" and spec.objective is Objective.LM:
        if spec.form is not Form.IDS:
            yield Fault("bottom", spec.cut.bottom, "must be text or 0, and frozen, where words are drawn: ids leave")
        if spec.training.packing:
            yield Fault("packing", True, "must be off where words are drawn: texts' lengths as they leave differ")
    if spec.privacy.cti is not None:
        yield Fault("cti", "set", "must be left out: contributing tokens are found by class labels, and there are none")
    if iterations and spec.train_bottom is TrainBottom.FROZEN:
        yield Fault("public_iterations", iterations, "must be 0 with a frozen bottom, which they cannot change")
    if iterations % accumulated:
        yield Fault(
            "public_iterations",
            iterations,
            f"must be a multiple of gradient_accumulation_steps = {accumulated}, so that their update is taken before "
            "a private text leaves",
        )
    tables = spec.train_bottom is TrainBottom.RESAMPLE and not spec.cut.bottom and not spec.cut.target
    if tables and not isinstance(spec.tuning, FullTuning):
        yield Fault("train_bottom", "resample", 'trains the table: use `method` "full", or leave the bottom frozen')
    elif spec.tuning.at_vendor and spec.train_bottom is not TrainBottom.FROZEN:
        why = f"must be frozen: `method` {spec.tuning.method!r} trains nothing of it"
        yield Fault("train_bottom", spec.train_bottom, why)


def _seq2seq_faults(spec: RunSpec) -> Iterator[Fault]:
    """What an encoder-decoder does not allow."""
    if spec.cut.is_text and not spec.sends_pairs:
        why = "must be 0 or more: the ids of target texts are their labels, which leave with labels_at vendor alone"
        yield Fault("bottom", "text", why)
    if spec.cut.is_text and spec.cut.tail is not None:
        yield Fault("tail", spec.cut.tail, "must be left out at bottom text: the vendor has the whole decoder")
    if spec.privacy.mechanism == "words" and not spec.cut.is_text:
        yield Fault("mechanism", "words", "needs bottom text and labels_at vendor: ids leave, of targets too")
    if spec.privacy.place is Place.ACTIVATIONS:
        yield Fault(
            "place",
            "activations",
            "must be tokens: the rows of a target text change with each step, so noise on them would be a new look "
            "each time",
        )
    if spec.training.packing:
        yield Fault("packing", True, "must be off: each source text has a target text of its own")
    yield from _writer_faults(spec)


def _writer_faults(spec: RunSpec) -> Iterator[Fault]:
    """What an encoder-decoder does not allow, whatever it writes."""
    tuning = spec.tuning
    if tuning.method == "prefix" and spec.training.gradient_checkpointing:
        yield Fault("gradient_checkpointing", True, "must be off with a prefix: a block is computed once with its keys")
    if spec.training.dropout:
        yield Fault("dropout", True, "must be off: a cut encoder-decoder cannot drop out as the whole one does")
    if tuning.pooling != type(tuning).model_fields["pooling"].default:
        yield Fault("pooling", tuning.pooling, "must be left out: labels and texts are written, no head reads a text")


def _data_faults(spec: RunSpec, data: DataSpec) -> Iterator[Fault]:
    """Columns that runs of this objective do not read."""
    if spec.objective.generates and data.text_pair_column is not None:
        yield Fault(
            "text_pair_column",
            data.text_pair_column,
            "must be left out: a language model is trained on single texts, an encoder-decoder's second text is "
            "target_column",
        )
    if data.facts:
        if not spec.objective.generates:
            yield Fault("facts", True, "must be left out: a classifier has labels, no target texts")
        for name in sorted({"text_column", "target_column"} & data.model_fields_set):
            yield Fault(name, getattr(data, name), "must be left out with facts, whose columns have names of their own")
    if spec.objective is Objective.LM and spec.training.packing and data.facts:
        yield Fault("packing", True, "must be off with facts: each has target texts of its own")
    if "target_column" not in data.model_fields_set:
        return
    if not spec.objective.generates:
        yield Fault("target_column", data.target_column, "must be left out: a classifier has labels, no target texts")
    elif spec.objective is Objective.LM and spec.training.packing:
        yield Fault("packing", True, "must be off with target_column: each source text has a target text of its own")


def check_public(given: FinetuneSpec, *, public: bool) -> None:
    """Refuses public text for classifiers, and steps on public text where there is none.

    Args:
        given: What was said of the run.
        public: Whether public text was given.

    Raises:
        ConfigError: The one or the other.
    """
    if public and given.objective is Objective.CLASSIFICATION:
        raise ConfigError([Fault("public_first", "given", "must be left out: a classifier needs labels to train on")])
    if given.public_iterations and not public and given.objective.generates:
        raise ConfigError(
            [Fault("public_iterations", given.public_iterations, "needs public text to step on: give `public_first`")]
        )


MOST_LABELS: Final = 200
"""A column with more values is a label column seldom, and a name, a date or an amount often."""


def check_sent_labels(train: Source, spec: FinetuneSpec, data: DataSpec) -> None:
    """Refuses a run whose labels are to lie at the vendor, of texts without labels.

    Args:
        train: What is trained on.
        spec: What was said.
        data: Which column labels stand in.

    Raises:
        ConfigError: There are none.
    """
    if spec.labels_at is LabelsAt.CUSTOMER or spec.objective.generates:
        return
    if not (train.labels is not None if isinstance(train, Dataset) else has_column(train, data.label_column)):
        raise ConfigError(
            [Fault("labels_at", spec.labels_at, f"needs labels, and train has no column {data.label_column!r}")],
            remedy="Name the column of the labels: --label-column, in Python label_column.",
        )


def check_labels(dataset: Dataset, data: DataSpec) -> None:
    """Refuses a label column that looks like none: each label becomes an output of the vendor's head.

    Args:
        dataset: What is trained on.
        data: Which column it is, and whether it was said to be meant.

    Raises:
        DataError: It has another value in each row, or over 200 of them.
    """
    if data.many_labels or dataset.labels is None:
        return
    values = len(set(dataset.labels))
    if values <= MOST_LABELS and (values < len(dataset) or values < 3):
        return
    raise DataError(
        f"Column {data.label_column!r} has {values} different values in {len(dataset)} rows, which is much for labels.",
        remedy="Name the column of the labels: --label-column, in Python label_column. If it is this one, say "
        "--many-labels, in Python many_labels=True.",
    )


def check_head(archive: Archive) -> None:
    """Refuses a whole tuning above released ids of a model whose head is its embedding table.

    The vendor looks ids up in a table of its own and trains it; the head, the same weights, would stay behind here.

    Args:
        archive: What the vendor handed out.

    Raises:
        ConfigError: The head is tied to the table.
    """
    if archive.tail is not None and any(weight is archive.table for weight in archive.tail.parameters()):
        raise ConfigError(
            [Fault("method", "full", "must be lora: ids are released, and this model's head is its embedding table")],
            remedy="Use --bottom 1, or adapters.",
        )


def check_model(spec: RunSpec, model: ModelInfo) -> None:
    """Refuses a model that cannot learn what is to be learnt.

    Args:
        spec: The run's settings.
        model: The vendor's model.

    Raises:
        ModelError: It is an encoder-decoder and the objective is for others, or the other way round; or the method
            trains nothing on it.
        ConfigError: The method leaves no position for a text, or tunes weights that the vendor keeps in 4 bits; or
            what was said of training is not for encoder-decoders.
    """
    pairs, seq2seq = model.target_blocks is not None, spec.objective is Objective.SEQ2SEQ
    if pairs and spec.objective is Objective.LM:
        raise ModelError(
            f"{model.name} is an encoder-decoder ({model.family}): it writes a target text for each source text.",
            remedy='Use --objective seq2seq (in Python objective="seq2seq"), or another model.',
        )
    if faults := [*(_writer_faults(spec) if pairs else ())]:
        raise ConfigError(faults)
    if seq2seq and not pairs:
        raise ModelError(f"{model.name} ({model.family}) is no encoder-decoder.", remedy="Choose one, T5 for example.")
    check_method(spec.tuning, model.family)
    if model.quantization is not None and isinstance(spec.tuning, FullTuning):
        raise ConfigError(
            [Fault("method", "full", f"must be another: the vendor keeps {model.name} in {model.quantization}")],
            remedy="Use method lora, prompt or prefix, or another model of this vendor.",
        )
    positions = spec.tuning.positions
    if positions and positions + _LEAST_POSITIONS > model.max_length:
        raise ConfigError(
            [
                Fault(
                    f"{spec.tuning.method}_length",
                    positions,
                    f"leaves no room for a text: {model.name} has {model.max_length} positions",
                )
            ]
        )
    words = spec.reconstruction.plain_tokens
    if words and positions + words + _LEAST_POSITIONS > model.max_length:
        raise ConfigError(
            [Fault("plain_tokens", words, f"leaves no room for a text: {model.name} has {model.max_length} positions")]
        )


_LEAST_POSITIONS: Final = 8
"""Of a text, special tokens included, below which nothing is worth training on."""
