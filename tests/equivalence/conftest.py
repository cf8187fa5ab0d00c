from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Exact comparisons need one thread count, and matrices this small gain nothing from a second thread."""
    torch.set_num_threads(1)
