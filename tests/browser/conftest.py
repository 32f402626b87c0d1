from __future__ import annotations

import os
import shutil

import pytest

from tests.browser.viewer import Viewer

NAMES = ("chromium", "chromium-browser", "google-chrome")
VARIABLE = "DYNAMICS_BROWSER"


# Of the package, not the session: while it runs, no other test in its process can run an event loop.
@pytest.fixture(scope="package")
def browser():
    found = os.environ.get(VARIABLE) or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed, and {VARIABLE} names none")
    playwright = pytest.importorskip("playwright.sync_api", reason="no Playwright to drive a browser with")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(
            executable_path=found, args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        )
        yield started
        started.close()


@pytest.fixture(scope="module")
def module_view(browser):
    """Open pages that several tests of a module look at."""
    yield from _opened(browser)


@pytest.fixture
def view(browser):
    """Open pages; nothing may go wrong on any of them while the test looks."""
    yield from _opened(browser)


def _opened(browser):
    viewers = []

    def open_page(path, width=1200, height=900):
        context = browser.new_context(viewport={"width": width, "height": height})
        context.set_default_timeout(60_000)
        viewers.append(Viewer(context, path))
        return viewers[-1]

    yield open_page
    for viewer in viewers:
        viewer.page.context.close()
    assert [problem for viewer in viewers for problem in viewer.problems] == []
