"""What arrives is what the job or the record set says it is, checked from the outside in.

Shapes are checked from a body's first bytes, before the rest is read; values are checked before
anything is computed from them. Checks of stored shards use numpy: torch belongs to the compute thread.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cutlayer.core import Payload, Ragged, Tokens
from cutlayer.models import BeamSearch, Template
from cutlayer.vendor.catalogue import ModelCard
from cutlayer.vendor.passes import rows_of
from cutlayer.vendor.problems import unacceptable
from cutlayer.wire import Form, WireType, routes, unpack
from cutlayer.wire.messages import AdapterInfo, JobSpec, RecordSetSpec

Agreed = JobSpec | RecordSetSpec | AdapterInfo
"""What says how releases look: model, cut, form, segments, element type."""

Header = Mapping[str, tuple[str, tuple[int, ...]]]
_BLOCK = 2**22
_RECORDS = 2**14
"""Texts whose lengths are summed at a time."""
_BF16_EXPONENT = 0x7F80
_F32_EXPONENT = 0x7F800000


def check_form(spec: Agreed, roles: Collection[str]) -> None:
    """Checks that a frame holds a release of the form that was agreed.

    Args:
        spec: What was agreed.
        roles: What the frame holds.

    Raises:
        Refusal: It holds another form.
    """
    if spec.form.value not in roles:
        raise unacceptable(
            "wrong-form",
            f"The frame holds {'+'.join(sorted(roles))}; the form agreed on is {spec.form}.",
            remedy="Send that form, or agree on another.",
        )


def check_shapes(card: ModelCard, spec: Agreed, header: Header) -> None:
    """Checks the element types and shapes of a release.

    Args:
        card: The model it is for.
        spec: Form, cut, element type and number of segments that were agreed.
        header: Element types and shapes by role.

    Raises:
        Refusal: The release is of another form, width, element type or number of segments.
    """
    check_form(spec, header)
    dtype, shape = header[spec.form.value]
    texts, segments = header["lengths"][1]
    if segments != spec.segments:
        raise unacceptable(
            "wrong-shape",
            f"lengths has {segments} columns; {spec.segments} segments a text were agreed on.",
            remedy="Send one column of lengths per segment.",
        )
    if texts == 0:
        raise unacceptable("wrong-shape", "The frame holds no texts.", remedy="Send at least one.")
    if spec.form is Form.IDS:
        return
    width = card.row_width(spec.cut)
    agreed = "BF16" if spec.wire_type is WireType.BF16 else "F32"
    if dtype != agreed or shape[1] != width:
        raise unacceptable(
            "wrong-shape",
            f"rows is {dtype}{list(shape)}; {agreed}[n, {width}] is what cut {spec.cut.slug} takes.",
            remedy="Cut the model where the spec says, and send rows in its element type.",
        )


def check_preceding_shapes(spec: RecordSetSpec, header: Header) -> None:
    """Checks the shapes of what is told of public words before stored texts.

    Args:
        spec: How many words were agreed.
        header: Element types and shapes by role.

    Raises:
        Refusal: There are others, or none.
    """
    texts, told = header["lengths"][1][0], header.get("preceding")
    if not spec.plain_tokens and told is None:
        return
    agreed = [texts, spec.plain_tokens], [texts]
    found = [] if told is None else [list(header[role][1]) for role in ("preceding", "sequences")]
    if not spec.plain_tokens or found != list(agreed):
        raise unacceptable(
            "wrong-shape",
            f"preceding and sequences are {found or 'not there'}; plain_tokens = {spec.plain_tokens} was agreed on.",
            remedy="Tell of each text the pieces of each plain word before it, and which sequence it has.",
        )


def check_preceding(
    spec: RecordSetSpec,
    preceding: NDArray[np.unsignedinteger],
    sequences: NDArray[np.unsignedinteger],
    lengths: NDArray[np.integer],
) -> None:
    """Checks what is told of public words before stored texts, some at a time.

    Args:
        spec: How many sequences were agreed.
        preceding: `[texts, words]`: of how many items each word is.
        sequences: `[texts]`: which words they are.
        lengths: `[texts, segments]`.

    Raises:
        Refusal: A text has fewer items than its words, or a sequence is none that was agreed.
    """
    for start in range(0, len(lengths), _RECORDS):
        some = slice(start, start + _RECORDS)
        if (preceding[some].sum(1, dtype=np.int64) > lengths[some, 0]).any():
            raise unacceptable(
                "wrong-lengths",
                "A text is said to have more pieces of plain words than it has ids.",
                remedy="Count the pieces that are left of each word where a text is cut.",
            )
        if int(sequences[some].max()) >= spec.plain_sequences:
            raise unacceptable(
                "sequence-out-of-range",
                f"sequences names {int(sequences[some].max())}; plain_sequences = {spec.plain_sequences} was agreed.",
                remedy="Number the sequences from 0.",
            )


def check_lengths(
    card: ModelCard, spec: Agreed, lengths: NDArray[np.integer], items: int, *, template: Template | None = None
) -> None:
    """Checks how a release is divided into texts, some at a time: a shard's may be many.

    Args:
        card: The model it is for.
        spec: Form and number of segments that were agreed.
        lengths: `[texts, segments]`.
        items: How many ids or rows there are.
        template: Where special tokens stand; the model's own by default.

    Raises:
        Refusal: The lengths do not add up, or a text is too long for the model or too short for its
            special tokens.
    """
    if int(lengths.sum()) != items:
        raise unacceptable(
            "wrong-lengths",
            f"lengths add up to {int(lengths.sum())}, but there are {items} {spec.form}.",
            remedy="Send one length per text and segment.",
        )
    for start in range(0, len(lengths), _RECORDS):
        _check_each(card, spec, lengths[start : start + _RECORDS], template or card.template)


def _check_each(card: ModelCard, spec: Agreed, lengths: NDArray[np.integer], template: Template) -> None:
    layout = template.layout(spec.segments)
    added = 0
    if spec.form is Form.IDS:
        added = layout.special_count
    else:
        least = np.array([layout.closing(segment) for segment in range(spec.segments)])
        if (lengths < least).any():
            raise unacceptable(
                "wrong-lengths",
                f"A text has fewer rows than the {least.tolist()} that its special tokens take.",
                remedy="Send the rows of special tokens with each segment.",
            )
    totals = lengths.sum(1, dtype=np.int64) + added
    if int(totals.min()) == 0:
        raise unacceptable(
            "wrong-lengths",
            "A text holds nothing and this model adds no special tokens.",
            remedy="Leave empty texts out.",
        )
    check_longest(card, int(totals.max()), spec.virtual_positions)


def check_longest(card: ModelCard, longest: int, virtual: int) -> None:
    """Checks that a model has the positions that a text takes.

    Args:
        card: The model.
        longest: Positions of the longest text, special tokens included.
        virtual: Positions that a method puts before each text.

    Raises:
        Refusal: It has fewer.
    """
    if longest + virtual > card.info.max_length:
        before = f" behind {virtual} virtual ones" if virtual else ""
        raise unacceptable(
            "text-too-long",
            f"A text takes {longest} positions{before}; {card.info.name} has {card.info.max_length}.",
            remedy="Truncate before privatizing.",
        )


def check_ids(card: ModelCard, ids: NDArray[np.integer]) -> None:
    """Checks that token ids are in the vocabulary.

    Args:
        card: The model they are for.
        ids: `[tokens]`, none negative.

    Raises:
        Refusal: One is beyond the vocabulary.
    """
    if len(ids) and int(ids.max()) >= card.info.vocab_size:
        raise unacceptable(
            "id-out-of-range",
            f"A token id is {int(ids.max())}; {card.info.name} has ids 0 to {card.info.vocab_size - 1}.",
            remedy="Tokenise with the tokenizer of the model's archive.",
        )


def check_finite(bits: NDArray[np.integer], *, exponent: int) -> None:
    """Checks stored floats by their bits, a block at a time.

    Args:
        bits: `[numbers]`: the floats' bits.
        exponent: Mask of the exponent: all ones there means infinite or no number.

    Raises:
        Refusal: A value is not finite.
    """
    for start in range(0, len(bits), _BLOCK):
        block = bits[start : start + _BLOCK]
        if ((block & exponent) == exponent).any():
            raise unacceptable(
                "not-finite",
                "rows holds values that are not finite.",
                remedy="Look for divisions by zero before the boundary.",
            )


def check_stored_rows(bits: NDArray[np.integer], wire_type: WireType) -> None:
    """Checks that rows of a shard are finite.

    Args:
        bits: `[rows * width]`: their bits.
        wire_type: Their element type.

    Raises:
        Refusal: A value is not finite.
    """
    check_finite(bits, exponent=_BF16_EXPONENT if wire_type is WireType.BF16 else _F32_EXPONENT)


def check_count(texts: int, limit: int) -> None:
    """Checks how many texts a batch holds, before anything is done for each of them.

    Raises:
        Refusal: Even of one position each they were more than one forward pass may be.
    """
    if texts > limit:
        raise unacceptable(
            "batch-too-large",
            f"{texts} texts take at least one position each; one pass takes {limit}.",
            remedy="Send fewer texts at a time.",
        )


def check_positions(texts: int, longest: int, limit: int) -> None:
    """Checks the size of a padded batch.

    Raises:
        Refusal: It is larger than one forward pass may be.
    """
    if texts * longest > limit:
        raise unacceptable(
            "batch-too-large",
            f"{texts} texts of up to {longest} positions make {texts * longest}; one pass takes {limit}.",
            remedy="Send fewer texts at a time.",
        )


def read_release(
    card: ModelCard, spec: Agreed, tensors: Mapping[str, Tensor], *, limit: int, template: Template | None = None
) -> Payload:
    """The release in a frame, checked. Runs in the compute thread.

    Args:
        card: The model it is for.
        spec: What was agreed.
        tensors: A frame's tensors, decoded: `ids` `[tokens]` or `rows` `[rows, width]`, and `lengths`
            `[texts, segments]`.
        limit: Most positions of a padded batch.
        template: Where special tokens stand; the model's own by default.

    Raises:
        Refusal: It is not what was agreed, or too large.
    """
    check_shapes(card, spec, _header(tensors))
    check_count(len(tensors["lengths"]), limit)
    lengths = tensors["lengths"].to(torch.int64).numpy()
    values = tensors[spec.form.value]
    check_lengths(card, spec, lengths, len(values), template=template)
    if spec.form is Form.IDS:
        check_ids(card, values.to(torch.int64).numpy())
    added = card.template.special_count(spec.segments) if spec.form is Form.IDS else 0
    check_positions(len(lengths), int(lengths.sum(1).max()) + added, limit)
    return unpack(tensors)


def read_query(card: ModelCard, spec: Agreed, tensors: Mapping[str, Tensor], *, limit: int) -> Payload:
    """The release in a query, checked: an encoder-decoder's holds source texts, or pairs of source and target texts.

    That of a classifier has texts. Runs in the compute thread.

    Args:
        card: The model it is for.
        spec: What was agreed; of pairs, of each text by itself.
        tensors: A frame's tensors, decoded; as in `read_release`, pairs with two columns of `lengths`.
        limit: Most positions of a padded batch; of pairs, of either side.

    Raises:
        Refusal: It is not what was agreed, or too large.
    """
    if card.target_template is None or spec.cut.tail is None:
        return read_release(card, spec, tensors, limit=limit)
    check_form(spec, tensors)
    pair = rows_of(unpack(tensors))
    for side, template in zip(pair.parted(), card.templates, strict=False):
        own = {"rows": side.packed.values, "lengths": side.segment_lengths}
        read_release(card, spec, own, limit=limit, template=template)
    return pair


def read_growth(
    card: ModelCard, spec: Agreed, tensors: Mapping[str, Tensor], *, sequences: int, first: bool, limit: int
) -> Ragged:
    """The new positions of growing texts in a frame, checked, special tokens of ids added. Runs in the compute thread.

    Args:
        card: The model it is for.
        spec: What was agreed.
        tensors: A frame's tensors, decoded: `ids` `[tokens]` or `rows` `[rows, width]`, and `lengths` `[sequences, 1]`.
        sequences: How many texts grow.
        first: Whether these are the prompts, each of which has a position at least.
        limit: Most positions of a padded batch.

    Returns:
        Ids `[tokens]`, or rows `[rows, width]`, of each text's new positions, which may be none.

    Raises:
        Refusal: It is not what was agreed, or too large.
    """
    check_shapes(card, spec, _header(tensors))
    lengths = tensors["lengths"].to(torch.int64)
    values = tensors[spec.form.value]
    if lengths.shape != (sequences, 1) or int(lengths.sum()) != len(values) or not len(values):
        raise unacceptable(
            "wrong-lengths",
            f"lengths is {list(lengths.shape)} and adds up to {int(lengths.sum())}; there are {len(values)} "
            f"{spec.form} for {sequences} sequences.",
            remedy="Send one length per sequence, 0 for those that have ended.",
        )
    new = lengths[:, 0]
    opening = card.template.opening if spec.form is Form.IDS and first else ()
    if first and int(new.min()) + len(opening) == 0:
        raise unacceptable("empty-prompt", "A prompt has no position.", remedy="Give each prompt a token at least.")
    check_positions(sequences, int(new.max()) + len(opening), limit)
    if spec.form is Form.IDS:
        values = values.to(torch.int64)
        check_ids(card, values.numpy())
        return Ragged(values, new).preceded_by(torch.tensor(opening, dtype=torch.int64))
    return Ragged(values, new)


def read_sources(card: ModelCard, spec: AdapterInfo, tensors: Mapping[str, Tensor], *, limit: int) -> Ragged:
    """Ids `[tokens]` of the source texts in a frame, checked, for which target texts are to be written.

    Runs in the compute thread.

    Args:
        card: The model it is for.
        spec: What was agreed of pairs.
        tensors: A frame's tensors, decoded: `ids` `[tokens]` and `lengths` `[texts, 1]`.
        limit: Most positions of a padded batch.

    Raises:
        Refusal: It is not what was agreed, or too large.
    """
    payload = read_release(card, spec.model_copy(update={"segments": 1}), tensors, limit=limit)
    if not isinstance(payload, Tokens):
        raise TypeError("source texts came as ids")
    return payload.segments[0]


_MOST_BEAMS = 2**10


def read_search(card: ModelCard, told: Tensor) -> BeamSearch:
    """How tokens are to be chosen, checked.

    Args:
        card: The model that they are of.
        told: `[4]` fp32: beams, new tokens at most, length penalty, the id that ends a text.

    Raises:
        Refusal: It is nothing that can be searched for.
    """
    values = told.tolist()
    whole = len(values) == 4 and all(map(math.isfinite, values)) and all(values[at] % 1 == 0 for at in (0, 1, 3))
    vocabulary = card.info.vocab_size
    if (
        not whole
        or not 1 <= values[0] <= min(_MOST_BEAMS, vocabulary // 2)
        or not 1 <= values[1] <= card.info.max_length
        or not abs(values[2]) <= routes.MOST_LENGTH_PENALTY
        or not 0 <= values[3] < vocabulary
    ):
        raise unacceptable(
            "wrong-search",
            f"search = {values[:8]}: it is 1 to {min(_MOST_BEAMS, vocabulary // 2)} beams, 1 to {card.info.max_length} "
            f"new tokens, a length penalty of {routes.MOST_LENGTH_PENALTY:g} at most, either way, and the id that ends "
            "a text.",
            remedy="Ask for fewer beams or tokens, or a smaller penalty.",
        )
    beams, tokens, penalty, end = values
    return BeamSearch(
        num_beams=int(beams), max_new_tokens=int(tokens), length_penalty=penalty, end=int(end), vocabulary=vocabulary
    )


def check_room(card: ModelCard, positions: int) -> None:
    """Checks that a text may come to so many positions, virtual ones among them.

    Raises:
        Refusal: The model takes fewer.
    """
    if positions > card.info.max_length:
        raise unacceptable(
            "text-too-long",
            f"A text may come to {positions} positions; {card.info.name} has {card.info.max_length}.",
            remedy="Shorten the text, or ask for fewer new tokens.",
        )


def _header(tensors: Mapping[str, Tensor]) -> Header:
    names = {torch.bfloat16: "BF16", torch.float32: "F32"}
    return {role: (names.get(tensor.dtype, str(tensor.dtype)), tuple(tensor.shape)) for role, tensor in tensors.items()}
