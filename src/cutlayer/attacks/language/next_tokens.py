"""Attacks on what passes an upper boundary, and what they are scored against: the tokens that come next.

Where the customer holds the tail, labels have no field in any frame. What passes tells them all the same:
the gradient that goes up in training (`tail_gradient`), and the hidden states that the vendor itself sends
down (`forward_leak`), for it owns the tail that the customer's began as.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor

from cutlayer.attacks.attack import ATTACKS, Attack, Guess, Guesses, Question, SignalSource
from cutlayer.attacks.content import content_rows
from cutlayer.attacks.evaluation.scoring import Reading
from cutlayer.attacks.evaluation.tokens import TokenTruth
from cutlayer.attacks.evaluation.traffic import CONTROL, CONTROL_ITEMS, Traffic
from cutlayer.attacks.evaluation.truth import Graded
from cutlayer.attacks.knowledge import Inapplicable, Knowledge, Need
from cutlayer.attacks.language.forward_leak import read_greedy_tokens
from cutlayer.attacks.language.tail import NO_TARGET, predicting, tail_logits
from cutlayer.attacks.language.tail_gradient import MeanLoss, read_next_tokens
from cutlayer.attacks.view import SeenAnswer, SeenFrame, Transcript, View
from cutlayer.core import DataError, Ragged, Rows, Tokens
from cutlayer.models import Inputs, Seq2SeqTail, Tail, Template
from cutlayer.wire import routes
from cutlayer.wire.recording import Direction

MEASURED_TOKENS = 4096
"""On which attacks on a tail are measured at most: a standard error of less than a point, in seconds."""


class TailGradient:
    """Guesses the tokens of each training text from the gradients that the customer sent.

    With the final norm and the head alone at the customer this is a closed form; through blocks of the tail the
    gradient is first brought back by solving for it. See `tail_gradient`.
    """

    def __call__(self, view: View) -> Guesses:
        """Guesses the texts of every step whose gradient was sent."""
        tail, template = _granted(view.knowledge)
        for step in view.transcript.steps():
            if step.output is None or step.lengths is None:
                continue
            hidden, inputs = _padded(step.output, step.lengths, view.knowledge, template)
            gradient, _ = _padded(step.gradient, step.lengths, view.knowledge, template)
            predicted = int(predicting(inputs).sum())
            if predicted:
                ids = read_next_tokens(tail, hidden, gradient, inputs, MeanLoss(predicted))
                yield step.source, step.number, _as_texts(ids, inputs, step.lengths, view.knowledge)


class ForwardLeak:
    """Guesses the customer's most probable next tokens from hidden states that were sent down for a query."""

    def __call__(self, view: View) -> Guesses:
        """Guesses what follows each token of every query."""
        tail, _ = _granted(view.knowledge)
        answer = None
        for answer in view.transcript.answers():
            yield answer.source, answer.number, _greedy_texts(tail, answer, view.knowledge)
        if answer is None:
            raise Inapplicable("The transcript holds no query.")


def _greedy_texts(tail: Tail | Seq2SeqTail, answer: SeenAnswer, knowledge: Knowledge) -> Tokens:
    """What a tail makes of a query's answer: the most probable token at each place of the texts.

    Args:
        tail: The vendor's own for its guess, the customer's for the truth.
        answer: What was sent down.
        knowledge: Cut and template.
    """
    _, template = _granted(knowledge)
    if answer.lengths is None:
        raise Inapplicable("The transcript does not show how long the texts of a query are.")
    hidden, inputs = _padded(answer.output, answer.lengths, knowledge, template)
    return _as_texts(read_greedy_tokens(tail, hidden, inputs), inputs, answer.lengths, knowledge)


ATTACKS.add("tail-gradient")(
    Attack(
        TailGradient(),
        title="next tokens, from the gradients of the upper boundary",
        question=Question.WORDS,
        reference="this project; a closed form for norm and head, as in `tail_gradient`",
        needs=frozenset({Need.TAIL}),
        tokens=MEASURED_TOKENS,
        costly=True,
        signal=SignalSource.GRADIENTS,
    )
)
ATTACKS.add("forward-leak")(
    Attack(
        ForwardLeak(),
        title="the model's next tokens, from the hidden states that the vendor sends down",
        question=Question.ANSWERS,
        reference="this project; the logit lens of the vendor's own tail",
        needs=frozenset({Need.TAIL}),
        tokens=MEASURED_TOKENS,
    )
)


def _granted(knowledge: Knowledge) -> tuple[Tail | Seq2SeqTail, Template]:
    if knowledge.cut.tail is None:
        raise Inapplicable("The vendor holds the head: no hidden states pass an upper boundary.")
    if knowledge.tail is None or knowledge.template is None:
        raise Inapplicable("The attacker was not granted the tail as it was handed out.")
    return knowledge.tail, knowledge.template


def _segment_lengths(lengths: Tensor, knowledge: Knowledge, template: Template) -> Tensor:
    """Positions of each text at the upper boundary: of ids, the vendor adds the special tokens."""
    if not knowledge.cut.is_text:
        return lengths
    layout = template.layout(lengths.shape[1])
    return lengths + torch.tensor([layout.closing(segment) for segment in range(layout.segments)])


def _padded(values: Tensor, lengths: Tensor, knowledge: Knowledge, template: Template) -> tuple[Tensor, Inputs]:
    positions = _segment_lengths(lengths, knowledge, template)
    return template.from_rows(Rows(Ragged(values.float(), positions.sum(1)), positions))


def _as_texts(ids: Tensor, inputs: Inputs, lengths: Tensor, knowledge: Knowledge) -> Tokens:
    """Guesses of what follows each position as guesses of the texts: nothing precedes a first position."""
    shifted = torch.cat([torch.full((len(ids), 1), NO_TARGET), ids.cpu()[:, :-1]], 1)
    real = inputs.attention_mask.bool()
    template = knowledge.template
    if template is None:
        raise Inapplicable("The attacker was not told where special tokens stand.")
    positions = _segment_lengths(lengths, knowledge, template)
    rows = Rows(Ragged(shifted[real], positions.sum(1)), positions)
    values, counts = content_rows(rows, knowledge)
    return Tokens((Ragged(values, counts[:, 0].contiguous()),))


# ---------------------------------------------------------------- truths


@dataclass(frozen=True)
class TrainedTruth(TokenTruth):
    """Which tokens the texts of training steps had: each is the label of those before it.

    Attributes:
        begins: `[n]` int64: which token of each text is the first that is predicted; `None` where all are that
            something precedes.
    """

    begins: Tensor | None = None

    def of(self, texts: Tensor) -> TrainedTruth:
        """The same about the texts at `texts` `[chosen]` int64 alone; it knows no place of theirs."""
        begins = None if self.begins is None else self.begins[texts]
        return TrainedTruth(self.tokens.select(texts), skipped=self.skipped, begins=begins)

    def only(self, chosen: Tensor) -> TrainedTruth:
        """See `TokenTruth.only`."""
        return replace(super().only(chosen), begins=None if self.begins is None else self.begins[chosen])

    def _counted(self, within: Tensor) -> Tensor:
        counted = super()._counted(within)
        return counted if self.begins is None else counted & (within >= self.begins[self.tokens.owners])

    def traffic(
        self, kind: Traffic, like: Transcript, knowledge: Knowledge, *, looks: int, rng: torch.Generator
    ) -> tuple[Transcript, TrainedTruth]:
        """One step a look about these texts: random hidden states, and their loss's gradient at the public tail."""
        tail, template = _granted(knowledge)
        step = next((step for step in like.steps() if step.output is not None), None)
        if step is None or step.output is None:
            raise Inapplicable("The transcript holds no gradient of an upper boundary.")
        frames: list[SeenFrame] = []
        values = _flat(self.tokens)
        if kind is Traffic.SHUFFLED:
            values = values[torch.randperm(len(values), generator=rng)]
        inputs = template.assemble(_like(self.tokens, values))
        real = inputs.attention_mask.bool()
        scale = float(step.output.float().std())
        for number in range(1, looks + 1):
            hidden = torch.randn(*real.shape, step.output.shape[1], generator=rng) * scale
            hidden = hidden.to(step.output.dtype).float()
            gradient = _gradient(tail, hidden, inputs)
            if kind is Traffic.NOISE:
                gradient = torch.randn(gradient.shape, generator=rng) * float(gradient.std())
            frames += _step(
                number, hidden[real], gradient[real].to(step.gradient.dtype), self.tokens, knowledge, template
            )
        steps = {(CONTROL, number): torch.arange(len(self.tokens)) for number in range(1, looks + 1)}
        return Transcript(lambda: frames), replace(self.of(torch.arange(len(self.tokens))), steps=steps)

    def graded(self, like: Transcript, knowledge: Knowledge, *, rng: torch.Generator) -> Graded:
        """Nothing: no setting changes a gradient."""
        raise Inapplicable("Gradients leave as they are at every setting: unprotected traffic is of the run's own.")

    def sample(self) -> TrainedTruth:
        """Texts from the beginning, of about a quarter of `CONTROL_ITEMS` tokens, or one."""
        ends = self.tokens.segments[0].lengths.cumsum(0)
        return self.of(torch.arange(max(1, int((ends <= CONTROL_ITEMS // 4).sum()))))

    def ceiling(self, knowledge: Knowledge) -> float:
        """All tokens but those that nothing precedes, which are not counted."""
        return 1.0


def _gradient(tail: Tail | Seq2SeqTail, hidden: Tensor, inputs: Inputs) -> Tensor:
    """d loss / d hidden of the mean cross-entropy of next tokens, at a tail in evaluation mode."""
    hidden = hidden.detach().requires_grad_()
    where = predicting(inputs)
    if inputs.input_ids is None:
        raise DataError("A loss needs the true tokens.")
    followers = torch.cat([inputs.input_ids[:, 1:], inputs.input_ids[:, :1]], 1)
    logits = tail_logits(tail, hidden, inputs)[where]
    loss = torch.nn.functional.cross_entropy(logits, followers[where])
    return torch.autograd.grad(loss, hidden)[0]


def _step(
    number: int, output: Tensor, gradient: Tensor, tokens: Tokens, knowledge: Knowledge, template: Template
) -> list[SeenFrame]:
    """A step's three frames: what went up for it, its answer, and its gradient."""
    lengths = tokens.segments[0].lengths[:, None]
    if not knowledge.cut.is_text:
        lengths = template.segment_lengths(tokens)
    where: Mapping[str, str | int] = {"job": CONTROL, "step": number}
    return [
        SeenFrame(Direction.UP, routes.STEP, where, lambda: {"lengths": lengths}),
        SeenFrame(Direction.DOWN, routes.STEP, where, lambda: {"output": output}),
        SeenFrame(Direction.UP, routes.GRADIENT, where, lambda: {"gradient": gradient}),
    ]


@dataclass(frozen=True)
class GreedyTruth(TokenTruth):
    """Which tokens the customer's own model would say next, at the tokens of queries.

    Attributes:
        queries: By source and number of a query, `[rows]` int64: each row's text.
    """

    queries: Mapping[tuple[str, int], Tensor] = field(default_factory=dict)

    @classmethod
    def of(
        cls, tail: Tail | Seq2SeqTail, answers: Iterable[SeenAnswer], knowledge: Knowledge, *, skipped: int
    ) -> GreedyTruth:
        """The truth about the first answers, of about `MEASURED_TOKENS` tokens; about none where there are none.

        Args:
            tail: The customer's own, as it was when it asked.
            answers: What was sent down for queries.
            knowledge: Cut and template.
            skipped: First tokens of each text that nothing precedes, so that nobody predicts them.

        Raises:
            Inapplicable: The transcript does not show how long the texts of a query are.
        """
        said = [Ragged.from_lists([])]
        queries: dict[tuple[str, int], Tensor] = {}
        texts = tokens = 0
        for answer in answers:
            if tokens >= MEASURED_TOKENS:
                break
            (told,) = _greedy_texts(tail, answer, knowledge).segments
            queries[answer.source, answer.number] = torch.arange(texts, texts + len(told))
            said.append(told)
            texts, tokens = texts + len(told), tokens + len(told.values)
        return cls(Tokens((Ragged.concatenate(said),)), skipped=skipped, queries=queries)

    def beginning(self, transcript: Transcript, tokens: int) -> tuple[Transcript, Self]:
        """The first queries, of about so many tokens, and a transcript without answers to others."""
        queries: dict[tuple[str, int], Tensor] = {}
        taken = 0
        for key, texts in self.queries.items():
            if taken >= tokens:
                break
            queries[key] = texts
            taken += int(self.tokens.segments[0].lengths[texts].sum())
        return transcript.only_answers(queries), replace(self, queries=queries)

    def read(self, guesses: Iterable[Guess]) -> Reading:
        """What guesses make of the answers, token by token."""
        renamed = (("job/query", at, guess) for at, guess in _known(guesses, self.queries))
        steps = {("query", at): rows for at, rows in enumerate(self.queries.values())}
        return TokenTruth(self.tokens, steps=steps, skipped=self.skipped).read(renamed)

    def traffic(
        self, kind: Traffic, like: Transcript, knowledge: Knowledge, *, looks: int, rng: torch.Generator
    ) -> tuple[Transcript, GreedyTruth]:
        """One query about random hidden states, whose next tokens the public tail tells; or about others'."""
        tail, template = _granted(knowledge)
        answer = next(iter(like.answers()), None)
        if answer is None:
            raise Inapplicable("The transcript holds no query.")
        inputs = template.assemble(self.tokens)
        real = inputs.attention_mask.bool()
        scale = float(answer.output.float().std())

        def drawn() -> Tensor:
            """Rounded as answers are: a customer's tail says what it says of the rows that came down."""
            rows = torch.randn(*real.shape, answer.output.shape[1], generator=rng) * scale
            return rows.to(answer.output.dtype).float()

        shown = hidden = drawn()
        if kind is Traffic.NOISE:
            shown = drawn()
        elif kind is Traffic.SHUFFLED:
            places = torch.randperm(int(real.sum()), generator=rng)
            shown = hidden.clone()
            shown[real] = hidden[real][places]
        lengths = self.tokens.segments[0].lengths[:, None]
        if not knowledge.cut.is_text:
            lengths = template.segment_lengths(self.tokens)
        said = _as_texts(read_greedy_tokens(tail, hidden, inputs), inputs, lengths, knowledge)
        where: Mapping[str, str | int] = {"adapter": CONTROL}
        output = shown[real].to(answer.output.dtype)
        frames = [
            SeenFrame(Direction.UP, routes.ADAPTER_INFER, where, lambda: {"lengths": lengths}),
            SeenFrame(Direction.DOWN, routes.ADAPTER_INFER, where, lambda: {"output": output}),
        ]
        queries = {(f"adapter/{CONTROL}/infer", 0): torch.arange(len(said))}
        return Transcript(lambda: frames), GreedyTruth(said, skipped=self.skipped, queries=queries)

    def graded(self, like: Transcript, knowledge: Knowledge, *, rng: torch.Generator) -> Graded:
        """Nothing: no setting changes what the vendor sends down."""
        raise Inapplicable("The vendor computes its answers itself, at every setting as in unprotected traffic.")

    def sample(self) -> GreedyTruth:
        """Texts from the beginning, of about a quarter of `CONTROL_ITEMS` tokens, or one."""
        ends = self.tokens.segments[0].lengths.cumsum(0)
        kept = max(1, int((ends <= CONTROL_ITEMS // 4).sum()))
        return GreedyTruth(self.tokens.select(torch.arange(kept)), skipped=self.skipped)

    def ceiling(self, knowledge: Knowledge) -> float:
        """All tokens but those that nothing precedes, which are not counted."""
        return 1.0


def _known(
    guesses: Iterable[Guess], queries: Mapping[tuple[str, int], Tensor]
) -> Iterable[tuple[int, Tokens | Tensor]]:
    """Guesses about queries that the truth knows, by the query's place in it."""
    places = {key: place for place, key in enumerate(queries)}
    for source, number, guess in guesses:
        if (source, number) in places:
            yield places[source, number], guess


def _flat(tokens: Tokens) -> Tensor:
    return tokens.segments[0].values


def _like(tokens: Tokens, values: Tensor) -> Tokens:
    return Tokens((tokens.segments[0].with_values(values),))
