"""Equations (5) and (6) of the paper, and the choices that it leaves open."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cutlayer.core import DataError, Ragged, StorageError, Tokens
from cutlayer.privacy import CtiSpec, UtilityImportance


def texts(*lists: list[int]) -> Tokens:
    return Tokens((Ragged.from_lists(lists),))


def by_the_paper(lists: list[list[int]], labels: list[int], *, vocabulary: int, classes: int) -> list[list[float]]:
    """Eq. (5), written out: UI[m][c]."""

    def p(token: int, c: int) -> float:
        own = [t for text, label in zip(lists, labels, strict=True) if label == c for t in text]
        return (own.count(token) + 1) / (len(own) + vocabulary)

    return [
        [
            sum(math.log(p(m, c) / p(m, other)) for other in range(classes) if other != c) / (classes - 1)
            for c in range(classes)
        ]
        for m in range(vocabulary)
    ]


@settings(deadline=None)
@given(data=st.data())
def test_importance_is_equation_5(data: st.DataObject) -> None:
    classes = data.draw(st.integers(2, 4))
    lists = data.draw(st.lists(st.lists(st.integers(0, 5), max_size=6), min_size=classes, max_size=9))
    labels = [*range(classes), *(data.draw(st.integers(0, classes - 1)) for _ in lists[classes:])]
    importance = UtilityImportance.fit(texts(*lists), torch.tensor(labels), vocab_size=6, num_labels=classes)
    expected = torch.tensor(by_the_paper(lists, labels, vocabulary=6, classes=classes), dtype=torch.float64)
    assert torch.allclose(importance.scores, expected, atol=1e-12)


def test_eta_is_equation_6() -> None:
    scores = torch.tensor([[-1.0, 3.0], [0.5, 0.0], [2.0, -2.0]], dtype=torch.float64)
    importance = UtilityImportance(scores, CtiSpec())
    assert importance.c0 == 0.5  # (3 + -2) / 2, over all tokens and classes
    (etas,) = importance.eta(texts([0, 1], [2]), torch.tensor([1, 0]), eta0=80)
    expected = [160 / (1 + math.exp(-score + 0.5)) for score in (3.0, 0.0, 2.0)]
    assert etas.tolist() == pytest.approx(expected)
    (unlabelled,) = importance.eta(texts([0, 1], [2]), None, eta0=80)
    assert unlabelled.tolist() == pytest.approx([160 / (1 + math.exp(-score + 0.5)) for score in (3.0, 0.5, 2.0)])


def test_options() -> None:
    lists, labels = [[0, 0, 1], [1, 2], [0]], torch.tensor([0, 1, 0])

    def scores(**options: object) -> torch.Tensor:
        spec = CtiSpec.model_validate(options)
        return UtilityImportance.fit(texts(*lists), labels, vocab_size=3, num_labels=2, spec=spec).scores

    assert scores()[0, 0] == pytest.approx(math.log((3 + 1) / (4 + 3)) - math.log((0 + 1) / (2 + 3)))
    assert scores(smoothing=0.5)[0, 0] == pytest.approx(math.log(3.5 / 5.5) - math.log(0.5 / 3.5))
    # both texts of class 0 hold token 0, of class 1 none
    assert scores(frequency="texts")[0, 0] == pytest.approx(math.log((2 + 1) / (2 + 2)) - math.log((0 + 1) / (1 + 2)))
    fitted = UtilityImportance(scores(), CtiSpec(c0=0.25, unlabelled="mean"))
    assert fitted.c0 == 0.25
    (etas,) = fitted.eta(texts([0]), None, eta0=1)
    assert float(etas[0]) == pytest.approx(2 / (1 + math.exp(-float(fitted.scores[0].mean()) + 0.25)))


def test_pairs() -> None:
    pair = Tokens((Ragged.from_lists([[0], [1]]), Ragged.from_lists([[1, 1], [2]])))
    labels = torch.tensor([0, 1])
    fits = {
        which: UtilityImportance.fit(pair, labels, vocab_size=3, num_labels=2, spec=CtiSpec(pair=which)).scores  # type: ignore[arg-type]
        for which in ("both", "first", "second")
    }
    joined = UtilityImportance.fit(texts([0, 1, 1], [1, 2]), labels, vocab_size=3, num_labels=2).scores
    assert torch.equal(fits["both"], joined)
    assert not torch.equal(fits["first"], fits["second"])
    first, second = UtilityImportance(fits["both"], CtiSpec()).eta(pair, labels, eta0=10)
    assert (len(first), len(second)) == (2, 3)


def test_labels_are_not_read_where_classes_are_free() -> None:
    lists, labels = texts([0, 0, 1], [1, 2]), torch.tensor([0, 1])
    spec = CtiSpec(class_free=True)
    importance = UtilityImportance.fit(lists, labels, vocab_size=3, num_labels=2, spec=spec)
    a, b, c = (importance.eta(lists, given, eta0=5)[0] for given in (labels, 1 - labels, None))
    assert torch.equal(a, b)
    assert torch.equal(a, c)
    assert not torch.equal(a, UtilityImportance(importance.scores, CtiSpec()).eta(lists, labels, eta0=5)[0])


@pytest.mark.parametrize(
    ("labels", "classes", "expected"),
    [
        ([0, 0], 1, "compares classes"),
        ([0, 2], 2, r"0\.\.1"),
        ([0], 2, "one label"),
        ([0, 0], 2, "1 of 2 classes have no text"),
    ],
)
def test_labels_that_cannot_be_compared(labels: list[int], classes: int, expected: str) -> None:
    with pytest.raises(DataError, match=expected):
        UtilityImportance.fit(texts([0], [1]), torch.tensor(labels), vocab_size=3, num_labels=classes)


def test_ids_and_labels_are_checked() -> None:
    with pytest.raises(DataError, match="Token id 3"):
        UtilityImportance.fit(texts([0], [3]), torch.tensor([0, 1]), vocab_size=3, num_labels=2)
    importance = UtilityImportance(torch.zeros((3, 2), dtype=torch.float64), CtiSpec())
    with pytest.raises(DataError, match="Token id 5"):
        importance.eta(texts([5]), None, eta0=1)
    with pytest.raises(DataError, match="2 labels for 1 texts"):
        importance.eta(texts([1]), torch.tensor([0, 1]), eta0=1)


def test_bytes_and_back(tmp_path: Path) -> None:
    spec = CtiSpec(smoothing=2, class_free=True)
    importance = UtilityImportance.fit(texts([0], [1]), torch.tensor([0, 1]), vocab_size=3, num_labels=2, spec=spec)
    (tmp_path / "cti.safetensors").write_bytes(importance.to_bytes())
    loaded = UtilityImportance.load(tmp_path / "cti.safetensors")
    assert torch.equal(loaded.scores, importance.scores)
    assert loaded.spec == spec


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "cti.safetensors"
    with pytest.raises(StorageError):
        UtilityImportance.load(path)
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(StorageError):
        UtilityImportance.load(path)
    whole = UtilityImportance(torch.zeros(1, 2), CtiSpec()).to_bytes()
    for damaged in (b"", whole[:-1], whole[:20], safetensors.torch.save({"scores": torch.zeros(1, 2)})):
        path.write_bytes(damaged)
        with pytest.raises(StorageError):
            UtilityImportance.load(path)


def test_every_open_choice_is_a_deviation() -> None:
    names = [deviation.what for deviation in UtilityImportance(torch.zeros(3, 2), CtiSpec()).deviations]
    assert names == ["CTI: p(t | c)", "CTI: c0", "CTI: text pairs", "CTI: texts without label", "CTI: guarantee"]
