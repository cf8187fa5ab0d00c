"""What a release says of itself, and how it changes form."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cutlayer.core import Place, Ragged, Rows, Tokens
from cutlayer.privacy import CustomerSecret, NoPrivacy, Release, build_privatizer

PAIR = Tokens((Ragged.from_lists([[1, 2], [3]]), Ragged.from_lists([[4], []])))


def release(tokens: Tokens = PAIR) -> Release:
    return build_privatizer(NoPrivacy(), secret=CustomerSecret.unsafe(1)).tokens(tokens, labels=None)


def rows(dtype: torch.dtype = torch.float32) -> Rows:
    values = torch.arange(10, dtype=dtype).view(5, 2)
    return Rows(Ragged(values, torch.tensor([3, 2])), torch.tensor([[2, 1], [1, 1]]))


def test_another_form_is_another_identity_of_the_same_draw() -> None:
    ids = release()
    first, again, other = (ids.carried_as(rows(), context) for context in (b"cut 2", b"cut 2", b"cut 3"))
    assert first.identities == again.identities
    assert len({*ids.identities, *first.identities, *other.identities}) == 6
    assert first.draws == other.draws == ids.draws
    assert first.contents == ids.contents


def test_a_vaults_rows_are_no_longer_pending() -> None:
    pending = replace(release(), pending=Place.ACTIVATIONS)
    assert pending.carried_as(rows(), b"x").pending is Place.ACTIVATIONS
    recalled = pending.recalled(rows(), b"x", draws=(b"d" * 16, b"e" * 16))
    assert recalled.pending is None
    assert recalled.draws == (b"d" * 16, b"e" * 16)
    assert recalled.identities == pending.carried_as(rows(), b"x").identities


def test_items_and_digests() -> None:
    ids = release()
    assert ids.items().tolist() == [3, 1]
    assert len(set(ids.digests())) == 2
    assert ids.digests() == release().digests()
    carried = ids.carried_as(rows(), b"x")
    assert carried.items().tolist() == [3, 2]
    changed = rows()
    changed.packed.values[4, 1] += 1
    before, after = carried.digests(), ids.carried_as(changed, b"x").digests()
    assert before[0] == after[0]
    assert before[1] != after[1]
    assert ids.carried_as(rows(torch.bfloat16), b"x").digests() != before
    # the same ids, divided otherwise between the texts of a pair
    other = Tokens((Ragged.from_lists([[1], [3]]), Ragged.from_lists([[2, 4], []])))
    assert release(other).digests()[0] != ids.digests()[0]


def test_selecting_texts() -> None:
    whole = release()
    part = whole.select(torch.tensor([1]))
    assert part.identities == whole.identities[1:]
    assert part.digests() == whole.digests()[1:]
    assert part.tokens.tolist() == [1]


def test_parts_of_unequal_length_are_refused() -> None:
    with pytest.raises(ValueError, match="2 items has 1 identities"):
        replace(release(), identities=(b"x",))
    with pytest.raises(ValueError, match=r"\[1, 2\] texts"):
        replace(release(), contents=(b"x",))


def test_nothing_private_is_printed() -> None:
    assert repr(release()) == "Release(mechanism='none', unit='none', pending=None, public=False)"
