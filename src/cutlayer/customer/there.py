"""Texts that the vendor writes: at the text cut it holds all that chooses tokens, so ids go up, and ids come down."""

from __future__ import annotations

import time

import torch

from cutlayer.core import ConfigError, Fault, Ragged, Tokens
from cutlayer.customer.beams import search_of
from cutlayer.customer.gate import Gate, StepTensors
from cutlayer.customer.generate import OnText, Writer, check_prompts, check_targets
from cutlayer.customer.results import Generation
from cutlayer.customer.sampling import check_sampling
from cutlayer.customer.session import Session
from cutlayer.customer.settings import Sampling
from cutlayer.models import BeamSearch
from cutlayer.models.batches import padded_batches
from cutlayer.privacy import Release
from cutlayer.wire import Form, FrameError, routes, unpack


def written_there(
    session: Session,
    gate: Gate,
    adapter: str,
    prompts: Tokens,
    sampling: Sampling,
    *,
    limit: int,
    positions: int,
    on_text: OnText,
) -> list[Generation]:
    """Has the vendor continue prompts: one round trip for as many as a frame takes, and no chosen token goes up.

    Args:
        session: The road, with trained weights loaded.
        gate: The door.
        adapter: What to ask.
        prompts: Tokens of each prompt, or its words; special tokens left out.
        sampling: How tokens are chosen.
        limit: Positions that the model takes.
        positions: Of one frame at most, as the vendor says.
        on_text: Told of each text when it is there.

    Raises:
        ConfigError: The customer holds weights that choose tokens; the vendor draws none; or a text may become longer
            than the model takes.
        DataError: A prompt has no token.
        VendorError: The vendor refused or stayed away.
    """
    check_searched(session, sampling)
    opening = len(session.archive.template.opening)
    (leaving,) = session.privatizer.shape(prompts).segments
    behind = session.archive.manifest.target_template is None  # else a text of its own is written
    if behind:
        longest = check_prompts(leaving, opening=opening, limit=limit, new_tokens=sampling.max_new_tokens)
    else:
        target = check_targets(leaving, limit=limit, new_tokens=sampling.max_new_tokens)
        longest = max(target, int(leaving.lengths.max()) + session.archive.template.special_count(1))
    if sampling.num_beams * longest > positions:
        raise ConfigError(
            [Fault("num_beams", sampling.num_beams, f"makes {sampling.num_beams * longest} positions of a text")],
            remedy=f"The vendor takes {positions} a frame: follow fewer beams, or ask for fewer tokens.",
        )
    started, frames = time.monotonic(), 0
    writers: list[Writer] = []
    most = positions // sampling.num_beams
    for some in padded_batches(leaving.lengths + opening + sampling.max_new_tokens, most):
        release = session.privatizer.tokens(prompts.select(some), labels=None)
        texts = _asked(gate, adapter, release, search_of(session, sampling))
        frames += 1
        for ids, before in zip(texts.split(), leaving.select(some).split(), strict=True):
            number = len(writers)
            writer = Writer(
                session.archive.tokenizer,
                sampling.stop_strings,
                lambda piece, number=number: on_text(number, piece),  # type: ignore[misc]
                before=before[-1:].tolist() if behind else (),
            )
            writer.add_all(ids.tolist())
            writers.append(writer)
    seconds = time.monotonic() - started
    return [
        Generation(
            text=writer.text,
            tokens=len(writer.ids),
            ended=writer.ended or "length",
            seconds=seconds,
            round_trips=frames,
            replays=0,
        )
        for writer in writers
    ]


def check_searched(session: Session, sampling: Sampling) -> None:
    """Refuses, before anything is sent, what the vendor cannot write.

    Args:
        session: The road, with trained weights loaded.
        sampling: How tokens are chosen.

    Raises:
        ConfigError: The customer holds weights that choose tokens, or tokens are to be drawn.
    """
    here = session.form is not Form.IDS or session.archive.cut.tail not in (0, None) or bool(session.trained())
    check_sampling(sampling, beams=not here, vocabulary=len(session.archive.candidates))
    if here:
        raise ConfigError(
            "This adapter draws words, and its texts are written by the vendor; but you hold weights that choose "
            "tokens (a tail of blocks, or full tuning).",
            remedy="Train with tail 0 and lora, prompt or prefix.",
        )
    if sampling.num_beams == 1 and not sampling.greedy:
        raise ConfigError(
            [Fault("num_beams", 1, "must be more, or greedy be set: the vendor writes these texts, and draws no token")]
        )


def _asked(gate: Gate, adapter: str, release: Release, search: BeamSearch) -> Ragged:
    """Ids of the texts that the vendor writes behind the prompts of a release.

    Raises:
        FrameError: It answered with something else.
    """
    told = [search.num_beams, search.max_new_tokens, search.length_penalty, search.end]
    reply = gate.send(
        routes.ADAPTER_GENERATE,
        {"adapter": adapter},
        release=release,
        tensors=StepTensors(search=torch.tensor(told, dtype=torch.float32)),
        shapes={"ids": (None,), "lengths": (len(release), 1)},
    )
    texts = unpack(reply.tensors)
    if not isinstance(texts, Tokens) or len(texts.segments) != 1:
        raise FrameError("The vendor answered with no texts.")
    (ids,) = texts.segments
    if int(ids.lengths.max()) > search.max_new_tokens or (
        len(ids.values) and int(ids.values.max()) >= search.vocabulary
    ):
        raise FrameError("The vendor answered with more tokens than were asked for, or with others than there are.")
    return ids
