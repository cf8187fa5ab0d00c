"""Tokens read from a causal bottom's boundary, one after the other, by trying what each could have been.

A row after some decoder blocks depends on its own token and on those before it, and on nothing after. The vendor
owns these blocks as they were before training. So it guesses from left to right: behind the tokens that it guessed
so far, it runs its own blocks on each likely token, and takes the one whose row is nearest to the row that was sent.
It needs no text to learn from and no gradients; dropout and training move the customer's rows away from its own,
noise on tokens is read as the tokens that were drawn.

For an encoder-decoder's target texts, whose rows are made of the labels, the vendor has what else it needs: the
encoder's output, which it computed.
Ref: this project's study of what is read all the same.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cutlayer.attacks.attack import ATTACKS, Attack, Guesses, Question
from cutlayer.attacks.content import content_rows
from cutlayer.attacks.evaluation.tokens import TokenTruth
from cutlayer.attacks.evaluation.traffic import CONTROL, CONTROL_ITEMS, Traffic
from cutlayer.attacks.evaluation.truth import Graded
from cutlayer.attacks.knowledge import Inapplicable, Knowledge, Need
from cutlayer.attacks.view import SeenFrame, SeenRelease, Transcript, View
from cutlayer.core import Ragged, Rows, Tokens
from cutlayer.core.deadline import check_time
from cutlayer.models import Bottom, Inputs, Kind, Seq2SeqBottom, Template, cache_bytes
from cutlayer.models.cutting import block_list
from cutlayer.wire import routes
from cutlayer.wire.recording import Direction

TRIED = 128
"""Tokens that are tried for each row."""
POSITIONS = 128
"""Tokens of each text that it is measured on: each one that is tried is given the keys and values of all before it."""
_TOKENS = 2**11
"""Tokens that are run at a time to know each one's row."""
_CACHE_BYTES = 2**28
"""Keys and values of all that is tried at a time, about."""


class PrefixSearch:
    """Guesses each released text from left to right.

    Args:
        tried: Tokens that are tried for each row.
    """

    def __init__(self, tried: int = TRIED) -> None:
        self._tried = tried

    def __call__(self, view: View) -> Guesses:
        """Guesses the texts of every step with a release of its own, and those that were stored.

        Raises:
            Inapplicable: Token ids were released, the bottom was not granted, or is not that of a decoder with blocks.
        """
        bottom, _ = _granted(view.knowledge)
        sources = _sources(view.transcript, view.knowledge) if isinstance(bottom, Seq2SeqBottom) else {}
        guess = _Guess(bottom, self._tried, view.knowledge.candidates)
        for release in _trained_on(view.transcript):
            if not isinstance(release.payload, Rows):
                raise Inapplicable("Token ids were released, so nothing is left to search for.")
            source = sources.get((release.source, release.number))
            if isinstance(bottom, Seq2SeqBottom) and source is None:
                raise Inapplicable("The transcript does not show the encoder's output for target texts.")
            yield release.source, release.number, _read(guess, bottom, release.payload, source, view.knowledge)


ATTACKS.add("prefix-search")(
    Attack(
        PrefixSearch(),
        title="tokens from left to right, each tried in a decoder's first blocks",
        question=Question.WORDS,
        reference="this project; SipIt, arXiv:2510.15511",
        needs=frozenset({Need.BOTTOM}),
        tokens=1024,
        positions=POSITIONS,
        costly=True,
    )
)


@dataclass(frozen=True)
class Encoded:
    """Source texts after the encoder, as they were sent down.

    Attributes:
        states: `[n, source, width]`.
        inputs: Their mask.
    """

    states: Tensor
    inputs: Inputs

    def part(self, texts: slice) -> Encoded:
        """The texts in a slice of them."""
        return Encoded(self.states[texts], Inputs(self.inputs.attention_mask[texts], self.inputs.position_ids[texts]))

    def repeated(self, times: int) -> Encoded:
        """Each text so many times."""
        mask, positions = (
            each.repeat_interleave(times, 0) for each in (self.inputs.attention_mask, self.inputs.position_ids)
        )
        return Encoded(self.states.repeat_interleave(times, 0), Inputs(mask, positions))


class _Guess:
    """The public bottom, run behind what was guessed so far.

    Args:
        bottom: As it was handed out.
        tried: Tokens that are tried for each row.
        candidates: `[vocab]` bool, the ids that may be guessed; None allows all.
    """

    def __init__(self, bottom: Bottom | Seq2SeqBottom, tried: int, candidates: Tensor | None) -> None:
        self._bottom = bottom
        self._source: Encoded | None = None
        self._vocabulary = torch.arange(len(bottom.table)) if candidates is None else candidates.nonzero()[:, 0]
        self.tried = min(tried, len(self._vocabulary))
        self._cache: Any = None
        self._first: Tensor | None = None
        self._squares = torch.empty(0)

    @torch.no_grad()
    def read(self, hidden: Tensor, mask: Tensor, opening: tuple[int, ...], source: Encoded | None) -> Tensor:
        """Ids `[n, seq]` for rows `[n, seq, width]`, padded on the right; arbitrary at padding.

        Args:
            hidden: The boundary.
            mask: `[n, seq]`, 1 at real positions.
            opening: Ids of special tokens before each text.
            source: Of an encoder-decoder's target texts.
        """
        self._cache, self._source = self._bottom.new_cache(), source
        found = torch.zeros(mask.shape, dtype=torch.int64)
        for place in range(hidden.shape[1]):
            if place < len(opening):
                tried = torch.full((len(hidden), 1), opening[place])
            else:
                tried = self._likely(hidden[:, place], place)
            made, cache = self._run(tried, place, self._cache, self._source)
            best = (made - hidden[:, place, None]).square().sum(-1).argmin(1)
            found[:, place] = tried.gather(1, best[:, None])[:, 0]
            cache.batch_select_indices(torch.arange(len(tried)) * tried.shape[1] + best)
            self._cache = cache
        return found

    def _likely(self, rows: Tensor, place: int) -> Tensor:
        """Tokens `[n, tried]` that may stand behind the next row `[n, width]`.

        How rows of different tokens differ is much the same at all places. So each token's row is made once, at the
        first place; and what a place adds to it is taken from one token there.
        """
        if self._first is None:
            self._first = self._rows_of_all(place)
            self._squares = self._first.square().sum(1)
        one = self._nearest(rows, 1)
        made, _ = self._run(self._vocabulary[one], place, self._cache, self._source)
        return self._vocabulary[self._nearest(self._first[one[:, 0]] + rows - made[:, 0], self.tried)]

    def _nearest(self, rows: Tensor, count: int) -> Tensor:
        if self._first is None:
            raise TypeError("the first place's rows are made first")
        # squared distances less the row's own square; cdist would copy the vocabulary's rows each time
        distances = torch.addmm(self._squares, rows, self._first.T, alpha=-2)
        return distances.topk(count, dim=1, largest=False).indices

    def _rows_of_all(self, place: int) -> Tensor:
        """Rows `[vocab, width]` of every token at the first text's next place."""
        cache = copy.deepcopy(self._cache)
        if place:
            cache.batch_select_indices(torch.zeros(1, dtype=torch.int64))
        source = None if self._source is None else self._source.part(slice(0, 1))
        parts = self._vocabulary.split(_TOKENS)
        return torch.cat([self._run(part[None], place, cache, source)[0][0] for part in parts])

    def _run(self, tried: Tensor, place: int, cache: Any, source: Encoded | None) -> tuple[Tensor, Any]:
        """Rows `[n, tried, width]` that the bottom makes of tokens at the next place, and its cache with them."""
        n, times = tried.shape
        cache = copy.deepcopy(cache)
        if place:
            cache.batch_repeat_interleave(times)
        ids = tried.reshape(-1, 1)
        inputs = Inputs(
            attention_mask=torch.ones(len(ids), place + 1, dtype=torch.int64),
            position_ids=torch.full((len(ids), 1), place),
            input_ids=ids,
        )
        if isinstance(self._bottom, Seq2SeqBottom):
            if source is None:
                raise Inapplicable("The transcript does not show the encoder's output for target texts.")
            source = source.repeated(times)
            made = self._bottom.decode(source.states, source.inputs, inputs, cache)
        else:
            made = self._bottom(inputs, cache)
        return made[:, -1].view(n, times, -1), cache


def _read(
    guess: _Guess, bottom: Bottom | Seq2SeqBottom, rows: Rows, source: Encoded | None, knowledge: Knowledge
) -> Tokens:
    _, template = _granted(knowledge)
    rows = Rows(rows.packed.with_values(rows.packed.values.float()), rows.segment_lengths)
    hidden, inputs = template.from_rows(rows)
    ids = torch.zeros(hidden.shape[:2], dtype=torch.int64)
    step = max(1, _CACHE_BYTES // cache_bytes(bottom, sequences=guess.tried, positions=hidden.shape[1]))
    for start in range(0, len(hidden), step):
        check_time()
        texts = slice(start, start + step)
        own = None if source is None else source.part(texts)
        ids[texts] = guess.read(hidden[texts], inputs.attention_mask[texts], template.opening, own)
    guessed = Rows(rows.packed.with_values(ids[inputs.attention_mask.bool()]), rows.segment_lengths)
    values, lengths = content_rows(guessed, knowledge)
    return Tokens((Ragged(values, lengths[:, 0].contiguous()),))


def _granted(knowledge: Knowledge) -> tuple[Bottom | Seq2SeqBottom, Template]:
    bottom, template = knowledge.bottom, knowledge.template
    if bottom is None or template is None:
        raise Inapplicable("The attacker was not granted the bottom as it was handed out.")
    if bottom.family.kind is Kind.ENCODER:
        raise Inapplicable("An encoder's rows depend on the tokens behind them too, so a search from the left misses.")
    if not len(block_list(bottom.model, bottom.family.stacks[-1])):
        raise Inapplicable("Without blocks, rows are the embedding table's: nearest-neighbour search reads them.")
    return bottom, template


def _trained_on(transcript: Transcript) -> Iterator[SeenRelease]:
    """Releases of texts that are trained on, step by step or stored before; those of source texts left out."""
    return transcript.only(routes.STEP, routes.SHARD_PUT).releases()


def _sources(transcript: Transcript, knowledge: Knowledge) -> dict[tuple[str, int], Encoded]:
    """The encoder's output of each step."""
    template = knowledge.source_template
    if template is None:
        raise Inapplicable("The attacker was not told where special tokens stand in source texts.")
    found: dict[tuple[str, int], Encoded] = {}
    lengths: Tensor | None = None
    for frame in transcript:
        if frame.route is not routes.SOURCE:
            continue
        tensors = frame.tensors()
        if frame.direction is Direction.UP:
            lengths = tensors["lengths"].to(torch.int64)
        elif lengths is not None:
            rows = Rows(Ragged(tensors["output"].float(), lengths.sum(1)), lengths)
            states, inputs = template.from_rows(rows)
            found[f"job/{frame.where['job']}", int(frame.where["step"])] = Encoded(states, inputs)
    return found


# ---------------------------------------------------------------- truth


@dataclass(frozen=True)
class SearchedTruth(TokenTruth):
    """Which tokens the texts had that are trained on, for an attack on rows behind decoder blocks."""

    def traffic(
        self, kind: Traffic, like: Transcript, knowledge: Knowledge, *, looks: int, rng: torch.Generator
    ) -> tuple[Transcript, SearchedTruth]:
        """One step a look about these texts, through the public bottom; of an encoder-decoder behind random states."""
        bottom, template = _granted(knowledge)
        form = next((release.payload for release in _trained_on(like)), None)
        if not isinstance(form, Rows):
            raise Inapplicable("The transcript holds no rows of texts that are trained on.")
        if isinstance(bottom, Bottom):
            trained_on = like.only(routes.STEP, routes.SHARD_PUT)
            made, truth = super().traffic(kind, trained_on, knowledge, looks=looks, rng=rng)
            return made, SearchedTruth(self.tokens, steps=truth.steps, skipped=self.skipped)
        values = self.tokens.segments[0].values
        if kind is Traffic.SHUFFLED:
            values = values[torch.randperm(len(values), generator=rng)]
        tokens = Tokens((self.tokens.segments[0].with_values(values),))
        frames: list[SeenFrame] = []
        for step in range(1, looks + 1):
            where: Mapping[str, str | int] = {"job": CONTROL, "step": step}
            with torch.no_grad():
                inputs = template.assemble(tokens, table=bottom.table.detach().float())
                source = _random_source(len(tokens), bottom.table.shape[1], rng)
                hidden = bottom.decode(source.states, source.inputs, inputs)
                frames += _source_frames(source, where)
            rows = template.unpad(hidden, tokens)
            if kind is Traffic.NOISE:
                noise = torch.randn(rows.packed.values.shape, generator=rng) * rows.packed.values.std()
                rows = Rows(rows.packed.with_values(noise), rows.segment_lengths)
            sent = {"rows": rows.packed.values.to(form.packed.values.dtype), "lengths": rows.segment_lengths}
            frames.append(SeenFrame(Direction.UP, routes.STEP, where, lambda sent=sent: sent))  # type: ignore[misc]
        steps = {(CONTROL, step): torch.arange(len(self.tokens)) for step in range(1, looks + 1)}
        return Transcript(lambda: frames), SearchedTruth(self.tokens, steps=steps, skipped=self.skipped)

    def graded(self, like: Transcript, knowledge: Knowledge, *, rng: torch.Generator) -> Graded:
        """These texts released once, beside what a linear map reads of them."""
        if not isinstance(knowledge.bottom, Bottom):
            raise Inapplicable("Rows of target texts depend on source texts, of which the attacker makes no release.")
        return super().graded(like.only(routes.STEP, routes.SHARD_PUT), knowledge, rng=rng)

    def sample(self) -> SearchedTruth:
        """Texts from the beginning, of about a sixteenth of `CONTROL_ITEMS` tokens, or one."""
        ends = self.tokens.segments[0].lengths.cumsum(0)
        kept = max(1, int((ends <= CONTROL_ITEMS // 16).sum()))
        return SearchedTruth(self.tokens.select(torch.arange(kept)), skipped=self.skipped)


def _random_source(texts: int, width: int, rng: torch.Generator) -> Encoded:
    """What an encoder might have put out, of two positions a text."""
    places = torch.arange(2).expand(texts, 2)
    return Encoded(torch.randn(texts, 2, width, generator=rng), Inputs(torch.ones_like(places), places))


def _source_frames(source: Encoded, where: Mapping[str, str | int]) -> list[SeenFrame]:
    lengths = source.inputs.attention_mask.sum(1, keepdim=True)
    output = source.states.flatten(0, 1)
    return [
        SeenFrame(Direction.UP, routes.SOURCE, where, lambda: {"lengths": lengths}),
        SeenFrame(Direction.DOWN, routes.SOURCE, where, lambda: {"output": output}),
    ]
