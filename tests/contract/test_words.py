"""Words: each chosen word leaves as what the secret says, no other word is touched, and both are accounted for."""

from __future__ import annotations

import hashlib
import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats
from torch import Tensor

from cutlayer.core import BudgetError, Claim, ConfigError, PrivacyError, Ragged, Tokens
from cutlayer.customer.reading import WordReading
from cutlayer.data import Dataset, Tagger, load_tagger
from cutlayer.privacy import (
    CustomerSecret,
    Dictionary,
    Grouping,
    Ledger,
    Lexicon,
    NeighbourSearch,
    NewFrame,
    PlainWords,
    Release,
    Word,
    Words,
    WordSpace,
    build_privatizer,
    drawn_words,
)
from cutlayer.privacy.drawn_words import Kept
from cutlayer.privacy.privatizers import privatizer as privatizer_module
from cutlayer.privacy.privatizers import words as module
from cutlayer.privacy.privatizers.words import WordsPrivatizer
from cutlayer.privacy.randomness import stream_fingerprint
from cutlayer.privacy.replacement import CLEAR
from cutlayer.privacy.words import clear_kind, folded
from tests.contract import recomputed
from tests.contract.noise_checks import ALPHA, stream

WIDTH, ETA = 12, 6.0
LETTERS = torch.from_numpy(stream(1).standard_normal((64, WIDTH)) * 0.5).float()
KEY = bytes(range(32))
SECRET = CustomerSecret(KEY)
NOUNS = ("cat", "dog", "house", "river", "street", "teacher", "window", "love")
VERBS = ("love", "run", "see", "sing", "speak", "think", "walk")
TAGS = {"noun": NOUNS, "verb": VERBS}
CHOSEN = pytest.mark.parametrize("candidates", ["category", "all"])


def embed(words: Sequence[str]) -> Tensor:
    """The mean of the rows of a word's letters, which are its pieces here."""
    rows = [LETTERS[[ord(letter) % len(LETTERS) for letter in word]].mean(0) for word in words]
    return torch.stack(rows) if rows else torch.zeros(0, WIDTH)


def as_bytes(columns: tuple[list[str], ...], *, preceding: Tensor | None = None) -> tuple[Ragged, ...]:
    """A tokenizer whose tokens are bytes."""
    return tuple(Ragged.from_lists([list(text.encode()) for text in column]) for column in columns)


def byte_ends(texts: list[str]) -> Ragged:
    """Behind which character each of its tokens ends."""
    return Ragged.from_lists(
        [[place for place, letter in enumerate(text, start=1) for _ in letter.encode()] for text in texts]
    )


def space(
    candidates: str = "category",
    *,
    chosen: tuple[str, ...] = ("noun", "verb"),
    without: str = "",
    members: list[list[str]] | None = None,
    **given: Any,
) -> WordSpace:
    constrained = candidates == "category"
    own = [[word for word in TAGS.get(name, NOUNS) if word != without] for name in chosen]
    if members is None:
        members = own if constrained else [sorted({word for group in own for word in group})]
    made = {"embed": embed, "unit": "t", "fingerprint": "tagger"} | given
    return WordSpace(members, Grouping.of(chosen, constrained=constrained), **made)


def build(
    candidates: str = "category",
    *,
    eta: float = ETA,
    window: int | None = 4,
    vocabulary: WordSpace | None = None,
    pieces: Callable[..., Any] = as_bytes,
    written_as: str = "bytes",
    secret: CustomerSecret = SECRET,
    named: str = "starter",
    draw: Literal["noise", "exponential"] = "noise",
    **chosen: Any,
) -> WordsPrivatizer:
    own = vocabulary or space(candidates, **chosen)
    privatizer = build_privatizer(
        Words(eta=eta, noise_window=window, candidates=candidates, space=named, draw=draw),
        secret=secret, table=None, candidates=None, table_fingerprint="",
        spellings=Dictionary(own, Lexicon(), pieces, byte_ends, written_as),
    )  # fmt: skip
    assert isinstance(privatizer, WordsPrivatizer)
    return privatizer


def lexicon(privatizer: WordsPrivatizer) -> Lexicon:
    assert privatizer.space.dictionary is not None
    return privatizer.space.dictionary.lexicon


def vocabulary(privatizer: WordsPrivatizer) -> WordSpace:
    assert privatizer.space.dictionary is not None
    return privatizer.space.dictionary.vocabulary


Text = list[Word]


def text(told: str) -> Text:
    """Words as `form/TAG` with blanks between them; those that follow a `+` stand close."""
    found = []
    for number, each in enumerate(told.split()):
        form, tag = each.removeprefix("+").rsplit("/", 1)
        found.append(Word("" if number == 0 or each.startswith("+") else " ", form, tag))
    return found


def names(privatizer: WordsPrivatizer, *texts: Text) -> Tokens:
    return Tokens((Ragged.from_lists([lexicon(privatizer).names(each) for each in texts]),))


def release_of(privatizer: WordsPrivatizer, *texts: Text) -> Release:
    return privatizer.tokens(names(privatizer, *texts), labels=None)


def read(release: Release) -> list[str]:
    """Released texts, of bytes."""
    assert isinstance(release.payload, Tokens)
    return [bytes(ids.tolist()).decode() for ids in release.payload.segments[0].split()]


def released(privatizer: WordsPrivatizer, *texts: Text) -> list[str]:
    return read(release_of(privatizer, *texts))


FORMS = [
    *NOUNS,
    *VERBS,
    "Cat",
    "RIVER",
    "zebra",
    "Zebra",
    "quay",
    "a",
    "n't",
    "Straße",
    "naïve",
    "42",
    "e\u0301t\u00e9",
]
A_WORD = st.builds(
    Word,
    st.sampled_from(["", " ", "\n"]),
    st.sampled_from([*FORMS, ".", "-", "'s", "?!", "a@b.example", "🙂", "हिन्दी"]),
    st.sampled_from(["NOUN", "PROPN", "VERB", "AUX", "DET", "PUNCT", "NUM", "PART", "X"]),
)
TEXTS = st.lists(st.lists(A_WORD, max_size=9), min_size=1, max_size=5).map(
    lambda texts: [[word._replace(before="") if at == 0 else word for at, word in enumerate(own)] for own in texts]
)
a_few = settings(deadline=None, max_examples=40)


# ---------------------------------------------------------------- one draw, and which


@CHOSEN
@a_few
@given(texts=TEXTS, data=st.data())
def test_a_text_has_one_draw_in_any_batch_and_order_whatever_was_met_before(
    candidates: str, texts: list[Text], data: st.DataObject
) -> None:
    whole = release_of(build(candidates), *texts)
    order = data.draw(st.permutations(range(len(texts))))
    other = build(candidates)
    release_of(other, text("other/NOUN words/VERB zebra/X first/ADV"))
    again = release_of(other, *(texts[i] for i in order))
    alone = [release_of(build(candidates), each) for each in texts]
    for place, i in enumerate(order):
        assert again.identities[place] == whole.identities[i] == alone[i].identities[0]
        assert read(again)[place] == read(whole)[i] == read(alone[i])[0]


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [text(f"{word}/NOUN the/DET {verb}/VERB quay/NOUN") for word in NOUNS for verb in VERBS]
    whole = build()
    found = read(release_of(whole, *texts))
    monkeypatch.setattr(module, "_BLOCK_WORDS", 5)
    parts = build()
    given_names = names(parts, *texts)
    shape = parts.shape(given_names)
    assert [bytes(ids.tolist()).decode() for ids in shape.segments[0].split()] == found
    monkeypatch.setattr(parts, "_written", None)  # what was drawn for its shape is not drawn again
    assert read(parts.tokens(given_names, labels=None)) == found
    again = parts.shape(names(parts, *texts[::-1])).segments[0]
    assert [bytes(ids.tolist()).decode() for ids in again.split()] == found[::-1]


_IN_A_PROCESS = """
from tests.contract.test_words import build, release_of, text
release = release_of(build(), text("dog/NOUN zebra/NOUN the/DET Run/VERB"))
print(release.identities[0].hex(), bytes(release.payload.segments[0].values.tolist()).decode())
"""


@pytest.mark.slow
def test_another_process_draws_the_same() -> None:
    """Whatever Python's hashes are there: names of words are hashes of their own."""
    release = release_of(build(), text("dog/NOUN zebra/NOUN the/DET Run/VERB"))
    for seed in ("1",):
        ran = subprocess.run(
            [sys.executable, "-c", _IN_A_PROCESS],
            env={**os.environ, "PYTHONHASHSEED": seed}, check=True, capture_output=True, text=True,
        )  # fmt: skip
        assert ran.stdout.strip() == f"{release.identities[0].hex()} {read(release)[0]}"


def behind_plain_words(privatizer: WordsPrivatizer) -> WordsPrivatizer:
    public = torch.tensor([lexicon(privatizer).names(text("house/NOUN run/VERB"))])
    return privatizer.preceded_by(PlainWords(public, ((2, 9),), 12), told=True)


def test_plain_words_of_another_eta_are_another_release_even_of_a_text_that_has_none_to_draw() -> None:
    """One name stands for the same bytes always: the ledger refuses others under it as a second look."""
    runs = [build(eta=eta) for eta in (0.01, ETA)]
    clear, drawn = text("42/NUM the/DET"), text("42/NUM dog/NOUN")
    for own, once in ((clear, True), (drawn, False)):
        (first, second), (before, after) = (
            [release_of(each, own) for each in ways] for ways in (runs, map(behind_plain_words, runs))
        )
        assert (first.identities == second.identities) is once
        assert before.identities != after.identities
        assert read(before) != read(after)
        assert (before.draws, after.draws) == (first.draws, second.draws)


def exactly(words: Sequence[str]) -> Tensor:
    """Vectors of which every machine has the same bits."""
    return torch.tensor([[ord(word[place % len(word)]) / 64 for place in range(WIDTH)] for word in words])


@pytest.mark.parametrize(
    ("candidates", "draw", "plain", "identity", "draws"),
    [
        ("category", "noise", False, "fa4cca6a2ae3569e278d70b2cb2bf6c9", "2012f89ea41acd88"),
        ("all", "noise", False, "5aee7521eb7281c4b45b44c8321ad3f6", "bf62d15d738c8db3"),
        ("category", "exponential", False, "4280605db7bdcfc81f094fe6033f80e1", "aa45dae1d1f92795"),
        ("category", "noise", True, "625e02ca44cfb7ea4d191a7b290e7fad", "2f34891a990e7071"),
    ],
)
def test_names_of_draws_outlive_versions(
    candidates: str, draw: str, plain: bool, identity: str, draws: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As this version named them first: under other names all words would be drawn, and charged, again."""
    monkeypatch.setattr(privatizer_module, "stream_fingerprint", lambda: b"fixed")
    own = space(candidates, embed=exactly)
    privatizer = build_privatizer(
        Words(eta=ETA, candidates=candidates, draw=draw),
        secret=SECRET, table=None, candidates=None, table_fingerprint="",
        spellings=Dictionary(own, Lexicon(), as_bytes, byte_ends, "bytes"),
    )  # fmt: skip
    assert isinstance(privatizer, WordsPrivatizer)
    given_names = names(privatizer, text("the/DET Dog/NOUN sings/VERB 42/NUM"))
    if plain:
        privatizer = behind_plain_words(privatizer)
    release = privatizer.tokens(given_names, labels=None)
    listed = privatizer._listed(privatizer._name(given_names, None, None, None))
    found = hashlib.blake2b(listed.names.tobytes(), digest_size=8).hexdigest()
    assert release.unit == "1/distance in words of table t"
    assert (release.identities[0].hex(), found) == (identity, draws)


def again(privatizer: WordsPrivatizer, own: Text, window: int | None) -> list[str]:
    """What a text's words become: from the secret's bytes, and by looking at every word of the vocabulary."""
    words = vocabulary(privatizer)
    key = recomputed.settings_key(
        KEY, mechanism="words", unit=privatizer.unit, candidates=np.zeros(0, dtype=bool),
        fingerprint=stream_fingerprint(), window=window, further=(words.fingerprint.encode(),),
    )  # fmt: skip
    group = [words.grouping.of_tag.get(word.tag, CLEAR) for word in own]
    ids, spelled = [], {}
    for word, each in zip(own, group, strict=True):
        shared = each if words.grouping.constrained else min(each, 0)
        told = f"{shared}\0{folded(word.form)}"
        ids.append(int.from_bytes(hashlib.blake2b(told.encode(), digest_size=8).digest(), "little") >> 1)
        spelled[ids[-1]] = b" " + folded(word.form).encode()  # a first word's blank is not read
    etas = [0.0 if each == CLEAR else privatizer.spec.eta for each in group]
    table = words.table.double().numpy()
    found = []
    for place, word in enumerate(own):
        if group[place] == CLEAR:
            found.append(word.form)
            continue
        named = recomputed.draw_names(
            ids[: place + 1],
            spelled,
            eta=etas[place],
            settings=key,
            window=window,  # type: ignore[arg-type]
        )[-1]
        vector = embed([folded(word.form)])[0].double().numpy()
        noisy = vector + recomputed.noise(named, secret=KEY, eta=etas[place], width=WIDTH)
        allowed = np.ones(len(table), dtype=bool)
        if words.grouping.constrained:
            allowed = words.groups.numpy() == group[place]
        found.append(words.words[recomputed.nearest(np.rint(noisy * 1024) / 1024, table, allowed)])
    return found


def corpus(count: int = 120) -> list[Text]:
    rng = stream(5)
    forms, tags = [*FORMS, "unheardof", "xylophones"], ["NOUN", "PROPN", "VERB", "AUX", "DET", "NUM"]
    return [
        [
            Word(" " * (at > 0), forms[rng.integers(len(forms))], tags[rng.integers(len(tags))])
            for at in range(rng.integers(1, 12))
        ]
        for _ in range(count)
    ]


def wrong(privatizer: WordsPrivatizer, texts: list[Text], window: int | None) -> int:
    """Words that leave otherwise than they must."""
    drawn = privatizer.drawn(names(privatizer, *texts))
    found = drawn.pieces[:, 1].tolist()
    expected = [word for own in texts for word in again(privatizer, own, window)]
    return sum(one != other for one, other in zip(found, expected, strict=True))


@CHOSEN
@pytest.mark.parametrize("window", [None, 1, 4])
def test_every_word_is_what_the_secret_says(candidates: str, window: int | None) -> None:
    """Computed again without the search, the streams or the names of the library."""
    assert wrong(build(candidates, window=window), corpus(), window) == 0


@pytest.mark.parametrize("every", [200, 50])
def test_a_search_that_knows_the_word_now_and_then_is_caught(every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = corpus(400)
    privatizer = build("all", eta=1.0)
    nearest = NeighbourSearch.nearest
    forms = [folded(word.form) for own in texts for word in own if word.tag not in ("DET", "NUM")]
    place = {word: at for at, word in enumerate(vocabulary(privatizer).words)}

    def leaking(search: NeighbourSearch, queries: Tensor, groups: Tensor | None = None) -> Tensor:
        found = nearest(search, queries, groups)
        for at in range(0, len(found), every):
            found[at] = place.get(forms[at], found[at])
        return found

    monkeypatch.setattr(NeighbourSearch, "nearest", leaking)
    assert wrong(privatizer, texts, 4) > 0


@pytest.mark.parametrize("off", [3 / 2, 2 / 3])
def test_noise_at_another_scale_is_caught(off: float, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = WordsPrivatizer._noise

    def scaled(self: WordsPrivatizer, **given: Any) -> Any:
        return ((part, own * off) for part, own in noise(self, **given))

    monkeypatch.setattr(WordsPrivatizer, "_noise", scaled)
    assert wrong(build(), corpus(), 4) > 0


def apart(eta: float) -> float:
    """Pr[one of two words at distance 1 in space becomes the other]: noise's part along their line is beyond 1/2."""
    # of a direction in space the part along a line is uniform
    beyond = lambda r: stats.gamma(3, scale=1 / eta).pdf(r) * (1 - 0.5 / r) / 2  # noqa: E731
    return float(integrate.quad(beyond, 0.5, np.inf)[0])


def two_words() -> WordSpace:
    vectors = {"here": [0.0, 0.0, 0.0], "there": [1.0, 0.0, 0.0]}
    return WordSpace(
        [["here", "there"]],
        Grouping.of(("noun",), constrained=True),
        embed=lambda words: torch.tensor([vectors[word] for word in words]).reshape(-1, 3),
        unit="two",
        fingerprint="",
    )


def test_a_word_of_two_is_replaced_as_often_as_noise_in_space_reaches_the_other() -> None:
    expected, count = apart(3.0), 20_000
    own = [Word(" ", "here", "NOUN")] * count

    def p_value(eta: float) -> float:
        privatizer = build(eta=eta, window=None, vocabulary=two_words())
        drawn = privatizer.drawn(names(privatizer, own))
        return float(stats.binomtest(int(drawn.changed.sum()), count, expected).pvalue)

    assert 0.1 < expected < 0.4
    assert p_value(3.0) > ALPHA
    assert p_value(3.0 * 3 / 2) < ALPHA
    assert p_value(3.0 * 2 / 3) < ALPHA


def test_words_on_a_line_are_hit_as_noise_falls_on_it() -> None:
    """Many words in a row show how far noise along it reaches: it is compared with the closed form, word by word."""
    count, eta, step = 20_000, 2.0, 0.125
    words = [f"w{number:03}" for number in range(-80, 81)]
    line = WordSpace(
        [words],
        Grouping.of(("noun",), constrained=True),
        embed=lambda own: torch.tensor([[int(word[1:]) * step, 0.0, 0.0] for word in own]).reshape(-1, 3),
        unit="line",
        fingerprint="",
    )
    own = [Word(" ", "w000", "NOUN")] * count

    def p_value(eta_drawn: float) -> float:
        privatizer = build(eta=eta_drawn, window=None, vocabulary=line)
        drawn = privatizer.drawn(names(privatizer, own))
        at = np.array([int(word[1:]) for word in drawn.pieces[:, 1]]) * step
        # spread over its cell at random, it is compared with the part of noise along the line: of a uniform direction
        along = at + stream(8).uniform(-step / 2, step / 2, count)
        return float(stats.kstest(along, np.vectorize(lambda each: projected(each, eta))).pvalue)

    assert p_value(eta) > ALPHA
    assert p_value(eta * 3 / 2) < ALPHA
    assert p_value(eta * 2 / 3) < ALPHA


def projected(x: float, eta: float) -> float:
    """P(part along a line <= x) of noise in space: that of a difference of two Gamma variables of shape 3/2 + 1/2."""
    # ∫ gamma(3) density (1 - |x|/r)/2 over r > |x|, in closed form: exp(-t)(2 + t)/4 at t = eta |x|
    t = eta * abs(x)
    tail = math.exp(-t) * (2 + t) / 4
    return 1 - tail if x > 0 else tail


# ---------------------------------------------------------------- which words, among which


@a_few
@given(texts=TEXTS)
def test_a_word_becomes_one_of_its_group_and_no_word_that_is_not_public(texts: list[Text]) -> None:
    for candidates in ("category", "all"):
        privatizer = build(candidates, eta=1.0)
        drawn = privatizer.drawn(names(privatizer, *texts))
        for word, became in zip([word for own in texts for word in own], drawn.pieces[:, 1], strict=True):
            name = {"NOUN": "noun", "PROPN": "noun", "VERB": "verb", "AUX": "verb"}.get(word.tag)
            if name is None:
                assert became == word.form, "a clear word leaves to the letter"
            else:
                assert became in (TAGS[name] if candidates == "category" else {*NOUNS, *VERBS})


def test_without_the_constraint_words_become_words_of_other_groups() -> None:
    """So the test above can fail."""
    texts = [text("cat/NOUN")] * 1
    privatizer = build("all", eta=1.0, window=None)
    found = privatizer.drawn(names(privatizer, texts[0] * 200)).pieces[:, 1]
    assert {*found} & ({*VERBS} - {*NOUNS})
    constrained = build("category", eta=1.0, window=None)
    assert {*constrained.drawn(names(constrained, texts[0] * 200)).pieces[:, 1]} == {*NOUNS}


@CHOSEN
def test_with_hardly_any_noise_words_stay_and_unknown_ones_become_the_nearest(candidates: str) -> None:
    privatizer = build(candidates, eta=1e6)
    told = [word for name, words in TAGS.items() for word in text(" ".join(f"{word}/{name.upper()}" for word in words))]
    assert [*privatizer.drawn(names(privatizer, told)).pieces[:, 1]] == [*NOUNS, *VERBS]
    near = "cats"
    distances = torch.cdist(embed([near]).double(), embed(NOUNS).double())[0]
    drawn = build(eta=1e6)
    (found,) = released(drawn, text(f"{near}/NOUN"))
    assert found == NOUNS[int(distances.argmin())]
    assert near not in {*NOUNS}


@CHOSEN
def test_capitals_of_drawn_words_do_not_show(candidates: str) -> None:
    """Not even in which word is drawn: at hardly any noise `Cat` and `CAT` are `cat`."""
    privatizer = build(candidates, eta=1e6)
    assert released(privatizer, text("Cat/PROPN the/DET CAT/NOUN The/DET cAt/NOUN")) == ["cat the cat The cat"]
    louder = build(candidates, eta=0.5)
    for found in released(louder, *(text(f"{word.upper()}/PROPN Loves/VERB") for word in NOUNS)):
        assert found == found.lower()


@a_few
@given(texts=TEXTS)
def test_words_that_were_drawn_run_into_no_neighbour(texts: list[Text]) -> None:
    privatizer = build(eta=1.0)
    drawn = privatizer.drawn(names(privatizer, *texts))
    pieces = drawn.pieces.tolist()
    start = 0
    for own, found in zip(texts, drawn.texts, strict=True):
        became, start = pieces[start : start + len(own)], start + len(own)
        assert "".join(before + form for before, form in became) == found
        for at in range(1, len(own)):
            (_, left), (before, right) = became[at - 1], became[at]
            touched = any(word.tag in ("NOUN", "PROPN", "VERB", "AUX") for word in own[at - 1 : at + 1])
            if touched and not before:
                assert not (is_letter(left[-1]) and is_letter(right[0]))
            if not touched:
                assert before == own[at].before, "what leaves as it is keeps its blanks"


def is_letter(character: str) -> bool:
    return character.isalnum() or character in "\u093f\u0940\u094d\u0301"


def test_words_that_run_into_each_other_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    privatizer = build(eta=1e6)
    told = text("run/VERB +n't/PART love/NOUN +s/PART")
    assert released(privatizer, told) == ["run n't love s"]
    monkeypatch.setattr(module, "joins", lambda forms: np.zeros((len(forms), 2), dtype=bool))
    planted = build(eta=1e6)
    vocabulary(planted).joins = np.zeros_like(vocabulary(planted).joins)  # type: ignore[misc]
    assert released(planted, told) == ["runn't loves"]


def test_a_blank_says_that_a_word_was_drawn_and_not_that_it_was_replaced() -> None:
    """`run` that stays itself is set apart as any other, and a word that leaves as it is as little as before."""
    told = text("run/VERB +n't/PART a/DET +b/X")
    secrets = [CustomerSecret(bytes([at]) * 32) for at in range(20)]
    texts = {released(build(eta=eta, secret=secret), told)[0] for eta in (0.5, 1e6) for secret in secrets}
    assert len(texts) > 3
    assert {each.split(" ", 1)[1] for each in texts} == {"n't ab"}


# ---------------------------------------------------------------- as the tagger reads texts


@pytest.fixture(scope="module")
def tagger() -> Tagger:
    return load_tagger()


def reading(privatizer: WordsPrivatizer, tagger: Tagger) -> WordReading:
    assert privatizer.space.dictionary is not None
    return WordReading(tagger, privatizer.space.dictionary)


def rows(*texts: str) -> Dataset:
    return Dataset(tuple((each,) for each in texts))


ENGLISH = st.sampled_from(
    ["don't", "He'll", "state-of-the-art", "co-op", "U.S.A.", "naïve", "Zürich", "東京", "cats", "run", "Bob's",
     "(see)", "🙂", "x2", "e-mail", "...", "-", "'", "“quoted”", "a/b", "1,000", "हिन्दी", "_", "well-known", "gonna",
     "can't"]
)  # fmt: skip
WRITTEN = st.lists(
    st.one_of(ENGLISH, st.text(max_size=6), st.sampled_from([" ", "  ", "\n", "\t", ""])), max_size=12
).map(lambda parts: "".join(part + " " * (len(part) % 2) for part in parts))


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(WRITTEN, WRITTEN), min_size=1, max_size=3))
def test_pairs_of_any_text_are_read_and_drawn_word_by_word(tagger: Tagger, pairs: list[tuple[str, str]]) -> None:
    """Contractions, hyphens, other scripts, empty texts, blanks alone."""
    privatizer = build(eta=1.0)
    own = reading(privatizer, tagger)
    tokens = own.read(Dataset(tuple(pairs)), max_content=500)
    drawn = privatizer.drawn(tokens)
    assert len(drawn.texts) == 2 * len(pairs)
    flat = [each for pair in pairs for each in pair]
    known = lexicon(privatizer)
    lists = [tokens.segments[side][row].tolist() for row in range(len(pairs)) for side in (0, 1)]
    public = {*NOUNS, *VERBS}
    start = 0
    for given_text, names_of, found in zip(flat, lists, drawn.texts, strict=True):
        words = [known.word(name) for name in names_of]
        assert "".join("".join(given_text.split())) == "".join(word.form for word in words)
        pieces, start = drawn.pieces[start : start + len(words)].tolist(), start + len(words)
        assert found == "".join(before + form for before, form in pieces)
        for at, (word, (before, form)) in enumerate(zip(words, pieces, strict=True)):
            chosen = word.tag in ("NOUN", "PROPN", "VERB", "AUX")
            assert form in public if chosen else form == word.form
            if at and not before and (chosen or words[at - 1].tag in ("NOUN", "PROPN", "VERB", "AUX")):
                assert not (pieces[at - 1][1][-1].isalnum() and form[0].isalnum())


def test_what_stands_before_a_text_in_the_file_is_no_part_of_it(tagger: Tagger) -> None:
    texts = ("The dogs ran home. \n ", "They saw a river.")
    assert tagger.tag(texts).after[-len(tagger.tag(texts[1:]).words) - 1], "blanks end the first"
    drawn = []
    for given_texts in (texts, texts[1:], (" \n" + texts[1],), (texts[1] + "\n\n",)):
        privatizer = build()
        own = reading(privatizer, tagger)
        release = privatizer.tokens(own.read(rows(*given_texts), max_content=99), labels=None)
        drawn.append((release.identities[-1], read(release)[-1]))
    assert len({*drawn}) == 1


def test_any_number_of_blanks_is_one(tagger: Tagger) -> None:
    privatizer = build()
    own = reading(privatizer, tagger)
    tokens = own.read(rows("They saw a river.", "They  saw\ta   river."), max_content=99)
    first, second = privatizer.tokens(tokens, labels=None).identities
    assert first == second


def test_a_text_is_cut_to_as_many_words_as_tokens_may_leave(tagger: Tagger) -> None:
    privatizer = build()
    tokens = reading(privatizer, tagger).read(rows("a " * 50), max_content=7)
    assert tokens.segments[0].lengths.tolist() == [7]


# ---------------------------------------------------------------- accounts


def send(ledger: Ledger, release: Release, *, budget: float | None = None, run: str = "run 1") -> None:
    frame = NewFrame(
        run=run, vendor="https://a.example", route="shard.put", where={}, payload_bytes={"release": 9}, unsafe=False,
        model="m",
    )  # fmt: skip
    entry = ledger.open_frame(frame, release=release, budget=budget)
    ledger.close_frame(entry, uplink_bytes=9, downlink_bytes=0, status=200, digest=b"")


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.sqlite")


SAID = "the/DET dog/NOUN runs/VERB"
CLEAR_TEXT = "the/DET 42/NUM ,/PUNCT"


def test_drawn_words_are_charged_and_clear_ones_are_not(ledger: Ledger) -> None:
    privatizer = build()
    release = release_of(privatizer, text(SAID), text(CLEAR_TEXT), [])
    assert release.etas.tolist() == [ETA, 0, 0]
    assert release.tokens.tolist() == [3, 3, 0]
    send(ledger, release)
    assert ledger.spent_on([release.charges], release.unit) == [ETA, 0, 0]
    # nothing is left of this budget, and a text of clear words alone needs none of it
    with pytest.raises(BudgetError):
        send(ledger, release_of(build(eta=1.0), text(SAID)), budget=ETA)
    send(ledger, release_of(build(eta=1.0), text(CLEAR_TEXT)), budget=1e-9)


def test_words_before_the_first_drawn_one_are_charged_nothing(ledger: Ledger) -> None:
    """Of a long text each beginning has an account: up to where nothing was drawn nothing was spent."""
    clear, drawn = "a/DET " * 10, "dog/NOUN " * 10
    privatizer = build()
    send(ledger, release_of(privatizer, text(clear + drawn)))
    told = privatizer.unit
    spent = ledger.spent_on([release_of(privatizer, text(clear)).charges], told)
    assert spent == [0]
    assert ledger.spent_on([release_of(privatizer, text(clear + "dog/NOUN")).charges], told) == [ETA]


def test_a_text_is_charged_once_however_often_it_leaves(ledger: Ledger) -> None:
    for _ in range(3):
        send(ledger, release_of(build(), text(SAID), text(SAID)), budget=ETA)
    assert ledger.summary().mechanisms[0].largest_spent == ETA


@pytest.mark.parametrize("length", [0, 20])
def test_a_word_in_the_middle_that_is_drawn_anew_is_a_look(ledger: Ledger, length: int) -> None:
    """Two texts read alike, and a word of them is tagged in two ways: it is drawn in two groups."""
    privatizer, rest = build(), " a/DET" * length + " dog/NOUN ./PUNCT"
    first, second = (release_of(privatizer, text(f"they/PRON love/{tag}{rest}")) for tag in ("VERB", "NOUN"))
    assert first.contents == second.contents
    send(ledger, first, budget=ETA)
    with pytest.raises(BudgetError):
        send(ledger, second, budget=ETA)


def test_the_case_of_a_clear_word_is_charged_nothing(ledger: Ledger) -> None:
    privatizer = build()
    first, second = (release_of(privatizer, text(f"dog/NOUN {well}")) for well in ("Well/INTJ", "well/ADV"))
    assert first.identities != second.identities, "an identity names bytes"
    assert read(first) != read(second)
    send(ledger, first, budget=ETA)
    send(ledger, second, budget=ETA)


def test_the_same_text_at_two_etas_is_two_looks(ledger: Ledger) -> None:
    send(ledger, release_of(build(), text(SAID)))
    send(ledger, release_of(build(eta=7.0), text(SAID)))
    assert ledger.summary().mechanisms[0].largest_spent == ETA + 7.0


@pytest.mark.parametrize("blank", [" ", "\n"])
@pytest.mark.parametrize("like", ["the/DET DOG/NOUN Runs/VERB", "the/DET Dog/PROPN runs/AUX"])
def test_a_text_that_reads_alike_is_no_further_look(ledger: Ledger, like: str, blank: str) -> None:
    """Case and blanks are no part of a drawn word: it is drawn as before, wherever in the text it stands."""
    privatizer = build(eta=1.0)
    other = [word._replace(before=blank if at else "") for at, word in enumerate(text(like))]
    first, second = release_of(privatizer, text(SAID)), release_of(privatizer, other)
    assert first.contents == second.contents
    assert [each.split() for each in read(first)] == [each.split() for each in read(second)]
    assert (first.identities == second.identities) == (blank == " "), "an identity names bytes"
    for release in (first, second):
        send(ledger, release, budget=1.0)
    assert ledger.spent_on([second.charges], second.unit) == [1.0]


@pytest.mark.parametrize("like", ["the/DET dog/NOUN runs/NOUN", "the/DET dog/NOUN walks/VERB"])
def test_another_word_or_group_is_drawn_anew(ledger: Ledger, like: str) -> None:
    privatizer = build()
    first, second = release_of(privatizer, text(SAID)), release_of(privatizer, text(like))
    assert first.draws != second.draws
    alike = first.contents == second.contents
    assert alike == ("runs" in like)
    send(ledger, first)
    assert ledger.spent_on([second.charges], second.unit) == [ETA * alike]
    if alike:
        with pytest.raises(BudgetError):
            send(ledger, second, budget=ETA)


@pytest.mark.parametrize(
    "changed",
    [
        {"chosen": ("noun",)},
        {"chosen": ("noun", "verb", "adverb")},
        {"candidates": "all"},
        {"without": "love"},
        {"vocabulary": None, "fingerprint": "another tagger"},
    ],
)
def test_other_words_among_others_are_another_look_of_the_same_unit(ledger: Ledger, changed: dict[str, Any]) -> None:
    """A customer who chooses other categories shows a text again: what both show is added up."""
    tagger = {"fingerprint": changed.pop("fingerprint")} if "fingerprint" in changed else {}
    changed.pop("vocabulary", None)
    first = release_of(build(), text(SAID))
    second = release_of(build(**changed, **tagger), text(SAID))
    assert first.draws != second.draws
    assert first.unit == second.unit == "1/distance in words of table t"
    send(ledger, first)
    send(ledger, second)
    assert ledger.summary().mechanisms[0].largest_spent == 2 * ETA


def test_vectors_of_another_table_are_another_unit() -> None:
    first, second = build(), build(unit="u")
    assert first.unit != second.unit
    assert release_of(first, text(SAID)).draws != release_of(second, text(SAID)).draws


def test_another_tokenizer_writes_the_same_draw_as_other_ids(ledger: Ledger) -> None:
    """A second vendor's model, or a longer limit: other bytes, and nothing new of the words."""

    def two_at_a_time(columns: tuple[list[str], ...], **_: Tensor | None) -> tuple[Ragged, ...]:
        return tuple(Ragged.from_lists([list(map(ord, each[::2])) for each in column]) for column in columns)

    first = release_of(build(), text(SAID))
    second = release_of(build(pieces=two_at_a_time, written_as="every other"), text(SAID))
    assert first.draws == second.draws
    assert first.identities != second.identities
    send(ledger, first, budget=ETA)
    send(ledger, second, budget=ETA)
    assert ledger.summary().mechanisms[0].largest_spent == ETA
    unnamed = release_of(build(pieces=two_at_a_time), text(SAID))
    with pytest.raises(PrivacyError, match="second look"):
        send(ledger, unnamed)  # so a name that says less is caught


def test_each_clear_word_is_counted_once_and_by_its_kind(ledger: Ledger) -> None:
    told = (
        "The/DET dog/NOUN http://a.example/7/X a7@b.example/X 7th/ADJ nice/ADJ www.a.example/X x2/PROPN 4/NUM four/NUM "
        "+,/PUNCT and/CCONJ oh/INTJ ?/WEIRD"
    )
    expected = {
        "URL": 2, "e-mail address": 1, "number": 2, "adjective": 1, "numeral": 1, "determiner": 1, "symbol": 1,
        "conjunction": 1, "interjection": 1, "other": 1,
    }  # fmt: skip
    privatizer = build()
    release = release_of(privatizer, text(told), text("the/DET"), [])
    assert release.clear_words() == {**expected, "determiner": 2}
    assert {kind: counts.tolist() for kind, counts in release.clear.items()}["determiner"] == [1, 1, 0]
    assert sum(release.clear_words().values()) == len(text(told)) - 2 + 1, "a word is one of a kind"
    send(ledger, release, run="run 1")
    send(ledger, release.select(torch.tensor([1])), run="run 2")
    assert ledger.clear("run 1") == {**expected, "determiner": 2}
    assert ledger.clear("run 2") == {kind: int(kind == "determiner") for kind in expected}
    assert ledger.summary().clear["determiner"] == 3
    named = privatizer.named(names(privatizer, text(told)), labels=None)
    assert named.clear_words() == expected, "a shard is charged by its name, and its clear words are counted, too"


def test_where_all_words_are_drawn_none_is_clear() -> None:
    privatizer = build(chosen=(*TAGS, "determiner"))
    release = release_of(privatizer, text("the/DET dog/NOUN runs/VERB"))
    assert release.clear_words() == {}
    assert clear_kind(Word("", "dog", "NOUN")) == "noun"


# ---------------------------------------------------------------- what it says, and does not


def test_claims() -> None:
    guarantee = build().guarantee
    assert (guarantee.claim, guarantee.budget, guarantee.per) == (Claim.METRIC, ETA, "word")
    assert any("same parts of speech" in caveat for caveat in guarantee.caveats)
    assert any("noun, verb" in caveat for caveat in guarantee.caveats)
    assert build(secret=CustomerSecret.unsafe(1)).guarantee.claim is Claim.NONE


@pytest.mark.parametrize(("named", "told"), [("starter", ""), ("starter:16", "the first 16 principal components")])
def test_a_space_that_is_not_the_papers_is_a_deviation(named: str, told: str) -> None:
    found = {each.what: each.ours for each in build(named=named).deviations}
    assert "ŵ_t of eq. (4)" in found
    ours = found.get("word vectors, section III-A2", "")
    assert ours.startswith(told)
    assert bool(ours) == bool(told)


def test_what_is_said_of_noise_is_said_where_there_is_noise() -> None:
    noise, exponential = (build(draw=draw) for draw in ("noise", "exponential"))
    told = [{each.what for each in privatizer.deviations} for privatizer in (noise, exponential)]
    assert told[0] - told[1] == {"ŵ_t of eq. (4)", "direction of the noise, eq. (2)"}
    assert told[1] - told[0] == {"draw, eq. (2) and (4)"}
    lattice = [any("lattice" in caveat for caveat in each.guarantee.caveats) for each in (noise, exponential)]
    assert lattice == [True, False]


def test_a_group_without_words_is_refused() -> None:
    with pytest.raises(ConfigError, match="no word of category 'verb'"):
        WordSpace([["a"], []], Grouping.of(("noun", "verb"), constrained=True), embed=embed, unit="", fingerprint="")


def test_nothing_that_holds_words_shows_them() -> None:
    privatizer = build()
    given_names = names(privatizer, text("zanzibar/NOUN quixotic/ADJ"))
    release = privatizer.tokens(given_names, labels=None)
    dictionary = privatizer.space.dictionary
    assert dictionary is not None
    drawn = privatizer.drawn(given_names)
    shown = " ".join(
        repr(each)
        for each in (
            release, drawn, dictionary, dictionary.lexicon, dictionary.vocabulary, privatizer, privatizer.space,
            privatizer._distinct(given_names.segments[0].values), privatizer._kept,
        )
    )  # fmt: skip
    for word in ("zanzibar", "quixotic", *drawn.texts):
        assert word not in shown


def test_two_words_of_one_name_are_refused_without_naming_them(monkeypatch: pytest.MonkeyPatch) -> None:
    class Same:
        def digest(self) -> bytes:
            return bytes(8)

    monkeypatch.setattr(hashlib, "blake2b", lambda *_, **__: Same())
    own = Lexicon()
    own.names(text("zanzibar/NOUN"))
    with pytest.raises(PrivacyError) as caught:
        own.names(text("quixotic/NOUN"))
    assert "zanzibar" not in str(caught.value)
    assert "quixotic" not in str(caught.value)


@given(st.lists(A_WORD, max_size=30))
def test_names_tell_words_apart_and_do_not_depend_on_the_others(words: list[Word]) -> None:
    own, other = Lexicon(), Lexicon()
    found = own.names(words)
    assert len({*found}) == len({*words})
    assert [*reversed(other.names(reversed(words)))] == found
    assert [own.word(name) for name in found] == words
    assert all(0 <= name < 2**63 for name in found)


# ---------------------------------------------------------------- threads


def test_vectors_of_new_words_are_the_same_from_many_threads() -> None:
    words = space()
    told = [[f"{'abcdefgh'[(at * step) % 8]}{at}" for at in range(60)] for step in range(1, 9)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(words.vectors, told * 5))
    for asked, vectors in zip(told * 5, found, strict=True):
        assert torch.equal(vectors, embed(asked))


def test_threads_draw_what_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = corpus(60)
    expected = released(build(), *texts)
    monkeypatch.setattr(drawn_words, "_KEPT_IDS", 500)
    privatizer = build()

    def one(at: int) -> str:
        own = names(privatizer, texts[at])
        privatizer.shape(own)
        return read(privatizer.tokens(own, labels=None))[0]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(one, range(len(texts)))) == expected


def test_no_more_is_kept_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawn_words, "_KEPT_IDS", 840)
    privatizer = build()
    given_names = names(privatizer, *corpus(30))
    shape = privatizer.shape(given_names)
    kept: Kept = privatizer._kept
    assert kept._ids <= 840
    assert kept._ids == sum(200 + sum(map(len, texts)) for texts, *_ in kept._texts.values()) > 0
    release = privatizer.tokens(given_names, labels=None)
    assert isinstance(release.payload, Tokens)
    assert torch.equal(release.payload.segments[0].values, shape.segments[0].values)
