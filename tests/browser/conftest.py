"""A real browser for the tests of the console: one per worker, in a separate thread.

Playwright's synchronous API occupies the event loop of its thread, and other tests of the worker need theirs. So these
tests, and all code that touches a page, run in the browser's thread.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import pytest
from playwright.sync_api import Browser, Playwright, sync_playwright

from browser.browser_kit import Visits

CHROMIUM = "/usr/bin/chromium"
INSTALL = "apt-get install --yes --no-install-recommends chromium"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

_thread = ThreadPoolExecutor(1, thread_name_prefix="browser")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool:
    """Only for the tests in this folder: pytest calls no other conftest."""
    names = pyfuncitem._fixtureinfo.argnames
    _thread.submit(pyfuncitem.obj, **{name: pyfuncitem.funcargs[name] for name in names}).result()
    return True


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    if not os.access(CHROMIUM, os.X_OK):
        pytest.skip(f"there is no {CHROMIUM}: as root, {INSTALL}")

    def start() -> tuple[Playwright, Browser]:
        # the browser runs without sanitizers
        without = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        with mock.patch.dict(os.environ, without, clear=True):
            playwright = sync_playwright().start()
            return playwright, playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS, env=without)

    playwright, browser = _thread.submit(start).result()
    yield browser
    _thread.submit(browser.close).result()
    _thread.submit(playwright.stop).result()


@pytest.fixture
def visits(chromium: Browser) -> Iterator[Visits]:
    """Opens pages; fails the test if one of the pages reported an error."""
    made = Visits(chromium)
    yield made
    _thread.submit(made.close).result()


@pytest.fixture(scope="session", autouse=True)
def end_of_thread() -> Iterator[None]:
    yield
    _thread.shutdown()
