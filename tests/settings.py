"""Settings of a run under the names they have on a command line, for tests that vary some of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cutlayer.core import Cut
from cutlayer.customer import FinetuneSpec, FullTuning, Lora, RunSpec, Training
from cutlayer.customer.defaults import settle
from cutlayer.privacy import CtiSpec, NoPrivacy, TextToText, Vector, Words

_PRIVACY = {"none": NoPrivacy, "text-to-text": TextToText, "vector": Vector, "words": Words}
_CUT = {"bottom": "bottom", "tail": "tail", "target_bottom": "target"}


def specs(given: Mapping[str, Any]) -> dict[str, Any]:
    """What `Client.finetune` takes: privacy, cut, tuning and training as objects, the rest as it is.

    Args:
        given: Settings by name; those of privacy with `eta`, and `mechanism` where that is not text-to-text.
    """
    rest = dict(given)
    cut = {name: rest.pop(flat) for flat, name in _CUT.items() if flat in rest}
    if cut:
        rest["cut"] = Cut(**cut)
    training = {name: rest.pop(name) for name in Training.model_fields if name in rest}
    if training:
        rest["training"] = Training(**training)
    method = rest.pop("method", "lora")
    tuning = {name: rest.pop(name) for name in ("train_bottom", *Lora.model_fields) if name in rest}
    if tuning or method == "full":
        rest["tuning"] = FullTuning(**tuning) if method == "full" else Lora(**tuning)
    if "budget" in rest:
        rest["privacy_budget"] = rest.pop("budget")
    if rest.pop("cti_class_free", False):
        rest["cti"] = CtiSpec(class_free=True)
    names = (
        "mechanism",
        "place",
        "noise",
        "noise_window",
        "cti",
        "words",
        "candidates",
        "space",
        "tagger",
        "vocabulary",
    )
    privacy = {name: rest.pop(name) for name in names if name in rest}
    if privacy:
        kind = _PRIVACY[privacy.pop("mechanism", "text-to-text")]
        if (cti := privacy.pop("cti", None)) is not None and cti is not False:
            privacy["cti"] = CtiSpec() if cti is True else cti
        rest["privacy"] = kind(eta=rest.pop("eta"), **privacy) if kind is not NoPrivacy else NoPrivacy()
    return rest


def run_spec(**given: Any) -> RunSpec:
    """The settings of a run, those that were left out being the defaults."""
    told = specs(given)
    if "eta" in told:
        told["privacy"] = TextToText(eta=told.pop("eta"))
    return settle(FinetuneSpec(**told))
