"""Python in the README and the docs runs as it stands, against a vendor in a process of its own."""

from __future__ import annotations

import csv
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from cutlayer import vendor
from cutlayer.attacks import ATTACKS
from cutlayer.data import read_dataset, sample_path
from cutlayer.vendor.process import VendorProcess
from tests.docs.test_pages import PAGES, blocks, name_of
from tests.quick import slow_but
from tests.recipes.worlds import write_split
from tests.service.tiny import write_tiny_gpt2

SNIPPETS = {
    f"{name_of(path)}:{number}": (name_of(path), snippet)
    for path in PAGES
    for number, snippet in enumerate(blocks(path.read_text(), "python"))
}
SLOW = ("docs/how-to/researcher.md:", "docs/reference/python.md:3")
QUICK = [name for name in SNIPPETS if not name.startswith(SLOW)]
ROWS = 12


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    folder = tmp_path_factory.mktemp("vendor")
    decoder = write_tiny_gpt2(folder / "decoder")
    vendor.init(folder / "vendor", models=["starter", f"decoder={decoder}"], threads=1)
    folder = folder / "vendor"
    key = vendor.keys.create(folder, "reader")
    with VendorProcess(folder, environment={"OMP_NUM_THREADS": "1"}) as process:
        yield process.url, key


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that the snippets read, under every column name that they use; of them little is to be learnt."""
    monkeypatch.setattr("cutlayer.customer.defaults._MOST_EPOCHS", 2)
    monkeypatch.chdir(tmp_path)
    rows = read_dataset(sample_path("train"), text_column="text", label_column="label")
    labelled = list(zip(rows.texts, rows.labels or (), strict=True))
    for name, some in (("notes.csv", labelled[:ROWS]), ("held_out.csv", labelled[ROWS : 2 * ROWS])):
        with Path(name).open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(("text", "note", "ward"))
            table.writerows((text, text, label) for (text,), label in some)
    with Path("mail.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("body",), *rows.texts[:ROWS]])
    write_split(tmp_path / "data", "sst2", "dev", [(text,) for (text,) in rows.texts], ("text",))
    return tmp_path


def run(snippet: str, service: tuple[str, str]) -> None:
    url, key = service
    snippet = re.sub(r"https?://[\w.]+:8377", url, snippet).replace('api_key="..."', f'api_key="{key}"')
    module = types.ModuleType("snippet")  # settings that a snippet declares look for the module that they are in
    sys.modules["snippet"] = module
    exec(compile(snippet, "snippet", "exec"), module.__dict__)


@pytest.mark.usefixtures("starter_installed", "notes")
@pytest.mark.parametrize(("where", "snippet"), slow_but(QUICK, SNIPPETS.values(), ids=SNIPPETS))
def test_snippet(where: str, snippet: str, service: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTLAYER_API_KEY", service[1])
    if "Transcript.recorded" in snippet:
        run(
            "from cutlayer import Client\nfrom pathlib import Path\n"
            'Client("https://vendor.example:8377", api_key="...").finetune('
            '"notes.csv", label_column="ward", eta=80, out=Path("run"))',
            service,
        )
    run(snippet, service)
    if "ATTACKS.add" in snippet:
        assert "always-the" in ATTACKS


def test_the_whole_job_is_under_fifteen_lines() -> None:
    readme = next(path for path in PAGES if path.name == "README.md").read_text()
    (snippet,) = blocks(readme, "python")
    assert len([line for line in snippet.splitlines() if line.strip()]) < 15
