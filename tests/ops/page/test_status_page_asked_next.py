"""What an operator asks next is on the status page: since when, what is waited for, what failed, what was
done to a table, how the other pipelines are.
"""

import re
from datetime import datetime, time, timedelta

import pytest
from playwright.sync_api import Page, expect

from tests.ops.page import documents
from tests.ops.page.conftest import PHONE, Opener, Served, clocked, next_update
from tests.ops.page.shown import shows_all, text
from tests.support.extent import slow


def points(page: Page, selector: str) -> list[list[tuple[float, float]]]:
    """The runs of a curve: each a list of places."""
    drawn = page.get_attribute(selector, "d") or ""
    runs = []
    for run in filter(None, drawn.split("M")):
        start, *rest = re.findall(r"[\d.]+(?: [\d.]+)?", run)
        x, y = map(float, start.split())
        places = [tuple(map(float, one.split())) for one in rest if " " in one]
        runs.append([(x + 1.5, y), *((float(place[0]), float(place[1])) for place in places)])
    return runs


@slow
def test_the_past_is_drawn_to_scale_with_gaps_where_nothing_is_known(served: Served, look: Opener) -> None:
    page = look(served.address)
    expect(page.locator('#past [data-past="lag_seconds"] svg')).to_be_visible()
    before, after = points(page, '#past [data-past="lag_seconds"] path')
    lags = documents.history([])["pipeline"]["lag_seconds"]
    peak = max(lag for lag in lags if lag is not None)
    assert [x for x, _ in (*before, *after)] == [(60 - 23 + at) * 4 + 2 for at in range(23) if at not in (9, 10)]
    assert [y for _, y in (*before, *after)] == pytest.approx(
        [50 - lag / peak * 48 for lag in lags if lag is not None], abs=0.1
    )
    label = page.get_attribute('#past [data-past="lag_seconds"] svg', "aria-label") or ""
    assert "now 3.1 s, at most 16 s" in label, label
    assert "not known in 2 of 23 steps" in label
    said = r"Each step is 2 min 0 s\. This process remembers since (\d\d:\d\d:\d\d) UTC"
    shown = re.search(said, text(page, "#past-since"))
    assert shown is not None
    taken = datetime.fromisoformat(served.document["taken_at"])
    since = datetime.combine(taken.date(), time.fromisoformat(shown[1]), taken.tzinfo)
    assert abs((taken - since) % timedelta(days=1) - timedelta(minutes=46)) < timedelta(minutes=1)


@slow
def test_a_table_shows_its_own_past_and_its_maintenance_with_what_it_cost(served: Served, look: Opener) -> None:
    served.document = documents.maintained()
    page = look(served.address)
    assert page.is_hidden("#table-section")
    page.click("#rows button:has-text('public.orders')")
    expect(page.locator("#table-past figure")).to_have_count(3)
    assert page.evaluate("document.activeElement.id") == "table-section"
    assert text(page, "#table-name") == "public.orders"
    lines = [one.inner_text() for one in page.query_selector_all("#maintenance li")]
    assert lines[0] == "fails: vacuum: StoreRefused: AccessDenied"
    assert lines[1] == "checkpoint at 2026-01-01T00:02Z took 0.4 s: no files changed"
    joined = "20 files removed (50.0 MiB), 1 file added (40.0 MiB)"
    assert lines[2] == f"join at 2026-01-01T00:00Z took 1.5 s: {joined}"
    assert lines[3] == "vacuum at 2025-12-31T23:00Z took 1 min 15 s: files not counted"
    assert lines[4] == "last vacuum at 2026-01-01T00:00Z"
    label = page.get_attribute('#table-past [data-past="versions"] svg', "aria-label") or ""
    assert label.startswith("Table public.orders, commits in steps of 2 min 0 s, remembered since ")
    page.click("#table-close")
    assert page.is_hidden("#table-section")
    served.document["tables"][0]["maintenance"].update(runs={}, failing="", vacuumed_version=-1)
    page = look(served.address)
    page.click("#rows button:has-text('public.orders')")
    assert text(page, "#no-maintenance") == "Nothing was done yet.", "seen for the first time is not vacuumed"


@slow
def test_the_past_is_asked_for_the_tables_on_the_page_and_not_with_every_status(served: Served, look: Opener) -> None:
    served.document = documents.crowd(300)
    asked: list[str] = []

    def listen(page: Page) -> None:
        clocked(page)
        page.on("request", lambda request: asked.append(request.url) if "/history" in request.url else None)

    page = look(served.address, before=listen)
    expect(page.locator("#past figure").first).to_be_visible()
    assert [url.count("table=") for url in asked] == [100]
    for _ in range(3):
        next_update(page)
    page.wait_for_load_state("networkidle")
    assert len(asked) == 1
    page.fill("#filter", "tenant_00299")
    page.click("#rows button")
    next_update(page)
    expect(page.locator("#table-past figure")).to_have_count(3)
    assert asked[-1].endswith("/history?table=public.tenant_00299")


@slow
def test_without_a_past_the_page_says_so_and_shows_everything_else(served: Served, look: Opener) -> None:
    served.document = documents.troubled()
    page = look(
        served.address, expect_failures=True, before=lambda page: page.route("**/history*", lambda route: route.abort())
    )
    page.wait_for_load_state("networkidle")
    assert text(page, "#past-since") == "Not known yet."
    assert page.is_hidden("#banner")
    shows_all(page, served.document)


@slow
def test_waits_are_in_words_with_their_reason_and_their_next_try(served: Served, look: Opener) -> None:
    served.document = documents.waiting()
    page = look(served.address)
    assert [one.inner_text() for one in page.query_selector_all("#waits li")] == [
        "The new replication slot, for 11 min 38 s: older transactions to end: process 12 (psql), open for 700 s",
        "Snapshots of locked tables, for 1 min 1 s: locks of other sessions on public.orders; tried again in 4.2 s",
        "The connection to the source, for 2.0 s: the server closed the connection; tried again now",
    ]
    served.document = documents.healthy()
    assert look(served.address).is_hidden("#waits-section")


def test_errors_are_in_full_with_a_link_to_their_runbook_where_it_is_served(served: Served, look: Opener) -> None:
    served.document = documents.troubled()
    page = look(served.address)
    first, second = page.query_selector_all("#errors li")
    assert first.inner_text().startswith("StoreUnavailable, spool, 12 times, first 2 h 0 min ago, last 30 s ago")
    assert "Its text is not shown" in second.inner_text(), "a library's message may quote a row"
    links = page.eval_on_selector_all("#errors a", "nodes => nodes.map(node => node.href)")
    assert links == ["https://wiki.example.com/sluice/SluiceErrors.md"] * 2
    served.document["process"]["runbook_url"] = ""
    page = look(served.address)
    assert page.query_selector("#errors a") is None
    assert "docs/runbooks/SluiceErrors.md" in text(page, "#errors")


def test_other_pipelines_are_links_and_an_address_that_is_none_is_text(served: Served, look: Opener) -> None:
    served.document = documents.troubled()
    served.document["process"]["neighbours"].append({"name": "x", "url": "javascript:alert(1)", "state": "lost"})
    page = look(served.address, **PHONE)
    links = page.eval_on_selector_all("#neighbours a", "nodes => nodes.map(node => [node.textContent, node.href])")
    assert links == [["billing", "http://127.0.0.1:9189/"], ["crm", "http://127.0.0.1:9190/"]]
    assert text(page, "#neighbours li:last-child") == "x: lost"
    assert page.evaluate("document.documentElement.scrollWidth") == 360
