"""A real headless Chromium for the tests in this folder, and a place to serve an app for it.

Every page is watched: a request that leaves this machine is aborted and recorded, and a test ends in
failure if its page made one, logged a console error or threw.
"""

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read when gradio is imported

import gradio as gr
import pytest
from playwright.sync_api import sync_playwright

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
LOCAL = ("127.0.0.1", "localhost")


@dataclass
class Watch:
    """What a page did that it should not: requests to elsewhere, console errors, exceptions."""

    abroad: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def route(self, route) -> None:
        if urlsplit(route.request.url).hostname in LOCAL:
            route.continue_()
        else:
            self.abroad.append(route.request.url)
            route.abort()

    def attend(self, page) -> None:
        page.on("console", lambda message: message.type == "error" and self.errors.append(message.text))
        page.on("pageerror", lambda error: self.errors.append(str(error)))


@pytest.fixture(scope="session")
def serve() -> Iterator[Callable[[gr.Blocks], str]]:
    """Serve Blocks on a free local port from a thread, and return the address."""
    opened: list[gr.Blocks] = []

    def start(blocks: gr.Blocks, **kwargs) -> str:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        options = {"ssr_mode": False, "quiet": True, "footer_links": [], **kwargs}
        blocks.launch(server_name="127.0.0.1", server_port=port, prevent_thread_lock=True, **options)
        opened.append(blocks)
        return f"http://127.0.0.1:{port}/"

    yield start
    for blocks in opened:
        blocks.close(verbose=False)


@pytest.fixture(scope="session")
def chromium(serve) -> Iterator:
    """The browser: $CHROMIUM, else the system's, else Playwright's own."""
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def watch() -> Watch:
    """What the test's page did; a test that provokes an error on purpose clears it here."""
    return Watch()


@contextmanager
def visitor(chromium, watch) -> Iterator:
    """A fresh page in a context of its own, English, 1366 x 900, watched."""
    context = chromium.new_context(viewport={"width": 1366, "height": 900}, locale="en-US")
    context.set_default_timeout(15_000)
    context.route("**/*", watch.route)
    page = context.new_page()
    watch.attend(page)
    yield page
    context.close()


@pytest.fixture
def page(chromium, watch) -> Iterator:
    """A visitor's page; the test fails if it, or another visitor's, asked for something elsewhere or logged errors."""
    with visitor(chromium, watch) as page:
        yield page
    assert watch.abroad == [], "the page asked other machines for something"
    assert watch.errors == [], "the page logged errors"


@pytest.fixture
def other(chromium, watch) -> Iterator:
    """A second visitor, in a context of its own; use it beside `page`."""
    with visitor(chromium, watch) as page:
        yield page
