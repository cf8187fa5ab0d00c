"""Settings of a run that nothing was said of."""

from __future__ import annotations

from cutlayer.customer import Lora, Objective, TrainBottom, Training
from cutlayer.customer.defaults import Learner, settle_training


def test_no_default_multiplies_the_looks_at_a_text() -> None:
    few = Learner(texts=400, width=384)
    frozen, drawn_anew = (
        settle_training(Training(), Objective.CLASSIFICATION, Lora(train_bottom=how), few)
        for how in (None, TrainBottom.RESAMPLE)
    )
    assert (frozen.epochs, frozen.patience, frozen.learning_rate) == (40, 24, 8e-4)
    assert (drawn_anew.epochs, drawn_anew.patience) == (5, 2)
