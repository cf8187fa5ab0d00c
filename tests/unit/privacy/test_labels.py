"""Randomised response of labels: its probabilities, what a record's draw depends on, and what it is charged."""

from __future__ import annotations

import hashlib
import math
import struct
from collections import Counter
from dataclasses import replace

import pytest
import torch

from cutlayer.core import BudgetError, Claim, ConfigError, DataError, Guarantee, PrivacyError, Ragged, Tokens
from cutlayer.privacy import (
    LABEL_UNIT,
    CustomerSecret,
    LabelResponse,
    Ledger,
    NewFrame,
    NoPrivacy,
    Vault,
    build_privatizer,
    keep_probability,
)
from cutlayer.privacy.charges import Charges, record
from cutlayer.privacy.labels import LARGEST_EPSILON, _joined
from tests.unit.privacy.test_release import PAIR

SECRET = CustomerSecret(bytes(range(32)))
NAMES = ("benign", "malignant", "unclear")


@pytest.fixture
def vault(tmp_path):
    opened = Vault(tmp_path / "vault.sqlite", SECRET)
    yield opened
    opened.close()


@pytest.fixture
def ledger(tmp_path):
    opened = Ledger(tmp_path / "ledger.sqlite")
    yield opened
    opened.close()


def texts(n, start=0):
    return [(f"patient {number}",) for number in range(start, start + n)]


def ids_of(given):
    """Tokens as a tokenizer without case would see them."""
    return Tokens((Ragged.from_lists([list(" ".join(text.lower().split()).encode()) for (text,) in given]),))


def draw(vault, epsilon=1.0, *, n=200, labels=None, names=NAMES, secret=SECRET, given=None, ids=None):
    given = texts(n) if given is None else given
    labels = torch.arange(len(given)) % len(names) if labels is None else labels
    ids = ids_of(given) if ids is None else ids
    return LabelResponse(epsilon, secret=secret).draw(given, ids, labels, names, vault=vault)


def open_frame(ledger, labels, **options):
    frame = NewFrame("r", "v", "job.put", where={}, payload_bytes={}, unsafe=options.pop("unsafe", False))
    return ledger.open_frame(frame, labels=labels, **options)


def within(count, n, probability):
    """Five standard errors: a right sampler fails once in a million such checks."""
    return abs(count - n * probability) < 5 * math.sqrt(n * probability * (1 - probability))


@pytest.mark.parametrize(("epsilon", "classes"), [(0.5, 2), (2.0, 2), (1.0, 3), (3.0, 10)])
def test_each_label_is_kept_as_often_as_the_bound_allows_and_else_uniform(vault, epsilon, classes):
    n = 4000
    names = [f"class {number}" for number in range(classes)]
    labels = torch.arange(n) % classes
    reported = draw(vault, epsilon, n=n, labels=labels, names=names).labels
    bound = math.exp(epsilon) / (math.exp(epsilon) + classes - 1)
    assert keep_probability(epsilon, classes) == pytest.approx(bound)
    kept = int((reported == labels).sum())
    assert within(kept, n, bound), f"{kept / n:.4f} are kept, not {bound:.4f}"
    assert not within(kept, n, bound + 0.1)
    shifts = torch.bincount((reported - labels) % classes, minlength=classes)[1:]
    for count in shifts.tolist():
        assert within(count, n, (1 - bound) / (classes - 1))


def test_a_record_has_one_report_in_any_order_batch_and_run(vault):
    first = draw(vault)
    first.keep(vault)
    order = torch.randperm(200, generator=torch.Generator().manual_seed(1))
    given, labels = texts(200), torch.arange(200) % 3
    again = draw(vault, given=[given[at] for at in order.tolist()], labels=labels[order])
    assert torch.equal(again.labels, first.labels[order])
    some = draw(vault, given=given[50:60], labels=labels[50:60])
    assert torch.equal(some.labels, first.labels[50:60])
    assert set(some.identities) <= set(first.identities)


def test_without_the_vault_the_secret_draws_the_same(vault, tmp_path):
    first = draw(vault)
    other = Vault(tmp_path / "other.sqlite", SECRET)
    assert torch.equal(draw(other).labels, first.labels)
    stranger = draw(other, secret=CustomerSecret(bytes(32)))
    assert not torch.equal(stranger.labels, first.labels)
    other.close()


def test_another_epsilon_or_other_classes_make_another_draw_of_the_same_record(vault):
    first, second = draw(vault, 1.0, n=2000), draw(vault, 1.0001, n=2000)
    assert not set(first.identities) & set(second.identities)
    assert first.contents == second.contents, "its label is charged for both"
    alike = int((first.labels == second.labels).sum())
    kept = keep_probability(1.0, 3)
    assert within(alike, 2000, kept**2 + (1 - kept) ** 2 / 2), "the two draws are not independent"
    renamed = draw(vault, 1.0, names=("a", "b", "c"))
    assert not set(renamed.identities) & set(first.identities)


def test_equal_texts_are_one_record_whatever_their_labels(vault):
    """Draws of their own would tell that their labels differ, whenever their reports do."""
    given = texts(400) * 2
    labels = torch.cat([torch.zeros(400), torch.ones(400)]).long()
    drawn = draw(vault, given=given, labels=labels)
    assert torch.equal(drawn.labels[:400], drawn.labels[400:])
    assert len(drawn.identities) == 400


def test_a_record_keeps_its_report_when_its_label_changes(vault):
    first = draw(vault)
    first.keep(vault)
    changed = torch.arange(200) % 3
    changed[:30] = (changed[:30] + 1) % 3
    second = draw(vault, labels=changed)
    assert torch.equal(second.labels, first.labels)
    assert second.outdated == 30
    told = second.guarantee(spent=1.0).caveats
    assert any("30 records have another label now" in line for line in told)
    assert not first.outdated


def test_labels_that_another_process_drew_first_are_not_mixed(vault):
    first, second = draw(vault, n=50), draw(vault, labels=torch.ones(50).long(), n=50)
    first.keep(vault)
    first.keep(vault)
    with pytest.raises(PrivacyError, match="Another run drew reports"):
        second.keep(vault)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, LARGEST_EPSILON + 1])
def test_an_epsilon_that_means_nothing_is_refused(epsilon):
    with pytest.raises(ConfigError, match="label_epsilon"):
        LabelResponse(epsilon, secret=SECRET)


def test_labels_and_texts_must_fit(vault):
    with pytest.raises(DataError, match="3 labels of 3 classes"):
        draw(vault, given=texts(2), labels=torch.tensor([0, 1, 2]))


# ---------------------------------------------------------------- promise and ledger


def test_the_promise_names_its_own_unit(vault):
    promise = draw(vault, 2.0, n=5).guarantee(spent=2.0)
    assert (promise.claim, promise.budget, promise.unit, promise.per) == (Claim.LABEL, 2.0, "epsilon", "label")
    eta = Guarantee(claim=Claim.METRIC, budget=2, unit="1/distance in table t", per="token")
    with pytest.raises(PrivacyError, match="unlike units"):
        promise.compose(eta)
    assert promise.compose(promise).budget == 4


def test_nothing_is_promised_of_labels_in_clear_or_from_a_seed(vault):
    clear = draw(vault, math.inf, n=5)
    assert clear.guarantee(spent=math.inf).claim is Claim.NONE
    assert torch.equal(clear.labels, torch.arange(5) % 3)
    assert not clear.bodies
    seeded = draw(vault, 1.0, n=5, secret=CustomerSecret.unsafe(1, names=SECRET))
    assert seeded.guarantee(spent=1.0).claim is Claim.NONE


def test_labels_are_charged_once_per_draw_and_apart_from_texts(vault, ledger):
    drawn = draw(vault, 1.5, n=10)
    release = build_privatizer(NoPrivacy(), secret=SECRET).tokens(PAIR, labels=None)
    open_frame(ledger, drawn, release=release)
    open_frame(ledger, drawn)
    assert [entry.charged for entry in ledger.labels()] == [True] * 10 + [False] * 10
    assert {(entry.mechanism, entry.unit, entry.eta) for entry in ledger.labels()} == {
        ("randomised response", LABEL_UNIT, 1.5)
    }
    assert len(list(ledger.releases())) == 2
    (texts_line,), (labels_line,) = ledger.summary().mechanisms, ledger.summary().labels
    assert (labels_line.texts, labels_line.draws, labels_line.largest_spent) == (10, 10, 1.5)
    assert (texts_line.texts, texts_line.largest_spent) == (2, math.inf)
    assert ledger.summary().vendors[0].texts == 2
    assert set(ledger.spent_on([drawn.charges], LABEL_UNIT)) == {1.5}, "an infinite eta is no epsilon"


def test_a_draw_at_another_epsilon_adds_up_and_a_run_in_clear_ends_the_promise(vault, ledger):
    first, second, clear = draw(vault, 1.0, n=10), draw(vault, 0.5, n=12), draw(vault, math.inf, n=1)
    for drawn in (first, second):
        open_frame(ledger, drawn)
    assert ledger.summary().looks == {}, "draws of a label are no looks at a text"
    spent = ledger.spent_on([second.charges], LABEL_UNIT)
    assert spent == [1.5] * 10 + [0.5] * 2
    promise = second.guarantee(spent=max(spent))
    assert promise.budget == 1.5
    assert "0.5 is this run's" in promise.caveats[0]
    open_frame(ledger, clear)
    spent = ledger.spent_on([first.charges], LABEL_UNIT)
    assert sorted(set(spent)) == [1.5, math.inf]
    assert first.guarantee(spent=max(spent)).claim is Claim.NONE


def test_a_budget_refuses_and_writes_nothing(vault, ledger):
    open_frame(ledger, draw(vault, 1.0, n=10), label_budget=1.0)
    before = len(list(ledger.frames()))
    with pytest.raises(BudgetError, match=r"10 of 20 labels .* budget of 1: up to 1 spent and 0.5 due, in epsilon"):
        open_frame(ledger, draw(vault, 0.5, n=20), label_budget=1.0)
    assert len(list(ledger.frames())) == before
    open_frame(ledger, draw(vault, 1.0, n=10), label_budget=1.0)
    open_frame(ledger, draw(vault, 0.5, n=10, given=texts(10, start=100)), label_budget=1.0)


def test_a_second_report_of_one_draw_is_refused(vault, ledger, monkeypatch):
    """Planted: a draw that does not follow from the secret, as one per run or epoch would not."""
    open_frame(ledger, draw(vault, n=50))
    flips = Counter()

    def respond(self, identity, label, classes):
        flips[identity] += 1
        return (label + 1) % classes

    monkeypatch.setattr(LabelResponse, "_respond", respond)
    with pytest.raises(PrivacyError, match="of 50 labels were released before with other bytes"):
        open_frame(ledger, draw(vault, n=50))
    assert flips


# ---------------------------------------------------------------- what is one record


VARIANTS = (
    "Patient {} slept.",
    "patient {} slept.",
    "PATIENT  {}\tSLEPT.",
    " patient {} slept. ",
    "patient {} \uff53lept.",
)


def test_texts_that_read_alike_are_one_record(vault):
    """Seven spellings of a text gave seven independent reports: a majority told 88 % where 73 were promised."""
    given = [(form.format(number),) for form in VARIANTS for number in range(300)]
    labels = torch.arange(300).repeat(len(VARIANTS)) % 2
    drawn = draw(vault, 1.0, given=given, labels=labels, names=("a", "b"))
    by_form = drawn.labels.reshape(len(VARIANTS), 300)
    assert (by_form == by_form[0]).all()
    assert len(drawn.identities) == 300
    right = int((by_form.double().mean(0).round().long() == torch.arange(300) % 2).sum())
    assert within(right, 300, keep_probability(1.0, 2))


@pytest.mark.parametrize(
    "other", ["strasse 7 slept.", "Strasse  7\tslept. ", "Strasse 7 \uff53lept.", "Stra\u00dfe 7 slept."]
)
def test_texts_that_read_alike_are_one_record_whatever_their_tokens(vault, other):
    """Tokenizers of language models tell cases and blanks apart: their ids merge nothing here."""
    ids = Tokens((Ragged.from_lists([[1], [2]]),))
    drawn = draw(vault, 0.1, given=[("Strasse 7 slept.",), (other,)], ids=ids, labels=torch.zeros(2).long())
    assert len(drawn.identities) == 1


def test_a_label_is_charged_by_its_texts_tokens_and_as_the_first_version_named_it(vault, ledger):
    """A text that the vendor cannot tell from another has that one's account; what was spent before counts."""
    ids, label = Tokens((Ragged.from_lists([[5, 6]]),)), torch.zeros(1).long()
    first = draw(vault, 1.0, given=[("na\u00efve reading",)], ids=ids, labels=label)
    open_frame(ledger, first, label_budget=1.0)
    with pytest.raises(BudgetError):
        open_frame(ledger, draw(vault, 0.5, given=[("naive reading",)], ids=ids, labels=label), label_budget=1.0)
    text = ("Another  reading",)
    former = hashlib.blake2b(_joined(text), key=SECRET.content_key(), digest_size=16, person=b"label").digest()
    charges = Charges.of([record(former, bytes(16), 1.0)])
    drawn = draw(vault, 1.0, given=[text], labels=label)
    open_frame(ledger, replace(drawn, charges=charges), label_budget=1.0)
    with pytest.raises(BudgetError):
        open_frame(ledger, draw(vault, 0.5, given=[text], labels=label), label_budget=1.0)


def test_texts_that_the_tokenizer_cannot_tell_apart_are_one_record(vault):
    given = [("naïve reading",), ("naive reading",), ("another",)]
    ids = Tokens((Ragged.from_lists([[5, 6], [5, 6], [7]]),))
    drawn = draw(vault, 0.1, given=given, ids=ids, labels=torch.tensor([0, 1, 2]))
    assert len(drawn.identities) == 2
    assert drawn.labels[0] == drawn.labels[1]
    # and whatever joins two records joins all of their texts
    chain = [("A b",), ("a B",), ("other",)]
    linked = draw(
        vault, 0.1, given=chain, ids=Tokens((Ragged.from_lists([[1], [2], [2]]),)), labels=torch.zeros(3).long()
    )
    assert len(linked.identities) == 1


def test_another_run_knows_a_record_by_any_of_its_texts(vault, ledger):
    many = [(form.format(1),) for form in VARIANTS]
    first = draw(vault, 1.0, given=many, labels=torch.zeros(len(many)).long())
    first.keep(vault)
    open_frame(ledger, first)
    for text in many:
        again = draw(vault, 1.0, given=[text], labels=torch.zeros(1).long())
        assert again.identities == first.identities
        open_frame(ledger, again, label_budget=1.0)
    assert set(ledger.spent_on([first.charges], LABEL_UNIT)) == {1.0}
    with pytest.raises(BudgetError):
        open_frame(ledger, draw(vault, 0.5, given=many[2:3], labels=torch.zeros(1).long()), label_budget=1.0)


def test_reports_that_the_first_version_kept_are_kept(vault, ledger):
    """Its vault named a report after the text to the letter; its ledger charged it under that name."""
    response, text = LabelResponse(1.0, secret=SECRET), ("Patient 7 slept.",)
    settings = hashlib.blake2b(struct.pack("<d", 1.0) + _joined(NAMES), key=SECRET.derive("label identity")).digest()
    former = hashlib.blake2b(settings + _joined(text), key=SECRET.derive("label identity"), digest_size=16).digest()
    report = (response._respond(former, 0, 3) + 1) % 3  # not what a new draw would give
    vault.put_many({former: struct.pack("<ii", report, 0)})
    again = draw(vault, 1.0, given=[("patient 7  slept.",), text], labels=torch.zeros(2).long())
    assert again.labels.tolist() == [report, report]
    assert again.identities == (former,)
    again.keep(vault)
    assert draw(vault, 1.0, given=[("PATIENT 7 slept.",)], labels=torch.zeros(1).long()).identities == (former,)
