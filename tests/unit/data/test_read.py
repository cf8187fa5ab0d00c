from __future__ import annotations

import csv
import datetime
import gzip
import io
import json
import sys
import traceback
import types
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutlayer.core import DataError, MissingExtraError, extras
from cutlayer.data import TextFile, has_column, read_dataset

# everything UTF-8 can hold, except a carriage return and NUL, which the csv module does not write back as they were
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\x00"), max_size=30)
ROWS = st.lists(st.tuples(TEXT, TEXT, st.sampled_from(["yes", "no", "7"])), min_size=1, max_size=8)
ENDINGS = [kind + gz for kind in ("csv", "tsv", "jsonl", "ndjson", "parquet") for gz in ("", ".gz")]
SECRET = "wombat"


def encode(ending, rows):
    """The rows as the bytes of a file of that kind, with columns a, b and y."""
    kind = ending.removesuffix(".gz")
    if kind in ("csv", "tsv"):
        stream = io.StringIO(newline="")
        csv.writer(stream, delimiter="," if kind == "csv" else "\t").writerows([("a", "b", "y"), *rows])
        data = stream.getvalue().encode()
    elif kind in ("jsonl", "ndjson"):
        data = "".join(json.dumps(dict(zip("aby", row, strict=True))) + "\n" for row in rows).encode()
    else:
        sink = io.BytesIO()
        columns = zip("aby", zip(*rows, strict=True), strict=True)
        pyarrow.parquet.write_table(pyarrow.table({name: list(values) for name, values in columns}), sink)
        data = sink.getvalue()
    return gzip.compress(data) if ending.endswith(".gz") else data


@pytest.fixture
def file(tmp_path):
    def write(ending, data):
        path = tmp_path / f"rows.{ending}"
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        return path

    return write


@pytest.mark.parametrize("ending", ENDINGS)
def test_whether_there_is_a_column_is_known_without_reading_texts(file, ending):
    path = file(ending, encode(ending, [("one", "two", "yes")]))
    assert has_column(path, "y")
    assert not has_column(path, "z")


def test_a_file_without_rows_has_no_column(file):
    assert not has_column(file("csv", "a,b,y\n"), "y")


def test_a_file_that_is_not_there_has_no_answer(tmp_path):
    with pytest.raises(DataError, match="no file"):
        has_column(tmp_path / "none.csv", "y")


@pytest.mark.parametrize("ending", ENDINGS)
@settings(deadline=None, max_examples=30)
@given(rows=ROWS)
def test_every_kind_reads_back_what_was_written(tmp_path_factory, ending, rows):
    path = tmp_path_factory.mktemp("data") / f"rows.{ending}"
    path.write_bytes(encode(ending, rows))
    dataset = read_dataset(path, text_column="a", text_pair_column="b", label_column="y", attribute_columns=["y"])
    assert dataset.texts == tuple((a, b) for a, b, _ in rows)
    assert dataset.labels == dataset.attributes["y"] == tuple(y for *_, y in rows)


def test_texts_without_labels(file):
    dataset = read_dataset(file("csv", "a,y\nhello,1\n"), text_column="a")
    assert (dataset.texts, dataset.labels, dataset.segments) == ((("hello",),), None, 1)


def test_a_byte_order_mark_is_no_part_of_the_first_column(file):
    assert read_dataset(file("csv", b"\xef\xbb\xbfa\nhello\n"), text_column="a").texts == (("hello",),)


def test_an_empty_text_is_a_text(file):
    assert read_dataset(file("csv", 'a,y\n"",1\n'), text_column="a").texts == (("",),)


def test_a_field_larger_than_the_csv_modules_default_limit(file):
    assert len(read_dataset(file("csv", "a\n" + "x" * 200_000 + "\n"), text_column="a").texts[0][0]) == 200_000


@pytest.mark.parametrize(("value", "name"), [("3", "3"), ("true", "True"), ('"x"', "x"), ("0", "0")])
def test_labels_that_are_no_strings_get_their_usual_names(file, value, name):
    assert read_dataset(file("jsonl", f'{{"a": "t", "y": {value}}}\n'), text_column="a", label_column="y").labels == (
        name,
    )


@pytest.mark.parametrize(
    ("ending", "data", "copied"),
    [
        ("csv", "a,id\nx,\ny,007\n", ("", "007")),
        ("jsonl", '{"a": "x", "id": null}\n{"a": "y"}\n', ("", "")),
        ("jsonl", '{"a": "x", "id": 7}\n{"a": "y", "id": 0.5}\n', ("7", "0.5")),
        ("jsonl", '{"a": "x", "id": true}\n{"a": "y", "id": "true"}\n', ("true", "true")),
        ("jsonl", '{"a": "x", "id": ["é", 1]}\n{"a": "y", "id": {"b": null}}\n', ('["é", 1]', '{"b": null}')),
    ],
)
def test_a_copied_column_is_taken_as_it_is(file, ending, data, copied):
    path = file(ending, data)
    assert read_dataset(path, text_column="a", copied_columns=["id"]).attributes == {"id": copied}
    with pytest.raises(DataError, match=r"no column 'ids'.*Did you mean 'id'"):
        read_dataset(path, text_column="a", copied_columns=["ids"])


def test_a_copied_column_may_hold_what_json_has_no_form_for(file):
    day, sink = datetime.date(2024, 2, 29), io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"a": ["x", "y"], "on": [day, None], "all": [[day], []]}), sink)
    dataset = read_dataset(file("parquet", sink.getvalue()), text_column="a", copied_columns=["on", "all"])
    assert dataset.attributes == {"on": ("2024-02-29", ""), "all": ('["2024-02-29"]', "[]")}


def test_an_attribute_needs_a_value(file):
    with pytest.raises(DataError, match="row 1 has nothing in column 'who'"):
        read_dataset(file("csv", "a,who\nx,\n"), text_column="a", attribute_columns=["who"])


FAULTS = {
    "empty csv": ("csv", "", "no rows"),
    "header only": ("csv", "a,y\n", "no rows"),
    "empty jsonl": ("jsonl", "\n\n", "no rows"),
    "empty parquet": ("parquet", "", "no complete Parquet"),
    "no parquet": ("parquet", f"{SECRET}", "no complete Parquet"),
    "missing column": ("csv", "text,y\nx,1\n", r"no column 'a'; it has 2 columns\."),
    "one field too many": ("csv", f"a,y\nx,1\n{SECRET},1,2\n", "row 2 has 3 fields, the header has 2"),
    "one field too few": ("tsv", f"a\ty\n{SECRET}\n", "row 1 has 1 fields"),
    "one column": ("csv", f"{SECRET}\n{SECRET}\n", r"no column 'a'; it has 1 column\."),
    "no key": ("jsonl", f'{{"{SECRET}": "x", "y": 1}}\n', r"no column 'a'; it has 2 columns\."),
    "open quote": ("csv", f'a,y\n"{SECRET}', "quoting"),
    "doubled column": ("csv", "a,a\nx,y\n", "two columns of the same name"),
    "not utf-8": ("csv", f"a,y\n{SECRET}é,1\n".encode("latin-1"), "not UTF-8"),
    "no json": ("jsonl", f'{{"a": "x", "y": 1}}\n{{"a": {SECRET}\n', "row 2 is no JSON"),
    "half a surrogate pair": (
        "jsonl",
        f'{{"a": "x", "y": 1}}\n{{"a": "{SECRET} \\ud83d", "y": 1}}\n',
        "row 2 holds half of a surrogate pair",
    ),
    "deep json": ("jsonl", "[" * 100_000 + "\n", "row 1 is no JSON"),
    "endless number": ("jsonl", f'{{"a": {"9" * 5000}}}\n', "row 1 is no JSON"),
    "no object": ("jsonl", f'["{SECRET}"]\n', "row 1 is no JSON object"),
    "null text": ("jsonl", '{"a": null, "y": 1}\n', "row 1 has nothing in column 'a'"),
    "number as text": ("jsonl", '{"a": 5, "y": 1}\n', "row 1 has a value of type int in column 'a'"),
    "text absent later": ("jsonl", '{"a": "x", "y": 1}\n{"y": 1}\n', "row 2 has nothing in column 'a'"),
    "empty label": ("csv", f"a,y\n{SECRET},\n", "row 1 has nothing in column 'y'"),
    "list label": ("jsonl", '{"a": "x", "y": [1]}\n', "type list in column 'y'"),
    "torn gzip": ("csv.gz", gzip.compress(b"a,y\n" + bytes(range(65, 91)) * 500)[:-20], "no complete gzip"),
    "no gzip": ("csv.gz", f"a,y\n{SECRET},1\n", "no complete gzip"),
    "unknown kind": ("xlsx", "a", r"Known endings: \.csv, \.jsonl"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_named_and_texts_are_not(file, fault):
    ending, data, message = FAULTS[fault]
    with pytest.raises(DataError, match=message) as caught:
        read_dataset(file(ending, data), text_column="a", label_column="y")
    assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("fault", sorted(FAULTS.keys() - {"empty label", "list label"}))
def test_a_stream_names_the_same_faults(file, fault):
    ending, data, message = FAULTS[fault]
    with pytest.raises(DataError, match=message) as caught:
        len(TextFile(file(ending, data), "a"))
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_a_stream_is_what_a_dataset_holds_as_often_as_it_is_asked_for(file):
    path = file("csv", "a,b\nx,y\nü,\n")
    texts = TextFile(path, "a", "b")
    assert tuple(texts) == tuple(texts) == read_dataset(path, text_column="a", text_pair_column="b").texts
    assert len(texts) == 2
    assert next(iter(TextFile(file("jsonl", '{"a": "x"}\nno json'), "a"))) == ("x",), "row by row"


def test_a_missing_column_suggests_the_closest_and_no_other(file):
    with pytest.raises(DataError, match="Did you mean 'text' or 'text2'") as caught:
        read_dataset(file("csv", f"text,text2,{SECRET}\nx,1,2\n"), text_column="text1")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("text", [SECRET, f"Jane has {SECRET}", f"{SECRET} " * 20])
def test_a_file_without_header_line_does_not_print_its_first_row(file, text):
    with pytest.raises(DataError, match="the first row must hold the columns' names") as caught:
        read_dataset(file("csv", f"{text},{SECRET}1\n{text},{SECRET}0\n"), text_column="text", label_column="label")
    assert SECRET not in str(caught.value)
    assert "has 2 columns" in caught.value.message


@pytest.mark.parametrize(
    "text",
    [
        f"Jane Doe has {SECRET}",
        f"{SECRET}\n",
        SECRET * 100,
        f"{SECRET}/" * 2000,
        f"{SECRET} seen.csv",
        f"\u00a0{SECRET}",
        f"hub: {SECRET}",
        f"{SECRET} \x00",
        f"患者感染了{SECRET}",
        SECRET,
        f"{SECRET}/mild",
        f"{SECRET}.com",
    ],
    ids=range(12),
)
def test_a_text_in_the_place_of_a_path_is_not_printed(text):
    with pytest.raises(DataError, match=rf"given as a file's name \({len(text)} characters\) names no") as caught:
        read_dataset(text, text_column="a")
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert caught.value.remedy


@pytest.mark.parametrize(
    "path", ["ntoes.csv", "data/ntoes.jsonl.gz", "患者.csv", Path("notes"), Path("my notes.csv"), Path("n" * 300)]
)
def test_a_path_that_names_no_file_is_printed(path):
    with pytest.raises(DataError, match=f"There is no file '{path}'. Check the path"):
        read_dataset(path, text_column="a")


def test_what_names_no_file_and_may_be_a_hub_name_says_how_to_write_one():
    with pytest.raises(DataError, match="hub:OWNER/NAME:SPLIT"):
        read_dataset("stanfordnlp/sst2", text_column="a")


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(DataError, match="is a folder, not a file"):
        read_dataset(tmp_path, text_column="a")


# ---------------------------------------------------------------- the hub


class ClassLabel:
    names = ("negative", "positive")


class Table(list):
    def __init__(self, rows):
        super().__init__(rows)
        self.features = {"sentence": object(), "label": ClassLabel()}


@pytest.fixture
def hub(monkeypatch):
    """A stand-in for the package `datasets`: what it was asked for, and what it answers."""
    module = types.ModuleType("datasets")
    module.exceptions = types.SimpleNamespace(DatasetsError=type("DatasetsError", (Exception,), {}))
    module.calls = []

    def load_dataset(path, name, *, split):
        module.calls.append((path, name, split))
        if isinstance(module.answer, Exception):
            raise module.answer
        return module.answer

    module.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", module)
    monkeypatch.setattr("cutlayer.data.read.require", lambda extra: None)
    return module


@pytest.mark.parametrize(
    ("source", "call"),
    [
        ("hub:stanfordnlp/sst2:train", ("stanfordnlp/sst2", None, "train")),
        ("hub:nyu-mll/glue/mrpc:validation", ("nyu-mll/glue", "mrpc", "validation")),
    ],
)
def test_hub_data_sets(hub, source, call):
    hub.answer = Table([{"sentence": "x", "label": 1}, {"sentence": "y", "label": 0}])
    dataset = read_dataset(source, text_column="sentence", label_column="label")
    assert hub.calls == [call]
    assert dataset.texts == (("x",), ("y",))
    assert dataset.labels == ("positive", "negative")


def test_a_withheld_hub_label_is_a_missing_label(hub):
    hub.answer = Table([{"sentence": "x", "label": -1}])
    with pytest.raises(DataError, match="row 1 has nothing in column 'label'"):
        read_dataset("hub:stanfordnlp/sst2:test", text_column="sentence", label_column="label")
    assert read_dataset("hub:stanfordnlp/sst2:test", text_column="sentence").texts == (("x",),)


@pytest.mark.parametrize("error", [ConnectionError("offline"), FileNotFoundError("gone"), ValueError("no such split")])
def test_a_hub_that_cannot_answer(hub, error):
    hub.answer = error
    with pytest.raises(DataError, match=f"could not be loaded.*{error}.*or give a file"):
        read_dataset("hub:stanfordnlp/sst2:train", text_column="sentence")


@pytest.mark.parametrize("source", ["hub:sst2:train", "hub:stanfordnlp/sst2", "hub:a/b/c/d:train", "hub:"])
def test_hub_names_have_one_form(hub, source):
    with pytest.raises(DataError, match="names no hub data set"):
        read_dataset(source, text_column="sentence")


def test_without_the_extra(monkeypatch):
    installed = extras._installed
    monkeypatch.setattr(extras, "_installed", lambda name: None if name == "datasets" else installed(name))
    extras.require.cache_clear()
    with pytest.raises(MissingExtraError, match=r"pip install 'cutlayer\[datasets\]'"):
        read_dataset("hub:stanfordnlp/sst2:train", text_column="sentence")
