"""What a token's draw follows from, whatever is cut, packed, added or edited; and that it is what it must be."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cutlayer.core import BudgetError, PrivacyError, Ragged, Tokens
from cutlayer.privacy import (
    CustomerSecret,
    Excerpts,
    Ledger,
    NeighbourSearch,
    NewFrame,
    NoPrivacy,
    PrivacySpec,
    Privatizer,
    Release,
    Spellings,
    TextToText,
    build_privatizer,
)
from cutlayer.privacy.privatizers import privatizer as privatizer_module
from cutlayer.privacy.privatizers.privatizer import RECOGNISED
from cutlayer.privacy.randomness import stream_fingerprint
from tests.contract import recomputed
from tests.contract.noise_checks import stream

VOCABULARY, WIDTH, ETA = 60, 12, 6.0
TABLE = torch.from_numpy(stream(1).standard_normal((VOCABULARY, WIDTH)) * 0.3).float()
CANDIDATES = torch.arange(VOCABULARY) >= 5
KEY = bytes(range(32))
SECRET = CustomerSecret(KEY)
SPELLED = [b" word%d" % token if token % 3 else b"piece%d" % token for token in range(VOCABULARY)]
SPELLED[10:13] = [b" ", b" same", b" same"]
WINDOWS = pytest.mark.parametrize("window", [None, 1, 4])


def build(window: int | None, *, mechanism: str = "text-to-text", eta: float = ETA, **changes: Any) -> Privatizer:
    spec = PrivacySpec.kinds[mechanism](eta=eta, noise_window=window)
    given = {"secret": SECRET, "table": TABLE, "candidates": CANDIDATES, "table_fingerprint": "t"} | changes
    return build_privatizer(spec, spellings=Spellings(SPELLED), **given)


def texts(*lists: list[int]) -> Tokens:
    return Tokens((Ragged.from_lists(list(lists)),))


def ids_of(release: Release) -> list[list[int]]:
    return [text.tolist() for text in release.payload.segments[0].split()]  # type: ignore[union-attr]


def random_texts(count: int, length: int, *, seed: int = 3) -> list[list[int]]:
    return stream(seed).integers(5, VOCABULARY, (count, length)).tolist()  # type: ignore[no-any-return]


# ---------------------------------------------------------------- recomputed


@WINDOWS
def test_every_release_is_what_the_secret_says(window: int | None) -> None:
    """Computed again without a line of the library: a sampler that errs at 1 token of 200 fails this."""
    given = [*random_texts(60, 12), *random_texts(9, 1), [], [7, 10, 10, 10, 8], random_texts(1, 40)[0]]
    assert wrong(build(window), given, window) == 0


def test_a_large_release_is_what_the_secret_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """In several blocks of noise: what goes wrong behind the first thousands of tokens is no rarer in a corpus."""
    monkeypatch.setattr(privatizer_module, "BLOCK_ELEMENTS", 0)
    monkeypatch.setattr(privatizer_module, "QUERY_BLOCK", 900)
    assert wrong(build(4), random_texts(400, 12), 4) == 0


def test_releases_of_the_embedded_model_are_what_the_secret_says() -> None:
    from cutlayer.models import Head, candidate_tokens, load_model, load_tokenizer
    from cutlayer.models.cutting import embedding_table
    from cutlayer.models.spelling import token_spellings

    tokenizer, table = (
        load_tokenizer("starter"),
        embedding_table(load_model("starter", head=Head.CLASSIFICATION, num_labels=2)).detach().float(),
    )
    candidates = candidate_tokens(tokenizer, vocab_size=len(table))
    spelled = token_spellings(tokenizer, vocab_size=len(table))
    ids = tokenizer("The patient slept well, and went home on Friday.", add_special_tokens=False)["input_ids"]
    privatizer = build_privatizer(
        TextToText(eta=70), secret=SECRET, table=table, candidates=candidates, table_fingerprint="t",
        spellings=Spellings(spelled),
    )  # fmt: skip
    expected = again(privatizer, ids, table, candidates, spelled, TextToText(eta=70).noise_window)
    assert ids_of(privatizer.tokens(texts(ids), labels=None)) == [expected]
    assert expected != ids


def wrong(privatizer: Privatizer, given: list[list[int]], window: int | None) -> int:
    """Tokens that leave otherwise than they must."""
    found = ids_of(privatizer.tokens(texts(*given), labels=None))
    expected = [again(privatizer, ids, TABLE, CANDIDATES, SPELLED, window) for ids in given]
    return sum(a != b for one, other in zip(found, expected, strict=True) for a, b in zip(one, other, strict=True))


def again(
    privatizer: Privatizer, ids: list[int], table: Tensor, candidates: Tensor, spelled: Any, window: int | None
) -> list[int]:
    settings = recomputed.settings_key(
        KEY, mechanism="text-to-text", unit="1/distance in table t", candidates=candidates.numpy(),
        fingerprint=stream_fingerprint(), window=window,
    )  # fmt: skip
    return recomputed.released_ids(
        ids, secret=KEY, table=table.double().numpy(), candidates=candidates.numpy(), eta=privatizer.spec.eta,
        settings=settings, spelled=spelled, window=window,
    )  # fmt: skip


@pytest.mark.parametrize("every", [200, 50])
def test_true_tokens_let_through_now_and_then_are_caught(every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted in the search, which sees noisy rows alone, and in what is made of its answer."""
    privatizer, given = build(None), random_texts(80, 12)
    true = torch.tensor([token for ids in given for token in ids])
    honest = NeighbourSearch.nearest

    def leaking(search: NeighbourSearch, rows: Tensor, groups: Tensor | None = None) -> Tensor:
        found = honest(search, rows, groups)
        found[::every] = true[: len(found)][::every]
        return found

    monkeypatch.setattr(NeighbourSearch, "nearest", leaking)
    assert wrong(privatizer, given, None) > 0


# ---------------------------------------------------------------- cut, packed, grown, edited


@WINDOWS
@pytest.mark.parametrize("mechanism", ["text-to-text", "vector"])
def test_a_text_under_other_cuts_is_one_text(window: int | None, mechanism: str, tmp_path: Any) -> None:
    """Nine cuts read 98.1 % where one look reads 61.3: each was a text of its own, with noise of its own."""
    privatizer, ledger = build(window, mechanism=mechanism), Ledger(tmp_path / "ledger.db")
    (long,) = random_texts(1, 32)
    whole = privatizer.tokens(texts(long), labels=None)
    for length in range(24, 33):
        cut = privatizer.tokens(texts(long[:length]), labels=None)
        assert torch.equal(cut.payload.segments[0][0], whole.payload.segments[0][0][:length])  # type: ignore[union-attr]
        send(ledger, cut, budget=ETA)
    assert ledger.summary().mechanisms[0].largest_spent == ETA
    send(ledger, privatizer.tokens(texts([*long, 7]), labels=None), budget=ETA)
    with pytest.raises(BudgetError):
        send(ledger, build(window, eta=ETA / 2, mechanism=mechanism).tokens(texts(long[:30]), labels=None), budget=ETA)


@WINDOWS
def test_packing_draws_and_charges_texts_and_not_blocks(window: int | None, tmp_path: Any) -> None:
    """Three runs whose blocks were cut elsewhere drew and charged nearly everything three times, and none knew."""
    privatizer, ledger = build(window), Ledger(tmp_path / "ledger.db")
    given = random_texts(20, 17)
    alone = [token for ids in ids_of(privatizer.tokens(texts(*given), labels=None)) for token in ids]
    for size in (8, 13, 50, 400):
        sources = Ragged.from_lists(given)
        ends = [*range(size, 340, size), 340]
        lengths = [end - start for start, end in zip([0, *ends], ends, strict=False)]
        blocks = Tokens((Ragged(sources.values, torch.tensor(lengths)),))
        release = privatizer.tokens(blocks, labels=None, excerpts=Excerpts.blocks(sources, lengths))
        assert [token for ids in ids_of(release) for token in ids] == alone
        send(ledger, release, budget=ETA)
    summary = ledger.summary()
    assert summary.mechanisms[0].texts == 20
    assert summary.mechanisms[0].largest_spent == ETA
    assert {entry.tokens for entry in ledger.releases() if entry.entry == 4} == {17}
    # chosen blocks, in another order, are what they were
    part = release_of_blocks(privatizer, given, 13)
    some = privatizer.tokens(
        part[0].select(torch.tensor([5, 2])), labels=None, excerpts=part[1].select(torch.tensor([5, 2]))
    )
    whole = ids_of(privatizer.tokens(part[0], labels=None, excerpts=part[1]))
    assert ids_of(some) == [whole[5], whole[2]]


def release_of_blocks(privatizer: Privatizer, given: list[list[int]], size: int) -> tuple[Tokens, Excerpts]:
    sources = Ragged.from_lists(given)
    total = len(sources.values)
    ends = [*range(size, total, size), total]
    lengths = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    return Tokens((Ragged(sources.values, torch.tensor(lengths)),)), Excerpts.blocks(sources, lengths)


@WINDOWS
@pytest.mark.parametrize("tokens", [1, 255, 256, 257, 700, 4000])
def test_blocks_of_a_long_text_are_drawn_as_it_is_and_do_not_read_all_of_it_each_time(
    window: int | None, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps take blocks in any order. A book that was read again for each of its blocks doubled a step's time."""
    privatizer, given = build(window), random_texts(1, tokens)
    whole = build(window).tokens(texts(*given), labels=None)
    reads = 0
    honest = Spellings.__getitem__

    def counted(spellings: Spellings, token: int) -> bytes:
        nonlocal reads
        reads += 1
        return honest(spellings, token)

    monkeypatch.setattr(Spellings, "__getitem__", counted)
    blocks, excerpts = release_of_blocks(privatizer, given, 32)
    drawn: dict[int, list[int]] = {}
    for number in torch.randperm(len(blocks), generator=torch.Generator().manual_seed(1)).tolist():
        release = privatizer.tokens(blocks.select([number]), labels=None, excerpts=excerpts.select([number]))
        (drawn[number],) = ids_of(release)
        assert set(release.contents) == set(whole.contents)
    assert [token for number in sorted(drawn) for token in drawn[number]] == ids_of(whole)[0]
    assert reads <= tokens + len(blocks) * (32 + 256)


@pytest.mark.parametrize("tokens", [0, 9, 256])
def test_a_text_that_grows_by_nothing_releases_nothing(tokens: int, tmp_path: Any) -> None:
    """In a batch of texts some have ended."""
    ledger, privatizer = Ledger(tmp_path / "ledger.db"), build(4)
    grown = Excerpts(Ragged.from_lists(random_texts(1, tokens)), (((0, tokens, tokens),),))
    release = privatizer.tokens(texts([]), labels=None, excerpts=grown)
    assert ids_of(release) == [[]]
    send(ledger, release, budget=0.0)


@WINDOWS
def test_what_stands_in_the_middle_of_a_text_is_charged_to_that_text(window: int | None, tmp_path: Any) -> None:
    """A block that no text begins in, and tokens that a text grows by, have no accounts of their own."""
    ledger, given = Ledger(tmp_path / "ledger.db"), random_texts(6, 17)
    send(ledger, build(window).tokens(texts(*given), labels=None), budget=ETA)
    weaker = build(window, eta=ETA / 2)
    blocks, excerpts = release_of_blocks(weaker, given, 5)
    inner = [
        number
        for number, parts in enumerate(excerpts.parts)
        if all(start > 0 for _, start, _ in parts) and any(stop > RECOGNISED for _, _, stop in parts)
    ]
    assert len(inner) > 5
    for number in inner:
        some = weaker.tokens(blocks.select([number]), labels=None, excerpts=excerpts.select([number]))
        with pytest.raises(BudgetError):
            send(ledger, some, budget=ETA)


def test_blocks_that_are_not_the_texts_they_are_said_to_be_are_refused() -> None:
    blocks, excerpts = release_of_blocks(build(None), random_texts(4, 9), 6)
    others = blocks.with_values(blocks.values.roll(1))
    with pytest.raises(PrivacyError, match="not the parts of texts"):
        build(None).tokens(others, labels=None, excerpts=excerpts)


@WINDOWS
def test_a_text_that_grows_is_drawn_as_it_would_be_whole(window: int | None) -> None:
    privatizer = build(window)
    (ids,) = random_texts(1, 15)
    whole = ids_of(privatizer.tokens(texts(ids), labels=None))[0]
    grown: list[int] = []
    for start, stop in ((0, 4), (4, 5), (5, 6), (6, 15)):
        excerpts = Excerpts(Ragged.from_lists([ids[:stop]]), (((0, start, stop),),))
        grown += ids_of(privatizer.tokens(texts(ids[start:stop]), labels=None, excerpts=excerpts))[0]
    assert grown == whole


@WINDOWS
@pytest.mark.parametrize("prompt", [1, 40, 255, 256, 600])
def test_a_text_that_grows_is_read_once(window: int | None, prompt: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Token by token it is drawn and charged as from a fresh privatizer, which reads all that stands before it."""
    privatizer, most = build(window), prompt + 60
    (ids,) = random_texts(1, most)
    reads = 0
    honest = Spellings.__getitem__

    def counted(spellings: Spellings, token: int) -> bytes:
        nonlocal reads
        reads += 1
        return honest(spellings, token)

    monkeypatch.setattr(Spellings, "__getitem__", counted)

    def grow(grows: Privatizer, start: int, stop: int) -> Release:
        excerpts = Excerpts(Ragged.from_lists([ids[:stop]]), (((0, start, stop),),))
        return grows.tokens(texts(ids[start:stop]), labels=None, excerpts=excerpts)

    found = [grow(privatizer, 0, prompt), *(grow(privatizer, stop - 1, stop) for stop in range(prompt + 1, most + 1))]
    # the prompt when it came, and again with the token behind it; then each token for its text, and for its name
    assert reads <= 2 * (prompt + 1) + 256 + 2 * 60
    again = [grow(build(window), 0, prompt)]
    again += [grow(build(window), stop - 1, stop) for stop in range(prompt + 1, most + 1)]
    for ours, theirs in zip(found, again, strict=True):
        assert (ours.identities, ours.contents, ours.draws) == (theirs.identities, theirs.contents, theirs.draws)
        assert ours.charges.records.values.tolist() == theirs.charges.records.values.tolist()
        assert ids_of(ours) == ids_of(theirs)


def test_texts_that_grow_from_one_beginning_are_each_read_as_they_are() -> None:
    """Two beams: what the first grew by is no part of the second."""
    privatizer, (ids,) = build(4), random_texts(1, 30)
    beams = [[*ids, 5, 6, 7], [*ids, 8, 6, 7]]
    for stop in range(31, 34):
        for beam in beams:
            excerpts = Excerpts(Ragged.from_lists([beam[:stop]]), (((0, stop - 1, stop),),))
            ours = privatizer.tokens(texts(beam[stop - 1 : stop]), labels=None, excerpts=excerpts)
            theirs = build(4).tokens(texts(beam[stop - 1 : stop]), labels=None, excerpts=excerpts)
            assert ours.draws == theirs.draws
            assert ours.charges.records.values.tolist() == theirs.charges.records.values.tolist()


def test_behind_an_edit_a_window_draws_as_before_and_a_prefix_anew() -> None:
    (ids,) = random_texts(1, 200)
    edited = [*ids[:50], 5 + (ids[50] + 1) % 40, *ids[51:]]
    for window in (1, 4, None):
        before, after = (ids_of(build(window).tokens(texts(each), labels=None))[0] for each in (ids, edited))
        assert before[:50] == after[:50]
        if window is not None:
            assert before[51 + window :] == after[51 + window :]
        else:
            differ = sum(a != b for a, b in zip(before[51:], after[51:], strict=True))
            assert differ > 30, "draws behind the edit are independent"


def test_equal_windows_in_two_texts_have_equal_draws() -> None:
    one, other = random_texts(2, 30)
    shared = random_texts(1, 20, seed=9)[0]
    found = ids_of(build(4).tokens(texts([*one, *shared], [*other, *shared]), labels=None))
    assert found[0][34:] == found[1][34:]
    apart = ids_of(build(None).tokens(texts([*one, *shared], [*other, *shared]), labels=None))
    assert apart[0][34:] != apart[1][34:]


# ---------------------------------------------------------------- what is charged


def send(ledger: Ledger, release: Release, *, budget: float | None = None) -> None:
    entry = ledger.open_frame(
        NewFrame(run="r", vendor="v", route="shard.put", where={}, payload_bytes={}, unsafe=False),
        release=release,
        budget=budget,
    )
    ledger.close_frame(entry, uplink_bytes=0, downlink_bytes=0, status=200, digest=b"")


def test_texts_that_read_alike_share_an_account(tmp_path: Any) -> None:
    """Ids 11 and 12 read alike, and 10 is a blank: texts that differ in these are one text to a reader."""
    ledger = Ledger(tmp_path / "ledger.db")
    for variant in ([11, 7, 8], [12, 7, 8], [11, 10, 7, 8]):
        send(ledger, build(None).tokens(texts(variant), labels=None))
    # the token that differs has a draw of its own; those behind it are drawn alike behind what reads alike
    assert ledger.summary().mechanisms[0].largest_spent in (ETA, 2 * ETA)
    draws = [ids_of(build(None).tokens(texts(variant), labels=None))[0] for variant in ([11, 7, 8], [12, 7, 8])]
    assert draws[0][1:] == draws[1][1:]


def test_texts_that_begin_with_the_same_words_are_not_one_text(tmp_path: Any) -> None:
    """Else each run over other texts would charge what all texts have in common."""
    ledger = Ledger(tmp_path / "ledger.db")
    send(ledger, build(None).tokens(texts([6, 7, 8, 9]), labels=None), budget=ETA)
    send(ledger, build(None, eta=ETA / 2).tokens(texts([6, 7, 8, 14]), labels=None), budget=ETA)
    with pytest.raises(BudgetError):
        send(ledger, build(None, eta=ETA / 4).tokens(texts([6, 7, 8, 9]), labels=None), budget=ETA)


def test_a_long_beginning_is_known_again(tmp_path: Any) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    (ids,) = random_texts(1, 12)
    send(ledger, build(None).tokens(texts(ids), labels=None), budget=ETA)
    with pytest.raises(BudgetError):
        send(ledger, build(None, eta=ETA / 2).tokens(texts([*ids[:9], 40, 41]), labels=None), budget=ETA)


def test_without_noise_every_beginning_is_spent(tmp_path: Any) -> None:
    ledger = Ledger(tmp_path / "ledger.db")
    (ids,) = random_texts(1, 12)
    clear = build_privatizer(NoPrivacy(), secret=SECRET, spellings=Spellings(SPELLED))
    send(ledger, clear.tokens(texts(ids), labels=None))
    with pytest.raises(BudgetError, match="up to inf spent"):
        send(ledger, build(None).tokens(texts([*ids, 40]), labels=None), budget=1e9)
    assert math.isinf(ledger.summary().mechanisms[0].largest_spent)
    assert np.isfinite(ETA)
