"""Text that an attacker has: the user's choice, or what the embedded language model writes."""

from __future__ import annotations

import math
import time
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

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
    return PublicText(tokens, source=f"{name} {tokens.total} tokens{short}")


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


@torch.no_grad()
def _sample(
    model: torch.nn.Module, tokenizer: PreTrainedTokenizerBase, rng: torch.Generator, end: float
) -> torch.Tensor:
    """`[texts, tokens]` ids, drawn one after the other from the model's own probabilities, until `end` at most."""
    first = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    ids = torch.full((_AT_ONCE, 1), int(first or 0))
    written, cache = [], None
    for _ in range(_WRITTEN_TOKENS):
        answer = model(input_ids=ids, past_key_values=cache, use_cache=True)
        cache = answer.past_key_values
        # one number for each text; `torch.multinomial` draws one for each token of the vocabulary
        up_to = answer.logits[:, -1].double().softmax(-1).cumsum_(-1)
        drawn = torch.rand(_AT_ONCE, 1, generator=rng, dtype=torch.float64)
        ids = torch.searchsorted(up_to, drawn * up_to[:, -1:])
        written.append(ids)
        if time.monotonic() > end:
            break
    return torch.cat(written, 1)
