"""What a customer of Split-and-Denoise computes and holds at home, against the whole model.

Run it with `python -m benchmarks.snd_cost`; `--shapes` measures some alone. A text of 128 tokens is embedded by each of
the models of the paper's Table 8, and by MiniLM, and denoised by its denoisers, all with random weights in fp32. They
take turns. The customer looks up the text's rows and denoises; the paper counts the same. Operations are those of
matrix products and attention, as PyTorch counts them. Memory is what weights take; of the customer also the token
table, which is left out in brackets.

Ratios, by shape:
    paper_denoiser_time: Seconds with the paper's denoiser, against the whole model.
    paper_denoiser_memory: Bytes of table and denoiser, against the whole model.
    light_denoiser_time: The same with the light denoiser.
    light_denoiser_memory: The same.
"""

from __future__ import annotations

import argparse
import gc

from benchmarks.results import write
from cutlayer.recipes.denoiser_costs import KINDS, SHAPES, TOKENS, counts, seconds

PAPER = {"time": 0.047, "memory": 0.065}
"""What SnD says of GPT-2 XL (A.9, Figure 5)."""


def main() -> None:
    """Measures and writes `benchmarks/results/snd_cost.json`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES), help="All by default.")
    shapes = parser.parse_args().shapes
    ratios: dict[str, dict[str, float]] = {f"{kind}_denoiser_{what}": {} for kind in KINDS for what in PAPER}
    print(f"One text of {TOKENS} tokens, against the whole model:")
    print(f"{'model':16} {'denoiser':9} operations    time              memory (without the table)")
    for shape in shapes:
        count, took = counts(SHAPES[shape]), seconds(SHAPES[shape])
        gc.collect()  # two large models must not be there at once
        whole = count["whole"]
        for kind in KINDS:
            time_ratio = took[kind] / took["whole"]
            memory = (count[kind].bytes + count["table"].bytes) / whole.bytes
            ratios[f"{kind}_denoiser_time"][shape] = time_ratio
            ratios[f"{kind}_denoiser_memory"][shape] = memory
            print(
                f"{shape:16} {kind:9} {count[kind].operations / whole.operations:10.1%} {time_ratio:8.1%}"
                f"  {1e3 * took[kind]:7.1f} ms {memory:7.1%} ({count[kind].bytes / whole.bytes:.1%})"
            )
    if "gpt2-xl" in shapes:
        _beside_the_paper(ratios)
    for kind in KINDS:
        slow = [shape for shape, ratio in ratios[f"{kind}_denoiser_time"].items() if ratio >= 1]
        print(
            f"Better run at home than denoised by the {kind} denoiser, which takes longer: {', '.join(slow) or 'none'}."
        )
    write("snd_cost", ratios)


def _beside_the_paper(ratios: dict[str, dict[str, float]]) -> None:
    for what, told in PAPER.items():
        ours = ", ".join(f"{kind} {ratios[f'{kind}_denoiser_{what}']['gpt2-xl']:.1%}" for kind in KINDS)
        print(f"GPT-2 XL, {what}: the paper says {told:.1%} of its denoiser; measured here: {ours}.")
    print(
        "Table 8's shape alone, counted above, takes more of GPT-2 XL's operations and values than the paper says of "
        "all that a user does; it does not tell how it measured."
    )


if __name__ == "__main__":
    main()
