"""A leak report in a real browser: what is drawn, what is asked for, what fits, what can be read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page

from cutlayer.reports import AuditReport, render
from cutlayer.reports.page.plots import plots
from tests.browser import screenshot
from tests.browser.chromium import Opened, chromium, eventually, opened
from tests.unit.reports.audits import empty, example, finding, full, strongest

WORDS_WIDTH = "document.querySelector('#plot-words .main-svg').clientWidth"
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 360, "height": 740}

ATTACK = "<script>window.stolen = 1</script><img src='https://example.org/x.png' onerror='window.stolen = 2'>"


def hostile() -> AuditReport:
    """What a text, a column's name and a plug-in's title may hold."""
    long_token, long_text = "x" * 200, " ".join(f"word{number}" for number in range(1200))
    titled = finding(title=f"{ATTACK} {long_token}", name=long_token)
    return full(
        examples=(
            example(f"{ATTACK} \u202ereversed {long_token}", ATTACK, f"{ATTACK} {long_token}", why=ATTACK),
            example(long_text, long_text, long_text),
            example("שלום עולם 😀", "שלום אדם 🙂", "שלום עולם 🙂"),
            example("x" * 10_000, "y" * 10_000, "x" * 10_000),
        ),
        verdict=(ATTACK, long_token),
        attacks=(titled, *full().attacks[1:]),
        strongest=(strongest(titled, f"{ATTACK} {long_token}"), *full().strongest[1:]),
        repeat=(f"cutlayer audit --text-column '{ATTACK}' {long_token}",),
    )


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reports")


def written(folder: Path, name: str, report: AuditReport) -> Path:
    path = folder / f"{name}.html"
    path.write_bytes(render(report).encode())
    return path


@pytest.fixture(scope="module")
def shared_report(browser: Browser, folder: Path) -> Iterator[Opened]:
    with opened(browser, written(folder, "full", full()), viewport=WIDE) as seen:
        yield seen


@pytest.fixture(scope="module")
def shared_hostile(browser: Browser, folder: Path) -> Iterator[Opened]:
    with opened(browser, written(folder, "hostile", hostile()), viewport=WIDE) as seen:
        yield seen


@pytest.fixture
def report(shared_report: Opened) -> Iterator[Opened]:
    """Opened once, for opening takes a second: plotly is large. Each test finds it as it was."""
    yield shared_report
    restore(shared_report.page)


@pytest.fixture
def quoting(shared_hostile: Opened) -> Iterator[Opened]:
    """A report that quotes what would like to be run."""
    yield shared_hostile
    restore(shared_hostile.page)


def restore(page: Page) -> None:
    page.emulate_media(media="screen", color_scheme="light")
    page.set_viewport_size(WIDE)
    page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = false; })")


def overflow(page: Page) -> int:
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


# ---------------------------------------------------------------- drawn, and nothing asked for


@pytest.mark.parametrize("name", ["strongest", "words", "frontier", "classes", "students"])
def test_a_plot_has_as_many_marks_as_there_are_numbers(report: Opened, name: str) -> None:
    plot = plots(full())[name]
    place = report.page.locator(f"#plot-{name}.js-plotly-plot")
    bars = sum(len(trace["x"]) for trace in plot.data if trace["type"] == "bar")
    marked = [trace for trace in plot.data if trace["type"] == "scatter" and "markers" in trace["mode"]]
    lines = [trace for trace in plot.data if trace["type"] == "scatter" and "lines" in trace["mode"]]
    assert place.locator(".barlayer .point path").count() == bars
    assert place.locator(".scatterlayer path.point").count() == sum(len(trace["x"]) for trace in marked)
    assert place.locator(".scatterlayer path.js-line").count() == len(lines)
    assert place.locator("path.xerror, path.yerror").count() >= bars + len(marked)
    assert place.locator("p").count() == 0


def test_labels_of_the_frontier_are_its_etas(report: Opened) -> None:
    labels = report.page.locator("#plot-frontier .textpoint").all_text_contents()
    assert sorted(labels) == ["eta 100", "eta 40", "eta 60", "eta 70", "eta 80", "eta ∞"]


@pytest.mark.parametrize("which", ["report", "quoting"])
def test_nothing_is_asked_for_and_nothing_complains(request: pytest.FixtureRequest, which: str) -> None:
    seen = request.getfixturevalue(which)
    assert seen.requests == [seen.page.url]
    assert seen.messages == []


def test_an_empty_report_opens(browser: Browser, folder: Path) -> None:
    with opened(browser, written(folder, "empty", empty()), viewport=NARROW) as seen:
        assert seen.page.get_by_text("There is no guarantee.").is_visible()
        assert overflow(seen.page) == 0
        assert (len(seen.requests), seen.messages) == (1, [])


def test_a_script_that_gets_in_is_not_run_and_loads_nothing(browser: Browser, folder: Path) -> None:
    """Were something not escaped, the page's policy would still stop it."""
    path = written(folder, "broken", empty())
    path.write_text(path.read_text().replace("</main>", f"{ATTACK}</main>"))
    with opened(browser, path) as seen:
        assert seen.page.locator("main > script").count() == 1
        eventually(seen.page, "document.querySelector('main > img').complete")
        assert seen.page.evaluate("window.stolen") is None
        assert sum("Content Security Policy" in message for message in seen.messages) >= 2


def test_what_a_text_holds_is_text(quoting: Opened) -> None:
    page = quoting.page
    assert page.evaluate("window.stolen") is None
    assert page.locator("main script, main img, main a[href^=http]").count() == 0
    assert page.locator("#leaked .lead").first.inner_text() == ATTACK
    assert page.locator("#examples .text").first.inner_text().startswith(f"{ATTACK} ⟨U+202E⟩reversed")
    assert "<script>window.stolen" in "".join(page.locator("#plot-words .annotation-text").all_text_contents())


def test_without_scripts_the_numbers_are_there(browser: Browser, folder: Path) -> None:
    with opened(browser, written(folder, "still", full()), java_script_enabled=False) as seen:
        assert seen.page.get_by_text("The plot needs JavaScript.").count() == 5
        seen.page.locator("#caption-strongest summary").click()
        assert seen.page.get_by_text("46.2 % (44.1 to 48.4) of 14,200, chance 5.8 %.").first.is_visible()


# ---------------------------------------------------------------- fits


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["1280", "360"])
@pytest.mark.parametrize("which", ["report", "quoting"])
def test_the_page_is_no_wider_than_the_window(request: pytest.FixtureRequest, which: str, size: dict[str, int]) -> None:
    page = request.getfixturevalue(which).page
    page.set_viewport_size(size)
    eventually(page, f"{WORDS_WIDTH} < {size['width']}")
    assert overflow(page) == 0
    page.evaluate("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
    assert overflow(page) == 0


def test_page_two_has_a_sheet_of_its_own(report: Opened) -> None:
    page = report.page
    style = "(which) => getComputedStyle(document.querySelector(which))"
    assert page.evaluate(f"({style})('#page-two').breakBefore") == "auto"
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate(f"({style})('#page-two').breakBefore") == "page"
    assert page.evaluate(f"({style})('.contents').display") == "none"
    assert page.evaluate(f"({style})('body').backgroundColor") == "rgb(255, 255, 255)"
    eventually(page, f"{WORDS_WIDTH} === 640")
    assert page.locator("details.attack:not([open])").count() == 0
    page.emulate_media(media="screen")
    eventually(page, f"{WORDS_WIDTH} > 640")
    assert page.locator("details.attack[open]").count() == 0


# ---------------------------------------------------------------- can be read

CONTRASTS = """() => {
  const parts = (colour) => {
    const found = colour.match(/[\\d.]+/g).map(Number);
    return found.length === 3 ? [...found, 1] : found;
  };
  const light = (colour) => {
    const linear = (x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = parts(colour).map((x) => linear(x / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (parts(colour)[3] > 0) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || element.closest("script, style, .skip, .hoverlayer")) continue;
    const style = getComputedStyle(element);
    const ink = element.closest("svg") ? style.fill : style.color;
    const [low, high] = [light(ink), light(behind(element))].sort((a, b) => a - b);
    found.push([(high + 0.05) / (low + 0.05), element.className.baseVal ?? element.className, element.tagName]);
  }
  return found;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_stands_out(report: Opened, scheme: Literal["light", "dark"]) -> None:
    report.page.emulate_media(color_scheme=scheme)
    found = report.page.evaluate(CONTRASTS)
    assert len(found) > 500
    assert {tag for _, _, tag in found} >= {"P", "TD", "TH", "A", "MARK", "SUMMARY", "text"}
    assert [each for each in found if each[0] < 4.5] == []


def test_lines_of_plots_take_the_colour_of_the_scheme(report: Opened) -> None:
    stroke = "getComputedStyle(document.querySelector('#plot-strongest path.xerror')).stroke"
    light = report.page.evaluate(stroke)
    report.page.emulate_media(color_scheme="dark")
    assert report.page.evaluate(stroke) != light


def test_every_link_of_the_contents_leads_to_a_heading(report: Opened) -> None:
    for link in report.page.locator(".contents a").all():
        target = link.get_attribute("href") or ""
        assert report.page.locator(target).locator("h2, h3").first.is_visible()


def test_a_link_to_an_attack_opens_it(report: Opened) -> None:
    link = report.page.locator("#leaked .answer a").first
    target = link.get_attribute("href") or ""
    assert not report.page.locator(target).is_visible()
    link.click()
    report.page.locator(target).wait_for(state="visible", timeout=2_000)


def test_the_pictures_of_the_docs_are_small(report: Opened, tmp_path: Path) -> None:
    taken = screenshot.take(report.page, tmp_path)
    assert [path.name for path in taken] == sorted(path.name for path in screenshot.PICTURES.glob("report*.png"))
    assert all(path.stat().st_size <= 300 * 1024 for path in taken)
