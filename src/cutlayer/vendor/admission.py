"""Which new jobs a vendor takes: what it offers, and what there is room for."""

from __future__ import annotations

from collections.abc import Iterator

from cutlayer.core import ConfigError, Fault, ModelError
from cutlayer.core.tuning import FullSpec, LoraSpec
from cutlayer.models import FAMILIES, Kind, check_method
from cutlayer.models.joint import joint_stacks
from cutlayer.vendor.catalogue import Catalogue
from cutlayer.vendor.passes import writes
from cutlayer.vendor.problems import conflict, unacceptable
from cutlayer.vendor.residents import Residents
from cutlayer.vendor.settings import Limits
from cutlayer.vendor.steps import step_too_large
from cutlayer.vendor.store import RecordStore
from cutlayer.vendor.trainer import adapter_parameters, job_bytes, step_bytes
from cutlayer.wire.messages import Form, JobSpec

_PARAMETER_BYTES = 4
"""Adapters are kept in fp32."""

_LARGEST = 1e6
"""Largest rate or scale: far beyond use, and far below where their products overflow."""

_LEAST = 1e-12
"""Least learning rate: far below use, and far above where an update in fp32 is none."""


class Admission:
    """Checks new jobs. Lives in the compute thread, but for `check_weights`, which may be called from any.

    Args:
        limits: What one job and one tenant may take.
        catalogue: The models.
        store: The record sets, and the room on disk.
        residents: What is in memory.
    """

    def __init__(self, limits: Limits, catalogue: Catalogue, store: RecordStore, residents: Residents) -> None:
        self._limits = limits
        self._catalogue = catalogue
        self._store = store
        self._residents = residents

    def check(self, spec: JobSpec) -> None:
        """Checks a new job's spec, all that does not need the model.

        Raises:
            Refusal: The vendor does not offer this.
        """
        self.check_weights(spec)
        self._catalogue.card(spec.model).check(spec.cut, spec.form)
        faults = [
            Fault(path, value, f"must be at most {_LARGEST:g}")
            for path, value in (
                ("optimiser.learning_rate", spec.optimiser.learning_rate),
                ("optimiser.weight_decay", spec.optimiser.weight_decay),
                ("tuning.lora_alpha", spec.tuning.lora_alpha if isinstance(spec.tuning, LoraSpec) else 0),
            )
            if not value <= _LARGEST
        ]
        rate = spec.optimiser.learning_rate
        if rate < _LEAST:
            faults.append(Fault("optimiser.learning_rate", rate, f"must be at least {_LEAST:g}: less trains nothing"))
        if (spec.num_labels is None) != (spec.cut.tail is not None) and not (writes(spec) and spec.loop is not None):
            faults.append(
                Fault(
                    "num_labels",
                    spec.num_labels,
                    "must be null where the customer holds a tail, or the vendor learns alone to write target texts, "
                    "and a number else",
                )
            )
        faults += self._tuning_faults(spec)
        if spec.trainable_bottom and spec.cut.is_text:
            faults.append(Fault("trainable_bottom", True, "needs a bottom: cut.bottom is null"))
        seq2seq = self._catalogue.card(spec.model).info.target_blocks is not None
        faults += self._word_faults(spec, seq2seq=seq2seq)
        if seq2seq and not spec.trainable_bottom and spec.num_labels is None and not writes(spec):
            faults.append(
                Fault("trainable_bottom", False, "must be true where target texts are learnt: each step has its own")
            )
        if seq2seq and spec.dropout:
            faults.append(Fault("dropout", True, "must be false of an encoder-decoder, whose dropout cannot be cut"))
        if spec.trainable_bottom == bool(spec.record_sets):
            faults.append(
                Fault(
                    "record_sets",
                    f"{len(spec.record_sets)} sets",
                    "must be empty with a trainable bottom, and not empty with a frozen one",
                )
            )
        if spec.reconstruction is not None and (spec.form is not Form.IDS or spec.trainable_bottom):
            faults.append(
                Fault(
                    "reconstruction",
                    f"{spec.reconstruction.plain_tokens} words",
                    "must be null but of jobs on stored ids",
                )
            )
        faults += self._loop_faults(spec)
        if faults:
            raise unacceptable("not-valid", str(ConfigError(faults)), remedy="Correct the values named.")

    def _word_faults(self, spec: JobSpec, *, seq2seq: bool) -> Iterator[Fault]:
        """What does not fit the model's kind of classifier: encoder-decoders have label words, others a head."""
        words, vocabulary = spec.label_words, self._catalogue.card(spec.model).info.vocab_size
        shown = None if words is None else f"{len(words)} labels"
        if (words is not None) != (seq2seq and spec.num_labels is not None):
            yield Fault("label_words", shown, "must be set of an encoder-decoder's classifier, and null else")
        if words is not None and len(words) != spec.num_labels:
            yield Fault("label_words", shown, f"must be as many as num_labels = {spec.num_labels}")
        if words is not None and max(map(max, words)) >= vocabulary:
            yield Fault("label_words", shown, f"must be ids below {vocabulary}")

    def _loop_faults(self, spec: JobSpec) -> Iterator[Fault]:
        """What does not go with a job that the vendor trains alone."""
        if spec.loop is None:
            return
        pairs = writes(spec) and spec.form is Form.IDS and spec.segments == 2
        pairs = pairs and self._catalogue.card(spec.model).target_template is not None
        if not (pairs or spec.num_labels is not None) or spec.trainable_bottom or len(spec.record_sets) != 2:
            yield Fault(
                "loop",
                "set",
                "must be null but of classifiers, or of an encoder-decoder's pairs of ids, on two stored sets, train "
                "and dev",
            )
        if spec.shared_weights and joint_stacks(FAMILIES[self._catalogue.card(spec.model).info.family], spec.cut):
            yield Fault("shared_weights", True, "must be false where the vendor trains alone and you hold copies")

    def _tuning_faults(self, spec: JobSpec) -> Iterator[Fault]:
        """What does not go with what is tuned."""
        info, tuning = self._catalogue.card(spec.model).info, spec.tuning
        family = FAMILIES[info.family]
        try:
            check_method(tuning, info.family)
        except ModelError as error:
            yield Fault("tuning.method", tuning.method, error.message)
        if info.quantization is not None and isinstance(tuning, FullSpec):
            yield Fault(
                "tuning.method", "full", f"must be another: weights of {info.name} are kept in {info.quantization}"
            )
        if spec.shared_weights and not (isinstance(tuning, FullSpec) and family.shares):
            yield Fault("shared_weights", True, "must be false but of method full on blocks that share weights")
        if tuning.method == "prefix" and spec.gradient_checkpointing and family.kind is Kind.ENCODER_DECODER:
            yield Fault("gradient_checkpointing", True, "must be false of an encoder-decoder with a prefix")
        longest = max((max(size.positions, size.target_positions) for size in spec.largest_steps), default=1)
        if tuning.positions and tuning.positions + longest > info.max_length:
            yield Fault(
                "tuning",
                f"{tuning.positions} virtual positions",
                f"leave no room for texts of {longest}: {info.name} has {info.max_length} positions",
            )

    def check_weights(self, spec: JobSpec) -> None:
        """Checks that a model still is the one that a job was made for; a resumed job would go on with another.

        Raises:
            Refusal: The vendor has other weights now.
        """
        card = self._catalogue.card(spec.model)
        if spec.fingerprint != card.info.fingerprint:
            raise conflict(
                "fingerprint-differs",
                f"The fingerprint of {spec.model} is {card.info.fingerprint}, not {spec.fingerprint}.",
                remedy="Fetch the model's archive again, and start a new job.",
            )

    def check_size(self, tenant: str, spec: JobSpec, *, graph_limit: int) -> None:
        """Checks what a new job would take, before any of it is allocated.

        Args:
            tenant: Whose it is.
            spec: The job.
            graph_limit: Most bytes that the graphs of a step may take.

        Raises:
            Refusal: The adapter is larger than this vendor allows, or there is no room to keep it.
        """
        labels = self._limits.max_labels
        if spec.num_labels is not None and spec.num_labels > labels:
            raise unacceptable(
                "too-many-labels",
                f"num_labels = {spec.num_labels}; this vendor takes {labels}.",
                remedy="Use fewer labels. Was a column of numbers or of texts given as the label's?",
            )
        if isinstance(spec.tuning, FullSpec):
            self._check_untied(spec)
        top = self._catalogue.top(spec.model, spec.cut)
        count = adapter_parameters(top, spec)
        limit = self._limits.max_adapter_parameters
        if count > limit:
            raise unacceptable(
                "adapter-too-large",
                f"{_what_is_trained(spec)} {count} parameters; this vendor takes {limit}.",
                remedy="Use a deeper bottom or tail, or an adapter (lora)."
                if isinstance(spec.tuning, FullSpec)
                else "Lower the rank, adapt query and value only, use fewer virtual positions, or fewer labels.",
            )
        for largest in spec.largest_steps:
            if (size := step_bytes(top, spec, largest)) > graph_limit:
                raise step_too_large(largest.texts, size, graph_limit)
        self._residents.check("job", job_bytes(top, spec))
        self._store.check_room(tenant, _PARAMETER_BYTES * count)

    def _check_untied(self, spec: JobSpec) -> None:
        try:
            self._catalogue.check_trainable(spec.model, spec.cut)
        except ModelError as error:
            raise unacceptable("tied-weights", f"tuning.method = full: {error.message}", remedy=error.remedy) from error


def _what_is_trained(spec: JobSpec) -> str:
    labels = "" if spec.num_labels is None else f" and num_labels = {spec.num_labels}"
    if (task := spec.reconstruction) is not None:
        labels += f" and reconstruction of {task.vocabulary} words, width = {task.width}"
    told = spec.tuning.model_dump(exclude={"method", "pooling"})  # what a head reads is no size
    return f"Method {spec.tuning.method}{''.join(f', {name} = {value}' for name, value in told.items())}{labels} trains"
