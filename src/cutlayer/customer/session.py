"""The one road: text in, the vendor's answer out, gradients back along the same way.

`Session.forward` is the only forward pass. Training calls `loss(...).backward()`; evaluation and
prediction call the same forward in evaluation mode; releasing a corpus once is the first half of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from transformers import Cache

from cutlayer.core import Cut, ModelError, Payload, Ragged, Rows, Tokens, VendorError
from cutlayer.customer.derived import Privatizing
from cutlayer.customer.link import Exchange, GenerationLink, Link, QueryLink, Stored
from cutlayer.customer.threads import threads_for
from cutlayer.customer.tuning import AnyBottom, AnyTail, Tuned, put_back, trained_parameters
from cutlayer.models import (
    Archive,
    Bottom,
    Decoding,
    Inputs,
    Part,
    Tail,
    seed_dropout,
    weights_of,
)
from cutlayer.models.cutting import block_list
from cutlayer.models.label_words import mean_loss
from cutlayer.privacy import Excerpts, Privatizer, Release, Vault
from cutlayer.privacy.release import IDENTITY_BYTES
from cutlayer.wire import Form, Precision, WireType, decode_tensors, encode_tensors, pack, routes, unpack

BOTTOM_BATCH = 64
"""Texts that go through the bottom at a time when nothing is trained."""
_NOTHING = -100
"""Stands where no token is predicted."""


@dataclass(frozen=True)
class Texts:
    """Texts on the customer's side of the gate.

    Attributes:
        tokens: Their token ids.
        cti_classes: `[n]` int64, the class whose utility importance sets each text's eta (SAP eq. 6);
            `None` where noise must not depend on the label: without CTI, at inference, class-free.
        public: Whether anybody may read them: they leave as they are.
        excerpts: What the tokens are cut out of, where these are blocks of joined texts.
        trained: Whether they are trained on, so that plain words may stand before them.
        apart: Whether equal texts are stored as records of their own: nothing else says how many there are.
    """

    tokens: Tokens
    cti_classes: Tensor | None = None
    public: bool = False
    excerpts: Excerpts | None = None
    trained: bool = False
    apart: bool = False

    def __len__(self) -> int:
        return len(self.tokens)

    def select(self, indices: Tensor) -> Texts:
        """The texts at `indices`, `[chosen]` int64, in that order."""
        classes = None if self.cti_classes is None else self.cti_classes[indices]
        excerpts = None if self.excerpts is None else self.excerpts.select(indices)
        return replace(self, tokens=self.tokens.select(indices), cti_classes=classes, excerpts=excerpts)


def _cache(part: Part) -> Cache | None:
    """Where a part's blocks keep keys and values; None for a part whose decoder has none."""
    return part.new_cache() if len(block_list(part.model, part.family.stacks[-1])) else None


class Growing:
    """Texts of one generation session, on the customer's side of the gate.

    Args:
        link: The session's frames.
        bottom: The customer's lower part; its blocks keep their keys and values here.
        tail: The upper part.

    Attributes:
        decoding: Which positions are real.
        release: The prompts', once they have left: under its names the texts are listed.
        ids: Of each text all tokens that left, its prompt first.
        bottom_weights: Of the bottom, that each position is multiplied with.
        tail_weights: Of the tail.
    """

    def __init__(self, link: GenerationLink, bottom: AnyBottom | None, tail: AnyTail | None) -> None:
        self.link = link
        self.decoding = Decoding(link.spec.sequences)
        self.bottom_cache, self.tail_cache = (None if part is None else _cache(part) for part in (bottom, tail))
        self.bottom_weights, self.tail_weights = (0 if part is None else weights_of(part) for part in (bottom, tail))
        self.release: Release | None = None
        self.ids: list[list[int]] = [[] for _ in range(link.spec.sequences)]

    def reorder(self, parents: Tensor) -> None:
        """Has text `i` go on from what text `parents[i]` was; `parents` is `[n]` int64."""
        self.decoding.reorder(parents)
        for cache in (self.bottom_cache, self.tail_cache):
            if cache is not None:
                cache.reorder_cache(parents)  # type: ignore[arg-type]  # any integers will do
        self.ids = [list(self.ids[parent]) for parent in parents.tolist()]
        if self.release is not None:
            self.release = self.release.select(parents)

    def grow(self, new: Ragged) -> Excerpts:
        """Takes each text's next tokens; returns which part of it they are."""
        parts = []
        for number, tokens in enumerate(new.split()):
            before = len(self.ids[number])
            self.ids[number] += tokens.tolist()
            parts.append(((number, before, len(self.ids[number])),))
        return Excerpts(Ragged.from_lists(self.ids), tuple(parts))


@dataclass(frozen=True)
class Drawn:
    """Texts after the first half of the road.

    Attributes:
        release: What may leave.
        boundary: Rows with a graph back to the bottom's parameters, where those are trained.
    """

    release: Release
    boundary: Tensor | None = None


def next_tokens(inputs: Inputs) -> Ragged:
    """Ids of all tokens but the first of each text, special tokens among them."""
    if inputs.input_ids is None:
        raise ModelError("Losses need the true token ids.")
    predicted = inputs.attention_mask[:, 1:].bool()
    return Ragged(inputs.input_ids[:, 1:][predicted], predicted.sum(1))


def token_losses(logits: Tensor, followers: Ragged, *, last: Tensor | None = None) -> Ragged:
    """Negative log-likelihood of the tokens that follow a text's first positions, in nats.

    Args:
        logits: `[n, positions, vocabulary]`.
        followers: Ids of `n` texts, the first of which is to be predicted at position 0.
        last: `[n]` int64: how many of each text's are predicted, its last ones; `None` for all of them.
    """
    if last is not None:
        place = torch.arange(len(followers.values)) - followers.offsets[:-1].repeat_interleave(followers.lengths)
        known = place < (followers.lengths - last).repeat_interleave(followers.lengths)
        followers = followers.with_values(followers.values.masked_fill(known, _NOTHING))
    # Positions that predict nothing are left out after the loss: the gradient of picking rows of logits takes as long
    # as the loss itself.
    targets = followers.padded(_NOTHING)
    targets = nn.functional.pad(targets, (0, logits.shape[1] - targets.shape[1]), value=_NOTHING).flatten()
    losses = nn.functional.cross_entropy(
        logits.flatten(0, 1), targets.to(logits.device), reduction="none", ignore_index=_NOTHING
    )
    return Ragged(losses[(targets != _NOTHING).to(losses.device)], followers.lengths if last is None else last)


@dataclass(frozen=True)
class Releasing:
    """How texts become releases.

    Attributes:
        privatizing: How texts are read and privatized.
        public: The same for public texts, which leave as they are.
        form: What a release is made of on the wire.
        wire_type: Element type of boundary rows on the wire.
        vault: Where released rows are kept, so that the same identity gives the same bytes.
    """

    privatizing: Privatizing
    public: Privatizer
    form: Form
    wire_type: WireType
    vault: Vault


class Session(nn.Module):
    """Bottom, privatizer, gate and tail of one customer, as a module.

    Args:
        archive: What the vendor handed out: tokenizer, template.
        parts: The bottom and tail that came with it, made ready for training.
        releasing: How texts become releases.
        link: A job's steps, or a published adapter.
        seed: Seed of the parts' dropout, which the vendor must not know.
        precision: Element type of matrix products of parts that are trained, while they are.
        device: Where they are computed.
    """

    def __init__(
        self,
        *,
        archive: Archive,
        parts: Tuned,
        releasing: Releasing,
        link: Link | QueryLink | None,
        seed: int,
        precision: Precision = Precision.FP32,
        device: torch.device | None = None,
    ) -> None:
        super().__init__()
        self.archive = archive
        self.reading = releasing.privatizing.reading
        self.privatizer = releasing.privatizing.privatizer
        self._training = releasing.privatizing.training
        self._public = releasing.public
        self.link = link
        self.form = releasing.form
        self.wire_type = releasing.wire_type
        self.vault = releasing.vault
        self.train_bottom = parts.trains_bottom
        self.device = device or torch.device("cpu")
        self.bottom = None if parts.bottom is None else parts.bottom.to(self.device)
        self.tail = None if parts.tail is None else parts.tail.to(self.device)
        self._seed = seed
        self._precision = precision
        self.train(False)

    def train(self, mode: bool = True) -> Session:
        """Switches to training or evaluation; a frozen bottom always evaluates, without dropout."""
        super().train(mode)
        if self.bottom is not None and not self.train_bottom:
            self.bottom.eval()
        return self

    def forward(self, texts: Texts | Stored, *, look: int | None = None) -> Tensor:
        """What the model computes for texts, or for records that the vendor already holds.

        Args:
            texts: `n` texts.
            look: The epoch of a fresh release; `None` takes the cached one.

        Returns:
            Logits `[n, labels]`, or `[n, positions, vocabulary]` where the customer holds the tail.
        """
        sent: Release | Stored
        boundary = None
        if isinstance(texts, Texts):
            drawn = self._draw(texts, look)
            sent, boundary = drawn.release, drawn.boundary
        else:
            sent = texts
        if self.link is None:
            raise VendorError("This session has no vendor to ask.", remedy="Give it a link.")
        if not self.training:
            return self._finish(self.link.infer(sent), self.segment_lengths(texts))
        if boundary is None:
            boundary = torch.zeros((), requires_grad=True)  # frozen: see Exchange.forward
        output: Tensor = Exchange.apply(boundary, self.link, sent)  # type: ignore[no-untyped-call]
        return self._finish(output, self.segment_lengths(texts))

    def loss(self, texts: Texts | Stored, labels: Tensor | Tokens, *, look: int | None = None) -> Tensor:
        """Mean cross-entropy, of words too where labels are. They are an argument of the loss, never of `forward`.

        Args:
            texts: `n` texts.
            labels: `[n]` int64, or the true tokens, of which each is to be predicted from those before it.
            look: As in `forward`.
        """
        output = self(texts, look=look)
        if isinstance(labels, Tensor):
            return mean_loss(output, labels, written=self.archive.manifest.target_template is not None)
        return self.next_token_losses(output, labels).values.mean()

    def next_token_losses(self, logits: Tensor, labels: Tokens) -> Ragged:
        """Negative log-likelihood of every token but the first of each text, special tokens among them, in nats.

        Args:
            logits: `[n, positions, vocabulary]`, what `forward` returned for `n` texts.
            labels: The tokens to be predicted, from those before them. Of pairs what is not predicted, and the target
                texts behind it.

        Returns:
            Losses of `n` texts.
        """
        template = self.archive.template
        if len(labels.segments) == 1:
            return token_losses(logits, next_tokens(template.assemble(labels)))
        source, target = labels.segments
        pieces = zip(source.split(), target.split(), strict=True)
        joined = Ragged(torch.cat([piece for pair in pieces for piece in pair]), source.lengths + target.lengths)
        followers = next_tokens(template.assemble(Tokens((joined,))))
        return token_losses(logits, followers, last=target.lengths + len(template.single.specials[-1]))

    def segment_lengths(self, texts: Texts | Stored) -> Tensor:
        """`[n, segments]` int64: positions of each text as it leaves, special tokens included."""
        if isinstance(texts, Stored):
            return texts.segment_lengths
        return self.archive.template.segment_lengths(self._privatizer_of(texts).shape(texts.tokens))

    def _privatizer_of(self, texts: Texts) -> Privatizer:
        if texts.public:
            return self._public
        return self._training if texts.trained else self.privatizer

    def _finish(self, output: Tensor, segment_lengths: Tensor) -> Tensor:
        """The tail, where there is one: from rows of the upper boundary to logits, padding on the right."""
        if self.tail is None:
            return output
        if not isinstance(self.tail, Tail):
            raise ModelError("An encoder-decoder's tail needs the encoder's output.")
        if self.training and isinstance(self.link, Link):
            seed_dropout(self._seed, self.link.step, part="tail")
        rows = Rows(Ragged(output, segment_lengths.sum(1)), segment_lengths)
        hidden, inputs = self.archive.template.from_rows(rows)
        with self._products(self.tail):
            logits: Tensor = self.tail(hidden.to(self.device), inputs.to(self.device))
        return logits.float()  # many times a boundary's size, so its losses are computed where it is

    def _products(self, part: nn.Module) -> torch.autocast:
        """The type of a part's matrix products. What is released once, or answered, does not depend on it."""
        half = self._precision is Precision.BF16 and part.training
        return torch.autocast(self.device.type, torch.bfloat16, enabled=half)

    @torch.no_grad()
    def release(self, texts: Texts, *, look: int | None = None) -> Drawn:
        """What would leave for these texts: the first half of `forward`."""
        return self._draw(texts, look)

    def count_replaced(self, texts: Texts, *, look: int | None = None) -> int | None:
        """How many tokens a draw replaces; nothing is computed from it or sent."""
        replaced = self._tokens(texts, look).replaced
        return None if replaced is None else int(replaced.sum())

    def _draw(self, texts: Texts, look: int | None) -> Drawn:
        """Tokens → privatize → bottom → privatize."""
        drawn = self._tokens(texts, look)
        if self.form is Form.IDS:
            return Drawn(drawn)
        if self.train_bottom and isinstance(self.link, Link):
            # the bottom changes with every step, so the same draw has other bytes, and another identity
            seed_dropout(self._seed, self.link.step + 1)
            rows = self._bottom_once(drawn)
            # bits depend on batch and machine: a draw may leave as several releases, which are no second look
            bits = hashlib.blake2b(rows.packed.values.detach().contiguous().numpy().data, digest_size=16).hexdigest()
            context = f"{self.link.moment}/{self.training}/{bits}".encode()
            return Drawn(drawn.carried_as(rows, context), rows.packed.values)
        return Drawn(self._kept(drawn))

    def _tokens(self, texts: Texts, look: int | None) -> Release:
        """The tokens' draw; public texts leave as they are."""
        drawn = self._privatizer_of(texts).tokens(
            texts.tokens, labels=texts.cti_classes, look=look, excerpts=texts.excerpts
        )
        return replace(drawn, public=texts.public)

    def _bottom(self, tokens: Payload) -> Rows:
        """The bottom's output at all real positions of drawn tokens."""
        if self.bottom is None:
            raise ModelError("A text cut has no bottom.", remedy="Use bottom 0 or more.")
        if isinstance(tokens, Rows):
            raise ModelError("These texts went through the bottom already.")
        template = self.archive.template
        inputs = template.assemble(tokens, table=self.bottom.table)
        with self._products(self.bottom):
            rows = self.bottom(inputs.to(self.device))
        return template.unpad(rows.float().cpu(), tokens)

    def _bottom_once(self, drawn: Release) -> Rows:
        """Rows of a batch in which a draw that stands twice is computed once, to the same bits."""
        places = {identity: place for place, identity in reversed(list(enumerate(drawn.identities)))}
        first = sorted(places.values())
        at = {drawn.identities[place]: number for number, place in enumerate(first)}
        rows = self._bottom(drawn.payload.select(first))
        return rows.select([at[identity] for identity in drawn.identities])

    def _kept(self, drawn: Release) -> Release:
        """Rows of a draw, as they were when they were first made.

        The bits of a boundary depend on the batch it was computed in, so rows are kept (sealed) and
        an identity gives the same bytes for ever. Rows of the table follow from the secret, as ids do.
        """
        weights = self.link.moment if self.train_bottom and self.link is not None else "frozen"
        rows_of = f"{self.archive.fingerprint}/{self.archive.manifest.cut.slug}/{weights}"
        if self.archive.manifest.cut == Cut(bottom=0) and drawn.pending is None:
            rows = unpack(pack(self._bottom_once(drawn), vocab_size=0, wire_type=self.wire_type))
            return drawn.carried_as(rows, f"{rows_of}/{self.wire_type}".encode())
        # rows with noise are kept exactly: made again for another wire type, in another batch, they would be a new look
        kept_as = self.wire_type if drawn.pending is None else WireType.FP32
        keys = drawn.carried_as(drawn.payload, f"{rows_of}/{kept_as}".encode()).identities
        found = zip(keys, self.vault.get_many(keys), strict=True)
        kept = {key: body for key, body in found if body is not None}
        missing = [place for place, key in enumerate(keys) if key not in kept]
        for start in range(0, len(missing), BOTTOM_BATCH):
            chosen = torch.tensor(missing[start : start + BOTTOM_BATCH])
            part = drawn.select(chosen)
            made = self.privatizer.activations(part, self._bottom(part.payload))
            bodies = (pack(made.payload.select([at]), vocab_size=0, wire_type=kept_as) for at in range(len(made)))
            sealed = zip(chosen.tolist(), made.item_draws, bodies, strict=True)
            kept |= self.vault.put_many({keys[place]: draw + encode_tensors(body) for place, draw, body in sealed})
        texts = [unpack(decode_tensors(routes.SHARD_PUT, kept[key][IDENTITY_BYTES:])) for key in keys]
        return drawn.recalled(
            Rows.concatenate([text for text in texts if isinstance(text, Rows)]),
            f"{rows_of}/{self.wire_type}".encode(),
            draws=tuple(kept[key][:IDENTITY_BYTES] for key in keys),
        )

    # ------------------------------------------------------------ texts that grow

    @torch.no_grad()
    def grow(self, texts: Growing, new: Ragged, *, parents: Tensor | None = None) -> Tensor:
        """The same road for the next tokens of texts: tokens → privatize → bottom → privatize → wire → top → tail.

        Args:
            texts: The texts so far; they grow by this.
            new: Ids of each text's next tokens, of the whole prompt at first; none for a text that has ended.
            parents: `[n]`, which text each one goes on from; `None`: from itself.

        Returns:
            Logits `[n, vocabulary]` of the token that follows; arbitrary for a text that has ended.
        """
        if parents is not None:
            texts.reorder(parents)
        drawn = self.privatizer.tokens(Tokens((new,)), labels=None, excerpts=texts.grow(new))
        opening = torch.tensor(() if texts.decoding.mask.shape[1] else self._opening, dtype=torch.int64)
        inputs = texts.decoding.grow(new.lengths + len(opening))
        sent = drawn if self.form is Form.IDS else self._grown_rows(texts, drawn, opening, inputs)
        # the tokens of one text leave one after the other, each noised once: no further look at it
        sent = sent.continuing(texts.release)
        texts.release = texts.release or sent
        output = texts.link.infer(sent, parents)
        if self.tail is None:
            raise ModelError("Texts grow at the customer, who needs the tail for it.")
        if texts.tail_cache is None:
            hidden = output.new_zeros(len(new), output.shape[1])
            hidden[new.lengths + len(opening) > 0] = output
            ended = torch.zeros(len(new), 1, dtype=torch.int64)
            hidden, inputs = hidden[:, None], Inputs(ended + 1, ended)
        else:
            hidden = texts.decoding.pad(Ragged(output, new.lengths + len(opening)), inputs)
        with threads_for(texts.tail_weights, hidden.shape[:2].numel()):
            return self._say(texts, hidden.to(self.device), inputs.to(self.device))[:, -1].cpu()

    @property
    def _opening(self) -> tuple[int, ...]:
        """Special ids that a text to be grown begins with."""
        return self.archive.template.opening

    def _say(self, texts: Growing, hidden: Tensor, inputs: Inputs) -> Tensor:
        """The tail's logits for new positions of growing texts."""
        if not isinstance(self.tail, Tail):
            raise ModelError("An encoder-decoder's tail needs the encoder's output.")
        logits: Tensor = self.tail(hidden, inputs, texts.tail_cache)
        return logits

    def _enter(self, texts: Growing, inputs: Inputs) -> Tensor:
        """The bottom's output for new positions of growing texts."""
        if not isinstance(self.bottom, Bottom):
            raise ModelError("An encoder-decoder's bottom needs the encoder's output.")
        hidden: Tensor = self.bottom(inputs, texts.bottom_cache)
        return hidden

    def _grown_rows(self, texts: Growing, drawn: Release, opening: Tensor, inputs: Inputs) -> Release:
        """The bottom's rows of drawn tokens, with its keys and values of what stands before."""
        if self.bottom is None or not isinstance(drawn.payload, Tokens):
            raise ModelError("A text cut has no bottom.", remedy="Use bottom 0 or more.")
        (new,) = drawn.payload.segments
        table = self.bottom.table.detach()
        # looked up where the table is: to move it for a token would take longer than the token
        rows = new.with_values(
            new.values if new.values.is_floating_point() else table[new.values.to(table.device)].cpu()
        )
        rows = rows.preceded_by(table[opening.to(table.device)].cpu())
        embedded = replace(inputs, inputs_embeds=texts.decoding.pad(rows, inputs)).to(self.device)
        with threads_for(texts.bottom_weights, inputs.position_ids.numel()):
            hidden = self._enter(texts, embedded).cpu()
        packed = Ragged(hidden[texts.decoding.new(inputs)], rows.lengths)
        made = self.privatizer.activations(drawn, Rows(packed, rows.lengths[:, None]))
        return made.carried_as(made.payload, texts.link.moment.encode())

    # ------------------------------------------------------------ trained parts

    def trained(self) -> dict[str, nn.Parameter]:
        """The customer's parameters that training changes, by whole-model name; tied ones once."""
        return trained_parameters(self.bottom, self.tail)

    def copies(self) -> dict[str, nn.Parameter]:
        """Of these, what all blocks of a stack use, by stack: the vendor holds copies of it."""
        held: dict[str, nn.Parameter] = {}
        for part in (self.bottom, self.tail):
            held |= {} if part is None else part.shared_parameters()
        return {path: value for path, value in held.items() if value.requires_grad}

    def load_trained(self, tensors: Mapping[str, Tensor]) -> None:
        """Puts back what `trained` held at some step."""
        put_back(self.trained(), tensors)
