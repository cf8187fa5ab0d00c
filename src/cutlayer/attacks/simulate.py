"""Releases of the attacker's own: public text, privatized as the customer's is, with noise of the attacker's own.

The vendor knows the mechanism and its parameters, and owns the bottom that it handed out. So it can make as many
pairs of a text and its release as it likes, and learn from them what a release tells. It never has a draw of the
customer's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from cutlayer.attacks.content import single_texts
from cutlayer.attacks.inversion.channel import draw_ids
from cutlayer.attacks.knowledge import Inapplicable, Knowledge, Noise
from cutlayer.attacks.view import Transcript
from cutlayer.core import Payload, Place, Ragged, Rows, Tokens
from cutlayer.core.deadline import check_time
from cutlayer.models import Bottom
from cutlayer.privacy.mechanisms import find_mechanism
from cutlayer.privacy.mechanisms.mechanism import Float64
from cutlayer.privacy.replacement import drawn, largest_norm, noisy_rows, replacements

_NUMBERS = 2**22
"""float64 numbers of noise that are held at a time."""
_POSITIONS = 2**13
"""Padded positions that go through the bottom at a time."""


def simulate(
    tokens: Tokens,
    knowledge: Knowledge,
    *,
    rows: torch.dtype | None,
    rng: np.random.Generator,
    classes: Tensor | None = None,
) -> Payload:
    """Releases public text as the customer releases its own.

    Working memory does not grow with the number of texts; what is returned does.

    Args:
        tokens: Texts, as ids.
        knowledge: Noise; the table, for noise at the tokens; template, and the bottom where it has blocks, for rows.
        rows: Element type in which rows are sent; `None` where ids are. See `released_as`.
        rng: Draws the noise. It hides nothing, so it may be seeded.
        classes: `[n]` int64, the class of each text, where eta depends on it; the one that its tokens are likeliest in
            where it is left out.

    Returns:
        Token ids, or boundary rows of the element type `rows`.

    Raises:
        Inapplicable: Something that is needed was not granted.
    """
    noise = knowledge.noise
    if noise is None:
        raise Inapplicable("The attacker was not told how releases are privatized.")
    if noise.privacy.replaces:
        tokens = _replaced(tokens, knowledge, noise, rng, classes)
    return tokens if rows is None else _rows(tokens, knowledge, noise, rows, rng, classes)


def release_public(
    knowledge: Knowledge, *, rows: torch.dtype | None, tokens: int, seed: int, draws: int
) -> tuple[Ragged, Iterator[Payload]]:
    """Releases the beginning of public text as the customer releases its own, several times.

    Whoever asks again gets the same draws: to find what tokens are replaced by costs as much as to learn from it.
    Replaced tokens are kept for that, rows are not.

    Args:
        knowledge: Public text, and as for `simulate`.
        rows: As for `simulate`.
        tokens: Of the text, so many at most.
        seed: Of the draws.
        draws: How many there are.

    Returns:
        The texts, none of them empty, and each release of them.

    Raises:
        Inapplicable: As for `simulate`, or there is no public text.
    """
    public, noise = knowledge.public, knowledge.noise
    if public is None or noise is None:
        raise Inapplicable("The attacker learns from releases of its own, and lacks text or mechanism for them.")
    texts = single_texts(public.tokens).beginning(tokens)

    def release(draw: int) -> Payload:
        rng = np.random.Generator(np.random.PCG64([seed, draw]))
        own = Tokens((texts,))
        if not noise.privacy.replaces:
            return simulate(own, knowledge, rows=rows, rng=rng)
        key = ("replaced", knowledge.replacing_key, tokens, seed, draw)
        replaced = public.fitted(key, lambda: _replaced(own, knowledge, noise, rng, classes=None))
        return replaced if rows is None else _rows(replaced, knowledge, noise, rows, rng)

    return texts, map(release, range(draws))


def _rows(
    tokens: Tokens,
    knowledge: Knowledge,
    noise: Noise,
    rows: torch.dtype,
    rng: np.random.Generator,
    classes: Tensor | None = None,
) -> Rows:
    """Boundary rows of tokens that are sent, with noise where rows have any."""
    mechanism, at_tokens = noise.privacy.mechanism, noise.privacy.place is Place.TOKENS
    if mechanism == "vector" and at_tokens:
        tokens = _noisy(tokens, knowledge, noise, rng, classes)
    made = boundary(tokens, knowledge)
    if mechanism == "vector" and not at_tokens:
        made = Rows(made.packed.with_values(_on_rows(made.packed.values, noise, rng)), made.segment_lengths)
    return Rows(made.packed.with_values(made.packed.values.to(rows)), made.segment_lengths)


def released_as(transcript: Transcript) -> torch.dtype | None:
    """Element type of the rows that were sent, `None` for ids; by the first release.

    Raises:
        Inapplicable: Nothing was released.
    """
    first = next(transcript.releases(), None)
    if first is None:
        raise Inapplicable("The transcript holds no released text.")
    return first.payload.packed.values.dtype if isinstance(first.payload, Rows) else None


def boundary(tokens: Tokens, knowledge: Knowledge) -> Rows:
    """Boundary rows of texts, without any noise on them, as the handed-out bottom makes them.

    Args:
        tokens: Ids, or rows in the place of tokens.
        knowledge: Template and table, and the bottom where it has blocks.

    Raises:
        Inapplicable: Something that is needed was not granted.
    """
    table, template = knowledge.table, knowledge.template
    if table is None or template is None:
        raise Inapplicable("Boundary rows were sent, and the attacker was granted no embedding table to make any.")
    blocks = knowledge.bottom if knowledge.cut.bottom else None
    if knowledge.cut.bottom and not isinstance(blocks, Bottom):
        raise Inapplicable("Rows of hidden states were sent, and the attacker was granted no bottom that makes them.")
    lengths = template.segment_lengths(tokens).sum(1)
    values: list[Tensor] = [torch.empty(0)] * len(tokens)
    with torch.no_grad():
        for texts in batches(lengths, _POSITIONS):
            some = tokens.select(texts)
            inputs = template.assemble(some, table=table)
            hidden = inputs.inputs_embeds if blocks is None else blocks(inputs)
            if hidden is None:
                raise TypeError("with a table, a batch is made of rows")
            for text, piece in zip(texts.tolist(), template.unpad(hidden.float(), some).packed.split(), strict=True):
                values[text] = piece
    return Rows(Ragged(torch.cat(values), lengths), template.segment_lengths(tokens))


def batches(lengths: Tensor, positions: int) -> Iterator[Tensor]:
    """Texts of like length together, in batches of so many padded positions, or of one text.

    Args:
        lengths: `[n]` int64.
        positions: Most positions of a batch.

    Yields:
        `[texts of a batch]` int64, their numbers.
    """
    order = lengths.argsort(descending=True, stable=True)
    start = 0
    while start < len(order):
        check_time()
        size = max(1, positions // max(1, int(lengths[order[start]])))
        yield order[start : start + size]
        start += size


def _replaced(
    tokens: Tokens, knowledge: Knowledge, noise: Noise, rng: np.random.Generator, classes: Tensor | None
) -> Tokens:
    search = knowledge.search
    if search is None:
        raise Inapplicable("Tokens are replaced by neighbours, and the attacker was granted no embedding table.")
    if noise.privacy.exponential:
        etas = _constant(noise, tokens.total)
        return tokens.with_values(draw_ids(tokens.values, search, privacy=noise.privacy, etas=etas, rng=rng))

    def replaced(ids: Tensor, noise: Float64) -> Tensor:
        released, places = ids.clone(), drawn(ids, search)
        released[places] = replacements(ids[places], noise[places.numpy()], search)
        return released

    return _each(tokens, search.table.shape[1], noise, rng, classes, replaced)


def _noisy(
    tokens: Tokens, knowledge: Knowledge, noise: Noise, rng: np.random.Generator, classes: Tensor | None
) -> Tokens:
    table = knowledge.table
    if table is None:
        raise Inapplicable("Noise is added to rows of the embedding table, which the attacker was not granted.")

    longest = largest_norm(table, knowledge.candidates) if noise.privacy.clipped else None

    def made(ids: Tensor, drawn: Float64) -> Tensor:
        return noisy_rows(table[ids], drawn, longest=longest).float()

    return _each(tokens, table.shape[1], noise, rng, classes, made)


def _each(
    tokens: Tokens,
    width: int,
    noise: Noise,
    rng: np.random.Generator,
    classes: Tensor | None,
    made: Callable[[Tensor, Float64], Tensor],
) -> Tokens:
    """What is made of each token and the noise that it gets."""
    if noise.etas is None or noise.etas.shape[1] == 1:
        classes = torch.zeros(len(tokens), dtype=torch.int64)
    elif classes is None:
        classes = _likeliest_classes(tokens, noise)
    sides = []
    for segment in tokens.segments:
        etas = _constant(noise, len(segment.values))
        if noise.etas is not None:
            etas = noise.etas[segment.values, classes.repeat_interleave(segment.lengths)].double()
        parts = [slice(0), *_parts(len(segment.values), width)]  # a segment may be empty everywhere
        pieces = [made(segment.values[part], _drawn(etas[part], width, noise, rng)) for part in parts]
        sides.append(torch.cat(pieces))
    return tokens.with_values(torch.cat(sides))


def _likeliest_classes(tokens: Tokens, noise: Noise) -> Tensor:
    """`[n]` int64: the class of each text by its tokens, as if each stood by itself."""
    logits = noise.class_logits()
    sums = torch.zeros(len(tokens), logits.shape[1], dtype=torch.float64)
    for segment in tokens.segments:
        owner = torch.arange(len(tokens)).repeat_interleave(segment.lengths)
        sums.index_add_(0, owner, logits[segment.values])
    return sums.argmax(1)


def _on_rows(clean: Tensor, noise: Noise, rng: np.random.Generator) -> Tensor:
    """Boundary rows `[n, width]` with noise on each."""
    made = torch.empty(clean.shape)
    for part in _parts(*clean.shape):
        some = clean[part]
        drawn = _drawn(_constant(noise, len(some)), clean.shape[1], noise, rng)
        made[part] = noisy_rows(some, drawn).float()
    return made


def _parts(count: int, width: int) -> Iterator[slice]:
    step = max(1, _NUMBERS // width)
    for start in range(0, count, step):
        check_time()
        yield slice(start, start + step)


def _constant(noise: Noise, count: int) -> Tensor:
    return torch.full((count,), noise.privacy.eta, dtype=torch.float64)


def _drawn(etas: Tensor, width: int, noise: Noise, rng: np.random.Generator) -> Float64:
    return find_mechanism(noise.privacy.noise).noise(etas=etas.numpy(), width=width, rng=rng)
