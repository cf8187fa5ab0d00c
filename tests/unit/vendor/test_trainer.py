"""What a job takes is known before it is made."""

from __future__ import annotations

import itertools
import os

import pytest
import torch
from torch import Tensor

from cutlayer.core import Cut, PrecededTokens, Ragged, Rows, Tokens, UnsupportedArchitectureError
from cutlayer.core.tuning import FullSpec, LoraSpec, MethodSpec, PrefixSpec, PromptSpec
from cutlayer.models import Head, Template, adapter_state, attach, cut_up, own_bytes, split, tune_whole
from cutlayer.models.inputs import Layout
from cutlayer.serving.compute import memory
from cutlayer.vendor.trainer import Trainer, adapter_parameters, job_bytes, step_bytes
from cutlayer.wire import Form
from cutlayer.wire.messages import JobSpec, OptimiserSpec, Precision, ReconstructionSpec, StepSize
from tests.equivalence.zoo import CONFIGURATIONS, DECODERS, SEQ2SEQ, shared_model
from tests.quick import slow_but

FAMILIES = [name for name in CONFIGURATIONS if name not in SEQ2SEQ]


METHODS = [
    LoraSpec(r=2, target_modules="query-value", lora_dropout=0.1),
    LoraSpec(r=3, target_modules="all-linear", lora_dropout=0.1),
    FullSpec(),
    PromptSpec(prompt_length=5),
    PrefixSpec(prefix_length=5),
]


def names_and_methods(methods: list[MethodSpec]) -> dict[str, tuple[str, MethodSpec]]:
    """Families and what trains on them; a test of the registry shows that the others are refused."""
    found = {}
    for name, tuning in itertools.product(FAMILIES, methods):
        if not (name == "distilbert" and tuning.method == "prefix"):
            targets = getattr(tuning, "target_modules", "")
            found[f"{name}-{tuning.method}{targets and f'-{targets}'}"] = (name, tuning)
    return found


EVERY = names_and_methods(METHODS)
WITH_ADAPTERS = names_and_methods([*METHODS[:2], *METHODS[3:]])
QUICK = (
    *("bert-lora-query-value", "bert-prefix", "roberta-lora-all-linear", "distilbert-prompt", "gpt2-lora-query-value"),
    *("gpt2-prompt", "gpt2-prefix", "opt-lora-all-linear", "opt-projected-prompt", "llama-lora-query-value"),
    *("llama-prefix", "mistral-lora-all-linear", "qwen2-prompt", "qwen3-prefix", "glm-lora-all-linear"),
)
"""Each family and each method at least once."""


@pytest.mark.parametrize(("name", "tuning"), EVERY.values(), ids=EVERY)
def test_what_a_method_trains_is_counted_before_it_is_made(name: str, tuning: MethodSpec) -> None:
    model = shared_model(name, Head.CLASSIFICATION)
    for cut, labels in ((Cut(bottom=None), 2), (Cut(bottom=0), 3), (Cut(bottom=1), 7)):
        spec = JobSpec(
            model=name,
            fingerprint="0" * 64,
            cut=cut,
            form=Form.IDS if cut.is_text else Form.ROWS,
            segments=1,
            num_labels=labels,
            tuning=tuning,
            optimiser=OptimiserSpec(total_steps=1),
            seed=0,
        )
        top = split(model, cut).top
        counted = adapter_parameters(top, spec)
        made = attach(top, tuning, num_labels=labels, seed=0)
        assert counted == sum(tensor.numel() for tensor in adapter_state(made).values())
        trained = sum(one.numel() for one in made.parameters() if one.requires_grad)
        assert counted == trained
        # beside itself, each has a gradient and what the optimiser keeps
        for kind, numbers in (("adamw", 2), ("adafactor", 1)):
            asked = spec.model_copy(update={"optimiser": OptimiserSpec(total_steps=1, kind=kind)})
            assert job_bytes(top, asked) == own_bytes(made, top) + (1 + numbers) * 4 * trained


@pytest.mark.parametrize(
    ("name", "shared"), [*((name, False) for name in (*DECODERS, *SEQ2SEQ)), *((name, True) for name in SEQ2SEQ)]
)
def test_what_a_copy_takes_is_counted_before_it_is_made(name: str, shared: bool) -> None:
    cut = Cut(bottom=1, target=1 if name in SEQ2SEQ else 0, tail=0)
    top = cut_up(shared_model(name, Head.LANGUAGE), cut).top
    spec = language_spec(name, cut, FullSpec()).model_copy(update={"shared_weights": shared})
    made = tune_whole(top, shared=shared)
    trained = sum(one.numel() for one in made.parameters() if one.requires_grad)
    assert adapter_parameters(top, spec) == trained
    assert job_bytes(top, spec) == own_bytes(made, top) + 3 * 4 * trained
    assert own_bytes(made, top) >= 4 * trained


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_what_reconstruction_takes_is_counted_before_it_is_made(name: str) -> None:
    """The head's parameters and states, and the scores of all words of a step."""
    task = ReconstructionSpec(vocabulary=2000, width=8, words=((0, 5, 1999, 7),))
    spec = JobSpec(
        model=name, fingerprint="0" * 64, cut=Cut(bottom=None), form=Form.IDS, segments=1, num_labels=3, seed=0,
        tuning=LoraSpec(r=2), optimiser=OptimiserSpec(total_steps=4), dropout=False,
    )  # fmt: skip
    asked = spec.model_copy(update={"reconstruction": task})
    top = split(shared_model(name, Head.CLASSIFICATION), spec.cut).top
    trainer = Trainer(top, TEMPLATE, asked, torch.device("cpu"))
    head = 8 * (16 + 2000)
    assert adapter_parameters(top, asked) == adapter_parameters(top, spec) + head
    assert adapter_parameters(top, asked) == sum(value.numel() for value in trainer._trained.values())
    assert job_bytes(top, asked) == job_bytes(top, spec) + 4 * 4 * head
    counts = torch.tensor([[1, 2, 1, 1], [1, 1, 1, 2], [2, 1, 1, 1]])
    texts = PrecededTokens((Ragged(torch.arange(5, 29), torch.tensor([8, 8, 8])),), counts, torch.zeros(3).long())
    room = trainer.estimate(texts) - Trainer(top, TEMPLATE, spec, torch.device("cpu")).estimate(texts)
    assert room == step_bytes(top, asked, StepSize(texts=3, positions=8)) - step_bytes(
        top, spec, StepSize(texts=3, positions=8)
    )
    scores = 3 * 4 * task.vocabulary * 4
    kept = 0

    def keep(tensor: Tensor) -> Tensor:
        nonlocal kept
        kept += tensor.nbytes if tensor.shape[-1:] == (task.vocabulary,) else 0
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        trainer.forward(texts)
    assert 0 < kept <= room
    assert room >= 3 * scores  # the scores, their logarithms and their gradient at once


@pytest.mark.parametrize("tuning", METHODS[1:], ids=lambda tuning: tuning.method)
def test_a_job_takes_what_was_counted(tuning: MethodSpec) -> None:
    """After an update, in the middle of an accumulation: weights, gradients and moments are all there."""
    top = split(shared_model("gpt2", Head.LANGUAGE), Cut(bottom=1, tail=0)).top
    spec = language_spec("gpt2", Cut(bottom=1, tail=0), tuning)
    trainer = Trainer(top, TEMPLATE, spec, torch.device("cpu"))
    lengths = torch.tensor([3, 1])
    rows = Rows(Ragged(torch.randn(4, top.model.config.hidden_size), lengths), lengths[:, None])
    for _ in range(3):
        trainer.backward(torch.randn_like(trainer.forward(rows)))
    gradients = sum(one.grad.nbytes for one in trainer.part.parameters() if one.grad is not None)
    moments = sum(moment.nbytes for name, moment in trainer._optimiser.state().items() if name != "steps")
    assert own_bytes(trainer.part, top) + gradients + moments == job_bytes(top, spec)


def language_spec(name: str, cut: Cut, tuning: MethodSpec) -> JobSpec:
    return JobSpec(
        model=name,
        fingerprint="0" * 64,
        cut=cut,
        form=Form.ROWS,
        segments=1,
        tuning=tuning,
        optimiser=OptimiserSpec(total_steps=4, accumulation=2),
        seed=0,
        trainable_bottom=True,
        dropout=False,
    )


def plain(segments: int) -> Layout:
    """No special tokens."""
    return Layout(
        specials=((),) * (segments + 1), special_types=((),) * (segments + 1), segment_types=tuple(range(segments))
    )


TEMPLATE = Template(single=plain(1), pair=plain(2), typed=False)


def kept_bytes(trainer: Trainer, payload: Tokens | Rows) -> int:
    """What a forward pass keeps for the backward pass, the parameters left out."""
    own = {tensor.untyped_storage().data_ptr() for tensor in trainer.part.parameters()}
    kept: dict[int, Tensor] = {}  # alive, so that no storage takes the place of another

    def keep(tensor: Tensor) -> Tensor:
        place = tensor.untyped_storage().data_ptr()
        if place not in own:
            kept[place] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        trainer.forward(payload)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@pytest.mark.parametrize(("name", "tuning"), slow_but(QUICK, WITH_ADAPTERS.values(), ids=WITH_ADAPTERS))
def test_a_graph_takes_less_than_estimated_and_not_much_less(name: str, tuning: MethodSpec) -> None:
    model = shared_model(name, Head.CLASSIFICATION)
    ids = Ragged(torch.randint(3, 20, (60,)), torch.tensor([30, 10, 20]))
    rows = Rows(Ragged(torch.randn(60, model.config.hidden_size), ids.lengths), ids.lengths[:, None])
    cuts: list[tuple[Cut, Tokens | Rows]] = [(Cut(bottom=None), Tokens((ids,))), (Cut(bottom=1), rows)]
    for (cut, payload), dropout, precision in itertools.product(cuts, (True, False), Precision):
        spec = JobSpec(
            model=name,
            fingerprint="0" * 64,
            cut=cut,
            form=Form.IDS if cut.is_text else Form.ROWS,
            segments=1,
            num_labels=2,
            tuning=tuning,
            optimiser=OptimiserSpec(total_steps=1),
            seed=0,
            trainable_bottom=not cut.is_text,
            dropout=dropout,
            precision=precision,
        )
        try:
            trainer = Trainer(split(model, cut).top, TEMPLATE, spec, torch.device("cpu"))
        except UnsupportedArchitectureError:
            continue  # its dropout cannot be switched off, or on, in a part
        estimate = trainer.estimate(payload)
        assert estimate == step_bytes(split(model, cut).top, spec, StepSize(texts=3, positions=30))
        assert estimate / (9 if tuning.positions else 6) < kept_bytes(trainer, payload) < estimate
        assert trainer.graph_bytes == estimate
        trainer.forget_graph()
        assert trainer.graph_bytes == 0


@pytest.mark.parametrize("name", slow_but(["gpt2", "opt-projected", "llama", "qwen2-mixed"], DECODERS))
def test_a_whole_middles_graph_takes_less_than_estimated(name: str) -> None:
    """Every weight trained, and blocks computed again on the way back, where asked for."""
    model = shared_model(name, Head.LANGUAGE)
    lengths = torch.tensor([30, 10, 20])
    for cut, dropout, precision in itertools.product((0, 1), (True, False), Precision):
        width = model.config.hidden_size if cut else model.get_input_embeddings().embedding_dim
        rows = Rows(Ragged(torch.randn(60, width), lengths), lengths[:, None])
        estimates, kept = [], []
        for checkpointing in (False, True):
            spec = JobSpec(
                model=name,
                fingerprint="0" * 64,
                cut=Cut(bottom=cut, tail=0),
                form=Form.ROWS,
                segments=1,
                optimiser=OptimiserSpec(total_steps=1),
                seed=0,
                trainable_bottom=True,
                dropout=dropout,
                precision=precision,
                gradient_checkpointing=checkpointing,
            )
            try:
                trainer = Trainer(split(model, spec.cut).top, TEMPLATE, spec, torch.device("cpu"))
            except UnsupportedArchitectureError:
                break
            estimates.append(trainer.estimate(rows))
            kept.append(kept_bytes(trainer, rows))
        else:
            assert kept[0] < estimates[0]
            # what one block's way back takes comes on top of it
            assert kept[1] + (kept[0] - kept[1]) / (model.config.num_hidden_layers - cut) < estimates[1] < estimates[0]


def test_special_tokens_count_in_an_estimate() -> None:
    model = shared_model("bert", Head.CLASSIFICATION)
    spec = JobSpec(
        model="bert",
        fingerprint="0" * 64,
        cut=Cut(bottom=None),
        form=Form.IDS,
        segments=2,
        num_labels=2,
        optimiser=OptimiserSpec(total_steps=1),
        seed=0,
        dropout=False,
    )
    pair = Layout(specials=((2,), (3,), (3,)), special_types=((0,), (0,), (1,)), segment_types=(0, 1))
    segments = Ragged(torch.arange(5, 12), torch.tensor([3, 4])), Ragged(torch.arange(5, 12), torch.tensor([6, 1]))
    top = split(model, spec.cut).top
    bare, special = (
        Trainer(top, TEMPLATE.model_copy(update={"pair": layout}), spec, torch.device("cpu")).estimate(Tokens(segments))
        for layout in (plain(2), pair)
    )
    assert special / bare == 12 / 9


def test_memory_is_some_of_the_machines() -> None:
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 2**20 < memory(torch.device("cpu")) <= machine
