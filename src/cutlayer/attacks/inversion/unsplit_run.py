"""Algorithm 1 of the improved UnSplit attack on one batch of hidden states.

Rows x' and the weights theta of a guessed bottom are improved in turn until what comes out is the boundary that was
observed; then each row's nearest neighbour in the embedding table is its token.

Ref: Yao and Li, "Is Split Learning Privacy-Preserving for Fine-Tuning Large Language Models?",
§3.2.3, Algorithm 1 and §3.3.1.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import astuple, replace
from typing import cast

import torch
import torch.nn.functional as F
from peft import PeftModel
from torch import Tensor, nn
from transformers.activations import NewGELUActivation

from cutlayer.attacks.inversion.observed import check_depth, check_observed
from cutlayer.attacks.inversion.unsplit_spec import InputTruth, OuterIteration, Reconstruction, UnSplitSpec
from cutlayer.core import ConfigError, DataError, Fault
from cutlayer.core.deadline import check_time
from cutlayer.models import Bottom, Inputs, isolated_dropout, set_dropout
from cutlayer.privacy.neighbours import NeighbourSearch

_ROWS_AT_ONCE = 16_384


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

        x' and theta with the moments of their optimisers, each in its own shape; `history` `[loops, 5]` float64; `seed`
        `[]` of dropout; and `attack` `[16]` uint8, which tells attacks apart. Copies.
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
                check_time()
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

    def _dropout(self, phase: int) -> AbstractContextManager[None]:
        """A phase's dropout, a function of the seed and the phase."""
        if self.spec.guess_mode == "eval":
            return nullcontext()
        return isolated_dropout(self._seed, phase, self._rows.device)

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
    run: UnSplitRun,
    *,
    on_progress: Callable[[OuterIteration], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> Reconstruction:
    """Runs the attack to its end, from wherever it stands.

    Args:
        run: The attack on one batch.
        on_progress: Called after each outer loop.
        stop: Asked before each outer loop; when it says yes, what has been found by then is returned.

    Raises:
        ConfigError: The attack diverged.
    """
    while not run.done and not (stop is not None and stop()):
        latest = run.step()
        if on_progress is not None:
            on_progress(latest)
    return run.reconstruction()


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
