"""What the simplest attacks read: the least that any other must reach where a release is of the run's own settings.

A control compares attacks with these, so they are of their own: what is broken in an attack is not broken in what it is
compared with.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cutlayer.attacks.content import content_tokens, mean_rows
from cutlayer.attacks.inversion.linear import LinearInversion, read_rows
from cutlayer.attacks.knowledge import Knowledge
from cutlayer.core import Payload, Tokens
from cutlayer.models import Bottom

_ROWS_AT_ONCE = 16_384


def read_words(payload: Payload, knowledge: Knowledge, *, frequent: int) -> Tokens:
    """Released ids as they are; the table's nearest row; of rows behind blocks what a linear map makes of them.

    Args:
        payload: What was released.
        knowledge: All that any attacker is granted.
        frequent: The most frequent token: what is read where there is neither table nor map.

    Returns:
        Ids, in the shape of the texts.
    """
    content = content_tokens(payload, knowledge)
    if isinstance(payload, Tokens):
        return content
    search, mapped = knowledge.search, isinstance(knowledge.bottom, Bottom) and knowledge.public is not None
    if not knowledge.cut.bottom and search is not None and payload.packed.values.shape[1] == search.table.shape[1]:
        blocks = [side.values.double().split(_ROWS_AT_ONCE) for side in content.segments]
        sides = [torch.cat([search.nearest(block) for block in side]) for side in blocks]
    elif knowledge.cut.bottom and mapped:
        inverter = LinearInversion().inverter(knowledge)
        sides = [read_rows(inverter, side.values) for side in content.segments]
    else:
        sides = [torch.full((len(side.values),), frequent) for side in content.segments]
    return Tokens(tuple(side.with_values(ids) for side, ids in zip(content.segments, sides, strict=True)))


def most_said(read: Tokens, originals: Tensor) -> Tokens:
    """What most copies of a text say in each place, where it is known which are copies.

    A copy whose own token is said as often as any other keeps it.

    Args:
        read: What was read of each copy by itself.
        originals: `[n]` int64, which text each is a copy of.
    """
    sides = []
    for side in read.segments:
        within = torch.arange(len(side.values)) - side.offsets[:-1].repeat_interleave(side.lengths)
        owners = originals.repeat_interleave(side.lengths)
        place = torch.stack([owners, within], 1).unique(dim=0, return_inverse=True)[1]
        said, kind, count = torch.stack([place, side.values], 1).unique(dim=0, return_inverse=True, return_counts=True)
        most = count.new_zeros(int(place.max()) + 1 if len(place) else 0).scatter_reduce(0, said[:, 0], count, "amax")
        winners = said[count == most[said[:, 0]]]
        winner = winners[winners[:, 0].diff(prepend=torch.tensor([-1])) > 0, 1]  # of equal ones the smallest id
        sides.append(side.with_values(torch.where(count[kind] == most[place], side.values, winner[place])))
    return Tokens(tuple(sides))


def nearest_class(payload: Payload, labels: Tensor, known: Tensor, classes: int, knowledge: Knowledge) -> Tensor:
    """The class of each text whose known texts are nearest on average, by the mean of the rows of each text.

    Args:
        payload: What was released of `n` texts.
        labels: `[n]` int64; of texts that are not known they are not looked at.
        known: `[n]` bool.
        classes: How many there are.
        knowledge: The table, where ids were released.

    Returns:
        `[n]` int64.
    """
    features = mean_rows(payload, knowledge)
    counts = torch.bincount(labels[known], minlength=classes)
    means = torch.zeros(classes, features.shape[1]).index_add(0, labels[known], features[known])
    distances = torch.cdist(features, means / counts.clamp(min=1)[:, None])
    distances[:, counts == 0] = torch.inf
    return distances.argmin(1)
