"""Benchmarks report ratios by the names that the documentation uses, some of them by shape of model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import results, snd_cost


def test_ratios_are_printed_and_written_with_the_machine_that_they_belong_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(results, "FOLDER", tmp_path / "results")
    path = results.write("costs", {"light_denoiser_time": {"gpt2-xl": 0.016, "minilm": 0.17}, "gateway_ms": 1.5})
    written = json.loads(path.read_text())
    assert written["ratios"] == {"light_denoiser_time": {"gpt2-xl": 0.016, "minilm": 0.17}, "gateway_ms": 1.5}
    assert written["machine"]["cores"] >= 1
    assert written["versions"]["torch"] != "not installed"
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert printed == [
        ["light_denoiser_time", "gpt2-xl", "0.016"], ["light_denoiser_time", "minilm", "0.17"], ["gateway_ms", "1.5"],
    ]  # fmt: skip


@pytest.mark.slow
def test_costs_of_a_denoiser_are_told_by_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    monkeypatch.setattr("sys.argv", ["snd_cost", "--shapes", "minilm"])
    snd_cost.main()
    ratios = json.loads((tmp_path / "snd_cost.json").read_text())["ratios"]
    assert ratios.keys() == {f"{kind}_denoiser_{what}" for kind in ("paper", "light") for what in ("time", "memory")}
    assert all(0 < ratios[name]["minilm"] < 3 for name in ratios)
