"""The road of an encoder-decoder: source texts up, the encoder's output down, target texts up.

A row of the data is a pair. Both of its texts are drawn together, so they are one look at the row, and are named and
charged as such, whichever frame they leave in.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from cutlayer.core import ConfigError, ModelError, Payload, Ragged, Rows, Tokens
from cutlayer.customer.link import Exchange, Leg, QueryLink, Seq2SeqLink, Stored
from cutlayer.customer.session import Growing, Session, Texts, token_losses
from cutlayer.models import Inputs, Seq2SeqBottom, Seq2SeqTail, Template, seed_dropout
from cutlayer.privacy import Release


@dataclass(frozen=True)
class Source:
    """Source texts after the encoder.

    Attributes:
        encoded: `[n, source, width]`, the encoder's output.
        inputs: Their mask.
    """

    encoded: Tensor
    inputs: Inputs

    def select(self, indices: Tensor) -> Source:
        """The texts at `indices`, `[chosen]` int64, in that order; a text may be there several times."""
        chosen = indices.to(self.encoded.device)
        mask, positions = self.inputs.attention_mask[chosen], self.inputs.position_ids[chosen]
        return Source(self.encoded[chosen], Inputs(mask, positions))


class GrowingTarget(Growing):
    """Target texts of one generation session, and what they answer.

    Attributes:
        source: One for each text, once it is there.
    """

    source: Source | None = None

    def reorder(self, parents: Tensor) -> None:
        """See `Growing.reorder`."""
        super().reorder(parents)
        if self.source is not None:
            self.source = self.source.select(parents)


class Seq2SeqSession(Session):
    """Bottom, privatizer, gate and tail of one customer of an encoder-decoder."""

    def forward(self, texts: Texts | Stored, *, look: int | None = None) -> Tensor:
        """Logits `[n, target, vocabulary]` at the positions of target texts, the start token first.

        Args:
            texts: `n` pairs of source and target.
            look: The epoch of a fresh release; `None` takes the cached one.
        """
        if isinstance(texts, Stored):
            raise ConfigError("An encoder-decoder's steps carry their own texts.", remedy="Pass the texts.")
        drawn = self._tokens(texts, look)
        # a draw that stands twice has the same bytes twice, so it is computed once
        places = {identity: place for place, identity in reversed(list(enumerate(drawn.identities)))}
        first = sorted(places.values())
        logits = self._once(drawn.select(torch.tensor(first)))
        at = {drawn.identities[place]: number for number, place in enumerate(first)}
        return logits[[at[identity] for identity in drawn.identities]]

    def next_token_losses(self, logits: Tensor, labels: Tokens) -> Ragged:
        """Negative log-likelihood of every token of each target text and of the mark that ends it, in nats.

        Args:
            logits: `[n, positions, vocabulary]`, what `forward` returned for `n` pairs.
            labels: Their true tokens.
        """
        _, target = labels.segments
        end = torch.tensor([self.archive.tokenizer.eos_token_id])
        followers = torch.cat([torch.cat([ids, end]) for ids in target.split()])
        return token_losses(logits, Ragged(followers, target.lengths + 1))

    @torch.no_grad()
    def begin(self, texts: GrowingTarget, source: Ragged) -> None:
        """Sends the source texts of a session, and keeps what the encoder makes of them.

        Args:
            texts: What grows then, in the same number for each source text.
            source: Ids of `n` source texts.
        """
        drawn = self.privatizer.tokens(Tokens((source,)), labels=None)
        boundary, inputs = self._embed_source(drawn.payload)
        rows = self._unpadded(self.archive.template, boundary, drawn.payload)
        release = drawn.carried_as(rows, f"source/{texts.link.moment}".encode())
        encoded = self._padded(self.archive.template, texts.link.infer(release, None), rows.segment_lengths)
        of = torch.arange(len(source)).repeat_interleave(texts.link.spec.sequences // len(source))
        texts.source = Source(encoded, inputs).select(of)
        texts.release = release.select(of)

    # ------------------------------------------------------------ the two ways

    def _once(self, drawn: Release) -> Tensor:
        """Logits of pairs of which none stands twice."""
        source, target = (Tokens((segment,)) for segment in _segments(drawn.payload))
        link, templates = self.link, (self.archive.template, self.archive.target_template)
        training = self.training and isinstance(link, Seq2SeqLink)
        if training and isinstance(link, Seq2SeqLink):
            seed_dropout(self._seed, link.step + 1)
        batch = hashlib.blake2b(b"".join(drawn.identities), digest_size=16).hexdigest()
        context = f"{self._moment}/{training}/{batch}"
        boundary, inputs = self._embed_source(source)
        below = self._unpadded(templates[0], boundary, source)
        released = drawn.carried_as(_as_sent(below), f"{context}/source".encode())
        if training and isinstance(link, Seq2SeqLink):
            output = _exchanged(below, link.source, released)
            seed_dropout(self._seed, link.step, part="target")
        else:
            output = self._asked(released)
        # the target's rows depend on the vendor's answer, to the bit, and are named after it
        context += f"/{hashlib.blake2b(output.detach().numpy().tobytes(), digest_size=16).hexdigest()}"
        answered = Source(self._padded(templates[0], output, below.segment_lengths), inputs)
        boundary, target_inputs = self._embed_target(answered, target)
        above = self._unpadded(templates[1], boundary, target)
        if training and isinstance(link, Seq2SeqLink):
            released = drawn.carried_as(_as_sent(above), f"{context}/target".encode())
            output = _exchanged(above, link.target, released, after=output)
            seed_dropout(self._seed, link.step, part="tail")
        else:
            pair = Rows.joined(_as_sent(below), _as_sent(above))
            output = self._asked(drawn.carried_as(pair, f"{context}/pair".encode()))
        hidden = self._padded(templates[1], output, above.segment_lengths)
        with self._products(self._tail):
            return self._tail.decode(answered.encoded, answered.inputs, target_inputs, hidden).float()

    def _asked(self, release: Release) -> Tensor:
        if self.link is None:
            raise ModelError("This session has no vendor to ask.", remedy="Give it a link.")
        return self.link.infer(release)

    @property
    def _moment(self) -> str:
        if not isinstance(self.link, Seq2SeqLink | QueryLink):
            raise ModelError("This session has no vendor to ask.", remedy="Give it a link.")
        return self.link.moment

    def _embed_source(self, tokens: Payload) -> tuple[Tensor, Inputs]:
        """The source texts' boundary `[n, source, width]`, and their mask."""
        inputs = self._embedded(self.archive.template, tokens)
        with self._products(self._bottom_part):
            boundary = self._bottom_part.encode(inputs).float()
        return boundary, Inputs(inputs.attention_mask, inputs.position_ids)

    def _embed_target(self, source: Source, tokens: Payload) -> tuple[Tensor, Inputs]:
        """The target texts' boundary `[n, target, width]`, and their mask."""
        inputs = self._embedded(self.archive.target_template, tokens)
        with self._products(self._bottom_part):
            boundary = self._bottom_part.decode(source.encoded, source.inputs, inputs).float()
        return boundary, Inputs(inputs.attention_mask, inputs.position_ids)

    def _embedded(self, template: Template, tokens: Payload) -> Inputs:
        (segment,) = _segments(tokens)
        return template.assemble(Tokens((segment,)), table=self._bottom_part.table).to(self.device)

    def _unpadded(self, template: Template, boundary: Tensor, tokens: Payload) -> Rows:
        (segment,) = _segments(tokens)
        return template.unpad(boundary.cpu(), Tokens((segment,)))

    def _padded(self, template: Template, rows: Tensor, segment_lengths: Tensor) -> Tensor:
        hidden, _ = template.from_rows(Rows(Ragged(rows, segment_lengths.sum(1)), segment_lengths))
        return hidden.to(self.device)

    # ------------------------------------------------------------ texts that grow

    @property
    def _opening(self) -> tuple[int, ...]:
        return self.archive.target_template.opening

    def _enter(self, texts: Growing, inputs: Inputs) -> Tensor:
        source = _source(texts)
        return self._bottom_part.decode(source.encoded, source.inputs, inputs, texts.bottom_cache)

    def _say(self, texts: Growing, hidden: Tensor, inputs: Inputs) -> Tensor:
        source = _source(texts)
        return self._tail.decode(source.encoded, source.inputs, inputs, hidden, texts.tail_cache)

    @property
    def _bottom_part(self) -> Seq2SeqBottom:
        if not isinstance(self.bottom, Seq2SeqBottom):
            raise ModelError("An encoder-decoder's embeddings are the customer's.", remedy="Use bottom 0 or more.")
        return self.bottom

    @property
    def _tail(self) -> Seq2SeqTail:
        if not isinstance(self.tail, Seq2SeqTail):
            raise ModelError("An encoder-decoder's head is the customer's.", remedy="Use tail 0 or more.")
        return self.tail


def _source(texts: Growing) -> Source:
    if not isinstance(texts, GrowingTarget) or texts.source is None:
        raise ModelError("Target texts grow after their source texts were sent.")
    return texts.source


def _segments(payload: Payload) -> tuple[Ragged, ...]:
    if isinstance(payload, Rows):
        raise ModelError("These texts went through the bottom already.")
    return payload.segments


def _as_sent(rows: Rows) -> Rows:
    """Rows without their graph."""
    return Rows(rows.packed.with_values(rows.packed.values.detach()), rows.segment_lengths)


def _exchanged(rows: Rows, leg: Leg, release: Release, *, after: Tensor | None = None) -> Tensor:
    """What one way brings back, with a graph to the rows even where nothing below is trained."""
    boundary = rows.packed.values
    if not boundary.requires_grad:
        boundary = boundary.requires_grad_()  # else backward never runs: see Exchange.forward
    output: Tensor = Exchange.apply(boundary, leg, release, after)  # type: ignore[no-untyped-call]
    return output
