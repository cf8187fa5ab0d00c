"""What `generate` hands to the SDK, and what it prints as text comes."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from cutlayer.core import ConfigError, DataError
from cutlayer.customer import Client, Generation, Sampling
from tests.unit.cli.conftest import Run

ADAPTER = "0f" * 16
ASK = ("generate", "--adapter", ADAPTER, "--prompt", "Dear Mr Smith,")


def written(*texts: str) -> list[Generation]:
    return [
        Generation(text=text, tokens=len(text.split()), ended="length", seconds=1.25, round_trips=7, replays=0)
        for text in texts
    ]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Arguments of the call to the SDK; its answer is `texts`, which come in `pieces`."""
    calls: dict[str, Any] = {"texts": [" thank you"], "pieces": [" thank", " you"], "eta": 80.0, "seed": None}

    def generate(_: Client, adapter: str, prompts: list[str], **options: Any) -> list[Generation]:
        calls.update(options, adapter=adapter, prompts=prompts)
        if options["on_text"] is not None:
            for piece in calls["pieces"]:
                options["on_text"](0, piece)
        return written(*calls["texts"])

    def load(*_: object) -> Any:
        spec = SimpleNamespace(
            privacy=SimpleNamespace(eta=calls["eta"], noise="d-chi"), unsafe_noise_seed=calls["seed"]
        )
        return SimpleNamespace(spec=spec, check_restores=calls.get("check", lambda: None))

    monkeypatch.setattr(Client, "generate", generate)
    monkeypatch.setattr("cutlayer.customer.profile.Profile.load", load)
    return calls


def test_defaults_are_those_of_the_sdk(asked: dict[str, Any], run: Run) -> None:
    assert run(*ASK).code == 0
    assert asked["sampling"] == Sampling()
    assert (asked["adapter"], asked["prompts"]) == (ADAPTER, ["Dear Mr Smith,"])


def test_every_setting_reaches_the_sdk(asked: dict[str, Any], run: Run) -> None:
    settings = {
        "--max-new-tokens": "9", "--temperature": "0.5", "--top-k": "4", "--top-p": "0.9", "--seed": "3",
        "--num-beams": "2", "--length-penalty": "0.5",
    }  # fmt: skip
    flags = [word for pair in settings.items() for word in pair] + ["--stop", "END", "--stop", "\n", "--greedy"]
    assert run(*ASK, *flags).code == 0
    assert asked["sampling"] == Sampling(
        max_new_tokens=9,
        temperature=0.5,
        top_k=4,
        top_p=0.9,
        seed=3,
        stop_strings=("END", "\n"),
        greedy=True,
        num_beams=2,
        length_penalty=0.5,
    )
    reached = {name.removeprefix("--").replace("-", "_") for name in settings} | {"stop_strings", "greedy"}
    assert reached == set(Sampling.model_fields), "a setting of the SDK is out of reach"


def test_entities_are_protected_before_and_put_back_by_the_sdk(
    asked: dict[str, Any], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    def protect(_: Client, prompts: list[str], entities: list[str], *, eta: float) -> str:
        given.update(prompts=prompts, entities=entities, eta=eta)
        return "protected"

    monkeypatch.setattr(Client, "protect", protect)
    ran = run(*ASK, "--entities", "Mr Smith", "--entities", "Jones", "--entities-eta", 40)
    assert ran.code == 0, ran.err
    assert given == {"prompts": ["Dear Mr Smith,"], "entities": ["Mr Smith", "Jones"], "eta": 40}
    assert asked["prompts"] == "protected"
    for flags in (("--entities", "Smith"), ("--entities-eta", 40)):
        assert run(*ASK, *flags).code == 2


def test_an_adapter_that_cannot_be_asked_so_costs_nothing(
    asked: dict[str, Any], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Client, "protect", lambda *_, **__: pytest.fail("it was charged"))
    asked["check"] = Mock(side_effect=ConfigError("It draws what leaves."))
    assert run(*ASK, "--entities", "Mr Smith", "--entities-eta", 40).code == 3
    assert "prompts" not in asked


def test_the_text_comes_in_pieces_and_alone(asked: dict[str, Any], run: Run) -> None:
    """What stands on standard output is the text; the rest is for people and stands beside it."""
    ran = run(*ASK)
    assert ran.out == " thank you\n"
    assert "2 tokens in 1.2 s, 7 round trips" in ran.err
    assert "thank" not in ran.err


def test_the_text_is_printed_as_it_is(asked: dict[str, Any], run: Run) -> None:
    """No markup, no emoji codes, no tabs that become spaces: it may be a program, or a table."""
    asked["pieces"] = ["[bold]x[/] [", "/red]", " :smile: ", "\tindented\t", "a\\", "[b]", "\n\n", "end"]
    assert run(*ASK).out == "".join(asked["pieces"]) + "\n"


def test_json_holds_all_and_nothing_stands_beside_it(asked: dict[str, Any], run: Run) -> None:
    ran = run(*ASK, "--json")
    assert asked["on_text"] is None
    assert len(ran.out.splitlines()) == 1
    assert ran.result == {
        "adapter_id": ADAPTER,
        "text": " thank you",
        "tokens": 2,
        "ended": "length",
        "seconds": 1.25,
        "round_trips": 7,
        "replays": 0,
        "texts": [
            {"text": " thank you", "tokens": 2, "ended": "length", "seconds": 1.25, "round_trips": 7, "replays": 0}
        ],
    }
    assert "thank" not in ran.err
    assert "Smith" not in ran.out + ran.err


def test_several_prompts_are_continued_together(asked: dict[str, Any], run: Run) -> None:
    asked["texts"] = [" one two", " three"]
    ran = run(*ASK, "--prompt", "Dear all,")
    assert asked["prompts"] == ["Dear Mr Smith,", "Dear all,"]
    assert asked["on_text"] is None, "pieces of two texts in one stream could not be told apart"
    assert ran.out == "--- 1\n one two\n--- 2\n three\n"
    assert "3 tokens in 1.2 s, 7 round trips" in ran.err
    told = run(*ASK, "--prompt", "Dear all,", "--json").result
    assert [each["text"] for each in told["texts"]] == [" one two", " three"]
    assert (told["tokens"], told["seconds"], told["round_trips"]) == (3, 1.25, 7)
    assert "text" not in told


def test_no_privacy_is_said(asked: dict[str, Any], run: Run) -> None:
    assert "warning" not in run(*ASK).err
    asked["eta"] = math.inf
    assert "no privacy" in run(*ASK).err
    asked |= {"eta": 80.0, "seed": 1}
    assert "whoever knows it can undo it" in run(*ASK).err


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (("--temperature", "0"), 3, "--temperature = 0.0"),
        (("--top-p", "1.5"), 3, "--top-p = 1.5"),
        (("--top-k", "0", "--top-p", "0"), 3, "--top-k = 0"),
        (("--max-new-tokens", "0"), 3, "--max-new-tokens = 0"),
    ],
)
def test_settings_out_of_bounds_are_called_by_their_options(
    asked: dict[str, Any], flags: tuple[str, ...], code: int, said: str, run: Run
) -> None:
    failed = run(*ASK, *flags)
    assert failed.code == code
    assert said in failed.err
    assert len(failed.err.strip().splitlines()) == 1
    assert "prompts" not in asked, "the vendor was asked"


def test_what_is_required(run: Run) -> None:
    for missing in (ASK[:3], (ASK[0], *ASK[3:])):
        failed = run(*missing)
        assert failed.code == 2
        assert "Missing option" in failed.err


def test_a_prompt_of_nothing_is_an_error_of_the_data(
    asked: dict[str, Any], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise DataError("Prompt 1 has no token.", remedy="Give each prompt a word at least.")

    monkeypatch.setattr(Client, "generate", refuse)
    failed = run("generate", "--adapter", ADAPTER, "--prompt", "", "--json")
    assert failed.code == DataError.exit_code
    assert failed.result["error"] == "Prompt 1 has no token."
