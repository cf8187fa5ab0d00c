"""The paper's parameter columns, against counts by hand and public totals."""

from __future__ import annotations

import json

import pytest

from cutlayer.core import ConfigError, ModelError
from cutlayer.recipes.measures.parameters import (
    ARCHITECTURES,
    GPT2,
    GPT2_XL,
    LLAMA_2,
    OPT,
    TABLE_2,
    CountCell,
    NetworkSizeCell,
    count,
)
from cutlayer.recipes.unsplit_cases import PAPER
from tests.recipes.unsplit.made_up import attacks, told

OPENCHAT, QWEN, LLAMA_3 = (ARCHITECTURES[TABLE_2[place]] for place in (2, 3, 5))

WHOLE = {
    GPT2.source: 124_439_808,
    GPT2_XL.source: 1_557_611_200,
    OPT.source: 1_315_758_080,
    OPENCHAT.source: 7_241_748_480,
    QWEN.source: 1_836_828_672,
    LLAMA_2.source: 6_738_415_616,
    LLAMA_3.source: 8_030_261_248,
}
"""What the checkpoints hold."""


@pytest.fixture(scope="module")
def rows():
    counted = CountCell(architectures=TABLE_2, bottoms=(1,)).run(None)
    return {row.architecture: row for row in counted.rows}


def printed(name):
    """What Tables 2 and 3 print: all weights in millions, an adapter in thousands."""
    return PAPER["table_2"][name]["parameters"], PAPER["table_3"].get(name, {}).get("parameters")


def by_hand(architecture):
    """Table, positions, a block and its adapter of rank 8."""
    s = architecture.settings
    width = s["hidden_size"]
    table = s["vocab_size"] * width
    if architecture.family in ("gpt2", "opt"):
        # four maps of attention, two of the MLP, biases, two normalisations
        block = 12 * width**2 + (4 + 4 + 1) * width + 2 * 2 * width
        # OPT keeps two rows more than it has positions
        positions = (s["max_position_embeddings"] + 2 * (architecture.family == "opt")) * width
        adapted = [(width, 3 * width)] if architecture.family == "gpt2" else 2 * [(width, width)]
    else:
        inner, keys = s["intermediate_size"], width * s["num_key_value_heads"] // s["num_attention_heads"]
        block = 2 * width * (width + keys) + 3 * width * inner + 2 * width
        positions = 0
        adapted = [(width, width), (width, keys)]
        if architecture.family == "qwen2":
            block += width + 2 * keys
            adapted = [(width, width), (width, keys), (width, keys), (width, width)]
            adapted += [(width, inner), (width, inner), (inner, width)]
    return table, positions, block, 8 * sum(map(sum, adapted))


@pytest.mark.parametrize("source", [*TABLE_2, GPT2_XL.source])
def test_what_a_customer_holds(source):
    architecture = ARCHITECTURES[source]
    held = count(architecture)
    table, positions, block, adapter = by_hand(architecture)
    assert (held.table, held.positions, held.blocks, held.above) == (table, positions, block, 0)
    assert held.adapter == (None if architecture.lora is None else adapter)
    assert held.whole == WHOLE[architecture.source]
    assert held.parameters == table + positions + block


def test_the_columns_are_the_papers(rows):
    """To all printed digits, each row in one of two readings."""
    assert tuple(rows) == tuple(PAPER["table_2"])
    assert {name: row.fits(printed(name)[0]) for name, row in rows.items()} == {
        "GPT-2": ("the bottom", "the bottom and its adapter"),
        "OPT": ("the bottom and its adapter",),
        "OpenChat 3.5": ("the bottom",),
        "Qwen 1.5": ("the bottom",),
        "Llama 2": ("the bottom and its adapter",),
        "Llama 3": ("the bottom and its adapter",),
    }
    assert {name: row.adapter_fits(printed(name)[1]) for name, row in rows.items()} == {
        name: None if name == "OpenChat 3.5" else True for name in rows
    }
    full = {name: round(row.parameters / 1e6, 1) for name, row in rows.items()}
    assert list(full.values()) == [46.5, 157.5, 349.2, 361.8, 333.5, 743.4]
    adapters = [round(row.adapter / 1e3, 1) for row in rows.values() if row.adapter is not None]
    assert adapters == [24.6, 65.5, 312.3, 131.1, 106.5]


def test_another_number_is_not_taken_for_the_papers(rows):
    row = rows["OPT"]
    assert row.fits(157.4) == ()
    assert row.fits(157.5) == ("the bottom",)
    assert row.adapter_fits(65.6) is False
    # another rank, and LoRA on other maps of Qwen, have another column
    assert count(OPT, rank=4).adapter * 2 == row.adapter
    other = count(QWEN.model_copy(update={"lora": "query-value"}))
    assert not other.adapter_fits(312.3)


def test_only_one_opt_fits():
    sizes = {source: count(each) for source, each in ARCHITECTURES.items() if each.title == "OPT"}
    fits = {source for source, held in sizes.items() if held.fits(157.6) and held.adapter_fits(65.5)}
    assert fits == {"facebook/opt-1.3b"}
    assert len(sizes) == 5


def test_a_tied_head_is_counted_once():
    tied, untied = count(GPT2, tail=0), count(LLAMA_2, tail=0)
    assert tied.above == 2 * 768
    assert untied.above == 4096 + 32000 * 4096
    assert (tied.adapter, untied.adapter) == (count(GPT2).adapter, count(LLAMA_2).adapter)
    deeper = count(GPT2, bottom=2, tail=1)
    assert deeper.above == tied.above + tied.blocks
    assert deeper.adapter == 3 * tied.adapter
    assert count(GPT2, bottom=4).parameters == pytest.approx(68e6, abs=0.5e6)  # §3.3.3


def test_figure_5():
    def counted(*bottoms):
        return CountCell(architectures=(OPT.source,), bottoms=bottoms).run(None).rows

    found = counted(1, 2, 5, 23)
    assert [row.bottom for row in found] == [1, 2, 5, 23]
    first, second, fifth, last = found
    block, adapter = second.parameters - first.parameters, second.adapter - first.adapter
    assert fifth.parameters == first.parameters + 4 * block
    assert last.adapter == first.adapter + 22 * adapter
    assert (first.parameters, first.adapter) == (157_513_728, 65_536)
    with pytest.raises(ModelError, match="at least one"):
        counted(24)
    with pytest.raises(ConfigError, match="at least 1"):
        counted(0)


def test_the_scale_of_convolutional_networks():
    found = {row.axes["what"]: row.value for row in NetworkSizeCell().run(None).rows}
    assert found["UnSplit's CNN"] == 1_609_546
    assert found["UnSplit's CNN, one layer"] == 1792
    assert found["ResNet-152"] == 60_192_808 - 1000 * 2049 + 10 * 2049
    assert found["ResNet-152, one layer"] == 75_008
    for name, digits, unit in (("UnSplit's CNN", 2, 1e6), ("ResNet-152", 2, 1e6), ("ResNet-152, one layer", 0, 1e3)):
        assert round(found[name] / unit, digits) == PAPER["model_scale"][name]["value"]
    assert set(found) - set(PAPER["model_scale"]) == {"GPT-2, one block"}


def test_the_table_of_columns():
    table = next(each for each in told("table-2", attacks())[0] if "parameters" in each.title)
    assert table.rows[1] == (
        *("OPT", "facebook/opt-1.3b", "157.6", "157.514", "-0.086", "157.579", "the bottom and its adapter"),
        *("65.5", "65.536"),
    )
    assert table.rows[2][-2:] == ("–", "–")


# ---------------------------------------------------------------- the paper's numbers


def test_numbers_of_the_paper():
    """Spot checks against the text, by cells that are easy to mistake for one another."""
    second, third, fourth = (PAPER[f"table_{number}"] for number in (2, 3, 4))
    assert (second["GPT-2"]["first"]["accuracy"], second["GPT-2"]["second"]["accuracy"]) == (82.57, 0.415)
    assert (second["Llama 3"]["first"]["rouge_lsum"], second["Llama 3"]["second"]["rouge_l"]) == (25.25, 0.349)
    assert third["Llama 2"]["second"]["rouge_l"] == 11.32
    assert (fourth["GPT-2"]["enron"]["accuracy"], fourth["Qwen 1.5"]["textgenerator"]["rouge_2"]) == (23.83, 3.52)
    assert PAPER["table_5"]["1D CNN, first two layers"]["cosine"] == 0.02
    assert [example["accuracy"] for example in PAPER["table_1"]["examples"]] == [2.95, 11.69, 43.55, 82.57]
    assert set(PAPER["figures"]) == set(range(3, 23))
    assert not [n for n in range(16, 22) if n not in {row["figure"] for row in PAPER["table_5"].values()}]


def test_what_the_paper_only_draws_has_no_number():
    drawn = [each for number in (4, 6, 9, 10, 11, 12, 22) for each in PAPER["figures"][number]["printed"]]
    assert drawn
    assert all(each["value"] is None for each in drawn)
    assert PAPER["figures"][5]["printed"] == []
    values = {(each["what"], each["relation"], each["value"]) for each in PAPER["figures"][15]["printed"]}
    assert values == {("accuracy at 128 tokens", ">", 80), ("accuracy at 256 tokens", "<", 1)}


def test_the_paper_repeats_a_line():
    second, fourth = PAPER["table_2"], PAPER["table_4"]
    assert fourth["Llama 2"]["textgenerator"] == second["Llama 2"]["second"]
    others = [row["textgenerator"] for name, row in fourth.items() if name != "Llama 2"]
    assert not [each for each in others if each in [row["second"] for row in second.values()]]


def test_it_can_be_written():
    assert json.loads(json.dumps(PAPER))["table_2"]["OPT"]["parameters"] == 157.6
