"""The options for next tokens: a decoder trained in this process, final norm and head at the customer.

Each token is the label of those before it. What a run shows of it above the cut is recorded and attacked by
`tail-gradient`. Rows below the cut show the same tokens, and no option for labels changes that: see `docs`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from cutlayer.attacks import Knowledge, TrainedTruth
from cutlayer.core import Cut, DataError, Guarantee, Perplexity, Ragged, Tokens
from cutlayer.customer import Home, Progress
from cutlayer.customer.session import next_tokens, token_losses
from cutlayer.data import Dataset, read_dataset, tokenise
from cutlayer.models import Head, Parts, Tail, Template, load_model, load_tokenizer, max_length, split
from cutlayer.models.heads import frozen
from cutlayer.privacy import LABELS_SHOWN, LabelResponse, ReportedLabels, keep_probability
from cutlayer.recipes.labels.config import CorpusSpec, LanguageScale
from cutlayer.recipes.labels.passes import JOB, Steps, step_of
from cutlayer.recipes.labels.readings import ON_TOKENS, Option, Recombined, read_tokens, solved
from cutlayer.recipes.tasks import data_file

_SHORTEST = 4
"""Tokens of a text that there is something to predict in."""
_SPARE = 8
"""Texts that are looked at for each that is needed: short ones are left out."""


@dataclass(frozen=True)
class LanguageSteps:
    """Recorded steps, and what they were about."""

    steps: Steps
    truth: TrainedTruth
    knowledge: Knowledge


def language_option(
    model: str,
    data: Path,
    corpus: CorpusSpec,
    scale: LanguageScale,
    *,
    learning_rate: float,
    epsilon: float | None,
    home: Home,
    seed: int,
    progress: Progress,
) -> tuple[Option, LanguageSteps]:
    """Trains on texts once, attacks what that showed, and measures perplexity on others.

    Args:
        model: A decoder: an embedded model's name, a local folder or a hub id.
        data: The folder of public data sets.
        corpus: Which of them.
        scale: How much of it.
        learning_rate: AdamW's, of all weights.
        epsilon: Of randomised response of each token over the vocabulary; `None` for tokens as they are.
        home: The customer, whose secret tokens are drawn from.
        seed: Which texts.
        progress: Where to show progress.

    Raises:
        DataError: A file is missing, or has too few texts.
    """
    tokenizer = load_tokenizer(model)
    whole = load_model(model, head=Head.LANGUAGE)
    template = Template.from_tokenizer(tokenizer, max_length=max_length(whole.config))
    content = min(scale.tokens, template.max_content(1))
    private, test = (
        _texts(data_file(data, corpus.name, part), count, tokenizer, content=content, seed=seed)
        for part, count in ((corpus.train, scale.texts), (corpus.test, scale.test))
    )
    reported, drawn = private, None
    if epsilon is not None:
        drawn = _report(private, LabelResponse(epsilon, secret=home.secret), home, vocabulary=len(tokenizer))
        reported = Tokens((private.segments[0].with_values(drawn.labels),))
    parts = split(whole.requires_grad_(True).train(False), Cut(bottom=None, tail=0))
    optimiser = torch.optim.AdamW(whole.parameters(), lr=learning_rate)
    seen = []
    batches = torch.arange(len(private)).split(scale.batch)
    for number, texts in enumerate(batches, start=1):
        inputs = template.assemble(private.select(texts))
        hidden = parts.top(inputs)
        hidden.retain_grad()
        logits = _tail(parts)(hidden, inputs)
        loss = token_losses(logits, next_tokens(template.assemble(reported.select(texts)))).values.mean()
        optimiser.zero_grad()
        loss.backward()
        if hidden.grad is None:
            raise TypeError("a loss has a gradient at the upper boundary")
        real = inputs.attention_mask.bool()
        lengths = template.segment_lengths(private.select(texts))
        seen.append(step_of(number, hidden.detach()[real], hidden.grad[real].clone(), lengths))
        optimiser.step()
        progress.update("language model", number, len(batches), f"loss {float(loss.detach()):.3f}")
    handed_out = split(frozen(load_model(model, head=Head.LANGUAGE)), Cut(bottom=1, tail=0))
    knowledge = Knowledge(Cut(bottom=1, tail=0), template=template, tail=handed_out.tail)
    places = {(JOB, number): texts for number, texts in enumerate(batches, start=1)}
    truth = TrainedTruth(private, steps=places, skipped=0 if template.opening else 1)
    recorded = LanguageSteps(Steps(tuple(seen), rounds=len(seen) + 1), truth, knowledge)
    readings = read_tokens(recorded.steps, truth, knowledge)
    option = Option(
        name="ordinary" if epsilon is None else "randomised response",
        epsilon=epsilon,
        readings=readings,
        draws=sum(each.success.n for each in readings if each.success is not None),
        rounds=recorded.steps.rounds,
        gradient_bytes=recorded.steps.gradient_bytes,
        output_bytes=recorded.steps.output_bytes,
        perplexity=_perplexity(parts, template, test, scale.batch),
        guarantee=Guarantee.nothing(LABELS_SHOWN) if drawn is None else _promise(drawn),
        bound=None if epsilon is None else keep_probability(epsilon, len(tokenizer)),
    )
    return option, recorded


def recombined_languages(
    option: Option, recorded: LanguageSteps, passes: Sequence[int], *, cover: float, seed: int
) -> list[Option]:
    """The same steps with several passes in the place of each, one option for each number of passes.

    Args:
        option: As they were.
        recorded: The steps.
        passes: How many.
        cover: How much larger covers are than gradients.
        seed: Of covers.
    """
    found = []
    for count in passes:
        several = Recombined(recorded.steps, count, cover=cover, seed=seed)
        readings = read_tokens(several.first, recorded.truth, recorded.knowledge)
        known = solved(several.from_update(), ON_TOKENS, recorded.truth, recorded.knowledge)
        found.append(option.recombined(count, (*readings, known), several.deviation))
    return found


def _promise(drawn: ReportedLabels) -> Guarantee:
    """Of each token as a label, given that the same token also leaves below as eta says: here in clear."""
    promise = drawn.guarantee(spent=drawn.epsilon)
    also = "Of a language model the labels are the text, which leaves below the cut, too: here as it is."
    return promise.model_copy(update={"caveats": (also, *promise.caveats)})


def _report(private: Tokens, response: LabelResponse, home: Home, *, vocabulary: int) -> ReportedLabels:
    """Each token drawn for itself: a record is a place in a text."""
    (side,) = private.segments
    within = torch.arange(len(side.values)) - side.offsets[:-1].repeat_interleave(side.lengths)
    owners = torch.arange(len(side)).repeat_interleave(side.lengths)
    named = [(str(text), str(place)) for text, place in zip(owners.tolist(), within.tolist(), strict=True)]
    ones = torch.ones_like(owners)
    ids = Tokens((Ragged(owners, ones), Ragged(within, ones)))  # as little alike as their names
    return response.draw(named, ids, side.values, [str(token) for token in range(vocabulary)], vault=home.vault)


def _tail(parts: Parts) -> Tail:
    if parts.tail is None:
        raise TypeError("this cut has a tail")
    return parts.tail


@torch.no_grad()
def _perplexity(parts: Parts, template: Template, texts: Tokens, batch: int) -> float:
    sums, counts = [], []
    for some in torch.arange(len(texts)).split(batch):
        inputs = template.assemble(texts.select(some))
        logits = _tail(parts)(parts.top(inputs), inputs)
        losses = token_losses(logits, next_tokens(inputs))
        pieces = losses.values.double().split(losses.lengths.tolist())
        sums += [float(piece.sum()) for piece in pieces]
        counts += [len(piece) for piece in pieces]
    value = Perplexity.of(torch.tensor(sums), torch.tensor(counts)).value
    if not math.isfinite(value):
        raise DataError("The language model's perplexity is infinite.", remedy="Lower its learning rate.")
    return value


def _texts(path: Path, count: int, tokenizer: PreTrainedTokenizerBase, *, content: int, seed: int) -> Tokens:
    dataset = read_dataset(path, text_column="text")
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(seed)).tolist()
    chosen = Dataset(tuple(dataset.texts[row] for row in order[: _SPARE * count]))
    (texts,) = tokenise(chosen, tokenizer, max_content=content).segments
    long = (texts.lengths >= _SHORTEST).nonzero()[:count, 0]
    if len(long) < count:
        raise DataError(f"{path} has too few texts of {_SHORTEST} tokens.", remedy="Choose another size.")
    kept: Ragged = texts.select(long)
    return Tokens((kept,))
