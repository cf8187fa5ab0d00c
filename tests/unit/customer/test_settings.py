"""Settings of a run that nothing was said of."""

from __future__ import annotations

import pytest

from cutlayer.customer import Lora, Objective, Prefix, Prompt, TrainBottom, Training
from cutlayer.customer.defaults import Learner, settle, settle_training
from cutlayer.customer.settings import FinetuneSpec, TuningSpec
from cutlayer.privacy import NoPrivacy


def test_no_default_multiplies_the_looks_at_a_text() -> None:
    few = Learner(texts=400, width=384)
    frozen, drawn_anew = (
        settle_training(Training(), Objective.CLASSIFICATION, Lora(train_bottom=how), few)
        for how in (None, TrainBottom.RESAMPLE)
    )
    assert (frozen.epochs, frozen.patience, frozen.learning_rate) == (40, 24, 8e-4)
    assert (drawn_anew.epochs, drawn_anew.patience) == (5, 2)


@pytest.mark.parametrize(
    ("tuning", "objective", "positions"),
    [
        (Prompt(), Objective.CLASSIFICATION, 150),
        (Prompt(), Objective.LM, 50),
        (Prompt(), Objective.SEQ2SEQ, 50),
        (Prompt(prompt_length=150), Objective.LM, 150),
        (Prefix(), Objective.CLASSIFICATION, 10),
        (Prefix(), Objective.SEQ2SEQ, 5),
        (Prefix(prefix_length=10), Objective.LM, 10),
    ],
)
def test_virtual_positions_are_as_many_as_the_paper_has_for_what_is_learnt(
    tuning: TuningSpec, objective: Objective, positions: int
) -> None:
    settled = settle(FinetuneSpec(privacy=NoPrivacy(), objective=objective, tuning=tuning))
    assert settled.tuning.positions == positions
