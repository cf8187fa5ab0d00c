"""Text that an attacker has: the user's choice, or what the embedded language model writes."""

from __future__ import annotations

import math
import time
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import Cache, DynamicLayer

from cutlayer.attacks import PublicText
from cutlayer.core import DataError, StorageError
from cutlayer.customer import Progress
from cutlayer.customer.home import write_bytes
from cutlayer.data import Dataset, read_dataset, tokenise
from cutlayer.models import STARTER_DECODER, Head, load_model, load_tokenizer

_WRITTEN_TEXTS = 1024
_WRITTEN_TOKENS = 96
"""Of each: what a token costs grows with the tokens before it."""
_AT_ONCE = 256
_SEED = 2026
"""Public text hides nothing: everybody's is the same."""


def public_text(
    source: Dataset | str | Path | None,
    tokenizer: PreTrainedTokenizerBase,
    *,
    kept: Path,
    max_content: int,
    progress: Progress,
    column: str = "text",
    seconds: float = math.inf,
) -> PublicText:
    """An attacker's own text in a model's tokens.

    Args:
        source: A file or data set of texts that the attacker may have; `None` has the embedded language model write
            some.
        tokenizer: The attacked model's.
        kept: Where written text is kept for the next time.
        max_content: Tokens of a text at most.
        progress: Where to show progress.
        column: The file's column of the text.
        seconds: To write text in. What is written by then is taken, and not kept for the next time.

    Raises:
        DataError: There are no texts in it.
    """
    short = ""
    if source is None:
        texts, name = _written(kept, progress, seconds), f"{STARTER_DECODER}, which wrote"
        if not kept.exists():
            short = " until a share of the time limit was over"
    elif isinstance(source, Dataset):
        texts, name = source, "texts that were given,"
    else:
        texts, name = read_dataset(source, text_column=column), f"{Path(source).name},"
    single = Dataset(tuple((text,) for row in texts.texts for text in row if text))
    tokens = tokenise(single, tokenizer, max_content=max_content)
    if not tokens.total:
        raise DataError("The attacker's text is empty.", remedy="Give texts with --public, or leave it out.")
    return PublicText(
        tokens, source=f"{name} {tokens.total} tokens{short}", texts=tuple(text for (text,) in single.texts)
    )


def _written(kept: Path, progress: Progress, seconds: float) -> Dataset:
    """Text that the embedded language model wrote, sampled once."""
    if kept.exists():
        try:
            return Dataset(tuple((line,) for line in kept.read_text(encoding="utf-8").split("\n") if line))
        except (OSError, UnicodeDecodeError) as error:
            raise StorageError(f"{kept} cannot be read.", remedy="Remove it: it will be written again.") from error
    model, tokenizer = load_model(STARTER_DECODER, head=Head.LANGUAGE), load_tokenizer(STARTER_DECODER)
    rng = torch.Generator().manual_seed(_SEED)
    end = time.monotonic() + seconds
    texts: list[str] = []
    while len(texts) < _WRITTEN_TEXTS and (time.monotonic() < end or not texts):
        ids = _sample(model, tokenizer, rng, end)
        texts += [" ".join(text.split()) for text in tokenizer.batch_decode(ids)]
        progress.update("write public text", len(texts), _WRITTEN_TEXTS)
    if time.monotonic() < end:
        write_bytes(kept, "\n".join(texts).encode())
    return Dataset(tuple((text,) for text in texts if text))


class _Room(DynamicLayer):
    """A block's cache with room for all tokens: to copy those before each took a third of the time."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **settings: object
    ) -> tuple[Tensor, Tensor]:
        """Keys and values `[texts, heads, tokens, width of a head]` of all tokens, with those of the latest."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            *before, _, width = key_states.shape
            self._room = key_states.new_empty(2, *before, _WRITTEN_TOKENS, width)
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        for room, latest in zip(self._room, (key_states, value_states), strict=True):
            room[:, :, start:end] = latest
        self.keys, self.values = self._room[:, :, :, :end]
        return self.keys, self.values


@torch.no_grad()
def _sample(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rng: torch.Generator, end: float
) -> torch.Tensor:
    """`[texts, tokens]` ids, drawn one after the other from the model's own probabilities, until `end` at most."""
    first = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    ids = torch.full((_AT_ONCE, 1), int(first or 0))
    blocks = range(model.config.num_hidden_layers)
    written, cache = [], Cache(layers=[_Room() for _ in blocks])  # type: ignore[no-untyped-call]
    for _ in range(_WRITTEN_TOKENS):
        answer = model(input_ids=ids, past_key_values=cache, use_cache=True)
        # one number for each text; `torch.multinomial` draws one for each token of the vocabulary
        up_to = answer.logits[:, -1].double().softmax(-1).cumsum_(-1)
        drawn = torch.rand(_AT_ONCE, 1, generator=rng, dtype=torch.float64)
        ids = torch.searchsorted(up_to, drawn * up_to[:, -1:])
        written.append(ids)
        if time.monotonic() > end:
            break
    return torch.cat(written, 1)
