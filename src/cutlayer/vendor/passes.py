"""Forward passes of the vendor's parts: of steps, of queries and of texts that grow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cutlayer.core import Payload, Ragged, Rows, Tokens
from cutlayer.models import Embeddings, Inputs, Part, Seq2SeqTop, Template
from cutlayer.serving.compute import Pieces, use_threads
from cutlayer.vendor.settings import VendorSettings
from cutlayer.wire.messages import AdapterInfo, JobSpec
from cutlayer.wire.tensors import encode_tensors


def prepare(payload: Payload, device: torch.device) -> Payload:
    """A release as the top computes on it: rows `[rows, width]` in fp32 on the device, ids as they are."""
    if not isinstance(payload, Rows):
        return payload
    values = payload.packed.values.to(device, torch.float32)
    return Rows(Ragged(values, payload.packed.lengths), payload.segment_lengths)


def divided(payload: Payload, template: Template, most: int) -> Iterator[Payload]:
    """A release in parts of at most so many positions, padding included, or of one text that has more.

    How it is divided follows from the release alone, so that its output does, too, to the last bit.

    Args:
        payload: `n` texts, whose outputs are to follow one another in the same order.
        template: Where special tokens stand in the texts.
        most: Positions.
    """
    first = longest = 0
    for at, length in enumerate(text_lengths(payload, template).tolist()):
        longest = max(longest, length)
        if at > first and (at + 1 - first) * longest > most:
            yield payload.select(torch.arange(first, at))
            first, longest = at, length
    yield payload.select(torch.arange(first, len(payload))) if first else payload


def text_lengths(payload: Payload, template: Template) -> Tensor:
    """`[n]` int64: positions of each of `n` texts, special tokens included."""
    if isinstance(payload, Rows):
        return payload.packed.lengths
    ids = torch.stack([segment.lengths for segment in payload.segments]).sum(0)
    return ids + template.special_count(len(payload.segments))


def writes(spec: JobSpec | AdapterInfo) -> bool:
    """Whether the vendor holds all that writes target texts, and the texts: it learns from both of a pair's ids."""
    return spec.num_labels is None and spec.cut.tail is None


def write(part: Seq2SeqTop, templates: Sequence[Template], payload: Payload, device: torch.device) -> Tensor:
    """What the target texts of pairs come to, `[n, 2]`; see `Seq2SeqTop.log_likelihood`.

    Args:
        part: A whole encoder-decoder, adapted.
        templates: Where special tokens stand in source texts and in target texts.
        payload: Ids of `n` pairs.
        device: Where to compute.
    """
    if isinstance(payload, Rows):
        raise TypeError("pairs are learnt from as ids")
    source, target = (
        template.assemble(Tokens((side,))).to(device)
        for template, side in zip(templates, payload.segments, strict=True)
    )
    return part.log_likelihood(source, target)


def rows_of(payload: Payload) -> Rows:
    """A release of an encoder-decoder's texts, which travel as rows.

    Raises:
        TypeError: It holds ids.
    """
    if not isinstance(payload, Rows):
        raise TypeError("an encoder-decoder's texts travel as rows")
    return payload


def compute(part: Part | Embeddings, template: Template, payload: Payload, device: torch.device) -> Tensor:
    """The output of a top that takes one release; special tokens of ids are added here.

    Args:
        part: The adapted top, or what makes embeddings.
        template: Where special tokens stand.
        payload: `n` texts, made ready by `prepare`.
        device: Where to compute.

    Returns:
        Logits `[texts, labels]`, embeddings `[texts, width]`, or the rows `[rows, width]` of the upper boundary,
        padding left out.
    """
    hidden = None
    if isinstance(payload, Rows):
        hidden, inputs = template.from_rows(payload)
    else:
        inputs = template.assemble(payload)
    inputs = inputs.to(device)
    output: Tensor = part(inputs, hidden)
    return output if part.has_head else output[inputs.attention_mask.bool()]


@dataclass(frozen=True)
class Encoded:
    """Source texts after the encoder.

    Attributes:
        states: `[n, virtual + source, width]`: a prompt's positions, if there is one, stand before the text's.
        inputs: The text's mask.
    """

    states: Tensor
    inputs: Inputs

    def select(self, indices: Tensor) -> Encoded:
        """The texts at `indices` `[m]`, in that order; a text may be there several times."""
        chosen = indices.to(self.states.device)
        mask, positions = self.inputs.attention_mask[chosen], self.inputs.position_ids[chosen]
        return Encoded(self.states[chosen], Inputs(mask, positions))

    @property
    def rows(self) -> Tensor:
        """`[rows, width]`: the text's states, without padding."""
        mask = self.inputs.attention_mask.bool()
        return self.states[:, -mask.shape[1] :][mask]


def encode(part: Seq2SeqTop, template: Template, source: Rows, device: torch.device) -> Encoded:
    """Source texts through the vendor's encoder blocks.

    Args:
        part: The adapted top.
        template: Where special tokens stand in a source text.
        source: `n` texts, made ready by `prepare`.
        device: Where to compute.
    """
    hidden, inputs = template.from_rows(source)
    inputs = inputs.to(device)
    return Encoded(part.encode(inputs, hidden), inputs)


def decode(part: Seq2SeqTop, template: Template, encoded: Encoded, target: Rows, device: torch.device) -> Tensor:
    """Target texts through the vendor's decoder blocks: rows `[rows, width]` of the upper boundary.

    Args:
        part: The adapted top.
        template: Where special tokens stand in a target text.
        encoded: The source texts.
        target: `n` texts, made ready by `prepare`.
        device: Where to compute.
    """
    hidden, inputs = template.from_rows(target)
    inputs = inputs.to(device)
    upper = part.decode(encoded.states, encoded.inputs, inputs, hidden)
    return upper[inputs.attention_mask.bool()]


def infer(part: Part, templates: Sequence[Template], payload: Payload, device: torch.device) -> Tensor:
    """The answer to a query.

    Args:
        part: The adapted top, in evaluation mode.
        templates: Where special tokens stand in the texts; of an encoder-decoder in source texts and in target texts.
        payload: `n` texts; for an encoder-decoder source texts, or pairs of source and target.
        device: Where to compute.

    Returns:
        Logits `[n, labels]`, or rows `[rows, width]` of the upper boundary, padding left out. For source texts alone
        rows of the encoder's output; for pairs of ids what `write` returns.
    """
    payload = prepare(payload, device)
    if not isinstance(part, Seq2SeqTop) or part.label_words is not None:
        return compute(part, templates[0], payload, device)
    if not isinstance(payload, Rows):
        return write(part, templates, payload, device)
    source, *targets = rows_of(payload).parted()
    encoded = encode(part, templates[0], source, device)
    return decode(part, templates[1], encoded, targets[0], device) if targets else encoded.rows


def in_pieces(
    payload: Payload,
    template: Template,
    most: int,
    *,
    threads: int,
    of_texts: bool,
    run: Callable[[Payload], Tensor],
) -> Pieces[Tensor]:
    """The answer to a query, others being served between its pieces.

    Args:
        payload: `n` texts.
        template: Where special tokens stand in the texts.
        most: Positions of a piece.
        threads: Compute threads to use.
        of_texts: Whether each text has one line of the answer. Then texts of about one length share a piece, of which
            little is padding.
        run: Answers a piece.

    Returns:
        The texts' answers, one after the other: logits `[n, labels]`, or rows `[rows, width]`.
    """
    outputs: list[Tensor] = []
    lengths, order = text_lengths(payload, template), None
    if of_texts and len(payload) * int(lengths.max()) > most:
        order = lengths.argsort(stable=True)
        payload = payload.select(order)
    for piece in divided(payload, template, most):
        if outputs:
            yield
        use_threads(threads)
        outputs.append(run(piece))
    output = torch.cat(outputs)
    return output if order is None else output[order.argsort().to(output.device)]


def answered(
    payload: Payload,
    template: Template,
    settings: VendorSettings,
    run: Callable[[Payload], Tensor],
    *,
    of_texts: bool,
    bf16: bool = False,
) -> Pieces[bytes]:
    """The same as a frame's body, of a part that nothing is learnt by.

    Args:
        payload: `n` texts.
        template: Where special tokens stand in the texts.
        settings: The vendor's: how large pieces are, and on how many threads they are computed.
        run: Answers a piece by a tensor `[texts, labels]`, or `[rows, width]`.
        of_texts: As of `in_pieces`.
        bf16: Whether the answer travels in bf16, and not in fp32.
    """
    output = yield from in_pieces(
        payload,
        template,
        settings.limits.positions_per_piece,
        threads=settings.compute_threads,
        of_texts=of_texts,
        run=torch.no_grad()(run),
    )
    return encode_tensors({"output": output.to("cpu", torch.bfloat16 if bf16 else torch.float32)})
