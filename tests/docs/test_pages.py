"""Documentation that can be wrong is compared with the program."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from cutlayer.attacks import ATTACKS
from cutlayer.cli.audit import OVER
from cutlayer.cli.reference import SPECS, command_page, commands, settings_page
from cutlayer.cli.settings import settings_of
from cutlayer.core import errors
from cutlayer.customer import Client, FinetuneResult, LanguageResult

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]
SETTINGS = (DOCS / "reference/settings.md").read_text()


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


# ---------------------------------------------------------------- attacks


def test_every_attack_is_described() -> None:
    told = set(re.findall(r"^\| `([a-z-]+)` \|", (DOCS / "reference/attacks.md").read_text(), re.MULTILINE))
    assert told == set(ATTACKS)


# ---------------------------------------------------------------- promises


def test_a_promise_is_told_for_what_has_noise() -> None:
    """Of rows, where noise is at the activations, and not of tokens; as `test_claims` has it of the claim itself."""
    page = (DOCS / "explanation/guarantees.md").read_text()
    (section,) = re.findall(r"^## d_χ-privacy of a token\n(.*?)^## ", page, re.MULTILINE | re.DOTALL)
    tokens, _, rows = section.partition("With `--place activations`")
    assert "`--place tokens`" in tokens
    assert re.search(r"for each row.*not\s+for tokens", rows, re.DOTALL)


# ---------------------------------------------------------------- the command line


def test_the_reference_is_what_the_program_says() -> None:
    written = (DOCS / "reference/cli.md").read_text()
    assert written == command_page(), "run: python -m cutlayer.cli.reference docs/reference"


def command_lines() -> Iterator[tuple[str, str]]:
    for path in PAGES:
        for block in blocks(path.read_text(), "console"):
            for line in block.replace("\\\n", " ").splitlines():
                for part in line.removeprefix("$ ").split("&&"):
                    if part.split()[:1] == ["cutlayer"]:
                        yield name_of(path), " ".join(part.split())


@pytest.mark.parametrize(("where", "line"), sorted(set(command_lines())))
def test_commands_in_the_docs_exist(where: str, line: str) -> None:
    words = shlex.split(line)
    if words[1:2] == ["--version"] or words[1:] == ["COMMAND", "--help"]:
        return
    found = [command for command in commands() if words[: len(command.name.split())] == command.name.split()]
    assert found, f"{where}: no such command: {line}"
    meant = max(found, key=lambda command: len(command.name))  # a group may do something by itself
    known = {name for parameter in meant.parameters for name in parameter.names}
    assert {word for word in words if word.startswith("--")} <= known | {"--help"}
    needed = {parameter.names[0] for parameter in meant.parameters if parameter.default == "required"}
    if "--config" in words:  # which gives the others
        return
    assert {name for name in needed if name.startswith("--")} <= set(words)


def test_every_command_stands_on_a_page_for_people() -> None:
    text = "\n".join(path.read_text() for path in PAGES if path != DOCS / "reference/cli.md")
    for command in commands():
        assert command.name in text, f"{command.name} is in no guide"


# ---------------------------------------------------------------- settings, errors, results


def test_the_settings_page_is_what_the_specs_say() -> None:
    assert settings_page(SETTINGS) == SETTINGS, "run: python -m cutlayer.cli.reference docs/reference"


@pytest.mark.parametrize("name", SPECS)
def test_every_setting_has_a_row(name: str) -> None:
    for setting in settings_of(SPECS[name]):
        assert f"\n| `{setting.key}` |" in SETTINGS, f"no table of docs/reference/settings.md has {name} {setting.key}"


def test_a_table_that_is_stale_is_found() -> None:
    assert settings_page(SETTINGS.replace("Epochs at most", "Some epochs")) == SETTINGS


def test_every_environment_variable_is_explained() -> None:
    source = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    for variable in set(re.findall(r"\bCUTLAYER_[A-Z_]+\b", source)):
        assert f"`{variable}`" in SETTINGS, f"{variable} is not on the settings page"


def test_every_error_has_its_exit_code_on_the_page() -> None:
    text = (DOCS / "reference/errors.md").read_text()
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.CutlayerError):
            row = next((line for line in text.splitlines() if f"`{kind.__name__}`" in line and line[0] == "|"), "")
            assert row.startswith(f"| {kind.exit_code} |"), f"{kind.__name__} {kind.exit_code}"
    codes = re.findall(r"^\| (\d+) \|", text, re.MULTILINE)
    assert len(codes) == len(set(codes)), "an exit code means one thing"
    assert str(OVER) in codes


def test_the_python_page_names_what_a_client_can_do_and_what_a_result_holds() -> None:
    text = (DOCS / "reference/python.md").read_text()
    methods = {name for name in vars(Client) if not name.startswith("_")}
    for name in methods | set(FinetuneResult.model_fields) | set(LanguageResult.model_fields):
        assert f"`{name}`" in text or f"`{name}(" in text, name


# ---------------------------------------------------------------- links and places


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_links_lead_somewhere(path: Path) -> None:
    prose = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\((?!https?://)([^)\s]+)\)", prose):
        file, _, anchor = target.partition("#")
        found = (path.parent / file).resolve() if file else path
        assert found.exists(), f"{name_of(path)} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", found.read_text(), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in slugs, f"{name_of(path)} links to {target}"


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r"- ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    others = {path.name.lower() for path in ROOT.glob("*.md") if path.name != "README.md"}  # docs/hooks.py adds these
    assert listed == others | {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}


def test_make_targets_in_the_readme_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"make ([a-z-]+)", (ROOT / "README.md").read_text()))
    assert named <= targets
    assert {"setup", "demo", "test", "test-all", "lint", "bench", "docs"} <= targets


def test_no_page_names_a_place_on_somebodys_machine() -> None:
    for path in PAGES:
        assert not re.search(r"/(home|Users|root|work)/\w", path.read_text()), name_of(path)
