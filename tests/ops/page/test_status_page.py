"""The status page in a real browser: it shows what /status says, in every state, to everybody, and
runs nothing but itself.
"""

import re
import time
import urllib.request
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import Page, expect

from sluice.errors import StoreUnavailable
from sluice.health import status_page
from tests.ops.page import documents
from tests.ops.page.conftest import PHONE, Opener, Served, clocked, next_update
from tests.ops.page.shown import shows_all, text
from tests.support.extent import FULL, cases, slow

STATES = {
    "healthy": (documents.healthy, "Healthy", "ok"),
    "snapshot": (documents.snapshots, "Healthy, 2 snapshots under way", "busy"),
    "stale": (documents.stale, "Degraded: table.stale, public.stock", "bad"),
    "lost": (documents.lost, "Lost: slot.lost, slot sluice_shop", "bad"),
    "scarce": (documents.scarce, "Degraded: slot.headroom, slot sluice_shop", "bad"),
    "applier dead": (documents.applier_dead, "Degraded: applier.dead, the applier", "bad"),
    "new": (documents.new, "New", "busy"),
}


def level(page: Page) -> str:
    return str(page.evaluate("document.documentElement.dataset.level"))


@pytest.mark.parametrize("state", cases(STATES, quick=["healthy", "lost"]))
def test_the_page_shows_what_status_says(state: str, served: Served, look: Opener) -> None:
    make, verdict, wanted = STATES[state]
    served.document = make()
    page = look(served.address)
    assert (page.inner_text("#verdict"), level(page)) == (verdict, wanted)
    assert page.title() == f"{verdict} · shop"
    assert page.is_hidden("#banner")
    shows_all(page, served.document)


BOXES = ("PostgreSQL", "Ingest", "Spool", "Applier", "Lake")


def boxes(page: Page) -> dict[str, str]:
    levels = page.eval_on_selector_all(
        "#picture .edge", "nodes => nodes.map(node => node.getAttribute('class').split(' ')[1])"
    )
    return dict(zip(BOXES, levels, strict=True))


def test_each_part_has_the_colour_of_its_worst_problem_and_no_other(served: Served, look: Opener) -> None:
    wanted = {
        documents.healthy: {},
        documents.applier_dead: {"Applier": "bad"},
        documents.stale: {"Lake": "bad"},
        documents.lost: {"PostgreSQL": "bad"},
        documents.scarce: {"PostgreSQL": "bad"},
    }
    for make in wanted if FULL else (documents.applier_dead, documents.stale):
        served.document = make()
        assert boxes(look(served.address)) == {**dict.fromkeys(BOXES, "ok"), **wanted[make]}, make.__name__


@slow
def test_while_tables_are_read_the_lake_is_not_said_to_have_nothing(served: Served, look: Opener) -> None:
    served.document = documents.snapshots()
    served.document["wal"]["stages"][-1] = documents.stage("applied", None, None)
    picture = look(served.address).inner_text("#picture")
    assert "nothing yet" not in picture
    assert "snapshot under way" in picture


@slow
def test_a_snapshot_is_shown_with_its_share_and_the_time_left(served: Served, look: Opener) -> None:
    served.document = documents.snapshots()
    page = look(served.address)
    assert "3 min 12 s left" in text(page, "#snapshots")
    lines = [node.inner_text() for node in page.query_selector_all("#snapshot-list li")]
    assert "41,200,000 of about 98,000,000 rows" in lines[0]
    assert "3 min 3 s left" in lines[0]
    assert "waits" in lines[1]
    assert page.get_attribute("#snapshot-list [role=progressbar]", "aria-valuenow") == "42"


@slow
def test_throughput_is_drawn_to_scale_and_stated_in_words(served: Served, look: Opener) -> None:
    page = look(served.address)
    minutes = served.document["process"]["throughput"]
    rates = [minute["rows"] / minute["seconds"] for minute in minutes]
    heights = page.eval_on_selector_all(
        '[data-plot="rows"] rect', "nodes => nodes.map(node => Number(node.getAttribute('height')))"
    )
    assert len(heights) == documents.MINUTES
    assert heights == pytest.approx([rate / max(rates) * 50 for rate in rates], abs=0.1)
    label = page.get_attribute('[data-plot="rows"] svg', "aria-label") or ""
    assert f"at most {max(rates):,.0f}/s" in label


def test_old_data_is_called_old_by_the_servers_clock_whatever_the_browsers_says(served: Served, look: Opener) -> None:
    served.document = documents.healthy(taken_at=datetime.now(UTC) - timedelta(seconds=95))
    # The browser's clock stands two minutes behind: by it, the data would be of the future.
    page = look(
        served.address,
        before=lambda page: page.add_init_script("const real = Date.now; Date.now = () => real() - 120000;"),
    )
    assert "Old data" in text(page, "#banner")
    assert "1 min 3" in text(page, "#banner")
    assert (level(page), page.title()) == ("warn", "Old data, was: Healthy · shop")
    expect(page.locator("#announce")).to_contain_text("Old data")


def test_a_failing_status_is_shown_with_its_reason_and_the_page_recovers(served: Served, look: Opener) -> None:
    page = look(served.address, expect_failures=True, before=clocked)
    served.failure = StoreUnavailable("the object store does not answer")
    next_update(page)
    page.wait_for_selector("#banner:not([hidden])")
    assert "StoreUnavailable: the object store does not answer" in text(page, "#banner")
    assert page.inner_text("#verdict") == "Was: Healthy"
    assert "Old data" in page.title()
    served.failure = None
    next_update(page)
    page.wait_for_selector("#banner", state="hidden")
    assert page.inner_text("#verdict") == "Healthy"


@slow
def test_a_server_that_is_gone_leaves_old_data_with_its_age(served: Served, look: Opener) -> None:
    page = look(served.address, expect_failures=True, before=clocked)
    page.route("**/status", lambda route: route.abort("connectionrefused"))
    next_update(page)
    page.wait_for_selector("#banner:not([hidden])")
    assert "connection refused or lost" in text(page, "#banner")
    icon = page.get_attribute("#icon", "href") or ""
    assert "c98600" in icon, "the icon has the colour of a warning"


@slow
def test_three_thousand_tables_are_filtered_and_sorted_at_once(served: Served, look: Opener) -> None:
    served.document = documents.crowd(3000)
    page = look(served.address)
    assert "Showing 100 of 3,000" in text(page, "#shown")
    assert page.inner_text("#rows tr:first-child th bdi") == "public.tenant_01500", "what is stale comes first"
    began = time.monotonic()
    page.click('th[data-sort="rows"] button')
    page.fill("#filter", "tenant_02")
    assert time.monotonic() - began < 2
    assert "of 1,000 that match, 3,000 in all" in text(page, "#shown")
    rows = page.eval_on_selector_all(
        "#rows tr td:nth-child(4)", "cells => cells.map(cell => Number(cell.textContent.replaceAll(',', '')))"
    )
    assert (
        rows
        == sorted(
            (table["rows_applied"] for table in served.document["tables"] if "tenant_02" in table["table"]),
            reverse=True,
        )[:100]
    )
    worst = page.evaluate(
        """async () => {
            let worst = 0, last = performance.now();
            const ticks = setInterval(() => {
                const now = performance.now(); worst = Math.max(worst, now - last); last = now;
            }, 10);
            document.dispatchEvent(new Event("visibilitychange"));  // asks and draws at once
            await new Promise((resolve) => setTimeout(resolve, 1000));
            clearInterval(ticks);
            return worst;
        }"""
    )
    assert worst < 500, "an update held the page up"
    page.select_option("#state", "stale")
    page.fill("#filter", "")
    assert len(page.query_selector_all("#rows tr")) == 1


def test_hostile_names_are_text_and_nothing_else(served: Served, look: Opener) -> None:
    served.document = documents.hostile()
    page = look(served.address, **PHONE)
    shows_all(page, served.document)
    assert page.query_selector("img") is None
    assert len(page.query_selector_all("script")) == 1
    assert page.title() == f"Degraded: table.stale, {documents.HOSTILE[0]} · shop"
    assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_the_policy_stops_markup_and_scripts_that_are_not_the_pages_own(served: Served, look: Opener) -> None:
    page = look(served.address, expect_failures=True)
    refused = page.evaluate(
        """async () => {
            const violations = [];
            document.addEventListener("securitypolicyviolation", event => violations.push(event.effectiveDirective));
            const script = document.createElement("script");
            let markup = "refused";
            try {
                document.body.insertAdjacentHTML("beforeend", "<img src=x onerror=\\"document.title='owned'\\">");
                markup = "taken";
            } catch (error) {}
            try { script.textContent = "document.title = 'owned'"; document.body.append(script); } catch (error) {}
            let elsewhere = "refused";
            try { await fetch("http://127.0.0.2:1/"); elsewhere = "asked"; } catch (error) {}
            await new Promise(resolve => setTimeout(resolve, 50));
            return [markup, elsewhere, violations, document.title];
        }"""
    )
    assert refused[0] == "refused"
    assert "connect-src" in refused[2]
    assert refused[3] == "Healthy · shop"


def test_the_page_needs_nothing_from_elsewhere_and_says_so_in_its_headers(served: Served) -> None:
    with urllib.request.urlopen(f"http://{served.address}/", timeout=10) as answer:
        content, headers = answer.read().decode(), answer.headers
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", content)
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert content.encode() == status_page.CONTENT
    assert "innerHTML" not in content
