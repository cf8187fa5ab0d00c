"""Choosing tokens as transformers does, showing text as it settles, and prompts that cannot be."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from cutlayer.core import ConfigError, Cut, CutlayerError, DataError, Ragged, VendorError
from cutlayer.customer import Sampling
from cutlayer.customer.generate import Writer, check_prompts, generate
from cutlayer.customer.sampling import Chooser
from cutlayer.models import Head
from cutlayer.wire import routes
from tests.equivalence import zoo

# ---------------------------------------------------------------- choosing

CHOICES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "sharper": {"temperature": 0.4},
    "wilder": {"temperature": 2.5},
    "the best five": {"top_k": 5},
    "the best half": {"top_p": 0.5},
    "the best token": {"top_k": 1},
    "a small share": {"top_p": 1e-6},
    "all of them": {"temperature": 0.7, "top_k": 12, "top_p": 0.6},
}


@pytest.fixture
def drawn_from(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """The probabilities of every draw."""
    seen: list[torch.Tensor] = []
    real = torch.multinomial

    def noting(probabilities: torch.Tensor, *given: Any, **named: Any) -> torch.Tensor:
        seen.append(probabilities)
        return real(probabilities, *given, **named)

    monkeypatch.setattr(torch, "multinomial", noting)
    return seen


@torch.no_grad()
@pytest.mark.parametrize("name", CHOICES)
def test_probabilities_are_those_of_transformers(name: str, drawn_from: list[torch.Tensor]) -> None:
    chosen = CHOICES[name]
    model = zoo.shared_model("gpt2", Head.LANGUAGE)
    model.generation_config.pad_token_id = zoo.PAD  # type: ignore[union-attr]
    ids = torch.randint(4, zoo.VOCAB, (3, 6), generator=torch.Generator().manual_seed(2))
    told = model.generate(  # type: ignore[operator]
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=1,
        do_sample=True,
        return_dict_in_generate=True,
        output_scores=True,
        output_logits=True,
        **{"top_k": 0, **chosen},
    )
    drawn_from.clear()
    Chooser(Sampling(seed=1, **chosen))(told.logits[0])
    (ours,) = drawn_from
    torch.testing.assert_close(ours, told.scores[0].softmax(-1))
    if chosen:
        assert not torch.allclose(ours, told.logits[0].softmax(-1)), "the settings changed nothing"


def test_greedy_is_the_most_probable_whatever_else_is_said(drawn_from: list[torch.Tensor]) -> None:
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(1))
    chosen = Chooser(Sampling(greedy=True, temperature=9.0, top_k=3))(logits)
    assert chosen.tolist() == logits.argmax(1).tolist()
    assert chosen.dtype is torch.int64
    assert not drawn_from


def test_draws_follow_the_probabilities() -> None:
    """Both ways: a chi-square of 4,000 draws, and of the same against other probabilities."""
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -2.0])
    choose = Chooser(Sampling(seed=4))
    found = choose(logits.expand(4000, -1)).bincount(minlength=5).double()

    def chi_square(temperature: float) -> float:
        expected = 4000 * (logits / temperature).softmax(0).double()
        return float(((found - expected).square() / expected).sum())

    assert chi_square(1.0) < 18.5 < chi_square(1.2)  # 0.1 % at 4 degrees of freedom


def test_a_seed_repeats_the_draws() -> None:
    logits = torch.randn(6, 3, 40, generator=torch.Generator().manual_seed(1))

    def draws(seed: int | None) -> list[list[int]]:
        choose = Chooser(Sampling(seed=seed))
        return [choose(each).tolist() for each in logits]

    torch.manual_seed(0)
    first = draws(7)
    torch.manual_seed(1)
    assert draws(7) == first, "it depends on torch's own generator"
    assert draws(8) != first
    assert draws(None) != draws(None)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_new_tokens": 0},
        {"temperature": 0},
        {"temperature": -1.0},
        {"temperature": math.inf},
        {"top_k": 0},
        {"top_p": 0},
        {"top_p": 1.1},
        {"seed": -1},
        {"num_beams": 0},
        {"stop_strings": ("",)},
        {"length_penalty": float("nan")},
    ],
    ids=str,
)
def test_choices_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises((CutlayerError, ValidationError), match=next(iter(wrong))):
        Sampling(**wrong)


# ---------------------------------------------------------------- writing


def bytes_tokenizer() -> PreTrainedTokenizerFast:
    """A token for each byte, as the letters of GPT-2's alphabet, and two special tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(["<end>", "<mark>", *letters])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", extra_special_tokens=["<mark>"])


TOKENIZER = bytes_tokenizer()
END, MARK = 0, 1


def ids(text: str) -> list[int]:
    found: list[int] = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    return found


def write(tokens: list[int], *, stop: tuple[str, ...] = (), tokenizer: Any = TOKENIZER) -> tuple[Writer, list[str]]:
    """What is shown, token by token, of as many as the writer takes."""
    pieces: list[str] = []
    writer = Writer(tokenizer, stop, pieces.append)
    for token in tokens:
        writer.add(token)
        if writer.ended is not None:
            return writer, pieces
    writer.end("length")
    return writer, pieces


def test_a_character_of_several_tokens_is_shown_when_it_is_whole() -> None:
    text = "aß€😀z"
    assert len(ids(text)) == 1 + 2 + 3 + 4 + 1
    writer, pieces = write(ids(text))
    assert pieces == ["a", "ß", "€", "😀", "z"]
    assert writer.text == text
    assert writer.ids == ids(text)
    assert writer.ended == "length"


def test_half_a_character_at_the_end_is_shown_as_what_it_is() -> None:
    writer, pieces = write(ids("a€")[:-1])
    assert "".join(pieces) == writer.text
    assert writer.text.startswith("a\N{REPLACEMENT CHARACTER}")


def test_the_end_mark_ends_a_text_and_is_no_part_of_it() -> None:
    writer, pieces = write([*ids("so"), END, *ids("never")])
    assert (writer.text, writer.ended, len(writer.ids)) == ("so", "end mark", 2)
    assert "".join(pieces) == "so"
    writer, pieces = write([END])
    assert (writer.text, writer.ended, writer.ids, pieces) == ("", "end mark", [], [])


def test_other_special_tokens_are_not_shown() -> None:
    writer, pieces = write([*ids("a"), MARK, *ids("b")])
    assert writer.text == "".join(pieces) == "ab"
    assert len(writer.ids) == 3, "it counts all the same: it was computed"


@pytest.mark.parametrize(
    ("text", "stop", "kept"),
    [
        ("one\nUser: two", ("\nUser:",), "one"),
        ("one\nUse: two", ("\nUser:",), "one\nUse: two"),
        ("aaab", ("aab",), "a"),
        ("x STOP y END", ("END", "STOP"), "x "),
        ("stop", ("stop",), ""),
        ("a€b", ("€",), "a"),
        ("almost sto", ("stop",), "almost sto"),
    ],
)
def test_a_stop_string_across_tokens_is_never_shown(text: str, stop: tuple[str, ...], kept: str) -> None:
    writer, pieces = write(ids(text), stop=stop)
    assert writer.text == "".join(pieces) == kept
    assert writer.ended == ("length" if kept == text else "stop string")


def test_a_text_that_may_still_become_a_stop_string_is_held_back() -> None:
    pieces: list[str] = []
    writer = Writer(TOKENIZER, ("stop",), pieces.append)
    shown = []
    for token in ids("a stoat"):
        writer.add(token)
        shown.append("".join(pieces))
    assert shown == ["a", "a ", "a ", "a ", "a ", "a stoa", "a stoat"]


def test_two_stop_strings_the_first_in_the_text_counts() -> None:
    """Both are there with the last token."""
    tokenizer = bytes_tokenizer()
    tokenizer.add_tokens(["-XY-"])
    writer, pieces = write([*ids("a"), len(tokenizer) - 1], stop=("Y", "X"), tokenizer=tokenizer)
    assert writer.text == "".join(pieces) == "a-"


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(0, 257), max_size=25) | st.text(max_size=8).map(ids),
    st.lists(st.text("ab€😀 .'", min_size=1, max_size=3), max_size=2),
)
def test_what_is_shown_is_the_text(tokens: list[int], stop: list[str]) -> None:
    """Whatever the bytes: pieces make up the text, none is taken back, and no stop string is in it."""
    writer, pieces = write(tokens, stop=tuple(stop))
    assert "".join(pieces) == writer.text
    assert all(pieces)
    assert not any(word in writer.text for word in stop)


# ---------------------------------------------------------------- prompts


def test_prompts_that_fit() -> None:
    prompts = Ragged.from_lists([[5, 6], [7, 8, 9]])
    assert check_prompts(prompts, opening=1, limit=10, new_tokens=6) == 10
    with pytest.raises(
        ConfigError, match=r"max_new_tokens = 7: makes 11 positions behind a prompt of 4; .* takes 10"
    ) as e:
        check_prompts(prompts, opening=1, limit=10, new_tokens=7)
    assert "Ask for 6 or fewer" in e.value.remedy
    with pytest.raises(ConfigError) as e:
        check_prompts(prompts, opening=1, limit=3, new_tokens=1)
    assert "Ask for 0 or fewer, or shorten" in e.value.remedy


@pytest.mark.parametrize("opening", [0, 1])
def test_a_prompt_of_nothing_is_named_by_its_number(opening: int) -> None:
    with pytest.raises(DataError, match="Prompt 2 has no token") as error:
        check_prompts(Ragged.from_lists([[5], [], []]), opening=opening, limit=10, new_tokens=1)
    assert "word" in error.value.remedy


# ---------------------------------------------------------------- the loop


class Scripted:
    """A road that ends in what a script says: the tokens of each text, in order."""

    def __init__(self, script: list[list[int]], *, tokenizer: Any = TOKENIZER, fails_at: int | None = None) -> None:
        self.archive = SimpleNamespace(
            tokenizer=tokenizer, template=SimpleNamespace(opening=()), candidates=torch.ones(300), cut=Cut(tail=0)
        )
        self.bottom = self.tail = None
        self.routes: list[str] = []
        self.grown: list[list[list[int]]] = []
        self._script = script
        self._fails_at = fails_at

    def eval(self) -> None:
        pass

    def grow(self, texts: Any, new: Ragged) -> torch.Tensor:
        self.grown.append([new[at].tolist() for at in range(len(new))])
        if len(self.grown) == self._fails_at:
            raise VendorError("gone")
        texts.link.round_trips += 1
        logits = torch.zeros(len(new), 300)
        for text, tokens in enumerate(self._script):
            logits[text, tokens[min(len(self.grown), len(tokens)) - 1]] = 1
        return logits

    def send(self, route: Any, where: Any = None, **_: Any) -> Any:
        self.routes.append(route.name)
        return SimpleNamespace(expect=lambda kind: None)


def run(road: Scripted, prompts: list[str], **sampling: Any) -> tuple[list[Any], list[tuple[int, str]]]:
    shown: list[tuple[int, str]] = []
    tokenizer = road.archive.tokenizer
    packed = Ragged.from_lists([tokenizer(prompt, add_special_tokens=False)["input_ids"] for prompt in prompts])
    given: Any = road
    written = generate(
        given,
        given,
        "a" * 32,
        packed,
        Sampling(greedy=True, **sampling),
        limit=64,
        on_text=lambda number, piece: shown.append((number, piece)),
    )
    return written, shown


def test_texts_end_each_at_its_own_time() -> None:
    """A text that has ended sends nothing more; the last token of each is never sent."""
    road = Scripted([[*ids("ab"), END], ids("wxyz"), [END]])
    written, shown = run(road, ["1", "22", "3"], max_new_tokens=4)
    assert [(each.text, each.tokens, each.ended) for each in written] == [
        ("ab", 2, "end mark"),
        ("wxyz", 4, "length"),
        ("", 0, "end mark"),
    ]
    a, b, w, x, y = ids("abwxy")
    assert road.grown == [[ids("1"), ids("22"), ids("3")], [[a], [w], []], [[b], [x], []], [[], [y], []]]
    assert [each.round_trips for each in written] == [4] * 3
    assert shown == [(0, "a"), (1, "w"), (0, "b"), (1, "x"), (1, "y"), (1, "z")]


def test_no_round_trip_is_made_when_all_have_ended() -> None:
    road = Scripted([[*ids("a stop"), END], [*ids("bcdefgh")]])
    written, _ = run(road, ["1", "2"], max_new_tokens=40, stop_strings=("stop", "fg"))
    assert [(each.text, each.ended) for each in written] == [("a ", "stop string"), ("bcde", "stop string")]
    assert len(road.grown) == 6


def test_a_session_is_ended_also_where_a_text_is_cut_short() -> None:
    road = Scripted([ids("abc")], fails_at=2)
    with pytest.raises(VendorError, match="gone"):
        run(road, ["1"], max_new_tokens=4)
    assert road.routes == [routes.GENERATION_PUT.name, routes.GENERATION_DELETE.name]
    road = Scripted([ids("abc")])
    run(road, ["1"], max_new_tokens=2)
    assert road.routes == [routes.GENERATION_PUT.name, routes.GENERATION_DELETE.name]


def test_a_prompt_that_cannot_be_starts_no_session() -> None:
    for prompts, error in ((["a", ""], DataError), (["a" * 60], ConfigError)):
        road = Scripted([ids("abc")])
        with pytest.raises(error):
            run(road, prompts, max_new_tokens=8)
        assert road.routes == []


def test_a_continuation_begins_with_the_space_that_belongs_to_it() -> None:
    """Llama's and Mistral's tokenizers take the space of a text's first word away: of the prompt's, and of no other."""
    words = ["<end>", "▁Dear", "▁Mr", "▁Smith", ","]
    model = models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<end>")
    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>")
    assert tokenizer.decode([1, 2]) == "Dear Mr"
    road = Scripted([[3, 4, 0]], tokenizer=tokenizer)
    written, shown = run(road, ["Dear Mr"], max_new_tokens=5)
    assert "Dear Mr" + written[0].text == tokenizer.decode([1, 2, 3, 4]) == "Dear Mr Smith,"
    assert "".join(piece for _, piece in shown) == written[0].text
