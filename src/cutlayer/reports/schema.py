"""What a leak report holds: the JSON that `cutlayer audit` writes, and what its HTML page is drawn from.

Text of records stands in `examples` alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, model_validator

from cutlayer.attacks import Control
from cutlayer.core import Guarantee
from cutlayer.reports.downstream import Downstream

SCHEMA_VERSION = 1

Interval = tuple[float, float]
"""95 %, over resampled texts."""


class Part(BaseModel):
    """A part of a report: frozen, closed; infinity is written as the word that `--eta` takes."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=True, ser_json_inf_nan="strings")


class Metric(Part):
    """A number of one attack.

    Attributes:
        name: For machines: `token_recovery`, `exact_sentence`, `rouge_l`, `accuracy`, `mse`.
        title: For readers.
        value: The number.
        ci: Its interval.
        n: Trials behind it.
        unit: `share` (0 to 1), or what else it is in.
        higher_is_leak: Whether more of it means that more leaks.
    """

    name: str
    title: str
    value: float
    ci: Interval | None = None
    n: int
    unit: str = "share"
    higher_is_leak: bool = True


class TokenClass(Part):
    """What an attack recovered of one kind of tokens, and how far its guesses of that kind can be believed.

    Attributes:
        name: `names`, `numbers`, `rare words`, `other words`, `punctuation`; or `whole names`, which are counted as
            they are written, not token by token.
        recovered: The share that was read (recall); `None` where there is no such token.
        ci: Its interval.
        n: How many such tokens there are.
        precision: Of the guesses of this kind the share that is right; `None` where there is no such guess, and for
            whole names.
        precision_ci: Its interval.
        guessed: How many such guesses there are.
    """

    name: str
    recovered: float | None
    ci: Interval | None = None
    n: int
    precision: float | None = None
    precision_ci: Interval | None = None
    guessed: int = 0


class Finding(Part):
    """What one attack found.

    Attributes:
        name: The attack's name in the registry.
        title: What it does.
        question: What it answers: `words`, `label`, `attribute:COLUMN`, `entities`, `length`.
        asked: The question as page one asks it.
        status: Whether there is a number; `not run` where the time budget was used up before,
            or where another attack has read everything.
        reason: Why there is none.
        metric: What the number is; one metric for all attacks on a question, so that they compare.
        counted: What the number is a share of, in the plural: `words`, `texts`. Empty where nothing is counted, as in a
            mean of two shares: such a number is not told as "37 of 100 words".
        value: The number.
        ci: Its interval.
        chance: What the attack would reach without any look at the traffic.
        n: Trials.
        p_value: How probable as large a number is by chance, for this attack alone.
        above_chance: Whether it is above chance after Holm's correction over all attacks of the report.
        reference: Where the attack is from.
        paper_metric: Under what name and metric the paper has it; empty for attacks of no paper.
        needs: What the attacker was granted.
        settings: With what strength it was run, and what that was traded for.
        controls: How it did where the answer is known.
        further: Secondary metrics of the same guesses.
        classes: Recovery by kind of token.
        seconds: How long it took, controls included.
    """

    name: str
    title: str
    question: str
    asked: str
    status: Literal["measured", "control failed", "not applicable", "not run"]
    reason: str = ""
    metric: str = ""
    counted: str = ""
    value: float | None = None
    ci: Interval | None = None
    chance: float | None = None
    n: int = 0
    p_value: float | None = None
    above_chance: bool | None = None
    reference: str
    paper_metric: str = ""
    needs: tuple[str, ...] = ()
    settings: dict[str, str] = {}
    controls: tuple[Control, ...] = ()
    further: tuple[Metric, ...] = ()
    classes: tuple[TokenClass, ...] = ()
    seconds: float = 0

    @model_validator(mode="after")
    def _number_or_reason(self) -> Self:
        if self.status == "measured":
            if self.value is None:
                raise ValueError("an attack that was measured has a value")
            return self
        if not self.reason:
            raise ValueError("an attack without a number says why it has none")
        numbers = (self.value, self.ci, self.chance, self.p_value, self.above_chance)
        if any(number is not None for number in numbers) or self.further or self.classes:
            raise ValueError("an attack that failed a control, or does not apply, has no number")
        return self


class Strongest(Part):
    """The attack that reads most, of all on one question.

    Attributes:
        question: The question.
        asked: As page one asks it.
        attack: The attack's name; `None` where none has a number.
        metric: What the number is.
        value: The number.
        ci: Its interval.
        chance: What would be reached without a look.
        above_chance: Whether it is, after correction.
        sentence: The answer in plain words.
    """

    question: str
    asked: str
    attack: str | None = None
    metric: str = ""
    value: float | None = None
    ci: Interval | None = None
    chance: float | None = None
    above_chance: bool | None = None
    sentence: str


class Piece(Part):
    """A token of an example.

    Attributes:
        text: As it reads, blanks before it included.
        hit: In a guess, whether it is the true one.
    """

    text: str
    hit: bool = False


class Example(Part):
    """A text beside what left of it and what the strongest attack made of that.

    Attributes:
        original: The text.
        released: What left, where that can be read as text; `None` for rows of numbers.
        guess: The attacker's guess.
        attack: Whose guess.
        why: Why this text is shown: chosen at random, or one that leaked most.
    """

    original: tuple[Piece, ...]
    released: tuple[Piece, ...] | None
    guess: tuple[Piece, ...]
    attack: str
    why: str


class FrontierPoint(Part):
    """A setting with what it hides and what it keeps.

    Attributes:
        label: The setting in a few words.
        eta: The privacy parameter; infinite for none.
        replaced: Share of tokens that the noise replaced; `None` for rows.
        recovered: Share of tokens that the strongest attack read.
        recovered_ci: Its interval.
        attack: That attack's name.
        attacks: All that have a number under the setting.
        utility: Accuracy (or another measure of use) under it; `None` where it was not measured.
        utility_ci: Its interval.
        audited: Whether it is the setting that the report is about.
    """

    label: str
    eta: float
    replaced: float | None
    recovered: float
    recovered_ci: Interval | None = None
    attack: str = ""
    attacks: tuple[str, ...] = ()
    utility: float | None = None
    utility_ci: Interval | None = None
    audited: bool = False


class Frontier(Part):
    """Privacy over utility.

    Attributes:
        utility_name: What utility is: `accuracy on dev`.
        lower_is_better: Whether less of it is more useful, as of perplexity.
        attack: The attack that `recovered` is of.
        points: Settings.
        note: How they were measured, and by which attacks.
    """

    utility_name: str
    lower_is_better: bool = False
    attack: str
    points: tuple[FrontierPoint, ...]
    note: str = ""


class HandedOut(Part):
    """A group of weights that the customer got, or that stayed at the vendor.

    Attributes:
        name: `embeddings`, `block 0`, `tail`, `head`.
        parameters: How many numbers.
        share: Of the whole model's.
        handed_out: Whether the customer has them.
    """

    name: str
    parameters: int
    share: float
    handed_out: bool


class Student(Part):
    """How well a copy learnt from answers agrees with the tuned model.

    Attributes:
        queries: Answered queries that it was trained on.
        agreement: Share of unseen texts to which both give the same label.
        agreement_ci: Its interval.
        from_labels: Agreement of a student of the same kind trained on as many true labels instead.
        from_labels_ci: Its interval.
        n: Unseen texts.
    """

    queries: int
    agreement: float
    agreement_ci: Interval | None = None
    from_labels: float | None = None
    from_labels_ci: Interval | None = None
    n: int


class BlocksCopy(Part):
    """How near a student of the vendor's blocks comes to them, on texts that it has not seen.

    Attributes:
        texts: Texts whose rows in and rows out it learnt from.
        rows: How many rows these have.
        kind: What the student is.
        explained: Share of the variance of rows out that its rows explain; below 0 where they are farther off than the
            mean row.
        explained_ci: Its interval.
        agreement: Share of rows behind which the customer's tail says the token that it says behind the vendor's.
        agreement_ci: Its interval.
        from_answers: Agreement of a student of the same kind that learnt from the tokens that were said.
        from_answers_ci: Its interval.
        from_text: Agreement of one that learnt from the texts' own tokens, without the vendor.
        from_text_ci: Its interval.
        unseen: Texts behind the numbers.
        n: Their rows.
    """

    texts: int
    rows: int
    kind: str
    explained: float
    explained_ci: Interval | None = None
    agreement: float
    agreement_ci: Interval | None = None
    from_answers: float | None = None
    from_answers_ci: Interval | None = None
    from_text: float | None = None
    from_text_ci: Interval | None = None
    unseen: int
    n: int


class BlocksCopies(Part):
    """What a customer can copy of the vendor's blocks from rows in and rows out.

    Attributes:
        name: The attack's name.
        title: What it does.
        reference: Where it is from.
        status: Whether there are numbers.
        reason: Why there are none.
        controls: How students did where the answer is known; what they recover is the explained share.
        students: By number of texts.
        seconds: How long it took, controls included.
    """

    name: str
    title: str
    reference: str
    status: Literal["measured", "control failed", "not applicable", "not run"]
    reason: str = ""
    controls: tuple[Control, ...] = ()
    students: tuple[BlocksCopy, ...] = ()
    seconds: float = 0

    @model_validator(mode="after")
    def _numbers_or_reason(self) -> Self:
        if (self.status == "measured") != bool(self.students) or not (self.students or self.reason):
            raise ValueError("an attack that was measured has students, and any other a reason why it has none")
        return self


class VendorPage(Part):
    """What the customer was handed and could learn: the vendor's page (SAP §3.2, goal 1).

    Attributes:
        handed: Groups of weights.
        parameters: Of the whole model.
        share: The share that was handed out.
        students: Copies from answers, by number of queries; none where there is no tuned model.
        blocks: Copies of the vendor's blocks; `None` in reports of versions that did not try.
        note: What else is to be said.
    """

    handed: tuple[HandedOut, ...]
    parameters: int
    share: float
    students: tuple[Student, ...] = ()
    blocks: BlocksCopies | None = None
    note: str = ""


class ProtectedEntities(Part):
    """What stands in the places of entities, in texts that were protected before they were trained on.

    Attributes:
        drawn: How many words of entities were drawn.
        replaced: How many of them became another word.
        mentions: How many words of the texts others stand for.
        clear: By kind, how many words stand outside entities and left as they were.
    """

    drawn: int
    replaced: int
    mentions: int
    clear: Mapping[str, int]


class AuditSettings(Part):
    """What was audited.

    Attributes:
        source: `local` (traffic made for the audit) or `recorded`.
        model: Its name.
        fingerprint: Of its weights.
        cut: The cut, in a word.
        bottom_blocks: Blocks at the customer; `None` for the text cut.
        blocks: Of the whole model.
        mechanism: `none`, `text-to-text` or `vector`.
        noise: Whose noise it draws: `d-chi`, `snd-code`, or a plug-in's name.
        eta: Its parameter; infinite for none.
        place: Where noise is added.
        clip: Whether noisy rows were clipped to the largest norm of the table.
        cti: Whether eta depends on the token.
        objective: What was trained; `embed` where embeddings were asked of the frozen model; empty where nothing was.
        unlabelled: Whether the texts had no labels, so that no classifier was trained.
        texts: How many.
        tokens: Of all of them.
        replaced: Share of tokens that the noise replaced; `None` for rows.
        clear_words: By kind, how many words left as they are by the mechanism's own rule.
        labels_sent: Share of training labels that the vendor was sent as they are; `None` where labels stayed with the
            customer.
        labels_drawn: Whether labels were drawn at random before.
        protected: Of texts that `protect` wrote what it replaced in them, and what it did not.
        looks: Most releases of one text.
        largest_distance: No two rows of the table are farther apart; eta times this is the worst case of a look.
        public_text: Where the attacker's own text is from, and how much.
        attacker_labels: Records whose label or attribute the attacker knows.
        unsafe_noise: Whether the noise is from a seed, which protects nothing.
        budget_seconds: Time that all of it had, or the attacks alone; `None` for as much as they took.
        seed: From which samples and attacks are drawn.
    """

    source: Literal["local", "recorded"]
    model: str
    fingerprint: str
    cut: str
    bottom_blocks: int | None
    blocks: int
    mechanism: str
    noise: str
    eta: float
    place: str
    clip: bool = False
    cti: bool
    objective: str = ""
    unlabelled: bool = False
    texts: int
    tokens: int
    replaced: float | None
    clear_words: Mapping[str, int] = {}
    labels_sent: float | None = None
    labels_drawn: bool = False
    protected: ProtectedEntities | None = None
    looks: int
    largest_distance: float | None
    public_text: str
    attacker_labels: int
    unsafe_noise: bool
    budget_seconds: float | None
    seed: int


class AuditReport(Part):
    """A leak report.

    Attributes:
        schema_version: Of this format.
        version: Of cutlayer.
        created: When, ISO 8601 in UTC.
        verdict: What leaked, in plain words: page one's first sentences.
        settings: What was audited.
        guarantee: What is promised of words, and what that does not cover.
        label_guarantee: The same of labels; `None` where texts have none.
        strongest: For each question the strongest attack.
        attacks: All of them.
        correction: How `above_chance` was corrected for so many attacks.
        stand_out: Rows of the data (counted from 1, without the header) of which improbably much was read: texts
            that left by mistake, or with less noise than the others.
        examples: Texts beside releases and guesses.
        frontier: Privacy over utility; `None` where it was not measured.
        vendor: Page two.
        downstream: What embeddings are good for; `None` where that was not measured.
        traded: What a time budget left out or weakened, a sentence each.
        runs: Of several runs that were read together, what is to be said of them, a sentence each.
        repeat: Command lines that make the report again.
    """

    schema_version: int = SCHEMA_VERSION
    version: str
    created: str
    verdict: tuple[str, ...]
    settings: AuditSettings
    guarantee: Guarantee
    label_guarantee: Guarantee | None = None
    strongest: tuple[Strongest, ...]
    attacks: tuple[Finding, ...]
    correction: str
    stand_out: tuple[int, ...] = ()
    examples: tuple[Example, ...] = ()
    frontier: Frontier | None = None
    vendor: VendorPage | None = None
    downstream: Downstream | None = None
    traded: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    repeat: tuple[str, ...] = ()
