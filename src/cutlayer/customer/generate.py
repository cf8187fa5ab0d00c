"""Choosing token after token at the customer, from what the vendor's blocks and the own tail make of a text."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerBase

from cutlayer.core import ConfigError, DataError, Fault, Ragged
from cutlayer.customer.beams import best_texts
from cutlayer.customer.gate import Gate
from cutlayer.customer.link import GenerationLink
from cutlayer.customer.results import Generation
from cutlayer.customer.sampling import Chooser, check_sampling
from cutlayer.customer.seq2seq import GrowingTarget, Seq2SeqSession
from cutlayer.customer.session import Growing, Session
from cutlayer.customer.settings import Sampling
from cutlayer.wire.generation import GenerationSpec

OnText = Callable[[int, str], None]
"""Called with a prompt's number and the text that came to it."""


class Writer:
    """One text as it comes: its tokens, and how much of it can be shown.

    A character may take several tokens, and a stop string may only be half there, so what could
    still change is held back.

    Args:
        tokenizer: What the tokens mean.
        stop: Strings before which the text ends.
        show: Takes what was added.
        before: Ids of the prompt's end: some tokenizers write a text's first word without the space before it.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        stop: Sequence[str],
        show: Callable[[str], None],
        *,
        before: Sequence[int] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._stop = stop
        self._show = show
        self._shown = 0
        self._before = list(before)
        self._skipped = len(self._decoded())
        self.ids: list[int] = []
        self.text = ""
        self.ended: str | None = None

    def add(self, token: int) -> None:
        """Takes the next token; the end mark ends the text."""
        if token == self._tokenizer.eos_token_id:
            self.end("end mark")
            return
        self.ids.append(token)
        self.text = self._decoded(*self.ids)[self._skipped :]
        found = [at for at in (self.text.find(word) for word in self._stop) if at >= 0]
        if found:
            self.text = self.text[: min(found)]
            self.end("stop string")
            return
        held = max((_overlap(self.text, word) for word in self._stop), default=0)
        text = self.text[: len(self.text) - held]
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):
            self._show_up_to(len(text))

    def add_all(self, tokens: Sequence[int]) -> None:
        """Takes a whole text."""
        for token in tokens:
            if self.ended is None:
                self.add(token)
        if self.ended is None:
            self.end("length")

    def _decoded(self, *ids: int) -> str:
        return str(self._tokenizer.decode([*self._before, *ids], skip_special_tokens=True))

    def end(self, why: str) -> None:
        """Ends the text and shows all of it."""
        self.ended = why
        self._show_up_to(len(self.text))

    def _show_up_to(self, end: int) -> None:
        if end > self._shown:
            self._show(self.text[self._shown : end])
            self._shown = end


def _overlap(text: str, word: str) -> int:
    """How many of the text's last characters begin `word`."""
    return next((size for size in range(min(len(word) - 1, len(text)), 0, -1) if text.endswith(word[:size])), 0)


def check_prompts(prompts: Ragged, *, opening: int, limit: int, new_tokens: int) -> int:
    """Most positions that these texts may come to.

    Raises:
        DataError: A prompt has no token.
        ConfigError: A text may become longer than the model takes.
    """
    empty = (prompts.lengths == 0).nonzero()[:, 0]
    if len(empty):
        raise DataError(f"Prompt {int(empty[0]) + 1} has no token.", remedy="Give each prompt a word at least.")
    longest = int(prompts.lengths.max()) + opening
    if longest + new_tokens > limit:
        raise ConfigError(
            [
                Fault(
                    "max_new_tokens",
                    new_tokens,
                    f"makes {longest + new_tokens} positions behind a prompt of {longest}; the model takes {limit}",
                )
            ],
            remedy=f"Ask for {max(0, limit - longest)} or fewer, or shorten the prompt.",
        )
    return longest + new_tokens


def check_targets(sources: Ragged, *, limit: int, new_tokens: int) -> int:
    """Most positions that the answers to these source texts may come to, their start token included.

    Raises:
        DataError: A source text has no token.
        ConfigError: An answer may become longer than the model takes.
    """
    empty = (sources.lengths == 0).nonzero()[:, 0]
    if len(empty):
        raise DataError(f"Prompt {int(empty[0]) + 1} has no token.", remedy="Give each prompt a word at least.")
    if new_tokens + 1 > limit:
        raise ConfigError(
            [Fault("max_new_tokens", new_tokens, f"makes {new_tokens + 1} positions; the model takes {limit}")],
            remedy=f"Ask for {limit - 1} or fewer.",
        )
    return new_tokens + 1


def begin(session: Session, gate: Gate, adapter: str, prompts: Ragged, sampling: Sampling, *, limit: int) -> Begun:
    """Starts a session for prompts, and sends the source texts of an encoder-decoder.

    Args:
        session: The road, with trained weights loaded.
        gate: The door.
        adapter: What to ask.
        prompts: Ids of each prompt, special tokens left out.
        sampling: How tokens are chosen.
        limit: Positions that the model takes.

    Raises:
        DataError: A prompt has no token.
        ConfigError: A text may become longer than the model takes, or the sampling means nothing here.
        VendorError: The vendor refused or stayed away.
    """
    seq2seq = isinstance(session, Seq2SeqSession)
    check_sampling(sampling, beams=seq2seq, vocabulary=len(session.archive.candidates))
    template, sequences, source_positions = session.archive.template, len(prompts) * sampling.num_beams, 0
    if seq2seq:
        positions = check_targets(prompts, limit=limit, new_tokens=sampling.max_new_tokens)
        source_positions = int(prompts.lengths.max()) + template.special_count(1)
    else:
        opening = len(template.opening)
        positions = check_prompts(prompts, opening=opening, limit=limit, new_tokens=sampling.max_new_tokens)
    asked = GenerationSpec(adapter=adapter, sequences=sequences, positions=positions, source_positions=source_positions)
    link = GenerationLink(gate, asked, last_only=session.archive.cut.tail == 0)
    session.eval()
    if not isinstance(session, Seq2SeqSession):
        return Begun(Growing(link, session.bottom, session.tail), prompts)
    texts = GrowingTarget(link, session.bottom, session.tail)
    try:
        session.begin(texts, prompts)
    except BaseException:
        link.close()
        raise
    nothing = torch.zeros(sequences, dtype=torch.int64)
    return Begun(texts, Ragged(torch.zeros(0, dtype=torch.int64), nothing))


@dataclass(frozen=True)
class Begun:
    """A session that is ready to go on.

    Attributes:
        texts: What grows.
        new: Ids to begin with: the prompts, or nothing behind a start token.
    """

    texts: Growing
    new: Ragged


def generate(
    session: Session,
    gate: Gate,
    adapter: str,
    prompts: Ragged,
    sampling: Sampling,
    *,
    limit: int,
    on_text: OnText,
) -> list[Generation]:
    """Continues prompts, all of them together: one round trip for the prompts, and one for each token but the last.

    Args:
        session: The road, with trained weights loaded.
        gate: The door.
        adapter: What to ask.
        prompts: Ids of each prompt, special tokens left out.
        sampling: How tokens are chosen.
        limit: Positions that the model takes.
        on_text: Told of text as it comes.

    Raises:
        As `begin`.
    """
    started = time.monotonic()
    begun = begin(session, gate, adapter, prompts, sampling, limit=limit)
    texts, link = begun.texts, begun.texts.link
    choose = Chooser(sampling)
    writers = [
        Writer(
            session.archive.tokenizer,
            sampling.stop_strings,
            lambda piece, number=number: on_text(number, piece),  # type: ignore[misc]
            before=begun.new[number][-1:].tolist(),
        )
        for number in range(len(prompts))
    ]
    try:
        if sampling.num_beams == 1:
            _choose_all(session, begun, choose, writers, most=sampling.max_new_tokens)
        else:
            for writer, ids in zip(writers, best_texts(session, texts, sampling), strict=True):
                writer.add_all(ids)
    finally:
        link.close()
    seconds = time.monotonic() - started
    return [
        Generation(
            text=writer.text,
            tokens=len(writer.ids),
            ended=writer.ended or "length",
            seconds=seconds,
            round_trips=link.round_trips,
            replays=link.replays,
        )
        for writer in writers
    ]


def _choose_all(session: Session, begun: Begun, choose: Chooser, writers: Sequence[Writer], *, most: int) -> None:
    """Token after token, until every text has ended."""
    new = begun.new
    for count in range(1, most + 1):
        chosen = choose(session.grow(begun.texts, new))
        for writer, token in zip(writers, chosen.tolist(), strict=True):
            if writer.ended is None:
                writer.add(token)
            if writer.ended is None and count == most:
                writer.end("length")
        running = torch.tensor([writer.ended is None for writer in writers])
        if not running.any():
            break
        new = Ragged(chosen[running], running.to(torch.int64))
