from __future__ import annotations

import pytest
import torch

from cutlayer.attacks.inversion.sampled_softmax import sampled_cross_entropy
from tests.unit.attacks.worlds import generator

VOCAB = 100
BATCH = 256
SHARE = (1 / torch.arange(1, VOCAB + 1, dtype=torch.float64)).div_((1 / torch.arange(1, VOCAB + 1)).sum())
SCORES = torch.randn(VOCAB, generator=generator(1))
"""Of each candidate, the same for all items."""


def sampled(targets, *, compared, rng, scores=SCORES):
    return sampled_cross_entropy(
        lambda some: scores[some].expand(len(targets), -1), targets, share=SHARE, compared=compared, generator=rng
    )


@pytest.mark.parametrize("compared", [VOCAB, 10 * VOCAB])
def test_compared_with_all_candidates_it_is_the_full_softmax(compared):
    targets = torch.multinomial(SHARE, BATCH, replacement=True, generator=generator(2))
    scores = torch.randn(BATCH, VOCAB, generator=generator(3))
    found = sampled_cross_entropy(
        lambda some: scores[:, some], targets, share=SHARE, compared=compared, generator=generator(4)
    )
    torch.testing.assert_close(found, torch.nn.functional.cross_entropy(scores, targets))


def test_compared_with_some_it_is_the_full_softmax_in_the_mean():
    """Loss and slope, over batches drawn as the shares say.

    Without a correction the loss is off by 0.26 and the slope by 0.011; corrected for what is drawn alone, by 0.87 and
    0.011; with an item's own target corrected too, the loss is off by 0.09.
    """
    rng, draws = generator(5), 300
    scores = SCORES.clone().requires_grad_()
    batches = torch.multinomial(SHARE, draws * BATCH, replacement=True, generator=rng).split(BATCH)
    mean = torch.stack([sampled(targets, compared=32, rng=rng, scores=scores) for targets in batches]).mean()
    (slope,) = torch.autograd.grad(mean, [scores])
    full = SCORES.logsumexp(0) - SHARE.float() @ SCORES
    torch.testing.assert_close(mean.detach(), full, atol=0.02, rtol=0)
    torch.testing.assert_close(slope, SCORES.softmax(0) - SHARE.float(), atol=0.005, rtol=0)


def test_the_same_generator_gives_the_same_loss_and_another_another():
    targets = torch.multinomial(SHARE, BATCH, replacement=True, generator=generator(2))
    first, again, other = (sampled(targets, compared=3, rng=generator(seed)) for seed in (6, 6, 7))
    assert first == again != other
