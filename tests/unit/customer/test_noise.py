"""Noise of another package, at the customer: found before anything is read or asked, and named in what is told."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cutlayer.core import ConfigError
from cutlayer.customer import Client, Objective, RunSpec
from cutlayer.customer.finetune import default_folder
from cutlayer.customer.profile import Profile
from cutlayer.privacy import PrivacySpec, TextToText
from tests.plugins import installing
from tests.settings import run_spec

PLUG_IN = "from cutlayer.privacy import DChi\n\nNOISE = DChi()\n"


@pytest.mark.parametrize(
    ("method", "given"), [*((("finetune", {"objective": name})) for name in Objective), ("privatize", {})]
)
def test_an_unknown_noise_is_met_before_anything_else(method: str, given: dict[str, Any]) -> None:
    client = Client()  # of no vendor
    with pytest.raises(ConfigError, match=r"There is no mechanism named 'd-chj'\. Did you mean 'd-chi'"):
        getattr(client, method)("there is no such file.csv", privacy=TextToText(eta=80, noise="d-chj"), **given)
    assert TextToText(eta=80).noise == "d-chi"


@pytest.mark.parametrize("method", ["predict", "generate"])
def test_a_plug_in_that_is_gone_is_missed_before_the_vendor_is_asked(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    objective = SimpleNamespace(generates=method == "generate")
    spec = SimpleNamespace(privacy=TextToText(eta=80, noise="gone"), objective=objective)
    monkeypatch.setattr(Profile, "load", lambda *_: SimpleNamespace(spec=spec, segments=1, check_writes=lambda: None))
    with pytest.raises(ConfigError, match="There is no mechanism named 'gone'"):
        getattr(Client(), method)("0f", ["a text"])


def test_a_plug_ins_noise_is_another_run(tmp_path: Path) -> None:
    with installing(tmp_path) as install:
        install("bundle", PLUG_IN, other="NOISE")
        chosen = TextToText(eta=80, noise="other")
    assert (chosen.mechanism, chosen.noise) == ("text-to-text", "other")

    def run(privacy: PrivacySpec) -> RunSpec:
        return run_spec(privacy=privacy, model="m")

    client = Client("http://127.0.0.1:1", "key")
    own, other = (default_folder(client, run(spec), 0, "data") for spec in (TextToText(eta=80), chosen))
    assert own != other
    assert '"noise"' not in TextToText(eta=80).identity
