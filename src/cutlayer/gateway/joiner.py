"""Waiting requests, joined: what came while the vendor answered is read, privatized, sent and denoised as one batch."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from cutlayer.core import ConfigError, DataError, PrivacyError, Ragged, Tokens, VendorError
from cutlayer.customer import Client, FinetuneSpec, Silent
from cutlayer.customer.embed import Embeddings, Roads
from cutlayer.data import Dataset
from cutlayer.data.dataset import check_characters
from cutlayer.gateway.absence import Absence
from cutlayer.gateway.answers import ApiError

_MOST_TEXTS: Final = 4096
"""Of a batch: those who come behind it wait no longer than for so many."""
_ANSWERED, _BAD_REQUEST, _TOO_MANY, _SERVER = 200, 400, 429, 500
_OF_THE_KEY = (401, 403)
_CHARACTERS: Final = 64
"""Of a text for each token that the model reads. Reading a text as tokens takes some hundred times its memory, and it
is read to its end to be counted: a few megabytes of one text would stop the gateway for all."""


@dataclass(frozen=True)
class Asked:
    """A request for embeddings.

    Attributes:
        inputs: Texts, or token ids of each.
        spec: How they are privatized, and by which model they are embedded; requests of one batch have it in common.
        answer: Where the answer goes; cancelled if nobody waits for it any more.
    """

    inputs: Sequence[str] | Sequence[list[int]] = field(repr=False)
    spec: FinetuneSpec
    answer: Future[Answer] = field(default_factory=Future, repr=False)


@dataclass(frozen=True)
class Answer:
    """Embeddings of a request.

    Attributes:
        values: `[n, width]` float32, in the order of the request.
        tokens: Of all texts, as they left; without special tokens.
        eta: By which they left.
    """

    values: NDArray[np.float32] = field(repr=False)
    tokens: int
    eta: float


class Joiner:
    """Answers requests in the compute thread.

    Args:
        client: The customer.
        absence: Whether the vendor is away, for all who ask it.
        denoiser: What takes the noise out; as of `EmbeddingSettings`.
        truncate: Whether texts that are too long are truncated; else they are refused.
    """

    def __init__(self, client: Client, absence: Absence, *, denoiser: str, truncate: bool) -> None:
        self._absence, self._denoiser, self._truncate = absence, denoiser, truncate
        self._roads = Roads(client)
        self._waiting: list[Asked] = []
        self._lock = Lock()

    def open(self, spec: FinetuneSpec) -> Embeddings:
        """The road for requests of these settings: how they are privatized, and by which model they are embedded."""
        return self._roads.find(spec, Silent(), denoiser=self._denoiser)

    def add(self, asked: Asked) -> None:
        """Has a request wait; `serve` is then to be called once more."""
        with self._lock:
            self._waiting.append(asked)

    def serve(self) -> None:
        """Answers the request that waits the longest, and those that can be answered with it."""
        batch = [asked for asked in self._take() if asked.answer.set_running_or_notify_cancel()]
        if not batch:
            return
        try:
            with self._absence.noted():
                self._answer(self.open(batch[0].spec), batch)
        except BaseException as error:
            for asked in batch:
                with suppress(Exception):  # it has its answer
                    asked.answer.set_exception(error)

    def _take(self) -> list[Asked]:
        """A batch of those that wait."""
        with self._lock:
            taken: list[Asked] = []
            left: list[Asked] = []
            texts = 0
            for asked in self._waiting:
                fits = not taken or (asked.spec == taken[0].spec and texts + len(asked.inputs) <= _MOST_TEXTS)
                (taken if fits else left).append(asked)
                texts += len(asked.inputs) if fits else 0
            self._waiting = left
        return taken

    def _answer(self, road: Embeddings, batch: Sequence[Asked]) -> None:
        read: list[tuple[Asked, Tokens]] = []
        for asked in batch:
            try:
                read.append((asked, _read(road, asked, truncate=self._truncate)))
            except (ApiError, DataError) as error:
                asked.answer.set_exception(error)
        if not read:
            return
        try:
            self._embed(road, read)
        except _OF_ONE as refused:
            if not _is_of_one(refused):
                raise
            # the others are not to pay for it; what was answered already is not asked again
            for each in read:
                try:
                    self._embed(road, [each])
                except _OF_ONE as error:
                    if not _is_of_one(error):
                        raise
                    each[0].answer.set_exception(error)

    def _embed(self, road: Embeddings, read: Sequence[tuple[Asked, Tokens]]) -> None:
        names = [_name(each) for asked, _ in read for each in asked.inputs]
        found = road.of(Tokens.concatenate([tokens for _, tokens in read]), names, Silent())
        start = 0
        for asked, tokens in read:
            stop = start + len(tokens)
            sizes = road.lengths(tokens).clamp(max=road.longest)
            asked.answer.set_result(Answer(found.values[start:stop], int(sizes.sum()), found.eta))
            start = stop


_OF_ONE: Final = (PrivacyError, ConfigError, DataError, VendorError)
"""What a batch may be refused for that one of its requests is to blame for."""


def _is_of_one(error: Exception) -> bool:
    """Whether a refusal may be about one request: a vendor's is where it says that what it got is wrong.

    An answer that cannot be used may be to one text, too.
    """
    if not isinstance(error, VendorError) or error.status == _ANSWERED:
        return True
    return _BAD_REQUEST <= error.status < _SERVER and error.status not in (_TOO_MANY, *_OF_THE_KEY)


def _name(given: str | list[int]) -> tuple[str]:
    return (given if isinstance(given, str) else " ".join(map(str, given)),)


def _read(road: Embeddings, asked: Asked, *, truncate: bool) -> Tokens:
    """A request's texts as tokens.

    Raises:
        ApiError: A text is no text, has no token, or is too long; an id is none of the model's.
    """
    texts = [each for each in asked.inputs if isinstance(each, str)]
    if texts:
        most = _CHARACTERS * road.longest
        for row, text in enumerate(texts):
            check_characters(text, f"input[{row}]")
            if len(text) > most and not truncate:
                raise _too_long(row, f"{len(text)} characters, more than {most};", road.longest)
        texts = [text[:most] for text in texts]
        tokens = road.read(Dataset(tuple((text,) for text in texts)))
    else:
        tokens = _of_ids(road, [each for each in asked.inputs if not isinstance(each, str)])
    if len(none := (tokens.segments[0].lengths == 0).nonzero()):
        raise ApiError(400, "invalid_input", f"input[{int(none[0])}] has no token. Leave it out.", param="input")
    if truncate:
        return tokens
    lengths = road.lengths(tokens)
    if len(long := (lengths > road.longest).nonzero()):
        raise _too_long(int(long[0]), f"{int(lengths[long[0]])} tokens;", road.longest)
    return tokens


def _too_long(row: int, has: str, longest: int) -> ApiError:
    return ApiError(
        400,
        "context_length_exceeded",
        f"input[{row}] has {has} this model's limit is {longest} tokens. Shorten it, or start the gateway with "
        "--truncate.",
        param="input",
    )


def _of_ids(road: Embeddings, ids: Sequence[list[int]]) -> Tokens:
    if road.spec.privacy.mechanism == "words":
        raise ApiError(400, "invalid_input", "This gateway replaces words and accepts only text.", param="input")
    tokenizer, size = road.archive.tokenizer, len(road.archive.candidates)
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    for row, each in enumerate(ids):
        if wrong := [token for token in each if not 0 <= token < size or token in special]:
            raise ApiError(
                400,
                "invalid_input",
                f"input[{row}] has the token id {wrong[0]}; valid ids are 0 to {size - 1}, without special tokens: the "
                "model adds those itself.",
                param="input",
            )
    return Tokens((Ragged(torch.tensor([token for each in ids for token in each]), torch.tensor([*map(len, ids)])),))
