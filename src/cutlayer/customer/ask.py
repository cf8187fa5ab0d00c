"""What an adapter is asked: labels, texts, rows. Texts leave as they were privatized in training, by the same gate."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cutlayer.attacks import Exchanged
from cutlayer.core import ConfigError, DataError, Ragged, Rows, Tokens
from cutlayer.customer.clear_words import warn_of_clear_words
from cutlayer.customer.closing import Closing
from cutlayer.customer.connection import Connection
from cutlayer.customer.derived import noise_secret, prompt_reading, run_privatizing
from cutlayer.customer.entities import Protected
from cutlayer.customer.forecast import charges_of, releases_of
from cutlayer.customer.gate import Gate
from cutlayer.customer.generate import OnText, generate
from cutlayer.customer.handout import Offer, choose_model, fetch_archive
from cutlayer.customer.home import Home
from cutlayer.customer.link import QueryLink
from cutlayer.customer.order import Order
from cutlayer.customer.plan import build_session
from cutlayer.customer.profile import Profile
from cutlayer.customer.progress import Progress
from cutlayer.customer.reconstruction import Reconstruction
from cutlayer.customer.results import Generation, Prediction
from cutlayer.customer.session import Session, Texts
from cutlayer.customer.settings import Objective, RunSpec, Sampling
from cutlayer.customer.there import written_there
from cutlayer.customer.trainer import LANGUAGE_POSITIONS
from cutlayer.data import UNCUT, Dataset, tokenise
from cutlayer.data.dataset import check_characters
from cutlayer.models import Tail
from cutlayer.models.batches import EVALUATION_POSITIONS, padded_batches
from cutlayer.privacy import find_mechanism

_MORE = "The vendor takes more with larger limits.max_step_bytes and limits.max_rows_per_step."


@dataclass(frozen=True)
class Query:
    """The road to an adapter, as it was trained, with the door on it.

    Attributes:
        connection: The way to the vendor.
        profile: How the adapter was trained.
        purpose: `predict`, `generate` or `exchange`: the ledger names these frames by it, and the adapter.
        session: The road.
        gate: The door.
        offer: The vendor's model and limits.
        progress: Where to show progress.
    """

    connection: Connection
    profile: Profile
    purpose: str
    session: Session
    gate: Gate
    offer: Offer
    progress: Progress

    @classmethod
    def open(
        cls, connection: Connection, profile: Profile, purpose: str, progress: Progress, *, prompts: bool = False
    ) -> Query:
        """The road to an adapter.

        Args:
            connection: The way to the vendor.
            profile: How the adapter was trained.
            purpose: What is asked.
            progress: Where to show progress.
            prompts: Whether texts are to be continued.
        """
        spec = profile.spec
        find_mechanism(spec.privacy.noise)  # before the vendor is asked: a plug-in may be gone
        offer = choose_model(connection.gate(), spec.model)
        profile.check_same(offer.model.fingerprint)
        gate = connection.gate_of(f"{purpose}/{profile.adapter}", spec, offer)
        archive = fetch_archive(gate, connection.home, offer.model, spec.cut, progress)
        reading = prompt_reading(archive, connection.home, spec, segments=profile.segments) if prompts else None
        asked = spec
        if spec.reconstruction.plain_as is not None:  # plain words stood before texts of training alone
            asked = spec.model_copy(update={"reconstruction": Reconstruction()})
        privatizing = run_privatizing(
            archive, connection.home, asked, importance=profile.importance(connection.home), reading=reading
        )
        session = build_session(archive, connection.home, spec, privatizing, None, connection.device)
        session.load_trained(profile.trained(connection.home))
        return cls(connection, profile, purpose, session, gate, offer, progress)

    def order(self, texts: Sequence[tuple[str, ...]]) -> list[int]:
        """In which texts are asked about: others may hold a list of people in the file's order."""
        secret = noise_secret(self.connection.home, self.profile.spec.unsafe_noise_seed)
        return Order(secret, f"{self.purpose}/{self.profile.adapter}").of(texts)

    def check(self, tokens: Tokens) -> None:
        """Refuses, before any leaves, texts that would be charged beyond the adapter's budget or were its vocabulary.

        It tells of words that identify and would leave as they are.
        """
        check_texts(
            self.connection.home,
            self.session,
            tokens,
            budget=self.profile.spec.privacy_budget,
            width=self.offer.model.width,
            progress=self.progress,
        )
        of = "these texts" if self.purpose == "predict" else "these prompts"
        warn_of_clear_words(self.session.privatizer.clear(tokens), tokens.total, of=of)


def check_texts(
    home: Home, session: Session, tokens: Tokens, *, budget: float | None, width: int, progress: Progress
) -> None:
    """Refuses, before any leaves, texts that would be charged beyond a budget or were their own vocabulary.

    Args:
        home: The customer's folder.
        session: The road.
        tokens: The texts, as they were read.
        budget: Most eta of a text; `None` for no limit.
        width: Of the model's hidden rows.
        progress: Where to show progress.

    Raises:
        BudgetError: A text would be charged beyond the budget.
        PrivacyError: The vocabulary was made from the texts.
    """
    session.reading.check_vocabulary(tokens)
    if budget is not None:
        releases = releases_of(session, Texts(tokens), width=width)
        charges = charges_of(releases, total=len(tokens), progress=progress)
        home.ledger.check_budget(charges, unit=session.privatizer.unit, budget=budget)


def frame_positions(offer: Offer, spec: RunSpec) -> int:
    """Most positions of a frame that a query sends, padding included."""
    return min(offer.most_positions(spec.row_type), EVALUATION_POSITIONS)


def frames_of(lengths: Tensor, most: int) -> Iterator[Tensor]:
    """Consecutive texts' numbers, `[batch]` int64, frame by frame.

    Args:
        lengths: `[n]` int64, positions of each text.
        most: Positions of a frame that the vendor takes, padding included.

    Raises:
        ConfigError: A text has more; none was sent.
    """
    longest = int(lengths.max()) if len(lengths) else 0
    if longest > most:
        raise ConfigError(
            f"A text has {longest} positions, special tokens included; the vendor takes {most} in one frame.",
            remedy=f"Shorten it. {_MORE}",
        )
    return padded_batches(lengths, most)


def check_together(prompts: Ragged, *, special: int, most: int) -> None:
    """Refuses, before any leaves, prompts that make a larger frame than the vendor takes.

    Args:
        prompts: Ids of each, special tokens left out.
        special: How many special tokens each has.
        most: Positions of a frame that the vendor takes, padding included.

    Raises:
        ConfigError: They make more.
    """
    longest = int(prompts.lengths.max()) + special
    if len(prompts) * longest > most:
        raise ConfigError(
            f"{len(prompts)} prompts of up to {longest} positions make {len(prompts) * longest}; the vendor takes "
            f"{most} in one frame.",
            remedy=f"Ask for fewer at a time, or shorten them. {_MORE}",
        )


def predict(connection: Connection, profile: Profile, dataset: Dataset, progress: Progress) -> list[Prediction]:
    """Labels, one for each text.

    Args:
        connection: The way to the vendor.
        profile: How the adapter was trained.
        dataset: Texts, or pairs.
        progress: Where to show progress.

    Raises:
        ConfigError: The adapter gives no labels, or was trained on pairs and these are texts, or the other way round.
    """
    if profile.spec.objective.generates:
        raise ConfigError(
            f"Adapter {profile.adapter} is a language model's: it gives no labels.", remedy="Use generate."
        )
    if dataset.segments != profile.segments:
        raise ConfigError(
            f"The adapter was trained on {'pairs' if profile.segments == 2 else 'single texts'}.",
            remedy="Pass the column of the second text." if profile.segments == 2 else "Pass one text a row.",
        )
    query = Query.open(connection, profile, "predict", progress)
    session = query.session
    session.link = QueryLink.to_adapter(query.gate, profile.adapter, labels=len(profile.labels))
    session.eval()
    order = query.order(dataset.texts)
    tokens = session.reading.read(dataset, max_content=profile.max_content).select(torch.tensor(order))
    query.check(tokens)
    most = frame_positions(query.offer, profile.spec)
    predictions: list[Prediction] = []
    with torch.no_grad():
        for indices in frames_of(session.segment_lengths(Texts(tokens)).sum(1), most):
            probabilities, best = session(Texts(tokens.select(indices))).softmax(1).max(1)
            predictions += [
                Prediction(label=profile.labels[label], probability=probability)
                for label, probability in zip(best.tolist(), probabilities.tolist(), strict=True)
            ]
            progress.update("predict", int(indices[-1]) + 1, len(dataset))
    found = dict(zip(order, predictions, strict=True))
    return [found[row] for row in range(len(dataset))]


def continue_texts(
    connection: Connection,
    profile: Profile,
    prompts: Sequence[str] | Protected,
    *,
    sampling: Sampling,
    on_text: OnText | None,
    progress: Progress,
) -> list[Generation]:
    """What an adapter writes, one text for each prompt.

    Args:
        connection: The way to the vendor.
        profile: How the adapter was trained.
        prompts: Texts that are continued together; of an encoder-decoder, source texts. Where words stand for entities,
            these are put back.
        sampling: How tokens are chosen.
        on_text: Called with a prompt's number and what was added, as it comes.
        progress: Where to show the fetching of the bottom.

    Raises:
        ConfigError: The adapter gives labels, or would draw words that stand for entities once more; or a text may
            become longer than the model takes.
        DataError: There is no prompt, or one has no token.
    """
    if isinstance(prompts, Protected):
        return _restored(connection, profile, prompts, sampling=sampling, on_text=on_text, progress=progress)
    profile.check_writes()
    if not prompts:
        raise DataError("There are no prompts.", remedy="Give one at least.")
    for number, prompt in enumerate(prompts, start=1):
        check_characters(prompt, f"Prompt {number}")
    query = Query.open(connection, profile, "generate", progress, prompts=True)
    order = query.order([(prompt,) for prompt in prompts])
    tokens = _read_prompts(query, Dataset(tuple((prompts[row],) for row in order)))
    limit = query.offer.model.max_length - profile.spec.tuning.positions
    told: OnText = (lambda number, piece: on_text(order[number], piece)) if on_text else (lambda number, piece: None)
    there = profile.spec.objective is Objective.LM and (sampling.num_beams > 1 or query.session.reading.dictionary)
    if there or profile.spec.sends_pairs:
        query.check(tokens)
        positions = query.offer.most_positions(None)
        found = written_there(
            query.session, query.gate, profile.adapter, tokens, sampling, limit=limit, positions=positions, on_text=told
        )
    else:
        (ids,) = tokens.segments
        special = query.session.archive.template.special_count(1)
        check_together(ids, special=special, most=query.offer.most_positions(profile.spec.row_type))
        found = generate(query.session, query.gate, profile.adapter, ids, sampling, limit=limit, on_text=told)
    written = dict(zip(order, found, strict=True))
    return [written[row] for row in range(len(prompts))]


def _restored(
    connection: Connection,
    profile: Profile,
    protected: Protected,
    *,
    sampling: Sampling,
    on_text: OnText | None,
    progress: Progress,
) -> list[Generation]:
    """Answers with their entities; a word that stands for one may come in pieces, so each is told of as a whole."""
    texts = [text for text in protected.texts if isinstance(text, str)]
    if len(texts) < len(protected.texts):
        raise DataError("Prompts are texts, and these are rows of texts.", remedy="Protect a text for each prompt.")
    profile.check_restores()
    found = continue_texts(connection, profile, texts, sampling=sampling, on_text=None, progress=progress)
    answers = [
        each.model_copy(update={"text": protected.map.restore(each.text, row=row)}) for row, each in enumerate(found)
    ]
    for number, answer in enumerate(answers):
        if on_text is not None:
            on_text(number, answer.text)
    return answers


def _read_prompts(query: Query, prompts: Dataset) -> Tokens:
    """Prompts as tokens, or as words; a decoder's source texts are closed by the mark behind which targets begin.

    A source text is cut as those of training were; a prompt never is.
    """
    profile, session = query.profile, query.session
    if session.reading.dictionary is not None:
        return session.reading.read(prompts, max_content=UNCUT)
    seq2seq = profile.spec.objective is Objective.SEQ2SEQ
    tokens = tokenise(prompts, session.archive.tokenizer, max_content=profile.max_content if seq2seq else UNCUT)
    if seq2seq or profile.segments == 1:
        return tokens
    return Tokens((Closing.of(session.archive.tokenizer).close(tokens.segments[0]),))


def exchange(connection: Connection, profile: Profile, dataset: Dataset, progress: Progress) -> Exchanged:
    """Rows that go into the vendor's blocks of a language model's adapter, and rows that come out.

    Args:
        connection: The way to the vendor.
        profile: How the adapter was trained.
        dataset: Texts; those without a token are left out.
        progress: Where to show progress.

    Raises:
        ConfigError: The adapter does not take rows and give rows.
        DataError: No text has a token.
    """
    spec = profile.spec
    if spec.objective is not Objective.LM or spec.cut.bottom is None or spec.privacy.mechanism == "words":
        raise ConfigError(
            f"Adapter {profile.adapter} does not take rows and give rows back.",
            remedy="Name a language model's, with bottom 0 or more, that draws no words.",
        )
    query = Query.open(connection, profile, "exchange", progress)
    session = query.session
    session.link = QueryLink.to_adapter(query.gate, profile.adapter, labels=None)
    session.eval()
    template, tail, table = session.archive.template, session.tail, session.archive.table
    if not isinstance(tail, Tail) or table is None:
        raise TypeError("a language model's customer holds table and tail")
    order = torch.tensor(query.order(dataset.texts))
    tokens = tokenise(dataset, session.archive.tokenizer, max_content=profile.max_content).select(order)
    held = template.segment_lengths(tokens).sum(1) > 0
    tokens, order = tokens.select(held.nonzero()[:, 0]), order[held]
    if not len(tokens):
        raise DataError("No text has a token.", remedy="Name the column of the text.")
    query.check(tokens)
    sent, returned = [], []
    most = min(query.offer.most_positions(spec.row_type), LANGUAGE_POSITIONS)
    for indices in frames_of(template.segment_lengths(tokens).sum(1), most):
        release = session.release(Texts(tokens.select(indices))).release
        rows = release.payload
        if isinstance(rows, Tokens):  # ids left, and the vendor looks them up in the table that is here too
            embedded = template.assemble(rows, table=table.detach()).inputs_embeds
            if embedded is None:
                raise TypeError("what is looked up in a table are rows")
            rows = template.unpad(embedded, rows)
        output = session.link.infer(release)
        rows = dataclasses.replace(rows, packed=rows.packed.with_values(rows.packed.values.float().cpu()))
        sent.append(rows)
        returned.append(dataclasses.replace(rows, packed=rows.packed.with_values(output)))
        progress.update("exchange rows", int(indices[-1]) + 1, len(tokens))
    inputs = template.assemble(tokens)
    if inputs.input_ids is None:
        raise TypeError("texts have token ids")
    lengths = template.segment_lengths(tokens).sum(1)
    return Exchanged(
        sent=Rows.concatenate(sent),
        returned=Rows.concatenate(returned),
        tokens=Ragged(inputs.input_ids[inputs.attention_mask.bool()], lengths),
        tail=tail,
        template=template,
    ).select(order.argsort())
