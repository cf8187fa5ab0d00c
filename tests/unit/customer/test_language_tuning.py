"""What is trained at the customer, what cannot be, and public text that goes first."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cutlayer import vendor
from cutlayer.core import BudgetError, ConfigError, Cut, ModelError, Place, Stopped, Tokens, VendorError
from cutlayer.customer import (
    Client,
    Gate,
    LanguageResult,
    Objective,
    RunSpec,
    Sampling,
    Silent,
    TrainBottom,
    Training,
)
from cutlayer.customer.run import Run, RunState
from cutlayer.customer.session import Session
from cutlayer.customer.tuning import Tuned, tune
from cutlayer.customer.validate import validate
from cutlayer.data import Dataset
from cutlayer.models import Archive, Head, Inputs, Tail, read_archive, write_archive
from cutlayer.privacy import CtiSpec, Excerpts, NoPrivacy, PrivacySpec, TextToText, Vector
from cutlayer.privacy.privatizers.text_to_text import TextToTextPrivatizer
from cutlayer.wire import Form, routes
from tests.equivalence import zoo
from tests.promises.runs import Sent, corpus, customer
from tests.quick import slow_but
from tests.service.tiny import write_tiny_gpt2
from tests.settings import run_spec, specs
from tests.unit.models.vocabularies import habit_of, make_tokenizer

NOISE, BARE = TextToText(eta=80), NoPrivacy()


def spec(**changes: Any) -> RunSpec:
    settings = {"privacy": BARE, "objective": Objective.LM, "model": "tiny", "bottom": 1, "tail": 0, "seed": 1}
    return run_spec(**settings | {"train_bottom": TrainBottom.CACHED} | changes)


# ---------------------------------------------------------------- which weights are trained


def archive(name: str, cut: Cut, folder: Path) -> Archive:
    """Read from disk as a customer reads it: frozen, ties kept."""
    model, tokenizer = zoo.shared_model(name, Head.LANGUAGE), make_tokenizer(habit_of(name))
    write_archive(model, tokenizer, cut, folder, name="tiny")
    return read_archive(folder)


GROUPS = {
    "gpt2": {
        "transformer.wte": "table",
        "transformer.wpe": "positions",
        "transformer.h.0": "block 0",
        "transformer.h.3": "block 3",
        "transformer.ln_f": "norm",
        "lm_head": "head",
    },
    "llama": {
        "model.embed_tokens": "table",
        "model.layers.0": "block 0",
        "model.layers.3": "block 3",
        "model.norm": "norm",
        "lm_head": "head",
    },
}


def trained(name: str, parts: Tuned) -> set[str]:
    """What of the customer's weights is trained: groups of its own weights, whole, or `+` and an adapter on one."""
    groups = GROUPS[name]
    found: dict[str, set[bool]] = {}
    seen: set[int] = set()
    for part in (parts.bottom, parts.tail):
        for path, value in () if part is None else part.model.named_parameters():
            if id(value) in seen:
                continue
            seen.add(id(value))
            (group,) = (group for prefix, group in groups.items() if path.startswith(prefix))
            found.setdefault(f"+{group}" if "lora_" in path else group, set()).add(value.requires_grad)
    assert all(len(flags) == 1 for flags in found.values()), "a group is trained by half"
    return {group for group, flags in found.items() if flags == {True}}


F, M, R = TrainBottom.FROZEN, TrainBottom.CACHED, TrainBottom.RESAMPLE
LORA, FULL = "lora", "full"
BLOCKS = "block 0|block 3"
CASES = [
    # model, method, train_bottom, noise, bottom, tail, what is trained
    ("gpt2", LORA, F, False, 1, 1, "+block 3"),
    ("gpt2", LORA, M, False, 1, 1, "+block 0|+block 3"),
    ("gpt2", LORA, M, True, 1, 1, "+block 0|+block 3"),
    ("gpt2", LORA, R, True, 1, 1, "+block 0|+block 3"),
    ("gpt2", LORA, M, False, 1, 0, "+block 0"),
    ("gpt2", LORA, F, False, 1, 0, ""),
    ("gpt2", LORA, F, True, 0, 0, ""),
    ("gpt2", LORA, F, False, None, 1, "+block 3"),
    ("gpt2", FULL, F, False, 1, 1, "block 3|norm"),  # the head is the table, which is not trained
    ("gpt2", FULL, F, True, 0, 0, "norm"),
    ("gpt2", FULL, M, False, 1, 1, f"table|positions|{BLOCKS}|norm"),
    ("gpt2", FULL, M, True, 1, 1, f"positions|{BLOCKS}|norm"),
    ("gpt2", FULL, R, False, 1, 0, "table|positions|block 0|norm"),
    ("gpt2", FULL, R, True, 1, 0, "positions|block 0|norm"),
    ("gpt2", FULL, R, False, 0, 0, "table|norm"),
    ("llama", LORA, M, False, 1, 1, "+block 0|+block 3"),
    ("llama", LORA, F, False, 1, 0, ""),
    ("llama", FULL, F, False, 1, 1, "block 3|norm|head"),
    ("llama", FULL, M, False, 1, 1, f"table|{BLOCKS}|norm|head"),
    ("llama", FULL, M, True, 1, 1, f"{BLOCKS}|norm|head"),
    ("llama", FULL, R, False, 0, 0, "table|norm|head"),
    ("llama", FULL, F, False, None, 0, "norm|head"),
]


@pytest.mark.parametrize(("name", "method", "train_bottom", "noise", "bottom", "tail", "expected"), CASES)
def test_what_is_trained(
    name: str,
    method: str,
    train_bottom: TrainBottom,
    noise: bool,
    bottom: int | None,
    tail: int,
    expected: str,
    tmp_path: Path,
) -> None:
    held = archive(name, Cut(bottom=bottom, tail=tail), tmp_path / "archive")
    settings = spec(
        method=method, train_bottom=train_bottom, privacy=NOISE if noise else BARE, bottom=bottom, tail=tail
    )
    validate(settings)
    parts = tune(held, settings)
    assert trained(name, parts) == {group for group in expected.split("|") if group}
    assert parts.trains_bottom == (train_bottom is not F)
    assert isinstance(parts.tail, nn.Module)
    head = parts.tail.model.get_output_embeddings().weight  # type: ignore[operator]
    if name == "gpt2" and bottom is not None:
        assert parts.bottom is not None
        assert head is parts.bottom.table, "the tie is broken"


def test_a_classifier_trains_what_it_did(tmp_path: Path) -> None:
    """Blocks of the bottom, or the table where there are none; no adapter of the customer's."""
    for bottom, train_bottom, expected in (
        (1, M, {"block 0"}),
        (1, R, {"block 0"}),
        (0, R, {"table"}),
        (1, F, set()),
    ):
        held = archive("gpt2", Cut(bottom=bottom), tmp_path / f"{bottom}-{train_bottom}")
        settings = spec(bottom=bottom, tail=None, train_bottom=train_bottom, objective=Objective.CLASSIFICATION)
        settings = settings.model_copy(update={"training": settings.training.model_copy(update={"dropout": True})})
        validate(settings)
        assert trained("gpt2", tune(held, settings)) == expected


@pytest.mark.parametrize("checkpointing", [True, False])
@pytest.mark.parametrize("dropout", [True, False])
def test_dropout_and_checkpointing_reach_both_parts(dropout: bool, checkpointing: bool, tmp_path: Path) -> None:
    """Either without the other: what is not kept for the backward pass is computed a second time in it."""
    held = archive("gpt2", Cut(bottom=1, tail=1), tmp_path / "archive")
    training = {"dropout": dropout, "gradient_checkpointing": checkpointing, "lora_dropout": 0.5}
    parts = tune(held, spec(**training))
    inputs = Inputs(torch.ones(2, 5, dtype=torch.int64), torch.arange(5).expand(2, -1))
    rows = torch.randn(2, 5, zoo.WIDTH)
    assert isinstance(parts.tail, Tail)
    assert parts.bottom is not None
    for part, output in (
        (parts.bottom, lambda: parts.bottom(replace(inputs, inputs_embeds=rows))),
        (parts.tail, lambda: parts.tail(rows, inputs)),
    ):
        part.train()
        named = dict(part.model.named_modules())
        own = [module for name, module in named.items() if name.endswith("resid_dropout")]
        adapters = [module for name, module in named.items() if name.endswith("lora_dropout.default")]
        assert own
        assert all(module.training == dropout for module in own)
        assert adapters
        assert all(module.training for module in adapters), "an adapter's dropout follows its own rate"
        (norm,) = (module for name, module in named.items() if name.endswith("ln_1"))
        calls: list[None] = []
        norm.register_forward_hook(lambda *_, calls=calls: calls.append(None))
        output().sum().backward()
        assert len(calls) == 1 + checkpointing


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (
            {"privacy": TextToText(eta=80, cti=CtiSpec())},
            r"cti = 'set': must be left out: contributing tokens are found by class labels, and there are none",
        ),
        ({"public_iterations": 1, "train_bottom": F}, r"public_iterations = 1: must be 0 with a frozen bottom"),
        (
            {"public_iterations": 3, "method": "full", "gradient_accumulation_steps": 2},
            r"public_iterations = 3: must be a multiple of gradient_accumulation_steps = 2",
        ),
        ({"bottom": 0, "train_bottom": R}, r'train_bottom = \'resample\': trains the table: use `method` "full"'),
        ({"bottom": 0, "train_bottom": M}, r"train_bottom = 'cached': trains blocks"),
        ({"bottom": None, "train_bottom": R}, r"needs weights at the customer"),
        ({"bottom": None, "train_bottom": F, "privacy": NOISE}, r"has no embedding table, which noise on tokens needs"),
        ({"privacy": Vector(eta=80)}, r"works with a frozen bottom only"),
        (
            {
                "target_bottom": 1,
                "privacy": TextToText(eta=80, cti=CtiSpec()),
                "public_iterations": 2,
                "train_bottom": F,
            },
            r"target.*cti.*public_iterations = 2",
        ),
    ],
    ids=str,
)
def test_language_settings_without_meaning_are_refused_together(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=f"(?s){named}"):
        validate(spec(**changes))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"tail": 0}, r"tail = 0: must be left out: a classifier's head is the vendor's"),
        ({"packing": True}, r"packing = True: must be off: each text has a label of its own"),
        ({"public_iterations": 3}, r"public_iterations = 3: must be 0: a classifier needs labels"),
    ],
    ids=str,
)
def test_classifiers_have_no_settings_of_language_models(changes: dict[str, Any], named: str) -> None:
    common = {"objective": Objective.CLASSIFICATION, "tail": None, "train_bottom": F}
    validate(spec(**common))
    with pytest.raises(ConfigError, match=named):
        validate(spec(**(common | changes)))


@pytest.mark.parametrize(
    ("bottom", "privacy", "method", "expected"),
    [
        (1, BARE, LORA, M),
        (2, NOISE, FULL, M),
        (1, Vector(eta=80), LORA, F),
        (1, Vector(eta=80, place=Place.ACTIVATIONS), FULL, F),
        (0, BARE, FULL, R),
        (0, BARE, LORA, F),
        (0, NOISE, FULL, F),
        (None, BARE, FULL, F),
    ],
)
def test_the_bottom_is_trained_by_default_where_that_costs_no_look(
    bottom: int | None, privacy: PrivacySpec, method: str, expected: TrainBottom
) -> None:
    chosen = spec(bottom=bottom, privacy=privacy, method=method, train_bottom=None)
    assert chosen.train_bottom is expected
    validate(chosen)
    assert chosen.form is (Form.IDS if not bottom and expected is F else Form.ROWS)


def test_defaults_are_the_papers() -> None:
    """Yao & Li, §3.3.1: AdamW at 5e-6 for the whole model, 2e-4 with LoRA, batches of 4, blocks of 1,024."""
    lora, full = spec().training, spec(method="full").training
    assert (lora.learning_rate, full.learning_rate) == (2e-4, 5e-6)
    assert (lora.batch_size, lora.packing, lora.max_length) == (4, True, None)
    assert spec(method="full", learning_rate=1e-3).training.learning_rate == 1e-3
    assert Training(gradient_accumulation_steps=4, save_steps=50).checkpoint_steps == 52
    assert Training(gradient_accumulation_steps=1, save_steps=50).checkpoint_steps == 50


def test_the_best_perplexity_is_the_lowest() -> None:
    assert Objective.LM.best([30.0, 12.0, 14.0]) == 12.0
    assert Objective.CLASSIFICATION.best([0.5, 0.9, 0.7]) == 0.9


# ---------------------------------------------------------------- public text first

PRIVATE = Dataset(corpus(24, seed=1, canaries=False).texts)
PUBLIC = Dataset(corpus(9, seed=5, canaries=False).texts)
ITERATIONS = 3


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gpt2(tmp_path_factory.mktemp("decoder") / "tiny")


@pytest.fixture
def client(decoder: Path, tmp_path: Path) -> Iterator[Client]:
    vendor.init(tmp_path / "data", models=[str(decoder)], threads=1, max_bottom=2, max_tail=1)
    key = vendor.keys.create(tmp_path / "data", "clinic")
    with customer(tmp_path / "data", key, tmp_path / "home") as opened:
        yield opened


def tune_with(client: Client, **changes: Any) -> LanguageResult:
    usual = {"epochs": 1, "max_length": 16, "learning_rate": 2e-3, "save_steps": 2, "dev_share": 0.2}
    given: dict[str, Any] = {"eta": 6.0, "bottom": 1, "tail": 0, "seed": 3, **usual, **changes.pop("training", {})}
    if changes.get("public_first", PUBLIC) is not None:
        given |= {"public_first": PUBLIC, "public_iterations": ITERATIONS}
    return client.finetune(PRIVATE, objective="lm", **specs(given | changes))


RELEASING = ("job.step", "job.infer", "shard.put")


@pytest.mark.parametrize(
    "training", [{}, {"max_grad_norm": 0.5, "gradient_accumulation_steps": ITERATIONS}], ids=("plain", "clipped")
)
def test_public_text_leaves_before_any_private_text(training: dict[str, Any], client: Client) -> None:
    """Over the transcript and the ledger: the first steps are the public ones, and nothing private is before.

    Where gradients are clipped and added up, the public steps' update is taken before, too.
    """
    result = tune_with(client, training=training)
    entries = {entry.entry: entry for entry in client.ledger.frames() if entry.texts}
    assert all(entry.route in RELEASING or entry.route == "adapter.infer" for entry in entries.values())
    mechanisms: dict[int, set[str]] = {}
    for release in client.ledger.releases():
        mechanisms.setdefault(release.entry, set()).add(release.mechanism)
    kinds = [(entries[at].route, dict(entries[at].where).get("step"), kinds) for at, kinds in mechanisms.items()]
    assert [(route, int(step or 0)) for route, step, _ in kinds[:ITERATIONS]] == [
        ("job.step", step) for step in range(1, ITERATIONS + 1)
    ]
    assert [mechanism for *_, mechanism in kinds[:ITERATIONS]] == [{"none"}] * ITERATIONS
    assert {name for *_, mechanism in kinds[ITERATIONS:] for name in mechanism} == {"text-to-text"}
    frames = [frame for frame in Sent.by(result).frames if {"rows", "ids"} & set(frame.tensors())]
    assert [frame.route.name for frame in frames[:ITERATIONS]] == ["job.step"] * ITERATIONS
    lengths = [length for frame in frames[:ITERATIONS] for length in frame.tensors()["lengths"].flatten().tolist()]
    assert lengths == public_lengths(ITERATIONS)
    gradients = [frame for frame in Sent.by(result).frames if frame.route is routes.GRADIENT]
    assert [int(frame.where["step"]) for frame in gradients] == list(range(1, result.steps + 1))
    sent = [frame.route for frame in Sent.by(result).frames if frame.route in (routes.STEP, routes.UPDATE)]
    taken = [routes.UPDATE] if training else []
    assert sent[: ITERATIONS + len(taken)] == [routes.STEP] * ITERATIONS + taken
    assert result.steps == ITERATIONS + math.ceil(result.n_train / 4)
    assert not result.no_privacy


def public_lengths(iterations: int) -> list[int]:
    """Of the blocks that the public steps take, round and round."""
    total = sum(len(text.split()) + 1 for (text,) in PUBLIC.texts)
    blocks = [16] * (total // 16) + ([total % 16] if total % 16 > 1 else [])
    size = min(4, len(blocks))
    return [blocks[number % len(blocks)] for number in range(iterations * size)]


def test_public_steps_are_part_of_the_schedule_and_come_once(client: Client) -> None:
    result = tune_with(client)
    state = RunState.model_validate_json((result.folder / "run.json").read_bytes())
    assert len(Run(result.folder, state).losses()) == result.steps
    with pytest.raises(ConfigError, match="public_iterations = 1: needs public text to step on"):
        tune_with(client, public_first=None, public_iterations=1)
    plain = tune_with(client, public_first=None, public_iterations=0)
    assert plain.steps == result.steps - ITERATIONS
    assert plain.spec.public_iterations == 0, "without public text there are no steps on it"
    assert plain.adapter_sha256 != result.adapter_sha256


class InterruptsAt(Silent):
    """Ctrl-C when a stage has come so far."""

    def __init__(self, stage: str, done: int) -> None:
        self._at = stage, done

    def update(self, stage: str, done: int, total: int, note: str = "") -> None:
        if stage.startswith(self._at[0]) and done == self._at[1]:
            raise KeyboardInterrupt


@pytest.mark.parametrize(("stage", "done"), slow_but([("epoch 1", 2)], [("public text first", 2), ("epoch 1", 2)]))
def test_a_stopped_run_goes_on_from_its_public_steps(client: Client, stage: str, done: int, tmp_path: Path) -> None:
    straight = tune_with(client, out=tmp_path / "straight")
    with pytest.raises(Stopped):
        tune_with(client, out=tmp_path / "stopped", progress=InterruptsAt(stage, done))
    again = tune_with(client, out=tmp_path / "stopped")
    assert again.adapter_sha256 == straight.adapter_sha256
    assert again.perplexity == straight.perplexity
    assert again.steps == straight.steps


def test_a_budget_is_of_private_texts(client: Client) -> None:
    """Public text leaves as it is, which no budget forbids; private text is held to it."""
    with pytest.raises(BudgetError):
        tune_with(client, budget=5.0)
    assert not any(entry.texts for entry in client.ledger.frames())
    assert tune_with(client, budget=6.0).steps > ITERATIONS


def test_public_batches_are_checked_too(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything leaves, as those of train are."""
    monkeypatch.setattr("cutlayer.customer.plan.check_batches", lambda lengths, **_: counted.append(len(lengths)))
    counted: list[int] = []
    result = tune_with(client)
    assert counted[0] == result.n_train
    assert len(counted) == 2


def test_a_stopped_run_goes_on_on_a_machine_that_rounds_otherwise(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same draws with other last bits are no second look, and cost nothing."""
    with pytest.raises(Stopped):
        tune_with(client, out=tmp_path / "stopped", progress=InterruptsAt("epoch 1", 3))
    honest = Session._bottom

    def otherwise(self: Session, tokens: Any) -> Any:
        rows = honest(self, tokens)
        return replace(rows, packed=rows.packed.with_values(rows.packed.values * (1 + 1e-6)))

    monkeypatch.setattr(Session, "_bottom", otherwise)
    result = tune_with(client, out=tmp_path / "stopped")
    assert result.looks == 1
    assert result.guarantee.budget == 6.0


def refusing(patch: pytest.MonkeyPatch, route: Any, times: int, *, status: int = 0) -> list[str]:
    """The vendor stays away when it is asked this, so many times."""
    honest, failed = Gate.send, []

    def sending(gate: Gate, asked: Any, *given: Any, **named: Any) -> Any:
        if asked is route and len(failed) < times:
            failed.append(asked.name)
            raise VendorError("It stays away.", status=status)
        return honest(gate, asked, *given, **named)

    patch.setattr(Gate, "send", sending)
    return failed


def test_a_result_is_not_lost_where_records_cannot_be_deleted(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are asked for again when the finished run is shown again."""
    failed = refusing(monkeypatch, routes.RECORD_SET_DELETE, 1)
    given: dict[str, Any] = {"public_first": None, "train_bottom": F, "out": tmp_path / "run"}
    result = tune_with(client, **given)
    assert failed
    assert Run(result.folder, RunState.model_validate_json((result.folder / "run.json").read_bytes())).state.undeleted
    assert tune_with(client, **given).adapter_sha256 == result.adapter_sha256
    assert not RunState.model_validate_json((result.folder / "run.json").read_bytes()).undeleted


def test_a_text_is_not_lost_where_its_session_cannot_be_ended(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    result = tune_with(client, public_first=None)
    failed = refusing(monkeypatch, routes.GENERATION_DELETE, 1)
    (text,) = client.generate(result.adapter_id, ["w1 w2"], sampling=Sampling(greedy=True, max_new_tokens=3))
    assert failed
    assert text.round_trips == 3


@pytest.mark.parametrize("losses", [5, 6])
def test_a_session_that_is_lost_again_and_again_is_given_up_by_name(
    client: Client, losses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = tune_with(client, public_first=None)
    failed = refusing(monkeypatch, routes.GENERATION_STEP, losses, status=404)
    asked = Sampling(greedy=True, max_new_tokens=3)
    if losses == 5:
        (text,) = client.generate(result.adapter_id, ["w1 w2"], sampling=asked)
        assert (text.round_trips, text.replays) == (3, 5)
    else:
        with pytest.raises(VendorError, match="lost the session 6 times at token 1; the last time: It stays") as caught:
            client.generate(result.adapter_id, ["w1 w2"], sampling=asked)
        assert "fewer or shorter texts" in caught.value.remedy
    assert len(failed) == losses


def test_a_tail_too_deep_is_refused_before_anything_leaves(client: Client) -> None:
    with pytest.raises(
        ModelError, match=r"The vendor hands out tails of at most \d of the \d blocks of .*, not 9"
    ) as e:
        tune_with(client, tail=9, public_first=None)
    assert "--tail" in e.value.remedy
    assert not any(entry.texts for entry in client.ledger.frames())


def test_training_that_diverges_says_so_before_the_vendor_is_told(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Session.loss

    def diverging(self: Session, *given: Any, **named: Any) -> Tensor:
        return honest(self, *given, **named) * (math.nan if self.link.step == 3 else 1)  # type: ignore[union-attr]

    monkeypatch.setattr(Session, "loss", diverging)
    with pytest.raises(ConfigError, match=r"the loss of step 3 is nan, at learning rate 0.002.*lower --learning-rate"):
        tune_with(client, public_first=None, train_bottom=TrainBottom.CACHED)
    assert not [e for e in client.ledger.frames() if e.route == "job.gradient" and dict(e.where).get("step") == 3]


def test_other_texts_do_not_go_on_with_a_run(client: Client, tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        tune_with(client, out=tmp_path / "run", progress=InterruptsAt("epoch 1", 2))
    others = Dataset(corpus(24, seed=9, canaries=False).texts)
    with pytest.raises(ConfigError, match="other data"):
        client.finetune(
            others,
            objective="lm",
            eta=6.0,
            seed=3,
            public_first=PUBLIC,
            public_iterations=ITERATIONS,
            out=tmp_path / "run",
            training=Training(epochs=1, max_length=16, learning_rate=2e-3, save_steps=2, dev_share=0.2),
            cut=Cut(bottom=1),
        )


def test_whole_tuning_above_released_ids_needs_a_head_of_its_own(client: Client) -> None:
    """The vendor would train its table, and the head, the same weights, would stay behind."""
    with pytest.raises(ConfigError, match="method = 'full': must be lora"):
        tune_with(client, bottom=0, public_first=None, training={"method": "full"})
    assert not any(entry.texts for entry in client.ledger.frames())


def test_public_text_needs_a_bottom_that_moves(client: Client) -> None:
    with pytest.raises(ConfigError, match="public_iterations = 3: must be 0 with a frozen bottom"):
        tune_with(client, train_bottom=F)
    assert not any(entry.texts for entry in client.ledger.frames())


def test_a_block_beyond_the_limit_leaves_nothing(client: Client) -> None:
    with pytest.raises(ConfigError, match="max_length = 65: must be at most 64"):
        client.finetune(PRIVATE, objective="lm", eta=6.0, training=Training(max_length=65))
    assert not any(entry.texts for entry in client.ledger.frames())


@pytest.mark.parametrize("train_bottom", [F, TrainBottom.CACHED])
def test_a_run_whose_blocks_are_cut_elsewhere_draws_and_charges_no_text_again(
    client: Client, train_bottom: TrainBottom
) -> None:
    """Three runs within a budget of 40 spent 40 three times: each block was a text of its own."""
    once = {"train_bottom": train_bottom, "public_first": None, "public_iterations": 0, "budget": 6.0}
    for seed, length in ((3, 16), (4, 11)):
        tune_with(client, **once, seed=seed, training={"max_length": length, "dev_share": 0.5})
    (line,) = client.ledger.summary().mechanisms
    assert (line.texts, line.largest_spent) == (len(PRIVATE), 6.0)
    with pytest.raises(BudgetError, match="beyond the budget of 6: up to 6 spent and 3 due") as refused:
        tune_with(client, **once, eta=3.0, training={"dev_share": 0.5})
    assert int(str(refused.value).split()[0]) >= len(PRIVATE), "a part of each text, or all of it"


def test_prompts_and_exchanged_texts_leave_in_an_order_that_is_not_the_callers(client: Client) -> None:
    """The same texts in two orders leave alike, and each has its own answer."""
    adapter = tune_with(client, public_first=None, public_iterations=0).adapter_id
    texts = [f"w{number} w{number + 1}" for number in range(5, 13)]
    asked, written, exchanged = [], [], []
    for given in (texts, texts[::-1]):
        newest = client.ledger.newest()
        answers = client.generate(adapter, given, sampling=Sampling(greedy=True, max_new_tokens=2))
        rows = client.exchange(adapter, given).returned.packed.split()
        asked.append([entry.content for entry in client.ledger.releases() if entry.entry > newest])
        written.append({prompt: answer.text for prompt, answer in zip(given, answers, strict=True)})
        exchanged.append(dict(zip(given, rows, strict=True)))
    assert asked[0] == asked[1]
    assert written[0] == written[1]
    for text, rows in exchanged[0].items():
        torch.testing.assert_close(rows, exchanged[1][text])


def test_tokens_that_are_generated_are_drawn_as_parts_of_their_text(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By themselves they would be drawn behind nothing, and again where the text is a later prompt's beginning."""
    result = tune_with(client, public_first=None, public_iterations=0)
    drawn: list[tuple[Tokens, Excerpts]] = []
    honest = TextToTextPrivatizer.tokens

    def noting(privatizer: TextToTextPrivatizer, tokens: Tokens, *, excerpts: Excerpts, **given: Any) -> Any:
        drawn.append((tokens, excerpts))
        return honest(privatizer, tokens, excerpts=excerpts, **given)

    monkeypatch.setattr(TextToTextPrivatizer, "tokens", noting)
    client.generate(result.adapter_id, "w5 w6 w7", sampling=Sampling(greedy=True, max_new_tokens=3))
    text: list[int] = []
    for tokens, excerpts in drawn:
        start = len(text)
        text += tokens.segments[0].values.tolist()
        assert excerpts.texts.values.tolist() == text
        assert excerpts.parts == (((0, start, len(text)),),)
    assert len(drawn) > 1


def test_noise_is_drawn_once_for_each_block(client: Client) -> None:
    """A bottom that is trained above one memoised draw gives no second look, in however many epochs."""
    result = tune_with(client, public_first=None, training={"epochs": 2})
    assert result.looks == 1
    draws: dict[str | bytes, set[Any]] = {}
    for release in client.ledger.releases():
        draws.setdefault(release.content, set()).add(release.draw)
    assert draws
    assert all(len(found) == 1 for found in draws.values())
    assert torch.isfinite(torch.tensor(result.dev)).all()
