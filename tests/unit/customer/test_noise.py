"""Noise of another package, at the customer: found before anything is read or asked, and named in what is told."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import SimpleNamespace

import pytest

from cutlayer.core import ConfigError, Place
from cutlayer.customer import Client, RunSpec, TrainBottom, TrainSpec
from cutlayer.customer.client import _privacy
from cutlayer.customer.profile import Profile
from cutlayer.privacy import NOISE_WINDOW, PrivacySpec
from cutlayer.wire import WireType
from tests.plugins import installing

PLUG_IN = "from cutlayer.privacy import DChi\n\nNOISE = DChi()\n"


@pytest.mark.parametrize("method", ["finetune", "finetune_language_model", "finetune_seq2seq", "privatize"])
def test_an_unknown_noise_is_met_before_anything_else(method: str) -> None:
    client = Client()  # of no vendor
    with pytest.raises(ConfigError, match=r"There is no mechanism named 'd-chj'\. Did you mean 'd-chi'"):
        getattr(client, method)("there is no such file.csv", eta=80, noise="d-chj")
    assert inspect.signature(getattr(client, method)).parameters["noise"].default == "d-chi"


@pytest.mark.parametrize("method", ["predict", "generate"])
def test_a_plug_in_that_is_gone_is_missed_before_the_vendor_is_asked(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    objective = SimpleNamespace(generates=method == "generate")
    spec = SimpleNamespace(privacy=PrivacySpec(eta=80, noise="gone"), objective=objective)
    monkeypatch.setattr(Profile, "load", lambda *_: SimpleNamespace(spec=spec, segments=1))
    with pytest.raises(ConfigError, match="There is no mechanism named 'gone'"):
        getattr(Client(), method)("0f", ["a text"])


def test_a_plug_ins_noise_is_another_run(tmp_path: Path) -> None:
    with installing(tmp_path) as install:
        install("bundle", PLUG_IN, other="NOISE")
        chosen = _privacy(80, None, Place.TOKENS, noise="other", noise_window=NOISE_WINDOW)
    assert (chosen.mechanism, chosen.noise) == ("text-to-text", "other")

    def run(privacy: PrivacySpec) -> RunSpec:
        return RunSpec(
            privacy=privacy,
            train=TrainSpec(),
            model="m",
            bottom=0,
            train_bottom=TrainBottom.FROZEN,
            wire_type=WireType.BF16,
            budget=None,
            seed=0,
        )

    client = Client("http://127.0.0.1:1", "key")
    own, other = (client._default_folder(run(spec), 0, "data") for spec in (PrivacySpec(eta=80), chosen))
    assert own != other
    assert '"noise"' not in run(PrivacySpec(eta=80)).model_dump_json()
