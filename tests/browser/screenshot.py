"""The docs' pictures of a leak report, of invented texts and numbers: `python -m tests.browser.screenshot`."""

from __future__ import annotations

import tempfile
from pathlib import Path

from playwright.sync_api import FloatRect, Page

from cutlayer.reports import render
from tests.browser.chromium import chromium, opened
from tests.unit.reports.audits import full

PICTURES = Path(__file__).parents[2] / "docs" / "images"


def take(page: Page, folder: Path) -> list[Path]:
    """Takes the examples and the top of an opened report; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    examples, top = folder / "report-examples.png", folder / "report.png"
    page.set_viewport_size({"width": 1160, "height": 1210})
    page.evaluate("window.scrollTo(0, 0)")
    page.screenshot(path=top)
    first, last = (page.locator(which).bounding_box() for which in ("#examples", "#example-3"))
    assert first is not None
    assert last is not None
    left, width, height = first["x"] - 16, first["width"] + 32, last["y"] - first["y"] - 24
    clip: FloatRect = {"x": left, "y": first["y"] - 8, "width": width, "height": height}
    page.screenshot(path=examples, clip=clip, full_page=True)
    return [examples, top]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        path = Path(folder) / "report.html"
        path.write_bytes(render(full()).encode())
        with opened(browser, path, color_scheme="light") as seen:
            take(seen.page, PICTURES)


if __name__ == "__main__":
    main()
