"""What the recurrent reader makes of texts of different lengths."""

from __future__ import annotations

import torch
from torch import nn

from cutlayer.attacks.inversion.learned import Reader
from cutlayer.core import Ragged


def test_each_text_is_read_from_both_sides_as_if_it_were_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    reader = Reader(torch.arange(20), torch.randn(20, 8, generator=generator), hidden=6, generator=generator)
    nn.init.normal_(reader._added.weight, generator=generator)
    gru = nn.GRU(8, 6, batch_first=True, bidirectional=True)
    for which, suffix in enumerate(("", "_reverse")):
        for name, value in reader._recurrent[which].named_parameters():
            getattr(gru, name + suffix).data.copy_(value)
    lengths = torch.tensor([5, 1, 9, 3])
    seen = Ragged(torch.randn(18, 8, generator=generator), lengths)
    wanted = torch.cat([reader._map(text) + reader._added(gru(text[None])[0][0]) for text in seen.split()])
    torch.testing.assert_close(reader.points(seen), wanted)
