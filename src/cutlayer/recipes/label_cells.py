"""Trainings whose labels are protected in some way, attacked: classifiers over the road and here, a decoder here.

Of the decoder, final norm and head are at the customer, and each token is the label of those before it. What a run
shows of it above the cut is recorded and attacked by `tail-gradient`. Rows below the cut show the same tokens, and no
option for labels changes that: see `docs`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast

import torch
from peft import PeftModel
from pydantic import Field
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from cutlayer.attacks import Knowledge, LabelTruth, SeenStep, TrainedTruth
from cutlayer.core import Cut, DataError, Guarantee, Perplexity, Ragged, Spec, Tokens
from cutlayer.customer import Home
from cutlayer.customer.session import next_tokens, token_losses
from cutlayer.data import Dataset, LabelNames, read_dataset, tokenise
from cutlayer.models import Head, Parts, Tail, Template, family_of, load_model, split
from cutlayer.privacy import LABELS_SHOWN, LabelResponse, ReportedLabels, keep_probability
from cutlayer.recipes.lab import Lab
from cutlayer.recipes.recorded_steps import JOB, Attacked, OptionCell, Recorded, Steps, step_of
from cutlayer.recipes.reference.classifier import train_centralised
from cutlayer.recipes.tasks import data_file
from cutlayer.recipes.training import Trained, TrainingCell, discard, split_run

_SHORTEST = 4
"""Tokens of a text that there is something to predict in."""
_SPARE = 8
"""Texts that are looked at for each that is needed: short ones are left out."""


class ClassifierCell(OptionCell, TrainingCell):
    """A classifier's training, attacked."""


class RunCell(ClassifierCell):
    """A run over the road, texts as they are.

    Attributes:
        epsilon: Of randomised response; `None` for labels as they are.
    """

    epsilon: float | None

    @property
    def name(self) -> str:
        return f"{self.task.name}-{'ordinary' if self.epsilon is None else f'epsilon{self.epsilon:g}'}-s{self.seed}"

    def run(self, lab: Lab) -> Attacked:
        """Trains over the road and attacks the recording.

        Each option is a customer of its own: one that has shown its labels has nothing left to promise.
        """
        with split_run(self, lab, self.name, eta=math.inf, label_epsilon=self.epsilon) as run:
            evidence = run.evidence(lab)
            if evidence.labels is None:
                raise TypeError("a classifier's texts have labels")
            truth = evidence.labels
            recorded = Recorded(Steps.of(evidence.transcript), truth, evidence.knowledge)
            found = {"accuracy": Trained.of(run.result).ua, "guarantee": run.result.label_guarantee}
            if self.epsilon is None:
                return self.attacked(recorded, recorded.option("ordinary", **found))
            drawn = {"bound": report_bound(truth, self.epsilon), "draws": len(set(run.data.train.texts))}
            option = recorded.option("randomised response", epsilon=self.epsilon, **found, **drawn)
            return self.attacked(recorded, option)

    def clear(self, lab: Lab) -> None:
        discard(self, self.client(lab, self.name), lab)


class HeadCell(ClassifierCell):
    """A training in this process that shows what a vendor would see with the head at the customer."""

    @property
    def name(self) -> str:
        return f"{self.task.name}-head-s{self.seed}"

    def run(self, lab: Lab) -> Attacked:
        whole = self.reference(lab, self.name)
        seen: list[tuple[SeenStep, Tensor]] = []
        run = train_centralised(whole, progress=lab.progress, watch=partial(_into_head, seen=seen))
        names = LabelNames.of(whole.train.labels or ())
        labels = names.encode(whole.train.labels or (), source="train")
        truth = LabelTruth(labels, len(names), {(JOB, step.number): rows for step, rows in seen})
        # the gradient of a step rides with the next one, as over the road; an epoch's last goes alone
        steps = Steps(tuple(step for step, _ in seen), rounds=len(seen) + len(run.dev))
        recorded = Recorded(steps, truth, Knowledge(Cut()))
        shown = Guarantee.nothing("Directions of gradients and activations show which texts share a label.")
        option = recorded.option("head at the customer", accuracy=run.accuracy, guarantee=shown)
        return self.attacked(recorded, option)


def _into_head(model: nn.Module, seen: list[tuple[SeenStep, Tensor]]) -> Callable[[Tensor], None]:
    """Records what goes into a head, and the gradient that comes out of it: steps, and the texts of each."""
    whole = cast(PreTrainedModel, model.get_base_model() if isinstance(model, PeftModel) else model)
    entered: list[Tensor] = []

    def enter(module: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        if arguments[0].requires_grad:
            entered[:] = arguments[:1]
            entered[0].retain_grad()

    def step(texts: Tensor) -> None:
        if not entered or entered[0].grad is None:
            raise TypeError("a step goes through the head")
        states, gradient = (tensor.detach().float().cpu() for tensor in (entered[0], entered[0].grad))
        if states.dim() == 3:
            # where the head is applied to every position, the text's row is the one that has a gradient
            rows = gradient.abs().sum(2).argmax(1)
            states, gradient = (tensor[torch.arange(len(rows)), rows] for tensor in (states, gradient))
        seen.append((step_of(len(seen) + 1, states, gradient), texts))

    whole.get_submodule(family_of(whole.config).classifier_output).register_forward_pre_hook(enter)
    return step


def report_bound(truth: LabelTruth, epsilon: float) -> float:
    """The share of labels that the best guess from reports gets right: Σ_z max_y Pr[y] Pr[z | y].

    With equally frequent labels it is e^ε / (e^ε + K - 1).
    """
    classes = truth.num_labels
    shares = torch.bincount(truth.labels, minlength=classes).double() / len(truth.labels)
    kept = keep_probability(epsilon, classes)
    response = torch.full((classes, classes), (1 - kept) / (classes - 1), dtype=torch.float64)
    response.fill_diagonal_(kept)
    return float((shares[:, None] * response).amax(0).sum())


# ---------------------------------------------------------------- next tokens of a decoder


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
        """Trains on texts once, attacks what that showed, and measures perplexity on others."""
        home, scale, corpus = lab.home(f"language-{self.seed}"), self.scale, self.corpus
        archive = lab.archive(Cut(bottom=1, tail=0), self.source)
        tokenizer, template = archive.tokenizer, archive.template
        content = min(scale.tokens, template.max_content(1))
        private, test = (
            _texts(data_file(lab.options.data, corpus.name, part), count, tokenizer, content=content, seed=self.seed)
            for part, count in ((corpus.train, scale.texts), (corpus.test, scale.test))
        )
        reported, drawn = private, None
        if self.epsilon is not None:
            drawn = _report(private, LabelResponse(self.epsilon, secret=home.secret), home, vocabulary=len(tokenizer))
            reported = Tokens((private.segments[0].with_values(drawn.labels),))
        whole = load_model(self.source, head=Head.LANGUAGE).requires_grad_(True).train(False)
        parts = split(whole, Cut(bottom=None, tail=0))
        optimiser = torch.optim.AdamW(whole.parameters(), lr=self.learning_rate)
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
        knowledge = Knowledge(Cut(bottom=1, tail=0), template=template, tail=cast(Tail, archive.tail))
        places = {(JOB, number): texts for number, texts in enumerate(batches, start=1)}
        truth = TrainedTruth(private, steps=places, skipped=0 if template.opening else 1)
        recorded = Recorded(Steps(tuple(seen), rounds=len(seen) + 1), truth, knowledge)
        option = recorded.option(
            "ordinary" if self.epsilon is None else "randomised response",
            epsilon=self.epsilon,
            perplexity=_perplexity(parts, template, test, scale.batch),
            guarantee=Guarantee.nothing(LABELS_SHOWN) if drawn is None else _promise(drawn),
            bound=None if self.epsilon is None else keep_probability(self.epsilon, len(tokenizer)),
        )
        draws = sum(each.success.n for each in option.readings if each.success is not None)
        return self.attacked(recorded, option.model_copy(update={"draws": draws}))


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
