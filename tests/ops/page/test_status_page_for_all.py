"""The status page is for everybody: on a phone, in the dark, by keyboard, by ear, and for nobody it
does nothing.
"""

import itertools
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.ops.page import documents
from tests.ops.page.conftest import PHONE, Opener, Served, clocked, next_update
from tests.support.extent import slow

pytestmark = slow

CONTRAST = Path(__file__).with_name("contrast.js").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "make",
    [documents.stale, documents.snapshots, documents.lost, documents.new, documents.troubled, documents.waiting],
    ids=lambda make: make.__name__,
)
def test_a_phone_needs_no_sideways_scrolling(make: Any, served: Served, look: Opener) -> None:
    served.document = make()
    page = look(served.address, **PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    assert (
        page.evaluate(
            "Math.min(...[...document.querySelectorAll('button:not([hidden]), input, "
            "select')].map(node => node.offsetHeight || 99))"
        )
        >= 24
    )


def test_dark_mode_is_dark_and_every_text_stands_out_in_both(served: Served, look: Opener) -> None:
    grounds = []
    for scheme, make in itertools.product(("light", "dark"), (documents.stale, documents.troubled)):
        served.document = make()
        page = look(served.address, color_scheme=scheme)
        page.click("#rows button")
        expect(page.locator("#table-past figure")).to_have_count(3)
        weak = page.evaluate(CONTRAST)
        assert not weak, f"{scheme}: {weak}"
        grounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(set(grounds)) == 2


def test_the_keyboard_reaches_filter_sort_and_pause_and_an_update_leaves_it_there(served: Served, look: Opener) -> None:
    served.document = documents.crowd(300)
    page = look(served.address, before=clocked)
    reached = []
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate(
                "document.activeElement.id || document.activeElement.parentElement.dataset.sort || "
                "document.activeElement.className"
            )
        )
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none", "the focus is visible"
    order = ["skip", "pause", "filter", "state", "name", "state", "lag"]
    assert [name for name in reached if name in order] == order
    page.focus('th[data-sort="lag"] button')
    page.keyboard.press("Enter")
    assert page.get_attribute('th[data-sort="lag"]', "aria-sort") == "descending"
    page.evaluate("scrollTo(0, 900)")
    before = page.evaluate("[document.activeElement.parentElement.dataset.sort, scrollY]")
    served.document = {**served.document, "pipeline": "shop two"}
    next_update(page)
    expect(page.locator("h1")).to_have_text("shop two")
    assert page.evaluate("[document.activeElement.parentElement.dataset.sort, scrollY]") == before
    page.focus("#pause")
    page.keyboard.press("Space")
    assert page.get_attribute("#pause", "aria-pressed") == "true"


def test_a_screen_reader_finds_landmarks_headings_names_and_only_hears_changes(served: Served, look: Opener) -> None:
    served.document = documents.stale()
    page = look(served.address, before=clocked)
    assert page.get_attribute("html", "lang") == "en"
    tree = page.locator("body").aria_snapshot()
    for wanted in (
        "- banner",
        "- main",
        "- contentinfo",
        'heading "shop" [level=1]',
        'region "Pipeline"',
        'region "Tables"',
        'region "Last errors"',
        'region "Lag and commits over the last two hours"',
        'searchbox "Name contains"',
    ):
        assert wanted in tree, tree
    assert 'table "Tables"' in tree
    assert 'table "WAL positions by stage"' in tree
    assert 'meter "WAL kept for the slot"' in tree
    levels = page.eval_on_selector_all("h1, h2, h3", "nodes => nodes.map(node => Number(node.tagName[1]))")
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels)), "no level is left out"
    page.evaluate(
        "heard = []; new MutationObserver(() => heard.push(announce.textContent)).observe(announce, "
        "{childList: true, characterData: true, subtree: true})"
    )
    served.document = {**served.document, "uptime_seconds": 999_999.0}
    next_update(page)
    expect(page.locator("[data-fact=uptime]")).to_contain_text("11 d")
    assert page.evaluate("heard") == [], "what is no change of state is not spoken"
    served.document = documents.lost()
    next_update(page)
    expect(page.locator("#announce")).to_have_text("Pipeline shop: Lost: slot.lost, slot sluice_shop")
    assert page.evaluate("heard") == ["Pipeline shop: Lost: slot.lost, slot sluice_shop"]


def test_a_page_that_nobody_sees_asks_nothing_and_asks_at_once_when_seen(served: Served, look: Opener) -> None:
    hide = (
        "(hidden) => { Object.defineProperty(document, 'hidden', {value: hidden, configurable: true}); "
        "document.dispatchEvent(new Event('visibilitychange')); }"
    )
    page = look(served.address, before=clocked)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.evaluate(hide, True)
    page.clock.run_for(60_000)
    assert not asked
    with page.expect_request("**/status"):
        page.evaluate(hide, False)
    assert asked[0].endswith("/status")
