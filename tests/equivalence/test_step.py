"""Promise 2: logits, loss and all gradients of the cut model equal the whole model's, for every family."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cutlayer.core import Cut
from cutlayer.models import Head
from tests.equivalence.checks import FP64, Case, check_step
from tests.equivalence.zoo import (
    ATTENTION,
    BLOCKS,
    CONFIGURATIONS,
    DECODERS,
    ENCODERS,
    SEQ2SEQ,
    make_model,
    shared_model,
)


def heads(name: str) -> tuple[Head, ...]:
    if name in ENCODERS:
        return (Head.CLASSIFICATION,)
    return (Head.LANGUAGE,) if name in SEQ2SEQ else (Head.CLASSIFICATION, Head.LANGUAGE)


@st.composite
def cuts(draw: st.DrawFn, name: str) -> Cut:
    """Any cut that leaves the vendor a block."""
    bottom = draw(st.none() | st.integers(0, BLOCKS - 1))
    if name in SEQ2SEQ:  # three decoder blocks
        target = 0 if bottom is None else draw(st.integers(0, 2))
        return Cut(bottom=bottom, target=target, tail=draw(st.none() | st.integers(0, 2 - target)))
    return Cut(bottom=bottom, tail=draw(st.none() | st.integers(0, BLOCKS - 1 - (bottom or 0))))


@st.composite
def cases(draw: st.DrawFn, name: str) -> Case:
    return Case(
        name=name,
        head=draw(st.sampled_from(heads(name))),
        cut=draw(cuts(name)),
        lengths=tuple(draw(st.lists(st.integers(2, 9), min_size=1, max_size=4))),
        padding=draw(st.sampled_from(["right", "left"])),
        attention=draw(st.sampled_from(ATTENTION)),
        seed=draw(st.integers(0, 2**31)),
    )


def _settings(examples: int) -> settings:
    return settings(max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("name", CONFIGURATIONS)
@_settings(12)
@given(data=st.data())
def test_a_step_of_any_cut_equals_the_whole(name: str, data: st.DataObject) -> None:
    case = data.draw(cases(name))
    check_step(shared_model(name, case.head, case.attention), case)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGURATIONS)
@_settings(150)
@given(data=st.data())
def test_a_step_of_any_cut_equals_the_whole_at_depth(name: str, data: st.DataObject) -> None:
    case = data.draw(cases(name))
    check_step(shared_model(name, case.head, case.attention), case)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_double_precision_agrees_closer_still(name: str) -> None:
    """Robust to thread counts; RMS norms compute in fp32 whatever the model's type."""
    head = heads(name)[-1]
    model = make_model(name, head).double()
    for cut in (Cut(bottom=0), Cut(bottom=1, tail=1), Cut(bottom=2, tail=0)):
        check_step(model, Case(name, head, cut), limit=FP64)


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("padding", ["right", "left"])
def test_classification_on_decoders_pools_the_last_real_token(name: str, padding: str) -> None:
    case = Case(name, Head.CLASSIFICATION, Cut(bottom=0), lengths=(2, 9, 4), padding=padding)
    check_step(shared_model(name, Head.CLASSIFICATION), case)
