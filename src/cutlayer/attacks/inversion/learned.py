"""Learned inversion: a recurrent reader that was trained on public text through the public bottom.

The vendor owns the bottom and knows the mechanism, so it makes as many releases of its own text as it likes, with the
customer's noise on them, and trains a network to say which tokens they came from. The network reads each text from
both sides: what noise hides of a token, its neighbours tell. It begins as the best linear map into the embedding
table, and each token scores by its own row there, so that tokens which the attacker's text lacks can be guessed.

Ref: the SIP family (Chen et al., "Unveiling the Vulnerability of Private Fine-Tuning in Split-Based Frameworks for
Large Language Models", CCS 2024, §4: recurrent inversion of hidden states); trained here on the noise, too.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import embedding

from cutlayer.attacks.attack import ATTACKS, Attack, Dial, Guesses, Question
from cutlayer.attacks.content import content_tokens
from cutlayer.attacks.inversion.black_box import candidates_of, features_of, granted
from cutlayer.attacks.inversion.sampled_softmax import sampled_cross_entropy
from cutlayer.attacks.knowledge import Inapplicable, Knowledge, Need
from cutlayer.attacks.simulate import batches, release_public, released_as
from cutlayer.attacks.view import View
from cutlayer.core import Payload, Ragged, Spec
from cutlayer.models.perceptron import Fitting, by_length, minimise

_POSITIONS = 2**12
"""Padded positions that are read at a time."""
_TRIED = 4096
"""Tokens of its own text, of which a reader that reads all before it has learnt needs not learn."""
_SCORED = 1024
"""Places whose candidates are scored at a time."""
_UNSEEN = 0.5
"""What is added to each token's count in public text: one that it lacks may still be guessed."""


class LearnedInversionSpec(Spec):
    """With what strength it is run.

    Attributes:
        tokens: Of the attacker's own text, so many at most.
        passes: Over them, each with noise of its own.
        batch: Texts of a step.
        learning_rate: Of AdamW, at the beginning.
        hidden: Units of the recurrent layer, in each direction.
        compared: Candidates that each step compares the true ones with, beside one another.
        ridge: Penalty of the linear map that it begins as, per mean square of a feature.
        seed: Draws weights, order and the attacker's noise.
    """

    tokens: int = Field(default=58_000, ge=1)
    passes: int = Field(default=3, ge=1)
    batch: int = Field(default=8, ge=1)
    learning_rate: float = Field(default=2e-3, gt=0)
    hidden: int = Field(default=192, ge=1)
    compared: int = Field(default=512, ge=1)
    ridge: float = Field(default=1e-3, gt=0)
    seed: int = 0


class LearnedInversion:
    """Guesses each token from what was released of its whole text.

    Args:
        spec: With what strength.
    """

    def __init__(self, spec: LearnedInversionSpec | None = None) -> None:
        self.spec = spec or LearnedInversionSpec()

    def weakened(self, share: float) -> LearnedInversion:
        """The same that learns from a share of the tokens."""
        tokens = max(1, round(share * self.spec.tokens))
        return LearnedInversion(self.spec.model_copy(update={"tokens": tokens}))

    def __call__(self, view: View) -> Guesses:
        """Guesses every released text.

        Raises:
            Inapplicable: Public text, the table or how releases are privatized was not granted; or, of rows behind
                blocks, the bottom.
        """
        knowledge = view.knowledge
        reader = self.reader(knowledge, released_as(view.transcript))
        for release in view.transcript.releases():
            shape = content_tokens(release.payload, knowledge)
            yield release.source, release.number, shape.with_values(reader.read(rows_of(release.payload, knowledge)))

    def reader(self, knowledge: Knowledge, rows: torch.dtype | None) -> Reader:
        """What it reads by: fitted once for each bottom and noise.

        Args:
            knowledge: What it is granted.
            rows: Element type of the rows that were sent; `None` for ids. See `released_as`.

        Raises:
            Inapplicable: See `__call__`.
        """
        public, table = granted(knowledge)
        key = ("learned-inversion", self.spec, rows, knowledge.key)
        return public.fitted(key, lambda: self._fit(knowledge, table, rows))

    def _fit(self, knowledge: Knowledge, table: Tensor, rows: torch.dtype | None) -> Reader:
        spec = self.spec
        candidates = candidates_of(knowledge, table)
        hidden = knowledge.noise is not None and knowledge.noise.privacy.mechanism != "none"
        draws = spec.passes if hidden else 1
        own, releases = release_public(knowledge, rows=rows, tokens=spec.tokens, seed=spec.seed, draws=draws)
        place = torch.full((len(table),), -1).index_copy(0, candidates, torch.arange(len(candidates)))
        targets = own.with_values(place[own.values])
        seen = [rows_of(release, knowledge) for release in releases]
        fitting = Fitting(
            passes=spec.passes,
            batch=spec.batch,
            learning_rate=spec.learning_rate,
            weight_decay=0.0,
            seed=spec.seed,
        )
        generator = fitting.generator()
        reader = Reader(candidates, table[candidates].float(), hidden=spec.hidden, generator=generator)
        reader.begin(seen[0].values, targets.values, ridge=spec.ridge)
        steps = 0

        def loss(texts: Tensor) -> Tensor:
            nonlocal steps
            drawn = seen[steps * spec.batch // max(1, len(own)) % len(seen)]
            steps += 1
            return reader.loss(drawn.select(texts), targets.select(texts).values, compared=spec.compared)

        if not _reads_all(reader, seen[0], own.beginning(_TRIED), targets):
            minimise(
                reader.parameters(),
                loss,
                count=len(own),
                fitting=fitting,
                generator=generator,
                batches=lambda order: by_length(order, own.lengths, spec.batch, generator),
            )
        reader.eval().requires_grad_(False)
        return reader


_attack = LearnedInversion()
ATTACKS.add("learned-inversion")(
    Attack(
        _attack,
        title="a recurrent reader that learnt from releases of public text, text by text",
        question=Question.WORDS,
        reference="this project (adaptive); SIP family, CCS 2024",
        costly=True,
        needs=frozenset({Need.NOISE, Need.PUBLIC_TEXT, Need.TABLE, Need.BOTTOM}),
        floor=0.5,
        par=0.8,  # where ids or rows of single tokens left, it reads whole texts and loses a few
        dial=Dial("public text that it learns from", _attack.weakened),
    )
)


def _reads_all(reader: Reader, seen: Ragged, tried: Ragged, targets: Ragged) -> bool:
    """Whether it reads every token of the first texts that may be guessed: then there is nothing to learn."""
    read = reader.read(seen.select(torch.arange(len(tried))))
    possible = targets.values[: len(tried.values)] >= 0
    return bool(possible.any()) and torch.equal(read[possible], tried.values[possible])


class Reader(nn.Module):
    """Scores candidates for each place of a text by a point in the space of their rows, and by a bias.

    The point is a linear map of the place's row, and what a recurrent layer adds to it that reads from both sides.

    Args:
        candidates: `[c]` int64, what may be guessed.
        rows: `[c, width]`, their rows.
        hidden: Units of the recurrent layer, in each direction.
        generator: Draws weights, and what is compared.
    """

    def __init__(self, candidates: Tensor, rows: Tensor, *, hidden: int, generator: torch.Generator) -> None:
        super().__init__()
        width = rows.shape[1]
        self._candidates = candidates
        self._rows = rows
        self._generator = generator
        self._mean = torch.zeros(width)
        self._scale = torch.ones(())
        self._map = nn.Linear(width, width)
        self._recurrent = nn.ModuleList(nn.GRU(width, hidden, batch_first=True) for _ in range(2))
        self._added = nn.Linear(2 * hidden, width)
        with torch.no_grad():
            for parameter in self._recurrent.parameters():
                parameter.uniform_(-(hidden**-0.5), hidden**-0.5, generator=generator)
            self._added.weight.zero_()
            self._added.bias.zero_()
        self._bias = nn.Parameter(torch.zeros(len(rows)))
        self._sharpness = nn.Parameter(torch.ones(()))
        self._share = torch.full((len(rows),), 1 / len(rows), dtype=torch.float64)

    def begin(self, seen: Tensor, targets: Tensor, *, ridge: float) -> None:
        """Begins as the ridge regression into the table, with how often tokens stand.

        Args:
            seen: `[n, width]`.
            targets: `[n]` int64, candidates; -1 where the token is none.
            ridge: The penalty.
        """
        possible = targets >= 0
        features, wanted = seen[possible].float(), self._rows[targets[possible]]
        self._mean = features.mean(0)
        self._scale = (features - self._mean).square().mean().sqrt().clamp(min=1e-6)
        standard = (features - self._mean) / self._scale
        centre = wanted.mean(0)
        gram = (standard.T @ standard).double() / len(standard)
        gram += ridge * torch.eye(len(gram), dtype=torch.float64)
        weights = torch.linalg.solve(gram, (standard.T @ (wanted - centre)).double() / len(standard)).float()
        left = float((standard @ weights + centre - wanted).square().sum(1).mean())
        counts = torch.bincount(targets[possible], minlength=len(self._rows)).double() + _UNSEEN
        self._share = counts / counts.sum()
        # errors of the map as if they were normal: the score is then the likelihood times the share
        sharpness = wanted.shape[1] / max(left, 1e-6)
        with torch.no_grad():
            self._map.weight.copy_(weights.T)
            self._map.bias.copy_(centre)
            self._sharpness.fill_(min(sharpness, 1e4))
            self._bias.copy_(self._share.log() - self._sharpness * self._rows.square().sum(1) / 2)

    def points(self, seen: Ragged) -> Tensor:
        """`[total, width]`, for rows `[total, width]` of texts, none of them empty."""
        standard = (seen.values.float() - self._mean) / self._scale
        starts, lengths = seen.offsets[:-1, None], seen.lengths[:, None]
        steps = torch.arange(int(lengths.max()))[None]
        real = steps < lengths
        # each direction reads padded texts from where it begins, so that padding comes last and changes nothing; a
        # packed batch takes twice as long, as each of its steps has a gradient as large as the batch
        onwards = starts + torch.where(real, steps, 0)
        back = starts + torch.where(real, lengths - 1 - steps, 0)
        ahead, behind = (
            read(embedding(at, standard))[0][real] for read, at in zip(self._recurrent, (onwards, back), strict=True)
        )
        point: Tensor = self._map(standard) + self._added(torch.cat([ahead, behind[back[real]]], 1))
        return point

    def loss(self, seen: Ragged, targets: Tensor, *, compared: int) -> Tensor:
        """Mean cross-entropy, over sampled candidates, of the tokens that rows are of.

        Args:
            seen: Rows `[total, width]`.
            targets: `[total]` int64, the place of each token among the candidates; below 0 where it is none of them.
            compared: Candidates in each place; see `sampled_cross_entropy`.
        """
        possible = targets >= 0
        points = self.points(seen)[possible]
        return sampled_cross_entropy(
            lambda some: self._sharpness * (points @ self._rows.index_select(0, some).T) + self._bias[some],
            targets[possible],
            share=self._share,
            compared=compared,
            generator=self._generator,
        )

    @torch.no_grad()
    def read(self, seen: Ragged) -> Tensor:
        """Ids `[total]` int64 of texts' rows."""
        found = torch.empty(len(seen.values), dtype=torch.int64)
        for places, scores in self._scores(seen):
            found[places] = self._candidates[scores.argmax(1)]
        return found

    @torch.no_grad()
    def likeliest(self, seen: Ragged, count: int) -> tuple[Tensor, Tensor]:
        """The likeliest candidates for each place, the first one first.

        Args:
            seen: Rows of texts, as from `rows_of`.
            count: How many of them; all where there are fewer.

        Returns:
            Ids `[total, count]` int64, and ln of how probable each is, `[total, count]` float32.
        """
        count = min(count, len(self._candidates))
        ids = torch.empty(len(seen.values), count, dtype=torch.int64)
        logs = torch.empty(len(seen.values), count)
        for places, scores in self._scores(seen):
            best = scores.topk(count, dim=1)
            ids[places] = self._candidates[best.indices]
            logs[places] = best.values - scores.logsumexp(1, keepdim=True)
        return ids, logs

    def _scores(self, seen: Ragged) -> Iterator[tuple[Tensor, Tensor]]:
        """Some places `[m]` int64, and scores `[m, candidates]` there; all places, part by part."""
        shown = seen.lengths.nonzero()[:, 0]
        for texts in batches(seen.lengths[shown], _POSITIONS):
            some = shown[texts]
            places = torch.cat([torch.arange(int(seen.offsets[text]), int(seen.offsets[text + 1])) for text in some])
            points = self.points(seen.select(some))
            for where, part in zip(places.split(_SCORED), points.split(_SCORED), strict=True):
                yield where, torch.addmm(self._bias, self._sharpness * part, self._rows.T)


def rows_of(payload: Payload, knowledge: Knowledge) -> Ragged:
    """What stands in the places of content tokens, segment by segment, each text's segment by itself.

    Raises:
        Inapplicable: The table was not granted, or for rows the template.
    """
    if knowledge.table is None:
        raise Inapplicable("The attacker was granted no embedding table.")
    features, counts = features_of(payload, knowledge, knowledge.table.detach())
    return Ragged(features, torch.cat(counts))
