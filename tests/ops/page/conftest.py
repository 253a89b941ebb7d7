"""Chromium, and a page that objects to everything a status page must not do."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from sluice.health.endpoint import Health, HealthServer
from sluice.telemetry.metrics import Metrics
from tests.ops.page import documents
from tests.ops.page.documents import Document, healthy
from tools.local.binaries import LocalServerError
from tools.local.browser import ARGUMENTS, browser

PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One for a module and no longer: while Playwright's loop runs in this thread, `asyncio.run`
    cannot.
    """
    try:
        found = browser()
    except LocalServerError as failure:
        pytest.skip(str(failure))
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path=found.program, args=list(ARGUMENTS), env={**os.environ, **found.environment}
        )
        yield launched
        launched.close()


@dataclass
class Served:
    """The real server, with what its /status answers with; `failure` is raised instead while it is
    set.
    """

    document: Document = field(default_factory=healthy)
    failure: Exception | None = None
    address: str = ""

    def status(self) -> dict[str, Any]:
        if self.failure is not None:
            raise self.failure
        return self.document


@pytest.fixture
def served() -> Iterator[Served]:
    answering = Served()
    metrics = Metrics("shop")
    server = HealthServer(
        "127.0.0.1:0",
        metrics=metrics,
        health=Health(metrics),
        status=answering.status,
        history=lambda names: documents.history(list(names)),
    )
    answering.address = server.address
    yield answering
    server.close()


Opener = Callable[..., Page]


def clocked(page: Page) -> None:
    """The page's time can be moved on: nobody waits for its next question."""
    page.clock.install()


def next_update(page: Page) -> None:
    """Time goes on until the page has asked again."""
    page.clock.run_for(5_100)


@pytest.fixture
def look(chromium: Browser) -> Iterator[Opener]:
    """Opens the page at an address. At the end it must have asked nobody else, and the browser must
    have found nothing to complain of.
    """
    contexts: list[BrowserContext] = []
    asked: list[str] = []
    complaints: list[str] = []
    addresses: list[str] = []

    def opened(
        address: str,
        *,
        expect_failures: bool = False,
        before: Callable[[Page], None] = lambda page: None,
        **options: Any,
    ) -> Page:
        context = chromium.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        contexts.append(context)
        addresses.append(f"http://{address}/")
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        if not expect_failures:
            page.on("console", lambda message: complaints.append(message.text))
        before(page)
        page.goto(f"http://{address}/")
        expect(page.locator("#verdict")).not_to_have_text("Asking…")
        return page

    yield opened
    for context in contexts:
        context.close()
    strangers = [url for url in asked if not url.startswith(("data:", *addresses))]
    assert not strangers, "the page asked somebody else"
    assert not complaints
