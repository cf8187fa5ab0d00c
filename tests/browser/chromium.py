"""A headless Chromium that asks nobody for anything, and pages in it that remember what they asked for."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--no-sandbox",  # as root in a container there is none
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--no-first-run",
)


def program() -> str:
    """Where it is; skips the test where there is none."""
    for name in _NAMES:
        if found := shutil.which(name):
            return found
    pytest.skip("no Chromium is installed: apt-get install chromium")


@contextmanager
def chromium() -> Iterator[Browser]:
    path = program()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(_FLAGS))
        yield browser
        browser.close()


@dataclass
class Opened:
    """A page and what happened on it."""

    page: Page
    requests: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)


def eventually(page: Page, condition: str, *, seconds: float = 5) -> None:
    """Waits until a condition holds. Playwright's own way is `eval`, which a report's policy forbids."""
    last = time.monotonic() + seconds
    while not page.evaluate(condition):
        assert time.monotonic() < last, f"never: {condition}"
        page.wait_for_timeout(20)


@contextmanager
def opened(browser: Browser, path: Path, **settings: Any) -> Iterator[Opened]:
    """Opens a report from disk and waits until its plots are drawn; scripts may be turned off.

    Args:
        browser: Where.
        path: The report.
        **settings: Of the browser's context: `viewport`, `color_scheme`, `java_script_enabled`.
    """
    context = browser.new_context(**settings)
    seen = Opened(context.new_page())
    seen.page.on("request", lambda request: seen.requests.append(request.url))
    seen.page.on("console", lambda message: seen.messages.append(message.text))
    seen.page.on("pageerror", lambda error: seen.messages.append(str(error)))
    seen.page.on("dialog", lambda dialog: (seen.messages.append(dialog.message), dialog.dismiss()))
    seen.page.goto(path.as_uri())
    if settings.get("java_script_enabled", True) and seen.page.locator("#figures").count():
        seen.page.wait_for_selector("html[data-plots=drawn]", state="attached", timeout=20_000)
    try:
        yield seen
    finally:
        context.close()
