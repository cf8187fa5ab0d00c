from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cutlayer.core import ConfigError, DataError, ModelError, Ragged, Rows, Tokens
from cutlayer.models import Inputs, Template
from tests.unit.models.vocabularies import HABITS, WORDS, make_tokenizer

TOKENIZERS = {habit: make_tokenizer(habit) for habit in HABITS}
TEMPLATES = {habit: Template.from_tokenizer(tokenizer) for habit, tokenizer in TOKENIZERS.items()}

texts = st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join)


def tokens_of(habit: str, *columns: list[str]) -> Tokens:
    tokenizer = TOKENIZERS[habit]
    return Tokens(
        tuple(
            Ragged.from_lists([tokenizer(text, add_special_tokens=False)["input_ids"] for text in column])
            for column in columns
        )
    )


def reference(habit: str, *columns: list[str]) -> Inputs:
    encoded = TOKENIZERS[habit](*columns, padding=True, padding_side="right", return_tensors="pt")
    mask = encoded["attention_mask"]
    types = encoded.get("token_type_ids") if habit == "bert" else None
    return Inputs(
        attention_mask=mask,
        position_ids=torch.arange(mask.shape[1]).expand_as(mask),
        input_ids=encoded["input_ids"] * mask,
        token_type_ids=None if types is None else types * mask,
    )


def assert_same(left: Inputs, right: Inputs) -> None:
    for name, value in vars(left).items():
        other = getattr(right, name)
        assert (value is None) == (other is None), name
        assert value is None or torch.equal(value, other), name


@pytest.mark.parametrize("habit", HABITS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_assemble_equals_the_tokenizer(habit: str, data: st.DataObject) -> None:
    column = st.lists(texts.filter(bool) if habit == "gpt2" else texts, min_size=1, max_size=4)
    first = data.draw(column)
    columns = [first]
    if data.draw(st.booleans()):
        columns.append(data.draw(st.lists(texts, min_size=len(first), max_size=len(first))))
    made = TEMPLATES[habit].assemble(tokens_of(habit, *columns))
    assert_same(made, reference(habit, *columns))


@pytest.mark.parametrize("habit", HABITS)
@pytest.mark.parametrize("pair", [False, True])
def test_rows_find_their_way_back(habit: str, pair: bool) -> None:
    template = TEMPLATES[habit]
    columns = [["a b c", "d", "e f"], ["g", "h i j", "k"]][: 1 + pair]
    tokens = tokens_of(habit, *columns)
    inputs = template.assemble(tokens)
    hidden = torch.randn(*inputs.attention_mask.shape, 5)
    rows = template.unpad(hidden, tokens)
    assert torch.equal(rows.segment_lengths, template.segment_lengths(tokens))
    assert rows.total == int(inputs.attention_mask.sum())
    again, frame = template.from_rows(rows)
    mask = inputs.attention_mask.bool()
    assert torch.equal(again[mask], hidden[mask])
    assert not again[~mask].any()
    assert frame.input_ids is None
    for name in ("attention_mask", "position_ids", "token_type_ids"):
        left, right = getattr(frame, name), getattr(inputs, name)
        assert left is right is None or torch.equal(left, right)


@pytest.mark.parametrize("habit", HABITS)
def test_with_a_table_a_batch_has_rows_and_gradients_reach_it(habit: str) -> None:
    template = TEMPLATES[habit]
    table = torch.randn(len(TOKENIZERS[habit]), 4, requires_grad=True)
    tokens = tokens_of(habit, ["a b", "c"], ["d", "e f"])
    by_id = template.assemble(tokens)
    by_row = template.assemble(tokens, table=table)
    assert by_id.input_ids is not None
    assert by_row.inputs_embeds is not None
    mask = by_id.attention_mask.bool()
    assert torch.equal(by_row.inputs_embeds[mask], table[by_id.input_ids[mask]])
    by_row.inputs_embeds.sum().backward()
    assert table.grad is not None
    assert torch.equal(table.grad[:, 0].nonzero()[:, 0], by_id.input_ids[mask].unique())
    given_rows = Tokens(tuple(segment.with_values(table[segment.values].detach()) for segment in tokens.segments))
    again = template.assemble(given_rows, table=table)
    assert again.inputs_embeds is not None
    assert torch.equal(again.inputs_embeds, by_row.inputs_embeds)
    with pytest.raises(ModelError, match="table"):
        template.assemble(given_rows)


def test_lengths() -> None:
    template = TEMPLATES["bert"]
    assert template.special_count(1) == 2
    assert template.special_count(2) == 3
    assert template.max_content(1) == 30
    assert template.max_content(2, 16) == 13
    with pytest.raises(ConfigError, match=r"max_length.*leaves no room beside 3 special tokens") as too_short:
        template.max_content(2, 3)
    assert "4 or more" in too_short.value.remedy
    assert template.max_content(2, 4) == 1
    with pytest.raises(ModelError, match="no room beside 3 special tokens") as no_room:
        template.model_copy(update={"max_length": 3}).max_content(2)
    assert "another model" in no_room.value.remedy
    endless = Template.from_tokenizer(make_tokenizer("bert", model_max_length=int(1e30)))
    with pytest.raises(ModelError, match="how long"):
        endless.max_content(1)
    assert Template.from_tokenizer(TOKENIZERS["bert"], max_length=20).max_length == 20


def test_an_empty_text_without_special_tokens_is_refused() -> None:
    with pytest.raises(DataError, match="empty"):
        TEMPLATES["gpt2"].assemble(tokens_of("gpt2", ["a", ""]))
    assert TEMPLATES["bert"].assemble(tokens_of("bert", ["a", ""])).attention_mask.sum() == 5


def test_rows_without_their_special_tokens_are_refused() -> None:
    short = torch.tensor([[1]])
    with pytest.raises(DataError, match="special tokens"):
        TEMPLATES["bert"].from_rows(Rows(Ragged(torch.zeros(1, 4), short.sum(1)), short))
    none = torch.tensor([[0]])
    with pytest.raises(DataError, match="one in all"):
        TEMPLATES["gpt2"].from_rows(Rows(Ragged(torch.zeros(0, 4), none.sum(1)), none))


def test_a_batch_moves_as_a_whole() -> None:
    moved = TEMPLATES["bert"].assemble(tokens_of("bert", ["a b"])).to("meta")
    assert moved.attention_mask.is_meta
    assert moved.token_type_ids is not None
    assert moved.token_type_ids.is_meta
    assert moved.inputs_embeds is None
