"""The options for next tokens: a decoder trained in this process, final norm and head at the customer.

Each token is the label of those before it. What a run shows of it above the cut is recorded and attacked by
`tail-gradient`. Rows below the cut show the same tokens, and no option for labels changes that: see `docs`.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from pydantic import Field
from transformers import PreTrainedTokenizerBase

from cutlayer.attacks import Knowledge, TrainedTruth
from cutlayer.core import Cut, DataError, Guarantee, Perplexity, Ragged, Spec, Tokens
from cutlayer.customer import Home
from cutlayer.customer.session import next_tokens, token_losses
from cutlayer.data import Dataset, read_dataset, tokenise
from cutlayer.models import Head, Parts, Tail, Template, load_model, load_tokenizer, max_length, split
from cutlayer.models.heads import frozen
from cutlayer.privacy import LABELS_SHOWN, LabelResponse, ReportedLabels, keep_probability
from cutlayer.recipes.lab import Lab
from cutlayer.recipes.recorded_steps import JOB, Attacked, Option, OptionCell, Recorded, Steps, step_of
from cutlayer.recipes.tasks import data_file

_SHORTEST = 4
"""Tokens of a text that there is something to predict in."""
_SPARE = 8
"""Texts that are looked at for each that is needed: short ones are left out."""


class CorpusSpec(Spec):
    """A folder of texts, and its files."""

    name: str
    train: str
    test: str


class LanguageScale(Spec):
    """How many private texts are trained on, each once, cut where; texts of a step; texts of test."""

    texts: int = Field(ge=1)
    tokens: int = Field(ge=4)
    batch: int = Field(ge=1)
    test: int = Field(ge=1)


class LanguageCell(OptionCell):
    """A language model's training in this process, of all weights, norm and head at the customer.

    Attributes:
        epsilon: Of randomised response over the vocabulary; `None` for tokens as they are.
    """

    source: str
    corpus: CorpusSpec
    scale: LanguageScale
    learning_rate: float
    epsilon: float | None

    @property
    def name(self) -> str:
        return f"{self.corpus.name}-{'ordinary' if self.epsilon is None else f'epsilon{self.epsilon:g}'}-s{self.seed}"

    def check(self, lab: Lab) -> None:
        for part in (self.corpus.train, self.corpus.test):
            data_file(lab.options.data, self.corpus.name, part)

    def run(self, lab: Lab) -> Attacked:
        recorded, option = _trained(self, lab)
        return self.attacked(recorded, option)


def _trained(cell: LanguageCell, lab: Lab) -> tuple[Recorded, Option]:
    """Trains on texts once, attacks what that showed, and measures perplexity on others."""
    model, home, scale, corpus = cell.source, lab.home(f"language-{cell.seed}"), cell.scale, cell.corpus
    tokenizer = load_tokenizer(model)
    whole = load_model(model, head=Head.LANGUAGE)
    template = Template.from_tokenizer(tokenizer, max_length=max_length(whole.config))
    content = min(scale.tokens, template.max_content(1))
    private, test = (
        _texts(data_file(lab.options.data, corpus.name, part), count, tokenizer, content=content, seed=cell.seed)
        for part, count in ((corpus.train, scale.texts), (corpus.test, scale.test))
    )
    reported, drawn = private, None
    if cell.epsilon is not None:
        drawn = _report(private, LabelResponse(cell.epsilon, secret=home.secret), home, vocabulary=len(tokenizer))
        reported = Tokens((private.segments[0].with_values(drawn.labels),))
    parts = split(whole.requires_grad_(True).train(False), Cut(bottom=None, tail=0))
    optimiser = torch.optim.AdamW(whole.parameters(), lr=cell.learning_rate)
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
        lab.progress.update("language model", number, len(batches), f"loss {float(loss.detach()):.3f}")
    handed_out = split(frozen(load_model(model, head=Head.LANGUAGE)), Cut(bottom=1, tail=0))
    knowledge = Knowledge(Cut(bottom=1, tail=0), template=template, tail=handed_out.tail)
    places = {(JOB, number): texts for number, texts in enumerate(batches, start=1)}
    truth = TrainedTruth(private, steps=places, skipped=0 if template.opening else 1)
    recorded = Recorded(Steps(tuple(seen), rounds=len(seen) + 1), truth, knowledge)
    option = recorded.option(
        "ordinary" if cell.epsilon is None else "randomised response",
        epsilon=cell.epsilon,
        perplexity=_perplexity(parts, template, test, scale.batch),
        guarantee=Guarantee.nothing(LABELS_SHOWN) if drawn is None else _promise(drawn),
        bound=None if cell.epsilon is None else keep_probability(cell.epsilon, len(tokenizer)),
    )
    draws = sum(each.success.n for each in option.readings if each.success is not None)
    return recorded, option.model_copy(update={"draws": draws})


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
