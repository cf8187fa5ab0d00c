"""Runs whose labels are drawn by randomised response, and a vendor that reads every gradient of them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cutlayer.attacks import ATTACKS, View
from cutlayer.core import BudgetError, Claim, ConfigError, Cut, PrivacyError, Stopped
from cutlayer.customer import Client, Silent, TrainBottom
from cutlayer.customer.corpora import Corpora, Labelled
from cutlayer.customer.evidence import Evidence
from cutlayer.customer.handout import local_archive
from cutlayer.customer.prepare import LabelledTexts
from cutlayer.customer.trainer import Trainer
from cutlayer.data import Dataset, LabelNames
from cutlayer.privacy import CtiSpec, CustomerSecret, LabelResponse, Vault, keep_probability
from tests.promises.runs import LABELS, TEST, TRAINING, Sent, corpus, customer, finetune
from tests.service.fixtures import api_key, blank_vendor, data_dir, tiny_model  # noqa: F401 - fixtures by name
from tests.settings import specs
from tests.unit.models.vocabularies import make_tokenizer

MANY = corpus(600, seed=5, canaries=False)
QUICK = TRAINING.model_copy(update={"epochs": 4, "patience": 4, "batch_size": 32})
EPSILON = 1.0


@pytest.fixture
def client(data_dir: Path, api_key: str, tmp_path: Path) -> Iterator[Client]:  # noqa: F811
    with customer(data_dir, api_key, tmp_path / "home") as opened:
        yield opened


def run(client: Client, train: Dataset = MANY, **settings: Any) -> Any:
    chosen = {"eta": math.inf, "training": QUICK, "seed": 3, "label_epsilon": EPSILON} | settings
    return client.finetune(train, **specs(chosen))


def read_labels(client: Client, result: Any, model: Path, train: Dataset = MANY) -> tuple[torch.Tensor, torch.Tensor]:
    """What the vendor makes of all epochs' gradients together, text by text, and the true labels."""
    archive = local_archive(client.home, str(model), Cut(bottom=0))
    evidence = Evidence.of(result.folder, Corpora(train, None, None), archive, home=client.home)
    assert evidence.labels is not None
    votes = torch.zeros(len(evidence.labels.labels), len(LABELS))
    for source, number, guess in ATTACKS["output-gradient"](View(evidence.transcript, evidence.knowledge)):
        texts = evidence.labels.steps[source.removeprefix("job/"), number]
        votes[texts, guess] += 1
    return votes.argmax(1), evidence.labels.labels


def errors_beyond(read: torch.Tensor, true: torch.Tensor) -> float:
    """Standard errors by which a vendor reads more labels than the bound allows."""
    bound, n = keep_probability(EPSILON, len(LABELS)), len(true)
    return (float((read == true).double().mean()) - bound) / math.sqrt(bound * (1 - bound) / n)


def test_all_epochs_together_show_no_more_than_the_bound_and_as_much(
    client: Client,
    tiny_model: Path,  # noqa: F811
) -> None:
    result = run(client)
    read, true = read_labels(client, result, tiny_model)
    assert abs(errors_beyond(read, true)) < 4
    assert result.label_recovery == pytest.approx(float((read == true).double().mean()))
    assert result.label_keep == keep_probability(EPSILON, 3)
    assert (result.label_guarantee.claim, result.label_guarantee.budget) == (Claim.LABEL, EPSILON)
    assert result.guarantee.claim is Claim.NONE, "texts left as they are"


def test_labels_drawn_for_each_epoch_would_show_more(
    client: Client,
    tiny_model: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Planted: the same probabilities, but drawn anew for each epoch."""
    prepared, batches = LabelledTexts.__init__, Trainer.batches
    rng, true = torch.Generator().manual_seed(1), []

    def capture(self: LabelledTexts, rows: Labelled, *given: Any, **named: Any) -> None:
        true.append(rows.labels)
        prepared(self, rows, *given, **named)

    def anew(self: Trainer, epoch: int) -> list[torch.Tensor]:
        labels = true[0]
        kept = torch.rand(len(labels), generator=rng) < keep_probability(EPSILON, len(LABELS))
        others = (labels + torch.randint(1, len(LABELS), labels.shape, generator=rng)) % len(LABELS)
        self.train = replace(self.train, labels=torch.where(kept, labels, others))
        return batches(self, epoch)

    monkeypatch.setattr(LabelledTexts, "__init__", capture)
    monkeypatch.setattr(Trainer, "batches", anew)
    result = run(client)
    assert errors_beyond(*read_labels(client, result, tiny_model)) > 4


def test_the_same_reports_in_a_second_run_and_others_at_another_epsilon(
    client: Client,
    tiny_model: Path,  # noqa: F811
) -> None:
    small = Dataset(MANY.texts[:200], (MANY.labels or ())[:200])
    backwards = Dataset(small.texts[::-1], (small.labels or ())[::-1])
    dev = corpus(20, seed=9)
    once = {"training": QUICK.model_copy(update={"epochs": 1}), "dev": dev}
    reports = []
    for train, epsilon in ((small, 1.0), (backwards, 1.0), (small, 1.1)):
        result = run(client, train, label_epsilon=epsilon, **once)
        archive = local_archive(client.home, str(tiny_model), Cut(bottom=0))
        evidence = Evidence.of(result.folder, Corpora(train, dev, None), archive, home=client.home)
        assert evidence.labels is not None
        read = torch.zeros(200, dtype=torch.int64)
        for source, number, guess in ATTACKS["output-gradient"](View(evidence.transcript, evidence.knowledge)):
            read[evidence.labels.steps[source.removeprefix("job/"), number]] = guess
        reports.append(read)
    first, second, other = reports
    assert torch.equal(second, first), "rows in another order are the same rows, taken in the same order"
    assert not torch.equal(other, first)
    (line,) = client.ledger.summary().labels
    assert (line.draws, line.largest_spent) == (2 * 220, pytest.approx(2.1))
    assert result.label_guarantee.budget == pytest.approx(2.1)
    assert "1.1 is this run's" in result.label_guarantee.caveats[0]


class Interrupts(Silent):
    """Ctrl-C in the second epoch."""

    def update(self, stage: str, done: int, total: int, note: str = "") -> None:
        if stage.startswith("epoch 2"):
            raise KeyboardInterrupt


@pytest.mark.parametrize("train_bottom", [TrainBottom.FROZEN, TrainBottom.RESAMPLE])
def test_a_resumed_run_goes_on_with_the_same_reports(client: Client, tmp_path: Path, train_bottom: TrainBottom) -> None:
    settings = {"label_epsilon": EPSILON, "train_bottom": train_bottom}
    with pytest.raises(Stopped):
        finetune(client, progress=Interrupts(), out=tmp_path / "run", **settings)
    charged = [entry.charged for entry in client.ledger.labels()]
    assert all(charged)
    assert len(charged) == 40
    resumed = finetune(client, out=tmp_path / "run", **settings)
    assert [entry.charged for entry in client.ledger.labels()].count(True) == 40
    straight = finetune(client, out=tmp_path / "straight", **settings)
    assert resumed.adapter_sha256 == straight.adapter_sha256
    assert resumed.label_guarantee == straight.label_guarantee


def test_labels_are_written_down_before_the_first_gradient_leaves(client: Client) -> None:
    result = finetune(client, label_epsilon=EPSILON)
    (entry,) = {label.entry for label in client.ledger.labels()}
    gradients = [frame.entry for frame in client.ledger.frames() if frame.payload_bytes.get("gradient")]
    assert entry < min(gradients)
    assert len(Sent.by(result).frames) <= len(list(client.ledger.frames()))


def test_true_labels_change_no_byte_that_leaves(
    tmp_path: Path,
    data_dir: Path,  # noqa: F811
    api_key: str,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With reports given, all that is sent is made of them: of train's labels, of dev's, and of test's."""
    monkeypatch.setattr(
        "cutlayer.privacy.LabelResponse._respond", lambda self, identity, label, classes: identity[0] % 3
    )
    sent = []
    for name, shift in (("one", 0), ("two", 1)):
        home = tmp_path / name
        home.mkdir()
        (home / "secret").write_bytes(bytes(32))
        (home / "secret").chmod(0o600)
        (home / "ledger.sqlite").touch(mode=0o600)
        given = [
            Dataset(texts.texts, tuple(LABELS[(LABELS.index(label) + shift) % 3] for label in texts.labels or ()))
            for texts in (corpus(40, seed=1), corpus(30, seed=4), TEST)
        ]
        monkeypatch.setattr("secrets.token_hex", lambda size: "ab" * size)
        with customer(data_dir, api_key, home) as opened:
            result = opened.finetune(
                given[0], dev=given[1], test=given[2], eta=6.0, training=TRAINING, seed=3, label_epsilon=EPSILON
            )
            sent.append([(frame.route.name, frame.sha256) for frame in Sent.by(result).frames])
            opened.delete_adapter(result.adapter_id)
    assert sent[0] == sent[1]
    assert len(sent[0]) > 10


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"cti": CtiSpec(), "eta": 6.0}, "cti = 'set': must be left out with `label_epsilon`"),
        ({"cti": CtiSpec(class_free=True), "eta": 6.0}, "cti = 'set': must be left out with `label_epsilon`"),
        ({"label_epsilon": 0.0}, r"label_epsilon = 0\.0"),
        ({"label_epsilon": 21.0}, r"label_epsilon = 21\.0"),
        ({"label_epsilon": None, "label_budget": 0.5}, "label_budget = 0.5: needs `label_epsilon`"),
        ({"label_budget": 2.0, "unsafe_noise_seed": 1}, "label_budget = 2.0: cannot limit"),
    ],
)
def test_settings_that_would_show_labels_or_mean_nothing_are_refused(
    client: Client, settings: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        run(client, corpus(40, seed=1), **settings)
    assert not list(client.ledger.releases())
    assert not list(client.ledger.labels())


def test_one_draw_beyond_the_budget_of_labels_is_refused(client: Client) -> None:
    with pytest.raises(BudgetError, match=r"beyond the budget of 0\.5"):
        finetune(client, label_epsilon=1.0, label_budget=0.5)
    assert not list(client.ledger.releases())
    assert not list(client.ledger.labels())


def test_a_budget_of_labels_refuses_before_anything_is_sent_and_may_be_raised(client: Client, tmp_path: Path) -> None:
    finetune(client, label_epsilon=1.0, label_budget=1.0)
    before = len(list(client.ledger.frames()))
    with pytest.raises(BudgetError, match=r"labels would be charged beyond the budget of 1\.2"):
        finetune(client, label_epsilon=0.5, label_budget=1.2, out=tmp_path / "run")
    sent = [frame.route for frame in list(client.ledger.frames())[before:]]
    assert not {"job.put", "record-set.put", "step"} & set(sent)
    result = finetune(client, label_epsilon=0.5, label_budget=1.5, out=tmp_path / "run")
    assert result.label_guarantee.budget == 1.5


def test_a_run_in_clear_is_an_event_and_ends_what_is_promised(client: Client) -> None:
    clear = finetune(client)
    assert clear.label_guarantee.claim is Claim.NONE
    assert clear.label_keep is None
    (line,) = client.ledger.summary().labels
    assert (line.mechanism, line.texts, line.largest_eta) == ("none", 40, math.inf)
    later = finetune(client, label_epsilon=EPSILON)
    assert later.label_guarantee.claim is Claim.NONE
    assert "as they are" in later.label_guarantee.caveats[0]
    with pytest.raises(BudgetError):
        finetune(client, label_epsilon=0.5, label_budget=3.0)


def test_a_record_is_a_whole_text_and_not_its_beginning(tmp_path: Path) -> None:
    """Tokens that a run cuts off count: a run of another length would take other texts for one."""
    beginning = " ".join(f"word{number % 40}" for number in range(600))
    train, dev = Dataset(((f"{beginning} a",), (f"{beginning} b",)), ("x", "y")), Dataset((("a b",),), ("x",))
    names = LabelNames.of(train.labels or ())
    rows = Labelled(train, dev, None, names, torch.tensor([0, 1]), torch.tensor([0]), None)
    secret = CustomerSecret(bytes(range(32)))
    vault = Vault(tmp_path / "vault.sqlite", secret)
    reported = rows.report(LabelResponse(1.0, secret=secret), make_tokenizer("bert"), vault=vault)
    vault.close()
    assert len(reported.identities) == 3


def test_labels_from_a_seed_promise_nothing(client: Client) -> None:
    result = finetune(client, label_epsilon=EPSILON, unsafe_noise_seed=1)
    assert result.label_guarantee.claim is Claim.NONE
    (line,) = client.ledger.summary().labels
    assert line.largest_spent == math.inf
    with pytest.raises(BudgetError):
        finetune(client, label_epsilon=0.5, label_budget=3.0)


def test_the_epoch_is_chosen_by_reports_and_accuracy_is_told_by_true_labels(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reports that are always wrong: dev's accuracy by them and by the truth add up to no more than one."""
    monkeypatch.setattr(
        "cutlayer.privacy.LabelResponse._respond", lambda self, identity, label, classes: (label + 1) % classes
    )
    result = client.finetune(corpus(40, seed=1), eta=6.0, training=TRAINING, seed=3, label_epsilon=EPSILON)
    assert (result.ua_on, result.ua_n) == ("dev", result.n_dev)
    assert result.ua + max(result.dev) <= 1
    assert result.label_recovery == 0


def test_a_lost_vault_with_changed_labels_is_no_second_look(client: Client, tmp_path: Path) -> None:
    finetune(client, label_epsilon=EPSILON)
    client.home.vault.close()
    del client.home.__dict__["vault"]
    for path in client.home.path.glob("vault.sqlite*"):
        path.unlink()
    texts = corpus(40, seed=1)
    turned = Dataset(texts.texts, tuple(LABELS[(LABELS.index(label) + 1) % 3] for label in texts.labels or ()))
    with pytest.raises(PrivacyError, match="labels were released before with other bytes"):
        finetune(client, train=turned, label_epsilon=EPSILON)


def test_the_result_is_read_back_with_its_promise(client: Client, tmp_path: Path) -> None:
    result = finetune(client, label_epsilon=EPSILON, out=tmp_path / "run")
    assert finetune(client, label_epsilon=EPSILON, out=tmp_path / "run") == result
    shown = json.loads((tmp_path / "run" / "result.json").read_text())["label_guarantee"]
    assert (shown["claim"], shown["budget"], shown["unit"]) == ("label-dp", EPSILON, "epsilon")
