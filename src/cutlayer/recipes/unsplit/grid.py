"""The cells of the study for one order: what is varied, and what stays as in §3.3.1."""

from __future__ import annotations

from cutlayer.attacks import Traffic, UnSplitSpec
from cutlayer.core import Spec
from cutlayer.customer import Method, TrainSpec
from cutlayer.recipes.recipe import Order, at_size
from cutlayer.recipes.unsplit.cells import AttackCell, InverterCell, Start
from cutlayer.recipes.unsplit.config import UnsplitConfig
from cutlayer.recipes.unsplit.parameters import adapted
from cutlayer.recipes.unsplit.runs import Recorder, RunCell


class Setup(Spec):
    """What the paper varies of a run; the defaults are Table 2's.

    Attributes:
        corpus: Which private texts.
        bottom: Blocks at the customer.
        method: Full fine-tuning or LoRA.
        dropout: Whether the model's own dropout is on.
        lora_dropout: Whether LoRA's is.
        learning_rate: Another than §3.3.1's.
        length: Other than the size's tokens of a text.
        public: Iterations on public text before.
        two_iterations: A run of two, whose weights after the first are kept.
    """

    corpus: str = "wikitext"
    bottom: int = 1
    method: Method = Method.FULL
    dropout: bool = True
    lora_dropout: bool = True
    learning_rate: float | None = None
    length: int | None = None
    public: int = 0
    two_iterations: bool = False


class Grid:
    """Makes cells, one for each seed.

    Args:
        config: The recipe's settings.
        order: Size and seeds.
        recorder: Whose model it is.
    """

    def __init__(self, config: UnsplitConfig, order: Order, recorder: Recorder) -> None:
        self.config = config
        self.scale = at_size(config.sizes, order.size)
        self.seeds = order.seeds
        self._recorder = recorder
        deepest = recorder.blocks - 1  # the vendor keeps one
        self.depths = tuple(depth for depth in self.scale.depths if depth <= deepest)
        self.figure_3_depths = tuple(range(1, min(self.scale.deepest, deepest) + 1))
        self.lengths = tuple(each for each in self.scale.lengths if recorder.limit is None or each <= recorder.limit)
        self.public_iterations = self.scale.public_iterations or config.public_iterations
        self.paper = config.unsplit(self.scale, config.attack)
        self.rows = config.unsplit(self.scale, config.rows_attack)
        self.released = config.unsplit(self.scale, config.released_attack)

    def run(self, setup: Setup, seed: int) -> RunCell:
        """The run that a setup describes."""
        config, scale = self.config, self.scale
        changes = {} if setup.learning_rate is None else {"learning_rate": setup.learning_rate}
        lora = setup.method is Method.LORA
        iterations = 2 if setup.two_iterations else scale.iterations
        return RunCell(
            model=self._recorder.model,
            corpus=config.corpora[setup.corpus],
            bottom=setup.bottom,
            training=TrainSpec.language(
                method=setup.method,
                max_length=setup.length or scale.length,
                batch_size=scale.batch,
                epochs=1,
                dropout=setup.dropout,
                lora_dropout=config.lora_dropout if lora and setup.lora_dropout else 0.0,
                targets=adapted(self._recorder.model_type),
                group_by_length=False,
                checkpoint_every=1 if setup.two_iterations else iterations,
                **changes,
            ),
            iterations=iterations,
            kept=tuple(each for each in config.kept if each <= iterations),
            public=config.public if setup.public else None,
            public_iterations=setup.public,
            keeps_weights=setup.two_iterations,
            seed=seed,
        )

    def attack(
        self,
        setup: Setup,
        iteration: int,
        spec: UnSplitSpec | None = None,
        *,
        start: Start = "pre-trained",
        traffic: Traffic = Traffic.UNPROTECTED,
    ) -> tuple[AttackCell, ...]:
        """UnSplit on an iteration of the setup's runs.

        Args:
            setup: The run.
            iteration: Which, from 1.
            spec: The paper's settings by default. Against LoRA theta is the adapter.
            start: What the guess starts from.
            traffic: The boundary, or a control.
        """
        spec = spec or self.paper
        if setup.method is Method.LORA and spec.inner_weights:
            spec = spec.model_copy(update={"optimised": "adapter"})
        return tuple(
            AttackCell(
                run=self.run(setup, seed), iteration=iteration, spec=spec, start=start, traffic=traffic, seed=seed
            )
            for seed in range(self.seeds)
        )

    def invert(
        self, setup: Setup, iteration: int, *, traffic: Traffic = Traffic.UNPROTECTED
    ) -> tuple[InverterCell, ...]:
        """The known-plaintext inverter on an iteration of the setup's runs."""
        return tuple(
            InverterCell(
                run=self.run(setup, seed),
                iteration=iteration,
                traffic=traffic,
                public=self.config.public,
                public_tokens=self.scale.public_tokens,
                inverter=self.config.inverter,
                refine=self.config.refine,
                seed=seed,
            )
            for seed in range(self.seeds)
        )
