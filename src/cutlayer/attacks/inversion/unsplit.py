"""The improved UnSplit attack on language models: texts read from hidden states, without any text to learn from.

The vendor guesses the customer's bottom, starting from the weights that it knew before training, and
the rows that went into it, starting from noise. It improves the rows and the weights in turn until
what comes out is the boundary that it was sent, and takes each row's nearest neighbour in the
embedding table. What it needs is the boundary, where padding stands, and the bottom before training.

Where the paper leaves something open or its parts disagree, the choice is a field of `UnSplitSpec`,
and the field says what the paper and what the authors' released code does.

Ref: Yao and Li, "Is Split Learning Privacy-Preserving for Fine-Tuning Large Language Models?",
§3.2.3, Algorithm 1 and §3.3.1. The released code is TL-System/plato, examples/split_learning/llm_split_learning.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from typing import Annotated, Literal, cast

import torch
import torch.nn.functional as F
from peft import PeftModel
from pydantic import Field
from torch import Tensor, nn
from transformers.activations import NewGELUActivation

from cutlayer.attacks.attack import Guesses
from cutlayer.attacks.content import content_rows
from cutlayer.attacks.knowledge import Inapplicable
from cutlayer.attacks.view import View
from cutlayer.core import ConfigError, DataError, Fault, Ragged, Rows, Spec, Tokens
from cutlayer.models import Bottom, Inputs, Seq2SeqBottom, seed_dropout, seeded, set_dropout
from cutlayer.privacy.neighbours import NeighbourSearch

_ROWS_AT_ONCE = 16_384


class UnSplitSpec(Spec):
    """How the attack is run: the paper's settings, and a choice for each thing that it leaves open.

    The loss is a mean over real positions and width, as the paper's is over positions without padding,
    so gradients shrink as the batch grows. At 4 texts of 1,024 tokens and width 768 they come near
    Adam's epsilon (1e-8, PyTorch's default; the paper states none), which then slows the last steps: a
    large batch is another attack than its texts one by one.

    Attributes:
        outer_iterations: Outer loops (line 4). 100 in §3.3.1.
        inner_inputs: Steps on the rows x' in each (line 5). 100 in §3.3.1.
        inner_weights: Steps on the weights theta in each (line 8). 100 in §3.3.1; 0 keeps the weights
            as they were before training.
        learning_rate_inputs: Of Adam on x'. 0.1 in §3.3.1, 0.01 as a variant in §3.3.5 and in the
            released configuration.
        learning_rate_weights: Of AdamW on theta. 0.001 in §3.3.1, 1e-4 as a variant in §3.3.5; 0.1 in the
            released configuration.
        weight_decay: AdamW's. Not stated; 0.01 is PyTorch's default, which the released code takes.
        amsgrad: Takes AMSGrad's step for x'. The paper says Adam; the released code switches this on.
        initial_std: Standard deviation of the normal noise that x' starts from. Line 3 says "randomly"
            and no more. `table` takes that of the table's elements before training, which the vendor
            knows: what the steps leave of the start hides the row, so a start of another size makes
            the attack weaker and the text look better kept than it is. 1 is `torch.randn`; 0 starts from
            zeros, as the released code does.
        nearest_in: The table that line 12 searches: of the guessed bottom as optimised (line 11, the
            released code), or as it was before training (§3.2.3). A bottom that is given rows does not
            use its table, so the table gets no gradient and no weight decay, and both are the same
            table in every family of ours. They differ only for a bottom whose boundary also depends
            on the table in another way.
        guess_mode: Whether dropout of the guessed bottom acts. "It can be set either in the mode of
            training or the mode of evaluation" (§4.1.1); evaluation in the released code. With
            dropout every step draws anew.
        optimised: What theta is. `all`: every weight of the guessed bottom that the boundary depends on
            (Table 2). `adapter`: only the tensors of a LoRA adapter on it, for a customer that trains
            with LoRA (Table 3).
        precision: Element type of the guessed bottom's matrix products. Rows, weights, both optimisers
            and the loss stay fp32. bf16 is another rounding of the same attack.
    """

    outer_iterations: int = Field(default=100, ge=1)
    inner_inputs: int = Field(default=100, ge=1)
    inner_weights: int = Field(default=100, ge=0)
    learning_rate_inputs: float = Field(default=0.1, gt=0, allow_inf_nan=False)
    learning_rate_weights: float = Field(default=1e-3, gt=0, allow_inf_nan=False)
    weight_decay: float = Field(default=0.01, ge=0, allow_inf_nan=False)
    amsgrad: bool = False
    initial_std: Literal["table"] | Annotated[float, Field(ge=0, allow_inf_nan=False)] = "table"
    nearest_in: Literal["optimised", "pre-trained"] = "optimised"
    guess_mode: Literal["eval", "train"] = "eval"
    optimised: Literal["all", "adapter"] = "all"
    precision: Literal["fp32", "bf16"] = "fp32"


@dataclass(frozen=True)
class InputTruth:
    """What the attack is looking for. Whoever measures it has this; it changes nothing but the history.

    Attributes:
        rows: `[batch, seq, table_width]`, the true tokens' rows of the customer's own table.
        ids: `[batch, seq]` int64, the true tokens.
    """

    rows: Tensor | None = None
    ids: Tensor | None = None


@dataclass(frozen=True)
class OuterIteration:
    """Where the attack stood after an outer loop; means over real positions (figures 13 and 14).

    Attributes:
        number: Which, from 1.
        mse_after_inputs: MSE of outputs, ‖M(x') - boundary‖² per element, after the steps on x'.
        mse_after_weights: The same after the steps on theta.
        mse_inputs: MSE between x' and the true rows, where the measurer gave them.
        accuracy: The share of tokens recovered, where the measurer gave them.
    """

    number: int
    mse_after_inputs: float
    mse_after_weights: float
    mse_inputs: float | None = None
    accuracy: float | None = None


@dataclass(frozen=True)
class Reconstruction:
    """What the attack found.

    Attributes:
        ids: `[batch, seq]` int64, the guessed tokens; -1 at padding.
        mask: `[batch, seq]` bool, real positions.
        rows: `[batch, seq, table_width]` fp32, x'; zero at padding.
        history: One entry per outer loop; fewer than the spec asks for if the attack was stopped.
        spec: How it was run.
    """

    ids: Tensor
    mask: Tensor
    rows: Tensor
    history: tuple[OuterIteration, ...]
    spec: UnSplitSpec


class UnSplitRun:
    """Algorithm 1, one outer loop at a time, so that hours of it can be stopped and taken up again.

    Runs on the device of the given bottom. A run that is continued from its state repeats the
    uninterrupted one bit by bit on the same machine with the same number of threads (on a GPU, where
    its kernels are deterministic). With `guess_mode="train"` each phase seeds the process-wide
    generator, from which dropout draws, and puts it back; nothing else may draw from it meanwhile.

    Args:
        bottom: The customer's part as the vendor knows it before training. The run works on a copy; only
            the token-embedding table, which it reads and never writes, is not copied and must not be
            trained by others during the run.
        hidden: `[batch, seq, width]`, the observed boundary, padded, of any float type; values at padding
            are not looked at.
        inputs: Mask and positions, and token types where the model has them. No ids and no rows.
        spec: How to run it.
        generator: Draws the start of x' and the seed of dropout.
        candidates: `[vocab]` bool, ids that may be guessed; `None` allows every row of the table, as the
            paper does.
        truth: For the history alone.

    Attributes:
        spec: How it is run.
        history: One entry per outer loop so far.

    Raises:
        Inapplicable: The bottom has no blocks.
        ConfigError: The spec does not suit the bottom, or the attack was handed the answer.
        DataError: Boundary, mask and bottom do not fit together.
    """

    def __init__(
        self,
        bottom: Bottom,
        hidden: Tensor,
        inputs: Inputs,
        spec: UnSplitSpec,
        *,
        generator: torch.Generator,
        candidates: Tensor | None = None,
        truth: InputTruth | None = None,
    ) -> None:
        _check(bottom, hidden, inputs, spec)
        self.spec = spec
        self.history: list[OuterIteration] = []
        self._known_table = bottom.table.detach()
        self._candidates = candidates
        self._truth = truth or InputTruth()

        device = self._known_table.device
        self._inputs = inputs.to(device)
        self._mask = self._inputs.attention_mask.bool()
        self._padding = None if bool(self._mask.all()) else ~self._mask[:, :, None]
        self._hidden = self._without_padding(hidden.detach().to(device, torch.float32))
        self._elements = int(self._mask.sum()) * hidden.shape[2]
        if not bool(self._hidden.isfinite().all()):
            raise DataError("The boundary has values that are not finite, so no input gives it.")

        self._seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
        shape = (*self._mask.shape, self._known_table.shape[1])
        std = float(self._known_table.float().std()) if spec.initial_std == "table" else spec.initial_std
        start = torch.randn(shape, generator=generator, device=generator.device) * std
        self._rows = nn.Parameter(self._without_padding(start.to(device)), requires_grad=False)
        for given, fitting in ((self._truth.rows, self._rows), (self._truth.ids, self._mask)):
            if given is not None and given.shape != fitting.shape:
                raise DataError(f"The truth is {list(given.shape)}; it belongs to a batch of {list(fitting.shape)}.")
        self._guess = _private_copy(bottom)
        self._weights = self._find_weights()
        self._table_moves = spec.nearest_in == "optimised" and any(
            weight is self._guess.table for weight in self._weights.values()
        )
        self._search = self._new_search()
        # what the search would refuse is better refused now than after hours
        self._search.nearest(self._rows.detach()[self._mask][:1].cpu().double())
        self._identity = self._identify()
        if spec.guess_mode == "train":
            set_dropout(self._guess, True)
        self._guess.train(spec.guess_mode == "train")

        fused = device.type in ("cpu", "cuda")
        self._adam = torch.optim.Adam(
            [self._rows], lr=spec.learning_rate_inputs, amsgrad=spec.amsgrad, fused=fused or None
        )
        self._adamw = (
            torch.optim.AdamW(
                self._weights.values(),
                lr=spec.learning_rate_weights,
                weight_decay=spec.weight_decay,
                fused=fused or None,
            )
            if self._weights
            else None
        )

    @property
    def done(self) -> bool:
        """Whether all outer loops have been run."""
        return len(self.history) >= self.spec.outer_iterations

    def step(self) -> OuterIteration:
        """Runs one outer loop (lines 5 to 10).

        Raises:
            ConfigError: The attack diverged.
        """
        number = len(self.history) + 1
        # backward passes would follow a caller's autocast
        with torch.enable_grad(), torch.autocast(self._rows.device.type, enabled=False):
            after_inputs = self._phase(2 * number - 1, self._adam, {"x'": self._rows}, self.spec.inner_inputs)
            after_weights = after_inputs
            if self._adamw is not None:
                after_weights = self._phase(2 * number, self._adamw, self._weights, self.spec.inner_weights)
        if not math.isfinite(after_inputs + after_weights):
            raise ConfigError(
                f"The attack diverged in outer iteration {number}: its loss is not finite.",
                remedy="Lower learning_rate_inputs or learning_rate_weights.",
            )
        truth, mse_inputs, accuracy = self._truth, None, None
        if truth.rows is not None:
            wanted = truth.rows.detach().to(self._rows)[self._mask]
            mse_inputs = float(F.mse_loss(self._rows.detach()[self._mask], wanted))
        if truth.ids is not None:
            mask = self._mask.cpu()
            accuracy = float((self.ids()[mask] == truth.ids.cpu()[mask]).double().mean())
        self.history.append(OuterIteration(number, after_inputs, after_weights, mse_inputs, accuracy))
        return self.history[-1]

    def ids(self) -> Tensor:
        """Each row's nearest neighbour by now (lines 11 and 12), `[batch, seq]` int64; -1 at padding.

        Line 12 prints the minimum over i, which counts positions; the minimum over the table's rows j is
        meant. Distances are exact, of equals the lowest id wins.
        """
        if self._table_moves:
            self._search = self._new_search()
        found = torch.full(self._mask.shape, -1, dtype=torch.int64)
        queries = self._rows.detach()[self._mask].cpu()
        found[self._mask.cpu()] = torch.cat(
            [self._search.nearest(some.double()) for some in queries.split(_ROWS_AT_ONCE)]
        )
        return found

    def reconstruction(self) -> Reconstruction:
        """What has been found by now."""
        return Reconstruction(
            ids=self.ids(),
            mask=self._mask.cpu(),
            rows=self._rows.detach().cpu().clone(),
            history=tuple(self.history),
            spec=self.spec,
        )

    def state(self) -> dict[str, Tensor]:
        """All that a continuation needs beside this run's arguments: tensors for one safetensors file.

        x' and theta with the moments of their optimisers, the history and the seed of dropout. Copies.
        """
        entries = [[math.nan if value is None else value for value in astuple(entry)] for entry in self.history]
        tensors = {
            "attack": self._identity.clone(),
            "seed": torch.tensor(self._seed),
            "history": torch.tensor(entries, dtype=torch.float64),
        }
        for prefix, optimiser, parameters in self._optimised():
            for name, parameter in parameters.items():
                held = {"value": parameter, **optimiser.state.get(parameter, {})}
                for key, tensor in held.items():
                    tensors[f"{prefix}/{name}/{key}"] = tensor.detach().cpu().clone()
        return tensors

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Puts back what `state` returned; what the run's own generator drew is forgotten.

        The spec may ask for another number of outer iterations than that of the run before.

        Raises:
            DataError: The state is of another attack: other boundaries, another spec, another bottom.
        """
        values = {f"{prefix}/{name}/value" for prefix, _, named in self._optimised() for name in named}
        held = {name for name in tensors if name.endswith("/value")}
        if values != held or not torch.equal(tensors.get("attack", torch.empty(0)), self._identity):
            raise DataError(
                "The saved state is of another attack.",
                remedy="Continue with the same boundary, spec and bottom, or begin anew without it.",
            )
        self._seed = int(tensors["seed"])
        rows = tensors["history"].tolist()
        self.history = [OuterIteration(int(row[0]), row[1], row[2], *map(_or_none, row[3:])) for row in rows]
        for prefix, optimiser, parameters in self._optimised():
            state: dict[int, dict[str, Tensor]] = {}
            for place, (name, parameter) in enumerate(parameters.items()):
                start = f"{prefix}/{name}/"
                kept = {key.removeprefix(start): value for key, value in tensors.items() if key.startswith(start)}
                parameter.data.copy_(kept.pop("value"))
                if kept:
                    state[place] = {key: value.clone() for key, value in kept.items()}
            optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})

    # ------------------------------------------------------------ the two phases

    def _phase(
        self, number: int, optimiser: torch.optim.Optimizer, optimised: Mapping[str, nn.Parameter], steps: int
    ) -> float:
        """Some steps on x' or on theta alone, and the MSE of outputs after them."""
        for parameter in optimised.values():
            parameter.requires_grad_(True)
        with self._dropout(number):
            for _ in range(steps):
                self._mse().backward()
                optimiser.step()
                optimiser.zero_grad(set_to_none=True)
            for parameter in optimised.values():
                parameter.requires_grad_(False)
            return float(self._mse())

    def _mse(self) -> Tensor:
        """L_MSE(M_theta(x'), boundary), the mean over real positions and width."""
        with torch.autocast(self._rows.device.type, dtype=torch.bfloat16, enabled=self.spec.precision == "bf16"):
            boundary = self._guess(replace(self._inputs, inputs_embeds=self._rows))
        if boundary.shape != self._hidden.shape:
            raise DataError(
                f"The boundary is {self._hidden.shape[2]} wide, that of the guessed bottom {boundary.shape[2]}.",
                remedy="Attack with the bottom that made it.",
            )
        boundary = self._without_padding(boundary.float())
        return F.mse_loss(boundary, self._hidden, reduction="sum") / self._elements

    def _without_padding(self, values: Tensor) -> Tensor:
        return values if self._padding is None else values.masked_fill(self._padding, 0)

    @contextmanager
    def _dropout(self, phase: int) -> Iterator[None]:
        """Makes a phase's dropout a function of the seed and the phase, and leaves no trace of it."""
        if self.spec.guess_mode == "eval":
            yield
            return
        device = self._rows.device
        with torch.random.fork_rng(
            devices=[] if device.type == "cpu" else [device],
            device_type="cuda" if device.type == "cpu" else device.type,
        ):
            seed_dropout(self._seed, phase)
            yield

    # ------------------------------------------------------------ what is searched, what is optimised

    def _new_search(self) -> NeighbourSearch:
        table = (self._guess.table if self._table_moves else self._known_table).detach().cpu()
        everything = torch.ones(len(table), dtype=torch.bool)
        return NeighbourSearch(table, everything if self._candidates is None else self._candidates.cpu())

    def _find_weights(self) -> dict[str, nn.Parameter]:
        """Theta: the chosen weights of the guessed bottom that the boundary depends on.

        The others would get no gradient, and AdamW passes over what has none: no decay either.
        """
        named = dict(self._guess.named_parameters())
        if self.spec.optimised == "adapter":
            prefix = cast(str, cast(PeftModel, self._guess.module).base_model.prefix)
            named = {name: weight for name, weight in named.items() if prefix in name}
        if not self.spec.inner_weights:
            named = {}
        for weight in named.values():
            weight.requires_grad_(weight.is_floating_point())
        with torch.enable_grad():
            mse = self._mse()
        slopes: Sequence[Tensor | None] = [None] * len(named)
        if mse.requires_grad:
            slopes = torch.autograd.grad(mse, list(named.values()), allow_unused=True)
        found = {name: named[name] for name, slope in zip(named, slopes, strict=True) if slope is not None}
        for weight in named.values():
            weight.requires_grad_(False)
        for weight in found.values():
            if weight is self._guess.table:
                weight.data = weight.data.float().clone()
        return found

    def _optimised(self) -> Iterator[tuple[str, torch.optim.Optimizer, dict[str, nn.Parameter]]]:
        yield "inputs", self._adam, {"rows": self._rows}
        if self._adamw is not None:
            yield "weights", self._adamw, self._weights

    def _identify(self) -> Tensor:
        """Tells attacks apart: `[16]` uint8 of the spec, what was observed, and the bottom before training."""
        digest = hashlib.blake2b(self.spec.model_dump_json(exclude={"outer_iterations"}).encode(), digest_size=16)
        seen = [self._hidden, *(value for value in vars(self._inputs).values() if value is not None)]
        for tensor in (*seen, *self._guess.parameters()):
            digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        return torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8)


def reconstruct(
    bottom: Bottom,
    hidden: Tensor,
    inputs: Inputs,
    spec: UnSplitSpec,
    *,
    generator: torch.Generator,
    candidates: Tensor | None = None,
    truth: InputTruth | None = None,
    on_progress: Callable[[OuterIteration], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> Reconstruction:
    """Runs the attack on one batch.

    Args:
        bottom: See `UnSplitRun`, as for the next five.
        hidden: `[batch, seq, width]`, the observed boundary.
        inputs: Mask and positions.
        spec: How to run it.
        generator: Draws the start.
        candidates: `[vocab]` bool, ids that may be guessed.
        truth: For the history alone.
        on_progress: Called after each outer loop.
        stop: Asked before each outer loop; when it says yes, what has been found by then is returned.

    Raises:
        Inapplicable: The bottom has no blocks.
        ConfigError: The spec does not suit the bottom, or the attack diverged.
        DataError: Boundary, mask and bottom do not fit together.
    """
    run = UnSplitRun(bottom, hidden, inputs, spec, generator=generator, candidates=candidates, truth=truth)
    while not run.done and not (stop is not None and stop()):
        latest = run.step()
        if on_progress is not None:
            on_progress(latest)
    return run.reconstruction()


def check_depth(bottom: Bottom) -> None:
    """Refuses a bottom of embeddings.

    Raises:
        Inapplicable: The bottom has no blocks.
    """
    if next(bottom.block_parameters(), None) is None:
        raise Inapplicable(
            "The boundary of a bottom without blocks is rows of the embedding table, so there is nothing to invert: "
            "nearest-neighbour is the attack that applies."
        )


def check_observed(hidden: Tensor, inputs: Inputs) -> None:
    """Refuses what is no boundary, and what holds the answer.

    Args:
        hidden: The observed boundary.
        inputs: Its mask and positions.

    Raises:
        ConfigError: The attack was handed the ids or rows that it is to find.
        DataError: Boundary and mask do not fit together, or there is no real position.
    """
    if inputs.input_ids is not None or inputs.inputs_embeds is not None:
        raise ConfigError("The attack was given the ids or rows that it is to find.", remedy="Leave them out.")
    shapes = [tuple(tensor.shape) for tensor in (hidden, inputs.attention_mask, inputs.position_ids)]
    if hidden.dim() != 3 or {shape[:2] for shape in shapes} != {shapes[0][:2]} or not hidden.is_floating_point():
        raise DataError(
            "A boundary is floating [batch, seq, width] with mask and positions [batch, seq], not "
            f"{hidden.dtype}{shapes[0]} with {shapes[1]} and {shapes[2]}."
        )
    if not bool(inputs.attention_mask.any()):
        raise DataError("The boundary has no real position, so there is nothing to find.")


def _check(bottom: Bottom, hidden: Tensor, inputs: Inputs, spec: UnSplitSpec) -> None:
    check_depth(bottom)
    if spec.optimised == "adapter" and not isinstance(bottom.module, PeftModel):
        raise ConfigError(
            [Fault("optimised", spec.optimised, "needs a guessed bottom with an adapter, and this one has none")],
            remedy='Attach an adapter like the customer\'s, or use "all".',
        )
    check_observed(hidden, inputs)


def _private_copy(bottom: Bottom) -> Bottom:
    """A frozen fp32 copy with parameters of its own, except the storage of the table: it may be most of the model."""
    table = bottom.table
    held = nn.Parameter(table.detach(), requires_grad=False)
    copied = copy.deepcopy(bottom, {id(table): held})
    for tensor in (*copied.parameters(), *copied.buffers()):
        if tensor is not held and tensor.is_floating_point():
            tensor.data = tensor.data.float()
    for module in list(copied.modules()):
        for name, child in module.named_children():
            if isinstance(child, NewGELUActivation):
                setattr(module, name, nn.GELU(approximate="tanh"))  # the same function in one kernel instead of eight
    copied.requires_grad_(False)
    copied.eval()
    return copied


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value


class UnSplit:
    """The attack on a transcript: each batch of boundary rows that was released is reconstructed.

    It takes minutes a batch, so it has settings and is no attack that every run is measured by.

    Args:
        spec: How to run it.
        seed: Of the start of x', for each batch by its place in the transcript, and of the guess's dropout.
        steps: Numbers of the training steps to look at; `None` looks at every release, queries too.
        on_progress: Told of each outer loop.
    """

    def __init__(
        self,
        spec: UnSplitSpec,
        *,
        seed: int,
        steps: Collection[int] | None = None,
        on_progress: Callable[[OuterIteration], None] | None = None,
    ) -> None:
        self._spec = spec
        self._seed = seed
        self._steps = steps
        self._on_progress = on_progress

    def __call__(self, view: View) -> Guesses:
        """Guesses the texts of each batch.

        Raises:
            Inapplicable: Token ids were released, or the bottom was not granted, or has no blocks.
        """
        bottom, template = view.knowledge.bottom, view.knowledge.template
        if isinstance(bottom, Seq2SeqBottom):
            raise Inapplicable("The attack guesses the bottom of a model with one stack of blocks.")
        if bottom is None or template is None:
            raise Inapplicable("The attacker was not granted the bottom as it was handed out.")
        for release in view.transcript.releases():
            if self._steps is not None and not (_is_step(release.source) and release.number in self._steps):
                continue
            payload = release.payload
            if not isinstance(payload, Rows):
                raise Inapplicable("Token ids were released, so nothing is left to reconstruct.")
            hidden, inputs = template.from_rows(payload)
            found = reconstruct(
                bottom,
                hidden,
                inputs,
                self._spec,
                generator=seeded(self._seed, f"{release.source}/{release.number}"),
                candidates=view.knowledge.candidates,
                on_progress=self._on_progress,
            )
            guessed = Rows(payload.packed.with_values(found.ids[found.mask]), payload.segment_lengths)
            values, lengths = content_rows(guessed, view.knowledge)
            yield release.source, release.number, Tokens((Ragged(values, lengths[:, 0].contiguous()),))


def _is_step(source: str) -> bool:
    return source.startswith("job/") and source.count("/") == 1
