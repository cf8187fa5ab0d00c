"""What the paper prints, as data: each number with its place, `None` where a figure only draws it.

Ref: Dixi Yao and Baochun Li, "Is Split Learning Privacy-Preserving for Fine-Tuning Large Language Models?".
Percentages are per cent as printed. Descriptions are ours; texts of Table 1 are the paper's data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from cutlayer.core import Spec

Relation = Literal["=", ">", "<"]


class Printed(Spec):
    """A number of the paper's text.

    Attributes:
        place: Section, table or figure.
        what: What it is a number of.
        value: The number; `None` where the paper draws it, or tells in words alone.
        unit: Its unit; empty for a ratio or a count.
        relation: Whether the paper states the number itself, or that it is exceeded or not reached.
    """

    place: str
    what: str
    value: float | None
    unit: str = ""
    relation: Relation = "="

    def __str__(self) -> str:
        if self.value is None:
            return "not printed"
        sign = "" if self.relation == "=" else f"{self.relation} "
        return f"{sign}{self.value:g}{f' {self.unit}' if self.unit else ''}"


class Scores(Spec):
    """What an attack reaches, in per cent: token accuracy and ROUGE F1."""

    accuracy: float
    rouge_1: float
    rouge_2: float
    rouge_l: float
    rouge_lsum: float


class Example(Spec):
    """A line of Table 1: a reconstruction at some accuracy, and whose run of Tables 2 and 3 had that accuracy."""

    accuracy: float
    text: str
    run: str


class Table1(Spec):
    """Original text beside reconstructions."""

    original: str
    examples: tuple[Example, ...]


class Row2(Spec):
    """A line of Table 2; parameters in millions."""

    parameters: float
    first: Scores
    second: Scores


class Row3(Spec):
    """A line of Table 3; trainable parameters in thousands."""

    parameters: float
    second: Scores


class Row4(Spec):
    """A line of Table 4."""

    textgenerator: Scores
    enron: Scores


class Row5(Spec):
    """A line of Table 5, and the figure with its heat map."""

    distance_correlation: float
    cosine: float
    figure: int | None


class Figure(Spec):
    """A figure: what it draws, and which of its numbers the text prints.

    Attributes:
        shows: What is drawn, over what.
        printed: Numbers and findings that the text gives of it.
    """

    shows: str
    printed: tuple[Printed, ...] = ()


class Paper(Spec):
    """Everything that the paper prints and the recipe runs."""

    title: str
    reference: str
    settings: tuple[Printed, ...]
    table_1: Table1
    table_2: Mapping[str, Row2]
    table_3: Mapping[str, Row3]
    table_4: Mapping[str, Row4]
    table_5: Mapping[str, Row5]
    model_scale: Mapping[str, Printed]
    cost: tuple[Printed, ...]
    figures: Mapping[int, Figure]
    takeaways: Mapping[str, str]
    oddities: tuple[str, ...]


def _scores(accuracy: float, rouge_1: float, rouge_2: float, rouge_l: float, rouge_lsum: float) -> Scores:
    return Scores(accuracy=accuracy, rouge_1=rouge_1, rouge_2=rouge_2, rouge_l=rouge_l, rouge_lsum=rouge_lsum)


def _drawn(place: str, what: str) -> Printed:
    return Printed(place=place, what=what, value=None)


_SETTINGS = (
    Printed(place="§3.3.1", what="learning rate of full fine-tuning (AdamW)", value=5e-6),
    Printed(place="§3.3.1", what="learning rate of LoRA (AdamW)", value=2e-4),
    Printed(place="§3.3.1", what="outer iterations of the attack", value=100),
    Printed(place="§3.3.1", what="inner iterations of the attack", value=100),
    Printed(place="§3.3.1", what="learning rate of x' (Adam)", value=0.1),
    Printed(place="§3.3.1", what="learning rate of θ (AdamW)", value=1e-3),
    Printed(place="§3.3.1", what="batch size", value=4, unit="texts"),
    Printed(place="§3.3.2", what="tokens of a text", value=1024, unit="tokens"),
    Printed(place="§3.3.5", what="other learning rate of x'", value=0.01),
    Printed(place="§3.3.5", what="other learning rate of θ", value=1e-4),
    Printed(place="§5", what="public tokens of the defence, one iteration", value=4096, unit="tokens"),
)

_TABLE_1 = Table1(
    original=(
        "millimeter (0 @.@ 8 in) Oerlikon light AA guns on single mounts. In addition Caradoc was fitted with a Type "
        "271 and Type 290"
    ),
    examples=(
        Example(
            accuracy=2.95,
            text=(
                "Pillopolis medi wrestling Am Overt Jeff num par sl Med Inf Hey ev Fre Kem M Jehovah Solomon Gleyx "
                "SpaceEngineers minim Ke"
            ),
            run="OPT, second iteration (Table 2)",
        ),
        Example(
            accuracy=11.69,
            text=(
                "device idea h 0 @cm@ 8 onappend Oerlikon light AA guns There single what Lee I addition Caradoc "
                "proved fittedak HiddenType 271"
            ),
            run="GPT-2 with LoRA, second iteration (Table 3)",
        ),
        Example(
            accuracy=43.55,
            text=(
                "by some 2 0 that that 8 that< endof >< endof > that 33 that light AA guns that single mount< endof ><"
            ),
            run="OPT, first iteration (Table 2)",
        ),
        Example(
            accuracy=82.57,
            text=(
                "byiece / 0 @ It@ 8 that, Oerlikon light AA guns on single mounts. In addition Caradoc was fitted at a "
                "Type 271 and Type290 surf"
            ),
            run="GPT-2, first iteration (Table 2)",
        ),
    ),
)

_TABLE_2 = {
    "GPT-2": Row2(
        parameters=46.5,
        first=_scores(82.57, 86.38, 61.96, 78.90, 86.18),
        second=_scores(0.415, 0.941, 0.761, 0.602, 0.836),
    ),
    "OPT": Row2(
        parameters=157.6,
        first=_scores(43.55, 41.54, 16.61, 38.49, 40.35),
        second=_scores(2.95, 4.99, 3.02, 3.60, 4.88),
    ),
    "OpenChat 3.5": Row2(
        parameters=349.2,
        first=_scores(29.13, 28.82, 8.73, 26.69, 28.14),
        second=_scores(0.0, 0.09, 0.11, 0.077, 0.121),
    ),
    "Qwen 1.5": Row2(
        parameters=361.8,
        first=_scores(11.72, 16.92, 9.04, 13.54, 16.92),
        second=_scores(1.17, 0.17, 0.0, 0.14, 0.17),
    ),
    "Llama 2": Row2(
        parameters=333.6,
        first=_scores(36.08, 45.79, 31.98, 45.79, 45.73),
        second=_scores(0.879, 1.01, 0.0, 0.864, 1.01),
    ),
    "Llama 3": Row2(
        parameters=743.6,
        first=_scores(19.82, 25.57, 10.46, 23.23, 25.25),
        second=_scores(0.12, 0.348, 0.0, 0.349, 0.349),
    ),
}

_TABLE_3 = {
    "GPT-2": Row3(parameters=24.6, second=_scores(11.69, 10.09, 0.98, 7.04, 6.88)),
    "OPT": Row3(parameters=65.5, second=_scores(1.95, 7.42, 1.02, 5.92, 7.15)),
    "Qwen 1.5": Row3(parameters=312.3, second=_scores(0.85, 0.21, 0.11, 0.17, 0.21)),
    "Llama 2": Row3(parameters=131.1, second=_scores(6.74, 6.29, 4.87, 11.32, 6.26)),
    "Llama 3": Row3(parameters=106.50, second=_scores(0.20, 3.25, 3.73, 2.01, 3.25)),
}

_TABLE_4 = {
    "GPT-2": Row4(
        textgenerator=_scores(8.47, 0.775, 0.0, 0.646, 0.646), enron=_scores(23.83, 11.52, 1.44, 9.94, 10.40)
    ),
    "OPT": Row4(textgenerator=_scores(5.18, 9.18, 0.168, 4.45, 5.29), enron=_scores(0.0, 0.44, 0.0, 0.33, 0.38)),
    "OpenChat 3.5": Row4(
        textgenerator=_scores(0.656, 0.703, 0.0, 0.663, 0.584), enron=_scores(2.05, 2.16, 0.0, 1.44, 2.16)
    ),
    "Qwen 1.5": Row4(textgenerator=_scores(5.37, 2.82, 3.52, 2.53, 2.53), enron=_scores(3.32, 1.93, 0.0, 1.66, 1.66)),
    "Llama 2": Row4(
        textgenerator=_scores(0.879, 1.01, 0.0, 0.864, 1.01), enron=_scores(4.69, 0.536, 0.0, 0.536, 0.536)
    ),
    "Llama 3": Row4(
        textgenerator=_scores(3.91, 12.37, 4.25, 11.20, 10.02), enron=_scores(2.52, 2.39, 5.17, 2.24, 2.24)
    ),
}

_TABLE_5 = {
    "Unsplit model, second layer": Row5(distance_correlation=0.33, cosine=0.24, figure=16),
    "ViT, first layer": Row5(distance_correlation=0.52, cosine=0.29, figure=17),
    "1D CNN, first two layers": Row5(distance_correlation=0.47, cosine=0.02, figure=18),
    "GPT-2, first layer": Row5(distance_correlation=0.19, cosine=0.03, figure=19),
    "GPT-2, first two layers": Row5(distance_correlation=0.04, cosine=0.01, figure=20),
    "OPT, first layer": Row5(distance_correlation=0.008, cosine=0.006, figure=21),
}

_MODEL_SCALE = {
    "UnSplit's CNN": Printed(place="§4.1.2", what="parameters of UnSplit's CNN", value=1.61, unit="M"),
    "UnSplit's CNN, one layer": Printed(place="§4.1.2", what="parameters of one of its layers", value=1792),
    "ResNet-152": Printed(place="§4.1.2", what="parameters of ResNet-152", value=58.16, unit="M"),
    "ResNet-152, one layer": Printed(place="§4.1.2", what="parameters of one of its layers", value=75, unit="K"),
}

_COST = (
    Printed(place="§1", what="memory to fine-tune Llama 2 7B", value=28, unit="GB"),
    Printed(place="§2.2", what="A100 80 GB needed to fine-tune Llama 2 7B", value=8, unit="GPUs", relation=">"),
    Printed(place="§2.2", what="memory to fine-tune Llama 2 7B with LoRA", value=28, unit="GB", relation=">"),
    Printed(place="§2.2", what="memory to fine-tune Llama 2 7B with QLoRA", value=10, unit="GB"),
)

_FIGURES = {
    3: Figure(
        shows="accuracy and ROUGE of the first iteration over blocks at the customer, GPT-2 and OPT",
        printed=(
            Printed(place="§3.3.3", what="parameters with four GPT-2 blocks, no longer read", value=68, unit="M"),
            Printed(place="§4.2", what="accuracy on OPT, first point", value=43.55, unit="%"),
            Printed(place="§4.2", what="accuracy on OPT, second point", value=17.29, unit="%"),
            Printed(place="§4.2", what="accuracy on OPT, third point", value=3.83, unit="%"),
            Printed(place="§4.2", what="MSE of inputs on OPT, first point", value=0.38),
            Printed(place="§4.2", what="MSE of inputs on OPT, second point", value=0.33),
            Printed(place="§4.2", what="MSE of inputs on OPT, third point", value=0.37),
        ),
    ),
    4: Figure(
        shows="accuracy and ROUGE over iterations and blocks at the customer, GPT-2",
        printed=(_drawn("§3.3.4", "from the second iteration on the attack is not effective"),),
    ),
    5: Figure(shows="parameters, and trainable ones with LoRA, of OPT over blocks at the customer"),
    6: Figure(
        shows="the second iteration at x' 0.1 / 0.01 and θ 1e-3 / 1e-4, all models, one block",
        printed=(_drawn("§3.3.5", "low at all four settings"),),
    ),
    7: Figure(
        shows="GPT-2 without dropout, first (a) and second (b) iteration, over blocks at the customer",
        printed=(
            _drawn("§4.1.1", "first iteration: little better than with dropout"),
            Printed(place="§4.1.1", what="accuracy of the second iteration", value=80, unit="%", relation=">"),
        ),
    ),
    8: Figure(
        shows="OPT without dropout, first (a) and second (b) iteration, over blocks at the customer",
        printed=(
            _drawn("§4.1.1", "first iteration: little better than with dropout"),
            Printed(place="§4.1.1", what="accuracy of the second iteration", value=50, unit="%", relation=">"),
        ),
    ),
    9: Figure(
        shows="GPT-2 with LoRA, second iteration: no LoRA dropout (a), no other dropout (b)",
        printed=(_drawn("§4.1.1", "both kinds of dropout matter; without LoRA's the accuracy rises"),),
    ),
    10: Figure(
        shows="OPT with LoRA, second iteration: no LoRA dropout (a), no other dropout (b)",
        printed=(_drawn("§4.1.1", "the model's own dropout matters more; without it, above full fine-tuning's"),),
    ),
    11: Figure(
        shows="GPT-2, second iteration, when the guess has processed the private batch first: full (a), LoRA (b)",
        printed=(_drawn("§4.1.1", "full: the attack works; LoRA: low, yet above Table 3"),),
    ),
    12: Figure(
        shows="OPT, second iteration, when the guess has processed the private batch first: full (a), LoRA (b)",
        printed=(_drawn("§4.1.1", "full: the attack works; LoRA: low, yet above Table 3"),),
    ),
    13: Figure(
        shows="MSE of outputs and of inputs over the attack: OPT (a), OpenChat (b), TextGenerator mini 4",
        printed=(
            _drawn("§4.2", "OPT: inputs stay high while outputs fall"),
            _drawn("§4.2", "OpenChat: inputs can lie above outputs"),
            Printed(place="§4.2", what="MSE of outputs, Llama 2, second iteration", value=0.0055),
            Printed(place="§4.2", what="accuracy, Llama 2, second iteration", value=0.879, unit="%"),
        ),
    ),
    14: Figure(
        shows="MSE of outputs and of inputs over the attack, GPT-2, Table 2",
        printed=(
            Printed(place="§4.2", what="MSE of outputs (the loss), first iteration", value=0.055),
            Printed(place="§4.2", what="MSE of inputs, first iteration", value=0.18),
            Printed(place="§4.2", what="accuracy, first iteration", value=82.57, unit="%"),
            Printed(place="§4.2", what="MSE at which an image is still recognised (PatchShuffling)", value=0.32),
        ),
    ),
    15: Figure(
        shows="accuracy of the second iteration over the length of a text, GPT-2",
        printed=(
            Printed(place="§4.2", what="accuracy at 128 tokens", value=80, unit="%", relation=">"),
            Printed(place="§4.2", what="accuracy at 256 tokens", value=1, unit="%", relation="<"),
        ),
    ),
    16: Figure(shows="heat maps, UnSplit's CNN, second convolution (64 × 32 × 32)"),
    17: Figure(shows="heat maps, ViT, embedding layer and first block (196 × 768)"),
    18: Figure(shows="heat maps, 1D CNN, first two layers"),
    19: Figure(
        shows="heat maps, GPT-2, first block",
        printed=(Printed(place="§4.3", what="cosine similarity, GPT-2, first block", value=0.03),),
    ),
    20: Figure(
        shows="heat maps, GPT-2, first three blocks",
        printed=(Printed(place="§4.3", what="cosine similarity, GPT-2, first three blocks", value=0.01),),
    ),
    21: Figure(
        shows="heat maps, OPT, first block",
        printed=(Printed(place="§4.3", what="cosine similarity, OPT, first block", value=0.006),),
    ),
    22: Figure(
        shows="GPU memory of a customer over blocks held, several models",
        printed=(_drawn("§5", "an ordinary personal computer suffices"),),
    ),
}

_TAKEAWAYS = {
    "3.1": "At iteration 1 the attack gets weaker with the customer's parameters and blocks.",
    "3.2": "After iteration 1 it gets weaker with parameters, trainable parameters and blocks.",
    "3.3": "After iteration 1 it fails even against one block.",
    "4.1.1": "Dropout and layer normalisation are what make it fail after iteration 1.",
    "4.1.2": "The larger the model, the harder the attack.",
    "4.2": "Matching outputs does not mean matching inputs, and long texts are harder.",
    "4.3": "Inputs and outputs of a decoder's block are less alike than those of a CNN's or a ViT's.",
    "5": "One iteration on public text first is a sufficient defence.",
}

_ODDITIES = (
    "Table 2 counts the LoRA adapter in the rows of OPT, Llama 2 and Llama 3, and not in those of OpenChat and Qwen, "
    "though its runs train without one.",
    "Table 4's line of Llama 2 on TextGenerator is, digit for digit, Table 2's second iteration on WikiText-103.",
    "Table 5 says GPT-2's first two layers where Figure 20 and §4.3 say the first three, with the same cosine of 0.01.",
    "Table 5 says ViT's first layer where Figure 17 says the embedding layer and the first block.",
    "§4.3 calls UnSplit's CNN trained on CIFAR-10 and, later, randomly initialised.",
    "Table 1 shows the reconstructions of different models as if accuracy alone told them apart: 2.95 and 43.55 % are "
    "OPT's, 11.69 and 82.57 % GPT-2's.",
    "§3.3.4 calls the accuracies of Table 3 around or above 10 %; one of five is.",
    "§1 gives 28 GB to fine-tune Llama 2 7B, §2.2 over 28 GB with LoRA; 28 GB is 4 bytes for each of 7 billion "
    "weights.",
    "Layer normalisation keeps no running statistics, so training updates nothing, as §4.1.1 has it, that the guess "
    "could lack; nor are batch normalisation's scale and shift scalars: there is one of each for a channel.",
    "§4.1.2 calls ResNet-152 similar to one block of GPT-2: a block has 7.1 M parameters; with table and positions it "
    "has 46.5 M. Its 75 K are the first bottleneck's; the last has 4.5 M.",
    "Table 5's distance correlation of 0.008 for OPT is below 0.022, the least that 2,048 pairs of numbers give on "
    "average by chance.",
    "§4.2 gives 768 as the width of the models used; of the six only GPT-2 has it.",
    "Llama 2's and OpenChat's tokenizer length of 1e30 is the library's sign for no limit set, not a limit.",
)

PAPER = Paper(
    title="Is Split Learning Privacy-Preserving for Fine-Tuning Large Language Models?",
    reference="Dixi Yao and Baochun Li, IEEE",
    settings=_SETTINGS,
    table_1=_TABLE_1,
    table_2=_TABLE_2,
    table_3=_TABLE_3,
    table_4=_TABLE_4,
    table_5=_TABLE_5,
    model_scale=_MODEL_SCALE,
    cost=_COST,
    figures=_FIGURES,
    takeaways=_TAKEAWAYS,
    oddities=_ODDITIES,
)
