"""Texts that grow token by token: sessions with a key-value cache each, in memory alone.

A session is what a customer could make again by sending its frames again, so nothing of it is on disk:
when the process ends or the session expires, the customer starts it anew and repeats what it sent.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import Cache

from cutlayer.core import Ragged
from cutlayer.models import Decoding, Seq2SeqTop, cache_bytes, threads_of_pass, weights_of
from cutlayer.serving.compute import Pieces, memory, use_threads
from cutlayer.serving.refusal import Refusal
from cutlayer.vendor.adapters import Adapters, LiveAdapter
from cutlayer.vendor.catalogue import Catalogue, ModelCard
from cutlayer.vendor.checks import read_growth, read_release
from cutlayer.vendor.passes import Encoded, encode, prepare, rows_of
from cutlayer.vendor.problems import conflict, not_found, unacceptable
from cutlayer.vendor.settings import VendorSettings
from cutlayer.vendor.shares import Holding, first_to_leave, share, taken
from cutlayer.wire import Form, FrameError, WireType, decode_tensors, encode_tensors, routes
from cutlayer.wire.generation import GenerationInfo, GenerationSpec


@dataclass
class _Session:
    """One batch of growing texts.

    Attributes:
        spec: What the customer asked for.
        adapter: What it queries.
        card: Its model.
        cache: The top's keys and values.
        decoding: Which positions are real.
        size: Most bytes that the cache can take.
        weights: Of the top, that each position is multiplied with.
        encoded: An encoder-decoder's source texts, one for each sequence, once they are there.
        step: The last frame's number.
        digest: Of that frame's bytes.
        answer: To that frame.
        used: When a frame last came, by the clock that measures idleness.
    """

    spec: GenerationSpec
    adapter: LiveAdapter
    card: ModelCard
    cache: Cache
    decoding: Decoding
    size: int
    weights: int
    used: float
    encoded: Encoded | None = None
    step: int = 0
    digest: bytes = b""
    answer: bytes = b""


class Generations:
    """All tenants' sessions.

    Lives in the compute thread, but for `delete`, which may be called from any thread.

    Args:
        settings: The vendor's settings.
        adapters: What sessions query.
        catalogue: The models.
        clock: Seconds, for idleness.
    """

    def __init__(
        self,
        settings: VendorSettings,
        adapters: Adapters,
        catalogue: Catalogue,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._adapters = adapters
        self._catalogue = catalogue
        self._clock = clock
        self._limit = settings.limits.max_generation_bytes or memory(catalogue.device) // 8
        self._sessions: OrderedDict[tuple[str, str], _Session] = OrderedDict()
        self._ending = threading.Lock()

    @property
    def live(self) -> int:
        """How many sessions there are."""
        return len(self._sessions)

    @property
    def size(self) -> int:
        """Bytes that are set aside for their caches."""
        return sum(session.size for session in list(self._sessions.values()))  # metrics are read by other threads

    def put(self, tenant: str, name: str, spec: GenerationSpec) -> Pieces[GenerationInfo]:
        """Starts a session, or finds it started."""
        self.expire()
        known = self._sessions.get((tenant, name))
        if known is not None:
            if known.spec != spec:
                raise conflict(
                    "spec-differs", f"Session {name} is there with another spec.", remedy="Choose a new identifier."
                )
            return self._info(name, known)
        live = yield from self._adapters.touch(tenant, spec.adapter)
        adapter, part = live.info, live.part
        if adapter.cut.tail is None:
            raise unacceptable(
                "not-a-language-model",
                f"Adapter {spec.adapter} gives labels, not tokens.",
                remedy="Ask it for labels, or name a language model's adapter.",
            )
        card = self._catalogue.card(adapter.model)
        virtual = adapter.virtual_positions
        self._check(tenant, spec, card, virtual=virtual)
        source = spec.source_positions and virtual + spec.source_positions
        size = cache_bytes(part, sequences=spec.sequences, positions=virtual + spec.positions, source_positions=source)
        if spec.source_positions:
            size += 4 * spec.sequences * source * card.info.width
        if size > self._limit:
            raise unacceptable(
                "session-too-large",
                f"{spec.sequences} sequences of {spec.positions + spec.source_positions} positions take up to {size} "
                f"bytes; this vendor gives sessions {self._limit}.",
                remedy="Ask for fewer sequences, or shorter ones.",
            )
        self._make_room(tenant, size)
        decoding, weights = Decoding(spec.sequences), weights_of(part)
        session = _Session(spec, live, card, part.new_cache(), decoding, size, weights, used=self._clock())
        with self._ending:
            live.sessions += 1
        self._sessions[tenant, name] = session
        return self._info(name, session)

    def step(self, tenant: str, name: str, step: int, body: bytes) -> bytes:
        """Takes a session's next positions, or gives the answer again that they got before.

        Returns:
            Rows of the upper boundary: of the last position of each sequence that grew, or of all new positions
            where the customer's tail has blocks. For source texts the encoder's output.
        """
        self.expire()
        session = self._sessions.get((tenant, name))
        if session is None:
            raise not_found("session", name)
        digest = hashlib.sha256(body).digest()
        if step == session.step and digest == session.digest:
            return session.answer
        if step != session.step + 1:
            raise conflict(
                "wrong-step",
                f"Frame {step} was sent; the session stands at {session.step}"
                f"{', which had other bytes' if step == session.step else ''}.",
                remedy="Start a new session and repeat what was sent.",
            )
        try:
            answer = self._grow(session, body)
        except (Refusal, FrameError):
            raise
        except BaseException:
            # its cache may hold half of this frame
            self._end((tenant, name))
            raise
        session.step, session.digest, session.answer = step, digest, answer
        session.used = self._clock()
        with contextlib.suppress(KeyError):  # it was deleted meanwhile
            self._sessions.move_to_end((tenant, name))
        return answer

    def delete(self, tenant: str, name: str) -> None:
        """Ends a session. May be called from any thread."""
        if not self._end((tenant, name)):
            raise not_found("session", name)

    def forget(self, tenant: str, adapter: str) -> None:
        """Takes an adapter that is deleted or published anew out of memory, with the sessions that use it."""
        for key, session in list(self._sessions.items()):
            if key[0] == tenant and session.spec.adapter == adapter:
                self._end(key)
        self._adapters.forget(tenant, adapter)

    def expire(self) -> None:
        """Ends sessions that have been idle for too long."""
        now = self._clock()
        for key, session in list(self._sessions.items()):
            if now - session.used > self._settings.limits.generation_seconds:
                self._end(key)

    def unpin(self, adapter: object) -> None:
        """Ends the sessions that keep an adapter in memory."""
        for key, session in list(self._sessions.items()):
            if session.adapter is adapter:
                self._end(key)

    def _end(self, key: tuple[str, str]) -> bool:
        """Ends a session; returns whether there was one."""
        with self._ending:
            session = self._sessions.pop(key, None)
            if session is not None:
                session.adapter.sessions -= 1
        return session is not None

    def _make_room(self, tenant: str, size: int) -> None:
        """Ends sessions of tenants that take more than their share, if this one then stays within its own.

        Their customers begin them again by themselves.

        Raises:
            Refusal: There is no room for one more.
        """
        while True:
            holdings = [
                Holding(key[0], session.size, key, key[0] != tenant) for key, session in list(self._sessions.items())
            ]
            if sum(holding.size for holding in holdings) + size <= self._limit:
                return
            own = taken(holdings, tenant)
            leaving = first_to_leave(holdings, asking=tenant, size=0)
            if own + size > share(self._limit, holdings, tenant) or leaving is None:
                raise Refusal(
                    503,
                    "sessions-full",
                    f"Other sessions take this vendor's memory for them, and with {size} bytes more than {own} this "
                    "tenant would take more than its share.",
                    remedy="Try again in a moment, end some sessions, or ask for fewer texts or positions.",
                    headers={"Retry-After": "1"},
                )
            self._end(leaving)

    def _check(self, tenant: str, spec: GenerationSpec, card: ModelCard, *, virtual: int) -> None:
        for name, count in (("positions", spec.positions), ("source_positions", spec.source_positions)):
            if count and count + virtual > card.info.max_length:
                before = f", behind {virtual} virtual ones" if virtual else ""
                raise unacceptable(
                    "text-too-long",
                    f"{name} = {count}{before}; {card.info.name} has {card.info.max_length}.",
                    remedy="Shorten the text, or ask for fewer new tokens.",
                )
        if (spec.source_positions > 0) != (card.info.target_blocks is not None):
            raise unacceptable(
                "wrong-form",
                f"source_positions = {spec.source_positions}; it is for the source texts of encoder-decoders.",
                remedy="Set it for those, and leave it out for others.",
            )
        limit = self._settings.limits.max_rows_per_step
        if spec.sequences > limit:
            raise unacceptable(
                "batch-too-large",
                f"sequences = {spec.sequences}, prompts times beams; this vendor takes {limit} positions a frame.",
                remedy="Send fewer prompts at a time, or follow fewer beams.",
            )
        kept = sum(owner == tenant for owner, _ in self._sessions)
        if kept >= self._settings.limits.generations_per_tenant:
            raise Refusal(
                403, "quota", f"This tenant has {kept} sessions already.", remedy="End some, or wait until they expire."
            )

    @torch.no_grad()
    def _grow(self, session: _Session, body: bytes) -> bytes:
        tensors = decode_tensors(routes.GENERATION_STEP, body)
        if isinstance(session.adapter.part, Seq2SeqTop) and session.encoded is None:
            return self._read_source(session, session.adapter.part, tensors)
        growth = read_growth(
            session.card,
            session.adapter.info,
            tensors,
            sequences=session.spec.sequences,
            first=not session.decoding.mask.shape[1],
            limit=self._settings.limits.max_rows_per_step,
        )
        parents = self._parents(session, tensors)
        # columns, not real positions: what pads a sequence takes memory like what is in it
        longest = session.decoding.mask.shape[1] + int(growth.lengths.max())
        if longest > session.spec.positions:
            raise unacceptable(
                "text-too-long",
                f"The sequences would grow to {longest} positions; the session was asked for {session.spec.positions}.",
                remedy="Start a session with more positions.",
            )
        if parents is not None:
            session.cache.reorder_cache(parents.to(self._catalogue.device))  # type: ignore[arg-type]  # any integers will do
            session.decoding.reorder(parents)
            session.encoded = None if session.encoded is None else session.encoded.select(parents)
        output, real = self._compute(session, growth)
        # a tail without blocks looks at nothing but the position that is continued
        return self._answer(session, output[:, -1][real[:, -1]] if session.adapter.info.cut.tail == 0 else output[real])

    def _read_source(self, session: _Session, part: Seq2SeqTop, tensors: dict[str, Tensor]) -> bytes:
        """The encoder's output for source texts, each of which goes with as many sequences as any other."""
        spec, card, device = session.spec, session.card, self._catalogue.device
        limit = self._settings.limits.max_rows_per_step
        source = rows_of(prepare(read_release(card, session.adapter.info, tensors, limit=limit), device))
        if "parents" in tensors or spec.sequences % len(source):
            raise unacceptable(
                "wrong-lengths",
                f"There are {len(source)} source texts for {spec.sequences} sequences.",
                remedy="Send one for each prompt, or for each prompt's beams, and no parents.",
            )
        longest = int(source.packed.lengths.max())
        if longest > spec.source_positions:
            raise unacceptable(
                "text-too-long",
                f"A source text has {longest} positions; the session was asked for {spec.source_positions}.",
                remedy="Start a session with more.",
            )
        use_threads(self._settings.compute_threads)
        encoded = encode(part, card.template, source, device)
        of = torch.arange(len(source)).repeat_interleave(spec.sequences // len(source))
        session.encoded = encoded.select(of)
        return self._answer(session, encoded.rows)

    def _answer(self, session: _Session, rows: Tensor) -> bytes:
        bf16 = session.adapter.info.wire_type is WireType.BF16
        return encode_tensors({"output": rows.to("cpu", torch.bfloat16 if bf16 else torch.float32)})

    def _compute(self, session: _Session, growth: Ragged) -> tuple[Tensor, Tensor]:
        """The top's output `[n, new, width]`, and which of it is real `[n, new]`."""
        device, most = self._catalogue.device, self._settings.compute_threads
        inputs = session.decoding.grow(growth.lengths)
        use_threads(threads_of_pass(session.weights, inputs.position_ids.numel(), most=most))
        real = session.decoding.new(inputs).to(device)
        values = session.decoding.pad(growth, inputs).to(device)
        inputs = inputs.to(device)
        part, encoded = session.adapter.part, session.encoded
        if isinstance(part, Seq2SeqTop):
            if encoded is None:
                raise TypeError("target texts come after their source texts")
            output = part.decode(encoded.states, encoded.inputs, inputs, values.float(), session.cache)
        elif session.adapter.info.form is Form.IDS:
            output = part(inputs.with_ids(values), None, session.cache)
        else:
            output = part(inputs, values.float(), session.cache)
        return output, real

    def _parents(self, session: _Session, tensors: dict[str, Tensor]) -> Tensor | None:
        if "parents" not in tensors:
            return None
        parents = tensors["parents"].to(torch.int64)
        n = session.spec.sequences
        if not session.decoding.mask.shape[1] or len(parents) != n or int(parents.max()) >= n:
            raise unacceptable(
                "wrong-parents",
                f"parents must name, after the first frame, one of {n} sequences for each of them.",
                remedy="Send the sequence that each one goes on from.",
            )
        return parents

    def _info(self, name: str, session: _Session) -> GenerationInfo:
        return GenerationInfo(generation=name, spec=session.spec, step=session.step)
