"""Promise 2 for decoders that learn pairs: loss and gradients are Hugging Face's, with the source masked."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from cutlayer.core import Cut, Ragged, Tokens
from cutlayer.customer.session import Session
from cutlayer.models import Head, Inputs, Parts, Template, cut_up
from cutlayer.models.inputs import Layout
from tests.equivalence.zoo import DECODERS, families_first, shared_model

SOURCES, TARGETS = (4, 2, 6), (3, 5, 1)
MASKED = -100


def template(opening: tuple[int, ...]) -> Template:
    """Texts that begin with these ids."""
    single = Layout(specials=(opening, ()), special_types=(tuple(0 for _ in opening), ()), segment_types=(0,))
    pair = Layout(specials=(opening, (), ()), special_types=(tuple(0 for _ in opening), (), ()), segment_types=(0, 0))
    return Template(single=single, pair=pair, typed=False, max_length=64)


@pytest.mark.parametrize("opening", [(), (1,), (2, 1)])
@pytest.mark.parametrize("name", families_first(DECODERS))
def test_loss_and_gradients_are_those_of_the_whole_model(name: str, opening: tuple[int, ...]) -> None:
    model = shared_model(name, Head.LANGUAGE)
    rng = torch.Generator().manual_seed(3)
    source, target = (
        Ragged(torch.randint(3, model.config.vocab_size, (sum(sizes),), generator=rng), torch.tensor(sizes))
        for sizes in (SOURCES, TARGETS)
    )
    rows = [
        torch.cat([torch.tensor(opening, dtype=torch.int64), *pair])
        for pair in zip(source.split(), target.split(), strict=True)
    ]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    labels = torch.full_like(ids, MASKED)
    for at, (row, size) in enumerate(zip(rows, TARGETS, strict=True)):
        labels[at, len(row) - size : len(row)] = row[-size:]
    positions = torch.arange(ids.shape[1]).expand_as(ids)
    whole = model(input_ids=ids, attention_mask=mask, labels=labels).loss
    parts = cut_up(model, Cut(bottom=None, tail=0))
    assert isinstance(parts, Parts)
    assert parts.tail is not None
    inputs = Inputs(mask, positions, input_ids=ids)
    boundary = parts.top(inputs).detach().requires_grad_()
    logits = parts.tail(boundary, inputs)
    road = SimpleNamespace(archive=SimpleNamespace(template=template(opening)))
    losses = Session.next_token_losses(road, logits, Tokens((source, target)))  # type: ignore[arg-type]  # its template
    assert losses.lengths.tolist() == list(TARGETS)
    assert float((losses.values.mean() - whole).detach().abs()) <= 1e-6
    losses.values.mean().backward()
    sent = boundary.grad
    assert sent is not None
    for at, (row, size) in enumerate(zip(rows, TARGETS, strict=True)):
        predicting = torch.zeros(ids.shape[1], dtype=torch.bool)
        predicting[len(row) - size - 1 : len(row) - 1] = True
        assert not sent[at][~predicting].any(), "a source text's positions predict nothing"
        assert sent[at][predicting].any(1).all()
